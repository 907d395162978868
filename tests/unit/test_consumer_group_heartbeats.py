"""ConsumerGroupHeartbeat, rule by rule: joining, reconciling, leaving, epochs, static members, timeouts, settings."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Collection
from typing import Any

import pytest

from kafkalog.engine.coordinator.consumer_group import ConsumerGroup
from kafkalog.engine.coordinator.consumer_member import MemberState
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.groups import CommittingMember
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.topic_regex import compile_regex
from kafkalog.errors import (
    FencedInstanceIdException,
    FencedMemberEpochException,
    GroupIdNotFoundException,
    GroupMaxSizeReachedException,
    GroupNotEmptyException,
    IllegalGenerationException,
    InvalidRegularExpression,
    InvalidRequestException,
    StaleMemberEpochException,
    UnknownMemberIdException,
    UnreleasedInstanceIdException,
    UnsupportedAssignorException,
    UnsupportedVersionException,
)
from tests.unit.consumer_kit import GROUP, Kit, Topics

AT_ONCE = GroupSettings(group_consumer_assignment_interval_ms=0)
SECOND = 1000


def test_the_first_member_gets_everything() -> None:
    kit = Kit()
    answer = kit.heartbeat("a")
    assert answer["memberEpoch"] == 2  # a group begins at 1, and the first member raises it
    assert kit.has(answer) == {"orders": [0, 1, 2, 3]}
    assert answer["heartbeatIntervalMs"] == 5 * SECOND
    assert kit.group.state == "Stable"
    assert [each.type for each in kit.records()] == [5, 3, 7, 6, 8]


def test_a_heartbeat_without_news_writes_nothing() -> None:
    kit = Kit()
    kit.heartbeat("a")
    end = kit.log.end
    answer = kit.heartbeat("a", 2)
    assert kit.log.end == end
    assert answer["memberEpoch"] == 2
    assert kit.has(answer) is None


def test_a_full_heartbeat_shows_the_assignment() -> None:
    kit = Kit()
    kit.heartbeat("a")
    answer = kit.heartbeat("a", 2, topics=["orders"], rebalanceTimeoutMs=5_000, owned={"orders": range(4)})
    assert kit.has(answer) == {"orders": [0, 1, 2, 3]}


def two_members(settings: GroupSettings = AT_ONCE) -> Kit:
    """Member a has everything, and b has joined and waits."""
    kit = Kit(settings=settings)
    kit.heartbeat("a")
    assert kit.has(kit.heartbeat("b")) == {}
    assert kit.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    return kit


def test_a_partition_moves_when_its_owner_has_given_it_up() -> None:
    kit = two_members()
    answer = kit.heartbeat("a", 2)
    assert kit.has(answer) == {"orders": [0, 1]}
    assert answer["memberEpoch"] == 2  # it stays in its epoch until it has given up
    assert kit.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert kit.has(kit.heartbeat("b", 3)) is None

    answer = kit.heartbeat("a", 2, owned={"orders": [0, 1]})
    assert answer["memberEpoch"] == 3
    assert kit.has(kit.heartbeat("b", 3)) == {"orders": [2, 3]}
    assert kit.group.state == "Stable"


def test_a_member_that_does_not_give_up_is_removed_after_its_rebalance_timeout() -> None:
    kit = two_members()
    kit.heartbeat("a", 2)
    kit.wait(5 * SECOND)
    assert list(kit.group.members) == ["b"]
    assert kit.has(kit.heartbeat("b", 3)) == {"orders": [0, 1, 2, 3]}
    with pytest.raises(UnknownMemberIdException):
        kit.heartbeat("a", 2)


def test_giving_up_in_time_cancels_the_rebalance_timeout() -> None:
    kit = two_members()
    kit.heartbeat("a", 2)
    kit.heartbeat("a", 2, owned={"orders": [0, 1]})
    kit.wait(6 * SECOND)
    assert set(kit.group.members) == {"a", "b"}


def test_a_silent_member_is_removed_after_its_session() -> None:
    kit = Kit()
    kit.heartbeat("a")
    kit.wait(44 * SECOND)
    kit.heartbeat("a", 2)
    kit.wait(44 * SECOND)
    assert list(kit.group.members) == ["a"]
    kit.wait(1 * SECOND)
    assert not kit.group.members
    assert kit.group.state == "Empty"


def test_sessions_begin_anew_when_the_log_is_loaded() -> None:
    kit = two_members()
    kit.heartbeat("a", 2)  # it must give up partitions
    kit.open()
    assert kit.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    kit.wait(5 * SECOND)
    assert list(kit.group.members) == ["b"]
    kit.wait(40 * SECOND)
    assert not kit.group.members


def test_the_last_member_that_leaves_empties_the_group() -> None:
    kit = Kit()
    kit.heartbeat("a")
    start = kit.log.end
    answer = kit.heartbeat("a", -1)
    assert (answer["memberEpoch"], answer["heartbeatIntervalMs"]) == (-1, 0)
    assert [(each.type, each.value is None) for each in kit.records(start)] == [
        (8, True),
        (7, True),
        (5, True),
        (3, False),
        (6, False),
    ]
    assert kit.group.state == "Empty"
    kit.wait(60 * SECOND)  # no timer is left
    assert kit.log.end == start + 5


def test_a_new_topic_and_new_partitions_are_noticed() -> None:
    kit = Kit(settings=AT_ONCE)
    assert kit.has(kit.heartbeat("a", topics=["orders", "mail"])) == {"orders": [0, 1, 2, 3]}
    kit.topics.create("mail", 2)
    assert kit.has(kit.heartbeat("a", 2)) == {"orders": [0, 1, 2, 3], "mail": [0, 1]}
    kit.topics.create("orders", 5, kit.topics.topic_id("orders"))
    assert kit.has(kit.heartbeat("a", 3)) == {"orders": [0, 1, 2, 3, 4], "mail": [0, 1]}
    kit.topics.delete("mail")
    kit.heartbeat("a", 4)
    answer = kit.heartbeat("a", 4, owned={"orders": range(5)})
    assert (answer["memberEpoch"], kit.has(answer)) == (5, None)


def test_a_changed_subscription_takes_partitions_at_once() -> None:
    kit = Kit(Topics(orders=2, mail=2), AT_ONCE)
    kit.heartbeat("a", topics=["orders", "mail"])
    assert kit.has(kit.heartbeat("a", 2, topics=["mail"])) == {"mail": [0, 1]}
    assert kit.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS


def test_targets_are_computed_at_most_once_in_an_interval() -> None:
    kit = Kit()
    kit.heartbeat("a")
    kit.heartbeat("b")
    assert (kit.group.group_epoch, kit.group.assignment_epoch) == (3, 2)
    kit.wait(999)
    kit.heartbeat("b", 2)
    assert kit.group.assignment_epoch == 2
    kit.wait(1)
    kit.heartbeat("b", 2)
    assert kit.group.assignment_epoch == 3


# --- epochs -----------------------------------------------------------------------------------------------------------


def test_epochs_are_fenced() -> None:
    kit = Kit(settings=AT_ONCE)
    kit.heartbeat("a")
    with pytest.raises(FencedMemberEpochException, match="greater member epoch"):
        kit.heartbeat("a", 3)
    with pytest.raises(FencedMemberEpochException, match="smaller member epoch"):
        kit.heartbeat("a", 1)
    with pytest.raises(UnknownMemberIdException):
        kit.heartbeat("b", 1)
    with pytest.raises(GroupIdNotFoundException):
        kit.heartbeat("a", 1, group="unknown")


def test_a_heartbeat_whose_answer_was_lost_may_be_repeated() -> None:
    kit = Kit(Topics(orders=1), AT_ONCE)
    kit.heartbeat("a")
    kit.topics.create("orders", 2, kit.topics.topic_id("orders"))
    kit.heartbeat("a", 2)  # the answer, with epoch 3, is lost
    answer = kit.heartbeat("a", 2, owned={"orders": [0]}, topics=["orders"], rebalanceTimeoutMs=5_000)
    assert (answer["memberEpoch"], kit.has(answer)) == (3, {"orders": [0, 1]})
    with pytest.raises(FencedMemberEpochException):
        kit.heartbeat("a", 2, owned={"orders": [7]})


def test_a_member_may_join_again_with_its_id() -> None:
    kit = Kit()
    kit.heartbeat("a")
    answer = kit.heartbeat("a", 0)
    assert (answer["memberEpoch"], kit.has(answer)) == (2, {"orders": [0, 1, 2, 3]})


def test_a_server_makes_the_id_for_old_clients() -> None:
    kit = Kit()
    answer = kit.heartbeat("", version=0)
    assert len(answer["memberId"]) == 22
    with pytest.raises(InvalidRequestException, match="MemberId can't be empty"):
        kit.heartbeat("", version=1)


# --- commits ----------------------------------------------------------------------------------------------------------


def validate(kit: Kit, member: str, epoch: int, partition: int = 0, *, version: int = 9) -> None:
    committing = CommittingMember(member, None, epoch, version)
    check = kit.group.validate_offset_commit(committing, is_transactional=False)
    if check is not None:
        check("orders", kit.topics.topic_id("orders") or "", partition)


def test_commits_of_members() -> None:
    kit = two_members()
    kit.heartbeat("a", 2)
    validate(kit, "a", 2, 3)  # it must give 3 up, and may still commit it
    kit.heartbeat("a", 2, owned={"orders": [0, 1]})
    validate(kit, "a", 3, 0)
    validate(kit, "a", 2, 0)  # an older epoch, but it has had this partition since then
    with pytest.raises(StaleMemberEpochException, match="not assigned"):
        validate(kit, "a", 2, 3)
    kit.heartbeat("b", 3)
    with pytest.raises(StaleMemberEpochException, match="older than assignment epoch"):
        validate(kit, "b", 2, 3)
    with pytest.raises(StaleMemberEpochException, match="newer"):
        validate(kit, "b", 4, 3)
    with pytest.raises(UnknownMemberIdException):
        validate(kit, "c", 3)
    with pytest.raises(UnknownMemberIdException):
        validate(kit, "", -1)
    with pytest.raises(UnsupportedVersionException):
        validate(kit, "a", 3, version=8)


def test_fetches_of_members() -> None:
    kit = Kit()
    kit.heartbeat("a")
    kit.group.validate_offset_fetch(None, -1)
    kit.group.validate_offset_fetch("a", 2)
    with pytest.raises(StaleMemberEpochException):
        kit.group.validate_offset_fetch("a", 1)
    with pytest.raises(UnknownMemberIdException):
        kit.group.validate_offset_fetch("b", 2)


# --- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_its_partitions() -> None:
    kit = Kit(settings=AT_ONCE)
    kit.heartbeat("a", instanceId="i")
    kit.heartbeat("b")
    kit.heartbeat("a", 2, instanceId="i", owned={"orders": [0, 1]})
    kit.heartbeat("b", 3)
    before = kit.has(kit.heartbeat("a", 3, instanceId="i", topics=["orders"], rebalanceTimeoutMs=1, owned={}))
    assert kit.heartbeat("a", -2, instanceId="i")["memberEpoch"] == -2
    epoch = kit.group.group_epoch
    assert kit.has(kit.heartbeat("b", 3)) is None  # nothing moves meanwhile
    answer = kit.heartbeat("a2", instanceId="i")
    assert kit.has(answer) == before
    assert kit.group.group_epoch == epoch
    assert kit.group.static_members == {"i": "a2"}
    with pytest.raises(FencedInstanceIdException):
        kit.heartbeat("a", 3, instanceId="i")


def test_a_static_id_that_is_in_use_is_not_released() -> None:
    kit = Kit()
    kit.heartbeat("a", instanceId="i")
    with pytest.raises(UnreleasedInstanceIdException):
        kit.heartbeat("b", instanceId="i")
    with pytest.raises(UnknownMemberIdException):
        kit.heartbeat("a", 2, instanceId="j")


def test_a_static_member_that_stays_away_is_removed() -> None:
    kit = Kit()
    kit.heartbeat("a", instanceId="i")
    kit.heartbeat("a", -2, instanceId="i")
    kit.wait(45 * SECOND)
    assert not kit.group.members


# --- what a request may say -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"rebalanceTimeoutMs": -1}, InvalidRequestException),
        ({"topicPartitions": None}, InvalidRequestException),
        ({"topicPartitions": [{"topicId": "A" * 22, "partitions": [0]}]}, InvalidRequestException),
        ({"subscribedTopicNames": None}, InvalidRequestException),
        ({"groupId": " "}, InvalidRequestException),
        ({"instanceId": ""}, InvalidRequestException),
        ({"rackId": "\t"}, InvalidRequestException),
        ({"memberEpoch": -3}, InvalidRequestException),
        ({"memberEpoch": -2}, InvalidRequestException),
        ({"serverAssignor": "sticky"}, UnsupportedAssignorException),
        ({"subscribedTopicRegex": "(?=a)"}, InvalidRegularExpression),
        ({"subscribedTopicRegex": "a**"}, InvalidRegularExpression),
    ],
)
def test_refused_requests(told: dict[str, Any], error: type[Exception]) -> None:
    kit = Kit()
    with pytest.raises(error):
        kit.heartbeat("a", **{"subscribedTopicNames": ["orders"], **told})
    assert kit.log.end == 0


def test_a_group_has_a_greatest_size() -> None:
    kit = Kit(settings=GroupSettings(group_consumer_max_size=1))
    kit.heartbeat("a")
    with pytest.raises(GroupMaxSizeReachedException):
        kit.heartbeat("b")
    kit.heartbeat("a", 2)


def test_settings_of_one_group() -> None:
    kit = Kit()
    kit.configs[GROUP] = {
        "consumer.session.timeout.ms": "50000",
        "consumer.heartbeat.interval.ms": "1",  # below the least for all groups
        "consumer.assignment.interval.ms": "0",
    }
    assert kit.heartbeat("a")["heartbeatIntervalMs"] == 5_000
    kit.wait(49 * SECOND)
    assert kit.group.members
    kit.wait(1 * SECOND)
    assert not kit.group.members


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_the_assignor_that_most_members_prefer(assignor: str) -> None:
    kit = Kit(Topics(orders=2, mail=2), AT_ONCE)
    kit.heartbeat("a", topics=["orders", "mail"], serverAssignor=assignor)
    assert kit.groups.shard(GROUP).consumer.describe(GROUP)["assignorName"] == assignor


# --- regular expressions ----------------------------------------------------------------------------------------------


def test_an_expression_is_resolved_behind_the_answer() -> None:
    kit = Kit(Topics(orders=2, mail=2), AT_ONCE)
    assert kit.has(kit.heartbeat("a", subscribedTopicRegex="ord.*")) == {}
    kit.wait(0)
    assert [each.type for each in kit.records()][-2:] == [16, 3]
    assert kit.has(kit.heartbeat("a", 1)) == {"orders": [0, 1]}


def test_new_topics_of_an_expression_are_found() -> None:
    kit = Kit(Topics(orders=1), AT_ONCE)
    kit.heartbeat("a", subscribedTopicRegex="ord.*")
    kit.wait(0)
    kit.heartbeat("a", 1)
    kit.topics.create("orders-eu", 1)
    kit.heartbeat("a", 2)
    kit.wait(11 * SECOND)  # at most every ten seconds
    kit.heartbeat("a", 2)
    kit.wait(0)
    assert kit.has(kit.heartbeat("a", 2)) == {"orders": [0], "orders-eu": [0]}


def test_an_expression_goes_with_its_last_member() -> None:
    kit = Kit(settings=AT_ONCE)
    kit.heartbeat("a", subscribedTopicRegex="ord.*")
    kit.wait(0)
    kit.heartbeat("b", subscribedTopicRegex="ord.*")
    kit.heartbeat("a", -1)
    assert list(kit.group.resolved) == ["ord.*"]
    kit.heartbeat("b", -1)
    assert not kit.group.resolved
    assert not kit.group.subscriptions


def test_topics_that_the_client_may_not_see_are_left_out() -> None:
    kit = Kit(Topics(orders=1, mail=1), AT_ONCE)
    shard = kit.groups.shard(GROUP)
    request = {
        "groupId": GROUP, "memberId": "a", "memberEpoch": 0, "instanceId": None, "rackId": None,
        "rebalanceTimeoutMs": 1000, "subscribedTopicNames": None, "subscribedTopicRegex": ".*", "serverAssignor": None,
        "topicPartitions": [],
    }  # fmt: skip
    context = RequestContext("c", "/h", 1, describable=lambda topics: [each for each in topics if each != "mail"])
    with shard.partition.entered():
        shard.consumer.heartbeat(context, request)
    kit.wait(0)
    assert list(kit.group.resolved[".*"].topics) == ["orders"]


# --- slow expressions -------------------------------------------------------------------------------------------------


def slow_heartbeat(kit: Kit, while_it_runs: Callable[[], object]) -> None:
    """Sends a heartbeat with an expression. While its topics are looked for, `while_it_runs` is called."""

    def describable(topics: Collection[str]) -> Collection[str]:
        while_it_runs()
        return topics

    request = {
        "groupId": GROUP, "memberId": "slow", "memberEpoch": 0, "instanceId": None, "rackId": None,
        "rebalanceTimeoutMs": 1000, "subscribedTopicNames": None, "subscribedTopicRegex": ".*", "serverAssignor": None,
        "topicPartitions": [],
    }  # fmt: skip
    kit.groups.consumer_group_heartbeat(RequestContext(api_version=1, describable=describable), request)


def test_other_members_are_answered_while_topics_are_looked_for() -> None:
    kit = Kit(settings=AT_ONCE)
    answers = []
    slow_heartbeat(kit, lambda: answers.append(kit.heartbeat("b")))
    kit.wait(0)
    assert answers[0]["memberEpoch"] == kit.group.group_epoch - 1  # the topics raise the epoch afterwards
    assert dict(kit.group.resolved)[".*"].topics == {"orders": None}


def test_topics_that_are_found_after_the_end_are_dropped() -> None:
    kit = Kit()
    slow_heartbeat(kit, kit.groups.close)
    end = kit.log.end
    kit.wait(0)
    assert kit.log.end == end


def test_the_memory_of_an_expression_is_bounded() -> None:
    tracemalloc.start()
    try:
        slow = compile_regex("(.?){1000}(.?){1000}(.?){1000}")
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        assert slow.matches("a.b-" * 60)
        assert not slow.matches("a b")
        assert tracemalloc.get_traced_memory()[1] - before < 8 << 20
    finally:
        tracemalloc.stop()


# --- a consumer group and other groups --------------------------------------------------------------------------------


def test_an_empty_group_is_deleted_and_a_full_one_is_not() -> None:
    kit = Kit()
    kit.heartbeat("a")
    with pytest.raises(GroupNotEmptyException):
        kit.groups.shard(GROUP).consumer.delete_group(GROUP)
    kit.heartbeat("a", -1)
    with kit.partition.entered():
        kit.partition.write(kit.groups.shard(GROUP).consumer.delete_group(GROUP))
    assert GROUP not in kit.partition.groups.by_name


def test_the_state_is_the_same_after_a_restart() -> None:
    kit = two_members()
    kit.heartbeat("a", 2)
    kit.heartbeat("c", subscribedTopicRegex="o.*", instanceId="i", serverAssignor="range")
    kit.wait(0)
    before = state_of(kit.group)
    kit.open()
    assert state_of(kit.group) == before


def state_of(group: ConsumerGroup) -> list[object]:
    return [
        group.group_epoch, group.assignment_epoch, group.metadata_hash, dict(group.members), dict(group.target),
        group.owners, group.subscriptions, dict(group.regexes), dict(group.resolved), dict(group.assignors),
        group.subscription_type, group.state, group.static_members,
    ]  # fmt: skip


def test_a_generation_of_the_classic_protocol_is_another_error() -> None:
    kit = Kit()
    kit.heartbeat("a")
    member = kit.group.members["a"]
    kit.group.members["a"] = member._replace(classic={"sessionTimeoutMs": 1, "supportedProtocols": []})
    with pytest.raises(IllegalGenerationException):
        validate(kit, "a", 9)
