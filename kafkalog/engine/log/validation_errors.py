"""The errors of LogValidator: for bad structure, and for records that are refused.

Native code detects them (`kafkalog._native.codec.validation`), this file raises them. Source: LogValidator's messages
(4.4.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from kafkalog._limits import to_int64
from kafkalog._native.codec import records
from kafkalog._native.codec import validation as native
from kafkalog.engine.format.codecs import NAMES
from kafkalog.engine.format.legacy import Entry
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import record_error
from kafkalog.engine.log.types import RecordError
from kafkalog.errors import (
    IllegalArgumentException,
    InvalidRecordException,
    InvalidTimestampException,
    KafkalogError,
    RecordValidationException,
)

# Verdicts of a payload that ends early. If the payload itself did not decode, that is the error.
ENDED_EARLY = frozenset({records.PREMATURE_END, records.SHORT_STREAM, records.SHORT_SKIP, records.BAD_STRUCTURE})


class Refusal(NamedTuple):
    """A record that may not be appended. `by_time` decides which error the producer gets."""

    error: RecordError
    by_time: bool
    hint: str = ""  # set if a setting decides


class TimeRules(NamedTuple):
    """The current time and the allowed distance of a record's timestamp, in milliseconds; for the message."""

    now: int
    before_max_ms: int
    after_max_ms: int


def structure_error(walk: native.RecordWalk) -> KafkalogError:
    """Returns the error for a walk whose verdict is not OK."""
    assert walk.verdict != records.BAD_BOUNDS, "headers and data belong together"
    error = record_error(walk.verdict, walk.expected, walk.found)
    # For a client's data it is the argument that is bad, not stored bytes.
    return IllegalArgumentException(str(error)) if walk.verdict == records.LONG_VARINT else error


def v2_refusals(
    walk: native.RecordWalk, topic_partition: TopicPartition, times: TimeRules, skipped: bool
) -> list[Refusal]:
    """Returns the refusals of a walk over a v2 batch.

    `skipped`: by the reader that knows only sizes of keys and values.
    """
    found: list[Refusal] = []
    for index, kind, timestamp, offset, key_size, value_size in walk.refusals or ():
        if kind == native.NO_KEY:
            found.append(no_key(index, topic_partition))
        elif kind == native.TIMESTAMP_OUT_OF_RANGE:
            found.append(out_of_range(index, timestamp, offset, times))
        else:
            if not skipped:
                key_size, value_size = max(key_size, 0), max(value_size, 0)
            name = "PartialDefaultRecord" if skipped else "DefaultRecord"
            found.append(
                claims_append_time(
                    index,
                    f"{name}(offset={offset}, timestamp={timestamp}, key={key_size} bytes, value={value_size} bytes)",
                )
            )
    return found


def no_key(index: int, topic_partition: TopicPartition) -> Refusal:
    text = f"Compacted topic cannot accept message without key in topic partition {topic_partition}"
    return Refusal(RecordError(index, text), False)


def wrong_magic(index: int, record: str, magic: int, topic_partition: TopicPartition) -> Refusal:
    text = f"Record {record}'s magic does not match outer magic {magic} in topic partition {topic_partition}"
    return Refusal(RecordError(index, text), False)


def out_of_range(index: int, timestamp: int, offset: int, times: TimeRules) -> Refusal:
    earliest, latest = to_int64(times.now - times.before_max_ms), to_int64(times.now + times.after_max_ms)
    text = (
        f"Timestamp {timestamp} of message with offset {offset} is out of range. "
        f"The timestamp should be within [{earliest}, {latest}]"
    )
    if timestamp > latest:
        bound = f"at most {latest} (now + message.timestamp.after.max.ms={times.after_max_ms})"
    else:
        bound = f"at least {earliest} (now - message.timestamp.before.max.ms={times.before_max_ms})"
    return Refusal(RecordError(index, text), True, f"timestamp {timestamp}, expected {bound}")


def claims_append_time(index: int, record: str) -> Refusal:
    text = f"Invalid timestamp type in message {record}. Producer should not set timestamp type to LogAppendTime."
    return Refusal(RecordError(index, text), True)


def entry_text(entry: Entry) -> str:
    """A magic 0 or 1 record as Kafka prints it."""
    key, value = entry.key_and_value()
    time = f"{entry.timestamp_type}={entry.timestamp}, " if entry.magic > 0 else ""
    return (
        f"LegacyRecordBatch(offset={entry.offset}, Record(magic={entry.magic}, attributes={entry.message[5]}, "
        f"compression={NAMES[entry.codec]}, crc={int.from_bytes(entry.message[:4], 'big')}, {time}"
        f"key={0 if key is None else len(key)} bytes, value={0 if value is None else len(value)} bytes))"
    )


def refuse(refusals: Sequence[Refusal]) -> NoReturn:
    """Raises RecordValidationException for one batch's refusals; time errors decide its kind."""
    errors = [refusal.error for refusal in refusals]
    invalid: KafkalogError
    if any(refusal.by_time for refusal in refusals):
        invalid = InvalidTimestampException("One or more records have been rejected due to invalid timestamp")
    else:
        shown = ", ".join(f"RecordError(batchIndex={e.batch_index}, message='{e.message}')" for e in errors[:3])
        invalid = InvalidRecordException(
            f"One or more records have been rejected due to {len(errors)} record errors in total, "
            f"and only showing the first three errors at most: [{shown}]"
        )
    error = RecordValidationException(str(invalid))
    error.invalid_exception = invalid
    error.record_errors = list(errors)
    first = next((refusal for refusal in refusals if refusal.by_time), None)
    if first is not None and first.hint:
        error.hint = f"the first refused record is record {first.error.batch_index} of its batch: {first.hint}"
    raise error from invalid
