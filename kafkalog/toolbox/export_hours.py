"""Exports a range of offsets to Parquet files by topic and hour, so that an interrupted run can continue.

    TARGET/topic=orders/hour=2026-11-01-09/orders-0-00000000000000001200.parquet    its first record's offset
    TARGET/_kafkalog/orders-0/00000000000000001000-00000000000000002000.json        a complete range and its files
    TARGET/_kafkalog/orders-0/log.json                                              which log it is from (`export_log`)
    TARGET/_kafkalog/export.json                                                    what all files have in common

The files of a range get their names one after the other, each once it is complete; then the range's note is written.
Files that no note names are from an interrupted run, and are deleted before the next one (`drop_unnoted`).  The hour is
that of a record's timestamp, in UTC; late records add further files to an hour.  Readers of Hive's layout find `topic`
and `hour` in the path, and ignore names with `_` and `.`.  A record without a timestamp, or after the year 9999, has no
hour: its directory has Hive's name for none, which Spark reads as null.

Each note has its own checksum and those of its files, so a flipped bit is found before anything is used.

Memory holds what waits for its file (PENDING_BYTES) and one batch.  Knows no logs: batches come from the caller.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog._face.arrow import SPARK_COLUMNS, schema
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.small_files import read_small
from kafkalog.errors import CorruptCheckpointException, IllegalArgumentException
from kafkalog.toolbox.export_files import ParquetGroups
from kafkalog.toolbox.whole_file import WholeFile

NOTES = "_kafkalog"
HOUR_US = 3_600_000_000
HOURS_END = 70_389_528  # the first hour of the year 10000
NO_HOUR = -1
NO_HOUR_FOLDER = "hour=__HIVE_DEFAULT_PARTITION__"
GROUP_ROWS = 262_144  # the most in a row group
GROUP_BYTES = 16 << 20
PENDING_BYTES = 16 << 20  # the most of records that wait for their hour's next row group
OPEN_HOURS_MAX = 32
CHECKSUM = "crc32c"
FILE_COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")  # topic is in the path
_FILE = re.compile(r"(?P<name>.+-\d+)-(?P<first>\d{20})\.parquet")
_TEMPORARY = re.compile(r"\.(?P<name>.+-\d+)-\d{20}\.parquet\.\d+\.tmp")
_RANGE = re.compile(r"(\d{20})-(\d{20})\.json")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Layout:
    """The options that all files of a target have in common."""

    headers: bool = False
    isolation: str = "read_uncommitted"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in FILE_COLUMNS if self.headers or name != "headers")


class HourFile(NamedTuple):
    """One exported file.  `path` is relative to the target, `crc32c` covers all its bytes."""

    path: str
    first_offset: int
    last_offset: int
    records: int
    bytes: int
    crc32c: int


class Range(NamedTuple):
    """Offsets [start, end) of a partition."""

    partition: TopicPartition
    start: int
    end: int


class Witness(NamedTuple):
    """The last record of a range, which identifies its log: its offset, its timestamp (microseconds), and a checksum of
    its key and value."""

    offset: int
    timestamp_us: int
    crc32c: int


class Note(NamedTuple):
    """A complete range: its files, its last record (None if it has none), and what was left out because of damage."""

    range: Range
    files: list[HourFile]
    last: Witness | None
    skipped: list[str]


# --- a target --------------------------------------------------------------------------------------------


def settle_layout(target: str, layout: Layout, files: Files = OS_FILES) -> None:
    """Stores what the target's files have in common.  Raises IllegalArgumentException if existing files have something
    else."""
    path = os.path.join(target, NOTES, "export.json")
    if files.exists(path):
        found = Layout(**read_note(path, files))
        if found != layout:
            raise IllegalArgumentException(
                f"the target has an export with headers={found.headers}, isolation={found.isolation}",
                path=target,
                hint="continue with the same options, or choose another target",
            )
        return
    write_note(path, asdict(layout), files)


def layout_of(target: str, files: Files = OS_FILES) -> Layout:
    """Reads what the target's files have in common.  Raises IllegalArgumentException if nothing was exported there."""
    path = os.path.join(target, NOTES, "export.json")
    if not files.exists(path):
        raise IllegalArgumentException(
            "the directory has no export", path=target, hint=f"expected the file {NOTES}/export.json in it"
        )
    return Layout(**read_note(path, files))


def write_note(path: str, content: dict[str, Any], files: Files = OS_FILES) -> None:
    """Writes JSON with its own checksum, in one step."""
    files.mkdirs_synced(os.path.dirname(path))
    files.write_atomic(path, json.dumps({**content, CHECKSUM: _checksum(content)}).encode())


def read_note(path: str, files: Files = OS_FILES) -> Any:
    """Reads what `write_note` wrote.  Raises CorruptCheckpointException if the file is damaged."""
    try:
        content = json.loads(read_small(path, files))
        expected = content.pop(CHECKSUM)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _bad_note(path, f"the file does not describe an export: {error}") from None
    if _checksum(content) != expected:
        raise _bad_note(path, f"its checksum is {_checksum(content)}; expected {expected}")
    return content


def _checksum(content: dict[str, Any]) -> int:
    return crc32c(json.dumps(content, sort_keys=True).encode())


def _bad_note(path: str, text: str) -> CorruptCheckpointException:
    return CorruptCheckpointException(text, path=path, hint="remove it: the next export writes its files again")


def noted(target: str, partition: TopicPartition, files: Files = OS_FILES) -> list[Note]:
    """Returns the complete ranges of a partition, by offset.  Raises CorruptCheckpointException."""
    folder = os.path.join(target, NOTES, str(partition))
    found = []
    for name in sorted(files.list_dir(folder)) if files.is_dir(folder) else ():
        if (read := _RANGE.fullmatch(name)) is not None:
            content = read_note(os.path.join(folder, name), files)
            written = [HourFile(**entry) for entry in content["files"]]
            last = None if content["last"] is None else Witness(**content["last"])
            found.append(Note(Range(partition, int(read[1]), int(read[2])), written, last, content["skipped"]))
    return found


def gaps(ranges: Iterable[Range], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of [start, end) that are in none of the ascending ranges."""
    for each in ranges:
        if each.start > start and start < end:
            yield start, min(each.start, end)
        start = max(start, each.end)
    if start < end:
        yield start, end


def drop_unnoted(target: str, partitions: Iterable[TopicPartition], files: Files = OS_FILES) -> list[str]:
    """Deletes files of the partitions that no note names: an interrupted run left them.  Returns their paths.

    A partition whose notes cannot be read keeps its files."""
    dropped = []
    for topic, here in _by_topic(partitions).items():
        whole, mine = set(), set()
        for partition in here:
            with contextlib.suppress(CorruptCheckpointException):  # continuing the export will raise it
                whole |= {file.path for note in noted(target, partition, files) for file in note.files}
                mine.add(str(partition))
        for hour in _folders(os.path.join(target, f"topic={topic}"), "hour=", files):
            for name in files.list_dir(hour):
                read = _FILE.fullmatch(name) or _TEMPORARY.fullmatch(name)
                path = os.path.join(hour, name)
                if read is not None and read["name"] in mine and os.path.relpath(path, target) not in whole:
                    files.unlink(path)
                    dropped.append(path)
    return dropped


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        found.setdefault(partition.topic, []).append(partition)
    return found


def _folders(path: str, begin: str, files: Files) -> list[str]:
    listed = sorted(files.list_dir(path)) if files.is_dir(path) else ()
    return [os.path.join(path, name) for name in listed if name.startswith(begin)]


def exported(target: str, files: Files = OS_FILES) -> list[TopicPartition]:
    """Returns the partitions of which an export wrote or began something.  Raises IllegalArgumentException if there is
    no export."""
    layout_of(target, files)
    found = []
    for name in files.list_dir(os.path.join(target, NOTES)):
        topic, dash, number = name.rpartition("-")
        if dash and number.isdigit():
            found.append(TopicPartition(topic, int(number)))
    return sorted(found)


def exported_files(target: str, partition: TopicPartition, files: Files = OS_FILES) -> list[HourFile]:
    """Returns the files of a partition's complete ranges, by first offset.  Raises CorruptCheckpointException if a note
    is damaged."""
    written = [file for note in noted(target, partition, files) for file in note.files]
    return sorted(written, key=lambda file: file.first_offset)


# --- a range ---------------------------------------------------------------------------------------------


def export_range(
    work: Range,
    batches: Iterable[Any],
    target: str,
    layout: Layout,
    codec: str,
    skipped: list[str] | None = None,
    files: Files = OS_FILES,
) -> list[HourFile]:
    """Writes the record batches of a range (with `layout.columns`), and then its note.  An error leaves no note.

    `skipped` is what is left out, and may grow until the batches are at their end."""
    hours = _Hours(work.partition, target, layout, codec, files)
    last: Witness | None = None
    try:
        for batch in batches:
            hours.add(batch)
            if batch.num_rows:
                last = witness_of(batch)
        written = hours.finish()
    except BaseException:
        hours.give_up()
        raise
    content = {
        "files": [entry._asdict() for entry in written],
        "last": None if last is None else last._asdict(),
        "skipped": skipped or [],
    }
    path = os.path.join(target, NOTES, str(work.partition), f"{work.start:020d}-{work.end:020d}.json")
    write_note(path, content, files)
    return written


def witness_of(batch: Any) -> Witness:
    """Returns the witness of the last row of a record batch."""
    row = batch.slice(batch.num_rows - 1)
    digest = 0
    for name in ("key", "value"):
        octets = row.column(name)[0].as_py()
        digest = crc32c(b"-" if octets is None else b"%d:" % len(octets) + octets, digest)
    timestamp_us = row.column("timestamp").view(pa.int64())[0].as_py()
    return Witness(row.column("offset")[0].as_py(), timestamp_us, digest)


class _OpenHour:
    """A file that is being written, and the batches that wait for its next row group."""

    def __init__(self, path: str, sink: WholeFile, out: ParquetGroups, first_offset: int) -> None:
        self.path = path
        self.sink = sink
        self.out = out
        self.first_offset = first_offset
        self.last_offset = first_offset
        self.records = 0
        self.pending: list[Any] = []
        self.pending_rows = 0
        self.pending_bytes = 0

    def add(self, batch: Any) -> None:
        self.pending.append(batch)
        self.pending_rows += batch.num_rows
        self.pending_bytes += batch.nbytes
        self.records += batch.num_rows
        self.last_offset = batch.column("offset")[-1].as_py()

    def write(self) -> None:
        if self.pending:
            batches, self.pending, self.pending_rows, self.pending_bytes = self.pending, [], 0, 0
            self.out.write_group(batches)


class _Hours:
    """The files of one range."""

    def __init__(self, partition: TopicPartition, target: str, layout: Layout, codec: str, files: Files) -> None:
        self._partition = partition
        self._target = target
        self._schema = schema(layout.columns, SPARK_COLUMNS)
        self._codec = codec
        self._files = files
        self._open: dict[int, _OpenHour] = {}  # by hour since 1970, the most recently used last
        self._written: list[HourFile] = []

    def add(self, batch: Any) -> None:
        for hour, rows in by_hour(batch):
            opened = self._open.pop(hour, None) or self._begin(hour, rows.column("offset")[0].as_py())
            self._open[hour] = opened
            opened.add(rows)
            if opened.pending_rows >= GROUP_ROWS or opened.pending_bytes >= GROUP_BYTES:
                opened.write()
        while sum(each.pending_bytes for each in self._open.values()) > PENDING_BYTES:
            max(self._open.values(), key=lambda each: each.pending_bytes).write()

    def _begin(self, hour: int, first_offset: int) -> _OpenHour:
        if len(self._open) >= OPEN_HOURS_MAX:
            self._end(next(iter(self._open)))
        name = f"{self._partition}-{first_offset:020d}.parquet"
        path = os.path.join(f"topic={self._partition.topic}", _folder(hour), name)
        whole = os.path.join(self._target, path)
        self._files.mkdirs_synced(os.path.dirname(whole))
        sink = WholeFile(self._files, whole, force=True)
        sink.__enter__()
        return _OpenHour(path, sink, ParquetGroups(sink, self._schema, self._codec), first_offset)

    def _end(self, hour: int) -> None:
        opened = self._open[hour]
        opened.write()
        opened.out.close()
        opened.sink.__exit__(None, None, None)
        del self._open[hour]
        self._written.append(
            HourFile(
                opened.path,
                opened.first_offset,
                opened.last_offset,
                opened.records,
                opened.sink.size,
                opened.sink.crc32c,
            )
        )

    def finish(self) -> list[HourFile]:
        """Writes the last row groups; then all files have their names."""
        for hour in list(self._open):
            self._end(hour)
        return sorted(self._written, key=lambda file: file.path)

    def give_up(self) -> None:
        """Removes the temporary files."""
        for opened in self._open.values():
            opened.sink.__exit__(RuntimeError, None, None)
        self._open.clear()


def _folder(hour: int) -> str:
    return NO_HOUR_FOLDER if hour == NO_HOUR else f"hour={_EPOCH + timedelta(hours=hour):%Y-%m-%d-%H}"


def by_hour(batch: Any) -> Iterator[tuple[int, Any]]:
    """Yields a batch's rows by the hour of their timestamp, in order: hours since 1970, or NO_HOUR, and the rows."""
    hours = np.floor_divide(batch.column("timestamp").view(pa.int64()).to_numpy(zero_copy_only=False), HOUR_US)
    hours = np.where((hours < 0) | (hours >= HOURS_END), NO_HOUR, hours)
    if not len(hours):
        return
    first = int(hours[0])
    if (hours == first).all():
        yield first, batch
        return
    changes = np.flatnonzero(np.diff(hours)) + 1
    distinct = np.unique(hours)
    if len(changes) + 1 == len(distinct):
        for start, end in zip([0, *changes], [*changes, len(hours)], strict=True):
            yield int(hours[start]), batch.slice(start, end - start)
        return
    for hour in distinct:
        yield int(hour), batch.filter(pa.array(hours == hour))
