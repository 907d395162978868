"""The classic protocol of groups: states, static members, limits, timeouts, failures, and a restart.

Whole scripts are compared with Kafka's own classes in tests/conformance/test_classic_groups.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkalog.engine.coordinator.classic_group import (
    DEAD,
    EMPTY,
    VALID_PREVIOUS,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
)
from kafkalog.engine.coordinator.group_coordinator import GroupCoordinator
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.group_records import GroupMember, GroupMetadata
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import KafkaStorageException, SchemaException
from tests.unit.coordinator_kit import NOW_MS
from tests.unit.group_kit import DELAY_MS, REBALANCE_MS, SESSION_MS, GroupKit, filled, subscription

REBALANCING = Errors.REBALANCE_IN_PROGRESS
AT_ONCE = GroupSettings(group_initial_rebalance_delay_ms=0)


@pytest.fixture
def kit() -> GroupKit:
    return GroupKit()


def failing(kit: GroupKit, count: int = 1) -> None:
    left = [None] * count

    def fail(name: str) -> None:
        if left:
            left.pop()
            raise KafkaStorageException("the disk failed")

    kit.log.disk.before_append = fail


# --- joining --------------------------------------------------------------------------------------------------------


def test_a_new_member_gets_an_id(kit: GroupKit) -> None:
    answer = kit.ask_join("g").result(0)
    assert (answer["errorCode"], answer["memberId"][:7]) == (Errors.MEMBER_ID_REQUIRED, "client-")
    assert [each.members for each in kit.metadata("g") if each] == [()]  # the group's first record
    again = kit.ask_join("g", answer["memberId"])
    assert not again.done()
    kit.pass_ms(DELAY_MS)
    joined = again.result(0)
    assert (joined["errorCode"], joined["generationId"], joined["leader"]) == (0, 1, joined["memberId"])
    assert [each["memberId"] for each in joined["members"]] == [joined["memberId"]]


def test_an_old_client_joins_at_once(kit: GroupKit) -> None:
    answer = kit.ask_join("g", version=3)
    kit.pass_ms(DELAY_MS)
    assert answer.result(0)["errorCode"] == 0


def test_an_id_that_is_not_used_expires(kit: GroupKit) -> None:
    member_id = kit.ask_join("g").result(0)["memberId"]
    kit.pass_ms(SESSION_MS)
    assert kit.ask_join("g", member_id).result(0)["errorCode"] == Errors.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"sessionTimeoutMs": 5_999}, Errors.INVALID_SESSION_TIMEOUT),
        ({"sessionTimeoutMs": 1_800_001}, Errors.INVALID_SESSION_TIMEOUT),
        ({"protocols": {}}, Errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocolType": ""}, Errors.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_that_is_refused(kit: GroupKit, fields: dict[str, Any], error: Errors) -> None:
    assert kit.ask_join("g", **fields).result(0)["errorCode"] == error


def test_a_group_without_a_name(kit: GroupKit) -> None:
    assert kit.ask_join("").result(0)["errorCode"] == Errors.INVALID_GROUP_ID
    assert kit.heartbeat("", "m", 1) == Errors.INVALID_GROUP_ID
    assert kit.leave("", ("m", None))["errorCode"] == Errors.INVALID_GROUP_ID


def test_an_unknown_group(kit: GroupKit) -> None:
    assert kit.ask_join("g", "m").result(0)["errorCode"] == Errors.UNKNOWN_MEMBER_ID
    assert kit.heartbeat("g", "m", 1) == Errors.UNKNOWN_MEMBER_ID
    assert kit.leave("g", ("m", None))["members"][0]["errorCode"] == Errors.UNKNOWN_MEMBER_ID
    assert kit.sync("g", {"generationId": 1, "memberId": "m", "protocolType": None, "protocolName": None}).result(0)[
        "errorCode"
    ] == Errors.UNKNOWN_MEMBER_ID  # fmt: skip


def test_members_that_start_together_are_awaited(kit: GroupKit) -> None:
    first = kit.join("g")
    kit.pass_ms(DELAY_MS - 500)
    second = kit.join("g")
    kit.pass_ms(500)
    assert not first.done()  # a new member was added meanwhile
    kit.pass_ms(DELAY_MS)
    assert first.result(0)["generationId"] == second.result(0)["generationId"] == 1
    assert len(first.result(0)["members"]) + len(second.result(0)["members"]) == 2


def test_the_protocol_that_all_members_have_is_selected() -> None:
    kit = GroupKit()
    told = subscription("t")
    first = kit.join("g", protocols={"range": told, "sticky": told})
    second = kit.join("g", protocols={"sticky": told, "other": told})
    assert kit.join("g", protocols={"other": told}).result(0)["errorCode"] == Errors.INCONSISTENT_GROUP_PROTOCOL
    kit.pass_ms(2 * DELAY_MS)
    assert first.result(0)["protocolName"] == second.result(0)["protocolName"] == "sticky"


def test_a_full_group() -> None:
    kit = GroupKit(AT_ONCE._replace(group_max_size=2))
    kit.stable("g")
    kit.join("g")
    kit.join("g")  # the first one has not joined again, and may be gone
    assert kit.join("g").result(0)["errorCode"] == Errors.GROUP_MAX_SIZE_REACHED


def test_a_loaded_group_that_is_too_large() -> None:
    kit = GroupKit()
    kit.stable("g", 3)
    other = kit.restarted(GroupSettings(group_max_size=2))
    assert other.state("g") == "PreparingRebalance"


# --- syncing --------------------------------------------------------------------------------------------------------


def test_the_leader_divides(kit: GroupKit) -> None:
    waiting = [kit.join("g"), kit.join("g")]
    kit.pass_ms(2 * DELAY_MS)
    joined = [each.result(0) for each in waiting]
    leader = next(each for each in joined if each["members"])
    other = next(each for each in joined if not each["members"])
    early = kit.sync("g", other)
    assert not early.done()
    assert kit.state("g") == "CompletingRebalance"
    kit.sync("g", leader, {other["memberId"]: b"all"})
    assert (early.result(0)["assignment"], kit.state("g")) == (b"all", "Stable")
    assert kit.sync("g", leader).result(0)["assignment"] == b""  # nothing was left for it
    [record] = [each for each in kit.metadata("g") if each and each.members]
    assert {each.member_id: each.assignment for each in record.members} == {
        other["memberId"]: b"all", leader["memberId"]: b"",
    }  # fmt: skip


def test_a_sync_that_is_refused(kit: GroupKit) -> None:
    [joined] = kit.stable("g")
    for fields, error in (
        ({"generationId": 2}, Errors.ILLEGAL_GENERATION),
        ({"memberId": "stranger"}, Errors.UNKNOWN_MEMBER_ID),
        ({"groupInstanceId": "stranger"}, Errors.UNKNOWN_MEMBER_ID),
        ({"protocolType": "connect"}, Errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocolName": "sticky"}, Errors.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocolName": None, "protocolType": None}, Errors.NONE),
    ):
        assert kit.sync("g", joined, **fields).result(0)["errorCode"] == error
    kit.join("g")
    assert kit.sync("g", joined).result(0)["errorCode"] == REBALANCING


def test_a_leader_that_does_not_divide_is_removed(kit: GroupKit) -> None:
    joined = kit.join("g")
    kit.pass_ms(DELAY_MS)
    member_id = joined.result(0)["memberId"]
    for _ in range(REBALANCE_MS // 5_000):
        kit.pass_ms(5_000)
        kit.heartbeat("g", member_id, 1)
    assert kit.state("g") == "Empty"
    assert kit.heartbeat("g", member_id, 1) == Errors.UNKNOWN_MEMBER_ID


def test_assignments_that_cannot_be_written(kit: GroupKit) -> None:
    waiting = [kit.join("g"), kit.join("g")]
    kit.pass_ms(2 * DELAY_MS)
    joined = sorted((each.result(0) for each in waiting), key=lambda each: not each["members"])
    early = kit.sync("g", joined[1])
    failing(kit)
    leader = kit.sync("g", joined[0], {})
    assert early.result(0)["errorCode"] == leader.result(0)["errorCode"] == Errors.NOT_COORDINATOR
    assert kit.state("g") == "PreparingRebalance"


def test_a_new_group_that_cannot_be_written(kit: GroupKit) -> None:
    failing(kit)
    answer = kit.ask_join("g", version=3)
    assert answer.result(0)["errorCode"] == Errors.NOT_COORDINATOR
    assert kit.state("g") == "none"


# --- rebalances -----------------------------------------------------------------------------------------------------


def test_a_second_member(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    second = kit.join("g")
    assert kit.heartbeat("g", first["memberId"], 1) == REBALANCING
    assert not second.done()
    again = kit.join("g", first["memberId"])
    assert again.result(0)["generationId"] == second.result(0)["generationId"] == 2
    assert kit.heartbeat("g", first["memberId"], 1) == Errors.ILLEGAL_GENERATION
    assert kit.heartbeat("g", first["memberId"], 2) == 0


def test_a_member_that_does_not_rejoin_is_removed(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    second = kit.join("g")
    for _ in range(REBALANCE_MS // 5_000):
        assert kit.heartbeat("g", first["memberId"], 1) in (REBALANCING, Errors.ILLEGAL_GENERATION)
        kit.pass_ms(5_000)
    assert second.result(0)["leader"] == second.result(0)["memberId"]
    assert kit.heartbeat("g", first["memberId"], 1) == Errors.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    kit.pass_ms(SESSION_MS - 500)
    assert kit.heartbeat("g", first["memberId"], 1) == 0
    kit.pass_ms(SESSION_MS - 500)
    assert kit.state("g") == "Stable"
    kit.pass_ms(500)
    assert kit.state("g") == "Empty"
    last = kit.metadata("g")[-1]
    assert last is not None
    assert (last.generation, last.members, last.protocol_type, last.leader) == (2, (), "consumer", None)


def test_a_commit_is_a_sign_of_life(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    for _ in range(4):
        kit.pass_ms(SESSION_MS - 500)
        assert kit.commit("g", {("t", 0): 1}, memberId=first["memberId"], generationIdOrMemberEpoch=1) == [0]


def test_a_waiting_member_is_alive(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    second = kit.join("g", rebalanceTimeoutMs=REBALANCE_MS)
    kit.pass_ms(SESSION_MS)  # the first one falls silent, and the group goes on without it
    assert second.result(0)["generationId"] == 2
    assert kit.heartbeat("g", first["memberId"], 1) == Errors.UNKNOWN_MEMBER_ID


def test_a_lost_answer_is_given_again(kit: GroupKit) -> None:
    joined = kit.join("g")
    kit.pass_ms(DELAY_MS)
    told = joined.result(0)
    assert kit.join("g", told["memberId"]).result(0) == told
    changed = kit.join("g", told["memberId"], protocols={"range": subscription("t", "u")})
    assert changed.result(0)["generationId"] == 2


def test_a_follower_with_the_same_protocols_changes_nothing(kit: GroupKit) -> None:
    leader, other = kit.stable("g", 2)
    assert kit.join("g", other["memberId"]).result(0)["generationId"] == 1
    assert not kit.join("g", leader["memberId"]).done()  # the leader asks for a rebalance


# --- leaving --------------------------------------------------------------------------------------------------------


def test_leaving(kit: GroupKit) -> None:
    first, second = kit.stable("g", 2)
    answer = kit.leave("g", (second["memberId"], None), ("stranger", None))
    assert [each["errorCode"] for each in answer["members"]] == [0, Errors.UNKNOWN_MEMBER_ID]
    assert kit.state("g") == "PreparingRebalance"
    again = kit.join("g", first["memberId"])
    assert again.result(0)["generationId"] == 2
    kit.sync("g", again.result(0), {})
    kit.leave("g", (first["memberId"], None))
    assert kit.state("g") == "Empty"


def test_an_expected_member_leaves(kit: GroupKit) -> None:
    member_id = kit.ask_join("g").result(0)["memberId"]
    assert kit.leave("g", (member_id, None))["members"][0]["errorCode"] == 0
    assert kit.ask_join("g", member_id).result(0)["errorCode"] == Errors.UNKNOWN_MEMBER_ID


def test_a_leave_that_cannot_be_written(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    failing(kit)
    assert kit.leave("g", (first["memberId"], None))["errorCode"] == Errors.NOT_COORDINATOR


# --- static members -------------------------------------------------------------------------------------------------


def test_a_static_member_comes_back() -> None:
    kit = GroupKit(AT_ONCE)
    [first] = kit.stable("g", groupInstanceId="one")
    back = kit.join("g", groupInstanceId="one").result(0)
    assert (back["errorCode"], back["generationId"], back["memberId"] != first["memberId"]) == (0, 1, True)
    assert (back["skipAssignment"], back["leader"]) == (True, back["memberId"])
    assert kit.heartbeat("g", first["memberId"], 1, groupInstanceId="one") == Errors.FENCED_INSTANCE_ID
    assert kit.heartbeat("g", back["memberId"], 1, groupInstanceId="one") == 0
    assert kit.sync("g", back).result(0)["assignment"] == f"of {first['memberId']}".encode()
    last = kit.metadata("g")[-1]
    assert last is not None
    assert [each.member_id for each in last.members] == [back["memberId"]]


def test_an_old_static_leader_divides_nothing() -> None:
    kit = GroupKit(AT_ONCE)
    [first] = kit.stable("g", groupInstanceId="one")
    back = kit.join("g", groupInstanceId="one", version=8).result(0)
    assert (back["leader"], back["members"], back["skipAssignment"]) == (first["memberId"], [], False)


def test_a_static_member_that_cannot_be_written() -> None:
    kit = GroupKit(AT_ONCE)
    [first] = kit.stable("g", groupInstanceId="one")
    failing(kit)
    back = kit.join("g", groupInstanceId="one").result(0)
    assert (back["errorCode"], back["memberId"]) == (Errors.NOT_COORDINATOR, "")
    assert kit.heartbeat("g", first["memberId"], 1, groupInstanceId="one") == 0


def test_a_static_member_with_other_protocols_rebalances() -> None:
    kit = GroupKit(AT_ONCE)
    kit.stable("g", groupInstanceId="one")
    back = kit.join("g", groupInstanceId="one", protocols={"sticky": subscription("t")})
    assert back.result(0)["errorCode"] == Errors.INCONSISTENT_GROUP_PROTOCOL
    told = subscription("t")
    both = kit.join("g", groupInstanceId="one", protocols={"sticky": told, "range": told})
    assert (both.result(0)["generationId"], both.result(0)["protocolName"]) == (2, "sticky")


def test_a_static_member_is_fenced_while_it_waits() -> None:
    kit = GroupKit(AT_ONCE)
    kit.stable("g")
    waiting = kit.join("g", groupInstanceId="one")
    kit.join("g", groupInstanceId="one")
    assert waiting.result(0)["errorCode"] == Errors.FENCED_INSTANCE_ID


def test_static_members_outlive_a_rebalance() -> None:
    kit = GroupKit(AT_ONCE)
    kit.stable("g", groupInstanceId="one", sessionTimeoutMs=600_000, rebalanceTimeoutMs=5_000)
    second = kit.join("g", sessionTimeoutMs=600_000, rebalanceTimeoutMs=5_000)
    kit.pass_ms(5_000)
    answer = second.result(0)
    assert answer["leader"] == answer["memberId"]  # it takes over
    assert [each["groupInstanceId"] for each in answer["members"] if each["groupInstanceId"]] == ["one"]


def test_nobody_but_static_members_joins() -> None:
    kit = GroupKit(AT_ONCE)
    [first] = kit.stable("g", groupInstanceId="one", sessionTimeoutMs=600_000, rebalanceTimeoutMs=5_000)
    member = kit.join("g", sessionTimeoutMs=600_000, rebalanceTimeoutMs=5_000)
    pending = kit.partition.groups.by_name["g"]
    assert isinstance(pending, ClassicGroup)
    [dynamic] = [each.member_id for each in pending.members.values() if not each.is_static]
    kit.leave("g", (dynamic, None))
    assert member.result(0)["errorCode"] == Errors.UNKNOWN_MEMBER_ID
    kit.pass_ms(6_000)
    assert kit.state("g") == "PreparingRebalance"  # the static member is awaited again
    assert kit.join("g", first["memberId"], groupInstanceId="one").result(0)["errorCode"] == 0


def test_static_members_leave_by_their_id() -> None:
    kit = GroupKit(AT_ONCE)
    kit.stable("g", groupInstanceId="one")
    answer = kit.leave("g", ("", "one"), ("", "two"))
    assert [each["errorCode"] for each in answer["members"]] == [0, Errors.UNKNOWN_MEMBER_ID]
    assert kit.state("g") == "Empty"


# --- a restart ------------------------------------------------------------------------------------------------------


def test_a_stable_group_goes_on(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    other = kit.restarted()
    assert other.heartbeat("g", first["memberId"], 1) == 0
    assert other.sync("g", first).result(0)["assignment"] == f"of {first['memberId']}".encode()
    other.pass_ms(SESSION_MS)
    assert other.state("g") == "Empty"


def test_the_end_of_a_store(kit: GroupKit) -> None:
    kit.stable("g")
    waiting = kit.join("g")
    kit.groups.close()
    kit.groups.close()
    assert waiting.result(0)["errorCode"] == Errors.NOT_COORDINATOR
    assert len(kit.timers) == 0
    assert kit.ask_join("g").result(0)["errorCode"] == Errors.COORDINATOR_NOT_AVAILABLE
    assert kit.heartbeat("g", "m", 1) == Errors.COORDINATOR_NOT_AVAILABLE
    other = kit.restarted()
    assert other.state("g") == "Stable"


def test_members_that_are_removed(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    waiting = kit.join("g")
    assert kit.partition.remove_members("g")
    assert waiting.result(0)["errorCode"] == Errors.UNKNOWN_MEMBER_ID
    assert kit.heartbeat("g", first["memberId"], 1) == Errors.UNKNOWN_MEMBER_ID
    kit.pass_ms(REBALANCE_MS)
    assert kit.state("g") == "Empty"


# --- administration -------------------------------------------------------------------------------------------------


def test_groups_are_described_listed_and_deleted(kit: GroupKit) -> None:
    [first] = kit.stable("g")
    kit.commit("simple", {("t", 0): 1})
    context = kit.context(version=6)
    [found, missing] = kit.groups.describe_groups(context, ["g", "nobody"])
    assert (found["groupState"], found["protocolData"], missing["groupState"]) == ("Stable", "range", "Dead")
    assert found["members"][0]["memberAssignment"] == f"of {first['memberId']}".encode()
    assert missing["errorCode"] == Errors.GROUP_ID_NOT_FOUND
    [old] = kit.groups.describe_groups(kit.context(version=5), ["nobody"])
    assert (old["errorCode"], old["groupState"]) == (0, "Dead")

    def listed(states: list[str], types: list[str]) -> list[str]:
        asked = filled(ApiKeys.LIST_GROUPS, statesFilter=states, typesFilter=types)
        return sorted(each["groupId"] for each in kit.groups.list_groups(context, asked)["groups"])

    assert listed([], []) == ["g", "simple"]
    assert (listed([" STABLE "], []), listed([], ["Consumer"]), listed([], ["classic"])) == (["g"], [], ["g", "simple"])
    results = kit.groups.delete_groups(context, ["g", "simple", "nobody"])
    assert {each["groupId"]: each["errorCode"] for each in results} == {
        "g": Errors.NON_EMPTY_GROUP, "simple": 0, "nobody": Errors.GROUP_ID_NOT_FOUND,
    }  # fmt: skip
    assert (kit.state("simple"), kit.offsets("simple")[-1][1]) == ("none", None)
    assert kit.restarted().state("simple") == "none"


# --- the group alone ------------------------------------------------------------------------------------------------


def test_every_transition() -> None:
    for before in ClassicGroupState:
        for after in ClassicGroupState:
            group = ClassicGroup("g", ManualClock(NOW_MS))
            group.status = before
            if before in VALID_PREVIOUS[after]:
                group.transition_to(after)
                assert (group.status, group.previous_state) == (after, before)
            else:
                with pytest.raises(AssertionError):
                    group.transition_to(after)
    assert VALID_PREVIOUS[EMPTY] == {ClassicGroupState.PREPARING_REBALANCE}
    assert set(VALID_PREVIOUS[DEAD]) == set(ClassicGroupState)


def test_votes() -> None:
    group = ClassicGroup("g", ManualClock(NOW_MS))
    for number, names in enumerate((("a", "b"), ("b", "a"), ("b", "c", "a"))):
        protocols = tuple((name, b"") for name in names)
        group.add(ClassicGroupMember(f"m{number}", None, "c", "/h", 1, 1, "consumer", protocols))
    group.status = ClassicGroupState.STABLE
    assert group.select_protocol() == "b"
    assert group.supports("consumer", ["x", "a"])
    assert not group.supports("consumer", ["c"])
    assert not group.supports("connect", ["a"])


def test_a_record_with_one_static_id_twice() -> None:
    members = tuple(GroupMember(f"m{each}", "i", "c", "/h", 1, 1, b"", b"") for each in range(2))
    with pytest.raises(SchemaException):
        ClassicGroup("g", ManualClock(NOW_MS), GroupMetadata("consumer", 1, "range", "m0", 1, members))


def test_a_partition_that_cannot_be_read(kit: GroupKit) -> None:
    """Its groups have no coordinator; the others are served."""

    def broken(number: int, create: bool) -> Any:
        raise SchemaException("the record at offset 3 cannot be understood")

    groups = GroupCoordinator(broken, 1)
    groups.load()
    asked = filled(ApiKeys.HEARTBEAT, groupId="g", memberId="m", generationId=1)
    assert groups.heartbeat(kit.context(), asked)["errorCode"] == Errors.NOT_COORDINATOR
    [found] = groups.describe_groups(kit.context(), ["g"])
    assert found["errorCode"] == Errors.NOT_COORDINATOR
