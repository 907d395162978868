"""What is still open for writing when the process ends: it sends what it holds, and says that it was never closed.

A finalizer that runs as the interpreter goes down can do neither: its modules may be empty, and threads stand still.
So who is to be closed says `told_at_exit(self)`, and is asked before that, while threads and warnings work.  It is held
weakly, and a forked child has none of its parent's.  Nothing is closed here: the next open recovers, as after a crash.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from typing import Protocol

SEND_S = 2.0  # that an exit waits, at most, for what all of them hold


class LeftOpen(Protocol):
    """What may be open when the process ends."""

    def left_open(self, deadline_s: float) -> None:
        """At the process's end: send what is held, until `time.monotonic()` is `deadline_s`, and give a
        ResourceWarning.  Nothing where it was closed."""


_OPEN: weakref.WeakSet[LeftOpen] = weakref.WeakSet()


def told_at_exit(thing: LeftOpen) -> None:
    """Have `thing.left_open()` called when the process ends, as long as it lives."""
    _OPEN.add(thing)


def opened_at() -> str:
    """Where in a program of others the open is that calls this."""
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
        except Exception as error:  # a warning, with -W error
            errors.append(error)
    if errors:
        raise errors[0]


def _forget() -> None:
    global _OPEN
    _OPEN = weakref.WeakSet()


os.register_at_fork(after_in_child=_forget)
atexit.register(_tell)
