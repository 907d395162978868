"""Raise a partition's log start, as Kafka's DeleteRecords does: what lies below is unreadable for ever.

Told first, from files; done under the directory's lock, through the engine, and checkpointed before it returns.  Files
that lie wholly below go with the next retention (`toolbox.retain`, or a broker's), or at once where the disk is too
full to open the log.
"""

from __future__ import annotations

from typing import NamedTuple

from kafkalog._face.window import day_of
from kafkalog.config import LogConfig
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import OffsetOutOfRangeException, PolicyViolationException
from kafkalog.toolbox.folders import copies_known
from kafkalog.toolbox.recovery import hold_directory
from kafkalog.toolbox.room import Freed, change_making_room
from kafkalog.toolbox.segment_facts import SegmentFacts, look, was_compacted

__all__ = ["Deletion", "delete_records", "plan_deletion"]


class Deletion(NamedTuple):
    """What a raise of the log start does: `segments` lie wholly below and go with the next retention."""

    partition: TopicPartition
    log_start_offset: int
    new_start: int
    log_end_offset: int
    high_watermark: int
    segments: list[SegmentFacts]

    @property
    def offsets(self) -> int:
        """How many become unreadable: records, and what markers and compaction left."""
        return max(0, self.new_start - self.log_start_offset)


def plan_deletion(
    log_dir: str,
    partition: TopicPartition,
    config: LogConfig,
    *,
    offset: int | None = None,
    time_ms: int | None = None,
    files: Files = OS_FILES,
) -> Deletion:
    """Everything below `offset`, or below the first record at or after `time_ms` (the log end where there is none).

    OffsetOutOfRangeException beyond the high watermark; CorruptCheckpointException where that cannot be read;
    PolicyViolationException for a compacted partition, unless `config` says that it is deleted from as well, and for a
    tiered one: its first offsets are in the remote tier, which files of the directory do not tell.
    """
    if config.remote_storage_enable or copies_known(log_dir, files)(partition):
        raise PolicyViolationException(
            f"{partition} is tiered (remote.storage.enable, or some of it was copied): what lies below an offset may "
            "be in the remote tier, too",
            hint=f"with kafkalog.open(..., remote=...) as store: store.topic({partition.topic!r}).partition("
            f"{partition.partition}).delete_records(OFFSET) deletes in both",
        )
    if offset is None:
        assert time_ms is not None
        with PartitionView(log_dir, partition, files=files) as view:
            found = view.offset_for_time(time_ms)
            offset = view.log_end_offset if found is None else found
    checkpoints = CheckpointLines(log_dir, files)
    facts = look(log_dir, partition, files=files, checkpoints=checkpoints)
    facts.watermark_told.sure_watermark("nothing is deleted")
    if offset > facts.high_watermark:
        what = "log end" if facts.high_watermark == facts.log_end_offset else "high watermark"
        day = day_of(offset)
        raise OffsetOutOfRangeException(
            f"offset {offset} of {partition} lies beyond the {what} {facts.high_watermark}",
            hint=f"the partition has offsets {facts.log_start_offset} to {facts.log_end_offset - 1}"
            + ("" if day is None else f"; write {day} for the day"),
        )
    unsaid = "cleanup.policy" not in config.originals
    if (config.compact and not config.delete) or (unsaid and was_compacted(partition, checkpoints)):
        raise PolicyViolationException(
            f"{partition} is compacted: its records are the latest of their keys, and Kafka deletes none by offset",
            hint="where its cleanup.policy has delete too, say so: -X cleanup.policy=compact,delete",
        )
    start = max(offset, facts.log_start_offset)
    below = [segment for segment in facts.segments if not segment.active and segment.end_offset <= start]
    return Deletion(partition, facts.log_start_offset, start, facts.log_end_offset, facts.high_watermark, below)


def delete_records(
    log_dir: str, deletion: Deletion, config: LogConfig, *, files: Files = OS_FILES, freed: Freed | None = None
) -> int:
    """Does it; answers the log start.  LogDirLockedException beside a broker; CorruptRecordException where the log was
    not closed cleanly and is damaged (`kafkalog recover` cuts it).  `freed` as `room.change_making_room`: on a full
    disk segments that lie wholly below go at once, until there is room; DiskFull where none does."""
    hold = hold_directory(log_dir, files)
    clean = False
    try:
        start = change_making_room(
            log_dir,
            deletion.partition,
            config,
            files,
            deletion.segments,
            lambda log: log.delete_records(deletion.new_start),
            freed,
        )
        clean = True
    finally:
        hold.leave(clean=clean)
    return start


def __dir__() -> list[str]:
    return __all__
