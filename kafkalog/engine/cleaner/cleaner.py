"""Cleaner: one pass of compaction over one log.

    build_offset_map   reads the dirty section and maps each key to its last offset, until the map is full
    group              groups neighbouring segments below the end of the map that fit into one segment
    clean_segments     copies a group into a `.cleaned` segment without superseded records, and puts it in their place

If the caller already knows the last offsets (`LastOffsets`), there is no first walk.
Between the two walks a log with one replica flushes the records that supersede others.
Appends and reads continue meanwhile: the bytes that the pass reads do not change, and only the exchange of segments
happens under the partition's lock.  Code that truncates, moves or deletes a log waits until the pass is over, or makes
it stop (`check_done`).  If segments changed all the same, the pass stops before its exchange.

A pass that is stopped (LogCleaningAbortedException, KeyboardInterrupt) deletes the `.cleaned` files of its current
group.  The groups before it stay exchanged, which does no harm.  After any other error the files stay for inspection
until the next pass or open, as Kafka's do.  If an interrupt hits an exchange, the next operation on the log finishes
the exchange (`PartitionOffsets.whole`).  A disk that fails takes the log directory offline.

Not thread-safe: a Cleaner has one map and one pair of buffers, and cleans one log at a time.  Its memory is the map,
the two buffers, and one batch.  Mirrors org.apache.kafka.storage.internals.log.Cleaner (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kafkalog._limits import to_int32, to_int64
from kafkalog._native.codec import batches as native
from kafkalog._native.codec.offset_map import LastOffsets, SkimpyOffsetMap
from kafkalog._native.state.log_end import FORKED
from kafkalog.engine.cleaner.filter import FilterResult, filter_to
from kafkalog.engine.cleaner.grouping import group_segments_by_size
from kafkalog.engine.cleaner.io_buffers import Chunk, IoBuffers
from kafkalog.engine.cleaner.mapping import OffsetMapping
from kafkalog.engine.cleaner.soundness import Soundness
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.engine.cleaner.survival import Survival, Terms
from kafkalog.engine.cleaner.to_clean import LogToClean
from kafkalog.engine.cleaner.transactions import CleanedTransactionMetadata
from kafkalog.engine.files import Clock
from kafkalog.engine.format.names import CLEANED_FILE_SUFFIX, TopicPartition
from kafkalog.engine.log.replacement import create_new_cleaned_segment
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.file_records import FileRecords
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.errors import (
    ClosedChannelException,
    IllegalArgumentException,
    LogCleaningAbortedException,
    LogSegmentOffsetOverflowException,
)

_STOPS = (LogCleaningAbortedException, ClosedChannelException)


class CleanResult(NamedTuple):
    """The result of a pass.  `end_offset` is the first offset that is dirty now, for the checkpoint."""

    end_offset: int
    stats: CleanerStats


class CleanerSettings(NamedTuple):
    """The sizes and checks of a Cleaner.

    `io_buffer_bytes`: the initial size of each of the two buffers.  `max_io_buffer_bytes`: the size up to which they
    grow.  `load_factor`: the share of slots at which the map counts as full.  `check_crcs`: check each batch as a
    reader would (`soundness`), which Kafka's cleaner does not do.
    IoBuffers raises IllegalArgumentException for an empty buffer.
    """

    io_buffer_bytes: int = 256 << 10
    max_io_buffer_bytes: int = 1_048_588
    load_factor: float = 0.9
    check_crcs: bool = False


def _nothing(_: object) -> None:
    """The default callback: does nothing."""


def _nothing_of_two(_: object, __: object) -> None:
    """The default callback with two arguments."""


class Cleaner:
    """Cleans one log at a time.

    `check_done` is called before each chunk, and raises to stop the pass.  `throttle` is called with the number of
    bytes of each read and write, and may sleep.  `mapped` is called once the map of a pass is complete, with the range
    to clean and the offset at which the pass will end.
    """

    def __init__(
        self,
        offset_map: SkimpyOffsetMap,
        settings: CleanerSettings,
        clock: Clock,
        *,
        check_done: Callable[[TopicPartition], object] = _nothing,
        throttle: Callable[[int], object] = _nothing,
        mapped: Callable[[LogToClean, int], object] = _nothing_of_two,
    ) -> None:
        self.offset_map = offset_map
        self.settings = settings
        self.clock = clock
        self.check_done = check_done
        self.throttle = throttle
        self.mapped = mapped
        self.buffers = IoBuffers(settings.io_buffer_bytes, settings.max_io_buffer_bytes, check_crcs=settings.check_crcs)
        self._soundness: Soundness | None = None  # for the segment that is being read

    def clean(self, cleanable: LogToClean) -> CleanResult:
        """Runs a pass at the clock's time.  Raises as `do_clean`."""
        return self.do_clean(cleanable, self.clock.milliseconds())

    def do_clean(self, cleanable: LogToClean, now_ms: int) -> CleanResult:
        """Runs a pass at a given time, by which delete horizons are set and reached.

        Raises LogCleaningAbortedException if it was stopped, CorruptRecordException, InvalidRecordException and similar
        errors with file and position for a batch that does not parse, and KafkaStorageException if the disk fails.
        """
        log = cleanable.log
        try:
            with log.local_log.guard("cleaning"):
                log.settle()
                return self._do_clean(cleanable, log, now_ms)
        except ClosedChannelException as error:
            raise LogCleaningAbortedException(
                f"segments of {log.topic_partition} were deleted, or the log was closed, while it was cleaned"
            ) from error

    def _do_clean(self, cleanable: LogToClean, log: UnifiedLog, now_ms: int) -> CleanResult:
        stats = CleanerStats(self.clock.milliseconds())
        present = _Pass(cleanable, now_ms, stats)
        if isinstance(self.offset_map, LastOffsets):
            under_way = True  # unknown, so assume it
            _check_known(self.offset_map, cleanable)
        else:
            under_way = self.build_offset_map(
                log, cleanable.first_dirty_offset, cleanable.first_uncleanable_offset, stats
            ).has_committed_under_way
        end_offset = self.offset_map.latest_offset + 1
        if log.high_watermark_follows:
            # The removed records were superseded by records that a power loss must not remove afterwards.  Kafka relies
            # on replicas; a log with one replica promises only the flushed records.
            log.local_log.flush(log.last_stable_offset if under_way else end_offset)
        stats.map_complete_ms = self.clock.milliseconds()
        log.context.logger.info(
            "cleaning up to offset %d: %d keys of %d records, from offset %d on",
            end_offset, self.offset_map.size, stats.map_messages_read, cleanable.first_dirty_offset,
        )  # fmt: skip
        self.mapped(cleanable, end_offset)
        groups = group_segments_by_size(
            log.log_segments(0, end_offset),
            log.config.segment_size,
            log.config.max_index_size,
            cleanable.first_uncleanable_offset,
        )
        for group in groups:
            self.clean_segments(group, present)
        with log.lock:
            present.check_unchanged()  # otherwise `end_offset` may refer to records that no longer exist
        stats.buffer_utilization = self.offset_map.utilization
        stats.end_ms = self.clock.milliseconds()
        return CleanResult(end_offset, stats)

    # --- the first walk --------------------------------------------------------------------------------

    def build_offset_map(
        self, log: UnifiedLog, start: int, end: int, stats: CleanerStats
    ) -> CleanedTransactionMetadata:
        """Fills the map with the keys of [start, end), or with as many from `start` on as fit.

        Returns the transactions that it met.
        """
        self.offset_map.clear()
        dirty = log.log_segments(start, end)
        ends = [*[segment.base_offset for segment in dirty[1:]], end]
        transactions = CleanedTransactionMetadata()
        transactions.add_aborted_transactions(log.collect_aborted_transactions(start, end))
        mapping = OffsetMapping(
            self.offset_map,
            start,
            to_int32(int(self.offset_map.slots * self.settings.load_factor)),
            log.config.max_decompressed_message_bytes,
            transactions,
            stats,
        )
        for segment, segment_end in zip(dirty, ends, strict=False):
            self.check_done(log.topic_partition)
            if self._map_segment(log, segment, segment_end, mapping):
                log.context.logger.debug("the offset map is full within segment %d", segment.base_offset)
                break
        return transactions

    def _map_segment(self, log: UnifiedLog, segment: LogSegment, end: int, mapping: OffsetMapping) -> bool:
        """Maps one segment, which ends before offset `end`.  Returns whether the map is full."""
        position = segment.offset_index.lookup(mapping.start_offset).position
        self._begin(log, segment)
        while position < segment.log.size:
            chunk = self._read(log, segment.log, position)
            row = 0
            while row < len(chunk.table):
                row, is_full = mapping.take(chunk, row)
                if is_full and self.offset_map.size < mapping.desired_size:  # a load factor above 1
                    raise IllegalArgumentException(
                        f"Attempted to add a new entry to a full offset map, entries: {self.offset_map.size}, "
                        f"slots: {self.offset_map.slots}"
                    )
                if is_full:
                    return True
            chunk.check_end()
            position += chunk.valid_bytes
            mapping.stats.map_bytes_read += chunk.valid_bytes
            if chunk.valid_bytes == 0:
                self.buffers.grow_or_fail(chunk, log.config.max_message_bytes)
        self._finish()
        self.offset_map.latest_offset = end - 1
        self.buffers.restore()
        return False

    def _begin(self, log: UnifiedLog, segment: LogSegment) -> None:
        """Begins a walk over a segment."""
        if self.settings.check_crcs:
            following = log.local_log.segments.higher_segment(segment.base_offset)
            self._soundness = Soundness(segment, None if following is None else following.base_offset)

    def _finish(self) -> None:
        if self._soundness is not None:
            self._soundness.finish()

    def _read(self, log: UnifiedLog, records: FileRecords, position: int) -> Chunk:
        self.check_done(log.topic_partition)
        chunk = self.buffers.read(records, position)
        log.local_log.check_if_closed()  # it may have been closed during the read
        if self._soundness is not None:
            self._soundness.check(chunk)
        self.throttle(len(chunk.data))
        return chunk

    # --- the second walk -------------------------------------------------------------------------------

    def clean_segments(self, group: Sequence[LogSegment], present: _Pass) -> None:
        """Copies the records that stay of a group of segments into one segment, which takes their place."""
        log = present.log
        cleaned: LogSegment | None = None
        try:
            cleaned = create_new_cleaned_segment(log.context, group[0].base_offset)
            present.transactions.cleaned_index = cleaned.txn_index
            self._copy(group, cleaned, present)
            cleaned.on_become_inactive_segment()
            with log.context.flush_timer.time():
                cleaned.flush()
            cleaned.set_last_modified(group[-1].last_modified)
            present.exchange(cleaned, group)
        except BaseException as error:
            passes = log.context.log_dir_failure_channel.passes(error)
            is_stopped = passes or isinstance(error, _STOPS) or not isinstance(error, Exception)
            with log.lock:
                _let_go(log, group[0].base_offset, cleaned, is_stopped)
            raise

    def _copy(self, group: Sequence[LogSegment], cleaned: LogSegment, present: _Pass) -> None:
        log, transactions = present.log, present.transactions
        last_records = log.last_records_of_active_producers
        for number, segment in enumerate(group):
            end = group[number + 1].base_offset if number + 1 < len(group) else segment.read_next_offset()
            transactions.add_aborted_transactions(log.collect_aborted_transactions(segment.base_offset, end))
            terms = Terms(
                present.now_ms,
                log.config.delete_retention_ms,
                segment.last_modified > present.legacy_horizon_ms,
                log.config.max_decompressed_message_bytes,
                log.high_watermark,
                last_records,
            )
            survival = Survival(self.offset_map, transactions, terms, present.stats)
            try:
                self.clean_into(log, segment, cleaned, survival)
            except LogSegmentOffsetOverflowException as error:
                log.context.logger.info("cleaning stops: %s", error)
                log.split_overflowed_segment(segment)
                raise LogCleaningAbortedException(
                    "a segment had offsets too far from its base, and was split", path=segment.log.path
                ) from error

    def clean_into(self, log: UnifiedLog, source: LogSegment, cleaned: LogSegment, survival: Survival) -> None:
        """Appends to `cleaned` the records of one segment that stay.

        Raises LogSegmentOffsetOverflowException if an offset does not fit into the segment.
        """
        stats = survival.stats
        position = 0
        self._begin(log, source)
        while position < source.log.size:
            chunk = self._read(log, source.log, position)
            result = FilterResult()
            row = 0
            while row < len(chunk.table) and len(result.output) <= self.buffers.capacity:
                row = filter_to(chunk, row, survival, result, self.buffers.capacity)
            if row == len(chunk.table) and len(result.output) <= self.buffers.capacity:
                chunk.check_end()
            stats.messages_read += result.messages_read
            stats.bytes_read += result.bytes_read
            stats.messages_written += result.messages_retained
            stats.bytes_written += result.bytes_retained
            stats.batches_read += row
            position += result.bytes_read
            if result.output:
                headers, _, _ = native.headers(result.output)
                stats.batches_written += len(headers)
                cleaned.append(result.max_offset, [result.output], headers)
                self.throttle(len(result.output))
            if result.bytes_read == 0:
                self.buffers.grow_or_fail(chunk, log.config.max_message_bytes)
        self._finish()
        self.buffers.restore()


class _Pass:
    """A running pass: its time, its statistics, and the state of the log when it began."""

    def __init__(self, cleanable: LogToClean, now_ms: int, stats: CleanerStats) -> None:
        self.log = log = cleanable.log
        self.now_ms = now_ms
        self.stats = stats
        self.transactions = CleanedTransactionMetadata()
        # Tombstones of magic 0 and 1 have no delete horizon: the age of their segment decides.
        clean = log.log_segments(0, cleanable.first_dirty_offset)
        delete_retention_ms = log.config.delete_retention_ms
        self.legacy_horizon_ms = to_int64(clean[-1].last_modified - delete_retention_ms) if clean else 0
        self._truncations = log.local_log.truncations
        self._above = log.local_log.segments.get(cleanable.first_uncleanable_offset)
        if log.active_segment.base_offset < cleanable.first_uncleanable_offset:
            raise self._was_cut()  # after the range was chosen: the segment that is active now takes appends

    def exchange(self, cleaned: LogSegment, group: Sequence[LogSegment]) -> None:
        """Puts the cleaned segment in the place of its sources.  LogCleaningAbortedException if they changed."""
        with self.log.lock:
            self.log.settle()  # finishes an interrupted truncation first
            self.check_unchanged(group)
            self.log.replace_segments([cleaned], group)

    def check_unchanged(self, group: Sequence[LogSegment] = ()) -> None:
        """Raises if the log was truncated below the end of the cleaned range, or lost a segment of the group.

        Otherwise the exchange would bring back truncated records.  The caller holds the log's lock.
        """
        local = self.log.local_log
        was_cut = local.truncations != self._truncations and (
            self._above is None or local.segments.get(self._above.base_offset) is not self._above
        )
        if was_cut or any(local.segments.get(segment.base_offset) is not segment for segment in group):
            raise self._was_cut()

    def _was_cut(self) -> LogCleaningAbortedException:
        return LogCleaningAbortedException(
            f"{self.log.topic_partition} was truncated or lost segments while it was cleaned",
            hint="the next pass continues with the remaining records",
        )


def _check_known(lasts: LastOffsets, cleanable: LogToClean) -> None:
    """Refuses last offsets beyond the cleanable range: a record there may be aborted, or not on all replicas yet."""
    end_offset, limit = lasts.latest_offset + 1, cleanable.first_uncleanable_offset
    if not cleanable.first_dirty_offset < end_offset <= limit:
        raise IllegalArgumentException(
            f"last offsets are known up to {end_offset}, expected an end after {cleanable.first_dirty_offset}, and at "
            f"most {limit}, the first offset of {cleanable.log.topic_partition} that may not be cleaned yet"
        )


def _let_go(log: UnifiedLog, base_offset: int, cleaned: LogSegment | None, is_stopped: bool) -> None:
    """Deletes or closes the new files of a pass that did not finish.  The caller holds the log's lock."""
    if log.local_log.life == FORKED:
        return  # the files belong to the parent process, which continues with them
    if cleaned is not None and not (log.unfinished is None and cleaned.has_suffix(CLEANED_FILE_SUFFIX)):
        return  # the exchange has begun
    try:
        if is_stopped and cleaned is not None:
            cleaned.delete_if_exists()
        elif is_stopped:
            LogSegment.delete_files_if_exist(log.context.dir, base_offset, CLEANED_FILE_SUFFIX, log.context.files)
        elif cleaned is not None:
            cleaned.close_quietly()
    except OSError as error:  # the first error is raised; the next open deletes the files
        log.context.logger.warning("the cleaned files of segment %d stay: %s", base_offset, error)
