"""Classic groups and offsets of the server beside Apache Kafka: the same requests, the same answers and records.

Then a broker's group goes on in kafkalog's server, and the other way round: its member keeps its generation, and only
it may commit. Member ids are compared by their order, and times are not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec.batches import header_at
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.coordinator_records import group_record_set
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.group_records import Subscription, encode_subscription
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.records import records
from tests.broker import clients, kraft
from tests.conftest import need_broker
from tests.wire.client import Client

pytestmark = pytest.mark.broker

# Groups come partition by partition, so both need as many.
PARTITIONS = {"offsets.topic.num.partitions": "50"}
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
TOPIC, GROUP = "orders", "billing"
TOLD = encode_subscription(Subscription([TOPIC]), version=1)
SESSION_MS, REBALANCE_MS = 30_000, 20_000


def join_fields(member_id: str = "", instance: str | None = None) -> dict[str, Any]:
    return {
        "groupId": GROUP,
        "sessionTimeoutMs": SESSION_MS,
        "rebalanceTimeoutMs": REBALANCE_MS,
        "memberId": member_id,
        "groupInstanceId": instance,
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": TOLD}],
    }


def sync_fields(joined: Values, instance: str | None = None) -> dict[str, Any]:
    return {
        "groupId": GROUP,
        "generationId": joined["generationId"],
        "memberId": joined["memberId"],
        "groupInstanceId": instance,
        "protocolType": "consumer",
        "protocolName": "range",
        "assignments": [{"memberId": each["memberId"], "assignment": b"share"} for each in joined["members"]],
    }


def beat(generation: int, member_id: str, instance: str | None = None) -> dict[str, Any]:
    return {"groupId": GROUP, "generationId": generation, "memberId": member_id, "groupInstanceId": instance}


def commit_fields(
    generation: int, member_id: str, offset: int, topic: str = TOPIC, partition: int = 0
) -> dict[str, Any]:
    return {
        "groupId": GROUP,
        "generationIdOrMemberEpoch": generation,
        "memberId": member_id,
        "topics": [
            {
                "name": topic,
                "topicId": ZERO_UUID,
                "partitions": [
                    {
                        "partitionIndex": partition,
                        "committedOffset": offset,
                        "committedLeaderEpoch": -1,
                        "committedMetadata": "",
                    }
                ],
            }
        ],
    }


def fetch_of(topic: Values | None) -> Values:
    topics = None if topic is None else [{"topicId": ZERO_UUID} | topic]
    return {"groupId": GROUP, "memberId": None, "memberEpoch": -1, "topics": topics}


def ready(client: Client) -> None:
    """Waits until the group's coordinator serves."""
    until = time.monotonic() + 30
    while True:
        found = client.ask("FindCoordinator", 4, keyType=0, coordinatorKeys=[GROUP])["coordinators"][0]
        if found["errorCode"] == 0:
            found = client.ask("Heartbeat", 4, **beat(1, "nobody"))
            if found["errorCode"] == Errors.UNKNOWN_MEMBER_ID:
                return
        assert time.monotonic() < until, found
        time.sleep(0.1)


def play(bootstrap: str) -> list[tuple[str, Values]]:
    """One group's life. Returns the answers."""
    one, two = Client(bootstrap), Client(bootstrap)
    ready(one)
    said: list[tuple[str, Values]] = []

    def say(what: str, answer: Values) -> Values:
        said.append((what, answer))
        return answer

    for version in range(10):
        say(f"too short {version}", one.ask("JoinGroup", version, **join_fields() | {"sessionTimeoutMs": 1}))
    for version in range(1, 11):
        fields = commit_fields(-1, "", 3) if version < 10 else commit_fields(-1, "", 3, "")
        if version >= 2:
            say(f"simple {version}", one.ask("OffsetCommit", version, **fields))
    say("unknown member", one.ask("OffsetCommit", 9, **commit_fields(4, "m", 3) | {"groupId": "nobody"}))
    say("unknown generation", one.ask("OffsetCommit", 8, **commit_fields(4, "m", 3) | {"groupId": "nobody"}))
    say("no topic", one.ask("OffsetCommit", 9, **commit_fields(-1, "", 3, "nothing")))
    say("no partition", one.ask("OffsetCommit", 9, **commit_fields(-1, "", 3, TOPIC, 77)))
    say("no group", one.ask("OffsetCommit", 9, **commit_fields(-1, "", 3) | {"groupId": ""}))

    a = say("new", one.ask("JoinGroup", 9, **join_fields()))["memberId"]
    joined = say("a joins", one.ask("JoinGroup", 9, **join_fields(a)))
    say("a early", one.ask("OffsetCommit", 9, **commit_fields(1, a, 5)))
    say("a syncs", one.ask("SyncGroup", 5, **sync_fields(joined)))
    say("a beats", one.ask("Heartbeat", 4, **beat(1, a)))
    say("a beats wrong", one.ask("Heartbeat", 4, **beat(2, a)))
    say("a commits", one.ask("OffsetCommit", 9, **commit_fields(1, a, 5)))
    for version in range(7):
        say(f"described {version}", one.ask("DescribeGroups", version, groups=[GROUP, "nobody"]))
    for version in range(6):
        say(f"listed {version}", one.ask("ListGroups", version))
    say("stranger commits", one.ask("OffsetCommit", 9, **commit_fields(-1, "", 6)))
    say("stranger named", one.ask("OffsetCommit", 9, **commit_fields(1, "m", 6)))
    say("other protocol", one.ask("JoinGroup", 9, **join_fields() | {"protocolType": "connect"}))

    b = say("static", two.ask("Heartbeat", 4, **beat(1, "", "two")))
    two.send("JoinGroup", 9, **join_fields("", "two"))
    time.sleep(0.3)
    say("a must rejoin", one.ask("Heartbeat", 4, **beat(1, a)))
    say("a may commit", one.ask("OffsetCommit", 9, **commit_fields(1, a, 7)))
    joined = say("a rejoins", one.ask("JoinGroup", 9, **join_fields(a)))
    b = say("b joins", two.answer("JoinGroup", 9))
    two.send("SyncGroup", 5, **sync_fields(b, "two"))
    say("a syncs again", one.ask("SyncGroup", 5, **sync_fields(joined)))
    say("b syncs", two.answer("SyncGroup", 5))
    say("described", one.ask("DescribeGroups", 6, groups=[GROUP, "nobody"], includeAuthorizedOperations=True))
    say("listed", one.ask("ListGroups", 5, statesFilter=["stable"], typesFilter=["Classic"]))
    say("not deleted", one.ask("DeleteGroups", 2, groupsNames=[GROUP, "nobody"]))
    topics = [{"name": TOPIC, "partitions": [{"partitionIndex": 0}]}]
    say("offset not deleted", one.ask("OffsetDelete", 0, groupId=GROUP, topics=topics))

    fresh = say("b again", two.ask("JoinGroup", 9, **join_fields("", "two")))
    say("b fenced", two.ask("Heartbeat", 4, **beat(2, b["memberId"], "two")))
    say("b goes on", two.ask("Heartbeat", 4, **beat(2, fresh["memberId"], "two")))
    leaving = [{"memberId": a, "groupInstanceId": None, "reason": "done"}, {"memberId": "x", "groupInstanceId": None}]
    say("a leaves", one.ask("LeaveGroup", 5, groupId=GROUP, members=leaving))
    joined = say("b alone", two.ask("JoinGroup", 9, **join_fields(fresh["memberId"], "two")))
    say("b syncs alone", two.ask("SyncGroup", 5, **sync_fields(joined, "two")))
    for version in range(1, 10):
        if version < 8:
            asked: dict[str, Any] = {"groupId": GROUP, "topics": [{"name": TOPIC, "partitionIndexes": [0, 1]}]}
        else:
            asked = {"groups": [fetch_of({"name": TOPIC, "partitionIndexes": [0, 1]})]}
        say(f"fetched {version}", one.ask("OffsetFetch", version, **asked))
    found = one.ask("Metadata", 12, topics=[{"name": TOPIC, "topicId": ZERO_UUID}])["topics"][0]["topicId"]
    for topic_id in (found, "BBBBBBBBBBBBBBBBBBBBBA"):
        fields = commit_fields(3, fresh["memberId"], 9, "") | {"groupInstanceId": "two"}
        fields["topics"][0]["topicId"] = topic_id
        say("by id", two.ask("OffsetCommit", 10, **fields))
        fetched = fetch_of({"name": "", "topicId": topic_id, "partitionIndexes": [0, 1]})
        say("fetched by id", two.ask("OffsetFetch", 10, groups=[fetched], requireStable=True))
    for version in (9, 10):
        say("all fetched", one.ask("OffsetFetch", version, groups=[fetch_of(None)]))
    say("b leaves", two.ask("LeaveGroup", 3, groupId=GROUP, members=[{"memberId": "", "groupInstanceId": "two"}]))
    say("empty", one.ask("DescribeGroups", 5, groups=[GROUP]))
    say(
        "offset deleted",
        one.ask("OffsetDelete", 0, groupId=GROUP, topics=[{"name": TOPIC, "partitions": [{"partitionIndex": 0}]}]),
    )
    say("old client leaves", one.ask("LeaveGroup", 1, groupId=GROUP, memberId="m"))
    say("deleted", one.ask("DeleteGroups", 2, groupsNames=[GROUP]))
    for each in (one, two):
        each.close()
    return said


class Names:
    """Ids by the order in which they appear."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def of(self, value: Any, field: str = "") -> Any:
        if isinstance(value, dict):
            skipped = ("throttleTimeMs", "currentStateTimestamp", "commitTimestamp", "expireTimestamp")
            return {name: self.of(each, name) for name, each in value.items() if name not in skipped}
        if isinstance(value, list):
            if value and isinstance(value[0], dict) and "groupInstanceId" in value[0]:  # in the order of a hash table
                value = sorted(value, key=lambda each: each["groupInstanceId"] or "")
            if field == "groups":  # partition by partition, in the order of a hash table
                value = sorted(value, key=lambda each: each["groupId"])
            return [self.of(each, field) for each in value]
        is_id = field in ("memberId", "leader") and value not in ("", None, "m", "x")
        is_topic = field == "topicId" and value not in (ZERO_UUID, "BBBBBBBBBBBBBBBBBBBBBA")
        return self._seen.setdefault(value, f"{field} {len(self._seen)}") if is_id or is_topic else value


def rows_of(directory: Path) -> list[Any]:
    """The records of groups in a directory."""
    found: list[Any] = []
    for each in sorted(directory.glob("__consumer_offsets-*")):
        data = (each / f"{0:020}.log").read_bytes()
        for batch in MemoryRecords(data).batches():
            raw = data[batch.position : batch.position + batch.size]
            for record in records(raw, header_at(raw)):
                read = group_record_set().decode(record.key, record.value)
                found.append({"type": read.type, "version": read.version, "key": read.key, "value": read.value})
    return found


@contextmanager
def served(directory: Path, port: int = 0, **options: Any) -> Iterator[tuple[kafkalog.Store, str]]:
    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    with ExitStack() as stack:
        store = stack.enter_context(kafkalog.open(directory, **options))
        if TOPIC not in store.topics():
            store.create_topic(TOPIC, partitions=2)
        server = stack.enter_context(store.serve(f"127.0.0.1:{port}", **settings))
        yield store, server.bootstrap_servers


def test_the_same_requests(tmp_path: Path) -> None:
    need_broker()
    with served(tmp_path / "ours") as (_, bootstrap):
        ours = play(bootstrap)
    with kraft.broker(tmp_path / "theirs", settings=SETTINGS | PARTITIONS) as node:
        node.start()
        clients.create_topics(node.bootstrap, {TOPIC: (2, {})})
        theirs = play(node.bootstrap)
        assert node.stop() == 143
    names, others = Names(), Names()
    for (what, answer), (_, other) in zip(ours, theirs, strict=True):
        assert names.of(answer) == others.of(other), what
    names, others = Names(), Names()
    assert names.of(rows_of(tmp_path / "ours")) == others.of(rows_of(node.log_dir))


def test_a_group_goes_on(tmp_path: Path) -> None:
    """From a broker to the server, and back. The member only reconnects."""
    need_broker()
    with kraft.broker(tmp_path, settings=SETTINGS) as node:
        node.start()
        clients.create_topics(node.bootstrap, {TOPIC: (2, {})})
        with_group = Client(node.bootstrap)
        ready(with_group)
        member = with_group.ask("JoinGroup", 9, **join_fields())["memberId"]
        joined = with_group.ask("JoinGroup", 9, **join_fields(member))
        with_group.ask("SyncGroup", 5, **sync_fields(joined))
        with_group.close()
        assert node.stop() == 143
        with served(node.log_dir, take_over=True) as (_, bootstrap):
            here = Client(bootstrap)
            ready(here)
            assert here.ask("Heartbeat", 4, **beat(1, member))["errorCode"] == 0
            committed = here.ask("OffsetCommit", 9, **commit_fields(1, member, 8))
            assert committed["topics"][0]["partitions"][0]["errorCode"] == 0
            refused = here.ask("OffsetCommit", 9, **commit_fields(-1, "", 9))
            assert refused["topics"][0]["partitions"][0]["errorCode"] == Errors.UNKNOWN_MEMBER_ID
            joined = here.ask("JoinGroup", 9, **join_fields(member))  # the leader asks for a rebalance
            assert joined["generationId"] == 2
            assert here.ask("SyncGroup", 5, **sync_fields(joined))["assignment"] == b"share"
            here.close()
        node.start()
        back = Client(node.bootstrap)
        ready(back)
        assert back.ask("Heartbeat", 4, **beat(2, member))["errorCode"] == 0
        [topic] = back.ask("OffsetFetch", 9, groups=[fetch_of(None)])["groups"][0]["topics"]
        assert topic["partitions"][0]["committedOffset"] == 8
        assert back.ask(
            "LeaveGroup", 5, groupId=GROUP, members=[{"memberId": member, "groupInstanceId": None, "reason": None}]
        )
        back.close()
        assert node.stop() == 143
