"""A partition directory as it was at one moment: its segments, where the log starts and ends, where things are.

Immutable and replaced whole, so that threads may read one snapshot while another is made.  Files are opened when they
are looked at and live as long as somebody holds them; a segment that has gone meanwhile is a FileNotFoundError here,
after which `PartitionView` looks at the directory anew.  Index entries are hints: the batch that they name is looked at
before it is believed, and where offsets leave a gap the stretch that was passed over is checked before the gap is.

Damage raises CorruptRecordException with the file and the position.  `unreadable_end` is damage that no reader runs
into by itself: bytes behind the last whole batch of a log that is known to be whole (closed cleanly, or its recovery
point lies behind them).  Elsewhere such bytes are what a broker has not finished writing.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from kafkalog._native import batches
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, KafkalogError, OffsetOutOfRangeException
from kafkalog.format import names
from kafkalog.format.batch import CONTROL_FLAG, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG
from kafkalog.format.control import ControlRecordType, parse_control_key
from kafkalog.format.index_entries import OFFSET_ENTRIES
from kafkalog.format.names import TopicPartition
from kafkalog.format.records import READ_BYTES_MAX, in_parts
from kafkalog.format.records import first as first_record
from kafkalog.format.snapshots import read_snapshot
from kafkalog.limits import INT_MAX
from kafkalog.segment.file_records import LogScan
from kafkalog.segment.loss import NO_REASON, VERDICT_TEXT
from kafkalog.segment.order import misfits
from kafkalog.topics import index_files
from kafkalog.topics.index_files import AbortedRange, OffsetEntries, TimeEntries

if TYPE_CHECKING:
    from kafkalog._native.batches import BatchHeader
    from kafkalog.files import File, Files, HasFileno

ISOLATIONS = ("read_uncommitted", "read_committed")
OPEN_FILES = 16
SEEK_BYTES = 64 * 1024
DAMAGE_HINT = "`kafkalog verify` lists the damage, `kafkalog salvage` copies what can be read to a new directory"


def check_isolation(isolation: str) -> bool:
    """Whether `isolation` is read_committed; IllegalArgumentException for a word that is neither."""
    if not isinstance(isolation, str) or isolation not in ISOLATIONS:
        raise IllegalArgumentException(f"unknown isolation {isolation!r}, expected {' or '.join(ISOLATIONS)}")
    return isolation == "read_committed"


class Damage(NamedTuple):
    """Where bytes stop making sense, and what they are instead."""

    path: str
    position: int
    what: str

    def error(self) -> CorruptRecordException:
        return CorruptRecordException(self.what, path=self.path, position=self.position, hint=DAMAGE_HINT)


def check_stretch(
    file: File, path: str, start: int, end: int, segment_base: int, limit: int, *, check_crcs: bool = True
) -> None:
    """CorruptRecordException unless [start, end) of a file is whole batches whose offsets grow.

    `limit` is the highest offset that may be there.  Asked where offsets leave a gap: compaction does, damage too.
    """
    scan = LogScan(file, start, end, check_crc=check_crcs)
    expected = segment_base
    for piece in scan:
        wrong = misfits(piece.table, expected, limit)
        if wrong:
            row = piece.table[wrong[0]]
            what = f"a batch with offsets {int(row['base_offset'])} to {int(row['last_offset'])} and magic "
            what += f"{int(row['magic'])} does not fit between its neighbours (the CRC does not cover these)"
            raise Damage(path, int(row["position"]), what).error()
        expected = int(piece.table["last_offset"][-1]) + 1
    if scan.position < end:
        raise Damage(path, scan.position, VERDICT_TEXT.get(scan.stopped, NO_REASON)).error()


class OpenFiles:
    """The .log files that were looked at last.  Forgetting one closes it once nobody reads it.  Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.RLock()
        self._open: OrderedDict[SegmentView, File] = OrderedDict()  # guarded by _lock

    def get(self, segment: SegmentView) -> File:
        """The segment's file.  FileNotFoundError when it has gone."""
        with self._lock:
            file = self._open.get(segment)
            if file is not None:
                self._open.move_to_end(segment)
                return file
        file = self._files.open(segment.path, writable=False)
        with self._lock:
            file = self._open.setdefault(segment, file)
            while len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        return file

    def keep(self, segments: tuple[SegmentView, ...]) -> None:
        """Forget the files of all others."""
        kept = set(segments)
        with self._lock:
            for segment in set(self._open) - kept:
                del self._open[segment]


class SegmentView:
    """One segment as it was when the directory was listed.  `size` is the .log file's bytes."""

    __slots__ = ("_files", "_offsets", "_times", "base_offset", "directory", "mtime_ms", "path", "size")

    def __init__(self, files: Files, directory: str, base_offset: int, size: int, mtime_ms: int) -> None:
        self._files = files
        self._offsets: OffsetEntries | None = None
        self._times: TimeEntries | None = None
        self.directory = directory
        self.base_offset = base_offset
        self.path = names.log_file(directory, base_offset)
        self.size = size
        self.mtime_ms = mtime_ms

    @property
    def offset_entries(self) -> OffsetEntries:
        """Entries of the .index file whose positions lie in the log."""
        if self._offsets is None:
            path = names.offset_index_file(self.directory, self.base_offset)
            entries = index_files.offset_entries(self._files, path, self.base_offset)
            inside = int(np.searchsorted(entries.positions, self.size, side="left"))
            self._offsets = OffsetEntries(entries.offsets[:inside], entries.positions[:inside])
        return self._offsets

    @property
    def time_entries(self) -> TimeEntries:
        if self._times is None:
            path = names.time_index_file(self.directory, self.base_offset)
            self._times = index_files.time_entries(self._files, path, self.base_offset)
        return self._times

    def indexed_position(self) -> int:
        """The position that the .index file's last entry names, -1 without one; it may lie behind the file's end."""
        path = names.offset_index_file(self.directory, self.base_offset)
        try:
            with self._files.open(path, writable=False) as file:
                at = (file.size() // OFFSET_ENTRIES.itemsize - 1) * OFFSET_ENTRIES.itemsize
                last = file.pread(OFFSET_ENTRIES.itemsize, at) if at >= 0 else b""
        except (FileNotFoundError, IsADirectoryError):
            return -1
        return int.from_bytes(last[4:], "big", signed=True) if len(last) == OFFSET_ENTRIES.itemsize else -1

    def __repr__(self) -> str:
        return f"SegmentView(base_offset={self.base_offset}, size={self.size})"


class Extent:
    """A readable stretch of one segment's file, from a batch's first byte to `end`: all of it is whole batches, so
    what cannot be read is damage.  Holding it holds the file.

    `next_base`: the stretch goes to the end of a segment that is not the last, and the next one begins at this offset.
    `final`: nothing is to be asked for behind it.  `base_limit`: no batch in it begins at a higher offset.
    """

    __slots__ = ("base_limit", "end", "file", "final", "next_base", "path", "position", "segment", "segment_base")

    def __init__(
        self,
        file: File,
        path: str,
        segment_base: int,
        position: int,
        end: int,
        *,
        next_base: int | None = None,
        segment: SegmentView | None = None,
        final: bool = False,
        base_limit: int | None = None,
    ) -> None:
        self.file = file
        self.path = path
        self.segment_base = segment_base
        self.position = position
        self.end = end
        self.next_base = next_base
        self.segment = segment
        self.final = final
        self.base_limit = base_limit

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes from a file position, never past `end`."""
        return self.file.pread(max(0, min(count, self.end - position)), position)

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        """os.sendfile of up to `count` bytes; how many went."""
        return self.file.send_to(sock, position, max(0, min(count, self.end - position)))

    def lacks_indexed(self) -> bool:
        """Whether the segment's index names a batch behind the end: then the file was cut at a batch's first byte."""
        return self.segment is not None and self.segment.indexed_position() >= self.end


class Transactions(NamedTuple):
    """`stable`: the first offset of the oldest open transaction, or the log's end.  `damage`: where the search for it
    met something unreadable; then a transaction may look open only for that."""

    stable: int
    aborted: list[AbortedRange]
    damage: Damage | None


class Snapshot:
    """Segments in order, [log_start_offset, log_end_offset), and `end_position`, where the last segment's batches end.

    `listed` are the names in the folder.  Every method may raise FileNotFoundError (a segment has gone: look at the
    directory again) and CorruptRecordException.
    """

    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
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
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.end_position = 0
        self.closed_cleanly = False
        self.unreadable_end: Damage | None = None
        self._transactions: Transactions | None = None

    def file(self, segment: SegmentView) -> File:
        """The segment's open .log file."""
        return self._open_files.get(segment)

    def readable_bytes(self, segment: SegmentView) -> int:
        """How much of a segment's file is log: all of it but in the last segment, which ends where valid batches do."""
        return self.end_position if segment is self.segments[-1] else segment.size

    def limit_of(self, place: int) -> int:
        """The highest offset that the segment at a place may hold."""
        if place + 1 < len(self.segments):
            return self.bases[place + 1] - 1
        return self.bases[place] + INT_MAX

    # --- finding things ----------------------------------------------------------------------------

    def starts_before(self, segment: SegmentView, offset: int | None) -> Iterator[int]:
        """Positions to start a walk from: what the index says, if a batch with that last offset is there; then 0."""
        entries = segment.offset_entries
        if offset is None:
            hint = (int(entries.offsets[-1]), int(entries.positions[-1])) if len(entries.offsets) else None
        else:
            hint = entries.floor(offset)
        if hint is not None:
            header = self._header_at(segment, hint[1])
            if header is not None and header.last_offset == hint[0]:
                yield hint[1]
        yield 0

    def _header_at(self, segment: SegmentView, position: int) -> BatchHeader | None:
        head = self.file(segment).pread(RECORD_BATCH_OVERHEAD, position)
        if len(head) < RECORD_BATCH_OVERHEAD or head[16] > 2:
            return None
        return batches.header_at(head, 0)

    def position_of(self, offset: int) -> tuple[int, int]:
        """(segment's place in `segments`, file position) of the first batch that ends at or after `offset`.

        `(len(segments), 0)` when there is none.
        """
        place = max(0, int(np.searchsorted(self.bases, offset, side="right")) - 1)
        while place < len(self.segments):
            position = self._position_in(place, offset)
            if position is not None:
                return place, position
            place += 1
        return place, 0

    def end_position_of(self, end_offset: int) -> tuple[int, int]:
        """(segment's place in `segments`, file position) behind the last batch that begins below `end_offset`.

        Nothing lies between it and `position_of(end_offset)`: who reads both ranges has seen every byte.
        """
        place, position = self.position_of(end_offset)
        if place == len(self.segments):
            last = len(self.segments) - 1
            return last, self.readable_bytes(self.segments[last]) if self.segments else 0
        header = self._header_at(self.segments[place], position)
        if header is None or (header.magic >= 2 and header.base_offset >= end_offset):
            return place, position
        return place, position + header.size

    def first_offset_at(self, segment: SegmentView, position: int, last_offset: int) -> int | None:
        """The base offset of the batch at a position, when it is a v2 batch that ends at `last_offset`."""
        header = self._header_at(segment, position)
        if header is None or header.magic < 2 or header.last_offset != last_offset:
            return None
        return header.base_offset

    def _position_in(self, place: int, offset: int) -> int | None:
        segment = self.segments[place]
        end = self.readable_bytes(segment)
        if offset <= segment.base_offset:
            return 0 if end else None
        file = self.file(segment)
        for start in self.starts_before(segment, offset):
            scan = LogScan(file, start, end, check_crc=False, slice_bytes=SEEK_BYTES)
            first = True
            for piece in scan:
                table = piece.table
                if first and start and table["base_offset"][0] > offset:
                    break  # the index pointed too far: walk from the start instead
                first = False
                slot = np.flatnonzero(table["last_offset"] >= offset)
                if len(slot):
                    row = table[slot[0]]
                    if row["magic"] < 2 or row["base_offset"] > offset:
                        self._check_passed(place, start, int(row["position"]))
                    return int(row["position"])
            else:
                self._check_passed(place, start, end)
                if place + 1 < len(self.segments) and segment.indexed_position() >= end:
                    raise Damage(segment.path, end, "the file ends before batches that its index names").error()
                return None
        return None

    def _check_passed(self, place: int, start: int, end: int) -> None:
        """Nothing between `start` and `end` of a segment holds the wanted offset: that must be true."""
        segment = self.segments[place]
        check_stretch(self.file(segment), segment.path, start, end, segment.base_offset, self.limit_of(place))

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        """Where to read `offset` and what follows it in its segment; None at the end of the log.

        OffsetOutOfRangeException outside [log_start_offset, log_end_offset].
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRangeException(
                f"offset {offset} of {self.topic_partition} is out of range: the log has "
                f"[{self.log_start_offset}, {self.log_end_offset})",
                hint="the log start moved: what lay below it was deleted" if offset < self.log_start_offset else None,
            )
        if offset >= self.visible_end(isolation):
            return None
        place, position = self.position_of(offset)
        if place == len(self.segments):
            return None  # compaction took what was there
        segment = self.segments[place]
        end = self.readable_bytes(segment)
        following = self.bases[place + 1] if place + 1 < len(self.segments) else None
        if check_isolation(isolation) and self.last_stable_offset < self.log_end_offset:
            stable_place, stable_position = self.position_of(self.last_stable_offset)
            if stable_place == place:
                end, following = stable_position, None
        return Extent(
            self.file(segment), segment.path, segment.base_offset, position, end, next_base=following, segment=segment
        )

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        """Up to where (exclusive) a reader of that isolation sees."""
        return self.last_stable_offset if check_isolation(isolation) else self.log_end_offset

    def damage_at_end(self, isolation: str) -> Damage | None:
        """Why the end that a reader of that isolation sees is not the log's end."""
        if check_isolation(isolation):
            transactions = self._read_transactions()
            if transactions.stable < self.log_end_offset:  # what cannot be read may have ended the transaction
                return transactions.damage or self.unreadable_end
        return self.unreadable_end

    # --- times -------------------------------------------------------------------------------------

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """The first offset whose record has a timestamp >= `timestamp_ms`; None where there is none."""
        for place in range(len(self.segments)):
            found = self._offset_for_time_in(place, timestamp_ms)
            if found is not None:
                return found
        return None

    def _offset_for_time_in(self, place: int, timestamp_ms: int) -> int | None:
        segment = self.segments[place]
        start_offset = max(self._older_up_to(place, timestamp_ms), self.log_start_offset)
        if start_offset >= self.log_end_offset:
            return None
        position = self._position_in(place, start_offset)
        if position is None:
            return None
        end = self.readable_bytes(segment)
        scan = LogScan(self.file(segment), position, end, slice_bytes=4 * SEEK_BYTES)
        for piece in scan:
            for slot in np.flatnonzero(piece.table["max_timestamp"] >= timestamp_ms):
                row = piece.table[slot]
                if int(row["last_offset"]) < self.log_start_offset:
                    continue
                header = batches.header_from_row(row)
                start = int(row["position"]) - piece.position
                parts = in_parts(piece.data, header, at=start, max_bytes=READ_BYTES_MAX)
                for record in itertools.chain.from_iterable(parts):
                    if record.timestamp >= timestamp_ms and record.offset >= self.log_start_offset:
                        return int(record.offset)
        if scan.position < end:
            self._raise_damage(segment, scan)
        return None

    def _older_up_to(self, place: int, timestamp_ms: int) -> int:
        """An offset up to which everything in a segment is older, by the last time entry that the log confirms."""
        segment = self.segments[place]
        times = segment.time_entries
        after = int(np.searchsorted(times.timestamps, timestamp_ms, side="left"))
        if after:
            offset = int(times.offsets[after - 1])
            position = self._position_in(place, offset)
            header = None if position is None else self._header_at(segment, position)
            if header is not None and header.max_timestamp == int(times.timestamps[after - 1]):
                return offset
        return segment.base_offset

    @staticmethod
    def _raise_damage(segment: SegmentView, scan: LogScan) -> NoReturn:
        raise Damage(segment.path, scan.position, VERDICT_TEXT.get(scan.stopped, NO_REASON)).error()

    # --- transactions ------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log's end."""
        return self._read_transactions().stable

    @property
    def aborted(self) -> list[AbortedRange]:
        """Every aborted transaction that the directory knows of, by first offset."""
        return self._read_transactions().aborted

    def aborted_in(self, first_offset: int, last_offset: int) -> list[AbortedRange]:
        """Aborted transactions with a record in [first_offset, last_offset]."""
        return [txn for txn in self.aborted if txn.first_offset <= last_offset and txn.last_offset >= first_offset]

    def _read_transactions(self) -> Transactions:
        if self._transactions is None:
            aborted: set[AbortedRange] = set()
            for segment in self.segments:
                path = names.transaction_index_file(self.directory, segment.base_offset)
                if os.path.basename(path) in self.listed:
                    finished = self.closed_cleanly or segment is not self.segments[-1]
                    aborted.update(index_files.aborted_ranges(self._files, path, required=True, finished=finished))
            start, open_txns = self._newest_snapshot()
            damage = self._replay(start, open_txns, aborted)
            stable = min(open_txns.values(), default=self.log_end_offset)
            self._transactions = Transactions(
                max(stable, self.log_start_offset), sorted(aborted, key=lambda txn: txn[1:]), damage
            )
        return self._transactions

    def _newest_snapshot(self) -> tuple[int, dict[int, int]]:
        """Where to start looking for transactions, and those open there (producer id -> first offset)."""
        found = []
        for name in self.listed:
            if not name.endswith(names.PRODUCER_SNAPSHOT_FILE_SUFFIX):
                continue
            offset = segment_base(name.removesuffix(names.PRODUCER_SNAPSHOT_FILE_SUFFIX) + names.LOG_FILE_SUFFIX)
            if offset is not None and self.log_start_offset <= offset <= self.log_end_offset:
                found.append((offset, os.path.join(self.directory, name)))
        for offset, path in sorted(found, reverse=True):
            try:
                entries = read_snapshot(path, self._files)
            except (KafkalogError, OSError):
                continue
            txns = {
                entry.producer_id: entry.current_txn_first_offset
                for entry in entries
                if entry.current_txn_first_offset >= 0
            }
            return offset, txns
        return self.log_start_offset, {}

    def _replay(self, start: int, open_txns: dict[int, int], aborted: set[AbortedRange]) -> Damage | None:
        """Follow transactional batches from `start` to the end; `open_txns` and `aborted` are brought up to date.

        The first damage on the way: what it hides may have ended a transaction.
        """
        if start >= self.log_end_offset:
            return None
        try:
            place, position = self.position_of(start)
        except CorruptRecordException as error:
            return Damage(error.path or self.directory, error.position or 0, error.message)
        damage: Damage | None = None
        for segment in self.segments[place:]:
            end = self.readable_bytes(segment)
            scan = LogScan(self.file(segment), position, end)
            position = 0
            for piece in scan:
                flags = piece.table["attributes"]
                for slot in np.flatnonzero((flags & TRANSACTIONAL_FLAG) != 0):
                    row = piece.table[slot]
                    producer_id = int(row["producer_id"])
                    if not int(row["attributes"]) & CONTROL_FLAG:
                        open_txns.setdefault(producer_id, int(row["base_offset"]))
                        continue
                    first = open_txns.pop(producer_id, None)
                    at = int(row["position"]) - piece.position
                    marker = piece.data[at : at + int(row["size"])]
                    if first is not None and self._is_abort(marker):
                        aborted.add(AbortedRange(producer_id, first, int(row["last_offset"])))
            if scan.position < end and damage is None:
                damage = Damage(segment.path, scan.position, VERDICT_TEXT.get(scan.stopped, NO_REASON))
        return damage

    @staticmethod
    def _is_abort(batch: memoryview) -> bool:
        record = first_record(batch, batches.header_at(batch, 0))
        return record is not None and parse_control_key(record.key) == ControlRecordType.ABORT


def segment_base(name: str) -> int | None:
    """The base offset of a segment's .log file; None for any other name."""
    if not name.endswith(names.LOG_FILE_SUFFIX):
        return None
    try:
        base = names.offset_from_filename(name)
    except KafkalogError:
        return None
    return base if base >= 0 and name == names.filename_prefix_from_offset(base) + names.LOG_FILE_SUFFIX else None
