"""Kafka's share consumer on a real broker and on a served store: the same deliveries, and the same state at the end.

Then each continues what the other has begun: the broker's directory is opened by `store.queue`, and a queue's directory
by the broker.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import kafkalog
from tests.broker import clients, kraft, share
from tests.conformance import kafka_jars
from tests.conftest import need_broker

pytestmark = pytest.mark.broker

TOPIC, GROUP, COUNT = "outbox", "mail", 30
MODES = ("batch_optimized", "record_limit")
TIMEOUT_MS = 40_000


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> kafka_jars.Driver:
    need_broker()
    return share.built(tmp_path_factory.mktemp("share"))


@contextlib.contextmanager
def broker_with_topic(place: Path) -> Iterator[kraft.Broker]:
    place.mkdir()
    broker = kraft.Broker(place)
    broker.start()
    try:
        clients.create_topics(broker.bootstrap, {TOPIC: (2, {})})
        produce(broker.bootstrap, [(number % 2, b"%d" % number) for number in range(COUNT)])
        yield broker
    finally:
        broker.stop()


def produce(bootstrap: str, values: list[tuple[int, bytes]]) -> None:
    """Sends values to partitions, each in a batch of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for partition, value in values:
        producer.produce(TOPIC, value, partition=partition)
        assert producer.flush(30) == 0


def consumed(java: kafka_jars.Driver, bootstrap: str, group: str, mode: str, most: int = 7) -> list[str]:
    arguments = (bootstrap, group, TOPIC, str(COUNT), mode, str(most), str(TIMEOUT_MS))
    done = subprocess.run(
        java.command(*arguments, main="ShareClient"), capture_output=True, text=True, timeout=TIMEOUT_MS / 1000 + 20
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_share_consumers_see_the_same(java: kafka_jars.Driver, tmp_path: Path) -> None:
    with broker_with_topic(tmp_path / "kafka") as broker:
        theirs = {mode: consumed(java, broker.bootstrap, mode, mode) for mode in MODES}
    with kafkalog.open(tmp_path / "ours") as store:
        topic = store.create_topic(TOPIC, 2)
        for number in range(COUNT):
            topic.append(b"%d" % number, partition=number % 2)
        with store.serve("127.0.0.1:0") as server:
            ours = {mode: consumed(java, server.bootstrap_servers, mode, mode) for mode in MODES}
    assert ours == theirs
    assert all(each[-1] == f"ended {COUNT}" for each in ours.values())


def test_a_queue_continues_what_a_broker_began(java: kafka_jars.Driver, tmp_path: Path) -> None:
    with broker_with_topic(tmp_path / "kafka") as broker:
        broker.stop()
        broker.start()  # in an epoch in which nothing is appended to partition 1
        consumed(java, broker.bootstrap, GROUP, "batch_optimized")
        produce(broker.bootstrap, [(0, b"later")])
    copy = tmp_path / "copy"
    shutil.copytree(broker.log_dir, copy)
    with kafkalog.open(copy, take_over=True) as store, store.queue(GROUP, topics=[TOPIC]) as queue:
        assert [record.value for record in queue.take()] == [b"later"]
        queue.ack()
        assert queue.take() == []


def test_a_broker_continues_what_a_queue_began(java: kafka_jars.Driver, tmp_path: Path) -> None:
    with broker_with_topic(tmp_path / "kafka") as broker:
        consumed(java, broker.bootstrap, "another", "batch_optimized", 500)  # the broker makes its internal topics
    with kafkalog.open(broker.log_dir, take_over=True) as store, store.queue(GROUP, topics=[TOPIC]) as queue:
        taken = queue.take()
        assert len(taken) == COUNT
        queue.ack([record for record in taken if record.offset != 4])
        queue.release()
    broker.start()
    try:
        lines = consumed(java, broker.bootstrap, GROUP, "batch_optimized")
    finally:
        broker.stop()
    # They were delivered once before, and are delivered until the client ends them.
    assert lines == ["0-000004 8 2reject", "1-000004 9 2reject", "ended 2"]
