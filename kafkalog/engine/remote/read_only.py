"""Read-only files and directories of the remote tier.

Methods that write raise an error, and a socket gets a copy instead of a sendfile.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar, NoReturn

from kafkalog.engine.files import File, Files
from kafkalog.engine.format.index_entries import OFFSET_ENTRY
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import LogReadOnlyException

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    from kafkalog._native.state.descriptor import FileMap
    from kafkalog.engine.files import Buffer, FileLock, HasFileno

SEND_BYTES = 1 << 20


class ReadOnlyFiles(Files):
    """A `Files` that refuses to write; `REFUSAL` is the reason."""

    REFUSAL: ClassVar[str]

    def _read_only(self, path: str) -> LogReadOnlyException:
        return LogReadOnlyException(self.REFUSAL, path=path)

    def rename(self, src: str, dst: str) -> None:
        raise self._read_only(src)

    def unlink(self, path: str) -> None:
        raise self._read_only(path)

    def mkdirs(self, path: str) -> None:
        raise self._read_only(path)

    def rmdir(self, path: str) -> None:
        raise self._read_only(path)

    def sync_dir(self, path: str) -> None:
        raise self._read_only(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        raise self._read_only(path)

    def lock(self, path: str) -> FileLock:
        raise self._read_only(path)


class ReadOnlyFile(File):
    """A file without a descriptor; subclasses define `pread` and `size`."""

    __slots__ = ("_closed", "path")

    path: str

    def __init__(self, path: str) -> None:
        self.path = path
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def fileno(self) -> int:
        return -1

    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        view = memoryview(buffer).cast("B")
        data = self.pread(len(view), position)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._closed = True

    def map(self) -> FileMap | None:
        return None

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        data = self.pread(min(count, SEND_BYTES), position)
        return os.write(sock.fileno(), data) if data else 0

    def _refuse(self) -> NoReturn:
        raise LogReadOnlyException("a segment in the remote tier cannot be changed", path=self.path)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._refuse()

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._refuse()

    def truncate(self, size: int) -> None:
        self._refuse()

    def sync(self) -> None:
        self._refuse()

    def sync_data(self) -> None:
        self._refuse()


class BytesFile(ReadOnlyFile):
    """A small file whose content is in memory."""

    __slots__ = ("_data",)

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(path)
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def pread(self, n: int, position: int) -> bytes:
        return self._data[position : position + n]


def last_position(index: bytes) -> int:
    """Returns the position in an offset index's last entry.

    Returns 0, the begin of a log, for an empty index and a negative position: an index is only a hint.
    """
    return max(0, OFFSET_ENTRY.unpack_from(index, len(index) - OFFSET_ENTRY.size)[1]) if index else 0


def last_offset_of(file: File, start: int) -> int | None:
    """Returns the last offset of a log in which a batch begins at the position `start`; None if damage hides it."""
    scan, last = LogScan(file, start, file.size()), None
    for piece in scan:
        last = int(piece.table["last_offset"][-1])
    return None if scan.position < scan.end else last
