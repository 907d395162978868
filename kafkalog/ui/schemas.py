"""Decodes keys and values for a page through the schemas that were given: Avro, Protobuf and JSON Schema.

A schema is given for an id of a registry's wire format, or for a topic, whose values may be bare or in the wire format.
This format is a zero byte, four bytes with the id, and for Protobuf the message's indexes.  The result is JSON text in
which numbers keep all their digits.  A schema that does not fit gives words at the record; the bytes stay available.
Records are hostile: a value above DECODED_BYTES_MAX is not decoded.  Thread-safe.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import importlib
import io
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kafkalog._face.avro_schemas import whole_schema
from kafkalog._face.proto_schemas import proto_of
from kafkalog._face.schemas import Schema
from kafkalog.engine.files import OS_FILES
from kafkalog.errors import (
    IllegalArgumentException,
    KafkalogError,
    KafkaStorageException,
    MissingPackageException,
    NoSuchFileException,
)
from kafkalog.ui.json_schemas import first_error

DECODED_BYTES_MAX = 1 << 20
DECIMAL_BYTES_MAX = 4096  # the time for a decimal grows with the square of its length
SHORT_DECIMAL = "kafkalog-decimal"  # a logical type of Avro that fastavro reads through `short_decimal`
TEXT_MAX = 64 << 10  # characters of decoded JSON for a list; a single record gets all
MAGIC_BYTES = 5  # the zero byte and the id
ENDINGS = {".avsc": "avro", ".json": "json", ".proto": "protobuf", ".desc": "protobuf"}
EXPECTED = "expected TOPIC=FILE or ID=FILE with a file .avsc, .json, .proto or .desc, and for a message FILE#NAME"

Decode = Callable[
    [bytes, tuple[int, ...] | None], Any
]  # gets a payload, and a message's indexes if it was in the wire format


class Unfit(Exception):
    """The bytes are not a value of the schema."""


@dataclass(frozen=True)
class Decoder:
    """A schema that was given: its name for the page, its kind, and its function."""

    name: str
    kind: str
    decode: Decode


class Schemas:
    """The schemas of a live page."""

    def __init__(self) -> None:
        self.of_topics: dict[str, Decoder] = {}
        self.of_ids: dict[int, Decoder] = {}

    def give(self, texts: Iterable[str]) -> None:
        """Adds schemas given as TOPIC=FILE or ID=FILE.

        Raises IllegalArgumentException for anything else, NoSuchFileException for a missing file, and
        MissingPackageException if a schema needs a package that is not installed.
        """
        for text in texts:
            owner, equals, rest = text.partition("=")
            path, _, message = rest.partition("#")
            if not equals or not owner or not path:
                raise IllegalArgumentException(f"--schema {text!r}: {EXPECTED}")
            made = decoder(path, message or None, int(owner) if owner.isdecimal() else 0)
            if owner.isdecimal():
                self.of_ids[int(owner)] = made
            else:
                self.of_topics[owner] = made

    def give_folder(self, folder: str) -> None:
        """Adds the schemas of a directory: {id}.avsc, {id}.json, {id}.proto or {id}.desc; a .desc wins over a .proto.

        Raises as `give`, and IllegalArgumentException if the directory has none.
        """
        try:
            names = sorted(OS_FILES.list_dir(folder), reverse=True)
        except FileNotFoundError:
            raise NoSuchFileException("no such directory of schemas", path=folder) from None
        except OSError as error:
            raise KafkaStorageException.because_of(error, "cannot read the schemas") from error
        found = 0
        for name in names:
            stem, ending = os.path.splitext(name)
            if ending in ENDINGS and re.fullmatch(r"[0-9]{1,10}", stem):
                self.of_ids[int(stem)] = decoder(os.path.join(folder, name), None, int(stem))
                found += 1
        if not found:
            raise IllegalArgumentException(f"no schemas in {folder}: expected files such as 7.avsc, 7.json or 7.desc")

    def __bool__(self) -> bool:
        return bool(self.of_topics or self.of_ids)

    def decoded(self, topic: str, data: bytes | None, *, is_key: bool, most: int = TEXT_MAX) -> dict[str, Any] | None:
        """Returns the decoded bytes as JSON text with the schema's name, or why they do not decode; None if no schema
        is for them."""
        if data is None:
            return None
        number = int.from_bytes(data[1:MAGIC_BYTES], "big") if data[:1] == b"\0" and len(data) >= MAGIC_BYTES else None
        by_id = None if number is None else self.of_ids.get(number)
        by_topic = None if is_key else self.of_topics.get(topic)
        chosen = by_id or by_topic
        if chosen is None:
            return None
        made: dict[str, Any] = {"schema": chosen.name, "format": chosen.kind, "id": number if by_id else None}
        if len(data) > DECODED_BYTES_MAX:
            return made | {"error": f"{len(data)} bytes: more than {DECODED_BYTES_MAX} are not decoded here"}
        try:
            text = _text(_value(chosen, data, number, is_certain=by_id is not None))
        except Unfit as error:
            return made | {"error": str(error)}
        return made | ({"json": text} if len(text) <= most else {"json": None, "characters": len(text)})


def _value(chosen: Decoder, data: bytes, number: int | None, *, is_certain: bool) -> Any:
    """Returns the value; bytes for a topic's schema may be in the wire format or bare."""
    problem: Unfit | None = None
    if number is not None:
        try:
            payload, indexes = data[MAGIC_BYTES:], None
            if chosen.kind == "protobuf":
                payload, indexes = _indexes(payload)
            return chosen.decode(payload, indexes)
        except Unfit as error:
            if is_certain:
                raise
            problem = error
    try:
        return chosen.decode(data, None)
    except Unfit as error:
        raise problem or error from None


def _indexes(data: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Returns the payload after a message's indexes, and these."""
    found: list[int] = []
    count, at = _zigzag(data, 0)
    if not 0 <= count <= 64:
        raise Unfit(f"found {count} message indexes of Protobuf after the schema id, expected at most 64")
    for _ in range(count):
        number, at = _zigzag(data, at)
        found.append(number)
    return data[at:], tuple(found) or (0,)


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for place in range(at, min(at + 5, len(data))):
        number |= (data[place] & 0x7F) << shift
        shift += 7
        if data[place] < 0x80:
            return number >> 1 ^ -(number & 1), place + 1
    raise Unfit("the message indexes of Protobuf after the schema id end too early")


# --- one schema --------------------------------------------------------------------------------------------------


def decoder(path: str, message: str | None, number: int) -> Decoder:
    """Returns the decoder of a schema's file.  Raises as `Schemas.give`."""
    ending = os.path.splitext(path)[1]
    if ending not in ENDINGS:
        raise IllegalArgumentException(f"{path}: {EXPECTED}")
    try:
        with OS_FILES.open(path, writable=False) as file:
            data = file.pread(file.size(), 0)
    except FileNotFoundError:
        raise NoSuchFileException("no such schema", path=path) from None
    except OSError as error:
        raise KafkaStorageException.because_of(error, "cannot read the schema") from error
    content: str | bytes = data
    if ending != ".desc":
        try:
            content = data.decode()
        except UnicodeDecodeError:
            raise IllegalArgumentException(f"{path} is not UTF-8 text, expected a schema") from None
    schema = Schema(number, content)
    kind = ENDINGS[ending]
    make = {"avro": _avro, "json": _json_schema, "protobuf": _protobuf}[kind]
    try:
        return Decoder(os.path.basename(path) + (f"#{message}" if message else ""), kind, make(schema, message))
    except KafkalogError as error:
        error.message = f"{path}: {error.message}"
        raise


def _package(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingPackageException(
            f"this schema needs the package {package}, which is not installed", hint=f"pip install {package}"
        ) from None


def _avro(schema: Schema, message: str | None) -> Decode:
    fastavro: Any = _package("fastavro", "fastavro")
    try:
        parsed = fastavro.parse_schema(json.loads(whole_schema(schema)))
        is_recursive = _made_safe(parsed)
    except KafkalogError:
        raise
    except Exception as error:  # fastavro raises many kinds
        raise IllegalArgumentException(f"not an Avro schema: {error}") from None
    # The compiled reader of a recursive schema has no limit: a deep value would overflow the stack of the process.
    reader: Any = importlib.import_module("fastavro._read_py") if is_recursive else fastavro.read
    usual = reader.LOGICAL_READERS["bytes-decimal"]

    def short_decimal(data: bytes, *schemas: Any) -> Any:
        if len(data) > DECIMAL_BYTES_MAX:
            raise Unfit(f"a decimal of {len(data)} bytes: more than {DECIMAL_BYTES_MAX} are not decoded here")
        return usual(data, *schemas)

    reader.LOGICAL_READERS[f"bytes-{SHORT_DECIMAL}"] = short_decimal

    def decode(payload: bytes, indexes: tuple[int, ...] | None) -> Any:
        stream = io.BytesIO(payload)
        try:
            found = reader.schemaless_reader(stream, parsed, None)
        except Unfit:
            raise
        except Exception as error:  # hostile bytes may make it raise anything
            raise Unfit(f"not a value of this Avro schema: {type(error).__name__}: {error}") from None
        left = len(payload) - stream.tell()
        if left:
            raise Unfit(f"not a value of this Avro schema: {left} of {len(payload)} bytes are left after it")
        return found

    return decode


def _made_safe(parsed: Any) -> bool:
    """Returns whether an Avro schema is recursive; lets its decimals have a limit.

    Raises IllegalArgumentException for an array whose items take no bytes: a few bytes could claim billions of them.
    """
    takes_none: dict[str, bool | None] = {}  # by named type; None while it is looked into
    is_recursive = False

    def look(node: Any) -> bool:
        """Returns whether a value may take no bytes."""
        nonlocal is_recursive
        if isinstance(node, list):
            for each in node:
                look(each)
            return False
        if isinstance(node, str):
            is_recursive = is_recursive or takes_none.get(node, False) is None
            return node == "null" or bool(takes_none.get(node))
        kind = node["type"]
        if kind == "bytes" and node.get("logicalType") == "decimal":
            node["logicalType"] = SHORT_DECIMAL
        if kind == "array":
            if look(node["items"]):
                raise IllegalArgumentException("found an Avro array of items that take no bytes, expected other items")
        elif kind == "map":
            look(node["values"])
        elif kind in ("record", "error"):
            takes_none[node["name"]] = None
            fields = [look(each["type"]) for each in node["fields"]]
            takes_none[node["name"]] = all(fields)
            return bool(takes_none[node["name"]])
        elif kind == "fixed":
            takes_none[node["name"]] = node["size"] == 0
            return bool(takes_none[node["name"]])
        elif kind != "enum":
            return look(kind)
        return False

    look(parsed)
    return is_recursive


def _json_schema(schema: Schema, message: str | None) -> Decode:
    try:
        document = json.loads(schema.content)
    except ValueError as error:
        raise IllegalArgumentException(f"not JSON: {error}") from None
    _package("jsonschema", "jsonschema")
    try:
        check = first_error(document)
    except Exception as error:
        raise IllegalArgumentException(f"not a JSON Schema: {error}".splitlines()[0]) from None

    def decode(payload: bytes, indexes: tuple[int, ...] | None) -> Any:
        try:
            text = payload.decode()
            found = json.loads(text, parse_float=_number, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise Unfit(f"not JSON: {error}") from None
        try:
            wrong = check(found)
        except Exception as error:  # such as a reference that cannot be followed
            raise Unfit(f"cannot be checked by this JSON Schema: {error}"[:500]) from None
        if wrong is not None:
            raise Unfit(f"does not match this JSON Schema at {wrong.json_path}: {wrong.message}"[:500])
        return _Json(text)

    return decode


def _number(text: str) -> float | int:
    """Returns a number with a point; a whole one is an integer for a JSON Schema."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _no_number(text: str) -> Any:
    raise ValueError(f"found {text}, which JSON does not have")


def _protobuf(schema: Schema, message: str | None) -> Decode:
    proto = proto_of(schema)
    pool_module: Any = _package("google.protobuf.descriptor_pool", "protobuf")
    factory: Any = _package("google.protobuf.message_factory", "protobuf")
    json_format: Any = _package("google.protobuf.json_format", "protobuf")
    pb2: Any = _package("google.protobuf.descriptor_pb2", "protobuf")
    pool = pool_module.DescriptorPool()
    for file in pb2.FileDescriptorSet.FromString(proto.descriptors).file:
        pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    usual = proto.full_name(message)
    by_indexes = {indexes: name for name, indexes in proto.messages.items()}

    def decode(payload: bytes, indexes: tuple[int, ...] | None) -> Any:
        name = usual if indexes is None or message is not None else by_indexes.get(indexes)
        if name is None:
            raise Unfit(f"found the message indexes {list(indexes or ())}, which this Protobuf schema does not have")
        made = factory.GetMessageClass(pool.FindMessageTypeByName(name))()
        try:
            made.ParseFromString(payload)
        except Exception as error:  # the class of protobuf's DecodeError changes between versions
            raise Unfit(f"not a message {name}: {error}") from None
        try:
            return json_format.MessageToDict(made, preserving_proto_field_name=True)
        except Exception as error:
            raise Unfit(f"the message {name} cannot be shown as JSON: {error}") from None

    return decode


# --- JSON --------------------------------------------------------------------------------------------------------


class _Json(str):
    """Text that is JSON already, with all digits of its numbers."""


def _text(value: Any) -> str:
    if isinstance(value, _Json):
        return str(value)
    try:
        return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    except (RecursionError, ValueError, TypeError) as error:
        raise Unfit(f"the value cannot be shown as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Returns what JSON has: bytes as text if they are UTF-8, else in base64; times as ISO 8601; numbers as they
    are."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"base64:{base64.b64encode(value).decode()}"
    if isinstance(value, decimal.Decimal):
        return str(value)  # a number of JSON would lose its digits in most readers
    if isinstance(value, float) and not -1.7976931348623157e308 <= value <= 1.7976931348623157e308:
        return str(value)  # JSON has no NaN and no infinity
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, datetime.timedelta | uuid.UUID) else value
