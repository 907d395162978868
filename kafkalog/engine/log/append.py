"""The append path: admit, offsets and validation, leader epochs, roll, producers, write and advance.

It works on a PartitionState; UnifiedLog calls it. The steps and their order are those of Kafka's UnifiedLog.append
(4.4.0). The effects of a step (the epoch entry, the roll) stay if a later step refuses. Where to look: `segment_for`
asks whether the batches need a new segment, and SegmentTail decides. `_check_producers` finds the effects on producers
and transactions, and the commit applies them and moves the high watermark.

The same code serves leaders and followers, ordinary batches and all others. The first step chooses the fast path for a
client's ordinary batch: whole, good, kept unchanged, continuing its producer's sequence. Then one native call
(`Watermarks.append_ordinary`) checks that the other steps have nothing to change, and writes; it uses the same rules. A
single record may become a batch in such a call (`append_row`). `ordinary.py` chooses between the two.

Before the lock, nothing is known of the log's state; after it, everything runs under the lock. The last step is one
native call (`Watermarks.commit`). Nothing that the log has promised changes before it, and after it only a flush may
remain. The caller's buffer is never changed, and not read twice if others may change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec.batches import FRAMING_BUFFER, OK, TORN, crc_matches
from kafkalog._native.codec.batches import headers as scan_headers
from kafkalog._native.codec.java_hash import JavaHashMap, long_hash
from kafkalog._native.codec.validation import OrdinaryBatch
from kafkalog._native.state.log_end import OPEN, ProducerChange
from kafkalog._native.state.tail import WRITTEN
from kafkalog.engine.files import Buffer
from kafkalog.engine.format.batch import CREATE_TIME, MemoryRecords
from kafkalog.engine.format.codecs import check_codec
from kafkalog.engine.format.octets import frozen
from kafkalog.engine.format.records import base_offset, iterate
from kafkalog.engine.log import ordinary
from kafkalog.engine.log.partition import PartitionState
from kafkalog.engine.log.producer_append import BatchMetadata, CompletedTxn, ProducerAppendInfo, ProducerStateEntry
from kafkalog.engine.log.replay import update_producers
from kafkalog.engine.log.types import TV_UNKNOWN, AppendOrigin, LogAppendInfo, RecordValidationStats
from kafkalog.engine.log.validator import NO_STATS, validate_append
from kafkalog.engine.log.verification import VerificationGuard
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.transaction_index import aborted_txn_of
from kafkalog.engine.segment.types import LogOffsetMetadata
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    InvalidProducerEpochException,
    InvalidRecordException,
    InvalidTxnStateException,
    OffsetsOutOfOrderException,
    RecordBatchTooLargeException,
    RecordTooLargeException,
    UnexpectedAppendOffsetException,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer as AnyBuffer

    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog._native.codec.encode import EncodedBatch

CLIENT = AppendOrigin.CLIENT
COORDINATOR = AppendOrigin.COORDINATOR
REPLICATION = AppendOrigin.REPLICATION
RAFT_LEADER = AppendOrigin.RAFT_LEADER


class AppendTerms(NamedTuple):
    """Who appends, and what follows from that.

    A follower keeps offsets and sizes unchanged. A leader that passes on replicated batches assigns offsets, and limits
    sizes as for a client.
    """

    origin: AppendOrigin
    assigns_offsets: bool = True
    verification_guard: VerificationGuard = VerificationGuard.SENTINEL
    transaction_version: int = TV_UNKNOWN


CLIENT_TERMS = AppendTerms(AppendOrigin.CLIENT)
COORDINATOR_TERMS = AppendTerms(AppendOrigin.COORDINATOR)
FOLLOWER_TERMS = AppendTerms(AppendOrigin.REPLICATION, assigns_offsets=False)


def append(
    log: PartitionState, records: Buffer | EncodedBatch | MemoryRecords, leader_epoch: int, terms: AppendTerms
) -> LogAppendInfo:
    """UnifiedLog.append: appends one or more whole batches. Bytes of an incomplete last batch are ignored."""
    metadata_file = log.partition_metadata_file
    if metadata_file is not None and metadata_file.dirty_topic_id is not None:
        log.maybe_flush_metadata_file()
    given: AnyBuffer | EncodedBatch = records.buffer if isinstance(records, MemoryRecords) else records

    # Admit. An ordinary batch is written completely in here.
    batch: OrdinaryBatch | None = None
    stats = NO_STATS
    try:
        if terms is CLIENT_TERMS:
            done = ordinary.append(log, given, leader_epoch)
            if isinstance(done, LogAppendInfo):
                return done
            if done is not None:
                batch, stats = done
        elif terms.origin is COORDINATOR:
            whole = ordinary.of_coordinator(log, given, leader_epoch)
            if isinstance(whole, LogAppendInfo):
                return whole
            batch = whole
    except (OverflowError, OSError) as error:
        _fail(log, error)
    if batch is None:
        data = frozen(given, "batches")
        info, headers = analyze(log, data, terms, leader_epoch)
        if info.valid_bytes <= 0:
            return info
    local = log.local_log
    with log.lock:
        if local.log_dir_failure_channel.any_offline or local.life != OPEN:
            local.check_appendable()
        if log.unfinished is not None or log.lock.busy:
            log.settle()
        if local.ordinary_rules is None:
            log.refuse_lost_end()
        try:
            log.lock.busy = True

            # Offsets and validation.
            buffers: Sequence[Buffer]
            if batch is not None:
                batch.date(local.clock.milliseconds())
                buffers = batch.place(local.next_offset_metadata[0], leader_epoch)
                headers = [batch]
                info = batch.told(LogAppendInfo, log.log_start_offset, stats)
            elif terms.assigns_offsets:
                info.first_offset = local.next_offset_metadata[0]
                buffers, headers = _validate(log, data, info, headers, terms, leader_epoch)
            else:
                if info.first_or_last_offset_of_first_batch < local.next_offset_metadata[0]:
                    raise _unexpected_offset(log, data, info, headers)
                buffers = [data if info.valid_bytes == len(data) else memoryview(data)[: info.valid_bytes]]

            # Leader epochs: a new one is on disk before anything can refuse the append.
            size, has_producers = _assign_epochs(log, headers)

            # Roll.
            segment = segment_for(log, size, info)

            # Producers.
            continued: ProducerStateEntry | None = None
            change: ProducerChange | None = None
            if has_producers:
                if terms is CLIENT_TERMS and batch is not None:
                    continued = log.producer_state_manager.continued_entry(batch)
                if continued is None:
                    place = LogOffsetMetadata(
                        info.first_or_last_offset_of_first_batch, segment.base_offset, segment.size
                    )
                    found = _check_producers(log, place, buffers, headers, terms)
                    if isinstance(found, BatchMetadata):
                        return _repeated(log, info, found)
                    change = _change_of(log, segment, *found)

            # Write and advance.
            last_offset = info.last_offset
            written = tuple(buffers)
            if headers:  # a batch without records that was rebuilt leaves none
                segment.check_append(last_offset, size)
            _commit(log, segment, written, headers, last_offset, continued, change)
            log.finish_append(last_offset)
            return info
        except (OverflowError, OSError) as error:
            _fail(log, error)
        finally:
            log.lock.busy = False


def append_row(log: PartitionState, row: tuple[Any, ...], batch_bytes: int) -> int:
    """Appends one record of a client, as a plain batch of at most `batch_bytes`. Returns its offset.

    Returns -1, with nothing done, if the record must become a batch first.
    """
    metadata_file = log.partition_metadata_file
    if metadata_file is not None and metadata_file.dirty_topic_id is not None:
        return -1
    try:
        return ordinary.append_row(log, row, batch_bytes)
    except (OverflowError, OSError) as error:
        _fail(log, error)


def _assign_epochs(log: PartitionState, headers: Sequence[BatchHeader]) -> tuple[int, bool]:
    """Records the batches' epochs. Returns their bytes, and whether a batch has a producer."""
    size = 0
    has_producers = False
    for header in headers:
        size += header.size
        if header.magic >= 2:
            log.leader_epoch_cache.assign(header.leader_epoch, header.base_offset)
            if header.producer_id > -1:
                has_producers = True
        elif log.leader_epoch_cache.non_empty:
            log.context.logger.warning("message format v%d clears the leader epochs", header.magic)
            log.leader_epoch_cache.clear_and_flush()
    return size, has_producers


def _commit(
    log: PartitionState,
    segment: LogSegment,
    buffers: tuple[Buffer, ...],
    headers: list[BatchHeader],
    last_offset: int,
    continued: ProducerStateEntry | None,
    change: ProducerChange | None,
) -> None:
    while (refused := log.commit(segment.tail, buffers, headers, last_offset, continued, change)) != WRITTEN:
        aborts = change is not None and change.aborted is not None
        _pins = segment.make_ready(refused, buffers, headers, aborts=aborts)


def _fail(log: PartitionState, error: OverflowError | OSError) -> NoReturn:
    if isinstance(error, OverflowError):
        raise IllegalArgumentException(
            f"No offset is left for {log.topic_partition}: its log ends at {log.log_end_offset}", path=log.context.dir
        ) from error
    context = log.context
    context.raise_offline(f"Error while appending records to {log.topic_partition} in dir {context.parent_dir}", error)


def analyze(
    log: PartitionState, data: bytes | bytearray | memoryview, terms: AppendTerms, leader_epoch: int
) -> tuple[LogAppendInfo, list[BatchHeader]]:
    """analyzeAndValidateRecords: checks each batch shallowly, without the lock.

    Returns the batches that may be appended.
    """
    origin = terms.origin
    batches, verdict, _ = scan_headers(data, 0, -1, framing=FRAMING_BUFFER)
    first_offset = last_offset = max_timestamp = last_offset_of_first_batch = -1
    last_leader_epoch = -1
    source_codec = 0
    valid_bytes = 0
    monotonic = True
    config = log.context.config
    max_message_bytes = INT_MAX if terms is FOLLOWER_TERMS else config.max_message_bytes
    for index, batch in enumerate(batches):
        batch_epoch = batch.leader_epoch
        if origin is CLIENT:
            if batch.base_offset != 0 and batch.magic >= 2:
                raise InvalidRecordException(
                    f"The baseOffset of the record batch in the append to {log.topic_partition} should be 0, "
                    f"but it is {batch.base_offset}"
                )
        elif origin is REPLICATION:
            if batch_epoch > leader_epoch and batch_epoch != -1:
                log.context.logger.info(
                    "skipping batches from %s on: leader epoch %d is above this replica's %d",
                    batch, batch_epoch, leader_epoch,
                )  # fmt: skip
                del batches[index:]
                break
        elif origin is RAFT_LEADER and batch_epoch != leader_epoch:
            raise InvalidRecordException(
                "Append from Raft leader did not set the batch epoch correctly, "
                f"expected {leader_epoch} but the batch has {batch_epoch}"
            )
        batch_last_offset = batch.last_offset
        if index == 0:
            if batch.magic >= 2:
                first_offset = batch.base_offset
            last_offset_of_first_batch = batch_last_offset
        if last_offset >= batch_last_offset:
            monotonic = False
        last_offset = batch_last_offset
        last_leader_epoch = batch_epoch
        size = batch.size
        if size > max_message_bytes:
            raise _too_large(log, len(data), size, max_message_bytes)
        if not crc_matches(data, batch.position, size):
            log.context.topic_metrics.record_invalid_checksums()
            raise CorruptRecordException(
                f"Record is corrupt (stored crc = {batch.crc}) in topic partition {log.topic_partition}."
            )
        if batch.max_timestamp > max_timestamp:
            max_timestamp = batch.max_timestamp
        valid_bytes += size
        if batch.codec:
            check_codec(batch.codec)
            source_codec = batch.codec
        if not terms.assigns_offsets and not monotonic:
            raise OffsetsOutOfOrderException(
                f"Out of order offsets found in append to {log.topic_partition}: "
                + ",".join(map(str, _record_offsets(data)))
            )
    if verdict not in (OK, TORN):
        MemoryRecords(data).batches()  # raises the framing error
    return (
        LogAppendInfo(
            first_offset,
            last_offset,
            None if last_leader_epoch == -1 else last_leader_epoch,
            max_timestamp,
            -1,
            log.log_start_offset,
            source_codec,
            valid_bytes,
            last_offset_of_first_batch,
            RecordValidationStats(),
        ),
        batches,
    )


def _too_large(log: PartitionState, request_bytes: int, size: int, max_message_bytes: int) -> RecordTooLargeException:
    log.context.topic_metrics.record_bytes_rejected(request_bytes)
    return RecordTooLargeException(
        f"The record batch size in the append to {log.topic_partition} is {size} bytes "
        f"which exceeds the maximum configured value of {max_message_bytes})."
    )


def check(log: PartitionState, batch: bytes | EncodedBatch, leader_epoch: int) -> None:
    """Raises what `append` would raise for a client's batch because of its size, its records or the topic's rules.

    A refusal is counted; nothing else changes. This is for a caller that has built several batches (whole, good CRCs,
    no duplicates), and wants to append none of them if one is refused. Records are read only if the header does not
    decide.
    """
    config = log.context.config
    if len(batch) > config.max_message_bytes:
        raise _too_large(log, len(batch), len(batch), config.max_message_bytes)
    if len(batch) > config.segment_size:
        raise _larger_than_a_segment(log, len(batch))
    data = frozen(batch, "batch")
    header = scan_headers(data, framing=FRAMING_BUFFER, max_batches=1)[0][0]
    same_codec = config.compression_codec in (None, header.codec)
    dated = config.message_timestamp_type != CREATE_TIME or (
        config.message_timestamp_before_max_ms == LONG_MAX
        and header.max_timestamp - log.context.clock.milliseconds() <= config.message_timestamp_after_max_ms
    )
    if config.compact or not same_codec or not dated:
        info, headers = analyze(log, data, CLIENT_TERMS, leader_epoch)
        info.first_offset = log.log_end_offset
        _validate(log, data, info, headers, CLIENT_TERMS, leader_epoch)


def _record_offsets(data: Buffer, count_max: int = -1) -> list[int]:
    """Returns the offsets of all records, or of the first `count_max`, for an error message.

    Reads as far as Kafka does, and so raises the same errors on the way.
    """
    batches, verdict, _ = scan_headers(data, 0, -1, framing=FRAMING_BUFFER)
    offsets: list[int] = []
    for batch in batches:
        for record in iterate(data, batch):
            offsets.append(record.offset)
            if len(offsets) == count_max:
                return offsets
    if verdict not in (OK, TORN):
        MemoryRecords(data).batches()  # raises the framing error
    return offsets


def _validate(
    log: PartitionState,
    data: bytes | bytearray | memoryview,
    info: LogAppendInfo,
    headers: list[BatchHeader],
    terms: AppendTerms,
    leader_epoch: int,
) -> tuple[Sequence[Buffer], list[BatchHeader]]:
    """The leader's part: LogValidator assigns offsets and, if the topic requires it, converts the batches."""
    config = log.context.config
    result = validate_append(log.context, data, info, headers, terms.origin, leader_epoch)
    info.max_timestamp = result.max_timestamp
    info.last_offset = result.next_offset - 1
    info.record_validation_stats = result.record_validation_stats
    if config.message_timestamp_type == "LogAppendTime":
        info.log_append_time = result.log_append_time
    if result.message_size_maybe_changed:
        for header in result.headers:
            if header.size > config.max_message_bytes:
                log.context.topic_metrics.record_bytes_rejected(len(data))
                raise RecordTooLargeException(
                    f"Message batch size is {header.size} bytes in append to partition {log.topic_partition} "
                    f"which exceeds the maximum configured size of {config.max_message_bytes}."
                )
    return result.buffers, result.headers


def _unexpected_offset(
    log: PartitionState, data: Buffer, info: LogAppendInfo, headers: Sequence[BatchHeader]
) -> UnexpectedAppendOffsetException:
    has_first_offset = info.first_offset != -1
    first_offset = info.first_offset if has_first_offset else base_offset(data, headers[0])
    offsets = _record_offsets(data, 10)
    error = UnexpectedAppendOffsetException(
        f"Unexpected offset in append to {log.topic_partition}. "
        f"{'First offset' if has_first_offset else 'Last offset of the first batch'} "
        f"{info.first_or_last_offset_of_first_batch} is less than the next offset {log.log_end_offset}. "
        f"First 10 offsets in append: {', '.join(map(str, offsets))}, "
        f"last offset in append: {info.last_offset}. Log start offset = {log.log_start_offset}"
    )
    error.first_offset = first_offset
    error.last_offset = info.last_offset
    return error


def segment_for(log: PartitionState, size: int, info: LogAppendInfo) -> LogSegment:
    """Returns the segment for `size` more bytes: the active one, or a new one if SegmentTail.must_roll says so.

    Raises RecordBatchTooLargeException if no segment can hold them.
    """
    local = log.local_log
    config = log.context.config
    if size > config.segment_size:
        raise _larger_than_a_segment(log, size)
    segment = local.segments.active_segment
    tail = segment.tail
    if not tail.is_known:
        segment.know_end()
    if tail.must_roll(
        config.max_segment_ms, config.segment_size, info.max_timestamp, info.last_offset, size,
        local.clock.milliseconds(),
    ):  # fmt: skip
        # Without a first offset (message formats 0 and 1), use the lowest one that the last offset allows.
        segment = log.roll_now(info.last_offset - INT_MAX if info.first_offset == -1 else info.first_offset)
    return segment


def _larger_than_a_segment(log: PartitionState, size: int) -> RecordBatchTooLargeException:
    return RecordBatchTooLargeException(
        f"Message batch size is {size} bytes in append to partition {log.topic_partition}, "
        f"which exceeds the maximum configured segment size of {log.config.segment_size}."
    )


def _check_producers(
    log: PartitionState,
    place: LogOffsetMetadata,
    buffers: Sequence[Buffer],
    headers: Sequence[BatchHeader],
    terms: AppendTerms,
) -> BatchMetadata | tuple[list[ProducerAppendInfo], list[CompletedTxn]]:
    """analyzeAndValidateProducerState: returns the append's effect on producers, and the transactions it completes.

    If the append repeats a batch, returns that batch instead.
    """
    origin, guard = terms.origin, terms.verification_guard
    updated: JavaHashMap[int, ProducerAppendInfo] = JavaHashMap(long_hash)
    completed: list[CompletedTxn] = []
    psm = log.producer_state_manager
    position = place.relative_position_in_segment
    joined: Buffer | None = None
    at = 0
    for header in headers:
        producer_id = header.producer_id
        if producer_id > -1:
            if origin is CLIENT:
                entry = psm.last_entry(producer_id)
                duplicate = None if entry is None else entry.find_duplicate_batch(header)
                if duplicate is not None:
                    return duplicate
            transactional = header.is_transactional
            if (
                transactional
                and origin in (CLIENT, COORDINATOR)
                and not log.has_ongoing_transaction(producer_id, header.producer_epoch)
            ):
                entry = psm.last_entry(producer_id)
                if entry is not None and header.producer_epoch < entry.producer_epoch:
                    raise InvalidProducerEpochException(
                        f"Epoch of producer {producer_id} is {header.producer_epoch}, "
                        f"which is smaller than the last seen epoch {entry.producer_epoch}"
                    )
                if (
                    psm.producer_state_manager_config.transaction_verification_enabled
                    and not header.is_control
                    and not log.verification_guard(producer_id).verify(guard)
                ):
                    raise InvalidTxnStateException("Record was not part of an ongoing transaction")
            first = None
            if transactional:
                first = LogOffsetMetadata(header.base_offset, place.segment_base_offset, position)
            if header.is_control and joined is None:
                joined = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            done = update_producers(psm, header, joined, updated, first, origin, terms.transaction_version, at=at)
            if done is not None:
                completed.append(done)
        position += header.size
        at += header.size
    return updated.values(), completed


def _change_of(
    log: PartitionState, segment: LogSegment, updated: Sequence[ProducerAppendInfo], completed: list[CompletedTxn]
) -> ProducerChange:
    """Returns all changes of producers that the commit makes. Applying them cannot fail."""
    psm = log.producer_state_manager
    entries = [psm.change_of(info) for info in updated]
    if not completed:
        return ProducerChange(entries, completed)
    started = [txn for _, begun in entries for txn in begun]
    psm.check_open(completed, started)
    stable_offsets = psm.last_stable_offsets(completed, started)
    aborted = [
        aborted_txn_of(txn, stable) for txn, stable in zip(completed, stable_offsets, strict=True) if txn.is_aborted
    ]
    if not aborted:
        return ProducerChange(entries, completed)
    return ProducerChange(entries, completed, segment.txn_index.packed(aborted), aborted[-1].last_offset)


def _repeated(log: PartitionState, info: LogAppendInfo, duplicate: BatchMetadata) -> LogAppendInfo:
    """Returns the result for a batch that the log has already."""
    info.first_offset = duplicate.first_offset
    info.last_offset = duplicate.last_offset
    info.log_append_time = duplicate.timestamp
    info.log_start_offset = log.log_start_offset
    return info
