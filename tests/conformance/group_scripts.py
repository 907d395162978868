"""Kafka's group coordinator in a JVM that stays, and scripts that run on it and on ours, step by step."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from kafkalog.engine.coordinator import classic_group, consumer_classic, consumer_groups
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.format.coordinator_records import group_record_set
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.group_records import Assignment as NamedAssignment
from kafkalog.engine.format.group_records import Subscription, encode_assignment, encode_subscription
from kafkalog.engine.format.messages import Values
from kafkalog.errors import KafkalogError
from tests.conformance import kafka_jars, messages
from tests.unit.consumer_kit import GROUP, Kit, Topics

MAIN = "io.kafkalog.conformance.GroupScripts"
Answer = dict[str, Any]


@contextmanager
def kafkas(driver: kafka_jars.Driver) -> Iterator[messages.Kafka]:
    """The JVM with Kafka's coordinator."""
    with messages.kafka(driver, MAIN) as kafka:
        yield kafka


class Both:
    """The same coordinator twice. `send` returns ours, after it was compared with Kafka's."""

    def __init__(self, kafka: messages.Kafka, monkeypatch: pytest.MonkeyPatch, settings: GroupSettings, **config: Any):
        self.kafka = kafka
        self.monkeypatch = monkeypatch
        self.topics = Topics()
        self.kit = Kit(self.topics, settings)
        self.steps: list[object] = []
        self.open: dict[int, Future[Values]] = {}
        self.seen = 0  # records of ours that were compared
        self.number = 0
        self.ask(op="topics", topics={}, version=0)
        self.ask(op="new", config=config)
        self.advance(0)
        self.kit.clock.now_ms = self.kafka_now()

    def kafka_now(self) -> int:
        return int(self.ask(op="now")["now"])

    def ask(self, **question: Any) -> Answer:
        self.steps.append(question)
        return self.kafka.ask([question])[0]

    def set_topics(self, **partitions: int) -> None:
        """Creates and deletes topics, so that there are these."""
        for name in set(self.topics.names()) - set(partitions):
            self.topics.delete(name)
        for name, count in partitions.items():
            if self.topics.partitions(name) != count:
                self.topics.create(name, count, self.topics.topic_id(name))
        rows = {name: [self.topics.topic_id(name), self.topics.partitions(name)] for name in self.topics.names()}
        self.ask(op="topics", topics=rows, version=self.topics.version)
        manager = self.kit.groups.shard(GROUP).consumer
        assert isinstance(manager, consumer_groups.ConsumerGroups)
        manager.see_topics()  # Kafka sees every version of the topics, also those between two heartbeats

    def advance(self, ms: int) -> None:
        theirs = self.ask(op="advance", ms=ms)
        self.kit.wait(ms)
        self._compare(theirs, None)

    def send(self, api: str, version: int, body: Values, client: str = "client") -> Values | None:
        """Sends a request to both, and lets a millisecond pass, so that no two timers are of the same time."""
        self.number += 1
        theirs = self.ask(op="request", api=api, version=version, client=client, body=_json(body), id=self.number)
        told = _member_id(theirs, self.number)
        if told is None and api == "JoinGroup" and body["groupInstanceId"] is not None:
            told = self.ask(op="ids", group=GROUP)["ids"].get(body["groupInstanceId"])
        if told is not None:
            for module in (consumer_groups, consumer_classic):
                self.monkeypatch.setattr(module, "new_uuid", lambda: told)
            self.monkeypatch.setattr(classic_group.ClassicGroup, "new_member_id", lambda *args: told)
        ours = self._ours(api, RequestContext(client, "/127.0.0.1", version), body)
        found = self._compare(theirs, ours)
        self.advance(1)
        return found

    def _ours(self, api: str, context: RequestContext, body: Values) -> Answer:
        groups = self.kit.groups
        try:
            if api in ("JoinGroup", "SyncGroup"):
                call = groups.join_group if api == "JoinGroup" else groups.sync_group
                self.open[self.number] = call(context, body)
                return {}
            call_now = {
                "ConsumerGroupHeartbeat": groups.consumer_group_heartbeat,
                "Heartbeat": groups.heartbeat,
                "LeaveGroup": groups.leave_group,
                "OffsetCommit": getattr(groups, "commit_offsets", None),
            }[api]
            assert call_now is not None
            return {"response": call_now(context, body)}
        except KafkalogError as error:
            return {"error": code_of(error).name, "message": error.message}

    def _compare(self, theirs: Answer, ours: Answer | None) -> Values | None:
        end = self.kit.log.end
        rows = [
            [(each.key or b"").hex(), None if each.value is None else each.value.hex()]
            for batch in (self.kit.log.read(self.seen) if end > self.seen else ())
            for each in batch.records
        ]
        self.seen = end
        refused = self.open.get(self.number)
        if "error" in theirs and refused is not None and refused.done():
            ours = {"response": self.open.pop(self.number).result(0)}  # Kafka's service makes an answer of it
        done = {number: each.result(0) for number, each in self.open.items() if each.done()}
        for number in done:
            del self.open[number]
        shown = {each["id"]: each["response"] for each in theirs["completed"]}
        assert done.keys() == shown.keys(), (theirs, done)
        for number, values in shown.items():
            _same(done[number], values)
        if ours is not None and "error" in theirs:
            code, message = _error(ours)
            assert code == theirs["error"], (theirs, ours)
            if code in COMPARED_MESSAGES:
                assert message == theirs["message"]
        elif ours is not None:
            assert "error" not in ours, (theirs, ours)
            if theirs.get("response") is not None:
                _same(ours["response"], theirs["response"])
        assert rows == theirs["records"], [_shown(each) for each in (theirs["records"], rows)]
        if ours is None:
            return None
        return ours.get("response") or next(iter(done.values()), None)

    def describe(self) -> None:
        theirs = self.ask(op="describe", group=GROUP)["response"]["groups"][0]
        with self.kit.partition.entered():
            ours = self.kit.groups.shard(GROUP).consumer.describe(GROUP)
        _same(ours, theirs)


# The texts of these are Kafka's, because clients show them.
COMPARED_MESSAGES = {
    "FENCED_MEMBER_EPOCH", "UNRELEASED_INSTANCE_ID", "INVALID_REGULAR_EXPRESSION", "GROUP_MAX_SIZE_REACHED",
    "UNSUPPORTED_ASSIGNOR",
}  # fmt: skip


def _error(ours: Answer) -> tuple[str, str | None]:
    """The error of an answer, or the one that was raised."""
    if "error" in ours:
        return ours["error"], ours["message"]
    response = ours["response"]
    if response["errorCode"] == 0 and "members" in response:  # Kafka's service tells every member that leaves
        (code,) = {each["errorCode"] for each in response["members"]}
        return Errors(code).name, None
    return Errors(response["errorCode"]).name, response.get("errorMessage")


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _json(each) for name, each in value.items()}
    return [_json(each) for each in value] if isinstance(value, list) else value


def _same(ours: Any, theirs: Any, place: str = "") -> None:
    """Fields that ours has not are not compared; theirs leave out what their version lacks."""
    if isinstance(theirs, dict):
        for name, value in theirs.items():
            if name in ours:
                _same(ours[name], value, f"{place}.{name}")
            else:
                assert name in ("throttleTimeMs", "subtopologies"), f"{place}.{name} is missing"
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), (place, ours, theirs)
        for each, other in zip(ours, theirs, strict=True):
            _same(each, other, place)
    else:
        assert _json(ours) == theirs, (place, ours, theirs)


def _member_id(theirs: Answer, number: int) -> str | None:
    answers = [theirs.get("response"), *(each["response"] for each in theirs["completed"] if each["id"] == number)]
    return next((each["memberId"] for each in answers if each and each.get("memberId")), None)


def _shown(rows: list[list[str | None]]) -> list[object]:
    return [
        group_record_set().decode(bytes.fromhex(key or ""), None if value is None else bytes.fromhex(value))
        for key, value in rows
    ]


# --- random members -------------------------------------------------------------------------------------------------


class Consumer:
    """A member of a random script."""

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.epoch = 0
        self.owned: dict[str, list[int]] = {}
        self.classic_id = ""
        self.generation = -1
        self.is_synced = True


class Play:
    """A random script: members of both protocols come, go, fall silent, and topics change."""

    def __init__(self, both: Both, seed: int, *, classic: bool = False) -> None:
        self.both = both
        self.random = random.Random(seed)
        self.classic = classic
        self.members = [Consumer(f"member-{seed}-{each}", f"i{each}" if each % 3 == 2 else None) for each in range(6)]
        self.counts = {"orders": 4, "mail": 3}

    def run(self, steps: int) -> None:
        self.both.set_topics(**self.counts)
        for _ in range(steps):
            self.step()
        self.both.advance(60_000)

    def step(self) -> None:
        rng = self.random
        chance = rng.random()
        member = rng.choice(self.members)
        if chance < 0.05:
            self.both.advance(rng.choice((500, 1_500, 6_000, 11_000, 46_000)))
        elif chance < 0.1:
            name = rng.choice(("orders", "mail", "orders-eu", "log"))
            if name in self.counts and rng.random() < 0.3:
                del self.counts[name]
            else:
                self.counts[name] = max(self.counts.get(name, 0) + rng.randrange(3), 1)
            self.both.set_topics(**self.counts)
        elif self.classic and self.members.index(member) % 2:
            self.classic_step(member)
        elif chance < 0.2 and member.epoch > 0:
            self.leave(member)
        else:
            self.heartbeat(member)
        if chance > 0.97 and isinstance(self.both.kit.partition.groups.by_name.get(GROUP), object):
            self._describe()

    def _describe(self) -> None:
        found = self.both.kit.partition.groups.by_name.get(GROUP)
        if found is not None and found.type.value == "Consumer":
            self.both.describe()

    def heartbeat(self, member: Consumer) -> None:
        rng = self.random
        joins = member.epoch <= 0
        request = {
            "groupId": GROUP,
            "memberId": member.member_id,
            "memberEpoch": max(member.epoch, 0),
            "instanceId": member.instance_id,
            "rackId": None,
            "rebalanceTimeoutMs": 5_000 if joins else -1,
            "subscribedTopicNames": None,
            "subscribedTopicRegex": None,
            "serverAssignor": rng.choice((None, None, None, "uniform", "range")) if joins else None,
            "topicPartitions": [] if joins else None,
        }
        if joins or rng.random() < 0.1:
            chance = rng.random()
            if chance < 0.7:
                names = ["orders", "mail", "orders-eu", "log", "none"]
                request["subscribedTopicNames"] = rng.sample(names, rng.randrange(1, 4))
            if chance > 0.6:
                request["subscribedTopicRegex"] = rng.choice(("orders.*", "mail|log", ".*", "", "(bad"))
        elif rng.random() < 0.5:
            request["topicPartitions"] = [
                {"topicId": topic, "partitions": each} for topic, each in member.owned.items()
            ]
        if rng.random() < 0.04:
            request["memberEpoch"] = max(member.epoch + rng.choice((-2, -1, 1)), 1)
        self.take(member, self.both.send("ConsumerGroupHeartbeat", 1, request, f"c-{member.member_id}"))

    def take(self, member: Consumer, answer: Values | None) -> None:
        if answer is None or answer.get("errorCode"):
            member.epoch, member.owned = 0, {}
            if member.instance_id is None or self.random.random() < 0.7:
                return
            member.member_id += "x"
            return
        member.epoch = answer["memberEpoch"]
        if answer["assignment"] is not None:
            member.owned = {
                each["topicId"]: list(each["partitions"]) for each in answer["assignment"]["topicPartitions"]
            }

    def leave(self, member: Consumer) -> None:
        is_static = member.instance_id is not None and self.random.random() < 0.5
        request = {
            "groupId": GROUP,
            "memberId": member.member_id,
            "memberEpoch": -2 if is_static else -1,
            "instanceId": member.instance_id,
            "rackId": None,
            "rebalanceTimeoutMs": -1,
            "subscribedTopicNames": None,
            "subscribedTopicRegex": None,
            "serverAssignor": None,
            "topicPartitions": None,
        }
        self.both.send("ConsumerGroupHeartbeat", 1, request, f"c-{member.member_id}")
        member.epoch, member.owned = 0, {}
        if is_static and self.random.random() < 0.7:
            member.member_id += "y"

    # --- the classic protocol ---

    def classic_step(self, member: Consumer) -> None:
        chance = self.random.random()
        if member.generation < 0 or not member.classic_id or chance < 0.15:
            self.join(member)
        elif not member.is_synced and chance < 0.8:
            self.sync(member)
        elif chance < 0.25:
            self.classic_leave(member)
        else:
            answer = self.both.send(
                "Heartbeat",
                4,
                {
                    "groupId": GROUP,
                    "generationId": member.generation,
                    "memberId": member.classic_id,
                    "groupInstanceId": member.instance_id,
                },
            )
            if answer is None or answer["errorCode"] != 0:
                if answer is not None and answer["errorCode"] == 27:
                    member.generation = -1
                else:
                    member.classic_id, member.generation = "", -1

    def join(self, member: Consumer) -> None:
        topics = self.random.sample(["orders", "mail", "log"], self.random.randrange(1, 3))
        owned = {
            name: each for topic, each in member.owned.items() if (name := self.both.topics.name(topic)) is not None
        }
        told = encode_subscription(Subscription(topics, owned_partitions=owned, generation=member.generation))
        answer = self.both.send(
            "JoinGroup",
            9,
            {
                "groupId": GROUP,
                "sessionTimeoutMs": 30_000,
                "rebalanceTimeoutMs": 10_000,
                "memberId": member.classic_id,
                "groupInstanceId": member.instance_id,
                "protocolType": "consumer",
                "protocols": [{"name": name, "metadata": told} for name in ("range", "cooperative-sticky")],
                "reason": None,
            },
            f"k-{member.member_id}",
        )
        if answer is None:
            return  # it waits for others; its answer is compared when it comes
        if answer.get("memberId"):
            member.classic_id = answer["memberId"]
        if answer["errorCode"] == 0 and "members" in answer:
            member.generation, member.is_synced = answer["generationId"], False
        elif answer["errorCode"] != 79:
            member.classic_id, member.generation = "", -1

    def sync(self, member: Consumer) -> None:
        divided = encode_assignment(NamedAssignment({"orders": [0, 1]}))
        answer = self.both.send(
            "SyncGroup",
            5,
            {
                "groupId": GROUP,
                "generationId": member.generation,
                "memberId": member.classic_id,
                "groupInstanceId": member.instance_id,
                "protocolType": "consumer",
                "protocolName": "range",
                "assignments": [{"memberId": member.classic_id, "assignment": divided}],
            },
        )
        member.is_synced = True
        if answer is None or answer.get("errorCode"):
            member.generation = -1

    def classic_leave(self, member: Consumer) -> None:
        self.both.send(
            "LeaveGroup",
            5,
            {
                "groupId": GROUP,
                "memberId": "",
                "members": [{"memberId": member.classic_id, "groupInstanceId": member.instance_id, "reason": None}],
            },
        )
        member.classic_id, member.generation = "", -1
