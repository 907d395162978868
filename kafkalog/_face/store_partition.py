"""One partition of a LogManager: appends to it and changes it, in the directory where its log is now.

The manager of a store may move the log to another directory. An append that the old log refused goes to the new one,
and so does every other change. The object exists as long as its store, or until its topic is deleted; a Partition holds
the store. A partition that was opened alone is an OpenPartition, a subclass. Thread-safe.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kafkalog._face.appends import PartitionAppends
from kafkalog._face.batch_maker import BatchMaker, Records
from kafkalog._face.topic_info import check_appendable
from kafkalog.engine.files import Clock
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format import values
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    IllegalStateException,
    KafkalogError,
    KafkaStorageException,
    LogCleaningAbortedException,
    PolicyViolationException,
    UnknownTopicOrPartitionException,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Unpack

    from kafkalog._face.ready_batches import ReadyBatches
    from kafkalog._face.rows import RecordInput
    from kafkalog.config import CleanerConfig, LogConfig
    from kafkalog.engine.cleaner.passes import CompactionStats, CompactOptions
    from kafkalog.engine.log.source import Source
    from kafkalog.records import Header


class TransactionOfPartition(Protocol):
    """The result of `Partition.transaction` (`kafkalog.transaction.Transaction`)."""

    @property
    def active(self) -> bool:
        """Whether it has begun and not ended."""

    def begin(self) -> None: ...

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
    ) -> int:
        """Appends one record to the transaction, and returns its offset."""

    def append_many(self, records: Iterable[RecordInput]) -> range:
        """Appends records to the transaction, and returns their offsets."""

    def append_batches(self, data: bytes | bytearray | memoryview | ReadyBatches) -> range:
        """Appends whole batches in Kafka's format to the transaction, and returns their offsets."""

    def commit_offsets(self, offsets: Any, *, cursor: str | None = None) -> None:
        """Commits a cursor's offsets with the transaction."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def __enter__(self) -> TransactionOfPartition: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class OwnStore(Protocol):
    """The part of its store that a partition uses (`StoreHome`)."""

    def source(self, partition: TopicPartition) -> Source: ...

    def flush_coordinators(self) -> None:
        """Syncs the coordinators' logs."""

    def transaction(
        self, partition: TopicPartition, transactional_id: str, timeout_ms: int
    ) -> TransactionOfPartition: ...


def policy_of(config: LogConfig) -> str:
    """Returns the cleanup policy as text: "delete", "compact", "compact,delete", or "none"."""
    policies = (("compact", config.compact), ("delete", config.delete))
    return ",".join([name for name, counts in policies if counts]) or "none"


class StorePartition(PartitionAppends):
    """Created by the store for a log of its manager. `life` is the store's."""

    size_hint = "store.alter_topic(name, {'max.message.bytes': ...}) raises the limit"
    policy_hint = (
        "store.alter_topic(name, {'cleanup.policy': 'compact'}) makes each key's last record replace the others"
    )

    def __init__(
        self,
        manager: LogManager,
        engine: UnifiedLog,
        life: Life,
        clock: Clock,
        store: OwnStore | None = None,
        *,
        compression: str | None,
        sync_appends: bool,
    ) -> None:
        self._manager = manager
        # A weak reference: the store holds this object, and must be freed at once when it is dropped.
        self._store = None if store is None else weakref.ref(store)
        self._compression = compression
        self.topic_partition: TopicPartition = engine.topic_partition
        self.engine = engine
        self.life = life
        self.clock = clock
        self.sync_appends = sync_appends
        self._config = engine.config  # with which the batch maker was created
        self.batch_maker = BatchMaker(self._config, compression)
        self.writer_guards = {}
        engine.flushes_rolls = sync_appends

    @property
    def log_dir(self) -> str:
        return self.engine.parent_dir

    def _its_store(self) -> OwnStore:
        self.check_open()
        store = None if self._store is None else self._store()
        if store is None:
            raise self.refusal()
        return store

    def settle_to_read(self) -> None:
        """Prepares for a read. Raises an error if it is closed; completes an interrupted change."""
        self.usable(to_read=True)

    def source(self) -> Source:
        """Returns a reader's view of the partition."""
        return self._its_store().source(self.topic_partition)

    def transaction(self, transactional_id: str, timeout_ms: int) -> TransactionOfPartition:
        return self._its_store().transaction(self.topic_partition, transactional_id, timeout_ms)

    def flush(self) -> None:
        self.flush_coordinators()
        super().flush()

    def flush_coordinators(self) -> None:
        """Syncs the coordinators' logs, before the partition that depends on them."""
        self._its_store().flush_coordinators()

    def close(self) -> None:
        """Does nothing: a store's partition is closed with its store."""

    # --- shrinking -------------------------------------------------------------------------------------

    def compact(
        self, config: CleanerConfig, *, rolls: bool = False, **options: Unpack[CompactOptions]
    ) -> CompactionStats:
        """Compacts it, as `Partition.compact`, with the options of `LogManager.compact`."""
        log = self.usable()
        while True:
            if not log.config.compact:
                raise PolicyViolationException(
                    f"{self.topic_partition} has cleanup.policy={policy_of(log.config)}: compaction would delete "
                    "records that its readers expect",
                    hint=self.policy_hint,
                )
            try:
                return self._manager.compact(log, config, rolls=rolls, **options)
            except (KafkaStorageException, LogCleaningAbortedException) as error:
                log = self._following(log, error)
            except IllegalStateException:
                self.check_open()  # raises an error if a close ended the manager meanwhile
                raise

    def truncate(self, offset: int) -> None:
        self.check_open()
        offset = values.offset(offset, low=0)
        self.on_log(lambda log: self._manager.truncate(log, offset))

    def delete_old_segments(self) -> int:
        return self.on_log(self._manager.delete_old_segments)

    def checkpoint(self) -> None:
        self._manager.checkpoint_now(self.engine.parent_dir)

    def delete_records(self, before_offset: int) -> int:
        """Deletes records, as `Partition.delete_records` says."""
        self.check_open()
        before_offset = values.offset(before_offset, "before_offset")
        start = self.on_log(lambda engine: engine.delete_records(before_offset))
        self._manager.checkpoint_or_later(self.engine.parent_dir)
        return start

    def take_settings(self) -> None:
        """Applies changed settings of the topic."""
        config = self.engine.config
        if config is not self._config:
            self.batch_maker = BatchMaker(config, self._compression)
            self._config = config

    def moved_from(self, engine: UnifiedLog) -> UnifiedLog | None:
        found = self._manager.log_to_change(self.topic_partition)
        if found is None or found.topic_id != engine.topic_id or (found is engine and engine.refuses_changes):
            return None
        found.flushes_rolls = self.sync_appends
        self.engine = found
        return found

    def refusal(self) -> KafkalogError:
        if not self.life.live:
            return self.life.refusal(f"the store of {self._manager.directories.shown}")
        try:
            self._manager.get_log(self.topic_partition)
        except KafkalogError as error:  # no directory is left, or the manager was shut down
            return error
        log_dir = self.engine.parent_dir
        if log_dir in self._manager.offline_log_dirs or self._manager.failure_channel.has_offline_log_dir(log_dir):
            return offline_error(self.topic_partition, [log_dir])
        return UnknownTopicOrPartitionException(f"{self.topic_partition} was deleted")


class InternalPartition(StorePartition):
    """A partition of an internal topic. Only coordinators append to it."""

    def check_appendable(self) -> None:
        check_appendable(self.topic_partition.topic)

    def append_row(self, row: RecordInput) -> int:
        self.check_appendable()
        return super().append_row(row)

    def append_as(
        self, producer: ProducerFields, records: Records, *, sync: bool = True, maker: BatchMaker | None = None
    ) -> range:
        self.check_appendable()
        return super().append_as(producer, records, sync=sync, maker=maker)

    def append_batches(self, data: Any) -> range:
        self.check_appendable()
        return super().append_batches(data)

    def transaction(self, transactional_id: str, timeout_ms: int) -> TransactionOfPartition:
        self.check_appendable()
        return super().transaction(transactional_id, timeout_ms)

    def truncate(self, offset: int) -> None:
        self.check_appendable()
        super().truncate(offset)

    def delete_records(self, before_offset: int) -> int:
        self.check_appendable()
        return super().delete_records(before_offset)


def no_folder_error(partition: TopicPartition, place: str) -> KafkaStorageException:
    """Returns the error for a missing directory. It is not created again: its records may be in a directory that was
    not given."""
    hint = "open the store with all directories that it was written with"
    if partition.topic in INTERNAL_TOPICS:
        hint += (
            f"; if the partition's directory is lost forever, create an empty directory {partition} in one of them: "
            "the partition then starts empty"
        )
    else:
        hint += f"; if its records are lost forever, delete the topic with store.delete_topic({partition.topic!r})"
    return KafkaStorageException(f"{partition} has no directory in {place}", hint=hint)


def offline_error(partition: TopicPartition, log_dirs: Sequence[str]) -> KafkaStorageException:
    return KafkaStorageException(
        f"{partition} is offline, with {', '.join(log_dirs)}",
        hint="open the store again when the disk is repaired",
    )
