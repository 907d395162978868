"""One sync for all who wait for one: threads that append to a log at the same time share what the disk takes.

Knows neither files nor offsets: whoever wants something synced says how, and how one sees that it is.  Who comes while
another syncs waits for that one's end; if that did not cover him, he or one of those who came meanwhile syncs next, for
all of them.  An error is told to whom it met; the others find themselves not covered, try, and meet their own.

Thread-safe, and no lock is held while anybody waits: of an interrupt it keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkalog._native.state.blocks import Turn

LOOK_EVERY_S = 1.0  # of who waits: a thread that died in the middle of its turn wakes nobody


class GroupSync:
    """The syncs of one log."""

    def __init__(self) -> None:
        self._turn = Turn()

    def until(self, is_covered: Callable[[], bool], sync: Callable[[], None]) -> None:
        """Returns once `is_covered()`, or once this thread has done `sync`, which covers all that was there before."""
        while not is_covered():
            turn_ended = self._turn.joined()  # before the look whose turn it is: the end of that one wakes us
            with self._turn as is_mine:
                if is_mine:
                    sync()
            if is_mine:
                return
            turn_ended.acquire(timeout=LOOK_EVERY_S)
