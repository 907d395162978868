"""Native modules in many threads: they return the same results as in one thread, from shared and from separate buffers.

An object for one thread at a time refuses a second one clearly.  Every field that an append changes is read next to it.
The tests are useful with the interpreter's lock (loops release it); they are made for Python without it and
for ThreadSanitizer.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafkalog
from kafkalog._native.codec import batches, crc32c, records, survivors, validation, wire_format
from kafkalog._native.codec.arrow import RecordColumns
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.codec.json_columns import JsonSchema
from kafkalog._native.codec.latest import SHARES, LatestOffsets
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog._native.state import producers
from kafkalog._native.state.descriptor import Descriptor
from kafkalog.engine.format import arrow, codecs
from kafkalog.engine.format import records as format_records
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.builder import build_batch
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.engine.log.verification import VerificationGuard
from tests.reference.search import offset_end, time_end

THREADS = 4
ROUNDS = int(os.environ.get("KAFKALOG_LIVE_ROUNDS", "20"))


def batch(count: int, **options: Any) -> bytes:
    rows: list[Any] = [(i, b"k%d" % i, b"v" * (i % 50), [("h", b"%d" % i)]) for i in range(count)]
    return build_batch(rows, **options)


def keys_of(count: int) -> RecordColumns:
    data = batch(count)
    table, _, _ = batches.scan(data)
    builder = ColumnBuilder()
    builder.append_table(data, table, decoders=codecs.frame_decoders())
    return builder.finish()


PLAIN = batch(3000)  # long enough for the loops that give the interpreter away
SMALL = batch(5)
ALL_CODECS = b"".join(batch(200, codec=codec, base_offset=200 * codec) for codec in range(5))
OFFSETS = np.arange(2000, dtype=">i4").tobytes()
RULES = validation.OrdinaryRules(1 << 30, True, 10**15, 10**15)
DATING = validation.OrdinaryRules(1 << 30, True, 10**15, 10**15, create_time=False)


def scanned(data: bytes) -> object:
    table, verdict, reached = batches.scan(data)
    headers = [repr(header) for header in batches.headers(data)[0]]
    return table.tolist(), verdict, reached, headers, batches.compute_crc(data), batches.crc_matches(data)


def validated(data: bytes) -> object:
    walk = validation.walk_records(data, 0, None, records.BUFFER, True, True, 0, 1500, 1500)
    placed = []
    for rules in (RULES, DATING):
        found = rules.admit(data, 0)
        assert found is not None
        found.date(7)
        placed.append(b"".join(bytes(part) for part in found.place(9, 3)))
    return walk.verdict, walk.max_timestamp, walk.refusals, placed


def read(data: bytes) -> object:
    header = batches.header_at(data)
    return format_records.records(data, header)


def decoded(data: bytes) -> object:
    return [
        (
            got.offsets.tobytes(),
            got.keys and got.keys.to_list(),
            got.values and got.values.to_list(),
            got.header_lists(),
        )
        for got in arrow.read_columns(data)
    ]


def encoded(data: bytes) -> object:
    ends = np.arange(0, 1001, 10, dtype=np.int32)
    encoder = ColumnEncoder(np.arange(100), (ends, data[:1000]), (ends, data[:1000]))
    rows = [(i, i, b"k", data[i : 2 * i], ((b"h", b"v"),)) for i in range(100)]
    batch, *rest = encoder.encode_batch()
    assert batch is not None
    packed = [each.data for each in arrow.write_batches(encoder, codec=codecs.ZSTD)]
    return batch.data, rest, packed, records.write_records(rows)


def compressed(data: bytes) -> object:
    packed = [codecs.compress(codec, data) for codec in range(1, 5)]
    return packed, [codecs.decompress(codec, part) == data for codec, part in enumerate(packed, 1)]


def searched(data: bytes) -> object:
    targets = np.arange(-3, 2100)
    index, times = offset_end(data, 1000), time_end(data, 600)
    found = [*(index.lookup_many(targets) or ()), *(times.lookup_many(targets) or ())]
    return [column.tobytes() for column in found], [index.lookup(target) for target in range(50)]


def planned(data: bytes) -> object:
    table, _, _ = batches.scan(data)
    plan = batches.IndexPlan(0, 100)
    plan.add_table(table)
    plan.add_headers(batches.headers_from_table(table))
    return plan.error, plan.take(), plan.max_timestamp


def summed(data: bytes) -> object:
    return [crc32c.crc32c(data, implementation=name) for name in crc32c.implementations()], crc32c.crc32(data)


def mapped(data: bytes) -> object:
    known = SkimpyOffsetMap(24 * 1000)
    bounds = np.arange(0, len(data) // 16 * 16 + 1, 16)[:600]
    put = known.put_many(data, bounds, np.arange(len(bounds) - 1), 500)
    return put, known.size, known.probes, bytes(known.get_many(data, bounds)), known.get(data[:16])


def json_columns(data: bytes) -> object:
    ends = np.cumsum([0, *(len(line) for line in data.splitlines(keepends=True))], dtype=np.int32)
    own = JsonSchema((("id", "l", ()), ("text", "u", ()), ("items", "+l", (("item", "g", ()),))))
    found = []
    for schema in (own, JSON_SCHEMA):
        columns, *rest = schema.columns(data, ends)
        assert columns is not None
        text = columns.column("text")
        assert text is not None
        found.append((text.to_list(), columns.nbytes, rest))
    return found, JSON_SCHEMA.columns(data[:-30], np.minimum(ends, len(data) - 30))[1:]


def payloads(data: bytes) -> object:
    framed = b"".join(b"\0\0\0\0%c%s" % (line[:1], line) for line in data.splitlines(keepends=True))
    ends = np.cumsum([0, *(5 + len(line) for line in data.splitlines(keepends=True))], dtype=np.int32)
    ids, starts, stops, _ = wire_format.split(framed, ends)
    made = wire_format.gather(framed, starts, stops, np.argsort(starts)[::-1]).column("payload")
    return ids.tolist(), made and made.to_list()


def compacted(data: bytes) -> object:
    table, _, _ = batches.scan(data)
    known = SkimpyOffsetMap(24 * 1000)
    added = survivors.add_keys(known, data, table, limit=900)
    kept = survivors.Survivors(known, now_ms=1, delete_retention_ms=1)
    taken = [kept.take(data, table)]
    for row, header in enumerate(batches.headers_from_table(table)):
        if header.codec:
            payload = codecs.decompress(header.codec, data[header.position + 61 : header.position + header.size])
            made = kept.take_batch(data, table, row, payload)
            assert made is None or isinstance(made, bool) or len(made[1]) == 61
    return added, known.size, taken, kept.counted(), kept.bytes()


JSON_SCHEMA = JsonSchema((("id", "l", ()), ("text", "u", ()), ("items", "+l", (("item", "g", ()),))))
JSON = b"".join(b'{"id": %d, "text": "%s\\n", "items": [%d.5, 1e3]}\n' % (i, b"x" * (i % 50), i) for i in range(3000))

CASES: list[tuple[Callable[[bytes], object], bytes]] = [
    (scanned, ALL_CODECS),
    (scanned, PLAIN),
    (validated, PLAIN),
    (validated, SMALL),
    (read, PLAIN),
    (read, SMALL),
    (decoded, ALL_CODECS),
    (encoded, PLAIN),
    (compressed, PLAIN),
    (searched, OFFSETS),
    (planned, ALL_CODECS),
    (summed, PLAIN),
    (mapped, PLAIN),
    (compacted, PLAIN),
    (compacted, ALL_CODECS),
    (json_columns, JSON),
    (payloads, JSON),
]


def together(works: list[Callable[[], object]]) -> list[object]:
    """Runs them at once, each in a thread; their answers, or the first error."""
    start = threading.Barrier(len(works))
    answers: list[object] = [None] * len(works)
    errors: list[BaseException] = []

    def run(number: int, work: Callable[[], object]) -> None:
        start.wait()
        try:
            answers[number] = work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize(("work", "data"), CASES, ids=[f"{work.__name__}{len(data)}" for work, data in CASES])
def test_each_alone_in_many_threads(work: Callable[[bytes], object], data: bytes, shared: bool) -> None:
    expected = work(data)

    def again() -> object:
        own = data if shared else bytes(bytearray(data))
        return all(work(own) == expected for _ in range(ROUNDS))

    assert together([again] * THREADS) == [True] * THREADS


def test_all_at_once() -> None:
    expected = [work(data) for work, data in CASES]

    def run_all(first: int) -> object:
        order = [*range(first, len(CASES)), *range(first)]
        return all(CASES[i][0](CASES[i][1]) == expected[i] for _ in range(max(1, ROUNDS // 5)) for i in order)

    works = [lambda first=first: run_all(first) for first in range(0, 3 * THREADS, 3)]
    assert together(works) == [True] * THREADS


def test_shared_objects_are_read_by_many() -> None:
    """Headers, tables, columns and records, made by one thread."""
    memory = MemoryRecords(ALL_CODECS)
    table, _, _ = batches.scan(ALL_CODECS)
    (got,) = arrow.read_columns(ALL_CODECS)
    found = format_records.records(PLAIN, batches.header_at(PLAIN))
    copies = list(found)

    def look() -> object:
        for _ in range(ROUNDS):
            assert [header.at(0).base_offset for header in memory.batches()] == [0, 200, 400, 600, 800]
            assert [header.last_offset for header in batches.headers_from_table(table)] == [199, 399, 599, 799, 999]
            assert got.keys is not None
            assert len(got.keys.to_list()) == len(got.header_lists()) == 1000
            assert int(got.offsets.sum()) == 999 * 500
            schema, array = got.__arrow_c_array__()
            assert schema is not None
            assert array is not None
            assert found == copies
            assert sum(record.size for record in found) == len(PLAIN) - 61
        return True

    assert together([look] * THREADS) == [True] * THREADS


def test_one_thread_at_a_time_means_it() -> None:
    """A builder, an encoder, a plan, a map and its survivors, a map that grows, that threads share: each call is done
    whole or refused, none is mixed."""
    table, _, _ = batches.scan(ALL_CODECS)
    plain, _, _ = batches.scan(PLAIN)
    decoders = codecs.frame_decoders()
    builder = ColumnBuilder()
    ends = np.arange(0, 30001, 10, dtype=np.int32)
    encoder = ColumnEncoder(np.arange(3000), (ends, bytes(30000)), None)
    written, _, _ = encoder.encode_batch()
    assert written is not None
    whole = written.data
    plan = batches.IndexPlan(0, 0)
    known = SkimpyOffsetMap(24 * 5000)
    kept = survivors.Survivors(known, now_ms=1, delete_retention_ms=1)
    last = LatestOffsets(24 * 400)
    keyed = keys_of(300)
    done: list[str] = []
    refused: list[str] = []

    def build() -> None:
        assert builder.append_table(PLAIN, plain, decoders=decoders)[1] == records.OK
        got = builder.finish()
        assert len(got) % 3000 == 0
        assert got.values is not None
        assert len(got.values.to_list()) == len(got)

    def encode() -> None:
        batch, _, _ = encoder.encode_batch()
        assert batch is not None
        assert batch.data == whole
        payload, *_ = encoder.encode()
        with contextlib.suppress(ValueError):  # another thread's payload followed
            assert encoder.packed(payload, whole).data == whole

    def add() -> None:
        plan.add_table(table)
        assert len(plan.take()[0]) % 8 == 0

    def put() -> None:
        survivors.add_keys(known, PLAIN, plain, limit=4000)
        assert known.get_many(b"abcd", np.array([0, 2, 4])) == b"\xff" * 16
        assert known.size <= 3000

    def clean() -> None:
        assert kept.take(PLAIN, plain) <= len(plain)
        batches.headers(kept.bytes())

    def put_last() -> None:
        last.begin(0, SHARES)
        assert last.put_columns(keyed) == 300
        assert len(last) <= 300

    def grow() -> None:
        last.grow(last.memory + 24)

    def get_last() -> None:
        assert len(last.get_many(b"k" * 3000, np.arange(0, 3001, 10))) == 2400
        assert len(last.offsets()) <= 2400

    calls = (build, encode, add, put, clean, put_last, grow, get_last)

    def run() -> object:
        for _ in range(ROUNDS):
            for call in calls:
                try:
                    call()
                except RuntimeError as error:
                    if "another thread is using" not in str(error):
                        raise
                    refused.append(call.__name__)
                else:
                    done.append(call.__name__)
        return True

    assert together([run] * THREADS) == [True] * THREADS
    assert {call.__name__ for call in calls} == set(done)
    assert len(done) + len(refused) == len(calls) * ROUNDS * THREADS
    with contextlib.suppress(RuntimeError):
        builder.finish()


# --- what an append moves, beside it ---------------------------------------------------------------------

APPENDS = 200 + 30 * ROUNDS
NOW_MS = 1_700_000_000_000
SMALL_SEGMENTS = {
    "internal.segment.bytes": "3000",
    "index.interval.bytes": "100",
    "segment.index.bytes": "2400",
    "file.delete.delay.ms": "60000",
}


def fields_of(kind: type) -> list[str]:
    """The native fields and properties of a class, so that new ones are read here too."""
    return [
        name
        for each in kind.__mro__
        for name, value in vars(each).items()
        if inspect.isgetsetdescriptor(value) and not name.startswith("__")
    ]


def read_fields(*things: object) -> None:
    for thing in things:
        for name in fields_of(type(thing)):
            getattr(thing, name)


def test_the_fields_are_found() -> None:
    assert {"entries", "dirty", "channel", "last"} <= set(fields_of(kafkalog.engine.segment.offset_index.OffsetIndex))  # type: ignore[attr-defined]
    assert {"high_watermark_metadata", "waiters"} <= set(fields_of(kafkalog.engine.log.unified_log.UnifiedLog))  # type: ignore[attr-defined]
    assert {"next_offset_metadata", "life"} <= set(fields_of(kafkalog.engine.log.local_log.LocalLog))  # type: ignore[attr-defined]


def read_log(log: kafkalog.Partition) -> None:
    """Every field of a log that is appended to, without its lock."""
    engine = log.engine
    assert engine is not None
    table = engine.producer_state_manager
    segment = engine.active_segment
    read_fields(engine, engine.local_log, table, table._ongoing_txns, table._unreplicated_txns)
    read_fields(segment.log, segment.tail, segment.txn_index, segment.log.open_channel())
    read_fields(segment.offset_index, segment.time_index)
    for txns in (table._ongoing_txns, table._unreplicated_txns):
        assert len(list(txns)) >= 0
        assert txns.get(0) is None or txns.get(0) is not None
    for entry in engine.active_producers.values():
        read_fields(entry)
        assert len(entry.batches()) <= 5
        entry.last_batch()
        entry.find(0, 0)
    assert engine.last_stable_offset <= engine.log_end_offset
    engine.has_late_transaction(NOW_MS)


class _Beside:
    """`work` in one thread; `looks` again and again in others, until it has ended."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def run(self, work: Callable[[], object], *looks: Callable[[], object]) -> None:
        def whole() -> object:
            try:
                work()
            finally:
                self.over.set()
            return True

        def again(look: Callable[[], object]) -> object:
            while not self.over.is_set():
                look()
            look()
            return True

        everybody = [whole, *(lambda look=look: again(look) for look in looks)]
        assert together(everybody) == [True] * len(everybody)


def test_numbers_that_belong_together_are_read_together(base: Path) -> None:
    """Record n has timestamp NOW_MS + n and is alone in its batch, so that one number implies all others."""
    with kafkalog.open_log(base / "logs", "t-0", config=SMALL_SEGMENTS) as log:
        engine, writer = log.engine, log.writer("w")
        assert engine is not None
        entry_of = engine.producer_state_manager.last_entry

        def append() -> None:
            for number in range(APPENDS):
                assert writer.append(b"v%d" % number, timestamp=NOW_MS + number) == number

        def pairs() -> None:
            segment = engine.active_segment
            for found in (segment.tail.largest_timestamp, segment.time_index.last):
                if found is not None and found[0] >= 0:
                    assert found[0] - NOW_MS == found[1]
            end = engine.local_log.next_offset_metadata
            assert engine.high_watermark <= engine.log_end_offset
            assert len(end) == 3
            assert end.segment_base_offset <= end.message_offset

        def producer() -> None:
            entry = entry_of(writer.producer_id)
            if entry is None:
                return
            known = entry.batches()
            assert [each[0] for each in known] == list(range(known[0][0], known[0][0] + len(known)))
            assert all(sequence == offset == timestamp - NOW_MS for sequence, offset, _, timestamp in known)

        def find() -> None:
            """In a segment that is appended to, and rolled, meanwhile."""
            end = engine.high_watermark
            for offset in {0, end // 2, end - 1} - {-1}:
                if offset < end:
                    assert log.offset_for_time(NOW_MS + offset) == offset
                    first = engine.read(offset, 1, FetchIsolation.HIGH_WATERMARK).records
                    assert first.batches()[0].base_offset == offset
            segment = engine.active_segment
            assert segment.offset_index.lookup(end).offset <= engine.log_end_offset
            assert segment.time_index.lookup(NOW_MS + end).offset <= engine.log_end_offset

        def everything() -> None:
            read_log(log)

        _Beside().run(append, pairs, producer, find, find, everything)
        assert engine.number_of_segments > 2


def test_transactions_beside_readers(base: Path) -> None:
    """Every second one is aborted: the transaction index, the open transactions, the last stable offset."""
    with kafkalog.open_log(base / "logs", "t-0", config=SMALL_SEGMENTS) as log:
        engine = log.engine
        assert engine is not None

        def append() -> None:
            for number in range(APPENDS // 8):
                with contextlib.suppress(ZeroDivisionError), log.transaction("job") as transaction:
                    transaction.append(b"committed" if number % 2 else b"aborted")
                    log.append(b"plain")
                    transaction.append(b"committed" if number % 2 else b"aborted")
                    if number % 2 == 0:
                        raise ZeroDivisionError

        def committed() -> None:
            start = max(0, engine.last_stable_offset - 40)
            values = {record.value for record in log.records(start, isolation="read_committed")}
            assert b"aborted" not in values

        def index() -> None:
            for segment in engine.log_segments():
                aborted = segment.txn_index.all_aborted_txns()
                assert aborted == sorted(aborted, key=lambda txn: txn.last_offset)

        def everything() -> None:
            read_log(log)

        _Beside().run(append, committed, index, everything, everything)


def test_who_waits_for_the_high_watermark_wakes(base: Path) -> None:
    with kafkalog.open_log(base / "logs", "t-0", config=SMALL_SEGMENTS) as log:
        engine = log.engine
        assert engine is not None

        def append() -> object:
            for _ in range(APPENDS):
                log.append(b"v")
            return True

        def wait(timeout_s: float) -> object:
            at = 0
            while at < APPENDS:
                found = engine.await_high_watermark(at, timeout_s)
                assert found >= at
                assert found > at or timeout_s < 1, f"nobody woke who waited at {at}"
                at = found
            return True

        # Waiters with a short timeout leave the list while others are woken.
        waits = [lambda seconds=seconds: wait(seconds) for seconds in (60.0, 60.0, 0.0002, 0.001)]
        assert together([append, *waits]) == [True] * 5


def test_a_producer_entry_and_a_map_beside_readers() -> None:
    entry = producers.ProducerEntry(1, 0, 0, -1, None)
    table: producers.OffsetMap[int] = producers.OffsetMap()

    def change() -> None:
        for number in range(10 * APPENDS):
            entry.add_batch(number // 1000, number, number, 0, number)
            if number % 7 == 0:
                entry.update(producers.ProducerEntry(1, entry.producer_epoch, number, number, number))
                entry.end_transaction(entry.producer_epoch, 0, number)
            table.put(number, number)
            if number % 3:
                table.pop(number - 1)

    def look() -> None:
        read_fields(entry, table)
        known = entry.batches()
        assert [each[0] for each in known] == [each[1] for each in known] == [each[3] for each in known]
        assert not known or known[-1][0] - known[0][0] == len(known) - 1
        last, found = entry.last_batch(), entry.find(3, 3)
        assert last is None or last[0] == last[3]
        assert found is None or found[:2] == (3, 3)
        there = list(table)
        assert there == sorted(there)
        assert table.get(0) in (0, None)
        assert len(table) >= 0

    _Beside().run(change, look, look, look)


def test_of_many_who_close_a_file_one_does(base: Path) -> None:
    path = str(base / "file")
    Path(path).write_bytes(bytes(range(256)))
    for _ in range(ROUNDS):
        file = Descriptor(path, os.open(path, os.O_RDWR))

        def read(file: Descriptor = file) -> object:
            with contextlib.suppress(OSError):  # closed under it
                while not file.closed:
                    assert file.pread(4, 8) == bytes([8, 9, 10, 11])
            return None

        def close(file: Descriptor = file) -> object:
            return file.close()

        together([read, close, close, close])
        assert file.fileno() == -1


def test_guards_of_verification_are_unequal() -> None:
    def make() -> object:
        return [VerificationGuard() for _ in range(20 * ROUNDS)]

    made = [guard for guards in together([make] * THREADS) for guard in guards]  # type: ignore[attr-defined]
    assert len(set(made)) == len(made)


FIRST_USE = """
import threading, zlib
from kafkalog._native.codec import batches, crc32c
start = threading.Barrier(8)
data, wrong = bytes(range(256)) * 64, []

def run():
    start.wait()
    if crc32c.crc32c(b"123456789") != 0xE3069283 or crc32c.crc32(data) != zlib.crc32(data):
        wrong.append(1)

threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong
"""


def test_the_first_checksum_of_a_process_in_many_threads() -> None:
    for _ in range(5):
        subprocess.run([sys.executable, "-c", FIRST_USE], check=True)


LOCK = """
import sys
is_on = getattr(sys, "_is_gil_enabled", lambda: True)
import numpy
before = is_on()
import kafkalog
from kafkalog._native.codec import arrow, batches, crc32c, decode, encode, java_hash, json_text
from kafkalog._native.state import descriptor, fetch, log_end
from kafkalog._native.codec import murmur2, octets, records, validation
from kafkalog._native.state import producers, search, tail
assert is_on() == before
"""


def test_the_native_modules_do_not_bring_the_lock_back() -> None:
    """On a free-threaded Python; any other has it all the time."""
    subprocess.run([sys.executable, "-W", "error", "-c", LOCK], check=True)
