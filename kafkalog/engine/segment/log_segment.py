"""LogSegment: one .log file and the indexes that can be rebuilt from it.

It knows positions, offsets and timestamps; nothing about leaders, retention or other segments. Mirrors
org.apache.kafka.storage.internals.log.LogSegment (4.4.0). Kafka's rules for index entries are per batch: an entry holds
the last offset and the start of a batch. It is added if more than index.interval.bytes are between the batch and the
previous entry (or the opening of the segment). Appending and recovering add the same entries.

Not thread-safe for writing: UnifiedLog holds its lock around every call that changes something. Reads need no lock. The
writing part of an append is native, in `_native.tail`, and so is the rule for a roll (`SegmentTail.is_over`). An append
to a log calls it directly, without `append`. A read is native too (`_native.fetch`), unless it meets something unusual.
`recover` is one native scan in slices; Python sees only the batches that change producer state or leader epochs.
`index` lists what a new index must touch. The file is long because Kafka's class is long.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec import batches as native
from kafkalog._native.codec.batches import IndexPlan
from kafkalog._native.state import fetch
from kafkalog._native.state.held import Pin
from kafkalog._native.state.tail import FILE_AWAY, WRITTEN, SegmentTail
from kafkalog.engine.files import Buffer, Clock, Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import MAGIC_AT, RECORD_BATCH_OVERHEAD, SMALLEST_BATCH_BYTES
from kafkalog.engine.format.index_entries import OFFSET_ENTRY
from kafkalog.engine.format.log_lines import lines_of_folder
from kafkalog.engine.format.records import MAX_RECORD_BYTES
from kafkalog.engine.segment.file_records import FileRecords, FileRecordsSlice, max_timestamp_of
from kafkalog.engine.segment.lazy_index import LazyIndex
from kafkalog.engine.segment.loss import MISFIT, VERDICT_TEXT
from kafkalog.engine.segment.offset_index import OffsetIndex
from kafkalog.engine.segment.scan import LogScan
from kafkalog.engine.segment.time_index import TimeIndex
from kafkalog.engine.segment.transaction_index import TransactionIndex, TxnIndexSearchResult
from kafkalog.engine.segment.types import (
    EMPTY_RECORDS,
    FetchDataInfo,
    LogOffsetMetadata,
    LogOffsetPosition,
    OffsetPosition,
    RecoveryObserver,
    RollParams,
    TimestampAndOffset,
    TimestampOffset,
)
from kafkalog.errors import (
    BadBytesError,
    IllegalArgumentException,
    LogSegmentOffsetOverflowException,
    NoSuchFileException,
)

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.config import LogConfig

WHOLE_SEGMENT = -LONG_MAX  # max_position of a read: up to the current end
SPLIT_CHUNK_BYTES = 1 << 20
INDEX_FLUSH_ENTRIES = 4096  # recovery writes index entries in runs of about this many
_FETCHED = (LogOffsetMetadata, FileRecordsSlice, FetchDataInfo)  # the classes that a read creates
_FUTURE_DIR = re.compile(r"^(\S+)-(\S+)\.(\S+)-future", re.ASCII)


class LogSegment:
    """A segment. `base_offset`: the lowest possible offset. `log`: its FileRecords. `size`: bytes of its .log file.

    Indexes are opened (and created) at their first use.
    """

    __slots__ = (
        "_files",
        "_lazy_offset_index",
        "_lazy_time_index",
        "_offset_index",
        "_time_index",
        "base_offset",
        "clock",
        "log",
        "tail",
        "txn_index",
    )

    def __init__(
        self,
        log: FileRecords,
        lazy_offset_index: LazyIndex[OffsetIndex],
        lazy_time_index: LazyIndex[TimeIndex],
        txn_index: TransactionIndex,
        config: LogConfig,
        clock: Clock,
        files: Files,
    ) -> None:
        self.log = log
        self._lazy_offset_index = lazy_offset_index
        self._lazy_time_index = lazy_time_index
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self.txn_index = txn_index
        self.base_offset = txn_index.start_offset
        self.clock = clock
        self._files = files
        # The state that appends need and update: distances, timestamps, and the indexes once they are open.
        self.tail = SegmentTail(
            self.base_offset,
            config.index_interval_bytes,
            config.random_segment_jitter(),
            clock.milliseconds(),
            log,
            txn_index,
        )

    @classmethod
    def open(
        cls,
        dir: str,
        base_offset: int,
        config: LogConfig,
        clock: Clock,
        files: Files,
        *,
        new: bool = False,
        suffix: str = "",
        has_txn_index: bool | None = None,
    ) -> LogSegment:
        """Opens or creates the segment's .log file; its indexes are opened at their first use.

        `new`: preallocate the file if the configuration says so; otherwise the whole length counts. `has_txn_index`:
        whether a directory listing shows a transaction index. The listing must show the .log file too, which is then
        opened at its first use. None if there is no listing.
        """
        stem = names.segment_stem(dir, base_offset)
        index_size = config.max_index_size
        return cls(
            FileRecords.open(
                stem + names.LOG_FILE_SUFFIX + suffix,
                files,
                preallocated_bytes=config.init_file_size if new and config.preallocate else None,
                exists=has_txn_index is not None,
            ),
            LazyIndex(OffsetIndex, stem + names.INDEX_FILE_SUFFIX + suffix, base_offset, index_size, files),
            LazyIndex(TimeIndex, stem + names.TIME_INDEX_FILE_SUFFIX + suffix, base_offset, index_size, files),
            TransactionIndex(
                base_offset, stem + names.TXN_INDEX_FILE_SUFFIX + suffix, files, exists=has_txn_index is not False
            ),
            config,
            clock,
            files,
        )

    @staticmethod
    def delete_files_if_exist(dir: str, base_offset: int, suffix: str, files: Files) -> None:
        """Deletes the files of a segment that is not open (Kafka's static deleteIfExists)."""
        files.unlink_if_exists(names.offset_index_file(dir, base_offset, suffix))
        files.unlink_if_exists(names.time_index_file(dir, base_offset, suffix))
        files.unlink_if_exists(names.transaction_index_file(dir, base_offset, suffix))
        files.unlink_if_exists(names.log_file(dir, base_offset, suffix))

    # --- properties ------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return self.log.size

    @property
    def offset_index(self) -> OffsetIndex:
        index = self._offset_index
        if index is None:
            index = self._offset_index = self.tail.offset_index = self._lazy_offset_index.get()
        return index

    @property
    def time_index(self) -> TimeIndex:
        index = self._time_index
        if index is None:
            index = self._time_index = self.tail.time_index = self._lazy_time_index.get()
        return index

    @property
    def offset_index_file(self) -> str:
        return self._lazy_offset_index.file

    @property
    def time_index_file(self) -> str:
        return self._lazy_time_index.file

    @property
    def max_timestamp_and_offset_so_far(self) -> TimestampOffset:
        """The largest timestamp and the last offset of the first batch that has it (readMaxTimestampAndOffsetSoFar)."""
        found = self.tail.largest_timestamp
        if found is None:  # as in Kafka, the first caller decides what a truncation starts from
            found = self.tail.learn_largest_timestamp(self.time_index.last_entry)
        return TimestampOffset(*found)

    @property
    def max_timestamp_so_far(self) -> int:
        timestamp = self.tail.max_timestamp
        return self.max_timestamp_and_offset_so_far[0] if timestamp is None else timestamp

    @property
    def last_modified(self) -> int:
        """The .log file's modification time in ms; 0 if the file no longer exists."""
        try:
            return self._files.stat(self.log.path).mtime_ms
        except FileNotFoundError:
            return 0

    @property
    def largest_record_timestamp(self) -> int | None:
        timestamp = self.max_timestamp_so_far
        return timestamp if timestamp >= 0 else None

    @property
    def largest_timestamp(self) -> int:
        """The largest record timestamp, or the file's modification time if there is none."""
        timestamp = self.max_timestamp_so_far
        return timestamp if timestamp >= 0 else self.last_modified

    @property
    def deleted(self) -> bool:
        exists = self._files.exists
        return not (
            exists(self.log.path)
            or exists(self.offset_index_file)
            or exists(self.time_index_file)
            or exists(self.txn_index.path)
        )

    def has_suffix(self, suffix: str) -> bool:
        """Returns whether all four file names end with `suffix`."""
        return (
            self.log.path.endswith(suffix)
            and self.offset_index_file.endswith(suffix)
            and self.time_index_file.endswith(suffix)
            and self.txn_index.path.endswith(suffix)
        )

    def __repr__(self) -> str:
        largest = -1 if self.tail.max_timestamp is None else self.tail.max_timestamp
        return (
            f"LogSegment(baseOffset={self.base_offset}, size={self.size}, lastModifiedTime={self.last_modified}, "
            f"largestRecordTimestamp={largest})"
        )

    # --- appending -------------------------------------------------------------------------------------

    def append(self, largest_offset: int, buffers: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Writes whole batches after the end and adds their index entries.

        `headers` describe, in order, the batches in the joined `buffers`. Raises LogSegmentOffsetOverflowException,
        with nothing written, if `largest_offset` is too far from the base offset. Raises IllegalArgumentException
        beyond 2^31-1 bytes and, after the bytes were written, if an index is full. As in Kafka, `should_roll` prevents
        that.
        """
        if not headers:
            return
        self.check_append(largest_offset, sum([header.size for header in headers]))
        written, described = tuple(buffers), list(headers)
        while (refused := self.tail.append(written, described)) != WRITTEN:
            _pins = self.make_ready(refused, written, described)

    def check_append(self, largest_offset: int, length: int) -> None:
        """Checks the limits of every append: offsets and positions of 31 bits."""
        _ = self.offset_index  # a refused append creates no other file
        if not 0 <= largest_offset - self.base_offset <= INT_MAX:
            raise self._overflow(largest_offset)
        if length > INT_MAX - self.log.size:
            raise IllegalArgumentException(
                f"Append of size {length} bytes is too large for segment with current file position at {self.log.size}",
                path=self.log.path,
            )
        if not self.tail.is_known:
            self.know_end()

    def know_end(self) -> None:
        """Opens the indexes and reads the timestamps that `tail` needs."""
        _ = (self.offset_index, self.time_index, self.max_timestamp_and_offset_so_far)
        if self.tail.first_timestamp is None:
            self.tail.first_timestamp = self._first_timestamp()

    def make_ready(
        self, refused: int, buffers: Sequence[Buffer], headers: Sequence[BatchHeader], *, aborts: bool = False
    ) -> tuple[Pin, ...]:
        """Handles an append that did nothing: opens the files again, or raises the error of the index that refused it.

        The files stay open as long as the caller holds the result. `aborts`: the append has entries for the transaction
        index. It is created here if it does not exist, so that a refused append leaves no empty one.

        Kafka detects a refusal after the batches were written, and leaves them in the file after the end of the log.
        """
        if refused == FILE_AWAY and self.log.channel is None:
            pins: tuple[Pin, ...] = (Pin(self.log),)  # most appends write only to this file
            self.log.open_channel()
            return pins
        if refused == FILE_AWAY:
            pins = tuple(map(Pin, (self.log, self.offset_index, self.time_index, self.txn_index)))
            self.log.open_channel()
            self.offset_index.open_channel()
            self.time_index.open_channel()
            if aborts:
                self.txn_index.make_writable()
            else:
                self.txn_index.open_channel()
            return pins
        tail = self.tail
        position = self.log.size
        self.log.append(buffers, sum([header.size for header in headers]))
        header = headers[0]
        if len(headers) > 1:
            plan = self._new_plan(tail.bytes_since_last_index_entry, *self.max_timestamp_and_offset_so_far)
            planned = plan.add_headers(list(headers), base_position=position - header.position)
            self._take_plan(plan)
            if not planned:
                self._raise_index_error(plan, headers[_error_row(plan)].last_offset)
        else:
            if header.max_timestamp > self.max_timestamp_so_far:
                tail.largest_timestamp = (header.max_timestamp, header.last_offset)
            self.offset_index.append(header.last_offset, position)
            self.time_index.maybe_append(*self.max_timestamp_and_offset_so_far)
        raise AssertionError(f"an index refused {headers}, but now accepts them, in {self}")

    def _new_plan(
        self, bytes_since_last_entry: int, max_timestamp: int, offset_of_max_timestamp: int, *, recovery: bool = False
    ) -> IndexPlan:
        offset_index, time_index = self.offset_index, self.time_index
        return IndexPlan(
            self.base_offset,
            self.tail.index_interval_bytes,
            bytes_since_last_entry=bytes_since_last_entry,
            max_timestamp=max_timestamp,
            offset_of_max_timestamp=offset_of_max_timestamp,
            last_time_entry=time_index.last_entry,
            last_offset_entry=offset_index.last_offset,
            offset_entry_count=offset_index.entries,
            time_entry_count=time_index.entries,
            max_offset_entries=offset_index.max_entries,
            max_time_entries=time_index.max_entries,
            check_range=recovery,
        )

    def _write_plan(self, plan: IndexPlan) -> None:
        """Writes the entries that a plan has created since the last call."""
        offset_entries, time_entries = plan.take()
        # Invariant: the position of an entry is within the log.
        assert not offset_entries or OFFSET_ENTRY.unpack(offset_entries[-OFFSET_ENTRY.size :])[1] < self.log.size, self
        self.offset_index.append_packed(offset_entries)
        self.time_index.append_packed(time_entries)

    def _take_plan(self, plan: IndexPlan) -> None:
        """Writes a plan's entries and takes over its largest timestamp."""
        self._write_plan(plan)
        self.tail.bytes_since_last_index_entry = plan.bytes_since_last_entry
        self.tail.largest_timestamp = (plan.max_timestamp, plan.offset_of_max_timestamp)

    def _raise_index_error(self, plan: IndexPlan, last_offset: int) -> NoReturn:
        """Raises the error that Kafka raises where the plan stopped: an index refuses its next entry."""
        assert plan.error is not None
        # The out-of-range offset may be that of the time entry: then the offset entry before it was accepted.
        taken = plan.error[0] == native.OFFSET_OUT_OF_RANGE and plan.last_offset_entry == last_offset
        if plan.error[0] in _OFFSET_ENTRY_ERRORS and not taken:
            self.offset_index.check_append(last_offset, plan.offset_entry_count, plan.last_offset_entry)
        self.time_index.check_append(
            plan.max_timestamp, plan.offset_of_max_timestamp, plan.time_entry_count,
            TimestampOffset(*plan.last_time_entry),
        )  # fmt: skip
        raise AssertionError(f"index plan stopped with {plan.error} at {last_offset} in {self}")

    def _overflow(self, offset: int) -> LogSegmentOffsetOverflowException:
        error = LogSegmentOffsetOverflowException(
            f"Detected offset overflow at offset {offset} in segment {self}", path=self.log.path
        )
        error.segment = self
        error.offset = offset
        return error

    def append_from_file(self, records: FileRecords, start: int) -> int:
        """Appends batches of another file from position `start` on, as far as their offsets fit.

        Returns the bytes appended.
        """
        position = start
        # This is Kafka's bound. With a start above 0 it is after the file's end, but the walk ends there anyway.
        while position < start + records.size:
            appended = self._append_chunk_from_file(records, position)
            if appended == 0:
                break
            position += appended
        return position - start

    def _append_chunk_from_file(self, records: FileRecords, position: int) -> int:
        chunk: list[BatchHeader] = []
        length = 0
        for header in records.batches_from(position):
            if not self.offset_index.can_append_offset(header.last_offset):
                break
            if chunk and length + header.size >= SPLIT_CHUNK_BYTES:
                break
            chunk.append(header)
            length += header.size
        if chunk:
            self.append(chunk[-1].last_offset, [records.read(position, length)], chunk)
        return length

    # --- rolling ---------------------------------------------------------------------------------------

    def should_roll(self, roll_params: RollParams) -> bool:
        """Returns whether an append must go to a new segment.

        The reasons are bytes, time, a full index, or an offset too far from the base offset.
        """
        max_segment_ms, max_segment_bytes, max_timestamp, max_offset, messages_size, now = roll_params
        if not self.tail.is_known:
            self.know_end()
        return self.tail.must_roll(max_segment_ms, max_segment_bytes, max_timestamp, max_offset, messages_size, now)

    def time_waited_for_roll(self, now: int, message_timestamp: int) -> int:
        """Returns the ms from the first batch's timestamp (or the opening) to the message (or `now`).

        Without a first batch, the time from opening to `now` counts.
        """
        if self.tail.first_timestamp is None:
            self.tail.first_timestamp = self._first_timestamp()
        return self.tail.time_waited_for_roll(now, message_timestamp)

    @property
    def first_batch_timestamp(self) -> int:
        """The first batch's max timestamp (getFirstBatchTimestamp), read once; 2^63-1 if there is none."""
        timestamp = self.tail.first_timestamp
        if timestamp is None:
            timestamp = self._first_timestamp()
            if timestamp is not None:
                self.tail.first_timestamp = timestamp
                # No lock is held here: a truncation may have removed the batch meanwhile.
                if self._first_timestamp() != timestamp:
                    self.tail.first_timestamp = None
        return LONG_MAX if timestamp is None or timestamp < 0 else timestamp

    def _first_timestamp(self) -> int | None:
        """Returns the first batch's max timestamp from the file."""
        first = self.log.first_batch() if self.log.size else None
        return None if first is None else max_timestamp_of(first)

    def on_become_inactive_segment(self) -> None:
        """Closes the segment for writing: adds a last time index entry, and trims all files to their contents."""
        self.time_index.maybe_append(*self.max_timestamp_and_offset_so_far, skip_full_check=True)
        self.offset_index.trim_to_valid_size()
        self.time_index.trim_to_valid_size()
        self.log.trim()

    def resize_indexes(self, size: int) -> None:
        """Makes both index files `size` bytes long, rounded down to whole entries."""
        self.offset_index.resize(size)
        self.time_index.resize(size)

    # --- reading ---------------------------------------------------------------------------------------

    def translate_offset(self, offset: int, starting_file_position: int = 0) -> LogOffsetPosition | None:
        """Returns the first batch that holds `offset` or is above it, or None."""
        found = self._find_batch(offset, starting_file_position)
        return None if found is None else LogOffsetPosition(*found)

    def _find_batch(self, offset: int, starting_position: int = 0) -> tuple[int, int, int] | None:
        """Returns `translate_offset` as a plain tuple.

        An index entry may be wrong: a bit flipped, or a broker truncated the index in memory and the file still has the
        entry. Kafka's reads then skip batches silently. If the result leaves room for that, this method searches again
        from the start.
        """
        log = self.log
        position = (self._offset_index or self.offset_index).lookup(offset)[1]
        if position <= starting_position:
            return log.find_batch(offset, starting_position)
        found, refusal = None, None
        try:
            found = log.find_batch(offset, position)
        except BadBytesError as error:
            refusal = error
        if (found is None or found[0] > offset) and not self._names_a_batch(position, offset):
            try:
                return log.find_batch(offset, starting_position)
            except BadBytesError:  # there is damage on that way too: use Kafka's result
                pass
        if refusal is not None:
            raise refusal
        return found

    def _names_a_batch(self, position: int, offset: int) -> bool:
        """Returns whether a batch at or below `offset` begins at `position`, as an index entry for it says."""
        if position <= 0:
            return position == 0
        data = self.log.open_channel().pread(RECORD_BATCH_OVERHEAD, position) if position < self.log.size else b""
        if len(data) < SMALLEST_BATCH_BYTES or data[MAGIC_AT] > 2:
            return False
        header = native.header_at(data.ljust(RECORD_BATCH_OVERHEAD, b"\0"))
        return header.size >= SMALLEST_BATCH_BYTES and self.base_offset <= header.base_offset <= offset

    def position_for(self, offset: int) -> int:
        """Returns where a search for `offset` may begin: the offset index's position if it is plausible, else 0."""
        position = self.offset_index.lookup(offset).position
        return position if self._names_a_batch(position, offset) else 0

    def read(
        self,
        start_offset: int,
        max_size: int,
        max_position: int | None = WHOLE_SEGMENT,
        min_one_message: bool = False,
    ) -> FetchDataInfo | None:
        """Returns batches from the one that holds `start_offset` on.

        They have at most `max_size` bytes and are below file position `max_position`. Returns None if the segment ends
        before `start_offset`. If `max_position` is None (unknown), no bytes are returned. With `min_one_message` the
        first batch is returned whole, unless `max_position` ends inside it. Only headers are read.
        """
        if max_size < 0:
            raise IllegalArgumentException(f"Invalid max size {max_size} for log read from segment {self.log}")
        info: FetchDataInfo | None = None
        if max_position is not None:
            info = fetch.read(self.tail, _FETCHED, start_offset, max_size, max_position, min_one_message)
        if info is not None:
            return info
        log = self.log
        channel = log.open_channel()  # held from here on, even if the segment is closed meanwhile
        if max_position == WHOLE_SEGMENT:
            max_position = log.size
        found = self._find_batch(start_offset)
        if found is None:
            return None
        if found[2] > max_size and min_one_message:
            max_size = found[2]
        if max_size == 0 or max_position is None:
            return FetchDataInfo(LogOffsetMetadata(found[0], self.base_offset, found[1]), EMPTY_RECORDS)
        info = fetch.slice_at(_FETCHED, self.base_offset, log, channel, found, max_size, max_position)
        return info  # noqa: RET504 (the type)

    def fetch_upper_bound_offset(self, start_offset_position: OffsetPosition, fetch_size: int) -> int | None:
        """Returns an offset that a read of `fetch_size` bytes does not pass; None if unknown."""
        entry = self.offset_index.fetch_upper_bound_offset(start_offset_position, fetch_size)
        return None if entry is None else entry.offset

    def read_next_offset(self) -> int:
        """Returns the offset after the last batch; the base offset if there is none."""
        found = self.read(self.offset_index.last_offset, self.log.size)
        if found is None or not isinstance(found.records, FileRecordsSlice):
            return self.base_offset
        last = found.records.last_batch()
        return self.base_offset if last is None else last.next_offset

    def index_fault(self, end: int) -> str | None:
        """Returns what is impossible in the last index entries; None if they are possible.

        These entries locate the segment's end.
        """
        if self.log.size == 0:
            return None  # the indexes of a new segment may be full of zeros
        offset_index, time_index = self.offset_index, self.time_index
        if offset_index.entries:
            offset, position = offset_index.entry(offset_index.entries - 1)
            if not (self.base_offset <= offset < end and self._names_a_batch(position, offset)):
                return f"the last entry of {offset_index.path} says that offset {offset} is in the batch at {position}"
        if time_index.entries and not self.base_offset <= (offset := time_index.last_entry.offset) < end:
            return f"the last entry of {time_index.path} has offset {offset}, but the segment ends at {end}"
        return None

    def has_overflow(self) -> bool:
        """Returns whether the last offset is too far from the base offset."""
        next_offset = self.read_next_offset()
        return next_offset > self.base_offset and not self.offset_index.can_append_offset(next_offset - 1)

    def collect_aborted_txns(self, fetch_offset: int, upper_bound_offset: int) -> TxnIndexSearchResult:
        """Returns aborted transactions that may have records in [fetch_offset, upper_bound_offset)."""
        return self.txn_index.collect_aborted_txns(fetch_offset, upper_bound_offset)

    def find_offset_by_timestamp(
        self, timestamp_ms: int, starting_offset: int, max_record_body_size: int = MAX_RECORD_BYTES
    ) -> TimestampAndOffset | None:
        """Returns the first record at or above both a timestamp and an offset, or None."""
        entry = self.time_index.lookup(timestamp_ms)
        target = max(entry.offset, starting_offset)
        return self.log.search_for_timestamp(
            timestamp_ms, self.position_for(target), starting_offset, max_record_body_size
        )

    def scan(self, *, check_crc: bool = True) -> LogScan:
        """Returns a scan that yields all valid batches as tables, in slices."""
        return self.log.scan(check_crc=check_crc)

    # --- recovering and truncating ---------------------------------------------------------------------

    def can_be_indexed(self) -> bool:
        """Returns whether every batch is good and the offsets are in an index's order.

        `recover` then truncates nothing.

        Writes nothing. Does not check whether the index files have room.
        """
        plan = IndexPlan(
            self.base_offset,
            self.tail.index_interval_bytes,
            offset_of_max_timestamp=self.base_offset,
            check_range=True,
        )
        scan = self.scan()
        for table, _, _ in scan:
            if not plan.add_table(table):
                return False
            plan.take()
        return scan.position == self.log.size and plan.add_last_time_entry()

    def sanity_check(self, time_index_file_newly_created: bool, *, has_offset_index: bool | None = None) -> None:
        """Raises NoSuchFileException without an offset index, CorruptIndexException for a bad transaction index.

        `has_offset_index`: whether a directory listing shows it; None: the file is looked for.
        """
        if has_offset_index is None:
            has_offset_index = self._files.exists(self.offset_index_file)
        if not has_offset_index:
            raise NoSuchFileException(f"Offset index file {os.path.abspath(self.offset_index_file)} does not exist")
        if time_index_file_newly_created:
            self.time_index.resize(0)
        self.txn_index.sanity_check(self.log.size)

    def recover(self, observer: RecoveryObserver, *, cuts_misfits: bool = False) -> int:
        """Checks every batch, rebuilds the indexes and calls the observer. Returns the bytes truncated.

        Removes the first batch that is not valid and everything after it. With `cuts_misfits`, a batch whose offsets do
        not fit after those before it is not valid. Raises LogSegmentOffsetOverflowException if an offset is too far
        from the base offset. Memory does not grow with the file.
        """
        offset_index = self.offset_index
        offset_index.reset()
        self.time_index.reset()
        self.txn_index.reset()
        self.tail.largest_timestamp = None
        plan = self._new_plan(0, *self.max_timestamp_and_offset_so_far, recovery=True)
        scan = self.log.scan()
        valid_bytes = 0
        why: object = None
        before = (0, -1, -1)
        expected = self.base_offset
        # A slice is short: apart from checksums, most of the time of a recovery is spent in these Python steps.
        for table, data, position in scan:
            if cuts_misfits:
                in_order = native.rows_in_order(table, expected, LONG_MAX)
                if in_order < len(table):
                    table = table[:in_order]
                    why = VERDICT_TEXT[MISFIT]
                if not in_order:
                    break
                expected = min(int(table["last_offset"][-1]), LONG_MAX - 1) + 1
            replayed = observer.choose(table)
            if len(replayed):
                # Only a replayed row can stop inside a slice; its entries are then planned again.
                self._write_plan(plan)
                before = (plan.bytes_since_last_entry, plan.max_timestamp, plan.offset_of_max_timestamp)
            elif plan.offset_entry_count - offset_index.entries > INDEX_FLUSH_ENTRIES:
                self._write_plan(plan)
            planned = plan.add_table(table)
            taken = table if planned else table[: _error_row(plan)]
            try:
                stopped_at, refused = observer.run(taken, replayed, data, position)
            except Exception:
                # Opening the log fails; Kafka has indexed the batches up to the refused one.
                plan = self._new_plan(*before, recovery=True)
                plan.add_table(table[: observer.row + 1])
                self._write_plan(plan)
                raise
            if stopped_at is not None:
                why = refused
                # Kafka has indexed the batch that the producer state refused, and nothing after it.
                table = table[: stopped_at + 1]
                plan = self._new_plan(*before, recovery=True)
                planned = plan.add_table(table)
                assert planned, plan.error
            if not planned:
                self._write_plan(plan)
                self.tail.largest_timestamp = (plan.max_timestamp, plan.offset_of_max_timestamp)
                row = table[_error_row(plan)]
                last_offset = int(row["last_offset"])
                if not 0 <= last_offset - self.base_offset <= INT_MAX:
                    raise self._overflow(last_offset)
                self._raise_index_error(plan, last_offset)
            valid_bytes = int(table["position"][-1]) + int(table["size"][-1])
            if why is not None:
                break
        self._write_plan(plan)
        self.tail.largest_timestamp = (plan.max_timestamp, plan.offset_of_max_timestamp)
        truncated = self.log.size - valid_bytes
        if why is not None or scan.stopped in (native.BAD_SIZE, native.BAD_CRC, native.BAD_MAGIC):
            self._logger.warning(
                "Found invalid messages in log segment %s at byte offset %d: %s",
                self.log.path,
                valid_bytes,
                why or _STOP_TEXT[scan.stopped],
            )
        if truncated > 0:
            self._logger.debug("Truncated %d invalid bytes at the end of segment %s", truncated, self.log.path)
            observer.before_cut(valid_bytes)
        self.log.truncate_to(valid_bytes)
        self.offset_index.trim_to_valid_size()
        self.time_index.maybe_append(*self.max_timestamp_and_offset_so_far, skip_full_check=True)
        self.time_index.trim_to_valid_size()
        return truncated

    def truncate_to(self, offset: int) -> int:
        """Removes the batch that holds `offset` and everything after it. Returns the bytes removed from the log."""
        mapping = self.translate_offset(offset)
        offset_index, time_index = self.offset_index, self.time_index
        offset_index.truncate_to(offset)
        time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        offset_index.resize(offset_index.max_index_size)
        time_index.resize(time_index.max_index_size)
        bytes_truncated = 0 if mapping is None else self.log.truncate_to(mapping.position)
        if self.log.size == 0:
            self.tail.created_ms = self.clock.milliseconds()
            self.tail.first_timestamp = None
        self.tail.bytes_since_last_index_entry = 0
        if self.max_timestamp_so_far >= 0:
            self.tail.largest_timestamp = self._read_largest_timestamp()
        return bytes_truncated

    def _read_largest_timestamp(self) -> TimestampOffset:
        last = self.time_index.last_entry
        position = self.offset_index.lookup(last.offset).position
        after = self.log.largest_timestamp_after(position)
        return TimestampOffset(after.timestamp, after.offset) if after.timestamp > last.timestamp else last

    # --- files -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Makes records and indexes durable, but not the names of new files (sync the directory for that)."""
        self.log.flush()
        self.offset_index.flush()
        self.time_index.flush()
        self.txn_index.flush()

    def update_parent_dir(self, parent_dir: str) -> None:
        """Records that the directory was renamed."""
        self.log.update_parent_dir(parent_dir)
        self._lazy_offset_index.update_parent_dir(parent_dir)
        self._lazy_time_index.update_parent_dir(parent_dir)
        self.txn_index.update_parent_dir(parent_dir)

    def rename_offset_index(self, path: str) -> None:
        """Renames only the offset index, which the loader builds under another name.

        An index never opened may be missing.
        """
        self._lazy_offset_index.rename_to(path)

    def change_file_suffixes(self, old_suffix: str, new_suffix: str) -> None:
        """Renames all files, .log first. Files that an interrupted call has renamed already are skipped.

        The new names are durable only after the directory is synced.
        """
        is_begun = self.txn_index.path.endswith(old_suffix)  # the last file tells: a removed suffix leaves no sign
        for path, rename_to in (
            (self.log.path, self.log.rename_to),
            (self.offset_index_file, self._lazy_offset_index.rename_to),
            (self.time_index_file, self._lazy_time_index.rename_to),
            (self.txn_index.path, self.txn_index.rename_to),
        ):
            is_done = path.endswith(new_suffix) if new_suffix else is_begun and not path.endswith(old_suffix)
            if not is_done:
                rename_to(names.replace_suffix(path, old_suffix, new_suffix))

    def set_last_modified(self, ms: int) -> None:
        """Sets the modification time of the .log file and both indexes (not of the transaction index)."""
        self._files.set_mtime_ms(self.log.path, ms)
        self._files.set_mtime_ms(self.offset_index_file, ms)
        self._files.set_mtime_ms(self.time_index_file, ms)

    def close(self) -> None:
        """Closes all files; nothing is trimmed or flushed."""
        _try_all((self._lazy_offset_index.close, self._lazy_time_index.close, self.log.close, self.txn_index.close))

    def close_quietly(self) -> None:
        """Closes all files, whatever state the disk is in."""
        for close in (self._lazy_offset_index.close, self._lazy_time_index.close, self.log.close, self.txn_index.close):
            try:
                close()
            except Exception:
                self._logger.warning("Failed to close a file of %s", self.log.path, exc_info=True)

    @property
    def _logger(self) -> Lines:
        return lines_of_folder("kafkalog.segment", os.path.dirname(self.log.path))

    def delete_if_exists(self) -> None:
        """Closes and deletes all files, .log first.

        Tries all of them, then raises the first error; missing files are fine.

        A `.deleted` file of a future log is also looked for in the partition's directory, because the log may have been
        promoted since.
        """
        _try_all(
            (
                lambda: self._delete(self.log.delete_if_exists, self.log.path),
                lambda: self._delete(self._lazy_offset_index.delete_if_exists, self.offset_index_file),
                lambda: self._delete(self._lazy_time_index.delete_if_exists, self.time_index_file),
                lambda: self._delete(self.txn_index.delete_if_exists, self.txn_index.path),
            )
        )

    def _delete(self, delete: Callable[[], bool], path: str) -> None:
        if delete() or not path.endswith(names.DELETED_FILE_SUFFIX):
            return
        folder, name = os.path.split(path)
        future = _FUTURE_DIR.fullmatch(folder)
        if future is not None:
            with contextlib.suppress(NotADirectoryError):  # a plain file of that name is not part of a log
                self._files.unlink_if_exists(os.path.join(f"{future[1]}-{future[2]}", name))


# The errors of an index plan that are caused by the offset entry, not by the time entry.
_OFFSET_ENTRY_ERRORS = (native.OFFSET_INDEX_FULL, native.OFFSET_NOT_INCREASING, native.OFFSET_OUT_OF_RANGE)

_STOP_TEXT = {
    native.BAD_SIZE: "record size is smaller than the minimum record overhead",
    native.BAD_MAGIC: "unknown magic",
    native.BAD_CRC: "record is corrupt (checksum or size)",
}


def _error_row(plan: IndexPlan) -> int:
    assert plan.error is not None
    return plan.error[1]


def _try_all(actions: Sequence[Callable[[], None]]) -> None:
    """Runs all actions; raises the first error afterwards (Utils.tryAll)."""
    failed: Exception | None = None
    for action in actions:
        try:
            action()
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed
