"""The cursors of a log directory as a table: `option("content", "cursors")` of the source and of the sink.

A read has one row for each partition of a group: consumer groups, named readers, and share groups with their start
offsets.  It takes no lock.  A write sets the offsets of its rows, by the rules of `kafkalog cursors --from-file`: the
directory must be free, and a group that has members is refused.  A change of several groups is carried out group by
group.  The driver reads and writes; executors only carry the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kafkalog.engine.files import local_path
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import GroupNotEmptyException, IllegalArgumentException
from kafkalog.spark.column_types import TYPES, not_null_of, promised
from kafkalog.spark.options import _note_unknown, log
from kafkalog.spark.path_lists import array_of_paths, listed_paths
from kafkalog.spark.plainly import plainly
from kafkalog.spark.worker import AnswersAtOnce
from kafkalog.toolbox.cursor_changes import carry_out, plan_from_file
from kafkalog.toolbox.cursors import CursorLook, GroupCursors

OPTION = "content"
COLUMN_TYPES = {
    "group": "string",
    "type": "string",  # Classic, Consumer, Share or Streams
    "state": "string",
    "members": "int",
    "topic": "string",  # null, with what follows, for a group without offsets
    "partition": "int",
    "offset": "bigint",  # the committed offset; of a share group, the start offset
    "end": "bigint",
    "lag": "bigint",
    "metadata": "string",
}
WRITTEN = ("group", "topic", "partition", "offset")

Row = tuple[Any, ...]


def is_asked(options: Mapping[str, str]) -> bool:
    """Returns whether the options ask for cursors.  IllegalArgumentException for other contents than records."""
    found = next((value.strip().lower() for name, value in options.items() if name.lower() == OPTION), "records")
    if found not in ("records", "cursors"):
        raise IllegalArgumentException(f"option {OPTION} is {found!r}", hint="expected records or cursors")
    return found == "cursors"


def _log_dirs(options: Mapping[str, str]) -> list[str]:
    given = {name.lower(): value for name, value in options.items()}
    _note_unknown(options, ("path", "paths", OPTION))
    listed = array_of_paths(given["paths"], "paths") if "paths" in given else listed_paths(given.get("path", ""))
    if not listed:
        raise IllegalArgumentException("option path is missing", hint="expected the log directory, as .load(dir)")
    return [local_path(part.strip(), what="option path") for part in listed]


@dataclass
class Rows(InputPartition):  # type: ignore[misc]
    """All rows of a read, in the order of the columns."""

    rows: tuple[Row, ...]


class CursorReader(AnswersAtOnce, DataSourceReader):  # type: ignore[misc]
    """Reads on the driver; executors return the rows."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.log_dirs = _log_dirs(options)
        self.columns = [field.name for field in schema.fields]
        for field in schema.fields:
            if TYPES.get(COLUMN_TYPES.get(field.name, "")) != field.dataType:
                raise IllegalArgumentException(
                    f"there is no column {field.name} {field.dataType.simpleString()}",
                    hint=f"expected {', '.join(f'{name} {kind}' for name, kind in COLUMN_TYPES.items())}",
                )
        self.not_null = not_null_of(schema)

    @plainly
    def partitions(self) -> Sequence[Rows]:
        look = CursorLook(self.log_dirs)
        for finding in look.findings:
            log.warning("%s", finding)
        return [Rows(tuple(row for group in look.groups.values() for row in _rows_of(group)))]

    @plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields one Arrow record batch."""
        import pyarrow as pa

        kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
        known = list(COLUMN_TYPES)
        places = [known.index(name) for name in self.columns]
        fields = [(name, kinds[COLUMN_TYPES[name]]) for name in self.columns]
        columns = [[row[place] for row in partition.rows] for place in places]
        arrays = [pa.array(column, kind) for column, (_, kind) in zip(columns, fields, strict=True)]
        return promised(iter([pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))]), self.not_null)


def _rows_of(group: GroupCursors) -> Iterator[Row]:
    listed = group.listed
    first = listed.group, listed.type.value, listed.state, len(group.members)
    if not group.cursors:
        yield *first, None, None, None, None, None, None
    for each in group.cursors:
        offset = None if each.committed is None else each.committed.offset
        metadata = None if each.committed is None else each.committed.metadata
        yield *first, *each.partition, offset, each.end, each.lag, metadata


@dataclass
class Wanted(WriterCommitMessage):  # type: ignore[misc]
    """The rows of a task."""

    rows: tuple[Row, ...]


class CursorWriter(AnswersAtOnce, DataSourceWriter):  # type: ignore[misc]
    """Sets the offsets of groups when all tasks are done."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.log_dirs = _log_dirs(options)
        kinds = {field.name: field.dataType for field in schema.fields}
        for name in WRITTEN:
            if kinds.get(name) != TYPES[COLUMN_TYPES[name]]:
                raise IllegalArgumentException(
                    f"a write of cursors needs a column {name} {COLUMN_TYPES[name]}",
                    hint=f"expected {', '.join(f'{each} {COLUMN_TYPES[each]}' for each in WRITTEN)}",
                )

    @plainly
    def write(self, iterator: Iterator[Any]) -> Wanted:
        return Wanted(tuple(tuple(row[name] for name in WRITTEN) for row in iterator))

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        plans: dict[str, dict[TopicPartition, int]] = {}
        for group, topic, number, offset in (row for each in messages if each is not None for row in each.rows):
            place = TopicPartition(topic, number)
            if None in (group, topic, number, offset) or offset < 0 or place in plans.get(group, ()):
                raise IllegalArgumentException(
                    f"found an offset {offset} of group {group!r} in {topic}-{number}",
                    hint=f"expected no null in {', '.join(WRITTEN)}, and one row for each partition of a group",
                )
            plans.setdefault(group, {})[place] = offset
        if not plans:
            return
        look = CursorLook(self.log_dirs)
        plan = plan_from_file(look, plans, list(plans))
        if plan.refused:
            group, why = next(iter(plan.refused.items()))
            raise GroupNotEmptyException(f"group {group!r} is not changed: {why}", hint="no group was changed")
        for change in plan.changes:
            if change.note is not None:
                log.warning("%s in %s: %s", change.group, change.partition, change.note)
        carry_out(look, plan)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: tasks have written nothing."""
