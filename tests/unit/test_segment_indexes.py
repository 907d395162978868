"""OffsetIndex, TimeIndex, TransactionIndex, LazyIndex: bytes, lookups, limits, lifetime."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.files.os_files import OsFile
from kafkalog.engine.files.pool import OpenFiles
from kafkalog.engine.format.index_entries import TXN_ENTRY
from kafkalog.engine.segment.lazy_index import LazyIndex
from kafkalog.engine.segment.offset_index import OffsetIndex
from kafkalog.engine.segment.time_index import TimeIndex
from kafkalog.engine.segment.transaction_index import AbortedTxn, TransactionIndex
from kafkalog.engine.segment.types import OffsetPosition, TimestampOffset
from kafkalog.errors import (
    ClosedChannelException,
    CorruptIndexException,
    IllegalArgumentException,
    IllegalStateException,
    IndexOffsetOverflowException,
    InvalidOffsetException,
    KafkaException,
)

BASE = 45


def offsets(path: Path, max_size: int = 240) -> OffsetIndex:
    return OffsetIndex(str(path / "0.index"), BASE, max_size, OS_FILES)


def times(path: Path, max_size: int = 240) -> TimeIndex:
    return TimeIndex(str(path / "0.timeindex"), BASE, max_size, OS_FILES)


def txns(path: Path) -> TransactionIndex:
    return TransactionIndex(BASE, str(path / "0.txnindex"), OS_FILES)


# --- sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_size", "offset_bytes", "time_bytes"), [(10485760, 10485760, 10485756), (30, 24, 24)])
def test_new_files_are_sparse_and_whole_entries_long(
    tmp_path: Path, max_size: int, offset_bytes: int, time_bytes: int
) -> None:
    first, second = offsets(tmp_path, max_size), times(tmp_path, max_size)
    assert os.path.getsize(first.path) == offset_bytes
    assert os.path.getsize(second.path) == time_bytes
    assert os.stat(first.path).st_blocks == 0
    assert (first.entries, first.max_entries) == (0, offset_bytes // 8)
    assert (second.entries, second.max_entries) == (0, time_bytes // 12)


def test_too_small_for_one_entry(tmp_path: Path) -> None:
    with pytest.raises(IllegalArgumentException, match="Invalid max index size: 7"):
        offsets(tmp_path, 7)
    assert os.path.getsize(tmp_path / "0.index") == 0  # created before it was refused, as in Kafka


def test_reopened_untrimmed_file_counts_its_zeros(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    index.append(BASE + 1, 10)
    index.close()
    again = offsets(tmp_path)
    assert (again.entries, again.is_full, again.last_offset) == (30, True, BASE)
    again.close()


# --- the offset index -------------------------------------------------------------------------------


def test_lookup_sees_every_append_at_once(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    assert index.lookup(BASE + 9) == (BASE, 0)
    for n in range(1, 31):
        index.append(BASE + 10 * n, 100 * n)
        assert index.lookup(BASE + 10 * n) == (BASE + 10 * n, 100 * n)
        assert index.lookup(BASE + 10 * n - 1) == ((BASE + 10 * n - 10, 100 * n - 100) if n > 1 else (BASE, 0))
        assert index.last_offset == BASE + 10 * n
    with pytest.raises(IllegalArgumentException, match=r"full index \(size = 30\)\. .*segment\.index\.bytes"):
        index.append(BASE + 1000, 1)


def test_offsets_must_grow_and_fit(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    index.append(BASE, 5)  # the first may be the base itself
    with pytest.raises(InvalidOffsetException, match=f"offset {BASE} to position 1 no larger than"):
        index.append(BASE, 6)
    index.append(BASE + 2**31 - 1, 6)
    for offset in (BASE + 2**31, BASE + 2**40):
        assert not index.can_append_offset(offset)
        with pytest.raises(IndexOffsetOverflowException):
            index.append(offset, 7)
    assert index.entries == 2


def test_upper_bound_takes_an_exact_position(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    start = OffsetPosition(BASE, 100)
    assert index.fetch_upper_bound_offset(start, 1) is None
    for n in range(1, 5):
        index.append(BASE + n, 100 * n)
    assert index.fetch_upper_bound_offset(start, 50) == (BASE + 2, 200)
    assert index.fetch_upper_bound_offset(start, 100) == (BASE + 2, 200)
    assert index.fetch_upper_bound_offset(start, 101) == (BASE + 3, 300)
    assert index.fetch_upper_bound_offset(start, 301) is None


@pytest.mark.parametrize(
    ("cut", "left"), [(BASE + 99, 3), (BASE + 31, 3), (BASE + 30, 2), (BASE + 29, 2), (BASE + 10, 0), (0, 0)]
)
def test_truncate_to_leaves_stale_bytes(tmp_path: Path, cut: int, left: int) -> None:
    index = offsets(tmp_path)
    for n in (10, 20, 30):
        index.append(BASE + n, n)
    before = Path(index.path).read_bytes()
    index.truncate_to(cut)
    assert (index.entries, index.last_offset) == (left, BASE + 10 * left)
    assert Path(index.path).read_bytes() == before
    index.trim_to_valid_size()
    assert Path(index.path).read_bytes() == before[: 8 * left]


def test_resize_keeps_entries_and_refuses_to_lose_them(tmp_path: Path) -> None:
    index = offsets(tmp_path, 64)
    for n in (1, 2, 3):
        index.append(BASE + n, n)
    assert index.lookup(BASE + 2) == (BASE + 2, 2)
    assert not index.resize(71)  # rounds down to what it is
    assert index.resize(800)
    assert (index.max_entries, index.length, os.path.getsize(index.path)) == (100, 800, 800)
    assert index.lookup(BASE + 2) == (BASE + 2, 2)
    assert index.resize(24)
    assert index.is_full
    assert index.all_entries() == [(BASE + 1, 1), (BASE + 2, 2), (BASE + 3, 3)]
    with pytest.raises(IllegalArgumentException, match="newPosition > limit"):
        index.resize(16)


def test_life_after_trim(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    index.append(BASE + 1, 10)
    assert index.lookup(BASE + 5).position == 10
    index.trim_to_valid_size()
    assert (index.entries, index.max_entries, index.is_full) == (1, 1, True)
    assert index.lookup(BASE + 5).position == 10
    index.flush()
    index.resize(240)
    index.append(BASE + 2, 20)
    assert index.lookup(BASE + 5).position == 20
    index.reset()
    assert index.lookup(BASE + 5) == (BASE, 0)
    assert os.path.getsize(index.path) == 240
    index.append(BASE + 3, 30)
    index.trim_to_valid_size()
    assert Path(index.path).read_bytes() == struct.pack(">ii", 3, 30)


def test_readers_live_through_resizes(tmp_path: Path) -> None:
    index = offsets(tmp_path, 8 * 200_000)
    for n in range(1, 2001):
        index.append(BASE + n, n)
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            for n in (1, 700, 2000):
                found = index.lookup(BASE + n)
                if found != (BASE + n, n):
                    wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        index.trim_to_valid_size()
        index.resize(index.max_index_size)
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_closed(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    index.append(BASE + 1, 10)
    index.close()
    index.close()
    with pytest.raises(IllegalStateException):
        index.lookup(BASE + 1)
    with pytest.raises(IllegalStateException):
        index.append(BASE + 2, 11)
    index.trim_to_valid_size()
    assert os.path.getsize(index.path) == 240
    assert index.delete_if_exists()
    assert not index.delete_if_exists()


def test_sanity_checks_say_what_kafka_says(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    path.write_bytes(struct.pack(">ii", -3, 7))
    with pytest.raises(CorruptIndexException, match="has non-zero size but the last offset is 42 which is less than"):
        offsets(tmp_path).sanity_check()
    path.write_bytes(b"\0\0\0\1\0\0\0\1\0")
    with pytest.raises(CorruptIndexException, match="found 9 bytes which is neither positive nor a multiple of 8"):
        offsets(tmp_path).sanity_check()
    path = tmp_path / "0.timeindex"
    path.write_bytes(struct.pack(">qiqi", 10, 1, 9, 2))
    with pytest.raises(CorruptIndexException, match="last timestamp is 9 which is less than the first timestamp 10"):
        times(tmp_path).sanity_check()
    path.write_bytes(struct.pack(">qi", 10, -1))
    with pytest.raises(CorruptIndexException, match="the last offset is 44 which is less than the first offset 45"):
        times(tmp_path).sanity_check()
    path.write_bytes(bytes(13))
    with pytest.raises(CorruptIndexException, match="found 13 bytes which is neither positive nor a multiple of 12"):
        times(tmp_path).sanity_check()


# --- the time index ---------------------------------------------------------------------------------


def test_time_entries(tmp_path: Path) -> None:
    index = times(tmp_path, 60)
    assert index.lookup(99) == (-1, BASE)
    assert index.last_entry == (-1, BASE)
    index.maybe_append(-1, BASE + 1)
    assert index.entries == 0
    index.maybe_append(10, BASE + 1)
    index.maybe_append(10, BASE + 5)  # the same time: no entry
    assert index.all_entries() == [TimestampOffset(10, BASE + 1)]
    with pytest.raises(IllegalStateException, match=r"a timestamp \(9\) to slot 1"):
        index.maybe_append(9, BASE + 6)
    with pytest.raises(InvalidOffsetException, match=r"an offset \(45\) to slot 1"):
        index.maybe_append(11, BASE)
    for n in (2, 3, 4):
        index.maybe_append(10 * n, BASE + n)
    assert index.is_full  # one slot stays free
    with pytest.raises(IllegalArgumentException, match=r"full time index \(size = 4\)"):
        index.maybe_append(99, BASE + 9)
    index.maybe_append(50, BASE + 9, skip_full_check=True)
    assert [index.lookup(ts).offset - BASE for ts in (9, 10, 19, 20, 49, 50, 99)] == [0, 1, 1, 2, 4, 9, 9]
    with pytest.raises(IllegalStateException):
        index.maybe_append(60, BASE + 9, skip_full_check=True)
    with pytest.raises(IllegalArgumentException, match="Attempt to fetch the 5th entry from time index"):
        index.entry(5)


@pytest.mark.parametrize(("cut", "left"), [(BASE + 9, 3), (BASE + 3, 2), (BASE + 2, 1), (BASE + 1, 0), (0, 0)])
def test_time_truncate(tmp_path: Path, cut: int, left: int) -> None:
    index = times(tmp_path)
    for n in (1, 2, 3):
        index.maybe_append(10 * n, BASE + n)
    index.truncate_to(cut)
    assert index.entries == left
    assert index.last_entry == ((10 * left, BASE + left) if left else (-1, BASE))


# --- the transaction index --------------------------------------------------------------------------


def test_txn_index_bytes_and_search(tmp_path: Path) -> None:
    index = txns(tmp_path)
    assert index.is_empty
    assert index.collect_aborted_txns(0, 99) == ([], False)
    assert os.listdir(tmp_path) == []
    aborted = [AbortedTxn(7, 50, 60, 55), AbortedTxn(8, 55, 70, 65), AbortedTxn(9, 52, 80, 81)]
    for txn in aborted:
        index.append(txn)
    assert Path(index.path).read_bytes() == b"".join(TXN_ENTRY.pack(0, *txn) for txn in aborted)
    assert os.path.getsize(index.path) == 3 * 34
    assert index.all_aborted_txns() == aborted
    assert index.collect_aborted_txns(0, 100) == (aborted, False)
    assert index.collect_aborted_txns(61, 81) == (aborted[1:], True)
    assert index.collect_aborted_txns(0, 53) == ([aborted[0]], True)
    with pytest.raises(IllegalArgumentException, match="but 80 is not greater than current last offset 80 of index"):
        index.append(AbortedTxn(1, 1, 80, 1))
    index.close()
    with pytest.raises(ClosedChannelException):
        index.all_aborted_txns()  # "none" would show aborted records as committed
    again = txns(tmp_path)
    again.append(AbortedTxn(1, 1, 46, 1))  # a reopened index knows no last offset
    assert len(again.all_aborted_txns()) == 4
    again.truncate_to(70)
    assert again.all_aborted_txns() == aborted[:1]
    assert os.path.getsize(index.path) == 34
    again.sanity_check(0)
    again.reset()
    assert os.path.getsize(index.path) == 0
    assert txns(tmp_path).all_aborted_txns() == []


def test_txn_index_of_a_replica(tmp_path: Path) -> None:
    """After an append of several batches each entry has the last stable offset after the last of them.

    This is higher than after the entry's own marker, so that the entry ends no search."""
    index = txns(tmp_path)
    aborted = [AbortedTxn(7, 50, 51, 90), AbortedTxn(7, 52, 60, 90)]
    for txn in aborted:
        index.append(txn)
    assert index.collect_aborted_txns(52, 58) == (aborted[1:], True)
    assert index.collect_aborted_txns(50, 52) == (aborted[:1], True)


def test_txn_index_damage(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    path.write_bytes(TXN_ENTRY.pack(0, 1, 2, 44, 5) + b"torn")
    index = txns(tmp_path)
    assert index.all_aborted_txns() == [(1, 2, 44, 5)]
    with pytest.raises(CorruptIndexException, match="is less than start offset 45"):
        index.sanity_check(0)
    path.write_bytes(TXN_ENTRY.pack(1, 1, 2, 44, 5))
    with pytest.raises(KafkaException, match="Unexpected aborted transaction version 1") as raised:
        txns(tmp_path).all_aborted_txns()
    assert (raised.value.path, raised.value.position) == (str(path), 0)
    assert "reindex" in str(raised.value.hint)


def test_txn_index_renames_a_missing_file(tmp_path: Path) -> None:
    index = txns(tmp_path)
    index.rename_to(str(tmp_path / "1.txnindex"))
    assert index.path.endswith("1.txnindex")
    index.append(AbortedTxn(1, 2, 3, 4))
    index.rename_to(str(tmp_path / "2.txnindex"))
    assert os.listdir(tmp_path) == ["2.txnindex"]


# --- lazy -------------------------------------------------------------------------------------------


def test_lazy_index_waits(tmp_path: Path) -> None:
    lazy = LazyIndex(OffsetIndex, str(tmp_path / "a.index"), BASE, 80, OS_FILES)
    lazy.rename_to(str(tmp_path / "b.index"))
    lazy.update_parent_dir(str(tmp_path))
    assert not lazy.delete_if_exists()
    lazy.close()
    assert os.listdir(tmp_path) == []
    assert lazy.get() is lazy.get()
    assert os.listdir(tmp_path) == ["b.index"]
    lazy.rename_to(str(tmp_path / "c.index"))
    assert lazy.file == lazy.get().path == str(tmp_path / "c.index")
    with pytest.raises(FileNotFoundError):
        lazy.rename_to(str(tmp_path / "no" / "d.index"))
    lazy.get().path = str(tmp_path / "c.index")
    assert lazy.delete_if_exists()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", ["made", "sized", "kept"])
def test_lazy_index_interrupted(tmp_path: Path, step: str) -> None:
    """The rest of a file whose creation was interrupted has no entries."""
    path = str(tmp_path / "a.index")
    lazy = LazyIndex(OffsetIndex, path, BASE, 80, OS_FILES)
    where = {
        "made": (OsFile, "truncate", False), "sized": (OsFile, "truncate", True), "kept": (OpenFiles, "admit", False),
    }[step]  # fmt: skip
    with interrupted(*where), pytest.raises(KeyboardInterrupt):
        lazy.get()
    assert os.path.getsize(path) == (0 if step == "made" else 80)
    index = lazy.get()
    assert (index.entries, index.length, index.is_full) == (0, 80, False)
    index.append(BASE + 1, 7)
    index.close()
    assert LazyIndex(OffsetIndex, path, BASE, 80, OS_FILES).get().entries == 10  # another index left it as Kafka does


def test_lazy_index_beside_a_renaming(tmp_path: Path) -> None:
    """The directory was missing for a moment: a file that comes back with it keeps its entries."""
    (tmp_path / "now").mkdir()
    there = OffsetIndex(str(tmp_path / "now" / "a.index"), BASE, 80, OS_FILES)
    there.append(BASE + 1, 7)
    there.trim_to_valid_size()
    lazy = LazyIndex(OffsetIndex, str(tmp_path / "before" / "a.index"), BASE, 80, OS_FILES)
    with pytest.raises(ClosedChannelException):
        lazy.get()
    lazy.update_parent_dir(str(tmp_path / "now"))
    assert lazy.get().entries == 1


@contextlib.contextmanager
def interrupted(owner: type, name: str, is_done: bool) -> Iterator[None]:
    """Ctrl-C before the first call of a method, or after it."""
    method = getattr(owner, name)

    def cut(*given: Any) -> Any:
        if is_done:
            method(*given)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, cut)
        yield
