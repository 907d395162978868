"""Share groups that change hands: a broker's in a store, a store's in a broker, and back.

Kafka's KafkaShareConsumer takes, releases and rejects records on a real broker. kafkalog then opens the directory and
knows the same start offsets and states. It goes on with them. At last the broker's consumer gets the rest.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import ShareGroupOffset, SharePartitionKey
from tests.broker import clients, kraft
from tests.conformance import kafka_jars
from tests.conftest import need_broker

pytestmark = pytest.mark.broker

CLIENT = Path(__file__).parent / "ShareClient.java"
CONTEXT = RequestContext("client", "/127.0.0.1", 1)
AVAILABLE, ACKED, ARCHIVED = 0, 2, 4
TOPIC, GROUP = "outbox", "mail"
TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[kraft.Broker]:
    need_broker()
    with kraft.broker(tmp_path / "node", settings={"group.share.min.session.timeout.ms": "1000"}) as node:
        yield node


def client(bootstrap: str, *args: str) -> list[list[str]]:
    """The lines of ShareClient, in words."""
    kafka = kraft.classpath()
    command = [kafka.java, *kraft.JAVA_FLAGS, "-cp", kafka.classpath, str(CLIENT), args[0], bootstrap, *args[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split(" ") for line in done.stdout.splitlines()]


def take(bootstrap: str, plan: str, group: str = GROUP) -> list[tuple[int, int, int]]:
    """Partition, offset and delivery count of the records that a member got for a plan."""
    return [(int(a), int(b), int(c)) for a, b, c in client(bootstrap, "take", group, TOPIC, plan)]


def offsets(bootstrap: str, group: str = GROUP) -> dict[int, tuple[int, int]]:
    """Start offset and lag by partition, as the server's coordinator says."""
    found = client(bootstrap, "offsets", group)
    return {int(name.rpartition("-")[2]): (int(start), int(lag)) for name, start, lag in found}


def produce(node: kraft.Broker, count: int, partitions: int = 1) -> None:
    clients.create_topics(node.bootstrap, {TOPIC: (partitions, {})})
    append(node, count, partitions)


def append(node: kraft.Broker, count: int, partitions: int = 1) -> None:
    producer = clients.ConfluentProducer(node.bootstrap)
    for partition in range(partitions):
        producer.send(TOPIC, partition, clients.rows(partition, count))


class Store:
    """The directory of a broker that is stopped, in this process."""

    def __init__(self, node: kraft.Broker) -> None:
        self.store = kafkalog.open(node.log_dir, take_over=True)
        self.coordinators = self.store._home.coordinators
        found = self.coordinators.topics.topic_id(TOPIC)
        assert found is not None
        self.topic_id = found

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()

    def offsets(self, group: str = GROUP) -> dict[int, tuple[int, int]]:
        answer = self.coordinators.groups.describe_share_group_offsets(CONTEXT, {"groupId": group, "topics": None})
        (topic,) = answer["topics"]
        return {each["partitionIndex"]: (each["startOffset"], each["lag"]) for each in topic["partitions"]}

    def state(self, partition: int = 0, group: str = GROUP) -> ShareGroupOffset:
        key = SharePartitionKey(group, self.topic_id, partition)
        return self.coordinators.share_coordinator.shard(key).states()[key]

    def ask(self, call: str, partition: int = 0, group: str = GROUP, **fields: Any) -> Values:
        request = {
            "groupId": group,
            "topics": [{"topicId": self.topic_id, "partitions": [{"partition": partition, **fields}]}],
        }
        answer: Values = getattr(self.coordinators.share_coordinator, call)(request)
        found: Values = answer["results"][0]["partitions"][0]
        assert not found["errorCode"], found
        return found

    def write(self, first: int, last: int, state: int, count: int, *, start: int, complete: int, epoch: int) -> None:
        batch = {"firstOffset": first, "lastOffset": last, "deliveryState": state, "deliveryCount": count}
        self.ask(
            "write_state", stateEpoch=self.state().state_epoch, leaderEpoch=epoch, startOffset=start,
            deliveryCompleteCount=complete, stateBatches=[batch],
        )  # fmt: skip


def batches(state: ShareGroupOffset) -> list[tuple[int, int, int, int]]:
    return [tuple(each) for each in state.state_batches]  # type: ignore[misc]


def test_a_brokers_share_group_goes_on_in_a_store_and_back(node: kraft.Broker) -> None:
    node.start()
    produce(node, 10)
    assert take(node.bootstrap, "aararxa") == [(0, offset, 1) for offset in range(7)]
    said = offsets(node.bootstrap)
    node.stop()
    with Store(node) as store:
        (described,) = store.coordinators.groups.share_group_describe(CONTEXT, [GROUP])
        assert (described["groupState"], described["members"]) == ("Empty", [])
        assert store.offsets() == said
        state = store.state()
        done = {offset: each[2:] for each in batches(state) for offset in range(each[0], each[1] + 1)}
        assert {offset for offset, (what, _) in done.items() if what == ACKED} | set(range(state.start_offset)) >= {
            3,
            6,
        }
        assert done[5] == (ARCHIVED, 1)
        assert {done[offset] for offset in (2, 4)} == {(AVAILABLE, 1)}
        epoch = state.leader_epoch
        assert store.ask("read_state", leaderEpoch=epoch)["startOffset"] == state.start_offset
        store.write(2, 2, ACKED, 2, start=4, complete=2, epoch=epoch)
        expected = store.offsets()
        assert expected == {0: (4, 4)}
    node.start()
    assert offsets(node.bootstrap) == expected
    rest = take(node.bootstrap, "aaaa")
    assert [(offset, count) for _, offset, count in rest] == [(4, 2), (7, 2), (8, 2), (9, 2)]
    assert offsets(node.bootstrap)[0][1] == 0
    node.stop()


def test_a_stores_share_group_goes_on_in_a_broker(node: kraft.Broker) -> None:
    node.start()
    produce(node, 10)
    take(node.bootstrap, "a")  # the broker makes the internal topics
    node.stop()
    group = "store"
    with Store(node) as store:
        groups = store.coordinators.groups
        beat = {"groupId": group, "memberId": "m", "rackId": None, "memberEpoch": 0, "subscribedTopicNames": [TOPIC]}
        assert groups.share_group_heartbeat(CONTEXT, beat)["memberEpoch"] == 2
        store.ask("initialize_state", group=group, stateEpoch=2, startOffset=3)
        read = store.ask("read_state", group=group, leaderEpoch=0)
        assert read["startOffset"] == 3
        batch = {"firstOffset": 4, "lastOffset": 6, "deliveryState": ACKED, "deliveryCount": 1}
        store.ask(
            "write_state", group=group, stateEpoch=2, leaderEpoch=0, startOffset=3, deliveryCompleteCount=3,
            stateBatches=[batch],
        )  # fmt: skip
        left = {**beat, "memberEpoch": -1, "subscribedTopicNames": None}
        assert groups.share_group_heartbeat(CONTEXT, left)["errorCode"] == 0
        expected = store.offsets(group)
        assert expected == {0: (3, 4)}
    node.start()
    assert offsets(node.bootstrap, group) == expected
    assert [(offset, count) for _, offset, count in take(node.bootstrap, "aaaa", group)] == [
        (3, 1),
        (7, 1),
        (8, 1),
        (9, 1),
    ]
    assert offsets(node.bootstrap, group)[0][1] == 0  # nothing is left
    node.stop()
    assert not node.complaints(["ShareCoordinator", "SharePartition"])


def test_kafkas_tool_administers_our_groups(tmp_path: Path) -> None:
    """kafka-share-groups.sh on a server of ours."""
    need_broker()
    kafka = kafka_jars.tools()

    def tool(bootstrap: str, *args: str) -> list[list[str]]:
        command = kafka.command("--bootstrap-server", bootstrap, *args, main=TOOL)
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, (args, done.stdout, done.stderr[-3000:])
        return [words for line in done.stdout.splitlines() if (words := line.split())]

    with kafkalog.open(tmp_path / "shop") as store, store.serve("127.0.0.1:0") as server:
        at = server.bootstrap_servers
        store.create_topic(TOPIC).append_many([b"record"] * 10)
        groups = store._home.coordinators.groups
        beat = {"groupId": GROUP, "memberId": "m", "rackId": None, "memberEpoch": 0, "subscribedTopicNames": [TOPIC]}
        groups.share_group_heartbeat(CONTEXT, beat)
        assert tool(at, "--list", "--state")[1:] == [[GROUP, "Stable"]]
        assert tool(at, "--describe", "--group", GROUP, "--members")[1][:3] == [GROUP, "m", "/127.0.0.1"]
        groups.share_group_heartbeat(CONTEXT, {**beat, "memberEpoch": -1, "subscribedTopicNames": None})
        reset = tool(at, "--reset-offsets", "--group", GROUP, "--topic", TOPIC, "--to-earliest", "--execute")
        assert reset[1] == [GROUP, TOPIC, "0", "0"]
        assert tool(at, "--describe", "--group", GROUP)[-1] == [GROUP, TOPIC, "0", "0", "10"]
        assert tool(at, "--delete-offsets", "--group", GROUP, "--topic", TOPIC)[-1] == [TOPIC, "Successful"]
        assert "successful" in " ".join(tool(at, "--delete", "--group", GROUP)[-1])
        assert tool(at, "--list") == []


def test_kafkas_consumer_takes_from_our_server_and_goes_on_in_a_broker(node: kraft.Broker) -> None:
    node.start()
    produce(node, 10)
    take(node.bootstrap, "a", "first")  # the broker makes the internal topics
    node.stop()
    with kafkalog.open(node.log_dir, take_over=True) as store, store.serve("127.0.0.1:0") as server:
        taken = take(server.bootstrap_servers, "aararxa")
        assert taken == [(0, offset, 1) for offset in range(7)]
        expected = offsets(server.bootstrap_servers)
        assert expected[0][1] == 5
    node.start()
    assert offsets(node.bootstrap) == expected
    rest = take(node.bootstrap, "aaaaa")
    assert [(offset, count) for _, offset, count in rest] == [(2, 2), (4, 2), (7, 2), (8, 2), (9, 2)]
    assert offsets(node.bootstrap)[0][1] == 0
    node.stop()
    assert not node.complaints(["ShareCoordinator", "SharePartition"])
