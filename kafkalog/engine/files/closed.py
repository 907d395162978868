"""ClosedFile: replaces a file that was closed; each use raises an error that is none of the disk's.

Code that still holds the open file itself can go on using it: a descriptor is closed when no code holds it any more.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import NoReturn

from kafkalog._native.state.descriptor import FileMap
from kafkalog.engine.files.api import Buffer, File, HasFileno
from kafkalog.errors import ClosedChannelException


class ClosedFile(File):
    """A closed file.  Every use except its `path` raises ClosedChannelException; closing it again does nothing."""

    __slots__ = ("path",)

    path: str

    def __init__(self, path: str) -> None:
        self.path = path

    def _gone(self) -> NoReturn:
        raise ClosedChannelException("the file was closed: its log, or the segment that it belongs to", path=self.path)

    @property
    def closed(self) -> bool:
        return True

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        self._gone()

    def pread(self, n: int, position: int) -> bytes:
        self._gone()

    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        self._gone()

    def pwrite(self, data: Buffer, position: int) -> None:
        self._gone()

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._gone()

    def truncate(self, size: int) -> None:
        self._gone()

    def sync(self) -> None:
        self._gone()

    def sync_data(self) -> None:
        self._gone()

    def map(self) -> FileMap | None:
        self._gone()

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        self._gone()

    def close(self) -> None:
        pass
