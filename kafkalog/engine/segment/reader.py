"""Reads a segment's log without trusting it: for directories of other processes, and after a wrong index entry.

`SegmentReader` finds the batch that holds an offset, or a record by time. An index entry is a hint: the reader first
checks the batch that the entry names, and starts at the beginning of the file if it is another one. If there is a gap
in the offsets, the skipped stretch is checked before the gap is accepted, because both compaction and damage leave
gaps. For damage it raises CorruptRecordException with the file and the position (`Unreadable`). `LogSegment` has
Kafka's quick search.

`Extent` is the result of a search: a stretch of whole batches, from which the caller reads on. This module knows one
file; it does not know other segments, directories or the end of the log. Needs no lock.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from kafkalog._native.codec import batches as native
from kafkalog.engine.format.batch import (
    MAGIC_AT,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_BYTES,
    declared_size,
    smallest_bytes,
)
from kafkalog.engine.format.records import READ_BYTES_MAX, in_parts
from kafkalog.engine.segment.loss import reason
from kafkalog.engine.segment.order import misfits
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import CorruptRecordException

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog._native.state.descriptor import ReadBuffers
    from kafkalog.engine.files import File, HasFileno

SEEK_BYTES = 64 * 1024  # slice size of a search that begins at a hint
TIME_SEEK_BYTES = 4 * SEEK_BYTES
DAMAGE_HINT = (
    "`kafkalog verify` lists the damage, `kafkalog salvage` copies what can be read to a new directory; for a remote "
    "tier, run `kafkalog tier restore` first"
)


class Unreadable(NamedTuple):
    """The place where bytes stop making sense, and a description of them."""

    path: str
    position: int
    what: str

    @classmethod
    def where_stopped(cls, file: File, scan: LogScan) -> Unreadable:
        """Returns what stopped a scan before its end."""
        return cls(file.path, scan.position, reason(scan.stopped))

    def error(self) -> CorruptRecordException:
        return CorruptRecordException(self.what, path=self.path, position=self.position, hint=DAMAGE_HINT)


@dataclass(slots=True, eq=False)
class Extent:
    """A readable stretch of one segment's file, from the first byte of a batch to `end`.

    All of it is whole batches, so bytes that cannot be read are damage. An Extent keeps its file open.

    `next_base`: the stretch ends with a segment that is not the last, and the next one begins at this offset. `final`:
    nothing can be read after it. `base_limit`: no batch in it begins at a higher offset. `limit`: no batch in it ends
    at a higher offset (unless `next_base` limits it). `may_overlap`: the segment may continue after `next_base`, with
    the records of the next one. `indexed_position`: returns the position in the index file's last entry. `used_up`:
    called with the last offset after everything was read and more was requested. `owner`: the source's key for the
    segment.
    """

    file: File
    segment_base: int
    position: int
    end: int
    next_base: int | None = None
    final: bool = False
    base_limit: int | None = None
    limit: int | None = None
    may_overlap: bool = False
    indexed_position: Callable[[], int] | None = None
    used_up: Callable[[int], None] | None = None
    owner: object = None

    @property
    def path(self) -> str:
        return self.file.path

    def read(self, position: int, count: int) -> bytes:
        """Returns up to `count` bytes from a file position, never past `end`."""
        return self.file.pread(max(0, min(count, self.end - position)), position)

    def read_into(self, buffers: ReadBuffers, behind: bytes | memoryview, position: int, count: int) -> memoryview:
        """Returns a view of `behind` followed by the bytes of `read`, in one of the buffers."""
        return buffers.read(self.file, behind, max(0, min(count, self.end - position)), position)

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        """Sends up to `count` bytes with os.sendfile; returns how many were sent."""
        return self.file.send_to(sock, position, max(0, min(count, self.end - position)))

    def cut_overlap(self, table: np.ndarray) -> int | None:
        """Ends the stretch before the first batch of `table` that the next segment has too.

        Returns the row of that batch, or None if there is none.
        """
        if not self.may_overlap or self.next_base is None or not len(table):
            return None
        place = int(np.argmax(table["base_offset"] == self.next_base))
        if table["base_offset"][place] != self.next_base:
            return None
        self.end, self.indexed_position = int(table["position"][place]), None
        return place

    def lacks_indexed(self) -> bool:
        """Returns whether the segment's index names a batch after the end.

        The file was then truncated at a batch boundary.
        """
        return self.indexed_position is not None and self.indexed_position() >= self.end


def header_at(file: File, position: int) -> BatchHeader | None:
    """Returns the header at a position of a .log file, without reading the body. Its `position` is 0.

    Returns None if the file ends inside the header, or if the magic is unknown or the size impossible: preallocated
    space is zeros.
    """
    return header_of(file.pread(RECORD_BATCH_OVERHEAD, position))


def header_of(head: bytes) -> BatchHeader | None:
    """Returns the header at the start of `head`, like `header_at`."""
    if len(head) < SMALLEST_BATCH_BYTES or head[MAGIC_AT] > 2:
        return None
    least_bytes = smallest_bytes(head[MAGIC_AT])
    return None if min(len(head), declared_size(head)) < least_bytes else native.header_at(head)


class TimeHints(Protocol):
    """A segment's time index: entries of a timestamp, and an offset up to which no batch is later.

    It is the engine's `TimeIndex`, or `TimeEntries` for a file that another process owns.
    """

    @property
    def entries(self) -> int: ...
    def entry(self, n: int) -> tuple[int, int]: ...
    def lookup(self, target: int) -> tuple[int, int]:
        """Returns the last entry at or below a timestamp; (-1, base offset) if there is none."""


class SegmentReader:
    """Reads the first `end` bytes of a segment's file, with offsets from `base_offset` to `limit`.

    A hint is an index entry (last offset, position of its batch); position 0 gives no hint. `may_overlap` as in Extent.
    """

    __slots__ = ("base_offset", "end", "file", "limit", "may_overlap")

    def __init__(self, file: File, base_offset: int, limit: int, end: int, *, may_overlap: bool = False) -> None:
        self.file = file
        self.base_offset = base_offset
        self.limit = limit
        self.end = end
        self.may_overlap = may_overlap

    def header_at(self, position: int) -> BatchHeader | None:
        """Returns the header at `position`, like the function `header_at`."""
        return header_at(self.file, position)

    def starts(self, hint: tuple[int, int] | None) -> Iterator[int]:
        """Yields positions to start a walk from.

        The first is that of the hint, if a batch with that last offset is there; then 0.
        """
        if hint is not None and hint[1]:
            header = self.header_at(hint[1])
            if header is not None and header.last_offset == hint[0]:
                yield hint[1]
        yield 0

    def check(self, start: int, end: int) -> None:
        """Raises CorruptRecordException unless [start, end) is whole batches in order.

        Their offsets must grow within the segment's range.
        """
        scan = LogScan(self.file, start, end)
        expected = self.base_offset
        for piece in scan:
            self._check_order(piece.table, expected)
            expected = int(piece.table["last_offset"][-1]) + 1
        if scan.position < end:
            raise Unreadable.where_stopped(self.file, scan).error()

    def _check_order(self, table: np.ndarray, expected: int, rows: int | None = None) -> None:
        """Raises CorruptRecordException if a row of a table does not fit its neighbours.

        Checks the first `rows` rows (default: all).
        """
        wrong = misfits(table, expected, self.limit)
        if wrong and (rows is None or wrong[0] < rows):
            raise self._misfit(table[wrong[0]])

    def _misfit(self, row: np.void) -> CorruptRecordException:
        what = f"a batch with offsets {int(row['base_offset'])} to {int(row['last_offset'])} and magic "
        what += f"{int(row['magic'])} does not fit between its neighbours (the CRC does not cover these)"
        return Unreadable(self.file.path, int(row["position"]), what).error()

    def find(self, offset: int, hint: tuple[int, int] | None = None) -> int | None:
        """Returns the position of the first batch that ends at or after `offset`, or None."""
        for start in self.starts(hint):
            expected = -1 if start else self.base_offset
            scan = LogScan(
                self.file, start, self.end, check_crc=False, slice_bytes=None if hint is None else SEEK_BYTES
            )
            for table, _, _ in scan:
                if expected < 0:
                    expected = int(table["base_offset"][0])
                    if expected > offset:
                        break  # the hint was too far: walk from the start instead
                slots = np.flatnonzero(table["last_offset"] >= offset)
                if len(slots):
                    row = table[slots[0]]
                    position = int(row["position"])
                    # A misfit before this row does not matter here.
                    if row["base_offset"] <= offset and slots[0] in misfits(
                        table[: slots[0] + 2], expected, self.limit
                    ):
                        raise self._misfit(row)
                    if row["magic"] < 2 or row["base_offset"] > offset:
                        self.check(start, position)
                        self._check_jump(row)
                    return position
                expected = int(table["last_offset"][-1]) + 1
            else:
                self.check(start, self.end)
                return None
        return None

    def _check_jump(self, row: np.void) -> None:
        """Raises CorruptRecordException if a batch after a gap does not belong there.

        It is not of this segment then, or the next batch belongs in its place.
        """
        behind = int(row["position"]) + int(row["size"])
        following = self.header_at(behind) if behind < self.end else None
        begins = self.limit + 1 if following is None else following.base_offset
        if following is not None and following.magic < 2:
            begins = following.last_offset
        if int(row["last_offset"]) >= begins >= self.base_offset:
            what = f"a batch with offsets {int(row['base_offset'])} to {int(row['last_offset'])} where offset {begins} "
            what += "or a lower one should be (offsets are not covered by the CRC)"
            raise Unreadable(self.file.path, int(row["position"]), what).error()

    def find_time(self, timestamp_ms: int, position: int, first_offset: int, *, end: int | None = None) -> int | None:
        """Returns the offset of the first record at or above both a timestamp and an offset.

        Searches from a batch's position up to the position `end` (default: all). Raises CorruptRecordException if a
        batch on the way does not fit its neighbours, because its offsets cannot be trusted.
        """
        end = self.end if end is None else end
        scan = LogScan(self.file, position, end, slice_bytes=TIME_SEEK_BYTES)
        expected = self.base_offset
        for piece in scan:
            table, ends = piece.table, False
            if self.may_overlap and len(rows := np.flatnonzero(table["base_offset"] == self.limit + 1)):
                table, ends = table[: rows[0]], True  # the rest belongs to the next segment
            late = (table["max_timestamp"] >= timestamp_ms) & (table["last_offset"] >= first_offset)
            for slot in np.flatnonzero(late):
                header = native.header_from_row(table[slot])
                parts = in_parts(piece.data, header, at=header.position - piece.position, max_bytes=READ_BYTES_MAX)
                for record in itertools.chain.from_iterable(parts):
                    if record.timestamp >= timestamp_ms and record.offset >= first_offset:
                        self._check_order(table, expected, int(slot) + 1)
                        if int(slot) + 1 == len(table) and not ends:
                            self._check_jump(table[slot])
                        return record.offset
            self._check_order(table, expected)
            if ends:
                return None
            expected = int(table["last_offset"][-1]) + 1
        if scan.position < end:
            raise Unreadable.where_stopped(self.file, scan).error()
        return None

    def first_at(
        self, timestamp_ms: int, first_offset: int, times: TimeHints, position_of: Callable[[int], int | None]
    ) -> int | None:
        """Returns the same as `find_time` for the whole segment; its time index says which batches need not be read.

        `position_of` returns the position of the first batch that ends at or after an offset, or None. An entry is used
        only if its batch exists and has its timestamp. Batches before the first entry are always read: a truncation, in
        Kafka too, may remove entries whose timestamps apply to batches that stay, and later entries say nothing about
        these.
        """
        begins = position_of(first_offset)
        if begins is None:
            return None
        _, older = last = times.lookup(max(timestamp_ms, 0) - 1)
        if last[0] < 0 or older <= first_offset:
            return self.find_time(timestamp_ms, begins, first_offset)
        first = times.entry(0)
        from_first, from_last = self._confirmed(first, position_of), self._confirmed(last, position_of)
        if from_first is None or from_last is None:
            return self.find_time(timestamp_ms, begins, first_offset)
        if begins < from_first:
            found = None
            with contextlib.suppress(CorruptRecordException):  # then the index decides for the damaged part
                found = self.find_time(timestamp_ms, begins, first_offset, end=from_first)
            if found is not None:
                return found
        return self.find_time(timestamp_ms, max(begins, from_last), first_offset)

    def _confirmed(self, entry: tuple[int, int], position_of: Callable[[int], int | None]) -> int | None:
        """Returns the position of the batch that an entry of the time index names; None if there is no such batch."""
        timestamp, offset = entry
        if self.may_overlap and offset > self.limit:
            return None
        position = position_of(offset)
        header = None if position is None else self.header_at(position)
        return position if header is not None and header.max_timestamp == timestamp else None
