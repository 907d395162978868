"""compact: runs passes over one log on request, one after the other, until nothing in it is dirty.

LogCleanerManager decides what may be cleaned, records how far the log is cleaned, and pauses the cleaning, as for the
threads of a LogCleaner.  Cleaner runs a pass.  There are two differences: the share of dirty bytes does not matter
unless it is requested, and the map is no larger than the dirty offsets could fill.

If another thread stops a pass, to truncate the log or delete segments, the pass begins again when that thread is done.
The groups that it had exchanged stay exchanged, and are not in the numbers.  Runs in the caller's thread.
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
STOPS_MAX = 100  # how often in a row a pass begins again
_REST_S = 0.005  # between two checks whether the thread that stopped the pass is done
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CompactionStats:
    """The numbers of a compaction.

    Sizes are bytes of .log files.  Records that were appended meanwhile are not in the numbers.  A removed record is
    counted once, by the reason of its removal.

    Attributes:
        passes: How many passes the compaction took.
        first_dirty_offset: The offset at which it began.
        end_offset: The offset up to which (exclusive) the log is clean now, which is checkpointed.  It is equal to
            `first_dirty_offset` if there was nothing to do.
        bytes_before: The size of all segments before.
        bytes_after: The size of what these segments became.
        superseded: Removed records with a later record of the same key.
        tombstones: Removed tombstones past their delete horizon.
        without_key: Removed records without a key.
        aborted: Removed records of aborted transactions.
        markers: Removed markers of transactions of which no record is left.
        batches: How many batches less the log has.
        segments: How many segments less the log has.
        bytes_read: The bytes that both walks of each pass read.
        bytes_written: The bytes that the passes wrote.
        elapsed_s: The duration in seconds.

    Example:
        >>> import tempfile
        >>> import kafkalog
        >>> from kafkalog.config import CleanerConfig
        >>> with tempfile.TemporaryDirectory() as log_dir, kafkalog.LogManager(log_dir) as manager:
        ...     manager.set_topic_config("prices", {"cleanup.policy": "compact"})
        ...     stats = manager.compact(manager.get_or_create_log("prices-0"), CleanerConfig())
        >>> stats.records, stats.bytes_gained
        (0, 0)
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
    bytes_read: int
    bytes_written: int
    elapsed_s: float

    @property
    def records(self) -> int:
        """How many records were removed, for all reasons together."""
        return self.superseded + self.tombstones + self.without_key + self.aborted + self.markers

    @property
    def bytes_gained(self) -> int:
        """How many bytes the log shrank.

        Negative if rebuilt batches compress worse than before.
        """
        return self.bytes_before - self.bytes_after


def _nothing(*_: object) -> None:
    """The default callback: does nothing."""


class Callbacks(NamedTuple):
    """The callbacks of a compaction.

    `check` is called before each chunk, and raises to end the compaction.  `progress` is called with the number of
    bytes of each read and write.  `mapped` is called with the range of a pass and the offset at which it will end.
    """

    check: Callable[[], object] = _nothing
    progress: Callable[[int], object] = _nothing
    mapped: Callable[[LogToClean, int], object] = _nothing


class CompactOptions(TypedDict, total=False):
    """The options of `compact`, which each public function above it passes on."""

    passes_max: int | None
    by_ratio: bool
    callbacks: Callbacks | None  # `Cleaning.compact` replaces `check`
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
    """Runs passes until nothing is dirty, or `passes_max` of them.  Waits while another thread cleans the log.

    Args:
        manager: The cleaner manager that has the log.
        log: A compacted log of the manager.
        config: The settings of the compaction.
        passes_max: The largest number of passes.  No limit by default.
        by_ratio: Run a pass only while the share of dirty bytes is above the topic's min.cleanable.dirty.ratio.
        callbacks: Called during the compaction.
        lasts: Last offsets that the caller already knows, for one pass without a map.

    Returns:
        The numbers of all passes.

    Raises:
        IllegalStateException: This thread is already compacting the log.
        KafkaStorageException: The log was closed, or the disk failed.
        LogCleaningAbortedException: The log was truncated again and again.
        KafkalogError: Other errors as for `Cleaner.do_clean`.
    """
    return _Compaction(manager, log, config, callbacks or Callbacks(), by_ratio, lasts).run(
        passes_max if lasts is None else 1
    )


class _Compaction:
    """One running call of `compact`."""

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
        self.done: list[CleanerStats] = []  # one a pass

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
                        f"{log.topic_partition} was truncated or lost segments while it was cleaned, {stops} times"
                    )
                continue
            stops = 0
            segments_gone += segments - len(log.log_segments(0, grabbed.to_clean.first_uncleanable_offset))
            end = reached
            if reached <= grabbed.to_clean.first_dirty_offset:
                break  # another pass would reach no further
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
        """Claims the log; None if nothing is to be cleaned.  Waits for other cleanings and pauses to end."""
        while True:
            self._check()
            grabbed = self.manager.grab(self.log, by_ratio=self.by_ratio)
            if grabbed is not None:
                return grabbed
            state = self.manager.cleaning_state(self.log.topic_partition)
            if state is None:
                self._check()  # raises if the log was moved or closed meanwhile
                return None
            if state == IN_PROGRESS and self.manager.states.is_mine(self.log.topic_partition):
                raise IllegalStateException(
                    f"{self.log.topic_partition} is being compacted right now",
                    hint="a signal handler or a finalizer called this in the middle of the same compaction",
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
        """Runs a pass.  Returns the offset that it reached; None if it was stopped, and must begin again."""
        claim, to_clean = grabbed
        log, end = to_clean.log, to_clean.first_dirty_offset
        truncations = log.local_log.truncations
        try:
            self._check()  # after the claim: a shutdown that waits for all claims to end is visible by now
            result = cleaner.clean(to_clean)
            end = result.end_offset
        except LogCleaningAbortedException:
            if log.local_log.life != OPEN:
                raise
            return None
        except KafkalogError:
            if log.local_log.truncations == truncations:
                raise
            return None  # the records that it read were truncated meanwhile
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
