"""The choice of a partition: two other clients choose the same; sticky partitions; rows and columns."""

from __future__ import annotations

import collections
import random
from collections.abc import Sequence

import numpy as np
import pytest

from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.codec.murmur2 import murmur2
from kafkalog._native.codec.partitioner import STICKY_BYTES, StickyPartition, partition_for_key
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.records import iterate


def keys(count: int) -> list[bytes]:
    rng = random.Random(20260101)
    return [rng.randbytes(rng.choice((0, 1, 2, 3, 4, 5, 7, 8, 16, 33, 200))) for _ in range(count)]


def test_kafka_python_says_the_same() -> None:
    default = pytest.importorskip("kafka.partitioner.default")
    for key in keys(3000):
        assert murmur2(key) & 0xFFFFFFFF == default.murmur2(key)
        assert partition_for_key(key, 17) == (default.murmur2(key) & 0x7FFFFFFF) % 17


def test_known_values_of_kafkas_own_tests() -> None:
    known = {
        b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }  # fmt: skip
    assert {key: murmur2(key) for key in known} == known


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_buffer_is_a_key(kind: object) -> None:
    for key in keys(50):
        assert partition_for_key(kind(key), 5) == partition_for_key(key, 5)  # type: ignore[operator]


@pytest.mark.parametrize("count", [0, -1, 2**31, 2**70])
def test_a_topic_has_partitions(count: int) -> None:
    with pytest.raises((IndexError, OverflowError)):
        partition_for_key(b"k", count)
    with pytest.raises((IndexError, OverflowError)):
        ColumnEncoder(np.zeros(1, np.int64)).by_partition(count, StickyPartition())


# --- without a key ---------------------------------------------------------------------------------------


def test_a_sticky_partition_moves_on_after_batch_size() -> None:
    asked: list[int] = []

    def choose(partitions: Sequence[int]) -> int:
        asked.append(len(partitions))
        return len(asked) % len(partitions)

    sticky = StickyPartition(choose)
    taken = [sticky.take(993, range(4)) for _ in range(51)]  # 1000 with what every record has
    runs = [1 + 16] * 3  # the record that passes the border is still in
    assert taken == [1] * runs[0] + [2] * runs[1] + [3] * runs[2]
    assert asked == [4, 4, 4]
    assert sticky.take(1, range(4)) == 0
    assert sticky.take(10 * STICKY_BYTES, range(4)) == 0  # however large, one record stays where it was to go
    assert sticky.take(1, range(4)) == 1


def test_a_sticky_partition_that_is_exactly_full_is_left() -> None:
    numbers = iter(range(9))
    sticky = StickyPartition(lambda partitions: next(numbers))
    assert [sticky.take(STICKY_BYTES // 2 - 7, range(9)) for _ in range(5)] == [0, 0, 1, 1, 2]


def test_a_sticky_partition_is_one_that_there_is() -> None:
    sticky = StickyPartition(lambda partitions: partitions[-1])
    assert sticky.take(1, range(8)) == 7
    assert sticky.take(1, range(3)) == 2  # another topic of that name, with fewer
    with pytest.raises(IndexError):
        StickyPartition(lambda partitions: 99).take(1, range(3))
    with pytest.raises(ZeroDivisionError):
        StickyPartition(lambda partitions: 1 // 0).take(1, range(3))


def test_records_of_nothing_move_on_too() -> None:
    numbers = iter(range(9))
    sticky = StickyPartition(lambda partitions: next(numbers))
    assert len({sticky.take(0, range(9)) for _ in range(3 * STICKY_BYTES // 7)}) == 3


# --- rows and columns ------------------------------------------------------------------------------------


def decoded(encoder: ColumnEncoder) -> list[tuple[object, ...]]:
    made, count, verdict = encoder.encode_batch()
    assert (count, verdict) == (encoder.rows, 0)
    assert made is not None
    batch = made.data
    records = MemoryRecords(batch)
    return [
        (record.value, record.key, tuple(record.headers), record.timestamp)
        for header in records.batches()
        for record in iterate(batch, header)
    ]


def rows(count: int, *, seed: int = 1, headers: bool = False) -> list[tuple[object, ...]]:
    rng = random.Random(seed)
    made = []
    for number in range(count):
        key = rng.choice((None, rng.randbytes(rng.randrange(12))))
        value = rng.choice((None, b"%d" % number))
        extra = tuple((f"h{n}", rng.choice((None, b"x"))) for n in range(rng.randrange(3))) if headers else ()
        made.append((value, key, extra, rng.randrange(10**12)))
    return made


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("partitions", [1, 2, 4, 100])
@pytest.mark.parametrize("count", [1, 2, 15, 17, 1000])
def test_rows_by_partition(count: int, partitions: int, headers: bool) -> None:
    given = rows(count, headers=headers)
    encoder = ColumnEncoder.from_rows(given, 5)
    assert encoder is not None
    found = encoder.by_partition(partitions, StickyPartition(lambda choices: choices[-1]))
    wanted = collections.defaultdict(list)
    for row in given:
        key = row[1]
        wanted[partition_for_key(key, partitions) if isinstance(key, bytes) else partitions - 1].append(row)
    assert {number: decoded(each) for number, each in found.items()} == wanted
    assert list(found) == sorted(found)


@pytest.mark.parametrize("shape", ["lists", "arrow", "slice", "large", "chunks"])
def test_columns_by_partition(shape: str) -> None:
    from kafkalog._face.batch_maker import encode_columns

    given = rows(300, seed=3, headers=True)
    values, names, headers, times = (list(column) for column in zip(*given, strict=True))
    columns: list[object] = [values, names]
    if shape != "lists":
        pa = pytest.importorskip("pyarrow")
        kind = pa.large_binary() if shape == "large" else pa.binary()
        arrays = [pa.array([b"before", *column], kind)[1:] if shape == "slice" else pa.array(column, kind)
                  for column in (values, names)]  # fmt: skip
        columns = [pa.chunked_array([each[:100], each[100:]]) if shape == "chunks" else each for each in arrays]
    encoder = encode_columns(columns[0], columns[1], headers, times, 5)
    found = encoder.by_partition(3, StickyPartition(lambda choices: 1))
    wanted = collections.defaultdict(list)
    for row in given:
        key = row[1]
        wanted[partition_for_key(key, 3) if isinstance(key, bytes) else 1].append(row)
    assert {number: decoded(each) for number, each in found.items()} == wanted


def test_rows_that_name_their_partition_go_there() -> None:
    given = rows(300)
    asked = np.array([number % 5 - 1 for number in range(300)], np.int32)
    encoder = ColumnEncoder.from_rows(given, 5)
    assert encoder is not None
    found = encoder.by_partition(4, StickyPartition(lambda choices: 2), None, asked)
    wanted = collections.defaultdict(list)
    for row, number in zip(given, asked.tolist(), strict=True):
        key = row[1]
        choice = partition_for_key(key, 4) if isinstance(key, bytes) else 2
        wanted[choice if number < 0 else number].append(row)
    assert {number: decoded(each) for number, each in found.items()} == wanted
    for wrong in (asked[1:], np.full(300, 4, np.int32)):
        with pytest.raises(IndexError):
            encoder.by_partition(4, StickyPartition(), None, wrong)
    with pytest.raises(TypeError):
        encoder.by_partition(4, StickyPartition(), None, asked.astype(np.int64))


def test_no_rows_go_nowhere() -> None:
    assert ColumnEncoder(np.zeros(0, np.int64)).by_partition(4, StickyPartition()) == {}


def test_rows_with_offsets_of_their_own_go_nowhere() -> None:
    encoder = ColumnEncoder(np.zeros(2, np.int64), offsets=np.arange(2))
    with pytest.raises(TypeError):
        encoder.by_partition(4, StickyPartition())


def test_offsets_that_make_no_sense_stay_so() -> None:
    from kafkalog._native.codec.encode import BAD_COLUMN

    ends = np.array([0, 3, 2, 5], np.int64)
    encoder = ColumnEncoder(np.zeros(3, np.int64), values=(ends, b"abcde"))
    found = encoder.by_partition(2, StickyPartition(lambda choices: 0))
    assert found[0].encode()[-1] == BAD_COLUMN
    keyed = ColumnEncoder(np.zeros(3, np.int64), keys=(ends, b"abcde")).by_partition(
        2, StickyPartition(lambda choices: 0)
    )
    assert BAD_COLUMN in {each.encode()[-1] for each in keyed.values()}
    lists = ColumnEncoder(
        np.zeros(3, np.int64), headers=(np.array([0, 9, 9, 9]), (np.array([0, 1]), b"a"), (np.array([0, 1]), b"b"))
    )
    with pytest.raises(IndexError):
        lists.by_partition(2, StickyPartition(lambda choices: 0))
