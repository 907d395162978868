"""Codecs: what golden bytes and round trips do not show (framing of others, limits, errors)."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
import zstandard
from cramjam import snappy

from kafkalog import errors
from kafkalog.engine.format import codecs
from tests.reference import legacy

DATA = b"twelve bytes" * 10_000


def test_names_and_ids() -> None:
    assert [codecs.codec_id(name) for name in codecs.NAMES] == [0, 1, 2, 3, 4]
    assert codecs.codec_name(4) == "zstd"
    with pytest.raises(errors.IllegalArgumentException, match="Unknown compression name: brotli"):
        codecs.codec_id("brotli")
    with pytest.raises(errors.IllegalArgumentException, match="Unknown compression type id: 5") as caught:
        codecs.decompress(5, b"")
    assert isinstance(caught.value, errors.CorruptRecordException)


@pytest.mark.parametrize(("codec", "level"), [(1, 0), (1, 10), (3, 0), (3, 18), (4, 23), (4, -131073)])
def test_levels_out_of_range(codec: int, level: int) -> None:
    with pytest.raises(errors.IllegalArgumentException, match="doesn't support given compression level"):
        codecs.compress(codec, b"", level)


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.SNAPPY])
def test_codecs_without_levels(codec: int) -> None:
    with pytest.raises(errors.UnsupportedOperationException):
        codecs.compress(codec, b"", 1)


@pytest.mark.parametrize("codec", range(5))
def test_any_buffer_goes_in(codec: int) -> None:
    packed = codecs.compress(codec, memoryview(bytearray(DATA)))
    assert packed == codecs.compress(codec, DATA)
    assert codecs.decompress(codec, bytearray(packed)) == DATA
    assert codecs.decompress(codec, memoryview(packed)) == DATA


@pytest.mark.parametrize("level", [1, 2])
def test_lz4_levels_with_other_bytes_decode(level: int) -> None:
    assert codecs.decompress(codecs.LZ4, codecs.compress(codecs.LZ4, DATA, level)) == DATA


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("limit", [0, 1, 1000, len(DATA) - 1])
def test_a_bomb_stops_at_the_limit(codec: int, limit: int) -> None:
    with pytest.raises(errors.CorruptRecordException):
        codecs.decompress(codec, codecs.compress(codec, DATA), max_bytes=limit)
    assert codecs.decompress(codec, codecs.compress(codec, DATA), max_bytes=len(DATA)) == DATA


@pytest.mark.parametrize("codec", range(1, 5))
def test_cut_payloads(codec: int) -> None:
    packed = codecs.compress(codec, DATA)
    for size in {*range(min(40, len(packed))), len(packed) // 2, len(packed) - 5, len(packed) - 1}:
        if codec == codecs.SNAPPY and size >= 16 and size < 20:
            continue  # snappy-java takes a tail of less than four bytes for the end
        with pytest.raises(codecs.KafkaException) as caught:
            codecs.decompress(codec, packed[:size])
        assert type(caught.value).__name__ == "KafkaException"
        assert isinstance(caught.value, errors.KafkaException)
        before, _ = codecs.decompress_partial(codec, packed[:size])
        assert DATA.startswith(before)


def test_snappy_of_others() -> None:
    assert codecs.decompress(codecs.SNAPPY, bytes(snappy.compress_raw(DATA))) == DATA
    twice = codecs.compress(codecs.SNAPPY, DATA)
    assert codecs.decompress(codecs.SNAPPY, twice + twice) == DATA + DATA
    with pytest.raises(codecs.SnappyError):
        codecs.decompress(codecs.SNAPPY, twice[:16] + b"\xff\xff\xff\xff")


def test_gzip_of_others() -> None:
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = stream.compress(DATA) + stream.flush()
    assert codecs.decompress(codecs.GZIP, packed) == DATA
    assert codecs.decompress(codecs.GZIP, packed + packed) == DATA + DATA
    assert codecs.decompress(codecs.GZIP, packed + b"not a member, but long enough") == DATA


@pytest.mark.parametrize("block_size", [lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX4MB])
@pytest.mark.parametrize("checksums", [False, True])
def test_lz4_of_others(block_size: int, checksums: bool) -> None:
    packed = lz4.frame.compress(
        DATA, block_size=block_size, block_linked=False, content_checksum=checksums, block_checksum=checksums
    )
    assert codecs.decompress(codecs.LZ4, packed) == DATA
    linked = lz4.frame.compress(DATA, block_linked=True)
    with pytest.raises(codecs.KafkaException):
        codecs.decompress(codecs.LZ4, linked)


def test_lz4_header_of_magic_0() -> None:
    old, new = (legacy.compress(codecs.LZ4, DATA, magic=magic) for magic in (0, 1))
    assert old[:6] == new[:6]
    assert (old[6], new[6]) == (0x1A, 0x82)
    assert codecs.decompress(codecs.LZ4, old, magic=0) == DATA
    assert codecs.decompress(codecs.LZ4, new, magic=0) == DATA  # Kafka does not check it there
    with pytest.raises(codecs.KafkaException, match="descriptor corrupted"):
        codecs.decompress(codecs.LZ4, old, magic=1)


def test_zstd_of_others() -> None:
    whole = zstandard.ZstdCompressor().compress(DATA)
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(DATA)
    skippable = (0x184D2A53).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    assert codecs.decompress(codecs.ZSTD, whole + skippable + checked) == DATA + DATA
    damaged = bytearray(checked)
    damaged[-1] ^= 1
    with pytest.raises(codecs.KafkaException):
        codecs.decompress(codecs.ZSTD, damaged)


FRAMES = {
    "usual": lambda frame: frame,
    "two of them": lambda frame: frame + frame,
    "cut": lambda frame: frame[:-5],
    "one byte": lambda frame: frame[:1],
    "bytes behind it": lambda frame: frame + b"\x00\x01\x02\x03\x04",
    "damaged": lambda frame: frame[:9] + bytes([frame[9] ^ 0xFF]) + frame[10:],
}


@pytest.mark.parametrize("codec", [codecs.LZ4, codecs.ZSTD])
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("data", [b"some words " * 700, bytes(1 << 20)], ids=["words", "zeros"])
def test_one_call_gives_what_the_long_way_does(
    monkeypatch: pytest.MonkeyPatch, codec: int, frame: str, data: bytes
) -> None:
    made = FRAMES[frame](codecs.compress(codec, data))

    def answers() -> list[tuple[bytes, str | None]]:
        found = [
            codecs.decompress_partial(codec, made, max_bytes=max_bytes)
            for max_bytes in (1 << 30, len(data), len(data) - 1, 1, 0)
        ]
        return [(payload, error and str(error)) for payload, error in found]

    by_one_call = answers()
    monkeypatch.setattr(codecs, "_whole_frame", lambda codec, view, max_bytes: None)
    assert by_one_call == answers()
