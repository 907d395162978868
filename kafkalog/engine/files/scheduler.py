"""Background work goes through one scheduler: by threads in a service, by hand in a test.

`ManualScheduler` runs what is due by next execution time, then by insertion (a periodic task keeps the place that it
got first), and a periodic task as often as it fell due.  `ThreadScheduler` is Kafka's KafkaScheduler: a task that fails
is logged and a periodic one goes on; a task scheduled before startup or after shutdown is ignored; shutdown drops what
waits and lets what runs finish.
"""

from __future__ import annotations

import _thread
import functools
import heapq
import itertools
import logging
import operator
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from kafkalog.engine.files.clock import SYSTEM_CLOCK, Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import belongs_here
from kafkalog.errors import DiskFull, IllegalStateException, TooManyOpenFilesException

_log = Lines("kafkalog.files")  # about no partition

Work = Callable[[], object]
_CALL: Callable[[Work], object] = operator.call

AGAIN_MS = 10_000  # a task that is done once, and met a full disk or no free descriptor, is tried again so much later
_SHORTAGES = (DiskFull, TooManyOpenFilesException)


def _nothing() -> None:
    """What a cancelled task does."""


class Task:
    """A scheduled piece of work."""

    __slots__ = ("cancelled", "due_ms", "fn", "is_put_off", "name", "period_ms")

    def __init__(self, name: str, fn: Work, due_ms: int, period_ms: int) -> None:
        self.name = name
        self.fn = fn
        self.due_ms = due_ms  # clock milliseconds of the next run
        self.period_ms = period_ms  # -1 or 0: once
        self.cancelled = False
        self.is_put_off = False  # it met a full disk, or no free descriptor, and somebody was told

    @property
    def periodic(self) -> bool:
        return self.period_ms > 0

    def cancel(self) -> bool:
        """Never run again; False if that was already so."""
        was = self.cancelled
        self.cancelled = True
        self.fn = _nothing  # a task may be due in ten minutes: what it was to work on need not wait
        return not was

    def __repr__(self) -> str:
        every = f", every {self.period_ms} ms" if self.periodic else ""
        return f"Task({self.name!r}, due at {self.due_ms}{every}{', cancelled' if self.cancelled else ''})"


class Scheduler(Protocol):
    """Delays and periods in milliseconds; a period of 0 or less runs once."""

    def startup(self) -> None: ...

    def shutdown(self) -> None: ...

    def schedule_once(self, name: str, fn: Work, delay_ms: int = 0) -> Task: ...

    def schedule(self, name: str, fn: Work, delay_ms: int, period_ms: int) -> Task: ...


class ManualScheduler:
    """Runs nothing until `tick`, which is one thread's; others may schedule.  Errors of tasks are kept in `errors` and
    logged, as a thread would; a task that must be seen to fail is looked for there."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.errors: list[tuple[str, BaseException]] = []
        self.run_count = 0
        self._lock = threading.RLock()
        self._heap: list[tuple[int, int, Task]] = []  # guarded by _lock
        self._order = itertools.count()

    def startup(self) -> None:
        pass

    def shutdown(self) -> None:
        """Drop what waits (run `tick` first to have what is due)."""
        self.clear()

    def clear(self) -> None:
        """Drop what waits, as a crash does."""
        with self._lock:
            self._heap.clear()

    @property
    def pending(self) -> list[Task]:
        """What waits, in the order in which it will run."""
        with self._lock:
            entries = sorted(self._heap, key=lambda entry: entry[:2])
        return [task for _, _, task in entries if not task.cancelled]

    def schedule_once(self, name: str, fn: Work, delay_ms: int = 0) -> Task:
        return self.schedule(name, fn, delay_ms, -1)

    def schedule(self, name: str, fn: Work, delay_ms: int, period_ms: int) -> Task:
        # A delay of Long.MAX_VALUE means never; Python's integers need no care for the overflow.
        task = Task(name, fn, self.clock.milliseconds() + delay_ms, period_ms)
        with self._lock:
            heapq.heappush(self._heap, (task.due_ms, next(self._order), task))
        return task

    def _due(self, now_ms: int) -> tuple[int, Task] | None:
        with self._lock:
            if not self._heap or self._heap[0][0] > now_ms:
                return None
            _, order, task = heapq.heappop(self._heap)
        return order, task

    def tick(self) -> int:
        """Run everything due at the present clock, also what those tasks schedule for now; the number of runs."""
        now_ms = self.clock.milliseconds()
        ran = 0
        while (found := self._due(now_ms)) is not None:
            order, task = found
            if task.cancelled:
                continue
            ran += 1
            self.run_count += 1
            try:
                task.fn()
            except Exception as error:
                self.errors.append((task.name, error))
                if isinstance(error, _SHORTAGES) and not task.periodic:
                    self.schedule_once(task.name, task.fn, AGAIN_MS)
                _log.debug("Uncaught exception in scheduled task '%s'", task.name, exc_info=error)
            if task.periodic and not task.cancelled:
                task.due_ms += task.period_ms
                with self._lock:  # it keeps its place among tasks of equal due time
                    heapq.heappush(self._heap, (task.due_ms, order, task))
        return ran


_Entry = tuple[float, int, Task]  # when, in the order of insertion, what


class _Worker:
    """One thread; `done` is taken until it ends."""

    __slots__ = ("done", "ident", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ident = -1
        self.done = threading.Lock()
        self.done.acquire()


class ThreadScheduler:
    """Daemon threads that wait for what is due.  The clock passed in gives the hour only for `Task.due_ms`; waiting
    goes by the machine's monotonic clock, so that a jump of the wall clock delays nothing.

    Whoever schedules takes no lock: a signal handler, or a finalizer, that found its own thread with it might wait for
    a log whose holder wants to schedule.  What is scheduled goes into an inbox, and a bell is rung.  Of the workers one
    at a time has its turn: it empties the inbox into the heap, and waits for the bell or for what is due first."""

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, threads: int = 1, thread_name_prefix: str = "kafka-scheduler-"
    ) -> None:
        self.clock = clock
        self.thread_count = threads
        self.thread_name_prefix = thread_name_prefix
        self._lock = threading.RLock()  # of startup and shutdown
        self._workers: list[_Worker] = []  # guarded by _lock; those of the last startup, until they were waited for
        self._started = False  # guarded by _lock
        self._order = itertools.count()
        self._turn = threading.Lock()  # held by the worker that waits
        self._bell = threading.Lock()  # given back by who rings it
        self._bell.acquire()
        self._inbox: deque[_Entry] = deque()  # of one startup; what comes too late for it is dropped with it
        self._heap: list[_Entry] = []  # of one startup; changed by the worker whose turn it is
        belongs_here(self)

    @property
    def is_started(self) -> bool:
        return self._started

    @property
    def pending(self) -> list[Task]:
        """What waits, soonest first."""
        if not self._started:
            return []
        # In this order: the worker puts an entry into the heap before it takes it out of the inbox.
        entries = {order: (when, task) for when, order, task in (*self._inbox, *self._heap)}
        ordered = sorted(entries, key=lambda order: (entries[order][0], order))
        return [entries[order][1] for order in ordered if not entries[order][1].cancelled]

    def startup(self) -> None:
        with self._lock:
            if self._started:
                raise IllegalStateException("This scheduler has already been started.")
            try:
                self._inbox, self._heap = deque(), []
                self._started = True
                self._workers = [_Worker(f"{self.thread_name_prefix}{n}") for n in range(self.thread_count)]
                for worker in self._workers:
                    _thread.start_new_thread(self._start, (worker,))
            except BaseException:
                self._started = False
                self._workers = []
                raise

    def _start(self, worker: _Worker) -> None:
        """In a thread of its own, which no signal reaches: Thread.start and join do not bear being interrupted."""
        try:
            threading.Thread(target=self._run, args=(worker,), name=worker.name, daemon=True).start()
        except BaseException:
            worker.done.release()
            raise

    def shutdown(self) -> None:
        """Drop what waits and wait for what runs; again after an interrupt, it goes on waiting."""
        with self._lock:
            self._started = False
            self._inbox, self._heap = deque(), []
            self._ring()
            workers = list(self._workers)
        for worker in workers:
            if worker.ident != _thread.get_ident():
                with worker.done:
                    pass
        with self._lock:
            if not self._started:
                self._workers = []

    def disown(self) -> None:
        """In a forked child: there are no threads, and whoever held the lock may be gone."""
        self._lock = threading.RLock()
        self._turn, self._bell = threading.Lock(), threading.Lock()
        self._bell.acquire()
        self._inbox, self._heap = deque(), []
        self._workers = []
        self._started = False

    def schedule_once(self, name: str, fn: Work, delay_ms: int = 0) -> Task:
        return self.schedule(name, fn, delay_ms, -1)

    def schedule(self, name: str, fn: Work, delay_ms: int, period_ms: int) -> Task:
        task = Task(name, fn, self.clock.milliseconds() + delay_ms, period_ms)
        inbox = self._inbox  # before we look: that of another startup is not ours
        if not self._started:
            _log.info("The scheduler is not running; task '%s' is ignored.", name)
            task.cancelled = True
            return task
        self._post(inbox, (time.monotonic() + delay_ms / 1000.0, next(self._order), task))
        return task

    def _post(self, inbox: deque[_Entry], entry: _Entry) -> None:
        steps: tuple[Callable[[], object], ...] = (functools.partial(inbox.append, entry), self._bell.release)
        with suppress(RuntimeError):  # it rings already
            any(map(_CALL, steps))  # one call from bytecode: an interrupt leaves no task of which no worker was told

    def _ring(self) -> None:
        with suppress(RuntimeError):
            self._bell.release()

    def _run(self, mine: _Worker) -> None:
        mine.ident = _thread.get_ident()
        try:
            self._work(mine)
        finally:
            mine.done.release()

    def _work(self, mine: _Worker) -> None:
        while True:
            with self._turn:
                entry = self._next(mine)
            if entry is None:
                return
            when, _, task = entry
            inbox = self._inbox
            try:
                task.fn()
            except Exception as error:
                if isinstance(error, _SHORTAGES):
                    level = logging.DEBUG if task.is_put_off else logging.WARNING
                    _log.log(level, "task '%s' is put off: %s", task.name, error)
                    task.is_put_off = True
                    if not task.periodic:
                        self._put_off(mine, task)
                else:
                    _log.exception("Uncaught exception in scheduled task '%s'", task.name)
            if task.periodic and not task.cancelled:
                task.due_ms += task.period_ms
                if self._goes_on(mine):
                    self._post(inbox, (when + task.period_ms / 1000.0, next(self._order), task))

    def _put_off(self, mine: _Worker, task: Task) -> None:
        if self._goes_on(mine) and not task.cancelled:
            task.due_ms += AGAIN_MS
            self._post(self._inbox, (time.monotonic() + AGAIN_MS / 1000.0, next(self._order), task))

    def _goes_on(self, mine: _Worker) -> bool:
        return self._started and mine in self._workers

    def _next(self, mine: _Worker) -> _Entry | None:
        """What is due; None where this worker is to end.  The next worker has its turn then, and sees that, too."""
        while self._goes_on(mine):
            self._take_in()
            heap = self._heap
            wait_s = heap[0][0] - time.monotonic() if heap else None
            if wait_s is not None and wait_s <= 0:
                return heapq.heappop(heap)
            # Long.MAX_VALUE delays overflow the wait: look again once a day.
            self._bell.acquire(True, -1 if wait_s is None else min(wait_s, 86_400.0))
        return None

    def _take_in(self) -> None:
        inbox, heap = self._inbox, self._heap
        while inbox:
            heapq.heappush(heap, inbox[0])
            inbox.popleft()
        while heap and heap[0][2].cancelled:
            heapq.heappop(heap)
