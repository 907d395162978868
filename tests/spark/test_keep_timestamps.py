"""Option keepTimestamps on real Spark: a replay keeps its times, in a batch and in a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafkalog
from kafkalog.config import LogConfig
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.types import TopicRules
from kafkalog.errors import IllegalArgumentException, InvalidTimestampException
from kafkalog.spark.kept_times import kept_times
from tests.spark.kit import START_MS, fill
from tests.spark.test_sink import create, write

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000


def times(path: str, topic: str) -> list[tuple[bytes | None, int]]:
    with kafkalog.open(path, read_only=True) as store, store.reader(topics=[topic], isolation="read_committed") as its:
        return sorted((record.value, record.timestamp) for record in its)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A log of 40 records, a minute apart, and one without a time."""
    fill(tmp_path / "source", "t-0", 40)
    with kafkalog.open_log(tmp_path / "source", "t-0") as log:
        log.append(b"timeless", timestamp=-1)
    return str(tmp_path / "source")


def test_a_replay_keeps_its_times(spark: Any, source: str, tmp_path: Path) -> None:
    copy, stream = str(tmp_path / "copy"), str(tmp_path / "stream")
    rows = spark.read.format("kafkalog").option("subscribe", "t").load(source)
    write(rows, copy, {"createTopics": "true", "numPartitions": 3, "keepTimestamps": "true"})
    expected = times(source, "t")
    assert expected[0] == (b"timeless", -1)
    assert expected[1][1] == START_MS
    assert times(copy, "t") == expected

    replayed = spark.readStream.format("kafkalog").option("subscribe", "t").option("startingOffsets", "earliest")
    query = (
        replayed.load(source)
        .writeStream.format("kafkalog")
        .option("createTopics", "true")
        .option("keepTimestamps", "true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(stream)
    )
    query.awaitTermination()
    assert times(stream, "t") == expected


def test_sessions_zones_change_no_moment(spark: Any, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    create(data, 1, "t")
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        rows = spark.sql("select 'a' value, timestamp_micros(1600000000123999) timestamp union all select 'b', null")
        write(rows, data, {"topic": "t", "keepTimestamps": "true"})
        [a, b] = times(data, "t")
        assert a == (b"a", 1600000000123)
        assert b[1] > START_MS
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_what_a_topic_refuses_names_its_row_and_writes_nothing(spark: Any, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    create(data, 1, "t", config={"message.timestamp.before.max.ms": str(HOUR_MS)})
    create(data, 1, "log", config={"message.timestamp.type": "LogAppendTime"})
    old = "select 'old' key, 'v' value, timestamp'2020-01-01 00:00:00' timestamp"
    rows = spark.sql(f"{old} union all select 'k', 'v', null")
    with pytest.raises(Exception, match=r"a row of topic 't' with the key 'old' and the timestamp 2020-01-01"):
        write(rows, data, {"topic": "t", "keepTimestamps": "true"})
    assert times(data, "t") == []
    write(rows, data, {"topic": "log", "keepTimestamps": "true"})
    assert all(time > START_MS for _, time in times(data, "log"))
    for kind, message in (
        ("timestamp_ntz'2020-01-01 00:00:00'", "must be a.n. timestamp .*no time zone: cast the column to timestamp"),
        ("12L", "timestamp attribute unsupported type bigint"),
    ):
        with pytest.raises(Exception, match=message):
            write(spark.sql(f"select 'v' value, {kind} timestamp"), data, {"topic": "t", "keepTimestamps": "true"})
    with pytest.raises(Exception, match="Required attribute 'timestamp' not found"):
        write(spark.sql("select 'v' value"), data, {"topic": "t", "keepTimestamps": "true"})


def test_times_that_calendars_or_zones_do_not_have_are_refused_in_words() -> None:
    """Seconds that are really milliseconds are after the year 9999; Arrow does not know all names of zones."""
    rules = TopicRules.of(LogConfig.from_props(ManagerSettings().default_config, {}))

    def kept(times_us: list[int], zone: str = "UTC", key: bytes = b"k") -> list[int]:
        column = pa.array(times_us, pa.timestamp("us", zone))
        return list(
            kept_times(pa.table({"key": [key] * len(times_us), "timestamp": column}), "t", rules, START_MS).to_pylist()
        )

    for zone in ("UTC", "PST", "GMT+08:00"):
        with pytest.raises(InvalidTimestampException, match=r"key b'k' and the timestamp 55840-11-08 22:13:20.*UTC: "):
            kept([0, START_MS * 1_000_000], zone)
        with pytest.raises(IllegalArgumentException, match="Invalid timestamp: -9223372036854776"):
            kept([0, -(1 << 63)], zone)
    with pytest.raises(IllegalArgumentException, match=r"key b'x+\.\.\. of 100003 characters"):
        kept([-2000], key=b"x" * 100_000)
    with pytest.raises(IllegalArgumentException, match="Invalid timestamp: -1"):
        kept([-1])  # a microsecond before 1970 is a time; -1 millisecond is how a log says that there is none
    assert kept([-1000, 0, 1999], "PST") == [-1, 0, 1]
