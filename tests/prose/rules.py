"""The rules of plain English that a program can check.

A sentence begins with its subject: not with "Of", "Those", "What" or another word of `OPENERS`.  It has no more than 35
words.  A question may begin with "What".  proselint adds its rules: archaisms, redundancy, clichés and others.  Nothing
here knows whether a sentence is true, or has a verb: people check that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proselint.checks import __register__
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from tests.prose.text import ROOT, Sentence, sentences

WORDS_MAX = 35
LABEL_WORDS_MAX = 4
OPENERS = re.compile(r"^[\"'(]*(of|those|what|whatever|whoever|whose|whomever)\b(?! course)", re.IGNORECASE)
WHOEVER = re.compile(r"\bwho(m)?ever\b", re.IGNORECASE)
# Code and numbers look like typography, repeated words and dates to proselint.
OFF = ("typography", "lexical_illusions", "dates_times", "uncomparables", "spelling")

CheckRegistry().register_many(__register__)
_CONFIG = {"max_errors": 10_000, "checks": {**DEFAULT["checks"], **dict.fromkeys(OFF, False)}}


@dataclass(frozen=True)
class Finding:
    path: Path
    sentence: Sentence
    rule: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        shown = self.sentence.text if len(self.sentence.text) < 160 else self.sentence.text[:157] + "..."
        return f"{path}:{self.sentence.line}: {self.sentence.kind}: {self.rule}: {shown}"


def broken(sentence: Sentence) -> Iterator[str]:
    """The names of the rules that a sentence breaks."""
    opener = OPENERS.match(sentence.text)
    is_label = sentence.kind == "cell" and sentence.words <= LABEL_WORDS_MAX  # a column's heading may be "What it does"
    if opener and not is_label and not sentence.text.rstrip("\"')").endswith("?"):
        yield f'opens with "{opener[1].lower()}"'
    if WHOEVER.search(sentence.text):
        yield 'has "whoever"'
    if sentence.words > WORDS_MAX:
        yield f"more than {WORDS_MAX} words"


def findings(path: Path) -> Iterator[Finding]:
    """Everything in a file that breaks a rule."""
    found = list(sentences(path))
    for sentence in found:
        for rule in broken(sentence):
            yield Finding(path, sentence, rule)
    # proselint reads a whole text: it also looks for words that are spelled in two ways.
    text = "\n\n".join(each.text for each in found)
    starts = [0]
    for each in found:
        starts.append(starts[-1] + len(each.text) + 2)
    for result in LintFile(content=text, source=str(path)).lint(_CONFIG) if text else ():
        at = result.check_result.span[0] - 1  # it puts a line break before the text
        number = max(index for index, start in enumerate(starts[:-1]) if start <= max(at, 0))
        yield Finding(path, found[number], f"proselint: {result.check_result.message}")
