"""How far a partition is compacted and what comes next, read from files; the directory may be another process's.

The rules are the cleaner's (`cleaner.to_clean`), applied to what files say of a log.  Findings of a running cleaner
(that a partition is uncleanable, for example) are in no file.  Only reads, takes no lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from kafkalog._limits import LONG_MAX
from kafkalog.config import LogConfig
from kafkalog.engine.cleaner.to_clean import (
    Bound,
    Uncleaned,
    calculate_cleanable_bytes,
    first_dirty_offset,
    first_uncleaned,
    is_worth_a_pass,
    max_compaction_delay,
)
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.toolbox.segment_facts import PartitionFacts, SegmentFacts
from kafkalog.toolbox.words import span


class Reason(NamedTuple):
    """Why a part of a partition, or all of it, is not compacted.

    `what` is a word for programs, `text` a sentence.  `offset` is where the part begins, and `until_ms` is when the
    reason ends (ms since 1970), if that is known."""

    what: str
    text: str
    offset: int | None = None
    until_ms: int | None = None


class CompactionState(NamedTuple):
    """How far a partition is compacted, in bytes of .log files.
    `clean_bytes` are before `first_dirty_offset`; `dirty_bytes` are from there to `first_uncleanable_offset`, which is
    a segment's base.  `held` is why nothing after that is compacted.  `overdue_ms` is how long something dirty has been
    older than max.compaction.lag.ms.  `is_due` says that a cleaner would compact it now."""

    checkpointed: int | None
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    is_due: bool
    held: Reason

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def look_at_compaction(
    log_dir: str,
    facts: PartitionFacts,
    config: LogConfig,
    now_ms: int,
    *,
    seen: Snapshot | None = None,
    files: Files = OS_FILES,
) -> CompactionState | None:
    """Returns the state; None for a partition without segments.  `seen` is the snapshot of the facts, if there is one.
    Raises CorruptRecordException and KafkaStorageException."""
    if not facts.segments:
        return None
    line = CheckpointLines(log_dir, files).line(names.CLEANER_OFFSET_CHECKPOINT_FILE, facts.partition)

    def state(seen: Snapshot) -> CompactionState:
        return _state(_LogOfFiles(facts, config, seen), line, now_ms)

    if seen is not None:
        return state(seen)
    with PartitionView(log_dir, facts.partition, files=files) as view:
        return view.over(state)


def _state(log: _LogOfFiles, checkpointed: int | None, now_ms: int) -> CompactionState:
    dirty, _ = first_dirty_offset(log, checkpointed)
    uncleaned = first_uncleaned(log, dirty, now_ms)
    uncleanable, dirty_bytes = calculate_cleanable_bytes(log, dirty, max(dirty, uncleaned.offset))
    clean_bytes = sum([segment.size for segment in log.log_segments(-1, dirty)])
    config = log.config
    has_max_lag = config.max_compaction_lag_ms < LONG_MAX
    overdue_ms = max_compaction_delay(log, dirty, now_ms) if has_max_lag else 0
    is_due = is_worth_a_pass(clean_bytes, dirty_bytes, overdue_ms > 0, config)
    held = tell(uncleaned, config, now_ms)
    return CompactionState(checkpointed, dirty, uncleanable, clean_bytes, dirty_bytes, overdue_ms, is_due, held)


def tell(uncleaned: Uncleaned, config: LogConfig, now_ms: int) -> Reason:
    """Describes what a pass must leave alone."""
    offset, bound, until_ms = uncleaned
    match bound:
        case Bound.ACTIVE:
            text = f"the active segment begins at offset {offset}, and is compacted once it is closed"
        case Bound.LAG:
            left_ms = 0 if until_ms is None else until_ms - now_ms
            lag = span(config.min_compaction_lag_ms)
            text = (
                f"segment {offset} has records younger than min.compaction.lag.ms ({lag}): it may be compacted in "
                f"{span(left_ms)}"
            )
        case Bound.HIGH_WATERMARK:
            text = f"the high watermark is {offset}; a record is compacted once all replicas have it"
        case Bound.TRANSACTION:
            text = f"a transaction is open since offset {offset}"
    return Reason(bound.value, text, offset, until_ms)


class _Piece:
    """A segment, in the form that the cleaner's rules need."""

    def __init__(self, facts: SegmentFacts, seen: Snapshot) -> None:
        self.base_offset = facts.base_offset
        self.size = facts.size
        self.largest_timestamp = facts.largest_timestamp
        self._seen = seen

    @property
    def first_batch_timestamp(self) -> int:
        """The timestamp of the first batch, as LogSegment defines it."""
        if self.base_offset not in self._seen.bases:
            return LONG_MAX
        header = self._seen.reader(self._seen.bases.index(self.base_offset)).header_at(0)
        return LONG_MAX if header is None or header.max_timestamp < 0 else header.max_timestamp


class _LogOfFiles:
    """A log, in the form that the cleaner's rules need."""

    def __init__(self, facts: PartitionFacts, config: LogConfig, seen: Snapshot) -> None:
        self.config = config
        self.log_start_offset = facts.log_start_offset
        self.log_end_offset = facts.log_end_offset
        self.high_watermark = facts.high_watermark
        # A pass ends before the last segment: what is open in that does not matter, and is not read.
        stable = seen.log_end_offset if seen.is_stable_before_last() else seen.last_stable_offset
        self.last_stable_offset = min(stable, facts.high_watermark)
        self._bases = [segment.base_offset for segment in facts.segments]
        self._pieces = [_Piece(segment, seen) for segment in facts.segments]
        self.active_segment = self._pieces[-1]

    def non_active_log_segments_from(self, from_offset: int, /) -> Sequence[_Piece]:
        return self.log_segments(from_offset, self.active_segment.base_offset)

    def log_segments(self, from_offset: int, to_offset: int, /) -> Sequence[_Piece]:
        if from_offset >= to_offset:
            return ()
        return self._pieces[max(bisect_right(self._bases, from_offset) - 1, 0) : bisect_left(self._bases, to_offset)]
