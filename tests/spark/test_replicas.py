"""Spark reads the disks of several brokers as one: the leader's copy, up to the high watermark.  Also each example of
docs/how-to/spark-replicas.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kafkalog.errors import IllegalArgumentException
from tests.spark.versions import needs_streams
from tests.unit.replica_kit import Batch, broker, copy, metadata, partition

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-replicas.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def disks(tmp_path: Path) -> list[str]:
    """Broker 2 leads orders-0, with 40 records and 30 below the high watermark; broker 1 has 35 of another history."""
    made = [broker(tmp_path, node) for node in (1, 2, 3)]
    copy(made[0], [Batch(0), Batch(0), Batch(0), Batch(0, 5, word="lost")], 30)
    copy(made[1], [Batch(0), Batch(0), Batch(0), Batch(1, 10, word="new")], 30)
    copy(made[2], [Batch(0), Batch(0)], 20)
    metadata(made[2], partition(leader=2, epoch=1, isr=(2, 3)))
    return [str(each) for each in made]


def read(spark: Any, disks: list[str], **options: str) -> Any:
    return spark.read.format("kafkalog").option("subscribe", "orders").options(**options).load(disks)


def test_the_leader_up_to_the_watermark(spark: Any, disks: list[str]) -> None:
    assert sorted(row.offset for row in read(spark, disks).collect()) == list(range(30))
    whole = read(spark, disks, endingOffsets="logEnd").orderBy("offset").collect()
    assert [row.offset for row in whole] == list(range(40))
    assert whole[-1].value == b"new39"


def test_all_copies(spark: Any, disks: list[str]) -> None:
    found = read(spark, disks, replicas="all", endingOffsets="logEnd")
    assert found.columns[-1] == "replica"
    counted = {row.replica: row["count"] for row in found.groupBy("replica").count().collect()}
    assert counted == {1: 35, 2: 40, 3: 20}
    some = read(spark, disks, replicas="all", columns="replica,offset").where("replica = 3 and offset > 17").collect()
    assert sorted(map(tuple, some)) == [(3, 18), (3, 19)]
    with pytest.raises(Exception, match="expected replica among them"):
        read(spark, disks, replicas="all", columns="offset").collect()
    with pytest.raises(Exception, match="replica needs option replicas=all"):
        read(spark, disks, columns="offset,replica").collect()


def test_a_contradiction_is_an_error(spark: Any, disks: list[str]) -> None:
    (Path(disks[0]) / "replication-offset-checkpoint").write_text("0\n1\norders 0 33\n")
    with pytest.raises(
        Exception, match="different leader epochs from offset 30 on, below the latter's high watermark 33"
    ):
        read(spark, disks).collect()
    assert read(spark, disks, failOnDataLoss="false").count() == 30


def test_an_export_takes_one_broker(spark: Any, disks: list[str], tmp_path: Path) -> None:
    from kafkalog.spark import jobs

    with pytest.raises(IllegalArgumentException, match="name the directories of one broker"):
        jobs.export(spark, disks, tmp_path / "lake", ["orders"])


@needs_streams
def test_a_stream_waits_for_the_watermark(spark: Any, disks: list[str], tmp_path: Path) -> None:
    def run() -> list[int]:
        frames = spark.readStream.format("kafkalog").option("subscribe", "orders").option("path", ",".join(disks))
        found: list[int] = []

        def take(frame: Any, number: int) -> None:
            found.extend(row.offset for row in frame.select("offset").collect())

        writer = frames.option("startingOffsets", "earliest").load().writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return sorted(found)

    assert run() == list(range(30))
    (Path(disks[1]) / "replication-offset-checkpoint").write_text("0\n1\norders 0 40\n")
    assert run() == list(range(30, 40))
    (Path(disks[1]) / "replication-offset-checkpoint").write_text("0\n1\norders 0 35\n")
    assert run() == [], "what was handed out stays so"


@pytest.mark.parametrize("code", EXAMPLES, ids=[f"line{TEXT[: TEXT.index(each)].count(chr(10))}" for each in EXAMPLES])
def test_an_example_runs(spark: Any, disks: list[str], code: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = re.sub(r'"broker-(\d)"', lambda found: repr(disks[int(found[1]) - 1]), code)
    exec(compile(code, "docs/how-to/spark-replicas.md", "exec"), {})
    out = capfd.readouterr().out
    assert "|        0|" in out
    assert "29|" in out if "replicas" not in code else "39|" in out
