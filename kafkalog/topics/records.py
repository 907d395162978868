"""What a reader gets: one record, with the attribute names of kafka-python 3.0's ConsumerRecord.

Plain data; knows nothing of batches or files.  `to_confluent` dresses a record as confluent-kafka's Message, whose
names are methods: both styles on one class would clash (`timestamp` against `timestamp()`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NO_TIMESTAMP_TYPE = -1
CREATE_TIME = 0
LOG_APPEND_TIME = 1

TIMESTAMP_TYPES = {"NoTimestampType": NO_TIMESTAMP_TYPE, "CreateTime": CREATE_TIME, "LogAppendTime": LOG_APPEND_TIME}

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record of a partition.

    `timestamp` is milliseconds since 1970 (-1 for none), `timestamp_type` -1 none, 0 CreateTime, 1 LogAppendTime;
    `leader_epoch` is -1 where the batch has none.  `key`, `value` and header values are bytes or None.
    """

    topic: str
    partition: int
    leader_epoch: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]

    @property
    def checksum(self) -> None:
        """None, as in kafka-python for records of the v2 format: the CRC belongs to the batch."""
        return None

    @property
    def serialized_key_size(self) -> int:
        """Bytes of the key; -1 for None."""
        return -1 if self.key is None else len(self.key)

    @property
    def serialized_value_size(self) -> int:
        """Bytes of the value; -1 for None."""
        return -1 if self.value is None else len(self.value)

    @property
    def serialized_header_size(self) -> int:
        """Bytes of all header keys and values; -1 where there are no headers."""
        if not self.headers:
            return -1
        return sum(len(name.encode()) + (0 if value is None else len(value)) for name, value in self.headers)


class ConfluentMessage:
    """A record with the methods of confluent_kafka.Message."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def topic(self) -> str:
        return self._record.topic

    def partition(self) -> int:
        return self._record.partition

    def offset(self) -> int:
        return self._record.offset

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> list[Header] | None:
        return list(self._record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        """(type, ms) with confluent's numbers: 0 not available, 1 create time, 2 log append time."""
        if self._record.timestamp_type == NO_TIMESTAMP_TYPE or self._record.timestamp < 0:
            return (0, 0)
        return (self._record.timestamp_type + 1, self._record.timestamp)

    def leader_epoch(self) -> int | None:
        return None if self._record.leader_epoch < 0 else self._record.leader_epoch

    def latency(self) -> float | None:
        return None

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return 0 if self._record.value is None else len(self._record.value)

    def __repr__(self) -> str:
        return f"ConfluentMessage({self._record!r})"


def to_confluent(record: Record) -> ConfluentMessage:
    """`record` with confluent-kafka's Message methods."""
    return ConfluentMessage(record)
