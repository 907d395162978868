"""Option `valueSchema`: JSON values become typed columns, parsed where their bytes are read.

The column `value` is then a struct of the schema's fields, as `from_json(value.cast("string"), schema)` returns in mode
PERMISSIVE with Spark's default settings.  A value that does not have its field's type is null, and a text that is not a
JSON object is a struct of nulls.  The native parser (`json_columns`) reads rows that are exact JSON; the module
`from_json` reads the few that Spark reads in another way.  Types whose text depends on settings or on the locale
(timestamps, dates, decimals) are refused.

The driver finds the types, since only Spark parses DDL; executors get a pickled JsonValues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalog._native.codec.json_columns import JsonSchema

Spec = tuple[tuple[str, str, tuple[Any, ...]], ...]

FORMATS = {"IntegerType": "i", "LongType": "l", "DoubleType": "g", "BooleanType": "b", "StringType": "loose"}
EXPECTED = "expected string, int, bigint, double, boolean, or a struct or an array of them"
CORRUPT_RECORD = "_corrupt_record"
WITHOUT_HINT = 'read the value as it is, and parse it with Spark\'s from_json(col("value").cast("string"), schema)'
LEVELS_MAX = 60


def checked_ddl(given: Mapping[str, str]) -> str | None:
    """Returns the DDL of option `valueSchema`; Spark parses it as a part of the source's schema."""
    text = given.get("valueschema")
    if text is None:
        return None
    ddl = text.strip()
    if ddl.lower().startswith("struct<") and ddl.endswith(">"):
        ddl = ddl[len("struct<") : -1].strip()
    if not ddl or ddl.startswith("{"):
        raise IllegalArgumentException(
            f"option valueSchema: found {text!r}, expected the fields of the JSON as DDL",
            hint='.option("valueSchema", "id bigint, price double, tags array<string>")',
        )
    return ddl


def with_json(types: Mapping[str, str], ddl: str) -> str:
    """Returns the source's columns as DDL for Spark to parse; its timestamp type is the same in every session."""
    mine = {"value": f"struct<{ddl}>"}
    return ", ".join(
        f"{name} {mine.get(name) or kind.replace('timestamp', 'timestamp_ltz')}" for name, kind in types.items()
    )


def parsed(batches: Iterator[Any], values: JsonValues | None) -> Iterator[Any]:
    """Returns the record batches with their values as columns; unchanged if values are bytes."""
    return batches if values is None else map(values.apply, batches)


def json_values(schema: Any, ddl: str | None) -> JsonValues | None:
    """Returns how values are parsed for a reader of these columns (a StructType); None for bytes.

    Raises IllegalArgumentException for a type that cannot be parsed as Spark does, and if the schema says that the
    value is binary while option valueSchema is given.
    """
    kinds = [column.dataType for column in schema.fields if column.name == "value"]
    if not kinds:
        return None
    kind = kinds[0]
    if type(kind).__name__ != "StructType":
        if ddl is not None:
            raise IllegalArgumentException(
                f"option valueSchema is given, but the schema says that value is {kind.simpleString()}",
                hint="leave one of them out, or leave value out of the schema",
            )
        return None
    from pyspark.sql.pandas.types import to_arrow_type

    return JsonValues(_fields(kind, "", 1), to_arrow_type(kind))


def _fields(kind: Any, path: str, level: int) -> Spec:
    names = [field.name for field in kind.fields]
    if not names or len(set(names)) != len(names):
        twice = next((name for name in names if names.count(name) > 1), None)
        found = "no fields" if twice is None else f"two fields {twice!r}"
        raise IllegalArgumentException(
            f"valueSchema: found {found} in {path or 'value'}, expected fields with different names"
        )
    if not path and CORRUPT_RECORD in names:
        raise IllegalArgumentException(f"valueSchema: found a field {CORRUPT_RECORD}", hint=WITHOUT_HINT)
    made = []
    for field in kind.fields:
        place = f"{path}.{field.name}" if path else field.name
        _check_nullable(field.nullable, place)
        made.append((field.name, *_format(field.dataType, place, level + 1)))
    return tuple(made)


def _format(kind: Any, path: str, level: int) -> tuple[str, tuple[Any, ...]]:
    if level > LEVELS_MAX:
        raise IllegalArgumentException(f"valueSchema: found more than {LEVELS_MAX} levels, at {path}")
    name = type(kind).__name__
    if name == "StructType":
        return "+s", _fields(kind, path, level)
    if name == "ArrayType":
        _check_nullable(kind.containsNull, f"{path}[]")
        return "+l", (("element", *_format(kind.elementType, f"{path}[]", level + 1)),)
    found = kind.simpleString()
    if name not in FORMATS or (name == "StringType" and found != "string"):  # has another collation
        raise IllegalArgumentException(
            f"valueSchema: found {found} as the type of {path}, {EXPECTED}",
            hint=f"read it as a string and cast it, or {WITHOUT_HINT}",
        )
    return FORMATS[name], ()


def _check_nullable(is_nullable: bool, path: str) -> None:
    if not is_nullable:
        raise IllegalArgumentException(
            f"valueSchema: found NOT NULL at {path}, but any field of JSON may be missing", hint="leave NOT NULL out"
        )


@lru_cache(maxsize=16)
def _native(fields: Spec) -> JsonSchema:
    from kafkalog._native.codec.json_columns import JsonSchema

    return JsonSchema(fields)


@dataclass(frozen=True)
class JsonValues:
    """The fields of JSON values, and the Arrow struct that Spark expects."""

    fields: Spec
    type: pa.DataType

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch with parsed values in the column `value`."""
        at = batch.schema.get_field_index("value")
        return batch.set_column(at, "value", self.parsed(batch.column(at)))

    def parsed(self, values: pa.Array) -> pa.StructArray:
        """Parses a binary column."""
        import numpy as np
        import pyarrow as pa

        from kafkalog._face.value_columns import binary, buffers

        values = binary(values, "value")
        odd = np.zeros(len(values), np.uint8)
        found, *_ = _native(self.fields).columns(*buffers(values), odd_rows=odd.data)
        assert found is not None  # bad values are nulls, broken rows are in `odd`
        nulls = values.is_null() if values.null_count else None
        columns = [
            column.cast(field.type) for column, field in zip(pa.record_batch(found).columns, self.type, strict=True)
        ]
        parsed = pa.StructArray.from_arrays(columns, fields=list(self.type), mask=nulls)
        rows = odd.nonzero()[0]
        return self._with_odd(parsed, values, rows) if len(rows) else parsed

    def _with_odd(self, parsed: pa.StructArray, values: pa.Array, rows: Any) -> pa.StructArray:
        """Returns the column with Spark's results for these rows."""
        import numpy as np
        import pyarrow as pa

        from kafkalog.spark.from_json import from_json

        texts = values.take(pa.array(rows)).to_pylist()
        made = pa.array([_named(from_json(text, self.fields), self.fields) for text in texts], self.type)
        places = np.arange(len(values))
        places[rows] = len(values) + np.arange(len(rows))
        return pa.concat_arrays([parsed, made]).take(pa.array(places))


def _named(row: Any, fields: Spec) -> dict[str, Any] | None:
    """Returns a row as pyarrow accepts it."""
    if row is None:
        return None
    return {name: _item(value, format, children) for value, (name, format, children) in zip(row, fields, strict=True)}


def _item(value: Any, format: str, children: Spec) -> Any:
    if format == "+s":
        return _named(value, children)
    if format == "+l" and value is not None:
        return [_item(each, children[0][1], children[0][2]) for each in value]
    return value
