"""LogSegment and FileRecords: append, index entries, read, roll, recover, truncate, files."""

from __future__ import annotations

import os
import random
import socket
import struct
from pathlib import Path

import numpy as np
import pytest

from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import names
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker
from kafkalog.engine.log.replay import rows_to_replay
from kafkalog.engine.segment.file_records import FileRecords
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.transaction_index import AbortedTxn
from kafkalog.engine.segment.types import EMPTY_RECORDS, FetchDataInfo, LogOffsetMetadata, RollParams
from kafkalog.errors import (
    CorruptIndexException,
    CorruptRecordException,
    IllegalArgumentException,
    InvalidOffsetException,
    InvalidRecordException,
    KafkaException,
    LogSegmentOffsetOverflowException,
    NoSuchFileException,
)
from tests.unit.segment_kit import (
    BASE,
    Completed,
    Epochs,
    Producers,
    Rules,
    append,
    batch,
    config,
    index_bytes,
    open_segment,
    recover,
)


def fill(segment: LogSegment, count: int = 20, *, per_batch: int = 2, per_call: int = 1, seed: int = 1) -> list[bytes]:
    """Batches of different sizes and times, several a call."""
    rng = random.Random(seed)
    made, offset = [], BASE
    for _ in range(count):
        made.append(
            batch(
                offset, per_batch, ts=rng.randrange(1000, 2000), value=b"x" * rng.randrange(200), step=rng.randrange(3)
            )
        )
        offset += per_batch
    for start in range(0, count, per_call):
        append(segment, *made[start : start + per_call])
    return made


def found(data: FetchDataInfo | None) -> list[tuple[int, int]]:
    assert data is not None
    return [(header.base_offset, header.last_offset) for header in data.records.batches()]


# --- appending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_call", [1, 2, 3, 20])
@pytest.mark.parametrize("interval", [0, 1, 100, 300, 1000, 4096])
def test_entries_follow_the_rules_and_recovery_agrees(tmp_path: Path, interval: int, per_call: int) -> None:
    segment = open_segment(tmp_path, config(index_interval_bytes=interval))
    made = fill(segment, per_call=per_call)
    rules = Rules(BASE, interval)
    position = 0
    for data in made:
        rules.append(data, position)
        position += len(data)
    assert index_bytes(segment) == rules.bytes()
    assert segment.size == position == os.path.getsize(segment.log.path)
    assert segment.max_timestamp_and_offset_so_far == rules.largest

    segment.on_become_inactive_segment()
    rules.add_time()
    assert index_bytes(segment) == rules.bytes()
    assert os.path.getsize(segment.offset_index_file) == 8 * len(rules.offsets)

    again = open_segment(tmp_path, config(index_interval_bytes=interval))
    assert recover(again) == 0
    assert index_bytes(again) == rules.bytes()
    assert os.path.getsize(again.time_index_file) == 12 * len(rules.times)
    assert again.max_timestamp_and_offset_so_far == rules.largest


def test_counter_starts_over_with_the_object(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, config(index_interval_bytes=0))
    append(segment, batch(100))
    append(segment, batch(101))
    assert segment.offset_index.entries == 1
    segment.on_become_inactive_segment()
    segment.close()
    again = open_segment(tmp_path, config(index_interval_bytes=0))
    again.resize_indexes(800)
    append(again, batch(102))
    assert again.offset_index.entries == 1
    append(again, batch(103))
    assert again.offset_index.entries == 2


def test_files_appear_when_touched(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert os.listdir(tmp_path) == [f"{BASE:020d}.log"]
    append(segment, batch(BASE))
    assert sorted(os.listdir(tmp_path)) == [f"{BASE:020d}.{kind}" for kind in ("index", "log", "timeindex")]
    assert os.path.getsize(segment.offset_index_file) == 10485760
    assert os.path.getsize(segment.time_index_file) == 10485756


def test_overflow_writes_nothing(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    data = batch(BASE + 2**31)
    with pytest.raises(LogSegmentOffsetOverflowException) as raised:
        append(segment, data)
    assert raised.value.segment is segment
    assert raised.value.offset == BASE + 2**31
    with pytest.raises(LogSegmentOffsetOverflowException):
        append(segment, batch(BASE - 1))
    assert segment.size == 0
    append(segment, batch(BASE + 2**31 - 1))
    segment.append(0, [], [])
    assert not segment.has_overflow()


def test_full_index_is_noticed_after_the_write(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, config(index_interval_bytes=0, segment_index_bytes=24))
    for offset in (100, 101):
        append(segment, batch(offset, ts=offset))
    with pytest.raises(IllegalArgumentException, match=r"Attempt to append to a full time index \(size = 1\)"):
        append(segment, batch(102, ts=102))
    assert segment.log.size == 3 * len(batch(100))
    assert (segment.offset_index.entries, segment.time_index.entries) == (2, 1)
    with pytest.raises(IllegalArgumentException, match=r"full index \(size = 3\)|full time index"):
        append(segment, batch(103, ts=103), batch(104, ts=104))
    assert segment.offset_index.is_full
    assert segment.offset_index.last_offset == 103
    assert segment.log.size == 5 * len(batch(100))


def test_offsets_that_do_not_grow(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, config(index_interval_bytes=0))
    append(segment, batch(100), batch(105))
    with pytest.raises(InvalidOffsetException, match="no larger than the last offset appended"):
        append(segment, batch(104), batch(103))
    assert segment.offset_index.last_offset == 105


def test_append_limit(tmp_path: Path) -> None:
    log = FileRecords.open(str(tmp_path / "a.log"), OS_FILES)
    log.size = 2**31 - 10
    with pytest.raises(IllegalArgumentException, match="Append of size 11 bytes is too large for segment with current"):
        log.append([b"x" * 11], 11)
    log.close()
    with open(tmp_path / "a.log", "wb") as file:
        file.truncate(2**31)
    with pytest.raises(KafkaException, match="is larger than the maximum allowed segment size of 2147483647"):
        FileRecords.open(str(tmp_path / "a.log"), OS_FILES)


def test_preallocation(tmp_path: Path) -> None:
    preallocating = config(internal_segment_bytes=1000, preallocate="true")
    segment = open_segment(tmp_path, preallocating, new=True)
    assert (segment.size, os.path.getsize(segment.log.path)) == (0, 1000)
    data = batch(BASE)
    append(segment, data)
    assert (segment.size, os.path.getsize(segment.log.path)) == (len(data), 1000)
    assert found(segment.read(BASE, 1000)) == [(BASE, BASE)]
    segment.on_become_inactive_segment()
    assert os.path.getsize(segment.log.path) == len(data)
    with open(segment.log.path, "ab") as file:
        file.write(bytes(100))
    again = open_segment(tmp_path, preallocating)
    assert again.size == len(data) + 100
    assert recover(again) == 100


# --- reading ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0, 300, 4096])
def test_every_offset_is_found(tmp_path: Path, interval: int) -> None:
    segment = open_segment(tmp_path, config(index_interval_bytes=interval))
    made = fill(segment, 60, per_batch=3)
    position = 0
    for n, data in enumerate(made):
        for offset in range(BASE + 3 * n, BASE + 3 * n + 3):
            got = segment.read(offset, 10)
            assert got is not None
            assert got.fetch_offset_metadata == LogOffsetMetadata(BASE + 3 * n, BASE, position)
            assert got.first_entry_incomplete
            assert got.records.to_bytes() == data[:10]
            whole = segment.read(offset, 10, segment.size, True)
            assert whole is not None
            assert (whole.records.to_bytes(), whole.first_entry_incomplete) == (data, False)
        position += len(data)
    assert segment.read(BASE + 180, 100) is None
    assert segment.read(0, 1) is not None  # below the base: the first batch
    assert segment.read_next_offset() == BASE + 180


def test_read_limits(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    data = [batch(100), batch(101), batch(110, 2)]
    append(segment, *data)
    size = len(data[0])
    with pytest.raises(IllegalArgumentException, match="Invalid max size -1 for log read from segment"):
        segment.read(100, -1)
    for got in (segment.read(100, 0), segment.read(100, 50, None, True)):
        assert got is not None
        assert got.records is EMPTY_RECORDS
        assert not got.first_entry_incomplete
        assert got.fetch_offset_metadata == (100, 100, 0)
    assert found(segment.read(102, 9999)) == [(110, 111)]  # a gap: the next batch
    assert found(segment.read(100, 2 * size + 5)) == [(100, 100), (101, 101)]
    got = segment.read(100, 9999, 2 * size)
    assert got is not None
    assert (got.records.size, got.first_entry_incomplete) == (2 * size, False)
    with pytest.raises(IllegalArgumentException, match="Invalid size: -"):
        segment.read(101, 9999, size - 1)
    assert segment.read(101, 9999, size).records.to_bytes() == b""  # type: ignore[union-attr]


def test_overlapping_batches_resolve_as_in_kafka(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, batch(100, 11), batch(107, 6))
    assert segment.translate_offset(106).offset == 100  # type: ignore[union-attr]
    assert segment.translate_offset(107).offset == 107  # type: ignore[union-attr]
    assert segment.translate_offset(108).offset == 107  # type: ignore[union-attr]


def test_slice(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    made = fill(segment, 40)
    whole = b"".join(made)
    got = segment.read(BASE + 4, len(whole))
    assert got is not None
    records = got.records
    assert records.to_bytes() == b"".join(made[2:])
    headers = records.batches()
    assert [header.position for header in headers][:2] == [0, len(made[2])]
    assert [record.offset for record in records.records()] == list(range(BASE + 4, BASE + 80))
    reading, writing = socket.socketpair()
    with reading, writing:
        assert records.send_to(writing) == records.size
        assert reading.recv(records.size, socket.MSG_WAITALL) == records.to_bytes()
    segment.log.truncate_to(50)
    with pytest.raises(KafkaException, match="has been truncated during write: old size"):
        records.to_bytes()


@pytest.mark.parametrize("window", [61, 64, 100, 128, 333, 8192])
def test_headers_are_walked_in_any_window(tmp_path: Path, window: int) -> None:
    segment = open_segment(tmp_path)
    made = fill(segment, 25)
    starts = [sum(map(len, made[:n])) for n in range(25)]
    got = list(segment.log.batches_from(0, window_bytes=window))
    assert [(header.position, header.size) for header in got] == [(at, len(made[n])) for n, at in enumerate(starts)]
    assert segment.log.first_batch(starts[3]).base_offset == BASE + 6  # type: ignore[union-attr]
    assert segment.log.first_batch(segment.size) is None
    # A torn tail is not seen; a size below 14 is an error.
    with open(segment.log.path, "ab") as file:
        file.write(made[0][:-1])
    segment.log.refresh()
    assert len(list(segment.log.batches_from(0, window_bytes=window))) == 25
    with open(segment.log.path, "ab") as file:
        file.truncate(segment.size - len(made[0]) + 1)
        file.write(bytes(30))
    segment.log.refresh()
    with pytest.raises(CorruptRecordException, match="Found record size 0 smaller than minimum record overhead"):
        list(segment.log.batches_from(0, window_bytes=window))


def test_find_offset_by_timestamp(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, config(index_interval_bytes=0))
    for n in range(20):
        append(segment, batch(BASE + 2 * n, 2, ts=1000 + 20 * n, step=10, partition_leader_epoch=n // 10))
    for n in range(40):
        for ts in (1000 + 10 * n, 1000 + 10 * n - 9):
            assert segment.find_offset_by_timestamp(ts, BASE) == (1000 + 10 * n, BASE + n, n // 20)
    assert segment.find_offset_by_timestamp(0, BASE + 7) == (1070, BASE + 7, 0)
    assert segment.find_offset_by_timestamp(1391, BASE) is None


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_legacy_batches(tmp_path: Path, magic: int, codec: int) -> None:
    segment = open_segment(tmp_path, config(index_interval_bytes=100), base=0)
    offset = 0
    for _ in range(10):
        append(segment, batch(offset, 4, ts=1000 + offset, magic=magic, codec=codec))
        offset += 4
    entries = index_bytes(segment)
    for target in range(40):
        place = segment.translate_offset(target)
        assert place is not None
        assert place.offset == (target // 4 * 4 if codec else target)
    producers, epochs = Producers(), Epochs()
    again = open_segment(tmp_path, config(index_interval_bytes=100), base=0)
    assert recover(again, producers, epochs) == 0
    assert index_bytes(again)[0] == entries[0]
    assert (producers.map_end, epochs.assigned) == (-1, [])
    assert again.read_next_offset() == 40
    assert again.max_timestamp_so_far == (-1 if magic == 0 else 1039)
    if magic == 1:
        assert again.find_offset_by_timestamp(1017, 0) == (1017, 17, None)


# --- rolling ----------------------------------------------------------------------------------------


def roll_params(**changes: int) -> RollParams:
    params = {
        "max_segment_ms": 1000,
        "max_segment_bytes": 10_000,
        "max_timestamp_in_messages": 5000,
        "max_offset_in_messages": BASE + 5,
        "messages_size": 100,
        "now": 1_000_000,
    }
    return RollParams(**{**params, **changes})


def test_should_roll(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    data = batch(BASE, ts=5000)
    assert not segment.should_roll(roll_params(now=9_000_000))  # an empty segment never for time
    append(segment, data)
    size = len(data)
    assert not segment.should_roll(roll_params())
    assert not segment.should_roll(roll_params(max_segment_bytes=100 + size))
    assert segment.should_roll(roll_params(max_segment_bytes=99 + size))
    assert not segment.should_roll(roll_params(max_timestamp_in_messages=6000, now=9_000_000))
    assert segment.should_roll(roll_params(max_timestamp_in_messages=6001))
    assert not segment.should_roll(roll_params(max_timestamp_in_messages=-5000))
    assert not segment.should_roll(roll_params(max_offset_in_messages=BASE + 2**31 - 1))
    assert segment.should_roll(roll_params(max_offset_in_messages=BASE + 2**31))
    assert segment.should_roll(roll_params(max_offset_in_messages=BASE - 1))
    segment.offset_index.resize(0)
    assert segment.should_roll(roll_params())


def test_roll_time_is_of_the_first_batch(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    assert segment.first_batch_timestamp == 2**63 - 1
    assert segment.time_waited_for_roll(1_000_007, 1) == 7
    append(segment, batch(100, 3, ts=50, step=-10))
    assert segment.first_batch_timestamp == 50
    append(segment, batch(103, ts=10))
    again = open_segment(tmp_path)
    assert (again.first_batch_timestamp, again.time_waited_for_roll(0, 70)) == (50, 20)
    again.truncate_to(100)
    assert again.first_batch_timestamp == 2**63 - 1
    append(again, batch(100, ts=-1))
    assert again.time_waited_for_roll(1_000_009, 70) == 9
    assert again.first_batch_timestamp == 2**63 - 1


def test_a_first_batch_that_is_cut_away_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without the lock does not store what it found for the batch that came instead."""
    append(open_segment(tmp_path), batch(100, ts=50))
    segment = open_segment(tmp_path)
    first_batch = FileRecords.first_batch

    def cut(records: FileRecords, position: int = 0) -> object:
        monkeypatch.undo()
        found = first_batch(records, position)
        segment.truncate_to(100)
        append(segment, batch(100, ts=70))
        return found

    monkeypatch.setattr(FileRecords, "first_batch", cut)
    assert segment.first_batch_timestamp == 50
    assert segment.first_batch_timestamp == 70
    assert segment.time_waited_for_roll(0, 90) == 20


# --- recovering -------------------------------------------------------------------------------------


def damaged(tmp_path: Path, data: bytes, base: int = BASE) -> LogSegment:
    Path(names.log_file(str(tmp_path), base)).write_bytes(data)
    return open_segment(tmp_path, config(index_interval_bytes=100), base=base)


def test_recover_cuts_at_every_byte_and_bit(tmp_path: Path) -> None:
    made = [batch(BASE + 2 * n, 2) for n in range(3)]
    whole = b"".join(made)
    size = len(made[0])
    for cut in range(len(whole) + 1):
        segment = damaged(tmp_path, whole[:cut])
        assert recover(segment) == cut % size
        assert os.path.getsize(segment.log.path) == cut // size * size
        segment.close()
    for bit in range(8 * 61):
        data = bytearray(whole)
        data[size + bit // 8] ^= 1 << (bit % 8)
        segment = damaged(tmp_path, bytes(data))
        try:
            kept = recover(segment)
        except (LogSegmentOffsetOverflowException, InvalidOffsetException):
            assert bit < 64  # the base offset, which no CRC covers
        else:
            # The CRC covers neither base offset nor leader epoch,
            # nor the magic, of which a file takes every value above 1 for 2.
            kept_whole = bit < 64 or 96 <= bit < 128 or (128 <= bit < 136 and data[size + 16] in range(2, 128))
            assert kept == (0 if kept_whole else 2 * size), bit
        segment.close()


def test_recover_empties_what_was_there(tmp_path: Path) -> None:
    segment = open_segment(tmp_path, config(index_interval_bytes=0))
    fill(segment, 10)
    segment.txn_index.append(AbortedTxn(1, 2, 3, 4))
    segment.close()
    Path(segment.log.path).write_bytes(batch(100) + b"junk" * 20)
    again = open_segment(tmp_path, config(index_interval_bytes=0))
    assert recover(again) == 80
    assert [os.path.getsize(tmp_path / name) for name in sorted(os.listdir(tmp_path))] == [
        0,
        len(batch(100)),
        12,
        0,
    ]
    assert again.time_index.all_entries() == [(1000, 100)]


def test_recover_replays_epochs_and_producers(tmp_path: Path) -> None:
    builder = MemoryRecordsBuilder(
        base_offset=140, producer_id=5, producer_epoch=1, is_transactional=True, is_control_batch=True,
        partition_leader_epoch=4,
    )  # fmt: skip
    builder.append_end_txn_marker(9, EndTransactionMarker(ControlRecordType.ABORT, 1))
    made = [
        batch(100, 2),
        batch(110, partition_leader_epoch=2),
        batch(111, partition_leader_epoch=2),
        batch(112, partition_leader_epoch=1),
        batch(120, partition_leader_epoch=4, producer_id=5, producer_epoch=1, base_sequence=0, is_transactional=True),
        builder.build(),
        batch(150, partition_leader_epoch=5),
    ]
    producers, epochs = Producers(), Epochs()
    segment = damaged(tmp_path, b"".join(made))
    assert recover(segment, producers, epochs) == 0
    assert epochs.assigned == [(2, 110), (4, 120), (5, 150)]
    assert producers.seen == [120, 140]
    assert producers.map_end == 151
    assert [txn.last_offset for txn in producers.completed] == [140]
    assert segment.txn_index.all_aborted_txns() == [AbortedTxn(5, 139, 140, 141)]
    segment.close()

    epochs = Epochs(4)
    segment = damaged(tmp_path, b"".join(made))
    recover(segment, Producers(), epochs)
    assert epochs.assigned == [(5, 150)]
    segment.close()

    # Producer state refuses a batch: it stays, indexed, and everything after it is dropped.
    for error in (InvalidRecordException("x"), CorruptRecordException("x")):
        producers, epochs = Producers(120, error), Epochs()
        segment = damaged(tmp_path, b"".join(made))
        assert recover(segment, producers, epochs) == len(made[5]) + len(made[6])
        assert producers.map_end == 113
        assert epochs.assigned == [(2, 110), (4, 120)]
        rules = Rules(BASE, 100)
        rules.append(b"".join(made[:5]), 0)
        rules.add_time()
        assert index_bytes(segment) == rules.bytes()
        segment.close()


def producer_state(table: np.ndarray, chosen: list[int]) -> dict[int, tuple[list[int], list[tuple[int, int]]]]:
    # A producer keeps its last five batches since its epoch changed, and each change of kind.
    kept: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
    for n in chosen:
        row = table[n]
        batches, kinds = kept.setdefault(int(row["producer_id"]), ([], []))
        kind = (int(row["producer_epoch"]), int(row["attributes"]) & 0x10)
        if not kinds or kinds[-1] != kind:
            if kinds and kinds[-1][0] != kind[0]:
                batches.clear()
            kinds.append(kind)
        batches.append(n)
        del batches[:-5]
    return kept


def test_replay_leaves_out_only_what_leaves_no_trace() -> None:
    rng = random.Random(5)
    for _ in range(50):
        made = []
        for offset in range(60):
            pid = rng.choice([-1, 1, 1, 1, 1, 2])
            options = {"producer_id": pid, "producer_epoch": int(rng.random() < 0.1), "base_sequence": 0,
                       "is_transactional": rng.random() < 0.1} if pid > 0 else {}  # fmt: skip
            made.append(batch(offset, partition_leader_epoch=offset // 25, **options))
        table, _, _ = native.scan(b"".join(made))
        rows = rows_to_replay(table, -1)
        assert {0, 25, 50} <= set(rows.tolist())
        every = [n for n in range(60) if table["producer_id"][n] > -1]

        assert producer_state(table, [n for n in rows.tolist() if n in every]) == producer_state(table, every)
        assert rows_to_replay(table[table["producer_id"] == -1], 2).tolist() == []


def test_recover_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    made, offset = [], BASE
    for _ in range(80):
        made.append(batch(offset, value=bytes(rng.choice([5, 50, 3000, 9000])), ts=rng.randrange(1 << 40)))
        offset += 1
    rules = Rules(BASE, 100)
    rules.append(b"".join(made), 0)
    rules.add_time()
    monkeypatch.setattr("kafkalog.engine.segment.scan.SCAN_SLICE_BYTES", 4096)
    for tail in (b"", b"\0" * 40, made[-1][:-1]):
        segment = damaged(tmp_path, b"".join(made) + tail)
        scan = segment.scan()
        assert sum(len(part.table) for part in scan) == 80
        assert scan.position == segment.size - len(tail)
        assert recover(segment) == len(tail)
        assert index_bytes(segment) == rules.bytes()
        segment.close()


def test_recover_overflow_and_split(tmp_path: Path) -> None:
    made = [batch(BASE), batch(BASE + 2**31 - 1), batch(BASE + 2**31), batch(BASE + 2**31 + 5)]
    segment = damaged(tmp_path, b"".join(made))
    assert segment.has_overflow()
    with pytest.raises(LogSegmentOffsetOverflowException) as raised:
        recover(segment)
    assert raised.value.segment is segment
    assert raised.value.offset == BASE + 2**31
    first = open_segment(tmp_path, suffix=names.CLEANED_FILE_SUFFIX)
    copied = first.append_from_file(segment.log, 0)
    assert copied == len(made[0]) + len(made[1])
    second = open_segment(tmp_path, base=BASE + 2**31, suffix=names.CLEANED_FILE_SUFFIX)
    assert copied + second.append_from_file(segment.log, copied) == segment.size
    assert second.read_next_offset() == BASE + 2**31 + 6
    assert open_segment(tmp_path, base=7, suffix=".cleaned").append_from_file(segment.log, copied) == 0


def test_recover_with_offsets_that_do_not_grow(tmp_path: Path) -> None:
    segment = damaged(tmp_path, batch(100, 9) + batch(120, 9) + batch(110, 9))
    with pytest.raises(InvalidOffsetException):
        recover(segment)
    assert segment.truncate_to(segment.base_offset) == segment.size + len(batch(100, 9) * 3)
    assert segment.offset_index.entries == 0


# --- truncating -------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0, 300])
def test_truncate_to(tmp_path: Path, interval: int) -> None:
    for target in range(BASE - 1, BASE + 42):
        folder = tmp_path / str(target)
        folder.mkdir()
        segment = open_segment(folder, config(index_interval_bytes=interval))
        made = fill(segment, seed=4)
        segment.txn_index.append(AbortedTxn(1, 100, 110, 110))
        kept = min(max((target - BASE) // 2, 0), 20)
        total = segment.size
        assert segment.truncate_to(target) == total - sum(map(len, made[:kept]))
        assert Path(segment.log.path).read_bytes() == b"".join(made[:kept])
        assert all(offset < target for offset, _ in segment.offset_index.all_entries())
        assert all(offset < target for _, offset in segment.time_index.all_entries())
        assert os.path.getsize(segment.offset_index_file) == 10485760
        assert (segment.txn_index.all_aborted_txns() == []) == (target <= 110)
        rules = Rules(BASE, interval)
        rules.append(b"".join(made[:kept]), 0)
        if kept:
            # Cut at an odd offset, entries of the batch that went stay below it, as in Kafka.
            assert segment.max_timestamp_so_far >= rules.largest[0]
            if target % 2 == 0:
                assert segment.max_timestamp_and_offset_so_far == rules.largest
        assert segment.read_next_offset() == BASE + 2 * kept
        append(segment, batch(BASE + 50))
        assert segment.offset_index.entries <= len(rules.offsets) + 1
        segment.close()


# --- files ------------------------------------------------------------------------------------------


def test_rename_delete_and_times(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    fill(segment)
    segment.txn_index.append(AbortedTxn(1, 2, 3, 4))
    segment.flush()
    segment.set_last_modified(1_234_567)
    assert segment.last_modified == 1_234_567
    assert not segment.has_suffix(".deleted")
    segment.change_file_suffixes("", ".deleted")
    assert segment.has_suffix(".deleted")
    assert sorted(os.listdir(tmp_path)) == [
        f"{BASE:020d}.{k}.deleted" for k in ("index", "log", "timeindex", "txnindex")
    ]
    assert found(segment.read(BASE, 100_000))[0] == (BASE, BASE + 1)
    with pytest.raises(IllegalArgumentException, match=r"Expected string to end with '\.swap'"):
        segment.change_file_suffixes(".swap", "")
    assert not segment.deleted
    segment.delete_if_exists()
    assert segment.deleted
    assert segment.last_modified == 0
    segment.delete_if_exists()
    assert os.listdir(tmp_path) == []


def test_deleted_file_of_a_promoted_future_log(tmp_path: Path) -> None:
    future, current = tmp_path / ("t-0." + "a" * 32 + "-future"), tmp_path / "t-0"
    future.mkdir()
    segment = open_segment(future)
    append(segment, batch(BASE))
    segment.change_file_suffixes("", ".deleted")
    future.rename(current)
    segment.delete_if_exists()
    assert os.listdir(current) == []


def test_folder_renamed_under_an_open_segment(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    segment = open_segment(tmp_path / "a")
    append(segment, batch(BASE))
    (tmp_path / "a").rename(tmp_path / "b")
    segment.update_parent_dir(str(tmp_path / "b"))
    segment.on_become_inactive_segment()
    append_more = batch(BASE + 1)
    segment.resize_indexes(800)
    append(segment, append_more)
    segment.flush()
    assert sorted(os.listdir(tmp_path / "b")) == [f"{BASE:020d}.{kind}" for kind in ("index", "log", "timeindex")]
    assert os.listdir(tmp_path) == ["b"]


def test_sanity_check(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    with pytest.raises(NoSuchFileException, match=r"Offset index file .* does not exist"):
        segment.sanity_check(False)
    append(segment, batch(BASE))
    segment.sanity_check(True)
    assert os.path.getsize(segment.time_index_file) == 0
    segment.txn_index.append(AbortedTxn(1, 2, 3, 4))
    with pytest.raises(CorruptIndexException):
        segment.sanity_check(False)


def test_largest_timestamp_falls_back_to_the_file(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    append(segment, batch(BASE, ts=-1, step=0))
    segment.set_last_modified(777_000)
    assert segment.largest_record_timestamp is None
    assert segment.largest_timestamp == 777_000
    append(segment, batch(BASE + 1, ts=5))
    assert segment.largest_timestamp == segment.largest_record_timestamp == 5


def test_update_txn_index(tmp_path: Path) -> None:
    segment = open_segment(tmp_path)
    segment.txn_index.update(Completed(9, 100, 105, False), 100)
    assert segment.txn_index.is_empty
    segment.txn_index.update(Completed(9, 100, 105, True), 100)
    assert segment.collect_aborted_txns(0, 500) == ([AbortedTxn(9, 100, 105, 100)], False)


def test_hostile_size_does_not_allocate(tmp_path: Path) -> None:
    good = batch(BASE)
    for size in (2**31 - 1, 2**31 - 13, 10**9, -1, 0, 13):
        segment = damaged(tmp_path, good + struct.pack(">qi", BASE + 1, size) + bytes(10_000))
        assert recover(segment) == 10_012
        segment.close()


@pytest.mark.parametrize("value_bytes", [1, 900, 5000, 20_000])
def test_an_offset_is_found_among_batches_of_any_size(tmp_path: Path, value_bytes: int) -> None:
    # Large batches are found header by header, small ones in windows, and a search may go from one to the other.
    bases = [BASE, BASE + 4, BASE + 9, BASE + 12, BASE + 12, BASE + 20]  # with a gap, an overlap and a repetition
    sizes = [value_bytes, value_bytes, 10, value_bytes, value_bytes, 10]
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(batch(base, 3, value=b"v" * size) for base, size in zip(bases, sizes, strict=True)))
    log = FileRecords.open(str(path), OS_FILES, mutable=False)
    headers = list(log.batches())
    starts = [0, *(header.position for header in headers[1:])]
    for start in starts:
        for target in range(BASE - 1, BASE + 25):
            # The first at or above the target, unless the one before it holds the target.
            left = [header for header in headers if header.position >= start]
            at = next((i for i, header in enumerate(left) if header.base_offset >= target), len(left))
            found = left[at] if at < len(left) else None
            if (found is None or found.base_offset > target) and at and left[at - 1].last_offset >= target:
                found = left[at - 1]
            place = log.search_for_offset_from_position(target, start)
            assert place == (found and (found.base_offset, found.position, found.size)), (start, target)
