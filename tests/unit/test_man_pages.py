"""Man pages, generated from the commands' help; `tests/live/test_man.py` shows them with man."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafkalog.cli.app import CLEAN, COMMANDS, USAGE
from kafkalog.cli.man_pages import _paragraphs, _text, main, man_pages
from tests.unit.cli_kit import Run, run

__all__ = ["run"]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(man_pages())


def test_a_page_for_each_command(pages: dict[str, str]) -> None:
    assert {"kafkalog.1", *(f"kafkalog-{name}.1" for name in COMMANDS)} <= set(pages)
    assert {"kafkalog-tier-list.1", "kafkalog-spark-verify.1", "kafkalog-transactions-abort.1"} <= set(pages)
    assert "kafkalog-transactions-show.1" not in pages
    for name, text in pages.items():
        lines = text.splitlines()
        assert lines[0].startswith('.TH "KAFKALOG'), name
        sections = [line[4:] for line in lines if line.startswith(".SH")]
        assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"], name
        assert sections[-1] == "SEE ALSO", name
        assert "\b" not in text
        assert all(line.isascii() for line in lines), name
        for line in lines:  # nothing but our own requests begins as one
            assert re.match(r"\.(TH|SH|TP|PP|B|BR|nf|fi|nh|ad)\b|[^.']", line) or not line, (name, line)


def test_options_are_those_of_the_help(run: Run, pages: dict[str, str]) -> None:
    for name in ("cat", "transactions", "cursors"):
        shown = set(re.findall(r"(?m)^  (?:-\w, )?(--[a-z-]+)", run(name, "--help").out))
        told = set(re.findall(r"(?m)^\.B (?:\\-\w, )?([^\s,]+)", pages[f"kafkalog-{name}.1"]))
        assert shown <= {each.replace("\\-", "-") for each in told}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--key 'a'", r"\-\-key \(aqa\(aq"),
        (".TH x", r"\&.TH x"),
        (r"%o %k\n", r"%o %k\en"),
        ('say "x" `y` ~^', r"say \(dqx\(dq \(gay\(ga \(ti\(ha"),
        ("", ""),
    ],
)
def test_what_troff_would_take_for_its_own(text: str, expected: str) -> None:
    assert _text(text) == expected


def test_paragraphs() -> None:
    text = "First\nline.\n\n\b\n  kept: as\n    it is\n\nLast."
    assert list(_paragraphs(text)) == [
        "First line.",
        ".PP",
        ".nf",
        r"  kept: as",
        r"    it is",
        ".fi",
        ".PP",
        "Last.",
    ]


def test_a_folder_of_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert main([str(tmp_path / "man" / "man1")]) == CLEAN
    found = sorted(path.name for path in (tmp_path / "man" / "man1").iterdir())
    assert found == sorted(name for name, _ in man_pages())
    assert f"{len(found)} pages in" in capsys.readouterr().out
    assert '" 1 2023-11-14 "' in (tmp_path / "man" / "man1" / "kafkalog.1").read_text()
    for argv in ([], ["--help"], ["a", "b"]):
        assert main(argv) == USAGE
