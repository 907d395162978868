"""Record decoding and encoding on blocks of exactly their size: cut anywhere, damaged anywhere.

As test_exact_buffers: few asserts, for under AddressSanitizer each read is one.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from kafkalog._native import batches, records
from kafkalog._native.decode import ColumnBuilder
from kafkalog._native.encode import ColumnEncoder
from tests.reference import records as plain
from tests.sanitize.exact import exact

ROWS: list[plain.Row] = [
    (0, 0, b"key", b"v" * 100, ()),
    (3, 1, None, b"", ((b"h", None), (b"\xff\xf0\x80", b"x" * 40))),
    (1 << 40, 70, b"k" * 70, None, ()),
    (5, 80, b"", b"w" * 17, ((b"", b""),)),
]
PAYLOAD = plain.write(ROWS)
WHOLE = exact(PAYLOAD)


def decode(payload: bytes | bytearray, count: int) -> None:
    data = exact(payload)
    for streaming in (False, True):
        records.read_records(data, count, 1, 2, None, 3, streaming, 200)
        builder = ColumnBuilder(keys=not streaming)
        builder.append_payload(data, count, 1, 2, streaming=streaming)
        builder.append_payload(WHOLE, len(ROWS), 1, 2)
        assert len(builder.finish()) >= len(ROWS)


def test_payloads_cut_at_every_byte() -> None:
    for end in range(len(PAYLOAD) + 1):
        decode(PAYLOAD[:end], len(ROWS))


def test_payloads_with_any_bit_flipped() -> None:
    for bit in range(8 * len(PAYLOAD)):
        damaged = bytearray(PAYLOAD)
        damaged[bit // 8] ^= 1 << bit % 8
        decode(damaged, len(ROWS))


def test_short_records_up_to_the_end() -> None:
    for size in range(40):
        for count in range(1, 6):
            rows: list[plain.Row] = [(i, i, b"k" * (size // 2), b"v" * size, ()) for i in range(count)]
            decode(plain.write(rows), count)


def test_garbage() -> None:
    rng = random.Random(8)
    for _ in range(1000):
        decode(rng.randbytes(rng.randrange(60)), rng.randrange(6))


def test_tables_that_lie() -> None:
    head = bytearray(61)
    head[16] = 2
    head[57:61] = len(ROWS).to_bytes(4, "big")
    data = bytes(head) + PAYLOAD
    table = np.zeros(1, batches.BATCH_DTYPE)
    table["size"], table["magic"], table["record_count"] = len(data), 2, len(ROWS)
    rng = random.Random(9)
    for _ in range(300):
        wrong = table.copy()
        field = rng.choice(["position", "size", "record_count", "attributes"])
        wrong[field] = rng.choice([-1, 0, 1, 60, 61, 62, len(data) - 1, len(data) + 1, 0x7FFF])
        ColumnBuilder().append_table(exact(data), wrong)


def column(parts: list[bytes | None]) -> tuple[Any, ...]:
    ends = np.cumsum([0] + [len(one or b"") for one in parts], dtype=np.int32)
    bits = np.packbits(np.array([one is not None for one in parts], np.bool_), bitorder="little")
    return exact(ends.tobytes()), exact(b"".join(one or b"" for one in parts)), exact(bits.tobytes())


def test_columns_of_exact_size() -> None:
    for size in range(70):
        keys: list[bytes | None] = [b"k" * size, None, b"", b"x" * (size // 3)]
        ends, data, bits = column(keys)
        stamps = np.frombuffer(exact(np.arange(4, dtype=np.int64).tobytes()), np.int64)
        numbers = np.frombuffer(ends, np.int32)
        encoder = ColumnEncoder(stamps, (numbers, data, bits), (numbers, data))
        payload, next_row, *_, verdict = encoder.encode()
        assert (next_row, verdict) == (4, records.OK)
        assert [row[2] for row in plain.read(payload, 4)] == keys
