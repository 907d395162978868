"""`columns` names fields of values next to the columns of records, in every function that decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException, RecordDeserializationException
from kafkalog.topic import Topic

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with kafkalog.open(tmp_path) as store:
        made = store.create_topic("orders", 2)
        for number in range(6):
            made.append(b'{"id": %d, "sku": "s%d", "offset": 7, "paid": true}' % (number, number), key=b"%d" % number)
        yield made


DOORS: dict[str, Callable[..., Any]] = {
    "read_arrow": lambda topic, **asked: topic.read_arrow(**asked),
    "arrow_reader": lambda topic, **asked: topic.arrow_reader(**asked).read_all(),
    "latest": lambda topic, **asked: topic.latest(**asked).read_all(),
}


def read(topic: Topic, door: str, **asked: Any) -> Any:
    if door == "reader":
        with kafkalog.open(topic._home.place, read_only=True) as view, view.reader(topics=["orders"]) as reader:
            return reader.read_arrow(**asked)
    return DOORS[door](topic, **asked)


@pytest.mark.parametrize("door", [*DOORS, "reader"])
@pytest.mark.parametrize("schema", [None, {"id": "int32", "sku": "string", "offset": "int64", "paid": "bool"}])
@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["id"], ["id"]),
        (["sku", "offset", "id"], ["sku", "offset", "id"]),
        (["key", "value_offset"], ["key", "value_offset"]),
        (["paid", "value", "key"], ["paid", "id", "sku", "value_offset", "key"]),
        (["value", "paid"], ["id", "sku", "value_offset", "paid"]),
        (("topic", "partition", "paid"), ["topic", "partition", "paid"]),
    ],
)
def test_fields_are_columns(topic: Topic, door: str, schema: Any, columns: Any, names: list[str]) -> None:
    found = read(topic, door, values="json", columns=columns, schema=schema)
    assert found.schema.names == names
    assert found.num_rows == 6
    for name, wanted in (
        ("id", set(range(6))),
        ("value_offset", {7}),
        ("paid", {True}),
        ("key", {b"%d" % n for n in range(6)}),
    ):
        if name in names:
            assert set(found[name].to_pylist()) == wanted


def test_what_is_not_asked_for_is_not_looked_at(topic: Topic) -> None:
    schema = {"id": "int64", "sku": "int64"}  # wrong: it is text
    assert topic.read_arrow(values="json", columns=["id"], schema=schema).num_rows == 6
    with pytest.raises(RecordDeserializationException, match="field 'sku'"):
        topic.read_arrow(values="json", columns=["id", "sku"], schema=schema)


def test_names_that_meet_each_other(topic: Topic) -> None:
    topic.append(b'{"offset": 1, "value_offset": 2}')
    table = topic.read_arrow(values="json", columns=["value_value_offset", "value_offset"])
    assert table.schema.names == ["value_value_offset", "value_offset"]
    row = table.to_pylist()[[it.value for it in topic].index(b'{"offset": 1, "value_offset": 2}')]
    assert row == {"value_value_offset": 1, "value_offset": 2}
    assert topic.read_arrow(values="json", columns=["value_value_offset"])["value_value_offset"].null_count == 0


@pytest.mark.parametrize("door", [*DOORS, "reader"])
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"columns": ["nope"]}, "the values' fields are id, sku, value_offset, paid; schema= can name fields that no"),
        ({"columns": ["nope"], "schema": {"id": int}}, r"the values' fields are id\)$"),
        ({"columns": ["id", "id"]}, "found 'id' twice"),
        ({"columns": ["id", 7]}, "unknown column 7"),
        ({"columns": "id"}, "expected a list of names"),
        (
            {"columns": ["id"], "values": "bytes"},
            "a column of each field of JSON values",
        ),
        ({"columns": ["id"], "values": "text"}, 'values="json" makes a column'),
    ],
    ids=str,
)
def test_names_that_are_none(topic: Topic, door: str, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(IllegalArgumentException, match=told):
        read(topic, door, **{"values": "json", **asked})


@pytest.mark.parametrize("door", [*DOORS, "reader"])
@pytest.mark.parametrize("values", ["json", "text", lambda column: column])
@pytest.mark.parametrize("keys", ["bytes", "text"])
def test_values_that_are_not_asked_for(topic: Topic, door: str, values: Any, keys: str) -> None:
    topic.append(b"\xff no JSON", key=b"6")
    found = read(topic, door, values=values, keys=keys, columns=["key", "offset"])
    assert found.schema.names == ["key", "offset"]
    assert found["key"].type == (pa.string() if keys == "text" else pa.binary())
    assert sorted(map(str, found["key"].cast(pa.string()).to_pylist())) == list("0123456")
    assert read(topic, door, values=values, columns=["offset"]).num_rows == 7


@pytest.mark.parametrize("door", [*DOORS, "reader"])
@pytest.mark.parametrize("values", ["bytes", "json"])
def test_no_columns_at_all(topic: Topic, door: str, values: str) -> None:
    with pytest.raises(IllegalArgumentException, match="columns: found none, expected at least one"):
        read(topic, door, values=values, columns=[])


def test_where_nothing_tells_the_fields(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders")
        with pytest.raises(IllegalArgumentException, match="the values' fields are none; schema= can name"):
            topic.read_arrow(values="json", columns=["id"])
        assert topic.read_arrow(values="json", columns=["id"], schema={"id": int, "b": str}).schema.names == ["id"]


@pytest.mark.parametrize("door", [*DOORS, "reader"])
@pytest.mark.parametrize("columns", [["offset", "later"], ["value_key", "later", "offset"]])
def test_a_field_that_only_other_values_have(tmp_path: Path, door: str, columns: list[str]) -> None:
    with kafkalog.open(tmp_path) as store:
        made = store.create_topic("orders", 2)
        made.append_many([(b'{"id": 1}', b"a"), (None, b"b")], partition=0)
        made.append_many([(b'{"id": 2, "later": 1.5, "key": true}', b"c"), (b'{"id": 3}', b"d")], partition=1)
        asks: list[dict[str, Any]] = [{"key": "a"}, {"key": "nobody"}, {"key": "b"}, {"partitions": [0]}]
        for asked in asks if door != "reader" else [{}]:
            found = read(made, door, values="json", columns=columns, **asked)
            assert found.schema.names == columns
            assert found.schema.field("later").type == pa.float64()
            if asked:
                assert found["later"].null_count == found.num_rows
        if door == "reader":
            with store.reader(topics=["orders"], start="latest") as reader:
                assert reader.read_arrow(columns, values="json").schema.field("later").type == pa.float64()


def test_the_type_of_the_window_counts_and_what_is_nowhere_is_refused(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        made = store.create_topic("orders")
        made.append_many([(b'{"id": "x"}', b"a"), (None, b"b"), (b'{"id": 2, "later": 1}', b"c"), (b"no JSON", b"d")])
        found = made.read_arrow(key="c", values="json", columns=["id", "value"])
        assert found.schema == pa.schema([("id", pa.int64()), ("later", pa.int64())])
        found = made.read_arrow(key="a", values="json", columns=["later", "value"], errors="null")
        assert found.to_pylist() == [{"later": None, "id": "x"}]
        for asked, count in (({"key": "a"}, 3), ({"key": "nobody"}, 3), ({"key": "b"}, 3), ({}, 3)):
            told = rf"unknown column 'nope', which none of the {count} sampled values has"
            with pytest.raises(IllegalArgumentException, match=told):
                made.read_arrow(values="json", columns=["offset", "nope"], errors="null", **asked)


def test_functions(topic: Topic) -> None:
    def made(values: Any) -> Any:
        return pa.record_batch({"size": pa.compute.binary_length(values), "is": pa.array([True] * len(values))})

    import pyarrow.compute  # noqa: F401

    table = topic.read_arrow(values=made, columns=["size", "offset"])
    assert table.schema.names == ["size", "offset"]
    assert table["size"].to_pylist() == [len(it.value or b"") for it in topic]
    with pytest.raises(IllegalArgumentException, match=r"unknown column 'weight'.*the values' fields are size, is"):
        topic.read_arrow(values=made, columns=["weight"])


@pytest.mark.parametrize("columns", [None, ["offset", "idd"]])
def test_a_schema_of_which_no_value_has_a_field(topic: Topic, columns: Any) -> None:
    topic.append(None, partition=0)
    count = len([it for it in topic.partition(0) if it.value is not None])
    told = (
        rf"schema: none of the {count} sampled values has any of its fields idd, so these are null; "
        "the values have id, sku, offset, paid"
    )
    with pytest.warns(UserWarning, match=told) as warned:
        table = topic.read_arrow(values="json", schema={"idd": "int64"}, columns=columns)
    assert (len(warned), table["idd"].null_count, table.num_rows) == (1, 7, 7)


READS: dict[str, Callable[..., Any]] = {  # each in one line, which the warning names
    "read_arrow": lambda topic, **asked: topic.read_arrow(**asked),
    "arrow_batches": lambda topic, **asked: list(topic.arrow_batches(**asked)),
    "latest": lambda topic, **asked: list(topic.latest(**asked)),
    "partition": lambda topic, **asked: topic.partition(0).read_arrow(**asked),
}


@pytest.mark.parametrize("door", READS)
def test_one_field_of_several_is_misspelled(topic: Topic, door: str) -> None:
    told = "none of the . sampled values has skuu \\(did you mean sku\\?\\), so it is null"
    for columns in (None, ["skuu", "id"]):
        with pytest.warns(UserWarning, match=told) as warned:
            READS[door](topic, values="json", schema={"id": "int64", "skuu": "string"}, columns=columns)
        assert len(warned) == 1
        line = READS[door].__code__.co_firstlineno
        assert (warned[0].filename, warned[0].lineno) == (__file__, line)


@pytest.mark.parametrize(
    "schema",
    [
        {"id": "int64", "currency": "string"},  # nothing is near it
        {"sku": "string", "skuu": "string"},  # the near one is in the schema
        {"id": "int64", "nope": "string", "offset_": "string", "offset": "int64"},
    ],
    ids=str,
)
def test_a_field_that_is_not_there_yet_is_no_mistake(
    topic: Topic, schema: Any, recwarn: pytest.WarningsRecorder
) -> None:
    topic.read_arrow(values="json", schema=schema)
    assert not list(recwarn)


@pytest.mark.parametrize("schema", [None, {"id": "int64"}])
def test_no_value_is_a_json_object(tmp_path: Path, schema: Any, recwarn: pytest.WarningsRecorder) -> None:
    with kafkalog.open(tmp_path) as store:
        made = store.create_topic("clicks")
        made.append_many([b"1;a", None, b"[1]", b"\xff"])
        with pytest.warns(UserWarning, match="values: none of the 3 sampled values is a JSON object") as warned:
            assert made.read_arrow(values="json", schema=schema, errors="null").num_rows == 4
        assert (len(warned), warned[0].filename) == (1, __file__)
        with pytest.raises(RecordDeserializationException):
            made.read_arrow(values="json", schema=schema)
        made.append(b"{}")
        recwarn.clear()
        made.read_arrow(values="json", schema=schema, errors="null")
        assert not list(recwarn)


def test_a_schema_of_which_some_field_is_there_is_no_mistake(topic: Topic, recwarn: pytest.WarningsRecorder) -> None:
    topic.append_many([None, b'{"later": null}'], partition=0)
    for schema in ({"idd": "int64", "id": "int64"}, {"later": "int64", "sku": "string"}):
        assert topic.read_arrow(values="json", schema=schema, errors="null").num_rows == 8
    assert topic.read_arrow(where="offset >= 4", values="json", schema={"later": "string"}, partitions=[0]).num_rows
    assert topic.read_arrow("2030-01-01", values="json", schema={"idd": "int64"}).num_rows == 0
    assert not list(recwarn)


# --- pandas ---------------------------------------------------------------------------------------------

LARGE = (1 << 53) + 1  # no float64 has this value


@pytest.mark.parametrize("columns", [None, ["id", "value_key"], ["id"], ["text", "offset"]])
def test_integers_beside_nulls_are_exact_in_pandas(tmp_path: Path, columns: Any) -> None:
    pytest.importorskip("pandas")
    schema = {"id": "int64", "paid": "bool", "key": "int32", "text": "string", "whole": "int64", "list": "list<int64>"}
    with kafkalog.open(tmp_path) as store:
        made = store.create_topic("orders", 2)
        line = b'{"id": %d, "paid": true, "key": 7, "text": "a", "whole": 3, "list": [%d, null]}' % (LARGE, LARGE)
        made.append_many([(line, b"k"), (b'{"whole": 4}', b"k")])
        table = made.read_arrow(values="json", schema=schema, columns=columns)
        frame = made.to_pandas(values="json", schema=schema, columns=columns)
    assert list(frame.columns) == table.column_names
    assert len(frame) == 2
    for name, dtype in (("id", "Int64"), ("paid", "boolean"), ("value_key", "Int32"),
                        ("whole", "int64"), ("offset", "int64"), ("partition", "int32")):  # fmt: skip
        if name in frame:
            assert str(frame[name].dtype) == dtype, name
    for name, first in (("id", LARGE), ("paid", True), ("value_key", 7), ("text", "a")):
        if name in frame:
            assert frame[name][0] == first
            assert frame[name].isna().tolist() == [False, True]


def test_a_frame_without_nulls_or_rows_has_the_types_of_pyarrow(topic: Topic) -> None:
    pytest.importorskip("pandas")
    for asked in ({}, {"key": "nobody"}):
        frame = topic.to_pandas(values="json", schema={"id": "int64", "paid": "bool"}, **asked)
        assert (str(frame["id"].dtype), str(frame["paid"].dtype)) == ("int64", "bool")


def test_other_integers_of_a_function(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    kinds = [pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]

    def decode(values: Any) -> Any:
        found = [None if each.as_py() == b"a" else 5 for each in values]
        return pa.record_batch({str(kind): pa.array(found, kind) for kind in kinds})

    with kafkalog.open(tmp_path) as store:
        made = store.create_topic("orders", 1)
        made.append_many([b"a", b"b"])
        frame = made.to_pandas(values=decode)
    for kind in kinds:
        assert pandas.api.types.is_extension_array_dtype(frame[str(kind)].dtype)
        assert str(frame[str(kind)].dtype).lower() == str(kind)
        assert frame[str(kind)][1] == 5
