"""At the end of the process, makes objects that are still open for writing send what they hold, and warn.

A finalizer that runs during the shutdown of the interpreter can do neither: its modules may be empty, and threads do
not run.  So an object that must be closed calls `told_at_exit(self)`.  Its `left_open` is called earlier, while threads
and warnings work.  The object is held weakly, and a forked child has none of its parent's.  Nothing is closed here: the
next open recovers, as after a crash.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from typing import Protocol

SEND_S = 2.0  # the longest time that the exit waits for all of them together


class LeftOpen(Protocol):
    """An object that may be open when the process ends."""

    def left_open(self, deadline_s: float) -> None:
        """Sends what the object holds, until `time.monotonic()` is `deadline_s`, and gives a ResourceWarning.

        Called at the end of the process.  Does nothing if the object was closed.
        """


_OPEN: weakref.WeakSet[LeftOpen] = weakref.WeakSet()


def told_at_exit(thing: LeftOpen) -> None:
    """Calls `thing.left_open()` when the process ends, if `thing` still exists then."""
    _OPEN.add(thing)


def opened_at() -> str:
    """Returns the place outside of this package from which the current call came."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "kafkalog":
        frame = frame.f_back
    return f"opened at {frame.f_code.co_filename}:{frame.f_lineno}"


def _tell() -> None:
    deadline_s = time.monotonic() + SEND_S
    errors: list[Exception] = []
    for thing in list(_OPEN):
        try:
            thing.left_open(deadline_s)
        except Exception as error:  # a warning is an error with -W error
            errors.append(error)
    if errors:
        raise errors[0]


def _forget() -> None:
    global _OPEN
    _OPEN = weakref.WeakSet()


os.register_at_fork(after_in_child=_forget)
atexit.register(_tell)
