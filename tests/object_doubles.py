"""Doubles of remote storages for tests: one fails on demand, one does not answer, one is a log in memory.

`FaultyObjects` is an fsspec file system over fsspec's memory.  Its uploads go in parts and become an object at their
commit, as those of real clients do.  `fail` makes requests raise, `spoil` changes answers; `asked` lists the requests.
`SilentObjects` is one of fsspec's asynchronous file systems, whose requests hang on demand.  `LogStorage` is a
RemoteStorageManager of one log, with a gate that delays its requests.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.remote.objects import Objects, Retries
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import RemoteResourceNotFoundException

AT_ONCE = Retries(attempts=4, first_pause_s=0.0005, longest_pause_s=0.002)
PARTITION = TopicIdPartition("MWJ6FHTfRYy67jzwZdeqSQ", TopicPartition("orders", 0))


def segment_id(number: int) -> str:
    """22 characters of url-base64."""
    return f"{number:021d}A"


def segment(number: int = 1, start: int = 0, end: int = 9, size: int = 1000, **more: Any) -> RemoteLogSegmentMetadata:
    """Metadata of a segment that was copied."""
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, segment_id(number)),
        start,
        end,
        1_700_000_000_000,
        7,
        1_700_000_000_001,
        size,
        ((0, start),),
        COPY_SEGMENT_FINISHED,
        **more,
    )


class _Upload(AbstractBufferedFile):  # type: ignore[misc]
    """An upload in parts."""

    fs: FaultyObjects

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.fs.answer("upload", self.path)
        self.parts.append(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        data = self.fs.answer("commit", self.path, b"".join(self.parts))
        self.fs.inner.pipe_file(self.path, data)

    def discard(self) -> None:
        self.fs.answer("discard", self.path)
        self.parts = []


class FaultyObjects(AbstractFileSystem):  # type: ignore[misc]
    """Memory that fails by plan.  Requests: cat_file info ls rm_file put_file, and an upload's open upload commit
    discard."""

    protocol = "faulty"
    root_marker = "/"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = MemoryFileSystem()
        self.root = f"/{uuid.uuid4()}"
        self.asked: list[str] = []
        self.uploads: weakref.WeakSet[_Upload] = weakref.WeakSet()  # uploads that somebody holds
        self._faults: list[tuple[str, str, list[int], Callable[[Any], Any]]] = []

    def fail(self, request: str, error: BaseException, times: int = 1, of: str = "") -> None:
        """The next requests of this kind, about paths that end with `of`, raise."""

        def refuse(_: Any) -> Any:
            raise error

        self._faults.append((request, of, [times], refuse))

    def spoil(self, request: str, change: Callable[[Any], Any], times: int = 1, of: str = "") -> None:
        """The answers to the next requests of this kind are changed."""
        self._faults.append((request, of, [times], change))

    def answer(self, request: str, path: str, value: Any = None) -> Any:
        self.asked.append(request)
        for kind, suffix, left, change in self._faults:
            if kind == request and path.endswith(suffix) and left[0] > 0:
                left[0] -= 1
                return change(value)
        return value

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **how: Any) -> bytes:
        data = self.inner.cat_file(path)
        if start is not None and start >= len(data):  # as HTTP has it
            raise OSError(errno.EINVAL, "The requested range is not satisfiable")
        found: bytes = self.answer("cat_file", path, data[start:end])
        return found

    def info(self, path: str, **how: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.answer("info", path, self.inner.info(path))
        return found

    def ls(self, path: str, detail: bool = True, **how: Any) -> list[Any]:
        found: list[Any] = self.answer("ls", path, self.inner.ls(path, detail))
        return found

    def rm_file(self, path: str) -> None:
        self.answer("rm_file", path)
        self.inner.rm_file(path)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **how: Any) -> None:
        self.answer("put_file", rpath)
        self.inner.put_file(lpath, rpath)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **how: Any) -> _Upload:
        self.answer("open", path)
        made = _Upload(self, path, mode, block_size or "default", how.get("autocommit", True))
        self.uploads.add(made)
        return made

    def objects(self, **settings: Any) -> Objects:
        settings.setdefault("retries", AT_ONCE)
        return Objects(self, self.root, url="faulty://tier", **settings)


class SilentObjects(AsyncFileSystem):  # type: ignore[misc]
    """An asynchronous file system over memory; the next `silent` requests do not answer."""

    protocol = "silent"
    root_marker = "/"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = MemoryFileSystem()
        self.root = f"/{uuid.uuid4()}"
        self.silent = 0
        self.asked: list[str] = []

    async def _answer(self, request: str, do: Callable[[], Any]) -> Any:
        self.asked.append(request)
        if self.silent:
            self.silent -= 1
            await asyncio.sleep(60)
        return do()

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **how: Any) -> Any:
        return await self._answer("cat_file", lambda: self.inner.cat_file(path, start, end))

    async def _info(self, path: str, **how: Any) -> Any:
        return await self._answer("info", lambda: self.inner.info(path))

    async def _ls(self, path: str, detail: bool = True, **how: Any) -> Any:
        return await self._answer("ls", lambda: self.inner.ls(path, detail))

    async def _rm_file(self, path: str, **how: Any) -> Any:
        return await self._answer("rm_file", lambda: self.inner.rm_file(path))

    def objects(self, **settings: Any) -> Objects:
        settings.setdefault("retries", AT_ONCE)
        return Objects(self, self.root, url="silent://tier", **settings)


class LogStorage:
    """A RemoteStorageManager of one log; `fetched` lists the requested ranges.

    While `gate` is not set, requests wait.  `errors` are raised, one a request, before any answer.  `short`: how many
    bytes are missing at the end of each answer.
    """

    def __init__(self, log: bytes, chunk_bytes: int = 100) -> None:
        self.log = log
        self.size = chunk_bytes
        self.fetched: list[tuple[int, int]] = []
        self.indexes: dict[IndexType, bytes] = {}
        self.index_requests: list[IndexType] = []
        self.errors: list[BaseException] = []
        self.short = 0
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)  # one for each request that has come

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        self.fetched.append((start, end))
        answer = self.log[start : end - self.short]
        self.begun.release()
        assert self.gate.wait(10)
        if self.errors:
            raise self.errors.pop(0)
        return answer

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        self.index_requests.append(index_type)
        if self.errors:
            raise self.errors.pop(0)
        if index_type not in self.indexes:
            raise RemoteResourceNotFoundException("there is no such index")
        return self.indexes[index_type]

    def shown_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> str:
        return f"{metadata.remote_log_segment_id.id}, {index_type.value}"

    def log_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        return len(self.log)

    def chunk_bytes(self, metadata: RemoteLogSegmentMetadata) -> int:
        return self.size
