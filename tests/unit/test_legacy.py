"""Magic 0 and 1: wrappers, relative offsets, and refused batches."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kafkalog import errors
from kafkalog.engine.format import codecs, legacy
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.records import records
from tests.reference import legacy as writer
from tests.reference.legacy import build_batch

ROWS: list[Any] = [(5, b"k", b"v", ()), (9, None, b"w", ()), (7, b"", None, ())]


def wrapper(inner: bytes, offset: int, *, magic: int = 1, codec: int = codecs.GZIP, value: Any = ...) -> bytes:
    packed = writer.compress(codec, inner, magic=magic) if value is ... else value
    return writer.entry(offset, writer.message(magic, 3, None, packed, codec))


def read(data: bytes) -> Any:
    (header,) = MemoryRecords(data).batches()
    return records(data, header)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.LZ4])
def test_compressed_wrappers(magic: int, codec: int) -> None:
    data = build_batch(ROWS, magic=magic, codec=codec, base_offset=50)
    (header,) = MemoryRecords(data).batches()
    assert (header.base_offset, header.last_offset) == (52, 52)
    assert legacy.base_offset(data, header) == 50
    got = records(data, header)
    assert [one.offset for one in got] == [50, 51, 52]
    assert [one.timestamp for one in got] == ([-1] * 3 if magic == 0 else [5, 9, 7])
    assert {one.timestamp_type for one in got} == {"NoTimestampType" if magic == 0 else "CreateTime"}
    assert [(one.key, one.value) for one in got] == [(b"k", b"v"), (None, b"w"), (b"", None)]
    for entry in legacy.entries(data, 0, len(data)):
        entry.ensure_valid()


def test_plain_messages_are_batches_of_one() -> None:
    data = build_batch(ROWS, magic=1, base_offset=50)
    headers = MemoryRecords(data).batches()
    assert [header.base_offset for header in headers] == [50, 51, 52]
    assert [one.size for header in headers for one in records(data, header)] == [header.size for header in headers]


def test_wrapper_offset_0_means_absolute() -> None:
    inner = writer.entry(4, writer.message(1, 1, None, b"a")) + writer.entry(5, writer.message(1, 1, None, b"b"))
    assert [one.offset for one in read(wrapper(inner, 0))] == [4, 5]
    assert [one.offset for one in read(wrapper(inner, 105))] == [104, 105]
    with pytest.raises(errors.InvalidRecordException, match="less than the last inner message offset"):
        read(wrapper(inner, 3))


def test_log_append_time_of_the_wrapper_wins() -> None:
    data = build_batch(ROWS, magic=1, codec=codecs.GZIP, timestamp_type="LogAppendTime", log_append_time=99)
    assert {(one.timestamp, one.timestamp_type) for one in read(data)} == {(99, "LogAppendTime")}


def test_refused_wrappers() -> None:
    good = writer.entry(0, writer.message(1, 1, None, b"a"))
    nested = wrapper(good, 0)
    for data, text in [
        (wrapper(nested, 0), "Inner messages must not be compressed"),
        (wrapper(b"", 0), "no inner records"),
        (wrapper(b"", 0, value=None), "null value"),
        (wrapper(good, 0, codec=codecs.ZSTD), "Invalid wrapper compressionType"),
    ]:
        with pytest.raises(errors.InvalidRecordException, match=text):
            read(data)
    with pytest.raises(errors.CorruptRecordException, match="less than the minimum record overhead"):
        read(wrapper(struct.pack(">qi", 0, 13) + bytes(13), 0))
    with pytest.raises(errors.KafkaException):
        read(wrapper(b"", 0, value=b"no gzip"))
    assert len(read(wrapper(good + good[:-1], 0))) == 1  # a partial entry at the end is not seen


def test_sizes_beyond_the_message() -> None:
    body = bytearray(writer.message(0, -1, b"key", b"value"))
    for at in (6, 13):
        damaged = body.copy()
        damaged[at : at + 4] = struct.pack(">i", 100)
        with pytest.raises(errors.CorruptRecordException):
            read(writer.entry(0, bytes(damaged)))
    entry = legacy.entries(writer.entry(0, bytes(body[:-1] + b"!")), 0, len(body) + 12)[0]
    with pytest.raises(errors.CorruptRecordException, match="stored crc"):
        entry.ensure_valid()


def test_overheads() -> None:
    assert [legacy.record_overhead(magic) for magic in (0, 1)] == [14, 22]
    with pytest.raises(errors.IllegalArgumentException):
        legacy.record_overhead(2)
