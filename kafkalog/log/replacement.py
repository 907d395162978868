"""Putting new segments in the place of old ones, so that a crash at any step leaves a log that loads.

The order of the file names is the protocol (the loader's table in `load_cases` is its other half): a segment is
written as `.cleaned`; all are renamed to `.swap`, highest base first, so that as long as one `.cleaned` is left the
replacement has not happened; the old files become `.deleted`; then `.swap` goes, lowest base first.
Used by the split of an overflowed segment and by the cleaner; mirrors the static methods of Kafka's LocalLog.
The caller holds the partition's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.errors import IllegalArgumentException, IllegalStateException
from kafkalog.files import Clock, Files, LogDirFailureChannel, Scheduler
from kafkalog.format.names import CLEANED_FILE_SUFFIX, SWAP_FILE_SUFFIX, TopicPartition
from kafkalog.log.local_log import delete_segment_files
from kafkalog.segment.log_segment import LogSegment
from kafkalog.segment.log_segments import LogSegments

if TYPE_CHECKING:
    from kafkalog.config import LogConfig

logger = logging.getLogger("kafkalog.log")


class SplitSegmentResult(NamedTuple):
    """LocalLog.SplitSegmentResult."""

    deleted_segments: list[LogSegment]
    new_segments: list[LogSegment]


def create_new_cleaned_segment(
    dir: str, log_config: LogConfig, base_offset: int, clock: Clock, *, files: Files
) -> LogSegment:
    """A fresh segment under `.cleaned` names; what an earlier attempt left under them is deleted."""
    LogSegment.delete_files_if_exist(dir, base_offset, CLEANED_FILE_SUFFIX, files)
    return LogSegment.open(
        dir,
        base_offset,
        log_config,
        clock,
        files,
        new=True,
        suffix=CLEANED_FILE_SUFFIX,
    )


def replace_segments(
    existing_segments: LogSegments,
    new_segments: Sequence[LogSegment],
    old_segments: Sequence[LogSegment],
    dir: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    scheduler: Scheduler,
    log_dir_failure_channel: LogDirFailureChannel,
    *,
    files: Files,
    is_recovered_swap_file: bool = False,
) -> list[LogSegment]:
    """Replaces `old_segments` by `new_segments` (files under `.cleaned`); answers the old ones whose base is gone."""
    added = sorted(new_segments, key=lambda segment: segment.base_offset)
    removed = sorted(
        (segment for segment in old_segments if existing_segments.contains(segment.base_offset)),
        key=lambda segment: segment.base_offset,
    )
    for segment in reversed(added):
        if not is_recovered_swap_file:
            segment.change_file_suffixes(CLEANED_FILE_SUFFIX, SWAP_FILE_SUFFIX)
        existing_segments.add(segment)
    new_bases = {segment.base_offset for segment in added}
    not_replaced: list[LogSegment] = []
    for segment in removed:
        if segment.base_offset != added[0].base_offset:
            existing_segments.remove(segment.base_offset)
        delete_segment_files([segment], True, dir, topic_partition, config, scheduler, log_dir_failure_channel)
        if segment.base_offset not in new_bases:
            not_replaced.append(segment)
    for segment in added:
        segment.change_file_suffixes(SWAP_FILE_SUFFIX, "")
    files.sync_dir(dir)
    return not_replaced


def split_overflowed_segment(
    segment: LogSegment,
    existing_segments: LogSegments,
    dir: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    clock: Clock,
    scheduler: Scheduler,
    log_dir_failure_channel: LogDirFailureChannel,
    *,
    files: Files,
) -> SplitSegmentResult:
    """Splits a segment with offsets beyond base + 2^31 - 1 into segments whose offsets fit."""
    path = segment.log.path
    if not path.endswith(".log"):
        raise IllegalArgumentException(f"Cannot split file {path}")
    if not segment.has_overflow():
        raise IllegalArgumentException(
            f"Split operation is only permitted for segments with overflow, and the problem path is {path}"
        )
    logger.info("%s: splitting overflowed segment %s", topic_partition, segment)
    new_segments: list[LogSegment] = []
    try:
        source = segment.log
        position = 0
        while position < source.size:
            first = source.first_batch(position)
            if first is None:
                raise IllegalStateException(f"No batch at position {position} in {segment}")
            new_segment = create_new_cleaned_segment(dir, config, source.base_offset_of(first), clock, files=files)
            new_segments.append(new_segment)
            appended_bytes = new_segment.append_from_file(source, position)
            if appended_bytes == 0:
                raise IllegalStateException(f"Failed to append records from position {position} in {segment}")
            position += appended_bytes
        total_bytes = 0
        for new_segment in new_segments:
            new_segment.on_become_inactive_segment()
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
    # From here on a failure leaves the files for the next load to settle.  Kafka deletes the new segments even when
    # the old one is renamed away already, and then all is lost.
    deleted = replace_segments(
        existing_segments,
        new_segments,
        [segment],
        dir,
        topic_partition,
        config,
        scheduler,
        log_dir_failure_channel,
        files=files,
    )
    return SplitSegmentResult(deleted, new_segments)
