"""Spark's filters as bounds: an accepted filter is exact, every other one stays with Spark."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.engine.format.names import TopicPartition
from kafkalog.spark.filters import ALL, COMPARISONS, EPOCH, Wanted, push

spark_filters = pytest.importorskip("pyspark.sql.datasource")


def of(name: str, column: str, value: Any) -> Any:
    return getattr(spark_filters, name)((column,), value)


def is_in(wanted: Wanted, offset: int, timestamp_ms: int) -> bool:
    return (
        wanted.offset_min <= offset <= wanted.offset_max
        and wanted.timestamp_min <= timestamp_ms <= wanted.timestamp_max
    )


@pytest.mark.parametrize("name", COMPARISONS)
def test_offsets_pass_as_the_comparison_says(name: str) -> None:
    value: Any = (3, 5) if name == "In" else 4
    wanted, left = push([of(name, "offset", value)])
    for offset in range(10):
        expected = COMPARISONS[name](offset, value)
        if name == "In":  # narrowed to its ends, and checked again
            assert left
            assert is_in(wanted, offset, 0) or not expected
        else:
            assert not left
            assert is_in(wanted, offset, 0) == expected
    assert (wanted.timestamp_min, wanted.timestamp_max) == (LONG_MIN, LONG_MAX)


@pytest.mark.parametrize("name", [name for name in COMPARISONS if name != "In"])
def test_times_are_compared_in_microseconds(name: str) -> None:
    for micros, base in itertools.product((-1001, -1000, -999, 0, 1, 999, 1000, 1001), (0, 1_700_000_000_000_000)):
        value = EPOCH + timedelta(microseconds=base + micros)
        wanted, left = push([of(name, "timestamp", value)])
        assert not left
        for milli in range(base // 1000 - 3, base // 1000 + 4):
            expected = COMPARISONS[name](EPOCH + timedelta(milliseconds=milli), value)
            assert is_in(wanted, 0, milli) == expected, (micros, milli)


def test_bounds_meet() -> None:
    wanted, left = push([of("GreaterThan", "offset", 2), of("LessThan", "offset", 9), of("In", "offset", (1, 5))])
    assert (wanted.offset_min, wanted.offset_max, len(left)) == (3, 5, 1)
    wanted, _ = push([of("GreaterThan", "offset", 2), of("LessThan", "offset", 3)])
    assert not wanted.has(TopicPartition("t", 0))


def test_partitions_are_asked_whole() -> None:
    no = spark_filters.Not
    wanted, left = push(
        [
            of("StringStartsWith", "topic", "or"),
            no(of("EqualTo", "topic", "orders-old")),
            of("In", "partition", (0, 2)),
            no(of("StringEndsWith", "topic", "x")),
        ]
    )
    assert not left
    listed = [
        TopicPartition(topic, number) for topic in ("orders", "orders-old", "oxx", "orx", "a") for number in (0, 1, 2)
    ]
    assert [each for each in listed if wanted.has(each)] == [TopicPartition("orders", 0), TopicPartition("orders", 2)]


def test_what_is_never_null_needs_no_look() -> None:
    there = [spark_filters.IsNotNull((name,)) for name in ("topic", "partition", "offset", "timestamp")]
    assert push(there) == (ALL, [])


def test_all_else_stays_with_spark() -> None:
    no = spark_filters.Not
    others = [
        of("EqualTo", "key", b"k"),
        of("StringContains", "value", "v"),
        spark_filters.IsNotNull(("value",)),
        spark_filters.IsNull(("offset",)),
        no(spark_filters.IsNotNull(("offset",))),
        no(of("EqualTo", "offset", 3)),
        of("EqualNullSafe", "offset", None),
        of("EqualTo", "timestampType", 0),
        of("GreaterThan", "timestamp", datetime(2026, 1, 1)),  # says no zone
        no(of("In", "partition", (1, None))),
        spark_filters.EqualTo(("headers", "key"), "n"),
    ]
    assert push(others) == (ALL, others)


def test_rows_are_left_alone_where_only_partitions_may_go() -> None:
    rows = [of("GreaterThan", "offset", 3), of("LessThan", "timestamp", datetime(2026, 1, 1, tzinfo=UTC))]
    wanted, left = push([*rows, of("EqualTo", "partition", 1)], rows=False)
    assert left == rows
    assert [wanted.has(TopicPartition("t", number)) for number in (0, 1)] == [False, True]
