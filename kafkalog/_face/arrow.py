"""Batches as pyarrow record batches, with the columns that a reader requests and a limited number of rows.

There are two sets of names for the same decoded columns: Python's (`timestamp_type`, milliseconds) and those of Spark's
Kafka source (`timestampType`, microseconds, because Spark accepts no other unit). Importing this module imports
pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from kafkalog._limits import INT_MAX, LONG_MAX, LONG_MIN
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog.engine.format.arrow import add_batches
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException, KafkalogError

if TYPE_CHECKING:
    from kafkalog._native.codec.arrow import RecordColumns
    from kafkalog.engine.log.source import Source

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# Column name -> (source name, Arrow type)
PYTHON_COLUMNS: Mapping[str, tuple[str, Any]] = {
    "topic": ("topic", pa.string()),
    "partition": ("partition", pa.int32()),
    "offset": ("offset", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("ms", "UTC")),
    "timestamp_type": ("timestamp_type", pa.int8()),
    "key": ("key", pa.binary()),
    "value": ("value", pa.binary()),
    "headers": ("headers", HEADERS_TYPE),
    "leader_epoch": ("leader_epoch", pa.int32()),
}
PYTHON_DEFAULT = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")

SPARK_COLUMNS: Mapping[str, tuple[str, Any]] = {
    "key": ("key", pa.binary()),
    "value": ("value", pa.binary()),
    "topic": ("topic", pa.string()),
    "partition": ("partition", pa.int32()),
    "offset": ("offset", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC")),
    "timestampType": ("timestamp_type", pa.int32()),
    "headers": ("headers", HEADERS_TYPE),
}

NO_LIMITS: Mapping[str, Any] = {}


def schema(columns: Sequence[str] | None, known: Mapping[str, tuple[str, Any]] = PYTHON_COLUMNS) -> pa.Schema:
    """Returns the Arrow schema of some columns, by default of the usual ones. IllegalArgumentException for an unknown
    name, and for an iterator, because it would be empty at the second use."""
    if isinstance(columns, str | bytes | bytearray | memoryview | Iterator) or not isinstance(columns, Iterable | None):
        raise IllegalArgumentException(
            f"columns: found {shown(columns)}, expected a list of names", hint=f"columns are {', '.join(known)}"
        )
    wanted = PYTHON_DEFAULT if columns is None else tuple(columns)
    if not wanted:
        raise IllegalArgumentException(
            "columns: found none, expected at least one",
            hint=f"leave it out for the usual columns; columns are {', '.join(known)}",
        )
    for name in wanted:
        if not isinstance(name, str) or name not in known:
            raise IllegalArgumentException(f"unknown column {name!r}", hint=f"columns are {', '.join(known)}")
    if len(set(wanted)) < len(wanted):
        twice = next(name for number, name in enumerate(wanted) if name in wanted[:number])
        raise IllegalArgumentException(f"columns: found {twice!r} twice, expected each once")
    return pa.schema([(name, known[name][1]) for name in wanted])


def table(batches: Sequence[pa.RecordBatch], columns: Sequence[str] | None) -> pa.Table:
    """Returns record batches of `columns` as one table, even if there are none."""
    return pa.Table.from_batches(batches, schema(columns))


class Chunk(Protocol):
    """Whole batches of a file (`kafkalog._face.chunk_reader.Chunk`)."""

    @property
    def data(self) -> memoryview: ...
    @property
    def table(self) -> np.ndarray: ...
    @property
    def path(self) -> str: ...
    @property
    def file_position(self) -> int: ...
    def aborted_rows(self) -> np.ndarray: ...


class Chunks(Protocol):
    """A source of chunks to decode: a ChunkReader, or some of its chunks."""

    @property
    def source(self) -> Source: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def end_offset(self) -> int | None: ...
    @property
    def committed(self) -> bool: ...
    @property
    def max_decompressed_bytes(self) -> int: ...
    def __iter__(self) -> Iterator[Chunk]: ...


def record_batches(
    reader: Chunks,
    columns: Sequence[str] | None,
    batch_rows: int,
    known: Mapping[str, tuple[str, Any]] = PYTHON_COLUMNS,
    *,
    batch_bytes: int = LONG_MAX,
    limits: Mapping[str, Any] = NO_LIMITS,
) -> Iterator[pa.RecordBatch]:
    """Yields the reader's records from its offset to its end in record batches of up to `batch_rows` rows.

    A record batch with `batch_bytes` of keys, values and headers gets no further batch of the log, so it exceeds the
    limit by one log batch at most. `limits` are ColumnBuilder's, of timestamps and rows. At damage the records before
    it are yielded first, then the error is raised.
    """
    for _, batch in placed_batches(reader, columns, batch_rows, known, batch_bytes=batch_bytes, limits=limits):
        yield batch


def placed_batches(
    reader: Chunks,
    columns: Sequence[str] | None,
    batch_rows: int,
    known: Mapping[str, tuple[str, Any]] = PYTHON_COLUMNS,
    *,
    batch_bytes: int = LONG_MAX,
    limits: Mapping[str, Any] = NO_LIMITS,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields as `record_batches`, each batch with the offset of its last row."""
    wanted = schema(columns, known)
    decoder = Decoder(reader, {known[name][0] for name in wanted.names}, {"bytes_max": batch_bytes, **limits})
    chunk: Chunk | None
    try:
        for chunk in reader:
            if decoder.rows and decoder.offset_min != reader.first_offset:
                yield from _sliced(decoder.finish(), wanted, known, batch_rows)
            row, count = 0, len(chunk.table)
            while row < count:
                assert chunk is not None
                row = decoder.add(chunk, row)
                if row == count:
                    chunk = None  # frees its memory before the next chunk is read, and while a batch is in use
                if decoder.rows >= batch_rows or decoder.data_bytes >= batch_bytes or row < count:
                    yield from _sliced(decoder.finish(), wanted, known, batch_rows)
            if reader.end_offset is not None and reader.offset >= reader.end_offset:
                break
    except KafkalogError:  # without a name: a frame that holds its own error keeps files open until a collection
        if decoder.rows:
            yield from _sliced(decoder.finish(), wanted, known, batch_rows)
        raise
    if decoder.rows:
        yield from _sliced(decoder.finish(), wanted, known, batch_rows)


def _sliced(
    decoded: Mapping[str, Any], wanted: pa.Schema, known: Mapping[str, tuple[str, Any]], batch_rows: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    offsets = decoded["offset"]
    rows = len(offsets)
    batch = typed(decoded, wanted, known)
    # Even slices: Spark works best with batches of one size, and none is tiny.
    count = max(1, (rows + batch_rows - 1) // batch_rows)
    for number in range(count):
        begin, end = rows * number // count, rows * (number + 1) // count
        if begin < end:
            yield offsets[end - 1].as_py(), batch.slice(begin, end - begin)


class Gathered:
    """Combines small batches into batches of the wanted size."""

    def __init__(self, batch_rows: int, batch_bytes: int) -> None:
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._parts: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        size = batch.nbytes
        if self._rows + batch.num_rows > self._batch_rows or self._bytes + size > self._batch_bytes:
            yield from self.rest()
        if batch.num_rows >= self._batch_rows or size >= self._batch_bytes:
            yield batch
            return
        self._parts.append(batch)
        self._rows += batch.num_rows
        self._bytes += size

    def rest(self) -> Iterator[pa.RecordBatch]:
        parts, self._parts, self._rows, self._bytes = self._parts, [], 0, 0
        if parts:
            yield from pa.Table.from_batches(parts).combine_chunks().to_batches()


def typed(decoded: Mapping[str, Any], wanted: pa.Schema, known: Mapping[str, tuple[str, Any]]) -> pa.RecordBatch:
    """Returns decoded columns, by source name, with the types of a schema."""
    try:
        arrays = [_as_type(decoded[known[field.name][0]], known[field.name][0], field.type) for field in wanted]
    except pa.ArrowInvalid as error:  # a time in ms that does not fit in microseconds
        raise _unfitting_time(decoded, error) from None
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _unfitting_time(decoded: Mapping[str, Any], error: Exception) -> KafkalogError:
    times = decoded["timestamp"].to_numpy()
    for offset, timestamp in zip(decoded["offset"].to_numpy(), times, strict=True):
        if not LONG_MIN <= int(timestamp) * 1000 <= LONG_MAX:
            return IllegalArgumentException(
                f"the record at offset {offset} has the timestamp {timestamp} ms, which does not fit in microseconds",
                hint="read it with `kafkalog cat`, or exclude it from the offsets to read",
            )
    return IllegalArgumentException(str(error))


def _as_type(array: Any, source: str, kind: pa.DataType) -> Any:
    if source == "timestamp":
        array = array.cast(pa.timestamp("ms", "UTC"))
    elif source == "headers":
        # The same buffers, with the names and nullability that Spark and others expect.
        entries = array.values
        pairs = pa.StructArray.from_arrays([entries.field(0), entries.field(1)], fields=list(kind.value_type))
        return pa.Array.from_buffers(
            kind, len(array), array.buffers()[:2], null_count=array.null_count, children=[pairs]
        )
    return array if array.type == kind else array.cast(kind)


def repeated(topic: str, partition: int, rows: int, sources: set[str]) -> dict[str, Any]:
    """Returns the wanted ones of the columns topic and partition. Does not use `pa.scalar`, which imports pandas."""
    found = {}
    if "topic" in sources:
        text = topic.encode()
        if len(text) * rows > INT_MAX:  # more than such a column can hold: pyarrow raises the error
            return {"topic": pa.repeat(topic, rows)}
        ends = np.arange(0, len(text) * rows + 1, len(text), dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(text * rows)]
        found["topic"] = pa.Array.from_buffers(pa.string(), rows, buffers, null_count=0)
    if "partition" in sources:
        numbers = np.full(rows, partition, np.int32)
        found["partition"] = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(numbers)], null_count=0)
    return found


class Decoder:
    """Decodes chunks to columns by source name; collects several chunks until `finish`."""

    def __init__(self, reader: Chunks, sources: set[str], limits: Mapping[str, Any] = NO_LIMITS) -> None:
        self._reader = reader
        self._sources = sources
        self._limits = limits
        self._epochs: list[np.ndarray] = []
        self._builder: ColumnBuilder | None = None
        self._repeated: Mapping[str, Any] = {}  # columns whose rows are all the same; batches get slices of them
        self._repeated_rows = 0
        self.offset_min = -1  # the builder's

    @property
    def rows(self) -> int:
        return 0 if self._builder is None else self._builder.rows

    @property
    def data_bytes(self) -> int:
        return 0 if self._builder is None else self._builder.data_bytes

    def add(self, chunk: Chunk, start_row: int) -> int:
        """Decodes a chunk's batches from a row on. Returns the row after the last one decoded, which is less than all
        when a column is full."""
        reader, table = self._reader, chunk.table
        if self._builder is None:
            self.offset_min = reader.first_offset
            self._builder = ColumnBuilder(
                keys="key" in self._sources,
                values="value" in self._sources,
                headers="headers" in self._sources,
                timestamp_types="timestamp_type" in self._sources,
                null_empty_headers=True,
                offset_min=reader.first_offset,
                offset_max=LONG_MAX if reader.end_offset is None else reader.end_offset - 1,
                **self._limits,
            )
        if "leader_epoch" in self._sources and start_row == 0:
            self._epochs.append(table[["base_offset", "leader_epoch"]])
        return add_batches(
            self._builder,
            chunk.data,
            table,
            start_row,
            base_position=chunk.file_position,
            skip=chunk.aborted_rows().tobytes() if reader.committed else None,
            skip_control=True,
            max_bytes=reader.max_decompressed_bytes,
            path=chunk.path,
        )

    def columns(self) -> RecordColumns:
        """Returns the records' own columns so far, and starts again."""
        assert self._builder is not None
        columns = self._builder.finish()
        self._builder = None
        return columns

    def finish(self) -> dict[str, Any]:
        """Returns all columns so far, and starts again."""
        batch = pa.record_batch(self.columns())
        decoded = {name: batch.column(name) for name in batch.schema.names}
        rows = batch.num_rows
        topic, partition = self._reader.source.topic_partition
        if rows > self._repeated_rows:
            self._repeated, self._repeated_rows = repeated(topic, partition, rows, self._sources), rows
        for name, column in self._repeated.items():
            decoded[name] = column.slice(0, rows)
        if "leader_epoch" in self._sources:
            seen = np.concatenate(self._epochs)
            place = np.searchsorted(seen["base_offset"], decoded["offset"].to_numpy(), side="right") - 1
            decoded["leader_epoch"] = pa.array(seen["leader_epoch"][np.maximum(place, 0)], pa.int32())
            self._epochs = self._epochs[-1:]
        return decoded
