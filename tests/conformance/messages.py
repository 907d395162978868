"""Kafka's generated messages in a JVM that stays, and random values for any of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from hypothesis import strategies as st

from kafkalog.engine.format import control, group_records, metadata_records
from kafkalog.engine.format.coordinator_records import group_record_set, share_record_set, transaction_record_set
from kafkalog.engine.format.message_tables import Field, Type
from kafkalog.engine.format.messages import Schema, Values, parse_schemas
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

    def encode(self, frame: str, schema: Schema, version: int, values: Values) -> dict[str, Any]:
        asked = {"name": schema.name, "version": version, "frame": frame}
        return self.ask([asked | {"data": schema.to_json(values, version)}])[0]

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


def values_of(of: Type, version: int) -> st.SearchStrategy[Values]:
    """The fields of a struct in a version; tagged ones often at their default."""
    fields = [field for field in of.fields if field.in_version(version)]
    return st.fixed_dictionaries({field.name: _field(field, version) for field in fields})


def _field(field: Field, version: int) -> st.SearchStrategy[Any]:
    value = _value(field.type, version)
    if field.nullable:
        value = st.none() | value
    if field.tag is not None and field.type.kind != "struct":
        value = st.just(field.default) | value
    return value


def _value(of: Type, version: int) -> st.SearchStrategy[Any]:
    if of.element is not None:
        return st.lists(_value(of.element, version), max_size=3)
    if of.kind in _RANGES:
        return st.integers(*_RANGES[of.kind])
    simple = {"string": _TEXT, "bytes": st.binary(max_size=20), "bool": st.booleans()}
    simple |= {"float64": _DOUBLES, "uuid": _UUIDS}
    return values_of(of, version) if of.kind == "struct" else simple[of.kind]
