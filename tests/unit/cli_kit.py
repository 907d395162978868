"""Shared by tests of commands: a call of the command line, and directories that real Kafka left."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.cli.app import invoke

SCENARIOS = Path(__file__).parents[1] / "conformance" / "scenarios"


class Result:
    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code, self.octets, self.err = code, out, err
        self.out = out.decode(errors="replace")
        self.lines = self.out.splitlines()

    @property
    def rows(self) -> list[str]:
        """The first table's lines, without its head; an empty line ends it."""
        return self.lines[1 : self.lines.index("") if "" in self.lines else None]


Run = Callable[..., Result]


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*argv: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = invoke([str(arg) for arg in argv])
        out, err = capsysbinary.readouterr()
        return Result(code, out, err.decode())

    return call


def of_kafka(scenario: str, place: Path) -> Path:
    """A copy of the log directory that Apache Kafka 4.4.0 left after a scenario."""
    return Path(shutil.copytree(SCENARIOS / scenario / "final" / "logs", place / "logs"))
