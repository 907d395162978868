"""A partition directory seen without touching it: no lock, no write, no trust in what a crash may have left.

Works beside a running broker: files are listed and measured once per `refresh`, read with pread, and the log ends
after the last whole valid batch that is seen.  Knows segments by their names, finds batches through indexes that it
checks against the log.  Not thread-safe; open one view per thread.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kafkalog._native import batches
from kafkalog.errors import (
    BadBytesError,
    CorruptRecordException,
    IllegalArgumentException,
    KafkalogError,
    NoSuchFileException,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
)
from kafkalog.files import OS_FILES, Files
from kafkalog.format import names
from kafkalog.format.checkpoints import OffsetCheckpointFile
from kafkalog.format.control import ControlRecordType, parse_control_key
from kafkalog.format.names import TopicPartition
from kafkalog.format.records import READ_BYTES_MAX, in_parts
from kafkalog.format.records import first as first_record
from kafkalog.format.snapshots import read_snapshot
from kafkalog.segment.file_records import LogScan
from kafkalog.segment.loss import VERDICT_TEXT
from kafkalog.topics import index_files
from kafkalog.topics.directory import EXPECTED_DIR, refuse_file, refuse_partition_folder
from kafkalog.topics.index_files import AbortedRange, OffsetEntries, TimeEntries

if TYPE_CHECKING:
    from kafkalog._native.batches import BatchHeader
    from kafkalog.files import File, HasFileno
    from kafkalog.files.processes import Life

ISOLATIONS = ("read_uncommitted", "read_committed")
OPEN_FILES = 16
SEEK_BYTES = 64 * 1024
HEADER_BYTES = 61
TRANSACTIONAL, CONTROL = 0x10, 0x20
INT_MAX = 0x7FFFFFFF


def check_isolation(isolation: str) -> bool:
    """Whether `isolation` is read_committed; IllegalArgumentException for a word that is neither."""
    if not isinstance(isolation, str) or isolation not in ISOLATIONS:
        raise IllegalArgumentException(f"unknown isolation {isolation!r}, expected {' or '.join(ISOLATIONS)}")
    return isolation == "read_committed"


def list_partitions(log_dir: str | os.PathLike[str], *, files: Files = OS_FILES) -> dict[TopicPartition, str]:
    """The partitions of a log directory and their folders, sorted; strays, `-delete` and `-future` ones left out.

    NoSuchFileException (a FileNotFoundError) when there is no such folder; IllegalArgumentException when it is a file,
    or a partition's own folder.
    """
    root = os.fsdecode(log_dir)
    refuse_file(root, files)
    if not files.is_dir(root):
        raise NoSuchFileException("no such log directory", path=root, hint=EXPECTED_DIR)
    listed = files.list_dir(root)
    refuse_partition_folder(listed, root)
    found = {}
    for name in listed:
        if name.endswith((names.DELETE_DIR_SUFFIX, names.FUTURE_DIR_SUFFIX, names.STRAY_DIR_SUFFIX)):
            continue
        path = os.path.join(root, name)
        topic, dash, number = name.rpartition("-")
        if dash and topic and number.isascii() and number.isdigit() and files.is_dir(path):
            found[TopicPartition(topic, int(number))] = path
    return dict(sorted(found.items()))


def segment_base(name: str) -> int | None:
    """The base offset of a segment's .log file; None for any other name."""
    if not name.endswith(names.LOG_FILE_SUFFIX):
        return None
    try:
        base = names.offset_from_filename(name)
    except KafkalogError:
        return None
    return base if base >= 0 and name == names.filename_prefix_from_offset(base) + names.LOG_FILE_SUFFIX else None


class SegmentView:
    """One segment as it was when the view was refreshed.  `size` is the .log file's bytes."""

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

    def __repr__(self) -> str:
        return f"SegmentView(base_offset={self.base_offset}, size={self.size})"


class Extent:
    """A readable stretch of one segment's file, from a batch's first byte to `end`.  Close it if `owns_file`.

    `next_base`: the stretch goes to the end of a segment that is not the last, and the next one begins at this offset.
    """

    __slots__ = ("end", "file", "next_base", "owns_file", "path", "position", "segment_base")

    def __init__(
        self,
        file: File,
        path: str,
        segment_base: int,
        position: int,
        end: int,
        *,
        owns_file: bool = False,
        next_base: int | None = None,
    ) -> None:
        self.file = file
        self.owns_file = owns_file
        self.path = path
        self.segment_base = segment_base
        self.position = position
        self.end = end
        self.next_base = next_base

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes from a file position, never past `end`."""
        return self.file.pread(max(0, min(count, self.end - position)), position)

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        """os.sendfile of up to `count` bytes; how many went."""
        return self.file.send_to(sock, position, max(0, min(count, self.end - position)))

    def close(self) -> None:
        if self.owns_file:
            self.file.close()


class PartitionView:
    """A read-only look at `log_dir/topic-partition`; a context manager.

    UnknownTopicOrPartitionException when there is no such folder.  `log_start_offset` and `log_end_offset` are those
    of the last `refresh()`.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str], topic_partition: str | TopicPartition, *, files: Files = OS_FILES
    ) -> None:
        self.log_dir = os.fspath(log_dir)
        if isinstance(topic_partition, str):
            topic_partition = names.parse_topic_partition_name(topic_partition)
        self.topic_partition = topic_partition
        self.directory = os.path.join(self.log_dir, str(topic_partition))
        self._files = files
        self._open: OrderedDict[int, File] = OrderedDict()
        self.life: Life | None = None  # of the Log that looks through it
        self.segments: list[SegmentView] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.end_position = 0  # bytes of the last segment's file that hold whole valid batches
        self._transactions: tuple[int, list[AbortedRange]] | None = None
        self.refresh()

    def __enter__(self) -> PartitionView:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    # --- what there is -----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look at the directory again: segments, their sizes, the log's start and end."""
        if not self._files.is_dir(self.directory):
            raise UnknownTopicOrPartitionException(
                f"no partition {self.topic_partition} in {self.log_dir}",
                hint="expected a folder of that name; list them with `kafkalog describe`",
            )
        self.close()
        known = {segment.base_offset: segment for segment in self.segments}
        segments = []
        for name in self._files.list_dir(self.directory):
            base = segment_base(name)
            if base is None:
                continue
            try:
                stat = self._files.stat(os.path.join(self.directory, name))
            except FileNotFoundError:
                continue  # deleted since it was listed
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                continue  # a link that leads nowhere
            if not stat.is_file:
                continue
            old = known.get(base)
            if old is not None and old.size == stat.size and old.mtime_ms == stat.mtime_ms:
                segments.append(old)
            else:
                segments.append(SegmentView(self._files, self.directory, base, stat.size, stat.mtime_ms))
        segments.sort(key=lambda segment: segment.base_offset)
        self.segments = segments
        self._transactions = None
        checkpoint = self._checkpointed_start()
        self.log_start_offset = max(checkpoint, segments[0].base_offset) if segments else checkpoint
        self.log_end_offset, self.end_position = self._find_end()
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)

    def _checkpointed_start(self) -> int:
        path = os.path.join(self.log_dir, names.LOG_START_OFFSET_CHECKPOINT_FILE)
        if not self._files.exists(path):
            return 0
        try:
            return OffsetCheckpointFile(path, self._files, create=False).read().get(self.topic_partition, 0)
        except (BadBytesError, OSError):
            return 0  # as a broker that cannot read it: from the first segment on

    def _find_end(self) -> tuple[int, int]:
        if not self.segments:
            return self.log_start_offset, 0
        last = self.segments[-1]
        for start in self._starts_before(last, None):
            scan = LogScan(self._file(last), start, last.size)
            end = last.base_offset
            for piece in scan:
                # The largest, not the last, of those that fit: a damaged base offset hides nothing.
                offsets = piece.table["last_offset"]
                offsets = offsets[(offsets >= last.base_offset) & (offsets - last.base_offset <= INT_MAX)]
                end = max(end, int(offsets.max(initial=last.base_offset - 1)) + 1)
            if scan.position > start or start == 0:
                return end, scan.position
        raise AssertionError("the walk from position 0 always answers")

    def _starts_before(self, segment: SegmentView, offset: int | None) -> Iterator[int]:
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
        head = self._file(segment).pread(HEADER_BYTES, position)
        if len(head) < HEADER_BYTES or head[16] > 2:
            return None
        return batches.header_at(head, 0)

    def _file(self, segment: SegmentView) -> File:
        file = self._open.get(segment.base_offset)
        if file is None:
            file = self._files.open(segment.path, writable=False)
            self._open[segment.base_offset] = file
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(segment.base_offset)
        return file

    def readable_bytes(self, segment: SegmentView) -> int:
        """How much of a segment's file is log: all of it but in the last segment, which ends where valid batches do."""
        return self.end_position if segment is self.segments[-1] else segment.size

    # --- finding things ----------------------------------------------------------------------------

    def position_of(self, offset: int) -> tuple[int, int]:
        """(segment's place in `segments`, file position) of the first batch that ends at or after `offset`.

        `(len(segments), 0)` when there is none.
        """
        place = max(0, int(np.searchsorted([s.base_offset for s in self.segments], offset, side="right")) - 1)
        while place < len(self.segments):
            position = self._position_in(self.segments[place], offset)
            if position is not None:
                return place, position
            place += 1
        return place, 0

    def end_position_of(self, offset: int) -> tuple[int, int]:
        """(segment's place in `segments`, file position) behind the last batch that begins at or before `offset`."""
        place, position = self.position_of(offset)
        if place == len(self.segments):
            last = len(self.segments) - 1
            return last, self.readable_bytes(self.segments[last]) if self.segments else 0
        header = self._header_at(self.segments[place], position)
        if header is None or (header.magic >= 2 and header.base_offset > offset):
            return place, position
        return place, position + header.size

    def first_offset_at(self, segment: SegmentView, position: int, last_offset: int) -> int | None:
        """The base offset of the batch at a position, when it is a v2 batch that ends at `last_offset`."""
        header = self._header_at(segment, position)
        if header is None or header.magic < 2 or header.last_offset != last_offset:
            return None
        return header.base_offset

    def _position_in(self, segment: SegmentView, offset: int) -> int | None:
        if offset <= segment.base_offset:
            return 0 if self.readable_bytes(segment) else None
        for start in self._starts_before(segment, offset):
            scan = LogScan(
                self._file(segment), start, self.readable_bytes(segment), check_crc=False, slice_bytes=SEEK_BYTES
            )
            first = True
            for piece in scan:
                table = piece.table
                if first and start and table["base_offset"][0] > offset:
                    break  # the index pointed too far: walk from the start instead
                first = False
                slot = np.flatnonzero(table["last_offset"] >= offset)
                if len(slot):
                    return int(table["position"][slot[0]])
            else:
                if scan.stopped not in (batches.OK,) and segment is not self.segments[-1]:
                    self._raise_damage(segment, scan)
                return None
        return None

    def _raise_damage(self, segment: SegmentView, scan: LogScan) -> None:
        raise CorruptRecordException(
            VERDICT_TEXT.get(scan.stopped, "damaged"),
            path=segment.path,
            position=scan.position,
            hint="`kafkalog verify` lists the damage",
        )

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        """Where to read `offset` and what follows it in its segment; None at the end of the log.

        OffsetOutOfRangeException outside [log_start_offset, log_end_offset].
        """
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRangeException(
                f"offset {offset} of {self.topic_partition} is out of range: the log has "
                f"[{self.log_start_offset}, {self.log_end_offset})"
            )
        if offset >= self.visible_end(isolation):
            return None
        place, position = self.position_of(offset)
        if place == len(self.segments):
            return None
        segment = self.segments[place]
        end = self.readable_bytes(segment)
        following = self.segments[place + 1].base_offset if place + 1 < len(self.segments) else None
        if check_isolation(isolation) and self.last_stable_offset < self.log_end_offset:
            stable_place, stable_position = self.position_of(self.last_stable_offset)
            if stable_place == place:
                end, following = stable_position, None
        file = self._files.open(segment.path, writable=False)  # the extent outlives refreshes of this view
        return Extent(file, segment.path, segment.base_offset, position, end, owns_file=True, next_base=following)

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        """Up to where (exclusive) a reader of that isolation sees."""
        return self.last_stable_offset if check_isolation(isolation) else self.log_end_offset

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """The first offset whose record has a timestamp >= `timestamp_ms`; None where there is none."""
        for segment in self.segments:
            found = self._offset_for_time_in(segment, timestamp_ms)
            if found is not None:
                return found
        return None

    def _offset_for_time_in(self, segment: SegmentView, timestamp_ms: int) -> int | None:
        times = segment.time_entries
        after = int(np.searchsorted(times.timestamps, timestamp_ms, side="left"))
        # Everything up to the entry before `after` is older; where all entries are, only the tail can be younger.
        start_offset = int(times.offsets[after - 1]) if after else segment.base_offset
        start_offset = max(start_offset, self.log_start_offset)
        if start_offset >= self.log_end_offset:
            return None
        position = self._position_in(segment, start_offset)
        if position is None:
            return None
        scan = LogScan(self._file(segment), position, self.readable_bytes(segment), slice_bytes=4 * SEEK_BYTES)
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
        return None

    # --- transactions ------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the log's end."""
        return self._read_transactions()[0]

    @property
    def aborted(self) -> list[AbortedRange]:
        """Every aborted transaction that the directory knows of, by first offset."""
        return self._read_transactions()[1]

    def aborted_in(self, first_offset: int, last_offset: int) -> list[AbortedRange]:
        """Aborted transactions with a record in [first_offset, last_offset]."""
        return [txn for txn in self.aborted if txn.first_offset <= last_offset and txn.last_offset >= first_offset]

    def _read_transactions(self) -> tuple[int, list[AbortedRange]]:
        if self._transactions is None:
            aborted = {
                txn
                for segment in self.segments
                for txn in index_files.aborted_ranges(
                    self._files, names.transaction_index_file(self.directory, segment.base_offset)
                )
            }
            start, open_txns = self._newest_snapshot()
            self._replay(start, open_txns, aborted)
            stable = min(open_txns.values(), default=self.log_end_offset)
            self._transactions = (max(stable, self.log_start_offset), sorted(aborted, key=lambda txn: txn[1:]))
        return self._transactions

    def _newest_snapshot(self) -> tuple[int, dict[int, int]]:
        """Where to start looking for transactions, and those open there (producer id -> first offset)."""
        found = []
        for name in self._files.list_dir(self.directory):
            offset = segment_base(name.removesuffix(names.PRODUCER_SNAPSHOT_FILE_SUFFIX) + names.LOG_FILE_SUFFIX)
            if not name.endswith(names.PRODUCER_SNAPSHOT_FILE_SUFFIX) or offset is None:
                continue
            if self.log_start_offset <= offset <= self.log_end_offset:
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

    def _replay(self, start: int, open_txns: dict[int, int], aborted: set[AbortedRange]) -> None:
        """Follow transactional batches from `start` to the end; `open_txns` and `aborted` are brought up to date."""
        if start >= self.log_end_offset:
            return
        place, position = self.position_of(start)
        for segment in self.segments[place:]:
            scan = LogScan(self._file(segment), position, self.readable_bytes(segment), check_crc=False)
            position = 0
            for piece in scan:
                flags = piece.table["attributes"]
                for slot in np.flatnonzero((flags & TRANSACTIONAL) != 0):
                    row = piece.table[slot]
                    producer_id = int(row["producer_id"])
                    if not int(row["attributes"]) & CONTROL:
                        open_txns.setdefault(producer_id, int(row["base_offset"]))
                        continue
                    first = open_txns.pop(producer_id, None)
                    start = int(row["position"]) - piece.position
                    marker = piece.data[start : start + int(row["size"])]
                    if first is not None and self._is_abort(marker):
                        aborted.add(AbortedRange(producer_id, first, int(row["last_offset"])))

    @staticmethod
    def _is_abort(batch: memoryview) -> bool:
        record = first_record(batch, batches.header_at(batch, 0))
        return record is not None and parse_control_key(record.key) == ControlRecordType.ABORT
