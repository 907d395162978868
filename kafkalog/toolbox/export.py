"""Exports records of partitions to files for other programs: Parquet, Arrow, CSV or JSON lines.

The columns are those of `read_arrow`.  Only one batch of rows is in memory, however large a partition is.  A file gets
its name once it is complete (`whole_file.WholeFile`).  Damage ends an export with an error, and the unfinished file
is removed.  If damage is to be skipped, each range that was left out is reported instead (`past_damage`).  The source
is only read, without a lock, so it works while a broker is running.  Needs pyarrow.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog._face.past_damage import past_chunks
from kafkalog._face.selected import batches_in, selected_range
from kafkalog._face.selection import Selection, checked_selection, checked_window
from kafkalog._renamed import OldAttribute, takes_old
from kafkalog.engine.files import OS_FILES, Files, local_path, parent_dir
from kafkalog.engine.format import names, values
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.engine.host.log_dirs import refuse_inside
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import IllegalArgumentException
from kafkalog.toolbox.report import Finding
from kafkalog.toolbox.space import NOTHING_LEFT, READS, bytes_in, telling_full
from kafkalog.toolbox.unread import unread
from kafkalog.toolbox.words import counted

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.segment.loss import Lost

__all__ = ["ExportOptions", "ExportReport", "ExportedFile", "Selection", "export", "targets"]

FORMATS: Mapping[str, tuple[str, ...]] = {  # with the compressions that each supports, the default first
    "parquet": ("snappy", "none", "gzip", "lz4", "zstd"),
    "arrow": ("none", "lz4", "zstd"),
    "csv": ("none",),
    "jsonl": ("none",),
}
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
BATCH_ROWS = 262_144  # the most in a row group
BATCH_BYTES = 48 << 20
Read = Callable[[PartitionView, Sequence[str]], Iterator[Any]]  # yields record batches with these columns


@dataclass(frozen=True)
class ExportOptions:
    """Options of `export`.

    Args:
        format: "parquet", "arrow", "csv" or "jsonl".
        codec: A compression of that format; None uses its default.
        selection: The records of each partition to export.
        last: Exports only the last so many of these; None exports all.
        headers: Adds the column of headers.
        in_base64: Writes keys and values of CSV and JSON lines in base64.
        force: Replaces existing files.
    """

    format: str = "parquet"
    codec: str | None = None
    selection: Selection = field(default_factory=Selection)
    last: int | None = None
    headers: bool = False
    in_base64: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "selection", checked_selection(self.selection, "selection"))

    # Names of an earlier release.
    window = OldAttribute(lambda options: options.selection.window, "selection.window")
    isolation = OldAttribute(lambda options: options.selection.isolation, "selection.isolation")
    skip_damage = OldAttribute(lambda options: options.selection.tell is not None, "selection.tell is not None")


def _in_selection(old: dict[str, Any], named: dict[str, Any]) -> None:
    skips = old.get("skip_damage", False)
    if not isinstance(skips, bool):
        raise IllegalArgumentException(
            f"skip_damage is {values.shown(skips)}; expected True or False",
            hint="use selection=Selection(on_damage='skip'), or omit it",
        )
    found = Selection(isolation=old.get("isolation", "read_uncommitted"), on_damage="skip" if skips else "raise")
    named["selection"] = found.within(checked_window(old.get("window"), "selection"))


ExportOptions.__init__ = takes_old(  # type: ignore[method-assign]
    _in_selection,
    window="selection=Selection(start, end)",
    isolation="selection=Selection(isolation=...)",
    skip_damage="selection=Selection(on_damage='skip')",
)(ExportOptions.__init__)


class ExportedFile(NamedTuple):
    """A file that was written: its path, the partitions in it in order, its records and its bytes."""

    path: str
    partitions: list[str]
    records: int
    bytes: int


@dataclass
class ExportReport:
    """The result of an export, up to an error if one ended it.  `lost` lists what damage kept out."""

    files: list[ExportedFile] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    unread: list[Finding] = field(default_factory=list)  # unreadable files, whose records are left out

    @property
    def records(self) -> int:
        """The number of records in all files."""
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        """The number of bytes of all files."""
        return sum(file.bytes for file in self.files)


def export(
    log_dir: str | os.PathLike[str],
    partitions: Sequence[TopicPartition],
    target: str | os.PathLike[str],
    options: ExportOptions,
    *,
    report: ExportReport | None = None,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
    read: Read | None = None,
) -> ExportReport:
    """Writes partitions of a log directory to files.

    If `target` ends in the format's suffix (`.parquet`), all partitions go into one file of that name.  Otherwise
    `target` is a directory, which is created if needed, with one file a partition (`orders-0.parquet`).
    If the selection skips damage, a partition that cannot be read is listed in the report's `unread`.  The rest of its
    records is left out, and the others are written.

    Args:
        log_dir: The log directory.
        partitions: The partitions to export.
        target: The file or directory to write.
        options: Format, selection and so on.
        report: A report to add to; None starts a new one.
        files: The file system; for tests.
        progress: Called with the number of log bytes just read.
        read: Replaces the reading of a partition; it then does the work of `selection`, `last` and `progress`.

    Returns:
        An `ExportReport`.

    Raises:
        IllegalArgumentException: A file exists already, or the options are invalid.
        CorruptRecordException: The log is damaged.
        InvalidRecordException: A record is invalid.
        DiskFull: The target's disk is full.
        OSError: Any other error of the file system.

    Example:
        >>> from kafkalog.toolbox.export import ExportOptions, export
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> report = export("shop", [kafkalog.TopicPartition("orders", 0)], "orders.jsonl", ExportOptions("jsonl"))
        >>> report.records, report.files[0].path
        (2, 'orders.jsonl')
    """
    values.function(progress, "progress", "a function of the bytes just read")
    need_pyarrow()
    codec = _checked(options)
    report = ExportReport() if report is None else report
    log_dir = local_path(log_dir, what="log_dir", files=files)
    options = replace(options, selection=_telling(options.selection, report))
    plan = targets(local_path(target, what="target", files=files), partitions, options.format, files)
    from kafkalog.toolbox.whole_file import refuse_existing

    for path in plan:
        refuse_existing(files, path, force=options.force)
        refuse_inside(parent_dir(path), files)
    done = len(report.files)
    for path, chosen in plan.items():
        full = telling_full(
            parent_dir(path),
            f"the export of {', '.join(map(str, chosen[:3]))}" + (" ..." if len(chosen) > 3 else ""),
            files,
            needed=partial(_needed, log_dir, list(plan.values())[len(report.files) - done :], files),
            then=partial(_how_to_go_on, len(report.files) - done, list(plan.values()), files),
            known=READS,
        )
        with full:
            files.mkdirs_synced(parent_dir(path))
            out = _Export(log_dir, options, codec, files, progress, read, lenient=len(partitions) > 1)
            with past_chunks(log_dir, files) if options.selection.tell is not None else nullcontext():
                try:
                    out.write(chosen, path, report)
                except OSError as error:
                    if not out.tells(error, chosen, report):
                        raise
    return report


def _needed(log_dir: str, left: Sequence[Sequence[TopicPartition]], files: Files) -> int:
    """Returns the logs' bytes: what the files take, apart from their format and its compression."""
    folders = (os.path.join(log_dir, str(each)) for chosen in left for each in chosen)
    return bytes_in(folders, files, suffix=names.LOG_FILE_SUFFIX)


def _how_to_go_on(done: int, plan: Sequence[Sequence[TopicPartition]], files: Files) -> str:
    if not done:
        return NOTHING_LEFT
    left = [str(each) for chosen in plan[done:] for each in chosen]
    some = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
    return f"{done} of {counted(len(plan), 'file')} already complete: export the others ({some}), or all with force"


def _telling(selection: Selection, report: ExportReport) -> Selection:
    """Returns a selection that also adds skipped damage to the report."""
    tell = selection.tell
    if tell is None:
        return selection

    def both(lost: Lost) -> None:
        report.lost.append(lost)
        tell(lost)

    telling = copy.copy(selection)
    telling.tell = both
    return telling


def targets(
    target: str, partitions: Sequence[TopicPartition], kind: str, files: Files
) -> Mapping[str, Sequence[TopicPartition]]:
    """Returns the files that an export writes, and the partitions in each.

    Args:
        target: The file or directory to write.
        partitions: The partitions to export.
        kind: The format, which is also the suffix.
        files: The file system.

    Returns:
        A mapping of each path to its partitions.

    Raises:
        IllegalArgumentException: `target` is an existing file without the format's suffix.

    Example:
        >>> from kafkalog.engine.files import OS_FILES
        >>> from kafkalog.toolbox.export import targets
        >>> list(targets("out", [kafkalog.TopicPartition("orders", 0)], "csv", OS_FILES))
        ['out/orders-0.csv']
    """
    if not files.is_dir(target) and target.endswith(f".{kind}"):
        return {target: partitions}
    if files.exists(target) and not files.is_dir(target):
        raise IllegalArgumentException(
            "the target is an existing file",
            path=target,
            hint=f"name a directory, or a file whose name ends in .{kind}",
        )
    return {os.path.join(target, f"{partition}.{kind}"): (partition,) for partition in partitions}


def _checked(options: ExportOptions) -> str:
    """Checks the options and returns the codec to use."""
    if options.format not in FORMATS:
        raise IllegalArgumentException(
            f"unknown format {options.format!r}", hint=f"known formats: {', '.join(FORMATS)}"
        )
    known = FORMATS[options.format]
    codec = known[0] if options.codec is None else options.codec
    if codec not in known:
        raise IllegalArgumentException(
            f"{options.format} does not support the compression {codec!r}",
            hint=f"it supports {', '.join(sorted(known))}",
        )
    if options.in_base64 and options.format not in ("csv", "jsonl"):
        raise IllegalArgumentException(
            f"{options.format} holds any bytes, so base64 is not supported", hint="omit base64"
        )
    return codec


class _Export:
    """The common part of all files of one export."""

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        options: ExportOptions,
        codec: str,
        files: Files,
        progress: Callable[[int], None] | None,
        read: Read | None,
        *,
        lenient: bool,
    ) -> None:
        self._log_dir = log_dir
        self._options = options
        self._codec = codec
        self._files = files
        self._progress = progress
        self._read = read
        self._lenient = lenient
        self._columns = [name for name in COLUMNS if options.headers or name != "headers"]

    def write(self, partitions: Sequence[TopicPartition], path: str, report: ExportReport) -> None:
        """Writes one file."""
        from kafkalog._face import arrow
        from kafkalog.toolbox.export_files import writer
        from kafkalog.toolbox.whole_file import WholeFile

        options, records = self._options, 0
        schema = arrow.schema(self._columns)
        with WholeFile(self._files, path, force=options.force) as sink:
            out = writer(options.format, sink, schema, self._codec, in_base64=options.in_base64)
            # the few rows of one batch are too little for a row group
            gathered = arrow.Gathered(BATCH_ROWS, BATCH_BYTES)
            for partition in partitions:
                try:
                    for batch in self._batches_of(partition):
                        records += batch.num_rows
                        for whole in gathered.add(batch):
                            out.write(whole)
                except OSError as error:
                    # An empty file would look like a partition without records.
                    if (not records and len(partitions) == 1) or not self.tells(error, [partition], report):
                        raise
            for whole in gathered.rest():
                out.write(whole)
            out.close()
        report.files.append(ExportedFile(path, [str(partition) for partition in partitions], records, sink.size))

    def tells(self, error: OSError, partitions: Sequence[TopicPartition], report: ExportReport) -> bool:
        """Returns whether the export continues without the rest of an unreadable partition; then the report says
        why."""
        if self._options.selection.tell is None:
            return False
        folders = [os.path.join(self._log_dir, str(partition)) for partition in partitions]
        wrong = unread(error, *folders)
        if wrong is None:
            return False
        name = os.path.basename(next(each for each in folders if unread(error, each) is not None))
        report.unread.append(wrong._replace(what=f"{wrong.what}: the records of {name} from there on are left out"))
        return True

    def _batches_of(self, partition: TopicPartition) -> Iterator[Any]:
        with PartitionView(self._log_dir, partition, files=self._files) as view:
            yield from self._batches(view) if self._read is None else self._read(view, self._columns)

    def _batches(self, view: PartitionView) -> Iterator[Any]:
        """Yields a partition's record batches."""

        def ready() -> PartitionView:
            return view

        options = self._options
        place = selected_range(ready, options.selection, options.last, lenient=self._lenient)
        return batches_in(
            ready,
            options.selection,
            place,
            self._columns,
            BATCH_ROWS,
            batch_bytes=BATCH_BYTES,
            progress=self._progress,
        )


def __dir__() -> list[str]:
    return __all__
