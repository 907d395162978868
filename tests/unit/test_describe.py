"""`describe()` of a partition, a topic and a store: compared with a reader's records, without reading them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face import describing
from kafkalog.engine.files import ManualClock
from kafkalog.errors import IllegalArgumentException, IllegalStateException, UnknownTopicOrPartitionException
from kafkalog.store import Store
from kafkalog.topic import TopicDescription
from tests.file_doubles import UnsyncedFiles
from tests.unit.tier_kit import RECORDS, tiered

FAST = UnsyncedFiles()
SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "0"}


def open_at(where: Path, **options: Any) -> Store:
    return kafkalog.open(where, **{"files": FAST, "maintenance": False, **options})


def filled(store: Store, rows: int = 100, **options: Any) -> kafkalog.Topic:
    topic = store.create_topic("orders", 2, **options)
    for number in range(rows):
        topic.append(b"%04d" % number + b"x" * 60, key=b"k%d" % (number % 7), timestamp=1000 + number)
    return topic


def judged(found: TopicDescription, topic: kafkalog.Topic) -> None:
    """It agrees with what readers are given."""
    for part in found.partitions:
        log = topic.partition(part.partition)
        given = list(log)
        times = [each.timestamp for each in given]
        assert (part.records == len(given)) if part.is_exact else (part.records >= len(given)), part
        assert (part.log_start_offset, part.end_offset) == (log.log_start_offset, log.end_offset)
        newest = max(times, default=None)  # markers of transactions have times too
        assert part.newest_timestamp == newest if part.is_exact else (part.newest_timestamp or -1) >= (newest or -1)
        assert part.oldest_timestamp is None or part.oldest_timestamp <= min(times)
        assert {*part.sample} <= {*given}
        paths = [
            each for each in Path(log.log_dir, f"{part.topic}-{part.partition}").iterdir() if each.suffix == ".log"
        ]
        assert (part.local_segments, part.local_bytes) == (len(paths), sum(each.stat().st_size for each in paths))
    assert found.records == sum(each.records for each in found.partitions)
    assert found.bytes == found.local_bytes + found.remote_bytes


def test_a_topic(tmp_path: Path) -> None:
    with open_at(tmp_path, config=SMALL) as store:
        topic = filled(store)
        found = topic.describe()
        judged(found, topic)
        assert (found.records, found.is_exact, found.problems) == (100, True, [])
        assert (found.oldest_timestamp, found.newest_timestamp) == (1000, 1099)
        assert found.local_segments > 4
        assert found.codecs == ["none"]
        assert len(found.sample) == 10
        assert {each.partition for each in found.sample} == {0, 1}
        ends = [topic.partition(number).end_offset - 1 for number in range(2)]
        places = [(each.partition, each.offset) for each in found.sample]
        assert places[0] == (0, 0)
        assert places[-1] == (1, ends[1])
        with open_at(tmp_path, read_only=True, maintenance=True) as look:
            again = look.topic("orders").describe()
            judged(again, look.topic("orders"))
            assert again.sample == found.sample
            assert [each.records for each in again.partitions] == [each.records for each in found.partitions]
        assert repr(found).startswith("<orders: 2 partitions, 100 records, 1970-01-01T00:00:01.000Z to ")


def test_a_partition_and_a_store(tmp_path: Path) -> None:
    with open_at(tmp_path) as store:
        topic = filled(store)
        store.create_topic("empty")
        one = topic.partition(0).describe(sample_rows=3)
        assert one.records == topic.partition(0).end_offset
        assert [each.offset for each in one.sample] == [0, (one.records - 1) // 2, one.records - 1]
        whole = store.describe()
        assert [each.name for each in whole.topics] == ["empty", "orders"]
        assert (whole.records, whole.is_exact, whole.sample) == (100, True, [])
        assert len(store.describe(sample_rows=2).sample) == 2
        empty = whole.topics[0]
        assert (empty.records, empty.is_exact, empty.oldest_timestamp, empty.newest_timestamp) == (0, True, None, None)
        assert repr(empty) == "<empty: 1 partition, 0 records, - to -, 0 B>"
    with kafkalog.open_log(tmp_path, "orders-0", files=FAST) as log:
        assert log.describe(sample_rows=3) == one
    with kafkalog.open_log(tmp_path, "orders-0", read_only=True) as look:
        assert look.describe(sample_rows=3) == one


def test_where_it_can_only_say_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a read of all headers finds the offsets that transactions and compaction left out."""
    with open_at(tmp_path, config={"cleanup.policy": "compact", **SMALL}) as store:
        topic = filled(store)
        with store.transaction("job") as txn:
            txn.append("orders", b"x", key=b"k")
        for number in range(2):
            topic.partition(number).compact(roll=True)
        judged(topic.describe(), topic)
        monkeypatch.setattr(describing, "EXACT_BYTES_MAX", 100)
        about = topic.describe()
        judged(about, topic)
        assert not about.is_exact
        assert about.records == sum(topic.partition(number).end_offset for number in range(2))
        exact = topic.describe(exact=True)
        judged(exact, topic)
        assert exact.is_exact
        assert exact.records < about.records
        assert "up to " in repr(about)


def test_behind_a_log_start_inside_of_a_batch(tmp_path: Path) -> None:
    with open_at(tmp_path) as store:
        topic = store.create_topic("t")
        topic.append_many([b"x"] * 100)
        topic.delete_records(33, 0)
        found = topic.describe()
        assert (found.records, found.is_exact) == (67, True)
        assert found.sample[0].offset == 33


def test_what_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    with open_at(tmp_path) as store:
        filled(store)
    shutil.rmtree(tmp_path / "orders-1")
    with open_at(tmp_path) as store:
        topic = store.topic("orders")
        found = topic.describe()
        assert len(found.partitions) == 2
        assert not found.is_exact
        [problem] = found.problems
        assert problem.startswith("orders-1: orders-1 has no directory in ")
        assert found.records == topic.partition(0).end_offset
        assert "1 problem" in repr(found)


def test_with_a_remote_tier(tmp_path: Path) -> None:
    """Records are counted by place: on the disk, in the tier, or in both."""
    tier = tmp_path / "tier"
    copied = tiered(tmp_path / "data", tier, settings={"local.retention.bytes": "1", "local.retention.ms": "-2"})
    with kafkalog.open(tmp_path / "data", remote=tier, maintenance=False) as store:
        topic = store.topic("orders")
        both = topic.describe()
        assert (both.records, both.remote_segments, both.problems) == (RECORDS + 30, copied, [])
        assert both.remote_bytes > 2000
        topic.partition(0).delete_old_segments()
        found = topic.describe()
        assert (found.records, found.is_exact, found.remote_segments) == (RECORDS + 30, False, copied)
        assert found.local_segments < both.local_segments
        assert (found.oldest_timestamp, found.newest_timestamp) == (1000, 2029)
        assert found.sample[0].offset == 0
        assert len(found.sample) == 10
    with kafkalog.open(tmp_path / "data", remote=tier, read_only=True) as look:
        again = look.topic("orders").describe()
        assert (again.records, again.oldest_timestamp, again.newest_timestamp) == (RECORDS + 30, 1000, 2029)
        assert again.local_segments == found.local_segments
        assert 0 < again.remote_segments <= copied
        assert again.sample == found.sample
    with kafkalog.open(kafkalog.RemoteStorage(tier), read_only=True) as bucket:
        alone = bucket.topic("orders").describe()
        assert (alone.local_segments, alone.remote_segments) == (0, copied)
        assert alone.records < RECORDS + 30
        assert alone.oldest_timestamp == 1000


@pytest.mark.parametrize("what", ["torn", "flipped", "noise in indexes", "no indexes"])
def test_of_damage(tmp_path: Path, what: str) -> None:
    """It raises at most one of kafkalog's errors, and never counts missing records."""
    with open_at(tmp_path, config=SMALL) as store:
        filled(store)
    for path in sorted((tmp_path / "orders-0").iterdir()):
        data = path.read_bytes()
        if path.suffix == ".log" and what == "torn":
            path.write_bytes(data[:-7])
        elif path.suffix == ".log" and what == "flipped":
            path.write_bytes(data[:30] + b"\xff" * 20 + data[50:])
        elif path.suffix in (".index", ".timeindex") and what == "noise in indexes":
            path.write_bytes(os.urandom(len(data)))
        elif path.suffix in (".index", ".timeindex") and what == "no indexes":
            path.unlink()
    with open_at(tmp_path, read_only=True, maintenance=True) as look:
        found = look.topic("orders").describe()
        part = found.partitions[0]
        assert part.records <= 100
        assert len(found.sample) <= 10
        assert repr(found)
        if what == "no indexes":
            assert (found.records, found.is_exact) == (100, True)


def test_wrong_types_and_ends(tmp_path: Path) -> None:
    with open_at(tmp_path) as store:
        topic = filled(store, 3)
        partition = topic.partition(0)
        for wrong in ({"sample_rows": -1}, {"sample_rows": "5"}, {"sample_rows": 1.5}, {"exact": "yes"}):
            for each in (topic, partition, store):
                with pytest.raises(IllegalArgumentException, match=next(iter(wrong))):
                    each.describe(**wrong)
        assert topic.describe(sample_rows=0).sample == []
        assert len(topic.describe(sample_rows=1000).sample) == 3
        gone = store.create_topic("gone")
        store.delete_topic("gone")
        with pytest.raises(UnknownTopicOrPartitionException):
            gone.describe()
    for closed in (topic, partition, store):
        with pytest.raises(IllegalStateException, match="closed"):
            closed.describe()


def test_of_a_hundred_gigabytes(tmp_path: Path) -> None:
    """As many segments as that has, as large as they are, most of them a hole: it takes a moment."""
    with kafkalog.open_log(tmp_path, "t-0", files=FAST, config=SMALL, clock=ManualClock(5)) as log:
        while log.engine is not None and len(log.engine.log_segments()) < 2:
            log.append(b"x" * 100, timestamp=1000 + log.end_offset)
    folder = tmp_path / "t-0"
    first = sorted(folder.glob("*.log"))[0]
    for number in range(100):
        for suffix in (".log", ".index", ".timeindex"):
            copy = folder / f"{(number + 1) * 1_000_000:020d}{suffix}"
            shutil.copy(first.with_suffix(suffix), copy)
            if suffix == ".log":
                os.truncate(copy, 1 << 30)
    last = sorted(folder.glob("*.log"))[-1]
    os.truncate(last, first.stat().st_size)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as look:
        began = time.monotonic()
        found = look.describe(sample_rows=0)
        took_s = time.monotonic() - began
    assert found.local_bytes > 99 << 30
    assert found.local_segments == 102
    assert not found.is_exact
    assert found.oldest_timestamp == 1000
    assert took_s < 1, took_s


@pytest.mark.parametrize("number", [0, 3, 9])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_damage_is_told_and_its_records_are_not_exact(
    tmp_path: Path, number: int, read_only: bool, exact: bool
) -> None:
    """A batch whose checksum does not hold: its count and its times are not shown."""
    with open_at(tmp_path) as store:
        topic = store.create_topic("orders")
        for _ in range(10):
            topic.append(b"x" * 40, timestamp=1000)
        topic.flush()
        if not read_only:
            _damage(tmp_path / "orders-0", number)
            _told(topic, exact)
    if read_only:
        _damage(tmp_path / "orders-0", number)
        with open_at(tmp_path, read_only=True) as look:
            _told(look.topic("orders"), exact)


def _damage(folder: Path, number: int) -> None:
    (path,) = folder.glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 10 * number + 36] ^= 0x06  # in the largest timestamp
    path.write_bytes(data)


def _told(topic: kafkalog.Topic, exact: bool) -> None:
    found = topic.describe(exact=exact)
    assert (found.is_exact, len(found.problems)) == (False, 1)
    assert "orders-0: " in found.problems[0]
    assert "kafkalog verify" in found.problems[0]
    assert "up to " in repr(found)
    assert ", 1 problem>" in repr(found)
    assert ", 1 problem>" in repr(topic.partition(0).describe(exact=exact))
    assert (found.oldest_timestamp, found.newest_timestamp) == (1000, 1000)
