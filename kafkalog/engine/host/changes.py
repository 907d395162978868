"""Runs a manager's changes of several steps one at a time and to their end, and its background tasks.

`lock` is Kafka's logCreationOrDeletionLock.  It is acquired before a partition's lock.  An exception that is neither
kafkalog's nor the disk's (KeyboardInterrupt, MemoryError) can interrupt a change between any two of its lines.  The
next change then first runs the interrupted one again from its beginning, so each change must be safe to run twice.
An error in this second run is logged, because the caller that began the change has already left.
The background tasks end with their manager.  This module knows nothing about logs or directories.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import MethodType
from typing import TypeVar

from kafkalog.engine.files import Scheduler
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.scheduler import Task, Work
from kafkalog.errors import IllegalStateException, KafkalogError

LOGGER = "kafkalog.manager"

T = TypeVar("T")

_BUGS = (TypeError, ValueError, LookupError, AttributeError, AssertionError)  # they would occur again forever


class Changes:
    """Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._unfinished: Callable[[], object] | None = None  # guarded by lock
        self._making = threading.Lock()  # held during a change; a Lock, because no interrupt leaves it held

    def disown(self) -> None:
        """Resets the locks in a forked child: the thread that held them may not exist there."""
        self.lock = threading.RLock()
        self._unfinished = None
        self._making = threading.Lock()

    @property
    def cut_short(self) -> bool:
        """Whether an interrupted change waits for `settle`.  Look-ups check this without the lock."""
        return self._unfinished is not None and not self._making.locked()

    def whole(self, change: Callable[[], T], again: Callable[[], object] | None = None) -> T:
        """Runs a change under the lock.  A disk error or a KafkalogError ends the change.

        `again` runs instead of `change` if the change was interrupted.  A change needs it if other threads may
        invalidate its premise meanwhile.
        """
        with self.lock:
            self.settle()
            self._unfinished = again or change
            return self._make(change)

    def settle(self) -> None:
        """Runs an interrupted change again.

        Raises IllegalStateException if a signal handler or a finalizer calls this in the middle of a change.
        """
        with self.lock:
            if self._making.locked():
                raise inside("creating or removing a log of this manager")
            if self._unfinished is not None:
                self._finish(self._unfinished)

    def _finish(self, change: Callable[[], object]) -> None:
        Lines(LOGGER).warning("finishing a change of logs that was interrupted")
        try:
            self._make(change)
        except (KafkalogError, OSError):
            Lines(LOGGER).warning("the interrupted change of logs could not be finished", exc_info=True)
        except _BUGS:
            self._unfinished = None
            raise

    def _make(self, change: Callable[[], T]) -> T:
        try:
            with self._making:
                result = change()
        except (KafkalogError, OSError):
            self._unfinished = None
            raise
        self._unfinished = None
        return result


def inside(what: str) -> IllegalStateException:
    """Returns the error for a signal handler or a finalizer that would begin again the change that it interrupts."""
    return IllegalStateException(
        f"this thread is {what} just now",
        hint="a signal handler or a finalizer runs in the middle of the code that it interrupts: do this outside of it",
    )


class BackgroundTasks:
    """The background tasks of a manager, run by a scheduler that may outlive the manager.

    The tasks hold weak references to the manager, and stop at `cancel`.  `goes_on` is a method of the manager that
    returns False once the manager begins to close.  An IllegalStateException that a task gets then is no error.
    """

    def __init__(self, scheduler: Scheduler, goes_on: Callable[[], bool]) -> None:
        assert isinstance(goes_on, MethodType), goes_on
        self.scheduler = scheduler
        self._goes_on = weakref.WeakMethod(goes_on)
        self._cancelled = False
        self._tasks: set[Task] = set()  # the repeating ones

    def every(self, name: str, work: Work, delay_ms: int, period_ms: int) -> None:
        self._tasks.add(self.scheduler.schedule(name, self._weak(work), delay_ms, period_ms))

    def once(self, name: str, work: Work, delay_ms: int = 0) -> None:
        if not self._cancelled:
            self.scheduler.schedule_once(name, self._weak(work), delay_ms)

    def cancel(self) -> None:
        """Starts no task any more.  A task that is running continues."""
        self._cancelled = True
        for task in list(self._tasks):
            task.cancel()

    def _weak(self, work: Work) -> Work:
        assert isinstance(work, MethodType), work  # a closure would keep its manager alive
        found = weakref.WeakMethod(work)
        tasks = weakref.ref(self)

        def run() -> object:
            own, method = tasks(), found()
            if own is None or own._cancelled or method is None:
                return None
            try:
                return method()
            except IllegalStateException:
                goes_on = own._goes_on()
                if goes_on is not None and goes_on():
                    raise
                return None

        return run
