"""Compaction of a partition that `open_log` opened: the cleaner's rules and states for this one log.

A LogCleanerManager that knows one log, and of the directory's `cleaner-offset-checkpoint` the one line of it: lines of
partitions that nobody has opened here stay.  What cuts the log, takes segments from it, or closes it, does so in the
block of a `pause`, which has a compaction in another thread stop at its next chunk and waits for that.
Thread-safe.  One compacts at a time; a second one waits, and then finds less to do.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkalog.engine.cleaner.log_cleaner_manager import LogCleanerManager
from kafkalog.engine.cleaner.states import Pause
from kafkalog.engine.files import Clock
from kafkalog.engine.files.processes import belongs_here
from kafkalog.engine.format.names import CLEANER_OFFSET_CHECKPOINT_FILE, TopicPartition
from kafkalog.engine.host.directory import Lease
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import PolicyViolationException

if TYPE_CHECKING:
    from kafkalog._native.codec.offset_map import LastOffsets
    from kafkalog.config import CleanerConfig, LogConfig
    from kafkalog.engine.cleaner.passes import Callbacks, CompactionStats


def policy_of(config: LogConfig) -> str:
    """ "delete", "compact", "compact,delete", or "none"."""
    policies = (("compact", config.compact), ("delete", config.delete))
    return ",".join([name for name, counts in policies if counts]) or "none"


class _OneLog:
    """The logs that there are."""

    def __init__(self, log: UnifiedLog) -> None:
        self._log = log

    def current_logs(self) -> list[UnifiedLog]:
        return [self._log]

    def get(self, partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        return self._log if partition == self._log.topic_partition and not is_future else None

    def is_there(self, partition: TopicPartition) -> bool:
        return partition == self._log.topic_partition


class _OneLine:
    """The checkpoints that there are."""

    def __init__(self, log: UnifiedLog, lease: Lease) -> None:
        self.paths = (log.parent_dir,)
        self._partition = log.topic_partition
        self._lease = lease

    def read_cleaner_offsets(self, log_dir: str) -> dict[TopicPartition, int] | None:
        offset = self._lease.line(CLEANER_OFFSET_CHECKPOINT_FILE)
        return {} if offset is None else {self._partition: offset}

    def write_cleaner_offsets(self, log_dir: str, offsets: Mapping[TopicPartition, int]) -> bool:
        self._lease.set_line(CLEANER_OFFSET_CHECKPOINT_FILE, offsets.get(self._partition))
        return True


class PartitionCleaning:
    """Made by `open_log`, one for each open partition."""

    def __init__(self, log: UnifiedLog, lease: Lease, clock: Clock) -> None:
        self._log = log
        self._manager = LogCleanerManager(
            _OneLine(log, lease), _OneLog(log), log.context.log_dir_failure_channel, clock
        )
        self._compacting = threading.RLock()
        belongs_here(self)

    def disown(self) -> None:
        """In a forked child: whoever compacted is not here."""
        self._compacting = threading.RLock()
        self._manager.disown()

    def compact(
        self,
        config: CleanerConfig,
        *,
        passes_max: int | None = None,
        rolls: bool = False,
        by_ratio: bool = False,
        callbacks: Callbacks | None = None,
        lasts: LastOffsets | None = None,
    ) -> CompactionStats:
        """As `kafkalog.engine.cleaner.passes.compact`; `rolls`: an active segment that has records is closed first.
        PolicyViolationException for a log that is not compacted."""
        from kafkalog.engine.cleaner import passes  # the offset map and its loops are nothing that an open needs

        log = self._log
        if log.lock.is_mine():
            raise log.is_inside()
        if not log.config.compact:
            raise PolicyViolationException(
                f"{log.topic_partition} has cleanup.policy={policy_of(log.config)}: compaction would drop what its "
                "readers expect",
                hint="config={'cleanup.policy': 'compact'} of open_log says that of each key only the last counts",
            )
        with self._compacting:
            if rolls and log.active_segment.size > 0:
                log.roll()
            return passes.compact(
                self._manager,
                log,
                config,
                passes_max=passes_max,
                by_ratio=by_ratio,
                callbacks=callbacks,
                lasts=lasts,
            )

    def pause(self) -> Pause:
        """One that has not begun: `with cleaning.pause() as pause: pause.begin()`."""
        return Pause(self._manager.states, self._log.topic_partition, self._check_outside)

    def _check_outside(self) -> None:
        if self._log.lock.is_mine():
            raise self._log.is_inside()

    def cut(self, offset: int) -> None:
        """The log is about to end at `offset`, and so does what is clean of it."""
        self._manager.maybe_truncate_checkpoint(self._log.parent_dir, self._log.topic_partition, offset)
