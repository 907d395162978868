"""The base of a store: a `StoreHome`, which holds the directories' locks, or a `StoreView`, which changes nothing.

The store, its topics, readers and transactions know this interface and neither of the two. Transactions need a smaller
interface, which one open partition has as well. A call that needs the locks raises LogReadOnlyException in a store that
only reads, or IllegalStateException if it is closed. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kafkalog._face.catalog import Catalog
    from kafkalog._face.coordinators import Coordinators
    from kafkalog._face.cursor_readers import CursorReaders
    from kafkalog._face.remote_tier import StoreTier
    from kafkalog._face.store_partition import StorePartition
    from kafkalog._face.topic_info import TopicInfo
    from kafkalog._face.topic_settings import TopicSettings
    from kafkalog._face.waiting import Bells
    from kafkalog.engine.coordinator.group_offsets import GroupOffsets
    from kafkalog.engine.coordinator.transaction_coordinator import TransactionDescription
    from kafkalog.engine.files import Clock, Files
    from kafkalog.engine.files.processes import Life
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.host.log_manager import LogManager
    from kafkalog.engine.log.source import Source


class OpenProducer(Protocol):
    """The part of a producer that a store uses (`kafkalog.producer.RecordAccumulator`)."""

    def check_outside(self) -> None:
        """Raises IllegalStateException in a thread for which `close` could not wait."""

    def close(self) -> None:
        """Sends the records that it holds, and ends."""

    def flush_until(self, deadline_s: float) -> bool:
        """Sends the records that it holds, until `time.monotonic()` is `deadline_s`. Returns whether all were
        answered."""


class TransactionHome(Protocol):
    """The interface that transactions need, of a store or of one open partition (`PartitionHome`)."""

    life: Life
    clock: Clock

    @property
    def coordinators(self) -> Coordinators: ...

    def check_open(self) -> None:
        """Raises IllegalStateException if it is closed, or was opened by another process."""

    def info(self, topic: str) -> TopicInfo:
        """Returns a topic's description. UnknownTopicOrPartitionException if it does not exist."""

    def check_partition(self, partition: TopicPartition) -> None:
        """Raises UnknownTopicOrPartitionException if the partition does not exist."""

    def partition(self, partition: TopicPartition) -> StorePartition:
        """Returns the object that appends to a partition. UnknownTopicOrPartitionException if it does not exist,
        KafkaStorageException if it is offline."""

    def joins(self, topic: str) -> None:
        """Prepares for a transaction that is about to write to a topic."""

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """Returns the keeper that may change a cursor; None if there is none, and `create` is False.
        LogReadOnlyException in a store that only reads and has no directory for cursors."""


class Home(TransactionHome, Protocol):
    """The interface that a store, its topics, readers and transactions need."""

    place: str  # the directories, as messages name them
    topic_settings: TopicSettings
    bells: Bells  # the waiting readers' bells
    cursor_readers: CursorReaders

    @property
    def read_only(self) -> bool: ...

    @property
    def how_to_write(self) -> str:
        """A hint how to write, if it is read-only."""

    @property
    def log_dirs(self) -> Sequence[str]:
        """Its directories that can be read."""

    @property
    def files(self) -> Files:
        """The file system that has them."""

    def close(self) -> None:
        """Closes it, as `Store.close`."""

    # --- topics ----------------------------------------------------------------------------------------

    @property
    def topic_changes(self) -> int:
        """A number that differs from before if topics may have changed."""

    def names(self) -> list[str]:
        """Returns the names of all topics, sorted."""

    def numbers(self, topic: str) -> Sequence[int]:
        """Returns the partitions of a topic; for an internal topic only those created so far.

        UnknownTopicOrPartitionException; InvalidPartitionsException as `countable`."""

    def source(self, partition: TopicPartition) -> Source:
        """Returns a reader's view of a partition, in the directory that has it now. UnknownTopicOrPartitionException if
        it does not exist, KafkaStorageException if it is offline or its directory is missing."""

    def others(self) -> list[str]:
        """Returns where other handles were opened that keep a closed store's directories open."""

    def known_topics(self) -> list[str]:
        """Returns the topics that are not internal, without reading a disk. LookupError if they are not known."""

    def known_partitions(self, topic: str) -> int:
        """Returns a topic's number of partitions without reading a disk. Raises an error if the topic is not known."""

    def glance(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Returns the start and the end of a partition without reading a disk; None if they are not known."""

    # --- cursors ---------------------------------------------------------------------------------------

    def keepers(self, cursor: str) -> Iterable[GroupOffsets]:
        """Returns the keepers that may know a cursor, the most important first."""

    def list_transactions(self) -> list[TransactionDescription]:
        """Returns every known transactional id."""
        ...

    def all_keepers(self) -> list[GroupOffsets]:
        """Returns the keepers of all cursors, the most important first."""

    # --- only in a store that writes -------------------------------------------------------------------

    @property
    def syncs(self) -> bool:
        """Whether a write is on the disk before its call returns."""

    @property
    def manager(self) -> LogManager: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def tier(self) -> StoreTier | None:
        """The remote tier, or None."""

    @property
    def producers(self) -> set[OpenProducer]: ...

    def check_writable(self) -> None:
        """Raises an error if writing is not allowed."""

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None, topic_id: str | None, *, exist_ok: bool
    ) -> TopicInfo:
        """Creates a topic, as `Store.create_topic`."""

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Adds partitions, as `Store.add_partitions`."""

    def alter_topic(self, name: str, config: Mapping[str, str | None]) -> TopicInfo:
        """Changes a topic's settings, as `Store.alter_topic`."""

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, as `Store.delete_topic`."""
