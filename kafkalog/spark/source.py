"""The data source that Spark sees: columns, options and life of its Kafka source, records from a log directory.

The driver plans (`planning`), executors read their bytes and yield Arrow record batches.  Imported only by Spark (see
`pyspark_kafkalog`) or by whoever registers it: it needs pyspark and pyarrow.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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
    BadBytesError,
    IllegalArgumentException,
    InvalidRecordException,
    UnsupportedOperationException,
)
from kafkalog.format.names import TopicPartition
from kafkalog.segment.reader import Extent
from kafkalog.segment.transaction_index import AbortedTxn
from kafkalog.spark.filters import ALL, Wanted, push
from kafkalog.spark.options import SourceOptions, parse_options
from kafkalog.spark.places import files_of
from kafkalog.spark.planning import OffsetRange, damaged, lost, plan
from kafkalog.topics.reader import ChunkReader

COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
BATCH_ROWS = 64_000
FILL_ROWS = 48_000  # where a batch of the log is never cut in two
BATCH_BYTES = 16 << 20
LATEST_MEMORY_BYTES = 96 << 20
PUSHDOWN_PLANNERS = "pyspark.sql.worker.data_source_pushdown"
NO_STREAM = (
    "kafkalog does not read streams in Spark yet; read batches: spark.read.format('kafkalog') with startingOffsets "
    "and endingOffsets"
)
NO_WRITE = (
    "kafkalog does not write from Spark yet; append with kafkalog.open_log(dir, 'topic-0').append_columns(...), in "
    "foreachPartition or foreachBatch with one task a partition"
)
CHUNK_BYTES = 4 << 20


class KafkalogDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("kafkalog").option("path", dir).option("subscribe", "topic")`."""

    @classmethod
    def name(cls) -> str:
        return "kafkalog"

    def schema(self) -> str:
        """The columns of Spark's Kafka source, `headers` with includeHeaders; or those that option `columns` lists."""
        options = parse_options(self.options)
        columns = options.columns
        if columns is None:
            columns = tuple(name for name in COLUMN_TYPES if options.include_headers or name != "headers")
        return ", ".join(f"{name} {_type_of(name)}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options, columns = parse_options(self.options), _columns(schema)
        if options.columns not in (None, columns):
            raise IllegalArgumentException(
                f"option columns is {','.join(options.columns or ())}, the schema has {','.join(columns)}",
                hint="give one of them",
            )
        return (PushingReader if _pushes(options.push_down_predicate) else KafkalogReader)(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _NoStream()  # raising here instead, Spark would report its own missing variable

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise UnsupportedOperationException(NO_WRITE)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        raise UnsupportedOperationException(NO_WRITE)


class _NoStream(DataSourceStreamReader):  # type: ignore[misc]
    """Says so at the first thing that Spark asks."""

    def _refuse(self, *given: Any) -> Any:
        raise UnsupportedOperationException(NO_STREAM)

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
        if column.dataType.simpleString() != kind:
            raise IllegalArgumentException(
                f"column {column.name} is {kind}, the schema says {column.dataType.simpleString()}",
                hint="read it as it is and cast it",
            )
        columns.append(column.name)
    return tuple(columns)


class RangePartition(InputPartition):  # type: ignore[misc]
    """One task."""

    def __init__(self, work: OffsetRange) -> None:
        super().__init__(None)
        self.work = work

    def __repr__(self) -> str:
        work = self.work
        return f"{work.topic}-{work.partition}[{work.start_offset}, {work.end_offset})"


class KafkalogReader(DataSourceReader):  # type: ignore[misc]
    """Pickled to the executors, which call only `read`."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self.options = options
        self.columns = columns
        self.wanted = ALL

    def partitions(self) -> Sequence[RangePartition]:
        return [RangePartition(work) for work in plan(self.options, self.wanted)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Arrow record batches of one range; nothing for the partition that Spark makes of an empty plan."""
        work = getattr(partition, "work", None)
        return iter(()) if work is None else read_range(work, self.options, self.columns, self.wanted)


class PushingReader(KafkalogReader):
    """Takes the filters that it applies exactly."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        # What a key's last value is, no filter of rows may change.
        self.wanted, left = push(filters, rows=not self.options.latest)
        return left


def read_range(
    work: OffsetRange, options: SourceOptions, columns: Sequence[str], wanted: Wanted = ALL
) -> Iterator[Any]:
    """The record batches of a range: about FILL_ROWS rows each, or BATCH_BYTES of keys, values and headers."""
    from kafkalog.topics import arrow

    source = RangeSource(work, options)
    if options.latest:
        yield from _latest(source, options, columns)
        return
    limits = {
        "timestamp_min": wanted.timestamp_min,
        "timestamp_max": wanted.timestamp_max,
        "rows_max": FILL_ROWS,
    }
    with ChunkReader(
        source,
        work.start_offset,
        end_offset=work.end_offset,
        chunk_bytes=CHUNK_BYTES,
        isolation=options.isolation,
    ) as reader:
        while True:
            try:
                yield from arrow.record_batches(
                    reader, columns, BATCH_ROWS, arrow.SPARK_COLUMNS, batch_bytes=BATCH_BYTES, limits=limits
                )
                return
            except (BadBytesError, InvalidRecordException) as error:
                damaged(options, error)
            later = source.later_segment()
            if later is None:
                return
            reader.seek(later)


def _latest(source: RangeSource, options: SourceOptions, columns: Sequence[str]) -> Iterator[Any]:
    """The last value of each key of a range, by offset; at damage, where that is let pass, the state before it."""
    from kafkalog.topics import arrow
    from kafkalog.topics.latest import Latest

    found = Latest(source, isolation=options.isolation, memory_bytes=LATEST_MEMORY_BYTES)
    try:
        yield from found.batches(columns, BATCH_ROWS, arrow.SPARK_COLUMNS, batch_bytes=BATCH_BYTES)
    except (BadBytesError, InvalidRecordException) as error:
        damaged(options, error)


class RangeSource:
    """What ChunkReader needs of a partition, over the pieces of one range: all bytes of a piece are whole batches."""

    def __init__(self, work: OffsetRange, options: SourceOptions) -> None:
        self.topic_partition = TopicPartition(work.topic, work.partition)
        self._work = work
        self._files = files_of(work.log_dir)
        self._bases = [piece.segment_base for piece in work.pieces]
        self._place = 0  # of the piece that was handed out last
        self._options = options

    cuts = 0  # a plan is made once

    @property
    def log_start_offset(self) -> int:
        return self._work.start_offset

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self._work.end_offset

    def check_usable(self) -> None:
        """Asked by readers before each read."""

    def recheck(self) -> None:
        """The plan stays as it is."""

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        """The driver has judged the log's end."""

    def later_segment(self) -> int | None:
        """Where the piece after the present one begins; its offsets are above all that come before it."""
        following = self._bases[self._place + 1 : self._place + 2]
        return following[0] if following else None

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        pieces = self._work.pieces
        for place in range(max(bisect_right(self._bases, offset) - 1, 0), len(pieces)):
            piece = pieces[place]
            self._place = place
            try:
                file = self._files.open(piece.path, writable=False)
            except FileNotFoundError:
                lost(self._options, f"{piece.path} was deleted since the query was planned")
                continue
            return Extent(
                file,
                piece.segment_base,
                piece.start,
                piece.end,
                next_base=self.later_segment(),
                final=place + 1 == len(pieces),
                base_limit=self._work.end_offset - 1,
            )
        return None

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        return [
            txn for txn in self._work.aborted if txn.first_offset <= last_offset and txn.last_offset >= first_offset
        ]

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return None


def register(spark: Any) -> None:
    """Register the source with a session by hand; a Spark that finds `pyspark_kafkalog` does it by itself."""
    spark.dataSource.register(KafkalogDataSource)
