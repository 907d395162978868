"""The last value of each key of a partition of a directory, for the command line and for files that others read.

`Partition.latest` says what counts as last; here it is asked of a view, which is only read, without a lock, beside
a running broker too.  A key of a topic lives in one partition, but in several where partitions were added since: each
partition answers for itself.  Needs pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafkalog._face.match import COLUMNS, records_of
from kafkalog._face.selected import latest_in
from kafkalog._face.selection import Selection
from kafkalog._face.window import Window
from kafkalog._renamed import OldAttribute, takes_old
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.export import BATCH_BYTES, BATCH_ROWS, ExportOptions, ExportReport, export

if TYPE_CHECKING:
    from kafkalog._face.latest import Latest
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.records import Record

LINE_ROWS = 65_536

__all__ = ["LatestOptions", "export_latest", "latest", "latest_records"]


@dataclass(frozen=True)
class LatestOptions:
    """`selection`: its window (which ends at an offset, or a time: the state as of then), keys and timestamps say which
    records count, the rest chooses among the last values.  `tombstones`: also keys whose last value is null.
    `memory_bytes`: for the map of keys, None for 512 MiB."""

    selection: Selection = field(default_factory=lambda: Selection(isolation="read_committed"))
    tombstones: bool = False
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.selection, Selection):
            raise IllegalArgumentException(
                f"selection: found {shown(self.selection)}, expected a kafkalog.toolbox.export.Selection",
                hint="write LatestOptions(Selection(end=..., isolation='read_committed'))",
            )

    # Of the release before.
    end = OldAttribute(lambda options: options.selection.window.end, "selection.window.end")
    isolation = OldAttribute(lambda options: options.selection.isolation, "selection.isolation")


def _in_selection(old: dict[str, Any], named: dict[str, Any]) -> None:
    found = Selection(isolation=old.get("isolation", "read_committed"))
    named["selection"] = found.within(Window(None, old.get("end")))


LatestOptions.__init__ = takes_old(  # type: ignore[method-assign]
    _in_selection,
    end="selection=Selection(end=..., isolation='read_committed')",
    isolation="selection=Selection(isolation=...)",
)(LatestOptions.__init__)


def _in_options(old: dict[str, Any], named: dict[str, Any]) -> None:
    named["options"] = LatestOptions(tombstones=old["tombstones"])


def latest(view: PartitionView, options: LatestOptions, *, progress: Callable[[int], None] | None = None) -> Latest:
    """The last offsets of the keys of a view's partition; `progress` is told of the log's bytes as they are read, in
    two or more walks.  Damage is kept for its end: `Latest.failure`."""
    need_pyarrow()
    return latest_in(
        lambda: view, options.selection, memory_bytes=options.memory_bytes, lenient=True, progress=progress
    )


@takes_old(_in_options, tombstones="options=LatestOptions(tombstones=...)")
def latest_records(found: Latest, options: LatestOptions | None = None) -> Iterator[Record]:
    """Their records, by offset; at damage those before it, then the error."""
    options = LatestOptions() if options is None else options
    topic, partition = found.source.topic_partition
    for batch in _batches(found, options, COLUMNS, LINE_ROWS):
        yield from records_of(batch, topic, partition)


def _batches(found: Latest, options: LatestOptions, columns: Sequence[str], rows: int, **how: Any) -> Iterator[Any]:
    needed = options.selection.columns_for(columns)
    for batch in found.batches(needed, rows, tombstones=options.tombstones, **how):
        batch = options.selection.filtered(batch, columns)
        if batch.num_rows:  # parquet has no group of no rows
            yield batch


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
    """Write them to files as `export` does, by its options but for the selection.

    `told` hears of each partition's keys once they are known.
    """
    need_pyarrow()

    def read(view: PartitionView, columns: Sequence[str]) -> Iterator[Any]:
        found = latest(view, options, progress=progress)
        if told is not None:
            told(found)
        return _batches(found, options, columns, BATCH_ROWS, batch_bytes=BATCH_BYTES)

    return export(log_dir, partitions, target, files_options, report=report, read=read)


def __dir__() -> list[str]:
    return __all__
