"""The tables of docs/reference/spark-options.md agree with the options and the defaults of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafkalog.spark import kafka_options, options, write_options
from kafkalog.spark.triggers import TriggerOptions

pytest.importorskip("pyarrow")

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "spark-options.md").read_text()


def table(title: str) -> dict[str, list[str]]:
    """Option -> the other cells of its row."""
    part = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_every_option_has_a_row() -> None:
    assert [*table("Reading")] != []
    assert {*table("Reading")} == {*options.KNOWN, *options.IGNORED}
    assert {*table("Writing")} == {*write_options.KNOWN, *write_options.IGNORED}


def test_what_is_ignored_and_refused() -> None:
    reading = table("Reading")
    assert {name for name, row in reading.items() if row[1:3] == ["ignored", "ignored"]} == {*options.IGNORED}
    assert {*kafka_options.OF_STREAMS} <= {name for name, row in reading.items() if row[1:3] == ["ignored", "yes"]}
    assert {*re.findall(r"`(kafka\.[a-z.]+)`", PAGE)} >= {
        *kafka_options.REFUSED_BY_SOURCE,
        *kafka_options.REFUSED_BY_SINK,
    }


def test_defaults() -> None:
    reading, writing = table("Reading"), table("Writing")
    made, triggers = options.parse_options({"path": "/a", "subscribe": "t"}), TriggerOptions()
    assert reading["maxBytesPerPartition"][0] == str(made.max_bytes_per_partition)
    assert reading["failOnDataLoss"][0] == f"`{str(made.fail_on_data_loss).lower()}`"
    assert reading["kafka.isolation.level"][0] == f"`{made.isolation}`"
    assert reading["replicas"][0] == f"`{made.replicas}`"
    assert reading["fetchOffset.numRetries"][0] == str(triggers.looks)
    assert reading["fetchOffset.retryIntervalMs"][0] == str(triggers.look_interval_ms)
    assert reading["maxTriggerDelay"][0] == "`15m`"
    assert triggers.max_delay_ms == 15 * 60_000
    sink = write_options.parse_sink_options({"path": "/a"})
    assert writing["kafka.max.block.ms"][0] == str(sink.max_block_ms)
    assert writing["durability"][0] == f"`{sink.durability}`"
    assert writing["numPartitions"][0] == str(sink.new_partitions)
