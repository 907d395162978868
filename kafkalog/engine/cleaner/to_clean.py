"""What of a log may be cleaned, and whether it is worth it: LogToClean and the rules of its range, as pure functions.

    clean            cleanable (dirty)        uncleanable
    | first_dirty_offset .. first_uncleanable_offset | ...

Clean is what the previous pass reached, by the checkpoint.  Uncleanable is what no transaction has decided, the active
segment, and what is younger than min.compaction.lag.ms; the bound lies between segments, rounded down.  Knows no other
log, no checkpoint file and no state of a partition: who picks the filthiest of many logs stands on top of this.
Takes no lock: it works on views of the segments that are replaced whole, and what it finds is an estimate as soon as it
is found.  Mirrors LogToClean and the static methods of LogCleanerManager (4.4.0).
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
    """What the rules ask of a segment."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def largest_timestamp(self) -> int: ...

    @property
    def first_batch_timestamp(self) -> int: ...


class Dirty(Protocol):
    """What they ask of a log: a UnifiedLog, or what files tell of one."""

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
    """What keeps a pass from going on."""

    ACTIVE = "active"
    LAG = "lag"
    HIGH_WATERMARK = "highWatermark"
    TRANSACTION = "transaction"


class Uncleaned(NamedTuple):
    """The first offset that a pass must leave alone, and why; `until_ms`: when that is over, where it is known."""

    offset: int
    bound: Bound
    until_ms: int | None = None


class OffsetsToClean(NamedTuple):
    """LogCleanerManager.OffsetsToClean; `force_update_checkpoint`: the checkpoint was beside the log, and is mended."""

    first_dirty_offset: int
    first_uncleanable_dirty_offset: int
    force_update_checkpoint: bool


class LogToClean(NamedTuple):
    """A log and the range of offsets that a pass would clean; made by `of`.  Sizes are bytes of .log files.

    A segment that the clean section ends in counts for both sections, as in Kafka.
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
        """`uncleanable_offset` is any offset; what is kept is the base of the segment that it lies in."""
        first_uncleanable, cleanable_bytes = calculate_cleanable_bytes(log, first_dirty_offset, uncleanable_offset)
        clean_bytes = size_in_bytes(log.log_segments(-1, first_dirty_offset))
        return cls(log, first_dirty_offset, first_uncleanable, clean_bytes, cleanable_bytes, need_compaction_now)

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The share of bytes that is dirty; not a number where there are none."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else math.nan

    @property
    def is_worth_it(self) -> bool:
        """Whether a pass would be made: the dirty share is above the topic's, or something has waited too long."""
        return is_worth_a_pass(self.clean_bytes, self.cleanable_bytes, self.need_compaction_now, self.log.config)


def is_worth_a_pass(clean_bytes: int, cleanable_bytes: int, is_overdue: bool, config: LogConfig) -> bool:
    """Whether the dirty share is above the topic's, or something dirty has waited too long."""
    total_bytes = clean_bytes + cleanable_bytes
    if total_bytes == 0:
        return False
    return (is_overdue and cleanable_bytes > 0) or cleanable_bytes / total_bytes > config.min_cleanable_dirty_ratio


def cleanable_offsets(log: UnifiedLog, last_clean_offset: int | None, now_ms: int) -> OffsetsToClean:
    """Where the next pass would begin, and the first offset that it must leave alone.

    `last_clean_offset`: where the previous pass ended; None: there was none.
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
    """Where the next pass would begin; how the checkpoint lies beside the log, if it does, which then has no say."""
    log_start = log.log_start_offset
    if last_clean_offset is None:
        return log_start, ""
    if last_clean_offset < log_start:
        return log_start, "below it"
    if last_clean_offset > log.log_end_offset:
        return log_start, f"beyond the log's end {log.log_end_offset}"
    return last_clean_offset, ""


def first_uncleaned(log: Dirty, first_dirty_offset: int, now_ms: int) -> Uncleaned:
    """Of all that keeps a pass from going on, what comes first; the active segment, where several do."""
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
    """For how many ms the earliest dirty segment has been older than max.compaction.lag.ms; 0: it is not."""
    dirty = log.non_active_log_segments_from(first_dirty_offset)
    timestamps = [segment.first_batch_timestamp for segment in dirty]
    earliest = min([timestamp for timestamp in timestamps if timestamp > 0], default=LONG_MAX)
    clean_until = to_int64(now_ms - max(log.config.max_compaction_lag_ms, 0))
    return to_int64(clean_until - earliest) if earliest < clean_until else 0


def calculate_cleanable_bytes(log: Dirty, first_dirty_offset: int, uncleanable_offset: int) -> tuple[int, int]:
    """The base of the segment that holds the uncleanable offset, and the dirty bytes below it."""
    uncleanable = log.non_active_log_segments_from(uncleanable_offset)
    first_uncleanable = uncleanable[0].base_offset if uncleanable else log.active_segment.base_offset
    dirty = log.log_segments(min(first_dirty_offset, first_uncleanable), first_uncleanable)
    return first_uncleanable, sum([segment.size for segment in dirty])


def next_to_clean(log: UnifiedLog, last_clean_offset: int | None, now_ms: int) -> LogToClean:
    """What the next pass over a log would clean: `cleanable_offsets` with everything that follows from them."""
    first_dirty, uncleanable, _ = cleanable_offsets(log, last_clean_offset, now_ms)
    overdue = max_compaction_delay(log, first_dirty, now_ms) > 0
    return LogToClean.of(log, first_dirty, uncleanable, overdue)
