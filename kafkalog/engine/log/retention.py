"""Deletes old segments: by log start offset, by size, by time, as `retention_rule` decides.

Segments are deleted oldest first and never above the high watermark. The active segment may be deleted too, after a
roll. Works on a PartitionState, whose lock the functions take. Mirrors UnifiedLog.deleteOldSegments and the methods
that it calls (4.4.0).
"""

from __future__ import annotations

from kafkalog._limits import to_int32, to_int64
from kafkalog.engine.log.partition import PartitionState
from kafkalog.engine.log.retention_rule import Bounds, Held, Limits, Rule, Run, condition_of, oldest_run, rules_of
from kafkalog.engine.log.types import LogStartOffsetIncrementReason
from kafkalog.engine.segment.log_segment import LogSegment


def delete_old_segments(log: PartitionState) -> int:
    """Applies the topic's cleanup.policy. Returns how many segments were chosen."""
    if log.lacks_remote_tier:  # it is unknown what was copied; a moved log start deletes in the tier too
        if not log.remote_log_enabled:  # otherwise opening has logged it
            log.context.logger.warning("no segment is deleted: a part was copied to a remote tier, which is not open")
        return 0
    try:
        _keep_what_follows(log)
        return sum(delete_by(log, rule) for rule in rules_of(log.config, copied=log.copies_to_remote))
    finally:
        log.retention_size_in_percent = size_in_percent(log)


def _keep_what_follows(log: PartitionState) -> None:
    """Syncs closed segments before one is deleted, in a log that continues in a remote tier.

    After a power loss they would be recovered without the segments before them, whose open transactions they end.
    """
    if not log.remote_log_enabled:
        return
    active = log.local_log.active_segment.base_offset
    if log.recovery_point < active:
        log.flush_upto_offset_exclusive(active)


def size_in_percent(log: PartitionState) -> int:
    """Returns the log's size in percent of retention.bytes; 0 if that is not positive, or the remote tier counts."""
    if log.copies_to_remote:
        return 0
    retention_bytes = log.config.retention_bytes
    return to_int32(to_int64(log.size * 100) // retention_bytes) if retention_bytes > 0 else 0


def delete_by(log: PartitionState, rule: Rule) -> int:
    """Applies one rule. Returns how many segments were chosen."""
    now_ms = log.context.clock.milliseconds()
    with log.lock:  # two concurrent passes would both count the same bytes as excess
        copied = log.copies_to_remote  # read once: the settings may change meanwhile
        deletable = _deletable_segments(log, rule, now_ms, copied)
        return _delete_segments(log, deletable, rule.value, copied) if deletable else 0


def _deletable_segments(log: PartitionState, rule: Rule, now_ms: int, copied: bool) -> list[LogSegment]:
    """Returns the segments that break the rule, oldest first. Called under the lock."""
    segments = list(log.local_log.segments.values())
    start = log.local_log_start_offset if log.remote_log_enabled else log.log_start_offset
    condition = condition_of(rule, segments, start, Limits.of(log.config, local=copied), now_ms)
    if condition is None:
        return []
    highest = log.highest_offset_in_remote_storage if copied else None
    run = oldest_run(segments, Bounds(log.log_start_offset, log.high_watermark, log.log_end_offset, highest), condition)
    if log.remote_log_enabled and _has_met_active(segments, run):
        log.context.logger.info("rolling the active segment, so that it can be copied and deleted")
        log.roll_now()
    if rule is Rule.TIME and run.held is Held.RULE and now_ms < segments[run.length].largest_timestamp:
        held = segments[run.length]
        log.context.logger.warning("%s contains future timestamp(s), making it ineligible to be deleted", held)
    return segments[: run.length]


def _has_met_active(segments: list[LogSegment], run: Run) -> bool:
    """Returns whether the rule applies to the active segment too, and that segment has records."""
    if run.held in (None, Held.NOT_COPIED) and segments:
        reached = len(segments) - 1 if run.held is None else run.length
        return reached == len(segments) - 1 and segments[-1].size > 0
    return False


def _delete_segments(log: PartitionState, deletable: list[LogSegment], reason: str, copied: bool) -> int:
    chosen = len(deletable)
    local = log.local_log
    with local.guard("deleting segments"):
        if local.segments.number_of_segments == chosen:
            new_segment = log.roll_now()
            if deletable[-1].base_offset == new_segment.base_offset:
                log.context.logger.warning("the empty active segment was created again due to %s", reason)
                deletable = deletable[:-1]
        local.check_if_closed()
        if deletable:
            survivor = local.segments.higher_segment(deletable[-1].base_offset)
            assert survivor is not None
            start = survivor.base_offset
            if log.remote_log_enabled:
                # After a power loss the disk may begin with any of these, and the loader cannot learn from the tier
                # which transactions are open there.
                for segment in (*deletable[1:], survivor):
                    log.flush_snapshot_at(segment.base_offset)

            def remove() -> None:
                if copied:
                    log.raise_local_log_start_offset(start)
                else:
                    log.raise_log_start_offset(start, LogStartOffsetIncrementReason.SEGMENT_DELETION)
                if log.remote_log_enabled:
                    # Otherwise the log would, after a crash, begin with the tier's records and not continue where these
                    # end.
                    log.leader_epoch_cache.flush()
                local.remove_and_delete_segments(deletable, True, f"{reason} breach")
                log.delete_producer_snapshots(deletable, True)

            log.whole(remove)
        else:
            log.delete_producer_snapshots(deletable, True)
    return chosen
