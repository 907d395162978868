"""A log loses its end, or all of it; where a cleaner may be at work, while its cleaning is paused.

A cleaner comes to no future log, and to no active segment.  What was clean of the part that goes is so no more, and the
cleaner is told before and behind.
Locks: the log's alone.  Whether the cut stays in the active segment is asked under it; it is given back before a pause
is begun, which waits for a cleaner that may wait for that lock.
"""

from __future__ import annotations

from kafkalog.engine.host.cleaning import Cleaning
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalArgumentException


def refuse_copied(log: UnifiedLog, offset: int) -> None:
    """IllegalArgumentException for an offset that the remote tier has, or is being given: other records would get it in
    the same leader epoch, and nobody could tell which ones count.  SchemaException where nobody knows what it has."""
    copied = log.copied_offset
    log.refuse_without_tier(f"truncate({offset})")
    if log.remote_log_enabled and log.tier is not None:
        log.tier.check()
    if offset <= copied:
        raise IllegalArgumentException(
            f"offset: found {offset}, expected one above {copied}: the remote tier has what is up to there",
            hint=f"truncate to {copied + 1}, which keeps what was copied",
        )


def refuse_parting(log: UnifiedLog, offset: int) -> None:
    """IllegalArgumentException for an offset inside a batch, of which records below it would go with it, and for one
    between the records of a transaction and its end: what was committed would not be any more, and what was aborted
    would be open again."""
    start = log.log_start_offset
    if not start < offset < log.log_end_offset:
        return
    batch = log.batch_around(offset)
    if batch is not None:
        first, last = batch
        raise IllegalArgumentException(
            f"offset: found {offset}, inside the batch of offsets {first} to {last}, which is cut off whole or not",
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
    """Whether anything went."""
    with log.lock:  # else it may roll, or another may cut and append, between the question and the cut
        if whole_batches:
            refuse_copied(log, target_offset)
            refuse_parting(log, target_offset)
        else:
            log.refuse_without_tier(f"truncate_to({target_offset})")
        if log.local_log.segments.last_segment is None:
            log.local_log.check_changeable()  # a move took its place, and it was deleted meanwhile
        if log.is_future or not 0 <= target_offset < log.active_segment.base_offset:
            return log.truncate_to(target_offset)
    with cleaning.pause(log.topic_partition) as pause:
        pause.begin()
        # What is cut is clean no more, also where an interrupt comes in between.
        cleaning.cut(log, target_offset)
        with log.lock:
            if whole_batches:
                refuse_copied(log, target_offset)
                refuse_parting(log, target_offset)
            was_cut = log.truncate_to(target_offset)
            if whole_batches and log.active_segment.base_offset <= log.copied_offset:
                log.roll()  # nobody may append to what was copied
        cleaning.cut(log, log.active_segment.base_offset)
        return was_cut


def restart(cleaning: Cleaning, new_offset: int, log_start_offset: int | None, log: UnifiedLog) -> None:
    """Empty, the log goes on at `new_offset`."""
    with cleaning.pause(None if log.is_future else log.topic_partition) as pause:
        pause.begin()
        if log.is_future:
            log.truncate_fully_and_start_at(new_offset, log_start_offset)
            return
        log.refuse_without_tier(f"truncate_fully_and_start_at({new_offset})")
        cleaning.cut(log, new_offset)
        log.truncate_fully_and_start_at(new_offset, log_start_offset)
        cleaning.cut(log, log.active_segment.base_offset)
