"""Truncates a log, or empties it; if a cleaner may be active in it, while its cleaning is paused.

A cleaner never works on a future log, or on an active segment.  Records that are truncated no longer count as clean, so
the cleaner is informed before and after.
Locks: only the log's.  Whether the truncation stays in the active segment is checked under it.  The lock is released
before a pause begins, because the pause waits for a cleaner that may wait for that lock.
"""

from __future__ import annotations

from kafkalog.engine.host.cleaning import Cleaning
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalArgumentException


def refuse_copied(log: UnifiedLog, offset: int) -> None:
    """Raises IllegalArgumentException for an offset that the remote tier has, or is just getting.

    A new record would get the same offset in the same leader epoch, and no reader could tell which one counts.  Raises
    SchemaException if it is unknown what the tier has.
    """
    copied = log.copied_offset
    log.refuse_without_tier(f"truncate({offset})")
    if log.remote_log_enabled and log.tier is not None:
        log.tier.check()
    if offset <= copied:
        raise IllegalArgumentException(
            f"offset: found {offset}, expected one above {copied}: the remote tier has the records up to there",
            hint=f"truncate to {copied + 1}, which keeps what was copied",
        )


def refuse_parting(log: UnifiedLog, offset: int) -> None:
    """Raises IllegalArgumentException for an offset inside a batch, or inside a transaction.

    Inside a batch, records below the offset would be removed too.  Between the records of a transaction and its end,
    a committed transaction would lose its commit, and an aborted one would be open again.
    """
    start = log.log_start_offset
    if not start < offset < log.log_end_offset:
        return
    batch = log.batch_around(offset)
    if batch is not None:
        first, last = batch
        raise IllegalArgumentException(
            f"offset: found {offset}, inside the batch of offsets {first} to {last}, which cannot be split",
            hint=f"truncate to {max(first, start)}, which drops all of it, or to {last + 1}, which keeps it",
        )
    parted = log.decided_across(offset)
    if parted is not None:
        first, last = parted
        raise IllegalArgumentException(
            f"offset: found {offset}, between a transaction's first record at offset {first} and its end at {last}, "
            "which was committed or aborted with all of it",
            hint=f"truncate to {last + 1}, which keeps its end, or to {max(first, start)}, which drops all of it",
        )


def cut(cleaning: Cleaning, target_offset: int, whole_batches: bool, log: UnifiedLog) -> bool:
    """Truncates a log.  Returns whether records were removed."""
    with log.lock:  # otherwise the log may roll, or another thread may truncate and append, between check and cut
        if whole_batches:
            refuse_copied(log, target_offset)
            refuse_parting(log, target_offset)
        else:
            log.refuse_without_tier(f"truncate_to({target_offset})")
        if log.local_log.segments.last_segment is None:
            log.local_log.check_changeable()  # a move replaced the log, and it was deleted meanwhile
        if log.is_future or not 0 <= target_offset < log.active_segment.base_offset:
            return log.truncate_to(target_offset)
    with cleaning.pause(log.topic_partition) as pause:
        pause.begin()
        # The removed part must not count as clean, even if an interrupt comes between.
        cleaning.cut(log, target_offset)
        with log.lock:
            if whole_batches:
                refuse_copied(log, target_offset)
                refuse_parting(log, target_offset)
            was_cut = log.truncate_to(target_offset)
            if whole_batches and log.active_segment.base_offset <= log.copied_offset:
                log.roll()  # nothing may be appended to a segment that was copied
        cleaning.cut(log, log.active_segment.base_offset)
        return was_cut


def restart(cleaning: Cleaning, new_offset: int, log_start_offset: int | None, log: UnifiedLog) -> None:
    """Empties a log, which continues at `new_offset`."""
    with cleaning.pause(None if log.is_future else log.topic_partition) as pause:
        pause.begin()
        if log.is_future:
            log.truncate_fully_and_start_at(new_offset, log_start_offset)
            return
        log.refuse_without_tier(f"truncate_fully_and_start_at({new_offset})")
        cleaning.cut(log, new_offset)
        log.truncate_fully_and_start_at(new_offset, log_start_offset)
        cleaning.cut(log, log.active_segment.base_offset)
