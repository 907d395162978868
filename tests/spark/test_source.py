"""The data source in a real local Spark: found by Spark, with the columns, options and answers of the Kafka source."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.options import parse_options
from tests.spark.versions import needs_streams

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """topic `t`: partition 0 with all codecs and several segments, partition 1 with an aborted transaction."""
    root = str(tmp_path_factory.mktemp("logs"))
    config = {"internal.segment.bytes": "20000", "index.interval.bytes": "1000"}
    for codec in CODECS:
        with kafkalog.open_log(root, "t-0", config=config, compression=codec) as log:
            for _ in range(20):
                log.append_many([record(n) for n in range(log.end_offset, log.end_offset + 20)])
    with kafkalog.open_log(root, "t-1") as log:
        log.append(b"plain", timestamp=START_MS)
        with log.transaction("a") as txn:
            txn.append(b"committed", timestamp=START_MS + 1)
        txn.begin()
        txn.append(b"aborted", timestamp=START_MS + 2)
        txn.abort()
    with kafkalog.open_log(root, "u-0") as log:
        log.append(None, key=b"only a key", timestamp=START_MS)
    return root


def record(n: int) -> tuple[bytes, bytes, list[tuple[str, bytes]], int]:
    return b"value-%d-" % n + b"x" * 60, b"key-%d" % (n % 7), [("n", b"%d" % n)] if n % 2 else [], START_MS + n


def read(spark: Any, log_dir: str, **options: Any) -> Any:
    reader = spark.read.format("kafkalog").option("path", log_dir)
    for name, value in {"subscribe": "t", **options}.items():
        reader = reader.option(name.replace("__", "."), value)
    return reader


def test_rows_are_the_records(spark: Any, log_dir: str) -> None:
    rows = read(spark, log_dir, includeHeaders="true").load().orderBy("partition", "offset").collect()
    expected = []
    for number in (0, 1):
        with kafkalog.open_log(log_dir, f"t-{number}", read_only=True) as log:
            expected += list(log)
    assert len(rows) == len(expected) == 5 * 400 + 3
    for row, record in zip(rows, expected, strict=True):
        assert (row.topic, row.partition, row.offset) == (record.topic, record.partition, record.offset)
        assert (row.key and bytes(row.key), bytes(row.value)) == (record.key, record.value)
        assert row.timestampType == record.timestamp_type
        assert row.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(record.timestamp / 1000, UTC)
        headers = None if row.headers is None else [(header.key, bytes(header.value)) for header in row.headers]
        assert (headers or ()) == (list(record.headers) or ())


def test_schema_is_that_of_the_kafka_source(spark: Any, log_dir: str) -> None:
    assert read(spark, log_dir).load().dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    assert read(spark, log_dir, includeHeaders="TRUE").load().dtypes[-1] == (
        "headers",
        "array<struct<key:string,value:binary>>",
    )


def test_a_schema_of_the_user_prunes(spark: Any, log_dir: str) -> None:
    rows = read(spark, log_dir).schema("offset long, value binary").load()
    assert rows.columns == ["offset", "value"]
    assert rows.count() == 2003


def test_offsets_and_splits(spark: Any, log_dir: str) -> None:
    frame = read(
        spark,
        log_dir,
        startingOffsets='{"t":{"0":15,"1":-2}}',
        endingOffsets='{"t":{"0":1215,"1":2}}',
        maxBytesPerPartition="5000",
    ).load()
    assert frame.rdd.getNumPartitions() > 4
    assert frame.where("partition = 0").agg({"offset": "min"}).first()[0] == 15
    assert frame.where("partition = 0").agg({"offset": "max"}).first()[0] == 1214
    assert frame.where("partition = 0").select("offset").distinct().count() == 1200
    assert frame.where("partition = 1").count() == 2


def test_read_committed(spark: Any, log_dir: str) -> None:
    rows = read(spark, log_dir, kafka__isolation__level="read_committed").load().where("partition = 1").collect()
    assert [bytes(row.value) for row in rows] == [b"plain", b"committed"]


def test_times(spark: Any, log_dir: str) -> None:
    reader = spark.read.format("kafkalog").option("assign", '{"t":[0]}')
    reader = reader.option("startingTimestamp", str(START_MS + 100)).option("endingTimestamp", str(START_MS + 110))
    assert [row.offset for row in reader.load(log_dir).orderBy("offset").collect()] == list(range(100, 110))


def test_a_pattern_and_an_empty_answer(spark: Any, log_dir: str) -> None:
    reader = spark.read.format("kafkalog").option("subscribePattern", "[uv]")
    (row,) = reader.load(log_dir).collect()
    assert (bytes(row.key), row.value) == (b"only a key", None)
    assert spark.read.format("kafkalog").option("subscribePattern", "none.*").load(log_dir).count() == 0


def test_a_pattern_leaves_internal_topics_out(spark: Any, tmp_path: Path) -> None:
    hidden = ("__consumer_offsets", "__transaction_state")
    for topic in ("t", *hidden):
        with kafkalog.open_log(tmp_path, f"{topic}-0") as log:
            log.append(topic.encode())

    def topics(**options: str) -> list[str]:
        reader = spark.read.format("kafkalog")
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return sorted(row.topic for row in reader.load(str(tmp_path)).collect())

    assert topics(subscribePattern=".*") == topics(subscribePattern=".*", kafka__exclude__internal__topics="TRUE")
    assert topics(subscribePattern=".*") == ["t"]
    assert topics(subscribePattern=".*", kafka__exclude__internal__topics="false") == [*hidden, "t"]
    assert topics(subscribe=",".join(hidden)) == list(hidden)
    assert topics(assign='{"__consumer_offsets":[0]}') == [hidden[0]]
    with pytest.raises(Exception, match=r"option kafka\.exclude\.internal\.topics is 'no'"):
        topics(subscribePattern=".*", kafka__exclude__internal__topics="no")


def test_several_log_directories(spark: Any, tmp_path: Path) -> None:
    for number in range(3):
        with kafkalog.open_log(tmp_path / f"disk{number}", f"t-{number}") as log:
            log.append(b"x")
    paths = [str(tmp_path / f"disk{number}") for number in range(3)]
    reader = spark.read.format("kafkalog").option("subscribe", "t")
    for frame in (reader.load(paths), reader.load(", ".join(paths)), reader.option("path", ",".join(paths)).load()):
        assert sorted(row.partition for row in frame.collect()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "option path is missing"),
        ({"paths": "[]"}, "option path is missing"),
        ({"paths": "/logs"}, "option paths: Expected"),
        ({"paths": '["/logs",1]'}, "option paths: Expected"),
        ({"path": "/logs", "paths": '["/logs"]'}, "options path and paths are both given"),
    ],
)
def test_paths_are_checked(options: dict[str, str], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text):
        parse_options({"subscribe": "t", **options})
    assert parse_options({"subscribe": "t", "paths": '["/a,b","file:///c"]'}).paths == ("/a,b", "/c")


def test_iso_times_are_exact() -> None:
    def parsed(text: str) -> tuple[int | None, int | None]:
        found = parse_options({"path": "/logs", "subscribe": "t", "startingTimestamp": text, "endingTimestamp": text})
        return found.start.timestamp_ms, found.end.timestamp_ms

    chosen = random.Random(1)
    for _ in range(20_000):
        ms = chosen.randrange(4_102_444_800_000)
        text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat()
        assert parsed(text) == (ms, ms), text
    second = "2026-11-21T09:00:00"
    whole = int(datetime(2026, 11, 21, 9, tzinfo=UTC).timestamp()) * 1000
    for fraction, ms in (
        (".0015", 2),
        (".001", 1),
        (".001000", 1),
        (".001000001", 2),
        (".0010000", 1),
        (".999001", 1000),
    ):
        assert parsed(f"{second}{fraction}Z") == parsed(second + fraction) == (whole + ms, whole + ms), fraction
    assert parsed("2026-11-21T10:00:00.000001+01:00") == (whole + 1, whole + 1)
    assert parsed("1969-12-31T23:59:59.9985Z") == (-1, -1)


def test_min_partitions(spark: Any, log_dir: str) -> None:
    frame = read(spark, log_dir, minPartitions="9").load()
    assert frame.rdd.getNumPartitions() >= 9
    assert frame.count() == 2003


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "nope"}, "no topic nope"),
        ({"startingOffsets": "latest"}, "can't be latest"),
        ({"startingOffsets": '{"t":{"0":1}}'}, "must specify all TopicPartitions"),
        ({"startingOffsets": '{"t":{"0":99999,"1":0}}'}, "Some data may have been lost"),
        ({"endingOffsets": '{"t":{"0":99999,"1":0}}'}, "Some data may have been lost"),
        ({"startingTimestamp": "99999999999999"}, "No offset matched"),
    ],
)
def test_errors(spark: Any, log_dir: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        read(spark, log_dir, **options).load().count()


def test_paths_that_make_no_sense(spark: Any, log_dir: str) -> None:
    file = str(next(Path(log_dir).rglob("*.log")))
    for path, text in (
        (file, "found a file, expected a log directory"),
        (f"{log_dir},{log_dir}", "each directory of one broker or store once"),
        (f"{log_dir}/nowhere", "no such log directory"),
    ):
        with pytest.raises(Exception, match=text):
            read(spark, path).load().count()
    frame = spark.read.format("kafkalog").option("path", log_dir).option("assign", '{"t":[7]}').load()
    with pytest.raises(Exception, match=r"no partition t-7 in .*it has t-0"):
        frame.count()


def test_data_loss_can_be_accepted(spark: Any, log_dir: str) -> None:
    lost = json.dumps({"t": {"0": 99999, "1": -1}})
    assert read(spark, log_dir, endingOffsets=lost, failOnDataLoss="false").load().count() == 2003


@pytest.mark.parametrize("fail", ["true", "false"])
def test_damage_in_a_task(spark: Any, tmp_path: Path, fail: str) -> None:
    config = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
        for n in range(60):
            log.append(b"%03d" % n + b"x" * 80)
    path = sorted((tmp_path / "t-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    rows = read(spark, str(tmp_path), failOnDataLoss=fail).load()
    if fail == "true":
        with pytest.raises(Exception, match=rf"{path} at byte \d+: .*kafkalog salvage"):
            rows.collect()
        return
    listed = [row.offset for row in rows.orderBy("offset").collect()]
    base, behind = int(path.stem), int(sorted((tmp_path / "t-0").glob("*.log"))[2].stem)
    assert listed[0] == 0
    assert listed[-1] == 59
    lost = sorted(set(range(60)) - set(listed))
    assert base < lost[0]
    assert lost == list(range(lost[0], behind))


def test_found_by_itself_from_any_folder(log_dir: str, tmp_path: Path) -> None:
    """Spark searches with pkgutil for modules named pyspark_*: it once found kafkalog's only in the clone."""
    code = (
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "local = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "spark = local.config('spark.driver.host', '127.0.0.1').getOrCreate()\n"
        "rows = spark.read.format('kafkalog').option('path', sys.argv[1]).option('subscribe', 'u').load()\n"
        "print(rows.count())\n"
        "spark.stop()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, log_dir], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr[-2000:]


def test_keys_headers_and_patterns(spark: Any, log_dir: str) -> None:
    """In the tasks, next to Spark's filters."""
    frame = read(spark, log_dir, key='["key-1","key-2"]', headers="n", grep="value-[0-9]*5-").load()
    wanted = [n for n in range(2000) if n % 7 in (1, 2) and n % 2 and n % 10 == 5]
    assert sorted(row.offset for row in frame.collect()) == wanted
    assert frame.where("offset < 100").count() == len([n for n in wanted if n < 100])
    rows = read(spark, log_dir, startTime=str(START_MS + 3), endTime=str(START_MS + 5), columns="timestamp,offset")
    assert sorted(row.offset for row in rows.load().collect()) == [3, 4]
    with pytest.raises(Exception, match="is not a regular expression"):
        read(spark, log_dir, grep="(").load().count()


@needs_streams
def test_a_stream_asks_for_keys(spark: Any, log_dir: str, tmp_path: Path) -> None:
    stream = spark.readStream.format("kafkalog").option("path", log_dir).option("subscribe", "t")
    stream = (
        stream.option("startingOffsets", "earliest").option("key", "key-3").option("where", "offset >= 1000").load()
    )
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.offset for row in rows) == [n for n in range(1000, 2000) if n % 7 == 3]
