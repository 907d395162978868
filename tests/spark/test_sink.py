"""`df.write.format("kafkalog")` on real Spark: the records from rows, each option, all or nothing."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.engine.format.names import STAGED_FILE_PREFIX
from kafkalog.spark.staging import DEAD_AFTER_S, WriteId, sweep

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

HEADERS = "headers array<struct<key:string,value:binary>>"


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def write(frame: Any, path: str, options: dict[str, Any] | None = None, mode: str = "append") -> None:
    writer = frame.write.format("kafkalog").mode(mode)
    for name, value in (options or {}).items():
        writer = writer.option(name, str(value))
    writer.save(path)


def records(path: str, topic: str, isolation: str = "read_committed") -> list[tuple[int, Any, Any, Any]]:
    """(partition, key, value, headers), in order within a partition."""
    with kafkalog.open(path, read_only=True) as store, store.reader(topics=[topic], isolation=isolation) as reader:
        return [(each.partition, each.key, each.value, tuple(each.headers)) for each in reader]


def values(path: str, topic: str) -> list[str]:
    return sorted(value.decode() for _, _, value, _ in records(path, topic))


def staged(path: str) -> list[str]:
    """The staged files of writes, without the notes of writes that were given up."""
    found = [name for name in os.listdir(path) if name.startswith(STAGED_FILE_PREFIX)]
    return [name for name in found if not name.endswith(".given-up")]


def create(path: str, partitions: int, *names: str, config: dict[str, str] | None = None) -> None:
    with kafkalog.open(path) as store:
        for name in names:
            store.create_topic(name, partitions, config=config)


def batches(path: str, topic: str, partition: int = 0) -> list[Any]:
    from kafkalog._native.codec.batches import headers

    [segment] = Path(path, f"{topic}-{partition}").glob("*.log")
    return [each for each in headers(segment.read_bytes())[0] if not each.is_control]


# --- what rows become -------------------------------------------------------------------------------------


def test_rows_go_where_kafkas_partitioner_says(spark: Any, data: str) -> None:
    create(data, 4, "orders")
    rows = [(f"key {number}" if number % 5 else None, f"value {number}") for number in range(5000)]
    write(spark.createDataFrame(rows, "key string, value string"), data, {"topic": "orders"})
    found = records(data, "orders")
    expected = Counter((key and key.encode(), value.encode()) for key, value in rows)
    assert Counter((key, value) for _, key, value, _ in found) == expected
    assert all(number == partition_for_key(key, 4) for number, key, _, _ in found if key is not None)
    assert staged(data) == []


def test_every_column_counts_and_others_are_left_out(spark: Any, data: str) -> None:
    create(data, 3, "a", "b")
    rows = [
        ("a", b"k", b"v", [("h", b"1"), ("h", None)], 2, 7),
        ("b", None, None, None, 0, 7),
        ("a", b"k", b"", [], None, 7),
        ("b", b"other", b"v2", [("", b"")], 1, 7),
    ]
    schema = f"topic string, key binary, value binary, {HEADERS}, partition int, offset long"
    write(spark.createDataFrame(rows, schema).coalesce(1), data)
    home = partition_for_key(b"k", 3)
    assert sorted(records(data, "a")) == sorted([(2, b"k", b"v", (("h", b"1"), ("h", None))), (home, b"k", b"", ())])
    assert records(data, "b") == [(0, None, None, ()), (1, b"other", b"v2", (("", b""),))]


def test_rows_of_a_partition_keep_their_order(spark: Any, data: str) -> None:
    create(data, 2, "t")
    rows = spark.range(0, 100_000, 1, 1).selectExpr("cast(id % 10 as string) key", "cast(id as string) value")
    write(rows, data, {"topic": "t"})
    found = records(data, "t")
    for partition in range(2):
        numbers = [int(value) for number, _, value, _ in found if number == partition]
        assert numbers == sorted(numbers)
    assert len(found) == 100_000


# --- options ----------------------------------------------------------------------------------------------


def test_the_option_topic_wins_over_the_column(spark: Any, data: str) -> None:
    create(data, 1, "t")
    write(spark.createDataFrame([("other", "v")], "topic string, value string"), data, {"topic": "t"})
    assert values(data, "t") == ["v"]


def test_new_topics_only_where_they_are_allowed(spark: Any, data: str) -> None:
    rows = spark.range(40).selectExpr("concat('new-', id % 2) topic", "cast(id as string) key", "'v' value")
    with pytest.raises(Exception, match=r"no such log directory.*createTopics to create it"):
        write(rows, data)
    create(data, 1, "t")
    with pytest.raises(Exception, match=r"there is no topic 'new-[01]' in .*createTopics to create it"):
        write(rows, data)
    write(rows, data, {"createTopics": "true", "numPartitions": 3})
    with kafkalog.open(data, read_only=True) as store:
        assert {name: store.describe_topic(name).partitions for name in store.topics() if name[0] != "_"} == {
            "new-0": 3,
            "new-1": 3,
            "t": 1,
        }
    assert len(records(data, "new-0")) + len(records(data, "new-1")) == 40


@pytest.mark.parametrize(("codec", "number"), [("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)])
def test_compression(spark: Any, data: str, codec: str, number: int) -> None:
    create(data, 1, "t")
    rows = spark.range(0, 500, 1, 1).selectExpr("concat('value ', id) value")
    write(rows, data, {"topic": "t", "kafka.compression.type": codec})
    assert {each.codec for each in batches(data, "t")} == {number}
    assert values(data, "t") == sorted(f"value {row}" for row in range(500))


def test_without_an_option_the_topic_says_how_it_is_compressed(spark: Any, data: str) -> None:
    create(data, 1, "t", config={"compression.type": "zstd"})
    write(spark.range(0, 500, 1, 1).selectExpr("concat('value ', id) value"), data, {"topic": "t"})
    assert {each.codec for each in batches(data, "t")} == {4}


def test_batch_size(spark: Any, data: str) -> None:
    create(data, 1, "t")
    rows = spark.range(0, 5000, 1, 1).selectExpr("concat('value ', id) value")
    write(rows, data, {"topic": "t", "kafka.batch.size": 4096})
    sizes = [each.size for each in batches(data, "t")]
    assert max(sizes) <= 4096
    assert min(sizes[:-1]) > 4000
    assert len(values(data, "t")) == 5000


def test_staging_path(spark: Any, data: str, tmp_path: Path) -> None:
    create(data, 1, "t")
    rows = spark.range(10).selectExpr("cast(id as string) value")
    staging = tmp_path / "staging"
    write(rows, data, {"topic": "t", "stagingPath": staging})
    assert staging.is_dir()
    assert list(staging.iterdir()) == []
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(Exception, match=r"cannot stage the rows of the write.*stagingPath"):
        write(rows, data, {"topic": "t", "stagingPath": in_the_way})
    assert len(values(data, "t")) == 10


def test_the_commit_waits_for_the_directory(spark: Any, data: str) -> None:
    create(data, 1, "t")
    rows = spark.range(10).selectExpr("cast(id as string) value")
    store = kafkalog.open(data)
    try:
        with pytest.raises(Exception, match=r"waited 200 ms \(kafka.max.block.ms\): stop the broker, or close"):
            write(rows, data, {"topic": "t", "kafka.max.block.ms": 200})
        assert staged(data) == []
        threading.Timer(3, store.close).start()
        began = time.monotonic()
        write(rows, data, {"topic": "t"})
        assert time.monotonic() - began > 2
    finally:
        store.close()
    assert len(values(data, "t")) == 10


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_durability(spark: Any, data: str, durability: str) -> None:
    create(data, 1, "t")
    write(spark.range(10).selectExpr("cast(id as string) value"), data, {"topic": "t", "durability": durability})
    assert len(values(data, "t")) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"durability": "sync"}, "option durability is 'sync'.*expected os or fsync"),
        ({"kafka.compression.type": "lzo"}, "option kafka.compression.type is 'lzo'.*expected one of none"),
        ({"kafka.batch.size": "0"}, "option kafka.batch.size is '0'.*above 0"),
        ({"kafka.batch.size": str(1 << 31)}, "option kafka.batch.size is 2147483648"),
        ({"kafka.max.block.ms": "-1"}, "option kafka.max.block.ms is '-1'"),
        ({"createTopics": "yes"}, "option createTopics is 'yes'.*expected true or false"),
        ({"numPartitions": "x"}, "option numPartitions is 'x'"),
        ({"path": " "}, "option path is missing"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], message: str) -> None:
    from kafkalog.errors import IllegalArgumentException
    from kafkalog.spark.write_options import parse_sink_options

    with pytest.raises(IllegalArgumentException, match=message):
        parse_sink_options({"path": "/data", "topic": "t", **options})


# --- refusals: nothing is there ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("select 'v' value", "topic option required when no 'topic' attribute is present. Use the topic option for"),
        ("select 't' topic, 'k' key", "Required attribute 'value' not found"),
        ("select 't' topic, 1 value", r"value attribute unsupported type int. value must be a\(n\) string or binary"),
        ("select 't' topic, 1 key, 'v' value", r"key attribute unsupported type int. key must be a\(n\) string or bin"),
        ("select 1 topic, 'v' value", r"topic attribute unsupported type int. topic must be a\(n\) string"),
        ("select 't' topic, 'v' value, 1L partition", "partition attribute unsupported type bigint. partition must be"),
        ("select 't' topic, 'v' value, 'h' headers", "headers attribute unsupported type string. headers must be"),
        ("select cast(null as string) topic, 'v' value", "null topic present in the data. Use the topic option for"),
        ("select 't' topic, 'v' value, -1 partition", "Invalid partition: -1. Partition number should always be non-n"),
        ("select 't' topic, 'v' value, 2 partition", "topic 't' has no partition 2: it has 2"),
        ("select 'u' topic, 'v' value", "there is no topic 'u'"),
        ("select 't' topic, repeat('v', 2000000) value", "a record makes a batch of 2000[0-9]* bytes, topic t accepts"),
    ],
)
def test_refusals_in_the_words_of_sparks_kafka_sink(spark: Any, data: str, rows: str, message: str) -> None:
    create(data, 2, "t")
    with pytest.raises(Exception, match=message):
        write(spark.sql(rows), data)
    assert records(data, "t", "read_uncommitted") == []
    assert staged(data) == []


def test_a_path_that_is_no_directory(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="file: found a file, expected a log directory"):
        write(spark.sql("select 'v' value"), str(tmp_path / "file"), {"topic": "t", "createTopics": "true"})
    assert (tmp_path / "file").read_text() == ""


def test_overwrite_is_refused(spark: Any, data: str) -> None:
    create(data, 1, "t")
    with pytest.raises(Exception, match="Save mode Overwrite not allowed for kafkalog"):
        write(spark.sql("select 'v' value"), data, {"topic": "t"}, mode="overwrite")


def test_all_or_nothing_where_a_task_fails(spark: Any, data: str) -> None:
    create(data, 2, "t")
    rows = spark.range(0, 50_000, 1, 4).selectExpr("if(id = 49999, raise_error('no'), cast(id as string)) value")
    with pytest.raises(Exception, match="no"):
        write(rows, data, {"topic": "t"})
    assert records(data, "t", "read_uncommitted") == []
    # It may belong to the other one of two threads that Spark was about to stop; it is deleted after a day.
    assert len(staged(data)) <= 1


def test_all_or_nothing_where_the_engine_refuses_at_the_end(spark: Any, data: str) -> None:
    create(data, 2, "good")
    create(data, 1, "keyed", config={"cleanup.policy": "compact"})
    write(spark.sql("select 'before' value"), data, {"topic": "good"})
    rows = spark.sql("select 'good' topic, 'k' key, 'v' value union all select 'keyed', null, 'v'").coalesce(1)
    with pytest.raises(Exception, match="Compacted topic cannot accept message without key"):
        write(rows, data)
    assert values(data, "good") == ["before"]
    assert records(data, "keyed") == []
    assert staged(data) == []
    write(spark.sql("select 'after' value"), data, {"topic": "good"})
    assert values(data, "good") == ["after", "before"]


# --- what is left -----------------------------------------------------------------------------------------


def test_what_is_staged_is_removed_once_its_write_is_over(tmp_path: Path) -> None:
    def make(write: WriteId, age_s: float = 0) -> str:
        path = tmp_path / f"{write.file_prefix}0.{os.urandom(4).hex()}"
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
        return path.name

    mine, query = WriteId("a" * 32), "6f1c-22"
    others = [make(WriteId("b" * 32)), make(WriteId(query, 6)), make(WriteId(query + "0", 1)), "orders-0"]
    (tmp_path / "orders-0").mkdir()
    make(mine)
    make(WriteId("c" * 32), DEAD_AFTER_S + 60)
    earlier = [make(WriteId(query, 4)), make(WriteId(query, 5)), make(WriteId(query, 5))]
    sweep(str(tmp_path), mine)
    assert sorted(os.listdir(tmp_path)) == sorted(others + earlier)
    sweep(str(tmp_path), WriteId(query, 5))
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_a_store_passes_over_what_is_staged(data: str) -> None:
    os.makedirs(data)
    left = Path(data, WriteId("a" * 32).file_prefix + "0.1")
    left.write_bytes(b"no log")
    create(data, 1, "t")
    assert left.read_bytes() == b"no log"
