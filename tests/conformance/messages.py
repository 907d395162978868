"""Kafka's generated messages in a JVM that stays, and random values for any of ours."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from hypothesis import strategies as st

from kafkalog.engine.format import control, group_records, metadata_records, requests
from kafkalog.engine.format.coordinator_records import group_record_set, share_record_set, transaction_record_set
from kafkalog.engine.format.java_json import to_text
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.message_tables import NEVER, Field, Type, default_of, defaults_of
from kafkalog.engine.format.messages import Message, Schema, Values, parse_schemas
from kafkalog.engine.format.remote_schemas import REMOTE_LOG_METADATA
from tests.conformance import kafka_jars

MAIN = "io.kafkalog.conformance.MessageCodec"


def framed_schemas() -> Iterator[tuple[str, Schema]]:
    """Every message with a table, and the bytes that Kafka writes before it."""
    for records in (group_record_set(), transaction_record_set(), share_record_set()):
        for schema in records.keys.values():
            yield "type", schema
        for schema in records.values.values():
            yield "version", schema
    yield "version", group_records.subscription_schema()
    yield "version", group_records.assignment_schema()
    for schema in metadata_records.schemas().values():
        yield "metadata", schema
    for schema in [*control.kraft_schemas().values(), *parse_schemas(REMOTE_LOG_METADATA)]:
        yield "none", schema


def protocol_messages() -> list[Message]:
    """The headers, and the request and response of every API."""
    pairs = ((api.request, api.response) for api in requests.apis().values())
    return [*requests.header_messages(), *itertools.chain.from_iterable(pairs)]


def every_version() -> Iterator[tuple[str, Schema, int]]:
    for frame, schema in framed_schemas():
        for version in range(schema.lowest, schema.highest + 1):
            yield frame, schema, version


@dataclass(frozen=True)
class Kafka:
    """The pipes to a MessageCodec of the driver, or to another main class that answers JSON lines."""

    stdin: IO[str]
    stdout: IO[str]

    def ask(self, questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """One answer to each request; the Java main class describes both."""
        answers = []
        for question in questions:  # one at a time: neither pipe can fill up
            self.stdin.write(json.dumps(question) + "\n")
            self.stdin.flush()
            answers.append(json.loads(self.stdout.readline()))
        return answers

    def encode(
        self, frame: str, schema: Schema, version: int, values: Values, *, given: int | None = None
    ) -> dict[str, Any]:
        """`given` is the version of the values, if they are those of another version."""
        given = version if given is None else given
        asked = {"name": schema.name, "version": version, "from": given, "frame": frame}
        return self.ask([asked | {"data": schema.to_json(values, given)}])[0]

    def decode(self, schema: Schema, version: int, data: bytes) -> dict[str, Any]:
        return self.ask([{"name": schema.name, "version": version, "bytes": data.hex()}])[0]


@contextmanager
def kafka(driver: kafka_jars.Driver, main: str = MAIN) -> Iterator[Kafka]:
    process = subprocess.Popen(
        driver.command(main=main), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            yield Kafka(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


# --- random values --------------------------------------------------------------------------------

_RANGES = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
_TEXT = st.one_of(st.text(max_size=12), st.text('\x00\x1f"\\\x7f\u2028é😀', max_size=6), st.just("x" * 200))
# Java before 19 prints some doubles with more digits than they need; these it does not.
_DOUBLES = st.integers(-(1 << 40), 1 << 40).map(lambda number: number / 8)
_UUIDS = st.sampled_from(["A" * 22, "AAECAwQFBgcICQoLDA0ODw", "_____________________w", "4L-_0eBlTTSjWlYl9Xr4Sg"])


def values_of(of: Type, version: int | None) -> st.SearchStrategy[Values]:
    """The fields of a struct in a version, or in all if it is None; tagged ones often at their default."""
    fields = [field for field in of.fields if version is None or field.in_version(version)]
    return st.fixed_dictionaries({field.name: _field(field, version) for field in fields})


def of_version(of: Type, values: Values, version: int) -> Values:
    """The fields that a version has, of values of all versions."""
    found = {}
    for field in of.fields:
        if field.in_version(version):
            value = values[field.name]
            if value is None and not field.nullable_in(version):
                value = default_of(field, version)()
            found[field.name] = value if value is None else _of_version(field.type, value, version)
    return found


def _of_version(of: Type, value: Any, version: int) -> Any:
    if of.element is not None:
        return [_of_version(of.element, each, version) for each in value]
    return of_version(of, value, version) if of.kind == "struct" else value


def completed(of: Type, values: Values) -> Values:
    """The values of a message with the defaults of the fields that they lack."""
    found = defaults_of(of, None)
    for field in of.fields:
        if field.name in values:
            value, inner = values[field.name], field.type
            if value is None:
                found[field.name] = None
            elif inner.kind == "struct":
                found[field.name] = completed(inner, value)
            elif inner.element is not None and inner.element.kind == "struct":
                found[field.name] = [completed(inner.element, each) for each in value]
            else:
                found[field.name] = value
    return found


def json_text(schema: Schema, values: Values, version: int) -> str:
    """The text of Kafka's JSON converter, which shows no records."""
    return to_text(_without_records(schema.type, schema.to_json(values, version)))


def _without_records(of: Type, shown: Any) -> Any:
    if shown is None:
        return None
    if of.element is not None:
        return [_without_records(of.element, each) for each in shown]
    if of.kind == "struct":
        return {
            field.name: _without_records(field.type, shown[field.name]) for field in of.fields if field.name in shown
        }
    return "" if of.kind == "records" else shown


def _field(field: Field, version: int | None) -> st.SearchStrategy[Any]:
    value = _value(field.type, version)
    if field.nullable_in(NEVER - 1 if version is None else version):
        value = st.none() | value
    if field.tag is not None and field.type.kind != "struct":
        value = st.just(field.default) | value
    return value


def _value(of: Type, version: int | None) -> st.SearchStrategy[Any]:
    if of.element is not None:
        return st.lists(_value(of.element, version), max_size=3)
    if of.kind in _RANGES:
        return st.integers(*_RANGES[of.kind])
    simple = {
        "string": _TEXT,
        "string16": _TEXT,
        "records": st.binary(max_size=20),
        "bytes": st.binary(max_size=20),
        "bool": st.booleans(),
    }
    simple |= {"float64": _DOUBLES, "uuid": _UUIDS}
    return values_of(of, version) if of.kind == "struct" else simple[of.kind]


# --- hostile bytes --------------------------------------------------------------------------------


@st.composite
def hostile(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes truncated, changed or made up."""
    body = bytearray(good)
    for _ in range(draw(st.integers(0, 2))):
        if body:
            at = draw(st.integers(0, len(body) - 1))
            body[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    cut = draw(st.integers(0, len(body)) | st.just(len(body)))
    return bytes(body[:cut]) + draw(st.just(b"") | st.binary(max_size=8) | st.just(b"\xff" * 6))


def compare_decoded(kafka: Kafka, schema: Schema, version: int, data: bytes) -> None:
    """Asserts that both read the same, or that both report the same."""
    theirs = kafka.decode(schema, version, data)
    ours = outcome(schema, version, data)
    if isinstance(ours, MessageException):
        assert "error" in theirs, (ours, theirs)
        if "newLimit" not in str(theirs["error"]):  # Kafka does not copy these bytes; the tool shows none of them
            assert ours.kafka_text == theirs["error"]
        assert ours.position is not None
        assert 0 <= ours.position <= len(data)
        return
    assert "error" not in theirs, (ours, theirs)
    values, end = ours
    assert end == theirs["end"]
    if "Quota" not in schema.name:  # any double: Java before 19 prints some with more digits than they need
        assert json_text(schema, values, version) == theirs["json"]


def outcome(schema: Schema, version: int, data: bytes) -> tuple[Values, int] | MessageException:
    try:
        return schema.decode(data, version)
    except MessageException as error:
        return error
