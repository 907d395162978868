"""Streams compared with Spark's Kafka connector, over the same topics of a running broker: the same batches, the same
rows, and a checkpoint of either with which the other continues.

Left out unless PySpark is the connector's (`tests.spark.connector`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker import clients, kraft
from tests.spark import connector

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.filterwarnings("ignore")]

WAIT_S = 180
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kraft.Broker]:
    why = connector.missing()
    if why is not None:
        pytest.skip(why)
    with kraft.broker(tmp_path_factory.mktemp("broker"), shares_metadata=True) as started:
        started.start()
        yield started


@pytest.fixture(scope="module")
def session(node: kraft.Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    slow = {"spark.python.authenticate.socketTimeout": "120s"}  # a busy machine starts Python slowly
    made = connector.session(tmp_path_factory.mktemp("spark"), **slow)
    yield made
    made.stop()


class Side:
    """`kafkalog` or `kafka`: the batches that a query of it had, over several runs with one checkpoint."""

    def __init__(self, source: str, spark: Any, node: kraft.Broker, place: Path, options: dict[str, str]) -> None:
        self.source = source
        self.spark = spark
        self.options = {"path": str(node.log_dir), "kafka.bootstrap.servers": node.bootstrap, "includeHeaders": "true"}
        self.options |= options
        self.checkpoint = place / source
        self.batches: list[list[Row]] = []

    def run(self, **changed: str) -> list[list[Row]]:
        """Reads everything; returns the rows of each batch, without empty ones (kafkalog's first)."""
        self.batches = []
        frames = self.spark.readStream.format(self.source).options(**self.options | changed).load()
        writer = frames.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WAIT_S)
        finally:
            query.stop()
        return self.batches

    def _take(self, frame: Any, number: int) -> None:
        rows = sorted((plain(row) for row in frame.collect()), key=lambda row: row[2:5])
        if rows:
            self.batches.append(rows)


def plain(row: Any) -> Row:
    headers = row.headers and [(each.key, each.value and bytes(each.value)) for each in row.headers]
    key, value = (each and bytes(each) for each in (row.key, row.value))
    return (key, value, row.topic, row.partition, row.offset, row.timestamp, row.timestampType, headers)


def both(session: Any, node: kraft.Broker, place: Path, **options: str) -> tuple[Side, Side]:
    given = {name.replace("__", "."): text for name, text in options.items()}
    ours, theirs = (Side(source, session, node, place, given) for source in ("kafkalog", "kafka"))
    return ours, theirs


def joined(batches: list[list[Row]]) -> list[Row]:
    return [row for batch in batches for row in batch]


def by_place(batches: list[list[Row]]) -> list[Row]:
    return sorted(joined(batches), key=lambda row: row[2:5])


def send(node: kraft.Broker, topic: str, partition: int, count: int, codec: str = "none") -> None:
    clients.ConfluentProducer(node.bootstrap, codec).send(topic, partition, clients.rows(partition, count))


def test_the_same_batches(session: Any, node: kraft.Broker, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    clients.create_topics(node.bootstrap, {"a": (3, {})})
    for partition, (count, codec) in enumerate(((1, "none"), (10, "lz4"), (700, "zstd"))):
        send(node, "a", partition, count, codec)
    limits = {"maxOffsetsPerTrigger": "100"}
    ours, theirs = both(session, node, tmp_path, subscribe="a", startingOffsets="earliest", **limits)
    assert ours.run() == theirs.run()
    assert len(ours.batches[0]) in (99, 100, 101)
    send(node, "a", 1, 150)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_partitions([NewPartitions("a", 4)])["a"].result(30)
    send(node, "a", 3, 40)
    assert ours.run() == theirs.run()
    assert {row[3] for batch in ours.batches for row in batch} == {1, 3}
    assert ours.run() == theirs.run() == []


def test_a_pattern_and_read_committed(session: Any, node: kraft.Broker, tmp_path: Path) -> None:
    clients.create_topics(node.bootstrap, {"pa": (1, {}), "pb": (1, {})})
    options = {"subscribePattern": "p.*", "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    ours, theirs = both(session, node, tmp_path, **options)
    producer = clients.ConfluentProducer(node.bootstrap, transactional_id="x")
    for number, end in enumerate((producer.commit, producer.abort, producer.commit)):
        producer.begin()
        producer.send("pa", 0, clients.rows(number, 20))
        end()
    send(node, "pb", 0, 30)
    producer.begin()
    producer.send("pa", 0, clients.rows(9, 20))
    assert by_place(ours.run()) == by_place(theirs.run())
    assert sum(map(len, ours.batches)) == 70
    producer.commit()
    assert joined(ours.run()) == joined(theirs.run())
    assert sum(map(len, ours.batches)) == 20


@pytest.mark.parametrize("first", ["kafka", "kafkalog"])
def test_one_goes_on_with_the_checkpoint_of_the_other(
    session: Any, node: kraft.Broker, tmp_path: Path, first: str
) -> None:
    topic = f"c-{first}"
    clients.create_topics(node.bootstrap, {topic: (2, {})})
    send(node, topic, 0, 50)
    sides = both(session, node, tmp_path, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    one, other = sides if first == "kafkalog" else sides[::-1]
    before = joined(one.run())
    send(node, topic, 1, 50)
    send(node, topic, 0, 10)
    shutil.copytree(one.checkpoint, other.checkpoint)
    after = joined(other.run())
    rows = [row[3:5] for row in before + after]
    assert (len(before), len(after), len(set(rows))) == (50, 60, 110)


def test_both_say_that_records_are_gone(session: Any, node: kraft.Broker, tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    clients.create_topics(node.bootstrap, {"d": (1, {})})
    send(node, "d", 0, 50)
    sides = both(session, node, tmp_path, subscribe="d", startingOffsets="earliest", maxOffsetsPerTrigger="1000")
    assert sides[0].run() == sides[1].run()
    send(node, "d", 0, 50)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.delete_records([TopicPartition("d", 0, 80)]).values():
        future.result(30)
    wait_for_the_start(node, "d-0", 80)
    for side in sides:
        with pytest.raises(Exception, match=r"lost|missed"):
            side.run()
    ours, theirs = (side.run(failOnDataLoss="false") for side in sides)
    assert ours == theirs
    assert [row[4] for row in ours[0]] == list(range(80, 100))


def wait_for_the_start(node: kraft.Broker, partition: str, offset: int) -> None:
    """The broker writes where a log starts to a checkpoint, each half second."""
    import time

    topic, _, number = partition.rpartition("-")
    for _ in range(200):
        text = (node.log_dir / "log-start-offset-checkpoint").read_text()
        if f"{topic} {number} {offset}" in text:
            return
        time.sleep(0.1)
    raise AssertionError(f"no log start {offset} of {partition} in {os.listdir(node.log_dir)}")
