"""What a store stands on: a `StoreHome`, which holds the directories' locks, or a `StoreView`, which touches nothing.

The store, its topics, readers and transactions know this and neither of the two.  Transactions ask for less, which one
open partition has as well.  What needs the locks raises LogReadOnlyException in a store that only reads, or
IllegalStateException if that was closed.  Thread-safe.
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
    from kafkalog.engine.files import Clock
    from kafkalog.engine.files.processes import Life
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.host.log_manager import LogManager
    from kafkalog.engine.log.source import Source


class OpenProducer(Protocol):
    """What a store asks of its producers (`kafkalog.producer.RecordAccumulator`)."""

    def check_outside(self) -> None:
        """IllegalStateException in a thread for which `close` could not wait."""

    def close(self) -> None:
        """Sends what it holds, and ends."""

    def flush_until(self, deadline_s: float) -> bool:
        """Sends what it holds, until `time.monotonic()` is `deadline_s`; whether all was answered."""


class TransactionHome(Protocol):
    """What transactions ask for: of a store, or of one open partition (`PartitionHome`)."""

    life: Life
    clock: Clock

    @property
    def coordinators(self) -> Coordinators: ...

    def check_open(self) -> None:
        """IllegalStateException if it is closed, or was opened by another process."""

    def info(self, topic: str) -> TopicInfo:
        """UnknownTopicOrPartitionException if there is no such topic."""

    def check_partition(self, partition: TopicPartition) -> None:
        """UnknownTopicOrPartitionException if there is no such partition."""

    def partition(self, partition: TopicPartition) -> StorePartition:
        """What appends to a partition; UnknownTopicOrPartitionException, KafkaStorageException if it is offline."""

    def joins(self, topic: str) -> None:
        """A transaction is about to write to a topic."""

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """Who keeps a cursor and may change it; None if nobody does, and it is not to be made.  LogReadOnlyException
        in a store that only reads and has no directory for cursors."""


class Home(TransactionHome, Protocol):
    """What a store, its topics, readers and transactions ask for."""

    place: str  # the directories, as messages name them
    topic_settings: TopicSettings
    bells: Bells  # of readers that wait
    cursor_readers: CursorReaders

    @property
    def read_only(self) -> bool: ...

    @property
    def how_to_write(self) -> str:
        """What to do instead, where it is read-only: a hint."""

    def close(self) -> None:
        """As `Store.close`."""

    # --- topics ----------------------------------------------------------------------------------------

    @property
    def topic_changes(self) -> int:
        """Another number: topics may have changed."""

    def names(self) -> list[str]:
        """Of all topics, in order."""

    def numbers(self, topic: str) -> Sequence[int]:
        """The partitions of a topic: of one of Kafka's own those that were made so far.

        UnknownTopicOrPartitionException; InvalidPartitionsException as `countable`."""

    def source(self, partition: TopicPartition) -> Source:
        """What readers see of a partition, in the directory that has it now.  UnknownTopicOrPartitionException,
        KafkaStorageException if it is offline, or its folder is away."""

    def others(self) -> list[str]:
        """Where the handles were opened that keep open what was closed by another one."""

    def known_topics(self) -> list[str]:
        """The topics that are not Kafka's own, known without looking at a disk.  LookupError where they are not."""

    def known_partitions(self, topic: str) -> int:
        """How many a topic has, likewise.  An error where none of that name is known."""

    def glance(self, partition: TopicPartition) -> tuple[int, int] | None:
        """The start and the end of a partition, likewise; None where nobody has looked."""

    # --- cursors ---------------------------------------------------------------------------------------

    def keepers(self, cursor: str) -> Iterable[GroupOffsets]:
        """Who may know of a cursor, those that count first."""

    def list_transactions(self) -> list[TransactionDescription]:
        """Every transactional id that is known."""
        ...

    def all_keepers(self) -> list[GroupOffsets]:
        """Of all cursors, those that count first."""

    # --- what only a store that writes has -------------------------------------------------------------

    @property
    def syncs(self) -> bool:
        """Whether what is written is on the disk before a call returns."""

    @property
    def manager(self) -> LogManager: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def tier(self) -> StoreTier | None:
        """The remote tier; None without one."""

    @property
    def producers(self) -> set[OpenProducer]: ...

    def check_writable(self) -> None:
        """Raises if nothing may be written."""

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None, topic_id: str | None, *, exist_ok: bool
    ) -> TopicInfo:
        """As `Store.create_topic`."""

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """As `Store.add_partitions`."""

    def alter_topic(self, name: str, config: Mapping[str, str | None]) -> TopicInfo:
        """As `Store.alter_topic`."""

    def delete_topic(self, name: str) -> None:
        """As `Store.delete_topic`."""
