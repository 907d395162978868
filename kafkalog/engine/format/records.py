"""Decodes the records of batches of any magic and codec, with Kafka's errors (DefaultRecordBatch, DefaultRecord 4.4.0).

It returns a Python object for each record; `kafkalog.engine.format.arrow` returns columns.  It does not check the CRC,
as in Kafka (see `batch.ensure_valid`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkalog._limits import ARRAY_BYTES_MAX, INT_MAX
from kafkalog._native.codec import records as native
from kafkalog._native.codec.records import Record
from kafkalog.engine.format import codecs, legacy
from kafkalog.engine.format.batch import HEADER, RECORD_BATCH_OVERHEAD, TIMESTAMP_TYPE_FLAG
from kafkalog.engine.format.octets import octets
from kafkalog.errors import CorruptRecordException, InvalidRecordException, KafkalogError, RecordTooLargeException

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkalog._native.codec.batches import BatchHeader

__all__ = [
    "MAX_RECORD_BYTES",
    "READ_BYTES_MAX",
    "Record",
    "base_offset",
    "check_readable",
    "first",
    "in_parts",
    "iterate",
    "offset_of_max_timestamp",
    "payload",
    "readable_payload",
    "record_error",
    "records",
    "stream",
]

# Longest body that a record of a compressed batch may have (the default of max.decompressed.message.bytes).
MAX_RECORD_BYTES = ARRAY_BYTES_MAX
FIRST_RECORD_BYTES = 64 << 20
PART_RECORDS = 1 << 16
STREAM_BYTES_MAX = 512 << 20  # Kafka's streams have no limit, but they do not hold the payload in memory either
# Readers and tools decompress at most this much of one batch by default, and a decompression bomb raises an error. So a
# compressed batch that is appended may not hold more.
READ_BYTES_MAX = 128 << 20


def check_readable(records_bytes: int) -> None:
    """Raises RecordTooLargeException if readers would refuse to decompress that many bytes of one batch."""
    if records_bytes > READ_BYTES_MAX:
        raise _unreadable(f"{records_bytes}", READ_BYTES_MAX)


def _unreadable(found: str, bytes_max: int) -> RecordTooLargeException:
    return RecordTooLargeException(
        f"a compressed batch with {found} bytes of records, readers accept at most {bytes_max}",
        hint="write smaller records or batches, or without compression (the topic's compression.type as well)",
    )


def readable_payload(codec: int, data: Buffer, bytes_max: int = 0) -> tuple[bytes, CorruptRecordException | None]:
    """Decompresses the records of a batch that is appended, as `codecs.decompress_partial` does.

    Raises RecordTooLargeException for more bytes than readers accept (or `bytes_max`), whatever else is wrong with
    them: then no more than these are held in memory.
    """
    bytes_max = max(bytes_max, READ_BYTES_MAX)
    payload, failure = codecs.decompress_partial(codec, data, max_bytes=bytes_max)
    if isinstance(failure, codecs.ContentTooLargeException):
        del payload  # otherwise the traceback keeps it alive
        raise _unreadable(f"more than {bytes_max}", bytes_max)
    return payload, failure


def records(
    data: Buffer,
    header: BatchHeader,
    *,
    at: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_bytes: int = ARRAY_BYTES_MAX,
) -> list[Record]:
    """Returns all records of one batch.

    `at` is the batch's position in `data` if that differs from `header.position`.  `max_record_bytes` limits each
    record of a compressed batch, `max_bytes` the whole decompressed payload.

    Raises InvalidRecordException for records that break the format.  Raises KafkaException (also a
    CorruptRecordException) for a payload that does not decompress.  Raises IllegalArgumentException (also a
    CorruptRecordException) for an unknown codec, or an invalid varint as a length in an uncompressed batch.
    """
    found, error = _read(data, header, at, max_record_bytes, max_bytes)
    if error is not None:
        del found  # otherwise the traceback keeps it alive
        raise error
    return found


def stream(
    data: Buffer, header: BatchHeader, *, at: int | None = None, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Record]:
    """Yields the records like `records`, but raises an error only at the bad record (RecordBatch.streamingIterator).

    Bytes left after the last declared record are detected before that record is yielded.  So it is never yielded if the
    batch declares fewer records than it has.  A compressed batch of no records is opened nevertheless.
    """
    if header.magic < 2:
        yield from records(data, header, at=at, max_record_bytes=max_record_bytes, max_bytes=STREAM_BYTES_MAX)
        return
    start = header.position if at is None else at
    view = memoryview(data).cast("B")[start : start + header.size]
    if len(view) < RECORD_BATCH_OVERHEAD:
        raise _no_header(view)
    body, failure = view[RECORD_BATCH_OVERHEAD:], None
    if header.codec != codecs.NONE:
        codecs.check_codec(header.codec)
        if header.count <= 0:
            codecs.check_opening(header.codec, body)
        else:
            whole, failure = codecs.decompress_partial(header.codec, body, max_bytes=STREAM_BYTES_MAX)
            body = memoryview(whole)
    for part in _parts(body, failure, header, max_record_bytes):
        yield from part


def iterate(data: Buffer, header: BatchHeader) -> Iterator[Record]:
    """Yields the records as RecordBatch.iterator does.

    It is like `stream`, but yields all or no records of a compressed batch, and does not open an empty one.
    """
    if header.is_compressed or header.count == 0:
        yield from records(data, header)
    else:
        yield from stream(data, header)


def base_offset(data: Buffer, header: BatchHeader) -> int:
    """RecordBatch.baseOffset: a compressed batch of magic 0 or 1 must be decompressed for it."""
    if header.magic >= 2 or not header.is_compressed:
        return header.base_offset
    return legacy.base_offset(data, header)


def _parts(
    rest: memoryview, failure: KafkalogError | None, header: BatchHeader, max_record_bytes: int
) -> Iterator[list[Record]]:
    """Yields the records of a payload in lists of at most PART_RECORDS; `failure` is why the payload ends early."""
    left = header.count
    while True:
        found, verdict, reached, expected, present = native.read_records(
            rest,
            min(left, PART_RECORDS),
            header.base_offset,
            header.base_timestamp,
            header.max_timestamp if header.log_append else None,
            header.base_sequence,
            header.is_compressed,
            max_record_bytes,
        )
        left -= len(found)
        if left > 0 and verdict in (native.OK, native.BYTES_LEFT):
            yield found
            rest = rest[reached:]
            continue
        if verdict == native.OK and failure is None:
            yield found
            return
        if verdict in (native.OK, native.BYTES_LEFT):
            found = found[:-1]
        yield found
        if verdict == native.OK:
            raise codecs.KafkaException("Error checking for remaining bytes after reading batch") from failure
        if failure is not None and verdict in (native.PREMATURE_END, native.SHORT_STREAM):
            raise failure
        raise record_error(verdict, expected, present)


def _no_header(view: memoryview) -> InvalidRecordException:
    return InvalidRecordException(f"A batch of {len(view)} bytes is too short for its header")


def _read(
    data: Buffer,
    header: BatchHeader,
    at: int | None,
    max_record_bytes: int,
    max_bytes: int,
    *,
    count_max: int = INT_MAX,
) -> tuple[list[Record], KafkalogError | None]:
    """Returns the records before the first one that breaks the format, and the error of that one."""
    start = header.position if at is None else at
    if header.magic < 0:  # the framing of a file accepts it, that of a reader does not
        raise CorruptRecordException(f"Invalid magic found in record: {header.magic}")
    if header.magic < 2:
        found = legacy.records(data, start, header.size, max_record_bytes=max_record_bytes, max_bytes=max_bytes)
        return found, None
    view = memoryview(octets(data, "records"))[start : start + header.size]
    if len(view) < RECORD_BATCH_OVERHEAD:
        raise _no_header(view)
    fields = HEADER.unpack_from(view)
    base_offset, attributes, base_timestamp, max_timestamp = fields[0], fields[5], fields[7], fields[8]
    base_sequence, count = fields[11], fields[12]
    if count == 0:
        return [], None
    codec = attributes & 7
    codecs.check_codec(codec)
    body: Buffer = view[RECORD_BATCH_OVERHEAD:]
    if codec != codecs.NONE:
        if count < 0:
            codecs.check_opening(codec, body)
        body, failure = codecs.decompress_partial(codec, body, max_bytes=max_bytes)
        if failure is not None and not body and count > 0:
            raise failure
    else:
        failure = None
    found, verdict, _, expected, present = native.read_records(
        body,
        min(count, count_max),
        base_offset,
        base_timestamp,
        max_timestamp if attributes & TIMESTAMP_TYPE_FLAG else None,
        base_sequence,
        codec != codecs.NONE,
        max_record_bytes,
    )
    if failure is not None and verdict in (native.OK, native.PREMATURE_END, native.SHORT_STREAM):
        return found, failure  # the stream broke before a record did
    if verdict != native.OK:
        return found, record_error(verdict, expected, present)
    return found, None


def first(data: Buffer, header: BatchHeader, *, at: int | None = None) -> Record | None:
    """Returns the first record of a magic-2 batch and ignores the others.

    It reads at most the first 64 MiB of a compressed payload.  Its errors are those of `records` that Kafka's iterator
    would raise on its first step.
    """
    found, error = _read(data, header, at, MAX_RECORD_BYTES, FIRST_RECORD_BYTES, count_max=1)
    if error is not None and (not found or header.count == 1):
        raise error
    return found[0] if found else None


def in_parts(
    data: Buffer,
    header: BatchHeader,
    *,
    at: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_bytes: int = ARRAY_BYTES_MAX,
) -> Iterator[list[Record]]:
    """Yields the records in lists of at most PART_RECORDS, so that a small batch of many records uses little
    memory."""
    if header.magic < 2 or header.count <= PART_RECORDS:
        yield records(data, header, at=at, max_record_bytes=max_record_bytes, max_bytes=max_bytes)
        return
    codecs.check_codec(header.codec)
    yield from _parts(memoryview(payload(data, header, at=at, max_bytes=max_bytes)), None, header, max_record_bytes)


def payload(data: Buffer, header: BatchHeader, *, at: int | None = None, max_bytes: int = ARRAY_BYTES_MAX) -> Buffer:
    """Returns the encoded records of a magic-2 batch: a view of `data` if it is not compressed, otherwise new bytes.

    Raises KafkaException (also a CorruptRecordException) if it does not decompress.
    """
    start = (header.position if at is None else at) + RECORD_BATCH_OVERHEAD
    body = memoryview(octets(data, "records"))[start : start + header.size - RECORD_BATCH_OVERHEAD]
    if header.codec == codecs.NONE:
        return body
    return codecs.decompress(header.codec, body, magic=header.magic, max_bytes=max_bytes)


def offset_of_max_timestamp(
    data: Buffer, header: BatchHeader, *, at: int | None = None, max_record_bytes: int = MAX_RECORD_BYTES
) -> int | None:
    """RecordBatch.offsetOfMaxTimestamp: the first record with the batch's largest timestamp; None for magic 0."""
    if header.magic == 0:
        return None
    for record in stream(data, header, at=at, max_record_bytes=max_record_bytes):
        if record.timestamp == header.max_timestamp:
            return record.offset
    return None


def record_error(verdict: int, expected: int, found: int) -> KafkalogError:
    """Returns Kafka's error for a verdict of any code that walked over records (`_native/codec/record.pxd`)."""
    text = _TEXTS[verdict].format(expected=expected, found=found)
    return codecs.IllegalArgumentException(text) if verdict == native.LONG_VARINT else InvalidRecordException(text)


_SIZE = "Invalid record size: "
_TEXTS: dict[int, str] = {
    native.NEGATIVE_COUNT: "Found invalid record count {found} in magic v2 batch",
    native.PREMATURE_END: "Incorrect declared batch size, premature EOF reached",
    native.LONG_VARINT: "Varint is too long, the most significant bit in the 5th byte is set, "
    "converted value: {found:x}",
    native.NEGATIVE_SIZE: _SIZE + "{found} is negative.",
    native.SIZE_OVER_LIMIT: _SIZE + "{found} exceeds the configured maximum record size of {expected}.",
    native.SHORT_STREAM: _SIZE + "expected {expected} bytes in record payload, but the record payload reached EOF.",
    native.SHORT_BUFFER: _SIZE
    + "expected {expected} bytes in record payload, but instead the buffer has only {found} remaining bytes.",
    native.BAD_STRUCTURE: "Found invalid record structure",
    native.NEGATIVE_HEADER_COUNT: "Found invalid number of record headers {found}",
    native.EXCESS_HEADER_COUNT: "Found invalid number of record headers. {found} is larger than the remaining size "
    "of the buffer",
    native.NEGATIVE_HEADER_KEY: "Invalid negative header key size {found}",
    native.SIZE_MISMATCH: _SIZE + "expected to read {expected} bytes in record payload, but instead read {found}",
    native.SHORT_SKIP: "Reached end of input stream before skipping all bytes. Remaining bytes:{found}",
    native.BYTES_LEFT: "Incorrect declared batch size, records still remaining in file",
}
