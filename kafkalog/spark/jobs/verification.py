"""verify: `kafkalog.toolbox.verify` over a cluster, one task a partition.  Reads only, beside whoever runs."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkalogError
from kafkalog.remote import RemoteStorage
from kafkalog.spark.jobs.run import (
    Chosen,
    Dirs,
    Names,
    Progress,
    choose,
    frame,
    os_errors_named,
    readable,
    run,
    told,
)
from kafkalog.toolbox.report import Report
from kafkalog.toolbox.verify import verify as verify_here
from kafkalog.toolbox.verify import verify_directory

SCHEMA = (
    "log_dir string, topic string, partition int, ok boolean, segments bigint, batches bigint, records bigint, "
    "bytes bigint, findings array<struct<path:string,position:bigint,length:bigint,what:string>>, "
    "notes array<string>, error string"
)


class Verified(NamedTuple):
    """A partition, or (without one) the small files of a directory."""

    log_dir: str
    partition: TopicPartition | None
    report: Report
    error: KafkalogError | None = None


def verify(
    spark: Any,
    log_dirs: Dirs,
    partitions: Names | None = None,
    *,
    deep: bool = False,
    progress: Progress | None = None,
    remote: str | RemoteStorage | None = None,
) -> Any:
    """Check every batch, index entry and small file of directories, or of some partitions or topics.

    `log_dirs` may also be a bucket (`s3://bucket/prefix`, or a `RemoteStorage`, which says more); `remote` is where the
    logs of a directory go on.

    A DataFrame with a row for each partition, and one without topic and partition for each directory's own files where
    all of it is looked at: `ok`, the counts, what is wrong where (`findings`), and `error` where the look failed.
    `progress` is called with the bytes of each task that ends.  UnknownTopicOrPartitionException,
    NoSuchFileException, KafkaStorageException.
    """
    rows = [
        (
            it.log_dir,
            None if it.partition is None else it.partition.topic,
            None if it.partition is None else it.partition.partition,
            it.report.ok and it.error is None,
            it.report.segments,
            it.report.batches,
            it.report.records,
            it.report.bytes,
            [tuple(finding) for finding in it.report.findings],
            it.report.notes,
            told(it.error),
        )
        for it in verified(spark, log_dirs, partitions, deep=deep, progress=progress, remote=remote)
    ]
    return frame(spark, rows, SCHEMA)


def verified(
    spark: Any,
    log_dirs: Dirs,
    partitions: Names | None = None,
    *,
    deep: bool = False,
    progress: Progress | None = None,
    remote: str | RemoteStorage | None = None,
) -> list[Verified]:
    """As `verify`, in the toolbox's own words."""
    found = []
    with readable(spark, log_dirs, remote) as (roots, places):
        if partitions is None:
            for root in roots:
                report = Report()
                with os_errors_named("expected a Kafka log directory"):
                    verify_directory(root, OS_FILES, report)
                found.append(Verified(root, None, report))
        tasks = choose(roots, partitions)
        return found + run(
            spark, partial(_verify, deep), tasks, failed=_failed, size=lambda it: it.bytes, progress=progress,
            places=places,
        )  # fmt: skip


def _verify(deep: bool, task: Chosen) -> Verified:
    return Verified(task.log_dir, task.partition, verify_here(task.log_dir, [task.partition], deep=deep))


def _failed(task: Chosen, error: KafkalogError) -> Verified:
    return Verified(task.log_dir, task.partition, Report(), error)
