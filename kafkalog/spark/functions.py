"""Functions for the columns of any DataFrame: batches to records and back, Kafka's checksum, its partitioner, headers.

Arrow goes in and out, and loops over rows are native.  They run wherever an executor's Python has kafkalog; what Spark
can do by itself (`header`) is Spark's own expression, which needs no Python.  Needs pyspark >= 4.1 (`arrow_udf`) and
pyarrow.

    from kafkalog.spark import functions as K
    files = spark.read.format("binaryFile").load("logs/orders-0/*.log")
    records = files.select("path", F.inline(K.decode_batches("content")))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from kafkalog._native import batches as native
from kafkalog._native import column_hashes
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, UnsupportedOperationException
from kafkalog.format import codecs
from kafkalog.format.arrow import read_columns, write_batches
from kafkalog.segment.loss import reason
from kafkalog.topics.arrow import SPARK_COLUMNS, schema, typed

RECORD_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
RECORDS_TYPE = (
    "array<struct<key:binary,value:binary,offset:bigint,timestamp:timestamp,timestampType:int,"
    "headers:array<struct<key:string,value:binary>>>>"
)
GIVEN = ("key", "value", "timestamp", "headers", "offset")
DAMAGE = ("fail", "truncate")


def decode_batches(data: Column | str, damage: str = "fail") -> Column:
    """The records of batches, of any magic and codec: an array of structs, one a record, for `inline`.

    `data` is the bytes of a fetch response's records or of a .log file; as in a response, a last batch that is cut off
    is passed over.  Markers of transactions are no records.  `damage`: what else is no batch fails the query with its
    byte ("fail"), or ends the array ("truncate").  A file is in memory as a whole, with its records: of directories
    `spark.read.format("kafkalog")` reads slices.
    """
    if damage not in DAMAGE:
        raise IllegalArgumentException(f"damage is {damage!r}", hint=f"expected one of {', '.join(DAMAGE)}")
    return _arrow_udf(_Decode(damage == "truncate"), RECORDS_TYPE)(_column(data))


def encode_batch(
    records: Column | str,
    base_offset: Column | str | int = 0,
    compression: str = "none",
) -> Column:
    """An array of records (structs with `value` and, as they like, `key`, `timestamp`, `headers`, `offset`) as the
    bytes of one batch of magic 2, as a producer writes it.  Null for an empty array.

    Offsets are those of the records where they have them (ascending), else they run on from `base_offset`.  A record
    without a timestamp has -1.  The inverse of `decode_batches`; an array is what `collect_list(struct(...))` makes.
    """
    codec = codecs.NAMES.index(compression) if compression in codecs.NAMES else None
    if codec is None:
        raise IllegalArgumentException(
            f"compression is {compression!r}", hint=f"expected one of {', '.join(codecs.NAMES)}"
        )
    base = F.lit(base_offset) if isinstance(base_offset, int) else _column(base_offset)
    return _arrow_udf(_Encode(codec), "binary", 2)(_column(records), base.cast("bigint"))


def crc32c(data: Column | str) -> Column:
    """CRC-32C of bytes (Castagnoli), 0 to 2^32 - 1; Spark's own crc32 is another polynomial."""
    return _arrow_udf(_Hash(0), "bigint")(_column(data))


def murmur2_partition(key: Column | str, partitions: int) -> Column:
    """The partition that Kafka's producers choose for a key, of a topic with so many; null for none, whose partition
    nothing decides."""
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 0x7FFFFFFF:
        raise IllegalArgumentException(f"partitions is {partitions!r}", hint="a topic has at least one partition")
    return _arrow_udf(_Hash(partitions), "int")(_column(key))


def header_values(headers: Column | str, name: str) -> Column:
    """The values of all headers of that name, in order: an array, null where there are no headers at all."""
    return F.transform(F.filter(_column(headers), lambda each: each["key"] == name), lambda each: each["value"])


def header(headers: Column | str, name: str) -> Column:
    """The value of the last header of that name, as Kafka's Headers.lastHeader; null where there is none."""
    return F.try_element_at(header_values(headers, name), F.lit(-1))


def _column(given: Column | str) -> Column:
    return F.col(given) if isinstance(given, str) else given


def _arrow_udf(work: Any, kind: str, columns: int = 1) -> Any:
    make = getattr(F, "arrow_udf", None)
    if make is None:
        raise UnsupportedOperationException(
            "this pyspark has no Arrow functions", hint="pip install 'pyspark>=4.1'; the data source needs 4.0"
        )
    if columns == 2:

        def two(first: pa.Array, second: pa.Array) -> pa.Array:
            return work(first, second)

        return make(two, kind)

    def one(first: pa.Array) -> pa.Array:
        return work(first)

    return make(one, kind)


class _Hash:
    """CRC-32C of each row, or its partition where there are some."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def __call__(self, column: pa.Array) -> pa.Array:
        column = column.cast(pa.binary())
        validity, places, data = column.buffers()
        count = len(column)
        bounds = memoryview(places)[4 * column.offset : 4 * (column.offset + count + 1)]
        octets = b"" if data is None else data
        if self._partitions:
            found, kind = column_hashes.partition_column(octets, bounds, self._partitions), pa.int32()
        else:
            found, kind = column_hashes.crc32c_column(octets, bounds), pa.int64()
        nulls = None if validity is None else column.is_null().to_numpy(zero_copy_only=False)
        return pa.array(found, kind, mask=nulls)


class _Decode:
    def __init__(self, truncates: bool) -> None:
        self._truncates = truncates

    def __call__(self, column: pa.Array) -> pa.Array:
        kind = pa.struct([(name, SPARK_COLUMNS[name][1]) for name in RECORD_COLUMNS])
        pieces, ends = [pa.array([], kind)], [0]
        for row in range(len(column)):
            rows = 0
            if column[row].is_valid:
                for batch in self._records(memoryview(column[row].as_buffer())):
                    pieces.append(batch.to_struct_array().cast(kind))
                    rows += batch.num_rows
            ends.append(ends[-1] + rows)
        nulls = None if column.null_count == 0 else column.is_null()
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.concat_arrays(pieces), mask=nulls)

    def _records(self, data: memoryview) -> Iterator[Any]:
        """The record batches of one row."""
        table, verdict, valid_bytes = native.scan(data, max_batches=0x7FFFFFFF)
        if verdict not in (native.OK, native.TORN) and not self._truncates:
            raise CorruptRecordException(
                f"found {reason(verdict)} in a row's bytes",
                position=valid_bytes,
                hint='damage="truncate" takes what lies before it',
            )
        wanted = schema(RECORD_COLUMNS, SPARK_COLUMNS)
        for columns in read_columns(data, table, timestamp_types=True, null_empty_headers=True, skip_control=True):
            decoded = pa.record_batch(columns)
            yield typed({name: decoded.column(name) for name in decoded.schema.names}, wanted, SPARK_COLUMNS)


class _Encode:
    def __init__(self, codec: int) -> None:
        self._codec = codec

    def __call__(self, records: pa.Array, base: pa.Array) -> pa.Array:
        made = []
        for row in range(len(records)):
            entries = records[row].values
            made.append(None if entries is None or not len(entries) else self._batch(entries, base[row].as_py()))
        return pa.array(made, pa.binary())

    def _batch(self, entries: pa.Array, base_offset: int | None) -> bytes:
        names = [entries.type.field(place).name for place in range(entries.type.num_fields)]
        odd = [name for name in names if name not in GIVEN and name not in SPARK_COLUMNS]
        if odd or "value" not in names:
            raise IllegalArgumentException(
                f"records are structs of {', '.join(names)}", hint=f"expected value, and of {', '.join(GIVEN)} any"
            )
        columns = {name: entries.field(name) for name in names if name in GIVEN}
        count = len(entries)
        times = columns.pop("timestamp", None)
        if times is None:
            columns["timestamp"] = pa.array(np.full(count, -1, np.int64))
        else:
            numbers = times.cast(pa.timestamp("ms", "UTC"), safe=False) if pa.types.is_timestamp(times.type) else times
            columns["timestamp"] = numbers.cast(pa.int64()).fill_null(-1)
        columns = {name: columns[name] for name in GIVEN if name in columns}
        batches = [
            *write_batches(
                pa.RecordBatch.from_pydict(columns),
                base_offset=base_offset or 0,
                batch_bytes_max=0x7FFFFFFF,
                codec=self._codec,
            )
        ]
        if len(batches) != 1:
            raise IllegalArgumentException(f"found records of {len(batches)} batches, expected those of one (2 GiB)")
        return batches[0]
