"""Option changes on real Spark: rows, columns, SQL, several partitions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kafkalog

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

CONFIG = {"internal.segment.bytes": "3000", "cleanup.policy": "compact"}
KEYS = 90


def put(root: Path, partition: int, turn: int, *, deleted: int = 7) -> None:
    """Writes a turn: some of each partition's keys are new, some are deleted."""
    with kafkalog.open_log(str(root), f"t-{partition}", config=CONFIG) as log:
        for n in range(10 * turn, KEYS):
            value = None if turn and n % deleted == 0 else b"%d-%d" % (turn, n)
            log.append(value, key=b"%d-%d" % (partition, (n * 31 + turn * 11) % 120))


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logs")
    for partition in range(2):
        put(root, partition, 0)
        put(root, partition, 1)
    return root


def frame(spark: Any, log_dir: Path, **options: str) -> Any:
    reader = spark.read.format("kafkalog").option("path", str(log_dir)).option("subscribe", "t")
    return reader.options(changes="true", startingOffsets=json.dumps({"t": {"0": KEYS, "1": KEYS}}), **options).load()


def test_the_changes_of_two_partitions(spark: Any, log_dir: Path) -> None:
    found = frame(spark, log_dir)
    assert found.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        *("changeType", "valueBefore", "offsetBefore"),
    ]
    assert [kind for _, kind in found.dtypes[-3:]] == ["string", "binary", "bigint"]
    rows = found.collect()
    last: dict[bytes, Any] = {}
    before: dict[bytes, Any] = {}
    for row in spark.read.format("kafkalog").option("path", str(log_dir)).option("subscribe", "t").load().collect():
        side = before if row.offset < KEYS else last
        if bytes(row.key) not in side or side[bytes(row.key)].offset < row.offset:
            side[bytes(row.key)] = row
    assert {bytes(row.key) for row in rows} == set(last)
    assert len(rows) > 100
    for row in rows:
        earlier = before.get(bytes(row.key))
        value_before = None if earlier is None else earlier.value
        kind = "delete" if row.value is None else "insert" if value_before is None else "update"
        assert tuple(row[:7]) == tuple(last[bytes(row.key)][:7])
        assert (row.changeType, row.valueBefore) == (kind, value_before)
        assert row.offsetBefore == (None if value_before is None else earlier.offset)
    assert {row.changeType for row in rows} == {"insert", "update", "delete"}
    found.createOrReplaceTempView("changed")
    assert spark.sql("select key from changed where changeType = 'update' and partition = 1 limit 1").first()
    assert found.rdd.getNumPartitions() == 2


def test_columns_and_what_is_refused(spark: Any, log_dir: Path) -> None:
    few = frame(spark, log_dir, columns="changeType,offsetBefore,key")
    assert few.columns == ["changeType", "offsetBefore", "key"]
    rows = few.collect()
    assert all(row.offsetBefore is not None for row in rows if row.changeType == "update")
    assert all(row.offsetBefore is None for row in rows if row.changeType == "insert")
    reader = spark.read.format("kafkalog").option("path", str(log_dir)).option("subscribe", "t")
    with pytest.raises(Exception, match=r"there is no column 'changeType'.*set option changes=true to have it"):
        reader.option("columns", "key,changeType").load()
    with pytest.raises(Exception, match="options latest and changes are both given"):
        reader.options(latest="true", changes="true").load().count()
    stream = spark.readStream.format("kafkalog").option("path", str(log_dir)).option("subscribe", "t")
    query = stream.option("changes", "true").load().writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"option changes is not valid in streaming queries|streams need PySpark 4\.2"):
        query.awaitTermination()
