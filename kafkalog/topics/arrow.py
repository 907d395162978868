"""Batches to pyarrow record batches: the columns that a reader asks for, about so many rows at a time.

Two sets of names over the same decoded columns: Python's (`timestamp_type`, milliseconds) and those of Spark's Kafka
source (`timestampType`, microseconds, because Spark takes no others).  pyarrow is imported by whoever imports this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kafkalog.errors import BadBytesError, IllegalArgumentException, InvalidRecordException
from kafkalog.format.records import records as decode_records
from kafkalog.topics.reader import ChunkReader, placed
from kafkalog.topics.records import TIMESTAMP_TYPES

if TYPE_CHECKING:
    from kafkalog._native.batches import BatchHeader

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# Column name -> (where it comes from, Arrow type)
PYTHON_COLUMNS: Mapping[str, tuple[str, Any]] = {
    "offset": ("offset", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("ms", "UTC")),
    "timestamp_type": ("timestamp_type", pa.int8()),
    "key": ("key", pa.binary()),
    "value": ("value", pa.binary()),
    "headers": ("headers", HEADERS_TYPE),
    "topic": ("topic", pa.string()),
    "partition": ("partition", pa.int32()),
    "leader_epoch": ("leader_epoch", pa.int32()),
}
PYTHON_DEFAULT = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")

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


def schema(columns: Sequence[str] | None, known: Mapping[str, tuple[str, Any]] = PYTHON_COLUMNS) -> pa.Schema:
    """The Arrow schema of some columns, by default of the usual ones; IllegalArgumentException for an unknown name."""
    wanted = PYTHON_DEFAULT if columns is None else tuple(columns)
    for name in wanted:
        if name not in known:
            raise IllegalArgumentException(f"unknown column {name!r}", hint=f"there are {', '.join(known)}")
    return pa.schema([(name, known[name][1]) for name in wanted])


def record_batches(
    reader: ChunkReader,
    columns: Sequence[str] | None,
    batch_rows: int,
    known: Mapping[str, tuple[str, Any]] = PYTHON_COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """What the reader finds from its offset to its end, in record batches of `batch_rows` rows or a few more."""
    wanted = schema(columns, known)
    sources = {known[name][0] for name in wanted.names}
    start, end = reader.offset, reader.end_offset
    collector = Collector(sources)
    for chunk, header in reader.data_batches():
        try:
            collector.add(chunk.data, header)
        except (BadBytesError, InvalidRecordException) as error:
            raise placed(error, chunk, header)
        if collector.rows >= batch_rows:
            batch = _batch(collector.take(), reader, wanted, known, start, end)
            if batch.num_rows:
                yield batch
    if collector.rows:
        batch = _batch(collector.take(), reader, wanted, known, start, end)
        if batch.num_rows:
            yield batch


def _batch(
    decoded: Mapping[str, Any],
    reader: ChunkReader,
    wanted: pa.Schema,
    known: Mapping[str, tuple[str, Any]],
    start: int,
    end: int | None,
) -> pa.RecordBatch:
    offsets = decoded["offset"].to_numpy()
    rows = len(offsets)
    topic, partition = reader.source.topic_partition
    arrays = []
    for field in wanted:
        source = known[field.name][0]
        if source == "topic":
            array = _constant(topic, rows, field.type)
        elif source == "partition":
            array = _constant(partition, rows, field.type)
        elif source == "timestamp":
            array = decoded["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(field.type, safe=False)
        else:
            array = decoded[source]
            if array.type != field.type:
                array = array.cast(field.type)
        arrays.append(array)
    batch = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    first = int(np.searchsorted(offsets, start, side="left"))
    last = rows if end is None else int(np.searchsorted(offsets, end, side="left"))
    return batch if first == 0 and last == rows else batch.slice(first, last - first)


def _constant(value: Any, rows: int, kind: Any) -> Any:
    return pa.repeat(pa.scalar(value, kind), rows)


class Collector:
    """Decoded records of several batches as Arrow arrays by source name."""

    def __init__(self, sources: set[str]) -> None:
        self._sources = sources | {"offset"}
        self.rows = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in self._sources}

    def add(self, data: memoryview, header: BatchHeader) -> None:
        """Decode one batch; `header.position` is its place in `data`."""
        columns = self._columns
        listed = list(decode_records(data, header))
        self.rows += len(listed)
        columns["offset"] += [record.offset for record in listed]
        if "key" in columns:
            columns["key"] += [record.key for record in listed]
        if "value" in columns:
            columns["value"] += [record.value for record in listed]
        if "timestamp" in columns:
            columns["timestamp"] += [record.timestamp if record.timestamp >= 0 else None for record in listed]
        if "timestamp_type" in columns:
            columns["timestamp_type"] += [TIMESTAMP_TYPES[record.timestamp_type] for record in listed]
        if "leader_epoch" in columns:
            columns["leader_epoch"] += [header.leader_epoch] * len(listed)
        if "headers" in columns:
            columns["headers"] += [
                [{"key": name, "value": value} for name, value in record.headers] if record.headers else None
                for record in listed
            ]

    def take(self) -> dict[str, Any]:
        """The arrays so far; begins anew."""
        types = {"offset": pa.int64(), "timestamp": pa.int64(), "timestamp_type": pa.int8(), "leader_epoch": pa.int32()}
        types |= {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS_TYPE}
        taken = {name: pa.array(values, types[name]) for name, values in self._columns.items() if name in types}
        self._columns = {name: [] for name in self._sources}
        self.rows = 0
        return taken
