"""Spark SQL alone: tables of a catalog, views, statements with options, inserts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.spark.versions import needs_streams, needs_writes

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """topics `orders` (2 partitions, 10 records each) and `other`."""
    root = str(tmp_path_factory.mktemp("logs, of a disk"))
    with kafkalog.open(root) as store:
        for topic, partitions in (("orders", 2), ("other", 1)):
            made = store.create_topic(topic, partitions)
            for number in range(partitions):
                records = [(b"v%d" % n, b"k%d" % (n % 3), [], START_MS + n) for n in range(10)]
                made.append_many(records, partition=number)
    return root


@pytest.fixture
def sql(spark: Any) -> Iterator[Any]:
    """Runs a statement and gives its rows; the tables that it made are dropped at the end."""

    def run(text: str) -> list[Any]:
        return list(spark.sql(text).collect())

    yield run
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


def test_a_table_is_read(sql: Any, log_dir: str) -> None:
    paths = f'["{log_dir}"]'
    sql(f"CREATE TABLE t USING kafkalog OPTIONS (paths '{paths}', subscribe 'orders', includeHeaders true)")
    assert sql("SELECT count(*), count(DISTINCT partition) FROM t WHERE value LIKE 'v%'") == [(20, 2)]
    assert [row.col_name for row in sql("DESCRIBE t")][:3] == ["key", "value", "topic"]
    assert sql("SELECT count(headers) FROM t") == [(0,)]


def test_every_way_of_making_one(spark: Any, sql: Any, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path / "a b%20c", "t-0") as log:
        log.append(b"x")
    root = tmp_path / "a b%20c"
    sql(f"CREATE TABLE by_option USING kafkalog OPTIONS (path '{root}', subscribe 't')")
    sql(f"CREATE TABLE by_place USING kafkalog OPTIONS (subscribe 't') LOCATION '{root}'")
    spark.catalog.createTable("by_call", source="kafkalog", path=str(root), subscribe="t")
    spark.catalog.createTable("by_options", source="kafkalog", path=str(root), subscribePattern="[t]")
    for name in ("by_option", "by_place", "by_call", "by_options"):
        assert [bytes(row.value) for row in sql(f"SELECT value FROM {name}")] == [b"x"], name
        assert spark.table(name).count() == spark.read.table(name).count() == 1
        sql(f"DROP TABLE {name}")
        assert (root / "t-0" / f"{0:020}.log").stat().st_size
    spark.catalog.createTable("by_place", source="kafkalog", path=str(root), subscribe="t")
    assert sql("SELECT count(*) FROM by_place") == [(1,)]


def test_a_statements_options_go_before_the_tables(sql: Any, log_dir: str) -> None:
    sql(
        f"""CREATE TABLE t USING kafkalog OPTIONS (paths '["{log_dir}"]', subscribe 'orders',
        startingOffsets '{{"orders":{{"0":9,"1":9}}}}')"""
    )
    assert sql("SELECT count(*) FROM t") == [(2,)]
    assert sql("SELECT count(*) FROM t WITH (startingOffsets 'earliest')") == [(20,)]
    assert sql(f"SELECT count(*) FROM t WITH (startingTimestamp '{START_MS + 4}')") == [(12,)]
    assert sql("SELECT count(*) FROM t WITH (subscribe 'other', startingOffsets 'earliest')") == [(10,)]
    assert sql("SELECT a.offset FROM t a JOIN t b USING (partition, offset) WHERE partition = 1") == [(9,)]
    # A path says that nothing of the table is meant.
    assert sql(f"""SELECT count(*) FROM t WITH (paths '["{log_dir}"]', subscribe 'orders')""") == [(20,)]
    with pytest.raises(Exception, match="created without the column headers"):
        sql("SELECT * FROM t WITH (includeHeaders true)")


@needs_writes
def test_rows_are_inserted(spark: Any, sql: Any, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        for topic in ("orders", "copy"):
            store.create_topic(topic, 1)
    sql(f"CREATE TABLE t USING kafkalog OPTIONS (path '{tmp_path}', subscribe 'orders')")
    sql(f"INSERT INTO t WITH (path '{tmp_path}', topic 'orders') (key, value) VALUES (X'6B', X'76'), (NULL, X'77')")
    rows = sql("SELECT CAST(key AS STRING), CAST(value AS STRING) FROM t")
    assert sorted(rows, key=str) == [("k", "v"), (None, "w")]
    sql(f"INSERT INTO t WITH (path '{tmp_path}', topic 'copy') SELECT * FROM t")
    assert sql("SELECT count(*) FROM t") == sql("SELECT count(*) FROM t WITH (subscribe 'copy')") == [(2,)]
    # A statement without a path fails, even if its rows come from a table.
    with pytest.raises(Exception, match=r"INSERT INTO t WITH \(path '/dir', topic 'topic'\)"):
        sql("INSERT INTO t SELECT * FROM t")
    with pytest.raises(Exception, match="option path is missing"):
        sql(f"CREATE TABLE u USING kafkalog OPTIONS (path '{tmp_path}/u', subscribe 'u') AS SELECT * FROM t")
    with pytest.raises(Exception, match="option path is missing"):
        spark.table("t").write.format("kafkalog").mode("append").option("topic", "copy").save()
    writer = spark.table("t").write.format("kafkalog").mode("append").option("path", str(tmp_path))
    writer.option("topic", "copy").saveAsTable("saved")
    with pytest.raises(Exception, match="create the table without a list of columns"):
        sql("SELECT * FROM saved")  # and not what `t` has
    assert sql("SELECT count(*) FROM t") == [(2,)]
    with pytest.raises(Exception, match="Overwrite not allowed"):
        sql(f"INSERT OVERWRITE t WITH (path '{tmp_path}', topic 'orders') SELECT * FROM t")


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("OPTIONS (subscribe 'orders')", "option path is missing"),
        ("OPTIONS (path '{dir}')", "One of the following options must be specified"),
        ("OPTIONS (path '{dir}') TBLPROPERTIES (subscribe 'orders')", r"write OPTIONS \(subscribe"),
        ("OPTIONS (path 'logs', subscribe 'orders')", "the table's path is logs"),
        ("OPTIONS (path '{dir}', subscribe 'orders', keyPrefx 'x')", "did you mean keyPrefix"),
        ("OPTIONS (path '{dir}', subscribe 'orders', startingOffset 'latest')", "did you mean startingOffsets"),
        ("OPTIONS (path '{dir}', subscribe 'orders', durability 'os')", "option durability is for writers"),
        ("OPTIONS (path '{dir}', subscribe 'orders', `remote.option.secret` 'x')", "may be a credential"),
    ],
)
def test_what_no_table_is_made_of(spark: Any, sql: Any, tmp_path: Path, statement: str, text: str) -> None:
    with pytest.raises(Exception, match=text):
        sql(f"CREATE TABLE t USING kafkalog {statement.format(dir=tmp_path)}")
    assert not spark.catalog.tableExists("t")


def test_a_table_without_options(spark: Any, sql: Any, tmp_path: Path) -> None:
    """Spark asks a source nothing where the columns are given."""
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"x")
    sql(f"CREATE TABLE t (value BINARY) USING kafkalog OPTIONS (path '{tmp_path}', subscribe 't')")
    with pytest.raises(Exception, match="create the table without a list of columns"):
        sql("SELECT * FROM t")
    assert sql(f"SELECT value FROM t WITH (path '{tmp_path}', subscribe 't')") == [(bytearray(b"x"),)]
    with pytest.raises(Exception, match="option path is missing"):
        sql(f"CREATE TABLE u USING kafkalog OPTIONS (path '{tmp_path}', subscribe 't') AS SELECT X'78' AS value")
    assert not spark.catalog.tableExists("u")


@needs_streams
def test_a_table_as_a_stream(spark: Any, sql: Any, tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path / "logs", "t-0") as log:
        log.append(b"x")
    sql(f"CREATE TABLE t USING kafkalog OPTIONS (path '{tmp_path}/logs', subscribe 't', startingOffsets 'earliest')")
    writer = spark.readStream.table("t").writeStream.format("memory").queryName("seen").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert [bytes(row.value) for row in sql("SELECT value FROM seen")] == [b"x"]
