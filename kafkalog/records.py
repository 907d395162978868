"""What a reader gets: one record, with the attribute names of kafka-python 3.0's ConsumerRecord.

`Record` is native.  `to_confluent` dresses a record as confluent-kafka's Message,
whose names are methods: both styles on one class would clash (`timestamp` against `timestamp()`).
"""

from __future__ import annotations

from kafkalog._native.codec.reading import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE, Record
from kafkalog._shown import Shown

__all__ = [
    "CREATE_TIME",
    "LOG_APPEND_TIME",
    "NO_TIMESTAMP_TYPE",
    "TIMESTAMP_TYPES",
    "ConfluentMessage",
    "Header",
    "Record",
    "to_confluent",
]

TIMESTAMP_TYPES = {"NoTimestampType": NO_TIMESTAMP_TYPE, "CreateTime": CREATE_TIME, "LogAppendTime": LOG_APPEND_TIME}

Header = tuple[str, bytes | None]


class ConfluentMessage(Shown):
    """A record with the methods of confluent_kafka.Message."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def topic(self) -> str:
        """The topic's name."""
        return self._record.topic

    def partition(self) -> int:
        """The partition's number."""
        return self._record.partition

    def offset(self) -> int:
        """The record's offset."""
        return self._record.offset

    def key(self) -> bytes | None:
        """The key; None for none."""
        return self._record.key

    def value(self) -> bytes | None:
        """The value; None for a tombstone."""
        return self._record.value

    def headers(self) -> list[Header] | None:
        """Pairs of name and value; None where there are none."""
        return list(self._record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        """(type, ms) with confluent's numbers: 0 not available, 1 create time, 2 log append time."""
        if self._record.timestamp_type == NO_TIMESTAMP_TYPE or self._record.timestamp < 0:
            return (0, 0)
        return (self._record.timestamp_type + 1, self._record.timestamp)

    def leader_epoch(self) -> int | None:
        """The epoch of the leader that appended it; None where the log does not say."""
        return None if self._record.leader_epoch < 0 else self._record.leader_epoch

    def latency(self) -> float | None:
        """None: nothing was sent."""
        return None

    def error(self) -> None:
        """None: what was read is no error."""
        return

    def __len__(self) -> int:
        return 0 if self._record.value is None else len(self._record.value)

    def __repr__(self) -> str:
        return f"ConfluentMessage({self._record!r})"


def to_confluent(record: Record) -> ConfluentMessage:
    """`record` with confluent-kafka's Message methods."""
    return ConfluentMessage(record)
