"""The fetches that wait for records: woken by the append itself, or when their time is over.

    watch.over(logs)                     which logs the client waits for
    waiting.wait(watch, fetch, max_wait_ms)
    waiting.look()                       after appends: finishes the fetches whose logs have changed
    waiting.expire()                     finishes those whose time is over

A `Watch` is of one session, or of one fetch without a session.  It stays at its logs' bells between two requests of the
session.  While none of its logs has rung (`is_quiet`), the next request of the session has nothing to read: an idle
consumer costs the same, whatever the number of its partitions.

A bell that rings takes itself out of its log's list, and is put back (`arm`) before the partitions are checked again,
so that no append is missed.  Times are rounded up to `TICK_MS`, so that many fetches end at once.

The I/O thread owns everything here except the bells.  Source: DelayedFetch, DelayedOperationPurgatory (4.4.0).
"""

from __future__ import annotations

import contextlib
import heapq
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from kafkalog._native.state.rung import RungBells
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines

if TYPE_CHECKING:
    from kafkalog.engine.log.unified_log import UnifiedLog

TICK_MS = 5
TIMES_SPARE = 64  # times of fetches that have ended, which are kept in the heap at least
NS_PER_MS = 1_000_000
_LINES = Lines("kafkalog.server")


class WaitingFetch(Protocol):
    """A fetch that waits.  Both methods run on the I/O thread."""

    due_ms: int  # set by `wait`

    def check(self) -> bool:
        """Returns whether it may be finished: there is enough to read, or something has happened to a partition."""

    def finish(self) -> None:
        """Reads and answers."""


class LogWatch:
    """The watches of one log, and its bell."""

    __slots__ = ("bell", "is_armed", "log", "watches")

    def __init__(self, log: UnifiedLog, rung: RungBells) -> None:
        self.log = log
        self.bell = rung.bell(self)
        self.is_armed = False
        self.watches: dict[Watch, None] = {}

    def arm(self) -> None:
        """Puts the bell into the log's list, unless it is there."""
        if not self.is_armed:
            self.is_armed = True
            log, bell = self.log, self.bell
            while True:
                waiters = log.waiters
                waiters.append(bell)
                if waiters is log.waiters:  # otherwise all waiters were woken meanwhile
                    return

    def disarm(self) -> None:
        """Takes the bell out of the list, if nobody waits any more."""
        if self.is_armed:
            with contextlib.suppress(ValueError):  # it has rung, and `look` comes
                self.log.waiters.remove(self.bell)


class Watch:
    """The logs that one client waits for.

    `is_quiet`: nothing has changed since its partitions were read, and the client knows everything that was read then.
    `seen` and `version` are the reader's: what it read then, and of which state of the topics.
    """

    __slots__ = ("_waiting", "fetch", "is_quiet", "logs", "seen", "version")

    def __init__(self, waiting: WaitingFetches) -> None:
        self._waiting = waiting
        self.logs: dict[LogWatch, None] = {}
        self.fetch: WaitingFetch | None = None
        self.is_quiet = False
        self.seen: Any = ()
        self.version: Any = None

    def over(self, logs: Iterable[UnifiedLog]) -> None:
        """Watches these logs and no others, from now on."""
        found = self._waiting.watched(logs)
        if found.keys() == self.logs.keys():
            for each in found:
                each.arm()
            return
        for each in self.logs:
            if each not in found:
                self._leave(each)
        for each in found:
            each.watches[self] = None
            each.arm()
        self.logs = found

    def _leave(self, log: LogWatch) -> None:
        log.watches.pop(self, None)
        if not log.watches:
            self._waiting.forget(log)

    def drop(self) -> None:
        """Ends it."""
        for each in self.logs:
            self._leave(each)
        self.logs = {}
        self.is_quiet = False


class WaitingFetches:
    """The waiting fetches of a server."""

    def __init__(self, clock: Clock, *, fd: int = -1) -> None:
        """`fd`: what a bell that another thread rings writes to; see `RungBells`."""
        self._clock = clock
        self.rung = RungBells(fd)
        self._by_log: dict[UnifiedLog, LogWatch] = {}
        self._by_time: dict[int, dict[Watch, WaitingFetch]] = {}
        self._times: list[int] = []
        self.count = 0
        self.on_earlier: Callable[[int], None] | None = None  # called with the first time, if there was no earlier one

    # --- logs ------------------------------------------------------------------------------------------

    def watched(self, logs: Iterable[UnifiedLog]) -> dict[LogWatch, None]:
        """Returns the watches of logs, made if they are missing."""
        found: dict[LogWatch, None] = {}
        for log in logs:
            watch = self._by_log.get(log)
            if watch is None:
                watch = self._by_log[log] = LogWatch(log, self.rung)
            found[watch] = None
        return found

    def forget(self, log: LogWatch) -> None:
        """Forgets a log that nobody waits for."""
        if self._by_log.get(log.log) is log:
            del self._by_log[log.log]
        log.disarm()

    def look(self) -> None:
        """Finishes the fetches that the rung bells allow to be finished."""
        keys = self.rung.take()
        while keys:
            woken: dict[Watch, None] = {}
            for log in keys:
                log.is_armed = False
                for watch in log.watches:
                    watch.is_quiet = False
                    if watch.fetch is not None:
                        woken[watch] = None
            for watch in woken:
                self._look_at(watch)
            keys = self.rung.take()

    def _look_at(self, watch: Watch) -> None:
        fetch = watch.fetch
        if fetch is None:
            return
        for log in watch.logs:  # first: an append after the check rings again
            log.arm()
        try:
            is_ready = fetch.check()
        except Exception:  # its answer will say why
            is_ready = True
        if is_ready:
            self._finish(watch, fetch)

    def _finish(self, watch: Watch, fetch: WaitingFetch) -> None:
        """Finishes a fetch. An error here is a bug, and must not stop the others."""
        self.end(watch)
        try:
            fetch.finish()
        except Exception:
            _LINES.exception("Error while answering a fetch")

    # --- times -----------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Returns the monotonic time in milliseconds."""
        return self._clock.nanoseconds() // NS_PER_MS

    def wait(self, watch: Watch, fetch: WaitingFetch, max_wait_ms: int) -> None:
        """Lets a fetch wait.  The caller has armed the watch's logs and then checked the fetch."""
        earlier = watch.fetch
        if earlier is not None:  # an earlier request of the session, which this one has overtaken
            self._finish(watch, earlier)
        due = (self.now_ms() + max_wait_ms + TICK_MS - 1) // TICK_MS * TICK_MS
        fetch.due_ms = due
        watch.fetch = fetch
        self.count += 1
        at = self._by_time.get(due)
        if at is None:
            self._by_time[due] = {watch: fetch}
            heapq.heappush(self._times, due)
            if self.on_earlier is not None and self._times[0] == due:
                self.on_earlier(due)
        else:
            at[watch] = fetch

    def end(self, watch: Watch) -> None:
        """Forgets the fetch of a watch: it is about to be finished, or its connection has ended."""
        fetch = watch.fetch
        if fetch is not None:
            watch.fetch = None
            self.count -= 1
            at = self._by_time.get(fetch.due_ms)
            if at is not None:
                at.pop(watch, None)
                if not at:
                    del self._by_time[fetch.due_ms]
                    if len(self._times) > 2 * len(self._by_time) + TIMES_SPARE:  # fetches that end long before
                        self._times = list(self._by_time)
                        heapq.heapify(self._times)

    def next_due_ms(self) -> int | None:
        """Returns when `expire` may have something to do, in the time of `now_ms`; None if nobody waits."""
        times = self._times
        while times and times[0] not in self._by_time:
            heapq.heappop(times)
        return times[0] if times else None

    def expire(self) -> None:
        """Finishes the fetches whose time is over."""
        now = self.now_ms()
        while (due := self.next_due_ms()) is not None and due <= now:
            for watch, fetch in list(self._by_time[due].items()):
                self._finish(watch, fetch)


class Waker:
    """Wakes the I/O thread: a timer for the first time that is over, and a socket for the bells that ring elsewhere.

    `later(delay_ms, run)` runs a function on the I/O thread, `watch(fd, run)` whenever a descriptor can be read.
    """

    def __init__(
        self,
        clock: Clock,
        later: Callable[[int, Callable[[], object]], object],
        watch: Callable[[int, Callable[[], object]], object],
    ) -> None:
        self._later = later
        self._read, self._write = socket.socketpair()
        for each in (self._read, self._write):
            each.setblocking(False)
        self.waiting = WaitingFetches(clock, fd=self._write.fileno())
        self.waiting.on_earlier = self._earlier
        self._timers: list[int] = []  # when the timers run that were asked for, the next one last
        self._is_inside = False
        self._is_closed = False
        watch(self._read.fileno(), self._rung)

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._read.recv(4096)
        self.waiting.look()

    def _earlier(self, due_ms: int) -> None:
        if not self._is_inside and (not self._timers or due_ms < self._timers[-1]):
            self._timers.append(due_ms)
            self._later(max(due_ms - self.waiting.now_ms(), 0), self._is_time)

    def _is_time(self) -> None:
        if self._is_closed:
            return
        self._timers.pop()
        self._is_inside = True
        try:
            self.waiting.expire()
        finally:
            self._is_inside = False
            due_ms = self.waiting.next_due_ms()
            if due_ms is not None:
                self._earlier(due_ms)

    def close(self) -> None:
        """Closes the socket, after the I/O thread has ended."""
        if not self._is_closed:
            self._is_closed = True
            self.waiting.rung.silence()
            self._read.close()
            self._write.close()
