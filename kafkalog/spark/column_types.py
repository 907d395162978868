"""The source's columns as Spark's types, which mean the same in every session.

A text such as "timestamp timestamp" is read by the session's settings (`spark.sql.timestampType`); these types are not.
A schema of the user's may say `not null`, and Spark compares what tasks return with that, so the tasks' record batches
say it as well.
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
    """The schema of columns by name and simple type; the last one has the options that a table is to keep."""
    last = list(columns)[-1]
    return StructType(
        [
            StructField(name, TYPES[kind], True, {KEPT: dict(kept)} if kept and name == last else None)
            for name, kind in columns.items()
        ]
    )


def not_null_of(schema: StructType) -> frozenset[str]:
    """The columns that a schema says are never null."""
    return frozenset(column.name for column in schema.fields if not column.nullable)


def check_nested(column: StructField) -> None:
    """IllegalArgumentException for a `not null` within a column's type."""
    kind = TYPES[column.dataType.simpleString()]
    if column.dataType != kind:
        raise IllegalArgumentException(
            f"column {column.name} says `not null` within its type",
            hint=f"expected {column.name} {kind.simpleString()}, which may have `not null` behind it",
        )


def promised(batches: Iterator[Any], not_null: frozenset[str]) -> Iterator[Any]:
    """The Arrow record batches with those columns declared not null.  IllegalArgumentException if one has a null."""
    if not not_null:
        return batches
    return (_declared(batch, not_null) for batch in batches)


def _declared(batch: Any, not_null: frozenset[str]) -> Any:
    import pyarrow as pa

    fields: Sequence[Any] = [field.with_nullable(field.name not in not_null) for field in batch.schema]
    for field, column in zip(fields, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise IllegalArgumentException(
                f"a record has no {field.name}, the schema says that the column is not null",
                hint=f"leave `not null` out of the schema, or read with the condition {field.name} IS NOT NULL",
            )
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))
