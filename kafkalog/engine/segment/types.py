"""The small values that segments hand out: places in a log, what a read found, why to roll.

Plain data with Kafka's field names (`org.apache.kafka.storage.internals.log`); offsets are logical, positions are
bytes from the start of a .log file, timestamps and durations are milliseconds.  Named tuples: they are made on every
append and read, and never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader

UNKNOWN_FILE_POSITION = -1
UNKNOWN_SEGMENT_BASE_OFFSET = -1


class LogOffsetMetadata(NamedTuple):
    """LogOffsetMetadata: an offset and, where known, its segment and the byte position in it."""

    message_offset: int
    segment_base_offset: int = UNKNOWN_SEGMENT_BASE_OFFSET
    relative_position_in_segment: int = UNKNOWN_FILE_POSITION

    @property
    def message_offset_only(self) -> bool:
        """Whether segment and position are unknown."""
        return self[1] == UNKNOWN_SEGMENT_BASE_OFFSET and self[2] == UNKNOWN_FILE_POSITION

    def on_older_segment(self, that: LogOffsetMetadata) -> bool:
        """Whether this lies on an older segment than `that`; False where either is only an offset."""
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
    """FileRecords.TimestampAndOffset: a record found by time; `leader_epoch` None where the batch has none."""

    timestamp: int
    offset: int
    leader_epoch: int | None = None


class AbortedTransaction(NamedTuple):
    """FetchResponseData.AbortedTransaction: whose records a read_committed reader skips, and from where."""

    producer_id: int
    first_offset: int


class RollParams(NamedTuple):
    """RollParams: what an append brings, for LogSegment.should_roll.  Sizes in bytes."""

    max_segment_ms: int
    max_segment_bytes: int
    max_timestamp_in_messages: int
    max_offset_in_messages: int
    messages_size: int
    now: int


class RecoveryObserver(Protocol):
    """Who follows LogSegment.recover, and may stop it: tables are those of the native scan, rows numbers in one."""

    row: int  # the one in progress, for who meets an error of `run`

    def choose(self, table: Any) -> Any:
        """The rows that it wants to see, in order."""

    def run(self, table: Any, rows: Any, data: memoryview, position: int) -> tuple[int | None, Exception | None]:
        """Sees the chosen rows, whose bytes `data` holds from file position `position` on.

        (None, None), or the row at which the bytes turned out bad and why.
        """

    def before_cut(self, position: int) -> None:
        """Something goes, from `position` to the end of the file; what it raises keeps it."""


class Records(Protocol):
    """What a read hands out: bytes of whole batches (the last may be cut), read only when asked for."""

    @property
    def size(self) -> int: ...
    def to_bytes(self) -> bytes: ...
    def batches(self) -> list[BatchHeader]: ...
    def records(self) -> Iterator[Any]: ...
    def send_to(self, sock: Any) -> int: ...


class _NoRecords:
    """MemoryRecords.EMPTY as an answer of a read."""

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
    """FetchDataInfo: what a read found.

    `first_entry_incomplete`: the first batch is larger than what was asked for, so it is cut.
    `aborted_transactions`: None unless the read was at isolation TXN_COMMITTED.
    """

    fetch_offset_metadata: LogOffsetMetadata
    records: Records
    first_entry_incomplete: bool = False
    aborted_transactions: list[AbortedTransaction] | None = None

    @classmethod
    def empty(cls, fetch_offset: int) -> FetchDataInfo:
        return cls(LogOffsetMetadata(fetch_offset), EMPTY_RECORDS)
