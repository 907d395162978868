"""The rules of plain English find sentences that break them (`make lint` applies them), and user pages read easily."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.prose.ease import EASE_MIN, reading_ease
from tests.prose.rules import WORDS_MAX, broken
from tests.prose.text import ROOT, Sentence, sentences

EASY = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
]


@pytest.mark.parametrize("page", EASY, ids=lambda path: path.stem)
def test_pages_for_users_read_easily(page: Path) -> None:
    assert reading_ease(page) >= EASE_MIN


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Of those, the last one counts.", 'opens with "of"'),
        ("What it holds.", 'opens with "what"'),
        ("Those that are left stay.", 'opens with "those"'),
        ("It tells whoever asks.", 'has "whoever"'),
        ("word " * (WORDS_MAX + 1), f"more than {WORDS_MAX} words"),
    ],
)
def test_the_rules_find_what_they_are_for(text: str, rule: str) -> None:
    assert [*broken(Sentence(1, "comment", text))] == [rule]


@pytest.mark.parametrize("text", ["What does it hold?", "It holds those.", "Of course it does.", "word " * WORDS_MAX])
def test_the_rules_let_good_sentences_pass(text: str) -> None:
    assert [*broken(Sentence(1, "comment", text))] == []


def test_all_kinds_of_text_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""Holds things.\n\n    code = 1  # of no interest\n\nArgs:\n    count: Of them.\n"""\n'
        "raise ValueError(f'what is {1} here')\n# Those of\n# two lines.\n"
    )
    assert [(each.line, each.kind, each.text) for each in sentences(module)] == [
        (1, "docstring", "Holds things."),
        (6, "docstring", "Of them."),
        (8, "message", "what is X here"),
        (9, "comment", "Those of two lines."),
    ]
    page = tmp_path / "page.md"
    page.write_text(
        "# What it is\n\nOne `a b c` [word](of.md).\nTwo.\n\n```sh\nwhat\n```\n\n| of | b |\n|--|--|\n- those\n"
    )
    assert [(each.line, each.text) for each in sentences(page)] == [
        (3, "One CODE word."),
        (4, "Two."),
        (10, "of"),
        (10, "b"),
        (12, "those"),
    ]


def test_the_command_lists_what_it_finds(tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_text("Of those, one stays for ever.\n")
    (tmp_path / "good.md").write_text("One of those stays forever.\n")
    command = [sys.executable, "-m", "tests.prose"]
    good = subprocess.run([*command, str(tmp_path / "good.md")], cwd=ROOT, capture_output=True, text=True)
    assert (good.returncode, good.stdout.count("\n")) == (0, 1)
    bad = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert bad.returncode == 1
    assert 'bad.md:1: page: opens with "of"' in bad.stdout
    assert "proselint: 'for ever' is archaic" in bad.stdout
