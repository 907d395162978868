"""The error of a wrong option, on every Spark: one sentence at the end, when the query is built.

And what Spark's JVM refuses itself for a source written in Python: the modes of a write.  Docs say what to do instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.spark.kit import damage_tail
from tests.spark.versions import needs_writes

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    with kafkalog.open_log(tmp_path / "a,b", "t-0") as log:
        log.append(b"x")
    return str(tmp_path / "a,b")


def said(error: BaseException) -> str:
    """The message's last line, without Spark's text after it."""
    text = str(error).partition("SQLSTATE")[0].strip()
    assert text.count("\n  File ") <= 4, text  # ours, and Spark's
    assert "kafkalog/spark/options.py" not in text
    return text.rpartition("\n")[2]


def test_a_sentence_at_the_end(spark: Any, log_dir: str) -> None:
    reader = spark.read.format("kafkalog").option("subscribe", "t")
    with pytest.raises(Exception) as caught:  # schema()
        reader.option("failOnDataLoss", "x").load(log_dir)
    assert said(caught.value).endswith("option failOnDataLoss is 'x' (expected true or false)")
    with pytest.raises(Exception) as caught:  # reader()
        reader.option("startingOffsets", "latest").option("failOnDataLoss", "true").load(log_dir).count()
    assert said(caught.value).endswith("or to the first offsets as JSON)")
    with pytest.raises(Exception) as caught:  # partitions()
        spark.read.format("kafkalog").option("subscribe", "u").load(log_dir).count()
    assert said(caught.value).endswith(f"no topic u in {log_dir} (it has t)")
    frame = spark.read.format("kafkalog").option("subscribe", "t").load(log_dir)
    damage_tail(Path(log_dir) / "t-0")
    with pytest.raises(Exception) as caught:  # read(), or partitions() where the plan meets it
        frame.count()
    assert "CorruptRecordException: " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("maxOffsetsPerTrigger", "x", "option maxOffsetsPerTrigger is 'x' (expected a whole number above 0)"),
        ("maxTriggerDelay", "x", "option maxTriggerDelay is 'x' (expected a time such as 100ms, 30s, 15m, 2h)"),
        ("minOffsetsPerTrigger", "9", "minOffsetPerTrigger(9) is higher than the maxOffsetsPerTrigger(3)."),
        ("subscribe", " ", "No topics to subscribe to as specified value for option 'subscribe' is ''"),
        ("kafka.auto.offset.reset", "latest", "Kafka option 'auto.offset.reset' is not supported"),
    ],
)
def test_a_stream_is_refused_when_it_is_built(spark: Any, log_dir: str, name: str, value: str, text: str) -> None:
    stream = spark.readStream.format("kafkalog").option("subscribe", "t").option("maxOffsetsPerTrigger", "3")
    with pytest.raises(Exception) as caught:
        stream.option(name, value).load(log_dir)
    assert text in said(caught.value)


def test_paths_with_commas(spark: Any, log_dir: str, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path / "c", "u-0") as log:
        log.append(b"y")
    both = [log_dir, str(tmp_path / "c")]
    reader = spark.read.format("kafkalog").option("subscribePattern", ".")
    assert reader.load(log_dir).count() == 1
    assert reader.load(json.dumps(both)).count() == 2
    assert reader.load(both).count() == 2
    assert reader.option("path", json.dumps(both)).load().count() == 2


@pytest.fixture
def written(spark: Any) -> Any:
    return spark.createDataFrame([("k", "v")], "key string, value string")


@needs_writes
def test_modes_of_a_write(spark: Any, written: Any, log_dir: str) -> None:
    """Spark does not ask a Python source whether it accepts them: this test fails after an upgrade that does."""
    writer = written.write.format("kafkalog").option("topic", "t")
    for mode in ("error", "ignore"):
        with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            writer.mode(mode).save(log_dir)
    with pytest.raises(Exception) as caught:
        writer.mode("overwrite").save(log_dir)
    assert 'Allowed save mode is Append. (.mode("append"))' in said(caught.value)
    for path in (log_dir, json.dumps([log_dir])):
        writer.mode("append").save(path)
    assert spark.read.format("kafkalog").option("subscribe", "t").load(log_dir).count() == 3


def counts(spark: Any, folder: Path) -> Any:
    spark.createDataFrame([(n,) for n in range(9)], "n int").coalesce(1).write.mode("append").json(str(folder))
    numbers = spark.readStream.schema("n int").json(str(folder)).selectExpr("cast(n % 3 as string) key")
    return numbers.groupBy("key").count().selectExpr("key", "cast(count as string) value")


@needs_writes
def test_output_mode_update(spark: Any, written: Any, log_dir: str, tmp_path: Path) -> None:
    stream = counts(spark, tmp_path / "in").writeStream.outputMode("update").trigger(availableNow=True)
    with pytest.raises(Exception, match="does not support Update mode"):
        stream.format("kafkalog").option("topic", "t").option("checkpointLocation", str(tmp_path / "c1")).start(
            log_dir
        ).awaitTermination(60)

    def append(rows: Any, batch_id: int) -> None:
        rows.write.format("kafkalog").mode("append").option("topic", "t").save(log_dir)

    query = stream.foreachBatch(append).option("checkpointLocation", str(tmp_path / "c2")).start()
    assert query.awaitTermination(60)
    latest = spark.read.format("kafkalog").option("subscribe", "t").option("latest", "true").load(log_dir)
    found = latest.where("key is not null").selectExpr("cast(key as string) k", "cast(value as string) v").collect()
    assert {(row.k, row.v) for row in found} == {("0", "3"), ("1", "3"), ("2", "3")}
