"""The metadata of a segment in the remote tier: its id, its content, and its state.

    COPY_SEGMENT_STARTED -> COPY_SEGMENT_FINISHED -> DELETE_SEGMENT_STARTED -> DELETE_SEGMENT_FINISHED

An unfinished upload changes from the first state to the third.  All classes here are immutable; a change creates a new
object.  Source classes: RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate, RemotePartitionDeleteMetadata
(4.4.0).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException


class RemoteLogSegmentState(IntEnum):
    """The state of a remote segment; the values are those of the records."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


COPY_SEGMENT_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
COPY_SEGMENT_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_SEGMENT_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_SEGMENT_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

_NEXT: dict[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]] = {
    None: frozenset({COPY_SEGMENT_STARTED}),
    COPY_SEGMENT_STARTED: frozenset({COPY_SEGMENT_STARTED, COPY_SEGMENT_FINISHED, DELETE_SEGMENT_STARTED}),
    COPY_SEGMENT_FINISHED: frozenset({COPY_SEGMENT_FINISHED, DELETE_SEGMENT_STARTED}),
    DELETE_SEGMENT_STARTED: frozenset({DELETE_SEGMENT_STARTED, DELETE_SEGMENT_FINISHED}),
    DELETE_SEGMENT_FINISHED: frozenset({DELETE_SEGMENT_FINISHED}),
}


def is_valid_transition(before: RemoteLogSegmentState | None, after: RemoteLogSegmentState) -> bool:
    """Returns whether a segment may change from one state to another; `before` is None for an unknown segment."""
    return after in _NEXT[before]


class RemotePartitionDeleteState(IntEnum):
    """The progress of a partition's deletion; the values are those of the records."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class TopicIdPartition(NamedTuple):
    """A partition with its topic's id, which changes if the topic is deleted and created again.  `str()` is Kafka's."""

    topic_id: str  # 22 characters of url-base64
    topic_partition: TopicPartition

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.topic_partition}"


class RemoteLogSegmentId(NamedTuple):
    """The id of a segment in the remote tier.  Each upload has a new id, so that two never share an object."""

    topic_id_partition: TopicIdPartition
    id: str  # 22 characters of url-base64

    @classmethod
    def generate_new(cls, topic_id_partition: TopicIdPartition) -> RemoteLogSegmentId:
        return cls(topic_id_partition, random_uuid())

    def __str__(self) -> str:
        return f"RemoteLogSegmentId{{topicIdPartition={self.topic_id_partition}, id={self.id}}}"


def random_uuid() -> str:
    """Uuid.randomUuid: 22 characters of url-base64, without a dash at the start that looks like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


Epochs: TypeAlias = tuple[tuple[int, int], ...]  # (leader epoch, first offset), the epochs ascending


def epochs_of(pairs: Iterable[tuple[int, int]]) -> Epochs:
    """Returns leader epochs in ascending order; if an epoch occurs twice, the last entry counts."""
    return tuple(sorted(dict(pairs).items()))


class RemoteLogSegmentMetadata(NamedTuple):
    """A segment in the remote tier, with the offsets from `start_offset` to `end_offset` inclusive.

    `broker_id` and `event_timestamp_ms` are the author and the time of its last change of state.
    `segment_leader_epochs` has the first offset of each epoch within the segment.  `custom_metadata` belongs to the
    storage; nothing else reads it.
    """

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_in_bytes: int
    segment_leader_epochs: Epochs
    state: RemoteLogSegmentState = COPY_SEGMENT_STARTED
    custom_metadata: bytes | None = None
    is_txn_idx_empty: bool = False

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.remote_log_segment_id.topic_id_partition

    @property
    def is_missing(self) -> bool:
        """Whether the segment does not exist: it is a `missing` placeholder, or was deleted."""
        return self.state is DELETE_SEGMENT_FINISHED

    def checked(self) -> RemoteLogSegmentMetadata:
        """Returns the metadata; raises IllegalArgumentException if its offsets or epochs are not valid."""
        if self.start_offset < 0:
            raise IllegalArgumentException(
                f"Unexpected start offset = {self.start_offset}. StartOffset for a remote segment cannot be negative"
            )
        if self.end_offset < self.start_offset:
            raise IllegalArgumentException(
                f"Unexpected end offset = {self.end_offset}. EndOffset for a remote segment cannot be less than "
                f"startOffset = {self.start_offset}"
            )
        if not self.segment_leader_epochs:
            raise IllegalArgumentException("segmentLeaderEpochs can not be null or empty")
        return self

    def create_with_updates(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """Returns the segment with the state of an update."""
        if update.remote_log_segment_id != self.remote_log_segment_id:
            raise IllegalArgumentException("Given rlsmUpdate does not have this instance's remoteLogSegmentId.")
        return self._replace(
            broker_id=update.broker_id,
            event_timestamp_ms=update.event_timestamp_ms,
            custom_metadata=update.custom_metadata,
            state=update.state,
        )

    def highest_offset_of(self, leader_epoch: int) -> int:
        """Returns the segment's last offset of an epoch: before the begin of the next epoch, or the segment's end."""
        return next((start - 1 for epoch, start in self.segment_leader_epochs if epoch > leader_epoch), self.end_offset)

    def __str__(self) -> str:
        epochs = ", ".join(f"{epoch}={start}" for epoch, start in self.segment_leader_epochs)
        return (
            f"RemoteLogSegmentMetadata{{remoteLogSegmentId={self.remote_log_segment_id}, "
            f"startOffset={self.start_offset}, endOffset={self.end_offset}, brokerId={self.broker_id}, "
            f"maxTimestampMs={self.max_timestamp_ms}, eventTimestampMs={self.event_timestamp_ms}, "
            f"segmentLeaderEpochs={{{epochs}}}, segmentSizeInBytes={self.segment_size_in_bytes}, "
            f"customMetadata={_custom(self.custom_metadata)}, state={self.state.name}, "
            f"txnIdxEmpty={str(self.is_txn_idx_empty).lower()}}}"
        )


NOBODY = "A" * 22


def missing(
    partition: TopicIdPartition, first: int, last: int, why: str | None = None, segment_id: str = NOBODY
) -> RemoteLogSegmentMetadata:
    """Returns a placeholder for the offsets from `first` to `last`, which no segment has.

    `segment_id` names a segment with a damaged manifest, which may have them.  `why` is the reason if it is not known
    whether they are missing.
    """
    of, said = RemoteLogSegmentId(partition, segment_id), None if why is None else why.encode()
    return RemoteLogSegmentMetadata(of, first, last, -1, -1, -1, 1, (), DELETE_SEGMENT_FINISHED, said, True)


class RemoteLogSegmentMetadataUpdate(NamedTuple):
    """A change of a segment's state."""

    remote_log_segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    broker_id: int

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.remote_log_segment_id.topic_id_partition

    def __str__(self) -> str:
        return (
            f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={self.remote_log_segment_id}, "
            f"customMetadata={_custom(self.custom_metadata)}, state={self.state.name}, "
            f"eventTimestampMs={self.event_timestamp_ms}, brokerId={self.broker_id}}}"
        )


class RemotePartitionDeleteMetadata(NamedTuple):
    """The progress of a partition's deletion."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int

    def __str__(self) -> str:
        return (
            f"RemotePartitionDeleteMetadata{{topicPartition={self.topic_id_partition}, state={self.state.name}, "
            f"eventTimestampMs={self.event_timestamp_ms}, brokerId={self.broker_id}}}"
        )


class RemoteLogSegmentMetadataSnapshot(NamedTuple):
    """A segment in a snapshot of one partition's metadata, without the partition's name."""

    segment_id: str
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_in_bytes: int
    segment_leader_epochs: Epochs
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None
    is_txn_idx_empty: bool = False

    @classmethod
    def create(cls, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataSnapshot:
        return cls(metadata.remote_log_segment_id.id, *metadata[1:])

    def checked(self) -> RemoteLogSegmentMetadataSnapshot:
        """Returns the metadata; raises IllegalArgumentException if it has no leader epochs."""
        if not self.segment_leader_epochs:
            raise IllegalArgumentException("segmentLeaderEpochs can not be null or empty")
        return self

    def of(self, topic_id_partition: TopicIdPartition) -> RemoteLogSegmentMetadata:
        """Returns the segment with the partition of the snapshot."""
        return RemoteLogSegmentMetadata(RemoteLogSegmentId(topic_id_partition, self.segment_id), *self[1:])

    def __str__(self) -> str:
        epochs = ", ".join(f"{epoch}={start}" for epoch, start in self.segment_leader_epochs)
        return (
            f"RemoteLogSegmentMetadataSnapshot{{segmentId={self.segment_id}, startOffset={self.start_offset}, "
            f"endOffset={self.end_offset}, maxTimestampMs={self.max_timestamp_ms}, "
            f"segmentLeaderEpochs={{{epochs}}}, segmentSizeInBytes={self.segment_size_in_bytes}, "
            f"customMetadata={_custom(self.custom_metadata)}, state={self.state.name}, "
            f"txnIdxEmpty={str(self.is_txn_idx_empty).lower()}}}"
        )


RemoteLogMetadata: TypeAlias = (
    RemoteLogSegmentMetadata
    | RemoteLogSegmentMetadataUpdate
    | RemotePartitionDeleteMetadata
    | RemoteLogSegmentMetadataSnapshot
)


def _custom(value: bytes | None) -> str:
    """Returns an Optional of CustomMetadata as Java prints it."""
    return "Optional.empty" if value is None else f"Optional[CustomMetadata{{{len(value)} bytes}}]"
