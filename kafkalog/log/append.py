"""The append path of UnifiedLog: judge the batches, give them offsets, roll, check producers, write, move the ends.

The steps and their order are those of Kafka's UnifiedLog.append (4.4.0); what a step did stays done when a later one
refuses (the epoch entry of step 6, the roll of step 8).  The same code serves leaders and followers.  A plain single
batch, the common case, walks through with no copy of its data, one CRC and few calls: the tests for what is unusual
are attribute checks.

Everything from `_append_locked` on runs under the partition's lock.  The buffer of the caller is never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from kafkalog._native.batches import FRAMING_BUFFER, OK, TORN, crc_matches
from kafkalog._native.batches import headers as scan_headers
from kafkalog._native.validation import client_batch
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
from kafkalog.files import Buffer
from kafkalog.format.batch import MemoryRecords
from kafkalog.format.codecs import decompress_partial
from kafkalog.format.java_hash import JavaHashMap, long_hash
from kafkalog.format.records import records as decode_records
from kafkalog.log.local_log import check_online, raise_offline
from kafkalog.log.producer_replay import update_producers
from kafkalog.log.producers import BatchMetadata, CompletedTxn, ProducerAppendInfo, ProducerStateEntry
from kafkalog.log.types import AppendOrigin, LogAppendInfo, RecordValidationStats
from kafkalog.log.validator import NO_STATS, validate_append
from kafkalog.segment.log_segment import LogSegment
from kafkalog.segment.types import LogOffsetMetadata, RollParams

if TYPE_CHECKING:
    from kafkalog._native.batches import BatchHeader
    from kafkalog.log.unified_log import UnifiedLog
    from kafkalog.log.verification import VerificationGuard

logger = logging.getLogger("kafkalog.log")

CLIENT = AppendOrigin.CLIENT
COORDINATOR = AppendOrigin.COORDINATOR
REPLICATION = AppendOrigin.REPLICATION
RAFT_LEADER = AppendOrigin.RAFT_LEADER
INT_MAX = 0x7FFFFFFF
CURRENT_MAGIC = 2
HEADER_BYTES = 61

new_tuple = tuple.__new__  # a named tuple without the Python call of its own __new__


def append(
    log: UnifiedLog,
    records: Buffer | MemoryRecords,
    origin: AppendOrigin,
    assign_offsets: bool,
    leader_epoch: int,
    verification_guard: VerificationGuard,
    ignore_record_size: bool,
    to_magic: int,
    transaction_version: int,
) -> LogAppendInfo:
    """UnifiedLog.append: `records` is one or more whole batches; bytes of a last, cut batch are ignored."""
    log.maybe_flush_metadata_file()
    data: Buffer = memoryview(records.buffer) if isinstance(records, MemoryRecords) else records
    info, headers = analyze(log, data, origin, ignore_record_size, not assign_offsets, leader_epoch)
    if info.valid_bytes <= 0:
        return info
    with log.lock:
        local = log.local_log
        if local.log_dir_failure_channel.has_offline_log_dir(local.parent_dir):
            check_online(local.log_dir_failure_channel, local.parent_dir)
        try:
            return _append_locked(
                log, data, info, headers, origin, assign_offsets, leader_epoch, verification_guard,
                ignore_record_size, to_magic, transaction_version,
            )  # fmt: skip
        except OverflowError as error:
            raise IllegalArgumentException(
                f"No offset is left for {log.topic_partition}: its log ends at {log.log_end_offset}", path=log.dir
            ) from error
        except OSError as error:
            _fail(log, error)


def append_ordinary(log: UnifiedLog, records: Buffer | MemoryRecords, leader_epoch: int) -> LogAppendInfo | None:
    """The common append in few steps: one good batch of a client in the epoch that the log is in, kept as it is.

    Plain, or compressed as the topic wants it; of no producer, or of one that goes on where it was, in its
    transaction or in none.  None for anything else, and then nothing was done: `append` takes it from the start.
    What it does is what `append` would do; the steps left out change nothing for such a batch.
    """
    metadata_file = log.partition_metadata_file
    if metadata_file is not None and metadata_file.dirty_topic_id is not None:
        metadata_file.maybe_flush()
    data: Buffer = memoryview(records.buffer) if isinstance(records, MemoryRecords) else records
    local = log.local_log
    config, rules = local.config, local.client_rules
    batch = None if rules is None else client_batch(data, rules, local.clock.milliseconds())
    if batch is None:
        return None
    codec, wanted = batch.codec, config.compression_codec
    stats = NO_STATS
    if wanted != codec and wanted is not None:
        return None
    if codec:
        payload, failure = decompress_partial(codec, memoryview(data)[HEADER_BYTES:])
        if failure is not None or not batch.check_payload(payload, config.max_decompressed_message_bytes):
            return None
        stats = RecordValidationStats(HEADER_BYTES + batch.record_bytes)
    with log.lock:
        epochs = log.leader_epoch_cache.entries
        end = local.next_offset_metadata
        end_offset = end[0]
        channel = local.log_dir_failure_channel
        if not epochs:
            return None
        epoch, epoch_start = epochs[-1]
        if epoch != leader_epoch or epoch_start > end_offset:
            return None
        if local.is_closed or (channel.any_offline and channel.has_offline_log_dir(local.parent_dir)):
            return None
        psm = log.producer_state_manager
        producer: ProducerStateEntry | None = None
        if batch.producer_id >= 0:
            producer = psm.continued_entry(batch)
            if producer is None:
                return None
        segment = local.segments.active_segment
        size = segment.log.size
        try:
            last_offset = segment.tail.append(
                batch, data, end_offset, leader_epoch, config.max_segment_ms, config.segment_size
            )
            if last_offset < 0:
                return None
        except OSError as error:
            local.take_back(segment, size, end)
            _fail(log, error)
        next_offset = last_offset + 1
        local.next_offset_metadata = new_tuple(LogOffsetMetadata, (next_offset, segment.base_offset, segment.log.size))
        if producer is not None:
            producer.continue_with(batch, last_offset)
            if producer.current_txn_first_offset is not None:
                psm.update_oldest_txn_timestamp()
        psm.map_end_offset = next_offset
        if log.first_unstable_offset_metadata is not psm.first_unstable_offset:
            log.maybe_increment_first_unstable_offset()  # a truncation leaves the old one until now
        if next_offset - local.recovery_point >= config.flush_messages:
            log.flush(False)
        return batch.appended(LogAppendInfo, end_offset, log.log_start_offset, stats)


def _fail(log: UnifiedLog, error: OSError) -> NoReturn:
    local = log.local_log
    message = f"Error while appending records to {log.topic_partition} in dir {local.parent_dir}"
    raise_offline(local.log_dir_failure_channel, local.parent_dir, message, error)


def analyze(
    log: UnifiedLog,
    data: Buffer,
    origin: AppendOrigin,
    ignore_record_size: bool,
    require_offsets_monotonic: bool,
    leader_epoch: int,
) -> tuple[LogAppendInfo, list[BatchHeader]]:
    """analyzeAndValidateRecords: shallow checks of each batch, without the lock; the batches that may go in."""
    batches, verdict, _ = scan_headers(data, 0, -1, framing=FRAMING_BUFFER)
    first_offset = last_offset = max_timestamp = last_offset_of_first_batch = -1
    last_leader_epoch = -1
    source_codec = 0
    valid_bytes = 0
    monotonic = True
    config = log.local_log.config
    max_message_bytes = INT_MAX if ignore_record_size else config.max_message_bytes
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
                logger.info(
                    "%s: skipping batches from %s on: leader epoch %d is above this replica's %d",
                    log.topic_partition, batch, batch_epoch, leader_epoch,
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
            raise RecordTooLargeException(
                f"The record batch size in the append to {log.topic_partition} is {size} bytes "
                f"which exceeds the maximum configured value of {max_message_bytes})."
            )
        if not crc_matches(data, batch.position, size):
            raise CorruptRecordException(
                f"Record is corrupt (stored crc = {batch.crc}) in topic partition {log.topic_partition}."
            )
        if batch.max_timestamp > max_timestamp:
            max_timestamp = batch.max_timestamp
        valid_bytes += size
        if batch.codec:
            source_codec = batch.codec
        if require_offsets_monotonic and not monotonic:
            raise OffsetsOutOfOrderException(
                f"Out of order offsets found in append to {log.topic_partition}: "
                + ",".join(str(offset) for offset in _record_offsets(data, batches))
            )
    if verdict not in (OK, TORN):
        MemoryRecords(data).batches()  # raises what is wrong with the framing
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


def _record_offsets(data: Buffer, batches: Sequence[BatchHeader]) -> list[int]:
    """Offsets of all records, for an error's text."""
    return [record.offset for batch in batches for record in decode_records(data, batch, at=batch.position)]


def _append_locked(
    log: UnifiedLog,
    data: Buffer,
    info: LogAppendInfo,
    headers: list[BatchHeader],
    origin: AppendOrigin,
    assign_offsets: bool,
    leader_epoch: int,
    verification_guard: VerificationGuard,
    ignore_record_size: bool,
    to_magic: int,
    transaction_version: int,
) -> LogAppendInfo:
    local = log.local_log
    local.check_if_closed()
    config = local.config
    end_offset = local.next_offset_metadata[0]
    buffers: Sequence[Buffer]

    # Step 5: offsets.
    if assign_offsets:
        info.first_offset = end_offset
        buffers, headers = _validate(log, data, info, headers, origin, leader_epoch, ignore_record_size, to_magic)
    else:
        if info.first_or_last_offset_of_first_batch < end_offset:
            raise _unexpected_offset(log, data, info, headers)
        buffers = [data if info.valid_bytes == _size(data) else memoryview(data)[: info.valid_bytes]]

    # Step 6: leader epochs; a new one is on disk before anything can refuse the append.
    epochs = log.leader_epoch_cache
    bytes_total = 0
    has_producers = False
    for header in headers:
        bytes_total += header.size
        if header.magic >= 2:
            epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id > -1:
                has_producers = True
        elif epochs.non_empty:
            logger.warning("%s: message format v%d clears the leader epochs", log.topic_partition, header.magic)
            epochs.clear_and_flush()

    # Steps 7 and 8: the segment.
    if bytes_total > config.segment_size:
        raise RecordBatchTooLargeException(
            f"Message batch size is {bytes_total} bytes in append to partition {log.topic_partition}, "
            f"which exceeds the maximum configured segment size of {config.segment_size}."
        )
    segment = maybe_roll(log, bytes_total, info)

    # Step 9: producers.
    psm = log.producer_state_manager
    updated: JavaHashMap[int, ProducerAppendInfo] = JavaHashMap(long_hash)
    completed: list[CompletedTxn] = []
    if has_producers:
        place = LogOffsetMetadata(info.first_or_last_offset_of_first_batch, segment.base_offset, segment.size)
        duplicate = _check_producers(
            log, place, buffers, headers, origin, verification_guard, transaction_version, updated, completed
        )
        if duplicate is not None:
            info.first_offset = duplicate.first_offset
            info.last_offset = duplicate.last_offset
            info.log_append_time = duplicate.timestamp
            info.log_start_offset = log.log_start_offset
            return info

    # Step 11: write.
    last_offset = info.last_offset
    before, size_before = local.next_offset_metadata, segment.log.size
    local.append(last_offset, buffers, headers)
    log.update_high_watermark_with_log_end_offset()
    if has_producers:
        for append_info in updated.values():
            psm.update(append_info)
        for txn in completed:
            last_stable = psm.last_stable_offset(txn)
            try:
                segment.update_txn_index(txn, last_stable)
            except OSError:
                local.take_back(segment, size_before, before)
                raise
            psm.complete_txn(txn)
    psm.update_map_end_offset(last_offset + 1)
    log.maybe_increment_first_unstable_offset()
    if last_offset + 1 - local.recovery_point >= config.flush_messages:
        log.flush(False)
    return info


def _validate(
    log: UnifiedLog,
    data: Buffer,
    info: LogAppendInfo,
    headers: list[BatchHeader],
    origin: AppendOrigin,
    leader_epoch: int,
    ignore_record_size: bool,
    to_magic: int,
) -> tuple[Sequence[Buffer], list[BatchHeader]]:
    """Step 5 of a leader: LogValidator gives offsets and, where the topic asks for it, another form."""
    local = log.local_log
    config = local.config
    result = validate_append(log, data, info, headers, origin, leader_epoch, to_magic, log.validator_metrics)
    info.max_timestamp = result.max_timestamp
    info.last_offset = result.next_offset - 1
    info.record_validation_stats = result.record_validation_stats
    if config.message_timestamp_type == "LogAppendTime":
        info.log_append_time = result.log_append_time
    if result.message_size_maybe_changed and not ignore_record_size:
        for header in result.headers:
            if header.size > config.max_message_bytes:
                raise RecordTooLargeException(
                    f"Message batch size is {header.size} bytes in append to partition {log.topic_partition} "
                    f"which exceeds the maximum configured size of {config.max_message_bytes}."
                )
    return result.buffers, result.headers


def _unexpected_offset(
    log: UnifiedLog, data: Buffer, info: LogAppendInfo, headers: Sequence[BatchHeader]
) -> UnexpectedAppendOffsetException:
    has_first_offset = info.first_offset != -1
    offsets = _record_offsets(data, headers)
    first_offset = info.first_offset if has_first_offset else offsets[0]
    error = UnexpectedAppendOffsetException(
        f"Unexpected offset in append to {log.topic_partition}. "
        f"{'First offset' if has_first_offset else 'Last offset of the first batch'} "
        f"{info.first_or_last_offset_of_first_batch} is less than the next offset {log.log_end_offset}. "
        f"First 10 offsets in append: {', '.join(map(str, offsets[:10]))}, "
        f"last offset in append: {info.last_offset}. Log start offset = {log.log_start_offset}"
    )
    error.first_offset = first_offset
    error.last_offset = info.last_offset
    return error


def maybe_roll(log: UnifiedLog, messages_size: int, info: LogAppendInfo) -> LogSegment:
    """The segment that takes the append: the active one, or a new one by the five conditions of should_roll."""
    local = log.local_log
    config = local.config
    segment = local.segments.active_segment
    params = RollParams(
        config.max_segment_ms, config.segment_size, info.max_timestamp, info.last_offset, messages_size,
        local.clock.milliseconds(),
    )  # fmt: skip
    if not segment.should_roll(params):
        return segment
    # Without a first offset (message formats 0 and 1) the lowest that the last offset leaves possible.
    return log.roll(info.last_offset - INT_MAX if info.first_offset == -1 else info.first_offset)


def _check_producers(
    log: UnifiedLog,
    place: LogOffsetMetadata,
    buffers: Sequence[Buffer],
    headers: Sequence[BatchHeader],
    origin: AppendOrigin,
    guard: VerificationGuard,
    transaction_version: int,
    updated: JavaHashMap[int, ProducerAppendInfo],
    completed: list[CompletedTxn],
) -> BatchMetadata | None:
    """analyzeAndValidateProducerState: fills `updated` and `completed`; answers the batch that this one repeats."""
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
            done = update_producers(psm, header, joined, updated, first, origin, transaction_version, at=at)
            if done is not None:
                completed.append(done)
        position += header.size
        at += header.size
    return None


def _size(data: Buffer) -> int:
    return data.nbytes if isinstance(data, memoryview) else len(data)
