"""Compared with Spark's Kafka connector: the same rows from the same topics, one through the broker, one from its
directories.

Runs where PySpark is the version that there is a connector for: `make spark-connector`.  The broker runs all the while.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker import clients, kraft
from tests.conftest import need_broker
from tests.spark import connector

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(connector.missing() is not None, reason=str(connector.missing())),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL = {"segment.bytes": "1048576"}
PARTITIONS = 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kraft.Broker]:
    need_broker()
    with kraft.broker(tmp_path_factory.mktemp("broker")) as node:
        node.start()
        topics = {f"c-{codec}": (PARTITIONS, SMALL) for codec in CODECS}
        topics |= {"c-mixed": (1, SMALL), "c-txns": (PARTITIONS, SMALL), "c-open": (1, SMALL)}
        topics |= {"c-append-time": (1, SMALL | {"message.timestamp.type": "LogAppendTime"}), "c-empty": (1, SMALL)}
        clients.create_topics(node.bootstrap, topics)
        held = fill(node.bootstrap)
        yield node
        del held
        node.stop()


def fill(bootstrap: str) -> Any:
    for number, codec in enumerate(CODECS):
        producer = clients.ConfluentProducer(bootstrap, codec)
        for partition in range(PARTITIONS):
            for turn in range(4):
                producer.send(f"c-{codec}", partition, clients.rows(100 * number + 10 * partition + turn, 300))
        producer.send("c-mixed", 0, clients.rows(number, 100))
        producer.send("c-append-time", 0, clients.rows(50 + number, 50))
    python = clients.PythonProducer(bootstrap, "gzip")
    python.send("c-mixed", 0, clients.rows(77, 100))
    python.close()
    writer = clients.ConfluentProducer(bootstrap, "lz4", transactional_id="a")
    for turn in range(6):
        writer.begin()
        for partition in range(PARTITIONS):
            writer.send("c-txns", partition, clients.rows(200 + turn, 60))
        if turn % 3 == 1:
            writer.abort()
        else:
            writer.commit()
    held = clients.ConfluentProducer(bootstrap, transactional_id="held")
    clients.ConfluentProducer(bootstrap).send("c-open", 0, clients.rows(300, 20))
    held.begin()
    held.send("c-open", 0, clients.rows(301, 20))
    return held


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = connector.session(tmp_path_factory.mktemp("spark"), **{"spark.ui.showConsoleProgress": "false"})
    yield made
    made.stop()


def both(spark: Any, broker: kraft.Broker, **options: str) -> tuple[Any, Any]:
    theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    ours = spark.read.format("kafkalog").option("path", str(broker.log_dir))
    for name, value in {"includeHeaders": "true", **options}.items():
        name = name.replace("__", ".")
        theirs, ours = theirs.option(name, value), ours.option(name, value)
    return theirs.load(), ours.load()


def rows(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_same_rows(session: Any, broker: kraft.Broker, tmp_path: Path, isolation: str) -> None:
    theirs, ours = both(session, broker, subscribePattern="c-.*", kafka__isolation__level=isolation)
    assert ours.schema == theirs.schema
    expected = rows(theirs)
    assert rows(ours) == expected
    counts = {topic: sum(row.topic == topic for row in expected) for topic in {row.topic for row in expected}}
    assert all(counts[f"c-{codec}"] == 4 * 300 * PARTITIONS for codec in CODECS)
    committed = isolation == "read_committed"
    assert counts["c-open"] == (20 if committed else 40)
    assert counts["c-txns"] == PARTITIONS * 60 * (4 if committed else 6)
    assert {row.timestampType for row in expected if row.topic == "c-append-time"} == {1}
    assert any(row.headers for row in expected)
    assert any(row.headers is None for row in expected)
    assert any(row.key is None for row in expected)
    assert any(row.value is None for row in expected)


OPTIONS = [
    {
        "subscribe": "c-lz4",
        "startingOffsets": '{"c-lz4":{"0":15,"1":-2}}',
        "endingOffsets": '{"c-lz4":{"0":-1,"1":700}}',
    },
    {"assign": '{"c-zstd":[1]}', "startingTimestamp": str(clients.START_MS + 411_500)},
    {
        "subscribe": "c-gzip",
        "startingOffsetsByTimestamp": f'{{"c-gzip":{{"0":{clients.START_MS + 101_000},"1":{clients.START_MS}}}}}',
        "endingTimestamp": str(clients.START_MS + 112_000),
    },
    {"subscribe": "c-none,c-snappy", "minPartitions": "11"},
    {"subscribe": "c-empty"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)) + str(len(options)))
def test_the_same_rows_by_the_same_options(session: Any, broker: kraft.Broker, options: dict[str, str]) -> None:
    theirs, ours = both(session, broker, **options)
    expected = rows(theirs)
    assert rows(ours) == expected
    assert bool(expected) == ("c-empty" not in options["subscribe" if "subscribe" in options else "assign"])


def test_the_same_filters(session: Any, broker: kraft.Broker) -> None:
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    for condition in (
        "topic = 'c-lz4' and partition = 1 and offset between 100 and 320",
        f"timestamp >= timestamp_millis({clients.START_MS + 301_200})",
        "offset % 97 = 3 or partition = 1",
    ):
        theirs, _ = both(session, broker, subscribePattern="c-.*")
        _, ours = both(session, broker, subscribePattern="c-.*", pushDownPredicate="true")
        expected = rows(theirs.where(condition))
        assert expected
        assert rows(ours.where(condition)) == expected, condition
    session.conf.unset("spark.sql.python.filterPushdown.enabled")
