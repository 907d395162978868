"""The logs that were renamed `-delete` and wait for file.delete.delay.ms, in order of arrival.

Kafka's name for them is logsToBeDeleted.  Knows no scheduler: the manager asks when the next log is due.  Thread-safe.
"""

from __future__ import annotations

import threading

from kafkalog.engine.files import Clock
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import DiskFull, KafkaStorageException, TooManyOpenFilesException

AGAIN_MS = 10_000  # wait after a full disk or a lack of file descriptors


class DoomedLogs:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._since_ms: dict[UnifiedLog, int] = {}  # guarded by _lock

    def disown(self) -> None:
        """Resets the lock in a forked child: the thread that held it may not exist there."""
        self._lock = threading.RLock()

    def add(self, log: UnifiedLog) -> None:
        """Adds a log that waits from now on.  A log that already waits keeps its time."""
        with self._lock:
            self._since_ms.setdefault(log, self._clock.milliseconds())

    def logs(self) -> list[UnifiedLog]:
        with self._lock:
            return list(self._since_ms)

    def delete_due(self, delay_ms: int) -> int:
        """Deletes the logs that have waited for `delay_ms`, with their files.

        Returns in how many milliseconds to call again.
        """
        while True:
            log, wait_ms = self._take(delay_ms)
            if log is None:
                return wait_ms
            try:
                log.delete()
                log.context.logger.info("Deleted log in %s.", log.dir)
            except (DiskFull, TooManyOpenFilesException) as error:
                log.context.logger.info("%s will be deleted later: %s", log.dir, error)
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
