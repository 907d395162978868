"""The data source that Spark sees: columns, options and life of its Kafka source, records from a log directory.

The driver plans (`planning`), executors read their bytes and yield Arrow record batches.  Imported only by Spark (see
`pyspark_kafkalog`) or by whoever registers it: it needs pyspark and pyarrow.
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
from kafkalog.spark import changes
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
    **changes.COLUMN_TYPES,  # with option changes
    "replica": "int",  # with replicas=all: the node id of the broker whose copy it is
}
PUSHDOWN_PLANNERS = "pyspark.sql.worker.data_source_pushdown"
OLD_PYSPARK = "kafkalog reads streams with PySpark 4.2 or newer"


class KafkalogDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("kafkalog").option("path", dir).option("subscribe", "topic")`."""

    # The settings of object stores of the session that it was registered with; options count before them.
    session_options: Mapping[str, str] = {}
    parallelism: int | None = None  # of that session

    def _given(self, schema: StructType) -> dict[str, str]:
        return {**self.session_options, **options_to_read(schema.fields, self.options)}

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "kafkalog"

    @plainly
    def schema(self) -> StructType | str:
        """The columns of Spark's Kafka source, `headers` with includeHeaders; or those that option `columns` lists."""
        kept = options_to_keep(self.options) if is_of_table(self.options) else None
        given = self.options if kept is None else kept
        options = parse_options({**self.session_options, **given}, streaming=None)
        parse_triggers(given)  # it may become a stream, whose query would begin before it is refused
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
                "option valueSchema: found it among the options of a table, whose columns keep no such thing",
                hint="CREATE TEMPORARY VIEW ... USING kafkalog OPTIONS (...) takes it",
            )
        return with_json(types, options.value_schema)

    def _read_options(self, given: Mapping[str, str], streaming: bool) -> SourceOptions:
        return replace(parse_options(given, streaming=streaming), parallelism=self.parallelism)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        options, columns = self._read_options(self._given(schema), streaming=False), _columns(schema)
        note_stream_options(self.options)
        if options.columns not in (None, columns):
            raise IllegalArgumentException(
                f"option columns is {','.join(options.columns or ())}, the schema has {','.join(columns)}",
                hint="give one of them; a table keeps the columns with which it was made: SELECT chooses among them",
            )
        _check_columns(options, columns)
        values = json_values(schema, options.value_schema)
        made = (PushingReader if _pushes(options.push_down_predicate) else KafkalogReader)(options, columns, values)
        made.not_null = not_null_of(schema)
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            from kafkalog.spark.streaming import KafkalogStreamReader

            given, columns = self._given(schema), _columns(schema)
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
        check_sink(self.options)
        return _writing().KafkalogWriter(parse_sink_options({**self.session_options, **self.options}), schema)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        # Output mode complete says overwrite: as to Kafka, each micro-batch's rows are appended.
        check_sink(self.options)
        return _writing().KafkalogStreamWriter(parse_sink_options({**self.session_options, **self.options}), schema)


def _check_columns(options: SourceOptions, columns: tuple[str, ...]) -> None:
    """IllegalArgumentException for columns that only go with an option that is not given."""
    changes.check_columns(columns, changes=options.changes)
    check_columns(options, columns)


def _writing() -> Any:
    try:
        from kafkalog.spark import writing
    except ImportError as error:
        raise UnsupportedOperationException(
            "this PySpark has no Arrow writers for data sources", hint="PySpark 4.2 or newer writes"
        ) from error
    return writing


class _NoStream(DataSourceStreamReader):  # type: ignore[misc]
    """Says why not when Spark first asks: where streamReader raises, it reports a missing variable of its own."""

    def __init__(self, why: Exception) -> None:
        self.why = why

    @plainly
    def _refuse(self, *given: Any) -> Any:
        raise self.why

    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815


def _pushes(asked: bool | None) -> bool:
    """Whether to take filters: only from a planner that pushes them (elsewhere Spark refuses a reader that takes some),
    and only where each scan keeps its own plan, or its user says that no other scan comes from the same frame.

    Up to Spark 4.3 a filter's plan stays with the frame: what else is read from it, unfiltered or by other filters,
    gets the same rows.  Where that is mended readers are asked for limits too.
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
        raise IllegalArgumentException(f"there is no column {column!r}", hint=f"there are {', '.join(COLUMN_TYPES)}")
    return kind


def _columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a user's schema, which prunes what is decoded; IllegalArgumentException for any other."""
    columns = []
    for column in schema.fields:
        kind = _type_of(column.name)
        if column.name == "value" and isinstance(column.dataType, StructType):  # `json_values` looks at it
            columns.append(column.name)
            continue
        if column.dataType.simpleString() != kind:
            raise IllegalArgumentException(
                f"column {column.name} is {kind}, the schema says {column.dataType.simpleString()}",
                hint="read it as it is and cast it"
                + (" (in this session `timestamp_ltz` is the type's name)" if kind == "timestamp" else ""),
            )
        check_nested(column)
        columns.append(column.name)
    return tuple(columns)


class KafkalogReader(AnswersAtOnce, DataSourceReader):  # type: ignore[misc]
    """Pickled to the executors, which call only `read`."""

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
        """Arrow record batches of one task; nothing for the partition that Spark makes of an empty plan."""
        works = getattr(partition, "works", ())
        batches = read_task(works, self.options, self.columns, self.wanted)
        return promised(parsed(batches, self.values), self.not_null)


class PushingReader(KafkalogReader):
    """Takes the filters that it applies exactly."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        # What a key's last value is, no filter of rows may change.
        self.wanted, left = push(filters, rows=not self.options.latest)
        return left


def register(spark: Any) -> None:
    """Register the source with a session by hand; a Spark that finds `pyspark_kafkalog` does it by itself.

    A thread that Spark has not seen yet has no active session, and there Spark finds no source that is written in
    Python (DATA_SOURCE_NOT_FOUND); the thread has this session from then on.

    Only so it knows the session's settings of object stores (`spark.hadoop.fs.s3a.*`) and how many cores there are,
    which Spark does not hand to Python's sources: they go to the planner as part of the source, and are shown nowhere.
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
        if settings:  # Spark 4.0 does not replace what it has found by itself
            raise UnsupportedOperationException(
                f"PySpark {pyspark.__version__} takes no settings of object stores by `register`",
                hint="give them to each reader: .options(**kafkalog.spark.places.hadoop_options(spark))",
            ) from error


def _set_active(spark: Any) -> None:
    """Make it the thread's session; there is no such thing with Spark Connect."""
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)


def _parallelism(spark: Any) -> int | None:
    """How many cores the cluster has; a client of Spark Connect does not know."""
    if getattr(spark, "_jsparkSession", None) is None:
        return None
    found: int = spark.sparkContext.defaultParallelism
    return found


def __dir__() -> list[str]:
    return __all__
