"""import_: restores an export to log directories, one task a partition, each record at its old offset.

Offsets without a record (compacted records, control records, damage) stay gaps, as after compaction.  If the beginning
of a log was not exported, the new log starts at its first record.  Batches are written again: `compression` sets their
codec, and leader epochs start at 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from kafkalog._face.named import names_of_partition
from kafkalog.engine.files import OS_FILES, local_path
from kafkalog.engine.format import codecs
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import IllegalArgumentException, KafkalogError, UnknownTopicOrPartitionException
from kafkalog.spark.jobs.run import Names, Progress, frame, names_of, os_errors_named, portable, run, told
from kafkalog.spark.jobs.shared import Loan, Returned, SharedDirectory, advise, borrowed, check_session, check_settings
from kafkalog.toolbox.export_hours import HourFile, exported, exported_files
from kafkalog.toolbox.import_hours import Imported, has_records, import_partition

SCHEMA = (
    "topic string, partition int, records bigint, log_start_offset bigint, end_offset bigint, bytes bigint, "
    "error string"
)


class Planned(NamedTuple):
    """The files that an export has for a partition, or the error in its notes."""

    partition: TopicPartition
    written: list[HourFile]
    error: KafkalogError | None = None

    @property
    def records(self) -> int:
        return sum(file.records for file in self.written)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.written)


class ImportOptions(NamedTuple):
    source: str
    config: Mapping[str, str]
    compression: str | None


def import_(
    spark: Any,
    source: str | os.PathLike[str],
    log_dir: str | os.PathLike[str],
    partitions: Names | None = None,
    *,
    config: Mapping[str, str] | None = None,
    compression: str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Creates partitions in `log_dir` from the files that `export` wrote to `source`.

    It creates topics at once, and changes no record that exists.

    Args:
        spark: The session.
        source: The target of the export.
        log_dir: The log directory; it is created if it does not exist.
        partitions: Names of topics or partitions ("orders", "orders-0"), or patterns ("orders*").  Default: all of the
            export.
        config: Settings of the topics.
        compression: The codec of the batches.  Default: the topic's setting, or none.
        resume: Whether to append to partitions that have records, after their end.  This completes an import that was
            interrupted.  By default such a partition is refused.
        progress: A function that is called with the bytes of each task that ends.

    Returns:
        A DataFrame with a row for each partition.

    Raises:
        IllegalArgumentException: `source` has no export, or an argument is not valid.
        UnknownTopicOrPartitionException: The export has no topic or partition with a given name.
        ConfigException: A setting is not valid.
        LogDirLockedException: Another process holds the directory.
        UnsupportedOperationException: The session is one of Spark Connect.
        KafkaException: The executors' Python has no kafkalog, or Spark ended the job.

    Example:
        Restore a topic:

            jobs.import_(spark, "/lake/logs", "/var/restored", ["orders"]).show()
    """
    found = imported(
        spark, source, log_dir, partitions, config=config, compression=compression, resume=resume, progress=progress
    )
    rows = [(*it.partition, it.records, it.log_start_offset, it.end_offset, it.bytes, told(it.error)) for it in found]
    return frame(spark, rows, SCHEMA)


def imported(
    spark: Any,
    source: str | os.PathLike[str],
    log_dir: str | os.PathLike[str],
    partitions: Names | None = None,
    *,
    config: Mapping[str, str] | None = None,
    compression: str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> list[Imported]:
    """Does the work of `import_`, and returns the toolbox's results."""
    if compression is not None and compression not in codecs.NAMES:
        raise IllegalArgumentException(
            f"compression is {compression!r}", hint=f"expected one of {', '.join(codecs.NAMES)}"
        )
    place, root = (
        os.path.realpath(local_path(source, what="source")),
        os.path.realpath(local_path(log_dir, what="log_dir")),
    )
    found = to_import(place, partitions)
    how = ImportOptions(place, dict(config or {}), compression)
    check_settings(how.config, [(root, each.partition.topic) for each in found])
    check_session(spark)
    with SharedDirectory(root, create=True) as shared:
        refused = {each.partition: why for each in found if (why := _refusal(root, each, resume)) is not None}
        tasks = [(shared.lend(each.partition), each) for each in found if each.partition not in refused]
        shared.share()
        work = partial(_import, how)
        done = run(spark, work, tasks, failed=_failed, size=lambda it: it[1].bytes, progress=progress)
        for (loan, _), (_, returned) in zip(tasks, done, strict=True):
            shared.take(loan.partition, returned)
    results = refused | {loan.partition: result for (loan, _), (result, _) in zip(tasks, done, strict=True)}
    return [results[each.partition] for each in found]


def _refusal(log_dir: str, planned: Planned, resume: bool) -> Imported | None:
    """Returns the result for a partition that is refused; None if it may be imported."""
    partition = planned.partition
    if planned.error is not None or resume:
        return None if planned.error is None else Imported(partition, error=planned.error)
    try:
        with closing(PartitionView(log_dir, partition)) as view:
            log = view.snapshot
        if log.log_end_offset == log.log_start_offset:
            return None
        return Imported(partition, error=has_records(partition, log.log_end_offset))
    except UnknownTopicOrPartitionException:
        return None
    except Exception as error:
        return Imported(partition, error=portable(error))


def to_import(source: str, partitions: Names | None) -> list[Planned]:
    """Returns the partitions of an export, all or the named ones.

    Raises IllegalArgumentException if nothing was exported, and UnknownTopicOrPartitionException for an unknown name.
    """
    with os_errors_named("expected what `export` wrote"):
        found = exported(source)
    asked = names_of(partitions)
    if asked is not None:
        missing = asked - {name for partition in found for name in names_of_partition(asked, partition)}
        if missing:
            named = ", ".join(sorted(missing))
            raise UnknownTopicOrPartitionException(f"no topic or partition {named} in the export {source}")
        found = [partition for partition in found if names_of_partition(asked, partition)]
    return [_planned(source, partition) for partition in found]


def _planned(source: str, partition: TopicPartition) -> Planned:
    try:
        return Planned(partition, exported_files(source, partition))
    except Exception as error:
        return Planned(partition, [], portable(error))


def _import(how: ImportOptions, task: tuple[Loan, Planned]) -> tuple[Imported, Returned | None]:
    loan, planned = task
    with borrowed(loan) as own:
        # The driver has checked that it may: existing records are from an earlier attempt of this job.
        result = import_partition(
            how.source, planned.written, own.path, loan.partition, how.config, how.compression, resume=True
        )
    return result, own.returned


def _failed(task: tuple[Loan, Planned], error: KafkalogError) -> tuple[Imported, Returned | None]:
    loan, _ = task
    folder = os.path.join(loan.log_dir, str(loan.partition))
    if OS_FILES.is_dir(folder):
        advise(error, f"{folder} keeps what was appended; resume continues after it")
    return Imported(loan.partition, error=error), None
