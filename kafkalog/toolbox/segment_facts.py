"""Collects facts about a partition's segments without reading their records: for retention, tables and sums.

Offsets and sizes come from names and files.  Times come from the ends of time indexes and, in the last segment, from
the batch headers after the last index entry; `exact` reads all headers.  Based on `log.view`: only reads, takes no
lock, works while a broker is running.  A time index that is trusted here is also trusted by a broker that opens the
directory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.checkpoint_lines import CheckpointLines, Told
from kafkalog.engine.log.contents import largest_behind, last_time
from kafkalog.engine.log.retention_rule import Bounds
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.view import PartitionView


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment, which is a `log.retention_rule.Piece`.  `size` is the part of the file that is log.
    `largest_timestamp` is what retention uses: `record_timestamp`, or the file's time if that is -1."""

    base_offset: int
    end_offset: int  # the next segment's base, or the log's end
    path: str
    size: int
    file_bytes: int
    mtime_ms: int
    record_timestamp: int
    active: bool
    lost_times: bool  # it has batches, but its time index is empty, so their times do not count

    @property
    def largest_timestamp(self) -> int:
        return self.record_timestamp if self.record_timestamp >= 0 else self.mtime_ms


class PartitionFacts(NamedTuple):
    """A partition at one moment.  `high_watermark` is the checkpoint's, limited to the log.  It is the log's end if the
    checkpoint has no line (`watermark_known` is False), as for a log of one replica, or cannot be read
    (`watermark_told`)."""

    partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    watermark_known: bool
    segments: list[SegmentFacts]
    watermark_told: Told = Told()

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
    """Returns the facts of `log_dir/partition`; raises the errors of `PartitionView`.  `progress` is called with the
    bytes of logs just passed."""
    checkpoints = checkpoints or CheckpointLines(log_dir, files)
    watermark = checkpoints.told(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition)
    with PartitionView(log_dir, partition, files=files, checkpoints=checkpoints) as view:
        return view.over(lambda seen: facts_in(seen, watermark, exact=exact, progress=progress))


def was_compacted(partition: TopicPartition, checkpoints: CheckpointLines) -> bool:
    """Returns whether a cleaner has compacted it: the only trace of cleanup.policy=compact in a log directory."""
    return checkpoints.line(names.CLEANER_OFFSET_CHECKPOINT_FILE, partition) is not None


def facts_in(
    seen: Snapshot, watermark: Told, *, exact: bool = False, progress: Callable[[int], None] | None = None
) -> PartitionFacts:
    """Returns the same as `look`, of a snapshot.  `watermark` is what the checkpoint said before the snapshot."""
    segments = []
    last = len(seen.segments) - 1
    for place, segment in enumerate(seen.segments):
        size = seen.readable_bytes(segment)
        end = seen.log_end_offset if place == last else seen.bases[place + 1]
        indexed = last_time(segment)
        record_timestamp = indexed
        if exact:
            record_timestamp = max(indexed, largest_behind(seen, segment, 0, size))
        elif place == last:
            record_timestamp = max(indexed, seen.tail_timestamp)
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
        if progress is not None:
            progress(segment.size)
    start, end = seen.log_start_offset, seen.log_end_offset
    known = watermark.offset
    high = end if known is None else min(max(known, start), end)
    return PartitionFacts(seen.topic_partition, start, high, end, known is not None, segments, watermark)


def _has_times(seen: Snapshot, place: int) -> bool:
    head = seen.reader(place).header_at(0)
    return head is not None and head.max_timestamp >= 0
