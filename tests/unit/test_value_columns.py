"""Values of records as columns: text, fields of JSON by a given or inferred schema, functions.

Also the errors for a value that cannot be decoded.
"""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException, IllegalStateException, RecordDeserializationException

pa = pytest.importorskip("pyarrow")

from kafkalog._face import json_schema  # noqa: E402
from kafkalog._face.value_columns import decoding  # noqa: E402

UTC = datetime.UTC


def batch(*values: Any, **more: Any) -> Any:
    """Records of orders-3 from offset 100 on."""
    count = len(values)
    columns = {
        "topic": pa.array(["orders"] * count, pa.string()),
        "partition": pa.array([3] * count, pa.int32()),
        "offset": pa.array(range(100, 100 + count), pa.int64()),
        "key": pa.array([b"k%d" % i for i in range(count)], pa.binary()),
        "value": pa.array(
            [each if isinstance(each, bytes | None) else json.dumps(each).encode() for each in values], pa.binary()
        ),
        **more,
    }  # fmt: skip
    return pa.RecordBatch.from_pydict(columns)


def fields(schema: object, *values: Any, errors: str = "raise") -> list[dict[str, Any]]:
    made = decoding("json", schema, errors).apply(batch(*values)).drop_columns(["topic", "partition", "offset", "key"])
    made.validate(full=True)
    return list(made.to_pylist())


# --- columns ---------------------------------------------------------------------------------------------


def test_fields_take_the_place_of_the_value() -> None:
    given = batch({"id": 1, "key": "a", "offset": 2.5}, {"id": 2}, headers=pa.array([None, None], pa.binary()))
    made = decoding("json", {"id": "int64", "key": "string", "offset": "float64"}).apply(given)
    assert made.schema.names == ["topic", "partition", "offset", "key", "id", "value_key", "value_offset", "headers"]
    assert made.column("value_key").to_pylist() == ["a", None]
    assert made.column("offset").to_pylist() == [100, 101]
    assert made.column("value_offset").to_pylist() == [2.5, None]
    assert made.schema == decoding("json", {"id": "int64", "key": "string", "offset": "float64"}).schema_for(
        given.schema
    )


def test_names_that_meet_each_other() -> None:
    names = ["value_key", "key", "value", "leader_epoch", "value_value_key", "timestamp"]
    made = decoding("json", dict.fromkeys(names, "int64")).schema_for(pa.schema([("value", pa.binary())]))
    assert made.names == [
        "value_key", "value_value_value_key", "value", "value_leader_epoch", "value_value_key", "value_timestamp",
    ]  # fmt: skip


def test_every_type() -> None:
    schema = {
        "b": "bool", "i": "int32", "l": pa.int64(), "f": "float64", "s": "string", "t": "timestamp",
        "ms": "timestamp[ms]", "d": "decimal(12, 2)", "any": "json", "o": {"x": "int64", "y": {"z": "string"}},
        "a": ["string"], "aa": [["int32"]], "ao": [{"sku": "string", "n": "int64"}],
    }  # fmt: skip
    value = {
        "b": True, "i": -5, "l": 2**62, "f": 3, "s": "größe \U0001f600", "t": "2026-03-01T12:30:05.5+02:00",
        "ms": 1_700_000_000_123, "d": "19.90", "any": {"k": [1, None]}, "o": {"x": 1, "y": {"z": "deep"}},
        "a": ["x", None], "aa": [[1], [], None], "ao": [{"sku": "s", "n": 1}, None, {}],
    }  # fmt: skip
    full, empty, tombstone, missing = fields(schema, value, dict.fromkeys(schema), None, {})
    assert full == {
        **value, "f": 3.0, "t": datetime.datetime(2026, 3, 1, 10, 30, 5, 500_000, tzinfo=UTC),
        "ms": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC), "d": decimal.Decimal("19.90"),
        "any": '{"k": [1, null]}', "ao": [{"sku": "s", "n": 1}, None, {"sku": None, "n": None}],
    }  # fmt: skip
    assert empty == tombstone == missing == dict.fromkeys(schema)


def test_schemas_of_arrow_are_the_same() -> None:
    given = {"a": "int64", "o": {"x": "bool", "any": "json"}, "l": ["string"]}
    made = decoding("json", given).schema
    assert decoding("json", made).schema == made
    value = {"a": 1, "o": {"x": True, "any": [1]}, "l": ["s"]}
    assert fields(made, value) == fields(given, value) == [{"a": 1, "o": {"x": True, "any": "[1]"}, "l": ["s"]}]
    if hasattr(pa, "json_"):
        assert fields(pa.schema([("any", pa.json_())]), {"any": [1, {}]}) == [{"any": "[1, {}]"}]
    element = pa.schema([pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False)])
    assert fields(element, {"l": [1, None]}, {}) == [{"l": [1, None]}, {"l": None}]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-03-01", (2026, 3, 1)),
        ("2026-03-01T12:30", (2026, 3, 1, 12, 30)),
        ("2026-03-01 12:30:05Z", (2026, 3, 1, 12, 30, 5)),
        ("2026-03-01t12:30:05,123456z", (2026, 3, 1, 12, 30, 5, 123456)),
        ("2026-03-01T00:30:00-0130", (2026, 3, 1, 2, 0)),
        ("2026-03-01T00:30:00+02", (2026, 2, 28, 22, 30)),
        ("0001-01-01T00:00:00Z", (1, 1, 1)),
        ("1969-12-31T23:59:59.999999", (1969, 12, 31, 23, 59, 59, 999999)),
        ("2024-02-29T00:00:00.1230000", (2024, 2, 29, 0, 0, 0, 123000)),
        ("9999-12-31T23:59:59", (9999, 12, 31, 23, 59, 59)),
        *[(text, None) for text in [
            "2023-02-29", "2026-13-01", "2026-00-01", "2026-01-32", "2026-1-1", "2026-03-01T", "2026-03-01T24:00",
            "2026-03-01T12", "2026-03-01T12:60", "2026-03-01T12:30:60", "2026-03-01T12:30:05.", "2026-03-01T12:30+2",
            "2026-03-01T12:30:05.1234567", "2026-03-01T12:30Zx", "2026-03-01T12:30+24:00", "20260301", "", "now",
            "2026-03-01X12:30", "2026-03-01T12:30+02:", "+2026-03-01", "2026-03-01T12:30:05 Z",
        ]],
    ],
)  # fmt: skip
def test_times(text: str, found: tuple[int, ...] | None) -> None:
    ((got),) = [row["t"] for row in fields({"t": "timestamp"}, {"t": text}, errors="null")]
    assert got == (None if found is None else datetime.datetime(*found, tzinfo=UTC))  # type: ignore[arg-type, misc]


def test_times_are_never_cut() -> None:
    nano = fields({"t": "timestamp[ns]"}, {"t": "2026-03-01T12:30:05.123456789Z"})
    assert nano[0]["t"].value % 1000 == 789 if hasattr(nano[0]["t"], "value") else True
    for kind, value in [("timestamp[ms]", "2026-03-01T12:30:05.1234Z"), ("timestamp[s]", 1500), ("timestamp", 1.5)]:
        with pytest.raises(RecordDeserializationException, match=r"field 't' at byte 6: found .*, expected timestamp"):
            fields({"t": kind}, {"t": value})
    assert fields({"t": "timestamp[s]"}, {"t": -2000})[0]["t"] == datetime.datetime(
        1969, 12, 31, 23, 59, 58, tzinfo=UTC
    )
    for value in (2**63 - 1, "3000-01-01"):
        with pytest.raises(RecordDeserializationException, match="which has a smaller range"):
            fields({"t": "timestamp[ns]"}, {"t": value})


# --- what is told ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"", "value: found nothing, expected a JSON object"),
        (b"[1]", "value: found [1], expected a JSON object"),
        (b'  "text"', 'value: found "text", expected a JSON object'),
        (b"\x00\x00\x00\x00\x07", r"value: found '\x00\x00\x00\x00\x07', expected a JSON object"),
        (b'{"a": 1', "value: the JSON ends early, at byte 7"),
        (b'{"a": "x', "value: the JSON ends early, at byte 8"),
        (b'{"a": tr', "value: the JSON ends early, at byte 6"),
        (b'{"x": 01}', "value: found 1} at byte 7, which is not JSON"),
        (b'{"x": [1,]}', "value: found ]} at byte 9, which is not JSON"),
        (b'{"x": 1 "a": 2}', 'value: found "a": 2} at byte 8, which is not JSON'),
        (b'{"x": "\xff"}', "value: the text at byte 6 is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "value: the text at byte 6 is not UTF-8"),
        (b'{"x": "\\q"}', r'value: found \q"} at byte 7, which is not an escape of JSON'),
        (b'{"x": "\x01"}', "value: found '\\x01\"}' at byte 7, which is not JSON"),
        (b'{"a": 1} {}', "value: found {} at byte 9, expected nothing after the object"),
        (b'{"x": ' + b"[" * 600, "value: more than 512 nested objects and arrays, at byte 518"),
        (b'{"a": 1.0}', "value, field 'a' at byte 6: found 1.0, expected int64, a whole number"),
        (b'{"a": 9223372036854775808}', "found 9223372036854775808, expected int64, which has a smaller range"),
        (b'{"a": true}', "value, field 'a' at byte 6: found true, expected int64"),
        (b'{"s": 5}', "value, field 's' at byte 6: found 5, expected string"),
        (b'{"s": "\\ud800"}', r'at byte 6: found "\ud800", expected string, which cannot hold half'),
        (b'{"o": {"l": [1, {"t": "soon"}]}}', "field 'o.l[]' at byte 13: found 1, expected an object"),
        (b'{"o": {"l": [{"t": "soon"}]}}', "field 'o.l[].t' at byte 19: found \"soon\", expected timestamp[us"),
        (b'{"o": {"l": {}}}', "field 'o.l' at byte 12: found {}, expected an array"),
    ],
)  # fmt: skip
def test_a_bad_value_is_told_with_its_place(value: bytes, told: str) -> None:
    schema = {"a": "int64", "s": "string", "o": {"l": [{"t": "timestamp"}]}}
    with pytest.raises(RecordDeserializationException, match=r"^topic orders, partition 3, offset 101: value") as error:
        fields(schema, {"a": 1}, value, {"a": 2})
    assert told in str(error.value)
    assert (error.value.topic, error.value.partition, error.value.offset, error.value.row) == ("orders", 3, 101, 1)
    assert isinstance(pickle.loads(pickle.dumps(error.value)), RecordDeserializationException)
    rows = fields(schema, {"a": 1}, value, {"a": 2}, errors="null")
    assert [row["a"] for row in rows] == [1, None, 2]
    assert rows[1]["s"] is None


def test_without_columns_of_a_place_the_row_is_told() -> None:
    made = decoding("json", {"a": "int64"})
    with pytest.raises(RecordDeserializationException, match=r"^row 1: value, field 'a'"):
        made.apply(batch({"a": 1}, {"a": "x"}).select(["value"]))
    with pytest.raises(
        RecordDeserializationException, match=r"^topic t, partition 4, row 1: value, field 'a'"
    ) as error:
        made.apply(batch({"a": 1}, {"a": "x"}).select(["value"]), topic="t", partition=4)
    assert (error.value.topic, error.value.partition, error.value.offset) == ("t", 4, -1)


def test_the_last_of_equal_keys_counts() -> None:
    value = b'{"a": "x", "o": {"x": 1}, "l": [1, 2], "a": 2, "o": {}, "l": [3], "s": "first", "s": "2"}'
    schema = {"a": "int64", "o": {"x": "int64"}, "l": ["int64"], "s": "string"}
    assert fields(schema, value, value) == [{"a": 2, "o": {"x": None}, "l": [3], "s": "2"}] * 2


def test_parts_of_a_broken_row_are_taken_back() -> None:
    schema = {"a": "int64", "s": "string", "l": [{"x": ["int64"]}]}
    good = {"a": 1, "s": "s", "l": [{"x": [1, 2]}]}
    broken = json.dumps(good).encode()
    rows = [good, *(broken[:end] for end in range(len(broken))), good]
    assert fields(schema, *rows, errors="null") == [good, *[dict.fromkeys(schema)] * len(broken), good]


# --- inference -------------------------------------------------------------------------------------------


def inferred(*values: Any, **options: Any) -> Any:
    return decoding("json").infer(batch(*values).column("value"), **options).schema


def test_the_union_of_a_sample() -> None:
    made = inferred(
        {"i": 1, "f": 1, "n": None, "t": "2026-03-01", "big": 2**64, "mix": 1, "o": {"a": 1}, "l": [1], "no": [],
         "e": {}},
        None,
        {"i": 2, "f": 0.5, "new": True, "mix": "x", "o": {"b": "s"}, "l": [2.5, None], "t": "2026-03-01T12:30:05Z"},
    )  # fmt: skip
    assert made == decoding("json", {
        "i": "int64", "f": "float64", "n": "string", "t": "string", "big": "json", "mix": "json",
        "o": {"a": "int64", "b": "string"}, "l": ["float64"], "no": ["string"], "e": "json", "new": "bool",
    }).schema  # fmt: skip
    assert inferred({"t": "2026-03-01"}, times=True).field("t").type == pa.timestamp("us", "UTC")
    assert inferred({"t": "2026-03-01"}, {"t": "x"}, times=True).field("t").type == pa.string()
    assert inferred({"t": "2026-03-01T00:00:00.1234567"}, times=True).field("t").type == pa.timestamp("ns", "UTC")
    assert inferred({"m": {f"k{i}": i for i in range(501)}}) == decoding("json", {"m": "json"}).schema
    assert inferred().names == []


def test_a_sample_decodes_as_it_was_inferred() -> None:
    made = decoding("json").infer(batch({"a": 1, "o": {"x": [1.5]}}, {"b": "s"}).column("value"))
    assert made.infer(batch({"c": 1}).column("value")) is made
    assert made.apply(batch({"a": 2, "o": {"x": []}, "c": 5})).column("o").to_pylist() == [{"x": []}]
    with pytest.raises(RecordDeserializationException, match=r"^row 1: value: the JSON ends early"):
        inferred({"a": 1}, b'{"a":')
    assert decoding("json", errors="null").infer(batch(b"{", b"7", {"a": 1}).column("value")).schema.names == ["a"]


def test_a_schema_that_nobody_knows() -> None:
    unknown = decoding("json")
    assert unknown.schema is None
    assert repr(unknown) == "decoding('json': a schema that is not known yet)"
    assert repr(decoding("json", {"a": "int64"})) == "decoding('json': a: int64)"
    for call in (unknown.apply, lambda given: unknown.schema_for(given.schema)):
        with pytest.raises(IllegalStateException, match="not known yet"):
            call(batch({}))


# --- text ------------------------------------------------------------------------------------------------


def test_text() -> None:
    given = batch("größe".encode(), None, b"", b"x")
    made = decoding("text", keys="text").apply(given)
    assert made.column("value").to_pylist() == ["größe", None, "", "x"]
    assert made.column("key").to_pylist() == ["k0", "k1", "k2", "k3"]
    assert made.schema == decoding("text", keys="text").schema_for(given.schema)
    assert decoding("bytes").apply(given) is given
    assert decoding("bytes", keys="text").apply(given).column("key").type == pa.string()
    assert decoding("text").apply(given.select(["offset"])) == given.select(["offset"])
    assert decoding("text").apply(given.slice(1, 2)).column("value").to_pylist() == [None, ""]


def test_text_that_is_none() -> None:
    values = [b"good"] * 500
    values[77] = b"ab\xffcd"
    values[400] = b"\xed\xa0\x80"
    with pytest.raises(
        RecordDeserializationException, match="offset 177: value: found the byte 0xff at byte 2"
    ) as error:
        decoding("text").apply(batch(*values))
    assert error.value.offset == 177
    got = decoding("text", errors="null").apply(batch(*values)).column("value").to_pylist()
    assert got == ["good" if value == b"good" else None for value in values]
    bad_keys = pa.array([b"\xff"], pa.binary())
    with pytest.raises(RecordDeserializationException, match="key: found the byte 0xff"):
        decoding("json", {}, keys="text").apply(batch({}, key=bad_keys))


# --- functions -------------------------------------------------------------------------------------------


def test_functions() -> None:
    lengths = decoding(lambda values: pa.array([len(each.as_py()) for each in values], pa.int64()))
    given = batch(b"one", b"three")
    assert lengths.schema is None
    assert lengths.apply(given).column("value").to_pylist() == [3, 5]
    assert lengths.schema_for(given.schema).field("value").type == pa.int64()
    for made in (
        pa.RecordBatch.from_pydict({"key": [1, 2], "x": ["a", "b"]}),
        pa.table({"key": [1, 2], "x": ["a", "b"]}),
        pa.array([{"key": 1, "x": "a"}, {"key": 2, "x": "b"}]),
        pa.chunked_array([[{"key": 1, "x": "a"}], [{"key": 2, "x": "b"}]]),
    ):
        found = decoding(lambda _, made=made: made).apply(given)
        assert found.schema.names[-2:] == ["value_key", "x"]
        assert found.column("x").to_pylist() == ["a", "b"]


def test_what_a_function_may_not_return() -> None:
    answers = iter([pa.array([1]), pa.array(["x"]), pa.array([1, 2]), [1], None])
    made = decoding(lambda values: next(answers))
    made.apply(batch(b"x"))
    for told in ("returned value: string, expected value: int64, as before", "returned 2 rows, expected 1",
                 r"returned list \[1\], expected a pyarrow.Array", "returned NoneType"):  # fmt: skip
        with pytest.raises(IllegalArgumentException, match=told):
            made.apply(batch(b"x"))
    with pytest.raises(IllegalArgumentException, match="expected value: string, as schema= says"):
        decoding(lambda values: pa.array([1]), pa.string()).apply(batch(b"x"))
    with pytest.raises(ZeroDivisionError):
        decoding(lambda values: 1 // 0).apply(batch(b"x"))


def test_functions_whose_type_comes_later() -> None:
    made = decoding(lambda values: pa.nulls(len(values)) if values.null_count else pa.array([1] * len(values)))
    assert made.apply(batch(None)).column("value").to_pylist() == [None]
    assert made.apply(batch(b"x")).column("value").type == pa.int64()
    assert made.apply(batch(None)).column("value").type == pa.int64()
    assert decoding(lambda values: pa.nulls(1), {"a": "int64"}).apply(batch(None)).column("a").to_pylist() == [None]
    small = {"a": pa.int8(), "b": pa.large_string()}
    made = decoding(lambda values: pa.array([{"a": 1, "b": "x"}], pa.struct(small)), small)
    assert made.schema_for(batch().schema).field("b").type == pa.large_string()
    assert made.apply(batch(b"x")).column("a").to_pylist() == [1]
    strict = pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"k": "v"})])
    assert decoding(lambda values: pa.array([{"a": 1}]), strict).apply(batch(b"x")).column("a").to_pylist() == [1]
    assert decoding(lambda values: pa.array([1])).infer(pa.array([b"x"])).schema == pa.schema([("value", pa.int64())])


# --- the door --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"values": "avro"}, {"values": None}, {"values": b"json"}, {"values": "text", "schema": {}},
        {"values": "json", "errors": "ignore"}, {"values": "json", "errors": None}, {"values": "json", "keys": "json"},
        {"values": "json", "schema": "int64"}, {"values": "json", "schema": ["a"]},
        {"values": "json", "schema": {"a": "bytes"}}, {"values": "json", "schema": {1: "int64"}},
        {"values": "json", "schema": {"a": []}}, {"values": "json", "schema": {"a": ["int64", "bool"]}},
        {"values": "json", "schema": {"a": pa.int8()}}, {"values": "json", "schema": {"a": None}},
        {"values": "json", "schema": {"a": "decimal(39, 2)"}},
        {"values": "json", "schema": {"a": "decimal(99999999999999999999, 1)"}},
        {"values": "json", "schema": {"a": "decimal(5, 99999999999999999999)"}},
        {"values": "json", "schema": {"\ud800": "string"}}, {"values": "json", "schema": {"a": {"\ud800": "string"}}},
        {"values": "json", "schema": {"a": "struct<\ud800: string>"}},
        {"values": "json", "schema": {"a": "timestamp[ms, tz=\ud800]"}},
        {"values": "json", "schema": {"a": pa.decimal128(5, 9)}},
        {"values": "json", "schema": pa.schema([("a", pa.int64()), ("a", pa.int64())])},
        {"values": "json", "schema": {"o": {"a": pa.map_(pa.string(), pa.int64())}}},
        {"values": len, "errors": "null"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_decoding(given: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentException):
        decoding(**given)


def test_schemas_that_are_too_deep() -> None:
    schema: Any = "int64"
    for _ in range(70):
        schema = {"o": schema}
    with pytest.raises(IllegalArgumentException, match="more than 64 levels"):
        decoding("json", schema)


def test_other_layouts_of_a_column() -> None:
    made = decoding("json", {"a": "int64"})
    for kind in (pa.large_binary(), pa.string(), pa.binary_view()):
        column = pa.array([b'{"a": 1}', None, b'{"a": 3}'], pa.binary()).cast(kind)
        assert made.apply(pa.record_batch({"value": column})).column("a").to_pylist() == [1, None, 3]
        assert made.apply(pa.record_batch({"value": column}).slice(1)).column("a").to_pylist() == [None, 3]
    assert made.apply(pa.record_batch({"value": pa.nulls(2)})).column("a").to_pylist() == [None, None]
    assert len(made.apply(batch())) == 0
    with pytest.raises(IllegalArgumentException, match="found a column of int64, expected binary"):
        made.apply(pa.record_batch({"value": pa.array([1])}))


def test_many_threads_use_one() -> None:
    made = decoding("json", {"a": "int64", "s": "string"})
    given = batch(*({"a": i, "s": "x" * (i % 40)} for i in range(2000)))
    expected = made.apply(given)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(made.apply(given))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


# --- types as they are written -----------------------------------------------------------------------------

ITEM = pa.struct([("sku", pa.string()), ("prices", pa.list_(pa.float64())), ("at", pa.timestamp("ms", "Asia/Tokyo"))])


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.timestamp("ns", "UTC"),
        pa.timestamp("us", "+01:00"), pa.decimal128(10, 2), pa.list_(pa.string()), pa.list_(pa.list_(pa.int64())),
        pa.list_(pa.field("element", pa.int64(), nullable=False)), ITEM, pa.list_(ITEM),
        pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", ITEM)]), pa.list_(pa.decimal128(38, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_as_pyarrow_prints_it(kind: pa.DataType) -> None:
    assert decoding("json", {"a": str(kind)}).schema == decoding("json", pa.schema([("a", kind)])).schema


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (int, pa.int64()),
        (float, pa.float64()),
        (str, pa.string()),
        (bool, pa.bool_()),
        (datetime.datetime, pa.timestamp("us", "UTC")),
        (list[str], pa.list_(pa.string())),
        ([float], pa.list_(pa.float64())),
        ("int", pa.int64()),
        ("float", pa.float64()),
        ("double", pa.float64()),
        ("str", pa.string()),
        (" list< double > ", pa.list_(pa.float64())),
        ("struct<a:int64,b:list<string>>", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ({"b": "list<timestamp>"}, pa.struct([("b", pa.list_(pa.timestamp("us", "UTC")))])),
    ],
    ids=str,
)
def test_other_words_for_a_type(given: Any, kind: pa.DataType) -> None:
    [found] = decoding("json", {"a": given}).schema or ()
    assert found.type == kind


def test_json_below_a_text() -> None:
    found = decoding("json", {"a": "list<json>", "b": "struct<c: json>"})
    batch = found.apply(pa.record_batch({"value": pa.array([b'{"a": [1, {"x": 2}], "b": {"c": [3]}}'])}))
    assert batch.to_pylist() == [{"a": ["1", '{"x": 2}'], "b": {"c": "[3]"}}]


@pytest.mark.parametrize(
    "kind",
    [
        "", "doubel", "list", "list<", "list<>", "list<string", "list<string, string>", "list<item: >", "struct<>",
        "struct<a>", "struct<a: >", "struct<a: int64, a: string>", "struct<a: int64", "map<string, int64>", "int16",
        "date32[day]", "null", "timestamp[us, tz=]", "list<" * 80 + "string" + ">" * 80, "list<" * 5000, bytes, dict,
        list[int, str], datetime.date, 7, None,  # type: ignore[type-arg]
    ],
    ids=lambda kind: str(kind)[:30],
)  # fmt: skip
def test_a_type_that_is_none_is_told_with_those_that_are(kind: Any) -> None:
    with pytest.raises(IllegalArgumentException, match="expected a type that JSON can be decoded to") as caught:
        decoding("json", {"a": kind})
    assert "types are bool, int32, int64, float64 or double, string, timestamp" in str(caught.value)
    assert "list<type>" in str(caught.value)


def test_a_sample_passes_over_what_is_no_json() -> None:
    lines = [b'{"id": 1}', b"no json", b'{"id": NaN}', b'{"id": Infinity}', b'{"id": "x"', b"[1]", b"\xff", None, b""]
    found = decoding("json", errors="null").infer(pa.array(lines, pa.binary()))
    assert found.schema == pa.schema([("id", pa.int64())])
    rows = found.apply(pa.record_batch({"value": pa.array(lines, pa.binary())}))["id"].to_pylist()
    assert rows == [1] + [None] * 8
    mixed = decoding("json", errors="null").infer(pa.array([b'{"id": 1}', b'{"id": "x"}']))
    assert str((mixed.schema or pa.schema([])).field("id").type) == "string"


LARGE = pa.struct([("s", pa.large_string()), ("l", pa.large_list(pa.string_view()))])
PLAIN = pa.struct([("s", pa.string()), ("l", pa.list_(pa.string()))])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        ("large_string", pa.string()),
        ("string_view", pa.string()),
        (pa.large_list(pa.int64()), pa.list_(pa.int64())),
        ("large_list<item: large_string>", pa.list_(pa.string())),
        (LARGE, PLAIN),
        (str(LARGE), PLAIN),
    ],
    ids=str,
)
def test_large_kinds_are_the_plain_ones(kind: Any, expected: Any) -> None:
    assert json_schema.normal({"a": kind}).field("a").type == expected


@pytest.mark.parametrize(
    "kind", [pa.large_binary(), pa.int8(), pa.float32(), pa.date32(), "large_binary", "large_list<"]
)
def test_what_json_is_not_read_as(kind: Any) -> None:
    with pytest.raises(IllegalArgumentException, match=r"as the type of 'a', expected.*float64 or double"):
        json_schema.normal({"a": kind})


def test_the_schema_of_a_table_of_records(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append(b'{"id": 1}')
        for columns in (None, ["key", "id"], ["id", "headers"]):
            table = topic.read_arrow(values="json", columns=columns)
            with pytest.raises(IllegalArgumentException, match="only fields of the values belong in it: omit"):
                topic.read_arrow(values="json", schema=table.schema)
        assert topic.read_arrow(values="json", schema=table.select(["id"]).schema)["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("int64", "1.5", r'found 1.5, expected int64, a whole number \(schema=\{"a": "float64"\} accepts it'),
        ("int32", "3000000000", r'schema=\{"a": "int64"\} accepts it'),
        ("timestamp", '"2026-01-01T00:00:00.123456789Z"', r'schema=\{"a": "timestamp\[ns\]"\} accepts it'),
        (["int64"], "[1.5]", 'the type "float64" accepts it'),
        ("timestamp[ns]", '"2026-01-01T00:00:00.1234567891Z"', r'\(errors="null"'),
        ("decimal(5, 1)", "1.555", r'\(errors="null"'),
        ("int64", '"x"', r'\(errors="null"'),
    ],
    ids=str,
)
def test_the_type_that_takes_it_is_named(kind: Any, value: str, told: str) -> None:
    batch = pa.record_batch({"value": pa.array([b'{"a": %b}' % value.encode()])})
    with pytest.raises(RecordDeserializationException, match=told):
        decoding("json", {"a": kind}).apply(batch)


def test_errors_where_nothing_is_decoded() -> None:
    with pytest.raises(IllegalArgumentException, match="errors: found 'null', but bytes are not decoded"):
        decoding(errors="null")
    assert decoding(errors="null", keys="text").schema is not None
    assert decoding(errors="raise").schema is not None
