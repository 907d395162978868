"""Schemas for from_registry: maps, directories, a registry; Avro's references, JSON's types, Protobuf's indexes."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog._face import proto_schemas
from kafkalog._face.avro_schemas import whole_schema
from kafkalog._face.proto_schemas import prefixes, proto_of
from kafkalog._face.schemas import Registry, Schema, load_schemas
from kafkalog.errors import (
    IllegalArgumentException,
    NoSuchFileException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
)
from kafkalog.spark.json_types import spark_type
from tests.spark.registry import Entry, Running, running

V1 = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
V2 = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


def test_of_a_map() -> None:
    found = load_schemas({7: V2, 3: V1}, "avro")
    assert found == [Schema(3, V1), Schema(7, V2)]
    assert load_schemas({7: V2, 3: V1}, "avro", ids=[3]) == [Schema(3, V1)]
    assert load_schemas({3: json.loads(V1)}, "avro") == [Schema(3, V1)]


def test_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "12.avsc").write_text(V2)
    (tmp_path / "3.avsc").write_text(V1)
    (tmp_path / "readme.avsc").write_text("no id")
    (tmp_path / "4.proto").write_text("message A {}")
    (tmp_path / "4.desc").write_bytes(b"\x0a\x00")
    (tmp_path / "5.proto").write_text("message B {}")
    assert load_schemas(tmp_path, "avro") == [Schema(3, V1), Schema(12, V2)]
    assert load_schemas(str(tmp_path), "protobuf") == [Schema(4, b"\x0a\x00"), Schema(5, "message B {}")]
    with pytest.raises(IllegalArgumentException, match=r"no schemas in .*expected files \{id\}\.json"):
        load_schemas(tmp_path, "json")
    with pytest.raises(NoSuchFileException, match="no such directory of schemas"):
        load_schemas(tmp_path / "none", "avro")


@pytest.mark.parametrize(
    ("schemas", "more", "text"),
    [
        (None, {}, "schemas: found NoneType, expected a map of ids to schemas, a directory, or a registry's address"),
        ({}, {}, "schemas: found none"),
        ({"1": V1}, {}, "schemas: found str '1', expected a schema's id"),
        ({True: V1}, {}, "schemas: found bool True, expected a schema's id"),
        ({1: 5}, {}, "schemas: found int 5 for 1, expected the schema's text"),
        ({1: V1}, {"ids": [2]}, "ids: found 2, which is not among the schemas.*expected some of 1"),
        ({1: V1}, {"ids": []}, "ids: found none"),
        ({1: V1}, {"subject": "a"}, "subject is given without a registry's address"),
        ("http://", {"ids": [1]}, "found 'http://' among the registry's addresses"),
        ("http://a,me:secret@b", {"ids": [1]}, r"found '\.\.\.@b' among the registry's addresses"),
        ("http://a", {}, "neither subject nor ids says which schemas of the registry to load.*subject="),
        ("http://a", {"ids": [1], "subject": "a"}, "both ids and subject are given"),
        (
            "http://me:secret@a",
            {"ids": [1], "options": {"bearer.auth.token": "x"}},
            "found both a user and bearer.auth.token",
        ),
    ],
)
def test_what_makes_no_sense(schemas: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text) as info:
        load_schemas(schemas, "avro", **more)
    assert "secret" not in str(info.value)


# --- a registry -------------------------------------------------------------------------------------------

PERSON = json.dumps(
    {"type": "record", "name": "Person", "namespace": "shop", "fields": [{"name": "n", "type": "string"}]}
)
SALE = json.dumps(
    {
        "type": "record",
        "name": "Sale",
        "namespace": "shop",
        "fields": [
            {"name": "buyer", "type": "Person"},
            {"name": "others", "type": {"type": "array", "items": ["null", "shop.Person"]}},
        ],
    }
)
SUBJECTS = {
    "orders/value": [Entry(4, V1, deleted=True), Entry(9, V2), Entry(6, V1)],
    "people": [Entry(2, PERSON)],
    "sales": [Entry(11, SALE, references=[{"name": "shop.Person", "subject": "people", "version": 1}])],
    "json": [Entry(20, "{}", "JSON")],
}


@pytest.fixture(scope="module")
def registry() -> Iterator[Running]:
    with running(SUBJECTS, user_info="me:se cret") as found:
        yield found


@pytest.fixture(scope="module")
def address(registry: Running) -> str:
    return f"http://me:se%20cret@127.0.0.1:{registry.port}"


def test_of_a_registry(registry: Running, address: str) -> None:
    assert load_schemas(address, "avro", ids=[9, 6]) == [Schema(6, V1), Schema(9, V2)]
    # The last version is the newest, not the highest id.
    assert load_schemas(address, "avro", subject="orders/value") == [Schema(4, V1), Schema(9, V2), Schema(6, V1)]
    assert load_schemas(address, "avro", subject=["people", "sales"])[1].named == {"shop.Person": PERSON}
    options = {"basic.auth.user.info": "me:se cret"}
    assert load_schemas(registry.address + "/", "avro", ids=[9], options=options) == [Schema(9, V2)]
    # The first address does not answer.
    assert load_schemas(f"http://127.0.0.1:1, {address}", "avro", ids=[9]) == [Schema(9, V2)]
    assert {request["path"] for request in registry.requests()} >= {
        "/schemas/ids/9",
        "/subjects/orders%2Fvalue/versions?deleted=true",
        "/subjects/orders%2Fvalue/versions/1?deleted=true",
        "/subjects/people/versions/1?deleted=true",
    }


@pytest.mark.parametrize(
    ("more", "kind", "text"),
    [
        (
            {"ids": [5]},
            RemoteResourceNotFoundException,
            "no schema 5 in the registry http://127.*404 Schema 5 not found",
        ),
        (
            {"subject": "none"},
            RemoteResourceNotFoundException,
            "no subject 'none' in the registry .*Subject 'none' not",
        ),
        ({"ids": [20]}, IllegalArgumentException, "schema 20 is JSON in the registry, but format is avro"),
    ],
)
def test_what_a_registry_has_not(address: str, more: dict[str, Any], kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text) as info:
        load_schemas(address, "avro", **more)
    assert "cret" not in str(info.value)


def test_a_registry_that_refuses_or_fails(registry: Running, address: str) -> None:
    with pytest.raises(RemoteStorageException, match=r"refuses access: 401 Unauthorized.*basic\.auth\.user\.info"):
        load_schemas(registry.address, "avro", ids=[9])
    with pytest.raises(RemoteStorageException, match="refuses access: 401"):
        load_schemas(registry.address, "avro", ids=[9], options={"bearer.auth.token": "secret"})
    assert registry.requests()[-1]["authorization"] == "Bearer secret"
    with pytest.raises(RemoteStorageException, match=r"does not answer GET /schemas/ids/9: .*refused"):
        load_schemas("http://me:secret@127.0.0.1:1", "avro", ids=[9])
    with pytest.raises(RemoteStorageException, match="answers 500 Error in the backend datastore to GET /broken"):
        Registry(address, {}).get("/broken", "nothing")
    with pytest.raises(
        RemoteStorageException, match=r"answers without the text of schema 9.*the address may not be a Schema Registry"
    ):
        load_schemas(f"{address}/odd", "avro", ids=[9])
    # The target of a redirect does not get the credentials.
    with pytest.raises(RemoteStorageException, match="refuses access: 401"):
        load_schemas(f"{address}/moved", "avro", ids=[9])
    sent, redirected = registry.requests()[-2:]
    assert (sent["path"], redirected["path"]) == ("/moved/schemas/ids/9", "/schemas/ids/9")
    assert sent["authorization"] is not None
    assert redirected["authorization"] is None
    assert repr(Registry(address, {})) == f"Registry({registry.address})"


# --- Avro -------------------------------------------------------------------------------------------------


def test_avro_references_are_defined_where_they_are_used_first() -> None:
    fastavro = pytest.importorskip("fastavro")
    whole = json.loads(whole_schema(Schema(1, SALE, {"shop.Person": PERSON})))
    assert whole["fields"][0]["type"]["name"] == "Person"
    assert whole["fields"][1]["type"]["items"] == ["null", "shop.Person"]
    fastavro.parse_schema(whole)


def test_avro_references_without_a_namespace_keep_none() -> None:
    inner = json.dumps({"type": "enum", "name": "Kind", "symbols": ["A"]})
    middle = json.dumps({"type": "record", "name": "Middle", "fields": [{"name": "kind", "type": "Kind"}]})
    outer = json.dumps(
        {
            "type": "record",
            "name": "x.y.Outer",
            "fields": [
                {"name": "middle", "type": "Middle"},
                {"name": "kinds", "type": {"type": "map", "values": "Kind"}},
                {"name": "self", "type": ["null", "Outer"]},
            ],
        }
    )
    whole = json.loads(whole_schema(Schema(1, outer, {"Kind": inner, "Middle": middle})))
    assert whole["fields"][0]["type"]["namespace"] == ""
    assert whole["fields"][0]["type"]["fields"][0]["type"]["name"] == "Kind"
    assert whole["fields"][1]["type"]["values"] == "Kind"
    with pytest.raises(IllegalArgumentException, match="schema 1 is not an Avro schema"):
        whole_schema(Schema(1, "record"))


# --- JSON -------------------------------------------------------------------------------------------------

TYPES: list[tuple[dict[str, Any], str]] = [
    ({"type": "integer"}, "bigint"),
    ({"type": ["null", "number"]}, "double"),
    ({"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]}, "string"),
    ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "double"),
    ({"type": ["integer", "string"]}, "string"),
    ({"enum": ["a", "b"]}, "string"),
    ({"enum": [1, 2]}, "bigint"),
    ({"const": True}, "boolean"),
    ({"type": "array", "items": {"type": "boolean"}}, "array<boolean>"),
    ({"type": "object"}, "string"),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string, bigint>"),
    ({"$ref": "#/definitions/money"}, "struct<`amount`: double>"),
    ({"$ref": "item.json"}, "struct<`sku`: string>"),
    ({"$ref": "#"}, "string"),
    (
        {"allOf": [{"$ref": "#/definitions/money"}, {"properties": {"x y`": {"type": "string"}}}]},
        "struct<`amount`: double, `x y```: string>",
    ),
    ({"allOf": [{"type": "integer"}]}, "bigint"),
    ({}, "string"),
]


@pytest.mark.parametrize(("kind", "expected"), TYPES)
def test_types_of_json_schema(kind: dict[str, Any], expected: str) -> None:
    definitions = {"money": {"type": "object", "properties": {"amount": {"type": "number"}}}}
    schema = json.dumps({"type": "object", "properties": {"f": kind}, "definitions": definitions})
    item = json.dumps({"type": "object", "properties": {"sku": {"type": "string"}}})
    assert spark_type(Schema(1, schema, {"item.json": item})) == f"struct<`f`: {expected}>"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('{"type": "string"}', "schema 1 describes the type string, expected a JSON Schema of an object or an array"),
        ('{"$ref": "#/definitions/none"}', "schema 1 refers to '#/definitions/none', which does not exist"),
        ("nothing", "schema 1 is not a JSON Schema"),
    ],
)
def test_no_types_of_json_schema(schema: str, text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text):
        spark_type(Schema(1, schema))


# --- Protobuf ---------------------------------------------------------------------------------------------


def order_file() -> Any:
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    first = file.message_type.add(name="Order")
    first.field.add(name="id", number=1, type=3, label=1)
    first.nested_type.add(name="Line").field.add(name="sku", number=1, type=9, label=1)
    second = file.message_type.add(name="Refund")
    second.field.add(name="at", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp")
    file.dependency.append("google/protobuf/timestamp.proto")
    return file


def test_protobuf_of_a_registrys_serialized_file() -> None:
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    text = base64.b64encode(order_file().SerializeToString()).decode()
    proto = proto_of(Schema(5, text))
    assert proto.messages == {"shop.Order": (0,), "shop.Order.Line": (0, 0), "shop.Refund": (1,)}
    files = pb2.FileDescriptorSet.FromString(proto.descriptors).file
    assert [file.name for file in files] == ["google/protobuf/timestamp.proto", "main.proto"]
    assert proto.full_name(None) == "shop.Order"
    assert proto.full_name("Line") == "shop.Order.Line"
    with pytest.raises(IllegalArgumentException, match=r"message: found 'Nope', expected one of schema 5: shop\.Order"):
        proto.full_name("Nope")
    other = pb2.FileDescriptorProto(name="x", dependency=["common.proto"])
    common = base64.b64encode(pb2.FileDescriptorProto(name="").SerializeToString()).decode()
    named = {"common.proto": common}
    whole = proto_of(Schema(6, base64.b64encode(other.SerializeToString()).decode(), named))
    assert [file.name for file in pb2.FileDescriptorSet.FromString(whole.descriptors).file] == [
        "common.proto",
        "main.proto",
    ]
    with pytest.raises(IllegalArgumentException, match=r"imports common\.proto, which is neither a reference nor"):
        proto_of(Schema(6, base64.b64encode(other.SerializeToString()).decode()))
    with pytest.raises(IllegalArgumentException, match="is not a descriptor set"):
        proto_of(Schema(6, b"\xff\xff\xff"))


def test_protobuf_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'syntax = "proto3"; package shop; import "x/other.proto"; message A { Other other = 1; } message B {}'
    named = {"x/other.proto": 'syntax = "proto3"; package shop; message Other { int64 id = 1; }'}
    pytest.importorskip("google.protobuf")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        patch.setattr(proto_schemas.importlib, "import_module", _without("grpc_tools"))
        with pytest.raises(ModuleNotFoundError, match=r"\.proto text, which needs protoc.*grpcio-tools"):
            proto_of(Schema(1, text, named))
    if shutil.which("protoc") is None:
        pytest.importorskip("grpc_tools")
    assert proto_of(Schema(1, text, named)).messages == {"shop.A": (0,), "shop.B": (1,)}
    with pytest.raises(IllegalArgumentException, match=r"not a Protobuf schema: .*main\.proto:1:.*message name"):
        proto_of(Schema(1, 'syntax = "proto3"; message {'))
    with pytest.raises(IllegalArgumentException, match="which is not the name of a file"):
        proto_of(Schema(1, text, {"../../x.proto": ""}))


def _without(missing: str) -> Any:
    import importlib

    real = importlib.import_module

    def load(name: str) -> Any:
        if name == missing:
            raise ModuleNotFoundError(name)
        return real(name)

    return load


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [((0,), (b"\0", b"\2\0")), ((1,), (b"\2\2",)), ((2, 0), (b"\4\4\0",)), ((64,), (b"\2\x80\1",))],
)
def test_prefixes_of_messages(indexes: tuple[int, ...], expected: tuple[bytes, ...]) -> None:
    assert prefixes(indexes) == expected
