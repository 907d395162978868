"""LogToClean: computes which part of a log may be cleaned, and whether a pass is worth it, as pure functions.

    clean            cleanable (dirty)        uncleanable
    | first_dirty_offset .. first_uncleanable_offset | ...

The clean part ends where the previous pass ended, by the checkpoint.  The uncleanable part is what no transaction has
decided, the active segment, and segments younger than min.compaction.lag.ms.  The bound is between segments, rounded
down.  Knows no other log, no checkpoint file and no state of a partition: LogCleanerManager chooses among many logs.
Takes no lock: it reads views of the segments that are replaced whole, so that its result may be outdated at once.
Mirrors LogToClean and the static methods of LogCleanerManager (4.4.0).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kafkalog._limits import LONG_MAX, to_int64
from kafkalog.config import LogConfig
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.log_segments import size_in_bytes


class Stretch(Protocol):
    """The part of a segment that the rules read."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def largest_timestamp(self) -> int: ...

    @property
    def first_batch_timestamp(self) -> int: ...


class Dirty(Protocol):
    """The part of a log that the rules read: a UnifiedLog, or a description read from files."""

    @property
    def config(self) -> LogConfig: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...

    @property
    def active_segment(self) -> Stretch: ...

    def non_active_log_segments_from(self, from_offset: int, /) -> Sequence[Stretch]: ...

    def log_segments(self, from_offset: int, to_offset: int, /) -> Sequence[Stretch]: ...


class Bound(enum.Enum):
    """The reason why a pass must end at an offset."""

    ACTIVE = "active"
    LAG = "lag"
    HIGH_WATERMARK = "highWatermark"
    TRANSACTION = "transaction"


class Uncleaned(NamedTuple):
    """The first offset that a pass must leave alone, and why.  `until_ms`: when that ends, if it is known."""

    offset: int
    bound: Bound
    until_ms: int | None = None


class OffsetsToClean(NamedTuple):
    """LogCleanerManager.OffsetsToClean.  `force_update_checkpoint`: the checkpoint was outside the log."""

    first_dirty_offset: int
    first_uncleanable_dirty_offset: int
    force_update_checkpoint: bool


class LogToClean(NamedTuple):
    """A log and the range of offsets that a pass would clean, created by `of`.  Sizes are bytes of .log files.

    A segment in which the clean section ends counts for both sections, as in Kafka.
    """

    log: UnifiedLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    need_compaction_now: bool = False

    @classmethod
    def of(
        cls, log: UnifiedLog, first_dirty_offset: int, uncleanable_offset: int, need_compaction_now: bool = False
    ) -> LogToClean:
        """Creates one.  `uncleanable_offset` is any offset; it is rounded down to the base of its segment."""
        first_uncleanable, cleanable_bytes = calculate_cleanable_bytes(log, first_dirty_offset, uncleanable_offset)
        clean_bytes = size_in_bytes(log.log_segments(-1, first_dirty_offset))
        return cls(log, first_dirty_offset, first_uncleanable, clean_bytes, cleanable_bytes, need_compaction_now)

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The share of bytes that is dirty; NaN if there are none."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else math.nan

    @property
    def is_worth_it(self) -> bool:
        """Whether a pass is worth it: the dirty share is above the topic's limit, or a segment is overdue."""
        return is_worth_a_pass(self.clean_bytes, self.cleanable_bytes, self.need_compaction_now, self.log.config)


def is_worth_a_pass(clean_bytes: int, cleanable_bytes: int, is_overdue: bool, config: LogConfig) -> bool:
    """Returns whether the dirty share is above the topic's limit, or a dirty segment is overdue."""
    total_bytes = clean_bytes + cleanable_bytes
    if total_bytes == 0:
        return False
    return (is_overdue and cleanable_bytes > 0) or cleanable_bytes / total_bytes > config.min_cleanable_dirty_ratio


def cleanable_offsets(log: UnifiedLog, last_clean_offset: int | None, now_ms: int) -> OffsetsToClean:
    """Returns where the next pass would begin, and the first offset that it must leave alone.

    `last_clean_offset`: where the previous pass ended; None if there was none.
    """
    first_dirty, beside = first_dirty_offset(log, last_clean_offset)
    is_passed_by_retention = log.config.compact and log.config.delete and beside == "below it"
    if beside and not is_passed_by_retention:
        log.context.logger.warning(
            "cleaning begins at log start offset %d: the checkpointed offset %d is %s",
            first_dirty, last_clean_offset, beside,
        )  # fmt: skip
    uncleanable = first_uncleaned(log, first_dirty, now_ms).offset
    return OffsetsToClean(first_dirty, max(first_dirty, uncleanable), bool(beside))


def first_dirty_offset(log: Dirty, last_clean_offset: int | None) -> tuple[int, str]:
    """Returns where the next pass would begin, and how the checkpoint is outside the log ("" if it is inside).

    A checkpoint outside the log is ignored.
    """
    log_start = log.log_start_offset
    if last_clean_offset is None:
        return log_start, ""
    if last_clean_offset < log_start:
        return log_start, "below it"
    if last_clean_offset > log.log_end_offset:
        return log_start, f"beyond the log's end {log.log_end_offset}"
    return last_clean_offset, ""


def first_uncleaned(log: Dirty, first_dirty_offset: int, now_ms: int) -> Uncleaned:
    """Returns the lowest of all bounds of a pass; the active segment if several are equal."""
    stable = log.last_stable_offset
    is_open = stable < log.high_watermark
    bounds = [
        Uncleaned(log.active_segment.base_offset, Bound.ACTIVE),
        Uncleaned(stable, Bound.TRANSACTION if is_open else Bound.HIGH_WATERMARK),
    ]
    lag_ms = max(log.config.min_compaction_lag_ms, 0)
    if lag_ms > 0:
        timestamp_ms = to_int64(now_ms - lag_ms)
        for segment in log.non_active_log_segments_from(first_dirty_offset):
            if segment.largest_timestamp > timestamp_ms:
                bounds.append(Uncleaned(segment.base_offset, Bound.LAG, segment.largest_timestamp + lag_ms))
                break
    return min(bounds, key=lambda uncleaned: uncleaned.offset)


def max_compaction_delay(log: Dirty, first_dirty_offset: int, now_ms: int) -> int:
    """Returns for how many ms the earliest dirty segment has been older than max.compaction.lag.ms; 0 if it is not."""
    dirty = log.non_active_log_segments_from(first_dirty_offset)
    timestamps = [segment.first_batch_timestamp for segment in dirty]
    earliest = min([timestamp for timestamp in timestamps if timestamp > 0], default=LONG_MAX)
    clean_until = to_int64(now_ms - max(log.config.max_compaction_lag_ms, 0))
    return to_int64(clean_until - earliest) if earliest < clean_until else 0


def calculate_cleanable_bytes(log: Dirty, first_dirty_offset: int, uncleanable_offset: int) -> tuple[int, int]:
    """Returns the base offset of the segment with the uncleanable offset, and the dirty bytes below it."""
    uncleanable = log.non_active_log_segments_from(uncleanable_offset)
    first_uncleanable = uncleanable[0].base_offset if uncleanable else log.active_segment.base_offset
    dirty = log.log_segments(min(first_dirty_offset, first_uncleanable), first_uncleanable)
    return first_uncleanable, sum([segment.size for segment in dirty])


def next_to_clean(log: UnifiedLog, last_clean_offset: int | None, now_ms: int) -> LogToClean:
    """Returns what the next pass over a log would clean."""
    first_dirty, uncleanable, _ = cleanable_offsets(log, last_clean_offset, now_ms)
    overdue = max_compaction_delay(log, first_dirty, now_ms) > 0
    return LogToClean.of(log, first_dirty, uncleanable, overdue)
