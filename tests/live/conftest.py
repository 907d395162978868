"""The live lane's own: folders in memory, a watchdog that turns a hang into stacks, and counts at the end of the run."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.crash.harness import fast_dir

HANG_SECONDS = 3600 if LONG else 300

_counts: dict[str, int] = {}


@pytest.fixture
def base() -> Iterator[Path]:
    with fast_dir() as path:
        yield path


@pytest.fixture(autouse=True)
def _watchdog() -> Iterator[None]:
    """A test that hangs ends the run with every thread's stack."""
    with open(os.devnull, "w") as nowhere:
        out = _stderr or nowhere
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=out)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


_stderr: object | None = None


@pytest.fixture
def count(record_property: object) -> object:
    """`count("interrupts", 12)`: added up over the lane and printed at its end."""

    def add(what: str, number: int) -> None:
        record_property(f"live:{what}", number)  # type: ignore[operator]

    return add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown" or report.when == "call":
        for key, number in report.user_properties:
            if report.when == "call" and key.startswith("live:"):
                _counts[key[5:]] = _counts.get(key[5:], 0) + int(number)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _counts:
        told = ", ".join(f"{number} {what}" for what, number in sorted(_counts.items()))
        terminalreporter.write_line(f"LIVE: {told}")
