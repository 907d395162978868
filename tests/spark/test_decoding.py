"""Columns that decode, on real Spark: Avro by spark-avro, JSON, Protobuf's payloads, a registry in its own process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark import functions as K  # noqa: N812
from tests.spark.avro_jar import add_avro
from tests.spark.registry import Entry, Running, running

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "old", "type": "string"}]}
V2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "place", "type": "Place", "default": {"city": "-"}},
    ],
}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
WHOLE_V2 = {**V2, "fields": [*V2["fields"][:2], {"name": "place", "type": PLACE, "default": {"city": "-"}}]}
SUBJECTS = {
    "orders-value": [
        Entry(3, json.dumps(V1)),
        Entry(300, json.dumps(V2), references=[{"name": "Place", "subject": "place", "version": 1}]),
    ],
    "place": [Entry(1, json.dumps(PLACE))],
}


def framed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def of_bytes(session: Any, values: list[bytes | None], kind: str = "binary") -> Any:
    """A column `value` with an `n`, which needs no Python to be read."""
    rows = [
        f"({n}, {'null' if value is None else 'unhex(' + repr(value.hex()) + ')'})" for n, value in enumerate(values)
    ]
    return session.sql(f"select n, cast(v as {kind}) value from values {', '.join(rows)} as t(n, v)")


def of_texts(session: Any, values: list[str | None]) -> Any:
    return of_bytes(session, [None if value is None else value.encode() for value in values], "string")


def avro(number: int, schema: Any, record: Any) -> bytes:
    fastavro = pytest.importorskip("fastavro")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return framed(number, out.getvalue())


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    add_avro(spark)
    return spark


@pytest.fixture(scope="module")
def registry() -> Iterator[Running]:
    with running(SUBJECTS, user_info="me:secret") as found:
        yield found


@pytest.fixture(scope="module")
def orders(session: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = str(tmp_path_factory.mktemp("logs"))
    with kafkalog.open_log(root, "orders-0") as log:
        for n in range(20):
            old, new = {"id": n, "old": "x"}, {"id": n << 40, "note": f"n{n}", "place": {"city": "Bern"}}
            log.append(avro(300, WHOLE_V2, new) if n % 2 else avro(3, V1, old))
        log.append(None, key=b"k")
    return session.read.format("kafkalog").option("path", root).option("subscribe", "orders").load()


EXPECTED = [(n << 40, f"n{n}", ("Bern",)) if n % 2 else (n, None, ("-",)) for n in range(20)]


def test_avro_of_a_registry(orders: Any, registry: Running, capfd: pytest.CaptureFixture[str]) -> None:
    address = registry.address.replace("//", "//me:secret@")
    found = orders.select("offset", K.from_registry("value", address, subject="orders-value").alias("o"))
    assert found.schema["o"].dataType.simpleString() == "struct<id:bigint,note:string,place:struct<city:string>>"
    rows = [row.o and tuple(row.o) for row in found.orderBy("offset").collect()]
    assert [row and (*row[:2], tuple(row[2])) for row in rows] == [*EXPECTED, None]
    found.explain(True)
    assert "secret" not in capfd.readouterr().out
    # The old schema reads them all, too.
    by_ids = K.from_registry(
        "value", address, ids=[3, 300], reader={**V1, "fields": V1["fields"][:1]}, mode="PERMISSIVE"
    )
    small = [row[0] and row[0].id for row in orders.select("offset", by_ids.alias("o")).select("o").collect()]
    assert small[::2] == [*range(0, 20, 2), None]
    assert small[1::2] == [None] * 10  # a long is no int
    ids = [row.id for row in orders.select(K.schema_id("value").alias("id")).distinct().orderBy("id").collect()]
    assert ids == [None, 3, 300]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (framed(5, b""), "value: found schema 5, which is not among the schemas that were given .*: 3.*PERMISSIVE"),
        (b"\0\0\0\0", "value: found 4 bytes that begin with 0x00000000, expected a schema registry's wire format"),
        (b"", "value: found no bytes, expected a schema registry's wire format"),
        (b"{'a': 1}", "value: found 8 bytes that begin with 0x7B276127"),
        (framed(3, b"\x02\x80"), "Malformed records are detected"),
    ],
)
def test_what_cannot_be_decoded(session: Any, value: bytes, text: str) -> None:
    frame = of_bytes(session, [value])
    with pytest.raises(Exception, match=text):
        frame.select(K.from_registry("value", {3: V1})).collect()
    assert frame.select(K.from_registry("value", {3: V1}, mode="PERMISSIVE")).first()[0] is None


def test_null_is_not_a_struct_of_nulls(session: Any) -> None:
    nullable = {"type": "record", "name": "a.B", "fields": [{"name": "x", "type": ["null", "string"]}]}
    frame = of_bytes(session, [framed(1, b"\0"), framed(1, b"\2\x80"), None])
    column = K.from_registry("value", {1: nullable}, mode="PERMISSIVE")
    assert frame.select(column.alias("o")).schema["o"].dataType.simpleString() == "struct<x:string>"
    found = [row.o for row in frame.select("n", column.alias("o")).orderBy("n").collect()]
    assert [each and tuple(each) for each in found] == [(None,), None, None]
    texts = of_bytes(session, [framed(1, b"{}"), framed(1, b"{"), framed(1, b'{"x": 1}'), None])
    column = K.from_registry("value", format="json", reader="x boolean", mode="PERMISSIVE")
    assert texts.select(column.alias("o")).schema["o"].dataType.simpleString() == "struct<x:boolean>"
    found = [row.o for row in texts.select("n", column.alias("o")).orderBy("n").collect()]
    assert [each and tuple(each) for each in found] == [(None,), None, None, None]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"format": "xml"}, "format is 'xml'"),
        ({"mode": "DROPMALFORMED"}, "mode is 'DROPMALFORMED'.*FAILFAST, PERMISSIVE"),
        ({"options": {"Mode": "PERMISSIVE"}}, "options has mode, which is an argument"),
        ({"message": "A"}, "message is 'A', but format is avro"),
        ({"reader": 4}, "reader: found int 4, expected one of the ids 3, or a schema"),
        ({"reader": 4.5}, "reader: found float 4.5, expected a schema in Avro, or an id"),
    ],
)
def test_what_makes_no_sense(session: Any, given: dict[str, Any], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text):
        K.from_registry("value", {3: V1}, **given)


def test_json_of_a_folder(session: Any, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "items": {"type": "array", "items": {}}}}
    (tmp_path / "1.json").write_text(json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}))
    (tmp_path / "2.json").write_text(json.dumps(schema))
    values = [framed(1, b'{"id": 1}'), framed(2, b'{"id": 2, "items": ["a", {"b": 1}]}'), None]
    frame = of_bytes(session, values)
    found = [
        row[0] and tuple(row[0]) for row in frame.select(K.from_registry("value", str(tmp_path), "json")).collect()
    ]
    assert found == [(1, None), (2, ["a", '{"b":1}']), None]
    typed = frame.select(K.from_registry("value", format="json", reader="id int").alias("o")).select("o.id")
    assert [row.id for row in typed.collect()] == [1, 2, None]
    with pytest.raises(Exception, match=r"found schema 2, which is not among .*: 1"):
        frame.select(K.from_registry("value", str(tmp_path), "json", ids=[1])).collect()


def test_payloads_of_protobuf(session: Any) -> None:
    """The input of `from_protobuf`, read by protobuf itself; its module is not published for every Spark."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory
    from pyspark.sql import functions as F  # noqa: N812

    from kafkalog._face.proto_schemas import proto_of
    from kafkalog._face.schemas import load_schemas
    from kafkalog.spark.decoding import _Wire, proto_payload

    def file(*names: str) -> Any:
        made = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
        for name in names:
            made.message_type.add(name=name).field.add(name="id", number=1, type=3, label=1)
        return descriptor_pb2.FileDescriptorSet(file=[made])

    files = {1: file("Order", "Refund"), 2: file("Refund", "Order")}
    schemas = {number: each.SerializeToString() for number, each in files.items()}
    protos = {each.schema_id: proto_of(each) for each in load_schemas(schemas, "protobuf")}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files[1].file[0])
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    data = [order(id=n).SerializeToString() for n in range(3)]
    values = [framed(1, b"\0" + data[0]), framed(1, b"\2\0" + data[1]), framed(2, b"\2\2" + data[2]), None]
    frame = of_bytes(session, values)
    wire = _Wire(F.col("value"), "value", "FAILFAST")
    found = frame.select(proto_payload(wire, protos, "shop.Order").alias("payload")).collect()
    assert [row.payload is not None and order.FromString(bytes(row.payload)).id for row in found] == [0, 1, 2, False]
    other = of_bytes(session, [framed(2, b"\0" + data[0])])
    with pytest.raises(Exception, match=r"found 0x00.* of schema 2, expected the message indexes of shop\.Order"):
        other.select(proto_payload(wire, protos, "shop.Order")).collect()
    with pytest.raises(Exception, match="PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE"):
        frame.select(K.from_registry("value", schemas, "protobuf", message="Order"))


# --- Debezium ---------------------------------------------------------------------------------------------

SOURCE = {"connector": "postgresql", "table": "people", "lsn": 17}


def event(op: str, before: Any = None, after: Any = None, **more: Any) -> str:
    return json.dumps({"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 5, **more})


EVENTS = [
    event("r", after={"id": 1, "name": "a"}),
    event("c", after={"id": 2, "name": "b"}, transaction=None),
    json.dumps({"schema": {"type": "struct", "fields": []}, "payload": json.loads(event("u", {"id": 2}, {"id": 2}))}),
    event("d", before={"id": 2, "name": "c"}),
    None,
    event("t"),
    event("m", message={"prefix": "p", "content": "eA=="}),
]


def test_debezium(session: Any) -> None:
    frame = of_texts(session, EVENTS)
    found = [row.e for row in frame.select("n", K.debezium("value").alias("e")).orderBy("n").collect()]
    assert [each and each.op for each in found] == ["r", "c", "u", "d", None, "t", "m"]
    assert found[0].before is None
    assert json.loads(found[0].after) == {"id": 1, "name": "a"}
    assert json.loads(found[2].before) == {"id": 2}
    assert (json.loads(found[3].before), found[3].after) == ({"id": 2, "name": "c"}, None)
    assert all(each.source == {name: str(value) for name, value in SOURCE.items()} for each in found if each)
    assert {each.ts_ms for each in found if each} == {5}
    assert json.loads(found[6].message)["prefix"] == "p"
    binary = frame.select("n", K.debezium(frame["value"].cast("binary"), "id bigint, name string").alias("e"))
    typed = [row.e for row in binary.orderBy("n").collect()]
    assert [each and each.after and tuple(each.after) for each in typed][:4] == [(1, "a"), (2, "b"), (2, None), None]
    assert tuple(typed[3].before) == (2, "c")


def test_a_value_is_parsed_once(session: Any) -> None:
    """Spark parses once for each occurrence of an expression in the plan, and for each field of it."""
    frame = of_bytes(session, [b""])
    envelope = "before string, after string, source string, op string, ts_ms bigint"
    typed = K.from_registry("value", format="json", reader=envelope)
    permissive = K.from_registry("value", format="json", reader="a int, b int, c int", mode="PERMISSIVE")
    columns = {"debezium": K.debezium("value"), "decoded": K.debezium(typed, decoded=True), "permissive": permissive}
    for name, column in columns.items():
        plan = frame.select(column.alias("e"))._jdf.queryExecution().analyzed().toString()
        assert plan.count("from_json") == 1, name


@pytest.mark.parametrize("value", ['{"id": 1}', "[]", "", '"text"', '{"before": null, "after": {"id": 1}}'])
def test_what_is_no_event(session: Any, value: str) -> None:
    frame = of_texts(session, [value])
    with pytest.raises(Exception, match=r"expected a change event of Debezium|Malformed records"):
        frame.select(K.debezium("value")).collect()
    assert frame.select(K.debezium("value", mode="PERMISSIVE")).first()[0] is None


def test_a_row_that_does_not_fit_its_schema(session: Any) -> None:
    frame = of_texts(session, [event("c", after={"id": "many"})])
    with pytest.raises(Exception, match="Malformed records"):
        frame.select(K.debezium("value", "id bigint")).collect()
    assert frame.select(K.debezium("value", "id bigint", mode="PERMISSIVE").alias("e")).first().e.after.id is None
    with pytest.raises(IllegalArgumentException, match="schema is given together with decoded=True"):
        K.debezium("value", "id bigint", decoded=True)
    with pytest.raises(IllegalArgumentException, match="schema: found str '', expected DDL such as"):
        K.debezium("value", "")


def test_debezium_in_avro(session: Any) -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {
                "name": "source",
                "type": {"type": "record", "name": "S", "fields": [{"name": "table", "type": "string"}]},
            },
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"]},
        ],
    }
    change = {"before": None, "after": {"id": 8}, "source": {"table": "t"}, "op": "c", "ts_ms": 5}
    frame = of_bytes(session, [avro(1, envelope, change), None])
    decoded = K.debezium(K.from_registry("value", {1: envelope}), decoded=True)
    first, second = frame.select(decoded.alias("e")).collect()
    assert (first.e.op, first.e.before, first.e.after.id, first.e.source.table, first.e.ts_ms) == ("c", None, 8, "t", 5)
    assert second.e is None
