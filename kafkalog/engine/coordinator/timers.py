"""Timers of coordinators: session timeouts, rebalances, locks of records.

    timers = Timers(clock)
    timers.schedule(("session", "billing", "m-1"), 45_000, expire)
    timers.run_due()

One heap holds every timer. A timer that is set again to a later time stays where it is in the heap, and moves when it
comes up: a member's heartbeat costs a dictionary lookup, whatever the number of members. A cancelled timer leaves its
place in the heap empty; the heap is built again when most places are empty.

Tests move a manual clock and call `run_due`. A store has a `TimerThread`, which starts with the first timer. Times are
measured with the monotonic clock. Thread-safe; no lock is held while a timer runs.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Hashable

from kafkalog._native.state.bell import Bell
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines

NS_PER_MS = 1_000_000
LOOK_EVERY_S = 1.0  # while there are timers
EMPTY_MIN = 64  # cancelled timers before the heap is built again


class _Timer:
    """One scheduled call. `run` is None once it ran or was cancelled."""

    __slots__ = ("due_ms", "key", "number", "queued_ms", "run")

    def __init__(self, key: Hashable, due_ms: int, run: Callable[[], None], number: int) -> None:
        self.key = key
        self.number = number  # timers of the same time run in the order in which they were set
        self.due_ms = due_ms
        self.queued_ms = due_ms  # its place in the heap; never later than due_ms
        self.run: Callable[[], None] | None = run


class Timers:
    """See the module. A key is any hashable value; each key has at most one timer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, _Timer] = {}  # guarded by _lock, like the heap
        self._heap: list[tuple[int, int, _Timer]] = []
        self._numbers = itertools.count()
        self._empty = 0
        self.on_earlier: Callable[[], None] | None = None  # called if the first timer is now due earlier
        self._lines = Lines("kafkalog.coordinator")

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._by_key

    def now_ms(self) -> int:
        """Returns the monotonic time, in ms."""
        return self._clock.nanoseconds() // NS_PER_MS

    def schedule(self, key: Hashable, delay_ms: int, run: Callable[[], None]) -> None:
        """Calls `run` after `delay_ms`. Replaces an earlier timer of the same key."""
        due_ms = self._clock.nanoseconds() // NS_PER_MS + delay_ms
        with self._lock:
            found = self._by_key.get(key)
            if found is not None and found.run is None:
                found = None  # an interrupt came while it was replaced
            if found is not None and found.queued_ms <= due_ms:
                found.due_ms, found.number = due_ms, next(self._numbers)
                found.run = run
                return
            if found is not None:
                self._leave(found)
            made = _Timer(key, due_ms, run, next(self._numbers))
            self._push(made)  # first: an interrupt between the two leaves a timer that runs
            self._by_key[key] = made
            is_first = self._heap[0][2] is made
        if is_first and self.on_earlier is not None:
            self.on_earlier()

    def postpone(self, key: Hashable, delay_ms: int) -> bool:
        """Lets a timer run after `delay_ms` from now instead. Returns whether there is one.

        This is what a heartbeat does.
        """
        due_ms = self._clock.nanoseconds() // NS_PER_MS + delay_ms
        with self._lock:
            found = self._by_key.get(key)
            if found is None:
                return False
            found.due_ms, found.number = due_ms, next(self._numbers)
            is_earlier = due_ms < found.queued_ms
            run = found.run
        if is_earlier and run is not None:
            self.schedule(key, delay_ms, run)
        return True

    def cancel(self, key: Hashable) -> bool:
        """Cancels the timer of a key. Returns whether there was one."""
        with self._lock:
            found = self._by_key.pop(key, None)
            if found is None:
                return False
            self._leave(found)
            return True

    def next_due_ms(self) -> int | None:
        """Returns the monotonic time (`now_ms`) at which `run_due` may have work; None without timers."""
        with self._lock:
            self._drop_empty()
            return self._heap[0][0] if self._heap else None

    def run_due(self) -> int:
        """Runs the timers that are due, in the order of their times. Returns how many ran.

        An exception of a timer is logged. A timer that is set meanwhile and is due at once runs too.
        """
        count = 0
        while (run := self._take_due()) is not None:
            count += 1
            try:
                run()
            except Exception:
                self._lines.exception("Error in a timer of a coordinator")
        return count

    def _take_due(self) -> Callable[[], None] | None:
        now_ms = self.now_ms()
        with self._lock:
            while True:
                self._drop_empty()
                if not self._heap or self._heap[0][0] > now_ms:
                    return None
                timer = heapq.heappop(self._heap)[2]
                if timer.due_ms > timer.queued_ms:  # it was set to a later time
                    self._push(timer)
                    continue
                if self._by_key.get(timer.key) is timer:
                    del self._by_key[timer.key]
                run, timer.run = timer.run, None
                assert run is not None, timer.key
                return run

    def _push(self, timer: _Timer) -> None:
        timer.queued_ms = timer.due_ms
        heapq.heappush(self._heap, (timer.due_ms, timer.number, timer))

    def _leave(self, timer: _Timer) -> None:
        timer.run = None
        self._empty += 1
        if self._empty > EMPTY_MIN and self._empty * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[2].run is not None]
            heapq.heapify(self._heap)
            self._empty = 0

    def _drop_empty(self) -> None:
        while self._heap and self._heap[0][2].run is None:
            heapq.heappop(self._heap)
            self._empty -= 1


class TimerThread:
    """Runs the timers of a store. Its thread starts with the first timer, and ends with `close`.

    A bell wakes it, because no interrupt can leave a bell locked. If an interrupt came between a new timer and its
    ring, the thread finds the timer at its next look, a second later at most.
    """

    def __init__(self, timers: Timers, name: str = "kafkalog-timers") -> None:
        self._timers = timers
        self._name = name
        self._bell = Bell()
        self._lock = threading.Lock()  # guards which thread there is
        self._is_closed = False
        self._thread: threading.Thread | None = None
        timers.on_earlier = self._wake

    def _wake(self) -> None:
        thread = self._thread
        if thread is None or thread.ident is None:
            self._start()
        self._bell.release()

    def _start(self) -> None:
        with self._lock:
            # A thread without an identity was interrupted before it started.
            if not self._is_closed and (self._thread is None or self._thread.ident is None):
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._is_closed:
            self._timers.run_due()
            due_ms = self._timers.next_due_ms()
            wait_s = LOOK_EVERY_S if due_ms is None else max(due_ms - self._timers.now_ms(), 0) / 1000
            if not self._is_closed:
                self._bell.wait(min(wait_s, LOOK_EVERY_S))

    def close(self) -> None:
        """Ends the thread after the timer that is running. Later timers do not run. May be called again."""
        self._is_closed = True
        self._bell.release()
        with self._lock:
            thread = self._thread
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            thread.join()
