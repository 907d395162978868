"""The data source that Spark sees: columns, options and life of its Kafka source, records from a log directory.

The driver plans (`planning`), executors read their bytes and yield Arrow record batches.  Imported only by Spark (see
`pyspark_kafkalog`) or by whoever registers it: it needs pyspark and pyarrow.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
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
    CorruptRecordException,
    IllegalArgumentException,
    InvalidRecordException,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
    UnsupportedOperationException,
)
from kafkalog.files import OS_FILES, File
from kafkalog.format.names import TopicPartition
from kafkalog.log.snapshot import Snapshot
from kafkalog.log.view import PartitionView
from kafkalog.segment.reader import Extent
from kafkalog.segment.transaction_index import AbortedTxn
from kafkalog.spark.options import SourceOptions, parse_options
from kafkalog.spark.planning import OffsetRange, Piece, ask, damaged, lost, plan, span
from kafkalog.spark.triggers import parse_triggers
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
PLANS_MAX = 20  # of one task
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
        """The columns of Spark's Kafka source; `headers` with includeHeaders."""
        with_headers = parse_options(self.options, streaming=None).include_headers
        return ", ".join(f"{name} {kind}" for name, kind in COLUMN_TYPES.items() if with_headers or name != "headers")

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkalogReader(parse_options(self.options), _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from kafkalog.spark.streaming import KafkalogStreamReader  # needs a newer PySpark than batch reads do

        options = parse_options(self.options, streaming=True)
        return KafkalogStreamReader(options, parse_triggers(self.options), _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise UnsupportedOperationException(NO_WRITE)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        raise UnsupportedOperationException(NO_WRITE)


def _columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a user's schema, which prunes what is decoded; IllegalArgumentException for any other."""
    columns = []
    for column in schema.fields:
        kind = COLUMN_TYPES.get(column.name)
        if kind is None:
            raise IllegalArgumentException(
                f"there is no column {column.name!r}", hint=f"there are {', '.join(COLUMN_TYPES)}"
            )
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

    def partitions(self) -> Sequence[RangePartition]:
        return [RangePartition(work) for work in plan(self.options)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Arrow record batches of one range; nothing for the partition that Spark makes of an empty plan."""
        work = getattr(partition, "work", None)
        return iter(()) if work is None else read_range(work, self.options, self.columns)


def read_range(work: OffsetRange, options: SourceOptions, columns: Sequence[str]) -> Iterator[Any]:
    """The record batches of a range, about 64,000 rows each."""
    from kafkalog.topics import arrow

    source = RangeSource(work, options)
    with ChunkReader(
        source,
        work.start_offset,
        end_offset=work.end_offset,
        chunk_bytes=CHUNK_BYTES,
        isolation=options.isolation,
    ) as reader:
        while True:
            try:
                yield from arrow.record_batches(reader, columns, BATCH_ROWS, arrow.SPARK_COLUMNS)
                return
            except (BadBytesError, InvalidRecordException) as error:
                damaged(options, error)
            later = source.later_segment()
            if later is None:
                return
            reader.seek(later)


class RangeSource:
    """What ChunkReader needs of a partition, over the pieces of one range: all bytes of a piece are whole batches.

    Where compaction or retention has changed the files since they were planned, what is left is planned anew.
    """

    def __init__(self, work: OffsetRange, options: SourceOptions) -> None:
        self.topic_partition = TopicPartition(work.topic, work.partition)
        self._work = work
        self._bases = [piece.segment_base for piece in work.pieces]
        self._place = 0  # of the piece that was handed out last
        self._options = options
        self._is_doubtful = False
        self._plans = 1

    cuts = 0  # the driver has said where the range ends

    @property
    def log_start_offset(self) -> int:
        return self._work.start_offset

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self._work.end_offset

    def check_usable(self) -> None:
        """Asked by readers before each read."""

    def recheck(self) -> None:
        """What was read makes no sense: are these the files that were planned?"""
        self._is_doubtful = True

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        """The driver has judged the log's end."""

    def later_segment(self) -> int | None:
        """Where the piece after the present one begins; its offsets are above all that come before it."""
        following = self._bases[self._place + 1 : self._place + 2]
        return following[0] if following else None

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        if self._is_doubtful:
            self._plan_anew(offset)
        while True:
            place = max(bisect_right(self._bases, offset) - 1, 0)
            if place >= len(self._work.pieces):
                return None
            file = self._file(self._work.pieces[place])
            if file is not None:
                return self._extent(place, file)
            self._plan_anew(offset)

    def _file(self, piece: Piece) -> File | None:
        """The piece's file; None where that is gone, or another one has its name."""
        try:
            file = OS_FILES.open(piece.path, writable=False)
        except FileNotFoundError:
            return None
        return None if piece.inode and os.fstat(file.fileno()).st_ino != piece.inode else file

    def _extent(self, place: int, file: File) -> Extent:
        self._place = place
        piece = self._work.pieces[place]
        return Extent(
            file,
            piece.segment_base,
            piece.start,
            piece.end,
            next_base=self.later_segment(),
            final=place + 1 == len(self._work.pieces),
            base_limit=self._work.end_offset - 1,
        )

    def _plan_anew(self, offset: int) -> None:
        """Take the files as they are now, for what is left from `offset` on."""
        self._is_doubtful = False
        self._plans += 1
        if self._plans > PLANS_MAX:
            raise KafkaStorageException(
                f"{self.topic_partition}: its files went away {PLANS_MAX} times while a task read them",
                path=self._work.log_dir,
                hint="is somebody moving or deleting the directory?",
            )
        try:
            with PartitionView(self._work.log_dir, self.topic_partition) as view:
                self._work = ask(view, partial(self._left, offset=offset))
        except CorruptRecordException:
            return  # damage, which is to be told as it was met
        except UnknownTopicOrPartitionException:
            lost(self._options, f"{self.topic_partition} was deleted since the query was planned")
            self._work = replace(self._work, pieces=())
        self._bases = [piece.segment_base for piece in self._work.pieces]
        self._place = 0

    def _left(self, seen: Snapshot, offset: int) -> OffsetRange:
        start, end = max(offset, seen.log_start_offset), min(self._work.end_offset, seen.log_end_offset)
        if start > offset or end < self._work.end_offset:
            lost(
                self._options,
                f"{self.topic_partition}: offsets [{offset}, {self._work.end_offset}) were planned, now the log has "
                f"[{seen.log_start_offset}, {seen.log_end_offset})",
            )
        left = span(seen, start, max(start, end), self._options.isolation)
        return replace(left, start_offset=self._work.start_offset, end_offset=self._work.end_offset)

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        return [
            txn for txn in self._work.aborted if txn.first_offset <= last_offset and txn.last_offset >= first_offset
        ]

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return None


def register(spark: Any) -> None:
    """Register the source with a session by hand; a Spark that finds `pyspark_kafkalog` does it by itself."""
    spark.dataSource.register(KafkalogDataSource)
