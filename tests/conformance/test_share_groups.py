"""Share groups beside Kafka's own classes: the assignor, and every record and answer of random lives of groups."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
from collections.abc import Generator
from typing import Any

import pytest

from kafkalog.engine.coordinator.assignors import GroupSpec, MemberSpec, SubscriptionType
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.java_order import Assignment, Partitions, name_map, name_set, partition_set, topic_map
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.share_groups import ShareGroups
from kafkalog.engine.coordinator.simple_assignor import assign_simple
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.coordinator_records import group_record_set
from kafkalog.engine.format.error_codes import code_of
from kafkalog.engine.format.messages import Values
from kafkalog.errors import KafkalogError, KafkaStorageException
from tests.conformance import kafka_jars
from tests.unit.coordinator_kit import NOW_MS, Disk

MAIN = "org.apache.kafka.coordinator.group.OpenShareGroups"
ASSIGNMENTS = 400


def topic_ids(rng: random.Random, count: int) -> dict[str, str]:
    """Random ids by name."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    return {f"topic-{number}": "".join(rng.choices(letters, k=21)) + "A" for number in range(count)}


# --- the assignor -----------------------------------------------------------------------------------------------------


def assignment(pairs: list[list[Any]]) -> Assignment:
    found: Any = topic_map()
    for topic_id, partitions in pairs:
        found[topic_id] = partition_set(partitions)
    return found  # type: ignore[no-any-return]


def shown(found: Assignment) -> list[list[Any]]:
    return [[topic_id, list(partitions)] for topic_id, partitions in found.items()]


def assignments(seed: int) -> Generator[dict[str, Any], dict[str, Any], None]:
    """A group that changes: each assignment is the old one of the next."""
    rng = random.Random(seed)
    ids = topic_ids(rng, rng.choice((1, 3, 6)))
    counts = {name: rng.choice((1, 2, 5, 12, 40)) for name in ids}
    members: dict[str, list[str]] = {}
    old: dict[str, list[list[Any]]] = {}
    is_same = rng.random() < 0.5
    common = rng.sample(sorted(ids), rng.randint(1, len(ids)))
    ready: dict[str, int] = {}
    for _ in range(rng.randint(1, 6)):
        for _ in range(rng.choice((1, 1, 3, 20))):
            members[f"member-{rng.randrange(10_000)}"] = []
        for gone in rng.sample(sorted(members), len(members) // rng.choice((2, 3, 9))):
            del members[gone]
        if rng.random() < 0.3:
            common = rng.sample(sorted(ids), rng.randint(1, len(ids)))
        for name in members:
            members[name] = common if is_same else rng.sample(sorted(ids), rng.randint(1, len(ids)))
        ready = {name: rng.randint(ready.get(name, 0), counts[name]) for name in ids if rng.random() < 0.9}
        assignable = [[ids[name], list(range(count))] for name, count in ready.items()]
        if rng.random() < 0.2:
            counts = {name: count + rng.randint(0, 3) for name, count in counts.items()}
        yield {"op": "topics", "topics": {name: [ids[name], counts[name]] for name in ids}}
        answer = yield {
            "op": "assign",
            "members": {name: {"topics": topics, "old": old.get(name, [])} for name, topics in members.items()},
            "type": "HOMOGENEOUS" if is_same else "HETEROGENEOUS",
            "assignable": assignable,
        }
        old = answer["assignment"]


def ours(op: dict[str, Any], topics: dict[str, list[Any]]) -> dict[str, list[list[Any]]]:
    specs: Any = name_map()
    for name, each in op["members"].items():
        names = name_set(each["topics"])
        existing = {topics[topic][0]: None for topic in names if topic in topics}
        specs[name] = MemberSpec(None, existing, len(names), assignment(each["old"]))
    counts = dict(topics.values())
    assignable: dict[str, Partitions] = {topic_id: partition_set(each) for topic_id, each in op["assignable"]}
    found = assign_simple(GroupSpec(specs, SubscriptionType[op["type"]]), counts.__getitem__, assignable)
    return {name: shown(each) for name, each in found.items()}


@pytest.mark.jvm
def test_the_assignor_gives_what_kafkas_gives(kafka_driver: kafka_jars.Driver) -> None:
    command = kafka_driver.command(main=MAIN)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        compared = 0
        for seed in range(ASSIGNMENTS):
            history: Any = assignments(seed)
            op = next(history)
            topics: dict[str, list[Any]] = {}
            while op is not None:
                process.stdin.write(f"{json.dumps(op)}\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                if "error" in answer:  # a partition lacks members when all have their shares: an iterator's end
                    assert answer["error"] == "UNKNOWN_SERVER_ERROR", (seed, answer)
                    ours(op, topics)
                    break
                compared += 1
                if op["op"] == "topics":
                    topics = op["topics"]
                else:
                    assert list(ours(op, topics).items()) == list(answer["assignment"].items()), (seed, op)
                try:
                    op = history.send(answer)
                except StopIteration:
                    op = None
        process.stdin.close()
    assert compared > ASSIGNMENTS


# --- groups -----------------------------------------------------------------------------------------------------------

LIVES = 60
STEPS = 60
SETTINGS = GroupSettings(group_share_max_size=6)
NOT_KAFKAS = re.compile(r"\b[A-Z]\w*\(")


class OurTopics:
    """A TopicsView that a test sets."""

    def __init__(self) -> None:
        self.version = 0
        self.by_name: dict[str, tuple[str, int]] = {}

    def set(self, topics: dict[str, list[Any]]) -> None:
        self.version += 1
        self.by_name = {name: (topic_id, count) for name, (topic_id, count) in topics.items()}

    def topic_id(self, name: str) -> str | None:
        return self.by_name[name][0] if name in self.by_name else None

    def name(self, topic_id: str) -> str | None:
        return next((name for name, (each, _) in self.by_name.items() if each == topic_id), None)

    def partitions(self, name: str) -> int:
        return self.by_name[name][1] if name in self.by_name else 0

    def names(self) -> list[str]:
        return list(self.by_name)


class AnyPersister:
    """Answers as the test says: "done", "failed" or, as if the process ended, "lost"."""

    def __init__(self) -> None:
        self.outcome = "done"
        self.asked: list[list[Any]] = []

    def _answer(self, request: Values) -> Values:
        if self.outcome == "lost":
            raise KafkaStorageException("lost")
        code = 0 if self.outcome == "done" else 3
        return {
            "results": [
                {
                    "topicId": topic["topicId"],
                    "partitions": [
                        {"partition": each["partition"], "errorCode": code, "errorMessage": None}
                        for each in topic["partitions"]
                    ],
                }
                for topic in request["topics"]
            ]
        }

    def initialize_state(self, request: Values) -> Values:
        self.asked = [
            [topic["topicId"], each["partition"], each["stateEpoch"], each["startOffset"]]
            for topic in request["topics"]
            for each in topic["partitions"]
        ]
        return self._answer(request)

    def delete_state(self, request: Values) -> Values:
        self.asked = [
            [topic["topicId"], each["partition"]] for topic in request["topics"] for each in topic["partitions"]
        ]
        return self._answer(request)

    def read_state(self, request: Values) -> Values:
        raise NotImplementedError

    write_state = read_state_summary = read_state


class Ours:
    """Our share groups, which take the operations of Kafka's driver."""

    def __init__(self) -> None:
        self.log = Disk().log("__consumer_offsets-0")
        self.clock = ManualClock(NOW_MS)
        self.topics = OurTopics()
        self.timers = Timers(self.clock)
        self.persister = AnyPersister()
        self.partition = GroupOffsets(self.log, self.clock, SETTINGS, timers=self.timers, topics=self.topics)
        self.groups = ShareGroups(self.partition, self.persister, lambda topic, partition: 0)
        self.read_to = 0

    def records(self) -> list[list[str | None]]:
        """The records since the last call."""
        found: list[list[str | None]] = []
        for batch in self.log.read(self.read_to):
            for each in batch.records:
                assert each.key is not None
                found.append([each.key.hex(), None if each.value is None else each.value.hex()])
        self.read_to = self.log.end
        return found

    def run(self, op: dict[str, Any], outcome: str) -> dict[str, Any]:
        self.persister.outcome = outcome
        self.persister.asked = []
        out: dict[str, Any] = {}
        try:
            answer = self._run(op)
            if answer is not None:
                out["answer"] = rendered(answer)
        except KafkalogError as error:
            out |= {"error": code_of(error).name, "message": error.message}
        return {**out, "records": self.records(), "asked": self.persister.asked}

    def _pass(self, ms: int) -> None:
        """Lets each timer run at its time, so that they run in the order of Kafka's."""
        until = self.clock.milliseconds() + ms
        while self.clock.milliseconds() < until:
            due = self.timers.next_due_ms()
            left = until - self.clock.milliseconds()
            self.clock.advance(left if due is None else min(max(due - self.timers.now_ms(), 1), left))
            self.timers.run_due()

    def _run(self, op: dict[str, Any]) -> Any:
        context = RequestContext("client", "/127.0.0.1", 1)
        if op["op"] == "topics":
            self.topics.set(op["topics"])
        elif op["op"] == "time":
            self._pass(op["ms"])
        elif op["op"] == "heartbeat":
            request = {
                "groupId": op["group"], "memberId": op["member"], "memberEpoch": op["epoch"], "rackId": op["rack"],
                "subscribedTopicNames": op["topics"],
            }  # fmt: skip
            with self.partition.entered():
                return self.groups.heartbeat(context, request)
        elif op["op"] == "topics deleted":
            with self.partition.entered():
                self.groups.on_topics_deleted(op["ids"])
        elif op["op"] == "describe":
            with self.partition.entered():
                return self.groups.describe(op["group"])
        elif op["op"] == "alter":
            topics = [
                {
                    "topicName": name,
                    "partitions": [{"partitionIndex": each, "startOffset": start} for each, start in pairs],
                }
                for name, pairs in op["topics"].items()
            ]
            return self.groups.alter_offsets(context, {"groupId": op["group"], "topics": topics})
        elif op["op"] == "delete offsets":
            topics = [{"topicName": each} for each in op["topics"]]
            return self.groups.delete_offsets(context, {"groupId": op["group"], "topics": topics})
        elif op["op"] == "delete group":
            refused = self.groups.delete_states([op["group"]])
            if not refused:
                with self.partition.entered():
                    self.groups.states.write(op["group"], self.groups.delete_group(op["group"]))
        return None


def rendered(value: Any) -> str:
    """A value as the toString of Kafka's messages shows it, without the names of classes."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name}={rendered(each)}" for name, each in value.items()) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(rendered, value)) + "]"
    return "null" if value is None else str(int(value)) if isinstance(value, int) else str(value)


def without_classes(text: str) -> str:
    return NOT_KAFKAS.sub("(", text).replace("'", "")


class Life:
    """Random operations; `told` keeps what the answers said, so that most heartbeats are right."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ids = topic_ids(self.rng, 4)
        self.counts = {name: self.rng.choice((1, 2, 3, 7, 20)) for name in self.ids}
        self.there = set(self.rng.sample(sorted(self.ids), 3))
        self.epochs: dict[tuple[str, str], int] = {}

    def topics(self) -> dict[str, Any]:
        return {"op": "topics", "topics": {name: [self.ids[name], self.counts[name]] for name in sorted(self.there)}}

    def op(self) -> list[dict[str, Any]]:
        rng = self.rng
        group = rng.choice(("g", "mail"))
        kind = rng.random()
        if kind < 0.1:
            return [{"op": "time", "ms": rng.choice((1, 500, 1_000, 31_000, 46_000))}]
        if kind < 0.16:
            return self._changed_topics()
        if kind < 0.22:
            return [{"op": "describe", "group": group}]
        if kind < 0.30:
            names = rng.sample([*self.ids, "nothing"], rng.randint(0, 3))
            pairs = {each: [[rng.randrange(4), rng.randrange(99)] for _ in range(rng.randint(0, 3))] for each in names}
            return [{"op": "alter", "group": group, "topics": pairs}]
        if kind < 0.36:
            return [{"op": "delete offsets", "group": group, "topics": rng.sample([*self.ids, "nothing"], 2)}]
        if kind < 0.42:
            return [{"op": "delete group", "group": group}]
        return [self._heartbeat(group), {"op": "time", "ms": 1}]

    def _changed_topics(self) -> list[dict[str, Any]]:
        name = self.rng.choice(sorted(self.ids))
        if name not in self.there:
            self.there.add(name)
        elif self.rng.random() < 0.5:
            self.counts[name] += self.rng.randint(1, 3)
        else:
            self.there.remove(name)
            gone = self.ids[name]
            if self.rng.random() < 0.5:
                self.ids[name] = topic_ids(self.rng, 1)["topic-0"]
            return [self.topics(), {"op": "topics deleted", "ids": [gone]}]
        return [self.topics()]

    def _heartbeat(self, group: str) -> dict[str, Any]:
        rng = self.rng
        member = f"m{rng.randrange(8)}"
        epoch = self.epochs.get((group, member), 0)
        if rng.random() < 0.15:
            epoch = rng.choice((-1, 0, epoch - 1, epoch + 1))
        names = rng.sample(sorted(self.ids), rng.randint(1, 3)) if epoch == 0 or rng.random() < 0.2 else None
        rack = rng.choice((None, None, None, "r1"))
        return {
            "op": "heartbeat",
            "group": group,
            "member": member,
            "epoch": max(epoch, -1),
            "rack": rack,
            "topics": names,
        }

    def learn(self, op: dict[str, Any], answer: dict[str, Any]) -> None:
        if op["op"] == "heartbeat" and "answer" in answer:
            found = re.search(r"memberEpoch=(-?\d+)", answer["answer"])
            assert found is not None
            self.epochs[op["group"], op["member"]] = max(int(found[1]), 0)
        elif op["op"] == "heartbeat" and answer.get("error") in ("UNKNOWN_MEMBER_ID", "GROUP_ID_NOT_FOUND"):
            self.epochs.pop((op["group"], op["member"]), None)


class Talk:
    """A driver that stays."""

    def __init__(self, driver: kafka_jars.Driver) -> None:
        self.process = subprocess.Popen(
            driver.command(main=MAIN), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, op: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(op)}\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def by_topic(asked: list[list[Any]]) -> list[list[Any]]:
    found: dict[str, list[int]] = {}
    for each in asked:
        found.setdefault(each[0], []).append(each[1])
    return [[topic_id, numbers] for topic_id, numbers in found.items()]


def theirs(talk: Talk, op: dict[str, Any], outcome: str) -> dict[str, Any]:
    """Kafka's effects of an operation, and those of its service after the persister has answered."""
    found = talk(op)
    out = {"records": found["records"], "asked": found.get("initialize") or found.get("delete") or []}
    if "error" in found:
        return {**out, "error": found["error"], "message": found["message"]}
    if found.get("initialize") and outcome != "lost" and not (op["op"] == "alter" and outcome == "failed"):
        then = "initialized" if outcome == "done" else "uninitialized"
        more = talk({"op": then, "group": op["group"], "partitions": by_topic(found["initialize"])})
        assert "error" not in more, more
        out["records"] += more["records"]
    if "answer" in found:
        out["answer"] = without_classes(found["answer"])
    return {**out, "code": found.get("code")}


@pytest.mark.jvm
def test_groups_live_as_kafkas(kafka_driver: kafka_jars.Driver) -> None:
    talk = Talk(kafka_driver)
    seen = dict.fromkeys(("heartbeat", "alter", "delete offsets", "delete group", "describe"), 0)
    for seed in range(LIVES):
        ours, life = Ours(), Life(seed)
        talk({"op": "groups", "ms": NOW_MS, "settings": {"group.share.max.size": "6"}})
        ops = [life.topics()]
        for step in range(STEPS):
            ops = ops or life.op()
            op = ops.pop(0)
            outcome = "done"
            if op["op"] in ("heartbeat", "alter"):
                outcome = life.rng.choice(("done",) * 6 + ("failed", "lost"))
            their = theirs(talk, op, outcome)
            our = ours.run(op, outcome)
            place = f"seed {seed}, step {step}: {op} {outcome}"
            if op["op"] == "topics deleted":  # one record for each group; their order has no meaning
                our["records"].sort()
                their["records"].sort()
            shown = "\n".join(shown_records(our["records"], their["records"]))
            assert not shown, f"{place}\n{shown}"
            compare_answers(op, our, their, outcome, place)
            life.learn(op, their)
            seen[op["op"]] = seen.get(op["op"], 0) + ("error" not in their)
    talk.close()
    assert min(seen.values()) > 20, seen


def shown_records(ours: list[list[str | None]], theirs: list[list[str | None]]) -> list[str]:
    """The first records that differ."""
    for our, their in itertools.zip_longest(ours, theirs):
        if our != their:
            return ["ours", shown_record(our), "Kafka's", shown_record(their)]
    return []


def shown_record(record: list[str | None] | None) -> str:
    if record is None:
        return "none"
    key, value = record
    assert key is not None
    found = group_record_set().decode(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    return f"{found.type} {found.key} {found.value}"


def compare_answers(op: dict[str, Any], our: dict[str, Any], their: dict[str, Any], outcome: str, place: str) -> None:
    if op["op"] == "delete offsets":
        assert ("errorCode=0" in our["answer"][:40]) == (their["code"] == 0), place
        if their["code"] == 0 and their["answer"] != "null":
            responses = our["answer"].partition("responses=")[2][:-1]
            assert sorted(responses.split("), (")) == sorted(their["answer"].split("), (")) or their["asked"], place
    elif op["op"] == "describe" and "error" not in our:
        assert our["answer"] == their["answer"], place
    elif op["op"] == "describe":
        assert f"errorMessage={our['message']}" in their["answer"], place
    elif op["op"] != "alter" or outcome == "done":
        for name in ("answer", "error", "message"):
            assert our.get(name) == their.get(name), place
    if outcome != "lost" or op["op"] == "heartbeat":
        assert sorted(our["asked"]) == sorted(their["asked"]), place
