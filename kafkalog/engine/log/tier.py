"""What a log asks of its remote tier, where it has one (`kafkalog.engine.remote.partition_tier`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn
    from kafkalog.engine.segment.types import TimestampAndOffset


class TierSegment(NamedTuple):
    """One of its segments, as its metadata has it."""

    start_offset: int
    end_offset: int  # the last one in it
    size_bytes: int
    largest_timestamp: int


class Tier(Protocol):
    """The part of a log that is below its local start.  Thread-safe; errors are RemoteStorageException and those of
    damage."""

    def extent(self, offset: int) -> Extent | None:
        """Where to read `offset`, which is at or above the log start and below the local one, or what follows it; None
        where nothing does, up to the local start."""

    def held(self) -> Sequence[TierSegment]:
        """All that the tier has of the log, by its metadata."""

    def has(self, extent: Extent) -> bool:
        """Whether a stretch that `extent` gave is still there."""

    def owns(self, extent: Extent) -> bool:
        """Whether a stretch is one of this tier's."""

    def check(self) -> None:
        """Raises where what the tier has cannot be known."""

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        """Aborted transactions that ended in the tier and may have a record in [first_offset, last_offset]."""

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """The first offset of the tier, at or above the log start, whose record has a timestamp >= `timestamp_ms`."""

    def find_offset_by_timestamp(self, timestamp_ms: int, starting_offset: int) -> TimestampAndOffset | None:
        """RemoteLogManager.findOffsetByTimestamp: as a broker answers ListOffsets."""


class Copies(Protocol):
    """What is known of copies of logs that are opened without their tier (`kafkalog.engine.remote.known_copies`)."""

    def has(self, partition: TopicPartition, topic_id: str | None) -> bool:
        """Whether some of a partition was copied."""

    def lost_end(self, log: Any) -> int | None:
        """Up to where a UnifiedLog was copied, if it ends below."""
