"""GroupSync: one sync for all threads that wait for one, so that concurrent appends to a log share the disk's work.

It knows neither files nor offsets: the caller says how to sync, and how to see whether its data is synced. A thread
that comes during a sync waits for its end. If that sync did not cover it, one of the waiting threads syncs next, for
all of them. An error is raised in the thread that met it; the others find that they are not covered, try, and meet
their own error.

Thread-safe. No lock is held while a thread waits, so that an interrupt leaves nothing locked.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkalog._native.state.blocks import Turn

LOOK_EVERY_S = 1.0  # the longest wait: a thread that died during its turn wakes nobody


class GroupSync:
    """The syncs of one log."""

    def __init__(self) -> None:
        self._turn = Turn()

    def until(self, is_covered: Callable[[], bool], sync: Callable[[], None]) -> None:
        """Returns once `is_covered()`, or once this thread has run `sync`, which covers everything before it."""
        while not is_covered():
            turn_ended = self._turn.joined()  # before checking whose turn it is: the end of that turn wakes us
            with self._turn as is_mine:
                if is_mine:
                    sync()
            if is_mine:
                return
            turn_ended.acquire(timeout=LOOK_EVERY_S)
