"""kafkalog.decoding.wire_format: values of schema registries, grouped by schema id, returned in their order."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafkalog
from kafkalog._native.codec.wire_format import BAD_INDEXES, IS_NULL, NO_MAGIC, gather, split
from kafkalog.decoding import wire_format
from kafkalog.errors import IllegalArgumentException, RecordDeserializationException

pa = pytest.importorskip("pyarrow")

from kafkalog._face.value_columns import decoding  # noqa: E402


def framed(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


def as_text(schema_id: int, payloads: Any) -> Any:
    return pa.array([f"{schema_id}:{each.as_py().decode()}" for each in payloads], pa.string())


def values(*given: bytes | None) -> Any:
    return pa.array(given, pa.binary())


def test_rows_come_back_in_their_order() -> None:
    calls = []

    def decode(schema_id: int, payloads: Any) -> Any:
        assert payloads.type == pa.binary()
        calls.append((schema_id, len(payloads)))
        return as_text(schema_id, payloads)

    column = values(framed(7, b"a"), framed(2**32 - 1, b"b"), None, framed(7, b""), framed(1, b"d"), framed(7, b"e"))
    expected = ["7:a", "4294967295:b", None, "7:", "1:d", "7:e"]
    assert wire_format(decode)(column).to_pylist() == expected
    assert calls == [(1, 1), (7, 3), (2**32 - 1, 1)]
    for begin in range(6):
        assert wire_format(as_text)(column.slice(begin, 3)).to_pylist() == expected[begin : begin + 3]
    assert wire_format(as_text)(column.take(pa.array([0, 3, 5]))).to_pylist() == ["7:a", "7:", "7:e"]


def test_fields_become_columns() -> None:
    def decode(schema_id: int, payloads: Any) -> Any:
        return pa.RecordBatch.from_pydict({"id": pa.array([schema_id] * len(payloads)), "key": payloads})

    batch = pa.record_batch({"offset": [5, 6, 7], "value": values(framed(2, b"x"), None, framed(1, b"y"))})
    made = decoding(wire_format(decode)).apply(batch)
    assert made.to_pydict() == {"offset": [5, 6, 7], "id": [2, None, 1], "value_key": [b"x", None, b"y"]}
    nulls = decoding(wire_format(decode))
    assert nulls.apply(batch.slice(1, 1)).column("value").to_pylist() == [None]
    assert (
        nulls.apply(batch).schema.names == nulls.apply(batch.slice(1, 1)).schema.names == ["offset", "id", "value_key"]
    )


@pytest.mark.parametrize("value", [b"", b"\x00", b"\x00\x00\x00\x00", b'{"a": 1}', b"\x01\x00\x00\x00\x01x"])
def test_values_that_are_in_no_wire_format(value: bytes) -> None:
    batch = pa.record_batch(
        {"topic": ["t", "t"], "partition": [0, 0], "offset": [8, 9], "value": values(framed(1, b"a"), value)}
    )
    told = r"topic t, partition 0, offset 9: value: found .* expected a schema registry's wire format"
    with pytest.raises(RecordDeserializationException, match=told) as error:
        decoding(wire_format(as_text)).apply(batch)
    assert (error.value.offset, error.value.row) == (9, 1)
    made = decoding(wire_format(as_text, errors="null")).apply(batch)
    assert made.column("value").to_pylist() == ["1:a", None]


def test_what_decode_may_not_return() -> None:
    column = values(framed(1, b"a"), framed(2, b"b"))
    kinds = {1: pa.int64(), 2: pa.int32()}
    with pytest.raises(IllegalArgumentException, match="int32 for schema 2, expected int64, as for schema 1"):
        wire_format(lambda schema_id, payloads: pa.array([1], kinds[schema_id]))(column)
    with pytest.raises(IllegalArgumentException, match="returned 3 rows for schema 1, expected 1"):
        wire_format(lambda schema_id, payloads: pa.array([1, 2, 3]))(column)
    with pytest.raises(IllegalArgumentException, match="decode: returned list"):
        wire_format(lambda schema_id, payloads: [1])(column)
    with pytest.raises(RecordDeserializationException, match="decode raised KeyError: 1 for the payload of") as raised:
        wire_format(lambda schema_id, payloads: {}[schema_id])(column)
    assert isinstance(raised.value.__cause__, KeyError)
    for wrong in (
        {"decode": None},
        {"decode": "x"},
        {"decode": len, "errors": "skip"},
        {"decode": len, "message_indexes": 2},
    ):
        with pytest.raises(IllegalArgumentException):
            wire_format(**wrong)  # type: ignore[arg-type]


def test_message_indexes() -> None:
    seen = {}

    def decode(schema_id: int, payloads: Any, indexes: tuple[int, ...]) -> Any:
        seen[schema_id, indexes] = payloads.to_pylist()
        return payloads

    column = values(
        framed(1, b"\x00first"), framed(1, b"\x02\x02second"), framed(1, b"\x04\x02\x00nested"),
        framed(1, b"\x00again"), framed(2, b"\x02\xac\x02many"), framed(1, b"\x00"),
    )  # fmt: skip
    made = wire_format(decode, message_indexes=True)(column)
    assert made.to_pylist() == [b"first", b"second", b"nested", b"again", b"many", b""]
    assert seen == {
        (1, (0,)): [b"first", b"again", b""], (1, (1,)): [b"second"], (1, (1, 0)): [b"nested"], (2, (150,)): [b"many"],
    }  # fmt: skip
    for bad in (b"", b"\x01", b"\x02", b"\x80", b"\xff\xff\xff\xff\x0f\x00", b"\x10" + b"\x00" * 8, b"\x02\x01"):
        with pytest.raises(RecordDeserializationException, match="expected message indexes of Protobuf") as error:
            wire_format(decode, message_indexes=True)(values(framed(1, b"\x00good"), framed(1, bad)))
        assert error.value.row == 1


def test_protobuf() -> None:
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")

    def decode(schema_id: int, payloads: Any, indexes: tuple[int, ...]) -> Any:
        kind = {(0,): wrappers.StringValue, (1,): wrappers.BytesValue}[indexes]
        return pa.array([bytes(kind.FromString(each.as_py()).value or b"", *kind_of(kind)) for each in payloads])

    def kind_of(kind: Any) -> tuple[str, ...]:
        return ("utf-8",) if kind is wrappers.StringValue else ()

    texts = [wrappers.StringValue(value=text).SerializeToString() for text in ("a", "größe")]
    octets = wrappers.BytesValue(value=b"\xff").SerializeToString()
    column = values(framed(5, b"\x00" + texts[0]), framed(5, b"\x02\x02" + octets), framed(5, b"\x00" + texts[1]))
    found = wire_format(decode, message_indexes=True)(column).to_pylist()
    assert found == [b"a", b"\xff", "größe".encode()]


def test_avro() -> None:
    fastavro = pytest.importorskip("fastavro")
    older: Any = fastavro.parse_schema({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
    newer: Any = fastavro.parse_schema(
        {"type": "record", "name": "Order", "fields": [
            {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}]}
    )  # fmt: skip
    schemas = {1: older, 2: newer}
    columns = pa.schema([("id", pa.int64()), ("note", pa.string())])

    def decode(schema_id: int, payloads: Any) -> Any:
        rows = [fastavro.schemaless_reader(io.BytesIO(each.as_py()), schemas[schema_id], newer) for each in payloads]
        return pa.RecordBatch.from_pylist(rows, schema=columns)

    def encoded(schema_id: int, row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schemas[schema_id], row)
        return framed(schema_id, out.getvalue())

    rows = [(2, {"id": 1, "note": "n"}), (1, {"id": 2}), (2, {"id": 3, "note": None})]
    batch = pa.record_batch({"value": values(*(encoded(*row) for row in rows))})
    made = decoding(wire_format(decode)).apply(batch)
    assert made.to_pylist() == [{"id": 1, "note": "n"}, {"id": 2, "note": None}, {"id": 3, "note": None}]


def test_native_bounds() -> None:
    ids, starts, ends, codes = split(framed(9, b"ab") + b"\x00", np.array([0, 7, 8, 8], np.int32), b"\x03")
    assert ids.tolist() == [9, NO_MAGIC, IS_NULL]
    assert (starts[0], ends[0], codes[0]) == (5, 7, 0)
    assert split(framed(9, b""), np.array([0, 5], np.int32), message_indexes=True)[0].tolist() == [BAD_INDEXES]
    for offsets in ([0, 9], [-1, 3], [5, 2]):
        with pytest.raises(IndexError, match="outside the column's data"):
            split(framed(9, b"ab"), np.array(offsets, np.int32))
    with pytest.raises(IndexError, match="fewer bits"):
        split(b"", bytes(44), b"\xff")
    with pytest.raises(IndexError, match="fewer bits"):
        split(b"", bytes(8), b"\xff", 2**63 - 1)
    with pytest.raises(IndexError, match="one more"):
        split(b"", b"")
    numbers = np.array([0, 1], np.int64)
    for start, end, row in (([0, 5], [1, 9], 1), ([-1, 0], [0, 0], 0), ([2, 0], [1, 0], 0), ([0, 0], [0, 0], 2)):
        with pytest.raises(IndexError, match="a payload is outside"):
            gather(b"abc", np.array(start), np.array(end), np.array([row]))
    assert pa.record_batch(gather(b"abc", numbers, numbers + 2, numbers[::-1])).column(0).to_pylist() == [b"bc", b"ab"]


def test_an_error_of_the_function_says_where_it_was(tmp_path: Path) -> None:
    def fails(values: Any) -> Any:
        raise KeyError("sku")

    with kafkalog.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t")
        topic.append_many([b"a", b"b", b"c"])
        given = "topic t, partition 0, offset 0 to topic t, partition 0, offset 2"
        for schema in (None, {"id": "int64"}):
            with pytest.raises(KeyError) as caught:
                topic.read_arrow(values=fails, schema=schema)
            (note,) = caught.value.__notes__
            assert note.startswith("raised by the function of values=")
            assert given in note
        decode = wire_format(lambda schema_id, payloads: payloads)
        with pytest.raises(RecordDeserializationException, match=r"wire_format\(decode, ") as refused:
            topic.read_arrow(values=decode, schema={"id": "int64"})
        assert (refused.value.topic, refused.value.partition, refused.value.offset) == ("t", 0, 0)


def test_a_bad_value_of_the_sample_is_told_by_its_place(tmp_path: Path) -> None:
    decode = wire_format(lambda schema_id, payloads: payloads)
    with kafkalog.open(tmp_path, maintenance=False) as store:
        topic = store.create_topic("t", 2)
        for number in range(3):
            topic.partition(0).append(framed(1, b"v%d" % number))
            topic.partition(1).append(b"no wire format" if number == 1 else framed(1, b"w"))
        reads = [
            lambda: topic.read_arrow(values=decode),
            lambda: list(topic.arrow_batches(columns=["value"], values=decode)),
            lambda: topic.partition(1).read_arrow(values=decode, start=1),
            lambda: topic.partition(1).read_arrow(values=decode, last=2),
            lambda: store.reader(topics=["t"]).read_arrow(values=decode),
        ]
        for read in reads:
            with pytest.raises(
                RecordDeserializationException, match=r"^topic t, partition 1, offset 1: value: "
            ) as bad:
                read()
            assert (bad.value.topic, bad.value.partition, bad.value.offset) == ("t", 1, 1)
        assert topic.read_arrow(values=wire_format(lambda _, each: each, errors="null")).num_rows == 6
        assert topic.partition(0).read_arrow(values=decode, last=1)["value"].to_pylist() == [b"v2"]


def test_what_does_not_fit_a_schema_that_was_given(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 1)
        topic.append(framed(1, b"a"))
        told = "returned x: binary, expected id: int64, as schema= says.*change schema="
        with pytest.raises(IllegalArgumentException, match=told):
            topic.read_arrow(values=wire_format(lambda _, found: pa.record_batch({"x": found})), schema={"id": int})


def test_what_decode_raises_is_told_with_its_place(tmp_path: Path) -> None:
    def decode(schema_id: int, payloads: Any) -> Any:
        if schema_id == 2:
            raise EOFError
        return payloads

    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 1)
        topic.append_many([framed(1, b"a"), framed(2, b"b"), None, framed(1, b"c"), framed(2, b"d")])
        told = (
            "topic orders, partition 0, offset 1 to topic orders, partition 0, offset 4: value: decode raised EOFError"
        )
        for asked in ({}, {"schema": pa.binary()}, {"columns": ["value"]}):
            with pytest.raises(RecordDeserializationException, match=rf"{told} for 2 payloads of schema 2") as raised:
                topic.read_arrow(values=wire_format(decode), **asked)
            assert isinstance(raised.value.__cause__, EOFError)
            assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("orders", 0, 1)
        with pytest.raises(RecordDeserializationException, match=r"offset 4: value: .* for the payload of schema 2"):
            topic.read_arrow(3, values=wire_format(decode))


@pytest.mark.parametrize("call", ["read_arrow", "arrow_reader", "latest", "to_pandas"])
def test_decode_is_called_with_each_value_once(tmp_path: Path, call: str) -> None:
    seen: list[bytes] = []

    def decode(schema_id: int, payloads: Any) -> Any:
        seen.extend(payloads.to_pylist())
        return pa.record_batch({"id": payloads})

    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        for number in range(2):
            topic.append_many([(framed(1, b"%d" % n), b"k%d" % n) for n in range(10)], partition=number)
        found = getattr(topic, call)(values=wire_format(decode), columns=["offset", "id"])
        found = found.read_all() if hasattr(found, "read_all") else found
        assert len(found) == 20
        assert list(found["id"])[3] is not None
        assert sorted(seen) == sorted([b"%d" % n for n in range(10)] * 2)


def test_a_first_batch_of_nulls(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        topic.append_many([None, None], partition=0)
        topic.append_many([framed(1, b"a"), None], partition=1)
        assert topic.read_arrow(values=wire_format(as_text))["value"].to_pylist() == [None, None, "1:a", None]
        assert (
            topic.read_arrow(values=wire_format(as_text), partitions=[0], schema=pa.string())["value"].null_count == 2
        )


def test_a_window_without_records_has_the_columns_of_what_else_there_is(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        topic.append(framed(1, b"a"), timestamp=1_700_000_000_000)
        for asked in ({"start": "2030-01-01"}, {"key": "nobody"}, {"last": 0}):
            table = topic.read_arrow(values=wire_format(as_text), columns=["offset", "value"], **asked)
            assert (table.num_rows, table.schema.field("value").type) == (0, pa.string())
        assert topic.arrow_reader("2030-01-01", values=wire_format(as_text)).schema.names[-2:] == ["value", "headers"]
        empty = store.create_topic("empty", 1)
        with pytest.raises(IllegalArgumentException, match=r"columns of the function's result are not known.*schema="):
            empty.read_arrow(values=wire_format(as_text))
        assert empty.read_arrow(values=wire_format(as_text), schema=pa.string()).num_rows == 0


def with_id(schema_id: int, payloads: Any) -> Any:
    return pa.record_batch({"id": pa.array([len(each.as_py()) for each in payloads], pa.int64())})


def row_ids(values: Any) -> Any:
    """A function whose types are of what it is given: of nulls alone it makes a column of nulls."""
    return pa.RecordBatch.from_pylist([{"id": None if each is None else len(each)} for each in values.to_pylist()])


ASKED: list[dict[str, Any]] = [
    {"last": 1}, {"partitions": [0]}, {"where": "value is null"}, {"key": "gone"}, {"key": "nobody"},
    {"grep": "zzz"}, {},
]  # fmt: skip


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("make", [lambda: wire_format(with_id), lambda: row_ids], ids=["wire_format", "function"])
@pytest.mark.parametrize("call", ["read_arrow", "arrow_reader", "latest"])
def test_nulls_tell_nothing_of_the_columns(tmp_path: Path, asked: dict[str, Any], make: Any, call: str) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        topic.append_many([(None, b"gone")] * 3, partition=0)
        topic.append_many([(framed(1, b"ab"), b"a"), (framed(1, b"c"), b"b"), (None, b"b")], partition=1)
        values = make()
        if call == "latest":
            asked = {name: value for name, value in asked.items() if name != "last"}
        for _ in range(2):  # an earlier read does not matter
            for columns in (["offset", "id"], None):
                found = getattr(topic, call)(values=values, columns=columns, **asked)
                assert found.schema.field("id").type == pa.int64()
                assert "value" not in found.schema.names
                found = found.read_all() if call != "read_arrow" else found
                assert found["id"].null_count == found.num_rows - sum(it is not None for it in found["id"].to_pylist())
            for start in ("earliest", "latest"):
                with store.reader(topics=["orders"], start=start) as reader:
                    table = reader.read_arrow(["offset", "id"], values=values)
                    assert (table.schema.field("id").type, table.num_rows) == (pa.int64(), 6 * (start == "earliest"))


def test_only_nulls_everywhere(tmp_path: Path) -> None:
    used = wire_format(with_id)
    assert used(values(framed(1, b"a"))).type == pa.struct([("id", pa.int64())])
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        topic.append_many([None, None], partition=1)
        for decode in (used, wire_format(with_id)):
            assert topic.read_arrow(values=decode)["value"].type == pa.null()
            with pytest.raises(
                IllegalArgumentException, match=r"the columns of the function's result are not known.*schema="
            ):
                topic.read_arrow(values=decode, columns=["offset", "id"])
            table = topic.read_arrow(values=decode, columns=["offset", "id"], schema={"id": int})
            assert (table.num_rows, table["id"].null_count) == (2, 2)


def test_a_value_in_a_partition_that_no_sample_is_taken_of(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 50)
        topic.append_many([None], partition=0)
        topic.append(framed(1, b"ab"), partition=37)
        table = topic.read_arrow(values=wire_format(with_id), columns=["id"])
        assert table["id"].to_pylist() == [None, 2]
        other = store.create_topic("other")
        other.append(b"no wire format")
        assert store.read_arrow(partitions=["orders-0"], values=wire_format(with_id), columns=["id"]).num_rows == 1
