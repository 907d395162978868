"""A fuzz target over `kafkalog._native`: any bytes in, no crash and no contradiction out.

    tests/fuzz/native.sh --minutes 30                 # built with ASan and UBSan, plain mutation loop
    python -m tests.fuzz.native_target --minutes 1    # the ordinary build, Python only
    python -m tests.fuzz.native_target FILE...        # inputs again (hex text, one input a line)
    python -m tests.fuzz.native_target --atheris -max_total_time=60   # libFuzzer drives (pip install atheris)

The first byte of an input picks an entry point, the next ones its arguments, the rest is the buffer.  Every buffer
is in a malloc'd block of exactly its size, so that AddressSanitizer sees the first byte read after it.  The asserts
compare the answers of two entry points; tests/unit checks the answers themselves.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from kafkalog._native.codec import batches, crc32c, json_columns, records, survivors, validation, wire_format
from kafkalog._native.codec import decode as decoding
from kafkalog._native.codec import encode as encoding
from kafkalog._native.codec.offset_map import SkimpyOffsetMap, implementations
from kafkalog._native.state import fetch, producers, search
from kafkalog.engine.format import codecs
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.records import record_error
from tests.fuzz import native_seeds
from tests.reference.search import offset_end, time_end
from tests.sanitize.exact import exact

LONG_MAX = 2**63 - 1
MASK64 = 2**64 - 1
STOPPED = {batches.OK, batches.TORN, batches.BAD_SIZE, batches.BAD_MAGIC, batches.BAD_CRC, batches.MORE}


class Input:
    """Takes numbers from the front of the input; zeros when it is used up."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def number(self) -> int:
        """Small, or one of the edges, or eight bytes as they are."""
        kind = self.byte()
        if kind < 128:
            return kind - 3
        if kind < 160:
            edge: int = 1 << (31, 32, 63, 62)[kind & 3]
            near = min(LONG_MAX, edge - 2 + (kind >> 2 & 3))
            return -near if kind & 16 else near
        raw = self.data[self.at : self.at + 8].ljust(8, b"\0")
        self.at += 8
        value: int = struct.unpack(">q", raw)[0]
        return value

    def int32(self) -> int:
        return (self.number() + 2**31) % 2**32 - 2**31

    def rest(self) -> memoryview:
        return exact(self.data[self.at :])


def fuzz_one(data: bytes) -> None:
    """One input.  An AssertionError or any other exception is a find."""
    source = Input(data)
    TARGETS[source.byte() % len(TARGETS)](source)


# --- entry points ---------------------------------------------------------------------------------------


def scan(source: Input) -> None:
    flags, limit, begin, cut = source.byte(), source.byte(), source.byte(), source.byte()
    framing = flags & 1
    data = source.rest()
    position = min(begin if flags & 8 else 0, len(data))
    end = max(position, len(data) - cut) if flags & 16 else -1
    table, why, reached = batches.scan(
        data,
        position,
        end,
        base_position=source.at if flags & 32 else 0,
        framing=framing,
        check_crc=bool(flags & 2),
        stop_at_bad_crc=bool(flags & 4),
        max_batches=limit + 1 if flags & 64 else 65536,
    )
    stop = len(data) if end < 0 else end
    assert why in STOPPED
    assert position <= reached <= stop
    shift = source.at if flags & 32 else 0
    at = position
    for row in table:
        assert row["position"] - shift == at
        assert 14 <= row["size"] <= stop - at
        at += int(row["size"])
    assert at == reached or why == batches.BAD_CRC, (at, reached, why)
    if not flags & 2:
        found, verdict, end_of = batches.headers(
            data, position, end, base_position=shift, framing=framing, max_batches=limit if flags & 64 else -1
        )
        same = batches.headers_from_table(table)
        if not flags & 64:
            assert [header.position for header in found] == [header.position for header in same]
            assert (verdict, end_of) == (why, reached) or why == batches.MORE
        for header in found:
            _look(header)
    plan = batches.IndexPlan(0, limit, check_range=bool(flags & 1), max_offset_entries=5, max_time_entries=5)
    plan.add_table(table)
    plan.add_last_time_entry()
    offsets, times = plan.take()
    assert len(offsets) % 8 == 0
    assert len(times) % 12 == 0


def _look(header: batches.BatchHeader) -> None:
    for name in [
        "magic",
        "attributes",
        "leader_epoch",
        "crc",
        "base_offset",
        "last_offset",
        "next_offset",
        "base_timestamp",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "last_sequence",
        "count",
        "codec",
        "is_compressed",
        "is_transactional",
        "is_control",
        "log_append",
        "has_producer_id",
        "delete_horizon_ms",
        "timestamp_type",
    ]:
        getattr(header, name)
    assert header == header.at(header.position)
    assert hash(header) == hash(header.at(header.position))
    repr(header)


def one_batch(source: Input) -> None:
    flags, position = source.byte(), source.number()
    stamp: dict[str, int | None] = {
        "last_offset": source.number() if flags & 1 else None,
        "leader_epoch": source.int32() if flags & 2 else None,
        "timestamp_type": flags >> 4 & 1 if flags & 4 else None,
        "max_timestamp": source.number() if flags & 8 else None,
    }
    data = source.rest()
    with contextlib.suppress(ValueError):
        _look(batches.header_at(data, position))
    with contextlib.suppress(ValueError):
        batches.crc_matches(data, position, source.at - flags)
    with contextlib.suppress(ValueError):
        header = batches.header_at(data, position)
        right = batches.compute_crc(data, position, header.size) == header.crc
        assert right == batches.crc_matches(data, position, header.size)
    before = bytes(data)
    with contextlib.suppress(ValueError):
        assert len(batches.restamped_header(data, position, **stamp)) == 61
    assert bytes(data) == before


def decode(source: Input) -> None:
    flags = source.byte()
    count = source.number()
    base_offset, base_timestamp = source.number(), source.number()
    log_append = source.number() if flags & 1 else None
    streaming = bool(flags & 2)
    max_body = source.byte() if flags & 4 else 2147483639
    sequence = source.int32() if flags & 8 else -1
    data = source.rest()
    found, verdict, at, expected, present = records.read_records(
        data, count, base_offset, base_timestamp, log_append, sequence, streaming, max_body
    )
    builder = decoding.ColumnBuilder(null_empty_headers=bool(flags & 16), timestamp_types=bool(flags & 32))
    for _ in range(2):  # the second time into a builder that is in use
        answer = builder.append_payload(
            data, count, base_offset, base_timestamp, log_append, streaming=streaming, max_body=max_body
        )
        assert answer[0] == verdict
        if verdict != records.OK:
            said = record_error(verdict, expected, present)
            assert answer[1] == at
            assert str(record_error(*answer[:1], *answer[2:])) == str(said)
    made = builder.finish()
    if verdict != records.OK:
        assert len(made) == 0
        return
    assert len(made) == 2 * len(found)
    assert made.offsets.tolist() == [record.offset for record in found] * 2
    assert made.timestamps.tolist() == [record.timestamp for record in found] * 2
    assert made.keys is not None
    assert made.keys.to_list() == [record.key for record in found] * 2
    assert made.values is not None
    assert made.values.to_list() == [record.value for record in found] * 2
    assert [tuple(headers) for headers in made.header_lists()] == [record.headers for record in found] * 2


def decode_table(source: Input) -> None:
    flags = source.byte()
    low, high = (source.number(), source.number()) if flags & 1 else (-(2**63), LONG_MAX)
    start, noise = source.byte() if flags & 2 else 0, source.number()
    data = source.rest()
    table, _, _ = batches.scan(data, framing=flags >> 2 & 1, check_crc=False)
    if flags & 8 and len(table):
        table = lying(table, noise)
        for header in batches.headers_from_table(table):
            _look(header)
        plan = batches.IndexPlan(noise, 0)
        plan.add_table(table)
    builder = decoding.ColumnBuilder(
        keys=not flags & 16, values=not flags & 32, headers=not flags & 64, offset_min=low, offset_max=high
    )
    skip = exact(bytes(i % 3 == 0 for i in range(len(table)))) if flags & 128 else None
    row = start
    decoders = codecs.frame_decoders() if flags & 4 else None
    for _ in range(len(table) + 1):
        row, verdict, at, _, _ = builder.append_table(
            data, table, row, skip=skip, skip_control=bool(flags & 16), decoders=decoders, max_payload=1 << 20
        )
        if verdict == records.OK or row >= len(table):
            break
        assert at >= 0
        row += 1
    made = builder.finish()
    if made.values is not None:
        made.values.to_list()
    if made.headers is not None:
        made.header_lists()


def lying(table: NDArray[Any], noise: int) -> NDArray[Any]:
    """A table that does not tell the truth of its data."""
    raw = bytearray(table.tobytes())
    rng = random.Random(noise)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(raw))
        raw[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return np.frombuffer(bytes(raw), dtype=batches.BATCH_DTYPE)


def walk(source: Input) -> None:
    flags, reader = source.byte(), source.byte() % 3
    position = source.number() if flags & 1 else 0
    now, before, after = source.number(), source.number(), source.number()
    limit = source.byte() if flags & 16 else 2147483639
    payload = None
    if flags & 2:
        payload = source.data[source.at + 1 :][61:]
    data = source.rest()
    rules = (
        data, position, None if payload is None else exact(payload), reader, bool(flags & 4), bool(flags & 8), now,
        before, after, limit,
    )  # fmt: skip
    found, short = validation.walk_records(*rules), validation.walk_records(*rules, canonical=False)
    for name in [
        "verdict",
        "row",
        "expected",
        "found",
        "missing_keys",
        "max_timestamp",
        "first_timestamp",
        "record_bytes",
        "sequential",
        "canonical",
        "record_count",
        "refusals",
    ]:
        assert name == "canonical" or getattr(found, name) == getattr(short, name)
    if found.refusals is not None:
        assert all(0 <= refusal[0] < found.record_count for refusal in found.refusals)


def client(source: Input) -> None:
    flags, next_offset, epoch = source.byte(), source.number(), source.int32()
    now, before, after = source.number(), source.number(), source.number()
    data = source.rest()
    rules = validation.OrdinaryRules(1 << 20, bool(flags & 1), before, after, create_time=not flags & 8)
    found = rules.admit(data, now, not flags & 16)
    if found is None:
        return
    for name in ("codec", "producer_id", "record_bytes"):
        getattr(found, name)
    entry = producers.ProducerEntry(found.producer_id, epoch & 0x7FFF, -1, -1, None)
    for _ in range(7):
        entry.is_continued_by(found)
        entry.continue_with(found)
    assert len(entry.batches()) == 5
    found.check_payload(data[61:] if flags & 2 else exact(b""), source.at if flags & 4 else 2**31 - 1)
    assert bytes(found.payload) == data[61:]
    found.date(now)
    try:
        parts = found.place(next_offset, epoch)
    except OverflowError:
        return
    whole = b"".join(bytes(part) for part in parts)
    assert len(whole) == len(data)
    assert batches.header_at(whole).base_offset == next_offset
    assert batches.crc_matches(whole)


def searches(source: Input) -> None:
    base, target, less = source.number(), source.number(), source.byte()
    data = source.rest()
    targets = [target, 0, -1, LONG_MAX, -(2**63), base]
    offsets, times = max(0, len(data) // 8 - less), max(0, len(data) // 12 - less)
    for index, entries, searched in (
        (offset_end(data, offsets, base), offsets, (search.OFFSET, search.BYTE_POSITION)),
        (time_end(data, times, base), times, (search.TIME, search.TIME_OFFSET)),
    ):
        many = index.lookup_many(targets)
        assert many is not None
        for i, wanted in enumerate(targets):
            assert index.lookup(wanted) == (many[0][i], many[1][i])
            for column in searched:
                for upper in (False, True):
                    slot = index.find(column, wanted, upper)
                    assert -1 <= slot < max(entries, 1), (slot, entries)
        for wrong in (len(data) // 8 + 1, 2**62):
            with contextlib.suppress(IndexError):
                index.find_among(wrong, searched[0], target)
    place = fetch.batch_with_offset(Bytes(data), target, less, len(data))
    assert place is None or less <= place[1] < place[1] + place[2] <= len(data)


class Bytes:
    """A file of these."""

    def __init__(self, data: Buffer) -> None:
        self.data = memoryview(data)

    def pread(self, count: int, at: int) -> bytes:
        return bytes(self.data[at : at + count])


def checksums(source: Input) -> None:
    start, cut = source.number() & 0xFFFFFFFF, source.byte()
    data = source.rest()
    answers = {crc32c.crc32c(data, start, implementation=name) for name in crc32c.implementations()}
    assert len(answers) == 1
    split = min(cut, len(data))
    assert crc32c.crc32c(data[split:], crc32c.crc32c(data[:split], start)) in answers
    first, second = crc32c.crc32c(data[:split]), crc32c.crc32c(data[split:])
    assert crc32c.combine(first, second, len(data) - split) == crc32c.crc32c(data)
    crc32c.crc32(data, start)


def encode(source: Input) -> None:
    """Columns whose offsets, bitmaps and headers are noise."""
    flags, rows = source.byte(), source.byte() % 12
    start, stop, most = source.byte() % 14 - 1, source.byte() % 14 - 1, source.number()
    base_timestamp = source.number() if flags & 1 else None
    base_offset = source.number() if flags & 2 else None
    times = np.array([source.number() for _ in range(rows)], np.int64)
    places = np.array([source.number() for _ in range(rows)], np.int64) if flags & 4 else None
    ends = [np.array([source.byte() for _ in range(rows + 1)], np.int32) for _ in range(3)]
    if flags & 8:
        for column in ends:
            column.sort()
    wide = ends[1].astype(np.int64)
    bits = exact(bytes(source.byte() for _ in range((rows + 7) >> 3)))
    data = source.rest()
    headers = None
    if flags & 16:
        lists = np.minimum(np.sort(ends[2]), rows).astype(np.int32)
        headers = (lists, (ends[0], data), (wide, data, bits if flags & 32 else None))
    encoder = encoding.ColumnEncoder(
        times, (ends[0], data) if flags & 64 else None, (wide, data, bits if flags & 32 else None), headers, places
    )
    if start < 0:
        with contextlib.suppress(IndexError):
            encoder.encode(start, stop, most)
        start = 0
    made, _, _ = encoder.encode_batch(start, stop, most, base_offset=base_offset or 0, producer_id=flags)
    if made is not None:
        batch = made.data
        assert batches.crc_matches(exact(batch))
        assert batches.scan(exact(batch))[1:] == (batches.OK, len(batch))
    payload, next_row, _, _, verdict = encoder.encode(
        start, stop, most, base_timestamp=base_timestamp, base_offset=base_offset
    )
    if verdict == records.OK and payload:
        found, why, _, _, _ = records.read_records(
            exact(payload), next_row - max(start, 0), 0, 0, None, -1, True, 2**31
        )
        assert why == records.OK
        assert len(found) == next_row - start


def compact(source: Input) -> None:
    """The two walks of a pass, in one call and batch by batch: the same map, the same bytes."""
    flags, slots, limit = source.byte(), source.byte(), source.byte()
    now, retention, start = source.number(), source.number(), source.number() if flags & 1 else 0
    ends = [source.number() for _ in range(source.byte() % 3)]
    noise = source.number()
    data = source.rest()
    table, _, _ = batches.scan(data, framing=flags >> 2 & 1, check_crc=False)
    if flags & 8 and len(table):
        table = lying(table, noise)
    maps = [SkimpyOffsetMap(24 * slots, implementation=name) for name in (None, implementations()[-1])]
    whole = survivors.add_keys(maps[0], data, table, start_offset=start, limit=limit)
    at, is_full, read = 0, False, 0
    while at < len(table) and not is_full:
        after, is_full, more = survivors.add_keys(maps[1], data, table[: at + 1], at, start_offset=start, limit=limit)
        read += more
        if after == at:
            break
        at = after
    assert whole[1:] == (is_full, read), (whole, at, is_full, read)
    assert is_full or whole[0] == at, (whole, at)
    assert (maps[0].size, maps[0].latest_offset) == (maps[1].size, maps[1].latest_offset)
    assert maps[0].size <= min(slots, limit)
    both = [survivors.Survivors(each, now_ms=now, delete_retention_ms=retention, keep_ends=ends) for each in maps]
    taken = both[0].take(data, table)
    at = 0
    while at < len(table) and (after := both[1].take(data, table[: at + 1], at)) > at:
        at = after
    assert taken == at
    assert both[0].max_offset == both[1].max_offset
    assert both[0].counted() == both[1].counted()
    kept = both[0].bytes()
    assert kept == both[1].bytes()
    if not flags & 8 and kept:
        found, why, _ = batches.headers(exact(kept), framing=flags >> 2 & 1)
        assert why == batches.OK
        assert found
    for row in range(at, min(at + 3, len(table))):
        made = both[0].take_batch(data, table, row, exact(bytes(data)[61:]) if flags & 16 else None)
        if isinstance(made, tuple):
            both[0].add_batch(made[1], made[0])
            both[0].bytes()


def offset_map(source: Input) -> None:
    """Columns of keys whose bounds may be noise: refused, or the same by every way of hashing, and as a dict says."""
    flags, slots, limit, step = source.byte(), source.byte(), source.byte(), source.byte()
    data = source.rest()
    bounds = np.arange(0, len(data) + 1, max(1, step), dtype=np.int64)[:300]
    if flags & 1:
        bounds = np.frombuffer(bytes(data)[: len(data) // 8 * 8], np.int64)
    offsets = np.arange(max(len(bounds) - 1, 0))
    known = SkimpyOffsetMap(24 * slots)
    try:
        put = known.put_many(data, exact(bounds.tobytes()), offsets, limit)
    except ValueError:
        assert flags & 1 or not len(bounds)
        return
    keys = [bytes(data[bounds[i] : bounds[i + 1]]) for i in range(len(offsets))]
    expected = {key: i for i, key in enumerate(keys[:put])}
    assert known.size == len(expected) <= min(slots, limit)
    assert put == len(keys) or known.size == min(slots, limit)
    found = np.frombuffer(known.get_many(data, bounds), np.int64).tolist()
    assert found == [expected.get(key, -1) for key in keys]
    for name in implementations():
        again = SkimpyOffsetMap(24 * slots, implementation=name)
        assert again.put_many(data, bounds, offsets, limit) == put
        assert (again.size, again.latest_offset) == (known.size, known.latest_offset)
        assert np.frombuffer(again.get_many(data, bounds), np.int64).tolist() == found
        assert again.probes == known.probes


JSON_SCHEMAS = (
    (("a", "l", ()), ("b", "u", ()), ("c", "g", ()), ("d", "b", ()), ("t", "tsu:UTC", ()), ("m", "d:12,2", ())),
    (("o", "+s", (("a", "i", ()), ("b", "json", ()), ("o", "+s", (("x", "tsn:UTC", ()),)))), ("c", "json", ())),
    (("l", "+l", (("item", "+s", (("a", "l", ()), ("l", "+l", (("item", "u", ()),)))),)), ("t", "tss:", ())),
    (("a", "json", ()), ("b", "json", ()), ("o", "json", ()), ("l", "json", ()), ("c", "u", ()), ("m", "d:38,38", ())),
)


def json_and_wire(source: Input) -> None:
    """Lines as a column: a broken line is broken for every request, and nulls make rows of all others."""
    flags = source.byte()
    lines = bytes(source.data[source.at :]).split(b"\n")
    offsets = exact(np.cumsum([0, *map(len, lines)], dtype=np.int32).tobytes())
    data, bits = exact(b"".join(lines)), exact(bytes([flags | 1]) * ((len(lines) + 7) >> 3)) if flags & 4 else None
    _, *broken = json_columns.JsonSchema(()).columns(data, offsets, bits)
    for fields in JSON_SCHEMAS:
        schema = json_columns.JsonSchema(fields)
        found, verdict, row, at, size, node = schema.columns(data, offsets, bits)
        if verdict >= json_columns.WRONG_TYPE:
            assert schema.path(node)
            assert 0 < at < at + size < len(lines[row])
            assert broken[0] == json_columns.OK or broken[1] > row
        else:
            assert [verdict, row, at, size, node] == broken
        made, *_ = schema.columns(data, offsets, bits, null_errors=True)
        assert made is not None
        assert len(made) == len(lines)
        assert found is None or found.nbytes == made.nbytes
    ids, starts, ends, _ = wire_format.split(data, offsets, bits, message_indexes=bool(flags & 8))
    rows = np.flatnonzero(ids >= 0)[::-1]
    payloads = wire_format.gather(data, starts, ends, rows).column("payload")
    assert payloads is not None
    assert payloads.to_list() == [bytes(data[starts[row] : ends[row]]) for row in rows]
    with contextlib.suppress(IndexError):
        json_columns.JsonSchema(JSON_SCHEMAS[0]).columns(data, data[: len(data) & ~3], bits)


def message(source: Input) -> None:
    """Bytes that are a message give values that are written, and read again, the same."""
    messages = native_seeds.protocol_messages()
    read = messages[source.byte() % len(messages)]
    version = read.lowest + source.byte() % (read.highest - read.lowest + 1)
    data = source.rest()
    try:
        values, end = read.decode(data, version)
    except MessageException as error:
        values, end = {}, -1 if error.position is None else error.position
    assert 0 <= end <= len(data)
    if not values:
        return
    written = read.encode(values, version)
    assert b"".join(read.encode_parts(values, version)) == written
    again, size = read.decode(exact(written), version)
    assert size == len(written)
    assert read.encode(again, version) == written


TARGETS: Sequence[Callable[[Input], None]] = (
    scan, one_batch, decode, decode_table, walk, searches, checksums, encode, scan, decode, walk, decode_table, client,
    compact, offset_map, compact, json_and_wire, message,
)  # fmt: skip


# --- drivers --------------------------------------------------------------------------------------------


def mutation_loop(seconds: float, seed: int, *, count: int | None = None, save: Path | None = None) -> int:
    """Mutated seeds until the time is up; returns how many inputs ran.

    The latest input is kept in `save`, so that it exists after the process dies."""
    rng = random.Random(seed)
    pool = native_seeds.inputs()
    end = time.monotonic() + seconds
    runs = 0
    while (time.monotonic() < end) if count is None else (runs < count):
        data = native_seeds.mutated(rng, pool)
        if save is not None:
            save.write_text(data.hex() + "\n")
        try:
            fuzz_one(data)
        except BaseException:
            print(f"input {runs} of seed {seed}: {data.hex()}", file=sys.stderr)
            raise
        runs += 1
    return runs


def run_files(paths: Sequence[str]) -> int:
    """The inputs of hex files: one a line, `#` begins a remark."""
    runs = 0
    for path in paths:
        for line in Path(path).read_text().splitlines():
            text = line.partition("#")[0].strip()
            if text:
                fuzz_one(bytes.fromhex(text))
                runs += 1
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="hex files to run instead of new inputs")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None, help="by default the time")
    parser.add_argument("--save", type=Path, help="file for the latest input, to have it after a crash")
    parser.add_argument("--atheris", action="store_true", help="let libFuzzer drive; other arguments are its own")
    args, others = parser.parse_known_args(argv)
    if args.atheris:
        import importlib

        atheris = importlib.import_module("atheris")

        pool = native_seeds.inputs()

        def mutate(data: bytes, size_max: int, seed: int) -> bytes:
            rng = random.Random(seed)
            changed = native_seeds.blind(rng, bytearray(data)) if data and rng.random() < 0.3 else None
            return bytes(native_seeds.mutated(rng, pool) if changed is None else changed)[:size_max]

        atheris.Setup([sys.argv[0], *others, *args.files], fuzz_one, custom_mutator=mutate)
        atheris.Fuzz()
        return 0
    if others:
        parser.error(f"unknown arguments {others}")
    if args.files:
        print(f"{run_files(args.files)} inputs")
        return 0
    seed = int(time.time()) if args.seed is None else args.seed
    runs = mutation_loop(args.minutes * 60, seed, save=args.save)
    print(f"{runs} inputs of seed {seed} in {args.minutes:g} minutes: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
