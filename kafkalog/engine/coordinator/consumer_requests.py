"""The checks of a heartbeat of a consumer group, and the values of its answers. Knows no state of a manager.

Source: GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid, GroupMetadataManager (4.4.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkalog.engine.coordinator.consumer_group import ConsumerGroup
from kafkalog.engine.coordinator.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
)
from kafkalog.engine.coordinator.current_assignment import Owned
from kafkalog.engine.coordinator.java_order import name_set
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.format.messages import Values
from kafkalog.errors import (
    FencedInstanceIdException,
    FencedMemberEpochException,
    InvalidRequestException,
    UnknownMemberIdException,
    UnsupportedAssignorException,
)

# Java's String.trim removes every character up to a space.
_JAVA_SPACE = "".join(map(chr, range(33)))


def check_heartbeat(request: Values, version: int, supported: Sequence[str]) -> None:
    """Raises InvalidRequestException and UnsupportedAssignorException for a heartbeat that says what it must not."""
    epoch = request["memberEpoch"]
    names = ["groupId", "instanceId", "rackId"]
    if version >= 1 or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH:
        names.insert(0, "memberId")
    for name in names:
        if request[name] is not None and not request[name].strip(_JAVA_SPACE):
            raise InvalidRequestException(f"{name[0].upper()}{name[1:]} can't be empty.")
    if epoch == JOIN_EPOCH:
        if request["rebalanceTimeoutMs"] == -1:
            raise InvalidRequestException("RebalanceTimeoutMs must be provided in first request.")
        if request["topicPartitions"] is None or request["topicPartitions"]:
            raise InvalidRequestException("TopicPartitions must be empty when (re-)joining.")
        if request["subscribedTopicNames"] is None and request["subscribedTopicRegex"] is None:
            raise InvalidRequestException(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == STATIC_LEAVE_EPOCH and request["instanceId"] is None:
        raise InvalidRequestException("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise InvalidRequestException("MemberEpoch is invalid.")
    assignor = request["serverAssignor"]
    if assignor is not None and assignor not in supported:
        raise UnsupportedAssignorException(
            f"ServerAssignor {assignor} is not supported. Supported assignors: {', '.join(supported)}."
        )


def owned_in(topics: Sequence[Values] | None) -> Owned:
    """Returns what a heartbeat says that its member owns."""
    return None if topics is None else [(each["topicId"], each["partitions"]) for each in topics]


def told_by(member: ConsumerGroupMember, context: RequestContext, request: Values) -> ConsumerGroupMember:
    """Returns the member with what its heartbeat says; what the heartbeat leaves out stays."""
    names = request["subscribedTopicNames"]
    timeout_ms = request["rebalanceTimeoutMs"]
    regex = request["subscribedTopicRegex"]
    return member._replace(
        instance_id=member.instance_id if request["instanceId"] is None else request["instanceId"],
        rack_id=member.rack_id if request["rackId"] is None else request["rackId"],
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=member.server_assignor if request["serverAssignor"] is None else request["serverAssignor"],
        subscribed_topic_names=member.subscribed_topic_names if names is None else name_set(names),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        client_id=context.client_id,
        client_host=context.client_host,
        classic=None,
    )


def own_static(
    group: ConsumerGroup, instance_id: str, member_id: str, unknown: str | None = None
) -> ConsumerGroupMember:
    """Returns a static member. Raises UnknownMemberIdException, and FencedInstanceIdException for another's id."""
    found = group.static_member(instance_id)
    if found is None:
        raise UnknownMemberIdException(unknown or f"Instance id {instance_id} is unknown.")
    if found.member_id != member_id:
        raise FencedInstanceIdException(
            f"Static member {member_id} with instance id {instance_id} was fenced by member {found.member_id}."
        )
    return found


def check_epoch(member: ConsumerGroupMember, epoch: int, owned: Owned) -> None:
    """Raises FencedMemberEpochException, unless the epoch is the member's, or its last one after a lost answer."""
    if epoch == member.member_epoch:
        return
    known = f"known by the group coordinator ({member.member_epoch})"
    if epoch > member.member_epoch:
        raise FencedMemberEpochException(
            f"The consumer group member has a greater member epoch ({epoch}) than the one {known}. "
            "The member must abandon all its partitions and rejoin."
        )
    if epoch != member.previous_member_epoch or not _owns_only(owned, member):
        raise FencedMemberEpochException(
            f"The consumer group member has a smaller member epoch ({epoch}) than the one {known}. "
            "The member must abandon all its partitions and rejoin."
        )


def _owns_only(owned: Owned, member: ConsumerGroupMember) -> bool:
    if owned is None:
        return False
    assigned = member.assigned_partitions
    return all(topic_id in assigned and all(p in assigned[topic_id] for p in each) for topic_id, each in owned)


def heartbeat_answer(member: ConsumerGroupMember, interval_ms: int, *, shows: bool) -> Values:
    """Returns the answer to a heartbeat. `shows`: with the assignment."""
    assignment = None
    if shows:
        assignment = {
            "topicPartitions": [
                {"topicId": topic_id, "partitions": list(epochs)}
                for topic_id, epochs in member.assigned_partitions.items()
            ]
        }
    return _heartbeat_answer(member.member_id, member.member_epoch, interval_ms, assignment)


def left_answer(member_id: str, epoch: int) -> Values:
    """Returns the answer to a member that leaves."""
    return _heartbeat_answer(member_id, epoch, 0, None)


def _heartbeat_answer(member_id: str, epoch: int, interval_ms: int, assignment: Values | None) -> Values:
    return {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "errorMessage": None,
        "memberId": member_id,
        "memberEpoch": epoch,
        "heartbeatIntervalMs": interval_ms,
        "assignment": assignment,
    }
