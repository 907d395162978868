"""Waiting for a thread that may be waiting for this one.

A signal handler, or a finalizer that the collector runs, is the same thread as what it interrupts, and that may hold
one of many small locks: an index's, a timer's, a table's.  Whoever waits there for another thread, which wants
that lock, would wait for ever.  The locks of logs are asked by name before (`PartitionLock.is_mine`), and refuse at
once.  For all others there is patience: a call out of the middle of another call of this package waits for
PATIENCE_SECS, and is refused then.  What is called back (a `progress`) looks the same; it holds no such lock, so that
whom it waits for is done long before.  Knows frames, no locks.
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
    """How long a wait that begins now may take: for ever, or PATIENCE_SECS out of the middle of another call."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._until = time.monotonic() + PATIENCE_SECS if is_nested() else None

    @property
    def is_endless(self) -> bool:
        return self._until is None

    def check(self) -> None:
        """IllegalStateException where it is over."""
        if self._until is not None and time.monotonic() > self._until:
            raise IllegalStateException(
                f"waited {PATIENCE_SECS:g} s for {self._what}, in the middle of another call of this thread",
                hint="a signal handler or a finalizer runs inside of what it interrupts, for which others may be "
                "waiting: do it outside",
            )


def wait_for(lock: _thread.LockType, what: str) -> None:
    """Until somebody gives `lock` back; interrupted, it may be called again.  IllegalStateException as `Patience`."""
    patience = Patience(what)
    if patience.is_endless:
        with lock:
            return
    while lock.locked():
        patience.check()
        time.sleep(_POLL_SECS)


def is_nested() -> bool:
    """Whether this thread is in the middle of a call of this package, out of which the present one came."""
    frame: FrameType | None = sys._getframe(1)
    has_left = False
    while frame is not None:
        is_ours = str(frame.f_globals.get("__name__")).startswith(_PACKAGE)
        if has_left and is_ours:
            return True
        has_left = has_left or not is_ours
        frame = frame.f_back
    return False
