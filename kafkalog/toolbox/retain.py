"""Deletes old segments: by retention's rules, or the oldest ones of a directory until enough bytes are free.

First a `Plan` is made from files alone, also while a broker is running.  It can then be carried out through the engine,
under the directory's lock: the log start is raised to the first segment that stays, and earlier segments are deleted by
retention's first rule.  So checkpoints are right, and a crash meanwhile leaves a log that begins later, or as before.
On a full disk the first of these segments is deleted before the log is opened (`room`).  The active segment, and
anything after the (checkpointed) high watermark, is never deleted, and no gap is made.

A log directory does not know for sure which topics may lose their oldest records.  Compacted topics (by their settings,
or by a cleaner's traces) and Kafka's internal topics are left out, unless the caller sets `also_compacted`; the
controller's log always is.  A topic whose own policy is compact,delete follows the rules, as in a broker.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from kafkalog._face.topic_settings import ConfigSource, TopicSettings
from kafkalog.config import LogConfig
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.files.usage import allocated_bytes, free_bytes, walk
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.directory import Lease
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.retention import delete_by
from kafkalog.engine.log.retention_rule import Rule, due_ms, rules_of, runs_of
from kafkalog.engine.log.types import LogStartOffsetIncrementReason
from kafkalog.partition import Partition
from kafkalog.toolbox.folders import copies_known, folders_of
from kafkalog.toolbox.recovery import hold_directory, unlink_what_waits
from kafkalog.toolbox.room import Freed, change_making_room
from kafkalog.toolbox.segment_facts import PartitionFacts, SegmentFacts, look, was_compacted

__all__ = ["Choice", "Going", "Plan", "TopicSettings", "carry_out", "plan_by_rules", "plan_until_free"]

COMPACTED = "its topic is compacted: the oldest records may be the latest of their keys"
COMPACTED_TOO = {  # by the rules, or not -> what to do instead
    True: "`kafkalog compact` makes it smaller; its rules also delete if you name it with "
    "-X cleanup.policy=compact,delete",
    False: "`kafkalog compact` makes it smaller; to delete its oldest records too, name it with "
    "-X cleanup.policy=delete",
}
POLICY_SAID = (ConfigSource.TOPIC, ConfigSource.DYNAMIC, ConfigSource.STATIC)


class Going(NamedTuple):
    """A segment to delete; `allocated` is what its files take on the disk."""

    segment: SegmentFacts
    rule: Rule | None  # None: it is the oldest of its directory
    allocated: int


@dataclass
class Choice:
    """The oldest segments of one partition, which are deleted, so that the log starts at `new_start`."""

    partition: TopicPartition
    log_start_offset: int
    new_start: int
    going: list[Going] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The bytes of the log that are deleted, as retention.bytes counts them."""
        return sum(each.segment.size for each in self.going)

    @property
    def allocated(self) -> int:
        """The bytes of the disk that are freed."""
        return sum(each.allocated for each in self.going)


@dataclass
class Plan:
    """The segments and directories to delete in a log directory.

    `missing` are bytes of the requested ones that cannot be freed.  `free` are the bytes of its file system that were
    free before, if some were requested.  `due` is when time deletes the next segment of a partition by the rules, in ms
    since 1970; an active segment is never due."""

    log_dir: str
    choices: list[Choice] = field(default_factory=list)
    deleted_folders: dict[str, int] = field(default_factory=dict)  # `-delete` -> bytes on disk
    skipped: dict[TopicPartition, str] = field(default_factory=dict)
    missing: int = 0
    free: int | None = None
    due: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def allocated(self) -> int:
        """The bytes of the disk that are freed in total."""
        return sum(choice.allocated for choice in self.choices) + sum(self.deleted_folders.values())


def plan_by_rules(
    log_dir: str,
    partitions: Mapping[TopicPartition, str],
    settings: TopicSettings,
    now_ms: int,
    *,
    also_compacted: bool = False,
    named: bool = False,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Plans which segments retention deletes by these settings.

    Active segments always stay.

    Args:
        log_dir: The log directory.
        partitions: The partitions, each with its directory.
        settings: The topics' settings.
        now_ms: The time of the retention, in ms since 1970.
        also_compacted: Includes compacted and internal topics.
        named: The user named these partitions, and so knows their cleanup.policy.
        files: The file system; for tests.
        progress: Called with 1 for each partition.

    Returns:
        A `Plan` for `carry_out`.

    Raises:
        CorruptCheckpointException: The high watermarks cannot be read.

    Example:
        >>> import time
        >>> from kafkalog.toolbox.retain import TopicSettings
        >>> from kafkalog.toolbox.retain import plan_by_rules
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> now_ms = time.time_ns() // 1_000_000
        >>> plan_by_rules("shop", kafkalog.list_partitions("shop"), TopicSettings("shop"), now_ms).choices
        []
    """
    plan = Plan(log_dir)
    rules = cache(settings.sure)
    for partition, facts in _facts(
        plan, partitions, settings, also_compacted, files, named=named, by_rules=True, progress=progress
    ).items():
        choice = _choice(facts)
        segments, config = facts.segments, rules(partition.topic)
        for rule, count in runs_of(segments, facts.bounds, config, now_ms):
            chosen, segments = segments[:count], segments[count:]
            choice.going += [_going(partition, plan, each, rule) for each in chosen if not each.active]
        if segments and _is_due(segments[0], facts.high_watermark, config):
            plan.due[partition] = due_ms(segments[0].largest_timestamp, config.retention_ms)
        _finish(plan, choice, facts)
    return plan


def _is_due(segment: SegmentFacts, high_watermark: int, config: LogConfig) -> bool:
    """Returns whether only time holds the oldest segment that stays."""
    by_time = Rule.TIME in rules_of(config) and config.retention_ms >= 0
    return by_time and not segment.active and segment.end_offset <= high_watermark


def plan_until_free(
    log_dir: str,
    partitions: Mapping[TopicPartition, str],
    settings: TopicSettings,
    target_free: int,
    *,
    also_compacted: bool = False,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Plans deleting the oldest segments of all partitions until enough bytes are free.

    Directories of deleted partitions, which a running broker removes, are deleted first.  A topic with an empty
    cleanup.policy loses nothing.

    Args:
        log_dir: The log directory.
        partitions: The partitions, each with its directory.
        settings: The topics' settings.
        target_free: The bytes of the file system that should be free.
        also_compacted: Includes compacted and internal topics.
        files: The file system; for tests.
        progress: Called with 1 for each partition.

    Returns:
        A `Plan` for `carry_out`.

    Raises:
        CorruptCheckpointException: The high watermarks cannot be read.

    Example:
        >>> from kafkalog.toolbox.retain import TopicSettings
        >>> from kafkalog.toolbox.retain import plan_until_free
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> plan = plan_until_free("shop", kafkalog.list_partitions("shop"), TopicSettings("shop"), 1)
        >>> plan.choices, plan.missing
        ([], 0)
    """
    plan = Plan(log_dir)
    plan.free = free_bytes(log_dir)
    plan.missing = max(0, target_free - plan.free)
    for folder in folders_of(log_dir, files).deleted:
        if plan.missing:
            size = sum(used.allocated for used in walk(folder))
            plan.deleted_folders[folder] = size
            plan.missing = max(0, plan.missing - size)
    deleting = {partition: path for partition, path in partitions.items() if _deletes(partition, plan, settings)}
    known = _facts(plan, deleting, settings, also_compacted, files, progress=progress)
    choices = {partition: _choice(facts) for partition, facts in known.items()}
    # The partition whose next segment is the oldest comes first, and waits for no other.
    waiting = [
        (facts.segments[0].largest_timestamp, partition, 0) for partition, facts in known.items() if facts.segments
    ]
    heapq.heapify(waiting)
    while waiting and plan.missing:
        _, partition, place = heapq.heappop(waiting)
        segments = known[partition].segments
        segment = segments[place]
        if segment.active or known[partition].high_watermark < segment.end_offset:
            continue
        going = _going(partition, plan, segment, None)
        choices[partition].going.append(going)
        plan.missing = max(0, plan.missing - going.allocated)
        heapq.heappush(waiting, (segments[place + 1].largest_timestamp, partition, place + 1))
    for partition, choice in choices.items():
        _finish(plan, choice, known[partition])
    return plan


def _deletes(partition: TopicPartition, plan: Plan, settings: TopicSettings) -> bool:
    config = settings.of(partition.topic)
    if config.delete or config.compact:
        return True
    plan.skipped[partition] = "the cleanup.policy is empty, so all records are kept"
    return False


def _facts(
    plan: Plan,
    partitions: Mapping[TopicPartition, str],
    settings: TopicSettings,
    also_compacted: bool,
    files: Files,
    *,
    named: bool = False,
    by_rules: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[TopicPartition, PartitionFacts]:
    known = {}
    checkpoints, is_copied = CheckpointLines(plan.log_dir, files), copies_known(plan.log_dir, files)
    for partition, path in partitions.items():
        if progress is not None:
            progress(1)
        if partition.topic == names.CLUSTER_METADATA_TOPIC:
            plan.skipped[partition] = "it is the log of the cluster's controllers, which write snapshots instead"
        elif not also_compacted and partition.topic in names.INTERNAL_TOPICS:
            plan.skipped[partition] = "it is an internal topic of Kafka, whose oldest records are needed"
        elif not also_compacted and _is_kept_compacted(partition, settings, checkpoints, by_rules):
            plan.skipped[partition] = f"{COMPACTED} ({COMPACTED_TOO[by_rules]})"
        elif settings.of(partition.topic).remote_storage_enable or is_copied(partition):
            plan.skipped[partition] = (
                "it is tiered (remote.storage.enable, or a part was copied to a tier): a store that is opened with "
                "the tier deletes the copied segments by local.retention.*"
            )
        elif not (also_compacted or named) and settings.is_of_cluster and not settings.knows(partition.topic):
            plan.skipped[partition] = (
                f"the cleanup.policy is unknown ({settings.why_unknown(partition.topic)}): name the topic and give "
                "-X cleanup.policy=delete to set it"
            )
        else:
            told = checkpoints.told(names.HIGH_WATERMARK_CHECKPOINT_FILE, partition)
            told.sure_watermark("nothing is deleted")
            if not _is_active_alone(path, files):
                known[partition] = look(plan.log_dir, partition, files=files, checkpoints=checkpoints)
    return known


def _is_kept_compacted(
    partition: TopicPartition, settings: TopicSettings, checkpoints: CheckpointLines, by_rules: bool
) -> bool:
    """Returns whether a partition keeps its oldest records because of their keys.  The rules delete segments of a topic
    whose own policy is compact,delete, as a broker does; deletion by age alone does not."""
    if settings.is_compacted(partition.topic, alone=by_rules):
        return True
    is_said = by_rules and settings.source(partition.topic, "cleanup.policy") in POLICY_SAID
    return not is_said and was_compacted(partition, checkpoints)


def _is_active_alone(folder: str, files: Files) -> bool:
    """Returns whether a partition has only the active segment, which is never deleted: then nothing else is read."""
    try:
        logs = [name for name in files.names_in(folder) if names.LOG_FILE_SUFFIX in name]
    except OSError:
        return False  # reading the partition reports it
    return len(logs) == 1 and logs[0].endswith(names.LOG_FILE_SUFFIX)


def _choice(facts: PartitionFacts) -> Choice:
    return Choice(facts.partition, facts.log_start_offset, facts.log_start_offset)


def _going(partition: TopicPartition, plan: Plan, segment: SegmentFacts, rule: Rule | None) -> Going:
    folder = f"{plan.log_dir}/{partition}"
    base = segment.base_offset
    paths = (*names.segment_files(folder, base), names.producer_snapshot_file(folder, base))
    return Going(segment, rule, sum(map(allocated_bytes, paths)))


def _finish(plan: Plan, choice: Choice, facts: PartitionFacts) -> None:
    if choice.going:
        choice.new_start = max(choice.going[-1].segment.end_offset, facts.log_start_offset)
        plan.choices.append(choice)


def carry_out(
    plan: Plan,
    settings: TopicSettings,
    *,
    files: Files = OS_FILES,
    done: Callable[[Choice], None] | None = None,
    freed: Freed | None = None,
) -> int:
    """Carries out a plan.

    Args:
        plan: The plan.
        settings: The topics' settings.
        files: The file system; for tests.
        done: Called with the `Choice` of each partition afterwards; after a failure, with what was deleted of that
            partition.
        freed: Called as in `room.change_making_room` if the disk is full.

    Returns:
        The bytes of the disk that were freed.

    Raises:
        LogDirLockedException: A broker or an open store has the directory.
        CorruptRecordException: A log was not closed cleanly and is damaged; nothing of it is deleted (`kafkalog
            recover` truncates it).
        KafkaStorageException: The disk fails.

    Example:
        >>> from kafkalog.toolbox.retain import TopicSettings
        >>> from kafkalog.toolbox.retain import carry_out, plan_until_free
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> settings = TopicSettings("shop")
        >>> carry_out(plan_until_free("shop", kafkalog.list_partitions("shop"), settings, 1), settings)
        0
    """
    gained = 0
    hold = hold_directory(plan.log_dir, files)
    clean = False
    try:
        for folder in plan.deleted_folders:
            files.remove_tree(folder)
            gained += plan.deleted_folders[folder]
        if plan.deleted_folders:
            files.sync_dir(plan.log_dir)
        for choice in plan.choices:
            config = LogConfig.from_props(settings.of(choice.partition.topic), {"file.delete.delay.ms": "0"})
            try:
                _delete(plan, choice, config, hold, files, freed)
            except BaseException:
                gone = _gone(choice, files)
                if done is not None and gone.going:
                    done(gone)
                raise
            gained += _gone(choice, files).allocated
            if done is not None:
                done(choice)
        clean = True
    finally:
        hold.leave(clean=clean)
    return gained


def _gone(choice: Choice, files: Files) -> Choice:
    """Returns the part of a choice that was deleted."""
    going = [each for each in choice.going if not files.exists(each.segment.path)]
    start = max((each.segment.end_offset for each in going), default=0)
    return replace(choice, going=going, new_start=max(start, choice.log_start_offset))


def _delete(plan: Plan, choice: Choice, config: LogConfig, hold: Lease, files: Files, freed: Freed | None) -> None:
    def delete(log: Partition) -> None:
        engine = log.engine
        assert engine is not None
        engine.maybe_increment_log_start_offset(choice.new_start, LogStartOffsetIncrementReason.SEGMENT_DELETION)
        delete_by(engine, Rule.LOG_START)
        unlink_what_waits(hold)

    going = [each.segment for each in choice.going]
    change_making_room(plan.log_dir, choice.partition, config, files, going, delete, freed)


def __dir__() -> list[str]:
    return __all__
