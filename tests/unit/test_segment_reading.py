"""Reads a segment without trusting its indexes: the follower of transactions, others' index files, the search."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES, File
from kafkalog.engine.format import control, names
from kafkalog.engine.format.builder import SimpleRecord
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.format.index_entries import TXN_ENTRIES, TXN_ENTRY
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.snapshots import ProducerSnapshotEntry
from kafkalog.engine.segment.index_reader import aborted_txns, last_position, offset_entries, time_entries
from kafkalog.engine.segment.order import highest_offset
from kafkalog.engine.segment.reader import SegmentReader, header_at
from kafkalog.engine.segment.scan import LogScan
from kafkalog.engine.segment.transaction_index import AbortedTxn
from kafkalog.engine.segment.transactions import TransactionFollower, open_in_snapshot
from kafkalog.errors import CorruptIndexException, CorruptRecordException, InvalidRecordException
from tests.reference.legacy import build_batch

from .segment_kit import batch

BASE = 100


def data_of(base: int, producer_id: int, *, transactional: bool = True) -> bytes:
    return build_batch(
        [SimpleRecord(1, None, b"v", ())],
        base_offset=base,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=transactional,
    )


def marker(offset: int, producer_id: int, kind: ControlRecordType = ControlRecordType.ABORT) -> bytes:
    return end_txn_marker_batch(offset, 1, 0, producer_id, 0, EndTransactionMarker(kind, 0))


def written(path: Path, *batches: bytes) -> File:
    path.write_bytes(b"".join(batches))
    return OS_FILES.open(str(path), writable=False)


# --- transactions ----------------------------------------------------------------------------------------


def followed(follower: TransactionFollower, file: File) -> list[tuple[AbortedTxn, bool, bool]]:
    scan = LogScan(file, 0, file.size(), slice_bytes=200)
    return [(found.aborted, found.had_begun, found.is_abort()) for piece in scan for found in follower.feed(piece)]


def test_transactions_are_followed_over_slices(tmp_path: Path) -> None:
    file = written(
        tmp_path / "log",
        data_of(0, 7),
        data_of(1, 8),
        data_of(2, 7),
        data_of(3, 9, transactional=False),
        batch(4),
        marker(5, 7),
        marker(6, 8, ControlRecordType.COMMIT),
        marker(7, 9),
        data_of(8, 7),
    )
    follower = TransactionFollower({1: -5})
    assert followed(follower, file) == [
        (AbortedTxn(7, 0, 5, -5), True, True),
        (AbortedTxn(8, 1, 6, -5), True, False),
        (AbortedTxn(9, -1, 7, -5), False, True),
    ]
    assert follower.open == {1: -5, 7: 8}
    follower.open.pop(1)
    assert (follower.first_open_offset(9), TransactionFollower().first_open_offset(9)) == (8, 9)


def test_a_marker_says_how_far_readers_may_go() -> None:
    follower = TransactionFollower()
    for data in (data_of(0, 7), data_of(1, 8)):
        assert follower.observe(native.header_at(data), memoryview(data)) is None
    stable = []
    for data in (marker(2, 7), marker(3, 8)):
        found = follower.observe(native.header_at(data), memoryview(data))
        assert found is not None
        stable.append(found.aborted.last_stable_offset)
    assert stable == [1, 4]  # the start of the other, then the offset after the marker


def test_a_control_batch_that_is_no_marker() -> None:
    data = bytearray(marker(2, 7))
    data[66:68] = b"\xff\xff"  # the version in the record's key
    found = TransactionFollower().observe(native.header_at(data), memoryview(data))
    assert found is not None
    with pytest.raises(InvalidRecordException, match="Invalid version found for control record"):
        found.is_abort()
    commit = marker(2, 7, ControlRecordType.COMMIT)
    assert not control.is_abort(commit, native.header_at(commit))


def test_any_control_batch_of_a_producer_ends_its_transaction() -> None:
    data = bytearray(marker(2, 7))
    data[22] &= 0xEF  # no longer transactional: Kafka's producers do not ask
    follower = TransactionFollower({7: 0})
    found = follower.observe(native.header_at(data), memoryview(data))
    assert found is not None
    assert (found.aborted, found.is_abort(), follower.open) == (AbortedTxn(7, 0, 2, 3), True, {})


def test_what_a_snapshot_has_open() -> None:
    entries = [ProducerSnapshotEntry(number, 0, 0, 0, 0, 0, 0, first) for number, first in ((1, 9), (2, -1), (3, 4))]
    assert list(open_in_snapshot(entries).items()) == [(3, 4), (1, 9)]


# --- index files -----------------------------------------------------------------------------------------


def test_the_fields_of_an_entry_are_those_of_an_aborted_transaction() -> None:
    assert TXN_ENTRIES.names == ("version", *AbortedTxn._fields)


@pytest.mark.parametrize("seed", range(20))
def test_lookups_in_the_believable_part(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice([0, 1, 2, 1500, 3000])
    offsets = sorted(rng.sample(range(10_000), count))
    positions = sorted(rng.sample(range(1, 10_000), count))
    times = sorted(rng.sample(range(10_000), count))
    good = rng.randrange(count + 1)
    rest = rng.choice([b"", bytes(64), bytes(200_000), struct.pack(">ii", 0, 5), b"\xff" * 11])
    path = str(tmp_path / "index")
    entries = list(zip(offsets, positions, strict=True))[:good]
    Path(path).write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries) + rest)
    found = offset_entries(OS_FILES, path, BASE, 9_000)
    entries = [(BASE + offset, position) for offset, position in entries if position < 9_000]
    if not entries and rest == struct.pack(">ii", 0, 5):
        entries = [(BASE, 5)]
    assert len(found) == len(entries)
    assert found.last_entry() == (entries[-1] if entries else (BASE, 0))
    exact = [position + step for _, position in entries[:3] + entries[-3:] for step in (-1, 0, 1)]
    for target in (0, BASE, 9_000, 2**62, *exact, *(rng.randrange(11_000) for _ in range(50))):
        below = [entry for entry in entries if entry[0] <= target]
        assert found.floor(target) == (below[-1] if below else (BASE, 0))
        assert found.at_or_behind(target) == next((entry for entry in entries if entry[1] >= target), None)
    by_time = list(zip(times, offsets, strict=True))[:good]
    Path(path).write_bytes(b"".join(struct.pack(">qi", *entry) for entry in by_time) + struct.pack(">qi", -1, 0))
    at_times = time_entries(OS_FILES, path, BASE)
    assert len(at_times) == good
    for target in (-(2**70), -1, 0, 2**70, *(rng.randrange(11_000) for _ in range(50))):
        before = [(time, BASE + offset) for time, offset in by_time if time < target]
        assert at_times.before(target) == (before[-1] if before else None)


def test_the_last_position_that_an_index_names(tmp_path: Path) -> None:
    path = tmp_path / "index"
    assert last_position(OS_FILES, str(path)) == -1
    path.write_bytes(b"short")
    assert last_position(OS_FILES, str(path)) == -1
    path.write_bytes(struct.pack(">iiii", 1, 2, 3, 4) + b"short")
    assert last_position(OS_FILES, str(path)) == 4
    path.write_bytes(struct.pack(">iiii", 1, 2, 3, 4) + bytes(8 * 100_000))  # room that was set aside
    assert last_position(OS_FILES, str(path)) == 4
    path.write_bytes(bytes(80))
    assert last_position(OS_FILES, str(path)) == -1


def test_aborted_transactions_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "txnindex"
    layout = TXN_ENTRY
    good, bad = layout.pack(0, 7, 1, 2, 3), layout.pack(1, 7, 1, 2, 3)
    assert aborted_txns(OS_FILES, str(path)) == []
    with pytest.raises(FileNotFoundError):
        aborted_txns(OS_FILES, str(path), required=True)
    path.write_bytes(good + bad + good[:5])
    assert aborted_txns(OS_FILES, str(path)) == [AbortedTxn(7, 1, 2, 3)]
    with pytest.raises(CorruptIndexException, match="impossible entry: version 1") as caught:
        aborted_txns(OS_FILES, str(path), required=True)
    assert caught.value.position == layout.size
    path.write_bytes(good + good[:5])
    assert aborted_txns(OS_FILES, str(path), required=True) == [AbortedTxn(7, 1, 2, 3)]
    with pytest.raises(CorruptIndexException, match="found 5 bytes of an entry at its end"):
        aborted_txns(OS_FILES, str(path), required=True, finished=True)


# --- the search ------------------------------------------------------------------------------------------


def test_a_search_believes_no_hint(tmp_path: Path) -> None:
    parts = [batch(base, 3, ts=base * 10) for base in (100, 103, 110, 120)]  # gaps, as compaction leaves them
    places = [sum(map(len, parts[:number])) for number in range(5)]
    reader = SegmentReader(written(tmp_path / "log", *parts), BASE, highest_offset(BASE, None), places[4])
    lies = [None, (102, 0), (105, places[1]), (112, places[2]), (122, places[3]), (104, places[1]), (7, 9), (7, 10**6)]
    for hint in lies:
        for offset in range(100, 125):
            ends = zip(places, (102, 105, 112, 122), strict=False)
            assert reader.find(offset, hint) == next((at for at, last in ends if last >= offset), None), (hint, offset)
    found = [reader.find_time(time, 0, 0) for time in (0, 1031, 1032, 1033, 1202, 1203)]
    assert found == [100, 104, 105, 110, 122, None]
    assert reader.find_time(0, 0, 104) == 104


@pytest.mark.parametrize("hint", [None, (105, 0)])
def test_a_gap_is_believed_only_where_all_before_it_can_be_read(tmp_path: Path, hint: tuple[int, int] | None) -> None:
    parts = [batch(100, 3), batch(103, 3), batch(110, 3)]
    hurt = bytearray(parts[1])
    hurt[-1] ^= 1
    at = len(parts[0])
    reader = SegmentReader(written(tmp_path / "log", parts[0], hurt, parts[2]), BASE, 2**40, sum(map(len, parts)))
    assert reader.find(103, hint) == at  # its reader finds the damage
    for offset in (107, 200):
        with pytest.raises(CorruptRecordException, match="a bad CRC") as caught:
            reader.find(offset, hint)
        assert (caught.value.path, caught.value.position) == (str(tmp_path / "log"), at)
    with pytest.raises(CorruptRecordException, match="a bad CRC"):
        reader.find_time(10**9 if hint else 5, 0 if hint else at, 0)


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (1, 0), (1, 1), (2, 0)])
def test_the_last_header_of_a_file(tmp_path: Path, magic: int, codec: int) -> None:
    """A batch of magic 0 or 1 may be shorter than a header of magic 2; zeros after the end are no batch."""
    last = build_batch([SimpleRecord(1, None, b"v")], magic=magic, codec=codec, base_offset=7)
    least_bytes = 61 if magic == 2 else 26
    path = tmp_path / "a.log"
    with written(path, batch(5, 2), last, bytes(100)) as file:
        position = file.size() - 100 - len(last)
        behind = position + len(last)
        for end in (file.size(), behind):
            os.truncate(path, end)
            assert header_at(file, position) == native.header_at(last)
            assert header_at(file, behind) is None
        os.truncate(path, position + least_bytes)
        assert header_at(file, position) == native.header_at(last)
        os.truncate(path, position + least_bytes - 1)
        assert header_at(file, position) is None


def test_what_lies_beyond_the_segments_offsets_does_not_fit(tmp_path: Path) -> None:
    parts = [batch(100, 3), batch(103, 3)]
    reader = SegmentReader(written(tmp_path / "log", *parts), BASE, highest_offset(BASE, 105), sum(map(len, parts)))
    with pytest.raises(CorruptRecordException, match="offsets 103 to 105 and magic 2 does not fit"):
        reader.find(106)


# --- names and checkpoints -------------------------------------------------------------------------------


def test_the_base_offset_in_a_name() -> None:
    stem = "00000000000000000042"
    assert names.segment_base(stem + ".log") == 42
    assert names.segment_base(stem + ".snapshot", ".snapshot") == 42
    for name in ("42.log", stem + ".index", stem + ".log.deleted", "-" + stem + ".log", "x.log", ".log", stem):
        assert names.segment_base(name) is None


def test_a_checkpoint_or_nothing(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpointFile(str(tmp_path / "point"), create=False)
    assert checkpoint.read_or_empty() == {}
    checkpoint.write({TopicPartition("t", 0): 5})
    assert checkpoint.read_or_empty() == {("t", 0): 5}
    (tmp_path / "point").write_text("0\n1\nt 0 x\n")
    assert checkpoint.read_or_empty() == {}
    (tmp_path / "point").unlink()
    (tmp_path / "point").mkdir()
    assert checkpoint.read_or_empty() == {}
