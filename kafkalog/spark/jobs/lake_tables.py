"""Registers the files of an export in a Delta or an Iceberg table, each file once.

The packages `deltalake` and `pyiceberg` write the metadata of the tables; the Parquet files stay where they are.  Both
sides remember which ranges a table has:

    TARGET/_kafkalog/tables/<table's id>/00000000000000000003.json    the ranges of registration 3
    in the table, by the same commit as the files                    the number of the last registration: 3

The note is written first.  A note whose number the table does not have is registered again.  A number that the table
has is done, even if its files were since compacted or deleted.  A run that was killed can therefore continue at any
point, and no file is in a table twice.  A table that was dropped and created again has another id and gets all files.
This code runs on the driver only, which holds the target's lock; it knows nothing of logs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from kafkalog._face.arrow import SPARK_COLUMNS, schema
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.names import TopicPartition, partition_of
from kafkalog.errors import (
    CorruptCheckpointException,
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    KafkaStorageException,
    MissingPackageException,
)
from kafkalog.toolbox.export_hours import (
    NO_HOUR_FOLDER,
    NOTES,
    HourFile,
    Layout,
    Note,
    Range,
    noted,
    read_note,
    write_note,
)

FORMATS = ("parquet", "delta", "iceberg")
TABLES = "tables"
NAME_FILE = "export-id.json"
PARTITIONED_BY = ("topic", "hour")  # columns of a Delta table that the files' paths name
NONE_YET = -1
_UNNAMED = {"delta": re.compile("%[0-9A-Fa-f]{2}"), "iceberg": re.compile("[#?]")}
_NUMBER = re.compile(r"(\d{20})\.json")


class Registered(NamedTuple):
    """A file of a complete range, and the partition of its records."""

    partition: TopicPartition
    file: HourFile


class LakeTable(Protocol):
    """A table in which files can be registered."""

    id: str

    def last(self, export_id: str) -> int:
        """Returns the number of an export's last registration; NONE_YET if there is none."""

    def add(self, export_id: str, number: int, files: Sequence[Registered]) -> None:
        """Adds the files and the number to the table, in one commit."""


class Tables(NamedTuple):
    """Where the files of an export are registered: `format` is one of FORMATS; `catalog` and `namespace` are
    Iceberg's."""

    format: str = "parquet"
    catalog: Any = None
    namespace: str | tuple[str, ...] | None = None


def check_tables(tables: Tables) -> None:
    """Raises IllegalArgumentException or MissingPackageException before anything is written."""
    if tables.format not in FORMATS:
        raise IllegalArgumentException(f"found format {tables.format!r}", hint=f"expected one of {', '.join(FORMATS)}")
    if tables.format != "iceberg" and (tables.catalog is not None or tables.namespace is not None):
        raise IllegalArgumentException(
            f"found a catalog or a namespace with format {tables.format!r}",
            hint='leave them out, or set format="iceberg"',
        )
    if tables.format == "delta":
        _need("deltalake")
    if tables.format == "iceberg":
        _need("pyiceberg")
        if not hasattr(tables.catalog, "create_table_if_not_exists") or not tables.namespace:
            raise IllegalArgumentException(
                f"found catalog {tables.catalog!r} and namespace {tables.namespace!r}",
                hint='format="iceberg" needs both: catalog=pyiceberg.catalog.load_catalog(...), namespace="logs"; each '
                "topic becomes a table with its name in the namespace",
            )


def check_target(target: str, tables: Tables) -> None:
    """Raises IllegalArgumentException for a path that the table cannot name.

    Iceberg uses files' URLs without decoding, and the Delta package would read `a b` for a table that is in `a%20b`.
    """
    found = _UNNAMED[tables.format].search(target) if tables.format in _UNNAMED else None
    if found is not None:
        raise IllegalArgumentException(
            f"found {found[0]!r} in the target, which has another meaning in {tables.format}",
            path=target,
            hint="choose a target without it",
        )


def _need(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingPackageException(
            f"the package {package} is not installed", hint=f"pip install {package}"
        ) from None


def register(target: str, layout: Layout, partitions: Iterable[TopicPartition], tables: Tables) -> None:
    """Registers the files of the partitions that the tables do not have yet.

    Raises KafkaStorageException if a table rejects them: the files are written, and the next export registers them.
    Raises IllegalStateException if a table has more of this export than its notes say.
    """
    if tables.format == "parquet":
        return
    groups: dict[str, list[TopicPartition]] = {}
    for each in sorted(set(partitions)):
        groups.setdefault("" if tables.format == "delta" else each.topic, []).append(each)
    export_id = _export_id(target)
    for topic, its in groups.items():
        with _registering(target):
            if tables.format == "delta":
                table: LakeTable = _DeltaTable(target, layout)
            else:
                table = _IcebergTable(target, layout, tables.catalog, tables.namespace, topic)
            _register(target, export_id, table, its)


@contextlib.contextmanager
def _registering(target: str) -> Iterator[None]:
    """Raises errors of the packages as KafkaStorageException."""
    try:
        yield
    except KafkalogError:
        raise
    except Exception as error:
        raise KafkaStorageException(
            f"cannot register the export: {type(error).__name__}: {error}",
            path=target,
            hint="all files are written; the next export registers the missing ones",
        ) from error


def _register(target: str, export_id: str, table: LakeTable, partitions: Sequence[TopicPartition]) -> None:
    notes = os.path.join(target, NOTES, TABLES, table.id)
    known = _registrations(notes)
    last = max(known, default=NONE_YET)
    done = table.last(export_id)
    lost = sorted({*range(last + 1)} - {*known})
    if done > last or lost:
        found = f"{lost[0]} is missing among its notes" if lost else f"its notes end at {last}"
        raise IllegalStateException(
            f"table {table.id} has registration {done} of this export, {found}",
            path=notes,
            hint="restore this directory; or drop the table and delete the directory: the next export registers all",
        )
    for number in range(done + 1, last + 1):  # a run ended between the two steps
        table.add(export_id, number, _files_of(target, known[number]))
    there = {range_ for its in known.values() for range_ in its}
    new = [note for note in _notes(target, partitions) if note.range not in there]
    if any(note.files for note in new):
        ranges = [note.range for note in new]
        content = [(str(each.partition), each.start, each.end) for each in ranges]
        write_note(os.path.join(notes, f"{last + 1:020d}.json"), {"ranges": content})
        table.add(export_id, last + 1, _files_of(target, ranges))


def _notes(target: str, partitions: Iterable[TopicPartition]) -> Iterator[Note]:
    for partition in partitions:
        with contextlib.suppress(CorruptCheckpointException):  # the partition's row reports it
            yield from noted(target, partition)


def _files_of(target: str, ranges: Sequence[Range]) -> list[Registered]:
    """Returns the files of ranges.

    Raises CorruptCheckpointException for a range whose note cannot be read, IllegalStateException if the note is
    missing.
    """
    notes = {note.range: note for each in {each.partition for each in ranges} for note in noted(target, each)}
    for each in ranges:
        if each not in notes:
            raise IllegalStateException(
                f"offsets {each.start} to {each.end - 1} of {each.partition} were to be registered, but their note is "
                "missing",
                path=target,
                hint="restore it; or drop the table and delete its directory of notes: the next export registers all",
            )
    return [Registered(each.partition, file) for each in ranges for file in notes[each].files]


def _registrations(folder: str) -> dict[int, list[Range]]:
    """Returns the ranges of each registration."""
    found: dict[int, list[Range]] = {}
    for name in sorted(OS_FILES.list_dir(folder)) if OS_FILES.is_dir(folder) else ():
        if (read := _NUMBER.fullmatch(name)) is not None:
            found[int(read[1])] = [
                Range(partition_of(partition), start, end)
                for partition, start, end in _note(os.path.join(folder, name))["ranges"]
            ]
    return found


def _note(path: str) -> Any:
    try:
        return read_note(path)
    except CorruptCheckpointException as error:
        error.hint = (
            "the note says what a table has: restore it; or drop the table and delete the directory of this note: the "
            "next export registers everything again"
        )
        raise


def _export_id(target: str) -> str:
    """Returns the permanent id of this export, by which tables know it."""
    path = os.path.join(target, NOTES, TABLES, NAME_FILE)
    if not OS_FILES.exists(path):
        folder = os.path.dirname(path)
        listed = OS_FILES.list_dir(folder) if OS_FILES.is_dir(folder) else []
        if any(name != f"{NAME_FILE}.tmp" for name in listed):  # a run that was killed here leaves the .tmp file
            raise IllegalStateException(
                f"{NAME_FILE} is missing, the id by which tables know this export: all files would be registered again",
                path=folder,
                hint="restore it; or drop the tables and delete this directory: the next export registers all",
            )
        write_note(path, {"id": uuid.uuid4().hex})
    return str(_note(path)["id"])


# --- Delta -----------------------------------------------------------------------------------------------


class _DeltaTable:
    """The target itself as a Delta table, with the columns of its files, and `topic` and `hour` from their paths."""

    def __init__(self, target: str, layout: Layout) -> None:
        import pyarrow as pa

        self._module = _need("deltalake")
        columns = schema(layout.columns, SPARK_COLUMNS)
        for name in PARTITIONED_BY:
            columns = columns.append(pa.field(name, pa.string()))
        self._target = target
        wanted = self._module.Schema.from_arrow(columns)
        if not self._module.DeltaTable.is_deltatable(target):
            self._module.DeltaTable.create(target, wanted, partition_by=list(PARTITIONED_BY))
        self._table = self._module.DeltaTable(target)
        self._schema = self._table.schema()
        self._check(wanted)
        self.id = str(self._table.metadata().id)

    def _check(self, wanted: Any) -> None:
        """Checks that the table has the columns of the files; it may have more."""
        found = {field.name: field.type for field in self._schema.fields}
        wrong = [field.name for field in wanted.fields if found.get(field.name) != field.type]
        divided = self._table.metadata().partition_columns
        if wrong or divided != list(PARTITIONED_BY):
            raise IllegalArgumentException(
                f"found a Delta table partitioned by {', '.join(divided) or 'no column'}; columns that are missing or "
                f"have another type: {', '.join(wrong) or 'none'}",
                path=self._target,
                hint=f"expected an export's table, partitioned by {', '.join(PARTITIONED_BY)}: choose another target",
            )

    def last(self, export_id: str) -> int:
        found = self._table.transaction_version(_app_id(export_id))
        return NONE_YET if found is None else int(found)

    def add(self, export_id: str, number: int, files: Sequence[Registered]) -> None:
        transaction = importlib.import_module("deltalake.transaction")
        done = transaction.Transaction(_app_id(export_id), number)
        self._table.create_write_transaction(
            [self._action(transaction.AddAction, each) for each in files],
            "append",
            self._schema,
            list(PARTITIONED_BY),
            commit_properties=transaction.CommitProperties(app_transactions=[done]),
        )
        self._table.update_incremental()

    def _action(self, action: Any, each: Registered) -> Any:
        file, (topic, number) = each.file, each.partition
        hour = os.path.basename(os.path.dirname(file.path))
        stats = {
            "numRecords": file.records,
            "minValues": {"partition": number, "offset": file.first_offset},
            "maxValues": {"partition": number, "offset": file.last_offset},
            "nullCount": {"partition": 0, "offset": 0},
        }
        return action(
            path=file.path,
            size=file.bytes,
            partition_values={
                "topic": topic,
                "hour": None if hour == NO_HOUR_FOLDER else hour.removeprefix("hour="),
            },
            modification_time=OS_FILES.stat(os.path.join(self._target, file.path)).mtime_ms,
            data_change=True,
            stats=json.dumps(stats),
        )


def _app_id(export_id: str) -> str:
    return f"kafkalog-export-{export_id}"


# --- Iceberg ---------------------------------------------------------------------------------------------


class _IcebergTable:
    """A topic's table in a catalog.

    It is created with the columns of the files and without partitions: its metadata has the bounds of each file's
    timestamps, which are in one hour.
    """

    def __init__(self, target: str, layout: Layout, catalog: Any, namespace: Any, topic: str) -> None:
        self._target = target
        parents = tuple(namespace.split(".")) if isinstance(namespace, str) else tuple(namespace)
        catalog.create_namespace_if_not_exists(parents)
        columns = schema(layout.columns, SPARK_COLUMNS)
        self._table = catalog.create_table_if_not_exists((*parents, topic), columns)
        self.id = str(self._table.metadata.table_uuid)

    def last(self, export_id: str) -> int:
        return int(self._table.properties.get(_property(export_id), NONE_YET))

    def add(self, export_id: str, number: int, files: Sequence[Registered]) -> None:
        paths = ["file://" + os.path.join(self._target, each.file.path) for each in files]
        with self._table.transaction() as transaction:
            if paths:
                transaction.add_files(paths, check_duplicate_files=True)
            transaction.set_properties({_property(export_id): str(number)})


def _property(export_id: str) -> str:
    return f"kafkalog.export.{export_id}"
