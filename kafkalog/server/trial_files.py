"""The disk of a server for tests: it is never waited for, and it can be full on order.

A test's data need not survive a power loss, so nothing is synced; the files are those of a real store otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kafkalog.engine.files.os_files import OsFile, OsFiles

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Disk:
    """Whether the disk of this process's trial server is full."""

    is_full = False


def _refuse(path: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class TrialFile(OsFile):
    """A file that is not synced, and cannot grow while the disk is full."""

    __slots__ = ()

    def sync(self) -> None:
        """Does nothing."""

    def sync_data(self) -> None:
        """Does nothing."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Writes, unless the disk is full and the file would grow."""
        if Disk.is_full and position + memoryview(data).nbytes > self.size():
            _refuse(self.path)
        super().pwrite(data, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Writes, unless the disk is full and the file would grow."""
        if Disk.is_full:
            _refuse(self.path)
        return super().pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        """Truncates; extends only while the disk is not full."""
        if Disk.is_full and size > self.size():
            _refuse(self.path)
        super().truncate(size)


class TrialFiles(OsFiles):
    """The operating system's files, of which nothing is synced."""

    __slots__ = ()

    file_class = TrialFile

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
        """Opens a file; creates none while the disk is full."""
        if Disk.is_full and create and not self.exists(path):
            _refuse(path)
        return super().open(path, writable=writable, create=create, exclusive=exclusive)

    def mkdirs(self, path: str) -> None:
        """Creates directories, unless the disk is full."""
        if Disk.is_full and not self.exists(path):
            _refuse(path)
        super().mkdirs(path)

    def rename(self, src: str, dst: str) -> None:
        """Renames in two steps: a file system may write a file to the disk that replaces another in one."""
        if self.exists(dst) and not self.is_dir(dst):
            self.unlink(dst)
        super().rename(src, dst)

    def sync_dir(self, path: str) -> None:
        """Does nothing."""

    @contextlib.contextmanager
    def dir_to_sync(self, path: str) -> Iterator[Callable[[], object]]:
        """Yields a function that does nothing."""
        yield _nothing


def _nothing() -> None:
    pass
