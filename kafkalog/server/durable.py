"""Syncs of appended records, so that many requests share one: for stores with durability "fsync".

    syncs.when_durable(logs, done)       `done(None)` or `done(error)`, on another thread

Each log is synced by one thread at a time.  A sync covers the requests that waited for the log when it began; later
requests wait for the next one.  So the number of syncs depends on the disk, not on the number of requests.  Several
logs are synced at once, because a disk does more syncs in the same time if they are requested together.

Thread-safe.  The threads start with the first request and end with `close`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog.engine.log.unified_log import UnifiedLog

Done = Callable[[BaseException | None], None]
THREADS = 8


class _Waiter:
    """One request: how many logs it still waits for."""

    __slots__ = ("_done", "_error", "_left", "_lock")

    def __init__(self, logs: int, done: Done) -> None:
        self._left = logs
        self._done = done
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def is_synced(self, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            is_last = not self._left
        if is_last:
            self._done(self._error)


class GroupCommit:
    """The syncs of a server."""

    def __init__(self, threads: int = THREADS) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[
            UnifiedLog, list[_Waiter]
        ] = {}  # guarded by _lock; a log is here while it is queued or synced
        self._queue: queue.SimpleQueue[UnifiedLog | None] = queue.SimpleQueue()
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self.syncs = 0

    def when_durable(self, logs: Sequence[UnifiedLog], done: Done) -> None:
        """Calls `done` when everything that the logs have now is on the disk, or with the first error."""
        if not logs:
            done(None)
            return
        waiter = _Waiter(len(logs), done)
        with self._lock:
            for log in logs:
                waiting = self._waiters.get(log)
                if waiting is None:
                    self._waiters[log] = [waiter]
                    self._queue.put(log)
                    if self._idle:
                        self._idle -= 1
                    elif len(self._threads) < self._threads_max:
                        self._begin_thread()
                else:
                    waiting.append(waiter)

    def _begin_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"kafkalog-sync-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (log := self._queue.get()) is not None:
            with self._lock:
                covered = self._waiters[log]
                self._waiters[log] = []  # requests from now on wait for the next sync
            error = self._sync(log)
            with self._lock:
                if self._waiters[log]:
                    self._queue.put(log)
                else:
                    del self._waiters[log]
                    self._idle += 1
            for each in covered:
                each.is_synced(error)

    def _sync(self, log: UnifiedLog) -> BaseException | None:
        self.syncs += 1
        try:
            log.flush_appended(log.log_end_offset)
        except Exception as error:  # for those who wait
            return error
        return None

    def close(self) -> None:
        """Ends the threads, after the syncs that are waited for."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
