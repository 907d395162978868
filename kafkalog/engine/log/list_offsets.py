"""ListOffsets: UnifiedLog.fetchOffsetByTimestamp with its special values (4.4.0).

It reads a PartitionState and changes nothing. Needs no lock: it uses the segments as they are when it begins.
"""

from __future__ import annotations

from kafkalog.engine.format.records import offset_of_max_timestamp
from kafkalog.engine.log.partition import PartitionState
from kafkalog.engine.log.types import NO_LEADER_EPOCH, NO_TIMESTAMP, UNKNOWN_OFFSET
from kafkalog.engine.segment.file_records import max_timestamp_of
from kafkalog.engine.segment.types import TimestampAndOffset

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6
_NOTHING = TimestampAndOffset(NO_TIMESTAMP, UNKNOWN_OFFSET, NO_LEADER_EPOCH)


def fetch_offset_by_timestamp(log: PartitionState, target_timestamp: int) -> TimestampAndOffset | None:
    """Returns the first record with a timestamp at or above the target (ms), or the result of a special value.

    Kafka searches one segment. The result is therefore None if the first segment that reaches the target has only
    records below the log start, or no records any more, whatever later segments hold. (An emptied segment counts with
    its file's modification time.) Readers of the public API search with `EngineSource.offset_for_time`.
    """
    with log.local_log.guard("fetching offset by timestamp"):
        epochs = log.leader_epoch_cache
        is_tiered = log.remote_log_enabled
        if target_timestamp == EARLIEST_TIMESTAMP or (target_timestamp == EARLIEST_LOCAL_TIMESTAMP and not is_tiered):
            earliest = epochs.earliest_entry
            start = log.log_start_offset
            epoch = earliest.epoch if earliest is not None and earliest.start_offset <= start else None
            return TimestampAndOffset(NO_TIMESTAMP, start, epoch)
        if target_timestamp == EARLIEST_LOCAL_TIMESTAMP:
            start = log.local_log_start_offset
            return TimestampAndOffset(NO_TIMESTAMP, start, epochs.epoch_for_offset(start))
        if target_timestamp == LATEST_TIMESTAMP:
            return TimestampAndOffset(NO_TIMESTAMP, log.log_end_offset, epochs.latest_epoch)
        if target_timestamp == LATEST_TIERED_TIMESTAMP:
            return _latest_tiered(log) if is_tiered else _NOTHING
        if target_timestamp == EARLIEST_PENDING_UPLOAD_TIMESTAMP:
            return _earliest_pending(log) if is_tiered else _NOTHING
        if target_timestamp == MAX_TIMESTAMP:
            return _find_max_timestamp(log)
        if log.tier is not None and is_tiered and not log.is_empty:
            found = log.tier.find_offset_by_timestamp(target_timestamp, log.log_start_offset)
            if found is not None:
                return found
        start = log.local_log_start_offset if is_tiered else log.log_start_offset
        for segment in log.log_segments():
            if segment.largest_timestamp >= target_timestamp:
                return segment.find_offset_by_timestamp(
                    target_timestamp, start, log.config.max_decompressed_message_bytes
                )
        return None


def _latest_tiered(log: PartitionState) -> TimestampAndOffset:
    highest = log.highest_offset_in_remote_storage
    epoch = log.leader_epoch_cache.epoch_for_offset(highest)
    if epoch is None and highest == UNKNOWN_OFFSET:
        epoch = NO_LEADER_EPOCH
    return TimestampAndOffset(NO_TIMESTAMP, highest, epoch)


def _earliest_pending(log: PartitionState) -> TimestampAndOffset | None:
    """Returns the first offset that is not copied yet."""
    highest = log.highest_offset_in_remote_storage
    if highest == UNKNOWN_OFFSET:
        if log.local_log_start_offset == log.log_start_offset:
            return fetch_offset_by_timestamp(log, EARLIEST_TIMESTAMP)
        return _NOTHING
    pending = max(highest + 1, log.log_start_offset)
    return TimestampAndOffset(NO_TIMESTAMP, pending, log.leader_epoch_cache.epoch_for_offset(pending))


def _find_max_timestamp(log: PartitionState) -> TimestampAndOffset | None:
    """Returns the first record with the log's largest timestamp (in the oldest segment on a tie)."""
    segments = log.log_segments()
    latest = segments[0]
    for segment in segments[1:]:
        if segment.max_timestamp_so_far > latest.max_timestamp_so_far:
            latest = segment
    timestamp, shallow_offset = latest.max_timestamp_and_offset_so_far
    for header in latest.log.batches_from(latest.position_for(shallow_offset)):
        if max_timestamp_of(header) != timestamp:
            continue
        data = latest.log.read(header.position, header.size)
        limit = log.config.max_decompressed_message_bytes
        offset = offset_of_max_timestamp(data, header, at=0, max_record_bytes=limit)
        epoch = header.leader_epoch if header.leader_epoch >= 0 else None
        return None if offset is None else TimestampAndOffset(timestamp, offset, epoch)
    return None
