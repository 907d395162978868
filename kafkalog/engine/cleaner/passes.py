"""compact: passes over one log, one after the other, until nothing of it is dirty: for who asks for it now.

What of the log may be cleaned, how far it is, who keeps it from being cleaned: all that is LogCleanerManager's, as for
the threads of a LogCleaner; a pass is Cleaner's.  Only the share of dirty bytes does not matter, unless it is asked
for, and the map is no larger than the dirty offsets could fill.

A pass that somebody stops, who truncates the log or deletes segments, begins again when he is done; what it had
exchanged by then stays, and is not in the numbers.  Runs in the caller's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from kafkalog._native.codec.offset_map import LastOffsets
from kafkalog._native.state.log_end import OPEN
from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner.cleaner import Cleaner
from kafkalog.engine.cleaner.cleaner_thread import cleaner_settings, map_bytes
from kafkalog.engine.cleaner.log_cleaner_manager import Grabbed, LogCleanerManager
from kafkalog.engine.cleaner.mapping import offset_map_of
from kafkalog.engine.cleaner.states import IN_PROGRESS
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.engine.cleaner.to_clean import LogToClean
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException, KafkalogError, LogCleaningAbortedException

SLOT_BYTES = 24
STOPS_MAX = 100  # so often in a row a pass begins again
_REST_S = 0.005  # between two looks whether somebody who stopped us is done
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CompactionStats:
    """What a compaction did to a log.  `first_dirty_offset`: where it began; `end_offset`: up to where (exclusive) the
    log is clean now, which is checkpointed.  Both are the same where there was nothing to do.

    Bytes are those of .log files: of all segments before, and what they became; what was appended meanwhile is not
    among them.  Records that went are counted once, by why: `superseded` by a later one of the same key, `tombstones`
    past their delete horizon, `without_key`, of `aborted` transactions, `markers` of transactions of which nothing is
    left.  `segments` and `batches` are those that are fewer now.
    """

    passes: int
    first_dirty_offset: int
    end_offset: int
    bytes_before: int
    bytes_after: int
    superseded: int
    tombstones: int
    without_key: int
    aborted: int
    markers: int
    batches: int
    segments: int
    bytes_read: int  # by both walks of each pass
    bytes_written: int
    elapsed_s: float

    @property
    def records(self) -> int:
        """All that went."""
        return self.superseded + self.tombstones + self.without_key + self.aborted + self.markers

    @property
    def bytes_gained(self) -> int:
        """Below 0 where what was built anew compresses worse than before."""
        return self.bytes_before - self.bytes_after


def _nothing(*_: object) -> None:
    """The default of callbacks."""


class Callbacks(NamedTuple):
    """`check` is called before each chunk, and raises to end it all; `progress` with the bytes of each read and write;
    `mapped` with what a pass cleans and the offset that it will end at."""

    check: Callable[[], object] = _nothing
    progress: Callable[[int], object] = _nothing
    mapped: Callable[[LogToClean, int], object] = _nothing


class CompactOptions(TypedDict, total=False):
    """The options of `compact`, which each door before it passes on."""

    passes_max: int | None
    by_ratio: bool
    callbacks: Callbacks | None  # of `Cleaning.compact`, whose own `check` counts
    lasts: LastOffsets | None


def compact(
    manager: LogCleanerManager,
    log: UnifiedLog,
    config: CleanerConfig,
    *,
    passes_max: int | None = None,
    by_ratio: bool = False,
    callbacks: Callbacks | None = None,
    lasts: LastOffsets | None = None,
) -> CompactionStats:
    """Passes until nothing is dirty, or `passes_max` of them; `by_ratio`: only while the share of dirty bytes is above
    the topic's min.cleanable.dirty.ratio.  The log is one of the manager's, and compacted.  `lasts`: what somebody else
    has found, for one pass without a map.

    Waits while another thread cleans the log.  IllegalStateException if this one is compacting it already; else the
    errors of `Cleaner.do_clean`, among them KafkaStorageException where the log was closed, and
    LogCleaningAbortedException where it was cut again and again.
    """
    return _Compaction(manager, log, config, callbacks or Callbacks(), by_ratio, lasts).run(
        passes_max if lasts is None else 1
    )


class _Compaction:
    """One call while it goes on."""

    def __init__(
        self,
        manager: LogCleanerManager,
        log: UnifiedLog,
        config: CleanerConfig,
        callbacks: Callbacks,
        by_ratio: bool,
        lasts: LastOffsets | None,
    ) -> None:
        self.manager = manager
        self.log = log
        self.config = config
        self.callbacks = callbacks
        self.by_ratio = by_ratio
        self.lasts = lasts
        self.done: list[CleanerStats] = []  # of each pass

    def run(self, passes_max: int | None) -> CompactionStats:
        log, clock = self.log, self.manager.clock
        begin_ns, bytes_before = clock.nanoseconds(), log.size
        segments_gone = stops = 0
        first = end = self.manager.first_dirty_offset(log)
        cleaner = None
        while passes_max is None or len(self.done) < passes_max:
            grabbed = self._grab()
            if grabbed is None:
                break
            cleaner = cleaner or self._cleaner(grabbed.to_clean)
            segments = len(log.log_segments(0, grabbed.to_clean.first_uncleanable_offset))
            reached = self._pass(grabbed, cleaner)
            if reached is None:
                stops += 1
                if stops > STOPS_MAX:
                    raise LogCleaningAbortedException(
                        f"{log.topic_partition} was cut or lost segments while it was cleaned, {stops} times"
                    )
                continue
            stops = 0
            segments_gone += segments - len(log.log_segments(0, grabbed.to_clean.first_uncleanable_offset))
            end = reached
            if reached <= grabbed.to_clean.first_dirty_offset:
                break  # the next one would come no further
        return self._stats(first, end, bytes_before, segments_gone, clock.nanoseconds() - begin_ns)

    def _stats(self, first: int, end: int, bytes_before: int, segments: int, elapsed_ns: int) -> CompactionStats:
        def total(of: Callable[[CleanerStats], int]) -> int:
            return sum([of(stats) for stats in self.done])

        return CompactionStats(
            passes=len(self.done),
            first_dirty_offset=first,
            end_offset=end,
            bytes_before=bytes_before,
            bytes_after=bytes_before - total(lambda it: it.bytes_read - it.bytes_written),
            superseded=total(lambda it: it.superseded),
            tombstones=total(lambda it: it.tombstones),
            without_key=total(lambda it: it.invalid_messages_read),
            aborted=total(lambda it: it.aborted),
            markers=total(lambda it: it.markers),
            batches=total(lambda it: it.batches_read - it.batches_written),
            segments=segments,
            bytes_read=total(lambda it: it.map_bytes_read + it.bytes_read),
            bytes_written=total(lambda it: it.bytes_written),
            elapsed_s=elapsed_ns / _NS_PER_S,
        )

    def _grab(self) -> Grabbed | None:
        """None where nothing is to be cleaned; waits for who stopped us, or keeps us from beginning."""
        while True:
            self._check()
            grabbed = self.manager.grab(self.log, by_ratio=self.by_ratio)
            if grabbed is not None:
                return grabbed
            state = self.manager.cleaning_state(self.log.topic_partition)
            if state is None:
                self._check()  # one that has moved or was closed meanwhile has not nothing to clean
                return None
            if state == IN_PROGRESS and self.manager.states.is_mine(self.log.topic_partition):
                raise IllegalStateException(
                    f"{self.log.topic_partition} is being compacted right now",
                    hint="a signal handler, or a finalizer, called for it in the middle of the same",
                )
            time.sleep(_REST_S)

    def _cleaner(self, to_clean: LogToClean) -> Cleaner:
        config = self.config
        offsets = self.log.log_end_offset - to_clean.first_dirty_offset
        wanted = (int(offsets / max(config.dedupe_buffer_load_factor, 0.01)) + 2) * SLOT_BYTES
        return Cleaner(
            offset_map_of(min(map_bytes(config), wanted)) if self.lasts is None else self.lasts,
            cleaner_settings(config),
            self.manager.clock,
            check_done=self._check_done,
            throttle=self.callbacks.progress,
            mapped=self.callbacks.mapped,
        )

    def _pass(self, grabbed: Grabbed, cleaner: Cleaner) -> int | None:
        """The offset that it reached; None where it was stopped, and is to begin again."""
        claim, to_clean = grabbed
        log, end = to_clean.log, to_clean.first_dirty_offset
        truncations = log.local_log.truncations
        try:
            self._check()  # behind the claim: whoever waits for all claims to end has said so before
            result = cleaner.clean(to_clean)
            end = result.end_offset
        except LogCleaningAbortedException:
            if log.local_log.life != OPEN:
                raise
            return None
        except KafkalogError:
            if log.local_log.truncations == truncations:
                raise
            return None  # what it read was cut away meanwhile
        finally:
            if self.manager.states.holds(claim):
                self.manager.done_cleaning(claim, log.parent_dir, end)
        self.done.append(result.stats)
        return end

    def _check_done(self, partition: TopicPartition) -> None:
        self._check()
        self.manager.check_cleaning_aborted(partition)

    def _check(self) -> None:
        self.callbacks.check()
        self.log.local_log.check_changeable()
