"""The option `valueSchema` on real Spark: it gives what Spark's own from_json makes of the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.spark.json_texts import DDL, texts
from tests.spark.versions import needs_streams

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

COUNT = 6_000
ORDERS = "id bigint, price double, tags array<string>"


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`odd-0` has all kinds of texts, `orders-0` and `orders-1` JSON with a tombstone each."""
    root = str(tmp_path_factory.mktemp("logs"))
    with kafkalog.open_log(root, "odd-0", compression="lz4") as log:
        log.append_many([(text, None) for text in texts(COUNT, seed=29)])
        log.append(None, key=b"k")
    for partition in (0, 1):
        with kafkalog.open_log(root, f"orders-{partition}") as log:
            log.append_many([(order(n), b"key-%d" % (n % 3)) for n in range(100)])
            log.append(None, key=b"key-0")
    return root


def order(n: int) -> bytes:
    return b'{"id":%d,"price":%d.5,"tags":["a","b%d"],"more":{}}' % (n, n, n)


def read(spark: Any, log_dir: str, topic: str, **options: str) -> Any:
    return spark.read.format("kafkalog").option("path", log_dir).option("subscribe", topic).options(**options)


def test_it_is_what_sparks_from_json_makes_of_the_values(spark: Any, log_dir: str) -> None:
    from pyspark.sql import functions as f

    ours = read(spark, log_dir, "odd", valueSchema=DDL).load().select("offset", f.col("value").alias("ours"))
    theirs = f.from_json(f.col("value").cast("string"), DDL)
    both = read(spark, log_dir, "odd", columns="offset,value").load().withColumn("theirs", theirs).join(ours, "offset")
    assert ours.schema["ours"].dataType == both.schema["theirs"].dataType
    found = both.select(
        f.count("*"),
        f.count("theirs"),
        f.count(f.when(~f.col("ours").eqNullSafe(f.col("theirs")), 1)),
        # -0.0 and 0.0 are equal, and shown differently.
        f.count(f.when(~f.to_json("ours").eqNullSafe(f.to_json("theirs")), 1)),
    ).first()
    assert found[0] == COUNT + 1
    assert 0 < found[1] <= COUNT  # blank texts are null, and so is the tombstone
    if found[2] or found[3]:
        different = both.where(~f.to_json("ours").eqNullSafe(f.to_json("theirs"))).limit(3).collect()
        pytest.fail(f"{found}: {different}")


def test_with_other_options(spark: Any, log_dir: str) -> None:
    from pyspark.sql import functions as f

    every = read(spark, log_dir, "orders", valueSchema=ORDERS).load()
    assert every.schema["value"].dataType.simpleString() == "struct<id:bigint,price:double,tags:array<string>>"
    assert every.where("value is null").count() == 2
    assert every.selectExpr("sum(value.id)", "sum(value.price)", "max(value.tags[1])").first()[:] == (
        9900,
        10000.0,
        "b99",
    )
    few = read(spark, log_dir, "orders", valueSchema=f"struct<{ORDERS}>", columns="value,partition").load()
    assert few.columns == ["value", "partition"]
    assert few.where("partition = 1 and value.id >= 90").count() == 10
    last = read(spark, log_dir, "orders", valueSchema=ORDERS, latest="true").load()
    assert sorted(row[0] for row in last.select("value.id").collect()) == [97, 97, 98, 98]
    found = read(spark, log_dir, "orders", valueSchema=ORDERS, grep='"id":7,', includeHeaders="true").load()
    assert [row.value.id for row in found.collect()] == [7, 7]
    keyed = read(spark, log_dir, "orders", valueSchema=ORDERS, key="key-1").load()
    assert {row.id % 3 for row in keyed.select(f.col("value.id")).collect()} == {1}
    without = read(spark, log_dir, "orders", valueSchema=ORDERS, columns="offset").load()
    assert without.columns == ["offset"]
    assert without.count() == 202


def test_by_a_schema(spark: Any, log_dir: str) -> None:
    frame = read(spark, log_dir, "orders").schema(f"offset bigint, value struct<{ORDERS}>").load()
    assert frame.where("offset = 5").select("value.*").first()[:] == (5, 5.5, ["a", "b5"])
    both = read(spark, log_dir, "orders", valueSchema=ORDERS).schema(f"value struct<{ORDERS}>").load()
    assert both.count() == 202


def test_filters_are_pushed_as_ever(spark: Any, log_dir: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, log_dir, "orders", valueSchema=ORDERS, pushDownPredicate="true").load()
        assert [row.id for row in frame.where("offset = 5 and partition = 1").select("value.id").collect()] == [5]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@needs_streams
def test_a_stream(spark: Any, log_dir: str, tmp_path: Path) -> None:
    stream = spark.readStream.format("kafkalog").option("path", log_dir).option("subscribe", "orders")
    frame = stream.option("startingOffsets", "earliest").option("valueSchema", ORDERS).load().select("value.*")
    rows: list[Any] = []
    query = frame.writeStream.foreachBatch(lambda batch, number: rows.extend(batch.collect()))
    query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(row.id for row in rows if row.id is not None) == sorted([*range(100), *range(100)])
    assert len(rows) == 202


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("id bigint, at timestamp", "found timestamp as the type of at"),
        ("m map<string,int>", "found map<string,int> as the type of m"),
        ("a array<decimal(10,2)>", r"found decimal\(10,2\) as the type of a\[\]"),
        ("a int not null", "found NOT NULL at a"),
        (" ", "option valueSchema: found"),
        ("id bigint,, x", "(?i)syntax error"),
    ],
)
def test_what_cannot_be_the_same_is_refused(spark: Any, log_dir: str, ddl: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, log_dir, "orders", valueSchema=ddl).load().collect()


def test_bytes_and_fields_are_refused(spark: Any, log_dir: str) -> None:
    with pytest.raises(Exception, match="says that value is binary"):
        read(spark, log_dir, "orders", valueSchema=ORDERS).schema("value binary").load().collect()
