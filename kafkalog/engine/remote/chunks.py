"""Bytes of remote logs, in chunks: fetched once, read ahead, and kept in bounded memory.

    file = RemoteFile(chunks, storage, metadata, "s3://bucket/orders-0/00000000000000000000.log")
    file.pread(100, 4_000_000)

A chunk is what the storage gives best at once (`RemoteStorageManager.chunk_bytes`).  Who reads a file from chunk to
chunk has the next ones fetched meanwhile, by more requests at a time the longer he goes on, and towards the end of a
log the first ones of the log that follows: a slow line is kept full.  Who reads here and there pays for one chunk, or
two.  Threads that want the same chunk wait for one request.

Where an object is a file of this machine as it stands, nobody comes here: it is read as a local segment is.
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

    `cache_bytes` bounds what is kept and what is read ahead; what somebody just reads is his own.
    """

    def __init__(self, cache_bytes: int = CACHE_BYTES, threads: int = THREADS) -> None:
        if cache_bytes < 0 or threads < 1:
            raise IllegalArgumentException(f"found {cache_bytes} bytes and {threads} threads, expected 0 and 1 or more")
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
        self._begun: OrderedDict[str, int] = OrderedDict()  # how many chunks a log's reader, who comes next, has ahead
        self.requests = 0

    def get(self, storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, number: int, end: int) -> bytes:
        """A chunk of a segment's log of `end` bytes."""
        key = metadata.remote_log_segment_id.id, number
        while True:
            future, mine = self._claim(key)
            if mine:
                return self._fetch(key, future, storage, metadata, end)
            try:
                return future.result()
            except CancelledError:
                pass  # who was at it was interrupted

    def has(self, segment_id: str, number: int) -> bool:
        """Whether a chunk is here."""
        return (segment_id, number) in self._kept

    def _claim(self, key: _Key) -> tuple[Future[bytes], bool]:
        """What answers, and whether it is the caller who has to fetch."""
        if self._process != os.getpid():
            self._begin()  # in a forked child nobody brings what was on its way
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
        """A request has ended.  Its data are kept, unless the cache was closed or the segment doubted meanwhile."""
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
        """For how many chunks there is room ahead of readers."""
        return self.cache_bytes // 2 // max(1, chunk_bytes)

    def fetch_ahead(
        self, storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, numbers: range, end: int
    ) -> None:
        """Has chunks fetched meanwhile, those that nobody has or fetches, as far as there is room for them."""
        for number in numbers[: self.most_ahead(storage.chunk_bytes(metadata))]:
            key = metadata.remote_log_segment_id.id, number
            future, mine = self._claim(key)
            if mine:
                try:
                    self._do(partial(self._fetch, key, future, storage, metadata, end))
                except BaseException as error:
                    self._come(key, future)
                    future.cancel()
                    if isinstance(error, RuntimeError):  # the cache was closed, or the interpreter ends
                        return
                    raise

    def _do(self, job: Callable[[], object]) -> None:
        """Has a thread do it.  RuntimeError where there will be no thread."""
        with self._lock:
            pool = self._pool
            if self._is_closed:  # nobody would end another pool
                raise RuntimeError("the cache is closed")
            if pool is None:
                pool = self._pool = ThreadPoolExecutor(self._threads, "kafkalog-remote-reader")
        pool.submit(_quietly, job)

    def meanwhile(self, job: Callable[[], object]) -> None:
        """Has a thread do it, if there will be one."""
        with suppress(RuntimeError):  # the cache was closed, or the interpreter ends
            self._do(job)

    def begin(self, segment_id: str, count: int) -> bool:
        """Whoever reads a segment's log from its begin comes from the one before, with so many chunks ahead.  Whether
        that is news."""
        with self._lock:
            is_news = segment_id not in self._begun
            self._begun[segment_id] = count
            if len(self._begun) > BEGUN_MAX:
                self._begun.popitem(last=False)
            return is_news

    def begun(self, segment_id: str) -> int:
        """As `begin` had it, once."""
        with self._lock:
            return self._begun.pop(segment_id, 0)

    def forget(self, segment_id: str) -> None:
        """A segment's chunks are fetched anew: what they say is doubted, or it was deleted."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == segment_id]:
                self._kept_bytes -= len(self._kept.pop(key))
            for key in [key for key in self._coming if key[0] == segment_id]:
                del self._coming[key]  # whoever waits for it gets it

    def close(self) -> None:
        """Ends the threads; what they were at is not waited for.  Who still reads fetches for himself."""
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
            future.cancel()  # whoever waits looks for himself


def _quietly(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception as error:  # whoever waits for it is told, who comes later asks again, and nobody else may come
        _log.info("what was to be read ahead was not: %s", error)


def _fetched(storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, begin: int, stop: int) -> bytes:
    data = storage.fetch_log_segment(metadata, begin, stop)
    if len(data) != stop - begin:
        raise RemoteStorageException(
            f"found {len(data)} bytes of a segment's log from byte {begin} on, expected {stop - begin}",
            path=str(metadata.remote_log_segment_id), position=begin,
        )  # fmt: skip
    return data


class RemoteFile(ReadOnlyFile):
    """A segment's log in the remote tier, to be read.  Each handle knows how it is read, and reads ahead by that."""

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
        self._from = 0  # where somebody began to read on
        self._begin = -1  # of the read before
        self._next = -1  # the chunk that comes next where it is read on
        self._ahead = 0  # how many are fetched ahead

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
        if last > first:  # what this read wants is fetched side by side
            self._chunks.fetch_ahead(self._storage, self._metadata, range(first + 1, last + 1), self._size)
        self._read_ahead(first, last, position, end)
        pieces = []
        for number in range(first, last + 1):
            data = memoryview(self._chunks.get(self._storage, self._metadata, number, self._size))
            begin = number * size
            pieces.append(data[max(position - begin, 0) : end - begin])
        return pieces

    def _read_ahead(self, first: int, last: int, begin: int, stop: int) -> None:
        """Notes that [begin, stop) is read now, of the chunks from `first` to `last`.  Who reads on has the next chunks
        fetched, twice as many with each one that he comes to.  Who looks for one record reads on, too, but not far, or
        more of the same place, and one read may want several chunks: that gets none ahead."""
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
        """There is room ahead for more than this log has left: for so many chunks of what follows it."""
