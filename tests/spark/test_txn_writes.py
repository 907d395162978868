"""txnAppId and txnVersion on real Spark: once, whatever is done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.spark.test_sink import create, staged, values, write
from tests.spark.txn_driver import TOPICS

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark


def txn(version: int, app_id: str = "app", **more: str) -> dict[str, Any]:
    return {"topic": "t", "txnAppId": app_id, "txnVersion": version, **more}


def test_a_version_is_written_once(spark: Any, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    create(data, 2, "t")
    rows = spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) value")
    many = spark.range(0, 200_000, 1, 2).selectExpr("cast(id as string) value")  # tasks take no row of them
    for frame, version in ((rows, 7), (rows, 7), (many, 7), (many, 3)):
        write(frame, data, txn(version))
    assert values(data, "t") == sorted(map(str, range(1000)))
    write(rows.limit(1), data, txn(8))
    write(rows.limit(1), data, txn(1, "other"))
    assert len(values(data, "t")) == 1002
    assert staged(data) == []
    with kafkalog.open(data, read_only=True) as store:
        assert {cursor.name for cursor in store.cursors()} == {"spark-app-app", "spark-app-other"}


def test_what_is_half_said_or_said_to_a_stream_is_refused(spark: Any, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    create(data, 1, "t")
    rows = spark.sql("select 'v' value")
    with pytest.raises(Exception, match="found option txnAppId without option txnVersion"):
        write(rows, data, {"topic": "t", "txnAppId": "a"})
    with pytest.raises(Exception, match=r"option txnVersion is '-1'.*expected a whole number"):
        write(rows, data, txn(-1))
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = stream.selectExpr("cast(value as string) value").writeStream.format("kafkalog")
    for name, value in txn(1, checkpointLocation=str(tmp_path / "checkpoint")).items():
        writer = writer.option(name, value)
    with pytest.raises(Exception, match="options txnAppId and txnVersion are for batch writes"):
        writer.start(data).processAllAvailable()
    assert values(data, "t") == []


def test_foreach_batch_and_a_checkpoint_that_forgot(spark: Any, tmp_path: Path) -> None:
    """The same micro-batch twice, as after a crash after the write; two topics have one version."""
    data, checkpoint = str(tmp_path / "data"), tmp_path / "checkpoint"
    create(data, 2, *TOPICS)
    (tmp_path / "source").mkdir()

    def both(rows: Any, batch_id: int) -> None:
        for topic in TOPICS:
            write(rows, data, txn(batch_id, "copy", topic=topic))

    def run() -> None:
        lines = spark.readStream.format("text").load(str(tmp_path / "source"))
        query = lines.writeStream.foreachBatch(both).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    for number in range(2):
        (tmp_path / "source" / f"{number}.txt").write_text(f"{number}\n")
        run()
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    run()
    assert [values(data, topic) for topic in TOPICS] == [["0", "1"], ["0", "1"]]
