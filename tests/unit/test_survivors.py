"""The native loops of compaction compared with a model that rebuilds each batch by MemoryRecordsBuilder."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from kafkalog._native.codec import batches, survivors
from kafkalog._native.codec.batches import BatchHeader
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog._native.codec.survivors import Survivors, add_keys
from kafkalog.engine.format import codecs, records
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from tests.reference.legacy import builder_of

NOW_MS, RETENTION_MS = 1000, 50
Table = NDArray[Any]


def a_log(rng: random.Random) -> tuple[bytes, list[bytes]]:
    keys = [b"k%d" % number for number in range(rng.choice([3, 20, 200]))]
    offset, data = 0, b""
    for _ in range(rng.randint(1, 60)):
        builder = MemoryRecordsBuilder(
            codec=rng.choice([0, 0, 0, 4]),
            base_offset=offset,
            timestamp_type=rng.choice(["CreateTime", "CreateTime", "LogAppendTime"]),
            log_append_time=5000,
            delete_horizon_ms=rng.choice([-1, -1, -1, 900, 1100]),
            producer_id=rng.choice([-1, 7]),
            producer_epoch=0,
            base_sequence=0,
        )
        size = rng.choice([1, 1, 2, 5, 30, 300])
        for number in range(size):
            if size > 2 and rng.random() < 0.1:
                continue
            builder.append(
                1000 + rng.choice([0, 0, 1, 100_000, -500]) + number,
                rng.choice(keys) if rng.random() < 0.97 else None,
                None if rng.random() < 0.1 else rng.randbytes(rng.randint(0, 200)),
                () if rng.random() < 0.9 else (("h", b"x"), ("g", None)),
            )
        batch = builder.build()
        data += batch
        offset = (batches.header_at(batch).next_offset if batch else offset) + rng.choice([0, 0, 3])
    return data, keys


def each(data: bytes, table: Table) -> Iterator[tuple[int, BatchHeader, bytes]]:
    for row, header in enumerate(batches.headers_from_table(table)):
        yield row, header, data[header.position : header.position + header.size]


def payload(header: BatchHeader, batch: bytes) -> bytes:
    return codecs.decompress(header.codec, batch[RECORD_BATCH_OVERHEAD:])


class Built(NamedTuple):
    full: bool
    latest: int
    read: int
    known: dict[bytes, int]


def built_plainly(data: bytes, table: Table, start: int, limit: int) -> Built:
    known: dict[bytes, int] = {}
    latest, read = -1, 0
    for _, header, batch in each(data, table):
        for record in records.records(batch, header, at=0):
            if record.key is not None and record.offset >= start:
                if len(known) >= limit:
                    return Built(True, latest, read, known)
                known[record.key] = latest = record.offset
            read += 1
        if header.last_offset >= start:
            latest = header.last_offset
    return Built(False, latest, read, known)


def built_natively(
    map: SkimpyOffsetMap, data: bytes, table: Table, start: int, limit: int, *, inflates: bool
) -> tuple[bool, int]:
    """By calls that get each compressed batch's records, or in one call that requests them."""
    if inflates:
        row, full, read = add_keys(map, data, table, start_offset=start, limit=limit, inflate=codecs.decompress)
        assert full or row == len(table)
        return full, read
    row, read, full = 0, 0, False
    headers = batches.headers_from_table(table)
    while row < len(table) and not full:
        row, full, count = add_keys(map, data, table, row, start_offset=start, limit=limit)
        read += count
        if not full and row < len(table):
            header = headers[row]
            whole = payload(header, data[header.position : header.position + header.size])
            row, full, count = add_keys(map, data, table, row, start_offset=start, limit=limit, payload=whole)
            read += count
    return full, read


def kept_plainly(data: bytes, table: Table, built: Built) -> tuple[bytes, tuple[int, int, int]]:
    out, read, retained, invalid = b"", 0, 0, 0
    for _, header, batch in each(data, table):
        found = records.records(batch, header, at=0)
        read += len(found)
        horizon, kept = header.delete_horizon_ms, []
        for record in found:
            if record.offset <= built.latest:
                if record.key is None:
                    invalid += 1
                    continue
                if record.offset < built.known.get(record.key, -1):
                    continue
                if record.value is None and horizon is not None and horizon <= NOW_MS:
                    continue
            kept.append(record)
        retained += len(kept)
        needs_horizon = horizon is None and any(record.value is None for record in kept)
        if kept and len(kept) == len(found) and not needs_horizon:
            out += batch
        elif kept:
            if needs_horizon:
                horizon = NOW_MS + RETENTION_MS
            builder = MemoryRecordsBuilder(
                codec=header.codec,
                base_offset=header.base_offset,
                timestamp_type=header.timestamp_type,
                log_append_time=header.max_timestamp,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                delete_horizon_ms=-1 if horizon is None else horizon,
            )
            for record in kept:
                builder.append_record(record)
            builder.override_last_offset(header.last_offset)
            out += builder.build()
    return out, (read, retained, invalid)


def kept_natively(survivors: Survivors, data: bytes, table: Table, *, inflates: bool) -> bytes:
    row = 0
    if inflates:
        while row < len(table):
            row = survivors.take(
                data, table, row, room=survivors.size + 900, inflate=codecs.decompress, deflate=codecs.compress
            )
        return survivors.bytes()
    headers = batches.headers_from_table(table)
    while row < len(table):
        row = survivors.take(data, table, row)
        if row == len(table):
            break
        header = headers[row]
        whole = payload(header, data[header.position : header.position + header.size])
        made = survivors.take_batch(data, table, row, whole)
        assert made is not None
        if not isinstance(made, bool):
            survivors.add_batch(made[1], codecs.compress(header.codec, made[0]))
        row += 1
    return survivors.bytes()


@pytest.mark.parametrize("inflates", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_beside_the_model(seed: int, inflates: bool) -> None:
    rng = random.Random(seed)
    data, keys = a_log(rng)
    table, _, _ = batches.scan(data)
    start = rng.choice([0, 0, len(data) // 500])
    limit = rng.choice([1000, rng.randint(1, len(keys))])
    built = built_plainly(data, table, start, limit)
    map = SkimpyOffsetMap(24 * 1000)
    full, read = built_natively(map, data, table, start, limit, inflates=inflates)
    assert (full, map.latest_offset, read) == built[:3]
    assert {key: map.get(key) for key in keys} == {key: built.known.get(key, -1) for key in keys}

    survivors = Survivors(map, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS)
    expected, counted = kept_plainly(data, table, built)
    assert kept_natively(survivors, data, table, inflates=inflates) == expected
    assert (survivors.messages_read, survivors.messages_retained, survivors.invalid_messages) == counted
    assert (survivors.bytes_read, survivors.bytes_retained) == (len(data), len(expected))
    assert survivors.size == 0


def one(magic: int = 2, **options: Any) -> bytes:
    builder = builder_of(magic, **options)
    builder.append(1, b"k", b"v")
    return builder.build()


def odd_batches() -> dict[str, bytes]:
    plain = one()
    damaged = bytearray(plain)
    damaged[-3] ^= 0x40
    count = bytearray(plain)
    count[60] = 9
    unknown = bytearray(plain)
    unknown[21] = 0x01
    return {
        "transactional": one(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True),
        "compressed": one(codec=4),
        "legacy": one(magic=1),
        "damaged": bytes(damaged),
        "too many": bytes(count),
        "unknown flags": bytes(unknown),
        "end": one(base_offset=77),
    }


@pytest.mark.parametrize("kind", odd_batches())
def test_what_is_not_usual_is_left_to_the_caller(kind: str) -> None:
    """Both stop before it, and continue after it."""
    odd = odd_batches()[kind]
    data = one() + odd + one(base_offset=200)
    table, _, _ = batches.scan(data, check_crc=False)
    map = SkimpyOffsetMap(2400)
    if kind != "end":
        assert add_keys(map, data, table, 0, limit=100) == (1, False, 1)
        assert map.latest_offset == 0
        assert add_keys(map, data, table, 2, limit=100) == (3, False, 1)
    survivors = Survivors(map, now_ms=0, delete_retention_ms=0, keep_ends=[500, 77])
    assert survivors.take(data, table) == 1
    assert survivors.take(data, table, 2) == 3
    assert survivors.bytes() == (one() if kind == "end" else b"") + one(base_offset=200)
    if kind == "transactional":
        assert survivors.take_batch(data, table, 1) is False
        assert add_keys(map, data, table, 1, limit=100, vouched=True) == (2, False, 1)
    else:
        assert survivors.take_batch(data, table, 1, b"") is None


def test_what_is_not_inflated_is_left_to_the_caller() -> None:
    """Not requested are transactional batches, control batches, batches that stay for their end, and batches without
    records."""
    txn = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    for odd, asks in (
        (one(codec=4, **txn), 0),
        (one(codec=4, base_offset=77), 1),
        (one(codec=4), 1),
        (one(codec=4), 2),
    ):
        data = one() + odd
        table, _, _ = batches.scan(data)
        asked: list[int] = []

        def inflate(codec: int, body: memoryview, asked: list[int] = asked, asks: int = asks) -> bytes | None:
            asked.append(codec)
            return None if asks == 1 else b"no records"

        map = SkimpyOffsetMap(2400)
        assert add_keys(map, data, table, limit=90, inflate=inflate)[:2] == (1, False)
        assert (len(asked), map.size) == (min(asks, 1), 1)
        survivors = Survivors(map, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS, keep_ends=[77])
        assert survivors.take(data, table, inflate=inflate, deflate=codecs.compress) == 1
        is_end = odd[7] == 77
        assert len(asked) == 2 * min(asks, 1) - is_end
        assert survivors.bytes() == data[: len(data) - len(odd)]


def test_an_error_of_who_inflates_is_told() -> None:
    data = one() + one(codec=4)
    table, _, _ = batches.scan(data)

    def fail(codec: int, what: object) -> bytes:
        raise LookupError(codec)

    map = SkimpyOffsetMap(2400)
    with pytest.raises(LookupError, match="4"):
        add_keys(map, data, table, limit=90, inflate=fail)
    survivors = Survivors(map, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS)
    with pytest.raises(LookupError, match="4"):
        survivors.take(data, table, inflate=fail)
    assert add_keys(map, data, table, limit=90, inflate=codecs.decompress)[:2] == (2, False)  # neither is busy
    assert survivors.take(data, table, 1, inflate=codecs.decompress, deflate=codecs.compress) == 2
    with pytest.raises(TypeError, match="bytes-like object is required"):
        add_keys(map, data, table, limit=90, inflate=lambda *_: "text")  # type: ignore[arg-type, return-value]


def test_records_that_no_builder_writes() -> None:
    """They stay in a batch that stays whole; a batch that must be rebuilt goes the plain way."""
    long_varint = bytes.fromhex("0e 00 00 00 82 00 6b 02 76 00".replace(" ", ""))
    body = bytes([len(long_varint) * 2 - 2]) + long_varint[1:]
    tombstone = bytes([14]) + bytes.fromhex("000002026b0100")
    whole = bytearray(one())
    head = whole[:RECORD_BATCH_OVERHEAD]

    def batch(payload: bytes, count: int) -> bytes:
        made = bytearray(head) + payload
        made[8:12] = (len(made) - 12).to_bytes(4, "big")
        made[23:27] = (count - 1).to_bytes(4, "big")
        made[57:61] = count.to_bytes(4, "big")
        return bytes(made)

    for data, rows in ((batch(body, 1), 1), (batch(body + tombstone, 2), 0)):
        table, _, _ = batches.scan(data, check_crc=False)
        map = SkimpyOffsetMap(2400)
        survivors = Survivors(map, now_ms=0, delete_retention_ms=0)
        assert survivors.take(data, table) == rows
        assert survivors.bytes() == (data if rows else b"")
        assert survivors.messages_read == rows


def test_tables_that_do_not_fit_their_buffer() -> None:
    data = one() * 3
    table, _, _ = batches.scan(data)
    map = SkimpyOffsetMap(2400)
    for position, size in ((-1, 70), (10**9, 70), (0, 2**31 - 1), (0, 12), (len(data) - 5, 70)):
        odd = table.copy()
        odd["position"][1], odd["size"][1] = position, size
        assert add_keys(map, data, odd, limit=10)[0] == 1
        assert Survivors(map, now_ms=0, delete_retention_ms=0).take(data, odd) == 1
    with pytest.raises(IndexError):
        add_keys(map, data, table, 4, limit=10)
    with pytest.raises(TypeError):
        add_keys(map, data, np.zeros(3), limit=10)
    with pytest.raises(IndexError):
        Survivors(map, now_ms=0, delete_retention_ms=0).take_batch(data, table, 3, b"")
    with pytest.raises(ValueError, match="header"):
        Survivors(map, now_ms=0, delete_retention_ms=0).add_batch(b"x", b"")
    assert survivors.Survivors(map, now_ms=0, delete_retention_ms=0).bytes() == b""


def test_survivors_are_not_made_by_hand() -> None:
    with pytest.raises(TypeError):
        Survivors.__new__(Survivors)  # type: ignore[call-arg]


def large(count: int, keys: int, options: dict[str, Any]) -> bytes:
    """A batch of more records than one step handles; every 7,000th is a tombstone."""
    builder = MemoryRecordsBuilder(**options)
    for number in range(count):
        builder.append(1000 + number % 90, b"k%d" % (number % keys), None if number % 7000 == 6999 else b"v%d" % number)
    return builder.build()


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize(
    ("count", "keys"), [(8191, 100), (8192, 100), (8193, 100), (20_000, 20_000), (20_000, 15_000), (30_000, 1)]
)
def test_a_batch_of_very_many_records(count: int, keys: int, codec: int) -> None:
    """It goes in parts, to the same bytes: between others, superseded wholly, in part, or not at all."""
    last = large(
        count, keys, {"codec": codec, "base_offset": 5, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    )
    data = one() + last + one(base_offset=5 + count) + large(9000, 9000, {"codec": codec, "base_offset": 100_000})
    data += large(9000, 9000, {"codec": codec, "base_offset": 200_000, "delete_horizon_ms": 900})
    table, _, _ = batches.scan(data)
    built = built_plainly(data, table, 0, 100_000)
    map = SkimpyOffsetMap(24 * 100_000)
    assert built_natively(map, data, table, 0, 100_000, inflates=codec == 4)[0] is False
    survivors = Survivors(map, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS)
    expected, counted = kept_plainly(data, table, built)
    assert kept_natively(survivors, data, table, inflates=codec == 4) == expected
    assert (survivors.messages_read, survivors.messages_retained, survivors.invalid_messages) == counted
    assert (survivors.bytes_read, survivors.bytes_retained) == (len(data), len(expected))


def test_damage_late_in_a_large_batch() -> None:
    """Nothing of it is taken or counted."""
    data = bytearray(large(20_000, 20_000, {}))
    data[-1] = 0x40
    table, _, _ = batches.scan(data, check_crc=False)
    map = SkimpyOffsetMap(2400)
    survivors = Survivors(map, now_ms=0, delete_retention_ms=0)
    assert survivors.take(data, table) == 0
    assert survivors.take_batch(data, table, 0) is None
    assert (survivors.size, survivors.counted()) == (0, (0, 0, 0, 0, 0, 0))
