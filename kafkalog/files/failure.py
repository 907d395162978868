"""Whether a log directory is offline, and why.

Mirrors org.apache.kafka.storage.internals.log.LogDirFailureChannel, but each directory makes its own
(`kafkalog.manager.directory`) and hands it to its logs; nobody else makes one.  A directory that failed stays so.
"""

from __future__ import annotations

import threading

from kafkalog.files.lines import Lines


class LogDirFailureChannel:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._offline: dict[str, BaseException | None] = {}  # guarded by _lock
        self.any_offline = False  # set after the directory is in _offline: a quick first question

    def has_offline_log_dir(self, log_dir: str) -> bool:
        """Whether the directory failed."""
        return log_dir in self._offline

    def cause(self, log_dir: str) -> BaseException | None:
        """The error that took the directory offline, where it is known."""
        return self._offline.get(log_dir)

    def maybe_add_offline_log_dir(
        self, log_dir: str, message: str, cause: BaseException | None = None, *, topic_partition: object = None
    ) -> None:
        """Take a directory offline; its first failure is its cause.  `topic_partition`: whose failure it was."""
        with self._lock:
            self._offline.setdefault(log_dir, cause)
            self.any_offline = True
        Lines("kafkalog.files", log_dir, topic_partition).error("%s", message, exc_info=cause)
