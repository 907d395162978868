"""The real disk.  The append path is one Python call around one system call: no stat, no bookkeeping."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from collections.abc import Sequence
from typing import ClassVar

from kafkalog.files.api import Buffer, File, FileLock, Files, FileStat, HasFileno
from kafkalog.files.lock import OsFileLock

_IOV_MAX = max(os.sysconf("SC_IOV_MAX"), 16) if "SC_IOV_MAX" in os.sysconf_names else 1024
_NS_PER_MS = 1_000_000


def _full_sync(fd: int) -> None:
    """fsync that reaches the platter: macOS's fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
        except OSError as error:  # not every file system knows it
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(fd)


class OsFile(File):
    """A descriptor with positions."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, n: int, position: int) -> bytes:
        data = os.pread(self._fd, n, position)
        if len(data) == n or not data:
            return data
        parts = [data]
        got = len(data)
        while got < n and (data := os.pread(self._fd, n - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        wanted = len(buffer)
        got = os.preadv(self._fd, (buffer,), position)
        if got == wanted or not got:
            return got
        with memoryview(buffer) as view:
            while got < wanted and (more := os.preadv(self._fd, (view[got:],), position + got)):
                got += more
        return got

    def pwrite(self, data: Buffer, position: int) -> None:
        try:
            written = os.pwrite(self._fd, data, position)
            if written != len(data):
                self._write_rest((data,), written, position)
        except OSError as error:
            raise self._named(error)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        total = sum(map(len, buffers))
        try:
            if len(buffers) == 1:
                written = os.pwrite(self._fd, buffers[0], position)
            else:
                written = os.pwritev(self._fd, buffers if len(buffers) <= _IOV_MAX else buffers[:_IOV_MAX], position)
            if written != total:
                self._write_rest(buffers, written, position)
        except OSError as error:
            raise self._named(error)
        return total

    def _named(self, error: OSError) -> OSError:
        """The error with the file's name in it: calls on descriptors do not know it."""
        error.filename = self.path
        return error

    def _write_rest(self, buffers: Sequence[Buffer], written: int, position: int) -> None:
        # Short writes: a signal, more than 2 GiB, more than IOV_MAX buffers, or a disk that is nearly full (the
        # next call then raises ENOSPC).
        skip = written
        position += written
        for buffer in buffers:
            with memoryview(buffer) as whole, whole.cast("B") as view:
                if skip >= len(view):
                    skip -= len(view)
                    continue
                while skip < len(view):
                    count = os.pwrite(self._fd, view[skip:], position)
                    if count == 0:
                        raise OSError(errno.EIO, "write of 0 bytes", self.path)
                    skip += count
                    position += count
                skip = 0

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._named(error)

    def sync(self) -> None:
        try:
            _full_sync(self._fd)
        except OSError as error:
            raise self._named(error)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            os.close(fd)

    def map(self) -> mmap.mmap | None:
        if os.fstat(self._fd).st_size == 0:
            return None
        return mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        return os.sendfile(sock.fileno(), self._fd, position, count)


def _must_be_regular(path: str, mode: int) -> None:
    """A log directory holds files: reading a device or a pipe may never end."""
    if not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, "found a device, pipe or socket, expected a file", path)


class OsFiles(Files):
    """The operating system's files (Linux and macOS)."""

    __slots__ = ()

    file_class: ClassVar[type[OsFile]] = OsFile

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
        # Nobody waits for the other end of a pipe: without O_NONBLOCK the open itself would.
        flags = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_RDWR if writable else os.O_RDONLY)
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        fd = os.open(path, flags, 0o666)
        try:
            _must_be_regular(path, os.fstat(fd).st_mode)
        except OSError:
            os.close(fd)
            raise
        return self.file_class(path, fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def stat(self, path: str) -> FileStat:
        found = os.stat(path)
        return FileStat(
            found.st_size, found.st_mtime_ns // _NS_PER_MS, stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
        )

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def list_files(self, path: str) -> list[str]:
        with os.scandir(path) as entries:  # says what is a file without asking for each
            return sorted([entry.name for entry in entries if entry.is_file()])

    def rename(self, src: str, dst: str) -> None:
        os.replace(src, dst)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _full_sync(fd)
        finally:
            os.close(fd)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        os.utime(path, ns=(mtime_ms * _NS_PER_MS, mtime_ms * _NS_PER_MS))

    def read_bytes(self, path: str) -> bytes:
        fd = os.open(path, os.O_CLOEXEC | os.O_NONBLOCK | os.O_RDONLY)
        with open(fd, "rb", buffering=0) as file:
            _must_be_regular(path, os.fstat(fd).st_mode)
            return file.read()

    def lock(self, path: str) -> FileLock:
        return OsFileLock(path)


OS_FILES = OsFiles()
