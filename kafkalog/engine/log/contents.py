"""Sums over a partition's batches: record count, time range and codecs; from all headers, or from a few.

It uses a `Snapshot`: it only reads, takes no lock, and works while a broker is running. `headers_at_ends` reads a few
headers and the ends of the indexes, so it is fast however long the log is. `all_headers` reads every header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from kafkalog._native.codec import batches as native
from kafkalog.engine.format.batch import CONTROL_FLAG, DELETE_HORIZON_FLAG, TIMESTAMP_TYPE_FLAG
from kafkalog.engine.format.records import READ_BYTES_MAX, in_parts
from kafkalog.engine.log.snapshot import SegmentView, Snapshot
from kafkalog.engine.log.source import Source
from kafkalog.engine.log.tier import TierSegment
from kafkalog.engine.segment.reader import SEEK_BYTES
from kafkalog.engine.segment.resync import next_batch, slices_past_damage
from kafkalog.engine.segment.scan import LogScan, ScanSlice
from kafkalog.errors import CorruptRecordException, KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.files import File

T = TypeVar("T")
CODEC_BITS = 7
_UNSEEN_BYTES = 17  # a shorter rest is not seen by Kafka's file framing


class Surveyed(Source, Protocol):
    """A source that can return sums: a log that this process has open, or a directory."""

    def over(self, ask: Callable[[Snapshot], T]) -> T:
        """Calls `ask` with a snapshot of the segments in the directory, and returns its result."""

    def tiered(self) -> Sequence[TierSegment]:
        """Returns the segments of a remote tier that are not among those of `over`."""


def last_time(segment: SegmentView) -> int:
    """Returns the timestamp of the last valid entry of the time index; -1 if there is none."""
    entries = segment.time_entries
    found = entries.before(1 << 62) if len(entries) else None
    return -1 if found is None else found[0]


def last_indexed_position(seen: Snapshot, place: int) -> int:
    """Returns the position after which only the headers of a segment, not its index, have information."""
    return next(iter(seen.reader(place).starts(seen.segments[place].offset_entries.last_entry())))


def largest_behind(seen: Snapshot, segment: SegmentView, start: int, end: int) -> int:
    largest = -1
    for piece in LogScan(seen.file(segment), start, end, check_crc=False):
        largest = max(largest, int(piece.table["max_timestamp"].max()))
    return largest


@dataclass(slots=True)
class Contents:
    """The contents of a partition for readers (read_uncommitted), from the log start on.

    They come from all batch headers (`all_headers`), or from some (`headers_at_ends`). Control records are not counted;
    their batches are.
    """

    batches: int = 0
    records: int = 0
    first_timestamp: int = -1  # the timestamp of the first record of a batch
    last_timestamp: int = -1
    codecs: int = 0  # one bit per codec id

    def feed(self, piece: ScanSlice, log_start_offset: int) -> int:
        """Counts a slice of a scan. Returns the bytes of batches whose records were needed but cannot be read."""
        table = piece.table[piece.table["last_offset"] >= log_start_offset]
        self.batches += len(table)
        table = table[(table["magic"] < 2) | (table["attributes"] & CONTROL_FLAG == 0)]
        if not len(table):
            return 0
        for codec in np.unique(table["attributes"] & CODEC_BITS):
            self.codecs |= 1 << int(codec)
        told = _told_by_headers(table, log_start_offset)
        full = table[told & ((table["magic"] < 2) | (table["record_count"] > 0))]
        self.records += int(np.where(full["magic"] >= 2, full["record_count"], 1).sum())
        if len(full):
            appended = full["attributes"] & TIMESTAMP_TYPE_FLAG != 0
            times = np.where(appended, full["max_timestamp"], full["base_timestamp"])
            times = times[times >= 0]
            if len(times):
                self.see_times(int(times.min()), int(full["max_timestamp"].max()))
        return sum(self._read(piece, row, log_start_offset) for row in table[~told])

    def _read(self, piece: ScanSlice, row: np.void, log_start_offset: int) -> int:
        """Counts a batch by its records, if its header does not have enough.

        Returns its bytes if no record can be read.
        """
        header = native.header_from_row(row)
        count, times = 0, []
        try:
            for part in in_parts(piece.data, header, at=header.position - piece.position, max_bytes=READ_BYTES_MAX):
                seen = [record.timestamp for record in part if record.offset >= log_start_offset]
                count += len(seen)
                times += [min(seen), max(seen)] if seen else []
        except KafkalogError:
            return header.size
        self.records += count
        if times:
            self.see_times(min(times), max(times))
        return 0

    def see_times(self, first_ms: int, last_ms: int) -> None:
        """Widens the time range; -1 means unknown."""
        if first_ms >= 0:
            self.first_timestamp = first_ms if self.first_timestamp < 0 else min(self.first_timestamp, first_ms)
        self.last_timestamp = max(self.last_timestamp, last_ms)

    def add(self, other: Contents) -> None:
        """Adds the contents of another partition."""
        self.batches += other.batches
        self.records += other.records
        self.codecs |= other.codecs
        self.see_times(other.first_timestamp, other.last_timestamp)

    def codec_ids(self) -> list[int]:
        return [codec for codec in range(CODEC_BITS + 1) if self.codecs >> codec & 1]


def _told_by_headers(table: np.ndarray, log_start_offset: int) -> np.ndarray:
    """Returns which batches have the record count and first timestamp in their header.

    Not those in which the log starts, nor those with a delete horizon in place of the timestamp. Old compressed batches
    count as one record in their header, so they are excluded too.
    """
    whole = (table["base_offset"] >= log_start_offset) & (table["attributes"] & DELETE_HORIZON_FLAG == 0)
    told: np.ndarray = np.where(table["magic"] >= 2, whole, table["attributes"] & CODEC_BITS == 0)
    return told


def headers_at_ends(seen: Snapshot) -> Contents:
    """Returns the contents by the first batch of each segment, and the last one that its index names.

    In the segment where the log starts, the batch there comes first. This needs few reads, however long the log is. In
    a remote tier each read is a request, so only the log's first and last segment are read. Raises FileNotFoundError if
    a segment was deleted.
    """
    found = Contents()
    first_place, first_position = _log_start(seen)
    for place, segment in enumerate(seen.segments):
        if place < first_place or (first_place < place < len(seen.segments) - 1 and seen.may_overlap(segment)):
            continue
        end = seen.readable_bytes(segment)
        first = first_position if place == first_place else 0
        # In a short segment the first batch is enough: its index is not read.
        last = first if segment.size <= SEEK_BYTES else max(first, _indexed_position(seen, place))
        for start in {first, last} if end else set():
            header = seen.header_at(place, start)
            if header is not None:
                found.batches += 1
                found.codecs |= 0 if header.is_control else 1 << (header.codec & CODEC_BITS)
                if start == first:
                    is_told = header.delete_horizon_ms is None and not header.log_append
                    found.see_times(header.base_timestamp if is_told else header.max_timestamp, header.max_timestamp)
        found.see_times(-1, segment.indexed_time())
        if place == len(seen.segments) - 1:
            found.see_times(-1, seen.tail_timestamp)
    return found


def last_timestamp(seen: Snapshot) -> int:
    """Returns the largest timestamp of the last segment that has one; -1 without records.

    Uses its time index, and the batch headers after the last entry of its offset index. Raises FileNotFoundError if a
    segment was deleted.
    """
    last = len(seen.segments) - 1
    for place in range(last, -1, -1):
        segment = seen.segments[place]
        found = seen.tail_timestamp if place == last else -1
        if place < last or segment.size > SEEK_BYTES:  # the snapshot walked over all of a shorter one
            found = max(found, segment.indexed_time())
        end = seen.readable_bytes(segment)
        if place < last and end and not (seen.may_overlap(segment) and found >= 0):  # in a tier, each read is a request
            found = max(found, largest_behind(seen, segment, last_indexed_position(seen, place), end))
        if found >= 0:
            return found
    return -1


def _indexed_position(seen: Snapshot, place: int) -> int:
    """Returns `last_indexed_position`, from the last entry alone if the batch that it names fits."""
    segment = seen.segments[place]
    if place < len(seen.segments) - 1:
        position = segment.indexed_position()
        header = seen.reader(place).header_at(position) if 0 < position < segment.size else None
        if header is not None and segment.base_offset <= header.base_offset < seen.bases[place + 1]:
            return position
    return last_indexed_position(seen, place)


def _log_start(seen: Snapshot) -> tuple[int, int]:
    """Returns (segment's place, position) of the batch that holds the log start; the beginning if damage hides it."""
    try:
        return seen.position_of(seen.log_start_offset)
    except CorruptRecordException:
        return 0, 0


def all_headers(seen: Snapshot, progress: Callable[[int], None]) -> tuple[Contents, dict[str, int]]:
    """Returns the contents by all batch headers, and the number of unreadable bytes by path.

    Only batches with a good checksum count. Records are read only for the few batches whose header does not have
    everything. Raises FileNotFoundError if a segment was deleted.
    """
    found, unread = Contents(), dict[str, int]()
    for segment in seen.segments:
        file = seen.file(segment)
        here = _fed(found, file, seen, segment, progress)
        if segment is seen.segments[-1] and seen.unreadable_end is not None:
            here += segment.size - seen.end_position
        if here:
            unread[file.path] = here
    return found, unread


def _fed(found: Contents, file: File, seen: Snapshot, segment: SegmentView, progress: Callable[[int], None]) -> int:
    """Counts one segment. Returns how many of its bytes are not readable batches."""
    end, next_offset, unread = seen.readable_bytes(segment), segment.base_offset, 0

    def skip(position: int, why: int) -> int:
        nonlocal unread
        behind = next_batch(file, position + 1, end, min_offset=next_offset, base_offset=segment.base_offset)
        stop = end if behind is None else behind.position
        unread += max(0, end - position - _UNSEEN_BYTES) if behind is None else stop - position
        progress(stop - position)
        return stop

    for piece in slices_past_damage(file, end, skip):
        unread += found.feed(piece, seen.log_start_offset)
        next_offset = max(next_offset, int(piece.table["last_offset"][-1]) + 1)
        progress(int(piece.table["size"].sum()))
    return unread
