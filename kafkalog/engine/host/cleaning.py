"""The manager's side of compaction: the cleaner, pauses of it, and compaction by hand with or without a cleaner.

The cleaner and compaction by hand use the same states and the same lines of `cleaner-offset-checkpoint`.

Code that changes a log which may be cleaned does so in the block of a `pause`, which waits until the cleaner has left
the log:

    with cleaning.pause(partition) as pause:
        pause.begin()

A change that runs again after an interrupt also begins its pause again.  A thread that holds a partition's lock may
begin a pause only if it already holds another pause of it: the cleaner would wait for the lock.  A signal handler that
interrupts an append gets an error that names the log.
Knows no LogManager.  Thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner.log_cleaner import LogCleaner
from kafkalog.engine.cleaner.log_cleaner_manager import LogCleanerManager
from kafkalog.engine.cleaner.states import Pause
from kafkalog.engine.cleaner.uncleanable import Uncleanable
from kafkalog.engine.files import Clock
from kafkalog.engine.files.processes import belongs_here
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.host.settings import checked_cleaner
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import ConfigException, IllegalStateException
from kafkalog.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
    from typing import Unpack

    from kafkalog.engine.cleaner.passes import CompactionStats, CompactOptions

_PATIENCE_S = 1.0


class Cleaning:
    """Owns a cleaner if `config` enables one.  None means that the settings want no cleaner."""

    def __init__(
        self,
        config: CleanerConfig | None,
        directories: LogDirectories,
        registry: LogRegistry,
        clock: Clock,
        metrics: MetricsRegistry,
    ) -> None:
        self._registry = registry
        failed = directories.failure_channel
        self.cleaner: LogCleaner | None = None
        if config is not None and config.enable_cleaner:
            self.cleaner = LogCleaner(config, directories, registry, failed, clock, metrics)
            self._manager = self.cleaner.manager
        else:
            self._manager = LogCleanerManager(directories, registry, failed, clock)  # for compaction by hand
            belongs_here(self._manager)
        self._keeps_lines = self.cleaner is not None  # the checkpoints are written here: by a cleaner, or by hand

    # --- lifetime ------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Returns when nothing is cleaned any more.  A compaction by hand is aborted.  May be called again."""
        if self.cleaner is not None:
            self.cleaner.shutdown()
        for partition in self._manager.states.claimed():
            self.abort(partition)

    def reconfigure(self, config: CleanerConfig) -> None:
        if self.cleaner is None:
            raise IllegalStateException(
                "this manager has no log cleaner", hint="create it with ManagerSettings(cleaner=CleanerConfig())"
            )
        checked_cleaner(config)
        if not config.enable_cleaner:
            raise ConfigException(
                "log.cleaner.enable: found false, and a running cleaner cannot be turned off",
                hint="create the manager with CleanerConfig(enable_cleaner=False) to have none",
            )
        self.cleaner.reconfigure(config)

    def compact(
        self,
        log: UnifiedLog,
        config: CleanerConfig,
        check: Callable[[], object],
        *,
        rolls: bool,
        **options: Unpack[CompactOptions],
    ) -> CompactionStats:
        """Compacts a log now, in this thread.  `check` is called repeatedly, and raises to end the compaction."""
        from kafkalog.engine.cleaner import passes  # an open needs neither the offset map nor its loops

        self.check_outside()
        log.refuse_without_tier("compaction")
        self._keeps_lines = True
        if rolls:
            with log.lock:  # if two threads request it, only one closes the segment
                if log.active_segment.size > 0:
                    log.roll()
        options["callbacks"] = (options.get("callbacks") or passes.Callbacks())._replace(check=check)
        return passes.compact(self._manager, log, config, **options)

    # --- pauses and events -------------------------------------------------------------------------------

    def pause(self, partition: TopicPartition | None) -> Pause:
        """Returns a pause that has not begun.  The pause of None does nothing."""
        if partition is None:
            return Pause(None, TopicPartition("", 0))
        return Pause(self._manager.states, partition, self.check_outside)

    def check_outside(self) -> None:
        """Raises if this thread is in the middle of an operation on a log, or of a change of the cleaning states.

        This happens in a signal handler or a finalizer; a cleaner would wait for this thread.  All logs are checked,
        because a cleaner has claimed all compacted logs while it deletes the old segments of one.
        """
        self._manager.states.check_outside()
        for log in self._registry.all_logs():
            if log.lock.is_mine():
                raise log.is_inside()

    def abort(self, partition: TopicPartition) -> None:
        with self.pause(partition) as pause:
            pause.begin()

    def leave_failed(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops the cleaning of partitions of a failed directory, whose logs are closed.

        Waits a moment for each cleaning to stop.  A cleaning that hangs in the disk notices it later.
        """
        until = time.monotonic() + _PATIENCE_S
        for partition in partitions:
            with self.pause(partition) as pause:
                pause.begin(until - time.monotonic())

    def retained_logs(self) -> list[tuple[UnifiedLog, Pause]]:
        """Returns the logs whose old segments retention deletes, each with a pause that the caller must close."""
        return self._manager.pause_cleaning_for_non_compacted_partitions()

    def cut(self, log: UnifiedLog, offset: int) -> None:
        """Reports that the log ends at `offset`, or is about to; the cleaned part ends there too."""
        self._manager.maybe_truncate_checkpoint(log.parent_dir, log.topic_partition, offset)

    def moved(self, partition: TopicPartition, source_dir: str, destination_dir: str) -> None:
        self._manager.alter_checkpoint_dir(partition, source_dir, destination_dir)

    def loaded(self, log_dir: str) -> None:
        """Reports that all logs of a directory are loaded, and that appends have not begun."""
        self._manager.mend_checkpoints(log_dir)

    def removed(self, log_dir: str) -> None:
        """Reports that logs of a directory were removed; their checkpoint lines are removed."""
        if self._keeps_lines:
            self._manager.update_checkpoints(log_dir)

    def failed(self, log_dir: str) -> None:
        """Reports a failed directory: its checkpoints are not touched again, and cleanings in it end automatically."""
        if self._keeps_lines:
            self._manager.handle_log_dir_failure(log_dir)

    @property
    def uncleanable(self) -> list[Uncleanable]:
        return [] if self.cleaner is None else self.cleaner.manager.uncleanable_partitions()
