"""Answers of the classic protocol, and what its requests say, as values by Kafka's field names.

Source: GroupMetadataManager, JoinGroupResponseData, SyncGroupResponseData (4.4.0).
"""

from __future__ import annotations

from concurrent.futures import InvalidStateError

from kafkalog.engine.coordinator.classic_group import (
    DEAD,
    NO_ASSIGNMENT,
    ClassicGroup,
    ClassicGroupMember,
    Protocols,
)
from kafkalog.engine.coordinator.group_managers import Answer
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.messages import Values
from kafkalog.errors import KafkalogError


def complete(answer: Answer, values: Values) -> None:
    """Completes an answer, unless it is completed already: the first answer counts."""
    try:
        if not answer.done():
            answer.set_result(values)
    except InvalidStateError:
        pass


# --- answers ----------------------------------------------------------------------------------------


def join_answer(member_id: str, error: Errors) -> Values:
    """Returns an answer of JoinGroup that has only an error."""
    return {
        "throttleTimeMs": 0,
        "errorCode": int(error),
        "generationId": -1,
        "protocolType": None,
        "protocolName": "",
        "leader": "",
        "skipAssignment": False,
        "memberId": member_id,
        "members": [],
    }


_OWN = object()


def joined(group: ClassicGroup, member_id: str, members: list[Values], *, leader: object = _OWN) -> Values:
    """Returns the answer of JoinGroup for a generation. `leader`: another id than that of the group's leader."""
    return {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "generationId": group.generation,
        "protocolType": group.protocol_type_or_none,
        "protocolName": group.protocol_name,
        "leader": group.leader_id if leader is _OWN else leader,
        "skipAssignment": False,
        "memberId": member_id,
        "members": members,
    }


def sync_answer(error: Errors) -> Values:
    """Returns an answer of SyncGroup that has only an error."""
    return {
        "throttleTimeMs": 0,
        "errorCode": int(error),
        "protocolType": None,
        "protocolName": None,
        "assignment": NO_ASSIGNMENT,
    }


def synced(group: ClassicGroup, member: ClassicGroupMember) -> Values:
    """Returns the answer of SyncGroup for a member of a stable group."""
    return {
        "throttleTimeMs": 0,
        "errorCode": 0,
        "protocolType": group.protocol_type_or_none,
        "protocolName": group.protocol_name,
        "assignment": member.assignment,
    }


def leave_answer(error: Errors, members: list[Values]) -> Values:
    """Returns an answer of LeaveGroup."""
    return {"throttleTimeMs": 0, "errorCode": int(error), "members": members}


def described(member: ClassicGroupMember, protocol: str | None) -> Values:
    """Returns a member of DescribeGroups; without a protocol, without its metadata."""
    return {
        "memberId": member.member_id,
        "groupInstanceId": member.group_instance_id,
        "clientId": member.client_id,
        "clientHost": member.client_host,
        "memberMetadata": b"" if protocol is None else member.metadata(protocol),
        "memberAssignment": member.assignment,
    }


def sync_error(group: ClassicGroup, request: Values) -> Errors:
    """Returns why SyncGroup is refused; NONE if it is not."""
    if group.status is DEAD:
        return Errors.COORDINATOR_NOT_AVAILABLE
    try:
        group.validate_member(request["memberId"], request["groupInstanceId"])
    except KafkalogError as error:
        return code_of(error)
    if request["generationId"] != group.generation:
        return Errors.ILLEGAL_GENERATION
    told = ((request["protocolType"], group.protocol_type_or_none), (request["protocolName"], group.protocol_name))
    if any(None not in (theirs, ours) and theirs != ours for theirs, ours in told):
        return Errors.INCONSISTENT_GROUP_PROTOCOL
    return Errors.NONE


# --- requests ---------------------------------------------------------------------------------------


def protocols_of(request: Values) -> Protocols:
    """Returns the protocols of JoinGroup."""
    return tuple((each["name"], bytes(each["metadata"])) for each in request["protocols"])


def client_reason(request: Values) -> str:
    """Returns why the client joins, for a line of the log."""
    return f"client reason: {request['reason'] or 'not provided'}"
