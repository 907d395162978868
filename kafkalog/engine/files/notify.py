"""Waits for changes of files in a directory with Linux's inotify, if it is available.

An event says where something changed, not what: the caller checks that.  There are no events for changes that another
machine makes on a network file system, and the watches may be used up: so a caller checks now and then in any case.
Not thread-safe, except `release`, which any thread may call.  Belongs to one process.
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
    """Watches directories.  OSError if the system has no inotify, or no instance left."""

    def __init__(self) -> None:
        self._inotify = self._wake = -1
        if sys.platform != "linux":
            raise OSError("inotify is Linux's")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watches: dict[int, str] = {}
        self._watched: dict[str, int] = {}  # the inverse of _watches
        self._inotify = self._called(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @staticmethod
    def _called(answer: int) -> int:
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return answer

    def add(self, directory: str) -> None:
        """Watches a directory.  OSError if it does not exist, or there are too many watches."""
        watch = self._called(self._libc.inotify_add_watch(self._inotify, os.fsencode(directory), CHANGES))
        self._watches[watch] = directory
        self._watched[directory] = watch

    def changed(self) -> set[str] | None:
        """Returns the directories with events since the last call; None if there were too many events."""
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
                if mask & IN_MOVE_SELF:  # another directory may get its name
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
        """Returns whether a directory is watched."""
        return directory in self._watched

    def wait(self, timeout_s: float) -> None:
        """Waits until there is an event, or `release` was called, or `timeout_s` is over."""
        poll = select.poll()
        for fd in (self._inotify, self._wake):
            poll.register(fd, select.POLLIN)
        poll.poll(timeout_s * 1000)
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass

    def release(self) -> None:
        """Ends the current wait, or the next one."""
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
