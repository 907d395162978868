"""Which log directories are offline, and the queue through which the manager hears of each once.

Mirrors org.apache.kafka.storage.internals.log.LogDirFailureChannel.  A directory that failed stays so.
"""

from __future__ import annotations

import logging
import queue
import threading

_log = logging.getLogger(__name__)


class LogDirFailureChannel:
    """Thread-safe; one per process or manager."""

    def __init__(self, log_dir_num: int = 0) -> None:
        # Kafka bounds the queue by the number of directories; each enters at most once, so no bound is needed.
        del log_dir_num
        self._lock = threading.RLock()
        self._offline: dict[str, BaseException | None] = {}  # guarded by _lock
        self.any_offline = False  # set after the directory is in _offline: a quick first question
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def has_offline_log_dir(self, log_dir: str) -> bool:
        """Whether the directory failed."""
        return log_dir in self._offline

    def cause(self, log_dir: str) -> BaseException | None:
        """The error that took the directory offline, where it is known."""
        return self._offline.get(log_dir)

    @property
    def offline_log_dirs(self) -> list[str]:
        """The directories that failed, first failure first."""
        with self._lock:
            return list(self._offline)

    def maybe_add_offline_log_dir(self, log_dir: str, message: str, cause: BaseException | None = None) -> None:
        """Take a directory offline; only its first failure is queued."""
        with self._lock:
            first = log_dir not in self._offline
            if first:
                self._offline[log_dir] = cause
                self.any_offline = True
        _log.error("%s", message, exc_info=cause)
        if first:
            self._queue.put(log_dir)

    def take_next_offline_log_dir(self, timeout: float | None = None) -> str | None:
        """The next directory that failed, waiting up to `timeout` seconds (None: for ever); None when none did."""
        try:
            if timeout is not None and timeout <= 0:
                return self._queue.get_nowait()
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None
