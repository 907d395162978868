"""export: writes records to Parquet files by topic and hour, on the executors; the next run continues where it ended.

The driver plans ranges as for a read of the data source, starting after the last range in the target's notes.  Tasks
read them as the data source does.  `kafkalog.toolbox.export_hours` writes the files and notes.  The driver holds the
target's lock, so only one export runs at a time, and executors work under that lock.  For an hourly job, run the same
call once an hour: new records go to further files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from kafkalog._face import arrow
from kafkalog._face.chunk_reader import ChunkReader
from kafkalog._face.missing import missing_partitions, whole_topics
from kafkalog.engine.files import OS_FILES, local_path
from kafkalog.engine.format import names, values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.source import check_isolation
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import IllegalArgumentException, KafkalogError
from kafkalog.remote import RemoteStorage
from kafkalog.spark.jobs.lake_tables import Tables, check_tables, check_target, register
from kafkalog.spark.jobs.run import (
    Chosen,
    Dirs,
    Names,
    Progress,
    choose,
    frame,
    names_of,
    os_errors_named,
    portable,
    readable,
    run,
    told,
)
from kafkalog.spark.jobs.shared import TARGET_EXPECTED, SharedLock, advise, check_session, guest
from kafkalog.spark.options import Bound, SourceOptions
from kafkalog.spark.planning import ask, ranges_of
from kafkalog.spark.ranges import OffsetRange
from kafkalog.spark.tasks import read_range
from kafkalog.toolbox.export import FORMATS
from kafkalog.toolbox.export_hours import (
    NOTES,
    HourFile,
    Layout,
    Range,
    drop_unnoted,
    export_range,
    gaps,
    noted,
    settle_layout,
)
from kafkalog.toolbox.export_log import LogId, LogNow, settle_log

log = logging.getLogger("kafkalog.spark")

PARQUET_ALONE = Tables()
SKIP_HINT = "skip_damage=True (--skip-damage) skips it, and reports what was skipped"
RANGE_BYTES = 128 << 20
UNKNOWN = -1
LOG_DIR_SIGNS = (names.META_PROPERTIES_FILE, names.RECOVERY_POINT_CHECKPOINT_FILE)
SCHEMA = (
    "log_dir string, topic string, partition int, start_offset bigint, end_offset bigint, records bigint, "
    "bytes bigint, files array<string>, skipped array<string>, error string"
)


class Exported(NamedTuple):
    """One range, with its files and what was skipped in it, or with an error.

    An error of a whole partition has a range of UNKNOWN offsets.
    """

    log_dir: str
    range: Range
    files: list[HourFile]
    skipped: list[str]
    error: KafkalogError | None = None

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class Task(NamedTuple):
    """A range, its slot in the target's lock, and what is known to be missing before it."""

    work: OffsetRange
    options: SourceOptions
    slot: int
    skipped: list[str]

    @property
    def range(self) -> Range:
        work = self.work
        return Range(TopicPartition(work.topic, work.partition), work.start_offset, work.end_offset)


class Missing(NamedTuple):
    """The part of a partition that the target lacks: ranges, records deleted before the first range, and errors."""

    works: list[OffsetRange]
    skipped: list[str]
    wrong: list[Exported]


class ExportTarget(NamedTuple):
    target: str
    layout: Layout
    codec: str
    token: bytes


# More than eight parameters: each is an independent choice, passed by name.
def export(
    spark: Any,
    log_dirs: Dirs,
    target: str | os.PathLike[str],
    partitions: Names | None = None,
    *,
    codec: str = "snappy",
    headers: bool = False,
    isolation: str = "read_uncommitted",
    skip_damage: bool = False,
    range_bytes: int = RANGE_BYTES,
    progress: Progress | None = None,
    remote: str | RemoteStorage | None = None,
    format: str = "parquet",
    catalog: Any = None,
    namespace: str | tuple[str, ...] | None = None,
) -> Any:
    """Writes the records that `target` does not have yet to Parquet files, by topic and hour.

    A file is `topic=orders/hour=2026-11-01-09/orders-0-<first offset>.parquet` and has the columns of the data source.
    The next call continues where this one ended.  Kafka's internal topics, such as `__consumer_offsets`, are exported
    only if they are named.

    Args:
        spark: The session.
        log_dirs: The path of a log directory, or a list of them; or a bucket (`s3://bucket/prefix`, or a
            `RemoteStorage`).
        target: The directory for the files.  It must not be in a log directory.
        partitions: Names of topics or partitions ("orders", "orders-0"), or patterns ("orders*").  Default: all.
        codec: The compression of the files: none, snappy, gzip, lz4 or zstd (smaller, slower).
        headers: Whether to write the column `headers`.  Fixed by the first export to a target.
        isolation: "read_uncommitted" or "read_committed".  Fixed by the first export to a target.
        skip_damage: Whether to continue in the next segment if records cannot be read.
        range_bytes: The bytes of a log that one task reads, approximately.
        progress: A function that is called with the bytes of each task that ends.
        remote: The remote tier of the logs: an address, or a `RemoteStorage`.
        format: "parquet"; "delta" makes a Delta table of the target, partitioned by topic and hour (package
            deltalake); "iceberg" registers the files of each topic in a table with its name.  Each file is registered
            once, also files of earlier exports, even if a process was killed.
        catalog: The PyIceberg catalog, for "iceberg".
        namespace: The namespace of the tables, for "iceberg".

    Returns:
        A DataFrame with a row for each range: its records, bytes and files.  `skipped` lists the offsets that were
        left out because of damage, or because retention deleted them first; a row without records may have only this.
        `error` says why a range was not written.  A partition whose log is not the one that was exported before
        (recreated, truncated, from another directory) has such an error, and the others are exported.

    Raises:
        IllegalArgumentException: An argument is not valid, or the target is in a log directory.
        LogDirLockedException: Another export writes to the target.
        UnknownTopicOrPartitionException: No directory has a topic or partition with a given name.
        UnsupportedOperationException: The session is one of Spark Connect.
        KafkaException: The executors' Python has no kafkalog, or Spark ended the job.
        KafkaStorageException: A table rejects the files.  They are written, and the next export registers them.

    Example:
        Export a topic and show the ranges that failed:

            jobs.export(spark, "/var/kafka-logs", "/lake/logs", ["orders"]).where("error is not null").show()
    """
    found = export_ranges(
        spark,
        log_dirs,
        target,
        partitions,
        codec=codec,
        headers=headers,
        isolation=isolation,
        skip_damage=skip_damage,
        range_bytes=range_bytes,
        progress=progress,
        remote=remote,
        tables=Tables(format, catalog, namespace),
    )
    rows = [
        (
            it.log_dir,
            *it.range.partition,
            None if it.range.start == UNKNOWN else it.range.start,
            None if it.range.end == UNKNOWN else it.range.end,
            it.records,
            it.bytes,
            [file.path for file in it.files],
            it.skipped,
            told(it.error),
        )
        for it in found
    ]
    return frame(spark, rows, SCHEMA)


# More than eight parameters: those of `export`.
def export_ranges(
    spark: Any,
    log_dirs: Dirs,
    target: str | os.PathLike[str],
    partitions: Names | None = None,
    *,
    codec: str = "snappy",
    headers: bool = False,
    isolation: str = "read_uncommitted",
    skip_damage: bool = False,
    range_bytes: int = RANGE_BYTES,
    progress: Progress | None = None,
    remote: str | RemoteStorage | None = None,
    tables: Tables = PARQUET_ALONE,
) -> list[Exported]:
    """Does the work of `export`, and returns the toolbox's results."""
    check_isolation(isolation)
    if codec not in FORMATS["parquet"]:
        known = ", ".join(sorted(FORMATS["parquet"]))
        raise IllegalArgumentException(f"parquet has no compression {codec!r}", hint=f"it has {known}")
    check_tables(tables)
    range_bytes = values.whole(range_bytes, "range_bytes", low=1, expected="bytes of a log for one task")
    with ExitStack() as begun:
        roots, places = begun.enter_context(readable(spark, log_dirs, remote))
        chosen = choose(roots, partitions, internal=False)
        _refuse_twice(chosen)
        place = os.path.realpath(local_path(target, what="target"))
        _refuse_log_directory(place, roots)
        check_target(place, tables)
        layout = Layout(headers, isolation)
        check_session(spark)
        shared = begun.enter_context(_target(place))
        with os_errors_named(TARGET_EXPECTED):
            settle_layout(place, layout)
            drop_unnoted(place, [task.partition for task in chosen])
        base = SourceOptions(
            (), None, None, None, Bound(), Bound(), fail_on_data_loss=not skip_damage, include_headers=headers,
            isolation=isolation, max_bytes_per_partition=range_bytes,
        )  # fmt: skip
        wrong = _not_here(roots, partitions, skip_damage=skip_damage)
        tasks: list[Task] = []
        for each in chosen:
            missing = _missing(each, place, base)
            wrong += missing.wrong
            for number, work in enumerate(missing.works):
                tasks.append(Task(work, base, len(tasks), [] if number else missing.skipped))
        how = ExportTarget(place, layout, codec, shared.token)
        found = wrong + run(
            spark, partial(_export, how), tasks, failed=_failed, size=lambda it: it.work.size, progress=progress,
            places=places,
        )  # fmt: skip
        register(place, layout, [each.partition for each in chosen], tables)
        return found


@contextmanager
def _target(place: str) -> Iterator[SharedLock]:
    """Creates the target if it does not exist, and locks it.  An error says so if it leaves a new directory."""
    notes = os.path.join(place, NOTES)
    is_new = not OS_FILES.exists(notes)
    try:
        with os_errors_named(TARGET_EXPECTED):
            OS_FILES.mkdirs_synced(notes)
        with SharedLock(notes) as shared:
            yield shared
    except KafkalogError as error:
        if is_new and OS_FILES.exists(notes):
            advise(error, f"{notes} was created and not removed")
        raise


def _refuse_twice(chosen: list[Chosen]) -> None:
    seen: dict[TopicPartition, str] = {}
    for each in chosen:
        if seen.setdefault(each.partition, each.log_dir) != each.log_dir:
            raise IllegalArgumentException(
                f"{each.partition} is in {seen[each.partition]} and in {each.log_dir}",
                hint="name the directories of one broker; format('kafkalog') can read copies of several brokers",
            )


def _refuse_log_directory(target: str, log_dirs: list[str]) -> None:
    """Refuses a target in a log directory: a broker would take the target's directories for partitions."""
    above = target
    while True:
        if above in log_dirs or any(OS_FILES.exists(os.path.join(above, name)) for name in LOG_DIR_SIGNS):
            raise IllegalArgumentException(
                f"found the log directory {above}, expected a target outside of log directories",
                path=target,
                hint="choose another target",
            )
        if os.path.dirname(above) == above:
            return
        above = os.path.dirname(above)


# --- on the driver ---------------------------------------------------------------------------------------


def _not_here(log_dirs: list[str], partitions: Names | None, *, skip_damage: bool) -> list[Exported]:
    """Returns a row for each partition that its topic has but that is in none of the directories."""
    found = []
    wants = whole_topics(names_of(partitions) or ())
    for topic in missing_partitions(log_dirs, wants):
        if not topic.is_certain:
            log.warning("%s", topic.text)
            continue
        for each in topic.partitions:
            whole = Range(each, UNKNOWN, UNKNOWN)
            if skip_damage:
                found.append(Exported(log_dirs[0], whole, [], [topic.text]))
            else:
                found.append(Exported(log_dirs[0], whole, [], [], topic.error(SKIP_HINT)))
    return found


def _missing(each: Chosen, target: str, base: SourceOptions) -> Missing:
    """Returns the part of a partition that the target lacks, split into tasks."""
    try:
        with closing(PartitionView(each.log_dir, each.partition)) as view:
            return _missing_of(each, view, target, base)
    except Exception as error:
        whole = Range(each.partition, UNKNOWN, UNKNOWN)
        return Missing([], [], [Exported(each.log_dir, whole, [], [], _with_own_option(portable(error)))])


def _missing_of(each: Chosen, view: PartitionView, target: str, base: SourceOptions) -> Missing:
    notes = noted(target, each.partition)
    low, high, end, damage = ask(view, partial(_bounds, isolation=base.isolation))
    done = max((note.range.end for note in notes), default=low)
    if damage is not None and end < done:
        raise damage  # it is unknown whether records were truncated
    now = LogNow(LogId(each.log_dir, topic_id_of(each.path)), low, end)
    settle_log(target, each.partition, now, notes, partial(_record_at, view))
    found = Missing([], [], [])
    if low > done:
        found.skipped.append(f"offsets {done} to {low - 1}: deleted before they were exported; the log starts at {low}")
    for start, stop in gaps([note.range for note in notes], low, high):
        try:
            found.works.extend(ask(view, partial(ranges_of, start=start, end=stop, options=base, tell=_leave_to_task)))
        except Exception as error:
            whole = Range(each.partition, start, stop)
            found.wrong.append(Exported(each.log_dir, whole, [], [], _with_own_option(portable(error))))
    if found.skipped and not found.works:  # no task will report it
        found.wrong.append(Exported(each.log_dir, Range(each.partition, low, low), [], found.skipped))
    if damage is not None:
        behind = Range(each.partition, high, high)
        if base.fail_on_data_loss:
            found.wrong.append(Exported(each.log_dir, behind, [], [], _with_own_option(damage)))
        else:
            found.wrong.append(Exported(each.log_dir, behind, [], [f"offsets from {high} on: {damage}"]))
    return found


def _leave_to_task(text: str) -> None:
    """Ignores damage that planning finds: the task that reads it finds it again, and knows which offsets it hides."""


def _bounds(seen: Snapshot, isolation: str) -> tuple[int, int, int, KafkalogError | None]:
    """Returns the log start offset, the end for readers, the log end offset, and the damage after it."""
    damage = seen.damage_at_end(isolation)
    error = None if damage is None else damage.error()
    return seen.log_start_offset, seen.visible_end(isolation), seen.log_end_offset, error


def _record_at(view: PartitionView, offset: int) -> Any:
    """Returns the record at an offset as a batch of one row; None if there is none or it cannot be read."""
    try:
        with ChunkReader(view, offset, end_offset=offset + 1) as reader:
            columns = ("key", "value", "offset", "timestamp")
            return next(arrow.record_batches(reader, columns, 1, arrow.SPARK_COLUMNS), None)
    except KafkalogError:
        return None
    finally:
        view.rest()


def _with_own_option(error: KafkalogError) -> KafkalogError:
    """Replaces the data source's option in an error's hint with this job's option."""
    parts = [part for part in (error.hint or "").split("; ") if part]
    kept = [part for part in parts if "failOnDataLoss" not in part]
    if kept != parts:
        error.hint = "; ".join([*kept, SKIP_HINT])
    return error


# --- on an executor --------------------------------------------------------------------------------------


def _export(how: ExportTarget, task: Task) -> Exported:
    work, whole, skipped = task.work, task.range, list(task.skipped)
    with guest(os.path.join(how.target, NOTES), how.token, task.slot):
        batches = read_range(work, task.options, how.layout.columns, tell=skipped.append)
        files = export_range(whole, batches, how.target, how.layout, how.codec, skipped)
    return Exported(work.log_dir, whole, files, skipped)


def _failed(task: Task, error: KafkalogError) -> Exported:
    return Exported(task.work.log_dir, task.range, [], [], _with_own_option(error))
