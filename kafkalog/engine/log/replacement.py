"""Replaces old segments by new ones, so that a crash at any step leaves a log that can be loaded.

The order of the renames is the protocol; the loader's table in `load_cases` is its other half. A segment is written
under `.cleaned` names. All are renamed to `.swap`, highest base first: while one `.cleaned` file is left, the
replacement has not happened. The old files are renamed to `.deleted`. Then the suffix `.swap` is removed, lowest base
first.

A load sees from the names which offsets the new segments cover. Old segments that are entirely after the last remaining
batch of their group are not covered: a crash in the middle may bring them back, as in Kafka. This changes no state,
because their records are superseded, and the next pass removes them again.

The split of an overflowed segment and the cleaner use it. Mirrors the static methods of Kafka's LocalLog. The caller
holds the partition's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkalog.engine.format.names import CLEANED_FILE_SUFFIX, SWAP_FILE_SUFFIX
from kafkalog.engine.log.context import PartitionContext
from kafkalog.engine.log.local_log import delete_segment_files, open_new_segment
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.log_segments import LogSegments, NoSuchElementException
from kafkalog.errors import IllegalArgumentException, IllegalStateException


class SplitSegmentResult(NamedTuple):
    """LocalLog.SplitSegmentResult."""

    deleted_segments: list[LogSegment]
    new_segments: list[LogSegment]


def create_new_cleaned_segment(context: PartitionContext, base_offset: int) -> LogSegment:
    """Opens a new segment under `.cleaned` names; deletes what an earlier attempt left under them."""
    LogSegment.delete_files_if_exist(context.dir, base_offset, CLEANED_FILE_SUFFIX, context.files)
    return open_new_segment(context, base_offset, suffix=CLEANED_FILE_SUFFIX)


class Replacement:
    """New segments (files under `.cleaned`) for old ones.

    The constructor decides once which segments are removed; `make` may run twice.
    """

    def __init__(
        self,
        context: PartitionContext,
        existing_segments: LogSegments,
        new_segments: Sequence[LogSegment],
        old_segments: Sequence[LogSegment],
    ) -> None:
        self.context = context
        self.existing_segments = existing_segments
        self.added = sorted(new_segments, key=lambda segment: segment.base_offset)
        self.removed = sorted(
            (segment for segment in old_segments if existing_segments.contains(segment.base_offset)),
            key=lambda segment: segment.base_offset,
        )

    def make(self) -> list[LogSegment]:
        """Replaces the segments.

        Returns the old ones whose base offset no longer exists. Can be repeated if interrupted.
        """
        for segment in reversed(self.added):
            if _is_left(segment, CLEANED_FILE_SUFFIX):
                segment.change_file_suffixes(CLEANED_FILE_SUFFIX, SWAP_FILE_SUFFIX)
            self.existing_segments.add(segment)
        new_bases = {segment.base_offset for segment in self.added}
        not_replaced: list[LogSegment] = []
        for segment in self.removed:
            if segment.base_offset != self.added[0].base_offset:
                self.existing_segments.remove(segment.base_offset)
            delete_segment_files(self.context, [segment], True)
            if segment.base_offset not in new_bases:
                not_replaced.append(segment)
        for segment in self.added:
            if _is_left(segment, SWAP_FILE_SUFFIX):
                segment.change_file_suffixes(SWAP_FILE_SUFFIX, "")
        self.context.files.sync_dir(self.context.dir)
        return not_replaced


def _is_left(segment: LogSegment, suffix: str) -> bool:
    """Returns whether some file names of a segment still end with `suffix`; the transaction index is renamed last."""
    return segment.txn_index.path.endswith(suffix)


def split_overflowed_segment(
    context: PartitionContext, segment: LogSegment, existing_segments: LogSegments
) -> SplitSegmentResult:
    """Splits a segment with offsets beyond base + 2^31 - 1 into segments whose offsets fit."""
    new_segments = split_into_cleaned(context, segment)
    # From here on, after a failure the next load settles the files. Kafka deletes the new segments even if the old one
    # is renamed already, and then everything is lost.
    deleted = Replacement(context, existing_segments, new_segments, [segment]).make()
    return SplitSegmentResult(deleted, new_segments)


def split_into_cleaned(context: PartitionContext, segment: LogSegment) -> list[LogSegment]:
    """Runs the first half of a split: copies an overflowed segment's batches to new segments under `.cleaned` names."""
    path = segment.log.path
    if not path.endswith(".log"):
        raise IllegalArgumentException(f"Cannot split file {path}")
    if not segment.has_overflow():
        raise IllegalArgumentException(
            f"Split operation is only permitted for segments with overflow, and the problem path is {path}"
        )
    context.logger.info("splitting overflowed segment %s", segment)
    new_segments: list[LogSegment] = []
    try:
        source = segment.log
        position = 0
        while position < source.size:
            first = source.first_batch(position)
            if first is None:
                raise NoSuchElementException(f"No batch at position {position} in {segment}")
            new_segment = create_new_cleaned_segment(context, source.base_offset_of(first))
            new_segments.append(new_segment)
            appended_bytes = new_segment.append_from_file(source, position)
            if appended_bytes == 0:
                raise IllegalStateException(f"Failed to append records from position {position} in {segment}")
            position += appended_bytes
        total_bytes = 0
        for new_segment in new_segments:
            new_segment.on_become_inactive_segment()
            with context.flush_timer.time():
                new_segment.flush()
            new_segment.set_last_modified(segment.last_modified)
            total_bytes += new_segment.size
        if total_bytes != source.size:
            raise IllegalStateException(
                f"Inconsistent segment sizes after split before: {source.size} after: {total_bytes}"
            )
    except Exception:
        for new_segment in new_segments:
            new_segment.close()
            new_segment.delete_if_exists()
        raise
    return new_segments
