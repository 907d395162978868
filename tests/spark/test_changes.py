"""Option changes on real Spark: the columns, SQL over them, several partitions, and what is refused."""

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
    """Of each partition's keys some are new in a turn, some gone."""
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
    all_rows = spark.read.format("kafkalog").option("path", str(log_dir)).option("subscribe", "t").load()
    all_rows.createOrReplaceTempView("records")
    found.createOrReplaceTempView("changed")
    # The same by Spark's own SQL over all records.
    wanted = spark.sql(
        f"""with after as (select key, max_by(struct(value, offset), offset) last from records where offset >= {KEYS}
                group by key),
            before as (select key, max_by(struct(value, offset), offset) last from records where offset < {KEYS}
                group by key)
        select after.key, after.last.value, after.last.offset,
            case when after.last.value is null then 'delete' when before.last.value is null then 'insert'
                else 'update' end changeType,
            before.last.value valueBefore, if(before.last.value is null, null, before.last.offset) offsetBefore
        from after left join before on after.key = before.key"""
    )
    rows = [tuple(row) for row in found.select(wanted.columns).collect()]
    assert sorted(rows, key=repr) == sorted((tuple(row) for row in wanted.collect()), key=repr)
    assert len(rows) > 100
    assert {row[3] for row in rows} == {"insert", "update", "delete"}
    assert spark.sql("select key from changed where changeType = 'update' and partition = 1 limit 1").first()
    assert found.rdd.getNumPartitions() == 2


def test_columns_and_what_is_refused(spark: Any, log_dir: Path) -> None:
    few = frame(spark, log_dir, columns="changeType,offsetBefore,key")
    assert few.columns == ["changeType", "offsetBefore", "key"]
    rows = few.collect()
    assert all(row.offsetBefore is not None for row in rows if row.changeType == "update")
    assert all(row.offsetBefore is None for row in rows if row.changeType == "insert")
    reader = spark.read.format("kafkalog").option("path", str(log_dir)).option("subscribe", "t")
    with pytest.raises(Exception, match=r"there is no column 'changeType'.*it is there with option changes=true"):
        reader.option("columns", "key,changeType").load()
    with pytest.raises(Exception, match="options latest and changes are given"):
        reader.options(latest="true", changes="true").load().count()
    stream = spark.readStream.format("kafkalog").option("path", str(log_dir)).option("subscribe", "t")
    query = stream.option("changes", "true").load().writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="option changes is not valid in streaming queries"):
        query.awaitTermination()
