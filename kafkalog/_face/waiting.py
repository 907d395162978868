"""How a reader waits for records of many partitions at once.

In the process that writes, an append wakes it: its bell stands where each log's high watermark is awaited, and where
the store says that topics have changed or that it closes.  It looks, puts up the bell, looks again, waits: what comes
between two looks rings.  A process that only reads is told of changed files, where the system can tell, and looks for
itself in any case.

One thread waits at a time; an interrupt comes through at once.  Knows nothing of what a reader reads: what `Watched`
says is asked of its partitions.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from kafkalog._native.state.bell import Bell
from kafkalog.engine.files.notify import DirectoryWatch
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.log.source import Source
    from kafkalog.engine.log.unified_log import UnifiedLog

LOOK_EVERY_S = 0.1  # of who reads another process's logs
WAIT_MAX_S = 1.0  # of our own: for what wakes nobody


class Ringing(Protocol):
    """What wakes a thread that waits, from any other."""

    def release(self) -> None: ...


class Watched(Protocol):
    """A partition that is waited for."""

    source: Source

    def may_have_more(self) -> bool: ...


class Bells:
    """Those of a store's readers, until they are dropped.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bells: weakref.WeakSet[Ringing] = weakref.WeakSet()  # guarded by _lock

    def add(self, bell: Ringing) -> None:
        with self._lock:
            self._bells.add(bell)

    def ring(self) -> None:
        """Lets everybody who waits look again."""
        with self._lock:
            bells = list(self._bells)
        for bell in bells:
            bell.release()


class Waiting(Protocol):
    """One reader's way to wait."""

    @property
    def bell(self) -> Ringing: ...

    def wait(self, watched: Sequence[Watched], timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Until one of them may have more, `is_over`, or the time is up; may come back for nothing.  With no time at
        all it looks at what is there now."""

    def close(self) -> None: ...


class WaitingHere:
    """Of a store that this process writes to."""

    def __init__(self) -> None:
        self.bell = Bell()

    def wait(self, watched: Sequence[Watched], timeout_s: float, is_over: Callable[[], bool]) -> None:
        bell = self.bell
        logs: list[UnifiedLog] = []
        try:
            for each in watched:
                log: UnifiedLog = each.source.engine  # type: ignore[attr-defined]  # a StoreSource
                logs.append(log)
                while True:
                    waiters = log.waiters
                    waiters.append(bell)
                    if waiters is log.waiters:
                        break
            if not is_over() and not any(each.may_have_more() for each in watched):
                bell.wait(min(timeout_s, WAIT_MAX_S))
        finally:
            for log in logs:
                with contextlib.suppress(ValueError):  # who rang took it down
                    log.waiters.remove(bell)

    def close(self) -> None:
        """Nothing is held."""


class WaitingBeside:
    """Of a store that another process writes to.  Without file notification it looks ten times a second."""

    def __init__(self) -> None:
        self._watch: DirectoryWatch | None = None
        self._due: set[str] = set()  # directories that are to be looked at, until they were
        self._looked = 0.0  # when, at all of them
        self.bell: Ringing = Bell()
        with contextlib.suppress(OSError):
            self._watch = self.bell = DirectoryWatch()

    def wait(self, watched: Sequence[Watched], timeout_s: float, is_over: Callable[[], bool]) -> None:
        until = time.monotonic() + timeout_s
        directories = [each.source.directory for each in watched]  # type: ignore[attr-defined]  # PartitionViews
        is_told = self._is_told(directories)
        if self._watch is None:
            self._due.update(directories)
        elif timeout_s <= 0:  # who does not wait is told nothing later
            self._look_for_changes(watched, directories)
        while True:
            # First of all: what was told is not told again.
            unread: KafkalogError | None = None
            for each, directory in zip(watched, directories, strict=True):
                if directory in self._due:
                    try:
                        each.source.recheck()
                    except KafkalogError as error:  # it stays due; the others are looked at
                        unread = unread or error
                    else:
                        self._due.discard(directory)
            if unread is not None:
                raise unread
            left_s = until - time.monotonic()
            if left_s <= 0 or is_over() or any(each.may_have_more() for each in watched):
                return
            every_s = WAIT_MAX_S if is_told else LOOK_EVERY_S
            self._rest(min(left_s, every_s))
            is_told = self._is_told(directories)
            if time.monotonic() - self._looked < every_s:
                continue
            self._looked = time.monotonic()
            self._look_for_changes(watched, directories)

    def _look_for_changes(self, watched: Sequence[Watched], directories: Sequence[str]) -> None:
        """What has changed is due, also where nobody tells of it."""
        for each, directory in zip(watched, directories, strict=True):
            if directory not in self._due and each.source.has_changed():  # type: ignore[attr-defined]
                self._due.add(directory)

    def _is_told(self, directories: Sequence[str]) -> bool:
        """Whether changes of all these are told from now on; those that were told so far, or may have been, are due."""
        watch = self._watch
        if watch is None:
            return False
        told = watch.changed()
        self._due.update(directories if told is None else told)
        is_told = True
        for directory in directories:
            if not watch.watches(directory):
                self._due.add(directory)
                try:
                    watch.add(directory)
                except OSError:  # it is not there, or there are no more watches
                    is_told = False
        return is_told

    def _rest(self, timeout_s: float) -> None:
        if self._watch is not None:
            self._watch.wait(timeout_s)
        else:
            assert isinstance(self.bell, Bell)
            self.bell.wait(timeout_s)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
