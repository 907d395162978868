"""Batches in memory: the header's layout, framing as MemoryRecords reads it, and validation.

`HEADER` is the only description of the 61 header bytes in Python.  Its counterpart in C is `_native/codec/layout.pxd`,
and a test compares the two.  Sources: DefaultRecordBatch, ByteBufferLogInputStream, MemoryRecords (4.4.0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._limits import INT_MAX, to_int32
from kafkalog._native.codec import batches as native
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.format.octets import octets
from kafkalog.errors import CorruptRecordException, IllegalArgumentException

if TYPE_CHECKING:
    import os

    from typing_extensions import Buffer

    from kafkalog._native.codec.batches import BatchHeader

# base offset, length of everything after these first 12 bytes, leader epoch, magic, CRC-32C, attributes, last offset
# delta, base timestamp, max timestamp, producer id, producer epoch, base sequence, record count.
HEADER = struct.Struct(">qiibIhiqqqhii")
# Kafka's names of these fields.
HEADER_FIELDS = (
    "baseOffset", "batchLength", "partitionLeaderEpoch", "magic", "crc", "attributes", "lastOffsetDelta",
    "baseTimestamp", "maxTimestamp", "producerId", "producerEpoch", "baseSequence", "recordsCount",
)  # fmt: skip
# Positions at which fields begin.  The fields up to the magic byte are the same in all magics, except for the CRC of
# magic 0 and 1.
LENGTH_AT, LEGACY_CRC_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT = (
    struct.calcsize(HEADER.format[: 1 + fields]) for fields in (1, 2, 3, 4, 5)
)
LOG_OVERHEAD = LEGACY_CRC_AT
HEADER_SIZE_UP_TO_MAGIC = CRC_AT
RECORD_BATCH_OVERHEAD = HEADER.size
MIN_RECORD_OVERHEAD = 14  # overhead of a magic-0 record
SMALLEST_BATCH_BYTES = LOG_OVERHEAD + MIN_RECORD_OVERHEAD

CODEC_MASK = 0x07
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

NO_TIMESTAMP_TYPE = "NoTimestampType"
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


class ProducerFields(NamedTuple):
    """The producer fields of a batch header; -1 if the batch has no producer."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


NO_PRODUCER = ProducerFields()


def declared_size(data: bytes | memoryview, at: int = 0) -> int:
    """Returns the size in bytes of the batch that begins at `at`, as its length field declares it, without a check.

    `data` must hold at least 12 bytes from `at` on.
    """
    return LOG_OVERHEAD + int.from_bytes(data[at + LENGTH_AT : at + LOG_OVERHEAD], "big", signed=True)


def smallest_bytes(magic: int) -> int:
    """Returns the smallest size of a batch of that magic: its header, and for magic 0 and 1 also a record's."""
    return RECORD_BATCH_OVERHEAD if magic >= 2 else SMALLEST_BATCH_BYTES


def magic_byte(data: bytes | memoryview, at: int = 0) -> int:
    """Returns the magic of the batch that begins at `at`, as a signed byte."""
    return int.from_bytes(data[at + MAGIC_AT : at + CRC_AT], "big", signed=True)


def increment_sequence(sequence: int, increment: int) -> int:
    """DefaultRecordBatch.incrementSequence: sequence numbers wrap from 2^31-1 to 0, like Java's ints."""
    if sequence > to_int32(INT_MAX - increment):
        return to_int32(increment - (INT_MAX - sequence) - 1)
    return to_int32(sequence + increment)


def decrement_sequence(sequence: int, decrement: int) -> int:
    """DefaultRecordBatch.decrementSequence."""
    if sequence < decrement:
        return to_int32(INT_MAX - (decrement - sequence) + 1)
    return to_int32(sequence - decrement)


class MemoryRecords:
    """A buffer of batches that is produced, fetched or built (Kafka's MemoryRecords).

    A partial batch at the end is ignored, as in Kafka; `valid_bytes` is the end of the last whole batch.  `buffer` is
    bytes or a view of bytes of the C-contiguous buffer that was given.
    """

    __slots__ = ("_batches", "_valid_bytes", "buffer")

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = octets(buffer, "records")
        self._batches: list[BatchHeader] | None = None
        self._valid_bytes = 0

    @property
    def size(self) -> int:
        """The length of the buffer in bytes, including a partial batch at its end."""
        return len(self.buffer)

    def batches(self) -> list[BatchHeader]:
        """Returns the headers of all whole batches, with positions relative to the buffer.

        Raises CorruptRecordException if a size is below 14 or a magic is not 0, 1 or 2.
        """
        if self._batches is None:
            found, verdict, position = native.headers(self.buffer, framing=native.FRAMING_BUFFER)
            if verdict in (native.BAD_SIZE, native.BAD_MAGIC):
                raise framing_error(self.buffer, verdict, position)
            self._batches = found
            self._valid_bytes = found[-1].position + found[-1].size if found else 0
        return self._batches

    @property
    def valid_bytes(self) -> int:
        self.batches()
        return self._valid_bytes

    def __iter__(self) -> Iterator[BatchHeader]:
        return iter(self.batches())


def framing_error(view: bytes | memoryview, verdict: int, position: int) -> CorruptRecordException:
    """Returns MemoryRecords' error for the batch at `position`, for a verdict BAD_SIZE or BAD_MAGIC."""
    if verdict == native.BAD_SIZE:
        size = declared_size(view, position) - LOG_OVERHEAD
        # If a batch of magic 2 is too short, Kafka reads the rest of its header from the bytes that follow it.
        least = MIN_RECORD_OVERHEAD if size < MIN_RECORD_OVERHEAD else RECORD_BATCH_OVERHEAD - LOG_OVERHEAD
        text = f"Record size {size} is less than the minimum record overhead ({least})"
    else:
        text = f"Invalid magic found in record: {magic_byte(view, position)}"
    return CorruptRecordException(text, position=position)


def ensure_valid(
    data: Buffer, header: BatchHeader, *, at: int | None = None, path: str | os.PathLike[str] | None = None
) -> None:
    """RecordBatch.ensureValid: raises CorruptRecordException if the batch is too small or its CRC does not match.

    `at` is the batch's position in `data` if that differs from `header.position`.  `path` is put into the error.
    """
    start = header.position if at is None else at
    if header.magic >= 2 and header.size < RECORD_BATCH_OVERHEAD:
        raise CorruptRecordException(
            f"Record batch is corrupt (the size {header.size} is smaller than the minimum allowed overhead "
            f"{RECORD_BATCH_OVERHEAD})",
            path=path,
            position=header.position,
        )
    computed = native.compute_crc(data, start, header.size)
    if computed != header.crc:
        raise CorruptRecordException(
            f"Record is corrupt (stored crc = {header.crc}, computed crc = {computed})",
            path=path,
            position=header.position,
        )


# --- write ----------------------------------------------------------------------------------------


def compute_attributes(
    codec: int,
    timestamp_type: str,
    is_transactional: bool = False,
    is_control: bool = False,
    is_delete_horizon_set: bool = False,
) -> int:
    """Returns the attributes of a magic-2 batch (DefaultRecordBatch.computeAttributes)."""
    if timestamp_type == NO_TIMESTAMP_TYPE:
        raise IllegalArgumentException(
            "Timestamp type must be provided to compute attributes for message format v2 and above"
        )
    return (
        codec
        | (TIMESTAMP_TYPE_FLAG if timestamp_type == LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_FLAG if is_transactional else 0)
        | (CONTROL_FLAG if is_control else 0)
        | (DELETE_HORIZON_FLAG if is_delete_horizon_set else 0)
    )


# More than eight parameters: they are the header's fields, passed by name.
def write_header(
    payload: Buffer,
    *,
    base_offset: int,
    last_offset_delta: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer: ProducerFields = NO_PRODUCER,
    partition_leader_epoch: int = -1,
    count: int,
) -> bytes:
    """Returns the 61 bytes that precede `payload`, including the CRC (DefaultRecordBatch.writeHeader, magic 2).

    Whether the batch is transactional comes from `attributes`, not from `producer`.
    """
    if base_timestamp < 0 and base_timestamp != -1:
        raise IllegalArgumentException(f"Invalid message timestamp {base_timestamp}")
    size = RECORD_BATCH_OVERHEAD + len(octets(payload, "payload"))
    fields = [
        base_offset, size - LOG_OVERHEAD, partition_leader_epoch, 2, 0, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer.producer_id, producer.producer_epoch, producer.base_sequence, count,
    ]  # fmt: skip
    head = HEADER.pack(*fields)
    fields[4] = crc32c(payload, crc32c(head[ATTRIBUTES_AT:]))
    return HEADER.pack(*fields)
