"""Functions for the columns of any DataFrame.

They convert batches to records and back, and compute Kafka's checksum and its partitioner.  They also read headers, the
wire format of schema registries, and Debezium's messages.

Rows go through Arrow, and loops over rows are native.  The functions run on every executor whose Python has kafkalog.
`header`, `header_values`, `from_registry`, `schema_id` and `debezium` are Spark expressions and need no Python there.
Needs pyspark >= 4.1 (`arrow_udf`) and pyarrow.

Example:
    Read the records of all segments of a partition:

        from kafkalog.spark import functions as K
        files = spark.read.format("binaryFile").load("logs/orders-0/*.log")
        records = files.select("path", F.inline(K.decode_batches("content")))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from kafkalog._face.arrow import SPARK_COLUMNS, schema, typed
from kafkalog._limits import LONG_MAX
from kafkalog._native.codec import column_hashes
from kafkalog.engine.format import codecs
from kafkalog.engine.format.arrow import read_columns, write_batches
from kafkalog.errors import IllegalArgumentException, UnsupportedOperationException
from kafkalog.spark.decoding import debezium, from_registry, schema_id
from kafkalog.spark.row_bytes import whole_batches

__all__ = [
    "crc32c",
    "debezium",
    "decode_batches",
    "encode_batch",
    "from_registry",
    "header",
    "header_values",
    "murmur2_partition",
    "schema_id",
]

RECORD_COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
RECORDS_TYPE = (
    "array<struct<key:binary,value:binary,offset:bigint,timestamp:timestamp,timestampType:int,"
    "headers:array<struct<key:string,value:binary>>>>"
)
GIVEN = ("key", "value", "timestamp", "headers", "offset")
DAMAGE = ("fail", "truncate")


def decode_batches(data: Column | str, damage: str = "fail") -> Column:
    """Decodes the records of batches, of any magic and codec, to an array of structs for Spark's `inline`.

    A file is in memory as a whole, together with its records; `spark.read.format("kafkalog")` reads directories in
    slices.  Control records are left out.

    Args:
        data: The binary column, or its name: the records of a fetch response, or a .log file.  A last batch that is
            incomplete is skipped, as in a fetch response, but an incomplete batch with whole batches after it is
            damage.  Up to eight bytes count as the start of a batch; from the ninth byte on they must be a header.
        damage: "fail" fails the query at damaged bytes and names their position; "truncate" ends the array there.

    Returns:
        A column of array<struct<key, value, offset, timestamp, timestampType, headers>>; null for null.

    Raises:
        IllegalArgumentException: `damage` is neither of the two.
        UnsupportedOperationException: This pyspark has no Arrow functions (it is older than 4.1).

    Example:
        One row a record:

            files.select("path", F.inline(K.decode_batches("content")))
    """
    if damage not in DAMAGE:
        raise IllegalArgumentException(f"damage is {damage!r}", hint=f"expected one of {', '.join(DAMAGE)}")
    return _arrow_udf(_Decode(damage == "truncate", str(data)), RECORDS_TYPE)(_column(data))


def encode_batch(
    records: Column | str,
    base_offset: Column | str | int = 0,
    compression: str = "none",
) -> Column:
    """Encodes an array of records as the bytes of one batch of magic 2, as a producer writes it.

    This is the inverse of `decode_batches`.  The query fails for a null record, offset or base offset, and for a field
    of another type than the data source's column (`key` and `value` may also be strings).

    Args:
        records: The column, or its name: an array of structs with `value` and, if wanted, `key`, `timestamp`,
            `headers` and `offset`.  `collect_list(struct(...))` makes such an array.  A record without a timestamp
            gets -1.  Offsets must ascend.
        base_offset: The offset of the first record if records have no `offset`: 0 to 2^63 - 2.
        compression: The codec: none, gzip, snappy, lz4 or zstd.

    Returns:
        A binary column; null for an empty array.

    Raises:
        IllegalArgumentException: `compression` is not the name of a codec.
        UnsupportedOperationException: This pyspark has no Arrow functions (it is older than 4.1).

    Example:
        One batch a key:

            rows = frame.groupBy("key").agg(F.collect_list(F.struct("key", "value")).alias("records"))
            rows.select(K.encode_batch("records", compression="zstd"))
    """
    codec = codecs.NAMES.index(compression) if compression in codecs.NAMES else None
    if codec is None:
        raise IllegalArgumentException(
            f"compression is {compression!r}", hint=f"expected one of {', '.join(codecs.NAMES)}"
        )
    base = F.lit(base_offset) if isinstance(base_offset, int) else _column(base_offset)
    return _arrow_udf(_Encode(codec, str(records)), "binary", 2)(_column(records), base.cast("bigint"))


def crc32c(data: Column | str) -> Column:
    """Computes CRC-32C (Castagnoli), the checksum of Kafka's batches; Spark's `crc32` uses another polynomial.

    Args:
        data: The column, or its name: bytes, or a string, of which the UTF-8 bytes count.

    Returns:
        A bigint column: 0 to 2^32 - 1; null for null.

    Raises:
        UnsupportedOperationException: This pyspark has no Arrow functions (it is older than 4.1).

    Example:
        Compute the checksum of each value:

            frame.select(K.crc32c("value"))
    """
    return _arrow_udf(_Hash(0, str(data)), "bigint")(_column(data))


def murmur2_partition(key: Column | str, partitions: int) -> Column:
    """Computes the partition that Kafka's producers choose for a key.

    Args:
        key: The column, or its name: bytes, or a string, of which the UTF-8 bytes count.
        partitions: The number of partitions of the topic.

    Returns:
        An int column; null for a null key, whose partition the producer chooses freely.

    Raises:
        IllegalArgumentException: `partitions` is not a whole number from 1 to 2^31 - 1.
        UnsupportedOperationException: This pyspark has no Arrow functions (it is older than 4.1).

    Example:
        Find records that are not in the partition of their key:

            frame.where(F.col("partition") != K.murmur2_partition("key", 12))
    """
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 0x7FFFFFFF:
        raise IllegalArgumentException(f"partitions is {partitions!r}", hint="expected a number from 1 to 2147483647")
    return _arrow_udf(_Hash(partitions, str(key)), "int")(_column(key))


def header_values(headers: Column | str, name: str) -> Column:
    """Returns the values of all headers with a name, in order.

    Args:
        headers: The column `headers`, or its name.
        name: The name of the header.

    Returns:
        A column of array<binary>; null if `headers` is null.

    Example:
        Read all values of the header `trace`:

            frame.select(K.header_values("headers", "trace"))
    """
    return F.transform(F.filter(_column(headers), lambda each: each["key"] == name), lambda each: each["value"])


def header(headers: Column | str, name: str) -> Column:
    """Returns the value of the last header with a name, as Kafka's Headers.lastHeader does.

    Args:
        headers: The column `headers`, or its name.
        name: The name of the header.

    Returns:
        A binary column; null if no header has the name.

    Example:
        Read a header as a string:

            frame.select(K.header("headers", "trace").cast("string"))
    """
    return F.try_element_at(header_values(headers, name), F.lit(-1))


def _column(given: Column | str) -> Column:
    return F.col(given) if isinstance(given, str) else given


def _arrow_udf(work: Any, kind: str, columns: int = 1) -> Any:
    make = getattr(F, "arrow_udf", None)
    if make is None:
        raise UnsupportedOperationException(
            "this pyspark has no Arrow functions", hint="pip install 'pyspark>=4.1' (the data source needs only 4.0)"
        )
    if columns == 2:

        def two(first: pa.Array, second: pa.Array) -> pa.Array:
            return work(first, second)

        return make(two, kind)

    def one(first: pa.Array) -> pa.Array:
        return work(first)

    return make(one, kind)


def _octets(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


def _offsets(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind))


def _times(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) or _offsets(kind)


def _headers(kind: pa.DataType) -> bool:
    pairs = _items(kind)
    named = [field.name for field in pairs] == ["key", "value"]
    return named and all(_octets(field.type) or pa.types.is_null(field.type) for field in pairs)


def _items(kind: pa.DataType) -> list[pa.Field]:
    """Returns the fields of an array's structs; none if the type is not an array of structs."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return []
    return [kind.value_type.field(place) for place in range(kind.value_type.num_fields)]


# Field -> (check of its Arrow type, the expected type for messages)
GIVEN_TYPES: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (_octets, "binary or string"),
    "value": (_octets, "binary or string"),
    "timestamp": (_times, "timestamp, or bigint (milliseconds)"),
    "headers": (_headers, "array<struct<key:string,value:binary>>"),
    "offset": (_offsets, "bigint"),
}


def _check_type(name: str, kind: pa.DataType, fits: Callable[[pa.DataType], bool], expected: str) -> None:
    """Raises IllegalArgumentException if a column or field has another type; a column of only NULL fits all types."""
    if not pa.types.is_null(kind) and not fits(kind):
        raise IllegalArgumentException(
            f"{name}: found {kind}, expected {expected}", hint="cast the column to that type"
        )


class _Hash:
    """Computes CRC-32C of each row, or the partition of each key if `partitions` is not 0."""

    def __init__(self, partitions: int, name: str = "column") -> None:
        self._partitions = partitions
        self._name = name

    def __call__(self, column: pa.Array) -> pa.Array:
        _check_type(self._name, column.type, _octets, "binary or string")
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
    def __init__(self, truncates: bool, name: str = "data") -> None:
        self._truncates = truncates
        self._name = name

    def __call__(self, column: pa.Array) -> pa.Array:
        _check_type(self._name, column.type, lambda kind: kind in (pa.binary(), pa.large_binary()), "binary")
        kind = pa.struct([(name, SPARK_COLUMNS[name][1]) for name in RECORD_COLUMNS])
        pieces, ends = [pa.array([], kind)], [0]
        for row in range(len(column)):
            rows = 0
            if column[row].is_valid:
                for batch in self._records(memoryview(column[row].as_buffer()).cast("B")):
                    pieces.append(batch.to_struct_array().cast(kind))
                    rows += batch.num_rows
            ends.append(ends[-1] + rows)
        nulls = None if column.null_count == 0 else column.is_null()
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.concat_arrays(pieces), mask=nulls)

    def _records(self, data: memoryview) -> Iterator[Any]:
        """Yields the Arrow record batches of one row."""
        table = whole_batches(data, truncates=self._truncates)
        wanted = schema(RECORD_COLUMNS, SPARK_COLUMNS)
        for columns in read_columns(data, table, timestamp_types=True, null_empty_headers=True, skip_control=True):
            decoded = pa.record_batch(columns)
            yield typed({name: decoded.column(name) for name in decoded.schema.names}, wanted, SPARK_COLUMNS)


class _Encode:
    def __init__(self, codec: int, name: str = "records") -> None:
        self._codec = codec
        self._name = name

    def __call__(self, records: pa.Array, base: pa.Array) -> pa.Array:
        self._check(records.type)
        made = []
        for row in range(len(records)):
            entries = records[row].values if records[row].is_valid else None
            made.append(None if entries is None or not len(entries) else self._batch(entries, base[row].as_py()))
        return pa.array(made, pa.binary())

    def _check(self, kind: pa.DataType) -> None:
        _check_type(self._name, kind, lambda kind: bool(_items(kind)), "an array of structs")
        fields = _items(kind)
        names = [field.name for field in fields]
        odd = [name for name in names if name not in GIVEN and name not in SPARK_COLUMNS]
        if fields and (odd or "value" not in names):
            raise IllegalArgumentException(
                f"records are structs of {', '.join(names)}", hint=f"expected value, and any of {', '.join(GIVEN)}"
            )
        for field in fields:
            if field.name in GIVEN:
                _check_type(f"{self._name}.{field.name}", field.type, *GIVEN_TYPES[field.name])

    def _batch(self, entries: pa.Array, base_offset: int | None) -> bytes:
        self._check_nulls(self._name, "record", entries)
        names = [field.name for field in entries.type]
        columns = {
            name: entries.field(name)
            for name in GIVEN
            if name in names and not (name in ("key", "headers") and pa.types.is_null(entries.type.field(name).type))
        }
        times = columns.get("timestamp")
        if times is None:
            columns["timestamp"] = pa.array(np.full(len(entries), -1, np.int64))
        else:
            numbers = times.cast(pa.timestamp("ms", "UTC"), safe=False) if pa.types.is_timestamp(times.type) else times
            columns["timestamp"] = numbers.cast(pa.int64()).fill_null(-1)
        if "offset" in columns:
            self._check_nulls(f"{self._name}.offset", "offset", columns["offset"])
            columns["offset"] = columns["offset"].cast(pa.int64())
        batches = [
            *write_batches(
                pa.RecordBatch.from_pydict(columns),
                base_offset=self._first_offset(columns.get("offset"), base_offset, len(entries)),
                batch_bytes_max=0x7FFFFFFF,
                codec=self._codec,
            )
        ]
        if len(batches) != 1:
            raise IllegalArgumentException(
                f"found records for {len(batches)} batches, expected at most one batch (2 GiB)"
            )
        return batches[0].data

    @staticmethod
    def _check_nulls(name: str, what: str, column: pa.Array) -> None:
        if column.null_count:
            place = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise IllegalArgumentException(
                f"{name}: found null at position {place} of the array, expected {what}s", hint="filter nulls out"
            )

    def _first_offset(self, offsets: pa.Array | None, base: int | None, count: int) -> int:
        """Returns the base offset; raises IllegalArgumentException if a record has an offset that is not valid."""
        if base is None:
            raise IllegalArgumentException(
                "base_offset: found null, expected an offset", hint="replace null with coalesce"
            )
        first, last = (base, base + count - 1) if offsets is None else (offsets[0].as_py(), offsets[-1].as_py())
        if first < 0 or last >= LONG_MAX:
            name = "base_offset" if offsets is None else f"{self._name}.offset"
            raise IllegalArgumentException(
                f"{name}: found {count} records with offsets {first} to {last}, expected 0 to {LONG_MAX - 1}"
            )
        return first


def __dir__() -> list[str]:
    return __all__
