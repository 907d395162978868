"""Many small partitions are few tasks in Spark, as few as its cores allow; minPartitions and streams as before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.spark.source import KafkalogDataSource, register
from tests.spark.versions import PYSPARK, needs_replacing, needs_streams

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]
PARTITIONS = 300
RECORDS = 5


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("many")
    with kafkalog.open_log(root, "t-0") as log:
        for n in range(RECORDS):
            log.append(b"%d" % n, key=b"k%d" % n)
    for number in range(1, PARTITIONS):
        shutil.copytree(root / "t-0", root / f"t-{number}")
    return str(root)


def frame_of(spark: Any, root: str, **options: Any) -> Any:
    return spark.read.format("kafkalog").options(subscribe="t", **options).load(root)


def test_many_small_partitions_are_few_tasks(spark: Any, many: str) -> None:
    if PYSPARK >= (4, 1):
        spark.dataSource.register(KafkalogDataSource)  # this source knows nothing of the session
    frame = frame_of(spark, many)
    assert frame.rdd.getNumPartitions() < 50
    found = frame.groupBy("partition").agg({"offset": "count", "key": "max"}).collect()
    assert sorted(row.partition for row in found) == [*range(PARTITIONS)]
    assert {(row[1], bytes(row[2])) for row in found} == {(RECORDS, b"k4")}


@needs_replacing
def test_a_source_that_knows_the_session_makes_tasks_for_its_cores(spark: Any, many: str) -> None:
    register(spark)
    try:
        assert frame_of(spark, many).rdd.getNumPartitions() == spark.sparkContext.defaultParallelism == 2
        assert frame_of(spark, many).count() == PARTITIONS * RECORDS
        assert 40 <= frame_of(spark, many, minPartitions=40).rdd.getNumPartitions() < 50
        latest = frame_of(spark, many, latest="true")
        assert latest.rdd.getNumPartitions() == 2
        assert latest.count() == PARTITIONS * RECORDS
    finally:
        spark.dataSource.register(KafkalogDataSource)


@needs_streams
def test_a_stream_packs_too(spark: Any, many: str, tmp_path: Path) -> None:
    source = spark.readStream.format("kafkalog").options(subscribe="t", startingOffsets="earliest").load(many)
    counts: list[tuple[int, int]] = []

    def count(batch: Any, number: int) -> None:
        if batch.rdd.getNumPartitions():
            counts.append((batch.rdd.getNumPartitions(), batch.count()))

    query = (
        source.writeStream.foreachBatch(count).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    )
    query.start().awaitTermination()
    rows = sum(count for _, count in counts)
    assert rows == PARTITIONS * RECORDS
    assert max(tasks for tasks, _ in counts) < 50


def test_large_records_come_through(spark: Any, tmp_path: Path) -> None:
    """Empty batches lie between them."""
    size = 25 << 20
    with kafkalog.open_log(tmp_path, "t-0", config={"max.message.bytes": str(2 * size)}) as log:
        for n in (1, size, 2, size, size):
            log.append(bytes(n))
    frame = frame_of(spark, str(tmp_path), columns="offset,value")
    rows = frame.selectExpr("offset", "length(value) as size").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(0, 1), (1, size), (2, 2), (3, size), (4, size)]
