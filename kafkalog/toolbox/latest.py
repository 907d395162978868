"""The last value of each key of a partition of a directory, for the command line and for files that others read.

`Partition.latest` says what counts as last; here it is asked of a view, which is only read, without a lock, beside
a running broker too.  A key of a topic lives in one partition, but in several where partitions were added since: each
partition answers for itself.  Needs pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkalog._face.match import BATCH_ROWS as LINE_ROWS
from kafkalog._face.match import COLUMNS, records_of
from kafkalog._face.window import Bound, Window, found_in
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.engine.log.source import check_isolation
from kafkalog.toolbox.export import BATCH_BYTES, BATCH_ROWS, ExportOptions, ExportReport, export

if TYPE_CHECKING:
    from kafkalog._face.latest import Latest
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.records import Record

__all__ = ["LatestOptions", "export_latest", "latest", "latest_records"]


@dataclass(frozen=True)
class LatestOptions:
    """`end`: the state as of an offset (exclusive) or a time (exclusive, by the records' timestamps), by default as of
    now. `tombstones`: also keys whose last value is null. `memory_bytes`: for the map of keys, None for
    512 MiB."""

    end: Bound = None
    isolation: str = "read_committed"
    tombstones: bool = False
    memory_bytes: int | None = None


def latest(view: PartitionView, options: LatestOptions, *, progress: Callable[[int], None] | None = None) -> Latest:
    """The last offsets of the keys of a view's partition; `progress` is told of the log's bytes as they are read, in
    two or more walks.  Damage is kept for its end: `Latest.failure`."""
    need_pyarrow()
    from kafkalog._face.latest import MEMORY_BYTES, Latest, memory_of

    check_isolation(options.isolation)
    memory_bytes = MEMORY_BYTES if options.memory_bytes is None else memory_of(options.memory_bytes)
    _, end, times = found_in(view, Window(None, options.end), lenient=True)
    return Latest(
        view, end, limits=times.limits, isolation=options.isolation, memory_bytes=memory_bytes, progress=progress
    )


def latest_records(found: Latest, *, tombstones: bool = False) -> Iterator[Record]:
    """Their records, by offset; at damage those before it, then the error."""
    topic, partition = found.source.topic_partition
    for batch in found.batches(COLUMNS, LINE_ROWS, tombstones=tombstones):
        yield from records_of(batch, topic, partition)


def export_latest(
    log_dir: str | os.PathLike[str],
    partitions: Sequence[TopicPartition],
    target: str | os.PathLike[str],
    files_options: ExportOptions,
    options: LatestOptions,
    *,
    report: ExportReport | None = None,
    progress: Callable[[int], None] | None = None,
    told: Callable[[Latest], None] | None = None,
) -> ExportReport:
    """Write them to files as `export` does, by its options but for the window, the isolation and damage, which ends it.

    `told` hears of each partition's keys once they are known.
    """
    need_pyarrow()
    from kafkalog._face import arrow

    def read(view: PartitionView, columns: Sequence[str]) -> Iterator[Any]:
        found = latest(view, options, progress=progress)
        if told is not None:
            told(found)
        return found.batches(
            columns, BATCH_ROWS, arrow.SPARK_COLUMNS, tombstones=options.tombstones, batch_bytes=BATCH_BYTES
        )

    return export(log_dir, partitions, target, files_options, report=report, read=read)


def __dir__() -> list[str]:
    return __all__
