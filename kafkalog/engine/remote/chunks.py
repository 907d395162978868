"""Bytes of remote logs, in chunks: fetched once, read ahead, and kept in bounded memory.

    file = RemoteFile(chunks, storage, metadata, "s3://bucket/orders-0/00000000000000000000.log")
    file.pread(100, 4_000_000)

A chunk is the amount that the storage delivers best at once (`RemoteStorageManager.chunk_bytes`).  For a reader that
moves from chunk to chunk, the next chunks are fetched in the background.  The number of parallel requests grows the
longer it continues.  Near the end of a log they include the first chunks of the following log, so that a slow
connection stays busy.  A reader that jumps around pays for one or two chunks.  Threads that want the same chunk wait
for one request.

An object that is an unchanged file of this machine is not read through this module, but like a local segment.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.remote.read_only import ReadOnlyFile
from kafkalog.errors import IllegalArgumentException, RemoteStorageException

if TYPE_CHECKING:
    import mmap

    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata
    from kafkalog.engine.remote.storage import RemoteStorageManager

CACHE_BYTES = 64 << 20
THREADS = 8
AHEAD_MAX = 8  # chunks
BEGUN_MAX = 100  # logs

_log = Lines("kafkalog.remote")
_Key = tuple[str, int]  # a segment's id, a chunk's number


class Chunks:
    """The cache of all files of one remote tier, and the threads that read ahead.  Thread-safe.

    `cache_bytes` limits what is kept and what is read ahead; the chunks that a caller is reading do not count.
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES, threads: int = THREADS) -> None:
        if cache_bytes < 0 or threads < 1:
            raise IllegalArgumentException(
                f"cache_bytes is {cache_bytes}, threads is {threads}; expected at least 0 and 1"
            )
        self.cache_bytes = cache_bytes
        self._threads = threads
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._coming: dict[_Key, Future[bytes]] = {}
        self._pool: ThreadPoolExecutor | None = None
        # by segment id: how many chunks the reader that comes from the log before has ahead
        self._begun: OrderedDict[str, int] = OrderedDict()
        self.requests = 0

    def get(self, storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, number: int, end: int) -> bytes:
        """Returns a chunk of a segment's log, which has `end` bytes."""
        key = metadata.remote_log_segment_id.id, number
        while True:
            future, mine = self._claim(key)
            if mine:
                return self._fetch(key, future, storage, metadata, end)
            try:
                return future.result()
            except CancelledError:
                pass  # the thread that fetched it was interrupted

    def has(self, segment_id: str, number: int) -> bool:
        """Returns whether the cache holds a chunk."""
        return (segment_id, number) in self._kept

    def _claim(self, key: _Key) -> tuple[Future[bytes], bool]:
        """Returns the future of a chunk, and whether the caller has to fetch it."""
        if self._process != os.getpid():
            self._begin()  # in a forked child, no thread completes the parent's requests
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                done: Future[bytes] = Future()
                done.set_result(kept)
                return done, False
            coming = self._coming.get(key)
            if coming is not None:
                return coming, False
            made = self._coming[key] = Future()
            self.requests += 1
            return made, True

    def _fetch(
        self,
        key: _Key,
        future: Future[bytes],
        storage: RemoteStorageManager,
        metadata: RemoteLogSegmentMetadata,
        end: int,
    ) -> bytes:
        try:
            size = storage.chunk_bytes(metadata)
            begin = key[1] * size
            stop = min(begin + size, end)
            data = _fetched(storage, metadata, begin, stop)
        except BaseException as error:
            self._come(key, future)
            if isinstance(error, Exception):
                with suppress(InvalidStateError):  # the cache was closed meanwhile
                    future.set_exception(error)
            else:
                future.cancel()
            raise
        self._come(key, future, data)
        with suppress(InvalidStateError):  # the cache was closed meanwhile
            future.set_result(data)
        return data

    def _come(self, key: _Key, future: Future[bytes], data: bytes | None = None) -> None:
        """Ends a request and keeps its data, unless the cache was closed or the segment was forgotten meanwhile."""
        with self._lock:
            if self._coming.get(key) is future:
                del self._coming[key]
                if data is not None:
                    self._keep(key, data)

    def _keep(self, key: _Key, data: bytes) -> None:
        if key not in self._kept:
            self._kept_bytes += len(data)
        self._kept[key] = data
        while self._kept_bytes > self.cache_bytes and self._kept:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= len(gone)

    def most_ahead(self, chunk_bytes: int) -> int:
        """Returns how many chunks of this size may be read ahead."""
        return self.cache_bytes // 2 // max(1, chunk_bytes)

    def fetch_ahead(
        self, storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, numbers: range, end: int
    ) -> None:
        """Starts fetching chunks that nobody has or fetches, as many as there is room for."""
        for number in numbers[: self.most_ahead(storage.chunk_bytes(metadata))]:
            key = metadata.remote_log_segment_id.id, number
            future, mine = self._claim(key)
            if mine:
                try:
                    self._do(partial(self._fetch, key, future, storage, metadata, end))
                except BaseException as error:
                    self._come(key, future)
                    future.cancel()
                    if isinstance(error, RuntimeError):  # the cache was closed, or the interpreter is ending
                        return
                    raise

    def _do(self, job: Callable[[], object]) -> None:
        """Runs a job in a thread.  Raises RuntimeError if no thread can be started."""
        with self._lock:
            pool = self._pool
            if self._is_closed:  # nothing would end a new pool
                raise RuntimeError("the cache of the remote tier is closed")
            if pool is None:
                pool = self._pool = ThreadPoolExecutor(self._threads, "kafkalog-remote-reader")
        pool.submit(_quietly, job)

    def meanwhile(self, job: Callable[[], object]) -> None:
        """Runs a job in a thread, or not at all if no thread can be started."""
        with suppress(RuntimeError):  # the cache was closed, or the interpreter is ending
            self._do(job)

    def begin(self, segment_id: str, count: int) -> bool:
        """Notes that a reader will come from the log before to the begin of this segment's log, with `count` chunks
        ahead.

        Returns whether the segment was not noted before.
        """
        with self._lock:
            is_news = segment_id not in self._begun
            self._begun[segment_id] = count
            if len(self._begun) > BEGUN_MAX:
                self._begun.popitem(last=False)
            return is_news

    def begun(self, segment_id: str) -> int:
        """Returns the count that `begin` noted, and removes it; 0 if there is none."""
        with self._lock:
            return self._begun.pop(segment_id, 0)

    def forget(self, segment_id: str) -> None:
        """Drops a segment's chunks, because their content is doubted or the segment was deleted."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == segment_id]:
                self._kept_bytes -= len(self._kept.pop(key))
            for key in [key for key in self._coming if key[0] == segment_id]:
                del self._coming[key]  # threads that wait for the request still get its data

    def close(self) -> None:
        """Ends the threads without waiting for their requests.  Later reads fetch chunks themselves."""
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            self._is_closed = True
            pool, self._pool = self._pool, None
            self._kept.clear()
            self._kept_bytes = 0
            coming, self._coming = self._coming, {}
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        for future in coming.values():
            future.cancel()  # threads that wait for it fetch the chunk themselves


def _quietly(job: Callable[[], object]) -> None:
    try:
        job()
    # A thread that waits for the chunk gets the error, a later one fetches again, and perhaps nobody comes.
    except Exception as error:
        _log.info("reading ahead failed: %s", error)


def _fetched(storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, begin: int, stop: int) -> bytes:
    data = storage.fetch_log_segment(metadata, begin, stop)
    if len(data) != stop - begin:
        raise RemoteStorageException(
            f"the storage returned {len(data)} bytes of a segment's log from byte {begin} on; expected {stop - begin}",
            path=str(metadata.remote_log_segment_id), position=begin,
        )  # fmt: skip
    return data


class RemoteFile(ReadOnlyFile):
    """A segment's log in the remote tier, to be read.  Each handle reads ahead by the way in which it is read."""

    __slots__ = ("_ahead", "_begin", "_chunk_bytes", "_chunks", "_from", "_metadata", "_next", "_size", "_storage")

    def __init__(
        self, chunks: Chunks, storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, path: str
    ) -> None:
        super().__init__(path)
        self._chunks = chunks
        self._storage = storage
        self._metadata = metadata
        self._size = storage.log_size(metadata)
        self._chunk_bytes = max(1, storage.chunk_bytes(metadata))
        self._from = 0  # the position at which sequential reading began
        self._begin = -1  # the begin of the read before
        self._next = -1  # the chunk that comes next if reading continues
        self._ahead = 0  # how many chunks are fetched ahead

    def size(self) -> int:
        return self._size

    def pread(self, n: int, position: int) -> bytes:
        pieces = self._pieces(n, position)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        view, at = memoryview(buffer).cast("B"), 0
        for piece in self._pieces(len(view), position):
            view[at : at + len(piece)] = piece
            at += len(piece)
        return at

    @property
    def chunk_bytes(self) -> int:
        return self._chunk_bytes

    def doubt(self) -> None:
        self._chunks.forget(self._metadata.remote_log_segment_id.id)

    def _pieces(self, n: int, position: int) -> list[memoryview]:
        end = min(position + n, self._size)
        if end <= position:
            return []
        size = self._chunk_bytes
        first, last = position // size, (end - 1) // size
        if last > first:  # the chunks of this read are fetched in parallel
            self._chunks.fetch_ahead(self._storage, self._metadata, range(first + 1, last + 1), self._size)
        self._read_ahead(first, last, position, end)
        pieces = []
        for number in range(first, last + 1):
            data = memoryview(self._chunks.get(self._storage, self._metadata, number, self._size))
            begin = number * size
            pieces.append(data[max(position - begin, 0) : end - begin])
        return pieces

    def _read_ahead(self, first: int, last: int, begin: int, stop: int) -> None:
        """Notes that [begin, stop), in the chunks `first` to `last`, is read now, and reads ahead.

        For a sequential reader it fetches the next chunks, twice as many with each chunk that the reader reaches.  A
        search for one record also moves on a little, rereads the same position, or needs several chunks in one read.
        It gets no chunks ahead.
        """
        before, self._next = self._next, last + 1
        is_same, self._begin = begin == self._begin, begin
        if before < 0 and not first:
            self._ahead = self._chunks.begun(self._metadata.remote_log_segment_id.id)
        elif not before - 1 <= first <= before:
            self._from, self._ahead = begin, 0
        elif not is_same and last >= before and stop - self._from > self._chunk_bytes // 2:
            ahead = max(1, 2 * self._ahead) << min(last - before, AHEAD_MAX)
            self._ahead = min(AHEAD_MAX, self._chunks.most_ahead(self._chunk_bytes), ahead)
        else:
            return
        count, end = -(-self._size // self._chunk_bytes), last + 1 + self._ahead
        if self._ahead:
            self._chunks.fetch_ahead(self._storage, self._metadata, range(last + 1, min(end, count)), self._size)
            if end > count:
                self._go_on(end - count)

    def _go_on(self, count: int) -> None:
        """Reads ahead `count` chunks of the following log: there is more room than this log has chunks left."""
