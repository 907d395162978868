"""Records, columns, codecs and the builder over generated inputs: round trips, the reference, and garbage."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog._native.codec import batches as native_batches
from kafkalog._native.codec import records
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog.engine.format import arrow, codecs
from kafkalog.engine.format.batch import MemoryRecords, ensure_valid
from kafkalog.engine.format.records import records as records_of
from kafkalog.errors import CorruptRecordException, InvalidRecordException
from tests.reference import legacy
from tests.reference import records as plain
from tests.reference.legacy import builder_of

BAD_BYTES = (CorruptRecordException, InvalidRecordException)

part = st.none() | st.binary(max_size=40) | st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 300, b"z" * 9000])
name = st.text(st.characters(codec="utf-8"), max_size=8)
row = st.tuples(
    st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 200),
    st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 70),
    part,
    part,
    st.lists(st.tuples(name.map(str.encode), part), max_size=3).map(tuple),
)


@given(st.lists(row, max_size=8))
@settings(deadline=None)
def test_payloads_are_those_of_the_plain_twin(rows: list[Any]) -> None:
    payload = records.write_records(rows)
    assert payload == plain.write(rows)
    assert sum(records.record_size(*one) for one in rows) == len(payload)
    assert plain.read(payload, len(rows)) == rows


def decoded(payload: bytes, count: int, streaming: bool) -> Any:
    """The result of the record reader and of the column decoder, which must be the same."""
    found, verdict, *_ = records.read_records(payload, count, 0, 0, None, -1, streaming, 1 << 31)
    builder = ColumnBuilder()
    builder.append_records([records.Record(-5, 3, "CreateTime", None, b"before", [("h", None)])])
    column_verdict, *_ = builder.append_payload(payload, count, 0, 0, streaming=streaming)
    assert column_verdict == verdict
    assert builder.rows == 1 + (len(found) if verdict == records.OK else 0)
    builder.append_records([records.Record(-4, 3, "CreateTime", b"after", None, [("i", b"")])])
    got = builder.finish()
    assert got.keys is not None
    assert got.values is not None
    if verdict != records.OK:
        assert got.keys.to_list() == [None, b"after"]
        assert got.values.to_list() == [b"before", None]
        assert got.header_lists() == [[("h", None)], [("i", b"")]]
        return None
    assert got.offsets.tolist()[1:-1] == [one.offset for one in found]
    assert got.timestamps.tolist()[1:-1] == [one.timestamp for one in found]
    assert got.keys.to_list()[1:-1] == [one.key for one in found]
    assert got.values.to_list()[1:-1] == [one.value for one in found]
    assert got.header_lists()[1:-1] == [list(one.headers) for one in found]
    return [(one.timestamp, one.offset, one.key, one.value, one.headers) for one in found]


def expected(payload: bytes, count: int) -> Any:
    try:
        rows = plain.read(payload, count)
    except plain.Bad:
        return None
    return [(*one[:4], tuple((key.decode("utf-8", "replace"), value) for key, value in one[4])) for one in rows]


@pytest.mark.slow
@given(st.lists(row, min_size=1, max_size=5), st.randoms(use_true_random=False), st.booleans())
@settings(deadline=None, max_examples=400)
def test_damaged_payloads_decode_as_in_the_plain_twin(rows: list[Any], rng: random.Random, streaming: bool) -> None:
    payload = bytearray(plain.write(rows))
    count = len(rows)
    for _ in range(rng.randrange(3)):
        kind = rng.randrange(5)
        if kind < 3 and payload:
            payload[rng.randrange(len(payload))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == 3:
            del payload[rng.randrange(len(payload) + 1) :]
        else:
            payload += rng.randbytes(rng.randrange(4))
    count = rng.choice([count, count, count, 0, -1, count + 1, 1 << 30])
    assert decoded(bytes(payload), count, streaming) == expected(bytes(payload), count)


@given(st.binary(max_size=200), st.integers(-1, 30), st.booleans())
@settings(deadline=None)
def test_garbage_payloads_decode_as_in_the_plain_twin(payload: bytes, count: int, streaming: bool) -> None:
    assert decoded(payload, count, streaming) == expected(payload, count)


@given(st.integers(0, 4), st.binary(max_size=3000) | st.binary(max_size=50).map(lambda b: b * 3000), st.integers(0, 2))
@settings(deadline=None)
def test_codecs_round_trip(codec: int, data: bytes, magic: int) -> None:
    assert codecs.decompress(codec, legacy.compress(codec, data, magic=magic), magic=magic) == data


@given(st.integers(1, 4), st.binary(max_size=300), st.randoms(use_true_random=False), st.integers(0, 2))
@settings(deadline=None, max_examples=300)
def test_damaged_codecs_raise_bad_bytes_only(codec: int, data: bytes, rng: random.Random, magic: int) -> None:
    packed = bytearray(legacy.compress(codec, data * 20, magic=magic)) if rng.random() < 0.8 else bytearray(data)
    for _ in range(rng.randrange(4)):
        if packed:
            packed[rng.randrange(len(packed))] = rng.randrange(256)
    del packed[rng.randrange(len(packed) + 1) :]
    limit = rng.choice([0, 10, 100_000])
    try:
        assert len(codecs.decompress(codec, packed, magic=magic, max_bytes=limit)) <= limit
    except CorruptRecordException:
        pass


record = st.tuples(st.integers(-1, 1 << 40), part, part, st.lists(st.tuples(name, part), max_size=2))


def build(rows: list[Any], magic: int, codec: int, log_append: bool, base_offset: int) -> bytes:
    builder = builder_of(
        magic,
        codec=codec,
        timestamp_type="LogAppendTime" if log_append else "CreateTime",
        base_offset=base_offset,
        log_append_time=77 if log_append else -1,
    )
    for timestamp, key, value, headers in rows:
        builder.append(timestamp, key, value, headers if magic == 2 else ())
    return builder.build()


@given(
    st.lists(record, min_size=1, max_size=6),
    st.integers(0, 2),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([0, 1 << 40]),
)
@settings(deadline=None, max_examples=300)
def test_batches_round_trip(rows: list[Any], magic: int, codec: int, log_append: bool, base_offset: int) -> None:
    if magic < 2 and codec == codecs.ZSTD:
        return
    data = build(rows, magic, codec, log_append, base_offset)
    headers = MemoryRecords(data).batches()
    got = []
    for header in headers:
        ensure_valid(data, header)
        got += records_of(data, header)
    assert [one.offset for one in got] == list(range(base_offset, base_offset + len(rows)))
    assert [(one.key, one.value) for one in got] == [(key, value) for _, key, value, _ in rows]
    if magic == 2:
        assert [list(one.headers) for one in got] == [headers for *_, headers in rows]
    wanted = [-1 if magic == 0 else 77 if log_append else timestamp for timestamp, *_ in rows]
    assert [one.timestamp for one in got] == wanted

    (column,) = arrow.read_columns(data, timestamp_types=True)
    assert column.offsets.tolist() == [one.offset for one in got]
    assert column.timestamps.tolist() == wanted
    assert column.keys is not None
    assert column.values is not None
    assert column.keys.to_list() == [one.key for one in got]
    assert column.values.to_list() == [one.value for one in got]
    assert column.header_lists() == [list(one.headers) for one in got]


rows_of_batch = st.lists(record, min_size=1, max_size=4)


@given(rows_of_batch, st.integers(0, 2), st.integers(0, 4), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=500)
def test_damaged_batches_raise_bad_bytes_only(rows: list[Any], magic: int, codec: int, rng: random.Random) -> None:
    if magic < 2 and codec == codecs.ZSTD:
        return
    data = bytearray(build(rows, magic, codec, rng.random() < 0.5, 0))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    del data[rng.randrange(len(data) // 2, len(data) + 1) :]
    try:
        for header in MemoryRecords(data).batches():
            records_of(data, header, max_bytes=1 << 22)
    except BAD_BYTES:
        pass
    table, *_ = native_batches.scan(data, check_crc=False)
    builder = ColumnBuilder()
    try:
        arrow.add_batches(builder, data, table, max_bytes=1 << 22)
    except BAD_BYTES:
        pass
    builder.finish()


@given(st.lists(record, max_size=12), st.integers(70, 400), st.booleans())
@settings(deadline=None, max_examples=200)
def test_encoded_columns_are_the_builders_bytes(rows: list[Any], batch_bytes: int, wide: bool) -> None:
    kind = np.int64 if wide else np.int32
    header_rows = [one for *_, headers in rows for one in headers]
    encoder = ColumnEncoder(
        np.array([one[0] for one in rows], np.int64),
        as_column([one[1] for one in rows], kind),
        as_column([one[2] for one in rows], kind),
        (
            np.cumsum([0] + [len(one[3]) for one in rows], dtype=kind),
            as_column([key.encode() for key, _ in header_rows], kind),
            as_column([value for _, value in header_rows], kind),
        ),
    )
    at = 0
    for batch in [made.data for made in arrow.write_batches(encoder, batch_bytes_max=batch_bytes)]:
        (header,) = MemoryRecords(batch).batches()
        here = rows[at : at + header.count]
        assert header.base_offset == at
        assert batch == build(here, 2, 0, False, at)
        assert header.count == 1 or header.size <= batch_bytes
        at += header.count
    assert at == len(rows)


def as_column(parts: list[bytes | None], kind: Any) -> tuple[Any, ...]:
    ends = np.cumsum([0] + [len(one or b"") for one in parts], dtype=kind)
    bits = np.packbits(np.array([one is not None for one in parts], np.bool_), bitorder="little")
    return ends, b"".join(one or b"" for one in parts), bits


def test_arrow_takes_and_gives_columns() -> None:
    pa = pytest.importorskip("pyarrow")
    rng = random.Random(5)
    rows = [
        (
            rng.randrange(1000),
            rng.choice([None, rng.randbytes(5)]),
            rng.choice([None, rng.randbytes(70)]),
            [(f"h{i}", rng.choice([None, b"v"])) for i in range(rng.randrange(3))],
        )
        for _ in range(200)
    ]
    data = build(rows, 2, codecs.ZSTD, False, 0) + build(rows, 2, codecs.NONE, False, 200)
    (column,) = arrow.read_columns(data)
    batch = pa.record_batch(column)
    batch.validate(full=True)
    del column
    assert batch.column("key").to_pylist() == [one[1] for one in rows] * 2
    assert batch.column("value").to_pylist() == [one[2] for one in rows] * 2
    assert batch.column("headers").to_pylist() == [[{"key": k, "value": v} for k, v in one[3]] for one in rows] * 2
    ours = batch.select(["timestamp", "key", "value", "headers"])
    assert b"".join(arrow.write_batches(ours.slice(37, 100))) == build(rows[37:137], 2, 0, False, 0)
    large = ours.set_column(1, "key", ours.column("key").cast(pa.large_binary()))
    assert b"".join(arrow.write_batches(large.slice(3, 9))) == build(rows[3:12], 2, 0, False, 0)
