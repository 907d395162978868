"""Spark's own Kafka connector on Apache Kafka 4.4.0 and on `kafkalog serve`: the same jobs give the same rows.

Batch reads, batch writes and a stream from topic to topic, with Spark's connector and its clients alone: kafkalog is
only the server. Runs where the connector does (`make spark-connector`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.broker.servers import Servers, both
from tests.conftest import need_broker
from tests.spark import connector

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(connector.missing() is not None, reason=str(connector.missing())),
]
ROWS = 3000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    need_broker()
    with both(tmp_path_factory.mktemp("servers")) as found:
        yield found


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = connector.session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def write(spark: Any, bootstrap: str, topic: str) -> None:
    frame = spark.range(ROWS).selectExpr(
        "cast(id % 7 as string) as key", "concat('value ', id) as value", "cast(id % 3 as int) as partition"
    )
    frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()


def rows(spark: Any, bootstrap: str, topic: str, **options: str) -> list[str]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    frame = reader.options(**options).load()
    columns = frame.selectExpr("partition", "offset", "cast(key as string)", "cast(value as string)", "timestampType")
    return sorted(map(str, columns.collect()))


def make(bootstrap: str, *topics: str) -> None:
    from tests.broker.clients import create_topics

    create_topics(bootstrap, {each: (3, {}) for each in topics})


def test_a_batch_is_written_and_read(servers: Servers, spark: Any) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        make(bootstrap, "batch")
        write(spark, bootstrap, "batch")
        found = [row.split("value=")[1] for row in rows(spark, bootstrap, "batch")]
        starts = '{"batch": {"0": 100, "1": 0, "2": 900}}'
        some = rows(spark, bootstrap, "batch", startingOffsets=starts)
        return [str(sorted(found)), str(len(some))]

    (_, some) = servers.same(program)
    assert int(some) == ROWS - 1000


def test_a_stream_copies_a_topic(servers: Servers, spark: Any, tmp_path: Path) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        make(bootstrap, "stream-in", "stream-out")
        write(spark, bootstrap, "stream-in")
        source = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", "stream-in")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "1000")
            .load()
        )
        query = (
            source.selectExpr("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", "stream-out")
            .option("checkpointLocation", str(tmp_path / bootstrap.partition(":")[2]))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        found = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        frame = found.option("subscribe", "stream-out").load()
        return sorted(str(row) for row in frame.selectExpr("cast(key as string)", "cast(value as string)").collect())

    assert len(servers.same(program)) == ROWS
