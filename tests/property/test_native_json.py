"""`_native.json_columns` against Python's json: random documents, random schemas, hostile text."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog._native.codec import json_columns
from kafkalog._native.codec.json_columns import JsonSchema
from tests.reference.json_columns import BrokenValue, Field, WrongType, row, same

NAMES = ["a", "b", "id", "name", "größe", "", 'q"\\', "a_long_name_that_no_expectation_has_room_for_" + "x" * 30]
SCALARS = ["b", "i", "l", "g", "u", "json", "d:9,2", "d:38,10"]


def fields(rng: random.Random, depth: int = 2) -> tuple[Field, ...]:
    found: list[Field] = []
    for name in rng.sample(NAMES, rng.randrange(6)):
        kind = rng.choice([*SCALARS, "+s", "+l"] if depth else SCALARS)
        below: tuple[Field, ...] = fields(rng, depth - 1) if kind == "+s" else ()
        if kind == "+l":
            below = ((fields(rng, depth - 1) or (("x", "l", ()),))[0],)
        found.append((name, kind, below))
    return tuple(found)


EDGES = [2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 0, 10**9, 10**18, 10**19]
WORDS = ["NaN", "Infinity", "-Infinity", "-0", "-0.0", "01", "1.", ".5", "+1", "1e", "--1", "0x1", "1_0", "-", "1e+"]
WORDS += ["true", "false", "null", "nul", "tru", "fals", "None", "", "nulll", "[", "]", "{}", "[[]]", "[{}]", "{,}"]
TEXTS = [
    r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00\ud83d"', r'"\ud83dx\ude00"', r'"\u12"', r'"\x"', '"', '"\\', '""',
    '"1.50"', '"1.5 "', '"' + "long " * 30 + '"', '"' + "é" * 31 + '"', '"0001"', '"-"', '"\x00"', '"\x1f"', '"\x7f"',
    r'"\/\b\f\n\r\t\"\\"', '"\ud800"', '"\u2028"', r'"\u0000"', r'"\uD83D\u0041"', r'"\uabcD\uFfFf"',
]  # fmt: skip
LETTERS = 'abcdefgh 0123,:{}[]"\\/éΩ\u20ac\U0001f600\n'


def number(rng: random.Random) -> str:
    kind = rng.randrange(5)
    if kind == 0:
        return str(rng.choice(EDGES))
    if kind == 1:
        return str(rng.randrange(-(10 ** rng.randrange(1, 25)), 10 ** rng.randrange(1, 25)))
    if kind == 2:
        return repr(rng.choice([rng.random(), rng.gauss(0, 1e9), rng.random() * 10 ** rng.randrange(-300, 300)]))
    text = ("", "-")[rng.randrange(2)] + str(rng.randrange(10 ** rng.randrange(1, 40)))
    text += f".{'0' * rng.randrange(4)}{rng.randrange(10 ** rng.randrange(1, 40))}" if rng.random() < 0.5 else ""
    return text + (f"{rng.choice('eE')}{rng.choice(['', '+', '-'])}{rng.randrange(400)}" if rng.random() < 0.3 else "")


def value(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(12 if depth else 8)
    if kind < 3:
        return number(rng)
    if kind < 5:
        text = "".join(rng.choice(LETTERS) for _ in range(rng.choice([0, 3, 15, 16, 17, 40])))
        return json.dumps(text, ensure_ascii=rng.random() < 0.5)
    if kind == 5:
        return rng.choice(TEXTS)
    if kind < 8:
        return rng.choice(WORDS) if rng.random() < 0.2 else rng.choice(["true", "false", "null"])
    if kind < 10:
        comma = rng.choice([",", ", ", " ,\n"])
        return "[" + comma.join(value(rng, depth - 1) for _ in range(rng.randrange(5))) + rng.choice(["]", " ]"])
    return objects(rng, depth - 1)


def objects(rng: random.Random, depth: int) -> str:
    pairs = []
    for _ in range(rng.randrange(7)):
        name = rng.choice(NAMES)
        key = rng.choice([json.dumps(name), spelled(name), json.dumps(name, ensure_ascii=False)])
        pairs.append(f"{key}{rng.choice([':', ': ', ' :'])}{value(rng, depth)}")
    return rng.choice(["{", "{ "]) + rng.choice([",", ", ", "\r\t,"]).join(pairs) + rng.choice(["}", " }"])


def fitting(rng: random.Random, kind: str, below: Sequence[Field]) -> str:
    """Mostly of the kind, so that a row is good now and then."""
    if rng.random() < 0.04:
        return value(rng, 1)
    if rng.random() < 0.1:
        return "null"
    if kind == "+s":
        return document(rng, below)
    if kind == "+l":
        return "[" + ",".join(fitting(rng, below[0][1], below[0][2]) for _ in range(rng.randrange(5))) + "]"
    if kind == "u":
        return json.dumps("".join(rng.choice(LETTERS) for _ in range(rng.randrange(40))), ensure_ascii=False)
    if kind == "b":
        return rng.choice(["true", "false"])
    if kind == "json":
        return value(rng, 2)
    return str(rng.randrange(-(2**31), 2**31)) if kind in "il" else rng.choice(["1.5", "-2", "1e3", "0.0625"])


def document(rng: random.Random, schema: Sequence[Field]) -> str:
    pairs = [f"{json.dumps(name)}:{fitting(rng, kind, below)}" for name, kind, below in schema if rng.random() < 0.9]
    if rng.random() < 0.3:
        rng.shuffle(pairs)
    if rng.random() < 0.3:
        pairs.insert(rng.randint(0, len(pairs)), f"{json.dumps(rng.choice(NAMES))}:{value(rng, 2)}")
    return "{" + ",".join(pairs) + "}"


def spelled(name: str) -> str:
    """All of a name as escapes."""
    return '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"'


def column_of(rng: random.Random, schema: Sequence[Field]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for _ in range(rng.randrange(12)):
        if rng.random() < 0.1:
            found.append(None)
            continue
        text = document(rng, schema) if rng.random() < 0.7 else objects(rng, 2) if rng.random() < 0.8 else value(rng, 1)
        data = text.encode("utf-8", "surrogatepass")
        if data and rng.random() < 0.15:
            kind, at, odd = rng.randrange(4), rng.randrange(len(data)), bytes([rng.randrange(256)])
            data = [data[:at], data[:at] + odd + data[at:], data[:at] + odd + data[at + 1 :], data + odd][kind]
        found += [data] * rng.randint(1, 2)  # the second one asks for a shape that was learned
    return found


def taken(column: Sequence[bytes | None], schema: Sequence[Field], *, null_errors: bool) -> Any:
    array = pa.array(column, pa.binary())
    validity, offsets, data = array.buffers()
    return JsonSchema(schema).columns(
        b"" if data is None else data, offsets or bytes(4), validity, null_errors=null_errors
    )


SEEDS = st.integers(0, 2**64)


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_errors_are_nulls(seed: int) -> None:
    rng = random.Random(seed)
    schema = fields(rng)
    column = column_of(rng, schema)
    found, verdict, *_ = taken(column, schema, null_errors=True)
    assert verdict == json_columns.OK
    batch = pa.record_batch(found)
    batch.validate(full=True)
    expected = [row(value, schema, null_errors=True) for value in column]
    assert len(batch) == len(expected)
    if schema:
        for value, got, wanted in zip(column, batch.to_pylist(), expected, strict=True):
            assert same(got, wanted), (value, got, wanted)


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_errors_are_told(seed: int) -> None:
    rng = random.Random(seed)
    schema = fields(rng)
    column = column_of(rng, schema)
    found, verdict, at_row, position, size, node = taken(column, schema, null_errors=False)
    for number, value in enumerate(column):
        try:
            row(value, schema, null_errors=False)
        except BrokenValue:
            assert value is not None
            assert (at_row, node) == (number, 0), value
            assert json_columns.NO_OBJECT <= verdict <= json_columns.BYTES_LEFT
            assert 0 <= position <= len(value)
            return
        except WrongType:
            assert value is not None
            assert at_row == number, value
            assert verdict >= json_columns.WRONG_TYPE
            assert node > 0
            assert 0 < position < position + size < len(value)
            return
    assert verdict == json_columns.OK
    assert len(pa.record_batch(found)) == len(column)


def random_numbers(rng: random.Random) -> list[str]:
    found = []
    for _ in range(400):
        bits: float = struct.unpack("d", rng.randbytes(8))[0]
        if bits == bits and abs(bits) != float("inf"):
            found += [repr(bits), f"{bits:.{rng.randrange(40)}e}"]
        digits = str(rng.randrange(10 ** rng.randrange(1, 60)))
        found += [f"{digits}e{rng.randrange(-400, 400)}", f"0.{'0' * rng.randrange(30)}{digits}", repr(rng.random())]
        # Between two doubles, and a little off the middle.
        near = rng.randrange(2**52, 2**53)
        middle = (2 * near + 1) << rng.randrange(60)
        found += [str(middle), str(middle - 1), f"{middle}e-{rng.randrange(9)}"]
        found.append(f"{middle}.{'0' * rng.randrange(800)}1")
    return found


@pytest.mark.parametrize("seed", range(5))
def test_doubles_are_pythons(seed: int) -> None:
    texts = [
        *random_numbers(random.Random(seed)), "5e-324", "2.4703282292062327e-324", "2.4703282292062328e-324",
        "1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308", "2.2250738585072011e-308",
        "9007199254740993", "0e999999999999999999999", "1e99999999999999999999", "1e-99999999999999999999", "0.0e5",
        "0." + "0" * 400 + "1e401", "1" + "0" * 400 + "e-400",
    ]  # fmt: skip
    found, verdict, *_ = taken([b'{"x": %s}' % text.encode() for text in texts], (("x", "g", ()),), null_errors=False)
    assert verdict == json_columns.OK
    got = pa.record_batch(found).column(0).to_numpy()
    expected = np.array([float(text) for text in texts])
    wrong = np.flatnonzero(got.view(np.int64) != expected.view(np.int64))
    assert [(texts[i], got[i], expected[i]) for i in wrong[:3]] == []
