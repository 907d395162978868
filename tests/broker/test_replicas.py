"""Three brokers of a real cluster, their disks read as one by Spark's planner: the records that a consumer sees, and no
more.

One story: a follower is stopped, its leader gets ahead with acks=1 and is killed, the follower is elected, the old
leader comes back and is truncated.  A stream reads all the while.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkalog._face.cluster_metadata import PartitionState
from kafkalog._face.replicas import Brokers
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalStateException
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from kafkalog.spark.tasks import read_range
from tests.broker import clients, kraft
from tests.conftest import need_broker

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need PySpark 4.2")
pytestmark = pytest.mark.broker

SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "replica.fetch.wait.max.ms": "100",
    "controlled.shutdown.enable": "false",
    "auto.leader.rebalance.enable": "false",
}
# By name: the brokers with copies of each partition, the leader first, and the topic's settings.
TOPICS: dict[str, tuple[list[list[int]], dict[str, str]]] = {
    "safe": ([[1, 2, 3], [2, 3, 1], [3, 1, 2]], {"min.insync.replicas": "2"}),
    "ahead": ([[2, 3]], {"min.insync.replicas": "2"}),
    "unclean": ([[2, 3]], {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}),
    "one": ([[3], [1]], {"min.insync.replicas": "1"}),
}
AHEAD, UNCLEAN = TopicPartition("ahead", 0), TopicPartition("unclean", 0)
WAIT_S = 60


class Cluster:
    def __init__(self, nodes: list[kraft.Broker]) -> None:
        self.nodes = dict(enumerate(nodes, 1))

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def disks(self, *numbers: int) -> list[Path]:
        return [self.nodes[each].log_dir for each in numbers or self.nodes]

    def send(self, topic: str, partition: int, seed: int, count: int, acks: str) -> None:
        more: dict[str, Any] = {"acks": acks, "enable.idempotence": acks == "all", "linger.ms": 5}
        clients.ConfluentProducer(self.bootstrap, **more).send(topic, partition, clients.rows(seed, count))

    def state(self, partition: TopicPartition) -> PartitionState:
        seen = Brokers(list(map(str, self.disks()))).look()
        assert seen.metadata is not None
        return seen.metadata.topics[partition.topic].states[partition.partition]

    def consumed(
        self, topics: Sequence[str], isolation: str = "read_uncommitted"
    ) -> dict[TopicPartition, list[tuple[int, Any]]]:
        places = [TopicPartition(each, number) for each in topics for number in range(len(TOPICS[each][0]))]
        seen = clients.consume(self.bootstrap, places, isolation)
        return {each: [(record.offset, record.value) for record in seen[each].records] for each in places}


def wait_until(question: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not question():
        assert time.monotonic() < until, what
        time.sleep(0.2)


def rows(paths: Sequence[Path], topics: Sequence[str], **more: str) -> dict[TopicPartition, list[tuple[int, Any]]]:
    """Offsets and values by partition, as Spark's tasks read them."""
    options = parse_options({"path": ",".join(map(str, paths)), "subscribe": ",".join(topics), **more})
    found: dict[TopicPartition, list[tuple[int, Any]]] = {
        TopicPartition(each, number): [] for each in topics for number in range(len(TOPICS[each][0]))
    }
    for work in plan(options):
        for batch in read_range(work, options, ("offset", "value")):
            there = found[TopicPartition(work.topic, work.partition)]
            there += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


class Stream:
    """A query's source, asked as Spark asks it."""

    def __init__(self, paths: Sequence[Path], topic: str) -> None:
        from kafkalog.spark.streaming import KafkalogStreamReader
        from kafkalog.spark.triggers import TriggerOptions

        given = {"path": ",".join(map(str, paths)), "subscribe": topic, "startingOffsets": "earliest"}
        self.reader = KafkalogStreamReader(
            parse_options(given, streaming=True), TriggerOptions(), ("partition", "offset", "value")
        )
        self.start = self.reader.initialOffset()
        self.rows: list[tuple[int, Any]] = []

    def trigger(self) -> None:
        end = self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())
        for partition in self.reader.partitions(self.start, end):
            for batch in self.reader.read(partition):
                _, offsets, values = (column.to_pylist() for column in batch.columns)
                self.rows += zip(offsets, values, strict=True)
        self.start = end


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_broker()
    place = tmp_path_factory.mktemp("cluster")
    with kraft.cluster(place, 3, SETTINGS) as nodes:
        for node in nodes:
            node.launch()
        made = Cluster(nodes)
        wait_until(lambda: all(kraft.STARTED in node.log_text() for node in nodes), "the brokers did not start")
        create_topics(made)
        yield made
    shutil.rmtree(place, ignore_errors=True)


def create_topics(made: Cluster) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": made.bootstrap, **clients.QUIET})
    asked = [
        NewTopic(name, len(where), replica_assignment=where, config=config) for name, (where, config) in TOPICS.items()
    ]
    for future in admin.create_topics(asked).values():
        future.result(WAIT_S)
    wait_until(
        lambda: all(
            part.leader >= 0 and len(part.isrs) == len(part.replicas)
            for name in TOPICS
            for part in admin.list_topics(name, timeout=WAIT_S).topics[name].partitions.values()
        ),
        "topics without leaders",
    )


def test_the_disks_of_a_cluster(cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kafkalog.spark")
    two, three = cluster.nodes[2], cluster.nodes[3]
    every = list(TOPICS)
    stream = Stream(cluster.disks(), "ahead")
    stream.trigger()

    # All brokers live.  At each moment the rows read are a prefix of the records that a consumer sees, and soon all of
    # them.
    for topic, (where, _) in TOPICS.items():
        for partition in range(len(where)):
            cluster.send(topic, partition, 1, 200, "all")
    now, seen = rows(cluster.disks(), every), cluster.consumed(every)
    assert all(now[each] == seen[each][: len(now[each])] for each in seen)
    wait_until(lambda: rows(cluster.disks(), every) == seen, "the checkpoints do not come")
    assert f"safe-1 is read from {two.log_dir} (broker 2): it leads" in caplog.text
    stream.trigger()
    assert stream.rows == seen[AHEAD]
    for path in cluster.disks():  # each copy, and the broker that it is of
        assert rows([path], ["safe"]) == {each: seen[each] for each in seen if each.topic == "safe"}

    # Transactions: one that is aborted, one that is open, then committed.
    producer = clients.ConfluentProducer(cluster.bootstrap, transactional_id="t")
    producer.begin()
    producer.send("safe", 0, clients.rows(6, 20))
    producer.abort()
    producer.begin()
    producer.send("safe", 0, clients.rows(7, 20))
    cluster.send("safe", 0, 8, 20, "all")
    for _ in range(2):
        committed = cluster.consumed(["safe"], "read_committed")
        wait_until(
            lambda: rows(cluster.disks(), ["safe"], isolation="read_committed") == committed,  # noqa: B023 - now
            "what is committed does not come",
        )
        if len(committed[TopicPartition("safe", 0)]) == 200:
            producer.commit()
    assert len(committed[TopicPartition("safe", 0)]) == 240

    # The follower is stopped; the leader continues alone, and is ahead of the cluster.
    os.kill(three.pid, signal.SIGSTOP)
    wait_until(lambda: tuple(cluster.state(UNCLEAN).isr) == (2,), "broker 3 is not fenced")
    cluster.send("ahead", 0, 2, 100, "1")
    cluster.send("unclean", 0, 2, 100, "1")
    up = ["ahead", "unclean"]
    seen = cluster.consumed(up)
    assert (len(seen[AHEAD]), len(seen[UNCLEAN])) == (200, 300)  # below min.insync.replicas the watermark rests
    wait_until(lambda: rows(cluster.disks(), up) == seen, "the watermark of broker 2 does not come")
    assert len(rows(cluster.disks(), up, endingOffsets="logEnd")[AHEAD]) == 300
    stream.trigger()
    assert stream.rows == seen[AHEAD]
    with pytest.raises(IllegalStateException, match=r"found no directory of one-0"):
        rows(cluster.disks(1, 2), ["one"])

    # The leader dies, the follower is elected: for `ahead` nothing is lost that anybody saw, for `unclean` it is.
    two.kill()
    os.kill(three.pid, signal.SIGCONT)
    wait_until(lambda: cluster.state(AHEAD).leader == cluster.state(UNCLEAN).leader == 3, "broker 3 is not elected")
    cluster.send("ahead", 0, 3, 50, "1")
    cluster.send("unclean", 0, 3, 50, "1")
    seen = cluster.consumed(up)
    assert len(seen[AHEAD]) == 200
    assert len(seen[UNCLEAN]) == 250
    found = rows(cluster.disks(), ["ahead"])
    assert found == {AHEAD: seen[AHEAD]}
    with pytest.raises(IllegalStateException, match=r"different leader epochs from offset 200 on"):
        rows(cluster.disks(), ["unclean"])
    wait_until(
        lambda: rows(cluster.disks(), ["unclean"], failOnDataLoss="false") == {UNCLEAN: seen[UNCLEAN]},
        "the watermark of broker 3 does not come",
    )
    given = {"replicas": "longest", "endingOffsets": "logEnd", "failOnDataLoss": "false"}
    assert len(rows(cluster.disks(), ["unclean"], **given)[UNCLEAN]) == 300  # not yet truncated
    stream.trigger()
    assert stream.rows == seen[AHEAD]

    # The old leader comes back and is truncated.
    two.start()
    wait_until(lambda: set(cluster.state(AHEAD).isr) == {2, 3}, "broker 2 is not in sync")
    cluster.send("ahead", 0, 4, 30, "all")
    seen = cluster.consumed(every)
    assert len(seen[AHEAD]) == 280
    wait_until(lambda: rows(cluster.disks(), every) == seen, "the checkpoints do not come")
    wait_until(lambda: stream.trigger() or stream.rows == seen[AHEAD], "the stream stands still")

    # All brokers die at once, and their checkpoints are old: the metadata and all the logs say how far.
    for topic, (where, _) in TOPICS.items():
        for partition in range(len(where)):
            cluster.send(topic, partition, 5, 40, "all")
    seen = cluster.consumed(every)
    for node in cluster.nodes.values():
        node.kill()
    now = rows(cluster.disks(), every)
    assert all(now[each] == seen[each][: len(now[each])] for each in seen)
    for path in (log for disk in cluster.disks() for log in disk.glob("*/*.log")):
        os.utime(path, (time.time() - 60, time.time() - 60))
    for disk in cluster.disks():
        text = (disk / "replication-offset-checkpoint").read_text()
        (disk / "replication-offset-checkpoint").write_text(
            "\n".join(" ".join([*line.split()[:2], "0"]) if line.count(" ") == 2 else line for line in text.split("\n"))
        )
    assert rows(cluster.disks(), every) == seen
    stream.trigger()
    assert stream.rows == seen[AHEAD]
    copies = parse_options(
        {"path": ",".join(map(str, cluster.disks())), "subscribe": "safe", "replicas": "all", "endingOffsets": "logEnd"}
    )
    assert len(plan(copies)) == 9
