"""Random scripts of classic groups and of offsets, on Kafka's group coordinator and on ours, step by step.

Members join, sync, fall silent, leave and come back, also static ones, and some with ids or generations that are wrong.
Others commit, read and delete offsets, in transactions too. Records cannot be appended now and then, and both
coordinators are started again from their records. After each step the answers and the records are compared.
"""

from __future__ import annotations

import base64
import random
from concurrent.futures import Future
from typing import Any

import pytest

from kafkalog.engine.coordinator import classic_group
from kafkalog.engine.coordinator.consumer_groups import ConsumerGroups
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import TransactionMarker
from kafkalog.engine.format.coordinator_records import group_record_set
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.group_records import Subscription, encode_subscription
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.requests import api, apis, default_values
from kafkalog.errors import KafkaStorageException
from tests.conformance import messages
from tests.unit.coordinator_kit import ABORT, COMMIT
from tests.unit.group_kit import GroupKit

Answer = dict[str, Any]
TOLD = {"KAFKA_STORAGE_ERROR": "NOT_COORDINATOR"}  # an error of the log, as the service tells it
KEYS = {each.name: each.key for each in apis().values()}


class Both:
    """The same coordinator twice, for classic groups."""

    def __init__(
        self, kafka: messages.Kafka, monkeypatch: pytest.MonkeyPatch, settings: GroupSettings, **config: str
    ) -> None:
        self.kafka = kafka
        self.monkeypatch = monkeypatch
        self.kit = GroupKit(settings, consumer_groups=ConsumerGroups)
        self.open: dict[int, Future[Values]] = {}
        self.seen = 0  # records of ours that were compared
        self.number = 0
        self.fails = False
        self.kit.log.disk.before_append = self._before_append
        self.ask(op="topics", topics={}, version=0)
        self.ask(op="new", config=config)
        self.kit.clock.advance_to(int(self.ask(op="now")["now"]))
        self.kit.groups.load([0])

    def ask(self, **question: Any) -> Answer:
        return self.kafka.ask([question])[0]

    def _before_append(self, name: str) -> None:
        if self.fails:
            self.fails = False
            raise KafkaStorageException("told to fail")

    def fail(self) -> None:
        """The next records cannot be appended."""
        self.ask(op="fail", error="KAFKA_STORAGE_ERROR")
        self.fails = True

    def advance(self, ms: int) -> None:
        theirs = self.ask(op="advance", ms=ms)
        self.kit.clock.advance(ms)
        self.kit.timers.run_due()
        self._compare(theirs, None)

    def restart(self) -> None:
        self.ask(op="restart")
        self.kit = self.kit.restarted()
        self.open.clear()

    def end(self, producer_id: int, *, commit: bool) -> None:
        self.ask(op="end", producer=producer_id, commit=commit)
        fails, self.fails = self.fails, False
        self.kit.partition.end_transaction(TransactionMarker(producer_id, 0, COMMIT if commit else ABORT, 0, 0))
        self.seen, self.fails = self.kit.log.end, fails

    def send(self, name: str, version: int, client: str = "client", **body: Any) -> Answer:
        """Sends a request to both. Returns our answer; empty if it comes later."""
        self.number += 1
        request = default_values(api(KEYS[name]).request) | body
        shown = api(KEYS[name]).request.to_json(request, version)
        theirs = self.ask(op="request", api=name, version=version, client=client, body=shown, id=self.number)
        self._tell_id(theirs, name, request)
        ours = self._ours(name, RequestContext(client, "/127.0.0.1", version), request)
        self._compare(theirs, ours)
        if name in ("JoinGroup", "SyncGroup"):
            return self.done.get(self.number, {})
        return ours

    def _tell_id(self, theirs: Answer, name: str, request: Values) -> None:
        if name != "JoinGroup" or request["memberId"]:
            return
        told = [each["response"]["memberId"] for each in theirs["completed"] if each["id"] == self.number]
        if not any(told) and request["groupInstanceId"] is not None:
            told = [self.ask(op="ids", group=request["groupId"])["ids"].get(request["groupInstanceId"])]
        elif not any(told):
            told = self.ask(op="joining", group=request["groupId"])["ids"]
            told = [each for each in told if each not in self._ids(request["groupId"])]
        if any(told):
            self.monkeypatch.setattr(classic_group.ClassicGroup, "new_member_id", lambda *args: told[0])

    def _ids(self, group: str) -> set[str]:
        found = self.kit.partition.groups.by_name.get(group)
        return set(found.members) if isinstance(found, classic_group.ClassicGroup) else set()

    def _ours(self, name: str, context: RequestContext, request: Values) -> Answer:
        groups = self.kit.groups
        if name in ("JoinGroup", "SyncGroup"):
            call = groups.join_group if name == "JoinGroup" else groups.sync_group
            self.open[self.number] = call(context, request)
            return {}
        if name == "OffsetFetch":
            stable = request["requireStable"]
            return {
                "groups": [groups.fetch_offsets(context, each, require_stable=stable) for each in request["groups"]]
            }
        if name == "DeleteGroups":
            return {"results": groups.delete_groups(context, request["groupsNames"])}
        if name == "DescribeGroups":
            return {"groups": groups.describe_groups(context, request["groups"])}
        calls = {
            "Heartbeat": groups.heartbeat,
            "LeaveGroup": groups.leave_group,
            "OffsetCommit": groups.commit_offsets,
            "TxnOffsetCommit": groups.commit_transactional_offsets,
            "OffsetDelete": groups.delete_offsets,
            "ListGroups": groups.list_groups,
        }
        return calls[name](context, request)

    def _compare(self, theirs: Answer, ours: Answer | None) -> None:
        end = self.kit.log.end
        rows = [
            [bytes(each.key or b"").hex(), None if each.value is None else bytes(each.value).hex()]
            for batch in (self.kit.log.read(self.seen) if end > self.seen else ())
            for each in batch.records
        ]
        self.seen = end
        assert rows == theirs["records"], [_shown(each) for each in (theirs["records"], rows)]
        self.done = {number: each.result(0) for number, each in self.open.items() if each.done()}
        for number in self.done:
            del self.open[number]
        shown = {each["id"]: each["response"] for each in theirs["completed"]}
        if "error" in theirs and self.number in self.done and self.number not in shown:
            code = self.done[self.number]["errorCode"]
            assert Errors(code).name == TOLD.get(theirs["error"], theirs["error"]), (theirs, self.done)
            shown[self.number] = {}
        assert self.done.keys() == shown.keys(), (theirs, self.done)
        for number, values in shown.items():
            _same(self.done[number], values)
        if ours and "error" in theirs:
            assert set(_codes(ours)) == {TOLD.get(theirs["error"], theirs["error"])}, (theirs, ours)
        elif ours:
            _same(ours, theirs["response"])


def _codes(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [Errors(value["errorCode"]).name] if value.get("errorCode") else []
        return found + [code for each in value.values() for code in _codes(each)]
    return [code for each in value for code in _codes(each)] if isinstance(value, list) else []


def _same(ours: Any, theirs: Any, place: str = "") -> None:
    """Theirs leave out what their version lacks."""
    if isinstance(theirs, dict):
        for name, value in theirs.items():
            if name == "throttleTimeMs" or name == "authorizedOperations":
                continue
            _same(ours.get(name, [] if value == [] else "" if value == "" else None), value, f"{place}.{name}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), (place, ours, theirs)
        for each, other in zip(_sorted(ours), _sorted(theirs), strict=True):
            _same(each, other, place)
    else:
        value = base64.b64encode(ours).decode() if isinstance(ours, bytes) else ours
        assert value == theirs, (place, ours, theirs)


def _sorted(values: list[Any]) -> list[Any]:
    keys = ("groupId", "name", "partitionIndex")
    has = next((key for key in keys if values and isinstance(values[0], dict) and key in values[0]), None)
    return values if has is None else sorted(values, key=lambda each: each[has])


def _shown(rows: list[list[str | None]]) -> list[object]:
    return [
        group_record_set().decode(bytes.fromhex(key or ""), None if value is None else bytes.fromhex(value))
        for key, value in rows
    ]


# --- random members ---------------------------------------------------------------------------------------------------


class Member:
    """A member of a random script, with its knowledge."""

    def __init__(self, instance_id: str | None) -> None:
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.joining: int | None = None  # the number of the request that waits
        self.leads: list[str] | None = None
        self.version = 9


class Play:
    """A random script."""

    GROUPS = ("billing", "mail")

    def __init__(self, both: Both, seed: int) -> None:
        self.both = both
        self.random = random.Random(seed)
        self.members = {
            group: [Member(f"i{each}" if each % 3 == 2 else None) for each in range(5)] for group in self.GROUPS
        }
        self.open: set[int] = set()  # transactions

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.both.advance(1)  # so that no two timers are of the same time
            self._take_answers()
        self.both.advance(400_000)

    def _take_answers(self) -> None:
        for group in self.GROUPS:
            for member in self.members[group]:
                answer = self.both.done.get(member.joining or -1)
                if answer is not None:
                    self._joined(member, answer)

    def step(self) -> None:
        rng = self.random
        chance = rng.random()
        group = rng.choice(self.GROUPS)
        if chance < 0.10:
            self.both.advance(rng.choice((300, 1_500, 3_100, 7_000, 12_000, 62_000)))
        elif chance < 0.11:
            self.both.restart()
            for each in [one for some in self.members.values() for one in some]:
                each.joining = None
        elif chance < 0.13:
            self.both.fail()
        elif chance < 0.30:
            self.offsets(group)
        elif chance < 0.34:
            self.admin(group)
        else:
            self.member(group, rng.choice(self.members[group]))

    def member(self, group: str, member: Member) -> None:
        chance = self.random.random()
        if member.joining is not None and chance < 0.8:
            return
        if member.generation < 0 or chance < 0.15:
            self.join(group, member)
        elif chance < 0.45:
            self.sync(group, member)
        elif chance < 0.55:
            self.leave(group, member)
        else:
            self.heartbeat(group, member)

    def join(self, group: str, member: Member) -> None:
        rng = self.random
        member.version = rng.choice((1, 3, 4, 5, 7, 9, 9, 9))
        topics = rng.sample(["orders", "mail", "log"], rng.randrange(1, 3))
        told = encode_subscription(Subscription(topics), version=1)
        names = rng.choice((["range"], ["range", "sticky"], ["sticky", "range"], ["range", "sticky"], ["other"]))
        is_odd = rng.random() < 0.03
        answer = self.both.send(
            "JoinGroup",
            member.version,
            f"k{member.instance_id}",
            groupId=group,
            sessionTimeoutMs=rng.choice((6_000, 10_000, 30_000)),
            rebalanceTimeoutMs=rng.choice((5_000, 20_000)),
            memberId="wrong" if is_odd else member.member_id,
            groupInstanceId=member.instance_id if member.version >= 5 else None,
            protocolType="connect" if rng.random() < 0.02 else "consumer",
            protocols=[{"name": name, "metadata": told} for name in names],
        )
        member.joining = self.both.number
        if answer:
            self._joined(member, answer)

    def _joined(self, member: Member, answer: Answer) -> None:
        member.joining = None
        if answer["errorCode"] == Errors.NONE:
            member.member_id, member.generation = answer["memberId"], answer["generationId"]
            member.leads = [each["memberId"] for each in answer["members"]] or None
        elif answer["errorCode"] == Errors.MEMBER_ID_REQUIRED:
            member.member_id = answer["memberId"]
        elif self.random.random() < 0.8:
            member.member_id, member.generation = "", -1

    def sync(self, group: str, member: Member) -> None:
        rng = self.random
        shares = [{"memberId": each, "assignment": each.encode()} for each in member.leads or ()]
        answer = self.both.send(
            "SyncGroup",
            5,
            groupId=group,
            generationId=member.generation + rng.choice((0, 0, 0, 0, 0, 1)),
            memberId=member.member_id,
            groupInstanceId=member.instance_id if member.version >= 5 else None,
            protocolType=rng.choice(("consumer", "consumer", "consumer", None, "connect")),
            protocolName=rng.choice(("range", "range", None, "sticky")),
            assignments=rng.sample(shares, len(shares) - (rng.random() < 0.1) if shares else 0),
        )
        if answer and answer["errorCode"]:
            self._refused(member, answer["errorCode"])

    def _refused(self, member: Member, code: int) -> None:
        if code in (Errors.REBALANCE_IN_PROGRESS, Errors.ILLEGAL_GENERATION):
            member.generation = -1
        elif code in (Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID):
            member.member_id, member.generation = "", -1

    def heartbeat(self, group: str, member: Member) -> None:
        answer = self.both.send(
            "Heartbeat",
            4,
            groupId=group,
            generationId=member.generation,
            memberId=member.member_id,
            groupInstanceId=member.instance_id if self.random.random() < 0.9 else "stranger",
        )
        self._refused(member, answer["errorCode"])

    def leave(self, group: str, member: Member) -> None:
        rng = self.random
        others = [one for one in self.members[group] if one.instance_id] if rng.random() < 0.1 else []
        members = [
            {
                "memberId": "" if one.instance_id and rng.random() < 0.5 else one.member_id,
                "groupInstanceId": one.instance_id if one.version >= 5 else None,
                "reason": None,
            }
            for one in [member, *others]
        ]
        self.both.send("LeaveGroup", 5, groupId=group, members=members)
        if rng.random() < 0.8:
            member.member_id, member.generation = "", -1

    # --- offsets ---

    def offsets(self, group: str) -> None:
        rng = self.random
        chance = rng.random()
        if chance < 0.45:
            self.commit(group)
        elif chance < 0.6:
            self.commit_transaction(group)
        elif chance < 0.7 and self.open:
            producer_id = rng.choice(sorted(self.open))
            self.open.discard(producer_id)
            self.both.end(producer_id, commit=rng.random() < 0.6)
        elif chance < 0.9:
            numbers = {"topicId": ZERO_UUID, "partitionIndexes": [0, 1, 2]}
            read: list[Values] = [{"name": name} | numbers for name in ("orders", "mail")]
            asked: Values = {"groupId": group, "memberId": None, "memberEpoch": -1}
            asked["topics"] = rng.choice((read, None))
            self.both.send("OffsetFetch", 9, groups=[asked], requireStable=rng.random() < 0.5)
        else:
            topics = [{"name": "orders", "partitions": [{"partitionIndex": each} for each in range(2)]}]
            self.both.send("OffsetDelete", 0, groupId=rng.choice((group, "nobody")), topics=topics)

    def _committer(self, group: str) -> dict[str, Any]:
        rng = self.random
        if rng.random() < 0.4:
            return {"groupId": rng.choice((group, "simple"))}
        member = rng.choice(self.members[group])
        return {
            "groupId": group,
            "memberId": member.member_id,
            "generationIdOrMemberEpoch": member.generation + rng.choice((0, 0, 0, 0, 1)),
            "groupInstanceId": member.instance_id if rng.random() < 0.7 else None,
        }

    def _topics(self) -> list[Values]:
        rng = self.random
        return [
            {
                "name": name,
                "topicId": ZERO_UUID,
                "partitions": [
                    {
                        "partitionIndex": rng.randrange(3),
                        "committedOffset": rng.randrange(100),
                        "committedLeaderEpoch": rng.choice((-1, 0)),
                        "committedMetadata": rng.choice(("", None, "m" * 4096, "m" * 4097)),
                    }
                    for _ in range(rng.randrange(1, 3))
                ],
            }
            for name in rng.sample(["orders", "mail"], rng.randrange(1, 3))
        ]

    def commit(self, group: str) -> None:
        version = self.random.choice((2, 4, 5, 7, 8, 9))
        told = self._committer(group)
        if version < 7:
            told.pop("groupInstanceId", None)
        if version <= 4 and self.random.random() < 0.5:
            told["retentionTimeMs"] = 5_000
        topics = self._topics()
        for each in [one for topic in topics for one in topic["partitions"]]:
            if version < 6:
                each["committedLeaderEpoch"] = -1
        self.both.send("OffsetCommit", version, topics=topics, **told)

    def commit_transaction(self, group: str) -> None:
        version = self.random.choice((3, 4, 5))
        producer_id = self.random.randrange(3)
        self.open.add(producer_id)
        told = self._committer(group) | {"transactionalId": f"t{producer_id}", "producerId": producer_id}
        self.both.send("TxnOffsetCommit", version, producerEpoch=0, topics=self._topics(), **told)

    # --- administration ---

    def admin(self, group: str) -> None:
        rng = self.random
        chance = rng.random()
        if chance < 0.4:
            self.both.send("DescribeGroups", rng.choice((5, 6)), groups=[group, "simple", "nobody"])
        elif chance < 0.8:
            states = rng.choice(([], ["Stable"], ["empty", " PreparingRebalance "]))
            types = rng.choice(([], ["classic"], ["Consumer"], ["odd"]))
            self.both.send("ListGroups", 5, statesFilter=states, typesFilter=types)
        else:
            self.both.send("DeleteGroups", 2, groupsNames=rng.sample([group, "simple", "nobody"], 2))
