"""Arrow columns that `append_columns` accepts, converted to the few types that the encoder reads.

Nothing is truncated or guessed: a cast that would lose data is refused. Imported only if there is an Arrow column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkalog._face.rows import as_headers_column, as_times
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.engine.format.values import octets
from kafkalog.errors import IllegalArgumentException

pa: Any = need_pyarrow()
OCTETS = ("binary", "large_binary", "string", "large_string", "null")
TEXT = ("string", "large_string")


def encoder(given: Mapping[str, Any], now_ms: int) -> ColumnEncoder:
    """Returns the encoder of columns of equal length, at least one of which is an Arrow column."""
    count = len(given["values"])
    columns = {"value": _octets(given["values"], "values")}
    if "keys" in given:
        columns["key"] = _octets(given["keys"], "keys")
    if "headers" in given:
        columns["headers"] = _headers(given["headers"])
    columns["timestamp"] = pa.array(_times(given.get("timestamps"), count, now_ms))
    return ColumnEncoder.from_arrow(pa.RecordBatch.from_pydict(columns))


def _array(column: Any, what: str) -> Any:
    """Returns an Arrow column as one array; None for a list."""
    if hasattr(column, "__arrow_c_array__"):
        return pa.array(column)
    if hasattr(column, "__arrow_c_stream__"):
        chunks = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array(column)
        try:
            return chunks.combine_chunks()
        except pa.ArrowInvalid as error:
            raise IllegalArgumentException(
                f"{what}: {error}", hint="append a slice at a time, or cast it to large_binary"
            ) from None
    return None


def _octets(column: Any, what: str) -> Any:
    array = _array(column, what)
    if array is None:
        return pa.array([octets(entry, f"{what}[{row}]") for row, entry in enumerate(column)], pa.large_binary())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if str(array.type) in ("binary_view", "string_view") or pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.large_binary())
    if str(array.type) not in OCTETS:
        raise IllegalArgumentException(
            f"{what}: found an Arrow column of {array.type}, expected binary or text",
            hint='for a table, pass its columns: append_columns(table["value"], keys=table["key"])',
        )
    return array


def _times(column: Any, count: int, now_ms: int) -> Any:
    array = None if column is None else _array(column, "timestamps")
    if array is None:
        return as_times(column, count, now_ms)
    kind = array.type
    if pa.types.is_timestamp(kind):
        try:
            array = array.cast(pa.timestamp("ms"))
        except pa.ArrowInvalid as error:
            raise IllegalArgumentException(
                f"timestamps: {error}", hint='column.cast(pa.timestamp("ms"), safe=False) truncates them'
            ) from None
        array = array.view(pa.int64())
    elif pa.types.is_null(kind):
        array = array.cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise IllegalArgumentException(
            f"timestamps: found an Arrow column of {kind}, expected int64 or timestamp",
            hint="milliseconds since 1970 as whole numbers",
        )
    if not pa.types.is_uint64(array.type):  # not all of these fit: `as_times` checks them
        array = array.cast(pa.int64())
    return as_times(array.fill_null(now_ms).to_numpy(zero_copy_only=False), count, now_ms)


def _headers(column: Any) -> Any:
    wanted = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    array = _array(column, "headers")
    if array is None:
        rows = [[{"key": name, "value": value} for name, value in row] for row in as_headers_column(column)]
        return pa.array(rows, wanted)
    kind = array.type
    good = (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type)
    if good:
        parts = kind.value_type
        good = parts.num_fields == 2 and str(parts.field(0).type) in TEXT and str(parts.field(1).type) in OCTETS
    if not good:
        raise IllegalArgumentException(f"headers: found an Arrow column of {kind}, expected {wanted}")
    entries = array.flatten()
    if entries.null_count or entries.flatten()[0].null_count:
        raise IllegalArgumentException("headers: found one without a key (null), expected text")
    return array
