"""Every implementation that this CPU runs, against known answers, the `crc32c` package and zlib."""

from __future__ import annotations

import random
import zlib

import crc32c as peer
import pytest

from kafkalog._native.codec import crc32c as native
from tests.reference import crc as reference

NOISE = random.Random(1).randbytes(1 << 17)
EACH = pytest.mark.parametrize("implementation", native.implementations())

# RFC 3720 B.4, and the check value of the CRC catalogue.
KNOWN = [
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"", 0),
]


@EACH
@pytest.mark.parametrize(("data", "want"), KNOWN)
def test_known_answers(implementation: str, data: bytes, want: int) -> None:
    assert native.crc32c(data, implementation=implementation) == want
    assert reference.crc32c(data) == want


@EACH
def test_every_length_and_alignment(implementation: str) -> None:
    view = memoryview(NOISE)
    for length in range(1101):
        # All alignments meet all lengths modulo 64 over the run; short ones meet every alignment.
        for start in range(64) if length < 24 else ((length * 7) % 64, (length * 13 + 5) % 64):
            piece = view[start : start + length]
            assert native.crc32c(piece, implementation=implementation) == peer.crc32c(piece), (length, start)


@EACH
@pytest.mark.parametrize("start", range(64))
def test_every_alignment_at_the_seams(implementation: str, start: int) -> None:
    seams = (159, 160, 207, 208, 512, 575, 576, 577, 1023, 1024, 8703, 8704, 8705, 12288, 16384, 70_001)
    for length in seams:
        piece = memoryview(NOISE)[start : start + length]
        assert native.crc32c(piece, 77, implementation=implementation) == peer.crc32c(piece, 77), length


@EACH
def test_going_on(implementation: str) -> None:
    whole = native.crc32c(NOISE, implementation=implementation)
    for cut in (0, 1, 7, 500, 65_536, len(NOISE)):
        first = native.crc32c(NOISE[:cut], implementation=implementation)
        assert native.crc32c(NOISE[cut:], first, implementation=implementation) == whole


def test_crc32_is_zlibs() -> None:
    for length in (*range(300), 1000, 4095, 70_000):
        assert native.crc32(NOISE[:length], 5) == zlib.crc32(NOISE[:length], 5)
    assert reference.crc32(NOISE[:999]) == zlib.crc32(NOISE[:999])


def test_combine() -> None:
    for cut in (0, 1, 4096, len(NOISE)):
        tail = NOISE[cut:]
        joined = native.combine(native.crc32c(NOISE[:cut]), native.crc32c(tail), len(tail))
        assert joined == native.crc32c(NOISE)


def test_the_best_is_in_use_and_portable_is_always_there() -> None:
    assert native.implementation() == native.implementations()[0]
    assert native.implementations()[-1] == "portable"


def test_refusals() -> None:
    with pytest.raises(ValueError, match="nonesuch"):
        native.crc32c(b"", implementation="nonesuch")
    with pytest.raises(TypeError, match="expected a C-contiguous buffer"):
        native.crc32c(memoryview(NOISE)[::2])
    with pytest.raises(TypeError):
        native.crc32c("text")  # type: ignore[arg-type]
