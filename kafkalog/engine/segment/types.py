"""The small values that segments return: places in a log, the result of a read, the parameters of a roll.

They are plain data with Kafka's field names (`org.apache.kafka.storage.internals.log`). Offsets are logical, positions
are bytes from the start of a .log file, and timestamps and durations are milliseconds. They are named tuples because
each append and each read creates some, and they never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader

UNKNOWN_FILE_POSITION = -1
UNKNOWN_SEGMENT_BASE_OFFSET = -1


class LogOffsetMetadata(NamedTuple):
    """LogOffsetMetadata: an offset and, if known, its segment and the byte position in it."""

    message_offset: int
    segment_base_offset: int = UNKNOWN_SEGMENT_BASE_OFFSET
    relative_position_in_segment: int = UNKNOWN_FILE_POSITION

    @property
    def message_offset_only(self) -> bool:
        """Whether segment and position are unknown."""
        return self[1] == UNKNOWN_SEGMENT_BASE_OFFSET and self[2] == UNKNOWN_FILE_POSITION

    def on_older_segment(self, that: LogOffsetMetadata) -> bool:
        """Returns whether this is on an older segment than `that`; False if either has only an offset."""
        if self.message_offset_only or that.message_offset_only:
            return False
        return self.segment_base_offset < that.segment_base_offset

    def __str__(self) -> str:
        return (
            f"(offset={self.message_offset}, segment=[{self.segment_base_offset}:{self.relative_position_in_segment}])"
        )


class OffsetPosition(NamedTuple):
    """OffsetPosition: an entry of the offset index."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """TimestampOffset: an entry of the time index."""

    timestamp: int
    offset: int


class LogOffsetPosition(NamedTuple):
    """FileRecords.LogOffsetPosition: base offset, position and bytes of one batch."""

    offset: int
    position: int
    size: int


class TimestampAndOffset(NamedTuple):
    """FileRecords.TimestampAndOffset: a record found by time. `leader_epoch` is None if the batch has none."""

    timestamp: int
    offset: int
    leader_epoch: int | None = None


class AbortedTransaction(NamedTuple):
    """FetchResponseData.AbortedTransaction: a producer whose records a read_committed reader skips."""

    producer_id: int
    first_offset: int


class RollParams(NamedTuple):
    """RollParams: what LogSegment.should_roll needs to know of an append. Sizes are bytes."""

    max_segment_ms: int
    max_segment_bytes: int
    max_timestamp_in_messages: int
    max_offset_in_messages: int
    messages_size: int
    now: int


class RecoveryObserver(Protocol):
    """Follows LogSegment.recover and may stop it.

    Tables are those of the native scan; rows are row numbers in a table.
    """

    row: int  # the row in progress, if `run` raises

    def choose(self, table: Any) -> Any:
        """Returns the rows that it wants to see, in order."""

    def run(self, table: Any, rows: Any, data: memoryview, position: int) -> tuple[int | None, Exception | None]:
        """Sees the chosen rows. `data` holds their bytes, from file position `position` on.

        Returns (None, None), or the first bad row and the error that says why it is bad.
        """

    def before_cut(self, position: int) -> None:
        """Called before the file is truncated at `position`. An exception raised here prevents the truncation."""


class Records(Protocol):
    """The result of a read: the bytes of whole batches (the last may be incomplete).

    They are read only when requested.
    """

    @property
    def size(self) -> int: ...
    def to_bytes(self) -> bytes: ...
    def batches(self) -> list[BatchHeader]: ...
    def records(self) -> Iterator[Any]: ...
    def send_to(self, sock: Any) -> int: ...


class _NoRecords:
    """MemoryRecords.EMPTY as the result of a read."""

    size = 0

    def to_bytes(self) -> bytes:
        return b""

    def batches(self) -> list[BatchHeader]:
        return []

    def records(self) -> Iterator[Any]:
        return iter(())

    def send_to(self, sock: Any) -> int:
        return 0

    def __repr__(self) -> str:
        return "EMPTY_RECORDS"


EMPTY_RECORDS: Records = _NoRecords()


class FetchDataInfo(NamedTuple):
    """FetchDataInfo: the result of a read.

    `first_entry_incomplete`: the first batch is larger than the read's limit, so only a part of it was returned.
    `aborted_transactions`: None unless the read had isolation level TXN_COMMITTED.
    """

    fetch_offset_metadata: LogOffsetMetadata
    records: Records
    first_entry_incomplete: bool = False
    aborted_transactions: list[AbortedTransaction] | None = None

    @classmethod
    def empty(cls, fetch_offset: int) -> FetchDataInfo:
        return cls(LogOffsetMetadata(fetch_offset), EMPTY_RECORDS)
