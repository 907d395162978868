"""Sessions with other settings than the usual ones, and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.spark.places import hadoop_options
from kafkalog.spark.source import register
from tests.spark.versions import needs_streams, needs_writes

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

START_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
RECORDS = 100


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """topic `t`: a record each second; every second one has no key."""
    root = str(tmp_path_factory.mktemp("logs"))
    with kafkalog.open_log(root, "t-0") as log:
        log.append_many(
            [
                (b"value-%d" % n, None if n % 2 else b"k", [("h", b"%d" % n)], START_MS + n * 1000)
                for n in range(RECORDS)
            ]
        )
    return root


def read(spark: Any, log_dir: str, **options: Any) -> Any:
    return spark.read.format("kafkalog").options(path=log_dir, subscribe="t", includeHeaders="true", **options)


@contextmanager
def settings(spark: Any, **values: Any) -> Iterator[None]:
    names = {name.replace("__", "."): str(value) for name, value in values.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def test_timestamps_without_a_time_zone(spark: Any, log_dir: str) -> None:
    with settings(spark, spark__sql__timestampType="TIMESTAMP_NTZ"):
        frame = read(spark, log_dir).load()
        assert dict(frame.dtypes)["timestamp"] == "timestamp"
        assert frame.agg({"timestamp": "min"}).first()[0].astimezone(UTC) == datetime.fromtimestamp(START_MS / 1e3, UTC)
        assert frame.where("timestamp >= TIMESTAMP'2023-11-14 22:14:00'").count() == RECORDS - 40
        assert read(spark, log_dir).schema("timestamp timestamp_ltz").load().count() == RECORDS
        with pytest.raises(Exception, match=r"schema says timestamp_ntz .*`timestamp_ltz` is the type's name"):
            read(spark, log_dir).schema("timestamp timestamp").load().count()


@needs_streams
def test_a_stream_of_such_a_session(spark: Any, log_dir: str, tmp_path: Path) -> None:
    with settings(spark, spark__sql__timestampType="TIMESTAMP_NTZ"):
        reader = spark.readStream.format("kafkalog").options(path=log_dir, subscribe="t", startingOffsets="earliest")
        frame = reader.schema("offset bigint not null, timestamp timestamp_ltz").load()
        query = frame.writeStream.format("memory").queryName("of_ntz").trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
        assert spark.table("of_ntz").agg({"offset": "sum"}).first()[0] == sum(range(RECORDS))


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kathmandu", "+05:30"])
def test_time_zones(spark: Any, log_dir: str, zone: str) -> None:
    with settings(spark, spark__sql__session__timeZone=zone, spark__sql__python__filterPushdown__enabled="true"):
        frame = read(spark, log_dir, pushDownPredicate="true").load()
        (row,) = frame.selectExpr(
            "unix_millis(min(timestamp)) AS ms", "CAST(min(timestamp) AS STRING) AS text"
        ).collect()
        shown = spark.sql(f"SELECT CAST(timestamp_millis({START_MS}) AS STRING)").first()[0]
        assert (row.ms, row.text) == (START_MS, shown)
        assert frame.where("timestamp >= TIMESTAMP'2023-11-14 22:14:00Z'").count() == RECORDS - 40
        local = spark.sql(f"SELECT CAST(timestamp_millis({START_MS + 40_000}) AS STRING)").first()[0]
        assert frame.where(f"timestamp >= '{local}'").count() == RECORDS - 40


def test_columns_that_are_not_null(spark: Any, log_dir: str) -> None:
    schema = "offset bigint NOT NULL, headers array<struct<key:string,value:binary>> NOT NULL, topic string"
    rows = read(spark, log_dir).schema(schema).load()
    assert rows.agg({"offset": "sum"}).first()[0] == sum(range(RECORDS))
    assert rows.first().headers[0].key == "h"
    with pytest.raises(Exception, match="a record has no key, but the schema declares the column not null"):
        read(spark, log_dir).schema("key binary NOT NULL").load().collect()
    nested = "headers array<struct<key:string NOT NULL,value:binary>>"
    with pytest.raises(Exception, match="column headers has a `not null` inside its type"):
        read(spark, log_dir).schema(nested).load().collect()


@pytest.mark.parametrize(
    "names",
    [
        {"spark.sql.execution.arrow.useLargeVarTypes": "true"},
        {"spark.sql.execution.arrow.maxRecordsPerBatch": "7"},
        {"spark.sql.caseSensitive": "true"},
    ],
    ids=lambda names: next(iter(names)).rpartition(".")[2],
)
def test_arrow_and_names(spark: Any, log_dir: str, names: dict[str, str]) -> None:
    with settings(spark, **{name.replace(".", "__"): value for name, value in names.items()}):
        frame = read(spark, log_dir).load()
        assert frame.selectExpr("headers.key AS key", "timestampType").count() == RECORDS
        assert bytes(frame.where("offset = 7").toPandas().value[0]) == b"value-7"


@needs_writes
def test_writes_with_large_types(spark: Any, log_dir: str, tmp_path: Path) -> None:
    with settings(
        spark,
        spark__sql__execution__arrow__useLargeVarTypes="true",
        spark__sql__execution__arrow__maxRecordsPerBatch="7",
    ):
        writer = read(spark, log_dir).load().write.format("kafkalog").mode("append")
        writer.options(topic="x", createTopics="true").save(str(tmp_path))
    with kafkalog.open_log(tmp_path, "x-0", read_only=True) as log:
        found = sorted((record.value, record.headers[0]) for record in log)
    assert found == sorted((b"value-%d" % n, ("h", b"%d" % n)) for n in range(RECORDS))


def test_pandas_on_spark(spark: Any, log_dir: str) -> None:
    try:
        import pyspark.pandas as ps
    except ImportError as error:
        pytest.skip(f"this PySpark's pandas API wants an older pandas: {error}")
    frame = ps.read_spark_io(log_dir, format="kafkalog", subscribe="t")
    assert (len(frame), int(frame["offset"].sum())) == (RECORDS, sum(range(RECORDS)))
    assert read(spark, log_dir).load().pandas_api().head(2).to_pandas().value.tolist() == [b"value-0", b"value-1"]


def test_names_in_another_case(spark: Any, log_dir: str) -> None:
    frame = read(spark, log_dir).load()
    assert bytes(frame.selectExpr("VALUE", "HEADERS[0].KEY AS name").first().VALUE).startswith(b"value-")
    with settings(spark, spark__sql__caseSensitive="true"), pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        frame.select("VALUE")
    with pytest.raises(Exception, match=r"there is no column 'OFFSET' .*expected key, value"):
        read(spark, log_dir).schema("OFFSET bigint").load().count()


@needs_writes
def test_headers_fields_in_another_case(spark: Any, tmp_path: Path) -> None:
    rows = [(b"x", [("a", b"b")])]
    frame = spark.createDataFrame(rows, "value binary, headers array<struct<Key:string,VALUE:binary>>")
    frame.write.format("kafkalog").mode("append").options(topic="x", createTopics="true").save(str(tmp_path))
    with kafkalog.open_log(tmp_path, "x-0", read_only=True) as log:
        assert [tuple(record.headers) for record in log] == [(("a", b"b"),)]


def in_a_thread(work: Callable[[], Any]) -> Any:
    """The result of `work` in a thread that Spark has never seen."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def test_sparks_own_settings_are_no_users(spark: Any) -> None:
    assert hadoop_options(spark) == {}


def test_a_thread_reads(spark: Any, log_dir: str) -> None:
    def count() -> int:
        register(spark)
        return int(read(spark, log_dir).load().count())

    assert in_a_thread(count) == RECORDS
    assert in_a_thread(lambda: read(spark.newSession(), log_dir).load().count()) == RECORDS


@needs_writes
def test_a_thread_writes(spark: Any, log_dir: str, tmp_path: Path) -> None:
    frame = read(spark, log_dir).load()

    def write() -> None:
        frame.write.format("kafkalog").mode("append").options(topic="x", createTopics="true").save(str(tmp_path))

    def write_registered() -> None:
        register(spark)
        write()

    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):  # Spark looks for it in no session
        in_a_thread(write)
    in_a_thread(write_registered)
    with kafkalog.open_log(tmp_path, "x-0", read_only=True) as log:
        assert log.end_offset >= RECORDS
