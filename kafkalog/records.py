"""`Record`, the object that readers return for each record, and `to_confluent`, which wraps it.

A Record has the attribute names of kafka-python 3.0's ConsumerRecord and is native code.  `to_confluent` wraps it with
the methods of confluent-kafka's Message.  One class cannot have both, because the names clash (`timestamp` and
`timestamp()`).
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
    """A record with the methods of confluent_kafka.Message, returned by `to_confluent`.

    `len()` of it is the length of the value in bytes.

    Example:
        >>> with kafkalog.open_log("logs", "orders-0") as log:
        ...     offset = log.append(b"value", key=b"key", timestamp=1_700_000_000_000)
        ...     message = kafkalog.to_confluent(next(log.records()))
        >>> message.topic(), message.partition(), message.offset()
        ('orders', 0, 0)
        >>> message.key(), message.value(), message.headers(), message.timestamp(), len(message)
        (b'key', b'value', None, (1, 1700000000000), 5)
        >>> message.leader_epoch(), message.latency(), message.error()
        (0, None, None)
    """

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def topic(self) -> str:
        """Returns the topic's name.

        Returns:
            The name.
        """
        return self._record.topic

    def partition(self) -> int:
        """Returns the partition's number.

        Returns:
            The number, counted from 0.
        """
        return self._record.partition

    def offset(self) -> int:
        """Returns the record's offset.

        Returns:
            The offset in the partition.
        """
        return self._record.offset

    def key(self) -> bytes | None:
        """Returns the key.

        Returns:
            The bytes; None for a record without a key.
        """
        return self._record.key

    def value(self) -> bytes | None:
        """Returns the value.

        Returns:
            The bytes; None for a tombstone.
        """
        return self._record.value

    def headers(self) -> list[Header] | None:
        """Returns the headers.

        Returns:
            Pairs of name and value; None if the record has no headers.
        """
        return list(self._record.headers) or None

    def timestamp(self) -> tuple[int, int]:
        """Returns the type of the timestamp and the timestamp.

        Returns:
            (type, milliseconds since 1970), with confluent-kafka's types: 0 not available, 1 create time, 2 log append
            time.
        """
        if self._record.timestamp_type == NO_TIMESTAMP_TYPE or self._record.timestamp < 0:
            return (0, 0)
        return (self._record.timestamp_type + 1, self._record.timestamp)

    def leader_epoch(self) -> int | None:
        """Returns the epoch of the leader that appended the record.

        Returns:
            The epoch; None if the log does not have one.
        """
        return None if self._record.leader_epoch < 0 else self._record.leader_epoch

    def latency(self) -> float | None:
        """Returns None, because the record was read and not sent.

        Returns:
            None.
        """
        return None

    def error(self) -> None:
        """Returns None, because a record that was read is not an error."""
        return

    def __len__(self) -> int:
        return 0 if self._record.value is None else len(self._record.value)

    def __repr__(self) -> str:
        return f"ConfluentMessage({self._record!r})"


def to_confluent(record: Record) -> ConfluentMessage:
    """Wraps a record with the methods of confluent-kafka's Message.

    Args:
        record: A Record that a reader returned.

    Returns:
        The message; it holds the record itself, not a copy.

    Example:
        >>> with kafkalog.open_log("logs", "orders-0") as log:
        ...     offset = log.append(b"value", key=b"key")
        ...     messages = [kafkalog.to_confluent(record) for record in log]
        >>> messages[0].key(), messages[0].value()
        (b'key', b'value')
    """
    return ConfluentMessage(record)
