"""The stream's reader while partitions, topics and segments come and go, and while others write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kafkalog
from kafkalog.errors import (
    CorruptRecordException,
    IllegalStateException,
    UnknownTopicOrPartitionException,
)
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
    value,
)

pytestmark = pytest.mark.spark

# --- what comes and goes --------------------------------------------------------------------------------


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
    start, after = {"t": {"0": 5, "1": 5}}, {"t": {"0": 10}}
    gone = pytest.raises(IllegalStateException, match=r"Partitions t-1 have been deleted\.")
    for fail in ("true", "false"):
        streams = [reader(tmp_path, failOnDataLoss=fail), reader(tmp_path, failOnDataLoss=fail)]
        before = next_end(streams[0], start)
        (tmp_path / "t-1").rename(tmp_path / f"t-1.{'0' * 32}-delete")
        if fail == "true":
            with gone:  # before Spark has it in the checkpoint
                next_end(streams[1], start)
        else:
            assert next_end(streams[1], start) == after
        asked = [(streams[0], before), (streams[1], after), (reader(tmp_path, failOnDataLoss=fail), before)]
        for stream, end in asked:  # while it is planned; before; before a restart
            if fail == "true":
                with gone:
                    records(stream, start, end)
            else:
                assert records(stream, start, end) == expected((0, 5, 10))
        (tmp_path / f"t-1.{'0' * 32}-delete").rename(tmp_path / "t-1")
    assert "Partitions t-1 have been deleted." in caplog.text


CHOICES = [{"subscribe": "t,u"}, {"assign": '{"t":[0],"u":[0]}'}, {"subscribePattern": "[tu]"}]


@pytest.mark.parametrize("chosen", CHOICES)
def test_a_topic_that_is_gone(tmp_path: Path, chosen: dict[str, str]) -> None:
    fill(tmp_path, "t-0", 10)
    fill(tmp_path, "u-0", 10)
    stream = reader(tmp_path, **chosen)
    start = begin(stream)
    shutil.rmtree(tmp_path / "u-0")
    for each in (stream, reader(tmp_path, **chosen)):  # a restart, too
        with pytest.raises(IllegalStateException, match="Partitions u-0 have been deleted"):
            next_end(each, start)
    if "subscribePattern" not in chosen:
        with pytest.raises(UnknownTopicOrPartitionException, match=r"no (topic|partition) u"):
            reader(tmp_path, **chosen).initialOffset()


def test_a_checkpoint_of_another_subscription(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 10)
    fill(tmp_path, "u-0", 10)
    start = begin(reader(tmp_path, subscribe="t,u"))
    with pytest.raises(IllegalStateException, match="The checkpoint has u-0, but subscribe does not name their topic"):
        next_end(reader(tmp_path, subscribe="t"), start)


@pytest.mark.parametrize("chosen", CHOICES)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_that_is_gone_and_comes_back(
    tmp_path: Path, chosen: dict[str, str], restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, "t-0", 10)
    fill(tmp_path, "u-0", 10)
    stream = reader(tmp_path, failOnDataLoss="false", **chosen)
    start = begin(stream)
    shutil.rmtree(tmp_path / "u-0")
    fill(tmp_path, "t-0", 5)
    stream = reader(tmp_path, failOnDataLoss="false", **chosen) if restarts else stream
    end = next_end(stream, start)
    assert end == {"t": {"0": 15}}
    assert records(stream, start, end) == expected((0, 10, 15))
    assert "Partitions u-0 have been deleted" in caplog.text
    assert next_end(stream, end) == end
    fill(tmp_path, "u-0", 20)
    assert list(batches(stream, end)) == [expected((0, 0, 20))]


def test_all_topics_are_gone(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 10)
    stream = reader(tmp_path, failOnDataLoss="false", startingOffsets="earliest")
    start = begin(stream)
    shutil.rmtree(tmp_path / "t-0")
    assert next_end(stream, start) == {}
    assert records(stream, start, {}) == []
    fill(tmp_path, "t-0", 10)
    assert list(batches(stream, {})) == [expected((0, 0, 10))]


def test_another_topic_than_the_checkpoint_has(tmp_path: Path) -> None:
    """Refused before Spark writes down where the batch ends: else that would be planned at each start."""
    fill(tmp_path, "t-0", 10)
    fill(tmp_path, "other-0", 10)
    with pytest.raises(IllegalStateException, match="Partitions t-0 have been deleted"):
        next_end(reader(tmp_path, subscribe="other"), {"t": {"0": 5}})
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic misspelt"):
        next_end(reader(tmp_path, subscribe="t,misspelt"), {"t": {"0": 5}})


def make_again(root: Path, count: int, prefix: bytes = b"new") -> None:
    with kafkalog.open(root) as store:
        if "t" in store.topics():
            store.delete_topic("t")
        store.create_topic("t", 1).append_many([prefix + b"%d" % n for n in range(count)])


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("count", [5, 20, 50])
def test_a_topic_that_was_made_again(tmp_path: Path, fail: str, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Its offsets fit, or do not: they are another log's."""
    make_again(tmp_path, 20, b"old")
    streams = [reader(tmp_path, failOnDataLoss=fail, startingOffsets="earliest") for _ in range(3)]
    start = begin(streams[0])
    end = next_end(streams[0], start)
    assert records(streams[0], start, end) == expected((0, 0, 20))
    for stream in streams[1:]:
        assert next_end(stream, start) == end
    streams[2].prepareForTriggerAvailableNow()
    assert next_end(streams[2], start) == end
    make_again(tmp_path, count)
    remade = pytest.raises(IllegalStateException, match="Topics of partitions t-0 have been deleted and created again")
    if fail == "true":
        for stream in streams[1:]:  # a batch that ends in the old one is not planned in the new one
            with remade:
                stream.partitions(start, end)
        for stream in streams:
            with remade:
                next_end(stream, end)
        return
    assert records(streams[1], start, end) == []
    assert next_end(streams[0], end) == {}
    assert "Topics of partitions t-0 have been deleted and created again" in caplog.text
    assert records(streams[0], end, {}) == []
    assert list(batches(streams[0], {})) == [expected((0, 0, count))]
    assert records(streams[2], start, end) == []
    assert next_end(streams[2], end) == next_end(streams[2], {}) == {}  # newer partitions have no offset there


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
    shutil.rmtree(tmp_path / "t-0")  # the topic is created again, or a crash lost unflushed records
    fill(tmp_path, "t-0", 50)
    end = {"t": {"0": 50}}
    with pytest.raises(IllegalStateException, match="Partition t-0 offset was changed from 80 to 50"):
        next_end(stream, start)  # before Spark has it in the checkpoint
    assert "Found incorrect offsets in some partitions" in caplog.text
    with pytest.raises(IllegalStateException, match="Partition t-0 offset was changed from 80 to 50"):
        stream.partitions(start, end)
    with pytest.raises(IllegalStateException, match="Partition t-0 offset was changed from 100 to 50"):
        reader(tmp_path).partitions(start, planned_end)
    going_on = reader(tmp_path, failOnDataLoss="false")
    assert next_end(going_on, start) == end
    assert records(going_on, start, end) == []
    fill(tmp_path, "t-0", 7)
    assert list(batches(going_on, end)) == [expected((0, 50, 57))]


def test_damage_at_the_end_does_not_stall_a_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, "t-0", 100)
    path = min((tmp_path / "t-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordException, match="set the source option failOnDataLoss to false"):
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
    """Each batch ends at an existing record; together they are everything, once, and in order."""
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
