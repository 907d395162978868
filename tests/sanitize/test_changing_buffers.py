"""Every native entry point, over bytes that another thread keeps changing: any answer will do, and no bad access.

Under the sanitizers (`make sanitize`, KAFKALOG_CHURN_SECONDS seconds each) the buffers lie in blocks of exactly their
size.  Without them a bad access shows as a crash at best.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kafkalog._native.codec import batches, crc32c, decode, encode, json_text, murmur2, records, validation, wire_format
from kafkalog._native.codec.json_columns import JsonSchema
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog._native.codec.survivors import Survivors, add_keys
from kafkalog._native.state import search
from kafkalog.engine.format import arrow, codecs
from kafkalog.engine.format import records as format_records
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.errors import KafkalogError
from tests.fuzz.native_seeds import JSON_LINES, message_values, protocol_messages
from tests.fuzz.native_target import JSON_SCHEMAS
from tests.reference.legacy import build_batch
from tests.reference.search import offset_end, time_end
from tests.sanitize.churn import churning
from tests.sanitize.exact import exact

SECONDS = float(os.environ.get("KAFKALOG_CHURN_SECONDS", "0.2"))
ORDINARY = (KafkalogError, ValueError, IndexError, OverflowError, TypeError, MemoryError)


def rows(count: int, key: bytes | None, headers: int) -> list[Any]:
    return [(i, key, b"v" * (i % 40), [("h", b"%d" % i)] * headers) for i in range(count)]


def batch(count: int, **options: Any) -> bytes:
    key = options.pop("key", b"k")
    headers = options.pop("headers", 1)
    return build_batch(rows(count, key, headers), **options)


def keyed(count: int, **options: Any) -> bytes:
    """Keys for some of the records, and a tombstone here and there."""
    made = [(i, b"key%d" % (i % 97), None if i % 50 == 7 else b"v" * (i % 40), ()) for i in range(count)]
    return build_batch(made, **options)


def variants_of(first: bytes, *others: bytes) -> list[bytes]:
    """As long as the first: the others, noise, zeros, the first with another magic, length and count."""
    size = len(first)
    tricks = []
    for at, value in (
        (16, b"\x01"),
        (16, b"\x03"),
        (8, b"\x7f\xff\xff\xff"),
        (8, b"\0\0\0\x0e"),
        (57, b"\x7f\xff\xff\xff"),
    ):
        tricks.append((first[:at] + value + first[at + len(value) :])[:size])
    noise = random.Random(7).randbytes(size)
    return [first, first, *[other[:size].ljust(size, b"\0") for other in others], noise, bytes(size), *tricks]


SMALL = batch(20)
PLAIN = batch(3000)  # long enough for the loops that give the interpreter away
KEYLESS = batch(3000, key=None)
SEVERAL = b"".join((batch(40), batch(30, magic=1, headers=0, base_offset=40), batch(40, base_offset=70)))
LEGACY = b"".join(batch(1, magic=1, headers=0, key=b"", base_offset=i) for i in range(200))
COMPRESSED = b"".join(batch(300, codec=codec, base_offset=300 * codec) for codec in range(1, 5))


KEYED = b"".join(keyed(40, base_offset=40 * i) for i in range(40))


@contextlib.contextmanager
def changing(first: bytes, *others: bytes) -> Iterator[memoryview]:
    view = exact(first)
    with churning(view, variants_of(first, *others)):
        yield view


def again_and_again(step: Callable[[], object]) -> int:
    """Calls `step` until the time is over; how often it had an answer."""
    answers = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(*ORDINARY):
            step()
            answers += 1
    return answers


@pytest.mark.parametrize("data", [SMALL, PLAIN, SEVERAL, LEGACY], ids=["small", "large", "mixed", "legacy"])
def test_scans_and_headers(data: bytes) -> None:
    with changing(data, KEYLESS, SEVERAL) as view:

        def step() -> None:
            for framing in (batches.FRAMING_FILE, batches.FRAMING_BUFFER):
                table, _, reached = batches.scan(view, framing=framing, stop_at_bad_crc=False)
                assert 0 <= reached <= len(view)
                assert (table["position"] + table["size"] <= len(view)).all()
                batches.headers(view, framing=framing)
                batches.headers_from_table(table)

        assert again_and_again(step) > 0


@pytest.mark.parametrize("data", [SMALL, PLAIN, LEGACY[:30]], ids=["small", "large", "legacy"])
def test_one_batch(data: bytes) -> None:
    with changing(data, KEYLESS) as view:
        end = max(0, len(view) - 30)
        offsets = struct.pack("=4i", 0, len(view) // 3, len(view) // 3, len(view))
        steps: list[Callable[[], object]] = [
            lambda: batches.header_at(view),
            lambda: batches.header_at(view, end),
            lambda: batches.compute_crc(view),
            lambda: batches.crc_matches(view, 0, len(view)),
            lambda: batches.restamped_header(view, max_timestamp=5, timestamp_type=1),
            lambda: batches.producer_header(view, 0, 5, 1, 7, True),
            lambda: crc32c.crc32c(view),
            lambda: crc32c.crc32(view),
            lambda: murmur2.murmur2(view),
            lambda: json_text.json_fields(b",", b"value", view, offsets),
            lambda: json_text.json_fields(b",", b"value", b"x" * 100, view[: len(view) // 4 * 4], view),
        ]

        def step() -> None:
            for call in steps:
                with contextlib.suppress(*ORDINARY):
                    call()

        assert again_and_again(step) > 0


@pytest.mark.parametrize("first", [0, 2], ids=["json", "wire format"])
def test_json_and_wire_format(first: int) -> None:
    lines = b"\n".join(JSON_LINES[first:] + JSON_LINES[:first])
    ends = np.cumsum([0, *(len(line) + 1 for line in lines.split(b"\n"))], dtype=np.int32)
    ends[-1] -= 1
    schemas = list(map(JsonSchema, JSON_SCHEMAS))
    with changing(lines, *JSON_LINES) as view, changing(ends.tobytes(), bytes(len(ends) * 4)) as places:

        def step() -> None:
            for schema in schemas:
                schema.columns(view, ends, null_errors=True)
                schema.columns(view, ends)
            ids, starts, stops, _ = wire_format.split(view, ends, message_indexes=True)
            wire_format.gather(view, starts, stops, np.flatnonzero(ids >= 0))
            with contextlib.suppress(IndexError):
                schemas[0].columns(view, places, null_errors=True)

        assert again_and_again(step) > 0


@pytest.mark.parametrize("name", ["FetchResponse", "MetadataResponse", "DescribeGroupsResponse"])
def test_messages(name: str) -> None:
    """Texts, lengths, counts and tags that change while they are read."""
    rng = random.Random(1)
    (message,) = (each for each in protocol_messages() if each.name == name)
    version = message.highest
    first, second = (message.encode(message_values(rng, message.type, version), version) * 3 for _ in range(2))
    size = len(first)
    with changing(first, second.ljust(size, b"\x01")[:size], b"\xff" * size, b"\x02" * size) as view:

        def step() -> None:
            for at in range(0, size, 7):
                with contextlib.suppress(*ORDINARY):
                    message.decode(view, version, at=at)

        assert again_and_again(step) > 0


@pytest.mark.parametrize("reader", [records.BUFFER, records.STREAM, records.SKIP])
@pytest.mark.parametrize("data", [SMALL, KEYLESS], ids=["small", "large"])
def test_validation(data: bytes, reader: int) -> None:
    """Records with keys turn into records without, which are refused: more of them from one walk to the next."""
    rules = validation.OrdinaryRules(1 << 30, True, 10**15, 10**15)
    dating = validation.OrdinaryRules(1 << 30, False, 10**15, 10**15, create_time=False)
    with changing(data, PLAIN, SMALL) as view:

        def step() -> None:
            walk = validation.walk_records(view, 0, None, reader, True, True, 0, 10**15, 10**15)
            assert walk.refusals is None or all(0 <= row[0] < walk.record_count for row in walk.refusals)
            validation.walk_records(SMALL, 0, view, reader, True, True, 0, 10**15, 10**15)
            for each in (rules, dating):
                found = each.admit(view, 0)
                if found is None:
                    continue
                found.date(5)
                written = b"".join(found.place(7, 1))
                assert len(written) == len(view)
                assert int.from_bytes(written[8:12], "big") == len(view) - 12
                found.check_payload(view[61:], 1 << 30)

        assert again_and_again(step) > 0


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("data", [SMALL[61:], PLAIN[61:]], ids=["small", "large"])
def test_records_and_columns(data: bytes, streaming: bool) -> None:
    with changing(data, KEYLESS[61:]) as view:

        def step() -> None:
            found, *_ = records.read_records(view, 3000, 0, 0, None, 0, streaming, 1 << 30)
            assert len(found) <= 3000
            builder = decode.ColumnBuilder(timestamp_types=True, null_empty_headers=True)
            builder.append_payload(view, 3000, 0, 0, streaming=streaming)
            got = builder.finish()
            assert len(got.values.to_list()) == len(got)
            got.header_lists()

        assert again_and_again(step) > 0


@pytest.mark.parametrize("data", [SEVERAL, COMPRESSED, PLAIN], ids=["mixed", "compressed", "plain"])
def test_tables_of_changing_bytes(data: bytes) -> None:
    table, _, _ = batches.scan(data, check_crc=False)
    with changing(data, KEYLESS, COMPRESSED) as view:

        def step() -> None:
            for columns_of in arrow.read_columns(view, table):
                assert len(columns_of) >= 0

        again_and_again(step)  # whole answers are rare, and need not come


@pytest.mark.parametrize("data", [SEVERAL, COMPRESSED], ids=["mixed", "compressed"])
def test_changing_tables(data: bytes) -> None:
    sound, _, _ = batches.scan(data, check_crc=False)
    held = exact(sound.tobytes())
    table = np.frombuffer(held, batches.BATCH_DTYPE)
    buffer = exact(data)
    wild = [sound.tobytes(), random.Random(3).randbytes(len(held)), b"\xff" * len(held)]
    for field, value in (("position", len(data) - 1), ("size", 1 << 30), ("size", 61), ("record_count", 1 << 30)):
        other = sound.copy()
        other[field] = value
        wild.append(other.tobytes())
    with churning(held, wild):

        def step() -> None:
            builder = decode.ColumnBuilder()
            builder.append_table(buffer, table, decoders=codecs.frame_decoders())
            builder.finish()
            plan = batches.IndexPlan(0, 1)
            plan.add_table(table)
            assert len(plan.take()[0]) % 8 == 0
            batches.headers_from_table(table)

        assert again_and_again(step) > 0


def inflated(codec: int, body: memoryview) -> Any:
    """A decompressed body, a part of the body, or nothing."""
    try:
        return codecs.decompress(codec, body) if len(body) % 3 else body[: len(body) // 2] or None
    except KafkalogError:
        return None


def compacted(data: Any, table: Any) -> None:
    """Both walks of a pass, by rows and batch by batch; what stays can be scanned, or bytes changed under it."""
    known = SkimpyOffsetMap(24 * 150)
    row, is_full, read = add_keys(known, data, table, limit=140)
    assert 0 <= row <= len(table)
    assert known.size <= 140
    assert read >= 0
    assert is_full in (False, True)
    assert 0 <= add_keys(known, data, table, limit=140, inflate=inflated)[0] <= len(table)
    assert known.size <= 140
    survivors = Survivors(known, now_ms=5, delete_retention_ms=7, keep_ends=[39, 1000])
    survivors.take(data, table, room=30_000, inflate=inflated, deflate=lambda codec, records: records)
    taken = survivors.take(data, table, room=30_000)
    assert 0 <= taken <= len(table)
    for at in range(min(taken, len(table)), min(taken + 3, len(table))):
        made = survivors.take_batch(data, table, at)
        if isinstance(made, tuple):
            survivors.add_batch(made[1], made[0])
    for at in range(min(2, len(table))):
        made = survivors.take_batch(data, table, at, data[61:400])
        if isinstance(made, tuple):
            survivors.add_batch(made[1], made[0])
    assert survivors.size == len(survivors.bytes())
    assert all(number >= 0 for number in survivors.counted())


@pytest.mark.parametrize(
    "data", [KEYED, SEVERAL, COMPRESSED, keyed(9000)], ids=["keyed", "mixed", "compressed", "in parts"]
)
def test_compaction(data: bytes) -> None:
    table, _, _ = batches.scan(data, check_crc=False)
    with changing(data, KEYED, KEYLESS) as view:
        assert again_and_again(lambda: compacted(view, table)) > 0


@pytest.mark.parametrize("data", [KEYED, SEVERAL], ids=["keyed", "mixed"])
def test_compaction_by_changing_tables(data: bytes) -> None:
    """Also bytes that were just read belong to another batch now."""
    sound, _, _ = batches.scan(data, check_crc=False)
    held = exact(sound.tobytes())
    table = np.frombuffer(held, batches.BATCH_DTYPE)
    buffer = exact(data)
    wild = [sound.tobytes()] * 3 + [sound[::-1].tobytes(), random.Random(3).randbytes(len(held))]
    for field, value in (("position", len(data) - 61), ("size", 1 << 30), ("size", 61), ("record_count", 1 << 30)):
        other = sound.copy()
        other[field] = value
        wild.append(other.tobytes())
    with churning(held, wild):
        assert again_and_again(lambda: compacted(buffer, table)) > 0


def test_a_map_of_changing_columns() -> None:
    count = 700
    data = exact(b"k" * 4 * count)
    sound = np.arange(0, 4 * (count + 1), 4, dtype=np.int64)
    bounds, offsets = exact(sound.tobytes()), exact(np.arange(count).tobytes())
    far = np.where(np.arange(count + 1) % 3 == 0, 1 << 62, sound)
    wild = [*[sound.tobytes()] * 60, far.tobytes()]
    known = SkimpyOffsetMap(24 * 900)
    with contextlib.ExitStack() as stack:
        stack.enter_context(churning(bounds, wild))
        stack.enter_context(churning(offsets, [bytes(offsets), b"\xff" * len(offsets)]))
        stack.enter_context(churning(data, [bytes(data), random.Random(2).randbytes(len(data))]))

        def step() -> None:
            known.clear()
            assert known.put_many(data, bounds, offsets, 600) <= count
            assert known.size <= 600
            assert len(known.get_many(data, bounds)) == 8 * count

        assert again_and_again(step) > 0


def test_encoding_columns_that_change() -> None:
    count = 200
    names = exact(b"n" * 2 * count)
    ends = [exact(np.arange(0, 2 * (count + 1), 2, dtype=np.int32).tobytes()) for _ in range(3)]
    short = np.zeros(count + 1, np.int32).tobytes()
    far = (np.arange(count + 1, dtype=np.int32) // (count // 2) * 2 * count).tobytes()
    odd = np.full(count + 1, -5, np.int32).tobytes()
    arrays = [np.frombuffer(end, np.int32) for end in ends]
    times = exact(bytes(8 * count))
    numbers = np.frombuffer(times, np.int64)
    entries = np.arange(2 * count + 1, dtype=np.int32)
    texts = (arrays[0], names)
    encoder = encode.ColumnEncoder(numbers, texts, texts, (arrays[1], (entries, names), (entries, names)))
    by_entry = encode.ColumnEncoder(
        numbers, None, None, (np.arange(count + 1, dtype=np.int64), (arrays[2], names), (arrays[2], names)), numbers
    )
    with contextlib.ExitStack() as stack:
        for end in ends:
            stack.enter_context(churning(end, [bytes(end), bytes(end), short, far, odd]))
        stack.enter_context(churning(times, [bytes(8 * count), np.arange(count).tobytes(), b"\xff" * 8 * count]))

        def step() -> None:
            for it in (encoder, by_entry):
                batch, _, _ = it.encode_batch()
                if batch is not None:
                    written = batch.data
                    header = batches.header_at(written)
                    assert header.size == len(written)
                    assert format_records.records(written, header)
                it.encode()

        assert again_and_again(step) > 0


def test_searches() -> None:
    index = exact(np.arange(1200, dtype=">i4").tobytes())
    noise = [bytes(index), random.Random(5).randbytes(len(index)), b"\xff" * len(index)]
    targets = np.arange(-5, 1300)
    by_offset, by_time = offset_end(index, 600), time_end(index, 400)
    with churning(index, noise):

        def step() -> None:
            for target in range(0, 1000, 100):
                for column in (search.OFFSET, search.BYTE_POSITION):
                    assert -1 <= by_offset.find(column, target, True) < 600
                for column in (search.TIME, search.TIME_OFFSET):
                    assert -1 <= by_time.find(column, target) < 400
                by_offset.lookup(target)
            by_offset.lookup_many(targets)
            by_time.lookup_many(targets)

        assert again_and_again(step) > 0


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD])
def test_compressed_payloads(codec: int) -> None:
    data = batch(300, codec=codec)
    with changing(data, batch(200, codec=codec)) as view:

        def step() -> None:
            with contextlib.suppress(KafkalogError):
                codecs.decompress(codec, view[61:], max_bytes=1 << 20)
            for header in MemoryRecords(view).batches():
                with contextlib.suppress(KafkalogError):
                    format_records.records(view, header, max_bytes=1 << 20)

        again_and_again(step)
