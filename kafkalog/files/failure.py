"""Which log directories are offline, and why.

Mirrors org.apache.kafka.storage.internals.log.LogDirFailureChannel.  Whoever holds directories makes one and hands it
to the logs in them.  A directory that failed stays so; of each, the first failure counts.  Kafka's handler waits at the
channel's queue in a thread of its own; here `listen` names what is called, once a directory, by the thread that failed.
That thread may hold a partition's lock: the listener only has something done later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kafkalog.files.lines import Lines


class LogDirFailureChannel:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._offline: dict[str, BaseException | None] = {}  # guarded by _lock
        self._listener: Callable[[str], object] | None = None
        self.any_offline = False  # set after the directory is in _offline: a quick first question

    def has_offline_log_dir(self, log_dir: str) -> bool:
        """Whether the directory failed."""
        return log_dir in self._offline

    def cause(self, log_dir: str) -> BaseException | None:
        """The error that took the directory offline, where it is known."""
        return self._offline.get(log_dir)

    @property
    def offline_log_dirs(self) -> list[str]:
        """Those that failed, in this order."""
        with self._lock:
            return list(self._offline)

    def listen(self, listener: Callable[[str], object]) -> None:
        """Have `listener` called with each directory that fails from now on; it must neither raise nor wait."""
        self._listener = listener

    def maybe_add_offline_log_dir(
        self, log_dir: str, message: str, cause: BaseException | None = None, *, topic_partition: object = None
    ) -> None:
        """Take a directory offline; its first failure is its cause.  `topic_partition`: whose failure it was."""
        with self._lock:
            new = log_dir not in self._offline
            self._offline.setdefault(log_dir, cause)
            self.any_offline = True
        Lines("kafkalog.files", log_dir, topic_partition).error("%s", message, exc_info=cause)
        if new and self._listener is not None:
            self._listener(log_dir)
