"""Reading batches: framing, validity, each error of a record."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest

from kafkalog import errors
from kafkalog._native.codec import batches as native_batches
from kafkalog._native.codec import records as native_records
from kafkalog.engine.format import batch, codecs
from kafkalog.engine.format.batch import HEADER, MemoryRecords, ensure_valid, write_header
from kafkalog.engine.format.records import Record, offset_of_max_timestamp, payload, records, stream
from tests.reference import records as plain
from tests.reference.legacy import build_batch

ROWS: list[Any] = [(5, b"k", b"v", ()), (9, None, b"w", (("h", None),)), (7, b"", None, ())]


def batch_of(body: bytes, count: int, codec: int = 0, attributes: int = 0) -> bytes:
    packed = codecs.compress(codec, body)
    head = write_header(
        packed, base_offset=10, last_offset_delta=max(count - 1, 0), attributes=codec | attributes,
        base_timestamp=100, max_timestamp=777, count=count,
    )  # fmt: skip
    return head + packed


def read(data: bytes, **options: Any) -> list[Record]:
    (header,) = MemoryRecords(data).batches()
    return records(data, header, **options)


def test_layout_agrees() -> None:
    assert HEADER.size == 61
    data = build_batch(ROWS, base_offset=3, producer_id=7, producer_epoch=1, base_sequence=4)
    (header,) = MemoryRecords(data).batches()
    fields = HEADER.unpack_from(data)
    assert fields[0] == header.base_offset
    assert fields[1] + 12 == header.size == len(data)
    assert fields[4] == header.crc == native_batches.compute_crc(data, 0, len(data))
    assert fields[7:] == (5, 9, 7, 1, 4, 3)


def test_records_of_a_batch() -> None:
    data = build_batch(ROWS, base_offset=3, producer_id=7, producer_epoch=1, base_sequence=0x7FFFFFFE)
    got = read(data)
    assert [one.offset for one in got] == [3, 4, 5]
    assert [one.timestamp for one in got] == [5, 9, 7]
    assert [one.sequence for one in got] == [0x7FFFFFFE, 0x7FFFFFFF, 0]
    assert got[1].headers == (("h", None),)
    assert sum(one.size for one in got) == len(data) - 61
    assert pickle.loads(pickle.dumps(got)) == got
    assert len(set(got)) == 3
    assert "offset=3" in repr(got[0])


def test_batches_anywhere_in_a_buffer() -> None:
    one, two = build_batch(ROWS), build_batch(ROWS, codec=codecs.LZ4, base_offset=3)
    both = MemoryRecords(one + two + two[:50])
    assert both.valid_bytes == len(one) + len(two)
    assert both.size == both.valid_bytes + 50
    second = both.batches()[1]
    assert second.position == len(one)
    assert records(both.buffer, second) == records(b"!" + two, second, at=1)
    assert bytes(payload(both.buffer, second)) == bytes(payload(one, both.batches()[0]))
    ensure_valid(both.buffer, second)


def test_log_append_time_replaces_timestamps() -> None:
    got = read(build_batch(ROWS, timestamp_type="LogAppendTime", log_append_time=99))
    assert {(one.timestamp, one.timestamp_type) for one in got} == {(99, "LogAppendTime")}


def test_delete_horizon_keeps_timestamps() -> None:
    data = batch_of(plain.write([(-95, 0, None, None, ())]), 1, attributes=batch.DELETE_HORIZON_FLAG)
    assert read(data)[0].timestamp == 5
    assert MemoryRecords(data).batches()[0].delete_horizon_ms == 100


def test_offset_of_max_timestamp() -> None:
    for magic, offset in ((0, None), (1, 4), (2, 4)):
        rows = [(t, k, v, ()) for t, k, v, _ in ROWS]
        data = build_batch(rows, magic=magic, codec=codecs.GZIP, base_offset=3)
        (header,) = MemoryRecords(data).batches()
        assert offset_of_max_timestamp(data, header) == offset


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.ZSTD])
@pytest.mark.parametrize(
    ("body", "count", "text"),
    [
        ("", 1, "premature EOF reached"),
        ("80", 1, "premature EOF reached"),
        ("0a", 1, "expected 5 bytes in record payload"),
        ("0c 00 00 00 01 01 00", -1, "Found invalid record count -1"),
        ("0c 00 00 00 01 01 00 00", 1, "records still remaining in file"),
        ("0c 00 00 00 01 01 00", 2, "premature EOF reached"),
        ("0e 00 00 00 01 01 00 00", 1, "expected to read 7 bytes in record payload, but instead read 6"),
        ("0c 00 00 00 01 01 01", 1, "number of record headers -1"),
        ("0c 00 00 00 01 01 04", 1, "2 is larger than the remaining"),
        ("12 00 00 00 01 01 02 01 01 00", 1, "Invalid negative header key size -1"),
        ("0c 00 00 00 01 80 80", 1, "Found invalid record structure"),
        ("0c 00 00 00 7e 01 00", 1, "Found invalid record structure"),
        ("18 00 80 80 80 80 80 80 80 80 80 80 00", 1, "Found invalid record structure"),
        ("00", 1, "Found invalid record structure"),
    ],
)
def test_bad_records(body: str, count: int, text: str, codec: int) -> None:
    with pytest.raises(errors.InvalidRecordException, match=text):
        read(batch_of(bytes.fromhex(body), count, codec))


def test_rules_that_depend_on_the_stream() -> None:
    long_varint = bytes.fromhex("ffffffffff00")
    with pytest.raises(errors.IllegalArgumentException, match="Varint is too long"):
        read(batch_of(long_varint, 1))
    with pytest.raises(errors.InvalidRecordException, match="premature EOF"):
        read(batch_of(long_varint, 1, codecs.GZIP))
    with pytest.raises(errors.InvalidRecordException):
        read(batch_of(b"\x01", 1))
    with pytest.raises(errors.InvalidRecordException, match="-1 is negative"):
        read(batch_of(b"\x01", 1, codecs.GZIP))
    big = plain.write([(0, 0, None, b"v" * 100, ())])
    assert read(batch_of(big, 1), max_record_bytes=50)
    with pytest.raises(errors.InvalidRecordException, match="exceeds the configured maximum record size of 50"):
        read(batch_of(big, 1, codecs.GZIP), max_record_bytes=50)


def test_no_records_are_none_whatever_follows() -> None:
    assert read(batch_of(b"garbage", 0)) == []


def test_a_bad_record_in_front_of_a_broken_stream_comes_first() -> None:
    data = batch_of(bytes.fromhex("0c0000000101ff") + bytes(100_000), 3, codecs.GZIP)
    cut = bytearray(data[:-4])
    cut[8:12] = struct.pack(">i", len(cut) - 12)
    with pytest.raises(errors.InvalidRecordException):
        read(bytes(cut))
    good = batch_of(plain.write([(0, 0, None, None, ())]), 1, codecs.GZIP)
    cut = bytearray(good[:-4])
    cut[8:12] = struct.pack(">i", len(cut) - 12)
    with pytest.raises(errors.KafkaException):
        read(bytes(cut))


def test_unknown_codec() -> None:
    data = bytearray(build_batch(ROWS))
    data[22] |= 6
    with pytest.raises(errors.IllegalArgumentException, match="Unknown compression type id: 6"):
        read(bytes(data))


def test_framing_errors() -> None:
    data = bytearray(build_batch(ROWS))
    data[16] = 3
    with pytest.raises(errors.CorruptRecordException, match="Invalid magic found in record: 3"):
        MemoryRecords(data).batches()
    data[8:12] = struct.pack(">i", 13)
    with pytest.raises(errors.CorruptRecordException, match=r"Record size 13 is less than the minimum .* \(14\)"):
        MemoryRecords(data).batches()
    assert MemoryRecords(b"").batches() == []


def test_ensure_valid_names_the_place() -> None:
    data = bytearray(build_batch(ROWS))
    data[-1] ^= 1
    (header,) = MemoryRecords(data).batches()
    with pytest.raises(errors.CorruptRecordException, match=r"a\.log at byte 0: Record is corrupt \(stored crc = \d+"):
        ensure_valid(data, header, path="a.log")


def test_sequences_wrap() -> None:
    assert batch.increment_sequence(0x7FFFFFFF, 1) == 0
    assert batch.increment_sequence(5, 3) == 8
    assert batch.decrement_sequence(0, 1) == 0x7FFFFFFF
    assert batch.decrement_sequence(8, 3) == 5


def test_truncated_anywhere_and_any_header_bit_flipped() -> None:
    data = build_batch(ROWS, codec=codecs.LZ4)
    for size in range(len(data)):
        assert MemoryRecords(data[:size]).batches() == []
    for bit in range(8 * 61):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        try:
            for header in MemoryRecords(flipped).batches():
                records(flipped, header)
        except (errors.CorruptRecordException, errors.InvalidRecordException):
            pass


def streamed(data: bytes) -> tuple[list[int], str]:
    """The offsets that a stream returns, and how it ends."""
    found: list[int] = []
    (header,) = MemoryRecords(data).batches()
    try:
        for record in stream(data, header):
            found.append(record.offset)
    except errors.KafkalogError as error:
        return found, f"{type(error).__name__}: {error}"
    return found, ""


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("size", [2, 3, 70_000])
def test_a_stream_looks_behind_the_last_declared_record_before_it_hands_it_out(codec: int, size: int) -> None:
    body = native_records.write_records([(5, n, b"k", b"v", ()) for n in range(size)])
    offsets = list(range(10, 10 + size))
    assert streamed(batch_of(body, size, codec)) == (offsets, "")
    found, said = streamed(batch_of(body, size - 1, codec))
    assert (found, said.split(":")[0]) == (offsets[:-2], "InvalidRecordException")
    assert "records still remaining in file" in said
    found, said = streamed(batch_of(body, size + 1, codec))
    assert (found, said.split(":")[0]) == (offsets, "InvalidRecordException")
    assert "premature EOF" in said


@pytest.mark.parametrize("count", [0, -1])
def test_a_stream_of_no_records_is_opened_all_the_same(count: int) -> None:
    for codec, head in ((codecs.GZIP, b"\x1f\x8b\x09"), (codecs.LZ4, b"\x04\x22\x4d\x19"), (codecs.SNAPPY, b"")):
        body = head + codecs.compress(codec, b"body")[len(head) :] if head else b""
        data = write_header(
            body, base_offset=0, last_offset_delta=0, attributes=codec, base_timestamp=0, max_timestamp=0, count=count
        )  # fmt: skip
        assert streamed(data + body)[1].startswith("KafkaException")
    none = streamed(batch_of(b"body", count))[1]
    assert none == "" if count == 0 else "invalid record count -1" in none
    unknown = bytearray(batch_of(b"body", count))
    unknown[22] |= 6
    assert streamed(bytes(unknown))[1].startswith("IllegalArgumentException: Unknown compression type id: 6")
