"""A broker's directory that Spark wrote to: the broker serves it, and a stream stays exactly once after that.

run 1    The broker creates the topics, also Kafka's internal ones.
between  Spark writes a batch and a stream.  A killed task leaves its file.
run 2    A client reads all records, once and in order.
between  Spark repeats the stream's last micro-batch and writes another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.format.names import TopicPartition
from kafkalog.spark.staging import WriteId
from tests.broker import clients, kraft
from tests.broker.store_play import groups
from tests.broker.test_store_clients import make_topics
from tests.spark.test_sink import HEADERS, values, write
from tests.spark.test_sink_stream import TOPIC, Lines

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.broker]

BATCH = "orders"
PARTITIONS = 3


def test_a_broker_serves_what_spark_wrote(spark: Any, tmp_path: Path) -> None:
    with kraft.broker(tmp_path / "broker") as node:
        node.start()
        make_topics(node, {BATCH: PARTITIONS, TOPIC: PARTITIONS})
        node.stop()

        data = str(node.log_dir)
        rows = [(f"k{number % 7}", f"value {number}", [("n", b"%d" % number)]) for number in range(3000)]
        frame = spark.createDataFrame(rows, f"key string, value string, {HEADERS}").coalesce(1)
        write(
            frame,
            data,
            {"topic": BATCH, "kafka.compression.type": "zstd", "kafka.batch.size": 8192, "takeOver": "true"},
        )
        lines = Lines(spark, tmp_path, node.log_dir)
        lines.add("a", "b")
        lines.add("c")
        query = lines.run(takeOver="true")
        left = Path(data, WriteId("a" * 32).file_prefix + "0.1")
        left.write_bytes(b"of a killed task")

        node.start()
        places = [TopicPartition(topic, number) for topic in (BATCH, TOPIC) for number in range(PARTITIONS)]
        seen = clients.consume(node.bootstrap, places, "read_committed")
        for number in range(PARTITIONS):
            found = seen[TopicPartition(BATCH, number)].records
            numbers = [int((record.value or b"").split()[1]) for record in found]
            assert numbers == sorted(numbers)
            for record in found:
                key, value, headers = rows[int(dict(record.headers)["n"] or b"")]
                assert (record.key, record.value) == (key.encode(), value.encode())
                assert list(record.headers) == headers
        assert sum(len(seen[TopicPartition(BATCH, number)].records) for number in range(PARTITIONS)) == len(rows)
        streamed = [record for place in places if place.topic == TOPIC for record in seen[place].records]
        assert sorted(record.value or b"" for record in streamed) == [b"a", b"b", b"c"]
        assert f"spark-{query}" in groups(node.bootstrap)
        assert left.read_bytes() == b"of a killed task"
        node.stop()
        assert node.complaints() == []

        lines.forget(1)
        lines.add("d")
        lines.run(takeOver="true")
        assert values(data, TOPIC) == ["a", "b", "c", "d"]
