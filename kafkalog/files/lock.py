"""The directory lock that keeps a broker, or another kafkalog, out.

A Java broker holds a POSIX record lock on the whole of `.lock` (FileChannel.tryLock).  On Linux we take an
open-file-description lock on the same range: the two kinds exclude each other, and ours is not lost when some other
descriptor of the file is closed in this process, nor shared by the process's threads.  Elsewhere a POSIX lock is
taken, and a process-wide table does what such a lock does not: it excludes this process itself.  So that a POSIX
lock is never dropped by accident, nothing else may open the lock file.

Release removes the file first and unlocks second (Kafka: the other way round), so that nobody gets a lock on a file
that is about to vanish; and after locking the name is looked at again for the same reason.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading

from kafkalog.errors import LogDirLockedException
from kafkalog.files.api import FileLock

_HELD_LOCK = threading.Lock()
_HELD: dict[tuple[int, int], str] = {}  # (device, inode) -> path; guarded by _HELD_LOCK

_F_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
_F_OFD_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None) if sys.platform == "linux" else None
# struct flock of 64-bit Linux and of 32-bit Linux built with 64-bit offsets: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi0q")
_ATTEMPTS = 10


class OsFileLock(FileLock):
    """Taken by construction; LogDirLockedException where someone else holds it."""

    __slots__ = ("_fd", "_key")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        for _ in range(_ATTEMPTS):
            if self._try_lock():
                return
        raise _locked(path, "the lock file is being created and removed by others")

    def _try_lock(self) -> bool:
        """Lock; False where the file that was locked is no longer the one of that name."""
        with _HELD_LOCK:
            # Looked up before opening: with POSIX locks, closing our second descriptor would drop the first's lock.
            if _key_of(self.path) in _HELD:
                raise _locked(self.path, "this process holds it already")
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                _set_lock(fd, self.path)
                found = os.fstat(fd)
                self._key = (found.st_dev, found.st_ino)
                if _key_of(self.path) != self._key:
                    os.close(fd)
                    return False
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(fd)
                raise
            self._fd = fd
            _HELD[self._key] = self.path
            return True

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def release(self, *, remove: bool = True) -> None:
        with _HELD_LOCK:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            _HELD.pop(self._key, None)
            try:
                if remove and _key_of(self.path) == self._key:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.path)
            finally:
                # Unlock by name, not by close alone: a forked child may still hold a copy of the descriptor.
                with contextlib.suppress(OSError):
                    _unlock(fd)
                os.close(fd)


def _key_of(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _set_lock(fd: int, path: str) -> None:
    try:
        if _F_OFD_SETLK is not None:
            try:
                fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
                return
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: a kernel or file system without them
                    raise
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise _locked(path, _holder(fd)) from None
        raise


def _unlock(fd: int) -> None:
    if _F_OFD_SETLK is not None:
        try:
            fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            return
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    fcntl.lockf(fd, fcntl.LOCK_UN)


def _holder(fd: int) -> str:
    """Who holds the lock, as far as the system tells: a process id for POSIX locks, nothing for the other kind."""
    if _F_OFD_GETLK is None:
        return ""
    try:
        asked = fcntl.fcntl(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return ""
    pid = _FLOCK.unpack(asked)[4]
    if pid <= 0:
        return ""
    name = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
        name = comm.read().strip()
    return f"process {pid} ({name}) holds it" if name else f"process {pid} holds it"


def _locked(path: str, who: str) -> LogDirLockedException:
    directory, name = os.path.split(os.path.abspath(path))
    if who:
        hint = f"{who}; stop it, or open with read_only=True to look beside it"
    else:
        hint = "stop the broker or program that holds it, or open with read_only=True to look beside it"
    text = "A Kafka instance in another process or thread is using this directory."
    return LogDirLockedException(f"Failed to acquire lock on file {name} in {directory}. {text}", hint=hint)
