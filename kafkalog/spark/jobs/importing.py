"""import_: an export back into log directories, one task a partition, every record at the offset that it had.

What lay between them (compacted away, markers of transactions, what damage took) stays a gap, as compaction leaves
them; of a log whose beginning was gone the start is that of its first record.  Batches are made anew: `compression`
says how, and leader epochs begin again at 0.
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
    """What an export has of a partition, or what is wrong with its notes."""

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
    """Make partitions of `log_dir` of what `export` wrote to `source`: all, or those named, or of topics named.  It
    acts at once: it makes, and changes nothing that is there.

    `config` has settings of the topics, `compression` is that of the batches (by default what the topic says, or none).
    A partition that has records already is refused, unless `resume`: then what lies behind its end is appended, which
    ends an import that was cut short.  A DataFrame with a row for each partition.  IllegalArgumentException where
    nothing was exported, ConfigException for settings that make no sense; LogDirLockedException where somebody has the
    directory.
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
    """As `import_`, in the toolbox's own words."""
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
    """What is said of a partition into which nothing is imported; None for one that may be made."""
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
    """The partitions of an export, all or those that are named.  IllegalArgumentException where nothing was exported;
    UnknownTopicOrPartitionException."""
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
        # The driver has seen that it may: what lies there already is of an attempt of this job that was cut short.
        result = import_partition(
            how.source, planned.written, own.path, loan.partition, how.config, how.compression, resume=True
        )
    return result, own.returned


def _failed(task: tuple[Loan, Planned], error: KafkalogError) -> tuple[Imported, Returned | None]:
    loan, _ = task
    folder = os.path.join(loan.log_dir, str(loan.partition))
    if OS_FILES.is_dir(folder):
        advise(error, f"{folder} stays, with what was appended: resume goes on behind that")
    return Imported(loan.partition, error=error), None
