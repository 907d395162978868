"""The names of kafkalog's metrics compared with those of Kafka's registry, and the arithmetic with that of its library.

The scenario `metrics` compares what the metrics of logs show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.files import ManualClock
from kafkalog.metrics import Meter, MetricName, Timer
from tests.conformance import kafka_jars, replay
from tests.conformance.compare import load_results

pytestmark = pytest.mark.jvm

ODD_DIR = 'log dir "a", *b?=1'  # needs quotes in JMX, and escapes inside the quotes


def results(driver: kafka_jars.Driver, work: Path, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Kafka's answers."""
    script = work / "script.jsonl"
    script.write_text("".join(json.dumps(operation) + "\n" for operation in operations))
    (work / "list").write_text(f"{script}\t{work / 'kafka'}\t{work / 'kafka.out'}\n")
    driver.run_many(work / "list")
    return load_results(work / "kafka.out")


def test_every_name_of_ours_is_one_of_kafkas(kafka_driver: kafka_jars.Driver, tmp_path: Path) -> None:
    operations: list[dict[str, Any]] = [
        {"op": "open", "dir": "logs", "topic_partition": "named.by-kafka_1-0", "config": {"max.message.bytes": "10"}},
        {"op": "append_leader", "batches": [{"codec": "none", "records": [{"ts": 0, "value_hex": "00"}]}]},
        {"op": "metrics", "topic": "named.by-kafka_1", "all": True},
    ]  # fmt: skip
    theirs = results(kafka_driver, tmp_path, operations)[-1]["result"]
    lines: list[str] = []
    assert replay.run_script(map(json.dumps, operations), tmp_path / "ours", lines.append)
    ours = json.loads(lines[-1])["result"]
    assert len(ours) == 5 + 1 + 5 + 1  # gauges of the log, the timer, meters of all topics and of this one
    assert set(ours) <= set(theirs)
    # A log's metrics are complete; the broker's are limited to those that the log marks.
    rest = {name.removesuffix(",topic=named.by-kafka_1") for name in set(theirs) - set(ours)}
    assert all(name.startswith("kafka.server:type=BrokerTopicMetrics,name=") for name in rest), rest


def test_a_directory_is_quoted_as_jmx_does(kafka_driver: kafka_jars.Driver, tmp_path: Path) -> None:
    operations: list[dict[str, Any]] = [
        {"op": "lm_open", "dirs": [ODD_DIR, "plain"], "now_ms": 0},
        {"op": "metrics", "types": "LogManager"},
        {"op": "lm_shutdown"},
    ]
    theirs = results(kafka_driver, tmp_path, operations)[1]["result"]
    for folder in (ODD_DIR, "plain"):
        for name in ("LogDirectoryOffline", "LogDirectoryCordoned"):
            path = str(tmp_path / "kafka" / folder)
            ours = MetricName.of("kafka.log", "LogManager", name, {"logDirectory": path})
            assert ours.object_name in theirs, sorted(theirs)
    for name in ("OfflineLogDirectoryCount", "CordonedLogDirectoryCount"):
        assert MetricName.of("kafka.log", "LogManager", name).object_name in theirs


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_timers_and_rates_are_those_of_kafkas_library(
    kafka_driver: kafka_jars.Driver, tmp_path: Path, count: int
) -> None:
    durations_ns = [(each * 7_919_777) % 90_000_011 for each in range(count)]
    marks = [(each * 31) % 17 if each % 5 else 0 for each in range(40)]
    operation = {"op": "yammer", "durations_ns": durations_ns, "marks": marks}
    theirs = results(kafka_driver, tmp_path, [operation])[0]["result"]
    clock = ManualClock()
    timer, meter = Timer(clock), Meter("bytes", clock)
    for ns in durations_ns:
        timer.update(ns)
    value = timer.value
    for name in ("count", "min", "max", "mean", "std_dev", "sum"):
        assert getattr(value, name) == pytest.approx(theirs["timer"][name]), name
    assert list(value.percentiles.values()) == pytest.approx(theirs["timer"]["percentiles"])
    for mark, rates in zip(marks, theirs["rates"], strict=True):
        meter.mark(mark)
        clock.advance(5_000)
        found = meter.value
        assert [found.one_minute_rate, found.five_minute_rate, found.fifteen_minute_rate] == pytest.approx(rates)
