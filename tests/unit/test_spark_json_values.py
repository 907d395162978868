"""JSON values as Spark's from_json parses them: schemas, the native walk's odd rows, and the slow way for these."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kafkalog._native.codec.json_columns import JsonSchema
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.from_json import from_json, java_double
from kafkalog.spark.json_values import FORMATS, JsonValues, checked_ddl, json_values
from kafkalog.spark.options import parse_options

pa = pytest.importorskip("pyarrow")

FIELDS = (
    ("s", "loose", ()),
    ("i", "i", ()),
    ("d", "g", ()),
    ("o", "+s", (("x", "i", ()), ("y", "loose", ()))),
    ("a", "+l", (("element", "i", ()),)),
)
TYPE = pa.struct(
    [
        ("s", pa.string()),
        ("i", pa.int32()),
        ("d", pa.float64()),
        ("o", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("a", pa.list_(pa.field("element", pa.int32()))),
    ]
)
NOTHING = (None,) * len(FIELDS)
# Spark 4.3's answers.
ROWS: list[tuple[bytes, Any, bool]] = [
    (b'{"i":1,"s":"a","d":2,"o":{"x":3,"y":"b"},"a":[4,null]}', ("a", 1, 2.0, (3, "b"), [4, None]), False),
    (b'{"i":1.0,"d":"x","o":[],"a":7}', NOTHING, False),
    (b'{"i":2147483648}', NOTHING, False),
    (b'{"s":{"b" : [1, "x"]}}', ('{"b":[1,"x"]}', None, None, None, None), False),
    (b'{"s":1.50}', ("1.5", None, None, None, None), True),
    (b'{"s":-0,"d":-0}', ("0", None, 0.0, None, None), True),
    (b'{"s":NaN}', ('"NaN"', None, None, None, None), True),
    (b'{"s":"\\ud800"}', ("?", None, None, None, None), True),
    (b'{"s":"a\xed\xa0\x80b\xed\xbfc\xe2\x82"}', ("a\ufffdb\ufffdc\ufffd", None, None, None, None), True),
    (b'{"a":[1,"x",3],"i":5}', (None, 5, None, None, None), True),
    (b'{"i":1,"i":"x"}', (None, 1, None, None, None), True),
    (b"{'i':1}", (None, 1, None, None, None), True),
    (b'{"i":1}x', (None, 1, None, None, None), True),
    (b'{"i":1,"o":{"x":1,"y":tru},"s":"a"}', (None, 1, None, None, None), True),
    (b'{"i":1', NOTHING, True),
    (b"[1]", NOTHING, True),
    (b"null", NOTHING, True),
    (b" ", None, True),
    (b"", None, True),
]


@pytest.mark.parametrize(("text", "expected", "odd"), ROWS, ids=[repr(text) for text, _, _ in ROWS])
def test_a_row_is_what_spark_makes_of_it(text: bytes, expected: Any, odd: bool) -> None:
    assert from_json(text, FIELDS) == expected
    parsed = JsonValues(FIELDS, TYPE).parsed(pa.array([b'{"i":9}', None, text, b'{"i":8}'], pa.binary()))
    assert parsed.type == TYPE
    first, null, found, last = parsed.to_pylist()
    assert (first["i"], null, last["i"]) == (9, None, 8)
    assert found == (None if expected is None else dict(zip("sidoa", _named(expected), strict=True)))
    marks = np.zeros(1, np.uint8)
    JsonSchema(FIELDS).columns(text, np.array([0, len(text)], np.int32), odd_rows=marks)
    assert bool(marks[0]) == odd


def _named(row: tuple[Any, ...]) -> list[Any]:
    return [dict(zip("xy", each, strict=True)) if isinstance(each, tuple) else each for each in row]


def test_columns_are_parsed_in_their_batch() -> None:
    batch = pa.record_batch({"offset": [1, 2], "value": pa.array([b'{"i":1}', b"x"], pa.binary()), "key": ["a", "b"]})
    found = JsonValues(FIELDS, TYPE).apply(batch)
    assert found.schema.names == ["offset", "value", "key"]
    assert [row["i"] for row in found.column("value").to_pylist()] == [1, None]


def test_slices_and_no_rows() -> None:
    values = pa.array([b"x", None, b'{"i":1}', b"{}y", b'{"i":2}'], pa.binary())
    found = JsonValues(FIELDS, TYPE).parsed(values.slice(1, 3)).to_pylist()
    assert [row and row["i"] for row in found] == [None, 1, None]
    assert found[0] is None
    assert JsonValues(FIELDS, TYPE).parsed(values.slice(0, 0)).to_pylist() == []


def test_too_few_marks_are_refused() -> None:
    with pytest.raises(IndexError, match="expected 2"):
        JsonSchema(FIELDS).columns(b"{}{}", np.array([0, 2, 4], np.int32), odd_rows=np.zeros(1, np.uint8))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (1e6, "1000000.0"), (1e7, "1.0E7"), (12345678.9, "1.23456789E7"),
        (0.001, "0.001"), (0.00099, "9.9E-4"), (-2.5, "-2.5"), (100.25, "100.25"), (1e-300, "1.0E-300"),
        (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'), (math.nan, '"NaN"'), (0.0123, "0.0123"),
    ],
)  # fmt: skip
def test_a_double_is_written_as_java_does(number: float, text: str) -> None:
    assert java_double(number) == text


@pytest.mark.parametrize(
    ("given", "ddl"),
    [
        (" a int ", "a int"),
        ("struct<a: int, b: string>", "a: int, b: string"),
        ("a struct<b: int>", "a struct<b: int>"),
    ],
)
def test_fields_are_given_as_ddl(given: str, ddl: str) -> None:
    assert parse_options({"path": "/logs", "subscribe": "t", "valueSchema": given}).value_schema == ddl


@pytest.mark.parametrize("given", ["", " ", "struct<>", '{"type": "struct"}'])
def test_other_texts_are_no_fields(given: str) -> None:
    with pytest.raises(IllegalArgumentException, match="option valueSchema: found"):
        checked_ddl({"valueschema": given})


def test_types_of_spark() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    assert all(hasattr(types, name) for name in FORMATS)
    inner = types.StructType().add("k", types.StringType()).add("v", types.LongType())
    kind = types.StructType().add("b", types.BooleanType()).add("r", types.ArrayType(inner))
    schema = types.StructType().add("offset", types.LongType()).add("value", kind)
    found = json_values(schema, "b boolean, r array<struct<k string, v bigint>>")
    assert found is not None
    assert found.fields == (
        ("b", "b", ()),
        ("r", "+l", (("element", "+s", (("k", "loose", ()), ("v", "l", ()))),)),
    )
    assert found.parsed(pa.array([b'{"r":[{"v":1}]}'])).to_pylist() == [{"b": None, "r": [{"k": None, "v": 1}]}]
    assert json_values(types.StructType().add("value", types.BinaryType()), None) is None
    assert json_values(types.StructType().add("key", types.BinaryType()), "a int") is None
    with pytest.raises(IllegalArgumentException, match="says that value is binary"):
        json_values(types.StructType().add("value", types.BinaryType()), "a int")


def test_types_that_are_refused() -> None:
    types = pytest.importorskip("pyspark.sql.types")

    def refused(kind: Any) -> str:
        with pytest.raises(IllegalArgumentException) as caught:
            json_values(types.StructType().add("value", kind), None)
        return str(caught.value)

    for name in ("TimestampType", "DateType", "FloatType", "ShortType", "BinaryType", "DecimalType"):
        kind = getattr(types, name)()
        assert f"found {kind.simpleString()} as the type of a.b[]" in refused(
            types.StructType().add("a", types.StructType().add("b", types.ArrayType(kind)))
        )
    assert "found map<string,int> as the type of a" in refused(
        types.StructType().add("a", types.MapType(types.StringType(), types.IntegerType()))
    )
    assert "found NOT NULL at a," in refused(types.StructType().add("a", types.IntegerType(), False))
    assert "found NOT NULL at a[]" in refused(types.StructType().add("a", types.ArrayType(types.IntegerType(), False)))
    assert "two fields 'a'" in refused(types.StructType().add("a", types.IntegerType()).add("a", types.StringType()))
    assert "found no fields in value" in refused(types.StructType())
    assert "_corrupt_record" in refused(types.StructType().add("_corrupt_record", types.StringType()))
    deep: Any = types.IntegerType()
    for _ in range(70):
        deep = types.ArrayType(deep)
    assert "more than 60 levels" in refused(types.StructType().add("a", deep))
