"""txnAppId, txnVersion and keepTimestamps without a JVM: parsed, remembered, skipped and refused writes."""

from __future__ import annotations

import json
import logging
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTimestampException,
    UnknownTopicOrPartitionException,
)
from kafkalog.spark.committing import commit, is_done, look_at_topics
from kafkalog.spark.idempotent import APP_ID_BYTES_MAX, AppVersion, metadata_of, parse_app_version, topics_done
from kafkalog.spark.staging import StagedFile, Stager, WriteId
from kafkalog.spark.write_options import SinkOptions, check_columns, parse_sink_options

pa = pytest.importorskip("pyarrow")

NOW = datetime.now(UTC).replace(microsecond=123_456)
THEN = datetime(2020, 2, 29, 12, 30, 0, 123_999, UTC)


def options_of(path: Path, **given: Any) -> SinkOptions:
    return parse_sink_options({"path": str(path), **{name: str(value) for name, value in given.items()}})


def stage(options: SinkOptions, values: list[str], name: str = "w", **columns: Any) -> tuple[StagedFile, ...]:
    with Stager(options, look_at_topics(options), WriteId(name, app=options.app), 0) as stager:
        stager.add(pa.record_batch({"value": pa.array(values, pa.string()), **columns}))
        return stager.finish()


def write(options: SinkOptions, values: list[str], name: str = "w", **columns: Any) -> None:
    commit(options, stage(options, values, name, **columns), WriteId(name, app=options.app))


def found(path: Path, topic: str = "t") -> list[str]:
    with kafkalog.open(path, read_only=True) as store, store.reader(topics=[topic], isolation="read_committed") as its:
        return [record.value.decode() for record in its]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with kafkalog.open(tmp_path / "data") as store:
        for topic in ("t", "u"):
            store.create_topic(topic, 2)
    return tmp_path / "data"


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"txnAppId": "a"}, "found option txnAppId without option txnVersion"),
        ({"txnVersion": "1"}, "found option txnVersion without option txnAppId"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion is '-1'"),
        ({"txnAppId": "a", "txnVersion": "1.0"}, "option txnVersion is '1.0'"),
        ({"txnAppId": "a", "txnVersion": "²"}, "option txnVersion is '²'"),
        ({"txnAppId": "a", "txnVersion": str(1 << 63)}, "expected a whole number from 0 to 9223372036854775807"),
        ({"txnAppId": "a", "txnVersion": "1" * 5000}, "option txnVersion is '11111"),
        ({"txnAppId": "", "txnVersion": "1"}, "option txnAppId is ''"),
        ({"txnAppId": " ", "txnVersion": "1"}, "option txnAppId is ' '"),
        ({"txnAppId": "a\nb", "txnVersion": "1"}, "expected printable text"),
        ({"txnAppId": "a\ud800", "txnVersion": "1"}, "half a surrogate pair"),
        ({"txnAppId": "é" * (APP_ID_BYTES_MAX // 2 + 1), "txnVersion": "1"}, "a cursor of the log gets this name"),
    ],
)
def test_what_is_no_application_or_version_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(IllegalArgumentException) as refused:
        parse_sink_options({"path": "data", **given})
    assert message in str(refused.value)


def test_an_application_is_no_query() -> None:
    """A query's cursor has a UUID after "spark-": no application's cursor has this form, even if its name is a UUID."""
    query = WriteId("0c9a5b1e-1111-2222-3333-444455556666", 3)
    app = WriteId("0123", app=AppVersion(query.name, 3))
    assert query.cursor == f"spark-{query.name}"
    assert app.cursor == app.transactional_id == f"spark-app-{query.name}"
    assert WriteId("0123").cursor is None
    assert json.loads(query.metadata("id")) == {"batchId": 3}
    assert json.loads(app.metadata("id")) == {"txnVersion": 3, "topicId": "id"}
    assert parse_app_version({}) is None
    assert parse_app_version({"txnappid": "a/b c", "txnversion": " 7 "}) == AppVersion("a/b c", 7)


@pytest.mark.parametrize(
    ("metadata", "topic_id", "is_done"),
    [
        (metadata_of(AppVersion("a", 4), "one"), ZERO_UUID, False),
        (metadata_of(AppVersion("a", 5), "one"), ZERO_UUID, True),
        (metadata_of(AppVersion("a", 6), "one"), ZERO_UUID, True),
        (metadata_of(AppVersion("a", 6), ZERO_UUID), ZERO_UUID, True),
        (metadata_of(AppVersion("a", 6), "another"), ZERO_UUID, False),
        ('{"txnVersion": 6}', ZERO_UUID, True),
        ('{"txnVersion": 6}', "one", True),
        ('{"txnVersion": 6}', "another", False),
        ('{"batchId": 9}', "one", False),
        ("", "one", False),
        ("[]", "one", False),
        ("[" * 100_000, "one", False),
        ('{"txnVersion": "9"}', "one", False),
    ],
)
def test_a_topic_has_a_version(metadata: str, topic_id: str, is_done: bool) -> None:
    cursor = {TopicPartition("t", 0): CommittedOffset(3, metadata=metadata, topic_id=topic_id)}
    assert topics_done(cursor, AppVersion("a", 5), {"t": "one"}) == ({"t"} if is_done else set())
    assert topics_done(cursor, AppVersion("a", 5), {}) == set()


# --- writes ----------------------------------------------------------------------------------------------


def test_the_same_and_lower_versions_are_passed_over(data: Path) -> None:
    for version, value in ((3, "a"), (3, "b"), (2, "c"), (4, "d"), (0, "e")):
        write(options_of(data, topic="t", txnAppId="app", txnVersion=version), [value])
    write(options_of(data, topic="t", txnAppId="other", txnVersion=1), ["f"])
    assert sorted(found(data)) == ["a", "d", "f"]
    assert not [each for each in data.iterdir() if "staged" in each.name]


def test_each_topic_is_a_table(data: Path) -> None:
    """As two Delta tables that one foreachBatch writes under one version."""
    for topic in ("t", "u", "t"):
        write(options_of(data, topic=topic, txnAppId="app", txnVersion=1), [topic])
    assert (found(data, "t"), found(data, "u")) == (["t"], ["u"])
    columns = {"topic": pa.array(["t", "u"])}
    with kafkalog.open(data) as store:
        store.create_topic("new")
    write(options_of(data, txnAppId="app", txnVersion=1), ["x", "y"], topic=pa.array(["u", "new"]))
    assert (found(data, "u"), found(data, "new")) == (["u"], ["y"])
    write(options_of(data, txnAppId="app", txnVersion=2), ["t2", "u2"], **columns)
    assert (sorted(found(data, "t")), sorted(found(data, "u"))) == (["t", "t2"], ["u", "u2"])


def test_no_rows_are_a_version_of_the_topic_that_is_named(data: Path) -> None:
    write(options_of(data, topic="t", txnAppId="app", txnVersion=5), [])
    for version in (4, 5, 6):
        write(options_of(data, topic="t", txnAppId="app", txnVersion=version), [str(version)])
    assert found(data) == ["6"]
    commit(options_of(data, txnAppId="app", txnVersion=7), [], WriteId("w", app=AppVersion("app", 7)))
    with pytest.raises(UnknownTopicOrPartitionException):
        write(options_of(data, topic="nowhere", txnAppId="app", txnVersion=5), [])


def test_a_topic_that_is_made_again_has_nothing(data: Path) -> None:
    options = options_of(data, topic="t", txnAppId="app", txnVersion=1)
    write(options, ["a"])
    assert is_done(options)
    with kafkalog.open(data) as store:
        store.delete_topic("t")
        store.create_topic("t")
    assert not is_done(options)
    write(options, ["b"])
    assert found(data) == ["b"]


def test_a_topic_whose_folders_were_replaced_has_nothing(data: Path, tmp_path: Path) -> None:
    """They were replaced by those of another one of the same name, as from a backup: the cursor belongs to the former
    topic."""
    options = options_of(data, topic="t", txnAppId="app", txnVersion=1)
    write(options, ["a"])
    with kafkalog.open(tmp_path / "other") as store:
        for topic in ("t", "u"):
            store.create_topic(topic, 2)
    for name in ("t-0", "t-1", "u-0", "u-1"):
        shutil.rmtree(data / name)
        shutil.copytree(tmp_path / "other" / name, data / name)
    for name in os.listdir(data):
        if name.endswith("checkpoint") or name == ".kafkalog_topics":
            (data / name).unlink()
    shutil.copy(tmp_path / "other" / ".kafkalog_topics", data)
    assert not is_done(options)
    for _ in range(2):
        write(options, ["b"])
    assert found(data) == ["b"]


def test_rows_that_nobody_made_are_not_taken_for_written(data: Path) -> None:
    """The driver saw the version and had no task make rows; then the cursor went."""
    options = options_of(data, topic="t", txnAppId="app", txnVersion=1)
    write(options, ["a"])
    with kafkalog.open(data) as store:
        store.delete_cursor("spark-app-app")
    with pytest.raises(IllegalStateException, match="txnVersion 1 of 'app' was in the log but no longer is"):
        commit(options, [], WriteId("w", app=options.app), was_done=True)
    assert not is_done(options)


# --- times -----------------------------------------------------------------------------------------------


def times_of(path: Path, topic: str = "t") -> dict[str, int]:
    with kafkalog.open(path, read_only=True) as store, store.reader(topics=[topic]) as reader:
        return {record.value.decode(): record.timestamp for record in reader}


def column(*times: datetime | None, zone: str = "America/New_York") -> Any:
    return pa.array(times, pa.timestamp("us", zone))


def milliseconds(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def test_times_are_kept_and_null_is_now(data: Path) -> None:
    none = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)  # a read of a record that has none
    before = milliseconds(datetime.now(UTC))
    options = options_of(data, topic="t", keepTimestamps="true")
    write(
        options, ["then", "now", "none", "zero"], timestamp=column(THEN, None, none, datetime(1970, 1, 1, tzinfo=UTC))
    )
    got = times_of(data)
    assert (got["then"], got["none"], got["zero"]) == (milliseconds(THEN), -1, 0)
    assert before <= got["now"] <= milliseconds(datetime.now(UTC))
    write(options_of(data, topic="u"), ["plain"], timestamp=column(THEN))
    assert times_of(data, "u")["plain"] >= before


@pytest.mark.parametrize(
    ("config", "time", "error", "message"),
    [
        ({}, datetime(1960, 1, 1, tzinfo=UTC), IllegalArgumentException, "Invalid timestamp: -315619200000"),
        ({}, NOW + timedelta(hours=2), InvalidTimestampException, "message.timestamp.after.max.ms=3600000"),
        (
            {"message.timestamp.before.max.ms": "60000"},
            NOW - timedelta(hours=2),
            InvalidTimestampException,
            "message.timestamp.before.max.ms=60000",
        ),
    ],
)
def test_a_time_that_no_record_may_have_is_named(
    data: Path, config: dict[str, str], time: datetime, error: type[Exception], message: str
) -> None:
    with kafkalog.open(data) as store:
        store.create_topic("bound", config=config)
    with pytest.raises(error) as refused:
        stage(
            options_of(data, topic="bound", keepTimestamps="true"),
            ["a", "b", "c"],
            key=pa.array(["x", "y", "z"]),
            timestamp=column(NOW, time, None),
        )
    assert message in str(refused.value)
    assert "a row of topic 'bound' with the key 'y' and the timestamp" in str(refused.value)


def test_append_time_is_the_logs(data: Path) -> None:
    before = milliseconds(datetime.now(UTC))
    with kafkalog.open(data) as store:
        store.create_topic("log", config={"message.timestamp.type": "LogAppendTime"})
    write(options_of(data, topic="log", keepTimestamps="true"), ["a"], timestamp=column(THEN))
    assert times_of(data, "log")["a"] >= before


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": "binary"}, "Required attribute 'timestamp' not found"),
        (
            {"value": "binary", "timestamp": "timestamp_ntz"},
            "timestamp attribute unsupported type timestamp_ntz. timestamp must be a(n) timestamp (a record's time is "
            "a moment, and this column has no time zone: cast the column to timestamp)",
        ),
        ({"value": "binary", "timestamp": "bigint"}, "timestamp attribute unsupported type bigint"),
    ],
)
def test_columns_without_times_are_refused(columns: dict[str, str], message: str) -> None:
    fields = [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind))
        for name, kind in columns.items()
    ]
    schema = SimpleNamespace(fields=fields)
    with pytest.raises(IllegalStateException) as refused:
        check_columns(schema, SinkOptions(("data",), "data", topic="t", keeps_timestamps=True))
    assert message in str(refused.value)
    check_columns(schema, SinkOptions(("data",), "data", topic="t"))


def test_the_names_are_known(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_sink_options({"path": "d", "TXNAPPID": "a", "txnversion": "1", "keeptimestamps": "TRUE"})
    assert not caplog.text
