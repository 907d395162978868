"""The source's columns as Spark types, which mean the same in every session.

The meaning of a text such as "timestamp timestamp" depends on the session's settings (`spark.sql.timestampType`); these
types do not depend on it.  A schema that the user gives may say `not null`.  Spark compares it with the schema of what
tasks return, so the record batches of the tasks say it as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.tables import KEPT

TYPES: Mapping[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def struct_of(columns: Mapping[str, str], kept: Mapping[str, str] | None = None) -> StructType:
    """Builds the schema of columns from names and simple types; the last column carries the options that a table
    keeps."""
    last = list(columns)[-1]
    return StructType(
        [
            StructField(name, TYPES[kind], True, {KEPT: dict(kept)} if kept and name == last else None)
            for name, kind in columns.items()
        ]
    )


def not_null_of(schema: StructType) -> frozenset[str]:
    """Returns the names of the columns that a schema declares `not null`."""
    return frozenset(column.name for column in schema.fields if not column.nullable)


def check_nested(column: StructField) -> None:
    """Raises IllegalArgumentException if a column's type has a `not null` inside it."""
    kind = TYPES[column.dataType.simpleString()]
    if column.dataType != kind:
        raise IllegalArgumentException(
            f"column {column.name} has a `not null` inside its type",
            hint=f"expected {column.name} {kind.simpleString()}, with `not null` only after the whole type",
        )


def promised(batches: Iterator[Any], not_null: frozenset[str]) -> Iterator[Any]:
    """Declares the given columns of the Arrow batches not null.  Raises IllegalArgumentException if one has a null."""
    if not not_null:
        return batches
    return (_declared(batch, not_null) for batch in batches)


def _declared(batch: Any, not_null: frozenset[str]) -> Any:
    import pyarrow as pa

    fields: Sequence[Any] = [field.with_nullable(field.name not in not_null) for field in batch.schema]
    for field, column in zip(fields, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise IllegalArgumentException(
                f"a record has no {field.name}, but the schema declares the column not null",
                hint=f"leave `not null` out of the schema, or filter with {field.name} IS NOT NULL",
            )
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))
