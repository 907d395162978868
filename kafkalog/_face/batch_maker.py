"""Converts a caller's records to v2 batches as a producer would send them.

Each batch is as full as `max.message.bytes` allows, so that one call makes few appends. Timestamps default to now. A
mistake in a record is found before a batch of it exists, by the same check (`_face.rows`) for one record and for many.
Knows the topic's settings; knows nothing of offsets (a leader assigns them) or of producers' state.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kafkalog._face.ready_batches import ReadyBatches
from kafkalog._face.rows import RecordInput, Row, as_headers_column, as_row, as_times, has_entries
from kafkalog._limits import INT_MAX
from kafkalog._native.codec.encode import ColumnEncoder, EncodedBatch
from kafkalog._native.codec.records import OK
from kafkalog.engine.format import codecs
from kafkalog.engine.format.arrow import write_batches
from kafkalog.engine.format.batch import (
    CREATE_TIME,
    NO_PRODUCER,
    RECORD_BATCH_OVERHEAD,
    ProducerFields,
    compute_attributes,
)
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.records import check_readable
from kafkalog.engine.format.values import octets as as_octets
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException, UnsupportedCompressionTypeException
from kafkalog.records import Header

if TYPE_CHECKING:
    from kafkalog.config import LogConfig

RECORD_OVERHEAD_BYTES = 21  # upper bound of the lengths, deltas and attributes of one v2 record (DefaultRecord)
BATCH_BYTES_MAX = 1 << 20
ROWS_AT_ONCE = 50_000
LISTED_AT_ONCE = 500_000
FEW_ROWS = 4


# Records as a caller gives them, checked already, or encoded elsewhere.
Records: TypeAlias = Iterable[RecordInput] | ColumnEncoder | ReadyBatches
# Whether lists of the usual kinds of records are encoded natively; otherwise rows are created first.
# Both ways give the same bytes and errors, which tests compare.
NATIVE_ROWS = True
# A log trusts an EncodedBatch by its type, because our own encoder created it.
Batch: TypeAlias = bytes | EncodedBatch


class BatchMaker:
    """Builds batches for one topic. Has no state after construction."""

    def __init__(self, config: LogConfig, compression: str | None) -> None:
        if compression is None:
            codec = config.compression_codec
            self.codec = codecs.NONE if codec is None else codec
        else:
            self.codec = checked_codec(compression)
        log_codec = self.codec if config.compression_codec is None else config.compression_codec
        self._is_packed = log_codec != codecs.NONE  # whether the log stores it compressed
        self.level = config.compression_level if self.codec == config.compression_codec else None
        self._attributes = [compute_attributes(self.codec, CREATE_TIME, inside) for inside in (False, True)]
        self.written_bytes_max = min(config.max_message_bytes, config.segment_size)
        self.batch_bytes = min(self.written_bytes_max, BATCH_BYTES_MAX)
        self.is_plain = self.codec == codecs.NONE
        if config.compression_codec not in (None, self.codec):
            self.batch_bytes -= min(self.batch_bytes // 2, self.batch_bytes // 32 + 128)  # the log recompresses it

    def batches(
        self, records: Iterable[RecordInput], now_ms: int, producer: ProducerFields = NO_PRODUCER
    ) -> Iterator[Sequence[Batch]]:
        """Yields v2 batches of all `records`. Their base sequences are consecutive if there is a producer.

        All batches of a list come at once; those of any other iterable come for about 50,000 records at a time. Batches
        that come together have been checked, and may be appended together or not at all.
        """
        built = self.at_once(records, now_ms, producer)
        if built is not None:
            yield built
            return
        if not isinstance(records, (list, tuple)):
            for listed in _row_chunks(records, ROWS_AT_ONCE):
                yield list(self._of_rows(listed, now_ms, producer))
                producer = producer._replace(base_sequence=next_sequence(producer.base_sequence, len(listed)))
            return
        if len(records) > LISTED_AT_ONCE:  # too many to keep a second copy as rows: check them first
            for _ in _row_chunks(records, ROWS_AT_ONCE):
                pass
        built = []
        for listed in _row_chunks(records, LISTED_AT_ONCE):
            built += self._of_rows(listed, now_ms, producer)
            producer = producer._replace(base_sequence=next_sequence(producer.base_sequence, len(listed)))
        if built:
            yield built

    def groups(self, records: Records, now_ms: int) -> Iterator[Sequence[Batch]]:
        """Yields as `batches`, and also accepts records that are ready to be encoded."""
        if isinstance(records, (ColumnEncoder, ReadyBatches)):
            built = self.at_once(records, now_ms)
            assert built is not None, records
            return iter([built] if built else [])
        return self.batches(records, now_ms)

    def at_once(self, records: Records, now_ms: int, producer: ProducerFields = NO_PRODUCER) -> Sequence[Batch] | None:
        """Returns as `batches`, for a list or tuple of the usual kinds of records and for records that are ready to be
        encoded; None for anything else."""
        if type(records) is ReadyBatches:
            return records.sent_by(producer)
        encoder = records if type(records) is ColumnEncoder else ready_rows(records, now_ms)
        if encoder is None:
            return None
        if not encoder.rows:
            return []
        few = encoder.rows <= FEW_ROWS and encoder is not records
        if few and encoder.bytes_bound + RECORD_BATCH_OVERHEAD > self.batch_bytes:
            return None  # each record may get its own batch
        if self.codec == codecs.NONE:
            if producer is NO_PRODUCER:
                batch, count, verdict = encoder.encode_batch(0, -1, self.batch_bytes)
            else:
                batch, count, verdict = encoder.encode_batch(
                    0,
                    -1,
                    self.batch_bytes,
                    attributes=self._attributes[producer.transactional],
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    base_sequence=producer.base_sequence,
                )
            if verdict == OK and count == encoder.rows and batch is not None:
                return [batch]
        built = list(self.column_batches(encoder, producer))
        return None if few and len(built) > 1 else built

    def _of_rows(self, listed: Sequence[Row], now_ms: int, producer: ProducerFields) -> Iterator[Batch]:
        built = self.at_once(listed, now_ms, producer)
        if built is not None:
            yield from built
            return
        if len(listed) <= FEW_ROWS:
            yield from self._few(listed, now_ms, producer)
            return
        values, keys, headers, timestamps = zip(*listed, strict=True)
        times = [now_ms if timestamp is None else timestamp for timestamp in timestamps]
        encoder = ColumnEncoder(
            np.array(times, np.int64),
            _packed(keys, "keys"),
            _packed(values, "values"),
            _packed_headers(headers) if any(headers) else None,
        )
        yield from self.column_batches(encoder, producer)

    def _few(self, rows: Sequence[Row], now_ms: int, producer: ProducerFields) -> Iterator[bytes]:
        """Yields one batch of a few rows, or one for each row if they are large. Columns do not pay off here."""
        if sum(map(size_bound, rows)) + RECORD_BATCH_OVERHEAD <= self.batch_bytes:
            batch = self._build(rows, now_ms, producer)
            if len(batch) <= self.written_bytes_max or len(rows) == 1:
                yield batch
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
            builder.append(now_ms if timestamp is None else timestamp, key, value, headers)
        if self._is_packed:
            check_readable(builder.uncompressed_records_size_in_bytes)
        return builder.build()

    def column_batches(self, encoder: ColumnEncoder, producer: ProducerFields = NO_PRODUCER) -> Iterator[EncodedBatch]:
        """Returns v2 batches of encoded columns, as full as `max.message.bytes` allows."""
        return write_batches(
            encoder,
            batch_bytes_max=self.batch_bytes,
            compressed_bytes_max=self.written_bytes_max,
            codec=self.codec,
            level=self.level,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=producer.base_sequence,
            is_transactional=producer.transactional,
            must_be_readable=self._is_packed,
            of_producer=True,
        )


def checked_codec(compression: Any) -> int:
    """Returns the id of a codec. UnsupportedCompressionTypeException for an unknown name."""
    if not isinstance(compression, str) or compression not in codecs.NAMES:
        raise UnsupportedCompressionTypeException(
            f"unknown codec {compression!r}", hint=f"expected one of {', '.join(codecs.NAMES)}"
        )
    return codecs.codec_id(compression)


def ready_rows(records: Records, now_ms: int) -> ColumnEncoder | None:
    """Returns the encoder of a list or tuple whose records are all of the usual kinds; None for anything else."""
    if not NATIVE_ROWS or (isinstance(records, (list, tuple)) and len(records) > LISTED_AT_ONCE):
        return None
    return ColumnEncoder.from_rows(records, now_ms)


def encode_columns(values: Any, keys: Any, headers: Any, timestamps: Any, now_ms: int) -> ColumnEncoder:
    """Returns the encoder of columns of equal length, lists or Arrow arrays, for `BatchMaker.column_batches`.

    IllegalArgumentException for columns of different lengths, and for a value that no record can have.
    """
    columns = {"values": values, "keys": keys, "headers": headers, "timestamps": timestamps}
    given = {name: column for name, column in columns.items() if column is not None or name == "values"}
    for name, column in given.items():
        none = isinstance(column, (Mapping, Set, str, bytes, bytearray, memoryview))
        if none or not hasattr(column, "__len__") or not has_entries(column):
            raise IllegalArgumentException(
                f"{name}: found {shown(column)}, expected a column", hint="a list or an Arrow array, one entry a row"
            )
    speaks_arrow = {name: _speaks_arrow(column) for name, column in given.items()}
    for name, column in given.items():
        # Another thread may change a list, and a class's __len__ may differ from its entries.
        if not speaks_arrow[name] and not isinstance(column, np.ndarray):
            given[name] = list(column)
    for name, column in given.items():
        if len(column) != len(given["values"]):
            raise IllegalArgumentException(f"{name} has {len(column)} entries, values {len(given['values'])}")
    if any(speaks_arrow.values()):
        from kafkalog._face import arrow_columns

        return arrow_columns.encoder(given, now_ms)
    return ColumnEncoder(
        as_times(given.get("timestamps"), len(given["values"]), now_ms),
        _packed(list(given["keys"]), "keys") if "keys" in given else None,
        _packed(list(given["values"]), "values"),
        _packed_headers(as_headers_column(given["headers"])) if "headers" in given else None,
    )


def _speaks_arrow(column: Any) -> bool:
    return hasattr(column, "__arrow_c_array__") or hasattr(column, "__arrow_c_stream__")


def _packed(column: Sequence[Any], what: str) -> tuple[np.ndarray, bytes, np.ndarray | None]:
    """Returns (offsets, data, validity bits) of a list of bytes and Nones, in Arrow's layout."""
    ends = np.zeros(len(column) + 1, np.int64)
    if set(map(type, column)) == {bytes}:
        np.cumsum(np.fromiter(map(len, column), np.int64, len(column)), out=ends[1:])
        return ends, b"".join(column), None
    octets = [as_octets(entry, f"{what}[{row}]") for row, entry in enumerate(column)]
    np.cumsum([0 if entry is None else len(entry) for entry in octets], out=ends[1:])
    bits = None
    if None in octets:
        bits = np.packbits([entry is not None for entry in octets], bitorder="little")
    return ends, b"".join([entry or b"" for entry in octets]), bits


def _packed_headers(column: Sequence[tuple[Header, ...]]) -> tuple[np.ndarray, Any, Any]:
    ends = np.zeros(len(column) + 1, np.int64)
    np.cumsum(list(map(len, column)), out=ends[1:])
    pairs = [pair for headers in column for pair in headers]
    names = _packed([name.encode() for name, _ in pairs], "a header's key")
    return ends, names, _packed([value for _, value in pairs], "a header's value")


def next_sequence(sequence: int, count: int) -> int:
    """Returns the sequence number `count` records later. It wraps from 2^31-1 to 0, and -1 (none) stays."""
    return sequence if sequence < 0 else (sequence + count) & INT_MAX


def _row_chunks(records: Iterable[RecordInput], at_once: int) -> Iterator[list[Row]]:
    """Yields rows, so many records at a time. An error names the record's number if there are several."""
    entries = iter(records)
    first = 0
    while True:
        listed: list[Row] = []
        try:
            # One by one: a generator may write the next record into the buffer that it yielded.
            listed.extend(map(as_row, itertools.islice(entries, at_once)))
        except IllegalArgumentException as error:
            if not (isinstance(records, (list, tuple)) and len(records) == 1):
                error.message = f"record {first + len(listed)}: {error.message}"
            raise
        if not listed:
            return
        yield listed
        first += len(listed)


def size_bound(row: Row) -> int:
    """Returns an upper bound of the bytes that a record takes in a batch."""
    value, key, headers, _ = row
    size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
    for name, content in headers:
        size += 10 + 4 * len(name) + len(content or b"")
    return size
