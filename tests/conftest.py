"""Shared by every test: detects the tools of this machine, and reports the tests that were skipped for lack of them.

Tests marked `jvm`, `spark` or `broker` need a JDK (and `jvm`, `broker` Maven too).  If a tool is missing, they are
skipped and named in the last lines of the run; with CI=true that is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from typing import NoReturn

import pytest

from tests.durations import ROOT, seconds_of
from tests.sampling import LANES_SECONDS, LONG, SEED, lanes_of_the_day

SHORT_FOLDERS = ("unit", "golden", "property")
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

_left_out: dict[str, int] = {}


def pytest_configure() -> None:
    # A shell has its background jobs ignore Ctrl-C, and their children inherit that: those of the tests must not.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    some = "" if LANES_SECONDS is None else f" KAFKALOG_LANES_SECONDS={LANES_SECONDS}"
    return f"samples: {'all, KAFKALOG_LONG=1' if LONG else f'KAFKALOG_SEED={SEED}{some}'}"


def missing_tool(marker: str) -> str | None:
    """Why tests with this marker can't run here, or None."""
    if marker == "browser":
        return None if shutil.which("chromium") else "no browser (`chromium` is not on the PATH)"
    if shutil.which("java") is None:
        return "no JDK (`java` is not on the PATH)"
    if marker in ("jvm", "broker") and (shutil.which("mvn") is None or shutil.which("javac") is None):
        return "no Maven with a JDK (`mvn` and `javac` must be on the PATH)"
    if marker == "broker" and None in map(importlib.util.find_spec, ("confluent_kafka", "kafka", "pyarrow")):
        return "no Kafka clients (pip install --group peers, and kafkalog[arrow])"
    if marker == "spark" and importlib.util.find_spec("pyspark") is None:
        return "no PySpark (pip install kafkalog[spark])"
    return None


def leave_out(reason: object) -> NoReturn:
    """Skips what needs a tool that is not here; in CI that is a failure."""
    if IN_CI:
        pytest.fail(f"CI runs everything, but there is {reason}")
    pytest.skip(f"left out: {reason}")


def need_broker() -> None:
    """Skips fixtures of modules that start a broker: they run before the markers of the tests are checked."""
    reason = missing_tool("broker")
    if reason is not None:
        leave_out(reason)


def _leave_to_other_days(config: pytest.Config, items: list[pytest.Item], limit: int) -> None:
    """Runs only the day's files of those with long tests; `make nightly` runs all."""

    def name(item: pytest.Item) -> str:
        return item.path.relative_to(ROOT).as_posix()

    long = [each for each in items if each.path.parent.name not in SHORT_FOLDERS and seconds_of(each.path)]
    lanes = {name(each): seconds_of(each.path) for each in long}
    todays = lanes_of_the_day(lanes, limit)
    gone = [each for each in long if name(each) not in todays]
    items[:] = [each for each in items if name(each) in todays or name(each) not in lanes]
    config.hook.pytest_deselected(items=gone)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if LANES_SECONDS is not None:
        _leave_to_other_days(config, items, LANES_SECONDS)
    # Long files begin first: otherwise one could run alone at the end, when the other workers have nothing left.
    items.sort(key=lambda item: -seconds_of(item.path))
    for item in items:
        for marker in ("jvm", "spark", "broker", "browser"):
            if item.get_closest_marker(marker) is None:
                continue
            reason = missing_tool(marker)
            if reason is not None:
                item.add_marker(pytest.mark.usefixtures("_needs_missing_tool"))
                item.user_properties.append(("missing_tool", reason))


@pytest.fixture
def _needs_missing_tool(request: pytest.FixtureRequest) -> None:
    reason = dict(request.node.user_properties)["missing_tool"]
    leave_out(reason)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        reason = dict(report.user_properties).get("missing_tool")
        if reason is not None:
            _left_out[str(reason)] = _left_out.get(str(reason), 0) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason, count in sorted(_left_out.items()):
        terminalreporter.write_line(f"LEFT OUT: {count} tests, because there is {reason}", yellow=True, bold=True)


@pytest.fixture(scope="session", autouse=True)
def _spark_uses_this_python() -> None:
    import sys

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
