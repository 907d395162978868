"""filter_to: takes batches, and returns what a pass keeps of each: all of it, a rebuilt batch, its header, or nothing.

A batch of which every record stays is copied byte by byte.  A batch that loses a record, or gets a delete horizon, is
rebuilt: with magic 2, the same codec at its default level, and the same base offset, last offset, producer and sequence
numbers.  A delete horizon takes the place of the base timestamp, and the records' deltas count from it.  Batches of
magic 0 and 1 are always rebuilt; they then begin at the first record that stays and end at the last.

The plain path handles every batch: any magic, any codec, one after the other.  `_native.survivors` handles the usual
batches, many in one call, with the same resulting bytes; a test runs both paths.  Mirrors MemoryRecords.filterTo
(4.4.0).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kafkalog._limits import to_int64
from kafkalog._native.codec import batches as native
from kafkalog._native.codec.survivors import Survivors
from kafkalog.engine.cleaner.io_buffers import Chunk
from kafkalog.engine.cleaner.payload import inflated, payload_of
from kafkalog.engine.cleaner.stored import Stored, has_value, parsed, stored_records
from kafkalog.engine.cleaner.survival import BatchRetention, Survival
from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    ProducerFields,
)
from kafkalog.engine.format.builder import MemoryRecordsBuilder, empty_batch_header
from kafkalog.engine.format.records import PART_RECORDS, Record
from kafkalog.errors import IllegalArgumentException, IllegalStateException, KafkalogError

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader

NO_HORIZON = -1


@dataclass(slots=True)
class FilterResult:
    """The result of filtering.  `output` is whole batches; `max_offset` is the offset to pass to the append."""

    bytes_read: int = 0
    messages_read: int = 0
    messages_retained: int = 0
    bytes_retained: int = 0
    max_offset: int = -1
    output: bytearray = field(default_factory=bytearray)

    def add(self, batch: bytes | memoryview, messages: int, max_timestamp: int, last_offset: int, offset: int) -> None:
        """Adds a batch that stays.

        `messages`: how many records it has.  `offset`: the offset of its last record, if that is known.
        Raises IllegalArgumentException for offsets below 0.
        """
        if max_timestamp != -1 and last_offset < 0:
            raise IllegalArgumentException(f"shallowOffset undefined for maximum timestamp {max_timestamp}")
        if offset < 0:
            raise IllegalArgumentException("maxOffset undefined")
        self.output += batch
        self.max_offset = max(self.max_offset, offset)
        self.messages_retained += messages
        self.bytes_retained += len(batch)


def filter_to(chunk: Chunk, row: int, survival: Survival, result: FilterResult, output_bytes_max: int) -> int:
    """Filters the batches of a chunk's table from `row` on into `result`.  Returns the row after the last one.

    Ends once the output exceeds `output_bytes_max`.  An error for a batch that does not parse, or cannot be rebuilt,
    names its place.
    """
    while row < len(chunk.table) and len(result.output) <= output_bytes_max:
        row = _take_usual(chunk, row, survival, result, output_bytes_max - len(result.output))
        if row == len(chunk.table) or len(result.output) > output_bytes_max:
            break
        header = native.headers_from_table(chunk.table[row : row + 1])[0]
        try:
            _filter_batch(chunk, row, header, survival, result)
        except KafkalogError as error:
            chunk.with_place(error, header.position)
            raise
        row += 1
    return row


def _take_usual(chunk: Chunk, row: int, survival: Survival, result: FilterResult, room: int) -> int:
    """Handles usual batches in bulk.

    Returns the row of the first unusual batch, the end of the table, or the row after the batch with which the output
    exceeded `room` bytes.
    """
    survivors = survival.survivors
    inflate = partial(inflated, survival.terms.max_record_bytes)
    row = survivors.take(chunk.data, chunk.table, row, room=room, inflate=inflate, deflate=codecs.compress)
    _take_over(survivors, survival, result)
    return row


def _take_over(survivors: Survivors, survival: Survival, result: FilterResult) -> None:
    """Adds what the native loop counted and wrote since the last call."""
    result.max_offset = max(result.max_offset, survivors.max_offset)
    bytes_read, messages_read, messages_retained, bytes_retained, invalid, tombstones = survivors.counted()
    result.bytes_read += bytes_read
    result.messages_read += messages_read
    result.messages_retained += messages_retained
    result.bytes_retained += bytes_retained
    survival.stats.invalid_messages_read += invalid
    survival.stats.tombstones += tombstones
    survival.stats.superseded += messages_read - messages_retained - invalid - tombstones
    if survivors.size:
        result.output += survivors.bytes()


def _take_vouched(chunk: Chunk, row: int, header: BatchHeader, survival: Survival, result: FilterResult) -> bool | None:
    """Handles a batch record by record in native code.

    Returns whether a record stays; None if the plain path must handle it.
    """
    payload = payload_of(chunk.data, header, survival.terms.max_record_bytes)
    if payload is None:
        return None
    survivors = survival.survivors
    made = survivors.take_batch(chunk.data, chunk.table, row, payload if header.codec else None)
    if made is None:
        return None
    if not isinstance(made, bool):
        survivors.add_batch(made[1], codecs.compress(header.codec, made[0]))
    _take_over(survivors, survival, result)
    return made is not False


def _filter_batch(chunk: Chunk, row: int, header: BatchHeader, survival: Survival, result: FilterResult) -> None:
    data = chunk.data
    decision = survival.check_batch(data, header)
    if not decision.discards_records and not header.is_control:
        stays = _take_vouched(chunk, row, header, survival, result)
        if stays is False and decision.retention is BatchRetention.RETAIN_EMPTY:
            _add_header_alone(header, result)
        if stays is not None:
            return
    result.bytes_read += header.size
    if decision.retention is BatchRetention.DELETE:
        survival.count_discarded(header, header.count)
        return
    terms = survival.terms
    records = stored_records(data, header, terms.max_record_bytes)
    kept: list[Stored] = []
    count = 0
    while part := list(itertools.islice(records, PART_RECORDS)):
        count += len(part)
        kept += survival.retained(header, decision, part)
    result.messages_read += count
    if decision.discards_records:
        survival.count_discarded(header, count)
    if not kept:
        if decision.retention is BatchRetention.RETAIN_EMPTY:
            _add_header_alone(header, result)
        return
    horizon_ms = header.delete_horizon_ms
    has_tombstone = not all(has_value(record) for record in kept)
    if horizon_ms is None and (has_tombstone or decision.is_marker_of_empty_txn):
        horizon_ms = to_int64(terms.now_ms + terms.delete_retention_ms)
    elif len(kept) == count and header.magic >= 2:
        whole = data[header.position : header.position + header.size]
        result.add(whole, count, header.max_timestamp, header.last_offset, header.last_offset)
        return
    builder = _rebuilt(header, parsed(kept), NO_HORIZON if horizon_ms is None else horizon_ms)
    batch = builder.build()
    max_offset = max([record.offset for record in kept])
    result.add(batch, len(kept), *builder.info(), max_offset)


def _rebuilt(header: BatchHeader, kept: list[Record], horizon_ms: int) -> MemoryRecordsBuilder:
    """Rebuilds a batch with these records.  IllegalArgumentException if they do not fit a batch of magic 2."""
    timestamp_type = CREATE_TIME if header.timestamp_type == NO_TIMESTAMP_TYPE else header.timestamp_type
    builder = MemoryRecordsBuilder(
        codec=header.codec,
        timestamp_type=timestamp_type,
        base_offset=header.base_offset if header.magic >= 2 else kept[0].offset,
        log_append_time=header.max_timestamp if timestamp_type == LOG_APPEND_TIME else -1,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control_batch=header.is_control,
        partition_leader_epoch=header.leader_epoch,
        delete_horizon_ms=horizon_ms,
    )
    for record in kept:
        builder.append_record(record)
    if header.magic >= 2:
        builder.override_last_offset(header.last_offset)
    return builder


def _add_header_alone(header: BatchHeader, result: FilterResult) -> None:
    result.add(_header_alone(header), 0, header.max_timestamp, header.last_offset, header.last_offset)


def _header_alone(header: BatchHeader) -> bytes:
    """Returns the 61 bytes kept of a producer's last batch, or of the last batch below the high watermark."""
    if header.magic < 2:
        raise IllegalStateException("Empty batches are only supported for magic v2 and above")
    return empty_batch_header(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        timestamp_type=header.timestamp_type,
        timestamp=header.max_timestamp,
        producer=ProducerFields(
            header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional
        ),
        partition_leader_epoch=header.leader_epoch,
        is_control_batch=header.is_control,
    )
