"""`df.writeStream.format("kafkalog")` on real Spark: each micro-batch once, whatever is done again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from tests.spark.test_sink import create, records, staged, values

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

TOPIC = "t"


class Lines:
    """A stream of a directory's text files, one file a micro-batch, and the query that writes it."""

    def __init__(self, spark: Any, place: Path, data: Path) -> None:
        self._spark = spark
        self.source = place / "source"
        self.source.mkdir(parents=True)
        self.checkpoint = place / "checkpoint"
        self.data = str(data)

    def add(self, *lines: str) -> None:
        number = len(list(self.source.iterdir()))
        path = self.source / f"{number:05}.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which they are read

    def start(self, **options: Any) -> Any:
        lines = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.source))
        writer = lines.writeStream.format("kafkalog").option("checkpointLocation", str(self.checkpoint))
        for name, value in {"topic": TOPIC, **options}.items():
            writer = writer.option(name, value)
        return writer.trigger(availableNow=True).start(self.data)

    def run(self, **options: Any) -> str:
        """Writes all files in a separate run; returns the query's id."""
        query = self.start(**options)
        query.awaitTermination()
        return str(query.id)

    def forget(self, batch_id: int) -> None:
        """As if the driver had been killed after the commit, before it noted that."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def cursor_of(data: str, query: str) -> dict[TopicPartition, CommittedOffset]:
    with kafkalog.open(data, read_only=True) as store:
        return store.committed(f"spark-{query}")


def test_each_micro_batch_is_there_once(spark: Any, tmp_path: Path) -> None:
    lines = Lines(spark, tmp_path, tmp_path / "data")
    create(lines.data, 2, TOPIC)
    lines.add("a", "b")
    lines.add("c")
    query = lines.run()
    assert values(lines.data, TOPIC) == ["a", "b", "c"]
    [entry] = cursor_of(lines.data, query).values()
    assert json.loads(entry.metadata) == {"batchId": 1}

    lines.forget(1)
    assert lines.run() == query
    assert values(lines.data, TOPIC) == ["a", "b", "c"]
    lines.add("d")
    lines.forget(1)
    lines.run()
    assert values(lines.data, TOPIC) == ["a", "b", "c", "d"]
    assert staged(lines.data) == []

    with kafkalog.open(lines.data) as store:  # the test can fail: without the cursor it would be there again
        store.delete_cursor(f"spark-{query}")
    lines.forget(2)
    lines.run()
    assert values(lines.data, TOPIC) == ["a", "b", "c", "d", "d"]


def test_queries_of_one_directory_wait_for_each_other(spark: Any, tmp_path: Path) -> None:
    both = [Lines(spark, tmp_path / name, tmp_path / "data") for name in ("one", "two")]
    for number, lines in enumerate(both):
        for entry in range(4):
            lines.add(f"{number} {entry}")
    queries = [lines.start(createTopics="true", numPartitions=3) for lines in both]
    for query in queries:
        query.awaitTermination()
    found = values(both[0].data, TOPIC)
    assert found == sorted(f"{number} {entry}" for number in range(2) for entry in range(4))
    for query in queries:
        assert len(cursor_of(both[0].data, str(query.id))) == 1


def test_a_micro_batch_that_failed_is_done_again(spark: Any, tmp_path: Path) -> None:
    lines = Lines(spark, tmp_path, tmp_path / "data")
    create(lines.data, 1, TOPIC)
    lines.add("a")
    lines.run()
    lines.add("b")
    with pytest.raises(Exception, match="there is no topic 'other'"):
        lines.run(topic="other")
    lines.run()
    assert values(lines.data, TOPIC) == ["a", "b"]


def test_rows_of_a_complete_result_are_appended(spark: Any, tmp_path: Path) -> None:
    lines = Lines(spark, tmp_path, tmp_path / "data")
    create(lines.data, 1, TOPIC)
    lines.add("a", "a")
    lines.add("a", "b")
    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(lines.source))
    counts = frame.groupBy("value").count().selectExpr("value key", "cast(count as string) value")
    writer = counts.writeStream.format("kafkalog").outputMode("complete").option("topic", TOPIC)
    writer = writer.option("checkpointLocation", str(lines.checkpoint)).trigger(availableNow=True)
    writer.start(lines.data).awaitTermination()
    assert sorted((key, value) for _, key, value, _ in records(lines.data, TOPIC)) == [
        (b"a", b"2"),
        (b"a", b"3"),
        (b"b", b"1"),
    ]


def test_a_micro_batch_without_rows(spark: Any, tmp_path: Path) -> None:
    lines = Lines(spark, tmp_path, tmp_path / "data")
    create(lines.data, 1, TOPIC)
    lines.add()
    query = lines.run()
    assert records(lines.data, TOPIC) == []
    assert cursor_of(lines.data, query) == {}
