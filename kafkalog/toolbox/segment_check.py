"""Checks the segments of one partition in order: every batch with its CRC, what no CRC covers, and every index entry.

After damage it continues at the next batch that can be proved.  A segment in which something is wrong, and which is
being written, is read again.  Not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kafkalog._limits import SEGMENT_FILE_BYTES_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.segment.loss import VERDICT_TEXT, all_zero
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.engine.segment.resync import next_batch, slices_past_damage
from kafkalog.errors import (
    CorruptIndexException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
)
from kafkalog.toolbox.gaps import Gap, Gaps
from kafkalog.toolbox.index_check import IndexCheck
from kafkalog.toolbox.losses import Losses
from kafkalog.toolbox.report import MOST_FINDINGS, SECOND_LOOK_S, TOO_LARGE, Report, told
from kafkalog.toolbox.unread import FileAroundBadBlocks, is_of_bad_blocks, no_file, unread
from kafkalog.toolbox.words import counted

if TYPE_CHECKING:
    from kafkalog.engine.files import File, Files
    from kafkalog.engine.segment.scan import ScanSlice

Observe = Callable[[str, np.ndarray, memoryview, int], None]  # a path, batches, the bytes from a position on

LOOKS_MAX = 3  # attempts for a segment in which something is wrong, and which is being written


class SegmentCheck:
    """Checks the segments of one partition in order, and remembers where the last one ended."""

    def __init__(
        self, directory: str, files: Files, report: Report, progress: Callable[[int], None] | None = None
    ) -> None:
        self.directory = directory
        self.files = files
        self.report = report
        self.next_offset = 0  # the lowest offset that the next batch may have
        self.epoch = -1
        self.losses = Losses(directory, files)
        self.tells_gaps = False  # a gap is a finding even if no index names what was there
        self.gaps: Gaps | None = None  # reports gaps with what is lost
        self._before: int | None = None  # the segment checked last
        self._told_up_to = 0  # missing offsets below this one were reported
        self.told_end = False  # a finding says that the end of the last checked segment is unknown
        self.tells_unread = False  # reports an unreadable file as a finding; otherwise its error is raised
        self._around = False  # read the segment's log around blocks that the disk cannot read
        self.observe: Observe | None = None
        self._progress = progress or (lambda size_bytes: None)
        self._walked = False  # the segment's log was read once: records and progress are only reported the first time
        self._followed = 0  # the records up to this position were observed
        self._is_over = False  # the rest of this segment belongs to the next one

    def check(self, base: int, following: int | None) -> bool:
        """Checks one segment's log and indexes, by its `base` offset and the `following` one's.  Returns False if it no
        longer exists."""
        is_there = self._check(base, following)
        self._before = base if is_there else None  # everything before it was deleted too
        return is_there

    def _check(self, base: int, following: int | None) -> bool:
        odd = no_file(names.log_file(self.directory, base), self.files) if self.tells_unread else None
        if odd is not None:
            self.report.segments += 1
            self.report.findings.append(odd)
            self.report.lost.append(self.losses.segment(odd.path, base, following))
            self._told_up_to = following or 0
            self.next_offset, self.told_end = base if following is None else following, True
            return True
        whole, begin, told_up_to = self.report, (self.next_offset, self.epoch), self._told_up_to
        newest = self.losses.last_timestamp
        path = names.log_file(self.directory, base)
        before: set[tuple[str, int, str]] = set()
        self._walked = self._around = False
        self._followed = 0
        try:
            for look in range(1, LOOKS_MAX + 1):
                last = look == LOOKS_MAX
                self.report, (self.next_offset, self.epoch) = Report(), begin
                self.losses.last_timestamp, self._told_up_to = newest, told_up_to
                stamps = self._stamps(base)
                gone = False
                try:
                    self._look_around(base, following)
                except FileNotFoundError as error:
                    gone = True
                    # an object that the metadata or a listing has
                    if isinstance(error, RemoteResourceNotFoundException):
                        self.report.findings = []  # such as missing indexes
                        self.report.add(path, 0, 0, told(error))
                        self.report.lost = [self.losses.segment(path, base, following)]
                        self.next_offset = base if following is None else following
                        self.told_end = True
                    elif last and self.files.exists(path):
                        raise
                except RemoteStorageException as error:
                    if not is_of_object(error):
                        raise
                    self.report.add(path, error.position or 0, 0, told(error))
                    self.report.lost = [self.losses.segment(path, base, following)]
                    self.next_offset = base if following is None else following
                    self.told_end = True
                except OSError as error:
                    wrong = unread(error, self.directory) if self.tells_unread else None
                    if wrong is None:
                        raise
                    self.report.findings.append(wrong)
                    self.report.lost = [self.losses.segment(path, base, following)]
                    self.next_offset = base if following is None else following
                    self.told_end = True
                found = self.report.findings
                if (gone or found) and not self.files.exists(path):
                    self.next_offset, self.epoch = begin
                    return False
                now = self._following(base) if found else following
                if not gone and (not found or (now == following and stamps == self._stamps(base))):
                    break
                if last:
                    self.report.findings = [it for it in found if (it.path, it.position, it.what) in before]
                    kept = {(it.path, it.position) for it in self.report.findings}
                    self.report.lost = [it for it in self.report.lost if (it.path, it.position) in kept]
                    break
                before, following = {(it.path, it.position, it.what) for it in found}, now
                time.sleep(SECOND_LOOK_S)
            whole.take(self.report)
        finally:
            self.report = whole
        return True

    def pass_over(self, base: int, next_offset: int, epoch: int) -> None:
        """Skips a segment that was checked before: its batches end at `next_offset`, with a leader `epoch`."""
        self._before = base
        self.next_offset = max(self.next_offset, next_offset)
        self.epoch = max(self.epoch, epoch)
        self.report.segments += 1

    def gap_before(self, base: int, gaps: Gaps) -> Gap | None:
        """Returns the gap before the next segment, at `base`."""
        return gaps.in_front_of(base, self._before, self.next_offset, self._told_up_to)

    def _stamps(self, base: int) -> list[tuple[int, int] | None]:
        """Returns size and modification time of a segment's files; None for a missing one."""
        stamps: list[tuple[int, int] | None] = []
        for suffix in (names.LOG_FILE_SUFFIX, *names.INDEX_FILE_SUFFIXES):
            try:
                stat = self.files.stat(names.segment_stem(self.directory, base) + suffix)
                stamps.append((stat.size, stat.mtime_ms))
            except (FileNotFoundError, CorruptIndexException, RemoteStorageException) as error:
                if isinstance(error, RemoteStorageException) and not is_of_object(error):
                    raise
                stamps.append(None)  # an object does not change
        return stamps

    def _following(self, base: int) -> int | None:
        """Returns the base offset of the next segment, as the directory has it now."""
        listed = names.offsets_in(self.files.list_dir(self.directory))
        return min((offset for offset in listed if offset > base), default=None)

    def _tell(self, size_bytes: int) -> None:
        if not self._walked:
            self._progress(size_bytes)

    def _look_around(self, base: int, following: int | None) -> None:
        """Like `_look`; if the disk cannot read some blocks of a log, it is read once more, around them."""
        begin, newest = (self.next_offset, self.epoch), self.losses.last_timestamp
        told_up_to = self._told_up_to
        self.told_end = False
        try:
            self._look(base, following)
        except OSError as error:
            if self._around or not self.tells_unread or not is_of_bad_blocks(error):
                raise
            self._around = True
            self.report, (self.next_offset, self.epoch) = Report(), begin
            self.losses.last_timestamp, self._told_up_to = newest, told_up_to
            self._look(base, following)

    def _look(self, base: int, following: int | None) -> None:
        path = names.log_file(self.directory, base)
        self._is_over = False
        self.report.segments += 1
        if base < self.next_offset:
            self.report.add(
                path,
                0,
                0,
                f"it begins at offset {base}, but the segment before it ends at offset {self.next_offset - 1}",
            )
        else:
            self._tell_gap(path, base)
        self.next_offset = base
        indexes = IndexCheck(self.directory, base, self.files, self.report, last_segment=following is None)
        with self._open(path) as file:
            size = min(file.size(), SEGMENT_FILE_BYTES_MAX)
            self.report.bytes += size
            if file.size() > size:
                self.report.add(path, size, file.size() - size, f"the file has {file.size()} bytes, {TOO_LARGE}")
            skip = partial(self._damage, file, indexes, size, base, following)
            for piece in slices_past_damage(file, size, skip):
                table = self._own(path, piece.table, following)
                if len(table):
                    self._check_table(path, table, base, following)
                    indexes.feed(table)
                    if self.observe is not None and not self._walked:
                        self._follow(self.observe, path, table, piece)
                self._tell(int(piece.table["size"].sum()))
            self._walked = True
            self._tell_bad_blocks(file)
        indexes.finish()
        self.report.notes += [f"{path}: {what}" for path, what in indexes.remarks]

    def _tell_gap(self, path: str, base: int) -> None:
        """Reports offsets before a segment that no other segment has, if they were not reported yet."""
        if self.gaps is None:
            if self.tells_gaps and 0 < self.next_offset < base:
                what = f"the offsets {self.next_offset} to {base - 1} before it are in no segment"
                self.report.add(path, 0, 0, what)
            return
        gap = self.gap_before(base, self.gaps)
        if gap is None or (gap.why is None and not self.tells_gaps):
            return
        self.report.add(path, 0, 0, gap.told)
        self.report.lost.append(self.losses.segment(path, gap.first_offset, base))

    def _follow(self, observe: Observe, path: str, table: np.ndarray, piece: ScanSlice) -> None:
        table = table[table["position"] >= self._followed]
        if len(table):
            self._followed = int(table["position"][-1]) + 1
            observe(path, table, piece.data, piece.position)

    def _open(self, path: str) -> File:
        file = self.files.open(path, writable=False)
        return FileAroundBadBlocks(file) if self._around else file

    def _tell_bad_blocks(self, file: File) -> None:
        if isinstance(file, FileAroundBadBlocks):
            for position, end in file.bad_ranges():
                self.report.add(file.path, position, end - position, file.why_not(position, end) or "")

    def _own(self, path: str, table: np.ndarray, following: int | None) -> np.ndarray:
        """Returns the batches before those that the next segment begins with and has too."""
        if self._is_over:
            return table[:0]
        starts = np.flatnonzero(table["base_offset"] == (-1 if following is None else following))
        if len(starts) and self.files.may_overlap(path):
            self._is_over, table = True, table[: starts[0]]
        return table

    def _check_table(self, path: str, table: np.ndarray, base: int, following: int | None) -> None:
        self.report.batches += len(table)
        counts = table["record_count"]
        self.report.records += int(np.where(table["magic"] >= 2, counts, 1).sum())
        modern = table["magic"] >= 2
        limit = highest_offset(base, following)
        good = np.ones(len(table), bool)
        for row in misfits(table, self.next_offset, limit):
            good[row] = False
            entry = table[row]
            self.report.lost.append(self.losses.misfit(path, entry))
            if 0 <= int(entry["magic"]) <= 2:
                self.report.add_row(
                    path,
                    entry,
                    f"the offsets {int(entry['base_offset'])} to {int(entry['last_offset'])} do not fit here; expected "
                    f"{self.next_offset} to {limit} (the CRC does not cover base offsets)",
                )
        if not good[-1]:  # it explains what is missing after the last good one
            self._told_up_to = max(self._told_up_to, following or 0)
        if good.any():
            self.losses.passed(table[good])
            self.next_offset = max(self.next_offset, int(table["last_offset"][good].max()) + 1)
        epochs = table["leader_epoch"].astype(np.int64)
        running = np.maximum.accumulate(np.concatenate(([self.epoch], epochs)))
        for row in np.flatnonzero(modern & (epochs >= 0) & (epochs < running[:-1]))[:MOST_FINDINGS]:
            self.report.add_row(
                path,
                table[row],
                f"the leader epoch is {int(epochs[row])} after {int(running[row])} (the CRC does not cover epochs)",
            )
        self.epoch = int(running[-1])
        for row in np.flatnonzero(modern & (epochs < -1))[:MOST_FINDINGS]:
            self.report.add_row(path, table[row], f"the leader epoch is {int(epochs[row])}, which is impossible")
        for row in np.flatnonzero((table["magic"] < 0) | (table["magic"] > 2))[:MOST_FINDINGS]:
            self.report.add_row(
                path,
                table[row],
                f"the magic is {int(table['magic'][row])}, which is unknown (the CRC does not cover magic)",
            )
        for row in np.flatnonzero(modern & (counts < 0))[:MOST_FINDINGS]:
            self.report.add_row(path, table[row], f"the record count is {int(counts[row])}, which is impossible")

    def _damage(
        self, file: File, indexes: IndexCheck, size: int, base: int, following: int | None, position: int, why: int
    ) -> int:
        """Reports damage that begins at `position`; returns where to continue."""
        path = names.log_file(self.directory, base)  # a remote tier's file has its object's path
        is_read = not (isinstance(file, FileAroundBadBlocks) and file.why_not(position, size))
        if following is None and is_read and all_zero(file, position, size):
            self.report.notes.append(
                f"{path}: {counted(size - position, 'zero byte')} after the log's end at {position} (preallocated, or "
                "not yet written at a power loss)"
            )
            self._tell(size - position)
            return size
        head = file.pread(RECORD_BATCH_OVERHEAD, position).ljust(RECORD_BATCH_OVERHEAD, b"\0")
        found = next_batch(file, position + 1, size, min_offset=self.next_offset, base_offset=base)
        end = size if found is None else found.position
        what = VERDICT_TEXT.get(why, "bytes that are not a batch")
        if why == native.BAD_CRC:
            header = native.header_at(head)
            what = f"a bad CRC (stored {header.crc}) at offset {header.base_offset}"
        elif why == native.OK:
            what = "the remaining bytes are too few for a batch"
        if found is not None:
            gone = found.base_offset - self.next_offset
            what += f"; the next good batch begins at offset {found.base_offset}"
            if gone > 0:
                what += f" ({counted(gone, 'offset')} lost)"
        elif following is None:
            what += "; no good batch follows (an unclean open truncates here)"
            self.told_end = True
        self.report.add(path, position, end - position, what)
        end_offset = following if found is None else found.base_offset
        self._told_up_to = max(self._told_up_to, end_offset or 0)
        # otherwise an open truncates here, and entries of what it removes are wrong
        if end_offset is not None or not is_read:
            indexes.pass_over(position, end, self.next_offset, end_offset)
        self.report.lost.append(self.losses.damage(file, base, position, end, self.next_offset, found, following))
        self._tell(end - position)
        return end


def is_of_object(error: RemoteStorageException) -> bool:
    """Returns whether the object is at fault: each attempt found it, and too short, or it was refused."""
    retriable = RetriableRemoteStorageException
    return not isinstance(error, retriable) or isinstance(error.__cause__, retriable)
