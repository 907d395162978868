"""Schedulers for background work: with threads in a service, by hand in a test.

`ManualScheduler` runs due tasks by next execution time, then by insertion (a periodic task keeps its first place), and
a periodic task as often as it was due.  `ThreadScheduler` is Kafka's KafkaScheduler: it logs a task that fails, and
continues to run a periodic one.  It ignores a task that is scheduled before the startup or after the shutdown.  The
shutdown drops waiting tasks and lets running ones finish.
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

AGAIN_MS = 10_000  # after a full disk or a lack of descriptors, a task that runs once is tried again this much later
_SHORTAGES = (DiskFull, TooManyOpenFilesException)


def _nothing() -> None:
    """The work of a cancelled task."""


class Task:
    """A scheduled piece of work.

    Attributes:
        name: The name, for log lines.
        fn: The work.
        due_ms: The clock's milliseconds of the next run.
        period_ms: The period in milliseconds; 0 or less means once.
        cancelled: Whether the task was cancelled.
    """

    __slots__ = ("cancelled", "due_ms", "fn", "is_put_off", "name", "period_ms")

    def __init__(self, name: str, fn: Work, due_ms: int, period_ms: int) -> None:
        self.name = name
        self.fn = fn
        self.due_ms = due_ms  # clock milliseconds of the next run
        self.period_ms = period_ms  # 0 or less: once
        self.cancelled = False
        self.is_put_off = False  # a shortage postponed it, and a warning was logged

    @property
    def periodic(self) -> bool:
        """Whether the task runs repeatedly."""
        return self.period_ms > 0

    def cancel(self) -> bool:
        """Prevents later runs.  Returns False if the task was already cancelled."""
        was = self.cancelled
        self.cancelled = True
        self.fn = _nothing  # frees the objects that the task would have worked on, which may be due much later
        return not was

    def __repr__(self) -> str:
        every = f", every {self.period_ms} ms" if self.periodic else ""
        return f"Task({self.name!r}, due at {self.due_ms}{every}{', cancelled' if self.cancelled else ''})"


class Scheduler(Protocol):
    """Runs tasks later.  Delays and periods are in milliseconds; a task with a period of 0 or less runs once."""

    def startup(self) -> None:
        """Starts the scheduler."""

    def shutdown(self) -> None:
        """Drops waiting tasks and lets running ones finish."""

    def schedule_once(self, name: str, fn: Work, delay_ms: int = 0) -> Task:
        """Runs `fn` once, after `delay_ms`."""

    def schedule(self, name: str, fn: Work, delay_ms: int, period_ms: int) -> Task:
        """Runs `fn` after `delay_ms`, and then every `period_ms`."""


class ManualScheduler:
    """A scheduler for tests, which runs tasks only in `tick`.  One thread calls `tick`; others may schedule.

    Errors of tasks are logged, and kept in `errors`, where a test finds them.

    Args:
        clock: Tells which tasks are due.

    Example:
        >>> from kafkalog.engine.files import ManualClock, ManualScheduler
        >>> clock = ManualClock()
        >>> scheduler = ManualScheduler(clock)
        >>> task = scheduler.schedule("hello", lambda: print("hello"), delay_ms=10, period_ms=60_000)
        >>> scheduler.tick()
        0
        >>> _ = clock.advance(10)
        >>> scheduler.tick()
        hello
        1
    """

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
        """Drops waiting tasks.  Call `tick` first to run those that are due."""
        self.clear()

    def clear(self) -> None:
        """Drops waiting tasks, as a crash does."""
        with self._lock:
            self._heap.clear()

    @property
    def pending(self) -> list[Task]:
        """The waiting tasks, in the order in which they will run."""
        with self._lock:
            entries = sorted(self._heap, key=lambda entry: entry[:2])
        return [task for _, _, task in entries if not task.cancelled]

    def schedule_once(self, name: str, fn: Work, delay_ms: int = 0) -> Task:
        """Runs `fn` once, at the first `tick` after `delay_ms`."""
        return self.schedule(name, fn, delay_ms, -1)

    def schedule(self, name: str, fn: Work, delay_ms: int, period_ms: int) -> Task:
        """Runs `fn` at the first `tick` after `delay_ms`, and then every `period_ms`."""
        # A delay of Long.MAX_VALUE means never; Python's integers do not overflow.
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
        """Runs all due tasks, including tasks that these schedule for now.

        Returns:
            The number of runs.
        """
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


_Entry = tuple[float, int, Task]  # (time, number in the order of insertion, task)


class _Worker:
    """One thread.  `done` is held until it ends."""

    __slots__ = ("done", "ident", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ident = -1
        self.done = threading.Lock()
        self.done.acquire()


class ThreadScheduler:
    """A scheduler with daemon threads.

    `clock` only sets `Task.due_ms`.  The threads wait by the machine's monotonic clock, so that a jump of the wall
    clock delays nothing.

    Scheduling acquires no lock.  A signal handler or a finalizer could interrupt its own thread with the lock held, and
    then wait for a log whose holder wants to schedule.  A scheduled task goes into an inbox, and a bell rings.  One
    worker at a time has its turn: it moves the inbox into the heap, and waits for the bell or for the next due task.

    Args:
        clock: The source of the time for `Task.due_ms`.
        threads: The number of threads.
        thread_name_prefix: The beginning of the threads' names.

    Example:
        >>> import threading
        >>> from kafkalog.engine.files import ThreadScheduler
        >>> scheduler, done = ThreadScheduler(), threading.Event()
        >>> scheduler.startup()
        >>> task = scheduler.schedule_once("wake", done.set)
        >>> done.wait(10)
        True
        >>> scheduler.shutdown()
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, threads: int = 1, thread_name_prefix: str = "kafka-scheduler-"
    ) -> None:
        self.clock = clock
        self.thread_count = threads
        self.thread_name_prefix = thread_name_prefix
        self._lock = threading.RLock()  # held by startup and shutdown
        self._workers: list[_Worker] = []  # guarded by _lock; of the last startup, until shutdown has waited for them
        self._started = False  # guarded by _lock
        self._order = itertools.count()
        self._turn = threading.Lock()  # held by the worker that waits
        self._bell = threading.Lock()  # released to ring it
        self._bell.acquire()
        self._inbox: deque[_Entry] = deque()  # belongs to one startup; a late task is dropped with it
        self._heap: list[_Entry] = []  # belongs to one startup; the worker with the turn changes it
        belongs_here(self)

    @property
    def is_started(self) -> bool:
        """Whether the threads are running."""
        return self._started

    @property
    def pending(self) -> list[Task]:
        """The waiting tasks, the next one first."""
        if not self._started:
            return []
        # The inbox first: the worker puts an entry into the heap before it removes it from the inbox.
        entries = {order: (when, task) for when, order, task in (*self._inbox, *self._heap)}
        ordered = sorted(entries, key=lambda order: (entries[order][0], order))
        return [entries[order][1] for order in ordered if not entries[order][1].cancelled]

    def startup(self) -> None:
        """Starts the threads.

        Raises:
            IllegalStateException: They are already running.
        """
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
        """Starts the worker's thread from a helper thread, which no signal reaches.

        Thread.start and join must not be interrupted.
        """
        try:
            threading.Thread(target=self._run, args=(worker,), name=worker.name, daemon=True).start()
        except BaseException:
            worker.done.release()
            raise

    def shutdown(self) -> None:
        """Drops waiting tasks, and waits for running ones.  After an interrupt it may be called again."""
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
        """Resets the object in a forked child, which has no threads, and maybe not the holder of the lock."""
        self._lock = threading.RLock()
        self._turn, self._bell = threading.Lock(), threading.Lock()
        self._bell.acquire()
        self._inbox, self._heap = deque(), []
        self._workers = []
        self._started = False

    def schedule_once(self, name: str, fn: Work, delay_ms: int = 0) -> Task:
        """Runs `fn` once, after `delay_ms`."""
        return self.schedule(name, fn, delay_ms, -1)

    def schedule(self, name: str, fn: Work, delay_ms: int, period_ms: int) -> Task:
        """Runs `fn` after `delay_ms`, and then every `period_ms`; ignores it if the scheduler is not running."""
        task = Task(name, fn, self.clock.milliseconds() + delay_ms, period_ms)
        inbox = self._inbox  # before the check: the inbox of a later startup must not be used
        if not self._started:
            _log.info("The scheduler is not running; task '%s' is ignored.", name)
            task.cancelled = True
            return task
        self._post(inbox, (time.monotonic() + delay_ms / 1000.0, next(self._order), task))
        return task

    def _post(self, inbox: deque[_Entry], entry: _Entry) -> None:
        steps: tuple[Callable[[], object], ...] = (functools.partial(inbox.append, entry), self._bell.release)
        with suppress(RuntimeError):  # the bell already rings
            any(map(_CALL, steps))  # one call from bytecode: an interrupt leaves no task without the bell

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
                    _log.log(level, "task '%s' is postponed: %s", task.name, error)
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
        """Waits for a due task; returns None if this worker must end.  Then the next worker sees that, too."""
        while self._goes_on(mine):
            self._take_in()
            heap = self._heap
            wait_s = heap[0][0] - time.monotonic() if heap else None
            if wait_s is not None and wait_s <= 0:
                return heapq.heappop(heap)
            # Delays of Long.MAX_VALUE would overflow the wait: check again once a day.
            self._bell.acquire(True, -1 if wait_s is None else min(wait_s, 86_400.0))
        return None

    def _take_in(self) -> None:
        inbox, heap = self._inbox, self._heap
        while inbox:
            heapq.heappush(heap, inbox[0])
            inbox.popleft()
        while heap and heap[0][2].cancelled:
            heapq.heappop(heap)
