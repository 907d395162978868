"""The line that reports what a plan reads, in the planning process; the bytes by which a stream lags."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark import plan_report
from kafkalog.spark.filters import Wanted
from kafkalog.spark.offsets import behind_latest
from kafkalog.spark.options import parse_options
from kafkalog.spark.packing import pack
from kafkalog.spark.plan_report import PlanReport
from kafkalog.spark.planning import plan

SMALL = {"internal.segment.bytes": "2000"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("logs")
    for topic in "abcd":
        for number in range(2):
            with kafkalog.open_log(found, f"{topic}-{number}", config=SMALL) as log:
                for n in range(40):
                    log.append(b"x" * 200, timestamp=n)
    with kafkalog.open_log(found, "a-2"):
        pass
    return found


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    level, handlers = plan_report.log.level, list(plan_report.log.handlers)
    monkeypatch.delenv(plan_report.SPARK_ASKS, raising=False)
    monkeypatch.delenv(plan_report.WE_ASK, raising=False)
    yield plan_report.log
    plan_report.log.setLevel(level)
    plan_report.log.handlers[:] = handlers


def line(root: Path, wanted: Wanted | None = None, **more: str) -> str:
    options = parse_options({"path": str(root), "subscribe": "a", **more})
    report = PlanReport(options.paths)
    tasks = pack(plan(options, wanted or Wanted(), report), options)
    return report.text(tasks)


def test_what_is_read_of_what_there_is(root: Path) -> None:
    sizes = [path.stat().st_size for number in range(3) for path in (root / f"a-{number}").glob("*.log")]
    whole = f"{sum(sizes) / 1024:.1f} KiB"
    segments = len(sizes)
    assert line(root) == (
        f"plan of a in {root}: 2 of 3 partitions, {segments - 1} of {segments} segments, {whole} of {whole}, 2 tasks"
    )
    one = line(root, Wanted(offset_min=39))
    assert f": 2 of 3 partitions, 2 of {segments} segments, " in one
    assert one.endswith(f" of {whole}, 2 tasks")
    assert line(root, Wanted(offset_min=40)).endswith(f"0 of 3 partitions, 0 of {segments} segments, 0 bytes of "
                                                      f"{whole}, 0 tasks")  # fmt: skip


def test_many_topics_are_told_by_some(root: Path) -> None:
    options = parse_options({"path": str(root), "subscribePattern": "[a-d]"})
    report = PlanReport(options.paths)
    tasks = pack(plan(options, report=report), options)
    assert report.text(tasks).startswith(f"plan of a, b, c and 1 more in {root}: 8 of 9 partitions, ")


def test_nobody_listens_unasked(root: Path, heard: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    PlanReport([str(root)]).tell([])
    assert heard.level == logging.NOTSET
    assert not caplog.records


@pytest.mark.parametrize("name", [plan_report.SPARK_ASKS, plan_report.WE_ASK])
def test_who_asks_hears_it(
    root: Path, heard: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv(name, "info")
    PlanReport([str(root)]).tell([])
    assert caplog.messages == [f"plan of no topic in {root}: 0 of 0 partitions, 0 of 0 segments, 0 bytes of 0 bytes, "
                               "0 tasks"]  # fmt: skip


def test_a_process_without_logging_writes_to_stderr() -> None:
    code = "from kafkalog.spark.plan_report import PlanReport as P; P(['/logs']).tell([]); P(['/logs']).tell([])"
    asking = {**_env(), "KAFKALOG_SPARK_LOG": "info"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=asking)
    assert ran.stderr.count(" INFO kafkalog.spark: plan of no topic in /logs: ") == 2
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=_env()).stderr == b""


def _env() -> dict[str, str]:
    own = {
        key: value for key, value in os.environ.items() if not key.startswith(("KAFKALOG_SPARK_LOG", "PYSPARK_SPARK"))
    }
    return {**own, "PYTHONPATH": str(Path(kafkalog.__file__).parents[1])}


def progress(read: dict[str, int], latest: dict[str, int]) -> dict[str, Any]:
    return {"endOffset": {"a": read}, "latestOffset": {"a": latest}}


def test_bytes_that_a_stream_is_behind(root: Path) -> None:
    sizes = {number: sum(path.stat().st_size for path in (root / f"a-{number}").glob("*.log")) for number in (0, 1)}
    record = sizes[0] // 40
    latest = {"0": 40, "1": 40}
    for read, expected in (
        ({"0": 40, "1": 40}, 0),
        ({"0": 0, "1": 40}, sizes[0]),
        ({"0": 39, "1": 30}, 11 * record),
        ({"0": 40}, sizes[1]),  # a new partition
    ):
        found = behind_latest(progress(read, latest), str(root))
        assert found["bytesBehindLatest"] == str(expected)
        assert found == behind_latest(progress(read, latest), [str(root)])
    other = shutil.copytree(root, root.with_name("another broker's"))
    both = behind_latest(progress({"0": 0, "1": 40}, latest), [str(root), str(other)])
    assert both["bytesBehindLatest"] == str(sizes[0])
    gone = behind_latest(progress({"9": 3}, {"9": 5}), str(root))
    assert (gone["maxOffsetsBehindLatest"], gone["bytesBehindLatest"]) == ("2", "0")
    assert behind_latest({"endOffset": None, "latestOffset": None}, str(root)) == {}
    with pytest.raises(IllegalArgumentException, match="expected a mounted directory"):
        behind_latest(progress({"0": 0}, latest), "s3://bucket/logs")
