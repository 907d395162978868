"""Logs that were renamed `-delete` and wait for file.delete.delay.ms, in the order in which they came (Kafka's
logsToBeDeleted).  Knows no scheduler: the manager asks when the next one is due.  Thread-safe."""

from __future__ import annotations

import threading

from kafkalog.engine.files import Clock
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import DiskFull, KafkaStorageException, TooManyOpenFilesException

AGAIN_MS = 10_000  # after a shortage


class DoomedLogs:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._since_ms: dict[UnifiedLog, int] = {}  # guarded by _lock

    def disown(self) -> None:
        """In a forked child: whoever held the lock may be gone."""
        self._lock = threading.RLock()

    def add(self, log: UnifiedLog) -> None:
        """From now on it waits; one that does already goes on."""
        with self._lock:
            self._since_ms.setdefault(log, self._clock.milliseconds())

    def logs(self) -> list[UnifiedLog]:
        with self._lock:
            return list(self._since_ms)

    def delete_due(self, delay_ms: int) -> int:
        """Deletes what has waited for so long, files and all; in how many milliseconds to ask again."""
        while True:
            log, wait_ms = self._take(delay_ms)
            if log is None:
                return wait_ms
            try:
                log.delete()
                log.context.logger.info("Deleted log in %s.", log.dir)
            except (DiskFull, TooManyOpenFilesException) as error:
                log.context.logger.info("%s is deleted later: %s", log.dir, error)
                self.add(log)
                return AGAIN_MS
            except KafkaStorageException:
                log.context.logger.exception("Exception while deleting %s.", log)
                log.close_quietly()

    def _take(self, delay_ms: int) -> tuple[UnifiedLog | None, int]:
        with self._lock:
            log = next(iter(self._since_ms), None)
            if log is None:
                return None, max(delay_ms, 1)
            wait_ms = self._since_ms[log] + delay_ms - self._clock.milliseconds()
            if wait_ms > 0:
                return None, wait_ms
            del self._since_ms[log]
            return log, 0
