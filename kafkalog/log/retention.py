"""Which segments are old enough to go: by log start offset, by size, by time.  The three predicates and the guards.

Segments go oldest first and never above the high watermark; the active one may go too, after a roll.  Works on a
PartitionState, whose lock the functions take.  Mirrors UnifiedLog.deleteOldSegments and what it calls (4.4.0, without
remote storage).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kafkalog.limits import to_int32, to_int64
from kafkalog.log.partition import PartitionState
from kafkalog.log.types import LogStartOffsetIncrementReason
from kafkalog.segment.log_segment import LogSegment

DeletionCondition: TypeAlias = Callable[[LogSegment, LogSegment | None], bool]


def delete_old_segments(log: PartitionState) -> int:
    """Applies the topic's cleanup.policy; answers how many segments were chosen.

    A log that is only compacted, or has no policy, still drops what lies below its log start offset.
    """
    try:
        deleted = _delete(log, log_start_breached(log), "log start offset")
        if log.config.delete:
            deleted += delete_by_size(log) + delete_by_time(log)
        return deleted
    finally:
        log.retention_size_in_percent = size_in_percent(log)


def size_in_percent(log: PartitionState) -> int:
    """The log's size in hundredths of retention.bytes; 0 where that keeps all or nothing."""
    retention_bytes = log.config.retention_bytes
    return to_int32(to_int64(log.size * 100) // retention_bytes) if retention_bytes > 0 else 0


def log_start_breached(log: PartitionState) -> DeletionCondition:
    """Segments that lie wholly below the log start offset."""

    def should_delete(segment: LogSegment, following: LogSegment | None) -> bool:
        return following is not None and following.base_offset <= log.log_start_offset

    return should_delete


def delete_by_size(log: PartitionState) -> int:
    retention_bytes = log.config.retention_bytes
    with log.lock:  # two passes at once would both take the same bytes for too many
        size = log.size
        if retention_bytes < 0 or size < retention_bytes:
            return 0
        return _delete(log, size_breached(size - retention_bytes), "retention size")


def size_breached(excess_bytes: int) -> DeletionCondition:
    """Segments that can go and leave at least the retained size."""

    def should_delete(segment: LogSegment, following: LogSegment | None) -> bool:
        nonlocal excess_bytes
        if excess_bytes - segment.size < 0:
            return False
        excess_bytes -= segment.size
        return True

    return should_delete


def delete_by_time(log: PartitionState) -> int:
    retention_ms = log.config.retention_ms
    if retention_ms < 0:
        return 0
    return _delete(log, time_breached(log, log.context.clock.milliseconds(), retention_ms), "retention time")


def time_breached(log: PartitionState, now_ms: int, retention_ms: int) -> DeletionCondition:
    """Segments whose largest timestamp (file time where there is none) is older than the retention."""

    def should_delete(segment: LogSegment, following: LogSegment | None) -> bool:
        largest_ms = segment.largest_timestamp
        if now_ms < largest_ms:
            log.context.logger.warning("%s contains future timestamp(s), making it ineligible to be deleted", segment)
        return to_int64(now_ms - largest_ms) > retention_ms

    return should_delete


def deletable_segments(log: PartitionState, predicate: DeletionCondition) -> list[LogSegment]:
    """The longest run of oldest segments that lie below the high watermark and fulfil `predicate`."""
    segments = list(log.local_log.segments.values())
    deletable: list[LogSegment] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        assert following is None or segment.base_offset < following.base_offset, (segment, following)
        upper_bound = log.log_end_offset if following is None else following.base_offset
        if log.high_watermark < upper_bound or not predicate(segment, following):
            break
        if following is None and segment.size == 0:
            break  # the last segment, with nothing in it: a log is never without one
        deletable.append(segment)
    return deletable


def _delete(log: PartitionState, predicate: DeletionCondition, reason: str) -> int:
    with log.lock:
        deletable = deletable_segments(log, predicate)
        return _delete_segments(log, deletable, reason) if deletable else 0


def _delete_segments(log: PartitionState, deletable: list[LogSegment], reason: str) -> int:
    chosen = len(deletable)
    local = log.local_log
    with local.guard("deleting segments"):
        if local.segments.number_of_segments == chosen:
            new_segment = log.roll_now()
            if deletable[-1].base_offset == new_segment.base_offset:
                log.context.logger.warning("the empty active segment was made anew due to %s", reason)
                deletable = deletable[:-1]
        local.check_if_closed()
        if deletable:
            survivor = local.segments.higher_segment(deletable[-1].base_offset)
            assert survivor is not None
            start = survivor.base_offset

            def remove() -> None:
                log.raise_log_start_offset(start, LogStartOffsetIncrementReason.SEGMENT_DELETION)
                local.remove_and_delete_segments(deletable, True, f"{reason} breach")
                log.delete_producer_snapshots(deletable, True)

            log.whole(remove)
        else:
            log.delete_producer_snapshots(deletable, True)
    return chosen
