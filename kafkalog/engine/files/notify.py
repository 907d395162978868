"""Being told that files in a directory have changed: Linux's inotify, where it can be had.

Who is told looks for himself: an event says where, not what.  Nothing is told of what another machine does to a
network's file system, and there may be no watches left: who waits looks now and then in any case.  Not thread-safe, but
for `release`, which may come from any thread.  Belongs to one process.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys

IN_MODIFY, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_Q_OVERFLOW, IN_IGNORED = 0x400, 0x800, 0x4000, 0x8000
CHANGES = IN_MODIFY | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF
EVENT = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name that follows
READ_BYTES = 1 << 16


class DirectoryWatch:
    """OSError where the system has none to give, or knows no such thing."""

    def __init__(self) -> None:
        self._inotify = self._wake = -1
        if sys.platform != "linux":
            raise OSError("inotify is Linux's")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watches: dict[int, str] = {}
        self._watched: dict[str, int] = {}  # the same, the other way round
        self._inotify = self._called(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @staticmethod
    def _called(answer: int) -> int:
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return answer

    def add(self, directory: str) -> None:
        """OSError where it is not there, or there are too many."""
        watch = self._called(self._libc.inotify_add_watch(self._inotify, os.fsencode(directory), CHANGES))
        self._watches[watch] = directory
        self._watched[directory] = watch

    def changed(self) -> set[str] | None:
        """The directories of which something was told since the last call; None: too much happened to be told."""
        found: set[str] = set()
        is_all = False
        while True:
            try:
                data = os.read(self._inotify, READ_BYTES)
            except BlockingIOError:
                return None if is_all else found
            at = 0
            while at < len(data):
                watch, mask, _, name_bytes = EVENT.unpack_from(data, at)
                at += EVENT.size + name_bytes
                is_all = is_all or bool(mask & IN_Q_OVERFLOW)
                if mask & IN_MOVE_SELF:  # its name may be another directory's from now on
                    self._libc.inotify_rm_watch(self._inotify, watch)
                directory = self._watches.get(watch)
                if directory is not None:
                    found.add(directory)
                    if mask & (IN_IGNORED | IN_MOVE_SELF):
                        self._forget(watch, directory)

    def _forget(self, watch: int, directory: str) -> None:
        del self._watches[watch]
        if self._watched.get(directory) == watch:
            del self._watched[directory]

    def watches(self, directory: str) -> bool:
        """Whether changes of it are told."""
        return directory in self._watched

    def wait(self, timeout_s: float) -> None:
        """Until something is told, or `release` was called."""
        poll = select.poll()
        for fd in (self._inotify, self._wake):
            poll.register(fd, select.POLLIN)
        poll.poll(timeout_s * 1000)
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass

    def release(self) -> None:
        """Ends the present wait, or the next one."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        mine = self._inotify, self._wake
        self._inotify = self._wake = -1
        for fd in mine:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        self.close()
