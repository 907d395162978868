"""Requests for offsets: who may commit, what is answered, transactions, deletions, and what expires.

Whole scripts are compared with Kafka's own classes in tests/conformance/test_classic_groups.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.offset_table import ByPartition
from kafkalog.engine.coordinator.state_log import TransactionMarker
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.group_records import GroupKey, GroupMetadata, encode_group_metadata
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import KafkaStorageException
from tests.unit.coordinator_kit import ABORT, COMMIT
from tests.unit.group_kit import GroupKit, Topics, filled

A, B = ("t", 0), ("t", 1)
WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.fixture
def kit() -> GroupKit:
    return GroupKit(topics=Topics(t=2))


def commit_in_transaction(kit: GroupKit, group: str, offset: int, version: int = 5, **fields: Any) -> int:
    partition = {"partitionIndex": 0, "committedOffset": offset, "committedLeaderEpoch": -1, "committedMetadata": None}
    request = filled(
        ApiKeys.TXN_OFFSET_COMMIT,
        groupId=group,
        transactionalId="x",
        producerId=7,
        producerEpoch=0,
        topics=[{"name": "t", "topicId": "A" * 22, "partitions": [partition]}],
        **fields,
    )
    answer = kit.groups.commit_transactional_offsets(kit.context(version=version), request)
    return int(answer["topics"][0]["partitions"][0]["errorCode"])


def end(kit: GroupKit, kind: ControlRecordType) -> None:
    kit.partition.end_transaction(TransactionMarker(7, 0, kind, 0, 0))


# --- commits --------------------------------------------------------------------------------------------------------


def test_a_commit_makes_a_simple_group(kit: GroupKit) -> None:
    assert kit.commit("g", {A: 5, B: 6}) == [0, 0]
    assert kit.fetch("g", [A, B, ("t", 2)]) == {A: (5, 0), B: (6, 0), ("t", 2): (-1, 0)}
    assert kit.fetch("g", None) == {A: (5, 0), B: (6, 0)}
    assert kit.fetch("nobody", [A]) == {A: (-1, 0)}
    assert kit.state("g") == "Empty"


def test_members_of_groups_that_do_not_exist(kit: GroupKit) -> None:
    assert kit.commit("g", {A: 5}, generationIdOrMemberEpoch=1, memberId="m") == [Errors.GROUP_ID_NOT_FOUND]
    assert kit.commit("g", {A: 5}, version=8, generationIdOrMemberEpoch=1) == [Errors.ILLEGAL_GENERATION]
    assert kit.groups.commit_offsets(kit.context(), filled(ApiKeys.OFFSET_COMMIT, groupId=None))["topics"] == []


def test_only_members_commit(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    member = {"memberId": first["memberId"], "generationIdOrMemberEpoch": 1}
    for fields, error in (
        (member, Errors.NONE),
        (member | {"generationIdOrMemberEpoch": 2}, Errors.ILLEGAL_GENERATION),
        (member | {"memberId": "stranger"}, Errors.UNKNOWN_MEMBER_ID),
        (member | {"groupInstanceId": "stranger"}, Errors.UNKNOWN_MEMBER_ID),
        ({}, Errors.UNKNOWN_MEMBER_ID),
    ):
        assert kit.commit("g", {A: 5}, **fields) == [error]
    again = kit.join("g", first["memberId"]).result(0)  # the next generation is not divided yet
    now = {"memberId": again["memberId"], "generationIdOrMemberEpoch": 2}
    assert kit.commit("g", {A: 6}, **now) == [Errors.REBALANCE_IN_PROGRESS]


def test_a_static_member_that_is_fenced() -> None:
    kit = GroupKit(GroupSettings(group_initial_rebalance_delay_ms=0))
    [first] = kit.stable("g", groupInstanceId="one")
    kit.join("g", groupInstanceId="one")
    told = {"memberId": first["memberId"], "generationIdOrMemberEpoch": 1, "groupInstanceId": "one"}
    assert kit.commit("g", {A: 5}, **told) == [Errors.FENCED_INSTANCE_ID]


def test_anybody_commits_into_an_empty_group(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    kit.leave("g", (first["memberId"], None))
    assert kit.commit("g", {A: 5}) == [0]
    assert kit.commit("g", {A: 5}, memberId="m", generationIdOrMemberEpoch=1) == [Errors.UNKNOWN_MEMBER_ID]


def test_metadata_that_is_too_long(kit: GroupKit) -> None:
    assert kit.commit("g", {A: 5}, metadata="m" * 4097) == [Errors.OFFSET_METADATA_TOO_LARGE]
    assert kit.commit("g", {A: 5}, metadata="\U0001f600" * 2049) == [Errors.OFFSET_METADATA_TOO_LARGE]
    assert kit.commit("g", {A: 5}, metadata="m" * 4096) == [0]


def test_a_commit_that_cannot_be_written(kit: GroupKit) -> None:
    def fail(name: str) -> None:
        raise KafkaStorageException("the disk failed")

    kit.groups.load([0])
    kit.log.disk.before_append = fail
    assert kit.commit("g", {A: 5}) == [Errors.NOT_COORDINATOR]
    assert (kit.state("g"), kit.fetch("g", None)) == ("none", {})


def test_topic_ids(kit: GroupKit) -> None:
    kit.commit("g", {A: 5})
    ours, other = kit.topics.topic_id("t"), "B" * 22
    for topic_id, offset in ((ours, 5), (other, -1), ("A" * 22, 5)):
        topic = {"name": "t", "topicId": topic_id, "partitionIndexes": [0]}
        told = {"groupId": "g", "memberId": None, "memberEpoch": -1, "topics": [topic]}
        found = kit.groups.fetch_offsets(kit.context(version=10), told, require_stable=False)
        assert found["topics"][0]["partitions"][0]["committedOffset"] == offset


def test_old_answers_have_an_error_in_each_partition(kit: GroupKit) -> None:
    kit.groups.close()
    told = {
        "groupId": "g", "memberId": None, "memberEpoch": -1,
        "topics": [{"name": "t", "topicId": "A" * 22, "partitionIndexes": [0]}],
    }  # fmt: skip
    old = kit.groups.fetch_offsets(kit.context(version=1), told, require_stable=False)
    assert old["topics"][0]["partitions"][0]["errorCode"] == Errors.COORDINATOR_NOT_AVAILABLE
    new = kit.groups.fetch_offsets(kit.context(version=2), told, require_stable=False)
    assert (new["topics"], new["errorCode"]) == ([], Errors.COORDINATOR_NOT_AVAILABLE)


# --- transactions ---------------------------------------------------------------------------------------------------


def test_a_transaction(kit: GroupKit) -> None:
    kit.commit("g", {A: 1})
    assert commit_in_transaction(kit, "g", 9) == 0
    assert kit.fetch("g", [A], require_stable=True) == {A: (-1, Errors.UNSTABLE_OFFSET_COMMIT)}
    assert kit.fetch("g", None, require_stable=True) == {A: (-1, Errors.UNSTABLE_OFFSET_COMMIT)}
    assert kit.fetch("g", [A]) == {A: (1, 0)}
    end(kit, ABORT)
    assert kit.fetch("g", [A], require_stable=True) == {A: (1, 0)}
    commit_in_transaction(kit, "g", 9)
    end(kit, COMMIT)
    assert kit.fetch("g", None, require_stable=True) == {A: (9, 0)}
    assert kit.restarted().fetch("g", None) == {A: (9, 0)}


def test_who_commits_in_a_transaction(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    member = {"memberId": first["memberId"], "generationIdOrMemberEpoch": 1}
    for fields, error in (
        (member, Errors.NONE),
        (member | {"generationIdOrMemberEpoch": 2}, Errors.ILLEGAL_GENERATION),
        (member | {"memberId": "stranger"}, Errors.UNKNOWN_MEMBER_ID),
        ({}, Errors.NONE),  # a producer that knows no groups
    ):
        assert commit_in_transaction(kit, "g", 1, **fields) == error
    assert commit_in_transaction(kit, "other", 1, generationIdOrMemberEpoch=1) == Errors.ILLEGAL_GENERATION
    assert commit_in_transaction(kit, "", 1) == Errors.INVALID_GROUP_ID


# --- deletions and expiry -------------------------------------------------------------------------------------------


def deleted(kit: GroupKit, group: str, *topics: str) -> tuple[int, list[int]]:
    asked = [{"name": each, "partitions": [{"partitionIndex": 0}, {"partitionIndex": 1}]} for each in topics]
    answer = kit.groups.delete_offsets(kit.context(), filled(ApiKeys.OFFSET_DELETE, groupId=group, topics=asked))
    return answer["errorCode"], [each["errorCode"] for topic in answer["topics"] for each in topic["partitions"]]


def test_offsets_are_deleted(kit: GroupKit) -> None:
    kit.commit("g", {A: 1, ("u", 0): 2})
    assert deleted(kit, "g", "t") == (0, [0, 0])
    assert kit.fetch("g", None) == {("u", 0): (2, 0)}
    assert [each for each in kit.offsets("g") if each[1] is None] == [(("g", "t", 0), None)]
    assert deleted(kit, "nobody", "t") == (Errors.GROUP_ID_NOT_FOUND, [])
    assert deleted(kit, "", "t") == (Errors.INVALID_GROUP_ID, [])


def test_offsets_of_topics_that_are_read(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    kit.commit("g", {A: 1, ("u", 0): 2}, memberId=first["memberId"], generationIdOrMemberEpoch=1)
    assert deleted(kit, "g", "t", "u") == (0, [Errors.GROUP_SUBSCRIBED_TO_TOPIC] * 2 + [0, 0])
    assert set(kit.fetch("g", None)) == {A}


def test_offsets_of_a_group_with_another_protocol(kit: GroupKit) -> None:
    kit.stable("g", protocolType="connect", protocols={"compatible": b"x"})
    assert deleted(kit, "g", "t") == (Errors.NON_EMPTY_GROUP, [])


def test_what_expires(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    kit.commit("g", {A: 1, ("u", 0): 2}, memberId=first["memberId"], generationIdOrMemberEpoch=1)
    kit.commit("simple", {A: 1})
    kit.commit("short", {A: 1}, version=2, retentionTimeMs=60_000)
    for _ in range(2):
        kit.pass_ms(600_000, step_ms=5_000)
        kit.heartbeat("g", first["memberId"], 1)
        assert (kit.state("short"), kit.state("simple")) == ("none", "Empty")
    kit.pass_ms(WEEK_MS, step_ms=600_000)
    assert [kit.state(each) for each in ("g", "simple")] == ["none", "none"]  # g was empty for a week, too


def test_cursors_of_a_store_do_not_expire() -> None:
    kit = GroupKit(GroupSettings(simple_offsets_expire=False))
    kit.commit("cursor", {A: 1})
    kit.commit("short", {A: 1}, version=2, retentionTimeMs=60_000)
    kit.stable("g")
    kit.pass_ms(2 * WEEK_MS, step_ms=600_000)
    assert [kit.state(each) for each in ("cursor", "short", "g")] == ["Empty", "none", "none"]


def test_a_group_that_was_empty_for_long(kit: GroupKit) -> None:
    """The time since the group is empty counts, not that of the commit."""
    with kit.partition.entered():
        kit.partition.write([encode_group_metadata(GroupKey("g"), GroupMetadata("consumer", 3, None, None, 1))])
    kit.commit("g", {A: 1})
    kit.partition.expire()
    assert kit.state("g") == "none"


def test_the_order_of_partitions_is_kafkas() -> None:
    rows: ByPartition[int] = ByPartition()
    for number in (2, 0, 1):
        rows[TopicPartition("t", number)] = number
    rows.drop(TopicPartition("t", 1))
    rows.drop(TopicPartition("t", 9))
    assert rows.in_order() == [TopicPartition("t", 0), TopicPartition("t", 2)]
    assert dict(rows) == {TopicPartition("t", 2): 2, TopicPartition("t", 0): 0}
