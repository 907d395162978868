"""Streams in a real local Spark: restarts from a checkpoint, limits, AvailableNow, changes under a running query, the
progress report; also in a small cluster of several processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

import kafkalog
from kafkalog.spark.offsets import behind_latest

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = str(Path(__file__).parents[2])
START_MS = 1_700_000_000_000
WAIT_S = 120


def fill(root: Path | str, partition: str, count: int) -> None:
    with kafkalog.open_log(root, partition) as log:
        end = log.end_offset
        log.append_many([(b"%d" % n, b"k%d" % (n % 3), [], START_MS + n) for n in range(end, end + count)])


class Query:
    """The rows of a streaming query's batches over its runs with one checkpoint: a list of (partition, offset) for each
    batch's number. A batch that is repeated replaces the former one."""

    def __init__(self, spark: Any, root: Path, place: Path) -> None:
        self.spark = spark
        self.root = root
        self.checkpoint = place / "checkpoint"
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.on_batch: Callable[[int], None] = lambda number: None

    def _take(self, frame: Any, number: int) -> None:
        rows = [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]
        self.on_batch(number)
        self.batches[number] = sorted(rows)

    def start(self, options: dict[str, str], **trigger: Any) -> Any:
        frames = self.spark.readStream.format("kafkalog").option("path", str(self.root))
        for name, value in ({} if "subscribePattern" in options else {"subscribe": "t"} | options).items():
            frames = frames.option(name.replace("__", "."), value)
        for name, value in options.items():
            frames = frames.option(name.replace("__", "."), value)
        writer = frames.load().writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run(self, options: dict[str, str]) -> list[Any]:
        """Reads everything with Trigger.AvailableNow; returns the progress reports."""
        query = self.start(options, availableNow=True)
        try:
            assert query.awaitTermination(WAIT_S)
            return list(query.recentProgress)
        finally:
            query.stop()

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for batch in self.batches.values() for row in batch)


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Iterator[Query]:
    yield Query(spark, tmp_path / "logs", tmp_path)
    for each in spark.streams.active:
        each.stop()


def expected(*ranges: tuple[int, int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, first, end in ranges for offset in range(first, end)]


def test_available_now_again_and_again(query: Query) -> None:
    fill(query.root, "t-0", 250)
    fill(query.root, "t-1", 50)
    query.run({"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"})
    # In the first batch the initial offsets come into the checkpoint.
    assert [len(query.batches[number]) for number in sorted(query.batches)] == [0, 99, 99, 99, 3]
    fill(query.root, "t-1", 20)
    fill(query.root, "t-2", 7)
    query.run({})
    assert query.batches[5] == expected((1, 50, 70), (2, 0, 7))
    query.run({})
    assert max(query.batches) == 5
    assert query.rows == expected((0, 0, 250), (1, 0, 70), (2, 0, 7))


def test_the_checkpoint_is_that_of_the_kafka_source(query: Query) -> None:
    fill(query.root, "t-0", 10)
    query.run({"startingOffsets": "earliest"})
    (query.checkpoint / "offsets" / "1").rename(query.checkpoint / "written")
    lines = (query.checkpoint / "written").read_text().splitlines()
    assert lines[-1].replace(" ", "") == '{"t":{"0":10}}'
    lines[-1] = '{"t":{"0":7}}'  # as that source writes it
    (query.checkpoint / "offsets" / "1").write_text("\n".join(lines))
    (query.checkpoint / "offsets" / ".1.crc").unlink()
    fill(query.root, "t-0", 3)
    query.run({})
    assert query.batches[2] == expected((0, 7, 13))


def test_a_failed_batch_is_made_again_as_it_was(query: Query) -> None:
    fill(query.root, "t-0", 100)

    def fail(number: int) -> None:
        if number == 2:
            raise RuntimeError("the sink fails")

    query.on_batch = fail
    with pytest.raises(Exception, match="the sink fails"):
        query.run({"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"})
    assert query.rows == expected((0, 0, 30))
    fill(query.root, "t-0", 100)
    query.on_batch = lambda number: None
    query.run({"maxOffsetsPerTrigger": "50"})
    assert query.batches[2] == expected((0, 30, 60))
    assert query.rows == expected((0, 0, 200))
    counts = Counter(query.rows)
    assert max(counts.values()) == 1


def test_what_comes_between_two_runs_from_latest(query: Query) -> None:
    """The first run dies before any record came: the second continues where it began."""
    fill(query.root, "t-0", 100)

    def fail(number: int) -> None:
        raise RuntimeError("the sink fails")

    query.on_batch = fail
    with pytest.raises(Exception, match="the sink fails"):
        query.run({})
    fill(query.root, "t-0", 20)
    query.on_batch = lambda number: None
    query.run({})
    assert query.rows == expected((0, 100, 120))


def test_a_running_query_follows(query: Query) -> None:
    fill(query.root, "t-0", 10)
    running = query.start({"startingOffsets": "earliest"})
    running.processAllAvailable()
    assert query.rows == expected((0, 0, 10))
    writer = threading.Thread(target=lambda: [fill(query.root, "t-0", 10) for _ in range(20)])
    writer.start()
    fill(query.root, "t-1", 5)
    running.processAllAvailable()
    writer.join()
    running.processAllAvailable()
    assert query.rows == expected((0, 0, 210), (1, 0, 5))
    assert len(query.batches) > 2
    running.stop()


def test_progress_tells_how_far_behind(query: Query) -> None:
    fill(query.root, "t-0", 90)
    fill(query.root, "t-1", 10)
    progress = query.run({"startingOffsets": "earliest", "maxOffsetsPerTrigger": "50"})
    (source,) = progress[1]["sources"]
    assert progress[1]["batchId"] == 1
    assert json.loads(source["startOffset"]) == {"t": {"0": 0, "1": 0}}
    assert json.loads(source["endOffset"]) == {"t": {"0": 45, "1": 5}}
    assert json.loads(source["latestOffset"]) == {"t": {"0": 90, "1": 10}}
    assert source["numInputRows"] == 50
    behind = {"minOffsetsBehindLatest": "5", "maxOffsetsBehindLatest": "45", "avgOffsetsBehindLatest": "25.0"}
    assert behind_latest(source) == behind_latest(progress[1].sources[0]) == behind


def test_min_offsets(query: Query) -> None:
    fill(query.root, "t-0", 5)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    running = query.start(options)
    running.processAllAvailable()
    fill(query.root, "t-0", 5)
    running.processAllAvailable()
    assert query.rows == expected((0, 0, 5))  # the first trigger has no other before it
    fill(query.root, "t-0", 5)
    running.processAllAvailable()
    assert query.rows == expected((0, 0, 15))
    running.stop()


def test_max_bytes(query: Query) -> None:
    for _ in range(10):
        fill(query.root, "t-0", 10)
    batch_bytes = (query.root / "t-0" / f"{0:020}.log").stat().st_size // 10
    options = {"startingOffsets": "earliest", "maxBytesPerTrigger": str(int(batch_bytes * 3.5))}
    query.run(options)
    assert [len(query.batches[number]) for number in sorted(query.batches)] == [0, 30, 30, 30, 10]


def test_retention_under_a_query(query: Query) -> None:
    fill(query.root, "t-0", 100)
    query.run({"startingOffsets": "earliest"})
    fill(query.root, "t-0", 100)
    with kafkalog.open_log(query.root, "t-0") as log:
        log.delete_records(150)
    with pytest.raises(Exception, match="Starting offset for t-0 was 100 but the log starts at 150"):
        query.run({})
    query.run({"failOnDataLoss": "false"})
    assert query.rows == expected((0, 0, 100), (0, 150, 200))


def test_a_deleted_partition_under_a_query(query: Query) -> None:
    fill(query.root, "t-0", 10)
    fill(query.root, "t-1", 10)
    query.run({"startingOffsets": "earliest"})
    shutil.rmtree(query.root / "t-1")
    fill(query.root, "t-0", 10)
    with pytest.raises(Exception, match="Partitions t-1 have been deleted"):
        query.run({})
    query.run({"failOnDataLoss": "false"})
    assert query.rows == expected((0, 0, 20), (1, 0, 10))


def test_a_start_that_is_refused_leaves_the_checkpoint(query: Query) -> None:
    fill(query.root, "t-0", 10)
    fill(query.root, "other-0", 10)
    query.run({"startingOffsets": "earliest"})
    kept = sorted((query.checkpoint / "offsets").iterdir())
    for options, text in (
        ({"subscribe": "other"}, "Partitions t-0 have been deleted"),
        ({"subscribe": "t,misspelt"}, "no topic misspelt"),
    ):
        with pytest.raises(Exception, match=text):
            query.run(options)
    log, away = query.root / "t-0", query.root / "away"
    log.rename(away)
    fill(query.root, "t-0", 4)
    with pytest.raises(Exception, match="Partition t-0 offset was changed from 10 to 4"):
        query.run({})
    shutil.rmtree(log)
    away.rename(log)
    assert sorted((query.checkpoint / "offsets").iterdir()) == kept
    fill(query.root, "t-0", 5)
    query.run({})
    assert query.rows == expected((0, 0, 15))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_is_made_again_under_a_running_query(query: Query, fail: str) -> None:
    def make(count: int) -> None:
        with kafkalog.open(query.root) as store:
            if "t" in store.topics():
                store.delete_topic("t")
            store.create_topic("t", 1).append_many([b"%d" % n for n in range(count)])

    make(20)
    running = query.start({"startingOffsets": "earliest", "failOnDataLoss": fail})
    try:
        running.processAllAvailable()
        assert query.rows == expected((0, 0, 20))
        make(30)
        if fail == "true":
            with pytest.raises(Exception, match=r"created again|been deleted|no partition t-0"):
                running.processAllAvailable()
            return
        running.processAllAvailable()
        assert query.rows == sorted(expected((0, 0, 20), (0, 0, 30)))
    finally:
        running.stop()


def test_once(query: Query) -> None:
    fill(query.root, "t-0", 10)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"}
    assert query.start(options, once=True).awaitTermination(WAIT_S)
    assert query.batches == {0: expected((0, 0, 10))}


def test_columns(spark: Any, query: Query) -> None:
    fill(query.root, "t-0", 3)
    batch = spark.read.format("kafkalog").option("path", str(query.root)).option("subscribe", "t")
    stream = spark.readStream.format("kafkalog").option("path", str(query.root)).option("subscribe", "t")
    for headers in ("false", "true"):
        assert (
            stream.option("includeHeaders", headers).load().schema
            == batch.option("includeHeaders", headers).load().schema
        )
    pruned = stream.option("startingOffsets", "earliest").schema("value binary, offset long").load()
    assert pruned.columns == ["value", "offset"]
    running = pruned.writeStream.format("memory").queryName("pruned").trigger(availableNow=True).start()
    assert running.awaitTermination(WAIT_S)
    assert [(bytes(row.value), row.offset) for row in spark.table("pruned").orderBy("offset").collect()] == [
        (b"%d" % n, n) for n in range(3)
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
        ({"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, r"minOffsetPerTrigger\(2\) is higher"),
        ({"startingOffsets": '{"t":{"0":1,"7":1}}'}, "must specify all TopicPartitions"),
    ],
)
def test_errors(query: Query, options: dict[str, str], text: str) -> None:
    fill(query.root, "t-0", 3)
    with pytest.raises(Exception, match=text) as caught:
        query.run(options)
    assert "UnboundLocalError" not in str(caught.value)


CLUSTER = """
import sys
from pyspark.sql import SparkSession

root, place = sys.argv[1:]
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
builder = builder.config("spark.executor.memory", "512m").config("spark.driver.memory", "512m")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "2").getOrCreate()
frames = spark.readStream.format("kafkalog").option("path", root).option("subscribe", "t")
frames = frames.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "6000").load()
writer = frames.select("partition", "offset").writeStream.option("checkpointLocation", place + "/checkpoint")
query = writer.format("parquet").option("path", place + "/out").trigger(availableNow=True).start()
assert query.awaitTermination(200)
rows = spark.read.parquet(place + "/out")
print(rows.count(), rows.distinct().count(), rows.where("partition = 1").agg({"offset": "max"}).first()[0])
spark.stop()
"""


def test_in_a_cluster(tmp_path: Path) -> None:
    """Executors are separate processes in separate directories."""
    for partition in range(3):
        fill(tmp_path / "logs", f"t-{partition}", 5000)
    environment = os.environ | {
        "PYTHONPATH": ROOT,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, str(tmp_path / "logs"), str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["15000", "15000", "4999"]), done.stderr[-3000:]
