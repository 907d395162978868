"""UnifiedLog: appends, rolls, offsets, reads, truncation, topic id, close; one partition without faults."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.log import ordinary
from kafkalog.engine.log.local_log import LocalLog
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    InconsistentTopicIdException,
    InvalidRecordException,
    KafkaStorageException,
    OffsetOutOfRangeException,
    OffsetsOutOfOrderException,
    OutOfOrderSequenceException,
    PolicyViolationException,
    RecordBatchTooLargeException,
    RecordTooLargeException,
    UnexpectedAppendOffsetException,
)
from tests.unit.log_kit import NOW_MS, TOPIC_ID, Kit, bases, batch, name


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def test_a_new_partition_has_kafkas_files(kit: Kit) -> None:
    log = kit.open()
    assert kit.names == [name(0, ".index"), name(0, ".log"), name(0, ".timeindex"), "leader-epoch-checkpoint"]
    assert kit.path("leader-epoch-checkpoint").read_bytes() == b""
    kit.scheduler.tick()
    assert kit.path("partition.metadata").read_bytes() == f"version: 0\ntopic_id: {TOPIC_ID}".encode()
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.is_empty) == (0, 0, 0, True)


def test_offsets_are_given_in_order_and_the_buffer_stays(kit: Kit) -> None:
    log = kit.open()
    data = bytearray(batch(3))
    before = bytes(data)
    first, second = log.append_as_leader(data, 7), log.append_as_leader(MemoryRecords(before), 7)
    assert bytes(data) == before
    assert (first.first_offset, first.last_offset, first.num_messages) == (0, 2, 3)
    assert (second.first_offset, second.last_offset) == (3, 5)
    assert log.latest_epoch == 7
    assert kit.path("leader-epoch-checkpoint").read_text() == "0\n1\n7 0\n"
    assert [record.offset for record in log.read(0, 10_000).records.records()] == [0, 1, 2, 3, 4, 5]


DATED = {"message.timestamp.type": "LogAppendTime"}


@pytest.mark.parametrize("overrides", [{}, {"cleanup.policy": "compact"}, {"index.interval.bytes": "0"}, DATED])
@pytest.mark.parametrize("kind", ["plain", "large", "lz4", "idempotent", "transactional", "gzip of two producers"])
def test_the_short_choice_changes_nothing(
    tmp_path: Path, overrides: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and every answer is the same with and without it."""
    if kind == "large":
        overrides = {**overrides, "internal.segment.bytes": "40000"}
    short, long = Kit(tmp_path / "short"), Kit(tmp_path / "long")
    logs = (short.open(overrides), long.open(overrides))
    admitted = 0
    sequences = [0, 0]
    for number in range(30):
        who = number % 5 % 2 if kind == "gzip of two producers" else 0
        count = 1 + number % 3
        producer: dict[str, Any] = {}
        if kind in ("idempotent", "transactional", "gzip of two producers"):
            producer = {"producer_id": 7 + who, "producer_epoch": number // 20, "sequence": sequences[who]}
            producer["transactional"] = kind == "transactional"
            sequences[who] = 0 if number == 19 else sequences[who] + count
            if number == 19:
                sequences = [0, 0]
        value = b"v" * (3000 if kind == "large" else 40)
        codec = {"lz4": 3, "gzip of two producers": 1}.get(kind, 0)
        data = batch(count, ts=NOW_MS + number * 700 % 5000, value=value, codec=codec, **producer)
        rules = logs[0].local_log.ordinary_rules
        assert rules is not None
        admitted += rules.admit(data, NOW_MS) is not None

        def general(given: bytes, epoch: int) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(ordinary, "append", ordinary.long_way)
                return logs[1].append_as_leader(given, epoch)

        assert logs[0].append_as_leader(data, number // 10) == general(data, number // 10)
        assert logs[0].first_unstable_offset == logs[1].first_unstable_offset
        if producer:  # a repetition is answered with its first offsets, a gap is refused
            assert logs[0].append_as_leader(data, number // 10) == general(data, number // 10)
            gap = batch(1, **(producer | {"sequence": producer["sequence"] + 9}))
            for log in logs:
                with pytest.raises(OutOfOrderSequenceException):
                    log.append_as_leader(gap, number // 10)
    assert admitted > 10
    for log in logs:
        log.close()
    assert short.names == long.names
    for entry in short.names:
        assert short.path(entry).read_bytes() == long.path(entry).read_bytes(), entry


@pytest.mark.parametrize("value", [b"v", b"v" * 50_000])
def test_who_waits_for_the_log_gets_the_time_of_his_turn(kit: Kit, value: bytes) -> None:
    """By LogAppendTime no record precedes one of an earlier time."""
    log = kit.open(DATED | {"internal.segment.bytes": "200000"})
    log.append_as_leader(batch(1), 0)
    waited: list[Any] = []
    thread = threading.Thread(target=lambda: waited.append(log.append_as_leader(batch(1, value=value), 0)))
    with log.lock:
        thread.start()
        time.sleep(0.1)
        kit.clock.advance(5000)
        first = log.append_as_leader(batch(1, value=value), 0)
    thread.join()
    assert waited[0].first_offset == first.first_offset + 1
    assert waited[0].log_append_time == waited[0].max_timestamp == first.log_append_time
    times = [record.timestamp for record in log.read(0, 1 << 20).records.records()]
    assert times == sorted(times)


def test_rolling_leaves_a_snapshot_and_flushes_behind(kit: Kit) -> None:
    log = kit.filled(5)
    assert bases(log) == [0, 8]
    assert kit.path(name(8, ".snapshot")).stat().st_size == 10
    assert log.recovery_point == 8
    log.roll()
    assert bases(log) == [0, 8, 10]
    assert name(10, ".index") not in kit.names  # made at the first use
    kit.scheduler.tick()
    assert log.recovery_point == 10


def test_rolling_an_empty_active_segment_makes_it_anew(kit: Kit) -> None:
    log = kit.open()
    log.roll()
    assert bases(log) == [0]
    assert name(0, ".log.deleted") in kit.names
    kit.scheduler.tick()
    kit.clock.now_ms += 60_000
    kit.scheduler.tick()
    assert not [entry for entry in kit.names if entry.endswith(".deleted")]


def test_flush_messages_moves_the_recovery_point(kit: Kit) -> None:
    log = kit.open({"flush.messages": "3"})
    log.append_as_leader(batch(2), 0)
    assert log.recovery_point == 0
    log.append_as_leader(batch(2), 0)
    assert log.recovery_point == 4


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (batch(offset=5), InvalidRecordException),
        (batch(20), RecordTooLargeException),
        (batch()[:-1] + b"\xff", CorruptRecordException),
        (b"\0" * 40, CorruptRecordException),
    ],
)
def test_a_refused_append_leaves_nothing(kit: Kit, data: bytes, error: type[Exception]) -> None:
    log = kit.open({"max.message.bytes": "600"})
    with pytest.raises(error):
        log.append_as_leader(data, 0)
    assert (log.log_end_offset, log.size, log.latest_epoch) == (0, 0, None)


def test_a_batch_larger_than_a_segment_leaves_its_epoch(kit: Kit) -> None:
    log = kit.open()
    with pytest.raises(RecordBatchTooLargeException):
        log.append_as_leader(batch(20), 4)
    assert (log.log_end_offset, log.latest_epoch) == (0, 4)


def test_a_cut_batch_is_nothing(kit: Kit) -> None:
    info = kit.open().append_as_leader(batch()[:-1], 0)
    assert (info.valid_bytes, info.first_offset, info.last_offset, info.num_messages) == (0, -1, -1, 0)


def test_followers_keep_offsets_and_leave_gaps(kit: Kit) -> None:
    log = kit.open()
    log.append_as_follower(batch(offset=10, epoch=2) + batch(offset=20, epoch=3), 3)
    assert log.log_end_offset == 22
    assert [tuple(entry) for entry in log.epoch_entries] == [(2, 10), (3, 20)]
    with pytest.raises(UnexpectedAppendOffsetException) as caught:
        log.append_as_follower(batch(offset=21, epoch=3), 3)
    assert (caught.value.first_offset, caught.value.last_offset) == (21, 22)
    with pytest.raises(OffsetsOutOfOrderException, match="30,31,25,26"):
        log.append_as_follower(batch(offset=30, epoch=3) + batch(offset=25, epoch=3), 3)


def test_followers_skip_batches_of_a_later_epoch(kit: Kit) -> None:
    log = kit.open()
    first = batch(offset=0, epoch=1)
    info = log.append_as_follower(first + batch(offset=2, epoch=5), 1)
    assert (info.valid_bytes, log.log_end_offset) == (len(first), 2)
    assert log.append_as_follower(batch(offset=2, epoch=5), 1).valid_bytes == 0


def test_high_watermark_stays_between_start_and_end(kit: Kit) -> None:
    log = kit.filled(3)
    assert log.update_high_watermark(99) == 6
    assert log.update_high_watermark(2) == 2
    assert log.maybe_update_high_watermark(2) is None
    old = log.maybe_increment_high_watermark(4)
    assert old is not None
    assert old.message_offset == 2
    assert log.maybe_increment_high_watermark(3) is None
    with pytest.raises(IllegalArgumentException):
        log.maybe_increment_high_watermark(7)
    for offset in (5, 6):  # by one record too
        assert log.maybe_increment_high_watermark(offset) is not None
        assert log.high_watermark == offset


@pytest.mark.parametrize("most", [2**63, 2**64, float("inf")])
def test_a_read_of_more_bytes_than_a_long_says_is_refused(kit: Kit, most: Any) -> None:
    log = kit.open()
    log.append_as_leader(batch(), 0)
    size = log.read(0, 2**63 - 1).records.size
    assert size > 0
    with pytest.raises(IllegalArgumentException, match="max_length"):
        log.read(0, most)


def test_reads_stop_at_the_isolation_bound(kit: Kit) -> None:
    log = kit.filled(6)
    log.update_high_watermark(4)
    everything = log.read(0, 1 << 20).records.batches()
    assert everything[-1].last_offset == 7  # one segment at a time
    assert log.read(0, 1 << 20, FetchIsolation.HIGH_WATERMARK).records.batches()[-1].last_offset == 3
    assert log.read(4, 1 << 20, FetchIsolation.HIGH_WATERMARK).records.size == 0
    assert log.read(12, 1 << 20).records.size == 0
    for offset in (-1, 13):
        with pytest.raises(OffsetOutOfRangeException):
            log.read(offset, 100)


def test_an_open_transaction_holds_the_last_stable_offset(kit: Kit) -> None:
    log = kit.open()
    log.append_as_leader(batch(), 0)
    log.append_as_leader(batch(producer_id=9, producer_epoch=0, sequence=0, transactional=True), 0)
    log.update_high_watermark(4)
    assert (log.first_unstable_offset, log.last_stable_offset) == (2, 2)
    found = log.read(0, 1 << 20, FetchIsolation.TXN_COMMITTED)
    assert found.aborted_transactions == []
    assert found.records.batches()[-1].last_offset == 1


def test_delete_records_raises_the_start(kit: Kit) -> None:
    log = kit.filled(6)
    log.update_high_watermark(9)
    with pytest.raises(OffsetOutOfRangeException):
        log.delete_records(10)
    with pytest.raises(OffsetOutOfRangeException):
        log.delete_records(-2)
    assert log.delete_records(3) == 3
    assert log.delete_records(-1) == 9
    with pytest.raises(OffsetOutOfRangeException):
        log.read(8, 100)
    assert [tuple(entry) for entry in log.epoch_entries] == [(0, 9)]
    compacted = Kit(kit.root / "other").open({"cleanup.policy": "compact"})
    with pytest.raises(PolicyViolationException):
        compacted.delete_records(0)


def test_truncation_drops_segments_snapshots_and_epochs(kit: Kit) -> None:
    log = kit.filled(12)
    log.append_as_leader(batch(), 5)
    log.update_high_watermark(26)
    assert log.truncate_to(26) is False
    assert log.truncate_to(10) is True
    assert (log.log_end_offset, log.high_watermark, bases(log)) == (10, 10, [0, 8])
    assert log.latest_epoch == 0
    assert name(16, ".log.deleted") in kit.names
    # Rebuilding the producer state unlinks the file that retention would rename; a new snapshot is at the end.
    assert [entry for entry in kit.names if ".snapshot" in entry and not entry.endswith(".deleted")] == [
        name(8, ".snapshot"),
        name(10, ".snapshot"),
    ]
    with pytest.raises(IllegalArgumentException):
        log.truncate_to(-1)
    log.append_as_leader(batch(), 5)
    assert log.read(10, 1000).records.batches()[0].base_offset == 10


def test_truncating_fully_starts_anew(kit: Kit) -> None:
    log = kit.filled(6)
    log.truncate_fully_and_start_at(100, 90)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, bases(log)) == (90, 100, 100, [100])
    assert kit.path("leader-epoch-checkpoint").read_text() == "0\n0\n"
    # A start below the end needs no snapshot; without a request none is written.
    assert [entry for entry in kit.names if entry.endswith(".snapshot")] == [name(100, ".snapshot")]
    log.truncate_fully_and_start_at(50)
    assert not [entry for entry in kit.names if entry.endswith(".snapshot")]


@pytest.mark.parametrize("change", ["truncation", "roll"])
def test_a_segment_that_an_interrupt_left_is_not_made_anew(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """To make it once more would give its files the names of those that are just being deleted."""
    log = kit.filled(6)
    finish = LocalLog.update_log_end_offset

    def stop(*_: object) -> None:
        monkeypatch.setattr(LocalLog, "update_log_end_offset", finish)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalLog, "update_log_end_offset", stop)
    with pytest.raises(KeyboardInterrupt):
        log.truncate_fully_and_start_at(0) if change == "truncation" else log.roll()
    begun = log.local_log.segments.active_segment
    log.settle()
    assert log.local_log.segments.active_segment is begun
    assert log.log_end_offset == begun.base_offset == (0 if change == "truncation" else 12)
    log.append_as_leader(batch(), 0)
    assert begun.size > 0


def test_offsets_by_time(kit: Kit) -> None:
    log = kit.filled(6)
    find = log.fetch_offset_by_timestamp
    assert find(-2) == (-1, 0, 0)
    assert find(-4) == (-1, 0, 0)
    assert find(-1) == (-1, 12, 0)
    assert find(-3) == (NOW_MS + 5001, 11, 0)
    assert find(-5) == find(-6) == (-1, -1, -1)
    assert find(NOW_MS + 2001) == (NOW_MS + 2001, 5, 0)
    assert find(NOW_MS + 6000) is None
    empty = Kit(kit.root / "empty").open()
    assert empty.fetch_offset_by_timestamp(-3) is None


def test_topic_ids(kit: Kit) -> None:
    log = kit.open(topic_id=None)
    log.assign_topic_id(TOPIC_ID)
    log.assign_topic_id(TOPIC_ID)
    with pytest.raises(InconsistentTopicIdException):
        log.assign_topic_id("BBBBBBBBBBBBBBBBBBBBBQ")
    log.close()
    assert kit.path("partition.metadata").exists()
    assert kit.open(topic_id=None).topic_id == TOPIC_ID
    with pytest.raises(InconsistentTopicIdException):
        kit.open(topic_id="BBBBBBBBBBBBBBBBBBBBBQ")


def test_a_closed_log_says_so(kit: Kit) -> None:
    log = kit.filled(2)
    log.prepare_active_segment_for_close()
    log.flush(True)
    log.close()
    assert kit.path(name(0, ".index")).stat().st_size % 8 == 0
    assert kit.path(name(4, ".snapshot")).stat().st_size == 10
    with pytest.raises(KafkaStorageException, match="already closed"):
        log.append_as_leader(batch(), 0)
    with pytest.raises(KafkaStorageException, match="already closed"):
        log.close()
    assert not [task for task in kit.scheduler.pending if task.name == "PeriodicProducerExpirationCheck"]


def test_delete_removes_the_folder_and_rename_moves_it(kit: Kit) -> None:
    log = kit.filled(6)
    log.rename_dir("t-0.0123456789abcdef0123456789abcdef-delete", False)
    assert not os.path.exists(kit.dir)
    assert log.latest_epoch is None
    log.delete()
    assert os.listdir(kit.root) == []
