"""Snapshot: a partition directory at one moment: its segments, the log's start and end, and where things are.

It is immutable and replaced as a whole, so that threads can read one snapshot while another is created. Files are
opened when they are read, and stay open while they are in use. A segment that was deleted meanwhile raises
FileNotFoundError; `PartitionView` then reads the directory again. Index entries are hints: the batch that they name is
checked first. If there is a gap in the offsets, the skipped stretch is checked before the gap is accepted.

Unreadable bytes raise CorruptRecordException with the file and the position. `unreadable_end` is damage that no reader
meets: bytes after the last whole batch of a log that is known to be complete (closed cleanly, or its recovery point is
after them). In other logs a broker may not have finished writing such bytes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._limits import LONG_MAX, SEGMENT_FILE_BYTES_MAX
from kafkalog._native.state.held import Held
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.log.source import check_isolation
from kafkalog.engine.segment import index_reader
from kafkalog.engine.segment.index_reader import OffsetEntries, TimeEntries
from kafkalog.engine.segment.order import highest_offset
from kafkalog.engine.segment.reader import Extent, SegmentReader, Unreadable, header_of
from kafkalog.engine.segment.scan import LogScan
from kafkalog.engine.segment.transaction_index import AbortedTxn
from kafkalog.engine.segment.transactions import TransactionFollower, open_in_snapshot
from kafkalog.errors import CorruptRecordException, KafkalogError, OffsetOutOfRangeException

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.files import File, Files, FileStat

OPEN_FILES = 16
ENTRY_BYTES = 32 << 20  # index entries kept besides those of open files; 1 GiB of log may have 5 MiB


class SnapshotFiles:
    """The .log files read last, as far as the budget of open files allows.

    Forgetting a file closes it once nobody reads it. Index entries are kept for more segments than files, up to
    ENTRY_BYTES; those used least recently are dropped first. Thread-safe, under `lock`, which is that of its view.
    """

    def __init__(self, files: Files, lock: threading.RLock) -> None:
        self._files = files
        self._lock = lock
        self._open: OrderedDict[SegmentView, Held] = OrderedDict()  # guarded by _lock
        self._resting: OrderedDict[SegmentView, int] = OrderedDict()  # entries' bytes; guarded by _lock
        self._resting_bytes = 0

    def get(self, segment: SegmentView) -> File:
        """Returns the segment's file. Raises FileNotFoundError if it was deleted."""
        with self._lock:
            held = self._open.get(segment)
            file: File | None = None if held is None else held.channel
            if held is not None and file is not None:
                held.used = True
                self._open.move_to_end(segment)
                return file
        file = self._files.open(segment.path, writable=False)
        held = Held()
        self._files.pool.admit(held, file)
        with self._lock:
            self._open[segment] = held
            self._open.move_to_end(segment)
            self._resting_bytes -= self._resting.pop(segment, 0)
            while len(self._open) > OPEN_FILES:
                other, _ = self._open.popitem(last=False)
                self._resting[other] = other.entry_bytes()
                self._resting_bytes += self._resting[other]
            while self._resting_bytes > ENTRY_BYTES:
                other, entry_bytes = self._resting.popitem(last=False)
                self._resting_bytes -= entry_bytes
                other.forget_entries()
        return file

    def keep(self, segments: tuple[SegmentView, ...]) -> None:
        """Forgets the files of all other segments."""
        with self._lock:
            if not self._open and not self._resting:
                return
            kept = set(segments)
            for segment in set(self._open) - kept:
                del self._open[segment]
            for segment in set(self._resting) - kept:
                self._resting_bytes -= self._resting.pop(segment)


class SegmentView:
    """One segment as it was when the directory was listed.

    `size` is the .log file's bytes; `about_bytes` is the same, or an estimate that costs no request. `suffix` follows
    the names of its files while it replaces other segments.
    """

    __slots__ = (
        "_files", "_offsets", "_times", "about_bytes", "base_offset", "directory", "inode", "is_about", "mtime_ms",
        "path", "suffix",
    )  # fmt: skip

    def __init__(self, files: Files, directory: str, base_offset: int, stat: FileStat, suffix: str = "") -> None:
        self._files = files
        self._offsets: OffsetEntries | None = None
        self._times: TimeEntries | None = None
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.path = names.log_file(directory, base_offset) + suffix
        self.about_bytes = min(stat.size, SEGMENT_FILE_BYTES_MAX)
        self.is_about = stat.is_about
        self.mtime_ms = stat.mtime_ms
        self.inode = stat.inode

    @property
    def size(self) -> int:
        if self.is_about:
            self.about_bytes = min(self._files.size_of(self.path), SEGMENT_FILE_BYTES_MAX)
            self.is_about = False
        return self.about_bytes

    def is_of(self, stat: FileStat) -> bool:
        """Returns whether `stat` is that of the segment's file."""
        size = min(stat.size, SEGMENT_FILE_BYTES_MAX)
        is_as_long = stat.is_about or size == self.about_bytes
        return is_as_long and (self.mtime_ms, self.inode) == (stat.mtime_ms, stat.inode)

    @property
    def _offset_index(self) -> str:
        return names.offset_index_file(self.directory, self.base_offset) + self.suffix

    @property
    def _time_index(self) -> str:
        return names.time_index_file(self.directory, self.base_offset) + self.suffix

    @property
    def offset_entries(self) -> OffsetEntries:
        """The entries of the .index file whose positions are within the log."""
        entries = self._offsets
        if entries is None:
            entries = self._offsets = index_reader.offset_entries(
                self._files, self._offset_index, self.base_offset, self.size
            )
        return entries

    @property
    def time_entries(self) -> TimeEntries:
        entries = self._times
        if entries is None:
            entries = self._times = index_reader.time_entries(self._files, self._time_index, self.base_offset)
        return entries

    def entry_bytes(self) -> int:
        """Returns how much memory the entries take."""
        return sum(max(0, each.held_bytes) for each in (self._offsets, self._times) if each is not None)

    def forget_entries(self) -> None:
        """Frees the memory; the entries are read again when needed."""
        self._offsets = self._times = None

    def indexed_position(self) -> int:
        """Returns the position in the .index file's last entry, or -1; it may be after the file's end."""
        return index_reader.last_position(self._files, self._offset_index)

    def indexed_time(self) -> int:
        """Returns the timestamp in the .timeindex file's last entry, or -1."""
        found = -1 if self._times is not None else index_reader.last_time(self._files, self._time_index)
        if found >= 0:
            return found
        last = self.time_entries.before(LONG_MAX) if len(self.time_entries) else None
        return -1 if last is None else last[0]

    def indexes_name(self, end: int) -> bool:
        """Returns whether an index names a batch at or after a position.

        A time entry is known only to be after the start.
        """
        return self.indexed_position() >= end or (end == 0 and len(self.time_entries) > 0)

    def __repr__(self) -> str:
        return f"SegmentView(base_offset={self.base_offset}, size={self.size})"


class Transactions(NamedTuple):
    """The state of transactions.

    `stable`: the first offset of the oldest open transaction, or the log's end. `damage`: the first unreadable place in
    the search; a transaction may then look open only because of it. `open`: producer id -> first offset.
    """

    stable: int
    aborted: list[AbortedTxn]
    damage: Unreadable | None
    open: dict[int, int]


class Snapshot:
    """Segments in order, [log_start_offset, log_end_offset), and `end_position`, the end of the last segment's batches.

    `listed` are the names in the directory. Every method may raise FileNotFoundError (a segment was deleted: read the
    directory again) and CorruptRecordException. Methods that `Source` also has are described there.
    """

    def __init__(
        self,
        files: Files,
        open_files: SnapshotFiles,
        topic_partition: TopicPartition,
        directory: str,
        listed: frozenset[str],
        segments: tuple[SegmentView, ...],
    ) -> None:
        self._files = files
        self._open_files = open_files
        self.topic_partition = topic_partition
        self.directory = directory
        self.listed = listed
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.mtime_ms = -1  # the directory's time
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.end_position = 0
        self.recovery_point = 0  # by the checkpoint at the time of the look: everything below it was flushed
        self.tail_timestamp = -1  # the largest of the last segment's batches after the last entry of its offset index
        self.tail_head = b""  # the first bytes of the last segment, if known
        self.tail_is_plain = False  # the whole last segment was walked: it has no transaction and no marker
        self.closed_cleanly = False
        self.behind_end: int | None = None  # the end of the whole log, if this snapshot ends before it
        self.unreadable_end: Unreadable | None = None
        self._transactions: Transactions | None = None

    def until(self, end_offset: int) -> Snapshot:
        """Returns the snapshot as if the log ended at `end_offset`, without later segments and ends of transactions.

        `end_offset` must be the start of a batch, or not exist. Raises CorruptRecordException and FileNotFoundError.
        """
        end_offset = max(end_offset, self.log_start_offset)
        if end_offset >= self.log_end_offset:
            return self
        place, position = self.end_position_of(end_offset)
        if position == 0 and place > 0:
            place -= 1
            position = self.readable_bytes(self.segments[place])
        made = Snapshot(
            self._files,
            self._open_files,
            self.topic_partition,
            self.directory,
            self.listed,
            self.segments[: place + 1],
        )
        made.mtime_ms, made.recovery_point, made.closed_cleanly = (
            self.mtime_ms,
            self.recovery_point,
            self.closed_cleanly,
        )
        made.log_start_offset, made.log_end_offset, made.end_position = self.log_start_offset, end_offset, position
        made.behind_end = self.log_end_offset
        if place == len(self.segments) - 1:
            made.tail_head, made.tail_is_plain = self.tail_head, self.tail_is_plain
        return made

    def file(self, segment: SegmentView) -> File:
        """Returns the segment's open .log file."""
        return self._open_files.get(segment)

    def may_overlap(self, segment: SegmentView) -> bool:
        """Returns whether the segment is in a remote tier, where it may continue after the next one's base offset."""
        return self._files.may_overlap(segment.path)

    def readable_bytes(self, segment: SegmentView) -> int:
        """Returns how many bytes of a segment are log.

        These are all of them, but in the last segment only up to the end of valid batches.
        """
        return self.end_position if segment is self.segments[-1] else segment.size

    def about_bytes(self, segment: SegmentView) -> int:
        """Returns the same, or an estimate that costs no request."""
        return self.end_position if segment is self.segments[-1] else segment.about_bytes

    def reader(self, place: int) -> SegmentReader:
        """Returns a reader of the segment at a place, up to the log's end in it."""
        segment = self.segments[place]
        behind = self._base_behind(place)
        return SegmentReader(
            self.file(segment),
            segment.base_offset,
            highest_offset(segment.base_offset, behind),
            self.readable_bytes(segment),
            may_overlap=behind is not None and self.may_overlap(segment),
        )

    def header_at(self, place: int, position: int) -> BatchHeader | None:
        """Returns the header at a position of the segment at a place, like `SegmentReader.header_at`."""
        if self.tail_head and position == 0 and place == len(self.segments) - 1:
            return header_of(self.tail_head)
        return self.reader(place).header_at(position)

    def _base_behind(self, place: int) -> int | None:
        return self.bases[place + 1] if place + 1 < len(self.bases) else None

    # --- positions ---------------------------------------------------------------------------------

    def position_of(self, offset: int) -> tuple[int, int]:
        """Returns (segment's place in `segments`, file position) of the first batch that ends at or after `offset`.

        Returns `(len(segments), 0)` if there is none.
        """
        place = max(0, bisect_right(self.bases, offset) - 1)
        while place < len(self.segments):
            position = self._position_in(place, offset)
            if position is not None:
                return place, position
            place += 1
        return place, 0

    def end_position_of(self, end_offset: int) -> tuple[int, int]:
        """Returns (segment's place in `segments`, file position) after the last batch that begins below `end_offset`.

        Nothing is between it and `position_of(end_offset)`: a reader of both ranges has seen every byte.
        """
        place, position = self.position_of(end_offset)
        if place == len(self.segments):
            last = len(self.segments) - 1
            return last, self.readable_bytes(self.segments[last]) if self.segments else 0
        if self.segments[place].base_offset >= end_offset:  # not opened: the offsets before it may be missing
            return place, position
        header = self.reader(place).header_at(position)
        if header is None or (header.magic >= 2 and header.base_offset >= end_offset):
            return place, position
        return place, position + header.size

    def first_offset_at(self, place: int, position: int, last_offset: int) -> int | None:
        """Returns the base offset of the batch at a position, if it is a v2 batch that ends at `last_offset`."""
        header = self.reader(place).header_at(position)
        if header is None or header.magic < 2 or header.last_offset != last_offset:
            return None
        return header.base_offset

    def _position_in(self, place: int, offset: int) -> int | None:
        segment = self.segments[place]
        end = self.readable_bytes(segment)
        position: int | None = None
        if end:
            if offset <= segment.base_offset:
                return 0
            position = self.reader(place).find(offset, segment.offset_entries.floor(offset))
        # A segment that is empty for its indexes too is a result of compaction, or of a crash while it was new.
        if position is None and place + 1 < len(self.segments) and segment.indexes_name(end):
            raise Unreadable(segment.path, end, "the file ends before batches that its index names").error()
        return position

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRangeException(
                f"offset {offset} of {self.topic_partition} is out of range: the log has "
                f"[{self.log_start_offset}, {self.log_end_offset})",
                hint="the log start moved: the records below it were deleted"
                if offset < self.log_start_offset
                else None,
            )
        if offset >= self.visible_end(isolation):
            return None
        place, position = self.position_of(offset)
        if place == len(self.segments):
            return None  # compaction removed the records there
        return self.extent_at(place, position, isolation)

    def extent_at(self, place: int, position: int, isolation: str) -> Extent:
        """Returns the stretch from the first byte of a batch on. The caller knows that a batch begins there."""
        segment = self.segments[place]
        end = self.readable_bytes(segment)
        following = self._base_behind(place)
        if check_isolation(isolation) and self.last_stable_offset < self.log_end_offset:
            stable_place, stable_position = self.position_of(self.last_stable_offset)
            if stable_place == place:
                end, following = stable_position, None
        return Extent(
            self.file(segment),
            segment.base_offset,
            position,
            end,
            next_base=following,
            may_overlap=following is not None and self.may_overlap(segment),
            indexed_position=segment.indexed_position,
            owner=segment,
        )

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self.last_stable_offset if check_isolation(isolation) else self.log_end_offset

    def damage_at_end(self, isolation: str) -> Unreadable | None:
        """Returns why the end that a reader of that isolation level sees is not the log's end."""
        if check_isolation(isolation):
            transactions = self._read_transactions()
            if transactions.stable < self.log_end_offset:  # the unreadable bytes may have ended the transaction
                return transactions.damage or self.unreadable_end
        return self.unreadable_end

    # --- times -------------------------------------------------------------------------------------

    def offset_for_time(self, timestamp_ms: int, start: int = 0) -> int | None:
        for place in range(max(0, bisect_right(self.bases, start) - 1), len(self.segments)):
            found = self._offset_for_time_in(place, timestamp_ms, start)
            if found is not None:
                return found
        return None

    def _offset_for_time_in(self, place: int, timestamp_ms: int, start: int) -> int | None:
        first_offset = max(self.bases[place], self.log_start_offset, start)
        if first_offset >= self.log_end_offset:
            return None
        times = self.segments[place].time_entries
        return self.reader(place).first_at(timestamp_ms, first_offset, times, partial(self._position_in, place))

    # --- transactions ------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log's end."""
        return self._read_transactions().stable

    @property
    def aborted(self) -> list[AbortedTxn]:
        """Every aborted transaction that the directory knows, by first offset."""
        return self._read_transactions().aborted

    @property
    def transactions(self) -> Transactions:
        return self._read_transactions()

    def aborted_in(self, first_offset: int, last_offset: int) -> list[AbortedTxn]:
        return [txn for txn in self.aborted if txn.first_offset <= last_offset and txn.last_offset >= first_offset]

    def _read_transactions(self) -> Transactions:
        if self._transactions is None:
            indexed: list[AbortedTxn] = []
            for place, segment in enumerate(self.segments):
                path = names.transaction_index_file(self.directory, segment.base_offset) + segment.suffix
                if os.path.basename(path) not in self.listed:
                    path += names.SWAP_FILE_SUFFIX  # the last of a segment's files to be renamed
                if os.path.basename(path) in self.listed:
                    finished = self.closed_cleanly or segment is not self.segments[-1]
                    found = index_reader.aborted_txns(self._files, path, required=True, finished=finished)
                    # A remote segment may continue after the next one's base offset, with records that were discarded.
                    following = self._base_behind(place) if self.may_overlap(segment) else None
                    indexed += [txn for txn in found if following is None or txn.last_offset < following]
            start, open_txns = self._newest_snapshot()
            follower = TransactionFollower(open_txns)
            seen, damage = self._follow(follower, start)
            # A transaction whose records compaction moved is in both lists, with two first offsets; others are merged.
            aborted = {txn[:3]: txn for txn in [*seen, *indexed]}
            stable = follower.first_open_offset(self.log_end_offset)
            self._transactions = Transactions(
                max(stable, self.log_start_offset),
                sorted(aborted.values(), key=lambda txn: txn[1:3]),
                damage,
                dict(follower.open),
            )
        return self._transactions

    def unfollowed_bytes(self) -> int:
        """Returns how many bytes of logs `transactions` reads: those after the newest producer snapshot."""
        start, _ = self._newest_snapshot()
        if start >= self.log_end_offset or not self.segments or (self.tail_is_plain and start >= self.bases[-1]):
            return 0
        place = max(bisect_right(self.bases, start) - 1, 0)
        return sum(self.readable_bytes(segment) for segment in self.segments[place:])

    def is_stable_before_last(self) -> bool:
        """Returns whether a producer snapshot shows that no transaction is open before the last segment."""
        start, there = self._newest_snapshot()
        return not there and bool(self.bases) and start >= self.bases[-1]

    def _newest_snapshot(self) -> tuple[int, dict[int, int]]:
        """Returns where to start reading transactions, and those open there (producer id -> first offset)."""
        for offset in sorted(names.offsets_in(self.listed, names.PRODUCER_SNAPSHOT_FILE_SUFFIX), reverse=True):
            if self.log_start_offset <= offset <= self.log_end_offset:
                with contextlib.suppress(KafkalogError, OSError):
                    path = names.producer_snapshot_file(self.directory, offset)
                    return offset, open_in_snapshot(read_snapshot(path, self._files))
        return self.log_start_offset, {}

    def _follow(self, follower: TransactionFollower, start: int) -> tuple[list[AbortedTxn], Unreadable | None]:
        """Follows transactions from `start` to the end. Returns those that are aborted on the way.

        Also returns the first damage: the bytes there may have ended a transaction.
        """
        aborted: list[AbortedTxn] = []
        if start >= self.log_end_offset or (self.tail_is_plain and start >= self.bases[-1]):
            return aborted, None
        try:
            place, position = self.position_of(start)
        except CorruptRecordException as error:
            return aborted, Unreadable(error.path or self.directory, error.position or 0, error.message)
        damage: Unreadable | None = None
        for segment in self.segments[place:]:
            end = self.readable_bytes(segment)
            scan = LogScan(self.file(segment), position, end)
            position = 0
            for piece in scan:
                for marker in follower.feed(piece):
                    if marker.had_begun and marker.is_abort():
                        aborted.append(marker.aborted)
            if scan.position < end and damage is None:
                damage = Unreadable.where_stopped(self.file(segment), scan)
        return aborted, damage
