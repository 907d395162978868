"""Turns: limits how many of one owner's threads work at a time; a thread that waits for the disk lets others work.

Many threads hide slow syncs, because several syncs become one commit of the file system.  If syncs are quick, the
threads only compete for the interpreter's lock at each short system call, and are slower than one thread alone.  So
jobs of many short calls take turns.  The first few run one by one and measure the machine.  They show whether a sync is
so slow that a turn is given up during it, and how many jobs fill the processors that the interpreter's lock lets them
fill.

A turn is also given up for a long scan without the interpreter's lock.  No thread waits for a turn forever, because the
holder may wait for this thread: after a while (a short one if it may hold locks) it continues without a turn.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["Turns", "resting"]

T = TypeVar("T")

_LOOKS = 8  # the first jobs, which measure the machine
_PATIENCE_S = 0.2
_LOCKED_PATIENCE_S = 0.02
_SLOW_S = 0.0001  # a sync that takes longer is worth two switches of threads
_LEAST_S = 1e-6  # the resolution of a clock
_MUCH_BYTES = 1 << 20  # a scan of this size takes about as long as a slow sync


class _Turn:
    """A thread's turn.  `waited`: the seconds that it spent in `waits` syncs."""

    __slots__ = ("held", "lock", "rests", "waited", "waits")

    def __init__(self, lock: threading.Lock, rests: bool, *, held: bool) -> None:
        self.lock = lock
        self.rests = rests
        self.held = held
        self.waited = 0.0
        self.waits = 0


class _Mine(threading.local):
    turn: _Turn | None = None


_mine = _Mine()


@contextlib.contextmanager
def resting(scan_bytes: int | None = None) -> Iterator[None]:
    """Lets other threads work during a sync, or a scan of `scan_bytes`.  Without a turn it does nothing."""
    turn = _mine.turn
    if turn is None or not turn.held or (scan_bytes is not None and scan_bytes < _MUCH_BYTES):
        yield
        return
    leaves = turn.rests or scan_bytes is not None
    if leaves:
        turn.held = False
        turn.lock.release()
    begun = time.perf_counter()
    try:
        yield
    finally:
        if scan_bytes is None:
            turn.waited += time.perf_counter() - begun
            turn.waits += 1
        if leaves:
            turn.held = turn.lock.acquire(timeout=_LOCKED_PATIENCE_S)


class Turns:
    """The turns of up to `threads` threads."""

    def __init__(self, threads: int) -> None:
        self._locks = [threading.Lock() for _ in range(threads)]
        self._at_once = 1
        self._rests = False
        self._looks_left = _LOOKS
        self._wall = self._processor = self._waited = 0.0
        self._waits = 0

    def run(self, thread: int, job: Callable[[], T]) -> T:
        """Runs `job()` when it is this thread's turn.  `thread` counts from 0."""
        lock = self._locks[thread % self._at_once]
        turn = _mine.turn = _Turn(lock, self._rests, held=lock.acquire(timeout=_PATIENCE_S))
        wall, processor = time.perf_counter(), time.thread_time()
        try:
            return job()
        finally:
            _mine.turn = None
            if turn.held:
                if self._looks_left:
                    self._look(turn, time.perf_counter() - wall, time.thread_time() - processor)
                lock.release()

    def _look(self, turn: _Turn, wall: float, processor: float) -> None:
        """Adds one of the first jobs to the measurement: seconds of the wall clock and of the processor."""
        self._wall += wall
        self._processor += processor
        self._waited += turn.waited
        self._waits += turn.waits
        self._looks_left -= 1
        if self._looks_left:
            return
        self._rests = self._waited > _SLOW_S * self._waits
        seconds = self._wall - (self._waited if self._rests else 0)
        self._at_once = min(len(self._locks), max(1, round(seconds / max(self._processor, _LEAST_S))))
