"""LogValidator: checks produced batches by the topic's rules, assigns offsets, and returns what to write.

There are three ways, as in Kafka's LogValidator (4.4.0). In place: only the header changes, the records' bytes stay.
Conversion: messages of magic 0 and 1 become magic 2. Rebuild: records are decompressed, and written under the topic's
codec. The order of checks is Kafka's, since it decides which error a batch with several faults gets. The input is never
changed. Native code walks the records, once; only a rebuild that changes the records' bytes creates record objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from kafkalog._limits import to_int64
from kafkalog._native.codec.batches import BatchHeader, header_at, restamped_header
from kafkalog._native.codec.crc32c import crc32c
from kafkalog._native.codec.records import BUFFER, OK, SKIP, STREAM
from kafkalog._native.codec.validation import RecordWalk, walk_records
from kafkalog.engine.files import Buffer, Clock
from kafkalog.engine.format import codecs, legacy
from kafkalog.engine.format.batch import (
    CREATE_TIME,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    MemoryRecords,
)
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.legacy import Entry
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import Record, check_readable, readable_payload
from kafkalog.engine.format.records import records as records_of
from kafkalog.engine.log import validation_errors as errors
from kafkalog.engine.log.context import PartitionContext
from kafkalog.engine.log.topic_metrics import MetricsRecorder
from kafkalog.engine.log.types import CURRENT_MAGIC, AppendOrigin, LogAppendInfo, RecordValidationStats, TopicRules
from kafkalog.engine.log.validation_errors import Refusal, TimeRules
from kafkalog.errors import (
    CorruptRecordException,
    InvalidRecordException,
    KafkaException,
    KafkalogError,
    NullPointerException,
    UnsupportedOperationException,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer


CRC_START = 21

CLIENT = AppendOrigin.CLIENT


# RecordValidationStats.EMPTY: nothing was converted. Shared, never modified.
NO_STATS = RecordValidationStats()


@dataclass(slots=True)
class ValidationResult:
    """The batches to write, and their properties.

    `buffers`, joined, are the batches; `headers` are theirs, with positions from the first buffer's start.
    `log_append_time` and `max_timestamp` are in milliseconds; `next_offset` follows the last record.
    """

    log_append_time: int
    buffers: list[Buffer]
    headers: list[BatchHeader]
    max_timestamp: int
    message_size_maybe_changed: bool
    record_validation_stats: RecordValidationStats
    next_offset: int


def validate_append(
    context: PartitionContext,
    data: AnyBuffer,
    info: LogAppendInfo,
    headers: Sequence[BatchHeader],
    origin: AppendOrigin,
    leader_epoch: int,
) -> ValidationResult:
    """Validates a leader's append by the partition's settings; offsets start at `info.first_offset`.

    Raises the same errors as LogValidator. Ordinary batches, which are nearly all, do not come here: see `ordinary.py`.
    """
    validator = LogValidator(
        data, headers, context.topic_partition, context.clock, context.rules, info.source_compression, origin,
        leader_epoch,
    )  # fmt: skip
    return validator.validate_messages_and_assign_offsets(info.first_offset, context.topic_metrics)


class _Checked:
    """One batch whose records may all be appended.

    `payload` is a decompressed v2 batch's records; `entries` are a legacy batch's messages. `record_bytes` counts the
    records with their framing. `sequential`: offsets are 0, 1, 2... `walk` is set for v2.
    """

    __slots__ = ("count", "entries", "max_timestamp", "payload", "record_bytes", "sequential", "walk")

    def __init__(
        self,
        count: int,
        max_timestamp: int,
        record_bytes: int,
        sequential: bool,
        walk: RecordWalk | None = None,
        payload: Buffer | None = None,
        entries: list[Entry] | None = None,
    ) -> None:
        self.count = count
        self.max_timestamp = max_timestamp
        self.record_bytes = record_bytes
        self.sequential = sequential
        self.walk = walk
        self.payload = payload
        self.entries = entries


class LogValidator:
    """LogValidator: one append's batches, and the rules of their topic.

    `data` holds whole batches; `headers` are theirs, with positions from its start.
    """

    __slots__ = (
        "_clock",
        "_data",
        "_headers",
        "_leader_epoch",
        "_metrics",
        "_origin",
        "_rules",
        "_source_codec",
        "_target_codec",
        "_topic_partition",
    )

    def __init__(
        self,
        data: AnyBuffer,
        headers: Sequence[BatchHeader],
        topic_partition: TopicPartition,
        clock: Clock,
        rules: TopicRules,
        source_codec: int,
        origin: AppendOrigin,
        leader_epoch: int,
    ) -> None:
        self._data = data
        self._headers = headers
        self._topic_partition = topic_partition
        self._clock = clock
        self._rules = rules
        self._source_codec = source_codec
        self._target_codec = source_codec if rules.target_codec is None else rules.target_codec
        self._origin = origin
        self._leader_epoch = leader_epoch

    def validate_messages_and_assign_offsets(self, offset_counter: int, metrics: MetricsRecorder) -> ValidationResult:
        """Checks every batch and record, assigns offsets from `offset_counter` on, and returns what to write.

        Raises:
            InvalidRecordException: for a batch.
            RecordValidationException: for records; `record_errors` has all of a batch's.
            CorruptRecordException: for an inner checksum.
            KafkaException: for a payload that does not decompress.
            RecordTooLargeException: for more records than readers decompress.
            IllegalArgumentException: for values that magic 2 cannot hold.
            UnsupportedOperationException: for a kept v2 batch whose inner offsets are not 0, 1, 2...
        """
        self._metrics = metrics
        if self._source_codec == codecs.NONE and self._target_codec == codecs.NONE:
            for header in self._headers:
                if header.magic < CURRENT_MAGIC:
                    return self._convert_uncompressed(offset_counter)
            return self._assign_uncompressed(offset_counter)
        return self._compressed(offset_counter)

    # --- the three ways -------------------------------------------------------------------------

    def _assign_uncompressed(self, next_offset: int) -> ValidationResult:
        """assignOffsetsNonCompressed: changes headers; records stay."""
        now = self._clock.milliseconds()
        first = self._first_batch(codecs.NONE)
        self._validate_batch(first, first)
        walk = self._walk(first, now, BUFFER)
        if walk.verdict != OK or walk.refusals is not None:
            self._raise_walk(walk, now, False)
        return self._kept(first, now, walk.max_timestamp, next_offset + walk.record_count, NO_STATS)

    def _kept(
        self, first: BatchHeader, now: int, max_timestamp: int, next_offset: int, stats: RecordValidationStats
    ) -> ValidationResult:
        """Returns the batch with a new header and unchanged records; `next_offset` follows them."""
        if not self._rules.create_time:
            max_timestamp = now
        head = restamped_header(
            self._data,
            first.position,
            last_offset=next_offset - 1,
            leader_epoch=self._leader_epoch,
            timestamp_type=0 if self._rules.create_time else 1,
            max_timestamp=max_timestamp,
        )
        body = memoryview(self._data)[first.position + len(head) : first.position + first.size]
        return ValidationResult(now, [head, body], [header_at(head)], max_timestamp, False, stats, next_offset)

    def _convert_uncompressed(self, next_offset: int) -> ValidationResult:
        """convertAndAssignOffsetsNonCompressed: puts all records of all batches into one batch of magic 2."""
        now = self._clock.milliseconds()
        start_nanos = self._clock.nanoseconds()
        # Kafka sizes its buffer first, which reads every record: bad structure comes before all other errors.
        decoded = [records_of(self._data, header) for header in self._headers]
        first = self._first_batch(codecs.NONE)
        builder = self._builder(first, next_offset, now, codecs.NONE, None)
        for header, records in zip(self._headers, decoded, strict=True):
            self._validate_batch(first, header)
            refusals = self._refusals(header, now)
            for record in records[: refusals[0].error.batch_index] if refusals else records:
                _append(builder, next_offset, record)
                next_offset += 1
            if refusals:
                errors.refuse(refusals)
        return self._built(builder, now, next_offset, 0, start_nanos)

    def _compressed(self, next_offset: int) -> ValidationResult:
        """validateMessagesAndAssignOffsetsCompressed: the source or the target is compressed.

        Batches are kept unchanged if possible.
        """
        source = self._source_codec
        in_place = source == self._target_codec
        now = self._clock.milliseconds()
        first = self._first_batch(source)
        if first.magic < CURRENT_MAGIC:
            in_place = False
        if source == codecs.NONE and first.is_control:
            in_place = True
        skip = in_place
        max_timestamp, uncompressed_bytes, count = -1, 0, 0
        checked_batches: list[_Checked] = []
        for header in self._headers:
            self._validate_batch(first, header)
            checked = self._check(header, now, skip)
            if header.magic > 0:
                max_timestamp = max(max_timestamp, checked.max_timestamp)
                in_place = in_place and checked.sequential
            uncompressed_bytes += RECORD_BATCH_OVERHEAD + checked.record_bytes
            count += checked.count
            checked_batches.append(checked)
        if self._target_codec != codecs.NONE:
            check_readable(sum(each.record_bytes for each in checked_batches))
        if not in_place:
            if skip and first.is_compressed and count:
                # Kafka has skipped the keys and values by now and cannot rebuild: this is its late error.
                raise UnsupportedOperationException("key is skipped in PartialDefaultRecord")
            return self._rebuild(next_offset, now, first, checked_batches, uncompressed_bytes)
        stats = RecordValidationStats(uncompressed_bytes, 0, 0)
        return self._kept(first, now, max_timestamp, next_offset + count, stats)

    def _rebuild(
        self, next_offset: int, now: int, first: BatchHeader, batches: Sequence[_Checked], uncompressed_bytes: int
    ) -> ValidationResult:
        """buildRecordsAndAssignOffsets: puts all records into one batch under the target codec."""
        start_nanos = self._clock.nanoseconds()
        walk = batches[0].walk
        if walk is not None and walk.canonical and walk.record_count > 0:
            has_producer = first.producer_id != -1
            if first.base_sequence >= 0 and first.producer_epoch != -1 if has_producer else not first.is_transactional:
                payload = batches[0].payload
                if payload is None:
                    payload = memoryview(self._data)[
                        first.position + RECORD_BATCH_OVERHEAD : first.position + first.size
                    ]
                return self._rewrap(next_offset, now, first, walk, payload, uncompressed_bytes, start_nanos)
        builder = self._builder(first, next_offset, now, self._target_codec, self._rules.level)
        for header, checked in zip(self._headers, batches, strict=True):
            if checked.entries is not None:
                records = [entry.to_record() for entry in checked.entries]
            else:
                records = records_of(self._data, header, max_record_bytes=self._rules.max_record_body_bytes)
            for record in records:
                _append(builder, next_offset, record)
                next_offset += 1
        return self._built(builder, now, next_offset, uncompressed_bytes, start_nanos)

    def _rewrap(
        self,
        next_offset: int,
        now: int,
        first: BatchHeader,
        walk: RecordWalk,
        payload: Buffer,
        uncompressed_bytes: int,
        start_nanos: int,
    ) -> ValidationResult:
        """Rebuilds a batch whose records would not change: only codec and header are new."""
        codec, count = self._target_codec, walk.record_count
        body = payload if codec == codecs.NONE else codecs.compress(codec, payload, self._rules.level)
        size = RECORD_BATCH_OVERHEAD + len(body)
        max_timestamp = walk.max_timestamp if self._rules.create_time else now
        attributes = codec | (0 if self._rules.create_time else TIMESTAMP_TYPE_FLAG)
        if first.is_transactional:
            attributes |= TRANSACTIONAL_FLAG
        fields = (
            attributes,
            count - 1,
            walk.first_timestamp,
            max_timestamp,
            first.producer_id,
            first.producer_epoch,
            first.base_sequence,
            count,
        )
        start = (next_offset, size - LOG_OVERHEAD, self._leader_epoch, CURRENT_MAGIC)
        crc = crc32c(body, crc32c(memoryview(HEADER.pack(*start, 0, *fields))[CRC_START:]))
        head = HEADER.pack(*start, crc, *fields)
        stats = RecordValidationStats(
            uncompressed_bytes + RECORD_BATCH_OVERHEAD + len(payload),
            count,
            self._clock.nanoseconds() - start_nanos,
        )
        return ValidationResult(now, [head, body], [header_at(head)], max_timestamp, True, stats, next_offset + count)

    # --- batches --------------------------------------------------------------------------------

    def _first_batch(self, source_codec: int) -> BatchHeader:
        headers = self._headers
        if not headers:
            raise InvalidRecordException("Record batch has no batches at all")
        first = headers[0]
        if len(headers) > 1 and (first.magic >= CURRENT_MAGIC or source_codec != codecs.NONE):
            raise InvalidRecordException("Compressed outer record has more than one batch")
        return first

    def _validate_batch(self, first: BatchHeader, batch: BatchHeader) -> None:
        magic = batch.magic
        if first.magic != magic:
            self._metrics.record_invalid_magic()
            raise InvalidRecordException(
                f"Batch magic {magic} is not the same as the first batch's magic byte {first.magic} in topic partition "
                f"{self._topic_partition}"
            )
        if self._origin is CLIENT:
            if magic >= CURRENT_MAGIC:
                count = batch.count
                offsets = to_int64(batch.last_offset - batch.base_offset + 1)
                if offsets <= 0 or offsets != count:
                    self._raise_offsets(batch, offsets, count)
            if batch.is_control:
                self._metrics.record_invalid_offset()
                raise InvalidRecordException(
                    f"Clients are not allowed to write control records in topic partition {self._topic_partition}"
                )
            if batch.producer_id > -1 and batch.base_sequence < 0:
                self._metrics.record_invalid_sequence()
                raise InvalidRecordException(
                    f"Invalid sequence number {batch.base_sequence} in record batch with producerId "
                    f"{batch.producer_id} in topic partition {self._topic_partition}"
                )

    def _raise_offsets(self, batch: BatchHeader, offsets: int, count: int) -> None:
        self._metrics.record_invalid_offset()
        span = f"[{batch.base_offset}, {batch.last_offset}]"
        if offsets <= 0:
            text = f"Batch has an invalid offset range: {span}"
        elif count <= 0:
            text = f"Invalid reported count for record batch: {count}"
        else:
            text = f"Inconsistent batch offset range {span} and count of records {count}"
        raise InvalidRecordException(f"{text} in topic partition {self._topic_partition}")

    # --- records --------------------------------------------------------------------------------

    def _check(self, header: BatchHeader, now: int, skip: bool) -> _Checked:
        """Checks a batch's records if source or target is compressed, with the reader that Kafka uses there."""
        if header.magic < CURRENT_MAGIC:
            return self._check_legacy(header, now)
        if header.count == 0:
            return _Checked(0, -1, 0, True)
        payload: Buffer | None = None
        failure: KafkalogError | None = None
        reader = BUFFER
        if header.is_compressed:
            reader = SKIP if skip else STREAM
            start = header.position
            compressed = memoryview(self._data)[start + RECORD_BATCH_OVERHEAD : start + header.size]
            # Kafka reads a stream; here the content is held, so its size has a limit.
            bytes_max = self._rules.max_message_bytes if self._target_codec == codecs.NONE else 0
            payload, failure = readable_payload(header.codec, compressed, bytes_max)
        walk = self._walk(header, now, reader, payload)
        if failure is not None:
            if walk.verdict in errors.ENDED_EARLY:
                raise failure
            if walk.verdict == OK:
                raise KafkaException("Error checking for remaining bytes after reading batch") from failure
        if walk.verdict != OK or walk.refusals is not None:
            self._raise_walk(walk, now, reader == SKIP)
        return _Checked(walk.record_count, walk.max_timestamp, walk.record_bytes, walk.sequential, walk, payload)

    def _walk(self, header: BatchHeader, now: int, reader: int, payload: Buffer | None = None) -> RecordWalk:
        return walk_records(
            self._data,
            header.position,
            payload,
            reader,
            self._rules.compacted,
            self._rules.create_time,
            now,
            self._rules.before_max_ms,
            self._rules.after_max_ms,
            self._rules.max_record_body_bytes,
            canonical=reader != SKIP,  # its records are kept unchanged
        )

    def _raise_walk(self, walk: RecordWalk, now: int, skipped: bool) -> NoReturn:
        if walk.missing_keys:
            self._metrics.record_no_key_compacted_topic(walk.missing_keys)
        if walk.verdict != OK:
            raise errors.structure_error(walk)
        errors.refuse(errors.v2_refusals(walk, self._topic_partition, self._times(now), skipped))

    def _refusals(self, header: BatchHeader, now: int) -> list[Refusal]:
        """Returns the refusals of a plain batch."""
        if header.magic < CURRENT_MAGIC:
            return self._legacy_refusals(header, self._entries(header), now)
        walk = self._walk(header, now, BUFFER)
        assert walk.verdict == OK, "the records were read before"
        if walk.missing_keys:
            self._metrics.record_no_key_compacted_topic(walk.missing_keys)
        return errors.v2_refusals(walk, self._topic_partition, self._times(now), False)

    def _entries(self, header: BatchHeader) -> list[Entry]:
        return legacy.entries(
            self._data, header.position, header.size, max_record_bytes=self._rules.max_record_body_bytes
        )

    def _check_legacy(self, header: BatchHeader, now: int) -> _Checked:
        entries = self._entries(header)
        refusals = self._legacy_refusals(header, entries, now)
        if refusals:
            errors.refuse(refusals)
        max_timestamp = max((entry.timestamp for entry in entries), default=-1)
        record_bytes = sum(len(entry.message) + LOG_OVERHEAD for entry in entries)
        sequential = all(entry.offset == index for index, entry in enumerate(entries))
        return _Checked(len(entries), max(max_timestamp, -1), record_bytes, sequential, entries=entries)

    def _legacy_refusals(self, header: BatchHeader, entries: Sequence[Entry], now: int) -> list[Refusal]:
        """validateRecord over the messages of a magic 0 or 1 batch. An inner checksum that fails is raised at once."""
        times, refusals = self._times(now), list[Refusal]()
        for index, entry in enumerate(entries):
            if entry.magic != header.magic:
                self._metrics.record_invalid_magic()
                text = errors.entry_text(entry)
                refusals.append(errors.wrong_magic(index, text, header.magic, self._topic_partition))
                continue
            if header.is_compressed:
                try:
                    entry.ensure_valid()
                except CorruptRecordException:
                    self._metrics.record_invalid_checksums()
                    raise
            if self._rules.compacted and entry.key_and_value()[0] is None:
                self._metrics.record_no_key_compacted_topic()
                refusals.append(errors.no_key(index, self._topic_partition))
                continue
            timestamp = entry.timestamp
            if self._rules.create_time and timestamp != -1:
                age = to_int64(now - timestamp)
                if age > self._rules.before_max_ms or to_int64(-age) > self._rules.after_max_ms:
                    refusals.append(errors.out_of_range(index, timestamp, entry.offset, times))
            elif header.magic > 0 and header.timestamp_type == LOG_APPEND_TIME:
                refusals.append(errors.claims_append_time(index, errors.entry_text(entry)))
        return refusals

    def _times(self, now: int) -> TimeRules:
        return TimeRules(now, self._rules.before_max_ms, self._rules.after_max_ms)

    # --- building -------------------------------------------------------------------------------

    def _builder(
        self, first: BatchHeader, base_offset: int, now: int, codec: int, level: int | None
    ) -> MemoryRecordsBuilder:
        return MemoryRecordsBuilder(
            codec=codec,
            timestamp_type=CREATE_TIME if self._rules.create_time else LOG_APPEND_TIME,
            base_offset=base_offset,
            log_append_time=now,
            producer_id=first.producer_id,
            producer_epoch=first.producer_epoch,
            base_sequence=first.base_sequence,
            is_transactional=first.is_transactional,
            partition_leader_epoch=self._leader_epoch,
            level=level,
        )

    def _built(
        self, builder: MemoryRecordsBuilder, now: int, next_offset: int, uncompressed_bytes: int, start_nanos: int
    ) -> ValidationResult:
        data = builder.build()
        if not data and not self._rules.create_time:
            # As in Kafka, which reads the last offset of a batch without records.
            raise NullPointerException("a batch without records has no last offset")
        max_timestamp = builder.info().max_timestamp
        stats = RecordValidationStats(
            uncompressed_bytes + builder.uncompressed_bytes_written,
            builder.num_records,
            self._clock.nanoseconds() - start_nanos,
        )
        headers = MemoryRecords(data).batches()
        return ValidationResult(now, [data] if data else [], headers, max_timestamp, True, stats, next_offset)


def _append(builder: MemoryRecordsBuilder, offset: int, record: Record) -> None:
    builder.append(record.timestamp, record.key, record.value, record.headers, offset=offset)
