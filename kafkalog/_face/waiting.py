"""How a thread waits for records of many partitions at once, or of one.

In the process that writes, an append wakes it: its bell rings at each log's next change, and where the store says that
topics have changed or that it closes.  It looks, puts up the bell, looks again, waits: what comes between two looks
rings.  A process that only reads is told of changed files, where the system can tell, and looks for itself in any case.

One thread waits at a time; an interrupt comes through at once.  Knows nothing of what is read: what `Watched` says is
asked of the partitions.
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

LOOK_EVERY_S = 0.1  # of who reads another process's logs
WAIT_MAX_S = 1.0  # of our own: for what wakes nobody


class Watched(Protocol):
    """A partition that is waited for."""

    @property
    def source(self) -> Source: ...

    def may_have_more(self) -> bool: ...


class Bells:
    """Those of whoever waits for something of a store, until they are dropped.  Thread-safe."""

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


class Waiting:
    """One thread's way to wait; the sources that it waits for together are all of this process, or all of another."""

    def __init__(self) -> None:
        self._bell = Bell()
        # For logs of other processes: made when the first of them is waited for, if the system can tell of changes.
        self._watch: DirectoryWatch | None = None
        self._may_watch = True
        self._due: set[str] = set()  # directories that are to be looked at, until they were
        self._looked = 0.0  # when, at all of them

    def release(self) -> None:
        """Ends the present wait, or the next one; may come from any thread."""
        self._bell.release()
        if self._watch is not None:
            self._watch.release()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def wait(self, watched: Sequence[Watched], timeout_s: float, is_over: Callable[[], bool]) -> None:
        """Until one of them may have more, `is_over`, or the time is up; may come back for nothing.  With no time at
        all it looks at what is there now."""
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

    # --- beside another process --------------------------------------------------------------------

    def _wait_beside(
        self,
        watched: Sequence[Watched],
        directories: Mapping[Source, str],
        timeout_s: float,
        is_over: Callable[[], bool],
    ) -> None:
        """Without file notification it looks ten times a second."""
        until = time.monotonic() + timeout_s
        is_told = self._is_told(directories.values())
        if self._watch is None:
            self._due.update(directories.values())
        elif timeout_s <= 0:  # who does not wait is told nothing later
            self._look_for_changes(directories)
        while True:
            # First of all: what was told is not told again.
            unread: KafkalogError | None = None
            for source, directory in directories.items():
                if directory in self._due:
                    try:
                        source.recheck()
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
            (self._watch or self._bell).wait(min(left_s, every_s))
            is_told = self._is_told(directories.values())
            if time.monotonic() - self._looked < every_s:
                continue
            self._looked = time.monotonic()
            self._look_for_changes(directories)

    def _look_for_changes(self, directories: Mapping[Source, str]) -> None:
        """What has changed is due, also where nobody tells of it."""
        for source, directory in directories.items():
            if directory not in self._due and source.has_changed():
                self._due.add(directory)

    def _is_told(self, directories: Collection[str]) -> bool:
        """Whether changes of all these are told from now on; those that were told so far, or may have been, are due."""
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
                except OSError:  # it is not there, or there are no more watches
                    is_told = False
        return is_told
