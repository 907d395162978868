"""compact: runs `kafkalog.toolbox.compact` on a cluster, one task a partition, each with its own offset map."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from kafkalog._face.topic_settings import TopicSettings
from kafkalog.config import CleanerConfig
from kafkalog.engine.format import values
from kafkalog.errors import IllegalArgumentException, KafkalogError
from kafkalog.partition import DEDUPE_BUFFER_BYTES_MIN
from kafkalog.spark.jobs.run import Chosen, Dirs, Names, Progress, choose, frame, run, told
from kafkalog.spark.jobs.shared import Loan, Returned, borrowed, check_session, check_settings, run_lent
from kafkalog.toolbox.compact import Compacted, PassOptions, left_alone
from kafkalog.toolbox.compact import compact as compact_here
from kafkalog.toolbox.compaction_state import Reason

MAP_BYTES = 96 << 20  # 24 for each key: workers stay small, and a partition with more keys takes more passes
SCHEMA = (
    "log_dir string, topic string, partition int, done boolean, passes int, first_dirty_offset bigint, "
    "end_offset bigint, bytes_before bigint, bytes_after bigint, records bigint, superseded bigint, "
    "tombstones bigint, without_key bigint, aborted bigint, markers bigint, batches bigint, segments bigint, "
    "elapsed_ms bigint, held string, error string"
)


class Done(NamedTuple):
    """The result for one partition of a directory."""

    log_dir: str
    result: Compacted

    @property
    def is_left_alone(self) -> bool:
        """Whether the partition was skipped; `result.held` says why."""
        return self.result.stats is None and self.result.error is None


class CompactionOptions(NamedTuple):
    config: Mapping[str, str]
    map_bytes: int
    rolls: bool


def compact(
    spark: Any,
    log_dirs: Dirs,
    partitions: Names | None = None,
    *,
    act: bool = False,
    config: Mapping[str, str] | None = None,
    map_bytes: int = MAP_BYTES,
    rolls: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Compacts partitions as a broker's cleaner does, or reports what compaction would remove.

    Args:
        spark: The session.
        log_dirs: The path of a log directory, or a list of them.
        partitions: Names of topics or partitions ("orders", "orders-0"), or patterns ("orders*").  Default: all.
        act: True compacts; False, the default, only reports and changes nothing.
        config: Settings of the topics.  Default: the settings that are stored in the directory.  A cleanup.policy is
            accepted only together with `partitions`.
        map_bytes: The memory of each task for keys, in bytes; a key needs 24.
        rolls: Whether to close active segments first, so that they are compacted too.
        progress: A function that is called with the bytes of each task that ends.

    Returns:
        A DataFrame with a row for each partition, also for skipped ones.  It counts the records that were (or would
        be) removed, by reason.  `held` says why the other records stay; `error` says what is wrong.

    Raises:
        IllegalArgumentException: An argument is not valid; nothing was changed.
        ConfigException: A setting is not valid; nothing was changed.
        LogDirLockedException: Another process holds a directory.  With `act` each directory is held until its
            partitions are done.
        UnknownTopicOrPartitionException: No directory has a topic or partition with a given name.
        UnsupportedOperationException: The session is one of Spark Connect.
        KafkaException: The executors' Python has no kafkalog, or Spark ended the job.

    Example:
        Compact a topic:

            jobs.compact(spark, "/var/kafka-logs", ["customers"], act=True).show()
    """
    found = compacted(
        spark, log_dirs, partitions, act=act, config=config, map_bytes=map_bytes, rolls=rolls, progress=progress
    )
    return frame(spark, [row(it.log_dir, it.result, act) for it in found], SCHEMA)


def row(log_dir: str, result: Compacted, act: bool) -> tuple[Any, ...]:
    """Returns the row of the DataFrame."""
    stats = result.stats
    held = None if result.held is None else result.held.text
    if stats is None:
        return (log_dir, *result.partition, False, *[None] * 14, held, told(result.error))
    return (
        log_dir,
        *result.partition,
        act and stats.passes > 0,
        stats.passes,
        stats.first_dirty_offset,
        stats.end_offset,
        stats.bytes_before,
        stats.bytes_after,
        stats.records,
        stats.superseded,
        stats.tombstones,
        stats.without_key,
        stats.aborted,
        stats.markers,
        stats.batches,
        stats.segments,
        round(stats.elapsed_s * 1000),
        held,
        told(result.error),
    )


def compacted(
    spark: Any,
    log_dirs: Dirs,
    partitions: Names | None = None,
    *,
    act: bool,
    config: Mapping[str, str] | None = None,
    map_bytes: int = MAP_BYTES,
    rolls: bool = False,
    progress: Progress | None = None,
) -> list[Done]:
    """Does the work of `compact`, and returns the toolbox's results; skipped partitions have no statistics."""
    tasks = choose(log_dirs, partitions)
    map_bytes = values.whole(map_bytes, "map_bytes", low=DEDUPE_BUFFER_BYTES_MIN, expected="bytes")
    how = CompactionOptions(dict(config or {}), map_bytes, rolls)
    if partitions is None and "cleanup.policy" in how.config:
        raise IllegalArgumentException(
            "found a cleanup.policy for whole directories, expected `partitions` with the topics that it applies to: "
            "in other topics, records without keys would be lost"
        )
    check_settings(how.config, [(task.log_dir, task.partition.topic) for task in tasks])
    check_session(spark)
    alone = _alone(tasks, how)
    todo = [task for task in tasks if task not in alone]
    if act:
        done = run_lent(spark, partial(_compact, how), todo, failed=_failed, progress=progress)
    else:
        done = run(spark, partial(_tell, how), todo, failed=_not_told, size=lambda it: it.bytes, progress=progress)
    results = dict(zip(todo, done, strict=True))
    return [
        Done(task.log_dir, results[task] if task in results else Compacted(task.partition, held=alone[task]))
        for task in tasks
    ]


def _alone(tasks: list[Chosen], how: CompactionOptions) -> dict[Chosen, Reason]:
    """Returns the partitions that are skipped, and why."""
    found = {}
    for root in dict.fromkeys(task.log_dir for task in tasks):
        here = {task.partition: task for task in tasks if task.log_dir == root}
        for each, why in left_alone(root, here, TopicSettings(root, how.config)).items():
            found[here[each]] = why
    return found


def _passes(how: CompactionOptions) -> PassOptions:
    return PassOptions(CleanerConfig(num_threads=1, dedupe_buffer_size=how.map_bytes), how.rolls)


def _tell(how: CompactionOptions, task: Chosen) -> Compacted:
    settings = TopicSettings(task.log_dir, how.config)
    (result,) = compact_here(task.log_dir, {task.partition: task.path}, settings, _passes(how), act=False)
    return result


def _not_told(task: Chosen, error: KafkalogError) -> Compacted:
    return Compacted(task.partition, error=error)


def _failed(task: tuple[Chosen, Loan], error: KafkalogError) -> tuple[Compacted, Returned | None]:
    return _not_told(task[0], error), None


def _compact(how: CompactionOptions, task: tuple[Chosen, Loan]) -> tuple[Compacted, Returned | None]:
    return compact_loan(task[1], how.config, _passes(how))


def compact_loan(loan: Loan, config: Mapping[str, str], how: PassOptions) -> tuple[Compacted, Returned | None]:
    """Compacts one lent partition, on an executor."""
    with borrowed(loan) as own:
        settings = TopicSettings(own.path, config)
        folder = os.path.join(own.path, str(loan.partition))
        (result,) = compact_here(own.path, {loan.partition: folder}, settings, how, act=True)
    if result.error is not None:
        own.real_error(result.error)
    return result, own.returned
