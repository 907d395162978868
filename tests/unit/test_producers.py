"""Producer state: sequences, epochs, markers, transactions, snapshots."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog._native.codec.batches import BatchHeader, header_at
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.files import LogDirFailureChannel, ManualClock, ManualScheduler
from kafkalog.engine.format.batch import decrement_sequence, increment_sequence
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.producer_append import BatchMetadata, CompletedTxn, ProducerStateEntry, in_sequence
from kafkalog.engine.log.producers import ProducerStateManager
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.engine.log.verification import VerificationGuard, VerificationStateEntry
from kafkalog.engine.segment.types import LogOffsetMetadata
from kafkalog.errors import (
    IllegalArgumentException,
    InvalidProducerEpochException,
    InvalidTxnStateException,
    KafkalogError,
    OutOfOrderSequenceException,
    TransactionCoordinatorFencedException,
)

PARTITION = TopicPartition("topic", 0)
PID = 7
INT_MAX = 2**31 - 1
CLIENT, COORDINATOR, REPLICATION = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION
EXPIRATION_MS = 5000


def context(directory: pathlib.Path, clock: ManualClock) -> PartitionContext:
    producers = ProducerSettings(ProducerStateManagerConfig(producer_id_expiration_ms=EXPIRATION_MS), 60_000)
    config = LogConfig.from_props(None, {})
    return PartitionContext(directory, config, producers, ManualScheduler(clock), clock, LogDirFailureChannel())


class Partition:
    """A manager with the few steps of an append around it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory / str(PARTITION)
        self.directory.mkdir()
        self.clock = ManualClock(1000)
        self.manager = self.reopened()

    def reopened(self) -> ProducerStateManager:
        return ProducerStateManager(context(self.directory, self.clock))

    def append(
        self,
        sequence: int,
        offset: int,
        *,
        count: int = 1,
        pid: int = PID,
        epoch: int = 0,
        transactional: bool = False,
        origin: AppendOrigin = CLIENT,
    ) -> None:
        header = batch(sequence, offset, count=count, pid=pid, epoch=epoch, transactional=transactional)
        info = self.manager.prepare_update(pid, origin)
        info.append(header, LogOffsetMetadata(offset, 0, offset * 10))
        self.manager.update(info)
        self.manager.update_map_end_offset(offset + count)

    def mark(
        self,
        offset: int,
        *,
        commit: bool = True,
        pid: int = PID,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        version: int = 0,
        origin: AppendOrigin = COORDINATOR,
    ) -> CompletedTxn | None:
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        marker = EndTransactionMarker(kind, coordinator_epoch)
        data = b"xyz" + end_txn_marker_batch(offset, 2000, 0, pid, epoch, marker)
        info = self.manager.prepare_update(pid, origin)
        completed = info.append(header_at(data, 3), None, version, records=data)
        self.manager.update(info)
        self.manager.update_map_end_offset(offset + 1)
        if completed is not None:
            self.manager.complete_txn(completed)
        return completed

    def files(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())

    def snapshot_offsets(self) -> list[int]:
        return [int(name.split(".")[0]) for name in self.files() if name.endswith(".snapshot")]


def batch(
    sequence: int, offset: int, *, count: int = 1, pid: int = PID, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    builder = MemoryRecordsBuilder(
        base_offset=offset,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    for _ in range(count):
        builder.append(1000, None, b"v")
    return header_at(builder.build())


@pytest.fixture
def partition(tmp_path: pathlib.Path) -> Partition:
    return Partition(tmp_path)


# --- sequences -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, INT_MAX), st.integers(0, INT_MAX))
def test_sequences_wrap(sequence: int, by: int) -> None:
    assert increment_sequence(sequence, by) == (sequence + by) % 2**31
    assert decrement_sequence(increment_sequence(sequence, by), by) == sequence


@settings(deadline=None)
@given(st.integers(0, INT_MAX))
def test_exactly_one_sequence_follows(sequence: int) -> None:
    assert in_sequence(sequence, increment_sequence(sequence, 1))
    assert not in_sequence(sequence, sequence)
    assert not in_sequence(sequence, increment_sequence(sequence, 2))


@settings(deadline=None)
@given(st.integers(0, INT_MAX), st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_a_producer_that_counts_on_is_never_refused(start: int, counts: list[int]) -> None:
    manager = ProducerStateManager(context(pathlib.Path("/nowhere", str(PARTITION)), ManualClock()))
    sequence, offset = start, 0
    appended: list[BatchHeader] = []
    for count in counts:
        header = batch(sequence, offset, count=count)
        info = manager.prepare_update(PID, CLIENT)
        info.append(header)
        manager.update(info)
        appended.append(header)
        sequence, offset = increment_sequence(sequence, count), offset + count
    entry = manager.last_entry(PID)
    assert entry is not None
    for back, header in enumerate(reversed(appended)):
        duplicate = entry.find_duplicate_batch(header)
        if back >= 5:
            assert duplicate is None
        else:
            assert duplicate is not None
            assert (duplicate.first_offset, duplicate.last_offset) == (header.base_offset, header.last_offset)


@pytest.mark.parametrize(
    ("known", "epoch", "sequence", "fine"),
    [
        ((), 0, 500, True),  # an unknown producer may start anywhere
        ((0, 3), 0, 4, True),
        ((0, 3), 0, 5, False),
        ((0, 3), 0, 3, False),
        ((0, INT_MAX), 0, 0, True),
        ((0, 3), 1, 0, True),
        ((0, 3), 1, 4, False),
    ],
)
def test_sequence_checks(partition: Partition, known: Sequence[int], epoch: int, sequence: int, fine: bool) -> None:
    if known:
        partition.append(known[1], 0, epoch=known[0])
    if fine:
        partition.append(sequence, 1, epoch=epoch)
    else:
        with pytest.raises(OutOfOrderSequenceException):
            partition.append(sequence, 1, epoch=epoch)
        partition.append(sequence, 1, epoch=epoch, origin=REPLICATION)


def test_nothing_happens_before_update(partition: Partition) -> None:
    partition.append(0, 0)
    info = partition.manager.prepare_update(PID, CLIENT)
    info.append(batch(1, 1, transactional=True))
    entry = partition.manager.last_entry(PID)
    assert entry is not None
    assert (entry.last_seq, entry.current_txn_first_offset) == (0, None)
    assert partition.manager.first_unstable_offset is None


def test_a_stale_epoch_is_fenced(partition: Partition) -> None:
    partition.append(0, 0, epoch=3)
    with pytest.raises(InvalidProducerEpochException, match=r"offset 1 in topic-0 is 2, which is < .* 3 \(TV-1\)"):
        partition.append(1, 1, epoch=2)
    with pytest.raises(InvalidProducerEpochException):
        partition.append(1, 1, epoch=2, origin=COORDINATOR)
    partition.append(1, 1, epoch=2, origin=REPLICATION)


def test_a_new_epoch_forgets_the_batches(partition: Partition) -> None:
    partition.append(0, 0)
    partition.append(0, 1, epoch=1)
    entry = partition.manager.last_entry(PID)
    assert entry is not None
    assert [known.last_offset for known in entry.batch_metadata] == [1]
    assert entry.find_duplicate_batch(batch(0, 5, epoch=0)) is None


# --- transactions --------------------------------------------------------------------------------


def test_a_transaction_holds_the_first_unstable_offset_until_replicated(partition: Partition) -> None:
    manager = partition.manager
    partition.append(0, 5, transactional=True)
    partition.append(0, 6, transactional=True, pid=8)
    assert manager.first_unstable_offset == LogOffsetMetadata(5, 0, 50)
    completed = partition.mark(7, commit=False)
    assert completed == CompletedTxn(PID, 5, 7, True)
    assert manager.last_stable_offset(completed) == 6
    assert manager.first_undecided_offset == 6
    manager.on_high_watermark_updated(7)
    assert manager.first_unstable_offset == LogOffsetMetadata(5, 0, 50)
    manager.on_high_watermark_updated(8)
    assert manager.first_unstable_offset == LogOffsetMetadata(6, 0, 60)
    other = partition.mark(8, pid=8)
    assert other is not None
    assert manager.last_stable_offset(other) == 9
    manager.on_high_watermark_updated(9)
    assert manager.first_unstable_offset is None


def test_a_marker_without_a_transaction_completes_nothing(partition: Partition) -> None:
    assert partition.mark(0) is None
    entry = partition.manager.last_entry(PID)
    assert entry is not None
    assert (entry.last_timestamp, entry.is_empty) == (2000, True)


def test_plain_batches_do_not_belong_into_a_transaction(partition: Partition) -> None:
    partition.append(0, 0, transactional=True)
    with pytest.raises(InvalidTxnStateException, match="Expected transactional write"):
        partition.append(1, 1)


def test_completing_what_was_not_started(partition: Partition) -> None:
    with pytest.raises(IllegalArgumentException, match="isAborted=false"):
        partition.manager.complete_txn(CompletedTxn(PID, 0, 1, False))


@pytest.mark.parametrize(
    ("version", "epoch", "in_transaction", "fine"),
    [
        (0, 1, True, True),
        (1, 0, True, False),
        (0, 2, True, True),
        (2, 2, True, True),
        (2, 1, True, False),
        (2, 1, False, True),  # the same marker once more
        (2, 0, False, False),
    ],
)
def test_marker_epochs(partition: Partition, version: int, epoch: int, in_transaction: bool, fine: bool) -> None:
    partition.append(0, 0, epoch=1, transactional=in_transaction)
    if fine:
        partition.mark(1, epoch=epoch, version=version)
    else:
        sign = "<=" if version == 2 else "<"
        with pytest.raises(
            InvalidProducerEpochException, match=rf"which is {sign} the last seen epoch 1 \(TV{version}\)"
        ):
            partition.mark(1, epoch=epoch, version=version)
        partition.mark(1, epoch=epoch, version=version, origin=REPLICATION)


def test_the_last_epoch_may_end_its_transaction(partition: Partition) -> None:
    partition.append(0, 0, epoch=0x7FFF, transactional=True)
    assert partition.mark(1, epoch=0x7FFF, version=2) is not None


def test_the_transaction_version_must_be_said(partition: Partition) -> None:
    with pytest.raises(IllegalArgumentException, match="origin COORDINATOR"):
        partition.mark(0, version=-1)
    partition.mark(0, version=-1, origin=REPLICATION)


def test_an_older_coordinator_is_fenced(partition: Partition) -> None:
    partition.mark(0, coordinator_epoch=5)
    with pytest.raises(TransactionCoordinatorFencedException, match=r"4 \(zombie\), 5 \(current\)"):
        partition.mark(1, coordinator_epoch=4)
    partition.mark(1, coordinator_epoch=4, origin=REPLICATION)
    entry = partition.manager.last_entry(PID)
    assert entry is not None
    assert entry.coordinator_epoch == 4, "what the leader wrote counts"


def test_late_transactions(partition: Partition) -> None:
    partition.append(0, 0, transactional=True)
    late = 1000 + 60_000 + 300_000
    assert not partition.manager.has_late_transaction(late)
    assert partition.manager.has_late_transaction(late + 1)
    partition.mark(1)
    assert not partition.manager.has_late_transaction(late + 1)


# --- verification --------------------------------------------------------------------------------


def test_guards() -> None:
    first, second = VerificationGuard(), VerificationGuard()
    assert first.verify(first)
    assert not first.verify(second)
    assert not VerificationGuard.SENTINEL.verify(VerificationGuard.SENTINEL)
    assert len({first, second, VerificationGuard.SENTINEL}) == 3


def test_a_verification_keeps_the_lowest_sequence_of_its_epoch() -> None:
    entry = VerificationStateEntry(0, 5, 1, False)
    for sequence, epoch, expected in ((7, 1, (5, 1)), (3, 1, (3, 1)), (9, 2, (9, 2)), (0, 1, (9, 2))):
        entry.maybe_update_lowest_sequence_and_epoch(sequence, epoch)
        assert (entry.lowest_sequence, entry.epoch) == expected


def test_sequences_under_verification(partition: Partition) -> None:
    manager = partition.manager
    guard = manager.maybe_create_verification_state_entry(PID, 3, 0, False).verification_guard
    assert manager.maybe_create_verification_state_entry(PID, 5, 0, True).verification_guard is guard
    with pytest.raises(OutOfOrderSequenceException, match="earliest seen sequence"):
        partition.append(4, 0)
    partition.append(3, 0)
    manager.clear_verification_state_entry(PID)
    assert manager.verification_state_entry(PID) is None
    manager.maybe_create_verification_state_entry(8, 0, 0, True)
    with pytest.raises(OutOfOrderSequenceException, match="Expected sequence 0"):
        partition.append(1, 1, pid=8)


# --- expiry --------------------------------------------------------------------------------------


def test_silent_producers_are_forgotten(partition: Partition) -> None:
    partition.append(0, 0)
    partition.append(0, 1, pid=8, transactional=True)
    partition.manager.maybe_create_verification_state_entry(9, 0, 0, False)
    partition.manager.remove_expired_producers(1000 + EXPIRATION_MS - 1)
    assert set(partition.manager.active_producers) == {PID, 8}
    partition.manager.remove_expired_producers(1000 + EXPIRATION_MS)
    assert set(partition.manager.active_producers) == {8}, "an open transaction keeps its producer"
    assert partition.manager.verification_state_entry(9) is None


# --- snapshots -----------------------------------------------------------------------------------


def test_an_empty_snapshot(partition: Partition) -> None:
    assert partition.manager.take_snapshot() is None
    partition.manager.update_map_end_offset(3)
    path = partition.manager.take_snapshot()
    assert path is not None
    assert pathlib.Path(path).read_bytes().hex() == "000148674bc700000000"
    assert partition.files() == ["00000000000000000003.snapshot"]
    assert partition.manager.take_snapshot() is None


def test_entries_stand_in_the_order_of_javas_map(partition: Partition) -> None:
    for offset, pid in enumerate((1000, 2**33, 33, 2, 1, 17, 16)):
        partition.append(0, offset, pid=pid)
    path = partition.manager.take_snapshot()
    assert path is not None
    # Kafka's own, for this order of arrival.
    assert [entry.producer_id for entry in read_snapshot(path)] == [16, 33, 1, 17, 2**33, 2, 1000]


@settings(deadline=None)
@given(pids=st.lists(st.integers(0, 2**40), unique=True, max_size=30))
def test_snapshot_order_is_by_bucket(tmp_path_factory: pytest.TempPathFactory, pids: list[int]) -> None:
    partition = Partition(tmp_path_factory.mktemp("snapshot"))
    for offset, pid in enumerate(pids):
        partition.append(0, offset, pid=pid)
    path = partition.manager.take_snapshot()
    assert (path is None) == (not pids)
    if path is None:
        return
    capacity = 16
    while len(pids) > capacity * 3 // 4:
        capacity *= 2

    def bucket(pid: int) -> int:
        hashed = (pid ^ pid >> 32) & 0xFFFFFFFF
        return (hashed ^ hashed >> 16) & (capacity - 1)

    if max(sum(bucket(other) % 16 == bucket(pid) % 16 for other in pids) for pid in pids) > 8:
        return  # a chain that long makes the table grow early
    assert [entry.producer_id for entry in read_snapshot(path)] == sorted(pids, key=bucket)


def test_a_snapshot_brings_back_the_last_batch_and_the_transaction(partition: Partition) -> None:
    partition.append(0, 0, count=3)
    partition.append(3, 3, count=2, transactional=True)
    partition.manager.take_snapshot()
    partition.manager = again = partition.reopened()
    assert again.latest_snapshot_offset == 5
    again.truncate_and_reload(0, 9, 1000)
    assert again.map_end_offset == 5
    entry = again.last_entry(PID)
    assert entry is not None
    assert [tuple(known) for known in entry.batch_metadata] == [(4, 4, 1, 1000)]
    assert again.first_unstable_offset == LogOffsetMetadata(3)
    partition.append(5, 5, transactional=True)


def test_expired_producers_are_not_loaded(partition: Partition) -> None:
    partition.append(0, 0)
    partition.manager.take_snapshot()
    again = partition.reopened()
    again.truncate_and_reload(0, 9, 1000 + EXPIRATION_MS)
    assert again.is_empty
    assert again.map_end_offset == 1


def test_a_bad_snapshot_gives_way_to_an_older_one(partition: Partition) -> None:
    for offset in range(3):
        partition.append(offset, offset)
        partition.manager.take_snapshot()
    newest = partition.directory / "00000000000000000003.snapshot"
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    again = partition.reopened()
    again.truncate_and_reload(0, 9, 1000)
    assert again.map_end_offset == 2
    assert partition.snapshot_offsets() == [1, 2]


def test_truncation_drops_snapshots_outside(partition: Partition) -> None:
    for offset in range(5):
        partition.append(offset, offset)
        partition.manager.take_snapshot()
    partition.manager.truncate_and_reload(1, 3, 1000)
    assert partition.snapshot_offsets() == [2, 3]
    assert partition.manager.map_end_offset == 3
    entry = partition.manager.last_entry(PID)
    assert entry is not None
    assert entry.last_seq == 2
    partition.manager.truncate_fully_and_start_at(20)
    assert partition.files() == []
    assert (partition.manager.map_end_offset, partition.manager.is_empty) == (20, True)


def test_truncation_at_the_maps_end_keeps_the_producers(partition: Partition) -> None:
    partition.append(0, 0, transactional=True)
    partition.mark(1)
    partition.manager.truncate_and_reload(2, 2, 1000)
    assert partition.manager.last_entry(PID) is not None
    assert partition.manager.first_unstable_offset is None, "transactions below the start are forgotten"


@pytest.mark.parametrize(
    ("snapshots", "bases", "left"),
    [
        ((2, 5, 8), (0, 5), (5, 8)),
        ((2, 3, 4), (0, 5), ()),
        ((2, 6, 8), (0, 5), (8,)),
        ((2, 6), (), (6,)),
        ((5,), (0, 5), (5,)),
        ((), (0,), ()),
    ],
)
def test_stray_snapshots(
    partition: Partition, snapshots: Sequence[int], bases: Sequence[int], left: Sequence[int]
) -> None:
    for offset in snapshots:
        (partition.directory / f"{offset:020d}.snapshot").write_bytes(bytes.fromhex("000148674bc700000000"))
    partition.manager.remove_stray_snapshots(bases)
    assert partition.snapshot_offsets() == list(left)
    assert partition.manager.latest_snapshot_offset == (left[-1] if left else None)


def test_marking_for_deletion(partition: Partition) -> None:
    partition.append(0, 0)
    partition.manager.take_snapshot()
    assert partition.manager.remove_and_mark_snapshot_for_deletion(9) is None
    marked = partition.manager.remove_and_mark_snapshot_for_deletion(1)
    assert marked is not None
    assert partition.files() == ["00000000000000000001.snapshot.deleted"]
    assert partition.manager.latest_snapshot_offset is None
    assert marked.delete_if_exists()
    assert not marked.delete_if_exists()


def test_a_snapshot_that_vanished(partition: Partition) -> None:
    partition.append(0, 0)
    path = partition.manager.take_snapshot()
    assert path is not None
    pathlib.Path(path).unlink()
    assert partition.manager.remove_and_mark_snapshot_for_deletion(1) is None


def test_moving_house(partition: Partition) -> None:
    for offset in range(3):
        partition.append(offset, offset)
        partition.manager.take_snapshot()
    moved = partition.manager.context
    for _ in range(2):  # it may have been interrupted
        moved.rename_dir(f"{PARTITION}.of-old")
        partition.manager.update_parent_dir()
    partition.directory = pathlib.Path(moved.dir)
    assert partition.snapshot_offsets() == [1, 2, 3]
    partition.manager.delete_snapshots_at([1, 2, 7], async_delete=False)
    assert partition.snapshot_offsets() == [3]
    partition.append(3, 3)
    assert partition.manager.take_snapshot() == str(partition.directory / "00000000000000000004.snapshot")


def test_what_an_interrupt_marked_the_next_call_deletes(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    for offset in range(3):
        partition.append(offset, offset)
        partition.manager.take_snapshot()
    mark = ProducerStateManager.remove_and_mark_snapshot_for_deletion

    def interrupted(self: ProducerStateManager, offset: int) -> None:
        mark(self, offset)
        raise KeyboardInterrupt

    monkeypatch.setattr(ProducerStateManager, "remove_and_mark_snapshot_for_deletion", interrupted)
    with pytest.raises(KeyboardInterrupt):
        partition.manager.delete_snapshots_at([1, 2], async_delete=False)
    monkeypatch.undo()
    partition.manager.delete_snapshots_at([1, 2], async_delete=False)
    assert sorted(path.name for path in partition.directory.glob("*.snapshot*")) == ["00000000000000000003.snapshot"]


def test_a_rising_start_keeps_producers(partition: Partition) -> None:
    partition.append(0, 0)
    partition.manager.on_log_start_offset_incremented(10)
    assert partition.manager.map_end_offset == 10
    assert partition.manager.last_entry(PID) is not None
    assert partition.manager.take_snapshot() is None, "the last snapshot counts as taken at the start"


def test_updating_nobody(partition: Partition) -> None:
    info = partition.manager.prepare_update(-1, CLIENT)
    with pytest.raises(IllegalArgumentException, match="Invalid producer id -1"):
        partition.manager.update(info)


def test_every_refusal_is_ours(partition: Partition) -> None:
    partition.append(0, 0)
    with pytest.raises(KafkalogError):
        partition.append(9, 1)


def test_a_time_far_in_the_past_does_not_expire(partition: Partition) -> None:
    """Java's subtraction wraps: a time 2^63 ms or more ago counts as far in the future."""
    now = 1_700_000_000_000
    for producer_id, timestamp in enumerate((now - (1 << 63), -(1 << 63), now - (1 << 63) + 1)):
        partition.manager.load_producer_entry(ProducerStateEntry(producer_id, 0, -1, timestamp))
    partition.manager.remove_expired_producers(now)
    assert sorted(partition.manager.active_producers) == [0, 1]
    assert BatchMetadata(5, (1 << 63) - 1, -1, 0).first_offset == -(1 << 63)
    assert BatchMetadata(-(1 << 31), 0, 1, 0).first_seq == -1, "and ints wrap as well"
