"""recover: runs `kafkalog.toolbox.recovery` on a cluster, one task a partition, as an open after a crash does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from kafkalog.errors import KafkalogError
from kafkalog.spark.jobs.run import Chosen, Dirs, Names, Progress, choose, frame, run, told
from kafkalog.spark.jobs.shared import Loan, Returned, TaskDirectory, borrowed, check_session, check_settings, run_lent
from kafkalog.toolbox.recovery import Recovered
from kafkalog.toolbox.recovery import recover as recover_here

SCHEMA = (
    "log_dir string, topic string, partition int, done boolean, recovery_point bigint, log_start_offset bigint, "
    "end_offset bigint, old_end_offset bigint, lost_records bigint, lost_bytes bigint, "
    "cuts array<struct<path:string,position:bigint,length:bigint,why:string>>, dropped map<string,bigint>, "
    "added array<string>, removed array<string>, changed array<string>, error string"
)


class Done(NamedTuple):
    """The result for one partition of a directory."""

    log_dir: str
    result: Recovered


class RecoveryOptions(NamedTuple):
    config: Mapping[str, str]
    from_start: bool


def recover(
    spark: Any,
    log_dirs: Dirs,
    partitions: Names | None = None,
    *,
    act: bool = False,
    config: Mapping[str, str] | None = None,
    from_start: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Recovers partitions from their recovery points on, as an open after a crash does, or reports what it would do.

    Args:
        spark: The session.
        log_dirs: The path of a log directory, or a list of them.
        partitions: Names of topics or partitions ("orders", "orders-0"), or patterns ("orders*").  Default: all.
        act: True recovers; False, the default, only reports and changes nothing.
        config: Settings of the topics, over those that are stored in the directory.
        from_start: Whether to check the logs from their starts, not from their recovery points.
        progress: A function that is called with the bytes of each task that ends.

    Returns:
        A DataFrame with a row for each partition: its old and new end, the bytes that are (or would be) truncated, the
        files that are dropped or differ, or the error that keeps it from opening.

    Raises:
        ConfigException: A setting is not valid; nothing was changed.
        LogDirLockedException: Another process holds a directory.  With `act` each directory is held until all of its
            partitions are done.  If every partition was recovered, it is left as after a clean shutdown.
        UnknownTopicOrPartitionException: No directory has a topic or partition with a given name.
        UnsupportedOperationException: The session is one of Spark Connect.
        KafkaException: The executors' Python has no kafkalog, or Spark ended the job.

    Example:
        Show what recovery would truncate:

            jobs.recover(spark, "/var/kafka-logs").where("lost_bytes > 0").show()
    """
    rows = [
        (
            it.log_dir,
            *it.result.partition,
            act and it.result.error is None,
            it.result.recovery_point,
            it.result.log_start_offset,
            it.result.end_offset,
            it.result.old_end_offset,
            it.result.lost_records,
            it.result.lost_bytes,
            [tuple(cut) for cut in it.result.cuts],
            it.result.dropped,
            it.result.added,
            it.result.removed,
            it.result.changed,
            told(it.result.error),
        )
        for it in recovered(
            spark, log_dirs, partitions, act=act, config=config, from_start=from_start, progress=progress
        )
    ]
    return frame(spark, rows, SCHEMA)


def recovered(
    spark: Any,
    log_dirs: Dirs,
    partitions: Names | None = None,
    *,
    act: bool,
    config: Mapping[str, str] | None = None,
    from_start: bool = False,
    progress: Progress | None = None,
) -> list[Done]:
    """Does the work of `recover`, and returns the toolbox's results."""
    tasks = choose(log_dirs, partitions)
    how = RecoveryOptions(dict(config or {}), from_start)
    check_settings(how.config, [(task.log_dir, task.partition.topic) for task in tasks])
    if not act:
        tell = partial(_tell, how)
        return run(spark, tell, tasks, failed=_not_told, size=lambda it: it.bytes, progress=progress)
    check_session(spark)
    return run_lent(spark, partial(_recover, how), tasks, failed=_not_recovered, progress=progress)


def _tell(how: RecoveryOptions, task: Chosen) -> Done:
    (result,) = recover_here(task.log_dir, [task.partition], act=False, config=how.config, from_start=how.from_start)
    return Done(task.log_dir, result)


def _recover(how: RecoveryOptions, task: tuple[Chosen, Loan]) -> tuple[Done, Returned | None]:
    chosen, loan = task
    with borrowed(loan) as own:
        (result,) = recover_here(own.path, [loan.partition], act=True, config=how.config, from_start=how.from_start)
    return Done(chosen.log_dir, _really(result, own)), own.returned


def _not_told(task: Chosen, error: KafkalogError) -> Done:
    return Done(task.log_dir, Recovered(task.partition, 0, error=error))


def _not_recovered(task: tuple[Chosen, Loan], error: KafkalogError) -> tuple[Done, Returned | None]:
    return _not_told(task[0], error), None


def _really(result: Recovered, own: TaskDirectory) -> Recovered:
    result.cuts = [cut._replace(path=own.real(cut.path)) for cut in result.cuts]
    if result.lost_end is not None:
        result.lost_end = result.lost_end._replace(path=own.real(result.lost_end.path))
    result.dropped = {own.real(path): size for path, size in result.dropped.items()}
    if result.error is not None:
        own.real_error(result.error)
    return result
