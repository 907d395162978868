"""Native modules in many threads: the same answers as in one, from shared and from own buffers, and clear refusals
where an object takes one thread at a time.

Of use with the interpreter's lock (loops give it away), meant for free-threaded Python, and for ThreadSanitizer.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kafkalog._native import batches, columns, crc32c, records, search, validation
from kafkalog.format import arrow, codecs
from kafkalog.format import records as format_records
from kafkalog.format.batch import MemoryRecords
from kafkalog.format.builder import build_batch

THREADS = 4
ROUNDS = int(os.environ.get("KAFKALOG_LIVE_ROUNDS", "20"))


def batch(count: int, **options: Any) -> bytes:
    rows: list[Any] = [(i, b"k%d" % i, b"v" * (i % 50), [("h", b"%d" % i)]) for i in range(count)]
    return build_batch(rows, **options)


PLAIN = batch(3000)  # long enough for the loops that give the interpreter away
SMALL = batch(5)
ALL_CODECS = b"".join(batch(200, codec=codec, base_offset=200 * codec) for codec in range(5))
OFFSETS = np.arange(2000, dtype=">i4").tobytes()
RULES = validation.BatchRules(1 << 30, True, 10**15, 10**15)


def scanned(data: bytes) -> object:
    table, verdict, reached = batches.scan(data)
    headers = [repr(header) for header in batches.headers(data)[0]]
    return table.tolist(), verdict, reached, headers, batches.compute_crc(data), batches.crc_matches(data)


def validated(data: bytes) -> object:
    walk = validation.walk_records(data, 0, None, validation.BUFFER, True, True, 0, 1500, 1500)
    assigned = validation.assign_plain(data, 0, 7, 1, True, False, True, 0, 10**15, 10**15)
    found = validation.client_batch(data, RULES, 0)
    assert assigned is not None
    assert found is not None
    placed = b"".join(bytes(part) for part in found.place(9, 3))
    return walk.verdict, walk.max_timestamp, walk.refusals, assigned[0], assigned[2:], placed


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
    encoder = columns.ColumnEncoder(np.arange(100), (ends, data[:1000]), (ends, data[:1000]))
    rows = [(i, i, b"k", data[i : 2 * i], ((b"h", b"v"),)) for i in range(100)]
    return encoder.encode_batch(), list(arrow.write_batches(encoder, codec=codecs.ZSTD)), records.write_records(rows)


def compressed(data: bytes) -> object:
    packed = [codecs.compress(codec, data) for codec in range(1, 5)]
    return packed, [codecs.decompress(codec, part) == data for codec, part in enumerate(packed, 1)]


def searched(data: bytes) -> object:
    targets = np.arange(-3, 2100)
    found = [search.find_offsets(data, 1000, 0, targets), search.find_timestamps(data, 600, targets)]
    return [slots.tobytes() for slots in found], [search.lookup_offset(data, 1000, 0, target) for target in range(50)]


def planned(data: bytes) -> object:
    table, _, _ = batches.scan(data)
    plan = batches.IndexPlan(0, 100)
    plan.add_table(table)
    plan.add_headers(batches.headers_from_table(table))
    return plan.error, plan.take(), plan.max_timestamp


def summed(data: bytes) -> object:
    return [crc32c.crc32c(data, implementation=name) for name in crc32c.implementations()], crc32c.crc32(data)


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
    """A builder, an encoder, a plan that threads share: each call is done whole or refused, none is mixed."""
    table, _, _ = batches.scan(ALL_CODECS)
    plain, _, _ = batches.scan(PLAIN)
    decoders = codecs.frame_decoders()
    builder = columns.ColumnBuilder()
    ends = np.arange(0, 30001, 10, dtype=np.int32)
    encoder = columns.ColumnEncoder(np.arange(3000), (ends, bytes(30000)), None)
    whole = encoder.encode_batch()
    plan = batches.IndexPlan(0, 0)
    done: list[str] = []
    refused: list[str] = []

    def build() -> None:
        assert builder.append_table(PLAIN, plain, decoders=decoders)[1] == columns.OK
        got = builder.finish()
        assert len(got) % 3000 == 0
        assert got.values is not None
        assert len(got.values.to_list()) == len(got)

    def encode() -> None:
        assert encoder.encode_batch() == whole

    def add() -> None:
        plan.add_table(table)
        assert len(plan.take()[0]) % 8 == 0

    def run() -> object:
        for _ in range(ROUNDS):
            for call in (build, encode, add):
                try:
                    call()
                except RuntimeError as error:
                    if "another thread is at work" not in str(error):
                        raise
                    refused.append(call.__name__)
                else:
                    done.append(call.__name__)
        return True

    assert together([run] * THREADS) == [True] * THREADS
    assert {"build", "encode", "add"} == set(done)
    assert len(done) + len(refused) == 3 * ROUNDS * THREADS
    with contextlib.suppress(RuntimeError):
        builder.finish()


FIRST_USE = """
import threading, zlib
from kafkalog._native import batches, crc32c
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
from kafkalog._native import batches, columns, crc32c, descriptor, octets, producers, records, search, tail, validation
assert is_on() == before
"""


def test_the_native_modules_do_not_bring_the_lock_back() -> None:
    """On a free-threaded Python; any other has it all the time."""
    subprocess.run([sys.executable, "-W", "error", "-c", LOCK], check=True)
