"""What the stream's reader answers Spark, asked as Spark asks it, without a session: how far a trigger goes, what a
batch consists of, what it says of what is gone."""

from __future__ import annotations

import json
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
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    UnknownTopicOrPartitionException,
    UnsupportedOperationException,
)
from kafkalog.spark.offsets import behind_latest, flat, nested
from kafkalog.spark.options import parse_options
from kafkalog.spark.triggers import parse_triggers

pytestmark = pytest.mark.spark

SMALL = {"internal.segment.bytes": "4000", "index.interval.bytes": "500"}
QUICK = {"fetchOffset.retryIntervalMs": "1"}
START_MS = 1_700_000_000_000


def fill(root: Path | str, partition: str, count: int, *, batch: int = 10, **options: Any) -> None:
    with kafkalog.open_log(root, partition, **options) as log:
        for first in range(0, count, batch):
            end = log.end_offset
            log.append_many([value(end + n) for n in range(min(batch, count - first))])


def value(offset: int) -> tuple[bytes, None, list[Any], int]:
    return b"%06d" % offset + b"x" * 50, None, [], START_MS + offset


def reader(root: Path | str, **given: Any) -> Any:
    from kafkalog.spark.streaming import KafkalogStreamReader

    if not {"assign", "subscribePattern"} & set(given):
        given = {"subscribe": "t"} | given
    options = QUICK | {"path": str(root)} | {name.replace("__", "."): str(each) for name, each in given.items()}
    return KafkalogStreamReader(
        parse_options(options, streaming=True), parse_triggers(options), ("partition", "offset", "value")
    )


def records(stream: Any, start: Any, end: Any) -> list[tuple[int, int]]:
    """(partition, offset) of the records of a batch, by one task after the other."""
    found = []
    for task in stream.partitions(through_json(start), through_json(end)):
        for batch in stream.read(task):
            found += list(zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True))
    return found


def through_json(offsets: Any) -> Any:
    return json.loads(json.dumps(offsets))


def begin(stream: Any) -> Any:
    """The initial offsets, after the first batch, which has them as its start and its end."""
    start = stream.initialOffset()
    assert through_json(stream.latestOffset(through_json(start), stream.getDefaultReadLimit())) == start
    assert stream.partitions(start, start) == []
    return through_json(start)


def next_end(stream: Any, start: Any) -> Any:
    return through_json(stream.latestOffset(start, stream.getDefaultReadLimit()))


def batches(stream: Any, start: Any) -> Iterator[list[tuple[int, int]]]:
    """The records of each batch until there is none."""
    while (end := next_end(stream, start)) != start:
        yield records(stream, start, end)
        start = end


def expected(*ranges: tuple[int, int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, first, end in ranges for offset in range(first, end)]


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
    with pytest.raises(UnsupportedOperationException, match=r"with PySpark 4\.2 or newer, this is"):
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
    with pytest.raises(IllegalArgumentException, match="is the checkpoint of another source"):
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
    again = reader(tmp_path, startingOffsets="earliest")  # killed in it, and started anew
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
    """The first batch puts the initial offsets into the checkpoint.  A second process that finds it unfinished is asked
    for them anew, and "latest" has moved."""
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


# --- what comes and goes --------------------------------------------------------------------------------


def delete_oldest(folder: Path, count: int) -> int:
    """As retention does; where the log starts then."""
    for path in sorted(folder.glob("*.log"))[:count]:
        for each in folder.glob(path.stem + ".*"):
            each.unlink()
    return int(min(folder.glob("*.log")).stem)


def test_new_partitions_and_topics_are_read_from_their_start(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 10)
    stream = reader(tmp_path, subscribePattern="t.*", maxOffsetsPerTrigger=1000)
    start = begin(stream)
    assert start == {"t": {"0": 10}}
    fill(tmp_path, "t-1", 20)
    fill(tmp_path, "tt-0", 5)
    fill(tmp_path, "u-0", 5)
    end = next_end(stream, start)
    assert end == {"t": {"0": 10, "1": 20}, "tt": {"0": 5}}
    assert records(stream, start, end) == expected((1, 0, 20), (0, 0, 5))


def test_a_new_partition_that_has_lost_its_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, "t-0", 10)
    start = {"t": {"0": 10}}
    fill(tmp_path, "t-1", 300, config=SMALL)
    first = delete_oldest(tmp_path / "t-1", 1)
    with pytest.raises(IllegalStateException, match=f"Added partition t-1 starts from {first} instead of 0"):
        list(batches(reader(tmp_path), start))
    assert list(batches(reader(tmp_path, failOnDataLoss="false"), start)) == [expected((1, first, 300))]
    assert f"Added partition t-1 starts from {first} instead of 0" in caplog.text


def test_partitions_that_are_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("t-0", "t-1"):
        fill(tmp_path, name, 10)
    start = {"t": {"0": 5, "1": 5}}
    for fail in ("true", "false"):
        streams = [reader(tmp_path, failOnDataLoss=fail), reader(tmp_path, failOnDataLoss=fail)]
        before = next_end(streams[0], start)
        (tmp_path / "t-1").rename(tmp_path / f"t-1.{'0' * 32}-delete")
        after = next_end(streams[1], start)
        assert after == {"t": {"0": 10}}
        asked = [(streams[0], before), (streams[1], after), (reader(tmp_path, failOnDataLoss=fail), before)]
        for stream, end in asked:  # while it is planned; before; before a restart
            if fail == "true":
                with pytest.raises(IllegalStateException, match=r"Partitions t-1 have been deleted\."):
                    records(stream, start, end)
            else:
                assert records(stream, start, end) == expected((0, 5, 10))
        (tmp_path / f"t-1.{'0' * 32}-delete").rename(tmp_path / "t-1")
    assert "Partitions t-1 have been deleted." in caplog.text


def test_a_topic_that_is_gone(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 10)
    fill(tmp_path, "u-0", 10)
    stream = reader(tmp_path, subscribe="t,u")
    start = begin(stream)
    shutil.rmtree(tmp_path / "u-0")
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic u"):
        next_end(stream, start)


def test_retention_under_a_running_query(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 300, config=SMALL)
    stream = reader(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger=20)
    start = begin(stream)
    first = delete_oldest(tmp_path / "t-0", 3)
    end = next_end(stream, start)
    with pytest.raises(IllegalStateException, match="set the source option failOnDataLoss to false") as caught:
        stream.partitions(start, end)
    assert f"Starting offset for t-0 was 0 but the log starts at {first}" in str(caught.value)
    going_on = reader(tmp_path, failOnDataLoss="false", maxOffsetsPerTrigger=20)
    rows = [row for batch in batches(going_on, start) for row in batch]
    assert rows == expected((0, first, 300))


def test_delete_records_under_a_running_query(tmp_path: Path) -> None:
    """The log's start moves within a segment: only the checkpoint says it."""
    fill(tmp_path, "t-0", 100)
    stream = reader(tmp_path, failOnDataLoss="false")
    start = {"t": {"0": 20}}
    end = next_end(stream, start)
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.delete_records(60)
    assert records(stream, start, end) == expected((0, 60, 100))


def test_retention_between_the_plan_and_the_task(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 300, config=SMALL)
    start, end = {"t": {"0": 0}}, {"t": {"0": 300}}
    for fail in ("true", "false"):
        stream = reader(tmp_path, failOnDataLoss=fail)
        (task,) = reader(tmp_path).partitions({"t": {"0": int(min((tmp_path / "t-0").glob("*.log")).stem)}}, end)
        first = delete_oldest(tmp_path / "t-0", 1)
        if fail == "true":
            with pytest.raises(IllegalStateException, match="Some data may have been lost"):
                list(stream.read(task))
        else:
            offsets = [offset for batch in stream.read(task) for offset in batch.column("offset").to_pylist()]
            assert offsets == list(range(first, 300))
    assert start


def test_compaction_between_the_plan_and_the_task(tmp_path: Path) -> None:
    """Segments are put together and their files change place; batches of one size, so that wrong bytes look right."""
    policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "index.interval.bytes": "500"}
    with kafkalog.open_log(tmp_path, "t-0", config=policy | {"internal.segment.bytes": "4000"}) as log:
        for n in range(600):
            log.append(value(n)[0], key=b"%03d" % (n if n % 2 else 0), timestamp=START_MS)
    end = {"t": {"0": 600}}
    plans = {start: reader(tmp_path).partitions({"t": {"0": start}}, end) for start in (0, 7, 311, 590)}
    before = len(list((tmp_path / "t-0").glob("*.log")))
    with kafkalog.open_log(tmp_path, "t-0", config=policy | {"internal.segment.bytes": "40000"}) as log:
        log.compact()
        left = [record.offset for record in log.records()]
    assert len(left) < 350
    assert len(list((tmp_path / "t-0").glob("*.log"))) < before
    for start, (task,) in plans.items():
        batches = list(reader(tmp_path).read(task))
        offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert offsets == [offset for offset in left if offset >= start]


def test_truncation_under_a_running_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, "t-0", 100)
    start = {"t": {"0": 80}}
    stream = reader(tmp_path)
    planned_end = next_end(stream, start)
    shutil.rmtree(tmp_path / "t-0")  # the topic is made anew, or a crash took what was not flushed
    fill(tmp_path, "t-0", 50)
    end = next_end(stream, start)
    assert end == {"t": {"0": 50}}
    assert "Found incorrect offsets in some partitions" in caplog.text
    with pytest.raises(IllegalStateException, match="Partition t-0 offset was changed from 80 to 50"):
        stream.partitions(start, end)
    with pytest.raises(IllegalStateException, match="Partition t-0 offset was changed from 100 to 50"):
        reader(tmp_path).partitions(start, planned_end)
    going_on = reader(tmp_path, failOnDataLoss="false")
    assert records(going_on, start, end) == []
    fill(tmp_path, "t-0", 7)
    assert list(batches(going_on, end)) == [expected((0, 50, 57))]


def test_damage_at_the_end_does_not_stall_a_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, "t-0", 100)
    path = min((tmp_path / "t-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordException, match="failOnDataLoss=false"):
        next_end(reader(tmp_path), {"t": {"0": 0}})
    assert next_end(reader(tmp_path, failOnDataLoss="false"), {"t": {"0": 0}}) == {"t": {"0": 90}}
    assert "Some data may have been lost" in caplog.text


def test_read_committed_waits_for_open_transactions(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"plain")
        stream = reader(tmp_path, kafka__isolation__level="read_committed", startingOffsets="earliest")
        start = begin(stream)
        txn = log.transaction("a")
        txn.begin()
        txn.append(b"aborted")
        log.append(b"behind")
        end = next_end(stream, start)
        assert (end, records(stream, start, end)) == ({"t": {"0": 1}}, [(0, 0)])
        txn.abort()
        end = next_end(stream, {"t": {"0": 1}})
        assert (end, records(stream, {"t": {"0": 1}}, end)) == ({"t": {"0": 4}}, [(0, 2)])
    assert records(reader(tmp_path), start, end) == [(0, 0), (0, 1), (0, 2)]


# --- beside a writer in another process -----------------------------------------------------------------

WRITER = """
import sys, kafkalog
root, count = sys.argv[1], int(sys.argv[2])
config = {"internal.segment.bytes": "30000", "index.interval.bytes": "1000", "preallocate": sys.argv[3]}
with kafkalog.open_log(root, "t-0", config=config) as log:
    for n in range(count):
        log.append_many([b"%07d" % (n * 3 + k) + b"x" * (n % 97) for k in range(3)])
        if n % 500 == 499:
            print(log.end_offset, flush=True)
"""


@pytest.mark.parametrize("preallocate", ["false", "true"])
def test_a_writer_beside(tmp_path: Path, preallocate: str) -> None:
    """Each batch ends at a record that is there; together they are everything, once, and in order."""
    (tmp_path / "t-0").mkdir()
    count = 4000
    stream = reader(tmp_path, startingOffsets="earliest")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), str(count), preallocate],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as writer:
        start = begin(stream)
        looks, rows, got = 0, 0, b""
        while rows < 3 * count:
            alive = writer.poll() is None
            end = next_end(stream, start)
            looks += end != start
            for task in stream.partitions(start, end):
                for batch in stream.read(task):
                    values = batch.column("value").to_pylist()
                    assert [int(each[:7]) for each in values] == list(range(rows, rows + len(values)))
                    rows += len(values)
            assert alive or end != start or rows == 3 * count, "what was written is not seen"
            start = end
        got = writer.communicate()[0]
    assert writer.returncode == 0
    assert got.split()[-1] == b"%d" % (3 * count)
    assert looks > 1


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
