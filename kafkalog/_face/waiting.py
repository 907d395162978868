"""Waiting of a thread for records of many partitions at once, or of one.

In the process that writes, an append wakes the thread. Its bell rings at each log's next change, and when the store
reports that topics have changed or that it closes. The thread checks, sets up the bell, checks again and waits: a
change between the two checks rings the bell. A process that only reads is notified of changed files if the system
supports it, and checks periodically in any case.

One thread waits at a time, and an interrupt gets through at once. Knows nothing of what is read: the partitions answer
the questions of `Watched`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kafkalog._native.state.bell import Bell
from kafkalog.engine.files.notify import DirectoryWatch
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.log.source import Ringing, Source

LOOK_EVERY_S = 0.1  # for another process's logs
WAIT_MAX_S = 1.0  # for our own logs, because some changes ring no bell


class Watched(Protocol):
    """A partition to wait for."""

    @property
    def source(self) -> Source: ...

    def may_have_more(self) -> bool: ...


class Bells:
    """The bells of all waiting threads of a store, until they are dropped. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bells: weakref.WeakSet[Ringing] = weakref.WeakSet()  # guarded by _lock

    def add(self, bell: Ringing) -> None:
        with self._lock:
            self._bells.add(bell)

    def ring(self) -> None:
        """Makes all waiting threads check again."""
        with self._lock:
            bells = list(self._bells)
        for bell in bells:
            bell.release()


class Waiting:
    """The waiting of one thread. All sources that it waits for together are of this process, or all of another."""

    def __init__(self) -> None:
        self._bell = Bell()
        # For logs of other processes: created at the first wait for one, if the system can report changes.
        self._watch: DirectoryWatch | None = None
        self._may_watch = True
        self._due: set[str] = set()  # directories that still have to be checked
        self._looked = 0.0  # time of the last check of all directories

    def release(self) -> None:
        """Ends the current wait, or the next one. May be called from any thread."""
        self._bell.release()
        if self._watch is not None:
            self._watch.release()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def wait(self, watched: Sequence[Watched], timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Waits until one of them may have more, `is_over` returns True, or the time is up. It may also return early
        without a reason. With a timeout of 0 it only checks the current state."""
        sources = [each.source for each in watched]
        try:
            beside = {source: place for source in sources if (place := source.ring_at_change(self._bell)) is not None}
            if beside:
                self._wait_beside(watched, beside, timeout_s, is_over)
            elif not is_over() and not any(each.may_have_more() for each in watched):
                self._bell.wait(min(timeout_s, WAIT_MAX_S))
        finally:
            for source in sources:
                source.ring_no_more(self._bell)

    # --- logs of another process -------------------------------------------------------------------

    def _wait_beside(
        self,
        watched: Sequence[Watched],
        directories: Mapping[Source, str],
        timeout_s: float,
        is_over: Callable[[], bool],
    ) -> None:
        """Waits for logs of another process. Without file notification it checks ten times a second."""
        until = time.monotonic() + timeout_s
        is_told = self._is_told(directories.values())
        if self._watch is None:
            self._due.update(directories.values())
        elif timeout_s <= 0:  # without a wait, no notification would arrive
            self._look_for_changes(directories)
        while True:
            # First, because a change is notified only once.
            unread: KafkalogError | None = None
            for source, directory in directories.items():
                if directory in self._due:
                    try:
                        source.recheck()
                    except KafkalogError as error:  # it stays due; the others are checked
                        unread = unread or error
                    else:
                        self._due.discard(directory)
            if unread is not None:
                raise unread
            left_s = until - time.monotonic()
            if left_s <= 0 or is_over() or any(each.may_have_more() for each in watched):
                return
            every_s = WAIT_MAX_S if is_told else LOOK_EVERY_S
            (self._watch or self._bell).wait(min(left_s, every_s))
            is_told = self._is_told(directories.values())
            if time.monotonic() - self._looked < every_s:
                continue
            self._looked = time.monotonic()
            self._look_for_changes(directories)

    def _look_for_changes(self, directories: Mapping[Source, str]) -> None:
        """Marks changed directories as due, even without a notification."""
        for source, directory in directories.items():
            if directory not in self._due and source.has_changed():
                self._due.add(directory)

    def _is_told(self, directories: Collection[str]) -> bool:
        """Returns whether changes of all these directories are notified from now on. Directories with a notification,
        or with a possibly missed one, become due."""
        if self._may_watch and self._watch is None:
            self._may_watch = False
            with contextlib.suppress(OSError):
                self._watch = DirectoryWatch()
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
                except OSError:  # the directory does not exist, or there are no more watches
                    is_told = False
        return is_told
