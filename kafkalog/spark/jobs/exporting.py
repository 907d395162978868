"""export: records to Parquet by topic and hour, written on the executors; run again, it goes on where it ended.

Ranges are planned as for a read of the data source, from what no note of the target names yet, and read as its tasks
read them; files and notes are `kafkalog.toolbox.export_hours`.  The driver holds the target's own lock, so that there
is one export at a time, and executors are its guests.  An hourly job is this call once an hour: what was appended since
comes into further files.
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
SKIP_HINT = "skip_damage=True (--skip-damage) leaves it out, and tells what"
RANGE_BYTES = 128 << 20
UNKNOWN = -1
LOG_DIR_SIGNS = (names.META_PROPERTIES_FILE, names.RECOVERY_POINT_CHECKPOINT_FILE)
SCHEMA = (
    "log_dir string, topic string, partition int, start_offset bigint, end_offset bigint, records bigint, "
    "bytes bigint, files array<string>, skipped array<string>, error string"
)


class Exported(NamedTuple):
    """One range, with its files, and what was left out of it; or why there are none.  What is wrong with a partition as
    a whole has a range of UNKNOWN offsets."""

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
    """A range, the place in the target's lock, and what is known to be missing before it."""

    work: OffsetRange
    options: SourceOptions
    slot: int
    skipped: list[str]

    @property
    def range(self) -> Range:
        work = self.work
        return Range(TopicPartition(work.topic, work.partition), work.start_offset, work.end_offset)


class Missing(NamedTuple):
    """What the target does not have of a partition: ranges, what is gone before the first, what is wrong."""

    works: list[OffsetRange]
    skipped: list[str]
    wrong: list[Exported]


class ExportTarget(NamedTuple):
    target: str
    layout: Layout
    codec: str
    token: bytes


# More than eight parameters: each is a choice of its own, given by its name.
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
    """Write what `target` does not have yet of partitions (all, or those named, or of topics named) to Parquet files,
    `topic=orders/hour=2026-11-01-09/orders-0-<first offset>.parquet`; the columns are those of the data source.

    `log_dirs` may also be a bucket (`s3://bucket/prefix`, or a `RemoteStorage`, which says more); `remote` is where the
    logs of a directory go on.  `codec` is none, snappy (Spark's own default), gzip, lz4 or zstd (smaller, slower).
    `headers` adds that column, `isolation` is read_uncommitted or read_committed; both are the target's once and for
    all.  `skip_damage` goes on in the next segment where records cannot be read.  A task takes about `range_bytes` of
    the log.  Kafka's internal topics (`__consumer_offsets` and the like) are left out unless they are named.

    `format` "delta" makes a Delta table of the target (package deltalake), partitioned by topic and hour; "iceberg"
    registers the files of each topic in a table of its name in the `namespace` of a PyIceberg `catalog`.  Each file
    comes into a table once, also what earlier exports have written, and whatever was killed when.

    A DataFrame with a row for each range that was written: its records, bytes and files, and in `skipped` what was left
    out (for damage, or because retention was faster), with offsets; or its error, and then nothing of it is there.
    Where all that is missing is gone there is a row that only tells that.
    A partition that is not the log that was exported before (made again, cut, of another directory) is such an error;
    the others go on.  IllegalArgumentException for options that make no sense, and for a target in a log directory;
    LogDirLockedException while another export writes to the target.  KafkaStorageException if a table does not take
    the files, which are written then: the next export registers them.
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
    """As `export`, in the toolbox's own words."""
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
    """The target, made where it is missing, while it is ours.  An error says so where it leaves one that is new."""
    notes = os.path.join(place, NOTES)
    is_new = not OS_FILES.exists(notes)
    try:
        with os_errors_named(TARGET_EXPECTED):
            OS_FILES.mkdirs_synced(notes)
        with SharedLock(notes) as shared:
            yield shared
    except KafkalogError as error:
        if is_new and OS_FILES.exists(notes):
            advise(error, f"{notes} was made, and stays")
        raise


def _refuse_twice(chosen: list[Chosen]) -> None:
    seen: dict[TopicPartition, str] = {}
    for each in chosen:
        if seen.setdefault(each.partition, each.log_dir) != each.log_dir:
            raise IllegalArgumentException(
                f"{each.partition} is in {seen[each.partition]} and in {each.log_dir}",
                hint="an export takes the directories of one broker; format('kafkalog') reads copies of several",
            )


def _refuse_log_directory(target: str, log_dirs: list[str]) -> None:
    """A broker that starts would find the target's folders among its partitions."""
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
    """A row for each partition that a topic has, and that is in none of the directories."""
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
    """What the target does not have of a partition, cut into tasks."""
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
        raise damage  # what was cut, if anything was, cannot be told
    now = LogNow(LogId(each.log_dir, topic_id_of(each.path)), low, end)
    settle_log(target, each.partition, now, notes, partial(_record_at, view))
    found = Missing([], [], [])
    if low > done:
        found.skipped.append(f"offsets {done} to {low - 1}: gone before they were exported, the log starts at {low}")
    for start, stop in gaps([note.range for note in notes], low, high):
        try:
            found.works.extend(ask(view, partial(ranges_of, start=start, end=stop, options=base, tell=_leave_to_task)))
        except Exception as error:
            whole = Range(each.partition, start, stop)
            found.wrong.append(Exported(each.log_dir, whole, [], [], _with_own_option(portable(error))))
    if found.skipped and not found.works:  # no task will tell
        found.wrong.append(Exported(each.log_dir, Range(each.partition, low, low), [], found.skipped))
    if damage is not None:
        behind = Range(each.partition, high, high)
        if base.fail_on_data_loss:
            found.wrong.append(Exported(each.log_dir, behind, [], [], _with_own_option(damage)))
        else:
            found.wrong.append(Exported(each.log_dir, behind, [], [f"offsets from {high} on: {damage}"]))
    return found


def _leave_to_task(text: str) -> None:
    """Of damage that a plan meets: the task that reads there meets it again, and knows which offsets it hides."""


def _bounds(seen: Snapshot, isolation: str) -> tuple[int, int, int, KafkalogError | None]:
    """Where a log starts, where its readers end, where it ends, and the damage that lies behind that."""
    damage = seen.damage_at_end(isolation)
    error = None if damage is None else damage.error()
    return seen.log_start_offset, seen.visible_end(isolation), seen.log_end_offset, error


def _record_at(view: PartitionView, offset: int) -> Any:
    """The record at an offset as a record batch of one row; None where there is none, or it cannot be read."""
    try:
        with ChunkReader(view, offset, end_offset=offset + 1) as reader:
            columns = ("key", "value", "offset", "timestamp")
            return next(arrow.record_batches(reader, columns, 1, arrow.SPARK_COLUMNS), None)
    except KafkalogError:
        return None
    finally:
        view.rest()


def _with_own_option(error: KafkalogError) -> KafkalogError:
    """With this job's option, where the data source's own is named."""
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
