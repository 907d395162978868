"""What can be known of a partition's segments without reading their records: for retention, for tables, for sums.

Offsets and sizes come from names and files, times from the ends of time indexes and, in the last segment, from the
batch headers behind the last index entry; `exact` walks all headers.  Stands on `log.view`: reads only, takes no lock,
works beside a running broker.  Where a time index is believed here, a broker that opens the directory believes it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kafkalog.files import OS_FILES, Files
from kafkalog.format import names
from kafkalog.format.names import TopicPartition
from kafkalog.log.checkpoint_lines import CheckpointLines
from kafkalog.log.retention_rule import Bounds
from kafkalog.log.snapshot import SegmentView, Snapshot
from kafkalog.log.view import PartitionView
from kafkalog.segment.scan import LogScan

CODEC_BITS = 7


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment.  A `log.retention_rule.Piece`: `size` is the part of the file that is log, `largest_timestamp` what
    retention goes by (`record_timestamp`, or the file's time where that is -1)."""

    base_offset: int
    end_offset: int  # the next segment's base, or the log's end
    path: str
    size: int
    file_bytes: int
    mtime_ms: int
    record_timestamp: int
    active: bool
    lost_times: bool  # it has batches, but its time index is empty: their times do not count

    @property
    def largest_timestamp(self) -> int:
        return self.record_timestamp if self.record_timestamp >= 0 else self.mtime_ms


class PartitionFacts(NamedTuple):
    """A partition at one moment.  `high_watermark` is the checkpoint's, within the log; the log's end where that has no
    line (`watermark_known`), as in a log of one replica."""

    partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    watermark_known: bool
    segments: list[SegmentFacts]

    @property
    def bounds(self) -> Bounds:
        return Bounds(self.log_start_offset, self.high_watermark, self.log_end_offset)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


def look(
    log_dir: str,
    partition: TopicPartition,
    *,
    exact: bool = False,
    files: Files = OS_FILES,
    checkpoints: CheckpointLines | None = None,
    progress: Callable[[int], None] | None = None,
) -> PartitionFacts:
    """The facts of `log_dir/partition`; raises what `PartitionView` does.  `progress` is called with the bytes of logs
    just passed."""
    checkpoints = checkpoints or CheckpointLines(log_dir, files)
    watermark = checkpoints.line(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition)
    with PartitionView(log_dir, partition, files=files, checkpoints=checkpoints) as view:
        return view.over(lambda seen: _facts(seen, watermark, exact, files, progress or (lambda size_bytes: None)))


def was_compacted(partition: TopicPartition, checkpoints: CheckpointLines) -> bool:
    """Whether a cleaner has been there: the only trace of cleanup.policy=compact in a log directory."""
    return checkpoints.line(names.CLEANER_OFFSET_CHECKPOINT_FILE, partition) is not None


def _facts(
    seen: Snapshot, watermark: int | None, exact: bool, files: Files, progress: Callable[[int], None]
) -> PartitionFacts:
    segments = []
    last = len(seen.segments) - 1
    for place, segment in enumerate(seen.segments):
        size = seen.readable_bytes(segment)
        end = seen.log_end_offset if place == last else seen.bases[place + 1]
        indexed = _last_time(segment)
        record_timestamp = indexed
        if exact or place == last:
            start = 0 if exact else _last_indexed_position(seen, place)
            record_timestamp = max(indexed, _largest_behind(seen, segment, start, size))
        lost = bool(size) and place != last and indexed < 0 and not exact
        segments.append(
            SegmentFacts(
                segment.base_offset,
                end,
                segment.path,
                size,
                segment.size,
                segment.mtime_ms,
                record_timestamp,
                place == last,
                lost and _has_times(seen, place),
            )
        )
        progress(segment.size)
    start, end = seen.log_start_offset, seen.log_end_offset
    high = end if watermark is None else min(max(watermark, start), end)
    return PartitionFacts(seen.topic_partition, start, high, end, watermark is not None, segments)


def _last_time(segment: SegmentView) -> int:
    """The timestamp of the last believable entry of the time index; -1 without one."""
    entries = segment.time_entries
    found = entries.before(1 << 62) if len(entries) else None
    return -1 if found is None else found[0]


def _last_indexed_position(seen: Snapshot, place: int) -> int:
    """From where the headers of a segment say what its index does not."""
    return next(iter(seen.reader(place).starts(seen.segments[place].offset_entries.last_entry())))


def _largest_behind(seen: Snapshot, segment: SegmentView, start: int, end: int) -> int:
    largest = -1
    for piece in LogScan(seen.file(segment), start, end, check_crc=False):
        largest = max(largest, int(piece.table["max_timestamp"].max()))
    return largest


def _has_times(seen: Snapshot, place: int) -> bool:
    head = seen.reader(place).header_at(0)
    return head is not None and head.max_timestamp >= 0


@dataclass(slots=True)
class Contents:
    """What batch headers of a partition say.  Of all of them, or of some (`headers_at_ends`)."""

    batches: int = 0
    records: int = 0  # legacy batches count as one
    first_timestamp: int = -1
    last_timestamp: int = -1
    codecs: int = 0  # a bit for each codec id

    def feed(self, table: np.ndarray) -> None:
        """The rows of a scan."""
        if not len(table):
            return
        self.batches += len(table)
        self.records += int(np.where(table["magic"] >= 2, table["record_count"], 1).sum())
        times = table["base_timestamp"][table["base_timestamp"] >= 0]
        if len(times):
            self.see_times(int(times.min()), int(table["max_timestamp"].max()))
        for codec in np.unique(table["attributes"] & CODEC_BITS):
            self.codecs |= 1 << int(codec)

    def see_times(self, first_ms: int, last_ms: int) -> None:
        """Times between which records lie; -1 says nothing."""
        if first_ms >= 0:
            self.first_timestamp = first_ms if self.first_timestamp < 0 else min(self.first_timestamp, first_ms)
        self.last_timestamp = max(self.last_timestamp, last_ms)

    def add(self, other: Contents) -> None:
        """Those of another partition."""
        self.batches += other.batches
        self.records += other.records
        self.codecs |= other.codecs
        self.see_times(other.first_timestamp, other.last_timestamp)

    def codec_ids(self) -> list[int]:
        return [codec for codec in range(CODEC_BITS + 1) if self.codecs >> codec & 1]


def headers_at_ends(seen: Snapshot) -> Contents:
    """The first batch of each segment, and the one that its index names last: times and codecs of few reads, however
    long the log is.  FileNotFoundError where a segment has gone."""
    found = Contents()
    for place, segment in enumerate(seen.segments):
        end = seen.readable_bytes(segment)
        for start in {0, _last_indexed_position(seen, place)} if end else set():
            header = seen.reader(place).header_at(start)
            if header is not None:
                found.batches += 1
                found.codecs |= 1 << (header.codec & CODEC_BITS)
                if start == 0:
                    found.see_times(header.base_timestamp, header.max_timestamp)
        found.see_times(-1, _last_time(segment))
        if place == len(seen.segments) - 1 and end:
            found.see_times(-1, _largest_behind(seen, segment, _last_indexed_position(seen, place), end))
    return found


def all_headers(seen: Snapshot, progress: Callable[[int], None]) -> tuple[Contents, int]:
    """Every batch header, and how many bytes are no batches.  FileNotFoundError where a segment has gone."""
    found, unread = Contents(), 0
    for segment in seen.segments:
        scan = LogScan(seen.file(segment), 0, seen.readable_bytes(segment), check_crc=False)
        for piece in scan:
            found.feed(piece.table)
            progress(int(piece.table["size"].sum()))
        unread += max(0, scan.end - scan.position - _UNSEEN_BYTES)
    return found, unread


_UNSEEN_BYTES = 17  # a shorter rest is not seen by Kafka's file framing
