"""Checks a log directory like `verify`, but without reading its logs: names, small files, and the ends of segments.

It finds files that are missing, checkpoints and snapshots that cannot be read, and bytes at the end of a segment that
are no batch.  It does not see damage inside of a log; `verify` does.  Only a segment whose end is broken is read.  Only
reads, takes no lock, works while a broker is running: what seems wrong is looked at again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.loss import all_zero
from kafkalog.errors import KafkalogError, KafkaStorageException, UnknownTopicOrPartitionException
from kafkalog.toolbox.gaps import began_below, end_of_segment, may_be_compacted, may_begin_later, missing_segments
from kafkalog.toolbox.losses import LostRange
from kafkalog.toolbox.lost_end import RecoveryPoints
from kafkalog.toolbox.report import SECOND_LOOK_S, Report, told
from kafkalog.toolbox.segment_check import SegmentCheck
from kafkalog.toolbox.unread import unread
from kafkalog.toolbox.verify import check_names, verify_directory

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.snapshot import Snapshot

__all__ = ["glance"]


class KnownEnd(NamedTuple):
    """Where a log ends, if nothing comes after the last batch of its last segment, whose file has `size` bytes."""

    base_offset: int
    size: int
    log_end_offset: int


def known_end(seen: Snapshot) -> KnownEnd | None:
    """Returns where a log ends; None if it has no segment, or something comes after its last batch."""
    last = seen.segments[-1] if seen.segments else None
    if last is None or seen.end_position < last.size:
        return None
    return KnownEnd(last.base_offset, last.size, seen.log_end_offset)


def glance(
    log_dir: str,
    partitions: Mapping[TopicPartition, str],
    *,
    whole: bool = True,
    ends: Mapping[TopicPartition, KnownEnd] | None = None,
    files: Files = OS_FILES,
) -> Report:
    """Checks partitions of a log directory, each with its directory.  With `whole`, also the files that belong to no
    partition.  `ends` saves another look at the end of logs that have not changed since.  Counts partitions and
    segments; nothing else of the report's numbers is known.  Raises OSError if the directory cannot be listed."""
    report = Report()
    if whole:
        verify_directory(log_dir, files, report)
    lines = CheckpointLines(log_dir, files, keeps_ms=KEEPS_MS)
    points = RecoveryPoints(log_dir, files)
    compacted = may_be_compacted(log_dir, partitions, files, if_unknown=True)
    begins_later = may_begin_later(log_dir, partitions, files)
    for partition, path in partitions.items():
        report.partitions += 1
        try:
            look = _Glance(log_dir, partition, path, files, report, lines)
            look.known = None if ends is None else ends.get(partition)
            look.run(points, tells_gaps=partition not in compacted, asks_epochs=partition not in begins_later)
        except UnknownTopicOrPartitionException:
            report.notes.append(f"{path}: deleted before it was checked")
        except (KafkalogError, OSError) as error:
            wrong = unread(error, path)
            if wrong is not None:
                report.findings.append(wrong)
                report.lost.append(LostRange(partition, wrong.path, 0, -1, None, -1, -1))
            elif isinstance(error, KafkalogError):
                report.add(error.path or path, error.position or 0, 0, told(error))
            else:
                raise KafkaStorageException.because_of(error, f"cannot look at {partition}") from error
    return report


class _Glance:
    def __init__(
        self,
        log_dir: str,
        partition: TopicPartition,
        path: str,
        files: Files,
        report: Report,
        lines: CheckpointLines,
    ) -> None:
        self.log_dir = log_dir
        self.partition = partition
        self.path = path
        self.files = files
        self.report = report
        self.lines = lines
        self.known: KnownEnd | None = None

    def run(self, points: RecoveryPoints, *, tells_gaps: bool, asks_epochs: bool) -> None:
        found = check_names(self.path, self.files, self.report)
        if found is None:
            return
        listed, bases, _ = found
        self.report.segments += len(bases)
        start = self.lines.line(names.LOG_START_OFFSET_CHECKPOINT_FILE, self.partition) or 0
        began = began_below(self.path, self.files) if asks_epochs and bases and bases[0] else None
        if (known := self.known) is not None and bases and known[:2] == (bases[-1], self._size(bases[-1])):
            is_broken, end = False, known.log_end_offset
        else:
            with PartitionView(self.log_dir, self.partition, files=self.files, checkpoints=self.lines) as view:
                is_broken = self._check_end(view)
                end = view.log_end_offset
        ends: dict[int, int | None] = {bases[-1]: end} if bases else {}
        for base, following in pairwise(bases):
            ends[base] = end_of_segment(self.path, base, self.files)
            if ends[base] is None:
                self._read(base, following)
        for finding, lost, first in missing_segments(
            self.path, listed, self.files, start, began, tells=tells_gaps, ends=ends
        ):
            if first < end or not is_broken:
                self.report.findings.append(finding)
                self.report.lost.append(lost)
        lost_end = None if is_broken else points.lost_end(self.partition, self.path, bases, end, start)
        if lost_end is not None:
            self.report.findings.append(lost_end.finding)
            self.report.lost.append(lost_end.range_of(self.partition))

    def _size(self, base: int) -> int:
        try:
            return self.files.stat(names.log_file(self.path, base)).size
        except OSError:  # deleted meanwhile: the view finds out
            return -1

    def _check_end(self, view: PartitionView) -> bool:
        """Reports what is wrong with the last segment if bytes after its batches are no batch."""
        if not self._has_rest(view):
            return False
        time.sleep(SECOND_LOOK_S)  # a writer may have been in the middle of a batch
        before = view.snapshot.end_position
        view.refresh()
        if view.snapshot.end_position != before or not self._has_rest(view):
            return False
        return self._read(view.snapshot.bases[-1], None)

    def _read(self, base: int, following: int | None) -> bool:
        """Reads a segment whose end is broken, and reports what is wrong.  Returns whether the log's end is unknown."""
        checked = Report()  # its counts are of one segment
        check = SegmentCheck(self.path, self.files, checked)
        check.tells_unread = True
        check.check(base, following)
        self.report.findings += checked.findings
        self.report.lost += checked.lost
        return check.told_end

    def _has_rest(self, view: PartitionView) -> bool:
        def look(seen: Snapshot) -> bool:
            last = seen.segments[-1] if seen.segments else None
            if last is None or seen.end_position >= last.size:
                return False
            return not all_zero(seen.file(last), seen.end_position, last.size)

        return view.over(look)


def __dir__() -> list[str]:
    return __all__
