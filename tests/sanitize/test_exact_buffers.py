"""Every native entry point of the batch layer on blocks of exactly their size: truncated anywhere, damaged anywhere.

The asserts are few on purpose (tests/unit has them); under AddressSanitizer each read is one.
"""

from __future__ import annotations

import contextlib
import random
import struct

import pytest

from kafkalog._native.codec import batches, crc32c, json_text, murmur2
from kafkalog._native.state import fetch, search
from tests.reference.batches import legacy_batch, scan, v2_batch
from tests.reference.crc import crc32c as plain_crc32c
from tests.reference.search import offset_end, time_end
from tests.sanitize.exact import exact

BYTES = b"".join(
    [
        v2_batch(0, b"a" * 30, count=2, producer_id=1, producer_epoch=0, base_sequence=0),
        legacy_batch(2, b"", magic=0),
        legacy_batch(3, b"b" * 20),
        v2_batch(4, b"c" * 250, attributes=0x30),
        v2_batch(5, b""),
    ]
)
FRAMINGS = pytest.mark.parametrize("framing", [batches.FRAMING_BUFFER, batches.FRAMING_FILE])


@pytest.mark.parametrize("implementation", crc32c.implementations())
def test_checksums_of_every_length(implementation: str) -> None:
    noise = random.Random(2).randbytes(9000)
    for length in (*range(700), 1023, 1024, 1025, 8704, 9000):
        assert crc32c.crc32c(exact(noise[:length]), implementation=implementation) == crc32c.crc32c(noise[:length])
    assert crc32c.crc32c(exact(noise), implementation=implementation) == plain_crc32c(noise)
    for length in (*range(300), 9000):
        crc32c.crc32(exact(noise[:length]))


def test_hashes_and_texts_of_every_length() -> None:
    noise = random.Random(2).randbytes(300) + "größe \U0001f600".encode() * 10
    for length in range(len(noise)):
        data = noise[-length:] if length else b""
        assert murmur2.murmur2(exact(data)) == murmur2.murmur2(data)
        offsets = struct.pack("=4i", 0, length // 2, length // 2, length)
        for in_base64 in (False, True):
            json_text.json_fields(b"", b"k", exact(data), exact(offsets), exact(b"\x05"), in_base64=in_base64)


@FRAMINGS
def test_walks_over_a_segment_cut_at_every_byte(framing: int) -> None:
    for end in range(len(BYTES) + 1):
        data = exact(BYTES[:end])
        table, why, reached = batches.scan(data, framing=framing)
        rows, *verdict = scan(BYTES[:end], framing=framing)
        assert (len(table), [why, reached]) == (len(rows), verdict)
        batches.headers(data, framing=framing)


@FRAMINGS
def test_walks_over_a_damaged_segment(framing: int) -> None:
    for bit in range(8 * len(BYTES)):
        damaged = bytearray(BYTES)
        damaged[bit // 8] ^= 1 << bit % 8
        data = exact(bytes(damaged))
        batches.scan(data, framing=framing, stop_at_bad_crc=False)
        batches.headers(data, framing=framing)


@FRAMINGS
@pytest.mark.parametrize("seed", range(20))
def test_walks_over_noise(framing: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        noise = bytearray(rng.randbytes(rng.randrange(200)))
        if len(noise) > 17:
            # Half-plausible: a length near the real one, a magic of each kind.
            struct.pack_into(">i", noise, 8, rng.choice([len(noise) - 12, len(noise) - 11, 14, 48, 49, 2**31 - 1]))
            noise[16] = rng.choice([0, 1, 2, 3, 255])
        batches.scan(exact(noise), framing=framing, stop_at_bad_crc=False, check_crc=rng.random() < 0.8)
        batches.headers(exact(noise), framing=framing)


def test_searches_of_a_file_cut_and_damaged() -> None:
    for end in range(len(BYTES) + 1):
        for target in (-1, 0, 4, 5, 2**63 - 1):
            # bytes of a pread have space after them: the walk itself must not pass the bytes that were read
            file = Bytes(BYTES[:end])
            fetch.batch_with_offset(file, target, 0, len(BYTES))
            fetch.batch_with_offset(file, target, 0, end)


class Bytes:
    """A file of these."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, count: int, at: int) -> bytes:
        return self.data[at : at + count]


def test_one_batch_cut_at_every_byte() -> None:
    stamp = {"last_offset": 5, "timestamp_type": 1}
    for batch in (v2_batch(0, b"abc"), legacy_batch(0, b"abc"), v2_batch(0, b"x" * 9000)[:70]):
        for end in range(len(batch) + 1):
            data = exact(batch[:end])
            for call, arguments, keywords in (
                (batches.header_at, (0,), {}),
                (batches.header_at, (end,), {}),
                (batches.compute_crc, (0,), {}),
                (batches.compute_crc, (0, end), {}),
                (batches.crc_matches, (0, 2**31 - 1), {}),
                (batches.restamped_header, (0,), stamp),
                (batches.producer_header, (0, 5, 1, 7, True), {}),
            ):
                with contextlib.suppress(ValueError):
                    call(data, *arguments, **keywords)


def test_index_plans() -> None:
    table = batches.scan(exact(BYTES))[0]
    for interval in (0, 60, 1000):
        plan = batches.IndexPlan(0, interval)
        for _ in range(50):  # more entries than the first block of memory holds
            plan.add_table(table)
        plan.add_headers(batches.headers_from_table(table))
        plan.add_last_time_entry()
        plan.take()


def test_searches() -> None:
    rng = random.Random(7)
    for entries in (0, 1, 2, 1023, 1024, 1025, 1026, 2000):
        offsets = exact(rng.randbytes(8 * entries))
        times = exact(rng.randbytes(12 * entries))
        targets = [rng.randrange(-(2**31), 2**31) for _ in range(200)] + [-(2**63), 2**63 - 1]
        by_offset, by_time = offset_end(offsets, entries, 2**62), time_end(times, entries)
        for target in targets:
            for upper in (False, True):
                by_offset.find(search.OFFSET, target, upper)
                by_offset.find(search.BYTE_POSITION, target, upper)
                by_time.find(search.TIME, target, upper)
                by_time.find(search.TIME_OFFSET, target, upper)
            by_offset.lookup(target)
            by_time.lookup(target)
            for index in (by_offset, by_time):
                with contextlib.suppress(IndexError):
                    index.lookup_among(2 * entries, target)
        by_offset.lookup_many(targets)
        by_time.lookup_many(targets)
