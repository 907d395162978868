"""A tier to which two leaders copied, with segments of different bounds: read, verified and restored."""

from __future__ import annotations

import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import kafkalog
from kafkalog._face import coordinators
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote.directory_segments import known_segments
from kafkalog.engine.remote.segment import TopicIdPartition, random_uuid
from kafkalog.errors import RemoteResourceNotFoundException
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import Leader, leaders, two_leaders

__all__ = ["run"]

SETTINGS = {"remote.storage.enable": "true", "index.interval.bytes": "100", "retention.ms": "-1"}
BEGUN, ABORTED = 39, 48  # a transaction that begins before the overlap, and is aborted in it
NOW_MS = int(time.time() * 1000) - 1000  # else the transaction's marker begins a segment, as one that comes late
TIMES = range(NOW_MS, NOW_MS + 130)


class Overlap(NamedTuple):
    """The second leader's directory, the tier, the partition's records, those that are not aborted, the first ones of
    TIMES, and where the overlap starts and the tier ends."""

    log_dir: Path
    tier: kafkalog.RemoteStorage
    all: list[tuple[int, bytes | None]]
    committed: list[tuple[int, bytes | None]]
    times: list[int | None]
    start: int
    last: int


def fill(store: kafkalog.Store, topic_id: str, segment_bytes: int, count: int) -> None:
    settings = {**SETTINGS, "internal.segment.bytes": str(segment_bytes)}
    topic = store.create_topic("orders", 1, config=settings, topic_id=topic_id)
    transaction = store.transaction("t")
    for number in range(count):
        if number == BEGUN:
            transaction.begin()
            transaction.append("orders", b"aborted", partition=0, timestamp=NOW_MS + number)
        if number == ABORTED:
            transaction.abort()
        topic.append(b"value %d " % number + b"." * 100, timestamp=NOW_MS + number)


def read(partition: kafkalog.Partition, **how: str) -> list[tuple[int, bytes | None]]:
    return [(each.offset, each.value) for each in partition.records(**how)]


@pytest.fixture(params=["local-tiered", "aiven"])
def overlap(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Overlap:
    monkeypatch.setattr(coordinators.secrets, "randbits", lambda bits: 7)  # both leaders have the same records
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout=request.param)
    topic_id = random_uuid()
    with kafkalog.open(tmp_path / "a", remote=tier, maintenance=False) as first:
        fill(first, topic_id, 3300, 70)
        assert first.remote_log_manager.run_once() > 0
    with kafkalog.open(tmp_path / "b", remote=tmp_path / "no tier", maintenance=False) as second:
        fill(second, topic_id, 2700, 120)
    for path in (tmp_path / "b").glob("__remote_log_metadata-*"):
        shutil.rmtree(path)
    for path in (tmp_path / "a").glob("__remote_log_metadata-*"):
        shutil.copytree(path, tmp_path / "b" / path.name)
    with kafkalog.open(tmp_path / "b", remote=tier, maintenance=False) as second:
        assert second.remote_log_manager.run_once() > 0
        partition = second.topic("orders").partition(0)
        every, committed = read(partition), read(partition, isolation="read_committed")
        times = [partition.offset_for_time(each) for each in TIMES]
        named = TopicIdPartition(topic_id, TopicPartition("orders", 0))
        known = second.remote_log_manager.metadata.list_remote_log_segments(named)
        copied = sorted(known, key=lambda each: each.start_offset)
        ((before, after),) = [each for each in pairwise(copied) if each[0].end_offset >= each[1].start_offset]
        assert before.start_offset < BEGUN < after.start_offset <= ABORTED + 1 <= before.end_offset
    return Overlap(tmp_path / "b", tier, every, committed, times, after.start_offset, copied[-1].end_offset)


def check(partition: kafkalog.Partition, overlap: Overlap, end: int) -> None:
    """All ways of reading, up to an offset."""
    every = [each for each in overlap.all if each[0] < end]
    assert read(partition) == every
    assert read(partition, isolation="read_committed") == [each for each in overlap.committed if each[0] < end]
    assert partition.read_arrow().column("offset").to_pylist() == [offset for offset, _ in every]
    for offset, value in every:
        first = next(iter(partition.records(offset)))
        assert (first.offset, first.value) == (offset, value)
    times = [found if found is not None and found < end else None for found in overlap.times]
    assert [partition.offset_for_time(each) for each in TIMES] == times


@pytest.mark.parametrize(
    "left", [1, 13_000]
)  # bytes on the disk: with the overlap in the tier, and at the disk's begin
def test_a_store_and_both_tiers(left: int, overlap: Overlap) -> None:
    with kafkalog.open(overlap.log_dir, remote=overlap.tier, maintenance=False) as store:
        store.alter_topic("orders", {"local.retention.bytes": str(left)})
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() > 0
        begins = min(int(path.stem) for path in overlap.log_dir.glob("orders-0/*.log"))
        assert (begins == overlap.start) == (left > 1)
        check(partition, overlap, partition.end_offset)
    with kafkalog.open(overlap.log_dir, remote=overlap.tier, read_only=True) as both:
        check(both.topic("orders").partition(0), overlap, overlap.all[-1][0] + 1)


def test_a_bucket_alone(overlap: Overlap, run: Run, tmp_path: Path) -> None:
    with kafkalog.open(overlap.tier, read_only=True) as bucket:
        check(bucket.topic("orders").partition(0), overlap, overlap.last + 1)
    verified = run("tier", "verify", overlap.tier.url, "--deep")
    assert (verified.code, "note" in verified.out) == (0, False), verified
    assert run("tier", "restore", overlap.tier.url, tmp_path / "restored", "--yes").code == 0
    folder = tmp_path / "restored" / "orders-0"
    bases = {int(path.stem) for path in folder.glob("*.log")}
    assert {int(path.stem) for path in folder.glob("*.snapshot")} <= {*bases, overlap.last + 1}
    assert run("verify", tmp_path / "restored", "--deep").code == 0
    with kafkalog.open(tmp_path / "restored", config={"retention.ms": "-1"}, maintenance=False) as store:
        check(store.topic("orders").partition(0), overlap, overlap.last + 1)


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
@pytest.mark.parametrize("new_epoch", [None, 30])
def test_a_bucket_alone_is_read_as_its_metadata_say(
    layout: str, new_epoch: int | None, run: Run, tmp_path: Path
) -> None:
    """The first leader's last segments lie within one of the second leader's, or are of a history that was given up."""
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout=layout)
    two_leaders(tmp_path, tier, 30 if new_epoch is None else 60, new_epoch)
    expected = [(number, 1 if new_epoch is not None and number >= new_epoch else 0) for number in range(80)]

    def told(partition: kafkalog.Partition) -> list[tuple[int, int]]:
        return [(each.offset, int(each.value[:1])) for each in partition]

    with kafkalog.open(tmp_path / "b", remote=tier, read_only=True) as both:
        assert told(both.topic("orders").partition(0))[:80] == expected
    with kafkalog.open(tier, read_only=True) as bucket:
        assert told(bucket.topic("orders").partition(0)) == expected
    assert run("tier", "verify", tier.url, "--deep").code == 0
    assert run("tier", "restore", tier.url, tmp_path / "restored", "--yes").code == 0
    with kafkalog.open(tmp_path / "restored", config={"retention.ms": "-1"}, maintenance=False) as store:
        assert told(store.topic("orders").partition(0)) == expected


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
@pytest.mark.parametrize("lost", [[(0, 0), (1, 60)], [(0, 0), (1, 30)]])  # begins after, and before the last one
def test_a_leader_epoch_that_was_given_up_whole(layout: str, lost: list[tuple[int, int]], tmp_path: Path) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout=layout)
    leaders(tmp_path, tier, Leader(7, [(0, 0)], 80), Leader(10, lost, 90), Leader(20, [(0, 0), (2, 40)], 100))
    for place in (tier, tmp_path / "c"):
        with kafkalog.open(place, remote=None if place is tier else tier, read_only=True) as found:
            told = [int(each.value[:1]) for each in found.topic("orders").partition(0)]
            assert told[:80] == [0] * 40 + [2] * 40


def test_a_store_goes_on_from_a_segment_where_another_leaders_goes_on_further(tmp_path: Path) -> None:
    """The tier has offsets 50 to 59 in two segments: the first leader's, up to 99, and the second one's, up to 87,
    which counts."""
    leaders(
        tmp_path,
        kafkalog.RemoteStorage(tmp_path / "tier"),
        Leader(50, [(0, 0)], 110),
        Leader(44, [(0, 0), (1, 60)], 100),
    )
    with kafkalog.open(tmp_path / "b", remote=tmp_path / "tier", maintenance=False) as store:
        store.alter_topic("orders", {"local.retention.bytes": "1"})
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() == 2
        assert [each.offset for each in partition.records(55)] == [*range(55, 100)]


def test_a_store_reads_on_from_the_disk_where_that_begins(tmp_path: Path) -> None:
    """The segment in the tier continues after it, with records abandoned from offset 25 on."""
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="local-tiered")
    leaders(tmp_path, tier, Leader(30, [(0, 0)], 40), Leader(10, [(0, 0), (2, 25)], 29, copies=False))
    with kafkalog.open(tmp_path / "b", remote=tier, maintenance=False) as store:
        store.alter_topic("orders", {"local.retention.bytes": "3400"})
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() == 1
        assert [int(each.value[:1]) for each in partition] == [0] * 25 + [2] * 4


def test_a_transaction_whose_abort_was_given_up(tmp_path: Path) -> None:
    """The first leader aborted it, in a segment that continues after the local log's start; the second one committed
    it."""
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="local-tiered")
    aborted, committed = (11, 13, ControlRecordType.ABORT), (11, 13, ControlRecordType.COMMIT)
    leaders(
        tmp_path,
        tier,
        Leader(30, [(0, 0)], 40, transaction=aborted),
        Leader(10, [(0, 0), (1, 13)], 29, transaction=committed, copies=False),
    )
    for path in (tmp_path / "b" / "orders-0").glob(f"{0:020}.*"):
        path.unlink()
    with kafkalog.open(tmp_path / "b", remote=tier, read_only=True) as both:
        told = [each.offset for each in both.topic("orders").partition(0).records(isolation="read_committed")]
    assert told == [*range(13), *range(14, 29)]


def test_a_store_reads_on_where_compaction_took_the_end_of_the_last_remote_segment(tmp_path: Path) -> None:
    leaders(tmp_path, kafkalog.RemoteStorage(tmp_path / "tier"), Leader(19, [(0, 0)], 50, without={38, 39}))
    with kafkalog.open(tmp_path / "a", remote=tmp_path / "tier", maintenance=False) as store:
        store.alter_topic("orders", {"local.retention.bytes": "1"})
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() == 2
        for start in range(36, 41):
            assert [each.offset for each in partition.records(start)] == [*range(start, 38), *range(max(start, 40), 50)]


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_objects_say_what_the_metadata_say(layout: str, tmp_path: Path) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout=layout)
    two_leaders(tmp_path, tier, 60, 30)
    known = known_segments([str(tmp_path / "b")])
    assert known is not None
    said = {each.remote_log_segment_id.id: each for each in known.copied()}
    storage = tier.manager()
    (partition,) = storage.partitions()
    found = storage.segments_of(partition)
    assert {each.id for each in found} == said.keys()
    for each in found:
        rebuilt, metadata = storage.metadata_of(each), said[each.id]
        for field in ("start_offset", "end_offset", "segment_leader_epochs", "segment_size_in_bytes", "state"):
            assert getattr(rebuilt, field) == getattr(metadata, field), field
        assert rebuilt.is_txn_idx_empty == metadata.is_txn_idx_empty


@pytest.mark.parametrize("object_of", [".leader_epoch_checkpoint", ".log"])
def test_a_segment_that_does_not_say_all_goes_up_to_the_next_one(
    object_of: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="local-tiered")
    two_leaders(tmp_path, tier, 0, 30)
    second = sorted(Path(tier.url).rglob(f"*{object_of}"))[1]
    data = second.read_bytes()
    second.write_bytes(data[:-1] + bytes([data[-1] ^ 255]))
    with kafkalog.open(tier, read_only=True) as bucket:
        partition = bucket.topic("orders").partition(0)
        assert (partition.log_start_offset, partition.end_offset) == (0, 80)
        assert [each.offset for each in partition.records(60)] == [*range(60, 80)]
        if object_of == ".log":
            with pytest.raises(kafkalog.errors.CorruptRecordException):
                list(partition)
        else:
            assert [each.offset for each in partition] == [*range(80)]
    assert caplog.text.count(second.name) == 1


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_what_was_given_up_does_not_stand_for_a_lost_segment(layout: str, run: Run, tmp_path: Path) -> None:
    """The second leader's segment from offset 20 to 39 is lost; the first one's of 28 to 34 was given up from 30 on."""
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout=layout)
    two_leaders(tmp_path, tier, 70, 30)
    for path in Path(tier.url).rglob("*000020-*"):
        path.unlink()
    with kafkalog.open(tier, read_only=True) as bucket:
        partition = bucket.topic("orders").partition(0)
        with pytest.raises(RemoteResourceNotFoundException, match=r"offsets 30 to 39 are missing.*from offset 40 on"):
            list(partition)
        assert [each.offset for each in partition.records(40)] == [*range(40, 80)]
    assert run("tier", "verify", tier.url).code == 1
    restored = run("tier", "restore", tier.url, tmp_path / "restored", "--yes")
    assert restored.code == 1
    assert "offsets 30 to 39" in restored.out, restored.out
    with kafkalog.open(tmp_path / "restored", read_only=True) as view:
        found = [(each.offset, each.value[:1]) for each in view.topic("orders").partition(0)]
    assert found == [(number, b"1" if number >= 30 else b"0") for number in [*range(30), *range(40, 80)]]


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_an_abort_that_was_given_up_hides_nothing(layout: str, tmp_path: Path) -> None:
    """The first leader aborted the transaction at offset 30; the second one, whose disk continues the tier, committed
    it."""
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout=layout)
    first = Leader(7, [(0, 0)], 60, transaction=(15, 30, ControlRecordType.ABORT))
    second = Leader(20, [(0, 0), (1, 29)], 100, copies=False, transaction=(15, 30, ControlRecordType.COMMIT))
    leaders(tmp_path, tier, first, second)
    with kafkalog.open(tmp_path / "b", remote=tier, maintenance=False) as store:
        store.alter_topic("orders", {"local.retention.bytes": "1"})
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() == 1
        found = [each.offset for each in partition.records(isolation="read_committed")]
    assert found == [*range(30), *range(31, 100)]
    with kafkalog.open(tmp_path / "b", remote=tier, read_only=True) as both:
        found = [each.offset for each in both.topic("orders").partition(0).records(isolation="read_committed")]
    assert found == [*range(30), *range(31, 100)]
