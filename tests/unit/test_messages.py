"""Messages by tables: bytes that Kafka 4.4.0 wrote, refused ones, and hostile ones."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.engine.format import control, group_records, metadata_records
from kafkalog.engine.format.coordinator_records import group_record_set, share_record_set, transaction_record_set
from kafkalog.engine.format.java_json import double_to_text, to_text
from kafkalog.engine.format.java_text import decode_utf8
from kafkalog.engine.format.message_reader import ARRAY_LENGTH_MAX, MessageException
from kafkalog.engine.format.messages import Schema, Values, parse_schemas
from kafkalog.errors import IllegalArgumentException, UnsupportedVersionException

RECORD_SETS = (group_record_set(), transaction_record_set(), share_record_set())
SCHEMAS: list[Schema] = [
    *(schema for records in RECORD_SETS for schema in (*records.keys.values(), *records.values.values())),
    *metadata_records.schemas().values(),
    *control.kraft_schemas().values(),
    group_records.subscription_schema(),
    group_records.assignment_schema(),
]
VERSIONS = [(schema, version) for schema in SCHEMAS for version in range(schema.lowest, schema.highest + 1)]
TABLE = """
7 Thing 0-2 flexible 2+
  name string, count int16? 1+
  parts [Part] 1+
    id uuid, of [int32]
  last Part 2+
  note string? 2+ #0=null, gone int32 1-1
  old int32 2+ #3=-1, more [int32]? 2+ #1, inner Part? 2+ #2
"""


def thing() -> Schema:
    (schema,) = parse_schemas(TABLE.replace("int16?", "int16"))
    return schema


UUID = "AAECAwQFBgcICQoLDA0ODw"
PART = {"id": UUID, "of": [1, -1]}
PART_BYTES = bytes(range(16)) + b"\0\0\0\2\0\0\0\1\xff\xff\xff\xff"
FLEXIBLE_PART = bytes(range(16)) + b"\3\0\0\0\1\xff\xff\xff\xff\0"


def test_the_layout_of_each_version() -> None:
    schema = thing()
    assert (schema.name, schema.number, schema.lowest, schema.highest) == ("Thing", 7, 0, 2)
    assert schema.encode({"name": "ab"}, 0) == b"\0\2ab"
    first = {"name": "ab", "count": -2, "parts": [PART], "gone": 5}
    assert schema.encode(first, 1) == b"\0\2ab\xff\xfe\0\0\0\1" + PART_BYTES + b"\0\0\0\5"
    second = {"name": "ab", "count": 1, "parts": [], "last": PART}
    plain = b"\3ab\0\1\1" + FLEXIBLE_PART
    assert schema.encode(second, 2) == plain + b"\0"
    assert schema.encode(second | {"old": -1, "note": None, "more": ()}, 2) == plain + b"\0"
    tagged = second | {"old": 7, "note": "n", "more": None, "inner": None}
    assert schema.encode(tagged, 2) == plain + b"\4\0\2\2n\1\1\0\2\1\0\3\4\0\0\0\7"
    decoded, end = schema.decode(schema.encode(tagged, 2), 2)
    assert decoded == tagged
    assert list(decoded) == ["name", "count", "parts", "last", "note", "old", "more", "inner"]
    assert end == len(schema.encode(tagged, 2))
    defaults = {"note": None, "old": -1, "more": [], "inner": {"id": "A" * 22, "of": []}}
    assert schema.decode(plain + b"\0", 2)[0] == second | defaults
    assert schema.to_json(second | defaults, 2) == second


def test_a_default_is_its_callers_own() -> None:
    schema = thing()
    data = b"\1\0\0\1" + FLEXIBLE_PART + b"\0"
    schema.decode(data, 2)[0]["more"].append(1)
    assert schema.decode(data, 2)[0]["more"] == []


def test_unknown_tags_are_passed_over_by_their_size() -> None:
    data = b"\1\0\0\1" + FLEXIBLE_PART + b"\2\x09\3xyz\3\4\0\0\0\1"
    assert thing().decode(data, 2)[0]["old"] == 1


@pytest.mark.parametrize(
    ("values", "version", "words"),
    [
        ({}, 0, "Thing version 0: Thing: the field name is missing"),
        ({"name": "a", "count": 1}, 0, "has no field count, expected name"),
        ({"name": None}, 0, "name: found NoneType, expected text"),
        ({"name": "\ud800"}, 0, "expected text that UTF-8 can hold"),
        ({"name": "x" * 32768}, 0, "name: found text of 32768 bytes, expected at most 32767"),
        ({"name": "a", "count": 32768, "parts": [], "gone": 1}, 1, "count: found int 32768, expected int16"),
        ({"name": "a", "count": 1.0, "parts": [], "gone": 1}, 1, "count: found float 1.0, expected int16"),
        ({"name": "a", "count": 1, "parts": "xy", "gone": 1}, 1, "parts: found str 'xy', expected a list"),
        ({"name": "a", "count": 1, "parts": [1], "gone": 1}, 1, "found int 1, expected a dictionary of fields"),
        ({"name": "a", "count": 1, "parts": [PART | {"id": "no"}], "gone": 1}, 1, "id: "),
        ({"name": "a", "count": 1, "parts": [PART | {"id": b"no"}], "gone": 1}, 1, "22 characters of base64"),
        ([], 0, "found list [], expected a dictionary of fields"),
    ],
)
def test_values_that_do_not_fit(values: Any, version: int, words: str) -> None:
    with pytest.raises(IllegalArgumentException) as refused:
        thing().encode(values, version)
    assert words in str(refused.value)


def test_versions_that_there_are_not() -> None:
    with pytest.raises(UnsupportedVersionException, match="Thing has no version 3, expected 0 to 2"):
        thing().encode({"name": ""}, 3)
    data = b"\1\0\0\1" + FLEXIBLE_PART + b"\0"
    with pytest.raises(MessageException) as refused:
        thing().decode(data, 9)
    assert refused.value.kafka_text == "Can't read version 9 of Part"
    with pytest.raises(MessageException, match="version 2 has no such field") as refused:
        parse_schemas("X 0-3 flexible 0+\n  a int8 3+ #5")[0].decode(b"\1\5\1\0", 2)
    assert refused.value.kafka_text == "Tag 5 is not valid for version 2"


@pytest.mark.parametrize(
    ("version", "data", "kafka_text", "position"),
    [
        (0, b"\0", None, 0),
        (0, b"\0\3ab", "Error reading byte array of 3 byte(s): only 2 byte(s) available", 2),
        (0, b"\xff\xff", "non-nullable field name was serialized as null", 2),
        (2, b"\0", "non-nullable field name was serialized as null", 1),
        (2, b"\x81\x80\2" + bytes(40000), "string field name had invalid length 32768", 3),
        (2, b"\x80", None, 1),
        (
            1,
            b"\0\0\0\0\0\0\0\5\0",
            "Tried to allocate a collection of size 5, but there are only 1 bytes remaining.",
            8,
        ),
        (1, b"\0\0\0\0\x80\0\0\0", "non-nullable field parts was serialized as null", 8),
        (2, b"\1\0\0\1" + FLEXIBLE_PART + b"\1\x09\xff\xff\xff\xff\x0f", "-1", 37),
        (2, b"\1\0\0\1" + FLEXIBLE_PART + b"\xff\xff\xff\xff\x0f", "Invalid negative number of tagged fields -1", 35),
    ],
)
def test_bytes_that_are_no_message(version: int, data: bytes, kafka_text: str | None, position: int) -> None:
    with pytest.raises(MessageException) as refused:
        thing().decode(data, version)
    assert refused.value.kafka_text == kafka_text
    assert refused.value.position == position
    assert str(refused.value).startswith(f"at byte {position}: Thing version {version}: ")


@given(st.sampled_from(VERSIONS), st.binary(max_size=80))
@settings(deadline=None, max_examples=400)
def test_garbage_is_refused_or_read(case: tuple[Schema, int], data: bytes) -> None:
    schema, version = case
    read = outcome(schema, version, data)
    if isinstance(read, MessageException):
        assert read.position is not None
        assert 0 <= read.position <= len(data)
        return
    values, end = read
    assert end <= len(data)
    written = schema.encode(values, version)  # not the same bytes: unknown tags are dropped, text is UTF-8
    assert schema.encode(schema.decode(written, version)[0], version) == written
    assert to_text(schema.to_json(values, version)).startswith("{")


def outcome(schema: Schema, version: int, data: bytes) -> tuple[Values, int] | MessageException:
    try:
        return schema.decode(data, version)
    except MessageException as error:
        return error


def test_no_length_makes_more_than_its_bytes() -> None:
    """A few bytes that promise gigabytes: the largest numbers of every kind of length, at every position."""
    draw = random.Random(3)
    tracemalloc.start()
    try:
        for schema, version in VERSIONS:
            for promise in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\x7f"):
                for before in range(0, 40, 3):
                    data = draw.choice((bytes(before), b"\1" * before, b"\2" * before)) + promise * 3
                    outcome(schema, version, data)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_an_array_has_at_most_a_million_elements() -> None:
    (schema,) = parse_schemas("X 0\n  a [int8]")
    count = ARRAY_LENGTH_MAX
    data = count.to_bytes(4, "big") + bytes(count)
    assert len(schema.decode(data, 0)[0]["a"]) == count
    with pytest.raises(MessageException, match="at most 1000000"):
        schema.decode((count + 1).to_bytes(4, "big") + bytes(count + 1), 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1e10, "1.0E10"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (-123.456, "-123.456"),
        (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_as_java_prints_them(value: float, text: str) -> None:
    assert double_to_text(value) == text


def test_json_as_jackson_prints_it() -> None:
    value = {"a": 'q"\\\n\t\x1f\x00\x7fé\u2028😀', "b\x0f": [1, True, None, float("inf"), 2.0, {}, []], "c": "\\u001f"}
    assert to_text(value) == (
        '{"a":"q\\"\\\\\\n\\t\\u001F\\u0000\x7fé\u2028😀","b\\u000F":[1,true,null,"Infinity",2.0,{},[]],"c":"\\\\u001f"}'
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain \xc3\xa9", "plain é"),
        (b"\xed\xa0\x80x", "\ufffdx"),  # a surrogate: one character to Java
        (b"\xed\xa0", "\ufffd"),
        (b"\xc3(", "\ufffd("),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf5\x80\x80\x80", "\ufffd" * 4),
        (b"\xc0\x80", "\ufffd\ufffd"),
    ],
)
def test_text_as_java_reads_it(data: bytes, text: str) -> None:
    assert decode_utf8(data) == text
