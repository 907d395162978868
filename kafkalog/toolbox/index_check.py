"""Checks the indexes of one segment against its log, entry by entry, while the log is read.

`feed` gets tables of batches in order of position, and keeps only a running maximum.  An offset entry must name a batch
by its position and last offset.  A time entry must name a batch and the largest timestamp up to it.  Entries that name
a damaged batch are not judged (`pass_over`): the index may be right, and the batch wrong.
"""

from __future__ import annotations

import numpy as np

from kafkalog._limits import LONG_MAX, SEGMENT_FILE_BYTES_MAX
from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import SMALLEST_BATCH_BYTES
from kafkalog.engine.format.index_entries import OFFSET_ENTRIES, TIME_ENTRIES, TXN_ENTRIES
from kafkalog.engine.segment.index_reader import entries_of
from kafkalog.engine.segment.transaction_index import VERSION
from kafkalog.errors import CorruptIndexException, RemoteResourceNotFoundException
from kafkalog.toolbox.report import MOST_FINDINGS, TOO_LARGE, Report, told
from kafkalog.toolbox.unread import unread
from kafkalog.toolbox.words import counted

LARGE_INTERVAL_BYTES = 64 << 10  # 16 times Kafka's default of index.interval.bytes
READ_LEAST_BYTES = 16 << 20  # this much of an index is read even if its log is small


class IndexCheck:
    """Checks one segment: call `feed` with every table of its log, then `finish`."""

    def __init__(self, directory: str, base_offset: int, files: Files, findings: Report, *, last_segment: bool) -> None:
        self._base = base_offset
        self._files = files
        self._findings = findings
        self._last_segment = last_segment
        self._largest = -1
        self._log_bytes = min(files.stat(names.log_file(directory, base_offset)).size, SEGMENT_FILE_BYTES_MAX)
        self._unread: set[str] = set()
        self.remarks: list[tuple[str, str]] = []  # (path, text): may be in order, but is better repaired
        self._last_position = 0  # where the last batch begins
        self._end = 0  # after the last batch, or damage
        self.next_offset = base_offset  # after the last batch
        self._grows = True  # the entries of the offset index increase
        self._offset_path = names.offset_index_file(directory, base_offset)
        self._time_path = names.time_index_file(directory, base_offset)
        raw = self._load(self._offset_path, OFFSET_ENTRIES)
        self._positions = raw["position"].astype(np.int64)
        self._offsets = raw["offset"].astype(np.int64) + base_offset
        self._check_growth(self._offset_path, OFFSET_ENTRIES, self._offsets, self._positions, strict_second=True)
        self._position_order = np.argsort(self._positions, kind="stable")
        self._offset_found = np.zeros(len(raw), bool)
        raw = self._load(self._time_path, TIME_ENTRIES)
        self._times = raw["timestamp"].astype(np.int64)
        self._time_offsets = raw["offset"].astype(np.int64) + base_offset
        self._check_growth(self._time_path, TIME_ENTRIES, self._times, self._time_offsets, strict_second=False)
        self._time_order = np.argsort(self._time_offsets, kind="stable")
        self._time_found = np.zeros(len(raw), bool)
        self._check_transactions(names.transaction_index_file(directory, base_offset))

    def _load(self, path: str, dtype: np.dtype) -> np.ndarray:
        """Returns all entries, without the zero slots that preallocation leaves after the last one."""
        if not self._files.exists(path):
            if not self._last_segment:
                self._findings.add(path, 0, 0, "the file is missing (`kafkalog reindex` creates it)")
            return np.empty(0, dtype)
        data = self._read(path, dtype)
        entries = entries_of(data, dtype)
        whole = entries.nbytes
        used = np.flatnonzero(np.frombuffer(data, np.uint8, whole).reshape(-1, dtype.itemsize).any(axis=1))
        count = int(used[-1]) + 1 if len(used) else 0
        if self._last_segment:
            return entries[:count]
        if whole != len(data):
            self._findings.add(
                path,
                whole,
                len(data) - whole,
                f"its size of {len(data)} bytes is not a multiple of the {dtype.itemsize} bytes of an entry",
            )
        if count < len(entries):
            self._findings.add(
                path,
                count * dtype.itemsize,
                whole - count * dtype.itemsize,
                "zero slots after the last entry, which Kafka takes for entries",
            )
        return entries[:count]

    def _read(self, path: str, dtype: np.dtype) -> bytes:
        """Reads the entries that the log can have: one for each batch of the smallest size.  The rest of a larger file
        is only read if it costs nothing."""
        most = max(self._log_bytes // SMALLEST_BATCH_BYTES * dtype.itemsize, READ_LEAST_BYTES)
        try:
            file = self._files.open(path, writable=False)
        except (CorruptIndexException, RemoteResourceNotFoundException) as error:
            # From a remote tier, which returns no invalid index, and may have lost an object.
            self._findings.add(path, 0, 0, told(error))
            self._unread.add(path)
            return b""
        except OSError as error:
            return self._tell_unread(path, error)
        with file:
            try:
                size = file.size()
                data = file.pread(min(size, most), 0)
            except OSError as error:
                return self._tell_unread(path, error)
            if size > SEGMENT_FILE_BYTES_MAX:
                self._findings.add(path, most, size - most, f"its size is {size} bytes, {TOO_LARGE}")
            return data

    def _tell_unread(self, path: str, error: OSError) -> bytes:
        """Reports an index that cannot be read; the log is checked all the same."""
        wrong = unread(error, path)
        if wrong is None:
            raise error
        self._findings.findings.append(wrong)
        self._unread.add(path)
        return b""

    def _check_growth(
        self, path: str, dtype: np.dtype, first: np.ndarray, second: np.ndarray, *, strict_second: bool
    ) -> None:
        steps = (np.diff(first) <= 0) | (np.diff(second) <= 0 if strict_second else np.diff(second) < 0)
        if strict_second and steps.any():
            self._grows = False
        for slot in np.flatnonzero(steps)[:MOST_FINDINGS]:
            self._entry(path, dtype, int(slot) + 1, "is not greater than the entry before it")

    def _entry(self, path: str, dtype: np.dtype, slot: int, what: str) -> None:
        self._findings.add(path, slot * dtype.itemsize, dtype.itemsize, f"entry {slot} {what}")

    def feed(self, table: np.ndarray) -> None:
        """Checks the next batches of the log."""
        self._feed_offsets(table)
        self._feed_times(table)
        self._largest = max(self._largest, int(table["max_timestamp"].max()))
        self._last_position = int(table["position"][-1])
        self._end = max(self._end, self._last_position + int(table["size"][-1]))
        self.next_offset = max(self.next_offset, int(table["last_offset"].max()) + 1)

    def pass_over(self, position: int, end: int, first_offset: int, end_offset: int | None) -> None:
        """Skips a damaged part of the log, between the good batches around it.  Entries that name it are counted as
        right, because it is unknown whether they are."""
        self._end = max(self._end, end)
        self._offset_found |= (position <= self._positions) & (self._positions < end)
        limit = LONG_MAX if end_offset is None else end_offset - 1
        self._time_found |= (first_offset <= self._time_offsets) & (self._time_offsets <= limit)

    def _feed_offsets(self, table: np.ndarray) -> None:
        positions = table["position"]
        order = self._position_order
        sorted_positions = self._positions[order]
        begin = int(np.searchsorted(sorted_positions, positions[0], side="left"))
        slots = order[begin : int(np.searchsorted(sorted_positions, positions[-1], side="right"))]
        rows = np.searchsorted(positions, self._positions[slots])
        hit = (positions[rows] == self._positions[slots]) & (table["last_offset"][rows] == self._offsets[slots])
        self._offset_found[slots[hit]] = True

    def _feed_times(self, table: np.ndarray) -> None:
        last = np.maximum.accumulate(table["last_offset"])
        order = self._time_order
        offsets = self._time_offsets[order]
        begin = int(np.searchsorted(offsets, int(table["base_offset"][0]), side="left"))
        end = int(np.searchsorted(offsets, int(last[-1]), side="right"))
        slots = order[begin:end]
        rows = np.minimum(np.searchsorted(last, self._time_offsets[slots]), len(table) - 1)
        largest = np.maximum(np.maximum.accumulate(table["max_timestamp"]), self._largest)
        inside = (table["base_offset"][rows] <= self._time_offsets[slots]) | (table["magic"][rows] < 2)
        times = self._times[slots]
        hit = inside & (table["max_timestamp"][rows] == times) & (largest[rows] == times)
        self._time_found[slots[hit]] = True

    def finish(self) -> None:
        """Reports the entries that match no batch; consecutive ones together."""
        self._tell_behind_end()
        for first, end in _runs(~self._offset_found)[:MOST_FINDINGS]:
            offsets, positions = self._offsets[first:end].tolist(), self._positions[first:end].tolist()
            what = f"offset {_span(offsets)}, position {_span(positions)}"
            if end - first == 1:
                self._entry(self._offset_path, OFFSET_ENTRIES, first, f"({what}) names no batch of the log")
            else:
                self._entries(self._offset_path, OFFSET_ENTRIES, first, end, f"({what}) name no batches of the log")
        for first, end in _runs(~self._time_found)[:MOST_FINDINGS]:
            times, offsets = self._times[first:end].tolist(), self._time_offsets[first:end].tolist()
            what = f"(timestamp {_span(times)}, offset {_span(offsets)})"
            if end - first == 1:
                what += " is not the largest timestamp up to a batch of the log"
                self._entry(self._time_path, TIME_ENTRIES, first, what)
            else:
                what += " are not the largest timestamps up to batches of the log"
                self._entries(self._time_path, TIME_ENTRIES, first, end, what)
        is_read = self._offset_path not in self._unread and self._files.may_overlap(self._offset_path)
        if is_read and not len(self._offsets) and self._last_position > LARGE_INTERVAL_BYTES:
            what = f"it has no entries, and the last batch begins at byte {self._last_position}"
            self.remarks.append((self._offset_path, f"{what}: entries were lost, unless index.interval.bytes is large"))
        last = int(self._times[-1]) if len(self._times) else -1
        is_read = self._time_path not in self._unread and self._files.exists(self._time_path)
        if last < self._largest and not self._last_segment and is_read:
            what = f"it ends at timestamp {last}, but the segment has {self._largest} (`kafkalog reindex` repairs it)"
            if len(self._times) or not len(self._offsets):
                # A log that was opened, truncated and rolled looks like this: Kafka then forgets the largest timestamp.
                self.remarks.append((self._time_path, what))
            else:
                self._findings.add(self._time_path, 0, 0, what)

    def _tell_behind_end(self) -> None:
        """Reports entries for what was after the log's end: one finding for each index."""
        self._gather(
            self._offset_path, OFFSET_ENTRIES, self._offset_found, self._positions >= self._end,
            f"bytes after the end of the log, which is at byte {self._end}",
            offset=self._offsets, position=self._positions,
        )  # fmt: skip
        self._gather(
            self._time_path, TIME_ENTRIES, self._time_found,
            (self._time_offsets >= self.next_offset) & self._is_cut_short(),
            f"offsets after the end of the log, which is at offset {self.next_offset}",
            timestamp=self._times, offset=self._time_offsets,
        )  # fmt: skip

    def _gather(
        self, path: str, dtype: np.dtype, found: np.ndarray, behind: np.ndarray, what: str, **columns: np.ndarray
    ) -> None:
        """Reports the entries that are `behind` and not found as one finding, and marks them as reported."""
        slots = np.flatnonzero(behind & ~found)
        if len(slots) > 1:
            spans = ", ".join(f"{name} {_span(column[slots].tolist())}" for name, column in columns.items())
            self._stretch(path, dtype, slots, f"{counted(len(slots), 'index entry')} for {what} ({spans})")
            found[slots] = True

    def _is_cut_short(self) -> bool:
        """Returns whether the log ends before batches that its own indexes name, if these are plausible."""
        if not len(self._positions) or not self._grows:
            return False
        return int(self._positions[-1]) >= self._end and int(self._offsets[-1]) >= self.next_offset

    def is_cut_short(self, following: int | None) -> bool:
        """Returns whether a log ends before batches that its index names, although the segment at `following` comes
        next: records are lost."""
        return following is not None and self._is_cut_short() and int(self._offsets[-1]) < following

    def _stretch(self, path: str, dtype: np.dtype, slots: np.ndarray, what: str) -> None:
        first, end = int(slots[0]), int(slots[-1]) + 1
        self._findings.add(path, first * dtype.itemsize, (end - first) * dtype.itemsize, what)

    def _entries(self, path: str, dtype: np.dtype, first: int, end: int, what: str) -> None:
        self._findings.add(
            path, first * dtype.itemsize, (end - first) * dtype.itemsize, f"entries {first} to {end - 1} {what}"
        )

    def _check_transactions(self, path: str) -> None:
        if not self._files.exists(path):
            return
        data = self._read(path, TXN_ENTRIES)
        entries = entries_of(data, TXN_ENTRIES)
        whole = entries.nbytes
        if whole != len(data):
            self._findings.add(path, whole, len(data) - whole, "an incomplete entry at the end")
        previous = self._base - 1
        for slot, entry in enumerate(entries):
            first, last = int(entry["first_offset"]), int(entry["last_offset"])
            if int(entry["version"]) != VERSION:
                self._entry(path, TXN_ENTRIES, slot, f"has the unknown version {int(entry['version'])}")
            elif first > last or last <= previous:
                self._entry(path, TXN_ENTRIES, slot, f"(offsets {first} to {last}) does not follow {previous}")
            else:
                previous = last


def _runs(wrong: np.ndarray) -> list[tuple[int, int]]:
    """Returns the ranges (first, end) of consecutive wrong slots."""
    edges = np.flatnonzero(np.diff(wrong.astype(np.int8), prepend=0, append=0))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def _span(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
