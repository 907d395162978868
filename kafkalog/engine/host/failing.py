"""Takes a failed directory out of a manager: closes and forgets its logs, and never touches its files again.

The code that meets the disk error reports it to the LogDirFailureChannel.  The manager calls `take_out` later, while
the directory is still among the live ones.  Mirrors LogManager.handleLogDirFailure (4.4.0).

The caller holds `Changes.lock`.  After the logs are closed, `take_out` waits a moment for running cleanings.  At the
end it waits for a thread that is writing one of the directory's files (LogDirectories).
"""

from __future__ import annotations

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.host.cleaning import Cleaning
from kafkalog.engine.host.doomed import DoomedLogs
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.host.topic_configs import StoredTopicConfigs, TopicConfigs

LOGGER = "kafkalog.manager"


class Failures:
    def __init__(
        self,
        directories: LogDirectories,
        registry: LogRegistry,
        cleaning: Cleaning,
        doomed: DoomedLogs,
        topic_configs: TopicConfigs,
    ) -> None:
        self._directories = directories
        self._registry = registry
        self._cleaning = cleaning
        self._doomed = doomed
        self.topic_configs = topic_configs

    def take_out(self, log_dir: str) -> None:
        """Takes a directory out.  May be called again after an interrupt."""
        Lines(LOGGER, log_dir).warning("Stopping serving logs in dir %s", log_dir)
        gone = self._registry.all_of(log_dir)
        self._cleaning.failed(log_dir)
        self._close_all_of(log_dir)
        self._cleaning.leave_failed([log.topic_partition for log in gone])  # before the lock is given back
        self._registry.remove_all(gone)
        self._registry.forget_directory(log_dir)
        if isinstance(self.topic_configs, StoredTopicConfigs):
            self.topic_configs.forget_directory(log_dir)
        self._directories.take_out(log_dir)
        Lines(LOGGER, log_dir).warning(
            "Logs for partitions %s are offline due to failure on this log directory",
            ", ".join(f"{log.topic_partition}{' (future)' if log.is_future else ''}" for log in gone) or "(none)",
        )

    def _close_all_of(self, log_dir: str) -> None:
        for log in [*self._registry.all_of(log_dir), *self._doomed.logs()]:
            if log.parent_dir == log_dir:
                log.close_quietly()
