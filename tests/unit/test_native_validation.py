"""The native walk over a batch's records: structure, offsets, times and keys, and never a byte past the end."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kafkalog._native.codec import records
from kafkalog._native.codec import validation as native
from kafkalog._native.codec.batches import compute_crc, crc_matches, restamped_header
from kafkalog._native.codec.encode import ColumnEncoder, EncodedBatch
from kafkalog.engine.format import codecs
from kafkalog.engine.format.arrow import write_batches
from kafkalog.engine.format.batch import HEADER
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.log.types import LogAppendInfo
from kafkalog.engine.log.validator import NO_STATS
from tests.reference import records as plain_records

NOW = 1_000_000
LONG_MAX = 2**63 - 1


def varint(value: int) -> bytes:
    raw = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def record(body: bytes, size: int | None = None) -> bytes:
    return varint(len(body) if size is None else size) + body


def plain(payload: bytes, count: int, *, attributes: int = 0, max_timestamp: int = NOW) -> bytes:
    fields = (0, 49 + len(payload), -1, 2, 0, attributes, count - 1, NOW, max_timestamp, -1, -1, -1, count)
    return HEADER.pack(*fields) + payload


def built(count: int) -> bytes:
    builder = MemoryRecordsBuilder()
    for index in range(count):
        builder.append(NOW + index, b"k", b"v" * index, [("h", None)])
    return builder.build()


def walk(
    batch: bytes,
    reader: int = records.BUFFER,
    payload: bytes | None = None,
    *,
    need_key: bool = False,
    create_time: bool = True,
    before: int = LONG_MAX,
    after: int = LONG_MAX,
    max_record_bytes: int = 2147483639,
) -> native.RecordWalk:
    """Both ways: checked in full, and with the usual records by the short way, which gives the same result."""
    rules = (batch, 0, payload, reader, need_key, create_time, NOW, before, after, max_record_bytes)
    full, short = native.walk_records(*rules), native.walk_records(*rules, canonical=False)
    assert findings(short) == findings(full)
    assert not short.canonical
    return full


def findings(found: native.RecordWalk) -> tuple[object, ...]:
    return (
        found.verdict, found.row, found.expected, found.found, found.record_count, found.missing_keys,
        found.max_timestamp, found.first_timestamp, found.record_bytes, found.sequential, found.refusals,
    )  # fmt: skip


BODY = b"\0" + varint(0) + varint(0) + varint(1) + b"k" + varint(1) + b"v" + varint(0)


@pytest.mark.parametrize("reader", [records.BUFFER, records.STREAM, records.SKIP])
def test_a_whole_batch(reader: int) -> None:
    batch = built(3)
    found = walk(batch, reader, None if reader == records.BUFFER else batch[61:])
    assert found.verdict == records.OK
    assert (found.record_count, found.max_timestamp, found.first_timestamp) == (3, NOW + 2, NOW)
    assert found.sequential
    assert found.canonical
    assert found.record_bytes == len(batch) - 61
    assert found.refusals is None


@pytest.mark.parametrize(
    ("payload", "reader", "verdict", "numbers"),
    [
        (b"", records.BUFFER, records.PREMATURE_END, (0, 0)),
        (b"\xff\xff\xff\xff\xff", records.BUFFER, records.LONG_VARINT, (0, 0xFFFFFFFF)),
        (b"\xff\xff\xff\xff\xff", records.STREAM, records.PREMATURE_END, (0, 0)),
        (record(BODY, 99), records.BUFFER, records.SHORT_BUFFER, (99, len(BODY))),
        (record(BODY, 99), records.STREAM, records.SHORT_STREAM, (99, 0)),
        (record(BODY, 99), records.SKIP, records.OK, (0, 0)),  # this reader does not compare the length
        (record(BODY, -3), records.BUFFER, records.SIZE_MISMATCH, (-3, len(BODY))),
        (record(BODY, -3), records.STREAM, records.NEGATIVE_SIZE, (0, -3)),
        (record(BODY, -3), records.SKIP, records.NEGATIVE_SIZE, (0, -3)),
        (record(BODY, 7), records.BUFFER, records.SIZE_MISMATCH, (7, 8)),
        (record(BODY[:-1]), records.BUFFER, records.BAD_STRUCTURE, (0, 0)),
        (record(BODY[:-1] + varint(-1)), records.BUFFER, records.NEGATIVE_HEADER_COUNT, (0, -1)),
        (record(BODY[:-1] + varint(5)), records.BUFFER, records.EXCESS_HEADER_COUNT, (0, 5)),
        (record(BODY[:-1] + varint(5)), records.SKIP, records.BAD_STRUCTURE, (0, 0)),
        (record(BODY[:-1] + varint(1) + varint(-2)), records.SKIP, records.NEGATIVE_HEADER_KEY, (0, -2)),
        (record(b"\0\0\0" + varint(40) + b"k"), records.SKIP, records.SHORT_SKIP, (0, 39)),
        (record(b"\0\0\0" + varint(40) + b"k"), records.STREAM, records.BAD_STRUCTURE, (0, 0)),
        (record(BODY) + b"\0", records.BUFFER, records.BYTES_LEFT, (0, 1)),
    ],
)
def test_structure(payload: bytes, reader: int, verdict: int, numbers: tuple[int, int]) -> None:
    found = walk(plain(payload, 1), reader, None if reader == records.BUFFER else payload)
    assert (found.verdict, (found.expected, found.found)) == (verdict, numbers)


def test_the_size_limit_binds_streams_only() -> None:
    payload = record(BODY)
    assert walk(plain(payload, 1), records.STREAM, payload, max_record_bytes=5).verdict == records.SIZE_OVER_LIMIT
    assert walk(plain(payload, 1), records.BUFFER, max_record_bytes=5).verdict == records.OK


def test_counts() -> None:
    assert walk(plain(b"anything", 0)).verdict == records.OK  # an empty batch's bytes are not checked
    assert walk(plain(b"", -2)).found == -2


def test_refusals_in_order() -> None:
    bodies = [
        b"\0" + varint(delta) + varint(index) + key + varint(-1) + varint(0)
        for index, (delta, key) in enumerate([(0, varint(-1)), (50, b"\2k"), (-50, b"\2k"), (0, b"\2k")])
    ]
    batch = plain(b"".join(map(record, bodies)), 4)
    found = walk(batch, need_key=True, before=49, after=49)
    assert found.refusals == [
        (0, native.NO_KEY, NOW, 0, -1, -1),
        (1, native.TIMESTAMP_OUT_OF_RANGE, NOW + 50, 1, 1, -1),
        (2, native.TIMESTAMP_OUT_OF_RANGE, NOW - 50, 2, 1, -1),
    ]
    assert found.missing_keys == 1
    assert walk(batch, before=50, after=50).refusals is None


def test_the_first_refusals_are_kept() -> None:
    without_key = record(b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(0))
    found = walk(plain(without_key * 20_000, 20_000), need_key=True)
    assert found.refusals is not None
    assert [each[0] for each in found.refusals] == list(range(10_000))
    assert found.missing_keys == 20_000


def test_claimed_append_time() -> None:
    batch = plain(record(BODY), 1, attributes=8, max_timestamp=7)
    assert walk(batch).max_timestamp == 7
    refusals = walk(batch, create_time=False).refusals
    assert refusals is not None
    assert refusals[0][1] == native.CLAIMS_APPEND_TIME


@pytest.mark.parametrize(
    "body",
    [
        b"\1" + BODY[1:],  # attributes of a record are unused, and would be lost
        b"\0" + varint(1) + BODY[2:],  # the first record's time is the base
        b"\0" + b"\x80\0" + BODY[2:],  # a longer varint than needed
        BODY[:3] + varint(-2) + BODY[5:],  # a null written in another way
        BODY[:-1] + varint(1) + varint(2) + "é".encode() + varint(-1),  # decoded and encoded by a builder
    ],
)
def test_not_canonical(body: bytes) -> None:
    found = walk(plain(record(body), 1))
    assert found.verdict == records.OK
    assert not found.canonical


def test_offsets_that_do_not_count_up() -> None:
    other = b"\0" + varint(0) + varint(5) + BODY[3:]
    found = walk(plain(record(BODY) + record(other), 2))
    assert not found.sequential
    assert not found.canonical


@settings(deadline=None)
@given(st.data())
def test_damage_gives_a_verdict(data: st.DataObject) -> None:
    batch = bytearray(built(3))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(batch[61 : data.draw(st.integers(61, len(batch)))])
    for reader in (records.BUFFER, records.STREAM, records.SKIP):
        assert 0 <= walk(bytes(batch), reader, cut).verdict <= records.BYTES_LEFT


part = st.none() | st.binary(max_size=40) | st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 8191, b"z" * 9000])
row = st.tuples(
    st.integers(-(1 << 63), LONG_MAX) | st.integers(-3, 200) | st.integers(8000, 9000),
    st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 70),
    part,
    part,
    st.lists(st.tuples(st.binary(max_size=3), part), max_size=2).map(tuple)
    | st.sampled_from([((b"h", b""),) * 63, ((b"", None),) * 64, ((b"h", b"v"),) * 200]),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(row, min_size=1, max_size=5), st.data())
def test_both_ways_find_the_same_records(rows: list[plain_records.Row], data: st.DataObject) -> None:
    """Each record is refused for its time or its key, so that the sizes of its parts are reported too."""
    payload = bytearray(plain_records.write(rows))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(payload) - 1) | st.integers(0, min(len(payload) - 1, 30)))
        payload[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF]) | st.integers(0, 255))
    payload = payload[: data.draw(st.just(len(payload)) | st.integers(0, len(payload)))]
    payload += data.draw(st.just(b"") | st.binary(max_size=30))
    count = len(rows) + data.draw(st.sampled_from([0, 0, 0, -1, 1]))
    limit = data.draw(st.sampled_from([2147483639, 60]))
    batch = plain(bytes(payload), count)
    for reader in (records.BUFFER, records.STREAM, records.SKIP):
        lent = None if reader == records.BUFFER else bytes(payload)
        for need_key in (False, True):
            walk(batch, reader, lent, need_key=need_key, before=-(1 << 63), max_record_bytes=limit)


@pytest.mark.parametrize("position", [-1, 1, 2**40])
def test_a_batch_outside_the_buffer(position: int) -> None:
    found = native.walk_records(built(1), position, None, records.BUFFER, False, True, 0, 0, 0)
    assert found.verdict == records.BAD_BOUNDS


def rules_of(**given: Any) -> native.OrdinaryRules:
    limits = {"size_max": 1 << 20, "need_key": False, "before_max_ms": LONG_MAX, "after_max_ms": LONG_MAX}
    return native.OrdinaryRules(**(limits | given))


@pytest.mark.parametrize("create_time", [True, False])
@pytest.mark.parametrize("count", [3, 500])
def test_a_batch_is_admitted_and_placed_as_the_setters_do(create_time: bool, count: int) -> None:
    """Copied whole, and with its records where they are."""
    batch = built(count)
    found = rules_of(create_time=create_time).admit(batch, NOW + 5)
    assert found is not None
    for now in (NOW + 7, NOW + 9):
        found.date(now)
    assert found.max_timestamp == (NOW + count - 1 if create_time else NOW + 9)
    told = found.told(LogAppendInfo, 0, NO_STATS)
    assert told.log_append_time == (-1 if create_time else NOW + 9)
    placed = b"".join(bytes(part) for part in found.place(100, 9))
    assert placed[:61] == restamped_header(
        batch, 0, last_offset=99 + count, leader_epoch=9, timestamp_type=0 if create_time else 1,
        max_timestamp=found.max_timestamp,
    )  # fmt: skip
    assert placed[61:] == batch[61:]
    assert crc_matches(placed)
    assert batch == built(count)


@pytest.mark.parametrize("create_time", [True, False])
def test_what_is_not_ordinary_is_left_to_others(create_time: bool) -> None:
    batch = built(1)
    rules = rules_of(need_key=True, create_time=create_time)
    assert rules.admit(batch, NOW) is not None
    for at, value in ((16, b"\1"), (22, b"\5"), (22, b"\x20"), (26, b"\1"), (60, b"\0"), (7, b"\1")):
        broken = batch[:at] + value + batch[at + len(value) :]
        assert rules.admit(broken, NOW) is None, at
        broken = broken[:17] + compute_crc(broken).to_bytes(4, "big") + broken[21:]
        assert rules.admit(broken, NOW) is None, at


def test_a_coordinator_may_write_markers() -> None:
    marker = end_txn_marker_batch(0, NOW, 0, 7, 3, EndTransactionMarker(ControlRecordType.COMMIT, 0))
    assert rules_of().admit(marker, NOW) is None
    found = rules_of().admit(marker, NOW, False)
    assert found is not None
    assert found.is_control
    assert b"".join(bytes(part) for part in found.place(4, 2))[61:] == marker[61:]


ROW = st.tuples(
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=9),
    st.lists(st.tuples(st.sampled_from(["", "h"]), st.none() | st.binary(max_size=4)), max_size=2).map(tuple),
    st.none() | st.sampled_from([-1, 0, NOW - 100, NOW - 99, NOW, NOW + 50, NOW + 51, LONG_MAX]),
)


@settings(max_examples=300)
@given(
    rows=st.lists(ROW, min_size=1, max_size=6),
    need_key=st.booleans(),
    create_time=st.booleans(),
    limits=st.sampled_from([(LONG_MAX, LONG_MAX), (99, 50), (100, 49)]),
    now=st.sampled_from([NOW, NOW, NOW, -5]),
    size_max=st.sampled_from([1 << 20, 100]),
    repeat=st.sampled_from([1, 1, 900]),
    codec=st.sampled_from([codecs.NONE, codecs.NONE, codecs.LZ4]),
)
def test_the_encoders_own_batch_is_judged_as_its_bytes_are(
    rows: list[Any], need_key: bool, create_time: bool, limits: tuple[int, int], now: int, size_max: int, repeat: int,
    codec: int,
) -> None:  # fmt: skip
    encoder = ColumnEncoder.from_rows(rows * repeat, NOW)
    assume(encoder is not None)
    batch = next(write_batches(encoder, batch_bytes_max=1 << 24, codec=codec))
    rules = rules_of(
        size_max=size_max, need_key=need_key, before_max_ms=limits[0], after_max_ms=limits[1], create_time=create_time
    )
    known, seen = rules.admit(batch, now), rules.admit(batch.data, now)
    if codec != codecs.NONE and seen is not None:  # its records are not read here
        assert known is not None
        payload = codecs.decompress(codec, bytes(seen.payload))
        if not seen.check_payload(payload, 1 << 24):
            assert known.record_bytes < 0
            return
        assert known.record_bytes in (-1, seen.record_bytes)
    assert (known is None) == (seen is None)
    if known is not None and seen is not None:
        assert known.max_timestamp == seen.max_timestamp
        assert known.record_bytes in (seen.record_bytes, -1)
        for each in (known, seen):
            each.date(now)
        placed = b"".join(map(bytes, known.place(7, 3)))
        assert placed == b"".join(map(bytes, seen.place(7, 3)))
        assert crc_matches(placed)


def test_a_header_that_contradicts_the_records_is_not_believed() -> None:
    def columns() -> ColumnEncoder:
        return ColumnEncoder(np.full(3, NOW), None, (np.array([0, 1, 2, 3]), b"abc"))

    plain, _, _ = columns().encode_batch()
    assert plain is not None
    assert plain.record_bytes == len(plain) - 61
    for fields in ({"attributes": codecs.GZIP}, {"log_append_time": 5}):
        batch, _, _ = columns().encode_batch(**fields)  # type: ignore[arg-type]
        assert batch is not None
        assert batch.record_bytes == -1
        admitted = rules_of().admit(batch, NOW)
        assert admitted is None or admitted.record_bytes == -1
    encoder = columns()
    payload, *_ = encoder.encode()
    good = plain.data[:21] + b"\0\4" + plain.data[23:]  # says that it is compressed
    assert encoder.packed(payload, good).record_bytes == len(payload)
    for at in (22, 26, 34, 42, 60):
        other = good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]
        assert encoder.packed(payload, other).record_bytes == -1, at
    assert encoder.packed(payload, good[:60]).record_bytes == -1


def test_nobody_else_makes_an_encoded_batch() -> None:
    with pytest.raises(TypeError):
        EncodedBatch()
    encoder = ColumnEncoder.from_rows([(b"v", None, (), 1)], 1)
    assert encoder is not None
    payload, *_ = encoder.encode()
    again, *_ = encoder.encode()
    assert payload == again
    with pytest.raises(ValueError, match="not the last result"):
        encoder.packed(payload, b"")
    assert encoder.packed(again, b"x").data == b"x"
    batch, _, _ = encoder.encode_batch()
    assert batch is not None
    with pytest.raises(ValueError, match="not the last result"):
        encoder.packed(again, b"")
    assert bytes(memoryview(batch)) == batch.data
    assert memoryview(batch).readonly
    with pytest.raises(TypeError):
        pickle.dumps(batch)
