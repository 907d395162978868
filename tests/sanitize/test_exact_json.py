"""JSON columns and the wire format on blocks of exactly their size: truncated anywhere, damaged anywhere.

The asserts are few on purpose (tests/unit and tests/property have them); under AddressSanitizer each read is one.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from kafkalog._native.codec import wire_format
from kafkalog._native.codec.json_columns import JsonSchema
from tests.fuzz.native_seeds import JSON_LINES, blind
from tests.fuzz.native_target import JSON_SCHEMAS
from tests.sanitize.exact import exact

SCHEMAS = [JsonSchema(()), *map(JsonSchema, JSON_SCHEMAS)]
ROWS = [line for text in JSON_LINES for line in text.split(b"\n")]


def decoded(rows: list[bytes]) -> None:
    offsets = exact(np.cumsum([0, *map(len, rows)], dtype=np.int32).tobytes())
    data, bits = exact(b"".join(rows)), exact(b"\xff" * ((len(rows) + 7) >> 3))
    for schema in SCHEMAS:
        for null_errors in (False, True):
            schema.columns(data, offsets, bits, null_errors=null_errors)
    for message_indexes in (False, True):
        ids, starts, ends, _ = wire_format.split(data, offsets, bits, message_indexes=message_indexes)
        wire_format.gather(data, starts, ends, np.flatnonzero(ids >= 0))


def test_values_cut_at_every_byte() -> None:
    for row in ROWS:
        for end in range(len(row) + 1):
            decoded([row, row[:end]])


def test_texts_and_numbers_of_every_length() -> None:
    for length in range(130):
        parts = (b"x" * length, b"9" * (length + 1), b"k" * length, b"\\u00e9" * 3)
        text = b'{"b": "%s", "c": %s, "%s": 1, "a": "%s' % parts
        decoded([text + b'"}', text + b'"}', text])


@pytest.mark.parametrize("seed", range(10))
def test_damaged_values(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        rows = [bytearray(rng.choice(ROWS)) for _ in range(rng.randint(1, 4))]
        decoded([bytes(blind(rng, row)) if rng.random() < 0.7 else bytes(row) for row in rows])
