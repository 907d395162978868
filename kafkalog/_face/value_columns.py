"""Decodes the column `value` of record batches: as text, as the fields of JSON, or by a function of the user.

This module only coordinates. The native decoder finds the fields, and a given function does its own work. Here is
decided which columns result, under which names, and which record has a value that cannot be decoded. Code that reads
batches creates one ValueDecoding and applies it to each:

    decoding = value_columns.decoding("json", {"id": "int64", "paid": "bool"})
    if decoding.schema is None:  # JSON without a schema
        decoding = decoding.infer(sample_batch["value"])
    decoded = map(decoding.apply, batches)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kafkalog._face import json_schema
from kafkalog._native.codec import json_columns
from kafkalog.engine.format.values import flag, shown
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    RecordDeserializationException,
)

# A field of a value with one of these names becomes a column value_<name>, whichever columns were requested.
RECORD_COLUMNS = (
    "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "headers", "leader_epoch",
)  # fmt: skip
SHOWN_BYTES = 40
_NULL_HINT = 'errors="null" makes it null'
_BROKEN = {
    json_columns.NO_OBJECT: "found {found}, expected a JSON object",
    json_columns.ENDS_EARLY: "the JSON ends early, at byte {at}",
    json_columns.BAD_BYTE: "found {found} at byte {at}, which is not JSON",
    json_columns.BAD_TEXT: "the text at byte {at} is not UTF-8",
    json_columns.BAD_ESCAPE: "found {found} at byte {at}, which is not an escape of JSON",
    json_columns.TOO_DEEP: "more than 512 nested objects and arrays, at byte {at}",
    json_columns.BYTES_LEFT: "found {found} at byte {at}, expected nothing after the object",
}
_UNFITTING = {
    json_columns.WRONG_TYPE: "{kind}",
    json_columns.OUT_OF_RANGE: "{kind}, which has a smaller range",
    json_columns.HAS_FRACTION: "{kind}, a whole number",
    json_columns.BAD_TIME: "{kind}: an ISO 8601 time, or milliseconds since 1970",
    json_columns.TOO_FINE: "{kind}, which has fewer digits",
    json_columns.LONE_SURROGATE: "{kind}, which cannot hold half of a surrogate pair",
}
# The type that can hold a value which does not fit.
_WIDER = {
    (json_columns.HAS_FRACTION, "int32"): "float64",
    (json_columns.HAS_FRACTION, "int64"): "float64",
    (json_columns.OUT_OF_RANGE, "int32"): "int64",
    (json_columns.TOO_FINE, "timestamp"): "timestamp[ns]",
}

Values = str | Callable[[Any], Any]


@dataclass(frozen=True)
class _Where:
    """The known origin of values."""

    batch: pa.RecordBatch | None = None
    topic: str | None = None
    partition: int | None = None
    is_sample: bool = False  # whether the batch's records are from separate places

    def told(self, row: int) -> str:
        """Returns the record's place, as far as it is known."""
        error = self.error(row, "")
        return error.message.removesuffix(": ")

    def error(
        self, row: int, message: str, *, hint: str | None = None, last: str = ""
    ) -> RecordDeserializationException:
        """Returns the error of a row, which names its record as far as it is known, and the `last` of several
        records."""
        found: dict[str, Any] = {"topic": self.topic, "partition": self.partition, "offset": None}
        for name in found:
            if self.batch is not None and name in self.batch.schema.names:
                found[name] = self.batch.column(self.batch.schema.get_field_index(name))[row].as_py()
        found = {name: value for name, value in found.items() if value is not None}
        told = ", ".join(f"{name} {value}" for name, value in found.items())
        place = told if "offset" in found else f"{told}, row {row}".removeprefix(", ")
        error = RecordDeserializationException(f"{place}{last}: {message}", hint=hint)
        for name, value in found.items():
            setattr(error, name, value)
        error.row = row
        return error


def decoding(
    values: Values = "bytes", schema: object = None, errors: str = "raise", *, keys: str = "bytes"
) -> ValueDecoding:
    """Returns a decoding of the values of records to columns.

    `values`: "bytes" leaves the values unchanged, "text" decodes them as text, and "json" makes a column of each field
    of their JSON objects. A function gets the batch's values as a `pyarrow.BinaryArray` and returns an array of the
    same length. If it returns a StructArray or RecordBatch, its fields become columns, as those of JSON do.

    `schema` for JSON: a `pyarrow.Schema` or a mapping of names to types; without it `infer` finds one. `schema` for a
    function: the type or schema that it returns, if that must be known before its first call.

    `errors`: "raise" stops at a value that cannot be decoded, "null" makes it null, or only its field of JSON if that
    has another type. `keys`: "bytes" or "text".

    IllegalArgumentException for anything else.
    """
    return ValueDecoding(values, schema, errors, keys)


class ValueDecoding:
    """Created by `decoding`. Any number of threads may use one.

    `schema` has the columns that replace `value`, by their own names. It is None while it is not known: for JSON
    without a schema, and for a function before its first call.
    """

    def __init__(self, values: Values, schema: object, errors: str, keys: str) -> None:
        if not callable(values) and values not in ("bytes", "text", "json"):
            raise IllegalArgumentException(
                f'values: found {shown(values)}, expected "bytes", "text", "json" or a function of a column'
            )
        if errors not in ("raise", "null"):
            raise IllegalArgumentException(f'errors: found {shown(errors)}, expected "raise" or "null"')
        if keys not in ("bytes", "text"):
            raise IllegalArgumentException(f'keys: found {shown(keys)}, expected "bytes" or "text"')
        if schema is not None and values in ("bytes", "text"):
            raise IllegalArgumentException(
                f"schema: found one, but values={values!r} has no schema", hint='values="json"'
            )
        if (values, keys) == ("bytes", "bytes") and errors != "raise":
            raise IllegalArgumentException(
                f"errors: found {errors!r}, but bytes are not decoded",
                hint='values="json", values="text" or keys="text"',
            )
        if callable(values) and errors != "raise":
            raise IllegalArgumentException(
                "errors: a function itself decides what to return for a bad value",
                hint="wire_format() has an option of this name",
            )
        self.values = values
        self.errors = errors
        self.keys = keys
        self._is_given = schema is not None
        self._native: json_columns.JsonSchema | None = None
        self._lock = threading.Lock()
        self.schema: pa.Schema | None = None  # replaced once, under the lock
        if values in ("bytes", "text"):
            self.schema = pa.schema([pa.field("value", pa.binary() if values == "bytes" else pa.string())])
        elif schema is not None and callable(values):
            self.schema = _returned(schema)
        elif schema is not None:
            self.schema = json_schema.normal(schema)
            self._native = json_schema.native(self.schema)

    def __repr__(self) -> str:
        known = "a schema that is not known yet" if self.schema is None else _told(self.schema)
        return f"decoding({self.values!r}: {known})"

    def schema_for(self, base: pa.Schema) -> pa.Schema:
        """Returns the schema of the result of `apply` for batches with the schema `base`.

        IllegalStateException while the values' own schema is not known.
        """
        if self.schema is None:
            raise IllegalStateException(
                "the schema of the values is not known yet", hint="pass schema=..., or call infer() with a sample"
            )
        if "value" not in base.names:
            return self._with_keys(base)
        fields: list[pa.Field] = []
        names = iter(_names(self.schema.names, base.names, is_plain=self.schema.names == ["value"]))
        for field in self._with_keys(base):
            if field.name == "value":
                fields += [each.with_name(next(names)) for each in self.schema]
            else:
                fields.append(field)
        return pa.schema(fields, base.metadata)

    def infer(self, sample: pa.Array, *, times: bool = False, records: pa.RecordBatch | None = None) -> ValueDecoding:
        """Returns a decoding whose schema is inferred from these values; itself if it has a schema already.

        `sample` is a binary column; some thousand rows are enough. The schema of JSON is the union of the fields: int64
        and float64 together are float64, values without a common type are JSON text, and a field that is always null is
        text. `times`: a field whose texts are all ISO 8601 is a timestamp. A function is called with the sample.
        `records` has a row for each value; errors name the record by its columns topic, partition and offset.
        """
        if self.schema is not None:
            return self
        found = ValueDecoding(self.values, None, self.errors, self.keys)
        column = binary(sample, "sample")
        if callable(self.values):
            found._take(column, _Where(records, is_sample=True))
            return found
        if self.errors == "raise":
            found._json(column, _Where(records, is_sample=True), json_schema.native(pa.schema([])))
        found.schema = json_schema.inferred(column.to_pylist(), times=flag(times, "times"))
        found._native = json_schema.native(found.schema)
        return found

    def apply(self, batch: pa.RecordBatch, *, topic: str | None = None, partition: int | None = None) -> pa.RecordBatch:
        """Returns the batch with decoded columns in place of `value`, and everything else unchanged.

        `topic` and `partition` are for errors, if the batch has no such columns.

        RecordDeserializationException names the record by the columns topic, partition and offset, as far as the batch
        has them. IllegalArgumentException if a function returns a column of another length, or of another type than
        before. IllegalStateException for JSON whose schema was neither given nor inferred.
        """
        at = batch.schema.get_field_index("value")
        if self.values == "bytes" or at < 0:
            return self._keyed(batch, _Where(batch, topic, partition))
        if self.values == "json" and self.schema is None:
            self.schema_for(batch.schema)
        where = _Where(batch, topic, partition)
        columns = self._columns(binary(batch.column(at), "value"), where)
        arrays = [*batch.columns[:at], *columns, *batch.columns[at + 1 :]]
        key = batch.schema.get_field_index("key")
        if self.keys == "text" and key >= 0:
            arrays[key if key < at else key - 1 + len(columns)] = self._text(batch.column(key), "key", where)
        if self.schema is None:  # a function that has seen only nulls so far
            fields = list(self._with_keys(batch.schema))
            fields[at] = pa.field("value", columns[0].type)
            return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, batch.schema.metadata))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema_for(batch.schema))

    def _with_keys(self, base: pa.Schema) -> pa.Schema:
        at = base.get_field_index("key")
        return base if self.keys == "bytes" or at < 0 else base.set(at, base.field(at).with_type(pa.string()))

    def _keyed(self, batch: pa.RecordBatch, where: _Where) -> pa.RecordBatch:
        at = batch.schema.get_field_index("key")
        if self.keys == "bytes" or at < 0:
            return batch
        arrays = batch.columns
        arrays[at] = self._text(batch.column(at), "key", where)
        return pa.RecordBatch.from_arrays(arrays, schema=self._with_keys(batch.schema))

    def _columns(self, column: pa.Array, where: _Where) -> list[pa.Array]:
        if self.values == "text":
            return [self._text(column, "value", where)]
        if self.values == "json":
            assert self._native is not None
            return self._json(column, where, self._native)
        return self._take(column, where)

    # --- text ---------------------------------------------------------------------------------------------

    def _text(self, column: pa.Array, what: str, where: _Where) -> pa.Array:
        column = binary(column, what)
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            bad = list(_not_text(column, 0))
        if self.errors == "raise":
            value = column[bad[0]].as_py()
            try:
                value.decode()
            except UnicodeDecodeError as error:
                raise where.error(
                    bad[0], f"{what}: found the byte 0x{value[error.start]:02x} at byte {error.start}, "
                    "expected UTF-8", hint=f'{what}s="bytes" reads it unchanged, and {_NULL_HINT}'
                ) from None  # fmt: skip
        entries = column.to_pylist()
        for row in bad:
            entries[row] = None
        return pa.array(entries, pa.binary()).cast(pa.string())

    # --- JSON ---------------------------------------------------------------------------------------------

    def _json(self, column: pa.Array, where: _Where, native: json_columns.JsonSchema) -> list[pa.Array]:
        found, verdict, row, at, size, node = native.columns(*buffers(column), null_errors=self.errors == "null")
        if found is not None:
            return list(pa.record_batch(found).columns)
        value = column[row].as_py()
        if verdict in _BROKEN:
            text = _BROKEN[verdict].format(
                found=_excerpt(value[at : at + SHOWN_BYTES + 1]) if value else "nothing", at=at
            )
            raise where.error(row, f"value: {text}", hint=_NULL_HINT)
        assert self.schema is not None
        path = native.path(node)
        kind = _type_at(self.schema, path)
        wanted = _UNFITTING[verdict].format(kind=kind)
        wider = _WIDER.get((verdict, kind.partition("[")[0]))
        takes = ""
        if wider is not None and not kind.startswith(wider.removesuffix("]")):
            takes = f'schema={{"{path}": "{wider}"}}' if path in self.schema.names else f'the type "{wider}"'
            takes += " accepts it, "
        text = f"field {path!r} at byte {at}: found {_excerpt(value[at : at + size])}, expected {wanted}"
        raise where.error(row, f"value, {text}", hint=f'{takes}{_NULL_HINT}, and the type "json" accepts any value')

    # --- functions ----------------------------------------------------------------------------------------

    def _take(self, column: pa.Array, where: _Where) -> list[pa.Array]:
        assert callable(self.values)
        try:
            made = self.values(column)
        except RecordDeserializationException as error:
            if error.topic is not None or error.row < 0:
                raise
            if error.__cause__ is None:
                raise where.error(error.row, error.message, hint=error.hint) from error
            last = f" to {where.told(error.last_row)}" if error.last_row > error.row else ""
            raise where.error(error.row, error.message, hint=error.hint, last=last) from error.__cause__
        except Exception as error:
            if len(column) and not isinstance(error, KafkalogError):
                given = "a sample of the values"
                if where.batch is not None and not where.is_sample:
                    given = f"the values of {where.told(0)} to {where.told(len(column) - 1)}"
                error.add_note(f"raised by the function of values=, which got {given}")
            raise
        found, columns = _as_columns(made)
        lengths = {len(each) for each in columns} or {len(column)}
        if lengths != {len(column)}:
            raise IllegalArgumentException(
                f"values: the function returned {max(lengths)} rows, expected {len(column)}, as many as it got"
            )
        with self._lock:
            if self.schema is not None and found.names == ["value"] and pa.types.is_null(found.field(0).type):
                return [pa.nulls(len(column), field.type) for field in self.schema]
            if self.schema is None and found.names == ["value"] and pa.types.is_null(found.field(0).type):
                return columns
            if self.schema is None:
                self.schema = found
            elif found.names == self.schema.names:  # pyarrow's type for nulls alone fits any type
                for at, field in enumerate(self.schema):
                    if pa.types.is_null(columns[at].type):
                        columns[at], found = pa.nulls(len(column), field.type), found.set(at, field)
            if not self.schema.equals(found):
                raise IllegalArgumentException(
                    f"values: the function returned {_told(found)}, expected {_told(self.schema)}, as "
                    + ("schema= says" if self._is_given else "before"),
                    hint="cast the result, or change schema="
                    if self._is_given
                    else "cast the result, or pass schema=...",
                )
        return columns


# --- names and types --------------------------------------------------------------------------------------


def _names(names: Iterable[str], base: Iterable[str], *, is_plain: bool) -> list[str]:
    """Returns the names of the values' columns, which differ from those of the records."""
    names = list(names)
    if is_plain:
        return names
    others = {*RECORD_COLUMNS, *base} - {"value"}
    taken = others | (set(names) - others)
    found = []
    for name in names:
        if name in others:
            name = f"value_{name}"
            while name in taken:
                name = f"value_{name}"
            taken.add(name)
        found.append(name)
    return found


def _returned(schema: object) -> pa.Schema:
    """Returns the declared schema of a function's result."""
    if isinstance(schema, pa.DataType) and not pa.types.is_struct(schema):
        return pa.schema([pa.field("value", schema)])
    if isinstance(schema, pa.DataType):
        return _bare(schema.fields)
    return _bare(schema if isinstance(schema, pa.Schema) else json_schema.given(schema))


def _bare(fields: Iterable[pa.Field]) -> pa.Schema:
    """Returns a schema of names and types only, without nullability and metadata."""
    return pa.schema([pa.field(field.name, field.type) for field in fields])


def _as_columns(made: Any) -> tuple[pa.Schema, list[pa.Array]]:
    """Returns a function's result as (schema, columns)."""
    made = as_array(made, "values: the function")
    if isinstance(made, pa.StructArray):
        return _bare(made.type.fields), made.flatten()
    return pa.schema([pa.field("value", made.type)]), [made]


def as_array(made: Any, who: str) -> pa.Array:
    """Returns a function's result as one array; a batch becomes a StructArray. `who` is for the error."""
    if isinstance(made, pa.Table):
        made = made.combine_chunks()
        made = pa.RecordBatch.from_arrays([_one(column) for column in made.columns], schema=made.schema)
    if isinstance(made, pa.ChunkedArray):
        return _one(made)
    if isinstance(made, pa.RecordBatch):
        return pa.StructArray.from_arrays(made.columns, fields=[field.with_nullable(True) for field in made.schema])
    if not isinstance(made, pa.Array) and hasattr(made, "__arrow_c_array__"):
        return as_array(pa.array(made), who)
    if not isinstance(made, pa.Array):
        raise IllegalArgumentException(
            f"{who}: returned {shown(made)}, expected a pyarrow.Array, StructArray or RecordBatch"
        )
    return made


def _one(column: pa.ChunkedArray) -> pa.Array:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else (pa.array([], column.type))
    )


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _type_at(schema: pa.Schema, path: str) -> str:
    """Returns the type of a field by the native decoder's path, for an error."""
    fields = list(schema)
    while True:
        # A name may contain dots and brackets: the longest name that fits counts.
        field = max((each for each in fields if f"{path}.".startswith((f"{each.name}.", f"{each.name}["))), key=_length)
        path = path[len(field.name) :]
        kind = field.type
        while path.startswith("[]") and pa.types.is_list(kind):
            field = kind.value_field
            kind, path = field.type, path[2:]
        path = path.removeprefix(".")
        if not path or not pa.types.is_struct(kind):
            return "any JSON" if json_schema.is_any_json(field) else _shown_type(kind)
        fields = list(kind.fields)


def _length(field: pa.Field) -> int:
    return len(field.name)


def _shown_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "an object"
    return "an array" if pa.types.is_list(kind) else str(kind)


# --- values -----------------------------------------------------------------------------------------------


def binary(column: pa.Array, what: str) -> pa.Array:
    """Returns a column of bytes in the one layout that the native decoder reads."""
    if isinstance(column, pa.ChunkedArray):
        column = _one(column)
    if not isinstance(column, pa.Array):
        raise IllegalArgumentException(f"{what}: found {shown(column)}, expected a binary pyarrow.Array")
    if pa.types.is_binary(column.type):
        return column
    if str(column.type) in ("large_binary", "binary_view", "string", "large_string", "string_view", "null"):
        return column.cast(pa.binary())
    raise IllegalArgumentException(f"{what}: found a column of {column.type}, expected binary")


def buffers(column: pa.Array) -> tuple[Any, Any, Any, int]:
    """Returns a binary column as arguments of native code: data, row offsets, the bitmap, and its first row."""
    validity, offsets, data = column.buffers()
    begin, end = 4 * column.offset, 4 * (column.offset + len(column) + 1)
    places = memoryview(offsets)[begin:end] if offsets is not None and offsets.size >= end else bytes(4)
    return b"" if data is None else data, places, validity, column.offset


def _not_text(column: pa.Array, first: int) -> Iterable[int]:
    """Yields the rows that are not UTF-8, by bisection."""
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        if len(column) == 1:
            yield first
        else:
            half = len(column) // 2
            yield from _not_text(column.slice(0, half), first)
            yield from _not_text(column.slice(half), first + half)


def _excerpt(value: bytes) -> str:
    text = value[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return (text if text.isprintable() else repr(text)) + ("..." if len(value) > SHOWN_BYTES else "") or "nothing"
