"""verify: runs `kafkalog.toolbox.verify` on a cluster, one task a partition.  It only reads, also while a broker
runs."""

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
    """A partition; or, without one, the small files of a directory."""

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
    """Checks every batch, index entry and small file of directories, or of some partitions or topics.

    Args:
        spark: The session.
        log_dirs: The path of a log directory, or a list of them; or a bucket (`s3://bucket/prefix`, or a
            `RemoteStorage`).
        partitions: Names of topics or partitions ("orders", "orders-0"), or patterns ("orders*").  Default: all.
        deep: Whether to decode every record, and to check producers' sequences, transactions and leader epochs too.
        progress: A function that is called with the bytes of each task that ends.
        remote: The remote tier of the logs: an address, or a `RemoteStorage`.

    Returns:
        A DataFrame with a row for each partition: `ok`, counts, `findings` (what is wrong, and at which position), and
        `error` if the check itself failed.  If all partitions are checked, a row without topic and partition has the
        small files of each directory.

    Raises:
        UnknownTopicOrPartitionException: No directory has a topic or partition with a given name.
        NoSuchFileException: A directory does not exist.
        KafkaStorageException: A directory cannot be read.
        UnsupportedOperationException: The session is one of Spark Connect.
        KafkaException: The executors' Python has no kafkalog, or Spark ended the job.

    Example:
        Show what is damaged:

            jobs.verify(spark, "/var/kafka-logs").where("not ok").select("topic", "partition", "findings").show()
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
    """Does the work of `verify`, and returns the toolbox's results."""
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
