"""The data source that Spark uses: it has the columns and options of the Kafka source, and reads a log directory.

The driver plans (`planning`); executors read their bytes and yield Arrow record batches.  It needs pyspark and pyarrow,
and is imported only by Spark (see `pyspark_kafkalog`) or by code that registers it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from kafkalog.errors import (
    IllegalArgumentException,
    UnsupportedOperationException,
)
from kafkalog.spark import changes, cursor_table
from kafkalog.spark.column_types import check_nested, not_null_of, promised, struct_of
from kafkalog.spark.filters import ALL, push
from kafkalog.spark.json_values import JsonValues, json_values, parsed, with_json
from kafkalog.spark.kafka_options import note_stream_options
from kafkalog.spark.options import ALL_COPIES, SourceOptions, parse_options
from kafkalog.spark.packing import pack
from kafkalog.spark.places import hadoop_options
from kafkalog.spark.plainly import plainly
from kafkalog.spark.plan_report import PlanReport
from kafkalog.spark.planning import plan
from kafkalog.spark.replica_column import REPLICA_COLUMN, check_columns
from kafkalog.spark.tables import check_sink, is_of_table, options_to_keep, options_to_read
from kafkalog.spark.tasks import RangePartition, read_task
from kafkalog.spark.triggers import parse_triggers
from kafkalog.spark.worker import AnswersAtOnce
from kafkalog.spark.write_options import parse_sink_options

__all__ = ["KafkalogDataSource", "KafkalogReader", "PushingReader", "register"]

COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    **changes.COLUMN_TYPES,  # only with option changes
    "replica": "int",  # only with replicas=all: the node id of the copy's broker
}
PUSHDOWN_PLANNERS = "pyspark.sql.worker.data_source_pushdown"
OLD_PYSPARK = "streams need PySpark 4.2 or newer"


class KafkalogDataSource(DataSource):  # type: ignore[misc]
    """The format "kafkalog": `spark.read.format("kafkalog").option("path", dir).option("subscribe", "topic")`."""

    # The object store settings of the session that registered the source; options win over them.
    session_options: Mapping[str, str] = {}
    parallelism: int | None = None  # the number of cores of that session

    def _given(self, schema: StructType) -> dict[str, str]:
        return {**self.session_options, **options_to_read(schema.fields, self.options)}

    @classmethod
    def name(cls) -> str:
        """Returns the name for `format`."""
        return "kafkalog"

    @plainly
    def schema(self) -> StructType | str:
        """Returns the columns of Spark's Kafka source (`headers` with includeHeaders), or those of option `columns`."""
        kept = options_to_keep(self.options) if is_of_table(self.options) else None
        given = self.options if kept is None else kept
        if cursor_table.is_asked(given):
            return struct_of(cursor_table.COLUMN_TYPES, kept)
        options = parse_options({**self.session_options, **given}, streaming=None)
        parse_triggers(given)  # also for streams: their query would begin before it is refused
        columns = options.columns
        if columns is None:
            left_out = {*(() if options.include_headers else ("headers",))}
            left_out |= {*(() if options.changes else changes.COLUMN_TYPES)}
            left_out |= {*(() if options.replicas == ALL_COPIES else (REPLICA_COLUMN,))}
            columns = tuple(name for name in COLUMN_TYPES if name not in left_out)
        _check_columns(options, columns)
        types = {name: _type_of(name) for name in columns}
        if options.value_schema is None or "value" not in types:
            return struct_of(types, kept)
        if kept is not None:
            raise IllegalArgumentException(
                "option valueSchema is not valid for a table, whose columns cannot keep it",
                hint="use CREATE TEMPORARY VIEW ... USING kafkalog OPTIONS (...), which accepts it",
            )
        return with_json(types, options.value_schema)

    def _read_options(self, given: Mapping[str, str], streaming: bool) -> SourceOptions:
        return replace(parse_options(given, streaming=streaming), parallelism=self.parallelism)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        if cursor_table.is_asked(self._given(schema)):
            return cursor_table.CursorReader(options_to_read(schema.fields, self.options), schema)
        options, columns = self._read_options(self._given(schema), streaming=False), _columns(schema)
        note_stream_options(self.options)
        if options.columns not in (None, columns):
            raise IllegalArgumentException(
                f"option columns is {','.join(options.columns or ())}, but the schema has {','.join(columns)}",
                hint="leave one of them out; a table keeps the columns of its creation: choose among them with SELECT",
            )
        _check_columns(options, columns)
        values = json_values(schema, options.value_schema)
        made = (PushingReader if _pushes(options.push_down_predicate) else KafkalogReader)(options, columns, values)
        made.not_null = not_null_of(schema)
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            from kafkalog.spark.streaming import KafkalogStreamReader

            given = self._given(schema)
            if cursor_table.is_asked(given):
                raise IllegalArgumentException("option content=cursors is for batches", hint="use spark.read")
            columns = _columns(schema)
            options = self._read_options(given, streaming=True)
            _check_columns(options, columns)
            values = json_values(schema, options.value_schema)
            made = KafkalogStreamReader(options, parse_triggers(given), columns, values)
            made.not_null = not_null_of(schema)
            return made
        except ModuleNotFoundError:
            return _NoStream(UnsupportedOperationException(f"{OLD_PYSPARK}, this is {pyspark.__version__}"))
        except IllegalArgumentException as error:
            return _NoStream(error)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise IllegalArgumentException(
                "Save mode Overwrite not allowed for kafkalog. Allowed save mode is Append.", hint='.mode("append")'
            )
        if cursor_table.is_asked(self.options):
            return cursor_table.CursorWriter(self.options, schema)
        check_sink(self.options)
        return _writing().KafkalogWriter(parse_sink_options({**self.session_options, **self.options}), schema)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if cursor_table.is_asked(self.options):
            raise IllegalArgumentException(
                "option content=cursors is for batches", hint="use df.write, also inside foreachBatch"
            )
        # Output mode complete says overwrite; as with Kafka, the rows of each micro-batch are appended.
        check_sink(self.options)
        return _writing().KafkalogStreamWriter(parse_sink_options({**self.session_options, **self.options}), schema)


def _check_columns(options: SourceOptions, columns: tuple[str, ...]) -> None:
    """Raises IllegalArgumentException for columns that need an option that is not given."""
    changes.check_columns(columns, changes=options.changes)
    check_columns(options, columns)


def _writing() -> Any:
    try:
        from kafkalog.spark import writing
    except ImportError as error:
        raise UnsupportedOperationException(
            "this PySpark has no Arrow writers for data sources", hint="writes need PySpark 4.2 or newer"
        ) from error
    return writing


class _NoStream(DataSourceStreamReader):  # type: ignore[misc]
    """Raises the error at Spark's first call: an error in streamReader would be hidden by an error of Spark's code."""

    def __init__(self, why: Exception) -> None:
        self.why = why

    @plainly
    def _refuse(self, *given: Any) -> Any:
        raise self.why

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815


def _pushes(asked: bool | None) -> bool:
    """Whether the reader accepts filters.

    That needs a planner that pushes them; otherwise Spark refuses a reader that accepts some.  It also needs a Spark
    that keeps a plan for each scan, or a user who says that a frame is scanned only once.  Up to Spark 4.3 a filter's
    plan stays with the frame: another read of the frame, unfiltered or with other filters, gets the same rows.  A Spark
    in which this is fixed also pushes limits to readers.
    """
    if not (hasattr(DataSourceReader, "pushLimit") if asked is None else asked):
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name.startswith(PUSHDOWN_PLANNERS):
            return True
        frame = frame.f_back
    return False


def _type_of(column: str) -> str:
    kind = COLUMN_TYPES.get(column)
    if kind is None:
        raise IllegalArgumentException(f"there is no column {column!r}", hint=f"expected {', '.join(COLUMN_TYPES)}")
    return kind


def _columns(schema: StructType) -> tuple[str, ...]:
    """Returns the columns of a user's schema, which are the ones to decode.  Raises IllegalArgumentException for
    others."""
    columns = []
    for column in schema.fields:
        kind = _type_of(column.name)
        if column.name == "value" and isinstance(column.dataType, StructType):  # `json_values` checks it
            columns.append(column.name)
            continue
        if column.dataType.simpleString() != kind:
            raise IllegalArgumentException(
                f"column {column.name} is {kind}, but the schema says {column.dataType.simpleString()}",
                hint="write {kind} in the schema and cast the column later"
                + (" (in this session `timestamp_ltz` is the type's name)" if kind == "timestamp" else ""),
            )
        check_nested(column)
        columns.append(column.name)
    return tuple(columns)


class KafkalogReader(AnswersAtOnce, DataSourceReader):  # type: ignore[misc]
    """Plans on the driver; is pickled to the executors, which call only `read`."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], values: JsonValues | None = None) -> None:
        self.options = options
        self.columns = columns
        self.values = values
        self.wanted = ALL
        self.not_null: frozenset[str] = frozenset()

    @plainly
    def partitions(self) -> Sequence[RangePartition]:
        report = PlanReport(self.options.paths)
        tasks = pack(plan(self.options, self.wanted, report), self.options)
        report.tell(tasks)
        return [RangePartition(works) for works in tasks]

    @plainly
    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Yields Arrow record batches of one task; nothing for the partition that Spark makes for an empty plan."""
        works = getattr(partition, "works", ())
        batches = read_task(works, self.options, self.columns, self.wanted)
        return promised(parsed(batches, self.values), self.not_null)


class PushingReader(KafkalogReader):
    """Accepts the filters that it applies exactly."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        # A filter of rows must not change which value of a key is the last.
        self.wanted, left = push(filters, rows=not self.options.latest)
        return left


def register(spark: Any) -> None:
    """Registers the source with a session; a Spark that finds `pyspark_kafkalog` does that automatically.

    Call it in a thread that has no active session: there Spark does not find sources written in Python
    (DATA_SOURCE_NOT_FOUND).  The thread has this session from then on.

    It also gives the source the session's settings of object stores (`spark.hadoop.fs.s3a.*`) and the number of cores,
    which Spark does not pass to sources in Python.  They go to the planner as a part of the source and are never shown.

    Args:
        spark: The session.

    Raises:
        UnsupportedOperationException: This pyspark cannot take the settings of object stores (4.0).

    Example:
        Read a bucket with the session's credentials:

            register(spark)
            spark.read.format("kafkalog").load("s3a://bucket/prefix", subscribe="orders")
    """
    _set_active(spark)
    settings = hadoop_options(spark)
    known = {"session_options": settings, "parallelism": _parallelism(spark)}
    source: Any = KafkalogDataSource
    try:
        spark.dataSource.register(type(source.__name__, (source,), known))
    except Exception as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        if settings:  # Spark 4.0 does not replace a source that it has found itself
            raise UnsupportedOperationException(
                f"PySpark {pyspark.__version__} cannot take settings of object stores with `register`",
                hint="give them to each reader: .options(**kafkalog.spark.places.hadoop_options(spark))",
            ) from error


def _set_active(spark: Any) -> None:
    """Makes the session that of the thread; Spark Connect has no such thing."""
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)


def _parallelism(spark: Any) -> int | None:
    """Returns the number of cores of the cluster; None in a client of Spark Connect."""
    if getattr(spark, "_jsparkSession", None) is None:
        return None
    found: int = spark.sparkContext.defaultParallelism
    return found


def __dir__() -> list[str]:
    return __all__
