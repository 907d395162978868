"""`content=cursors` on real Spark: groups of each kind as rows, resets, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kafkalog

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

Rows = list[tuple[Any, ...]]


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A store with a cursor, a queue, and a queue that has taken nothing."""
    path = str(tmp_path / "shop")
    with kafkalog.open(path) as store:
        orders = store.create_topic("orders", 2)
        for partition in range(2):
            orders.append_many([b"value"] * 10, partition=partition)
        with store.reader("billing", topics=["orders"], start_offsets={("orders", 0): 4, ("orders", 1): 7}) as reader:
            reader.commit()
        with store.queue("mail", topics=["orders"], start="earliest") as queue:
            queue.ack([each for each in queue.take(20) if each.partition == 0 and each.offset < 3])
        with store.queue("later", topics=["orders"]):
            pass
    return path


def cursors(spark: Any, path: str, *columns: str) -> Rows:
    frame = spark.read.format("kafkalog").option("content", "cursors").load(path)
    return sorted(map(tuple, frame.select(*columns).collect()), key=repr)


def write(frame: Any, path: str) -> None:
    frame.write.format("kafkalog").mode("append").option("content", "cursors").save(path)


def test_groups_are_rows(spark: Any, shop: str) -> None:
    columns = ("group", "type", "state", "members", "topic", "partition", "offset", "end", "lag")
    found = cursors(spark, shop, *columns)
    assert [row for row in found if row[0] == "billing"] == [
        ("billing", "Classic", "Empty", 0, "orders", 0, 4, 10, 6),
        ("billing", "Classic", "Empty", 0, "orders", 1, 7, 10, 3),
    ]
    assert [row for row in found if row[0] == "mail"] == [
        ("mail", "Share", "Empty", 0, "orders", 0, 3, 10, 7),
        ("mail", "Share", "Empty", 0, "orders", 1, 0, 10, 10),
    ]
    assert {row[6] for row in found if row[0] == "later"} <= {None}
    with kafkalog.open(shop) as store:  # no lock is taken
        assert cursors(spark, shop, *columns) == found
        assert [each.name for each in store.cursors()] == ["billing", "later", "mail"]


def test_a_changed_table_is_written_back(spark: Any, shop: str) -> None:
    frame = spark.read.format("kafkalog").option("content", "cursors").load(shop)
    write(frame.where("offset > 0").withColumn("offset", frame["offset"] - 2), shop)
    assert cursors(spark, shop, "group", "partition", "offset") == [
        ("billing", 0, 2), ("billing", 1, 5), ("later", 0, None), ("later", 1, None), ("mail", 0, 1), ("mail", 1, 0),
    ]  # fmt: skip
    new = spark.createDataFrame([("new", "orders", 1, 3)], "group string, topic string, partition int, offset bigint")
    write(new, shop)
    with kafkalog.open(shop) as store:
        assert {str(place): each.offset for place, each in store.committed("new").items()} == {"orders-1": 3}


def test_a_schema_chooses_columns(spark: Any, shop: str) -> None:
    def read(schema: str) -> Rows:
        frame = spark.read.format("kafkalog").schema(schema).option("content", "cursors").load(shop)
        return [tuple(row) for row in frame.where("group = 'billing'").collect()]

    assert read("lag bigint, group string not null") == [(6, "billing"), (3, "billing")]
    with pytest.raises(Exception, match="there is no column value binary"):
        read("group string, value binary")


def test_what_is_refused(spark: Any, shop: str) -> None:
    columns = "group string, topic string, partition int, offset bigint"

    def rows(*given: tuple[Any, ...]) -> Any:
        return spark.createDataFrame(list(given), columns)

    before = cursors(spark, shop, "group", "partition", "offset")
    for frame, text in (
        (rows(("billing", "orders", 0, None)), "expected no null"),
        (rows(("billing", "orders", 0, 1), ("billing", "orders", 0, 2)), "one row for each partition"),
        (rows(("billing", "nothing", 0, 1)), "no partition nothing-0"),
        (rows(("billing", "orders", 0, 1)).drop("offset"), "needs a column offset bigint"),
    ):
        with pytest.raises(Exception, match=text):
            write(frame, shop)
    with pytest.raises(Exception, match="expected records or cursors"):
        spark.read.format("kafkalog").option("content", "groups").load(shop)
    stream = spark.readStream.format("kafkalog").option("content", "cursors").load(shop)
    query = stream.writeStream.format("noop").start()
    with pytest.raises(Exception, match="is for batches"):
        query.processAllAvailable()
    with kafkalog.open(shop) as store:
        with pytest.raises(Exception, match="lock"):
            write(rows(("billing", "orders", 0, 1)), shop)
        store.reader("live", topics=["orders"], group=True).poll(timeout_ms=0)
    assert [row for row in cursors(spark, shop, "group", "partition", "offset") if row[0] != "live"] == before
