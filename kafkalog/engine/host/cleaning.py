"""A manager's cleaner, and what the manager tells it; and compaction by hand, with a cleaner and without.

Both go by the same states, and by the same lines of `cleaner-offset-checkpoint`.

What changes a log that may be cleaned does so in the block of a `pause`, which waits for the cleaner to leave:

    with cleaning.pause(partition) as pause:
        pause.begin()

A change that is made again, since an interrupt cut it short, begins its pause again with it.  Whoever holds a
partition's lock may begin one only where another is held already: a cleaner would wait for that lock, and a signal
handler that comes out of an append is refused by name.
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
    """With a cleaner, where the settings want one; with None they want none."""

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
            self._manager = LogCleanerManager(directories, registry, failed, clock)  # of who compacts by hand
            belongs_here(self._manager)
        self._keeps_lines = self.cleaner is not None  # the checkpoints are written here: by a cleaner, or by hand

    # --- its life --------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Returns when nothing is cleaned any more; whoever compacts by hand finds out that the manager ends.  May be
        called again."""
        if self.cleaner is not None:
            self.cleaner.shutdown()
        for partition in self._manager.states.claimed():
            self.abort(partition)

    def reconfigure(self, config: CleanerConfig) -> None:
        if self.cleaner is None:
            raise IllegalStateException(
                "this manager has no log cleaner", hint="ManagerSettings(cleaner=CleanerConfig()) gives it one"
            )
        checked_cleaner(config)
        if not config.enable_cleaner:
            raise ConfigException(
                "log.cleaner.enable: found false, and a cleaner that runs is not turned off",
                hint="a manager that is made with CleanerConfig(enable_cleaner=False) has none",
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
        """Compacts a log now, in this thread; `check` is called all the while, and raises to end it."""
        from kafkalog.engine.cleaner import passes  # the offset map and its loops are nothing that an open needs

        self.check_outside()
        log.refuse_without_tier("compaction")
        self._keeps_lines = True
        if rolls:
            with log.lock:  # of two who ask for it one closes the segment
                if log.active_segment.size > 0:
                    log.roll()
        options["callbacks"] = (options.get("callbacks") or passes.Callbacks())._replace(check=check)
        return passes.compact(self._manager, log, config, **options)

    # --- what is told ------------------------------------------------------------------------------------

    def pause(self, partition: TopicPartition | None) -> Pause:
        """A pause that has not begun; of None one that does nothing."""
        if partition is None:
            return Pause(None, TopicPartition("", 0))
        return Pause(self._manager.states, partition, self.check_outside)

    def check_outside(self) -> None:
        """Raises in a thread that is inside of a log, or of a change of what is cleaned, by a signal handler or a
        finalizer: a cleaner would wait for it.  Of any log: while it deletes the old segments of one, it has claimed
        all compacted ones."""
        self._manager.states.check_outside()
        for log in self._registry.all_logs():
            if log.lock.is_mine():
                raise log.is_inside()

    def abort(self, partition: TopicPartition) -> None:
        with self.pause(partition) as pause:
            pause.begin()

    def leave_failed(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions of a directory that failed, whose logs are closed: whoever cleans one stops, and is waited for a
        moment.  On a disk that hangs it finds that out later."""
        until = time.monotonic() + _PATIENCE_S
        for partition in partitions:
            with self.pause(partition) as pause:
                pause.begin(until - time.monotonic())

    def retained_logs(self) -> list[tuple[UnifiedLog, Pause]]:
        """Those whose old segments retention deletes, each with a pause to close."""
        return self._manager.pause_cleaning_for_non_compacted_partitions()

    def cut(self, log: UnifiedLog, offset: int) -> None:
        """The log ends at `offset`, or is about to, and so does what is clean of it."""
        self._manager.maybe_truncate_checkpoint(log.parent_dir, log.topic_partition, offset)

    def moved(self, partition: TopicPartition, source_dir: str, destination_dir: str) -> None:
        self._manager.alter_checkpoint_dir(partition, source_dir, destination_dir)

    def loaded(self, log_dir: str) -> None:
        """All logs of a directory are there, and nobody appends yet."""
        self._manager.mend_checkpoints(log_dir)

    def removed(self, log_dir: str) -> None:
        """Logs of a directory are gone, and their checkpoints go."""
        if self._keeps_lines:
            self._manager.update_checkpoints(log_dir)

    def failed(self, log_dir: str) -> None:
        """The directory's checkpoints are not touched again; what is cleaned of it ends by itself."""
        if self._keeps_lines:
            self._manager.handle_log_dir_failure(log_dir)

    @property
    def uncleanable(self) -> list[Uncleanable]:
        return [] if self.cleaner is None else self.cleaner.manager.uncleanable_partitions()
