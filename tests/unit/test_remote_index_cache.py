"""Indexes of remote segments: fetched once, kept across restarts in bounded bytes, and never used if damaged."""

from __future__ import annotations

import errno
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.remote.index_cache import RemoteIndexCache
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import (
    CorruptIndexException,
    IllegalArgumentException,
    KafkaStorageException,
    RemoteResourceNotFoundException,
    RetriableRemoteStorageException,
)
from tests.file_doubles import Fault, FaultyFiles, RecordingFiles
from tests.object_doubles import LogStorage, segment, segment_id

OFFSETS = struct.pack(">iiiiii", 3, 100, 6, 500, 9, 900)
TIMES = struct.pack(">qiqi", 1000, 3, 2000, 6)
TRANSACTIONS = struct.pack(">hqqqqhqqqq", 0, 7, 1, 2, 1, 0, 8, 1, 5, 1)
ON_DISK = {IndexType.OFFSET: OFFSETS, IndexType.TIMESTAMP: TIMES, IndexType.TRANSACTION: TRANSACTIONS}
SUFFIXES = {IndexType.OFFSET: "index", IndexType.TIMESTAMP: "timeindex", IndexType.TRANSACTION: "txnindex"}
OTHERS = {IndexType.PRODUCER_SNAPSHOT: b"snapshot", IndexType.LEADER_EPOCH: b"0\n1\n0 0\n"}


@pytest.fixture
def storage() -> LogStorage:
    made = LogStorage(b"")
    made.indexes = {**ON_DISK, **OTHERS}
    return made


def cache_of(storage: LogStorage, log_dir: Path | None, **more: Any) -> RemoteIndexCache:
    return RemoteIndexCache(storage, None if log_dir is None else str(log_dir), **more)  # type: ignore[arg-type]


def folder(log_dir: Path) -> Path:
    return log_dir / "remote-log-index-cache"


def names(log_dir: Path) -> list[str]:
    """The files there; each but a foreign one has its checksum next to it."""
    listed = set(os.listdir(folder(log_dir)))
    sums = {each for each in listed if each.endswith(".crc")}
    assert sums == {f"{each}.crc" for each in listed - sums if each != "notes.txt"}
    return sorted(listed - sums)


def name(number: int = 1, suffix: str = "index") -> str:
    return f"{'0' * 20}_{segment_id(number)}.{suffix}"


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("index_type", IndexType)
def test_an_index_is_fetched_once(on_disk: bool, index_type: IndexType, storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path if on_disk else None)
    for _ in range(3):
        assert cache.get(segment(), index_type) == storage.indexes[index_type]
    assert storage.index_requests == [index_type]


def test_files_are_named_as_a_broker_names_them(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path)
    for index_type in IndexType:
        cache.get(segment(start=2), index_type)
    stem = f"00000000000000000002_{segment_id(1)}"
    assert names(tmp_path) == [f"{stem}.{suffix}" for suffix in ("index", "timeindex", "txnindex")]
    for index_type, suffix in SUFFIXES.items():
        assert (folder(tmp_path) / f"{stem}.{suffix}").read_bytes() == ON_DISK[index_type]


def test_a_restart_finds_them_again(storage: LogStorage, tmp_path: Path) -> None:
    for index_type in IndexType:
        cache_of(storage, tmp_path).get(segment(), index_type)
    storage.index_requests.clear()
    again = cache_of(storage, tmp_path)
    for index_type in IndexType:
        assert again.get(segment(), index_type) == storage.indexes[index_type]
    assert storage.index_requests == list(OTHERS)  # a broker, too, does not keep these there


def test_a_transaction_index_that_is_not_there(storage: LogStorage, tmp_path: Path) -> None:
    """Without it aborted records would be shown: only metadata, or the objects themselves, say that there is none."""
    del storage.indexes[IndexType.TRANSACTION]
    assert cache_of(storage, tmp_path).get(segment(is_txn_idx_empty=True), IndexType.TRANSACTION) == b""
    assert storage.index_requests == []
    with pytest.raises(RemoteResourceNotFoundException, match="read_uncommitted"):
        cache_of(storage, tmp_path).get(segment(), IndexType.TRANSACTION)
    storage.indexes[IndexType.TRANSACTION] = b""
    assert cache_of(storage, tmp_path).get(segment(), IndexType.TRANSACTION) == b""
    assert names(tmp_path) == []
    del storage.indexes[IndexType.OFFSET]
    with pytest.raises(RemoteResourceNotFoundException):
        cache_of(storage, tmp_path).get(segment(), IndexType.OFFSET)


def test_an_error_is_not_kept(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path)
    storage.errors.append(RetriableRemoteStorageException("away"))
    with pytest.raises(RetriableRemoteStorageException):
        cache.get(segment(), IndexType.OFFSET)
    assert cache.get(segment(), IndexType.OFFSET) == OFFSETS


@pytest.mark.parametrize("index_type", ON_DISK)
def test_a_damaged_index_in_the_remote_tier_is_refused(
    index_type: IndexType, storage: LogStorage, tmp_path: Path
) -> None:
    storage.indexes[index_type] += b"x"
    with pytest.raises(CorruptIndexException, match=index_type.value) as caught:
        cache_of(storage, tmp_path).get(segment(), index_type)
    assert segment_id(1) in str(caught.value.path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("data", [bytes(68), TRANSACTIONS[34:] + TRANSACTIONS[:34], TRANSACTIONS])
def test_transactions_of_another_segment_are_refused(data: bytes, storage: LogStorage, tmp_path: Path) -> None:
    """Wrong entries of the index would hide records, and nothing else would notice it."""
    storage.indexes[IndexType.TRANSACTION] = data
    for start, end in ((3, 9), (0, 4)):
        with pytest.raises(CorruptIndexException, match="transactions"):
            cache_of(storage, tmp_path).get(segment(start=start, end=end), IndexType.TRANSACTION)
    assert names(tmp_path) == []


def test_names_alone_do_not_say_where_a_segments_transactions_end(storage: LogStorage, tmp_path: Path) -> None:
    """The next segment may begin before this one ends."""
    by_name = segment(start=0, end=4)._replace(segment_leader_epochs=())
    assert cache_of(storage, tmp_path).get(by_name, IndexType.TRANSACTION) == TRANSACTIONS


# --- files that are not what they should be -----------------------------------------------------------------


@pytest.mark.parametrize("index_type", ON_DISK)
@pytest.mark.parametrize("damage", ["cut", "emptied", "longer", "zeros", "flipped", "unsigned", "folder", "gone"])
def test_a_damaged_file_is_fetched_anew(
    index_type: IndexType, damage: str, storage: LogStorage, tmp_path: Path
) -> None:
    cache_of(storage, tmp_path).get(segment(), index_type)
    path = folder(tmp_path) / name(suffix=SUFFIXES[index_type])
    good = ON_DISK[index_type]
    data = {
        "cut": good[:-1],
        "emptied": b"",
        "longer": good + b"\0",
        "zeros": bytes(len(good)),
        "flipped": good[:9] + bytes([good[9] ^ 1]) + good[10:],  # the producer's id in a transaction index
    }
    if damage in data:
        path.write_bytes(data[damage])
    elif damage == "unsigned":
        Path(f"{path}.crc").unlink()
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    storage.index_requests.clear()
    assert cache_of(storage, tmp_path).get(segment(), index_type) == good
    assert storage.index_requests == [index_type]
    if damage != "folder":
        assert path.read_bytes() == good


def test_a_file_that_vanishes_under_the_cache(storage: LogStorage, tmp_path: Path) -> None:
    cache_of(storage, tmp_path).get(segment(), IndexType.OFFSET)
    cache = cache_of(storage, tmp_path)
    (folder(tmp_path) / name()).unlink()
    assert cache.get(segment(), IndexType.OFFSET) == OFFSETS
    assert names(tmp_path) == [name()]


def test_what_a_crash_left_is_cleared_away(storage: LogStorage, tmp_path: Path) -> None:
    folder(tmp_path).mkdir()
    for each in (f"{name()}.123.tmp", f"{name()}.deleted", f"{name()}.crc", "notes.txt"):
        (folder(tmp_path) / each).write_bytes(b"x")
    cache_of(storage, tmp_path)
    assert names(tmp_path) == ["notes.txt"]


def test_a_file_in_the_place_of_the_folder(storage: LogStorage, tmp_path: Path) -> None:
    folder(tmp_path).write_bytes(b"")
    with pytest.raises(KafkaStorageException, match=r"remote-log-index-cache: .*move it elsewhere"):
        cache_of(storage, tmp_path)


def test_a_file_has_its_bytes_before_it_has_its_name(storage: LogStorage, tmp_path: Path) -> None:
    """Otherwise a power cut leaves an empty index, and an empty transaction index hides aborted transactions."""
    files = RecordingFiles(str(tmp_path))
    cache_of(storage, tmp_path, files=files).get(segment(), IndexType.TRANSACTION)
    kinds = [op.kind for op in files.ops if op.kind in ("write", "sync", "rename")]
    assert kinds == ["write", "write", "sync", "rename"]  # the checksum is not synced: without it nothing is believed


@pytest.mark.parametrize("step", ["create", "write", "sync", "rename"])
def test_a_disk_that_takes_nothing_keeps_nobody_from_reading(step: str, storage: LogStorage, tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    cache = cache_of(storage, tmp_path, files=files)
    files.fault = Fault(0, errno.ENOSPC if step == "write" else errno.EIO, kinds={step})
    files.count = 0
    assert cache.get(segment(), IndexType.OFFSET) == OFFSETS
    assert len(files.failed) == 1
    assert names(tmp_path) == []  # nor what was half written
    assert cache.get(segment(), IndexType.OFFSET) == OFFSETS
    assert len(storage.index_requests) == 1


# --- bounds -------------------------------------------------------------------------------------------------


def test_the_disk_is_bounded_and_what_nobody_asks_for_goes_first(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path, total_size_bytes=3 * len(OFFSETS), memory_bytes=0)
    for number in (1, 2, 3, 1, 4):
        cache.get(segment(number), IndexType.OFFSET)
    assert names(tmp_path) == [name(1), name(3), name(4)]
    assert len(storage.index_requests) == 4
    cache.get(segment(2), IndexType.OFFSET)
    assert names(tmp_path) == [name(1), name(2), name(4)]


def test_what_is_larger_than_the_disk_is_not_kept(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path, total_size_bytes=len(OFFSETS) - 1)
    assert cache.get(segment(), IndexType.OFFSET) == OFFSETS
    assert names(tmp_path) == []


def test_a_restart_with_less_room_shrinks(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path)
    for number in range(5):
        cache.get(segment(number), IndexType.OFFSET)
    cache_of(storage, tmp_path, total_size_bytes=2 * len(OFFSETS))
    assert len(names(tmp_path)) == 2


def test_the_disks_room_may_change(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path)
    for number in range(5):
        cache.get(segment(number), IndexType.OFFSET)
    cache.resize_cache_size(len(OFFSETS))
    assert names(tmp_path) == [name(4)]
    cache_of(storage, None).resize_cache_size(1)


def test_memory_is_bounded(storage: LogStorage) -> None:
    cache = cache_of(storage, None, memory_bytes=2 * (len(OFFSETS) + 64))
    for number in (1, 2, 1, 3, 1):
        cache.get(segment(number), IndexType.OFFSET)
    assert len(storage.index_requests) == 3
    cache.get(segment(2), IndexType.OFFSET)  # went for the third
    assert len(storage.index_requests) == 4


@pytest.mark.parametrize("total", [0, -1])
def test_a_cache_has_room(total: int, storage: LogStorage) -> None:
    with pytest.raises(IllegalArgumentException):
        cache_of(storage, None, total_size_bytes=total)


# --- segments that go ---------------------------------------------------------------------------------------


def test_deleted_segments_are_forgotten(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path)
    for number in (1, 2, 3):
        for index_type in ON_DISK:
            cache.get(segment(number), index_type)
    cache.remove_all([segment_id(1), segment_id(3), segment_id(99)])
    assert names(tmp_path) == [name(2, suffix) for suffix in ("index", "timeindex", "txnindex")]
    storage.index_requests.clear()
    cache.get(segment(2), IndexType.OFFSET)
    cache.get(segment(1), IndexType.OFFSET)
    assert len(storage.index_requests) == 1


def test_removed_bytes_make_room(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path, total_size_bytes=2 * len(OFFSETS), memory_bytes=0)
    cache.get(segment(1), IndexType.OFFSET)
    cache.get(segment(2), IndexType.OFFSET)
    cache.remove_all([segment_id(1)])
    cache.get(segment(3), IndexType.OFFSET)
    assert names(tmp_path) == [name(2), name(3)]


def test_a_file_that_cannot_be_removed_stays(storage: LogStorage, tmp_path: Path) -> None:
    files: Files = FaultyFiles(OS_FILES, Fault(0, kinds={"unlink"}))
    cache = cache_of(storage, tmp_path, files=files)
    cache.get(segment(1), IndexType.OFFSET)
    cache.remove_all([segment_id(1)])
    assert names(tmp_path) == [name(1)]
    assert cache.get(segment(1), IndexType.OFFSET) == OFFSETS


def test_threads_share_it(storage: LogStorage, tmp_path: Path) -> None:
    cache = cache_of(storage, tmp_path, total_size_bytes=5 * len(OFFSETS), memory_bytes=500)
    barrier = threading.Barrier(4)

    def use(seed: int) -> bool:
        barrier.wait(10)
        return all(cache.get(segment((seed * 7 + n) % 9), IndexType.OFFSET) == OFFSETS for n in range(60))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(4)))
    assert sum(path.stat().st_size for path in folder(tmp_path).glob("*.index")) <= 5 * len(OFFSETS)
