"""Share groups over a log in memory: members, states of partitions, other start offsets, deletion, a reload.

That records and answers are Kafka's is compared in tests/conformance; these tests say what a caller may rely on.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.share_coordinator import ShareCoordinator
from kafkalog.engine.coordinator.share_group import ShareGroup
from kafkalog.engine.coordinator.share_groups import ShareGroups
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import SharePartitionKey
from kafkalog.errors import (
    FencedMemberEpochException,
    GroupIdNotFoundException,
    GroupMaxSizeReachedException,
    GroupNotEmptyException,
    InvalidRequestException,
    KafkaStorageException,
    UnknownMemberIdException,
)
from tests.unit.coordinator_kit import NOW_MS, Disk, MemoryLog
from tests.unit.group_kit import GroupKit, Topics
from tests.unit.test_share_coordinator import ShareLog

SESSION_MS, INTERVAL_MS = 45_000, 1_000


class Kit:
    """Both coordinators. `again` is what another process makes of their logs."""

    def __init__(
        self,
        topics: Topics | None = None,
        *,
        log: MemoryLog | None = None,
        states: dict[int, ShareLog] | None = None,
        clock: ManualClock | None = None,
        group_settings: GroupSettings = GroupSettings(),  # noqa: B008 (it does not change)
    ) -> None:
        self.topics = topics or Topics(outbox=2, other=1)
        self.clock = clock or ManualClock(NOW_MS)
        self.states: dict[int, ShareLog] = {} if states is None else states
        self.ends: dict[str, int] = {"outbox": 10, "other": 5}
        self.disk = Disk()
        self.shares = ShareCoordinator(self._state_log, 5, self.clock, self.topics)
        self.kit = GroupKit(
            group_settings, log=log, clock=self.clock, topics=self.topics,
            share_groups=lambda part: ShareGroups(part, self.shares, self._end),
        )  # fmt: skip
        self.groups = self.kit.groups

    def _state_log(self, number: int, create: bool) -> ShareLog | None:
        if create:
            self.states.setdefault(number, ShareLog(f"__share_group_state-{number}", self.disk))
        return self.states.get(number)

    def _end(self, topic: str, partition: int) -> int:
        return self.ends[topic]

    def again(self) -> Kit:
        found = Kit(self.topics, log=self.kit.log, states=self.states, clock=self.clock)
        found.groups.load()
        return found

    def beat(self, member: str, epoch: int, *topics: str, group: str = "mail") -> Values:
        request = {
            "groupId": group, "memberId": member, "memberEpoch": epoch, "rackId": None,
            "subscribedTopicNames": list(topics) or None,
        }  # fmt: skip
        return self.groups.share_group_heartbeat(self.kit.context(), request)

    def joined(self, member: str, *topics: str) -> int:
        """Joins, and beats until the member has its target. Returns its epoch."""
        epoch: int = self.beat(member, 0, *topics or ("outbox",))["memberEpoch"]
        for _ in range(2):
            self.kit.pass_ms(INTERVAL_MS)
            epoch = self.beat(member, epoch)["memberEpoch"]
        return epoch

    def described(self, group: str = "mail") -> Values:
        (found,) = self.groups.share_group_describe(self.kit.context(), [group])
        return found

    def assigned(self) -> dict[str, dict[str, list[int]]]:
        return {
            each["memberId"]: {
                topic["topicName"]: sorted(topic["partitions"]) for topic in each["assignment"]["topicPartitions"]
            }
            for each in self.described()["members"]
        }

    def offsets(self, group: str = "mail") -> dict[tuple[str, int], tuple[int, int]]:
        request = {"groupId": group, "topics": None}
        answer = self.groups.describe_share_group_offsets(self.kit.context(), request)
        return {
            (topic["topicName"], each["partitionIndex"]): (each["startOffset"], each["lag"])
            for topic in answer["topics"]
            for each in topic["partitions"]
        }

    def alter(self, group: str = "mail", **starts: dict[int, int]) -> Values:
        topics = [
            {
                "topicName": name,
                "partitions": [{"partitionIndex": number, "startOffset": at} for number, at in each.items()],
            }
            for name, each in starts.items()
        ]
        return self.groups.alter_share_group_offsets(self.kit.context(), {"groupId": group, "topics": topics})

    def delete_offsets(self, *topics: str, group: str = "mail") -> Values:
        request = {"groupId": group, "topics": [{"topicName": each} for each in topics]}
        return self.groups.delete_share_group_offsets(self.kit.context(), request)

    def delete(self, group: str = "mail") -> int:
        (found,) = self.groups.delete_groups(self.kit.context(), [group])
        return int(found["errorCode"])

    @property
    def group(self) -> ShareGroup:
        found = self.kit.partition.groups.by_name["mail"]
        assert isinstance(found, ShareGroup)
        return found


def test_a_member_gets_partitions_once_they_have_a_state() -> None:
    kit = Kit()
    first = kit.beat("a", 0, "outbox")
    assert (first["memberEpoch"], first["assignment"]) == (2, {"topicPartitions": []})
    assert kit.offsets() == {("outbox", 0): (-1, -1), ("outbox", 1): (-1, -1)}
    kit.kit.pass_ms(INTERVAL_MS)
    second = kit.beat("a", 2)
    assert second["memberEpoch"] == 3
    (topic,) = second["assignment"]["topicPartitions"]
    assert sorted(topic["partitions"]) == [0, 1]
    assert kit.beat("a", 3)["assignment"] is None
    assert kit.assigned() == kit.again().assigned() == {"a": {"outbox": [0, 1]}}


def test_members_share_partitions() -> None:
    kit = Kit()
    epoch = kit.joined("a")
    for name in ("b", "c"):
        kit.joined(name)
    kit.kit.pass_ms(INTERVAL_MS)
    kit.beat("a", epoch)
    assigned = kit.assigned()
    assert set(assigned) == {"a", "b", "c"}
    assert all(each["outbox"] for each in assigned.values())
    assert {number for each in assigned.values() for number in each["outbox"]} == {0, 1}


def test_a_silent_member_is_removed_and_the_group_stays() -> None:
    kit = Kit()
    kit.joined("a")
    kit.kit.pass_ms(SESSION_MS - 1, step_ms=500)
    assert kit.described()["groupState"] == "Stable"
    kit.kit.pass_ms(1_000)
    assert kit.described()["groupState"] == "Empty"
    assert kit.again().described()["members"] == []
    with pytest.raises(UnknownMemberIdException):
        kit.beat("a", 3)


def test_members_of_a_loaded_group_have_a_session_again() -> None:
    kit = Kit()
    epoch = kit.joined("a")
    again = kit.again()
    again.kit.pass_ms(SESSION_MS - 1_000)
    assert again.beat("a", epoch)["errorCode"] == 0
    again.kit.pass_ms(SESSION_MS - 1_000)
    assert again.described()["members"]
    again.kit.pass_ms(2_000)
    assert not again.described()["members"]


def test_leaving_and_joining_again() -> None:
    kit = Kit()
    kit.joined("a")
    assert kit.beat("a", -1)["memberEpoch"] == -1
    assert kit.described()["groupState"] == "Empty"
    kit.kit.pass_ms(INTERVAL_MS)
    (topic,) = kit.beat("a", 0, "outbox")["assignment"]["topicPartitions"]
    assert sorted(topic["partitions"]) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member": ""}, InvalidRequestException),
        ({"member": "a", "epoch": 0}, InvalidRequestException),
        ({"member": "a", "epoch": -2}, InvalidRequestException),
        ({"member": "a", "epoch": 1, "group": "none"}, GroupIdNotFoundException),
        ({"member": "x", "epoch": 1}, UnknownMemberIdException),
        ({"member": "a", "epoch": 9}, FencedMemberEpochException),
        ({"member": "a", "epoch": 1}, FencedMemberEpochException),
        ({"member": "x", "epoch": -1}, UnknownMemberIdException),
    ],
)
def test_a_heartbeat_is_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    kit = Kit()
    kit.joined("a")
    with pytest.raises(error):
        kit.beat(fields["member"], fields.get("epoch", 3), group=fields.get("group", "mail"))


def test_a_full_group_takes_nobody() -> None:
    kit = Kit(group_settings=GroupSettings(group_share_max_size=1))
    kit.joined("a")
    with pytest.raises(GroupMaxSizeReachedException, match="maximum capacity of 1 members"):
        kit.beat("b", 0, "outbox")


def test_a_failed_append_leaves_no_member_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit()
    kit.joined("a")

    def failing(batch: bytes) -> int:
        raise KafkaStorageException("the disk failed")

    monkeypatch.setattr(kit.kit.log, "append", failing)
    with pytest.raises(KafkaStorageException):
        kit.beat("b", 0, "outbox")
    monkeypatch.undo()
    assert [each["memberId"] for each in kit.described()["members"]] == ["a"]


def test_new_partitions_and_topics_reach_the_members() -> None:
    kit = Kit()
    epoch = kit.joined("a", "outbox", "later")
    kit.topics.partitions_by_name |= {"outbox": 3, "later": 1}
    kit.topics.version += 1
    for _ in range(3):
        kit.kit.pass_ms(INTERVAL_MS)
        epoch = kit.beat("a", epoch)["memberEpoch"]
    assert kit.assigned() == {"a": {"outbox": [0, 1, 2], "later": [0]}}
    assert kit.offsets()["outbox", 2] == (0, 10)  # a new partition of a known topic is read from its beginning
    assert kit.offsets()["later", 0] == (-1, -1)


def test_states_that_cannot_be_made_are_tried_again() -> None:
    kit = Kit()
    known = dict(kit.topics.partitions_by_name)
    kit.shares._topics = Topics()  # the share coordinator does not know the topic yet
    kit.beat("a", 0, "outbox")
    assert kit.offsets() == {}
    kit.shares._topics = kit.topics
    for shard in kit.shares._shards.values():
        shard._topics = kit.topics
    kit.topics.version += 1
    kit.topics.partitions_by_name = known
    epoch = 2
    for _ in range(3):
        kit.kit.pass_ms(INTERVAL_MS)
        epoch = kit.beat("a", epoch)["memberEpoch"]
    assert kit.assigned() == {"a": {"outbox": [0, 1]}}


def test_a_lag_wraps_as_in_java() -> None:
    kit = Kit()
    kit.alter(outbox={0: -(2**63)})
    assert kit.offsets()["outbox", 0] == (-(2**63), 10 - 2**63)


def test_start_offsets_are_altered_and_described() -> None:
    kit = Kit()
    kit.joined("a")
    with pytest.raises(GroupNotEmptyException):
        kit.alter(outbox={0: 4})
    kit.beat("a", -1)
    answer = kit.alter(outbox={0: 4, 7: 1}, nothing={0: 0})
    codes = {
        (topic["topicName"], each["partitionIndex"]): int(each["errorCode"])
        for topic in answer["responses"]
        for each in topic["partitions"]
    }
    assert codes == {("outbox", 0): 0, ("outbox", 7): 3, ("nothing", 0): 3}
    for each in (kit, kit.again()):
        assert each.offsets() == {("outbox", 0): (4, 6), ("outbox", 1): (-1, -1)}
    asked = {"groupId": "mail", "topics": [{"topicName": "nothing", "partitions": [0]}]}
    (topic,) = kit.groups.describe_share_group_offsets(kit.kit.context(), asked)["topics"]
    assert topic["partitions"][0]["startOffset"] == -1


def test_altering_begins_a_group() -> None:
    kit = Kit()
    kit.alter(group="new", outbox={1: 3})
    assert kit.offsets("new") == {("outbox", 1): (3, 7)}
    assert kit.described("new")["groupState"] == "Empty"


def test_offsets_of_a_topic_are_deleted() -> None:
    kit = Kit()
    kit.alter(outbox={0: 4, 1: 2}, other={0: 1})
    assert kit.delete_offsets("nothing")["responses"][0]["errorCode"] == 3
    answer = kit.delete_offsets("outbox")
    assert [(each["topicName"], int(each["errorCode"])) for each in answer["responses"]] == [("outbox", 0)]
    for each in (kit, kit.again()):
        assert each.offsets() == {("other", 0): (1, 4)}
    assert kit.group.state_partitions is not None
    assert not kit.group.state_partitions.deleting
    assert kit.delete_offsets("outbox", group="none")["errorCode"] == 69


def test_a_group_is_deleted_with_its_states() -> None:
    kit = Kit()
    kit.joined("a")
    assert kit.delete() == 68
    kit.beat("a", -1)
    kit.alter(outbox={0: 4})
    assert kit.delete() == 0
    for each in (kit, kit.again()):
        assert each.described()["errorCode"] == 69
    key = SharePartitionKey("mail", str(kit.topics.topic_id("outbox")), 0)
    assert key not in kit.shares.shard(key).states()
    assert kit.delete() == 69


def test_a_deleted_topic_is_forgotten() -> None:
    kit = Kit()
    kit.alter(outbox={0: 4}, other={0: 1})
    kit.groups.on_topics_deleted([str(kit.topics.topic_id("outbox"))])
    for each in (kit, kit.again()):
        assert each.offsets() == {("other", 0): (1, 4)}


def test_other_kinds_of_groups() -> None:
    kit = Kit()
    kit.kit.join("classic")
    with pytest.raises(GroupIdNotFoundException, match="not a share group"):
        kit.beat("a", 0, "outbox", group="classic")
    with pytest.raises(GroupIdNotFoundException):
        kit.alter(group="classic", outbox={0: 1})
    assert kit.alter(group="")["errorCode"] == kit.delete_offsets("outbox", group="")["errorCode"] == 24
    kit.joined("a")
    (listed,) = (each for each in kit.kit.partition.list_groups() if each.group == "mail")
    assert (listed.protocol_type, listed.state, listed.type.value) == ("share", "Stable", "Share")


steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "beat", "beat", "beat", "leave", "time", "topic", "alter", "delete offsets"]),
        st.sampled_from("abc"),
        st.sets(st.sampled_from(["outbox", "other"]), min_size=1),
    ),
    max_size=25,
)


@settings(max_examples=20)
@given(steps)
def test_another_process_knows_the_same(steps: list[tuple[str, str, set[str]]]) -> None:
    kit = Kit()
    epochs: dict[str, int] = {}
    for what, member, topics in steps:
        if what == "join" and member not in epochs:
            epochs[member] = kit.beat(member, 0, *sorted(topics))["memberEpoch"]
        elif what == "beat" and member in epochs:
            epochs[member] = kit.beat(member, epochs[member])["memberEpoch"]
        elif what == "leave" and member in epochs:
            kit.beat(member, -1)
            del epochs[member]
        elif what == "time":
            kit.kit.pass_ms(INTERVAL_MS)
        elif what == "topic":
            kit.topics.partitions_by_name["other"] += 1
            kit.topics.version += 1
        elif what == "alter" and not epochs:
            kit.alter(outbox={0: 3})
        elif what == "delete offsets" and not epochs:
            kit.delete_offsets("other")
    again = kit.again()
    assert again.described() == kit.described()
    assert again.offsets() == kit.offsets()
    if "mail" in kit.kit.partition.groups.by_name:
        ours, theirs = kit.group, again.group
        assert dict(ours.target) == dict(theirs.target)
        assert ours.state_partitions == theirs.state_partitions
        # Every assigned partition has a state, and every member that is up to date has its target.
        for name, each in ours.members.items():
            if each.member_epoch == ours.assignment_epoch:
                assert set(each.assigned_partitions) <= set(ours.target.get(name, {}))
