"""From a caller's records to v2 batches as a producer would send them.

Each batch is as full as `max.message.bytes` allows, so that one call makes few appends; timestamps default to now.
Knows the topic's settings; nothing of offsets (a leader gives them) or producers' state.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from kafkalog.errors import IllegalArgumentException, UnsupportedCompressionTypeException
from kafkalog.format import codecs
from kafkalog.format.arrow import ColumnEncoder, write_batches
from kafkalog.format.builder import MemoryRecordsBuilder
from kafkalog.topics.records import Header

if TYPE_CHECKING:
    from kafkalog.config import LogConfig

HEADER_BYTES = 61
RECORD_OVERHEAD_BYTES = 21  # the most that lengths, deltas and attributes of one v2 record take (DefaultRecord)
BATCH_BYTES_MAX = 1 << 20
ROWS_AT_ONCE = 50_000
FEW_ROWS = 4
PLAIN = (bytes, type(None))
ABSENT: tuple[Any, ...] = (None, (), None)  # key, headers and timestamp of a record that does not say

WHOLE = {int, type(None)}
# What building a batch raises when a field is of the wrong type; IllegalArgumentException is a ValueError.
MISTAKES = (TypeError, AttributeError, ValueError, OverflowError, struct.error)

RecordInput: TypeAlias = Any  # bytes | None | (value, key[, headers[, timestamp]]) | an object with these attributes
Row: TypeAlias = tuple[bytes | None, bytes | None, Sequence[Header], int | None]


class ProducerFields(NamedTuple):
    """What an idempotent batch says of its producer."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


NO_PRODUCER = ProducerFields()
NO_OFFSET = bytes(8)


class Appender:
    """Builds batches for one topic; stateless after construction."""

    def __init__(self, config: LogConfig, compression: str | None) -> None:
        if compression is None:
            codec = config.compression_codec
            self.codec = codecs.NONE if codec is None else codec
        else:
            if compression not in codecs.NAMES:
                raise UnsupportedCompressionTypeException(
                    f"unknown codec {compression!r}", hint=f"expected one of {', '.join(codecs.NAMES)}"
                )
            self.codec = codecs.codec_id(compression)
        self.level = config.compression_level if self.codec == config.compression_codec else None
        self.batch_bytes = min(config.max_message_bytes, BATCH_BYTES_MAX)

    def batches(
        self, records: Iterable[RecordInput], now_ms: int, producer: ProducerFields = NO_PRODUCER
    ) -> Iterator[bytes | bytearray]:
        """v2 batches of all `records`; their base sequences follow one another when there is a producer."""
        rows = iter(records)
        while listed := [as_row(record) for record in itertools.islice(rows, ROWS_AT_ONCE)]:
            try:
                yield from self._of_rows(listed, now_ms, producer)
            except MISTAKES as error:
                mistake = mistake_in(listed)
                if mistake is None:
                    raise
                raise mistake from error
            producer = producer._replace(base_sequence=next_sequence(producer.base_sequence, len(listed)))

    def _of_rows(self, listed: Sequence[Row], now_ms: int, producer: ProducerFields) -> Iterator[bytes | bytearray]:
        if len(listed) <= FEW_ROWS:
            yield from self._few(listed, now_ms, producer)
            return
        values, keys, headers, timestamps = zip(*listed, strict=True)
        if not set(map(type, timestamps)) <= WHOLE:
            timestamps = tuple(None if timestamp is None else operator.index(timestamp) for timestamp in timestamps)
        times = [now_ms if timestamp is None else timestamp for timestamp in timestamps]
        encoder = encode_columns(values, keys, headers if any(headers) else None, times, now_ms)
        yield from self.column_batches(encoder, producer)

    def _few(self, rows: Sequence[Row], now_ms: int, producer: ProducerFields) -> Iterator[bytes]:
        """A handful of rows: one batch, unless they are large; columns are not worth their preparation."""
        if sum(map(_size_bound, rows)) + HEADER_BYTES <= self.batch_bytes:
            yield self._build(rows, now_ms, producer)
            return
        for row in rows:
            yield self._build([row], now_ms, producer)
            producer = producer._replace(base_sequence=next_sequence(producer.base_sequence, 1))

    def _build(self, rows: Sequence[Row], now_ms: int, producer: ProducerFields) -> bytes:
        builder = MemoryRecordsBuilder(
            codec=self.codec,
            level=self.level,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=producer.base_sequence,
            is_transactional=producer.transactional,
        )
        for value, key, headers, timestamp in rows:
            builder.append(now_ms if timestamp is None else timestamp, key, value, headers or ())
        return builder.build()

    def column_batches(self, encoder: ColumnEncoder, producer: ProducerFields = NO_PRODUCER) -> Iterator[bytearray]:
        """v2 batches of encoded columns, as full as `max.message.bytes` allows."""
        for batch in write_batches(
            encoder,
            batch_bytes_max=self.batch_bytes,
            codec=self.codec,
            level=self.level,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=producer.base_sequence,
            is_transactional=producer.transactional,
        ):
            data = bytearray(batch)
            data[:8] = NO_OFFSET  # a producer's batch begins at offset 0; the CRC does not cover it
            yield data


def encode_columns(
    values: Sequence[Any],
    keys: Sequence[Any] | None,
    headers: Sequence[Sequence[Header]] | None,
    timestamps: Sequence[Any] | None,
    now_ms: int,
) -> ColumnEncoder:
    """Columns of equal length, lists or Arrow arrays, for `Appender.column_batches`.

    IllegalArgumentException for columns of different lengths, or of a type that records do not have.
    """
    count = len(values)
    for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
        if column is not None and len(column) != count:
            raise IllegalArgumentException(f"{name} has {len(column)} entries, values {count}")
    times: Any = np.full(count, now_ms, np.int64) if timestamps is None else timestamps
    try:
        if hasattr(values, "__arrow_c_array__"):
            return _arrow_encoder(values, keys, headers, times)
        return ColumnEncoder(
            np.asarray(times, np.int64),
            None if keys is None else _packed(keys, "keys"),
            _packed(values, "values"),
            None if headers is None else _packed_headers(headers),
        )
    except (TypeError, OverflowError, ValueError) as error:
        raise IllegalArgumentException(f"columns that do not fit: {error}") from error


def _arrow_encoder(values: Any, keys: Any, headers: Any, timestamps: Any) -> ColumnEncoder:
    import pyarrow as pa

    columns = {"value": values, "key": keys, "timestamp": pa.array(timestamps), "headers": headers}
    given = {
        name: column if hasattr(column, "__arrow_c_array__") else pa.array(column)
        for name, column in columns.items()
        if column is not None
    }
    return ColumnEncoder.from_arrow(pa.RecordBatch.from_pydict(given))


def _packed(column: Sequence[Any], what: str) -> tuple[np.ndarray, bytes, np.ndarray | None]:
    """(offsets, data, validity bits) of a list of bytes and Nones, in Arrow's layout."""
    ends = np.zeros(len(column) + 1, np.int64)
    if set(map(type, column)) == {bytes}:
        np.cumsum(np.fromiter(map(len, column), np.int64, len(column)), out=ends[1:])
        return ends, b"".join(column), None
    octets = [_octets(entry, what) for entry in column]
    np.cumsum([0 if entry is None else len(entry) for entry in octets], out=ends[1:])
    bits = None
    if None in octets:
        bits = np.packbits([entry is not None for entry in octets], bitorder="little")
    return ends, b"".join([entry or b"" for entry in octets]), bits


def _packed_headers(column: Sequence[Sequence[Header]]) -> tuple[np.ndarray, Any, Any]:
    ends = np.zeros(len(column) + 1, np.int64)
    np.cumsum([len(headers or ()) for headers in column], out=ends[1:])
    pairs = [pair for headers in column for pair in headers or ()]
    names = _packed([name.encode() for name, _ in pairs], "a header's key")
    return ends, names, _packed([value for _, value in pairs], "a header's value")


def next_sequence(sequence: int, count: int) -> int:
    """The sequence number `count` records on; wraps from 2^31-1 to 0, and -1 (none) stays."""
    return sequence if sequence < 0 else (sequence + count) & 0x7FFFFFFF


def check_records(records: Any) -> None:
    """IllegalArgumentException when `records` is one record, or nothing that one can go through."""
    if isinstance(records, (bytes, bytearray, memoryview, str)):
        raise IllegalArgumentException(
            f"found a single {type(records).__name__}, expected several records",
            hint="append() takes one record; append_many([...]) a list of them",
        )
    if not isinstance(records, Iterable):
        raise IllegalArgumentException(
            f"found {type(records).__name__}, expected records", hint="a list, a generator, anything to go through"
        )


def check_milliseconds(timestamp: Any, what: str = "timestamp") -> None:
    """IllegalArgumentException when `timestamp` is no whole number."""
    try:
        operator.index(timestamp)
    except TypeError:
        raise IllegalArgumentException(
            f"{what}: found {type(timestamp).__name__} {timestamp!r}, expected milliseconds since 1970 as an int",
            hint="such as int(time.time() * 1000), or int(when.timestamp() * 1000) of a datetime",
        ) from None


def mistake_in(rows: Sequence[Row]) -> IllegalArgumentException | None:
    """What is wrong with the first wrong row; None when they are all well formed."""
    for number, (_, _, headers, timestamp) in enumerate(rows):
        where = f"record {number}: " if len(rows) > 1 else ""
        if timestamp is not None:
            try:
                check_milliseconds(timestamp, f"{where}timestamp")
            except IllegalArgumentException as error:
                return error
            if not -(1 << 63) <= timestamp < 1 << 63:
                return IllegalArgumentException(f"{where}timestamp: {timestamp} does not fit into 64 bits")
        wrong = _wrong_header(headers)
        if wrong is not None:
            return IllegalArgumentException(
                f"{where}headers: found {wrong}, expected pairs of str and bytes (or None)",
                hint='such as [("trace", b"1")]; a dict wants list(headers.items()), text wants .encode()',
            )
    return None


def _wrong_header(headers: Any) -> str | None:
    if headers is None:
        return None
    if isinstance(headers, (Mapping, str, bytes)) or not isinstance(headers, Iterable):
        return f"a {type(headers).__name__}"
    for header in headers:
        if not isinstance(header, (tuple, list)) or len(header) != 2:
            return repr(header)
        name, content = header
        if not isinstance(name, str) or not isinstance(content, (bytes, bytearray, memoryview, type(None))):
            return repr(header)
    return None


def as_row(record: RecordInput) -> Row:
    """(value, key, headers, timestamp) of whatever a caller may give as a record."""
    if type(record) is bytes or record is None:
        return (record, None, (), None)
    if type(record) is tuple and 1 <= len(record) <= 4:
        row: Row = record + ABSENT[len(record) - 1 :] if len(record) < 4 else record
        if type(row[0]) in PLAIN and type(row[1]) in PLAIN:
            return row
        return (_octets(row[0], "value"), _octets(row[1], "key"), row[2], row[3])
    if isinstance(record, (bytearray, memoryview)):
        return (bytes(record), None, (), None)
    if hasattr(record, "value") and hasattr(record, "key"):
        timestamp = getattr(record, "timestamp", None)
        if timestamp is not None and timestamp < 0:
            timestamp = None
        return (
            _octets(record.value, "value"),
            _octets(record.key, "key"),
            tuple(getattr(record, "headers", None) or ()),
            timestamp,
        )
    raise IllegalArgumentException(
        f"found {type(record).__name__} as a record",
        hint="expected bytes, None, a tuple (value, key, headers, timestamp), or an object with these attributes",
    )


def _octets(data: Any, what: str) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise IllegalArgumentException(
        f"{what}: found {type(data).__name__}, expected bytes or None", hint="text wants .encode()"
    )


def _size_bound(row: Row) -> int:
    value, key, headers, _ = row
    size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
    for name, content in headers or ():
        size += 10 + 4 * len(name) + len(content or b"")
    return size
