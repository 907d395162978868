"""The stream's reader without a session, called as Spark calls it: its start, the end of each trigger, the rows of a
batch."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    UnknownTopicOrPartitionException,
    UnsupportedOperationException,
)
from kafkalog.spark.offsets import behind_latest, flat, nested
from kafkalog.spark.triggers import parse_triggers
from tests.spark.stream_kit import (
    SMALL,
    START_MS,
    batches,
    begin,
    delete_oldest,
    expected,
    fill,
    next_end,
    reader,
    records,
)

pytestmark = pytest.mark.spark

# --- where it starts ------------------------------------------------------------------------------------


def test_the_default_start_is_latest(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 30)
    stream = reader(tmp_path)
    start = begin(stream)
    assert start == {"t": {"0": 30}}
    assert next_end(stream, start) == start
    fill(tmp_path, "t-0", 5)
    assert list(batches(stream, start)) == [expected((0, 30, 35))]


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "earliest"}, {"0": 0, "1": 0}),
        ({"startingOffsets": '{"t":{"0":7,"1":-1}}'}, {"0": 7, "1": 20}),
        ({"startingOffsets": '{"t":{"0":-2,"1":3}}'}, {"0": 0, "1": 3}),
        ({"startingTimestamp": START_MS + 11}, {"0": 11, "1": 11}),
        ({"startingOffsetsByTimestamp": json.dumps({"t": {"0": START_MS + 25, "1": START_MS}})}, {"0": 25, "1": 0}),
        ({"startingTimestamp": START_MS + 25, "startingOffsetsByTimestampStrategy": "latest"}, {"0": 25, "1": 20}),
    ],
)
def test_starts(tmp_path: Path, options: dict[str, Any], start: dict[str, int]) -> None:
    fill(tmp_path, "t-0", 30)
    fill(tmp_path, "t-1", 20)
    stream = reader(tmp_path, **options)
    assert begin(stream) == {"t": start}
    left = expected((0, start["0"], 30), (1, start["1"], 20))
    assert [row for batch in batches(stream, {"t": start}) for row in batch] == left


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"latest": "true"}, "option latest is not valid in streaming queries"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":1}}'}, "ending timestamp not valid in streaming queries"),
        ({"endingTimestamp": "1"}, "ending timestamp not valid in streaming queries"),
        (
            {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
            r"The value of minOffsetPerTrigger\(11\) is higher than the maxOffsetsPerTrigger\(10\)",
        ),
        ({"maxOffsetsPerTrigger": "many"}, "option maxOffsetsPerTrigger is 'many'"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger is '0'"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay is 'soon'"),
    ],
)
def test_refused_options(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text):
        reader(tmp_path, **options)


def test_an_old_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog.spark.source import KafkalogDataSource

    monkeypatch.setitem(sys.modules, "kafkalog.spark.streaming", None)  # as where its imports fail
    stream = KafkalogDataSource({"path": "/logs", "subscribe": "t"}).streamReader(None)
    with pytest.raises(UnsupportedOperationException, match=r"need PySpark 4\.2 or newer, this is"):
        stream.initialOffset()


def test_refused_at_the_start(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 3)
    fill(tmp_path, "t-1", 3)
    with pytest.raises(IllegalArgumentException, match="you must specify all TopicPartitions: missing t-1"):
        reader(tmp_path, startingOffsets='{"t":{"0":1}}').initialOffset()
    with pytest.raises(IllegalArgumentException, match="No offset matched from request of topic-partition t-0"):
        reader(tmp_path, startingTimestamp=START_MS + 99).initialOffset()
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic u"):
        reader(tmp_path, subscribe="t,u").initialOffset()
    with pytest.raises(IllegalArgumentException, match="the checkpoint may be of another source"):
        reader(tmp_path).latestOffset({"t": 5}, None)


# --- how far a trigger goes -----------------------------------------------------------------------------


def test_max_offsets_are_spread_in_proportion(tmp_path: Path) -> None:
    for partition, count in enumerate((1, 10, 100)):
        fill(tmp_path, f"t-{partition}", count)
    stream = reader(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    taken = list(batches(stream, begin(stream)))
    # As Spark's Kafka source: something of each, the rest in proportion, rounded down.
    assert taken[0] == expected((0, 0, 1), (1, 0, 1), (2, 0, 9))
    assert all(len(batch) <= 12 for batch in taken)
    assert sorted(row for batch in taken for row in batch) == expected((0, 0, 1), (1, 0, 10), (2, 0, 100))


def test_huge_max_offsets(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 25)
    stream = reader(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=2**63 - 1)
    assert list(batches(stream, begin(stream))) == [expected((0, 0, 25))]


def test_min_offsets_wait_for_more_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog.spark import streaming

    now = [1_000_000.0]
    monkeypatch.setattr(streaming.time, "time", lambda: now[0])
    fill(tmp_path, "t-0", 5)
    stream = reader(tmp_path, startingOffsets="earliest", minOffsetsPerTrigger=10)
    start = begin(stream)
    start = next_end(stream, start)
    assert start == {"t": {"0": 5}}  # the first trigger waits for nothing
    fill(tmp_path, "t-0", 9)
    assert next_end(stream, start) == start
    now[0] += 14 * 60
    assert next_end(stream, start) == start
    fill(tmp_path, "t-0", 1)
    assert next_end(stream, start) == {"t": {"0": 15}}
    fill(tmp_path, "t-0", 1)
    start = {"t": {"0": 15}}
    assert next_end(stream, start) == start
    now[0] += 15 * 60
    assert next_end(stream, start) == {"t": {"0": 16}}


@pytest.mark.parametrize(("delay", "ms"), [("250ms", 250), ("3s", 3000), ("2m", 120_000), ("1h", 3_600_000), ("7", 7)])
def test_trigger_delays(delay: str, ms: int) -> None:
    assert parse_triggers({"MAXTRIGGERDELAY": delay}).max_delay_ms == ms
    assert parse_triggers({}).max_delay_ms == 15 * 60_000


def test_min_and_max_offsets_together(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 35)
    stream = reader(tmp_path, startingOffsets="earliest", minOffsetsPerTrigger=10, maxOffsetsPerTrigger=20)
    start = begin(stream)
    assert list(batches(stream, start)) == [expected((0, 0, 20)), expected((0, 20, 35))]
    assert stream.reportLatestOffset() == {"t": {"0": 35}}
    fill(tmp_path, "t-0", 9)
    assert next_end(stream, {"t": {"0": 35}}) == {"t": {"0": 35}}


def log_bytes(root: Path, partition: str) -> int:
    return sum(path.stat().st_size for path in (root / partition).glob("*.log"))


@pytest.mark.parametrize("limit", [1, 1500, 9000, 10**9])
def test_max_bytes_takes_whole_batches(tmp_path: Path, limit: int) -> None:
    fill(tmp_path, "t-0", 300, config=SMALL)
    fill(tmp_path, "t-1", 40)
    batch_bytes = log_bytes(tmp_path, "t-1") // 4
    stream = reader(tmp_path, startingOffsets="earliest", maxBytesPerTrigger=limit)
    taken = list(batches(stream, begin(stream)))
    assert sorted(row for batch in taken for row in batch) == expected((0, 0, 300), (1, 0, 40))
    for number, batch in enumerate(taken):
        assert len(batch) % 10 == 0
        assert len(batch) // 10 * batch_bytes <= max(limit, batch_bytes)
        if number + 1 < len(taken) and limit > 9 * batch_bytes:
            assert len(batch) // 10 * batch_bytes > limit - 3 * batch_bytes  # and not much less


def test_max_bytes_beside_max_offsets(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 100)
    stream = reader(tmp_path, startingOffsets="earliest", maxBytesPerTrigger=3000, maxOffsetsPerTrigger=15)
    taken = list(batches(stream, begin(stream)))
    assert {len(batch) for batch in taken[:-1]} == {15}
    stream = reader(tmp_path, startingOffsets="earliest", maxBytesPerTrigger=800, maxOffsetsPerTrigger=15)
    taken = list(batches(stream, begin(stream)))
    assert {len(batch) for batch in taken} == {10}
    assert [row for batch in taken for row in batch] == expected((0, 0, 100))


def test_all_at_once_ignores_limits(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    fill(tmp_path, "t-0", 50)
    stream = reader(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=5, maxBytesPerTrigger=5)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())  # Trigger.Once: one batch, the first
    assert records(stream, start, end) == expected((0, 0, 50))
    again = reader(tmp_path, startingOffsets="earliest")  # killed in it, and started again
    assert records(again, again.initialOffset(), end) == expected((0, 0, 50))


def test_available_now_ends_where_it_began(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 50)
    stream = reader(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=20, minOffsetsPerTrigger=20)
    stream.prepareForTriggerAvailableNow()
    start = begin(stream)
    fill(tmp_path, "t-0", 50)
    fill(tmp_path, "t-1", 50)
    assert [row for batch in batches(stream, start) for row in batch] == expected((0, 0, 50))
    again = reader(tmp_path)
    again.prepareForTriggerAvailableNow()
    left = [row for batch in batches(again, {"t": {"0": 50}}) for row in batch]
    assert left == expected((0, 50, 100), (1, 0, 50))


def test_ranges_are_cut_for_many_tasks(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 300, config=SMALL)
    start, end = {"t": {"0": 15}}, {"t": {"0": 295}}
    for options in ({"minPartitions": 7}, {"maxBytesPerPartition": 2000}, {"maxRecordsPerPartition": 40}):
        stream = reader(tmp_path, **options)
        assert len(stream.partitions(start, end)) >= 7
        assert records(stream, start, end) == expected((0, 15, 295))


# --- after a crash --------------------------------------------------------------------------------------


def test_a_crash_in_the_first_batch_starts_where_it_started(tmp_path: Path) -> None:
    """The first batch puts the initial offsets into the checkpoint.

    A second process that finds it unfinished computes its offsets again, and "latest" has moved."""
    fill(tmp_path, "t-0", 30)
    start = begin(reader(tmp_path))
    fill(tmp_path, "t-0", 30)
    fill(tmp_path, "t-1", 10)
    again = reader(tmp_path)
    assert again.partitions(start, start) == []  # Spark says first what it saw last
    assert again.initialOffset() == {"t": {"0": 60, "1": 10}}
    assert records(again, again.initialOffset(), start) == []
    assert list(batches(again, start)) == [expected((0, 30, 60), (1, 0, 10))]


def test_a_batch_is_the_same_again(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 30)
    stream = reader(tmp_path, startingOffsets="earliest")
    start = begin(stream)
    end = next_end(stream, start)
    fill(tmp_path, "t-0", 30)
    assert records(reader(tmp_path), start, end) == records(stream, start, end) == expected((0, 0, 30))


def test_what_retention_took_before_the_first_batch_was_done_is_missed(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 300, config=SMALL)
    start = begin(reader(tmp_path, startingOffsets="earliest"))
    first = delete_oldest(tmp_path / "t-0", 2)
    again = reader(tmp_path, startingOffsets="earliest")
    assert again.initialOffset() == {"t": {"0": first}}
    assert records(again, again.initialOffset(), start) == []
    with pytest.raises(IllegalStateException, match=f"Starting offset for t-0 was 0 but the log starts at {first}"):
        list(batches(again, start))


# --- the progress report --------------------------------------------------------------------------------


def test_lag() -> None:
    source = {"endOffset": {"t": {"0": 5, "1": 7}}, "latestOffset": {"t": {"0": 10, "1": 7, "2": 1}}}
    behind = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "5", "avgOffsetsBehindLatest": "2.0"}
    assert behind_latest(source) == behind
    assert behind_latest({name: json.dumps(each) for name, each in source.items()}) == behind
    assert behind_latest({"endOffset": None, "latestOffset": None}) == {}


def test_offsets_are_written_in_order() -> None:
    offsets = flat({"b": {"10": 1, "9": 2}, "a": {"0": 3}})
    assert json.dumps(nested(offsets)) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


def test_new_reader_pickles_small(tmp_path: Path) -> None:
    """It goes to every task."""
    import pickle

    assert len(pickle.dumps(reader(tmp_path))) < 2000
    logging.getLogger("kafkalog.spark").debug("pickled")
