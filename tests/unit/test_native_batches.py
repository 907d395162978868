"""The batch scan, headers, re-stamping and index entries, compared with the reference in plain Python."""

from __future__ import annotations

import pickle
import random
import struct
from typing import Any

import numpy as np
import pytest

from kafkalog._native.codec import batches as native
from kafkalog._native.state import fetch
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from tests.reference import batches as reference
from tests.reference.batches import Row, legacy_batch, v2_batch

SEGMENT = [
    v2_batch(100, b"a" * 40, count=3, max_timestamp=1002, leader_epoch=5),
    v2_batch(103, b"", count=1, producer_id=7, producer_epoch=1, base_sequence=2**31 - 1),
    v2_batch(110, b"b" * 300, count=4, attributes=0x34, producer_id=7, producer_epoch=1, base_sequence=2**31 - 2),
    v2_batch(120, b"c" * 9, attributes=0x48, base_timestamp=-1, max_timestamp=-1, leader_epoch=-1),
]
BYTES = b"".join(SEGMENT)
STARTS = [sum(map(len, SEGMENT[:i])) for i in range(len(SEGMENT) + 1)]
FRAMINGS = pytest.mark.parametrize("framing", [native.FRAMING_BUFFER, native.FRAMING_FILE])


def rows_of(table: np.ndarray[Any, Any]) -> list[Row]:
    return [Row(*row) for row in table.tolist()]


def both(data: bytes, *args: int, **kwargs: Any) -> tuple[list[Row], int, int]:
    """Scans with both, wants them equal."""
    table, why, reached = native.scan(data, *args, **kwargs)
    got = rows_of(table), why, reached
    assert got == reference.scan(data, *args, **kwargs)
    return got


def test_the_table_has_the_columns_of_the_twin() -> None:
    assert native.BATCH_DTYPE.names == Row._fields
    assert native.BATCH_DTYPE.itemsize == 80


@FRAMINGS
def test_a_whole_segment(framing: int) -> None:
    rows, why, reached = both(BYTES, framing=framing, base_position=1 << 40)
    assert [row.position for row in rows] == [(1 << 40) + start for start in STARTS[:-1]]
    assert (why, reached) == (native.OK, len(BYTES))
    assert rows[1].last_sequence == 2**31 - 1
    assert rows[2].last_sequence == 1  # wraps past the largest int
    assert [row.last_offset for row in rows] == [102, 103, 113, 120]


@FRAMINGS
def test_legacy_batches(framing: int) -> None:
    data = legacy_batch(5, magic=0) + legacy_batch(6, b"", magic=1, attributes=0x09, timestamp=77) + SEGMENT[0]
    rows, why, _ = both(data, framing=framing)
    assert why == native.OK
    assert [(r.base_offset, r.last_offset, r.max_timestamp) for r in rows] == [(5, 5, -1), (6, 6, 77), (100, 102, 1002)]
    assert rows[0].record_count == rows[0].producer_id == rows[0].leader_epoch == -1


@FRAMINGS
@pytest.mark.parametrize("check_crc", [True, False])
def test_truncated_at_every_byte(framing: int, check_crc: bool) -> None:
    for end in range(len(BYTES) + 1):
        whole = sum(start <= end for start in STARTS[1:])
        for data, stop in ((BYTES[:end], -1), (BYTES, end)):
            rows, why, reached = both(data, 0, stop, framing=framing, check_crc=check_crc)
            assert len(rows) == whole, end
            assert reached == STARTS[whole]
            assert why in (native.OK, native.TORN)
        tail = end - reached
        seen = tail > 17 if framing == native.FRAMING_FILE else tail >= 17
        assert why == (native.TORN if seen else native.OK), end


@FRAMINGS
def test_every_bit_of_every_header_flipped(framing: int) -> None:
    for batch, start in enumerate(STARTS[:-1]):
        for bit in range(61 * 8):
            data = bytearray(BYTES)
            data[start + bit // 8] ^= 1 << bit % 8
            rows, why, reached = both(bytes(data), framing=framing)
            at = bit // 8
            if at < 8 or 12 <= at < 16:  # base offset and leader epoch: no checksum covers them
                assert (len(rows), why) == (4, native.OK)
            elif at == 16 and framing == native.FRAMING_FILE and data[start + 16] in range(3, 128):
                assert (len(rows), why) == (4, native.OK)  # a file's magic above 2 is read as 2
            else:
                assert (len(rows), reached) == (batch, start), bit
                assert why != native.OK or at < 12
            assert rows[:batch] == rows_of(native.scan(BYTES)[0])[:batch]


@FRAMINGS
def test_every_byte_of_a_body_matters(framing: int) -> None:
    for at in range(STARTS[2] + 61, STARTS[3]):
        data = bytearray(BYTES)
        data[at] ^= 0x10
        assert both(bytes(data), framing=framing)[1:] == (native.BAD_CRC, STARTS[2])
        rows, why, _ = both(bytes(data), framing=framing, stop_at_bad_crc=False)
        assert [row.verdict for row in rows] == [native.OK, native.OK, native.BAD_CRC, native.OK]
        assert why == native.OK
        assert len(both(bytes(data), framing=framing, check_crc=False)[0]) == 4


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 14, 48, 49, 2**31 - 13, 2**31 - 12, 2**31 - 1])
@FRAMINGS
def test_declared_lengths(framing: int, length: int) -> None:
    data = bytearray(SEGMENT[0] + SEGMENT[2])
    struct.pack_into(">i", data, STARTS[1] + 8, length)
    rows, why, reached = both(bytes(data), framing=framing)
    assert (len(rows), reached) == (1, STARTS[1])
    if length == 49:
        assert why == native.BAD_CRC
    else:
        assert why == (native.TORN if length > 49 else native.BAD_SIZE)


def test_magic_by_framing() -> None:
    three = v2_batch(0, magic=3)
    assert both(three, framing=native.FRAMING_FILE)[1] == native.OK
    assert both(three, framing=native.FRAMING_BUFFER)[1] == native.BAD_MAGIC
    assert both(v2_batch(0, magic=-1), framing=native.FRAMING_BUFFER)[1] == native.BAD_MAGIC
    # Files read a negative magic as a legacy one: its checksum fails, and without one the bytes after it stay visible.
    negative = v2_batch(0, magic=-1) + v2_batch(1)
    assert both(negative, framing=native.FRAMING_FILE)[1:] == (native.BAD_CRC, 0)
    rows, why, _ = both(negative, framing=native.FRAMING_FILE, check_crc=False)
    assert (len(rows), why) == (2, native.OK)
    # Buffers are checked by their magic before their length, files the other way round.
    assert both(three[:-1], framing=native.FRAMING_BUFFER)[1] == native.BAD_MAGIC
    assert both(v2_batch(0, magic=-1)[:-1], framing=native.FRAMING_FILE)[1] == native.TORN


def test_bounded_and_resumed() -> None:
    data = b"".join(v2_batch(i, bytes(i % 50)) for i in range(1000))
    whole, _, _ = both(data)
    for step in (1, 7, 63, 64, 65, 999, 1000, 1001):
        found: list[Row] = []
        position, why = 0, native.MORE
        while why == native.MORE:
            rows, why, position = both(data, position, max_batches=step)
            assert len(rows) <= step
            found += rows
        assert found == whole
        assert why == native.OK
    # In slices of the file, as from pread: a batch torn in one slice starts the next.
    found, at = [], 0
    while at < len(data):
        rows, why, used = both(data[at : at + 3000], base_position=at)
        found += rows
        at += used
    assert found == whole


def test_tables_grow_to_any_size() -> None:
    mixed = [v2_batch(i, bytes(5000 if i < 100 else 0)) for i in range(3000)]
    assert len(both(b"".join(mixed))[0]) == 3000


def test_a_table_owns_its_memory() -> None:
    table, _, _ = native.scan(BYTES)
    row = table[1]
    kept = table[2:]
    del table
    assert len(np.concatenate([native.scan(BYTES)[0] for _ in range(10)])) == 40
    assert int(row["base_offset"]) == 103
    assert kept["base_offset"].tolist() == [110, 120]
    kept["verdict"] = native.BAD_CRC  # writable: it is the caller's


@pytest.mark.parametrize(("position", "end"), [(-1, -1), (5, 4), (0, len(BYTES) + 1), (len(BYTES) + 1, -1)])
def test_bounds_outside_the_buffer_are_refused(position: int, end: int) -> None:
    for call in (native.scan, native.headers):
        with pytest.raises(ValueError, match="are outside the buffer"):
            call(BYTES, position, end)


def test_nothing_to_scan() -> None:
    table, why, reached = native.scan(b"")
    assert (len(table), table.dtype, why, reached) == (0, native.BATCH_DTYPE, native.OK, 0)
    with pytest.raises(ValueError, match="max_batches"):
        native.scan(b"", max_batches=0)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_buffer(wrap: Any) -> None:
    assert len(native.scan(wrap(BYTES))[0]) == 4


# --- headers ------------------------------------------------------------------------------------


def test_headers_equal_rows() -> None:
    table, _, _ = native.scan(BYTES, base_position=9)
    found, why, reached = native.headers(BYTES, base_position=9)
    assert (why, reached) == (native.OK, len(BYTES))
    assert found == native.headers_from_table(table) == [native.header_from_row(row) for row in table]
    assert found == [native.header_at(BYTES, start).at(9 + start) for start in STARTS[:-1]]
    for header, row in zip(found, rows_of(table), strict=True):
        for name in Row._fields:
            if name not in ("verdict", "record_count"):
                assert getattr(header, name) == getattr(row, name), name
        assert header.count == row.record_count
        assert header.next_offset == row.last_offset + 1


def test_what_headers_say() -> None:
    plain, sequenced, flagged, stamped = native.headers(BYTES)[0]
    assert (plain.codec, plain.is_compressed, plain.is_transactional, plain.is_control) == (0, False, False, False)
    assert (plain.has_producer_id, plain.log_append, plain.timestamp_type) == (False, False, "CreateTime")
    assert plain.delete_horizon_ms is None
    assert sequenced.has_producer_id
    assert (flagged.codec, flagged.is_compressed, flagged.is_transactional, flagged.is_control) == (4, True, True, True)
    assert (stamped.log_append, stamped.timestamp_type, stamped.delete_horizon_ms) == (True, "LogAppendTime", -1)
    # The flags of v2 mean nothing in a legacy attribute byte.
    old = native.header_at(legacy_batch(3, magic=0, attributes=0xFD))
    assert (old.timestamp_type, old.log_append, old.codec) == ("NoTimestampType", False, 5)
    assert (old.is_transactional, old.is_control, old.delete_horizon_ms, old.count) == (False, False, None, -1)
    assert native.header_at(legacy_batch(3, attributes=8)).timestamp_type == "LogAppendTime"


def test_headers_stop_where_a_scan_does() -> None:
    found, why, reached = native.headers(BYTES, STARTS[1], max_batches=2)
    assert ([h.base_offset for h in found], why, reached) == ([103, 110], native.MORE, STARTS[3])
    assert native.headers(BYTES, max_batches=4)[1] == native.OK
    assert native.headers(BYTES[:-1])[1:] == (native.TORN, STARTS[3])
    assert native.headers(BYTES + bytes(30))[1:] == (native.BAD_SIZE, len(BYTES))


def test_a_header_alone_is_enough() -> None:
    assert native.header_at(SEGMENT[2][:61]) == native.header_at(SEGMENT[2])
    assert native.header_at(legacy_batch(3)[:26]).base_offset == 3
    for short in (b"", SEGMENT[2][:25], SEGMENT[2][:60], legacy_batch(3)[:25]):
        with pytest.raises(ValueError, match="too few for a batch header"):
            native.header_at(short)
    for position in (-1, len(BYTES) + 1):
        with pytest.raises(ValueError, match="outside"):
            native.header_at(BYTES, position)


def test_header_values() -> None:
    header = native.header_at(SEGMENT[0])
    assert pickle.loads(pickle.dumps(header)) == header
    assert hash(header) == hash(native.header_at(bytearray(SEGMENT[0])))
    assert header != header.at(1)
    assert header.at(1).position == 1
    assert header != "header"
    assert "base_offset=100" in repr(header)
    with pytest.raises(TypeError):
        native.BatchHeader()
    with pytest.raises(AttributeError):
        header.position = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="expected 80"):
        native.header_from_row(b"short")


# --- checksums ----------------------------------------------------------------------------------


def test_checksums() -> None:
    data = BYTES + legacy_batch(9, b"x" * 20_000) + v2_batch(10, b"y" * 20_000)
    for row in reference.scan(data)[0]:
        assert native.compute_crc(data, row.position, row.size) == row.crc
        assert native.compute_crc(data, row.position) == row.crc
        assert native.crc_matches(data, row.position, row.size)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    assert not native.crc_matches(damaged, row.position, row.size)
    assert not native.crc_matches(data, row.position, row.size - 1)
    for size in (0, 60, len(data) + 1):
        with pytest.raises(ValueError, match="size: found"):
            native.compute_crc(data, 0, size)


# --- re-stamping --------------------------------------------------------------------------------

STAMPS: list[dict[str, int]] = [
    {},
    {"last_offset": 7},
    {"last_offset": 2**63 - 1},
    {"leader_epoch": 12},
    {"max_timestamp": 1000},
    {"max_timestamp": -1},
    {"timestamp_type": 0},
    {"timestamp_type": 1},
    {"timestamp_type": 0, "max_timestamp": 1002},
    {"timestamp_type": 1, "max_timestamp": 2**62, "last_offset": 55, "leader_epoch": -1},
]


@pytest.mark.parametrize("stamp", STAMPS, ids=str)
@pytest.mark.parametrize(
    "batch",
    [
        *SEGMENT,
        v2_batch(0, attributes=0x7F93 - 0x8000, max_timestamp=5),  # foreign bits everywhere
    ],
    ids=range(5),
)
def test_restamping_equals_kafkas_setters(batch: bytes, stamp: dict[str, int]) -> None:
    data = bytearray(b"before" + batch + b"behind")
    header = native.restamped_header(data, 6, **stamp)
    assert data == b"before" + batch + b"behind"
    want = reference.restamped(batch, **stamp)
    assert header == want[:61]
    assert native.crc_matches(want)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_producers_header_is_the_one_that_it_would_have_built(transactional: bool) -> None:
    def built(**fields: Any) -> bytes:
        builder = MemoryRecordsBuilder(codec=3, **fields)
        for number in range(50):
            builder.append(1000 + number, b"k", b"value", (("h", b"1"),))
        return builder.build()

    plain = built()
    want = built(producer_id=1 << 61, producer_epoch=7, base_sequence=99, is_transactional=transactional)
    head = native.producer_header(b"before" + plain + b"behind", 6, 1 << 61, 7, 99, transactional)
    assert head == want[:61]
    assert native.producer_header(want, 0, -1, -1, -1, False) == plain[:61]
    for data, position in ((plain[:-1], 0), (plain, 1), (plain, len(plain)), (legacy_batch(0), 0)):
        with pytest.raises(ValueError, match=r"no whole batch|has magic"):
            native.producer_header(data, position, 1, 1, 1, True)


def test_setting_what_is_there_keeps_foreign_bits_and_even_a_wrong_checksum() -> None:
    batch = bytearray(v2_batch(0, attributes=0x0100 | 0x80, max_timestamp=5))
    batch[17] ^= 0xFF
    assert native.restamped_header(batch, timestamp_type=0, max_timestamp=5) == batch[:61]


def test_what_kafka_refuses_to_stamp() -> None:
    for magic in (0, 1):
        with pytest.raises(ValueError, match=f"has magic {magic}; expected 2"):
            native.restamped_header(legacy_batch(0, magic=magic), last_offset=1)
    with pytest.raises(ValueError, match="Unknown compression type id: 6"):
        native.restamped_header(v2_batch(0, attributes=6), max_timestamp=9)
    with pytest.raises(ValueError, match="neither 0"):
        native.restamped_header(SEGMENT[0], timestamp_type=2)
    for data, position in ((SEGMENT[0][:-1], 0), (BYTES, -1), (BYTES, len(BYTES)), (BYTES, len(BYTES) + 1)):
        with pytest.raises(ValueError, match=r"no whole batch|outside"):
            native.restamped_header(data, position, last_offset=1)


# --- index entries ------------------------------------------------------------------------------


def run_both(
    rows: list[Row], base: int, interval: int, **limits: Any
) -> tuple[tuple[int, int] | None, tuple[bytes, bytes]]:
    want = reference.IndexPlan(base, interval, **limits)
    error = None
    for place, row in enumerate(rows):
        kind = want.add(row)
        if kind:
            error = (kind, place)
            break
    table = np.array(rows, native.BATCH_DTYPE)
    found = native.headers_from_table(table)
    for how in ("table", "headers", "one by one"):
        plan = native.IndexPlan(base, interval, **limits)
        if how == "table":
            assert plan.add_table(table) == (error is None)
        elif how == "headers":
            assert plan.add_headers(found) == (error is None)
        else:
            all(plan.add_header(header) for header in found)
            assert (plan.error is None) == (error is None)
        if how != "one by one":
            assert plan.error == error
        assert (plan.max_timestamp, plan.offset_of_max_timestamp) == (want.max_timestamp, want.offset_of_max_timestamp)
        assert plan.bytes_since_last_entry == want.bytes_since_last_entry
        assert (plan.offset_entry_count, plan.time_entry_count) == (len(want.offsets), len(want.times))
        assert plan.last_offset_entry == (want.offsets[-1][0] if want.offsets else base)
        assert plan.last_time_entry == (want.times[-1] if want.times else (-1, base))
        assert (plan.offset_entries, plan.time_entries) == want.entries()
    kind = want.maybe_append_time(skip_full_check=True)
    assert plan.add_last_time_entry() == (kind == 0)
    assert plan.take() == want.entries()
    assert plan.take() == (b"", b"")
    return error, want.entries()


def make_rows(count: int, rng: random.Random) -> list[Row]:
    rows, position, offset = [], 0, 1000
    for _ in range(count):
        size = rng.choice([61, 100, 900, 5000])
        last = offset + rng.randrange(5)
        timestamp = rng.choice([-1, 5, 1000 + last // 3, 1000 + last])
        rows.append(Row(position, size, 0, 2, 0, 0, 0, offset, last, 0, timestamp, -1, -1, -1, 1, -1))
        position, offset = position + size, last + 1
    return rows


@pytest.mark.parametrize("interval", [0, 1, 99, 100, 4096, 2**31 - 1])
def test_index_entries_equal_the_twin(interval: int) -> None:
    rows = make_rows(300, random.Random(interval))
    error, (offsets, _) = run_both(rows, 1000, interval)
    assert error is None
    if interval == 0:
        assert len(offsets) == 8 * 299  # the first batch after opening never gets an entry


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        (native.OFFSET_INDEX_FULL, {"max_offset_entries": 3}),
        (native.TIME_INDEX_FULL, {"max_time_entries": 3}),
        (native.OFFSET_OUT_OF_RANGE, {"check_range": True}),
        (native.OFFSET_OUT_OF_RANGE, {}),
        (native.OFFSET_NOT_INCREASING, {}),
    ],
)
def test_index_errors(kind: int, limits: dict[str, Any]) -> None:
    rows = make_rows(50, random.Random(9))
    if kind == native.OFFSET_OUT_OF_RANGE:
        rows[20] = rows[20]._replace(last_offset=1000 + 2**31)
    if kind == native.OFFSET_NOT_INCREASING:
        rows[20] = rows[20]._replace(last_offset=1000)
    error, _ = run_both(rows, 1000, 0, **limits)
    assert error is not None
    assert error[0] == kind


def test_index_errors_of_the_time_index() -> None:
    time = native.IndexPlan(0, 0, last_time_entry=(500, 90), time_entry_count=1, bytes_since_last_entry=1)
    assert not time.add_header(native.header_at(v2_batch(80, max_timestamp=600)))
    assert time.error == (native.TIME_OFFSET_DECREASING, 0)
    time = native.IndexPlan(0, 0, last_time_entry=(500, 10), time_entry_count=1, bytes_since_last_entry=1)
    assert not time.add_header(native.header_at(v2_batch(80, max_timestamp=400)))
    assert time.error == (native.TIMESTAMP_DECREASING, 0)


def test_state_travels_between_plans() -> None:
    rows = make_rows(100, random.Random(5))
    whole = native.IndexPlan(1000, 700)
    whole.add_table(np.array(rows, native.BATCH_DTYPE))
    offsets, times, carried = b"", b"", native.IndexPlan(1000, 700)
    for row in rows:
        plan = native.IndexPlan(
            1000,
            700,
            bytes_since_last_entry=carried.bytes_since_last_entry,
            max_timestamp=carried.max_timestamp,
            offset_of_max_timestamp=carried.offset_of_max_timestamp,
            last_time_entry=carried.last_time_entry,
            last_offset_entry=carried.last_offset_entry,
            offset_entry_count=carried.offset_entry_count,
            time_entry_count=carried.time_entry_count,
        )
        moved = native.header_from_row(np.array([row], native.BATCH_DTYPE)[0]).at(0)
        assert plan.add_header(moved, base_position=row.position)
        made = plan.take()
        offsets, times, carried = offsets + made[0], times + made[1], plan
    assert (offsets, times) == whole.take()


def test_only_tables_of_batches() -> None:
    with pytest.raises(TypeError):
        native.IndexPlan(0, 0).add_table(np.zeros(3))
    with pytest.raises(TypeError):
        native.IndexPlan(0, 0).add_header(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        native.IndexPlan(0, 0).add_headers([None])  # type: ignore[list-item]


# --- the search for an offset in a file ---------------------------------------------------------------


class Preads:
    """A file that records the requests."""

    def __init__(self, data: bytes, end: int | None = None) -> None:
        self.data = data[:end]
        self.asked: list[tuple[int, int]] = []

    def pread(self, count: int, position: int) -> bytes:
        assert 0 < count <= 8192
        assert position >= 0
        self.asked.append((count, position))
        return self.data[position : position + count]


def plain_search(data: bytes, target: int, position: int) -> tuple[int, int, int] | None:
    """FileRecords.searchForOffsetFromPosition over the headers of all whole batches."""
    found, _, _ = native.headers(data, position, framing=native.FRAMING_FILE)
    before = None
    for header in found:
        if header.base_offset >= target:
            if header.base_offset > target and before is not None and before.last_offset >= target:
                break
            return header.base_offset, header.position, header.size
        before = header
    if before is None or before.last_offset < target:
        return None
    return before.base_offset, before.position, before.size


@pytest.mark.parametrize("seed", range(12))
def test_search_in_a_file_equals_the_plain_one(seed: int) -> None:
    rng = random.Random(seed)
    offset, parts = 1000, []
    most = rng.choice([10, 400, 3000, 20_000])
    for _ in range(rng.randrange(1, 40)):
        count = rng.randrange(1, 9)
        parts.append(v2_batch(offset, bytes(rng.randrange(most)), count=count))
        offset += rng.choice([-2, count - 1, count, count, count, count + 3])  # overlaps, gaps, steps back
    data = b"".join(parts)
    starts = [0]
    for part in parts[:-1]:
        starts.append(starts[-1] + len(part))
    for tail in (b"", bytes(17), b"\xff" * 11):
        whole = data + tail
        for start in [*rng.sample(starts, min(len(starts), 5)), len(data), len(whole)]:
            for target in [*(rng.randrange(990, offset + 10) for _ in range(20)), -(2**63), 2**63 - 1]:
                want = plain_search(whole, target, start)
                assert fetch.batch_with_offset(Preads(whole), target, start, len(whole)) == want


def test_search_reads_no_bodies_of_large_batches() -> None:
    parts = [v2_batch(10 * i, bytes(16_000), count=10) for i in range(4)]
    size = len(parts[0])
    file = Preads(b"".join(parts))
    assert fetch.batch_with_offset(file, 15, 0, 4 * size) == (10, size, size)
    assert file.asked == [(61, 0), (61, size), (61, 2 * size)]
    parts = [v2_batch(i, bytes(30)) for i in range(100)]
    size = len(parts[0])
    file = Preads(b"".join(parts))
    assert fetch.batch_with_offset(file, 60, 0, 100 * size) == (60, 60 * size, size)
    assert file.asked == [(61, 0), (8192, size)]


def test_search_leaves_what_is_not_ordinary_to_the_caller() -> None:
    first, last = v2_batch(0, b"a" * 30, count=5), v2_batch(5, b"b" * 30, count=5)
    data = first + last
    assert fetch.batch_with_offset(Preads(data), 7, 0, len(data)) == (5, len(first), len(last))
    for position in (-(2**63), -1, len(data) + 1, 2**63 - 1):
        assert fetch.batch_with_offset(Preads(data), 7, position, len(data)) is None
    for magic in (0, 1, 3, 255):
        other = bytearray(data)
        other[len(first) + 16] = magic
        assert fetch.batch_with_offset(Preads(bytes(other)), 7, 0, len(data)) is None
    for length in (-(2**31), -1, 0, 14, 48, len(last) - 11, 2**31 - 1):
        other = bytearray(data)
        struct.pack_into(">i", other, len(first) + 8, length)
        assert fetch.batch_with_offset(Preads(bytes(other)), 7, 0, len(data)) is None
    for end in range(len(data)):
        # A shorter log; a file that was truncated since.
        assert fetch.batch_with_offset(Preads(data), 7, 0, end) is None
        assert fetch.batch_with_offset(Preads(data, end), 7, 0, len(data)) is None
    with pytest.raises(OSError, match="gone"):
        fetch.batch_with_offset(Answers(OSError("gone")), 7, 0, len(data))
    for wrong in (bytearray(61), None):
        with pytest.raises(TypeError):
            fetch.batch_with_offset(Answers(wrong), 7, 0, len(data))


class Answers:
    """A file whose every pread ends so."""

    def __init__(self, end: object) -> None:
        self.end = end

    def pread(self, count: int, position: int) -> object:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end
