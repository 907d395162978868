"""Interfaces of a share partition: the logs, the persister of its state, and the writer of dead letters.

The face and the server implement these over their logs and topics, tests over lists. Source: Persister, LogReader,
PartitionMetadataProvider, ShareGroupDLQManager (4.4.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import PersisterStateBatch, SharePartitionKey

CLIENT_REJECT = "Offset rejected by client."
DELIVERY_COUNT_EXCEEDED = "Offset delivery count exceeded the threshold."


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id, and the topic's name; the name is None if the id is unknown."""

    topic_id: str
    partition: int
    topic: str | None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionWrite(NamedTuple):
    """One partition's part of a WriteShareGroupStateRequest."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: Sequence[PersisterStateBatch]


class Persister(Protocol):
    """Keeps the states of share partitions. Requests and responses are those of Kafka's messages.

    `waits`: a write waits for the disk."""

    @property
    def waits(self) -> bool: ...

    def read_state(self, request: Values) -> Values: ...

    def write_partition(self, key: SharePartitionKey, write: PartitionWrite) -> tuple[int, str | None]:
        """Writes the state of one partition. Returns the error code, 0 for none, and its message."""
        ...

    def delete_state(self, request: Values) -> Values: ...

    def initialize_state(self, request: Values) -> Values: ...

    def read_state_summary(self, request: Values) -> Values: ...


class SharedBatch(Protocol):
    """A batch of the log, as far as a share partition looks at it: BatchHeader has these."""

    @property
    def base_offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def producer_id(self) -> int: ...

    @property
    def has_producer_id(self) -> bool: ...

    @property
    def is_transactional(self) -> bool: ...

    @property
    def is_control(self) -> bool: ...


class Aborted(NamedTuple):
    """An aborted transaction in what was read: its producer and its first offset."""

    producer_id: int
    first_offset: int


class LogRead(NamedTuple):
    """The result of a read: its batches, and the records' bytes as the reader gives them.

    `abort_markers` are the base offsets of the batches with an abort marker; asked for only with `aborted`.
    """

    batches: Sequence[SharedBatch]
    records: Any
    aborted: Sequence[Aborted] = ()
    abort_markers: frozenset[int] = frozenset()


class EndOffset(NamedTuple):
    """A place in a log: offset, and where it lies (segment's base offset -1 if unknown)."""

    offset: int
    segment_base_offset: int = -1
    position: int = -1


class SharedLogs(Protocol):
    """The logs of this broker, for all share partitions. Raises UnknownTopicOrPartitionException for one that is not
    here, and OffsetOutOfRangeException, KafkaStorageException as `UnifiedLog.read`."""

    def read(
        self, partition: TopicIdPartition, offset: int, max_bytes: int, *, committed: bool, whole: bool
    ) -> LogRead:
        """Reads whole batches from the one with `offset`; `whole`: the first one also if it is larger."""
        ...

    def is_far(self, partition: TopicIdPartition, offset: int) -> bool:
        """Returns whether a read at an offset may take long: only the remote tier has it."""
        ...

    def part(self, read: LogRead, position: int, size: int) -> Any:
        """Returns a part of the records' bytes that were read."""
        ...

    def place_of(self, partition: TopicIdPartition, offset: int, *, committed: bool) -> EndOffset:
        """Returns where an offset lies."""
        ...

    def end_offset(self, partition: TopicIdPartition, *, committed: bool) -> EndOffset:
        """Returns the end up to which the group may read."""
        ...

    def earliest_offset(self, partition: TopicIdPartition) -> int: ...

    def latest_offset(self, partition: TopicIdPartition) -> int: ...

    def offset_for_timestamp(self, partition: TopicIdPartition, timestamp_ms: int) -> int | None: ...

    def leader_epoch(self, partition: TopicIdPartition) -> int: ...

    def ring_at_change(self, partition: TopicIdPartition, bell: Any) -> None:
        """Calls `bell.release()` once, at the log's next change."""
        ...


class DeadLetter(NamedTuple):
    """Offsets of a partition that become dead letters, and why."""

    group: str
    partition: TopicIdPartition
    first_offset: int
    last_offset: int
    delivery_count: int
    cause: str


class DeadLetters(Protocol):
    """Writes dead letters."""

    def is_enabled(self, group: str) -> bool:
        """Whether the group has a topic for them."""
        ...

    def write(self, letter: DeadLetter) -> None:
        """Writes a record for each offset. Any error means that they could not be written."""
        ...


class NoDeadLetters:
    """The writer of a broker whose share.version knows none."""

    def is_enabled(self, group: str) -> bool:
        """Returns False."""
        return False

    def write(self, letter: DeadLetter) -> None:
        """Does nothing."""
