"""A manager's changes of several steps, made whole, one at a time; and its background tasks, which die with it.

`lock` is Kafka's logCreationOrDeletionLock, taken before a partition's lock.  Under it a change that is cut short by
what is no error of ours or the disk's (KeyboardInterrupt, MemoryError, between any two of its lines) is made again,
from its beginning, before the next one: each may be made twice.  What then fails is logged, for who began it is gone.
Knows nothing of logs or directories.
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

_BUGS = (TypeError, ValueError, LookupError, AttributeError, AssertionError)  # would come again for ever


class Changes:
    """Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._unfinished: Callable[[], object] | None = None  # guarded by lock
        self._making = threading.Lock()  # held in the middle of a change; a lock, for no interrupt leaves that held

    def disown(self) -> None:
        """In a forked child: whoever held the lock may be gone."""
        self.lock = threading.RLock()
        self._unfinished = None
        self._making = threading.Lock()

    @property
    def cut_short(self) -> bool:
        """Whether there is something to settle, as a look-up asks without the lock."""
        return self._unfinished is not None and not self._making.locked()

    def whole(self, change: Callable[[], T], again: Callable[[], object] | None = None) -> T:
        """Makes a change under the lock.  What it raises of the disk's, or of ours, ends it.

        `again` is what is made where it was cut short, if that is not the same: for a change whose premise others may
        have taken away meanwhile.
        """
        with self.lock:
            self.settle()
            self._unfinished = again or change
            return self._make(change)

    def settle(self) -> None:
        """Makes what was interrupted again.  IllegalStateException to who is called in the middle of a change, by a
        signal handler or a finalizer."""
        with self.lock:
            if self._making.locked():
                raise inside("making or removing a log of this manager")
            if self._unfinished is not None:
                self._finish(self._unfinished)

    def _finish(self, change: Callable[[], object]) -> None:
        Lines(LOGGER).warning("finishing a change of logs that was interrupted")
        try:
            self._make(change)
        except (KafkalogError, OSError):
            Lines(LOGGER).warning("what was interrupted could not be finished", exc_info=True)
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
    """What to raise to a signal handler, or a finalizer, that would begin anew what it interrupts."""
    return IllegalStateException(
        f"this thread is {what} just now",
        hint="a signal handler or a finalizer runs inside of what it interrupts: do it outside",
    )


class BackgroundTasks:
    """What a manager has done by its scheduler, which may outlive it: by weak references, and until `cancel`.

    `goes_on`: a method of the manager, False from when it begins to close: what a task is refused by then is no error.
    """

    def __init__(self, scheduler: Scheduler, goes_on: Callable[[], bool]) -> None:
        assert isinstance(goes_on, MethodType), goes_on
        self.scheduler = scheduler
        self._goes_on = weakref.WeakMethod(goes_on)
        self._cancelled = False
        self._tasks: set[Task] = set()  # those that repeat

    def every(self, name: str, work: Work, delay_ms: int, period_ms: int) -> None:
        self._tasks.add(self.scheduler.schedule(name, self._weak(work), delay_ms, period_ms))

    def once(self, name: str, work: Work, delay_ms: int = 0) -> None:
        if not self._cancelled:
            self.scheduler.schedule_once(name, self._weak(work), delay_ms)

    def cancel(self) -> None:
        """None of them begins any more; one that runs goes on."""
        self._cancelled = True
        for task in list(self._tasks):
            task.cancel()

    def _weak(self, work: Work) -> Work:
        assert isinstance(work, MethodType), work  # a closure would keep its manager
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
