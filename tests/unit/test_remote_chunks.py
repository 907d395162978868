"""Files of the remote tier read in chunks: every range, fetched once, ahead of a sequential read, in bounded memory."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kafkalog import RemoteStorage
from kafkalog.engine.remote.chunks import AHEAD_MAX, BEGUN_MAX, Chunks, RemoteFile
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import (
    IllegalArgumentException,
    LogReadOnlyException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)
from tests.object_doubles import LogStorage, segment
from tests.unit.tier_kit import tiered

LOG = random.Random(5).randbytes(1050)  # eleven chunks, the last one half
BORDERS = (0, 1, 99, 100, 101, 199, 200, 550, 999, 1000, 1001, 1049, 1050, 1051, 2000)


def file_of(storage: LogStorage, chunks: Chunks, number: int = 1) -> RemoteFile:
    return RemoteFile(chunks, storage, segment(number), "s3://b/orders-0/0.log")  # type: ignore[arg-type]


def until(done: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def storage() -> LogStorage:
    return LogStorage(LOG)


@pytest.mark.parametrize("cache_bytes", [0, 100, 350, 1 << 20])
def test_every_range(cache_bytes: int, storage: LogStorage) -> None:
    chunks = Chunks(cache_bytes, threads=2)
    file = file_of(storage, chunks)
    assert file.size() == 1050
    for start, end in itertools.combinations(BORDERS, 2):
        expected = LOG[start:end]
        assert file.pread(end - start, start) == expected
        buffer = bytearray(b"?" * (end - start + 1))
        assert file.pread_into(memoryview(buffer)[:-1], start) == len(expected)
        assert buffer[: len(expected)] == expected
        assert buffer[len(expected) :] == b"?" * (len(buffer) - len(expected))
    assert file.pread(0, 5) == file.pread(5, 1050) == b""
    chunks.close()


def test_chunks_are_asked_for_from_border_to_border(storage: LogStorage) -> None:
    chunks = Chunks()
    file_of(storage, chunks).pread(1050, 0)
    assert sorted(storage.fetched) == [(at, min(at + 100, 1050)) for at in range(0, 1050, 100)]
    chunks.close()


def test_a_chunk_is_fetched_once(storage: LogStorage) -> None:
    chunks = Chunks()
    for _ in range(3):
        file = file_of(storage, chunks)
        for position in (5, 40, 99, 0):
            assert file.pread(1, position) == LOG[position : position + 1]
    assert storage.fetched == [(0, 100)]
    assert chunks.requests == 1


def test_files_of_other_segments_have_chunks_of_their_own() -> None:
    chunks = Chunks()
    first, second = LogStorage(b"a" * 150), LogStorage(b"b" * 150)
    assert file_of(first, chunks, 1).pread(150, 0) == b"a" * 150
    assert file_of(second, chunks, 2).pread(150, 0) == b"b" * 150
    chunks.close()


def test_what_is_kept_is_bounded_and_the_oldest_goes(storage: LogStorage) -> None:
    chunks = Chunks(cache_bytes=300)
    for number in (0, 4, 8, 2):  # never one after the other: nothing is read ahead
        file_of(storage, chunks).pread(1, number * 100)
    storage.fetched.clear()
    for number in (8, 2, 4):
        file_of(storage, chunks).pread(1, number * 100)
    assert storage.fetched == []
    file_of(storage, chunks).pread(1, 0)  # was requested longest ago
    file_of(storage, chunks).pread(1, 200)
    assert storage.fetched == [(0, 100)]
    file_of(storage, chunks).pread(1, 800)
    assert storage.fetched == [(0, 100), (800, 900)]


def test_without_a_cache_nothing_is_kept_or_read_ahead(storage: LogStorage) -> None:
    chunks = Chunks(cache_bytes=0)
    file = file_of(storage, chunks)
    for position in range(0, 1050, 50):
        assert file.pread(50, position) == LOG[position : position + 50]
    assert len(storage.fetched) == 21


def test_who_reads_on_has_the_next_chunks_fetched(storage: LogStorage) -> None:
    chunks = Chunks()
    file = file_of(storage, chunks)
    file.pread(100, 0)
    assert storage.fetched == [(0, 100)]  # one read says nothing
    file.pread(100, 100)
    until(lambda: len(storage.fetched) == 3)
    file.pread(100, 200)
    until(lambda: len(storage.fetched) == 5)  # twice as far
    file.pread(100, 300)
    until(lambda: len(storage.fetched) == 8)
    assert sorted(storage.fetched) == [(at, at + 100) for at in range(0, 800, 100)]
    chunks.close()


def test_who_reads_here_and_there_pays_for_one_chunk(storage: LogStorage) -> None:
    chunks = Chunks()
    file = file_of(storage, chunks)
    for number in (7, 2, 9, 4, 0):
        file.pread(10, number * 100)
    time.sleep(0.02)
    assert storage.fetched == [(number * 100, number * 100 + 100) for number in (7, 2, 9, 4, 0)]


def test_one_read_of_several_chunks_has_none_fetched_ahead(storage: LogStorage) -> None:
    """The planner checks one place, whatever chunk is there."""
    file = file_of(storage, Chunks())
    assert file.pread(250, 110) == LOG[110:360]
    assert file.pread(60, 340) == LOG[340:400]
    assert file.pread(160, 340) == LOG[340:500]  # more of the same place
    time.sleep(0.02)
    assert sorted(storage.fetched) == [(100, 200), (200, 300), (300, 400), (400, 500)]
    file.pread(150, 500)
    until(lambda: len(storage.fetched) == 8)  # two more were read, and two are ahead


def test_reading_ahead_stays_within_half_the_cache(storage: LogStorage) -> None:
    chunks = Chunks(cache_bytes=600)
    file = file_of(storage, chunks)
    storage.gate.clear()
    thread = threading.Thread(target=file.pread, args=(1050, 0))
    thread.start()
    until(lambda: len(storage.fetched) == 4)  # the first, and three ahead
    time.sleep(0.02)
    assert len(storage.fetched) == 4
    storage.gate.set()
    thread.join()
    chunks.close()


class Followed(RemoteFile):
    def _go_on(self, count: int) -> None:
        self._storage.followed.append(count)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("cache_bytes", "room"), [(1 << 20, AHEAD_MAX), (650, 3), (0, 0)])
def test_towards_the_end_there_is_room_for_what_follows(storage: LogStorage, cache_bytes: int, room: int) -> None:
    storage.followed = []  # type: ignore[attr-defined]
    chunks = Chunks(cache_bytes)
    file = Followed(chunks, storage, segment(), "s3://b/orders-0/0.log")  # type: ignore[arg-type]
    for position in range(0, 1050, 50):
        file.pread(50, position)
    found = storage.followed  # type: ignore[attr-defined]
    assert found == ([*range(found[0], room + 1)] if room else [])
    chunks.close()


def test_who_comes_from_the_log_before_goes_on_as_he_did(storage: LogStorage) -> None:
    chunks = Chunks()
    assert chunks.begin(segment().remote_log_segment_id.id, 2)
    assert not chunks.begin(segment().remote_log_segment_id.id, 3)
    file_of(storage, chunks).pread(10, 0)
    until(lambda: len(storage.fetched) == 4)
    assert sorted(storage.fetched) == [(0, 100), (100, 200), (200, 300), (300, 400)]
    file_of(storage, chunks).pread(10, 0)  # another reader, without a history
    file_of(storage, chunks).pread(10, 0)
    assert len(storage.fetched) == 4
    for number in range(2 * BEGUN_MAX):  # readers who never came
        chunks.begin(f"{number}", 1)
    assert [chunks.begun(f"{number}") for number in (0, BEGUN_MAX - 1, BEGUN_MAX)] == [0, 0, 1]
    chunks.close()


def test_the_next_log_is_there_when_its_reader_comes(tmp_path: Path) -> None:
    place = RemoteStorage(f"memory://{tmp_path.name}/tier", layout="aiven", chunk_bytes=300)
    tiered(tmp_path / "store", place)
    files = place.read_only_files()
    folder = f"{files.root}/orders-0"
    first, second, *_, last = [name for name in files.list_dir(folder) if name.endswith(".log")]
    with files.open(f"{folder}/{first}", writable=False) as log:
        for position in range(0, log.size(), 50):
            log.pread(50, position)
    following = files.metadata_of(f"{folder}/{second}")
    assert following is not None
    count = -(-following.segment_size_in_bytes // 300)
    until(lambda: len(files.chunks._kept) == 2 * count)  # the following segment is short: all of it
    requests, index = files.chunks.requests, files.indexes.get(following, IndexType.OFFSET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(files.storage), "fetch_index", None)
        assert files.read_bytes(f"{folder}/{second[:20]}.index") == index
    with files.open(f"{folder}/{second}", writable=False) as log:
        assert log.pread(300, 0) == (tmp_path / "store" / "orders-0" / second).read_bytes()[:300]
    until(lambda: files.chunks.requests > requests)  # it continues, to the third one
    files.begin_following(f"{folder}/{last}", 1)  # nothing follows it
    files.close()


def test_a_large_read_is_fetched_side_by_side(storage: LogStorage) -> None:
    chunks = Chunks(threads=4)
    storage.gate.clear()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(file_of(storage, chunks).pread(500, 0)))
    thread.start()
    until(lambda: len(storage.fetched) == 5)
    storage.gate.set()
    thread.join()
    assert got == [LOG[:500]]
    chunks.close()


def test_threads_that_want_the_same_wait_for_one_request(storage: LogStorage) -> None:
    chunks = Chunks()
    storage.gate.clear()
    with ThreadPoolExecutor(6) as pool:
        reads = [pool.submit(file_of(storage, chunks).pread, 50, 20) for _ in range(6)]
        assert storage.begun.acquire(timeout=10)
        time.sleep(0.02)
        storage.gate.set()
        assert {read.result(10) for read in reads} == {LOG[20:70]}
    assert storage.fetched == [(0, 100)]


# --- what goes wrong ----------------------------------------------------------------------------------------


def test_an_error_is_the_readers_and_is_not_kept(storage: LogStorage) -> None:
    chunks = Chunks()
    file = file_of(storage, chunks)
    storage.errors.append(RetriableRemoteStorageException("away"))
    with pytest.raises(RetriableRemoteStorageException, match="away"):
        file.pread(10, 0)
    assert file.pread(10, 0) == LOG[:10]


def test_all_who_wait_are_told(storage: LogStorage) -> None:
    chunks = Chunks()
    storage.gate.clear()
    storage.errors.append(RetriableRemoteStorageException("away"))
    with ThreadPoolExecutor(3) as pool:
        reads = [pool.submit(file_of(storage, chunks).pread, 10, 0) for _ in range(3)]
        assert storage.begun.acquire(timeout=10)
        until(lambda: all(read.running() for read in reads))
        time.sleep(0.02)
        storage.gate.set()
        assert all("away" in str(read.exception(10)) for read in reads)
    assert len(storage.fetched) == 1


def test_what_fails_ahead_is_asked_for_again_by_who_wants_it(storage: LogStorage) -> None:
    chunks = Chunks(threads=1)
    file = file_of(storage, chunks)
    file.pread(100, 0)
    storage.errors.append(RetriableRemoteStorageException("away"))
    chunks.fetch_ahead(storage, segment(), range(1, 2), 1050)  # type: ignore[arg-type]
    until(lambda: not storage.errors)
    time.sleep(0.02)
    assert file.pread(100, 100) == LOG[100:200]
    chunks.close()


def test_what_fails_ahead_is_told_where_nobody_comes(storage: LogStorage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kafkalog.remote")
    storage.errors = [RetriableRemoteStorageException("away for now", path="s3://b/key")]
    chunks = Chunks()
    chunks.fetch_ahead(storage, segment(), range(1), 1050)  # type: ignore[arg-type]
    until(lambda: "s3://b/key" in caplog.text)
    assert "away for now" in caplog.text
    chunks.close()


def test_an_interrupted_reader_leaves_the_others_to_themselves(storage: LogStorage) -> None:
    chunks = Chunks()
    storage.gate.clear()
    storage.errors.append(KeyboardInterrupt())
    raised: list[BaseException] = []

    def interrupted() -> None:
        try:
            file_of(storage, chunks).pread(10, 0)
        except KeyboardInterrupt as error:
            raised.append(error)

    first = threading.Thread(target=interrupted)
    first.start()
    assert storage.begun.acquire(timeout=10)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(file_of(storage, chunks).pread, 10, 0)
        time.sleep(0.02)
        storage.gate.set()
        assert other.result(10) == LOG[:10]
    first.join()
    assert len(raised) == 1


@pytest.mark.parametrize("number", [0, 4, 10])
def test_a_storage_that_gives_less_is_not_believed(number: int, storage: LogStorage) -> None:
    chunks = Chunks()
    storage.short = 3
    file = file_of(storage, chunks)
    with pytest.raises(RemoteStorageException, match=f"from byte {number * 100} on") as caught:
        file.pread(1, number * 100)
    assert str(segment().remote_log_segment_id) == caught.value.path
    storage.short = 0
    assert file.pread(50, number * 100) == LOG[number * 100 : number * 100 + 50]


def test_an_error_before_the_request_holds_nobody_up(storage: LogStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest that says how large chunks are may be gone."""
    chunks = Chunks()
    file = file_of(storage, chunks)

    def gone(_: object) -> int:
        raise RemoteStorageException("the manifest is gone")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "chunk_bytes", gone)
        with pytest.raises(RemoteStorageException, match="gone"):
            file.pread(10, 0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(file.pread, 10, 0).result(10) == LOG[:10]


# --- doubt, close, fork -------------------------------------------------------------------------------------


def test_a_doubted_segment_is_fetched_anew(storage: LogStorage) -> None:
    chunks = Chunks()
    file, other = file_of(storage, chunks), file_of(storage, chunks, 2)
    for each in (file, other):
        each.pread(10, 0)
    file.doubt()
    storage.log = b"new" + LOG[3:]
    assert file.pread(3, 0) == b"new"
    assert other.pread(3, 0) == LOG[:3]
    assert len(storage.fetched) == 3


def test_what_was_on_its_way_when_it_was_doubted_is_not_kept(storage: LogStorage) -> None:
    chunks = Chunks()
    file = file_of(storage, chunks)
    storage.gate.clear()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(file.pread(3, 0)))
    thread.start()
    assert storage.begun.acquire(timeout=10)
    file.doubt()
    storage.log = b"new" + LOG[3:]
    storage.gate.set()
    thread.join()
    assert got == [LOG[:3]]
    assert file_of(storage, chunks).pread(3, 0) == b"new"


def test_after_close_reads_go_on_and_nothing_old_is_kept(storage: LogStorage) -> None:
    before = set(threading.enumerate())
    chunks = Chunks(threads=2)
    file = file_of(storage, chunks)
    file.pread(500, 0)
    until(lambda: len(storage.fetched) >= 5)
    chunks.close()
    chunks.close()
    count = len(storage.fetched)
    assert file.pread(10, 0) == LOG[:10]
    assert len(storage.fetched) == count + 1
    until(lambda: set(threading.enumerate()) <= before)


def test_nothing_is_fetched_ahead_after_close(storage: LogStorage) -> None:
    """Nobody would end the threads."""
    before = set(threading.enumerate())
    chunks = Chunks(threads=2)
    chunks.close()
    assert file_of(storage, chunks).pread(500, 0) == LOG[:500]
    chunks.meanwhile(lambda: storage.fetched.append((-1, -1)))
    assert set(threading.enumerate()) <= before
    assert sorted(storage.fetched) == [(at, at + 100) for at in range(0, 500, 100)]


def test_close_waits_for_nobody_and_leaves_nobody_waiting(storage: LogStorage) -> None:
    chunks = Chunks(threads=1)
    storage.gate.clear()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(file_of(storage, chunks).pread(400, 0)))
    thread.start()
    until(lambda: len(storage.fetched) == 2)  # the first chunk, and one ahead; two more wait for the thread
    chunks.close()
    storage.gate.set()
    thread.join(10)
    assert got == [LOG[:400]]
    chunks.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_for_itself(storage: LogStorage) -> None:
    chunks = Chunks()
    storage.gate.clear()
    thread = threading.Thread(target=file_of(storage, chunks).pread, args=(10, 0))
    thread.start()
    assert storage.begun.acquire(timeout=10)
    child = os.fork()
    if not child:
        try:
            storage.gate.set()
            os._exit(0 if file_of(storage, chunks).pread(10, 0) == LOG[:10] else 1)
        finally:
            os._exit(2)
    storage.gate.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("cache_bytes", "threads"), [(-1, 1), (10, 0)])
def test_bounds_that_are_none(cache_bytes: int, threads: int) -> None:
    with pytest.raises(IllegalArgumentException):
        Chunks(cache_bytes, threads)


def test_nobody_writes(storage: LogStorage) -> None:
    file = file_of(storage, Chunks())
    for write in (lambda: file.pwrite(b"x", 0), lambda: file.pwritev([b"x"], 0), lambda: file.truncate(0), file.sync):
        with pytest.raises(LogReadOnlyException) as caught:
            write()
        assert caught.value.path == "s3://b/orders-0/0.log"
    assert not file.closed
    file.close()
    assert file.closed
