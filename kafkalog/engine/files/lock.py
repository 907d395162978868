"""The directory lock that keeps out a broker, or another kafkalog process.

A Java broker holds a POSIX record lock on the whole of `.lock` (FileChannel.tryLock).  On Linux this module acquires an
open-file-description lock on the same range.  The two kinds exclude each other.  The latter is not lost when another
descriptor of the file is closed in this process, and is not shared by the process's threads.  On other systems it
acquires a POSIX lock, and a process-wide table does what such a lock does not: it excludes this process itself.  No
other code may open the lock file, because closing it would drop a POSIX lock.

`release` removes the file first and unlocks second (Kafka: the other way round), so that no process gets a lock on a
file that is about to vanish.  For the same reason the name is checked again after locking.

The lock exists as long as its descriptor, and the descriptor as long as the OsFileLock.  So a lock that an interrupt
makes the code forget is released.  A forked child closes its copy at once; otherwise it would keep the directory locked
after its parent has ended.

A holder may admit guests (`share`), which are processes that are not its children.  Then it keeps the file's first byte
locked, and each guest (`OsGuest`) locks one byte after that.  A process that wants the directory locks all bytes, and
so waits for the last guest, even if the holder was killed.  A late guest whose holder has ended finds the first byte
unlocked, or another holder's token in the file, and is refused.
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
    """The lock is held.  `pid` is 0 if the system does not report the holder."""

    def __init__(self, pid: int, inode: _Inode) -> None:
        self.pid = pid
        self.inode = inode


class OsFileLock(FileLock):
    """A lock that the constructor acquires.  LogDirLockedException if another holder has it."""

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
        raise _locked(path, "other processes are creating and removing the lock file")

    def _try_lock(self) -> bool:
        """Acquires the lock.  Returns False if the locked file no longer has that name."""
        with _HELD_LOCK:
            # Checked before the open: with POSIX locks, closing a second descriptor would drop the first one's lock.
            inode = _inode_of(self.path)
            other = None if inode is None else _HELD.get(inode)
            if inode is not None and other is not None and other.held:
                raise _Busy(os.getpid(), inode)
            # One call from bytecode: an interrupt between two would leave the descriptor without an owner.
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
                if remove and not self._shared and _inode_of(self.path) == self._inode:  # guests still lock this file
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self.path)
            finally:
                # Unlocks explicitly: a process that was forked without Python's knowledge may still have a copy.
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
    """Another guest has the slot."""


class OsGuest(FileLock):
    """A slot in a directory that its holder shares: one guest a slot at a time, even if the holder has ended.

    Raises PlaceTaken if the slot is taken, and LogDirLockedException if the directory is not shared under `token` any
    more.
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
                raise PlaceTaken(str(_locked(path, f"another guest is active in slot {slot}"))) from None
            found = os.fstat(fd)
            if self._file.pread(len(token) + 1, 0) != token or _inode_of(path) != (found.st_dev, found.st_ino):
                raise _ended(path)
            try:
                _set_range(fd, fcntl.F_RDLCK, 0, 1)
            except _Busy:
                return  # the holder has the first byte, as expected
            raise _ended(path)
        except BaseException:
            self._file.close()
            raise

    def release(self, *, remove: bool = True) -> None:
        """Releases the slot.  The file belongs to the holder."""
        self._file.close()


def _ended(path: str) -> LogDirLockedException:
    return LogDirLockedException(
        "the directory is not shared any more by the process that this work is for",
        path=path,
        hint="start the job again",
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
    """Locks or unlocks bytes.  A length of 0 means up to the end, also of a file that grows.  _Busy; OSError."""
    try:
        if _F_OFD_SETLK is not None:
            try:
                fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
                return
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: the kernel or file system does not support them
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

    # --- the holder, looked up only after a refusal --------------------------------------------------------


def _told_pid(fd: int) -> int:
    """Returns the process that holds a POSIX lock; 0 for the other kind, whose owner the system does not know."""
    if _F_OFD_GETLK is None:
        return 0
    try:
        asked = fcntl.fcntl(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return 0
    return max(int(_FLOCK.unpack(asked)[4]), 0)


def _holder(busy: _Busy) -> str:
    """Returns the beginning of a sentence about the holder; empty if it is unknown."""
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
    """Returns the process with a locked descriptor of the file, as far as /proc shows other processes'; else 0."""
    for pid in _entries("/proc"):
        if not pid.isdigit():
            continue
        for fd in _entries(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                at = f"/proc/{pid}/fd/{fd}"
                # By name first: stat of all open files may wait for a network server that does not answer.
                if ".lock" in os.readlink(at) and _inode_of(at) == inode and _has_lock(pid, fd):
                    return int(pid)
    return 0


def _has_lock(pid: str, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as info:
        return any(line.startswith("lock:") for line in info)


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # another user's process, or it has ended, or this is not Linux
        return []


def _where(inode: _Inode) -> str:
    """Returns where this process acquired the lock, if it has it."""
    with _HELD_LOCK:
        lock = _HELD.get(inode)
        return "" if lock is None or not lock.held else f" ({lock._where})"


def _locked(path: str, who: str, where: str = "") -> LogDirLockedException:
    directory, name = os.path.split(os.path.abspath(path))
    if who == _OURSELVES:
        hint = (
            f"{who}{where}; use the open object (such as store.topic(...).partition(...)), close it, or open with "
            "read_only=True to read while it is open"
        )
    elif who:
        hint = f"{who}; stop it, or open with read_only=True to read while it is running: {WAYS_OUT}"
    else:
        hint = f"stop the broker or program that holds it, or open with read_only=True to read meanwhile: {WAYS_OUT}"
    text = "A Kafka instance in another process or thread is using this directory."
    return LogDirLockedException(f"Failed to acquire lock on file {name} in {directory}. {text}", hint=hint)
