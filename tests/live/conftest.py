"""Shared by live tests: directories in memory, a watchdog that prints stacks after a hang, counts at a run's end."""

from __future__ import annotations

import faulthandler
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.crash.harness import fast_dir
from tests.live.crew import close_what_was_left
from tests.sampling import LONG

HANG_SECONDS = 3600 if LONG else 300

_counts: dict[str, int] = {}
_stderr: TextIO | None = None


def pytest_configure(config: pytest.Config) -> None:
    """The watchdog writes where pytest writes, not where it keeps what tests print."""
    global _stderr
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        with capture.global_and_fixture_disabled():
            _stderr = os.fdopen(os.dup(2), "w")


def pytest_unconfigure() -> None:
    if _stderr is not None:
        _stderr.close()


@pytest.fixture
def base() -> Iterator[Path]:
    with fast_dir() as path:
        yield path
        close_what_was_left()


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


@pytest.fixture(autouse=True)
def _nothing_fails_in_the_background(request: pytest.FixtureRequest) -> Iterator[None]:
    """A background task only logs its error. Here such an error fails the test, unless the test is about it."""
    if request.node.get_closest_marker("logs_errors") is not None:
        yield
        return
    told = _Errors(logging.ERROR)
    logger = logging.getLogger("kafkalog")
    logger.addHandler(told)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(told)
        logger.setLevel(before)
    assert not told.lines, told.lines[:3]


class _Errors(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = repr(record.exc_info[1]) if record.exc_info else ""
        self.lines.append(f"{record.name}: {record.getMessage()} {cause}")


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
