"""One partition of a store: what appends to it, wherever its log is now.

Stands on the store's LogManager, which may move the log to another directory meanwhile: an append that the old one
refused goes to the new one.  Lives as long as its store, or until its topic is deleted.  Thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalog._face.appends import PartitionAppends
from kafkalog._face.batch_maker import BatchMaker
from kafkalog.engine.files import Clock
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import KafkalogError, KafkaStorageException, UnknownTopicOrPartitionException


class StorePartition(PartitionAppends):
    """Made by the store, of a log that its manager has; `life` is the store's."""

    size_hint = "store.alter_topic(name, {'max.message.bytes': ...}) raises the limit"

    def __init__(
        self,
        manager: LogManager,
        engine: UnifiedLog,
        life: Life,
        clock: Clock,
        *,
        compression: str | None,
        sync_appends: bool,
    ) -> None:
        self._manager = manager
        self._compression = compression
        self.topic_partition: TopicPartition = engine.topic_partition
        self.engine = engine
        self.life = life
        self.clock = clock
        self.sync_appends = sync_appends
        self._config = engine.config  # of the batch maker
        self.batch_maker = BatchMaker(self._config, compression)
        self.writer_guards = {}
        engine.flushes_rolls = sync_appends

    def checkpoint(self) -> None:
        self._manager.directories.checkpoint(self.engine.parent_dir, self._manager.registry)

    def take_settings(self) -> None:
        """After a change of the topic's settings."""
        config = self.engine.config
        if config is not self._config:
            self.batch_maker = BatchMaker(config, self._compression)
            self._config = config

    def moved_from(self, engine: UnifiedLog) -> UnifiedLog | None:
        found = self._manager.log_to_change(self.topic_partition)
        if found is None or found is engine or found.topic_id != engine.topic_id:
            return None
        found.flushes_rolls = self.sync_appends
        self.engine = found
        return found

    def refusal(self) -> KafkalogError:
        if not self.life.live:
            return self.life.refusal(f"the store of {self._manager.directories.shown}")
        try:
            self._manager.get_log(self.topic_partition)
        except KafkalogError as error:  # no directory is left, or somebody shut the manager down
            return error
        log_dir = self.engine.parent_dir
        if log_dir in self._manager.offline_log_dirs or self._manager.failure_channel.has_offline_log_dir(log_dir):
            return offline_error(self.topic_partition, [log_dir])
        return UnknownTopicOrPartitionException(f"{self.topic_partition} was deleted")


def no_folder_error(partition: TopicPartition, place: str) -> KafkaStorageException:
    """Of a partition that was made: it is not made anew, for its records may be in a directory that was not given."""
    hint = "open the store with all directories that it was written with"
    if partition.topic in INTERNAL_TOPICS:
        hint += f"; if that folder is lost for good, an empty folder {partition} in one of them begins anew"
    else:
        hint += f"; store.delete_topic({partition.topic!r}) gives the topic up, if its records are lost for good"
    return KafkaStorageException(f"{partition} has no folder in {place}", hint=hint)


def offline_error(partition: TopicPartition, log_dirs: Sequence[str]) -> KafkaStorageException:
    return KafkaStorageException(
        f"{partition} is offline, with {', '.join(log_dirs)}",
        hint="a start of the store when the disk is well again brings it back",
    )
