"""export: records to Parquet by topic and hour, written on the executors; run again, it goes on where it ended.

Ranges are planned as for a read of the data source, from what no note of the target names yet, and read as its tasks
read them; files and notes are `kafkalog.toolbox.export_hours`.  The driver holds the target's own lock, so that there
is one export at a time, and executors are its guests.  An hourly job is this call once an hour: what was appended since
comes into further files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from kafkalog.errors import IllegalArgumentException, KafkalogError
from kafkalog.files import OS_FILES
from kafkalog.format.names import TopicPartition
from kafkalog.log.source import check_isolation
from kafkalog.log.view import PartitionView
from kafkalog.spark.jobs.run import Chosen, Dirs, Progress, choose, frame, portable, run, told
from kafkalog.spark.jobs.shared import SharedLock, guest
from kafkalog.spark.options import Bound, SourceOptions
from kafkalog.spark.planning import OffsetRange, plan
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

RANGE_BYTES = 128 << 20
SCHEMA = (
    "log_dir string, topic string, partition int, start_offset bigint, end_offset bigint, records bigint, "
    "bytes bigint, files array<string>, error string"
)


class Exported(NamedTuple):
    """One range, with its files; or why there are none."""

    log_dir: str
    range: Range
    files: list[HourFile]
    error: KafkalogError | None = None

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class Task(NamedTuple):
    """A range, and the place in the target's lock."""

    work: OffsetRange
    options: SourceOptions
    slot: int


class How(NamedTuple):
    target: str
    layout: Layout
    codec: str
    token: bytes


# More than eight parameters: each is a choice of its own, given by its name.
def export(
    spark: Any,
    log_dirs: Dirs,
    target: str | os.PathLike[str],
    partitions: Iterable[TopicPartition | str] | None = None,
    *,
    codec: str = "zstd",
    headers: bool = False,
    isolation: str = "read_uncommitted",
    skip_damage: bool = False,
    range_bytes: int = RANGE_BYTES,
    progress: Progress | None = None,
) -> Any:
    """Write what `target` does not have yet of partitions (all, or those named, or of topics named) to Parquet files,
    `topic=orders/hour=2026-11-01-09/orders-0-<first offset>.parquet`; the columns are those of the data source.

    `codec` is none, snappy, gzip, lz4 or zstd.  `headers` adds that column, `isolation` is read_uncommitted or
    read_committed; both are the target's once and for all.  `skip_damage` goes on in the next segment where records
    cannot be read.  A task takes about `range_bytes` of the log.

    A DataFrame with a row for each range that was written: its records, bytes and files, or its error, and then
    nothing of it is there.  IllegalArgumentException for options that make no sense; LogDirLockedException while
    another export writes to the target.
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
    )
    rows = [
        (
            it.log_dir,
            *it.range.partition,
            it.range.start,
            it.range.end,
            it.records,
            it.bytes,
            [file.path for file in it.files],
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
    partitions: Iterable[TopicPartition | str] | None = None,
    *,
    codec: str = "zstd",
    headers: bool = False,
    isolation: str = "read_uncommitted",
    skip_damage: bool = False,
    range_bytes: int = RANGE_BYTES,
    progress: Progress | None = None,
) -> list[Exported]:
    """As `export`, in the toolbox's own words."""
    check_isolation(isolation)
    if codec not in FORMATS["parquet"]:
        known = ", ".join(sorted(FORMATS["parquet"]))
        raise IllegalArgumentException(f"parquet has no compression {codec!r}", hint=f"it has {known}")
    if range_bytes < 1:
        raise IllegalArgumentException(f"range_bytes is {range_bytes}", hint="expected a number of bytes")
    chosen = choose(log_dirs, partitions)
    _refuse_twice(chosen)
    place = os.path.realpath(os.fspath(target))
    layout = Layout(headers, isolation)
    OS_FILES.mkdirs_synced(os.path.join(place, NOTES))
    with SharedLock(os.path.join(place, NOTES)) as shared:
        settle_layout(place, layout)
        drop_unnoted(place, [task.partition for task in chosen])
        base = SourceOptions(
            (), None, None, None, Bound(), Bound(), fail_on_data_loss=not skip_damage, include_headers=headers,
            isolation=isolation, max_bytes_per_partition=range_bytes,
        )  # fmt: skip
        works = [work for each in chosen for work in _missing(each, place, base)]
        tasks = [Task(work, base, slot) for slot, work in enumerate(works)]
        how = How(place, layout, codec, shared.token)
        return run(spark, partial(_export, how), tasks, size=lambda it: it.work.size, progress=progress)


def _refuse_twice(chosen: list[Chosen]) -> None:
    seen: dict[TopicPartition, str] = {}
    for each in chosen:
        if seen.setdefault(each.partition, each.log_dir) != each.log_dir:
            raise IllegalArgumentException(f"{each.partition} is in {seen[each.partition]} and in {each.log_dir}")


def _missing(each: Chosen, target: str, base: SourceOptions) -> list[OffsetRange]:
    """What the target does not have of a partition, cut into tasks."""
    from dataclasses import replace

    with closing(PartitionView(each.log_dir, each.partition)) as view:
        low, high = view.log_start_offset, view.visible_end(base.isolation)
    topic, number = each.partition
    works = []
    for start, end in gaps([whole for whole, _ in noted(target, each.partition)], low, high):
        options = replace(
            base,
            paths=(each.log_dir,),
            assign=(each.partition,),
            start=Bound(offsets={(topic, number): start}),
            end=Bound(offsets={(topic, number): end}),
        )
        works += plan(options)
    return works


def _export(how: How, task: Task) -> Exported:
    work = task.work
    whole = Range(TopicPartition(work.topic, work.partition), work.start_offset, work.end_offset)
    try:
        with guest(os.path.join(how.target, NOTES), how.token, task.slot):
            batches = read_range(work, task.options, how.layout.columns)
            return Exported(work.log_dir, whole, export_range(whole, batches, how.target, how.layout, how.codec))
    except (KafkalogError, OSError) as error:
        return Exported(work.log_dir, whole, [], portable(error))
