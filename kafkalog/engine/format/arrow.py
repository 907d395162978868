"""Converts batches to columns in Arrow's layout and back, without an Arrow library.

Spark, pandas and polars accept these columns without a conversion.  `read_columns` decodes a run of batches of any
magic and codec into `RecordColumns`.  `write_batches` builds batches from columns.  Both handle uncompressed magic-2
batches in one native call.  They work batch by batch only if a codec or an old format requires it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kafkalog._limits import ARRAY_BYTES_MAX, INT_MAX, LONG_MAX, LONG_MIN
from kafkalog._native.codec import batches as native_batches
from kafkalog._native.codec import decode, encode
from kafkalog._native.codec.arrow import RecordColumns
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog._native.codec.encode import ColumnEncoder, EncodedBatch
from kafkalog._native.codec.records import BAD_BOUNDS, OK
from kafkalog.engine.format import codecs, legacy
from kafkalog.engine.format.batch import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_FLAG,
    ProducerFields,
    compute_attributes,
    increment_sequence,
    write_header,
)
from kafkalog.engine.format.octets import octets
from kafkalog.engine.format.records import MAX_RECORD_BYTES, check_readable, record_error
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, KafkalogError

if TYPE_CHECKING:
    import os

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer


# More than eight parameters: they are keyword options of one call, so no object holds them.
def add_batches(
    builder: ColumnBuilder,
    data: Buffer,
    table: NDArray[np.void],
    start_row: int = 0,
    *,
    base_position: int = 0,
    skip: Buffer | None = None,
    skip_control: bool = False,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_bytes: int = ARRAY_BYTES_MAX,
    path: str | os.PathLike[str] | None = None,
) -> int:
    """Adds the records of the batches in a scan's `table` to `builder`, from `start_row` on; returns the row reached.

    The result is the table's length, or less if the builder is full (2 GiB a column).  The caller then calls
    `builder.finish` and continues from that row.  `data` is the buffer that was scanned, with the same `base_position`.
    `skip` has one byte a row; 1 omits the batch (aborted transactions).  `skip_control` omits control batches.  Errors
    are those of `records.records`, with `path` and the batch's position.
    """
    view = memoryview(octets(data, "records"))
    row = start_row
    decoders = codecs.frame_decoders()
    while row < len(table):
        row, verdict, _, expected, found = builder.append_table(
            view, table, row, base_position=base_position, skip=skip, skip_control=skip_control,
            decoders=decoders, max_body=max_record_bytes, max_payload=max_bytes,
        )  # fmt: skip
        if verdict == OK:
            break
        try:
            if verdict == decode.NEEDS_PAYLOAD:
                verdict = _add_one(builder, view, table[row], base_position, max_record_bytes, max_bytes)
                row += verdict == OK
            elif verdict == BAD_BOUNDS:
                raise CorruptRecordException("A batch extends beyond its buffer")
            elif verdict != decode.FULL:
                raise record_error(verdict, expected, found)
        except KafkalogError as error:
            error.path = error.path or (None if path is None else str(path))
            error.position = int(table[row]["position"])
            raise
        if verdict == decode.FULL:
            if builder.rows == 0:
                raise IllegalArgumentException("A batch holds more than 2 GiB in one column")
            break
    return row


def _add_one(
    builder: ColumnBuilder, view: memoryview, row: Any, base_position: int, max_record_bytes: int, max_bytes: int
) -> int:
    at = int(row["position"]) - base_position
    size = int(row["size"])
    if row["magic"] < 2:
        return builder.append_records(
            legacy.records(view, at, size, max_record_bytes=max_record_bytes, max_bytes=max_bytes)
        )
    attributes, count = int(row["attributes"]), int(row["record_count"])
    if count == 0:
        return OK
    codec = attributes & CODEC_MASK
    payload, failure = codecs.decompress_partial(
        codec, view[at + RECORD_BATCH_OVERHEAD : at + size], max_bytes=max_bytes
    )
    if failure is not None:
        del payload  # otherwise the traceback keeps it alive
        raise failure
    verdict, _, expected, found = builder.append_payload(
        payload,
        count,
        int(row["base_offset"]),
        int(row["base_timestamp"]),
        int(row["max_timestamp"]) if attributes & TIMESTAMP_TYPE_FLAG else None,
        max_body=max_record_bytes,
    )
    if verdict not in (OK, decode.FULL):
        raise record_error(verdict, expected, found)
    return verdict


# More than eight parameters: they are the keyword options of ColumnBuilder and `add_batches`.
def read_columns(
    data: Buffer,
    table: NDArray[np.void] | None = None,
    *,
    base_position: int = 0,
    keys: bool = True,
    values: bool = True,
    headers: bool = True,
    timestamp_types: bool = False,
    null_empty_headers: bool = False,
    offset_min: int = LONG_MIN,
    offset_max: int = LONG_MAX,
    skip: Buffer | None = None,
    skip_control: bool = False,
    max_record_bytes: int = MAX_RECORD_BYTES,
    path: str | os.PathLike[str] | None = None,
) -> Iterator[RecordColumns]:
    """Yields the records of `data` as columns: one RecordColumns, or more if a column exceeds 2 GiB.

    `table` is what `_native.batches.scan` found in `data`.  If it is None, this function scans `data` without checking
    checksums, up to its end or the first damage.  The column and offset options are those of ColumnBuilder.  The other
    options and the errors are those of `add_batches`.
    """
    if table is None:
        table, _, _ = native_batches.scan(data, base_position=base_position, check_crc=False, max_batches=INT_MAX)
    builder = ColumnBuilder(
        keys=keys,
        values=values,
        headers=headers,
        timestamp_types=timestamp_types,
        null_empty_headers=null_empty_headers,
        offset_min=offset_min,
        offset_max=offset_max,
    )
    row, first = 0, True
    while first or row < len(table):
        first = False
        row = add_batches(
            builder,
            data,
            table,
            row,
            base_position=base_position,
            skip=skip,
            skip_control=skip_control,
            max_record_bytes=max_record_bytes,
            path=path,
        )
        yield builder.finish()


_WRITE_ERRORS = {
    encode.BAD_TIMESTAMP: "Invalid negative timestamp in row {row}",
    encode.BAD_OFFSET: "Illegal offset in row {row} (Offsets must increase monotonically, by less than 2^31 a batch).",
    encode.BAD_COLUMN: "Row {row} points outside its column, or has a null header key",
    encode.TOO_LONG: "Row {row} is larger than the largest possible record",
}


# More than eight parameters: they are MemoryRecordsBuilder's keyword options.
def write_batches(
    columns: ColumnEncoder | Any,
    *,
    base_offset: int = 0,
    batch_bytes_max: int = 1 << 20,
    compressed_bytes_max: int = INT_MAX,
    codec: int = codecs.NONE,
    level: int | None = None,
    timestamp_type: str = CREATE_TIME,
    log_append_time: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    partition_leader_epoch: int = -1,
    must_be_readable: bool = False,
    of_producer: bool = False,
) -> Iterator[EncodedBatch]:
    """Yields magic-2 batches of the columns' rows.

    A batch has at most `batch_bytes_max` bytes before compression, or a single row.  If a compressed batch exceeds
    `compressed_bytes_max`, it gets fewer rows, as a producer's batch does.  `columns` is a ColumnEncoder or any object
    with `__arrow_c_array__` (see ColumnEncoder.from_arrow).  Offsets count up from `base_offset`, unless the columns
    contain offsets.  The options and the bytes are those of MemoryRecordsBuilder for the same records.
    IllegalArgumentException names the first row that cannot be written.  With `must_be_readable` (for a log that keeps
    batches compressed), a row that readers would refuse to decompress raises RecordTooLargeException.  With
    `of_producer`, each batch begins at `base_offset`.
    """
    encoder = columns if isinstance(columns, ColumnEncoder) else ColumnEncoder.from_arrow(columns)
    attributes = compute_attributes(codec, timestamp_type, is_transactional)
    append_time = log_append_time if timestamp_type == LOG_APPEND_TIME else None
    row, offset, sequence = 0, base_offset, base_sequence
    while row < encoder.rows:
        if codec == codecs.NONE:
            batch, next_row, verdict = encoder.encode_batch(
                row,
                -1,
                batch_bytes_max,
                base_offset=offset,
                attributes=attributes,
                log_append_time=append_time,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
                leader_epoch=partition_leader_epoch,
            )
        else:
            batch = None
            payload, next_row, base_timestamp, max_timestamp, verdict = encoder.encode(
                row, -1, batch_bytes_max - RECORD_BATCH_OVERHEAD
            )
        if verdict != OK:
            raise IllegalArgumentException(_WRITE_ERRORS[verdict].format(row=next_row))
        count = next_row - row
        if must_be_readable:
            check_readable(len(payload) if batch is None else batch.record_bytes)
        if batch is None:
            first, last = encoder.offset_at(row), encoder.offset_at(next_row - 1)
            if first is None or last is None:
                first, last = offset, offset + count - 1
            body = codecs.compress(codec, payload, level)
            excess = RECORD_BATCH_OVERHEAD + len(body) - compressed_bytes_max
            if excess > 0 and count > 1:
                batch_bytes_max = RECORD_BATCH_OVERHEAD + max(1, len(payload) - 2 * excess)
                continue
            header = write_header(
                body,
                base_offset=first,
                last_offset_delta=last - first,
                attributes=attributes,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp if append_time is None else append_time,
                producer=ProducerFields(producer_id, producer_epoch, sequence),
                partition_leader_epoch=partition_leader_epoch,
                count=count,
            )
            batch = encoder.packed(payload, b"".join((header, body)))
        yield batch
        row = next_row
        if not of_producer:
            offset += count
        if sequence >= 0:
            sequence = increment_sequence(sequence, count)
