"""The real disk.  A read or a write is one native call around one system call: no stat, no bookkeeping."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar, cast

from kafkalog._native.state import folder
from kafkalog._native.state.descriptor import Descriptor, FileMap
from kafkalog.engine.files.api import FLUSH_BYTES, File, FileLock, Files, FileStat, Found, HasFileno, Listing, Looked
from kafkalog.engine.files.failure import UnsyncedError
from kafkalog.engine.files.lock import OsFileLock
from kafkalog.engine.files.pool import OPEN_FILES, OpenFiles
from kafkalog.engine.files.turns import resting

T = TypeVar("T")

_NS_PER_MS = 1_000_000
STAT_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's block size
_SYNC_FILE_RANGE_WRITE = 2
_FICLONE = 0x40049409  # _IOW(0x94, 9, int): Linux's ioctl for a reflink of a whole file
_CANNOT_CLONE = frozenset({
    errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY
})  # fmt: skip
READ_ON_BYTES = 1 << 20
# O_NONBLOCK: without it, the open of a pipe would wait for its other end.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
_WRITE = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = _WRITE | os.O_CREAT
_PRIVATE = 0o600


class OsFile(Descriptor, File):
    """An open file of the operating system.  The methods are those of `File`."""

    __slots__ = ()

    def size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def sync(self) -> None:
        try:
            with resting():
                super().sync()
        except OSError as error:
            raise UnsyncedError(error.errno, error.strerror, error.filename) from error

    def sync_data(self) -> None:
        try:
            with resting():
                super().sync_data()
        except OSError as error:
            raise UnsyncedError(error.errno, error.strerror, error.filename) from error

    def flush_soon(self, position: int, count: int) -> None:
        begin = _write_begins()
        if begin is not None:
            begin(self.fileno(), position, count, _SYNC_FILE_RANGE_WRITE)

    def copy_from(self, source: File, size: int) -> int:
        done = told = 0
        if isinstance(source, OsFile) and hasattr(os, "copy_file_range"):
            with contextlib.suppress(OSError):  # the caller copies the rest, and gets the error then
                while done < size:
                    most = min(FLUSH_BYTES, size - done)
                    count = os.copy_file_range(source.fileno(), self.fileno(), most, done, done)
                    if not count:
                        break
                    done += count
                    if done - told >= FLUSH_BYTES:
                        self.flush_soon(told, done - told)
                        told = done
        return done

    def clone_from(self, source: File) -> bool:
        if not isinstance(source, OsFile) or not sys.platform.startswith("linux"):
            return False
        import fcntl  # only needed for copies

        try:
            fcntl.ioctl(self.fileno(), _FICLONE, source.fileno())
        except OSError as error:
            if error.errno in _CANNOT_CLONE:
                return False
            error.filename = self.path
            raise
        return True

    def map(self) -> FileMap | None:
        size = self.size()
        return FileMap(self, size) if size else None

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        return os.sendfile(sock.fileno(), self.fileno(), position, count)


@functools.cache
def _write_begins() -> Callable[..., object] | None:
    """Returns Linux's system call that begins to write a range, if it exists."""
    import ctypes  # only needed for copies

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast("Callable[..., object] | None", call)


def _not_regular(path: str, mode: int) -> OSError:
    """Returns the error for a path that is no regular file: reading a device or a pipe may never end."""
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return OSError(errno.EINVAL, "found a device, pipe or socket, expected a file", path)


def _stat(found: Found) -> FileStat:
    size, mtime_ns, mode, inode, blocks = found[:5]
    is_file, is_dir = stat.S_ISREG(mode), stat.S_ISDIR(mode)
    return FileStat(size, mtime_ns // _NS_PER_MS, is_file, is_dir, inode, allocated=blocks * STAT_BLOCK_BYTES)


class OsFiles(Files):
    """The operating system's files (Linux and macOS).

    Args:
        pool: The budget of open files.  By default the process's, which all share.

    Example:
        >>> from kafkalog.engine.files import OsFiles
        >>> OsFiles().is_dir("/")
        True
    """

    __slots__ = ("_pool",)

    file_class: ClassVar[type[OsFile]] = OsFile

    def __init__(self, pool: OpenFiles | None = None) -> None:
        self._pool = OPEN_FILES if pool is None else pool

    @property
    def pool(self) -> OpenFiles:
        return self._pool

    def _is_alone(self, path: str) -> bool:
        """Returns whether this class answers for the path; a subclass may answer in another way."""
        return type(self) is OsFiles

    def _with_room(self, do: Callable[[], T]) -> T:
        """Returns `do()`.  If the process may open no more files, closes idle ones and tries once more."""
        try:
            return do()
        except OSError as error:
            if not self._pool.make_room(error):
                raise
        return do()

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
        flags = _WRITE if writable else _READ
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return self._open(path, flags)[0]

    def open_sized(self, path: str, *, writable: bool = True, create: bool = False) -> tuple[OsFile, int]:
        flags = _WRITE if writable else _READ
        return self._open(path, flags | os.O_CREAT if create else flags)

    def _open(self, path: str, flags: int) -> tuple[OsFile, int]:
        # One call from bytecode: an interrupt between two would leave the descriptor without an owner.
        file = self._with_room(lambda: next(map(self.file_class, (path,), map(os.open, (path,), (flags,), (0o666,)))))
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            file.close()
            raise _not_regular(path, found.st_mode)
        return file, found.st_size

    def make_private(self, path: str) -> None:
        # A file is never readable by others, not even while it is created.
        file = self._with_room(lambda: next(map(Descriptor, (path,), map(os.open, (path,), (_CREATE,), (_PRIVATE,)))))
        try:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) != _PRIVATE:
                os.fchmod(file.fileno(), _PRIVATE)
        finally:
            file.close()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def is_readable(self, path: str) -> bool:
        return os.access(path, os.R_OK)

    def stat(self, path: str) -> FileStat:
        found = os.stat(path)
        mode = found.st_mode
        mtime_ms = found.st_mtime_ns // _NS_PER_MS
        is_file, allocated = stat.S_ISREG(mode), found.st_blocks * STAT_BLOCK_BYTES
        return FileStat(found.st_size, mtime_ms, is_file, stat.S_ISDIR(mode), found.st_ino, allocated=allocated)

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._with_room(lambda: os.listdir(path)))

    def names_in(self, path: str) -> list[str]:
        return self._with_room(lambda: os.listdir(path))

    def listing(self, path: str) -> Listing:
        # scandir tells the kind without a stat of each.  One call from bytecode, as in `_open`.
        entries = self._with_room(lambda: next(map(list, map(os.scandir, (path,)))))
        files = sorted([entry.name for entry in entries if entry.is_file()])
        others: list[str] = []
        if len(files) != len(entries):
            others = sorted([entry.name for entry in entries if not entry.is_file() and self.exists(entry.path)])
        return Listing(files, others)

    def look_into(self, path: str, suffix: str) -> Looked | None:
        found = folder.listing(path, suffix, True) if self._is_alone(path) else None
        if found is None:
            return None
        mtime_ns, names, stats = found
        return Looked(mtime_ns // _NS_PER_MS, names, {name: _stat(each) for name, each in stats.items()})

    def glances(self, place: str, names: bytes) -> bytes | None:
        return folder.glances(place, names) if self._is_alone(place) else None

    def content(self, path: str, bytes_max: int) -> bytes | None:
        return folder.content(path, bytes_max) if self._is_alone(path) else None

    def has_inside(self, folder: str, name: str) -> bool:
        return self.exists(f"{folder}/{name}")

    def rename(self, src: str, dst: str) -> None:
        os.replace(src, dst)

    def link(self, src: str, dst: str) -> None:
        os.link(src, dst)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        with self.dir_to_sync(path) as sync:
            sync()

    @contextlib.contextmanager
    def dir_to_sync(self, path: str) -> Iterator[Callable[[], object]]:
        # An interrupt here drops the descriptor, which closes it.
        directory = self._with_room(lambda: next(map(Descriptor, (path,), map(os.open, (path,), (_DIRECTORY,)))))

        def sync() -> None:
            try:
                with resting():
                    directory.sync()
            except OSError as error:
                raise UnsyncedError(error.errno, error.strerror, path) from error

        try:
            yield sync
        finally:
            directory.close()

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        os.utime(path, ns=(mtime_ms * _NS_PER_MS, mtime_ms * _NS_PER_MS))

    def read_bytes(self, path: str) -> bytes:
        file, size = self._open(path, _READ)
        with file:
            data = file.pread(size + 1, 0)
            while len(data) > size:  # it grew meanwhile, or is a special file without a size
                more = file.pread(READ_ON_BYTES, len(data))
                if not more:
                    break
                data += more
            return data

    def lock(self, path: str) -> FileLock:
        return self._with_room(lambda: OsFileLock(path))
