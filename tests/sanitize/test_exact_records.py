"""Record decoding and encoding on blocks of exactly their size: truncated anywhere, damaged anywhere.

As test_exact_buffers: few asserts, for under AddressSanitizer each read is one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from kafkalog._native.codec import batches, records
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.codec.reading import Record, RecordWalk
from kafkalog.engine.format.batch import NO_PRODUCER, write_header
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


class Chunk:
    def __init__(self, data: memoryview) -> None:
        self.data = data


class Reader:
    """The attributes of a reader that a RecordWalk uses, for one batch: uncompressed, and as if `body` had been."""

    topic_partition, first_offset, end_offset = ("t", 0), -(1 << 63), None

    def __init__(self, body: memoryview) -> None:
        self.body = body

    def body_of(self, chunk: Chunk, header: object) -> memoryview:
        return self.body

    def plain_records(self, chunk: Chunk, header: object) -> Iterator[Record]:
        return iter(())


def walk(payload: bytes | bytearray, count: int, codec: int) -> None:
    """Each record that is handed out makes all of its fields, now or when its batch has gone."""
    head = write_header(
        payload,
        base_offset=5,
        last_offset_delta=count,
        attributes=codec,
        base_timestamp=7,
        max_timestamp=9,
        producer=NO_PRODUCER,
        partition_leader_epoch=0,
        count=count,
    )
    data = exact(head + bytes(payload))
    found = batches.headers(bytes(data))[0]
    reader = Reader(exact(payload))
    kept = []
    for record in RecordWalk(((reader, Chunk(data), header) for header in found), part_records=9, max_body=200):
        if record.offset % 2:
            hash(record)
        kept.append(record)
    assert len({hash(record) for record in kept}) <= len(kept)


def decode(payload: bytes | bytearray, count: int) -> None:
    data = exact(payload)
    walk(payload, count, 0)
    walk(payload, count, 1)
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


def test_rows_of_all_kinds() -> None:
    rng = random.Random(3)
    parts: list[Any] = [None, b"", b"v", b"w" * 300, bytearray(b"no"), "no", 5]
    headers: list[Any] = [None, (), [], [("h", b"x")], (("a", None), ("", b"y" * 50)), [("\u00fc", b"")], [("h",)], 7]
    times: list[Any] = [None, -1, 0, 1 << 62, -2, 1 << 63, True]
    usual = 0
    for number in range(2000):
        count = rng.randrange(1, 30)
        few = number % 2  # 1 for few unusual ones
        rows: list[Any] = []
        for _ in range(count):
            row = tuple(
                rng.choice(kind[: len(kind) - (1 - few) * cut])
                for kind, cut in ((parts, 3), (parts, 3), (headers, 3), (times, 3))
            )
            rows.append(rng.choice([row, row[:2], row[:1], row[0]]))
        encoder = ColumnEncoder.from_rows(rows, 1)
        if encoder is None:
            continue
        usual += 1
        row_number = 0
        while row_number < encoder.rows:
            batch, row_number, verdict = encoder.encode_batch(row_number, -1, rng.choice([70, 500, 100_000]))
            assert verdict == records.OK
            assert len(batch) > 61
    assert usual > 500
