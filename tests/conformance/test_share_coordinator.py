"""The share coordinator beside Kafka's ShareCoordinatorShard: every record and answer of random lives of states."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from kafkalog.engine.coordinator.group_settings import ShareSettings
from kafkalog.engine.coordinator.share_coordinator_shard import ShareCoordinatorShard
from kafkalog.engine.coordinator.state_batches import combine_state_batches
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import PersisterStateBatch, SharePartitionKey
from tests.conformance import kafka_jars
from tests.conformance.test_share_groups import rendered, without_classes
from tests.unit.coordinator_kit import NOW_MS, Disk
from tests.unit.test_share_coordinator import TOPIC_ID, ShareLog, Topics

MAIN = "org.apache.kafka.coordinator.share.OpenShareCoordinator"
LIVES, STEPS, COMBINATIONS = 60, 80, 3_000
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.fixture(scope="module")
def process(kafka_driver: kafka_jars.Driver) -> Iterator[subprocess.Popen[str]]:
    command = kafka_driver.command(main=MAIN)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def ask(process: subprocess.Popen[str], op: dict[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps(op)}\n")
    process.stdin.flush()
    found = json.loads(process.stdout.readline())
    assert isinstance(found, dict)
    return found


def random_batches(rng: random.Random, near: int) -> list[list[int]]:
    found = []
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        first = near + rng.randrange(12)
        found.append([first, first + rng.choice((0, 0, 1, 5)), rng.choice((0, 2, 4)), rng.randint(1, 3)])
    return found


def random_op(rng: random.Random, near: int) -> dict[str, Any]:
    about = {
        "group": rng.choice(("mail", "mail", "other")),
        "topicId": rng.choice((TOPIC_ID,) * 9 + (OTHER_ID,)),
        "partition": rng.choice((0, 0, 0, 1, 4, -1)),
    }
    epochs = {"stateEpoch": rng.choice((0, 1, 1, 1, 2, -1)), "leaderEpoch": rng.choice((0, 1, 1, 1, 2, -1))}
    start = rng.choice((-1, near, near + 1, near - 2))
    kind = rng.random()
    if kind < 0.12:
        return {"op": "initialize_state", **about, "stateEpoch": epochs["stateEpoch"], "startOffset": start}
    if kind < 0.70:
        count = rng.choice((-1, 0, 3, 9))
        return {
            "op": "write_state", **about, **epochs, "startOffset": start, "deliveryCompleteCount": count,
            "batches": random_batches(rng, near),
        }  # fmt: skip
    if kind < 0.82:
        return {"op": "read_state", **about, "leaderEpoch": epochs["leaderEpoch"]}
    if kind < 0.88:
        return {"op": "read_state_summary", **about, "leaderEpoch": 0}
    if kind < 0.91:
        return {"op": "delete_state", **about}
    if kind < 0.93:
        return {"op": "snapshot"}
    if kind < 0.94:
        return {"op": "topics deleted", "topicId": rng.choice((TOPIC_ID, OTHER_ID))}
    if kind < 0.97:
        return {"op": "time", "ms": rng.choice((1, 1_000, 300_000))}
    return {"op": "redundant"}


class Ours:
    """Our shard, which takes the operations of Kafka's driver."""

    def __init__(self, updates: int) -> None:
        self.log = ShareLog("__share_group_state-0", Disk())
        self.clock = ManualClock(NOW_MS)
        settings = ShareSettings(snapshot_update_records_per_snapshot=updates)
        self.shard = ShareCoordinatorShard(self.log, lambda: self.log, self.clock, Topics(), settings)
        self.read_to = 0

    def reloaded(self) -> ShareCoordinatorShard:
        return ShareCoordinatorShard(self.log, lambda: self.log, self.clock, Topics(), self.shard.settings)

    def run(self, op: dict[str, Any]) -> dict[str, Any]:
        answer: Any = None
        name = op["op"]
        if name == "time":
            self.clock.advance(op["ms"])
        elif name == "snapshot":
            self.shard.snapshot_cold_partitions()
        elif name == "topics deleted":
            self.shard.maybe_cleanup_share_state([op["topicId"]])
        elif name == "redundant":
            return {"answer": self.shard.last_redundant_offset() or -1}
        else:
            key = SharePartitionKey(op["group"], op["topicId"], op["partition"])
            answer = getattr(self.shard, name)(key, {**op, "stateBatches": structs(op.get("batches", []))})
            answer = {"results": [{"topicId": op["topicId"], "partitions": [answer]}]}
        records = []
        for batch in self.log.read(self.read_to):
            for each in batch.records:
                assert each.key is not None
                records.append([each.key.hex(), None if each.value is None else each.value.hex()])
        self.read_to = self.log.end
        return {"answer": rendered(answer), "records": records}


def structs(batches: list[list[int]]) -> list[Values]:
    names = ("firstOffset", "lastOffset", "deliveryState", "deliveryCount")
    return [dict(zip(names, each, strict=True)) for each in batches]


@pytest.mark.jvm
def test_states_live_as_kafkas(process: subprocess.Popen[str]) -> None:
    done = 0
    for seed in range(LIVES):
        rng = random.Random(seed)
        updates = rng.choice((0, 1, 3, 500))
        ours = Ours(updates)
        ask(process, {"op": "shard", "ms": NOW_MS, "updates": updates, "topicId": TOPIC_ID})
        for step in range(STEPS):
            op = random_op(rng, step // 4)
            their, our = ask(process, op), ours.run(op)
            place = f"seed {seed}, step {step}: {op}"
            if op["op"] == "time":
                continue
            if op["op"] == "redundant":
                assert our["answer"] == their["answer"], place
                continue
            if op["op"] in ("snapshot", "topics deleted"):  # keys in any order
                our["records"].sort()
                their["records"].sort()
                our["answer"] = their["answer"] = ""
            assert our["records"] == their["records"], place
            assert our["answer"] == without_classes(their["answer"]), place
            done += bool(our["records"])
        assert ours.reloaded().states() == ours.shard.states()
    assert done > LIVES * 10


@pytest.mark.jvm
def test_batches_combine_as_kafkas(process: subprocess.Popen[str]) -> None:
    rng = random.Random(1)
    for _ in range(COMBINATIONS):
        near = rng.randrange(5)
        so_far, new = random_batches(rng, near), random_batches(rng, near) + random_batches(rng, near + 9)
        start = rng.choice((-1, near + rng.randrange(12)))
        their = ask(process, {"op": "combine", "soFar": so_far, "new": new, "start": start})["answer"]
        old, more = ([PersisterStateBatch(*each) for each in batches] for batches in (so_far, new))
        assert [list(each) for each in combine_state_batches(old, more, start)] == their, (so_far, new, start)
