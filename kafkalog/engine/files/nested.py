"""Limits the wait for a thread that may be waiting for this one.

A signal handler, or a finalizer that the garbage collector runs, is the same thread as the code that it interrupts.
That code may hold one of many small locks: of an index, a timer, a table.  If the handler then waits for another thread
that needs this lock, both wait forever.  The locks of logs are checked explicitly (`PartitionLock.is_mine`), and
refuse at once.  For all others there is patience: a call from the middle of another call of this package waits for
PATIENCE_SECS, and is refused then.  A callback (`progress`) looks the same.  It holds no such lock, so that the thread
that it waits for ends long before.  Knows frames, no locks.
"""

from __future__ import annotations

import _thread
import sys
import time
from types import FrameType

from kafkalog.errors import IllegalStateException

PATIENCE_SECS = 30.0
_POLL_SECS = 0.01
_PACKAGE = __name__.partition(".")[0] + "."


class Patience:
    """The limit of a wait that begins now: none, or PATIENCE_SECS in the middle of another call."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._until = time.monotonic() + PATIENCE_SECS if is_nested() else None

    @property
    def is_endless(self) -> bool:
        return self._until is None

    def check(self) -> None:
        """Raises IllegalStateException if the limit is reached."""
        if self._until is not None and time.monotonic() > self._until:
            raise IllegalStateException(
                f"waited {PATIENCE_SECS:g} s for {self._what}, in the middle of another call of this thread",
                hint="a signal handler or a finalizer runs in the middle of the code that it interrupts, and other "
                "threads may wait for that code: do this outside of it",
            )


def wait_for(lock: _thread.LockType, what: str) -> None:
    """Waits until `lock` is released.  May be called again after an interrupt.  IllegalStateException as `Patience`."""
    patience = Patience(what)
    if patience.is_endless:
        with lock:
            return
    while lock.locked():
        patience.check()
        time.sleep(_POLL_SECS)


def is_nested() -> bool:
    """Returns whether the current call came from the middle of another call of this package in this thread."""
    frame: FrameType | None = sys._getframe(1)
    has_left = False
    while frame is not None:
        is_ours = str(frame.f_globals.get("__name__")).startswith(_PACKAGE)
        if has_left and is_ours:
            return True
        has_left = has_left or not is_ours
        frame = frame.f_back
    return False
