"""The interface between a log and its remote tier, if it has one (`kafkalog.engine.remote.partition_tier`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn
    from kafkalog.engine.segment.types import TimestampAndOffset


class TierSegment(NamedTuple):
    """A segment in the tier, according to its metadata."""

    start_offset: int
    end_offset: int  # the last offset in it
    size_bytes: int
    largest_timestamp: int


class Tier(Protocol):
    """The part of a log below its local start. Thread-safe.

    Raises RemoteStorageException and the errors of damaged data.
    """

    def extent(self, offset: int) -> Extent | None:
        """Returns where to read `offset`, or what follows it up to the local start; None if nothing follows.

        `offset` is at or above the log start and below the local start.
        """

    def held(self) -> Sequence[TierSegment]:
        """Returns all segments that the tier has of the log, by its metadata."""

    def has(self, extent: Extent) -> bool:
        """Returns whether a stretch that `extent` returned still exists."""

    def owns(self, extent: Extent) -> bool:
        """Returns whether a stretch belongs to this tier."""

    def check(self) -> None:
        """Raises if the contents of the tier cannot be determined."""

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        """Returns aborted transactions that ended in the tier and may have a record in [first_offset, last_offset]."""

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Returns the first offset in the tier, at or above the log start, with a timestamp >= `timestamp_ms`."""

    def find_offset_by_timestamp(self, timestamp_ms: int, starting_offset: int) -> TimestampAndOffset | None:
        """RemoteLogManager.findOffsetByTimestamp: the result of ListOffsets in a broker."""


class Copies(Protocol):
    """The known copies of logs that are opened without their tier (`kafkalog.engine.remote.known_copies`)."""

    def has(self, partition: TopicPartition, topic_id: str | None) -> bool:
        """Returns whether some part of a partition was copied."""

    def lost_end(self, log: Any) -> int | None:
        """Returns the offset up to which a UnifiedLog was copied, if the log ends below it."""
