"""Options of Spark's source that choose records by their content: parsed, and applied by tasks, without a JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from kafkalog.spark.question import Question
from kafkalog.spark.write_options import parse_sink_options
from tests.spark.kit import rows_of

START_MS = 1_700_000_000_000
COUNT = 60
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("logs"))
    config = {"internal.segment.bytes": "2000", "index.interval.bytes": "300"}
    for number in range(2):
        with kafkalog.open_log(root, f"t-{number}", config=config) as log:
            for n in range(COUNT):
                key = None if n % 10 == 9 else b"key-%d" % (n % 4)
                log.append(
                    b"value-%d" % n, key=key, headers=[("n", b"%d" % n)] if n % 2 else [], timestamp=START_MS + n
                )
    return root


def rows(log_dir: str, columns: Any = COLUMNS, **options: str) -> list[dict[str, Any]]:
    pytest.importorskip("pyspark")
    return rows_of(log_dir, columns, **options)


WHERE = "offset >= 7 and partition = 1 and key is not null"
ASKED: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"key": "key-1"}, {"key": "key-1"}),
    ({"key": '["key-1","key-3"]'}, {"key": ["key-1", "key-3"]}),
    ({"key": "[null]"}, {"key": [None]}),
    ({"keyPrefix": "key-"}, {"key_prefix": "key-"}),
    ({"headers": "n"}, {"headers": ["n"]}),
    ({"headers": "n=7"}, {"headers": {"n": "7"}}),
    ({"HEADERS": '{"n":null}', "key": "key-1"}, {"headers": ["n"], "key": "key-1"}),
    ({"grep": "[13]$"}, {"grep": "[13]$"}),
    ({"grep": '["1","5$"]'}, {"grep": ["1", "5$"]}),
    ({"where": WHERE}, {"where": WHERE}),
    ({"startTime": str(START_MS + 9), "endTime": str(START_MS + 30)},
     {"start_time": START_MS + 9, "end_time": START_MS + 30}),
    ({"startTime": "2023-11-14T22:13:20.040Z", "grep": "9"}, {"start": "2023-11-14T22:13:20.040Z", "grep": "9"}),
    ({"key": "nobody"}, {"key": "nobody"}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "python"), ASKED, ids=[str(options) for options, _ in ASKED])
def test_it_means_what_it_means_in_python(log_dir: str, options: dict[str, str], python: dict[str, Any]) -> None:
    expected = []
    for number in range(2):
        with kafkalog.open_log(log_dir, f"t-{number}", read_only=True) as log:
            expected += log.read_arrow(**python).to_pylist()
    for more in ({}, {"maxBytesPerPartition": "700"}):
        found = rows(log_dir, **options, **more)
        assert [(row["partition"], row["offset"]) for row in found] == [
            (row["partition"], row["offset"]) for row in expected
        ]
        for row, other in zip(found, expected, strict=True):
            kind = row.pop("timestampType")
            assert (kind, row) == (other["timestamp_type"], {name: other[name] for name in row})
    assert rows(log_dir, ["value"], **options) == [{"value": row["value"]} for row in expected]


def test_the_last_values_of_some_keys(log_dir: str) -> None:
    asked = {"key": '["key-1","key-2"]', "endTime": str(START_MS + 40), "grep": "8"}
    found = rows(log_dir, ["partition", "timestamp", "offset"], latest="true", **asked)
    assert [(row["partition"], row["offset"]) for row in found] == [(0, 38), (1, 38)]
    assert found[0]["timestamp"] == datetime.fromtimestamp((START_MS + 38) / 1000, UTC)


def test_times_leave_segments_out_of_the_plan(log_dir: str) -> None:
    def planned(**options: str) -> int:
        return sum(work.size for work in plan(parse_options({"path": log_dir, "subscribe": "t", **options})))

    assert planned(startTime=str(START_MS + 50)) < planned() / 2
    assert planned(where="offset >= 50") < planned() / 2
    assert planned(key="key-1") == planned()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key": "[1]"}, "option key is"),
        ({"key": "[]"}, "option key is"),
        ({"headers": ""}, "option headers is"),
        ({"headers": '{"a":1}'}, "option headers is"),
        ({"headers": '{"source":"web"'}, "option headers is"),
        ({"grep": "("}, "is not a regular expression"),
        ({"where": "foo"}, "is not a condition"),
        ({"where": "key = 'a' nd offset < 5"}, "at character 11, expected `and`"),
        ({"startTime": "noon"}, "option startTime"),
        ({"header": "n=7"}, "unknown option header, did you mean headers?"),
        ({"key_prefix": "k"}, "unknown option key_prefix, did you mean keyPrefix?"),
        ({"keys": "k"}, "unknown option keys, did you mean key?"),
        ({"Start_Time": "1"}, "unknown option Start_Time, did you mean startTime?"),
        ({"endtimes": "1"}, "did you mean endTime?"),
        ({"wehre": "offset > 1"}, "did you mean where?"),
        ({"greps": "1"}, "did you mean grep?"),
        ({"lastest": "true"}, "did you mean latest?"),
        ({"column": "key"}, "did you mean columns?"),
        ({"greb": "1"}, "did you mean grep?"),
        ({"startingOffset": "earliest"}, "unknown option startingOffset, did you mean startingOffsets?"),
        ({"starting_offsets": "earliest"}, "did you mean startingOffsets?"),
        ({"startOffsets": "earliest"}, "did you mean startingOffsets?"),
        ({"endingOffset": "latest"}, "did you mean endingOffsets?"),
        ({"startTimestamp": "1"}, "did you mean startingTimestamp?"),
        ({"startingOffsetByTimestamp": "1"}, "did you mean startingOffsetsByTimestamp?"),
        ({"isolationLevel": "read_committed"}, "did you mean isolation?"),
        ({"isolation.level": "read_committed"}, "did you mean isolation?"),
        ({"kafka.isolation": "read_committed"}, "did you mean kafka.isolation.level?"),
        ({"valueSchemas": "id bigint"}, "did you mean valueSchema?"),
        ({"startTime": "2", "endTime": "1"}, "start_time 2 is after end_time 1"),
        ({"isolation": "x"}, "option isolation is 'x'"),
        ({"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"}, "have different values"),
    ],
)
def test_what_makes_no_sense(options: dict[str, str], text: str) -> None:
    for streaming in (False, True):
        with pytest.raises(IllegalArgumentException, match=text):
            parse_options({"path": "/logs", "subscribe": "t", **options}, streaming=streaming)


def test_what_is_left_out_asks_nothing() -> None:
    parsed = parse_options({"path": "/logs", "subscribe": "t", "isolation": "READ_COMMITTED"}, streaming=True)
    assert (parsed.question, parsed.isolation) == (Question(), "read_committed")
    assert Question().selection().match is None


def test_the_topic_of_a_read_is_named_by_subscribe() -> None:
    with pytest.raises(IllegalArgumentException, match="option topic is for writes") as caught:
        parse_options({"path": "/a", "topic": "orders"})
    assert ".option('subscribe', 'orders')" in str(caught.value)


def test_other_unknown_options_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    given = {"path": "/logs", "subscribe": "t", "maxOffsetPerTrigger": "5", "foo": "1", "kafka.keys": "x"}
    assert parse_options(given).question == Question()
    assert "unknown option maxOffsetPerTrigger is ignored (did you mean maxOffsetsPerTrigger?)" in caplog.text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("topics", "topic"),
        ("partitions", "numPartitions"),
        ("keepTimestamp", "keepTimestamps"),
        ("txnApp", "txnAppId"),
        ("txn_version", "txnVersion"),
    ],
)
def test_a_misspelled_name_that_decides_where_rows_go(name: str, meant: str) -> None:
    with pytest.raises(IllegalArgumentException, match=f"unknown option {name}, did you mean {meant}"):
        parse_sink_options({"path": "/logs", name: "1"})


def test_other_names_are_passed_over_by_a_writer(caplog: pytest.LogCaptureFixture) -> None:
    others = ("mergeSchema", "compression", "partitionBy", "kafka.acks", "kafka.bootstrap.servers", "createTopic")
    parse_sink_options({"path": "/logs", **dict.fromkeys(others, "1")})
    assert "unknown option createTopic is ignored (did you mean createTopics?)" in caplog.text
