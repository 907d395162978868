"""Raises a partition's log start offset, as Kafka's DeleteRecords does: earlier records become unreadable forever.

The plan is made from files.  The act runs under the directory's lock, through the engine, and is checkpointed before it
returns.  Segments that are entirely before the new start are deleted by the next retention (`toolbox.retain`, or a
broker's), or at once if the disk is too full to open the log.
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
    """The planned change of the log start offset.

    `segments` are entirely before it; the next retention deletes them.
    """

    partition: TopicPartition
    log_start_offset: int
    new_start: int
    log_end_offset: int
    high_watermark: int
    segments: list[SegmentFacts]

    @property
    def offsets(self) -> int:
        """The number of offsets that become unreadable: records, and what markers and compaction left."""
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
    """Plans deleting all records before an offset or a time.

    Args:
        log_dir: The log directory.
        partition: The partition.
        config: The topic's settings.
        offset: The new log start offset; None uses `time_ms`.
        time_ms: Milliseconds since 1970.  The new start is the first record at or after it, or the log end.
        files: The file system; for tests.

    Returns:
        A `Deletion` for `delete_records`.

    Raises:
        OffsetOutOfRangeException: The offset is after the high watermark.
        CorruptCheckpointException: The high watermark cannot be read.
        PolicyViolationException: The partition is compacted and `config` does not also allow deletion; or it is tiered,
            so that its first offsets are in the remote tier, which files of the directory do not tell.

    Example:
        >>> from kafkalog.toolbox.delete_records import plan_deletion
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> orders, config = kafkalog.TopicPartition("orders", 0), kafkalog.LogConfig.from_props({})
        >>> plan = plan_deletion("shop", orders, config, offset=1)
        >>> plan.new_start, plan.offsets
        (1, 1)
    """
    if config.remote_storage_enable or copies_known(log_dir, files)(partition):
        raise PolicyViolationException(
            f"{partition} is tiered (remote.storage.enable, or some of it was copied): earlier records may "
            "also be in the remote tier",
            hint=f"use kafkalog.open(..., remote=...) as store: store.topic({partition.topic!r}).partition("
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
            f"offset {offset} of {partition} is after the {what} {facts.high_watermark}",
            hint=f"the partition has offsets {facts.log_start_offset} to {facts.log_end_offset - 1}"
            + ("" if day is None else f"; for the day, write {day}"),
        )
    unsaid = "cleanup.policy" not in config.originals
    if (config.compact and not config.delete) or (unsaid and was_compacted(partition, checkpoints)):
        raise PolicyViolationException(
            f"{partition} is compacted: its records are the latest of their keys, and Kafka does not delete them by "
            "offset",
            hint="if its cleanup.policy also has delete, give -X cleanup.policy=compact,delete",
        )
    start = max(offset, facts.log_start_offset)
    below = [segment for segment in facts.segments if not segment.active and segment.end_offset <= start]
    return Deletion(partition, facts.log_start_offset, start, facts.log_end_offset, facts.high_watermark, below)


def delete_records(
    log_dir: str, deletion: Deletion, config: LogConfig, *, files: Files = OS_FILES, freed: Freed | None = None
) -> int:
    """Carries out a `Deletion`.

    Args:
        log_dir: The log directory.
        deletion: The plan, from `plan_deletion`.
        config: The topic's settings.
        files: The file system; for tests.
        freed: Called as in `room.change_making_room` if the disk is full: segments that are entirely before the new
            start are then deleted at once, until there is room.

    Returns:
        The new log start offset.

    Raises:
        LogDirLockedException: A broker or an open store has the directory.
        CorruptRecordException: The log was not closed cleanly and is damaged; `kafkalog recover` truncates it.
        DiskFull: The disk is full, and deleting these segments frees too little.

    Example:
        >>> from kafkalog.toolbox.delete_records import delete_records, plan_deletion
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> orders, config = kafkalog.TopicPartition("orders", 0), kafkalog.LogConfig.from_props({})
        >>> delete_records("shop", plan_deletion("shop", orders, config, offset=1), config)
        1
    """
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
