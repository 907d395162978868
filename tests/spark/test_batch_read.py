"""Batch reads in a real local Spark: pruned columns, pushed filters, the latest view, damage, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.spark.filters import push
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from tests.spark.versions import needs_pushdown

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

START_MS = 1_700_000_000_000
PER_PARTITION = 600
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """topics `orders` (2 partitions) and `old`: many segments; times rise but for every 50th record."""
    root = str(tmp_path_factory.mktemp("logs"))
    config = {"internal.segment.bytes": "6000", "index.interval.bytes": "500"}
    for name, codec in (("orders-0", "none"), ("orders-1", "lz4"), ("old-0", "zstd")):
        with kafkalog.open_log(root, name, config=config, compression=codec) as log:
            for first in range(0, PER_PARTITION, 10):
                log.append_many([record(n) for n in range(first, first + 10)])
    return root


def record(n: int) -> tuple[bytes, bytes, list[tuple[str, bytes]], int]:
    return b"value-%d-" % n + b"x" * 60, b"key-%d" % (n % 7), [], time_of(n)


def time_of(n: int) -> int:
    return START_MS + 10 * n - (5000 if n % 50 == 0 else 0)


def moment(milliseconds: int, microseconds: int = 0) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds, microseconds=microseconds)


def read(spark: Any, log_dir: str, **options: Any) -> Any:
    reader = spark.read.format("kafkalog").option("path", log_dir)
    for name, value in {"subscribePattern": "o.*", **options}.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader


@contextmanager
def pushdown(spark: Any, on: bool) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, str(on).lower())
    try:
        yield
    finally:
        spark.conf.unset(PUSHDOWN)


# --- columns ---------------------------------------------------------------------------------------------------


def test_columns_are_those_that_are_listed(spark: Any, log_dir: str) -> None:
    frame = read(spark, log_dir, columns="timestamp, offset,headers").load()
    assert frame.dtypes == [
        ("timestamp", "timestamp"),
        ("offset", "bigint"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert frame.agg({"offset": "sum"}).first()[0] == 3 * sum(range(PER_PARTITION))


def test_columns_are_checked(spark: Any, log_dir: str) -> None:
    with pytest.raises(Exception, match=r"there is no column 'vlaue'.*expected key, value, topic"):
        read(spark, log_dir, columns="vlaue").load()
    with pytest.raises(Exception, match="expected names with commas between them, each once"):
        read(spark, log_dir, columns="key,key").load()
    with pytest.raises(Exception, match="option columns is key, but the schema has offset"):
        read(spark, log_dir, columns="key").schema("offset long").load().count()


# --- filters ---------------------------------------------------------------------------------------------------

FILTERS = [
    "topic = 'orders'",
    "topic like 'ord%' and partition = 1",
    "partition in (1, 7)",
    "topic <> 'orders' and not topic like '%x'",
    "offset >= 100 and offset < 117",
    "offset = 333",
    "offset <=> 333",
    "offset in (5, 577, 12)",
    "offset > 1000000",
    f"timestamp >= timestamp_millis({START_MS + 3000})",
    f"timestamp > timestamp_micros({START_MS + 3000}000)",
    f"timestamp < timestamp_micros({START_MS + 3000}001) and offset > 250",
    f"timestamp <= timestamp_millis({START_MS + 100})",
    f"timestamp = timestamp_millis({time_of(350)})",
    f"timestamp in (timestamp_millis({time_of(350)}), timestamp_millis({time_of(3)}))",
    "offset < 30 or offset > 580",
    "offset % 100 = 7",
    "key = cast('key-3' as binary) and partition = 0",
    "value is not null and offset is not null and offset < 10",
    "offset is null",
    "not (offset > 20)",
]


@pytest.fixture(scope="module")
def expected(spark: Any, log_dir: str) -> list[list[tuple[Any, ...]]]:
    """The rows that each filter leaves, as Spark computes them from rows in memory."""
    everything = read(spark, log_dir, columns="topic,partition,offset,timestamp,key,value").load().collect()
    assert len(everything) == 3 * PER_PARTITION
    schema = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"
    judged = spark.createDataFrame(everything, schema).selectExpr("struct(*) row", *FILTERS).collect()
    return [sorted(tuple(each.row) for each in judged if each[place]) for place in range(1, len(FILTERS) + 1)]


@pytest.mark.parametrize("on", [True, False])
def test_filters_give_the_same_rows_pushed_or_not(spark: Any, log_dir: str, expected: Any, on: bool) -> None:
    with pushdown(spark, on):
        options = {"columns": "topic,partition,offset,timestamp,key,value", "pushDownPredicate": "true"}
        for condition, rows in list(zip(FILTERS, expected, strict=True))[:: 1 if on else 5]:
            frame = read(spark, log_dir, **options).load()
            assert sorted(tuple(row) for row in frame.where(condition).collect()) == rows, condition


@needs_pushdown
def test_spark_does_not_filter_again_what_was_pushed(spark: Any, log_dir: str) -> None:
    def plan_of(condition: str) -> str:
        frame = read(spark, log_dir, pushDownPredicate="true").load().where(condition)
        return str(frame._jdf.queryExecution().executedPlan().toString())

    pushed = f"partition = 1 and offset >= 7 and timestamp < timestamp_millis({START_MS})"
    with pushdown(spark, True):
        assert " Filter " not in plan_of(pushed)
        assert " Filter " in plan_of("offset in (1, 2)")
    assert " Filter " in plan_of(pushed)


def test_a_frame_that_is_used_twice_is_right_by_default(spark: Any, log_dir: str) -> None:
    """Up to Spark 4.3 a pushed filter stays with the frame, so none is accepted there unless an option requests it."""
    with pushdown(spark, True):
        frame = read(spark, log_dir, columns="offset").load()
        assert frame.where("offset < 5").count() == 3 * 5
        assert frame.count() == 3 * PER_PARTITION
        assert frame.where("offset < 5").union(frame.where("offset >= 590")).count() == 3 * 15


@needs_pushdown
def test_filters_prune_segments_and_batches(log_dir: str) -> None:
    """Bytes that a plan reads, of all bytes."""
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

    options = parse_options({"path": log_dir, "subscribe": "orders"})

    def size(*filters: Any) -> int:
        wanted, left = push(filters)
        assert not left
        return sum(work.size for work in plan(options, wanted))

    everything = size()
    assert size(EqualTo(("topic",), "none")) == 0
    assert 0 < size(EqualTo(("partition",), 0)) < everything
    assert 0 < size(GreaterThanOrEqual(("offset",), 300), LessThan(("offset",), 310)) < everything / 20
    assert size(LessThan(("offset",), 0)) == 0
    late = GreaterThanOrEqual(("timestamp",), moment(START_MS + 10 * (PER_PARTITION - 20)))
    assert 0 < size(late) < everything / 20
    assert size(GreaterThanOrEqual(("timestamp",), moment(START_MS + 10 * PER_PARTITION))) == 0


# --- the latest view -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("compacted"))
    config = {"internal.segment.bytes": "2000"}
    for number in (0, 1):
        with kafkalog.open_log(root, f"c-{number}", config=config) as log:
            for n in range(300):
                log.append(b"%d" % n, key=b"%d/%d" % (number, n % 11), timestamp=START_MS + n)
            log.append(None, key=b"%d/3" % number, timestamp=START_MS + 300)
            with log.transaction("a") as txn:
                txn.append(b"never", key=b"%d/4" % number, timestamp=START_MS + 301)
                txn.abort()
    return root


def last_values(number: int, upto: int, *, aborted: bool) -> dict[str, str]:
    state = {f"{number}/{n % 11}": f"{n}" for n in range(min(upto, 300))}
    if upto > 300:
        del state[f"{number}/3"]
    if upto > 301 and aborted:
        state[f"{number}/4"] = "never"
    return state


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_latest_is_the_last_value_of_each_key(spark: Any, compacted: str, isolation: str) -> None:
    options = {"subscribePattern": "c", "latest": "true", "kafka__isolation__level": isolation}
    found = {
        bytes(row.key).decode(): bytes(row.value).decode() for row in read(spark, compacted, **options).load().collect()
    }
    aborted = isolation == "read_uncommitted"
    assert found == last_values(0, 400, aborted=aborted) | last_values(1, 400, aborted=aborted)


def test_latest_as_of_an_offset_and_pruned(spark: Any, compacted: str) -> None:
    options = {"assign": '{"c":[1]}', "latest": "true", "minPartitions": "4", "maxBytesPerPartition": "1000"}
    options |= {"endingOffsets": '{"c":{"1":200}}', "columns": "offset"}
    reader = spark.read.format("kafkalog").option("path", compacted)
    for name, value in options.items():
        reader = reader.option(name, value)
    assert sorted(row.offset for row in reader.load().collect()) == list(range(189, 200))


@pytest.mark.parametrize("on", [True, False])
def test_filters_choose_from_the_latest_view(spark: Any, compacted: str, on: bool) -> None:
    """An older value of a key does not come back because its newer one is filtered out."""
    with pushdown(spark, on):
        options = {"subscribePattern": "c", "latest": "true", "pushDownPredicate": "true"}
        assert read(spark, compacted, **options).load().where("offset < 200").count() == 0
        frame = read(spark, compacted, **options).load()
        assert frame.where("partition = 1 and offset >= 290").count() == 10


# --- damage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latest", ["true", "false"])
@pytest.mark.parametrize("columns", ["offset", "key,value"])
def test_damage_is_said_whatever_is_read(spark: Any, tmp_path: Path, columns: str, latest: str) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "2000"}) as log:
        for n in range(60):
            log.append(b"%03d" % n + b"x" * 80, key=b"%d" % n)
    path = sorted((tmp_path / "t-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    options = {"subscribePattern": "t", "columns": columns, "latest": latest}
    with pytest.raises(Exception, match=rf"{path} at byte \d+: .*failOnDataLoss"):
        read(spark, str(tmp_path), **options).load().collect()
    left = read(spark, str(tmp_path), **options, failOnDataLoss="false").load().count()
    assert int(path.stem) <= left < 60


# --- memory ----------------------------------------------------------------------------------------------------


def test_record_batches_are_bounded_in_bytes(tmp_path: Path) -> None:
    """Values that compress well: a chunk of the file is a hundred times as much in memory."""
    from kafkalog.spark.tasks import BATCH_BYTES, read_range

    with kafkalog.open_log(tmp_path, "t-0", compression="zstd") as log:
        for _ in range(100):
            log.append_many([(b"x" * 1000, None, [], START_MS)] * 1000)
    options = parse_options({"path": str(tmp_path), "subscribe": "t"})
    (work,) = plan(options)
    assert work.size < 4 << 20
    sizes = [batch.nbytes for batch in read_range(work, options, ("offset", "value"))]
    assert len(sizes) > 4
    assert max(sizes) < BATCH_BYTES + (2 << 20)
