"""Returns the last value of each key of a partition, for the command line and for files of other programs.

`Partition.latest` defines which value is the last.  Here it is computed from a view, which only reads, without a lock,
also while a broker is running.  A key of a topic is in one partition, but in several if partitions were added: each
partition is computed separately.  Needs pyarrow.
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
    """Options of `latest` and `export_latest`.

    Args:
        selection: Its window, keys and timestamps say which records count, and its other conditions choose among the
            last values.  A window that ends at an offset or a time gives the state as of then.
        tombstones: Includes keys whose last value is null.
        memory_bytes: The most memory for the map of keys; None for 512 MiB.
    """

    selection: Selection = field(default_factory=lambda: Selection(isolation="read_committed"))
    tombstones: bool = False
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.selection, Selection):
            raise IllegalArgumentException(
                f"selection is {shown(self.selection)}; expected a kafkalog.toolbox.export.Selection",
                hint="use LatestOptions(Selection(end=..., isolation='read_committed'))",
            )

    # Names of an earlier release.
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
    """Finds the last offset of each key of a partition.

    The log is read two or more times.  Damage is kept for the end, in `Latest.failure`.

    Args:
        view: The partition.
        options: Which records count.
        progress: Called with the number of log bytes just read.

    Returns:
        A `Latest`, for `latest_records`.

    Raises:
        MissingPackageException: pyarrow is not installed.

    Example:
        >>> from kafkalog.engine.log.view import PartitionView
        >>> from kafkalog.toolbox.latest import LatestOptions, latest, latest_records
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("prices").append_many([(b"1", b"apple"), (b"2", b"apple")])
        >>> with PartitionView("shop", kafkalog.TopicPartition("prices", 0)) as view:
        ...     [(record.key, record.value) for record in latest_records(latest(view, LatestOptions()))]
        [(b'apple', b'2')]
    """
    need_pyarrow()
    return latest_in(
        lambda: view, options.selection, memory_bytes=options.memory_bytes, lenient=True, progress=progress
    )


@takes_old(_in_options, tombstones="options=LatestOptions(tombstones=...)")
def latest_records(found: Latest, options: LatestOptions | None = None) -> Iterator[Record]:
    """Yields the last record of each key, by offset.

    Args:
        found: The last offsets, from `latest`.
        options: The options given to `latest`.

    Yields:
        The records.  If the log is damaged, the records before the damage come first, and then the error.

    Raises:
        CorruptRecordException: The log is damaged.

    Example:
        >>> from kafkalog.engine.log.view import PartitionView
        >>> from kafkalog.toolbox.latest import LatestOptions, latest, latest_records
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("prices").append(b"1", key=b"apple")
        >>> with PartitionView("shop", kafkalog.TopicPartition("prices", 0)) as view:
        ...     [record.offset for record in latest_records(latest(view, LatestOptions()))]
        [0]
    """
    options = LatestOptions() if options is None else options
    topic, partition = found.source.topic_partition
    for batch in _batches(found, options, COLUMNS, LINE_ROWS):
        yield from records_of(batch, topic, partition)


def _batches(found: Latest, options: LatestOptions, columns: Sequence[str], rows: int, **how: Any) -> Iterator[Any]:
    needed = options.selection.columns_for(columns)
    for batch in found.batches(needed, rows, tombstones=options.tombstones, **how):
        batch = options.selection.filtered(batch, columns)
        if batch.num_rows:  # Parquet has no empty row groups
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
    """Writes the last record of each key to files, as `export` does.

    Args:
        log_dir: The log directory.
        partitions: The partitions.
        target: The file or directory to write.
        files_options: Options of the files; their selection is ignored.
        options: Which records count.
        report: A report to add to; None starts a new one.
        progress: Called with the number of log bytes just read.
        told: Called with the `Latest` of each partition once it is known.

    Returns:
        An `ExportReport`.

    Raises:
        IllegalArgumentException: A file exists already, or the options are invalid.
        CorruptRecordException: The log is damaged.
        MissingPackageException: pyarrow is not installed.
        DiskFull: The target's disk is full.

    Example:
        >>> from kafkalog.toolbox.export import ExportOptions
        >>> from kafkalog.toolbox.latest import LatestOptions, export_latest
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("prices").append_many([(b"1", b"apple"), (b"2", b"apple")])
        >>> prices = kafkalog.TopicPartition("prices", 0)
        >>> export_latest("shop", [prices], "prices.csv", ExportOptions("csv"), LatestOptions()).records
        1
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
