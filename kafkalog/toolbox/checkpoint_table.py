"""Compares a log directory's checkpoints with its files, one row a partition, and sets single lines with care.

recovery-point: everything before it was flushed.  log-start: the log start offset, if that is not the first segment.
replication: the high watermark.  cleaner: the offset up to which the log was compacted.  Setting a line takes the
directory's lock; reading takes none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkalog._face.named import names_of_partition
from kafkalog.engine.files import OS_FILES, Files, parent_dir
from kafkalog.engine.format import names, values
from kafkalog.engine.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.meta_properties import MetaProperties, read_meta_properties
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import refuse_foreign
from kafkalog.engine.log.checkpoint_lines import KEEPS_MS, CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import IllegalArgumentException, KafkalogError, UnknownTopicOrPartitionException
from kafkalog.toolbox.folders import copies_known, folders_of
from kafkalog.toolbox.report import SECOND_LOOK_S

__all__ = ["Change", "CheckpointRow", "CheckpointTable", "Extent", "change_line", "checkpoint_table", "plan_change"]

RECOVERY, START, WATERMARK, CLEANER = names.OFFSET_CHECKPOINT_FILES


class Extent(NamedTuple):
    """Where a partition's files begin and end."""

    first_base: int
    active_base: int
    log_end_offset: int


@dataclass
class CheckpointRow:
    """One partition: its lines by checkpoint file (None: no line), and what its directory has (None: no directory)."""

    partition: TopicPartition
    lines: dict[str, int | None]
    extent: Extent | None
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class CheckpointTable:
    """The checkpoints of a directory.

    `files` maps each checkpoint to its number of lines, to the reason why it cannot be read, or to None if it does
    not exist.
    """

    log_dir: str
    rows: list[CheckpointRow] = field(default_factory=list)
    files: dict[str, int | str | None] = field(default_factory=dict)
    clean_shutdown: bool = False
    broker_epoch: int | None = None
    meta: MetaProperties | None = None
    findings: list[str] = field(default_factory=list)


def checkpoint_table(
    log_dir: str,
    asked: Collection[str] = (),
    *,
    extents: Mapping[TopicPartition, Extent] | None = None,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> CheckpointTable:
    """Reads the checkpoints of a log directory and checks them against its files.

    Args:
        log_dir: The log directory.
        asked: Topics, partitions or globs to show; empty shows all.
        extents: Where partitions begin and end, as far as the caller knows it; the others are read.
        files: The file system; for tests.
        progress: Called with 1 for each partition.

    Returns:
        A `CheckpointTable`, which also has an entry for each file that cannot be read.

    Raises:
        OSError: The directory cannot be listed.

    Example:
        >>> from kafkalog.toolbox.checkpoint_table import checkpoint_table
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> table = checkpoint_table("shop")
        >>> table.rows[0].lines["recovery-point-offset-checkpoint"], table.rows[0].extent.log_end_offset
        (1, 1)
    """
    table = CheckpointTable(log_dir)
    lines: dict[str, dict[TopicPartition, int]] = {}
    for name in names.OFFSET_CHECKPOINT_FILES:
        path = os.path.join(log_dir, name)
        lines[name] = {}
        try:
            lines[name] = OffsetCheckpointFile(path, files, create=False).read()
            table.files[name] = len(lines[name])
        except FileNotFoundError:
            table.files[name] = None
        except (KafkalogError, OSError) as error:
            table.files[name] = " ".join(str(error).split())
            table.findings.append(f"{path}: {table.files[name]}")
    marker = CleanShutdownFile(log_dir, files)
    table.clean_shutdown, table.broker_epoch = marker.exists(), marker.read()
    try:
        table.meta = read_meta_properties(os.path.join(log_dir, names.META_PROPERTIES_FILE), files)
    except FileNotFoundError:
        pass
    except KafkalogError as error:
        table.findings.append(" ".join(str(error).split()))
    found = folders_of(log_dir, files)
    future = set(found.future.values())
    checkpoints = CheckpointLines(log_dir, files, keeps_ms=KEEPS_MS)
    has_rested = False
    for partition in sorted({*found.partitions, *(each for of in lines.values() for each in of)}):
        if progress is not None:
            progress(1)
        if asked and not names_of_partition(asked, partition):
            continue
        row = CheckpointRow(partition, {name: of.get(partition) for name, of in lines.items()}, None)
        if partition in found.partitions:
            try:
                row.extent = (extents or {}).get(partition)
                if row.extent is None or _impossible(row):  # or the log has grown since the caller read it
                    row.extent = extent_of(log_dir, partition, files, checkpoints)
            except UnknownTopicOrPartitionException:
                continue  # deleted meanwhile
            except KafkalogError as error:
                row.findings.append(" ".join(str(error).split()))
            if row.lines[RECOVERY] is None and isinstance(table.files[RECOVERY], int):
                row.notes.append(f"has no line in {RECOVERY} (yet): without one, all records count as not flushed")
            row.findings += _impossible(row)
        elif partition not in future and partition.topic != names.CLUSTER_METADATA_TOPIC:
            if not has_rested:  # a deletion that is under way rewrites the files
                has_rested = True
                time.sleep(SECOND_LOOK_S)
            row.lines = {name: checkpoints.line(name, partition) for name in row.lines}
            where = ", ".join(name for name, offset in row.lines.items() if offset is not None)
            if not where:
                continue
            row.findings.append(
                f"has no directory, but a line in {where}; a broker drops the line when it next writes the file"
            )
        table.rows.append(row)
    table.findings += [f"{row.partition}: {what}" for row in table.rows for what in row.findings]
    return table


def extent_of(
    log_dir: str, partition: TopicPartition, files: Files = OS_FILES, checkpoints: CheckpointLines | None = None
) -> Extent:
    """Returns where a partition begins and ends.  Raises UnknownTopicOrPartitionException and the errors of a view."""
    with PartitionView(log_dir, partition, files=files, checkpoints=checkpoints) as view:
        bases = [segment.base_offset for segment in view.segments]
        end = view.log_end_offset
    return Extent(bases[0] if bases else end, bases[-1] if bases else end, end)


def _impossible(row: CheckpointRow) -> list[str]:
    """Returns what is wrong with the row's lines."""
    return [
        f"{name} says {offset}: {why}"
        for name, offset in row.lines.items()
        if offset is not None and row.extent is not None and (why := _beyond(name, offset, row.extent))
    ]


def _beyond(name: str, offset: int, extent: Extent) -> str | None:
    """Returns why an offset is impossible; None if it is possible."""
    if offset > extent.log_end_offset:
        why = {
            RECOVERY: "more was flushed than the log has: files are missing or were truncated",
            START: "all records would be deleted",
            WATERMARK: "the replicas have more than this log",
            CLEANER: "more was compacted than the log has",
        }[name]
        return f"it is after the log end offset {extent.log_end_offset}: {why}"
    if name == CLEANER and offset > extent.active_base:
        return f"it is in the active segment {extent.active_base}, which is never compacted"
    return None


class Change(NamedTuple):
    """One line to set: `old` and `new` are None for no line.  `nonsense` has the reasons against the change."""

    path: str
    partition: TopicPartition
    old: int | None
    new: int | None
    nonsense: list[str]
    notes: list[str]


def plan_change(path: str, partition: TopicPartition, offset: int | None, *, files: Files = OS_FILES) -> Change:
    """Plans the change of one line of the checkpoint at `path`.

    Args:
        path: The checkpoint file, one of Kafka's four offset checkpoints.
        partition: The partition of the line.
        offset: The new offset; None removes the line.
        files: The file system; for tests.

    Returns:
        A `Change` for `change_line`, with the reasons against it in `nonsense`.

    Raises:
        IllegalArgumentException: The file is no offset checkpoint, the offset is invalid, or the format cannot hold the
            partition's name.
        CorruptCheckpointException: The checkpoint cannot be read, so it is not overwritten.

    Example:
        >>> from kafkalog.toolbox.checkpoint_table import plan_change
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> path = "shop/recovery-point-offset-checkpoint"
        >>> plan_change(path, kafkalog.TopicPartition("orders", 0), 9).nonsense[0]
        'it is after the log end offset 1: more was flushed than the log has: files are missing or were truncated'
    """
    name, log_dir = os.path.basename(path), parent_dir(os.path.abspath(path))
    if name not in names.OFFSET_CHECKPOINT_FILES:
        raise IllegalArgumentException(
            f"the file is {name or path}; expected one of {', '.join(names.OFFSET_CHECKPOINT_FILES)}",
            path=path,
            hint="give the path of the file",
        )
    if offset is not None:
        offset = values.offset(offset, "OFFSET")
        if offset < 0:
            raise IllegalArgumentException(f"OFFSET is {offset}; expected 0 or more")
    if not OffsetCheckpointFile.can_hold(partition):
        raise IllegalArgumentException(
            f"the partition's name is {str(partition)!r}; a line of a checkpoint cannot hold white space", path=path
        )
    lines = _read(path, files)
    old = lines.get(partition)
    nonsense: list[str] = []
    notes: list[str] = []
    try:
        extent = extent_of(log_dir, partition, files)
    except UnknownTopicOrPartitionException:
        extent = None
        if offset is not None:
            nonsense.append(f"{log_dir} has no directory {partition}: a broker drops the line")
    if extent is not None:
        nonsense += _nonsense(name, old, offset, extent, _others(log_dir, name, partition, files))
    if name == START and offset is not None and offset > (old or 0) and copies_known(log_dir, files)(partition):
        nonsense.append(
            "some of it was copied to a remote tier: a store that is opened with the tier deletes there too"
        )
    if name == RECOVERY and CleanShutdownFile(log_dir, files).exists():
        notes.append(f"{names.CLEAN_SHUTDOWN_FILE} exists: a broker trusts it and does not use recovery points")
    if name == RECOVERY and offset is None:
        notes.append("without a line, all records count as not flushed: the next unclean start checks all of them")
    return Change(path, partition, old, offset, nonsense, notes)


def _others(log_dir: str, name: str, partition: TopicPartition, files: Files) -> dict[str, int]:
    checkpoints = CheckpointLines(log_dir, files)
    lines = {other: checkpoints.line(other, partition) for other in names.OFFSET_CHECKPOINT_FILES if other != name}
    return {other: line for other, line in lines.items() if line is not None}


def _nonsense(name: str, old: int | None, new: int | None, extent: Extent, others: dict[str, int]) -> list[str]:
    if new is None:
        if name == START and old is not None and old > extent.first_base:
            return [f"without the line, the deleted offsets {extent.first_base} to {old - 1} come back"]
        return []
    found = []
    beyond = _beyond(name, new, extent)
    if beyond:
        found.append(beyond)
    if name == START:
        if new < extent.first_base:
            found.append(f"it is before the first segment {extent.first_base}, where the log has no records")
        if old is not None and new < old:
            found.append(f"the deleted offsets {max(new, extent.first_base)} to {old - 1} come back")
        if WATERMARK in others and new > others[WATERMARK]:
            found.append(f"it is after the high watermark {others[WATERMARK]} in {WATERMARK}")
    if name == WATERMARK and new < max(others.get(START, 0), extent.first_base):
        found.append(f"it is before the log start offset {max(others.get(START, 0), extent.first_base)}")
    if name == RECOVERY and old is not None and new > old:
        found.append(f"offsets {old} to {new - 1} were not flushed; after a crash, damage there would not be checked")
    return found


def change_line(change: Change, *, files: Files = OS_FILES) -> str:
    """Sets or removes one line, and keeps a copy of the file as it was.

    Takes the directory's lock.

    Args:
        change: The change, from `plan_change`.
        files: The file system; for tests.

    Returns:
        The path of the copy; "" if the file did not exist.

    Raises:
        LogDirLockedException: A broker or an open store has the directory.
        CorruptCheckpointException: The checkpoint cannot be read.

    Example:
        >>> from kafkalog.toolbox.checkpoint_table import change_line, plan_change
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> path = "shop/recovery-point-offset-checkpoint"
        >>> print(change_line(plan_change(path, kafkalog.TopicPartition("orders", 0), 0)))
        shop/recovery-point-offset-checkpoint.bak
    """
    log_dir = parent_dir(os.path.abspath(change.path))
    refuse_foreign(log_dir, files)
    with files.lock(os.path.join(log_dir, names.LOCK_FILE)):
        lines = _read(change.path, files)
        copy = _keep_copy(change.path, files)
        if change.new is None:
            lines.pop(change.partition, None)
        else:
            lines[change.partition] = change.new
        OffsetCheckpointFile(change.path, files, create=False).write(lines)
    return copy


def _read(path: str, files: Files) -> dict[TopicPartition, int]:
    try:
        return OffsetCheckpointFile(path, files, create=False).read()
    except FileNotFoundError:
        return {}


def _keep_copy(path: str, files: Files) -> str:
    if not files.exists(path):
        return ""
    number, copy = 0, f"{path}.bak"
    while files.exists(copy):
        number += 1
        copy = f"{path}.bak.{number}"
    files.write_file(copy, files.read_bytes(path), sync=True)
    files.sync_dir(parent_dir(copy))
    return copy


def __dir__() -> list[str]:
    return __all__
