"""The directory lock that keeps a broker, or another kafkalog, out.

A Java broker holds a POSIX record lock on the whole of `.lock` (FileChannel.tryLock).  On Linux we take an
open-file-description lock on the same range: the two kinds exclude each other, and ours is not lost when some other
descriptor of the file is closed in this process, nor shared by the process's threads.  Elsewhere a POSIX lock is
taken, and a process-wide table does what such a lock does not: it excludes this process itself.  So that a POSIX
lock is never dropped by accident, nothing else may open the lock file.

Release removes the file first and unlocks second (Kafka: the other way round), so that nobody gets a lock on a file
that is about to vanish; and after locking the name is looked at again for the same reason.

The lock lives as long as its descriptor, and this as long as the OsFileLock: one that is forgotten, as an interrupt
may do to it, is held no more.  A forked child closes its copy at once, or it would keep the directory locked after
its parent is gone.

A holder may let others work for it (`share`), in processes that are not his children: then he keeps the file's first
byte locked, and each guest (`OsGuest`) one byte of its own behind that.  Who wants the directory locks all bytes, and
so waits for the last guest, also where the holder was killed.  A guest that comes late, whose holder is gone, finds the
first byte free, or another holder's token in the file, and is sent away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
import weakref

from kafkalog._native.state.descriptor import Descriptor
from kafkalog.engine.files.api import FileLock
from kafkalog.engine.files.left_open import opened_at
from kafkalog.engine.files.processes import belongs_here, held_over_forks
from kafkalog.errors import LogDirLockedException

_Inode = tuple[int, int]  # device, inode

_HELD_LOCK = threading.RLock()
held_over_forks(_HELD_LOCK)
_HELD: weakref.WeakValueDictionary[_Inode, OsFileLock] = weakref.WeakValueDictionary()  # guarded by _HELD_LOCK

_F_OFD_SETLK: int | None = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
_F_OFD_GETLK: int | None = getattr(fcntl, "F_OFD_GETLK", None) if sys.platform == "linux" else None
# struct flock of 64-bit Linux and of 32-bit Linux built with 64-bit offsets: type, whence, start, length, pid.
_FLOCK = struct.Struct("@hhqqi0q")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_ATTEMPTS = 10
WAYS_OUT = "one process writes, and any number read"
_OURSELVES = "this process holds it already"


class _Busy(Exception):
    """Someone has the lock; `pid` is 0 where the system does not say who."""

    def __init__(self, pid: int, inode: _Inode) -> None:
        self.pid = pid
        self.inode = inode


class OsFileLock(FileLock):
    """Taken by construction; LogDirLockedException where someone else holds it."""

    __slots__ = ("__weakref__", "_file", "_inode", "_shared", "_where")

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: Descriptor | None = None
        self._shared = False
        self._where = opened_at()
        belongs_here(self)
        for _ in range(_ATTEMPTS):
            try:
                if self._try_lock():
                    return
            except _Busy as busy:
                raise _locked(path, _holder(busy), _where(busy.inode)) from None
        raise _locked(path, "the lock file is being created and removed by others")

    def _try_lock(self) -> bool:
        """Lock; False where the file that was locked is no longer the one of that name."""
        with _HELD_LOCK:
            # Looked up before opening: with POSIX locks, closing our second descriptor would drop the first's lock.
            inode = _inode_of(self.path)
            other = None if inode is None else _HELD.get(inode)
            if inode is not None and other is not None and other.held:
                raise _Busy(os.getpid(), inode)
            # One call from bytecode: between two, an interrupt would leave the descriptor to nobody.
            self._file = next(map(Descriptor, (self.path,), map(os.open, (self.path,), (_FLAGS,), (0o666,))))
            try:
                fd = self._file.fileno()
                _set_lock(fd)
                found = os.fstat(fd)
                self._inode = (found.st_dev, found.st_ino)
                if _inode_of(self.path) != self._inode:
                    self._file.close()
                    return False
                _HELD[self._inode] = self
            except BaseException:
                with contextlib.suppress(OSError):
                    self._file.close()
                raise
            return True

    @property
    def held(self) -> bool:
        return self._file is not None and not self._file.closed

    def release(self, *, remove: bool = True) -> None:
        with _HELD_LOCK:
            file = self._file
            if file is None or file.closed:
                return
            try:
                if remove and not self._shared and _inode_of(self.path) == self._inode:  # guests would keep nobody out
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.path)
            finally:
                # Unlock by name, not by close alone: who was forked without our knowing may still hold a copy.
                with contextlib.suppress(OSError):
                    _unlock(file.fileno())
                if _HELD.get(self._inode) is self:
                    del _HELD[self._inode]
                file.close()

    def share(self, token: bytes) -> None:
        with _HELD_LOCK:
            assert self._file is not None
            self._file.truncate(0)
            self._file.pwrite(token, 0)
            self._shared = True
            _set_range(self._file.fileno(), fcntl.F_UNLCK, 1, 0)

    def take_back(self) -> bool:
        with _HELD_LOCK:
            assert self._file is not None
            try:
                _set_lock(self._file.fileno())
            except _Busy:
                return False
            self._file.truncate(0)
            self._shared = False
            return True

    def disown(self) -> None:
        _HELD.clear()
        if self._file is not None:
            self._file.close()  # never unlocks: parent and child share the open file


class PlaceTaken(LogDirLockedException):
    """Another guest has the place."""


class OsGuest(FileLock):
    """A place in a directory that its holder shares: one of `slot` at a time, whatever became of the holder.

    PlaceTaken where the slot is, LogDirLockedException where the directory is not shared under `token` any more.
    """

    __slots__ = ("_file",)

    def __init__(self, path: str, token: bytes, slot: int) -> None:
        self.path = path
        try:
            self._file = Descriptor(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            raise _ended(path) from None
        try:
            fd = self._file.fileno()
            try:
                _set_range(fd, fcntl.F_WRLCK, 1 + slot, 1)
            except _Busy:
                raise PlaceTaken(str(_locked(path, f"another one is at work in place {slot}"))) from None
            found = os.fstat(fd)
            if self._file.pread(len(token) + 1, 0) != token or _inode_of(path) != (found.st_dev, found.st_ino):
                raise _ended(path)
            try:
                _set_range(fd, fcntl.F_RDLCK, 0, 1)
            except _Busy:
                return  # the holder has it, as it should be
            raise _ended(path)
        except BaseException:
            self._file.close()
            raise

    def release(self, *, remove: bool = True) -> None:
        """Gives the place up; the file is the holder's."""
        self._file.close()


def _ended(path: str) -> LogDirLockedException:
    return LogDirLockedException(
        "the directory is not shared any more by whom this work is for", path=path, hint="start the job anew"
    )


def _inode_of(path: str) -> _Inode | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _set_lock(fd: int) -> None:
    _set_range(fd, fcntl.F_WRLCK, 0, 0)


_LOCKF = {
    fcntl.F_WRLCK: fcntl.LOCK_EX | fcntl.LOCK_NB,
    fcntl.F_RDLCK: fcntl.LOCK_SH | fcntl.LOCK_NB,
    fcntl.F_UNLCK: fcntl.LOCK_UN,
}


def _set_range(fd: int, kind: int, start: int, length: int) -> None:
    """Locks or unlocks bytes; a length of 0 goes to the end, wherever that will be.  _Busy; OSError."""
    try:
        if _F_OFD_SETLK is not None:
            try:
                fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
                return
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: a kernel or file system without them
                    raise
        fcntl.lockf(fd, _LOCKF[kind], length, start)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            found = os.fstat(fd)
            raise _Busy(_told_pid(fd), (found.st_dev, found.st_ino)) from None
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


# --- who has it: asked only when it is refused ---------------------------------------------------------


def _told_pid(fd: int) -> int:
    """The process that holds a POSIX lock; 0 for the other kind, of which the system knows no owner."""
    if _F_OFD_GETLK is None:
        return 0
    try:
        asked = fcntl.fcntl(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return 0
    return max(int(_FLOCK.unpack(asked)[4]), 0)


def _holder(busy: _Busy) -> str:
    """Who holds the lock, as a sentence's beginning; empty where it cannot be known."""
    pid = busy.pid or _pid_with_lock(busy.inode)
    if pid == os.getpid():
        return _OURSELVES
    if not pid:
        return ""
    name = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
        name = comm.read().strip()
    return f"process {pid} ({name}) holds it" if name else f"process {pid} holds it"


def _pid_with_lock(inode: _Inode) -> int:
    """The process with a locked descriptor of the file, as far as /proc shows other processes' descriptors; else 0."""
    for pid in _entries("/proc"):
        if not pid.isdigit():
            continue
        for fd in _entries(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                at = f"/proc/{pid}/fd/{fd}"
                # By name first: asking for the inode of everything that is open may mean asking a dead server.
                if ".lock" in os.readlink(at) and _inode_of(at) == inode and _has_lock(pid, fd):
                    return int(pid)
    return 0


def _has_lock(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as info:
        return any(line.startswith("lock:") for line in info)


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # another user's, or gone by now, or not Linux
        return []


def _where(inode: _Inode) -> str:
    """Where this process took the lock, if it has it."""
    with _HELD_LOCK:
        lock = _HELD.get(inode)
        return "" if lock is None or not lock.held else f" ({lock._where})"


def _locked(path: str, who: str, where: str = "") -> LogDirLockedException:
    directory, name = os.path.split(os.path.abspath(path))
    if who == _OURSELVES:
        hint = (
            f"{who}{where}; use what is open there (such as store.topic(...).partition(...)), close it, or open with "
            "read_only=True to look beside it"
        )
    elif who:
        hint = f"{who}; stop it, or open with read_only=True to look beside it: {WAYS_OUT}"
    else:
        hint = f"stop the broker or program that holds it, or open with read_only=True to look beside it: {WAYS_OUT}"
    text = "A Kafka instance in another process or thread is using this directory."
    return LogDirLockedException(f"Failed to acquire lock on file {name} in {directory}. {text}", hint=hint)
