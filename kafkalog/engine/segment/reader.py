"""Reading a segment's log without believing anything: for logs of others, and where our own index led astray.

`SegmentReader` finds the batch that holds an offset, or a record of a time.  An index entry is a hint: the batch that
it names is looked at first, and where that is another the search begins at the file's start.  Where offsets leave a gap
the stretch that was passed over is checked before the gap is believed: compaction leaves gaps, damage too.  Then it
raises CorruptRecordException with the file and the position (`Unreadable`).  `LogSegment` has Kafka's own quick way.

`Extent` is what a search ends in: a stretch of whole batches, for whoever reads on.  Knows one file; nothing of other
segments, of directories or of where a log ends.  Needs no lock.
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

SEEK_BYTES = 64 * 1024  # a slice of a search that begins at a hint
TIME_SEEK_BYTES = 4 * SEEK_BYTES
DAMAGE_HINT = (
    "`kafkalog verify` lists the damage, `kafkalog salvage` copies what can be read to a new directory; of a remote "
    "tier, once `kafkalog tier restore` has brought it to a directory"
)


class Unreadable(NamedTuple):
    """Where bytes stop making sense, and what they are instead."""

    path: str
    position: int
    what: str

    @classmethod
    def where_stopped(cls, file: File, scan: LogScan) -> Unreadable:
        """That a scan which did not come to its end ran into."""
        return cls(file.path, scan.position, reason(scan.stopped))

    def error(self) -> CorruptRecordException:
        return CorruptRecordException(self.what, path=self.path, position=self.position, hint=DAMAGE_HINT)


@dataclass(slots=True, eq=False)
class Extent:
    """A readable stretch of one segment's file, from a batch's first byte to `end`: all of it is whole batches, so
    what cannot be read is damage.  Holding it holds the file.

    `next_base`: the stretch goes to the end of a segment that is not the last, and the next one begins at this offset.
    `final`: nothing is to be asked for behind it.  `base_limit`: no batch in it begins at a higher offset; `limit`:
    none ends at one (where `next_base` does not say so).  `may_overlap`: the segment may go on behind `next_base`, with
    what the next one has, too.
    `indexed_position`: asks for the position that the index file's last entry names.  `used_up`: is told the last
    offset, once all was read and more was wanted.  `owner`: by what its source knows the segment.
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
        """Up to `count` bytes from a file position, never past `end`."""
        return self.file.pread(max(0, min(count, self.end - position)), position)

    def read_into(self, buffers: ReadBuffers, behind: bytes | memoryview, position: int, count: int) -> memoryview:
        """A view of `behind`, and of what `read` gives, in one of the buffers."""
        return buffers.read(self.file, behind, max(0, min(count, self.end - position)), position)

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        """os.sendfile of up to `count` bytes; how many went."""
        return self.file.send_to(sock, position, max(0, min(count, self.end - position)))

    def cut_overlap(self, table: np.ndarray) -> int | None:
        """The row of a table of batches with which the next segment begins, too: there the stretch ends from now on.
        None where there is none."""
        if not self.may_overlap or self.next_base is None or not len(table):
            return None
        place = int(np.argmax(table["base_offset"] == self.next_base))
        if table["base_offset"][place] != self.next_base:
            return None
        self.end, self.indexed_position = int(table["position"][place]), None
        return place

    def lacks_indexed(self) -> bool:
        """Whether the segment's index names a batch behind the end: then the file was cut at a batch's first byte."""
        return self.indexed_position is not None and self.indexed_position() >= self.end


def header_at(file: File, position: int) -> BatchHeader | None:
    """The header at a position of a .log file (its own `position` is 0), the body unlooked at; None where the file ends
    before it does, or has no magic of ours there, or a size that no batch has: room that was set aside is zeros."""
    return header_of(file.pread(RECORD_BATCH_OVERHEAD, position))


def header_of(head: bytes) -> BatchHeader | None:
    """As `header_at`, of the bytes that a file has at the position."""
    if len(head) < SMALLEST_BATCH_BYTES or head[MAGIC_AT] > 2:
        return None
    least_bytes = smallest_bytes(head[MAGIC_AT])
    return None if min(len(head), declared_size(head)) < least_bytes else native.header_at(head)


class TimeHints(Protocol):
    """A segment's time index: entries of a timestamp, and an offset up to which no batch is later.

    The engine's `TimeIndex`, or `TimeEntries` of a file that is another's.
    """

    @property
    def entries(self) -> int: ...
    def entry(self, n: int) -> tuple[int, int]: ...
    def lookup(self, target: int) -> tuple[int, int]:
        """The last entry at or below a timestamp; (-1, base offset) if there is none."""


class SegmentReader:
    """The first `end` bytes of a segment's file, whose offsets are those from `base_offset` to `limit`.

    A hint is an index entry (last offset, position of its batch); position 0 says nothing.  `may_overlap` as in Extent.
    """

    __slots__ = ("base_offset", "end", "file", "limit", "may_overlap")

    def __init__(self, file: File, base_offset: int, limit: int, end: int, *, may_overlap: bool = False) -> None:
        self.file = file
        self.base_offset = base_offset
        self.limit = limit
        self.end = end
        self.may_overlap = may_overlap

    def header_at(self, position: int) -> BatchHeader | None:
        """As the function."""
        return header_at(self.file, position)

    def starts(self, hint: tuple[int, int] | None) -> Iterator[int]:
        """Positions to start a walk from: what a hint says, if a batch with that last offset is there; then 0."""
        if hint is not None and hint[1]:
            header = self.header_at(hint[1])
            if header is not None and header.last_offset == hint[0]:
                yield hint[1]
        yield 0

    def check(self, start: int, end: int) -> None:
        """CorruptRecordException unless [start, end) is whole batches whose offsets grow within the segment's."""
        scan = LogScan(self.file, start, end)
        expected = self.base_offset
        for piece in scan:
            self._check_order(piece.table, expected)
            expected = int(piece.table["last_offset"][-1]) + 1
        if scan.position < end:
            raise Unreadable.where_stopped(self.file, scan).error()

    def _check_order(self, table: np.ndarray, expected: int, rows: int | None = None) -> None:
        """CorruptRecordException where one of the first rows of a table (by default of all) does not fit between its
        neighbours."""
        wrong = misfits(table, expected, self.limit)
        if wrong and (rows is None or wrong[0] < rows):
            raise self._misfit(table[wrong[0]])

    def _misfit(self, row: np.void) -> CorruptRecordException:
        what = f"a batch with offsets {int(row['base_offset'])} to {int(row['last_offset'])} and magic "
        what += f"{int(row['magic'])} does not fit between its neighbours (the CRC does not cover these)"
        return Unreadable(self.file.path, int(row["position"]), what).error()

    def find(self, offset: int, hint: tuple[int, int] | None = None) -> int | None:
        """The position of the first batch that ends at or behind `offset`; None when there is none."""
        for start in self.starts(hint):
            expected = -1 if start else self.base_offset
            scan = LogScan(
                self.file, start, self.end, check_crc=False, slice_bytes=None if hint is None else SEEK_BYTES
            )
            for table, _, _ in scan:
                if expected < 0:
                    expected = int(table["base_offset"][0])
                    if expected > offset:
                        break  # the hint pointed too far: walk from the start instead
                slots = np.flatnonzero(table["last_offset"] >= offset)
                if len(slots):
                    row = table[slots[0]]
                    position = int(row["position"])
                    # What does not fit in front of it is no matter here.
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
        """CorruptRecordException where a batch behind a gap is none of its segment's, or the next one belongs there."""
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
        """The offset of the first record at or above both a timestamp and an offset, from a batch's position on, up to
        the position `end` (by default all that there is).  CorruptRecordException where a batch up to it does not fit
        between its neighbours: its offsets are not believed."""
        end = self.end if end is None else end
        scan = LogScan(self.file, position, end, slice_bytes=TIME_SEEK_BYTES)
        expected = self.base_offset
        for piece in scan:
            table, ends = piece.table, False
            if self.may_overlap and len(rows := np.flatnonzero(table["base_offset"] == self.limit + 1)):
                table, ends = table[: rows[0]], True  # the rest is the next segment's
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
        """As `find_time`, of the whole segment: its time index says what need not be read.

        `position_of`: the position of the first batch that ends at or behind an offset; None when there is none.  An
        entry is believed if its batch is there and has its timestamp.  What lies before the first entry is read all the
        same: a truncation takes entries and may forget the times of what stays, in Kafka too, and later ones say
        nothing of it.
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
            with contextlib.suppress(CorruptRecordException):  # then the index's word stands for what is damaged
                found = self.find_time(timestamp_ms, begins, first_offset, end=from_first)
            if found is not None:
                return found
        return self.find_time(timestamp_ms, max(begins, from_last), first_offset)

    def _confirmed(self, entry: tuple[int, int], position_of: Callable[[int], int | None]) -> int | None:
        """The position of the batch that an entry of the time index names; None if there is no such batch."""
        timestamp, offset = entry
        if self.may_overlap and offset > self.limit:
            return None
        position = position_of(offset)
        header = None if position is None else self.header_at(position)
        return position if header is not None and header.max_timestamp == timestamp else None
