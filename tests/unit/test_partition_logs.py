"""Coordinators on real logs: readers' records, the state that is read back, flushes, repeated markers, bad batches."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.partition_logs import SourceStateLog, UnifiedStateLog, _whole_batches
from kafkalog.engine.coordinator.state_log import TransactionMarker, records_batch
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch, TransactionVersion
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.types import AppendOrigin, LogStartOffsetIncrementReason
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import (
    InvalidProducerEpochException,
    KafkaStorageException,
    LogReadOnlyException,
    OutOfOrderSequenceException,
    SchemaException,
)
from tests.file_doubles import UnsyncedFiles
from tests.unit.coordinator_kit import ABORT, COMMIT, NOW_MS, producer_id_for
from tests.unit.coordinator_logs import LogStore

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ID, GROUP = "biller", "g"
VERSIONS = list(TransactionVersion)


@pytest.fixture(params=VERSIONS, ids=[each.name for each in VERSIONS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path, version=request.param)
    yield made
    made.close()


def turn(store: LogStore, holder: ProducerIdAndEpoch, text: str, *, commit: bool) -> ProducerIdAndEpoch:
    """A transaction over two partitions and a group's offsets."""
    store.coordinator.add_partitions(ID, holder, [A, B])
    for each in (A, B):
        store.write(each, holder, text.encode())
    place = store.coordinator.add_offsets(ID, holder, GROUP)
    store.offsets(place).commit(GROUP, {A: CommittedOffset(len(text))}, holder)
    return store.coordinator.end_transaction(ID, holder, commit=commit)


def place_of(store: LogStore) -> TopicPartition:
    return TopicPartition("__consumer_offsets", partition_for(GROUP, 2))


def test_one_turn_after_another(store: LogStore) -> None:
    holder = store.coordinator.init_producer_id(ID, 60_000)
    for number in range(6):
        holder = turn(store, holder, "x" * (number + 1), commit=number % 3 < 2)
    wanted = [b"x", b"xx", b"xxxx", b"xxxxx"]
    assert store.committed(A) == store.committed(B) == wanted
    found = store.offsets(place_of(store)).fetch(GROUP, A)
    assert found is not None
    assert found.offset == 5
    after = store.after_a_kill()
    after.reopen()
    assert after.coordinator.describe(ID) == store.coordinator.describe(ID)
    assert after.offsets(place_of(store)).fetch(GROUP, A) == found
    assert after.committed(A) == wanted
    again = after.coordinator.init_producer_id(ID, 60_000)
    turn(after, again, "last", commit=True)
    assert after.committed(B) == [*wanted, b"last"]
    with pytest.raises((InvalidProducerEpochException, OutOfOrderSequenceException)):
        after.write(A, holder, b"late")
    after.close()


def test_who_takes_over_fences_in_the_logs(store: LogStore) -> None:
    first = store.coordinator.init_producer_id(ID, 60_000)
    store.coordinator.add_partitions(ID, first, [A, B])
    store.write(A, first, b"lost")
    store.coordinator.init_producer_id(ID, 60_000)
    with pytest.raises(InvalidProducerEpochException):
        store.write(A, first, b"late")
    with pytest.raises(InvalidProducerEpochException):
        store.write(B, first, b"late, where it was only listed")
    assert store.committed(A) == store.committed(B) == []
    assert store.log(A).last_stable_offset == store.log(A).log_end_offset


def test_what_was_prepared_is_finished_with_markers_that_are_there_already(store: LogStore) -> None:
    holder = store.coordinator.init_producer_id(ID, 60_000)
    turn(store, holder, "done", commit=True)
    # The process died after the last marker: without the record of the completion.
    for log in store.logs.values():
        if log.name.startswith("__transaction_state"):
            log.truncate_to(log.log_end_offset - 1)
    after = store.after_a_kill()
    ends = {each: after.log(each).log_end_offset for each in (A, B)}
    after.coordinator.load(range(2))
    assert after.coordinator.describe(ID).state == "PrepareCommit"
    assert after.coordinator.finish_prepared() == [ID]
    assert after.coordinator.describe(ID).state == "CompleteCommit"
    assert after.committed(A) == after.committed(B) == [b"done"]
    assert {each: after.log(each).log_end_offset for each in (A, B)} == {each: end + 1 for each, end in ends.items()}
    after.close()


def test_the_epoch_of_a_coordinator_before_us_is_taken_over(tmp_path: Path) -> None:
    """A broker of a later coordinator epoch had the directory, and died before it wrote that all is done."""
    store = LogStore(tmp_path)
    holder = store.coordinator.init_producer_id(ID, 60_000)
    marker = TransactionMarker(holder.producer_id, holder.epoch, ABORT, 9, 2)
    store.write(A, holder, b"x")
    state = UnifiedStateLog(store.log(A), syncs=False)
    with pytest.raises(InvalidProducerEpochException):
        state.append_marker(marker, NOW_MS)  # version 2: an end raises the epoch
    state.append_marker(marker._replace(producer_epoch=holder.epoch + 1), NOW_MS)
    assert store.log(A).active_producers[holder.producer_id].coordinator_epoch == 9
    state.append_marker(marker._replace(producer_epoch=holder.epoch + 1, coordinator_epoch=0, kind=COMMIT), NOW_MS)
    assert store.log(A).active_producers[holder.producer_id].coordinator_epoch == 9
    store.close()


def test_offsets_where_transactions_are_verified(tmp_path: Path) -> None:
    store = LogStore(tmp_path, verifies=True)
    holder = store.coordinator.init_producer_id(ID, 60_000)
    place = store.coordinator.add_offsets(ID, holder, GROUP)
    for number in range(3):
        store.offsets(place).commit(GROUP, {A: CommittedOffset(number)}, holder)
    store.coordinator.end_transaction(ID, holder, commit=True)
    assert store.offsets(place).fetch(GROUP, A) == CommittedOffset(2, commit_timestamp=NOW_MS)
    store.close()


@pytest.mark.parametrize("syncs", [True, False])
def test_flushes(tmp_path: Path, syncs: bool) -> None:
    store = LogStore(tmp_path, syncs=syncs)
    holder = store.coordinator.init_producer_id(ID, 60_000)
    turn(store, holder, "x", commit=True)
    for partition in (A, B, place_of(store)):
        log = store.log(partition)
        assert (log.recovery_point == log.log_end_offset) is syncs
    store.close()


def test_batches_lie_as_kafka_writes_them(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    turn(store, store.coordinator.init_producer_id(ID, 60_000), "x", commit=True)
    store.offsets(place_of(store)).commit("plain", {A: CommittedOffset(1), B: CommittedOffset(2)})
    heads = {
        name: heads_of(store, TopicPartition(*name)) for name in [("__transaction_state", 0), tuple(place_of(store))]
    }
    state = heads.get(("__transaction_state", 0)) or heads_of(store, TopicPartition("__transaction_state", 1))
    assert [(each.producer_id, each.base_sequence, each.count, each.attributes) for each in state] == [
        (-1, -1, 1, 0)
    ] * 5
    first, marker, plain = heads[tuple(place_of(store))]
    assert (first.is_transactional, first.base_sequence, first.count) == (True, 0, 1)
    assert (marker.is_control, marker.base_sequence, marker.size) == (True, -1, 78)
    assert (plain.producer_id, plain.producer_epoch, plain.base_sequence, plain.count) == (-1, -1, 0, 2)
    store.close()


def heads_of(store: LogStore, partition: TopicPartition) -> list:  # type: ignore[type-arg]
    log = store.existing(partition)
    return [] if log is None else list(log.read(0, 1 << 20).records.batches())


def test_reading_from_the_middle_of_a_batch_and_from_a_raised_start(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    place = place_of(store)
    for number in range(20):
        store.offsets(place).commit(GROUP, {TopicPartition("t", n): CommittedOffset(number) for n in range(3)})
    log = store.log(place)
    state = UnifiedStateLog(log, syncs=False)
    assert [each.base_offset for each in state.read()] == [*range(0, 60, 3)]
    assert [each.base_offset for each in state.read(55)] == [54, 57]
    assert list(state.read(60)) == []
    log.maybe_increment_log_start_offset(30, LogStartOffsetIncrementReason.CLIENT_RECORD_DELETION)
    assert next(state.read()).base_offset == 30
    assert next(state.read(3)).base_offset == 30  # deleted meanwhile
    store.close()


def test_a_batch_that_cannot_be_read(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    log = store.log(place_of(store))
    good = records_batch([(b"\0\1", None)], NOW_MS, NO_PRODUCER)
    log.append_as_leader(
        records_batch([(struct.pack(">h", 77), None)], NOW_MS, NO_PRODUCER), 0, AppendOrigin.COORDINATOR
    )
    assert store.offsets(place_of(store)).list_groups() == []
    log.append_as_leader(good, 0, AppendOrigin.COORDINATOR)
    with pytest.raises(SchemaException, match=rf"{log.dir}: the record at offset 1 cannot be understood"):
        store.after_a_kill().offsets(place_of(store))


def test_looking_on_beside_a_writer(tmp_path: Path) -> None:
    """Over the directory as another process sees it: the former state, then later records; nothing is changed."""
    store = LogStore(tmp_path, overrides={"internal.segment.bytes": "1200"})
    holder = store.coordinator.init_producer_id(ID, 60_000)
    for number in range(8):
        holder = turn(store, holder, "x" * (number + 1), commit=number % 3 < 2)
    place = place_of(store)
    state = TopicPartition("__transaction_state", partition_for(ID, 2))
    with PartitionView(tmp_path, place) as offsets_view, PartitionView(tmp_path, state) as state_view:
        seen = GroupOffsets(SourceStateLog(offsets_view, offsets_view.directory), store.clock)
        looking = TransactionCoordinator(
            lambda number, create: SourceStateLog(state_view, state_view.directory) if number == state[1] else None,
            2, store.markers, producer_id_for, store.clock, offsets_partition_count=2,
        )  # fmt: skip
        looking.load(range(2))
        assert seen.fetch_all(GROUP) == store.offsets(place).fetch_all(GROUP) != {}
        assert looking.list_transactions() == store.coordinator.list_transactions()
        store.coordinator.add_partitions(ID, holder, [A])
        store.offsets(place).commit(GROUP, {B: CommittedOffset(99)})
        assert seen.fetch(GROUP, B) is None
        for _ in range(2):
            seen.catch_up()
            looking.catch_up()
        assert seen.fetch_all(GROUP) == store.offsets(place).fetch_all(GROUP)
        assert looking.describe(ID).state == "Ongoing"
        assert len(store.log(state).log_segments()) > 2
        for change in (
            lambda: seen.commit(GROUP, {B: CommittedOffset(1)}),
            lambda: seen.end_transaction(TransactionMarker(1, 0, ABORT, 0, 0)),
            lambda: looking.end_transaction(ID, holder, commit=True),
        ):
            with pytest.raises(LogReadOnlyException, match="belongs to another process"):
                change()
        assert seen.fetch(GROUP, B) == CommittedOffset(99, commit_timestamp=NOW_MS)
    store.close()


def test_damage_in_a_directory_that_is_anothers(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    place = place_of(store)
    store.offsets(place).commit(GROUP, {A: CommittedOffset(1)})
    end = store.log(place).log_end_offset
    assert end == 1
    folder = store.log(place).dir
    store.close()
    with PartitionView(tmp_path, place) as view:
        [batch] = [Path(folder, f"{0:020}.log").read_bytes()]
        extent = view.extent(0)
        assert extent is not None
        Path(folder, f"{0:020}.log").write_bytes(batch[:8] + b"\x7f\xff\xff\xff" + batch[12:])
        with pytest.raises(SchemaException, match=r"\.log"):
            _whole_batches(extent, 0)
        Path(folder, f"{0:020}.log").write_bytes(batch[:8] + b"\0\0\0\1" + batch[12:])
        with pytest.raises(SchemaException, match=r"\.log"):
            _whole_batches(extent, 0)


def test_many_partitions_are_synced_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are synced, and the error of one is raised."""
    store = LogStore(tmp_path, syncs=True)
    places = [TopicPartition("many", number) for number in range(40)]
    holder = store.coordinator.init_producer_id(ID, 60_000)
    store.coordinator.add_partitions(ID, holder, places)
    for each in places:
        store.write(each, holder, b"v")
    threads = set()
    before = UnifiedLog.flush_appended

    def flush(log: UnifiedLog, offset: int) -> None:
        threads.add(threading.get_ident())
        if log.topic_partition in failing:
            raise KafkaStorageException("the disk fails")
        before(log, offset)

    monkeypatch.setattr(UnifiedLog, "flush_appended", flush)
    failing = {places[17]}
    with pytest.raises(KafkaStorageException, match="the disk fails"):
        store.coordinator.end_transaction(ID, holder, commit=True)
    assert store.coordinator.describe(ID).state == "Ongoing"
    failing.clear()
    store.coordinator.end_transaction(ID, holder, commit=True)
    assert all(store.committed(each) == [b"v"] for each in places)
    assert all(store.log(each).recovery_point == 2 for each in places)
    assert threading.get_ident() in threads  # the coordinator's own log
    assert len(threads) > 1
    store.close()


def test_partition_metadata_inside_of_its_own_write(tmp_path: Path) -> None:
    """A signal handler's append in the middle of the first append's write of the file."""

    class Interrupting(UnsyncedFiles):
        def rename(self, src: str, dst: str) -> None:
            if dst.endswith("partition.metadata") and log is not None:
                log.maybe_flush_metadata_file()
            super().rename(src, dst)

    log: UnifiedLog | None = None
    store = LogStore(tmp_path, files=Interrupting())
    log = store.log(A)
    log.assign_topic_id("AAAAAAAAAAAAAAAAAAAAAQ")
    log.maybe_flush_metadata_file()
    assert log.partition_metadata_file is not None
    assert log.partition_metadata_file.exists
    assert not log.context.is_offline
    store.close()
