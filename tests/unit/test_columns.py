"""Columns: selection, ranges, limits, the lifetime of capsules, encoding errors, threads."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kafkalog import errors
from kafkalog._native.codec import batches as native_batches
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.codec.records import OK, Record, write_records
from kafkalog.engine.format import arrow, codecs
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from tests.reference.legacy import build_batch

ROWS: list[Any] = [(i, b"k%d" % i, None if i % 3 == 0 else b"v" * i, [("h", b"%d" % i)] * (i % 2)) for i in range(50)]


def mixed() -> bytes:
    """Five batches at 0, 50 .. 200: plain, zstd, magic 1, a marker, plain with append time."""
    plain_rows = [(t, k, v, ()) for t, k, v, _ in ROWS]
    return b"".join(
        (
            build_batch(ROWS),
            build_batch(ROWS, codec=codecs.ZSTD, base_offset=50),
            build_batch(plain_rows, magic=1, codec=codecs.GZIP, base_offset=100),
            end_txn_marker_batch(150, 1, 0, 5, 0, EndTransactionMarker(ControlRecordType.COMMIT, 1)),
            build_batch(ROWS, base_offset=200, timestamp_type="LogAppendTime", log_append_time=99),
        )
    )


def one(data: bytes, **options: Any) -> Any:
    (columns,) = arrow.read_columns(data, **options)
    return columns


def test_everything_in_order() -> None:
    got = one(mixed(), timestamp_types=True)
    assert got.column_names == ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    assert got.offsets.tolist() == [*range(151), *range(200, 250)]
    assert set(got.timestamps.tolist()[-50:]) == {99}
    assert got.timestamp_types.tolist() == [0] * 151 + [1] * 50
    assert got.values.null_count == 4 * 17
    assert got.values.to_list()[50:100] == [row[2] for row in ROWS]
    assert got.header_lists()[200] == [("h", b"49")]
    assert got.nbytes > 0


def test_selection_and_range() -> None:
    got = one(mixed(), keys=False, headers=False, offset_min=49, offset_max=101, skip_control=True)
    assert got.column_names == ["offset", "timestamp", "value"]
    assert got.keys is None
    assert got.headers is None
    assert got.offsets.tolist() == [*range(49, 102)]
    assert got.values.to_list()[:2] == [b"v" * 49, None]
    assert len(one(b"")) == 0
    assert one(b"").values.to_list() == []
    assert len(one(mixed(), offset_min=1 << 40)) == 0


def test_skipped_batches() -> None:
    data = mixed()
    table, *_ = native_batches.scan(data)
    got = one(data, table=table, skip=np.array([1, 0, 1, 0, 1], np.uint8))
    assert got.offsets.tolist() == [*range(50, 100), 150]
    with pytest.raises(IndexError):
        one(data, table=table, skip=bytes(4))


def test_positions_of_a_file() -> None:
    data = mixed()
    table, *_ = native_batches.scan(data, base_position=1000)
    assert len(one(data, table=table, base_position=1000)) == 201
    with pytest.raises(errors.CorruptRecordException, match="beyond its buffer"):
        one(data, table=table, base_position=1001)
    with pytest.raises(errors.CorruptRecordException, match="beyond its buffer"):
        one(data[:-1], table=table, base_position=1000)


def test_an_error_names_the_batch_and_keeps_what_was_before() -> None:
    data = bytearray(mixed())
    last = MemoryRecords(data).batches()[-1]
    data[last.position + 61] ^= 0x7E
    table, *_ = native_batches.scan(data, check_crc=False)
    builder = ColumnBuilder()
    with pytest.raises(errors.InvalidRecordException) as caught:
        arrow.add_batches(builder, data, table, path="0.log")
    assert (caught.value.path, caught.value.position) == ("0.log", last.position)
    assert builder.rows == 151


def test_null_for_no_headers() -> None:
    builder = ColumnBuilder(null_empty_headers=True)
    payload = write_records([(0, 0, None, None, ()), (0, 1, None, None, ((b"\xff", None),))])
    assert builder.append_payload(payload, 2, 0, 0)[0] == OK
    builder.append_records([Record(2, 0, "CreateTime", None, None, [])])
    headers = builder.finish().headers
    assert headers is not None
    assert headers.null_count == 2
    assert headers.validity is not None
    assert headers.validity[0] & 0b111 == 0b010
    assert headers.child(0).child(0).to_list() == ["\ufffd".encode()]


def test_a_false_count_allocates_nothing_of_its_size() -> None:
    builder = ColumnBuilder()
    assert builder.append_payload(b"\x0c\0\0\0\1\1\0", 0x7FFFFFFF, 0, 0)[0] != OK
    assert builder.rows == 0
    assert builder.finish().nbytes < 1000


def test_builders_are_used_again() -> None:
    builder = ColumnBuilder()
    data = mixed()
    table, *_ = native_batches.scan(data)
    for _ in range(3):
        assert arrow.add_batches(builder, data, table) == 5
        assert len(builder.finish()) == 201
    assert len(builder.finish()) == 0


def test_capsules_own_their_memory() -> None:
    columns = one(mixed())
    view = columns.values.data
    before = sys.getrefcount(columns.values)
    capsules = [columns.__arrow_c_array__(), columns.__arrow_c_schema__()]
    during = sys.getrefcount(columns.values)
    del capsules
    gc.collect()
    after = sys.getrefcount(columns.values)
    assert (during, after) == (before + 3, before)
    del columns
    assert bytes(view[:3]) == b"v" + b"vv"
    assert not view.flags.writeable


def test_numbers_of_the_wrong_kind() -> None:
    stamps = np.zeros(2, np.int64)
    with pytest.raises(TypeError):
        ColumnEncoder(stamps.astype(np.float64))
    with pytest.raises(IndexError):
        ColumnEncoder(stamps, (np.zeros(2, np.int32), b""))
    with pytest.raises(IndexError):
        ColumnEncoder(stamps, (np.zeros(3, np.int32), b"", b""))
    with pytest.raises(IndexError):
        ColumnEncoder(stamps, offsets=np.zeros(1, np.int64))
    with pytest.raises(TypeError):
        ColumnBuilder().append_table(b"", np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"timestamps": [0, -2]}, "timestamp in row 1"),
        ({"values": ([0, 5, 3], b"12345")}, "Row 1 points outside"),
        ({"values": ([0, 1, 9], b"12345")}, "Row 1 points outside"),
        ({"offsets": [4, 4]}, "offset in row 1"),
        ({"offsets": [4, 1 << 40]}, "offset in row 1"),
        ({"headers": ([0, 0, 1], ([0, 1], b"h", b"\0"), ([0, 0], b""))}, "null header key"),
        ({"headers": ([0, 0, 7], ([0, 1], b"h"), ([0, 0], b""))}, "Row 1 points outside"),
    ],
)
def test_columns_that_cannot_be_written(columns: dict[str, Any], text: str) -> None:
    def numbers(one: Any) -> Any:
        if isinstance(one, list):
            return np.array(one, np.int64)
        return tuple(numbers(part) for part in one) if isinstance(one, tuple) else one

    given = {"timestamps": np.zeros(2, np.int64)} | {name: numbers(column) for name, column in columns.items()}
    with pytest.raises(errors.IllegalArgumentException, match=text):
        list(arrow.write_batches(ColumnEncoder(**given)))


def test_written_batches() -> None:
    encoder = ColumnEncoder(
        np.array([5, 6, 7], np.int64), None, (np.array([0, 1, 1, 3], np.int32), b"abc"),
        offsets=np.array([10, 12, 20], np.int64),
    )  # fmt: skip
    (batch,) = arrow.write_batches(encoder, codec=codecs.LZ4, producer_id=3, producer_epoch=0, base_sequence=9)
    (header,) = MemoryRecords(batch).batches()
    assert (header.base_offset, header.last_offset, header.count, header.base_sequence) == (10, 20, 3, 9)
    assert one(batch).offsets.tolist() == [10, 12, 20]
    parts = list(arrow.write_batches(encoder, batch_bytes_max=1, producer_id=3, producer_epoch=0, base_sequence=9))
    assert [MemoryRecords(part).batches()[0].base_sequence for part in parts] == [9, 10, 11]
    assert list(arrow.write_batches(ColumnEncoder(np.zeros(0, np.int64)))) == []


def test_threads_decode_side_by_side() -> None:
    data = mixed()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: one(data).values.to_list(), range(16)))
    assert all(rows == found[0] for rows in found)
