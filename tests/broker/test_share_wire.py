"""ShareFetch and ShareAcknowledge as frames, to a real broker and to a served store: the answers are equal.

Sessions in and out of turn, unknown topics and partitions, acknowledgements of every kind and wrong ones, both acquire
modes, renewals. Ids of topics, and the order of partitions in an answer, are made equal before the comparison.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import kafkalog
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.requests import ApiKeys
from tests.broker import clients, kraft
from tests.broker.test_share_clients import COUNT, TOPIC, broker_with_topic
from tests.conftest import need_broker
from tests.wire.client import Client

pytestmark = pytest.mark.broker

GROUP, LETTERS = "wire", "dlq.letters"
SECONDS_MAX = 30
SETTLED_S = 0.5  # a broker answers the end of a session before it has released the records
NOT_YET = (14, 15, 16)  # the coordinator is not there yet
UNKNOWN_ID = "B" * 21 + "A"


class Played:
    """The same requests to one server."""

    def __init__(self, bootstrap: str, topic_id: str, group: str = GROUP) -> None:
        self.group = group
        self.bootstrap = bootstrap
        self.ids = {"known": topic_id, "unknown": UNKNOWN_ID}
        self.clients: dict[str, Client] = {}
        self.answers: list[Any] = []

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def client(self, member: str) -> Client:
        if member not in self.clients:
            self.clients[member] = Client(self.bootstrap)
        return self.clients[member]

    def alter(self, **more: str) -> None:
        configs = [
            {"name": name, "configOperation": 0, "value": value}
            for name, value in {"share.auto.offset.reset": "earliest", **more}.items()
        ]
        resource = {"resourceType": 32, "resourceName": self.group, "configs": configs}
        answer = self.client("admin").ask(ApiKeys.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert answer["responses"][0]["errorCode"] == 0, answer

    def join(self, member: str) -> None:
        """Joins the group, and waits until the states of its partitions exist."""
        client = self.client(member)
        until = time.monotonic() + SECONDS_MAX
        epoch, names = 0, [TOPIC]
        while time.monotonic() < until:
            client.ask(ApiKeys.FIND_COORDINATOR, 6, {"keyType": 0, "coordinatorKeys": [self.group]})
            values = {"groupId": self.group, "memberId": member, "memberEpoch": epoch, "subscribedTopicNames": names}
            answer = client.ask(ApiKeys.SHARE_GROUP_HEARTBEAT, 1, values)
            if answer["errorCode"] == 0:
                epoch, names = answer["memberEpoch"], None
                if (answer["assignment"] or {}).get("topicPartitions"):
                    return
            else:
                assert answer["errorCode"] in NOT_YET, answer
            time.sleep(0.2)
        raise AssertionError(f"{member} got no partitions")

    # More than eight parameters: those of the request, by name.
    def fetch(
        self, member: str, epoch: int, partitions: Any = (), *, version: int = 2, forget: Any = (), **more: Any
    ) -> None:
        values = {
            "groupId": self.group, "memberId": member, "shareSessionEpoch": epoch, "maxWaitMs": 300, "minBytes": 1,
            "maxBytes": 1 << 20, "maxRecords": 500, "batchSize": 500, "topics": self._topics(partitions),
            "forgottenTopicsData": [{"topicId": self.ids[name], "partitions": [at]} for name, at in forget],
        }  # fmt: skip
        self._note(self.client(member).ask(ApiKeys.SHARE_FETCH, version, values | more))

    def ack(self, member: str, epoch: int, partitions: Any = (), *, version: int = 2, **more: Any) -> None:
        values = {
            "groupId": self.group, "memberId": member, "shareSessionEpoch": epoch, "topics": self._topics(partitions)
        }  # fmt: skip
        self._note(self.client(member).ask(ApiKeys.SHARE_ACKNOWLEDGE, version, values | more))

    def _topics(self, partitions: Any) -> list[Values]:
        topics: dict[str, Values] = {}
        for name, number, *batches in partitions:
            topic = topics.setdefault(name, {"topicId": self.ids[name], "partitions": []})
            topic["partitions"].append(
                {
                    "partitionIndex": number,
                    "acknowledgementBatches": [
                        {"firstOffset": first, "lastOffset": last, "acknowledgeTypes": list(types)}
                        for first, last, *types in batches
                    ],
                }
            )
        return list(topics.values())

    def _note(self, answer: Values) -> None:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        partitions = []
        for topic in answer.pop("responses"):
            for each in topic["partitions"]:
                if "records" in each:
                    each["records"] = len(each["records"] or b"")
                partitions.append((names[topic["topicId"]], each["partitionIndex"], each))
        self.answers.append((answer, sorted(partitions, key=lambda each: each[:2])))


def play(bootstrap: str, topic_id: str) -> list[Any]:
    on = Played(bootstrap, topic_id)
    on.alter()
    on.join("m1")
    zero, one, two, unknown = ("known", 0), ("known", 1), ("known", 2), ("unknown", 0)
    # The broker reads states in the background: a fetch that has to wait lets it do so.
    on.fetch("m0", 0, [zero, one], minBytes=1 << 20, maxWaitMs=1000, maxRecords=1)
    on.fetch("m0", -1)
    time.sleep(SETTLED_S)
    # Sessions.
    on.fetch("m1", 1, [zero])
    on.fetch("m1", -1)
    on.fetch("m1", 0, [(*zero, (0, 1, 1))])
    on.fetch("m1", 0, [zero], groupId=None)
    on.fetch("m1", 0, [zero], memberId="")
    on.fetch("m1", 0, [zero], memberId="x" * 37)
    on.ack("m1", 0, [(*zero, (0, 1, 1))])
    on.ack("m1", 1, [(*zero, (0, 1, 1))])
    on.ack("m1", -1)
    on.fetch("m1", 0, [zero, two, unknown], maxRecords=3, shareAcquireMode=1)
    on.fetch("m1", 3)
    on.fetch("m1", 1, [one], maxRecords=2)
    # Acknowledgements: wrong ones first.
    for epoch, batches in enumerate(
        (
            [(1, 0, 1)], [(0, 1)], [(0, 2, 1, 1)], [(0, 0, 5)], [(0, 0, -1)], [(0, 0, 4)], [(2, 2, 1), (0, 0, 1)],
            [(0, 40, 1)], [(90, 91, 1)], [(12, 12, 1)], [(0, 0, 1), (0, 0, 1)], [],
        ),
        2,
    ):  # fmt: skip
        on.ack("m1", epoch, [(*zero, *batches), (*unknown, (0, 0, 1)), (*two, (0, 0, 1))])
    on.ack("m1", 14, [(*zero, (1, 1, 1), (2, 2, 2))])
    on.ack("m1", 15, [(*zero, (1, 1, 1))])
    on.fetch("m1", 16, [(*zero, (0, 0, 2)), (*one, (0, 0, 3))], maxRecords=0)
    on.fetch("m1", 17, maxRecords=1)
    on.fetch("m1", 18, forget=[unknown, two], maxRecords=0)
    on.fetch("m1", 19, [(*zero, (0, 0, 4))], isRenewAck=True)
    on.fetch("m1", 19, [(*zero, (0, 0, 4))], isRenewAck=True, maxBytes=0, minBytes=0, maxRecords=0, maxWaitMs=0)
    on.ack("m1", 20, [(*zero, (0, 0, 4))], isRenewAck=True)
    on.ack("m1", 21, [(*zero, (0, 0, 1))], version=1)
    on.fetch("m1", 22, maxRecords=10, batchSize=2, version=1)
    on.fetch("m1", 23, maxBytes=0)
    # A second member gets what is left, and then what the first one leaves.
    on.fetch("m2", 0, [zero, one], maxRecords=4, shareAcquireMode=1)
    on.ack("m2", 1, [(*zero, (0, 0, 1))])
    on.ack("m1", -1, [(*zero, (3, 3, 1))])
    time.sleep(SETTLED_S)
    on.fetch("m2", 2)
    on.fetch("m2", 3, maxRecords=1)
    on.ack("m2", -1)
    time.sleep(SETTLED_S)
    on.fetch("m3", 0, [zero, one])
    on.fetch("m3", -1, [(*zero, (4, 4, 1))])
    on.fetch("m3", 2)
    on.close()
    return on.answers


def letters(bootstrap: str, topic_id: str) -> list[Any]:
    """Returns the dead letters of two rejected records, and of two that were released after their last delivery."""
    clients.create_topics(bootstrap, {LETTERS: (1, {"errors.deadletterqueue.group.enable": "true"})})
    on = Played(bootstrap, topic_id, "dead")
    on.alter(
        **{
            "errors.deadletterqueue.topic.name": LETTERS,
            "errors.deadletterqueue.copy.record.enable": "true",
            "share.delivery.count.limit": "2",
        }
    )
    on.join("m1")
    one = ("known", 1)
    on.fetch("m1", 0, [one], minBytes=1 << 20, maxWaitMs=1000, maxRecords=4, shareAcquireMode=1)
    on.ack("m1", 1, [(*one, (0, 1, 3), (2, 3, 2))])
    on.fetch("m1", 2, maxRecords=2, shareAcquireMode=1)
    on.ack("m1", 3, [(*one, (2, 3, 2))])
    on.close()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads letters"})
    consumer.assign([TopicPartition(LETTERS, 0, 0)])
    found: list[Any] = []
    until = time.monotonic() + SECONDS_MAX
    while len(found) < 4 and time.monotonic() < until:
        found += consumer.consume(10, 0.2)
    consumer.close()
    return [(each.offset(), each.key(), each.value(), each.headers()) for each in found]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Any], list[Any]]]:
    need_broker()
    with broker_with_topic(tmp_path_factory.mktemp("wire") / "kafka") as broker:
        topic_id = _topic_id(broker)
        yield play(broker.bootstrap, topic_id), letters(broker.bootstrap, topic_id)


def _topic_id(broker: kraft.Broker) -> str:
    client = Client(broker.bootstrap)
    values = {"topics": [{"name": TOPIC}], "responsePartitionLimit": 10}
    answer = client.ask(ApiKeys.DESCRIBE_TOPIC_PARTITIONS, 0, values)
    client.close()
    return answer["topics"][0]["topicId"]  # type: ignore[no-any-return]


def test_frames(theirs: tuple[list[Any], list[Any]], tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "ours") as store:
        topic = store.create_topic(TOPIC, 2)
        for number in range(COUNT):
            topic.append(b"%d" % number, partition=number % 2)
        topic_id = topic.info.topic_id
        assert topic_id is not None
        with store.serve("127.0.0.1:0") as server:
            ours = play(server.bootstrap_servers, topic_id)
            dead = letters(server.bootstrap_servers, topic_id)
    assert len(dead) == 4
    assert dead == theirs[1]
    wrong = [(number, *pair) for number, pair in enumerate(zip(ours, theirs[0], strict=True)) if pair[0] != pair[1]]
    assert not wrong, "\n".join(f"{number}\n  ours   {a}\n  theirs {b}" for number, a, b in wrong)
