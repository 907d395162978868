"""Requests of members of classic groups, and those that list, describe and delete groups of every type.

Each asks whether the client may, hands the request to the coordinator of groups, and puts the answer into the form of
the request's version. JoinGroup and SyncGroup answer later, when the other members have come.

Source: KafkaApis (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kafkalog.engine.coordinator.operation_errors import operation_code
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import KafkalogError
from kafkalog.server.error_answers import error_response
from kafkalog.server.request import LARGE, Pending
from kafkalog.server.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.format.messages import Values
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request

NULLABLE_PROTOCOL_NAME = 7  # the version of JoinGroup from which an answer may have no protocol
NEEDS_PROTOCOL = 5  # the version of SyncGroup from which a request names its protocol
LEAVES_IN_BATCHES = 3  # the version of LeaveGroup from which several members may leave at once


def context_of(request: Request) -> RequestContext:
    """Returns who sent a request, as coordinators see it."""
    return RequestContext(
        request.client_id or "", "/" + request.connection.host, request.api_version, str(request.principal)
    )


def may_read_group(broker: Broker, request: Request, group: str) -> bool:
    """Returns whether the client may be a member of a group."""
    return broker.authorizer.authorize(request, AclOperation.READ, ResourceType.GROUP, group)


def answer_later(future: Future[Values], change: Callable[[Values], Values]) -> Values | Pending:
    """Returns the answer if it is there; otherwise it is sent when it comes."""
    if future.done():
        return change(future.result())
    pending = Pending(is_waiting=True)
    future.add_done_callback(lambda done: pending.complete(change(done.result())))
    return pending


def answered(ask: Callable[[], Values]) -> Values:
    """Returns a coordinator's answer; an error becomes one with its own text."""
    try:
        return ask()
    except KafkalogError as error:
        code = operation_code(error)
        text = error.message if code == code_of(error) != Errors.UNKNOWN_SERVER_ERROR else None
        return {"errorCode": code, "errorMessage": text}


# --- members ---------------------------------------------------------------------------------------------


def handle_join_group(broker: Broker, request: Request) -> Values | Pending | None:
    body = request.body
    if not may_read_group(broker, request, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    if request.api_version == 0:
        body["rebalanceTimeoutMs"] = body["sessionTimeoutMs"]

    def of_version(values: Values) -> Values:
        if not values["protocolName"]:
            values["protocolName"] = None if request.api_version >= NULLABLE_PROTOCOL_NAME else ""
        return values

    return answer_later(broker.groups.join_group(context_of(request), body), of_version)


def handle_sync_group(broker: Broker, request: Request) -> Values | Pending | None:
    body = request.body
    if request.api_version >= NEEDS_PROTOCOL and None in (body["protocolType"], body["protocolName"]):
        return error_response(request, Errors.INCONSISTENT_GROUP_PROTOCOL)
    if not may_read_group(broker, request, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    return answer_later(broker.groups.sync_group(context_of(request), body), lambda values: values)


def handle_heartbeat(broker: Broker, request: Request) -> Values | None:
    if not may_read_group(broker, request, request.body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    return broker.groups.heartbeat(context_of(request), request.body)  # type: ignore[no-any-return]


def handle_leave_group(broker: Broker, request: Request) -> Values | None:
    body = request.body
    if not may_read_group(broker, request, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    if request.api_version >= LEAVES_IN_BATCHES:
        return broker.groups.leave_group(context_of(request), body)  # type: ignore[no-any-return]
    single = {"memberId": body["memberId"], "groupInstanceId": None, "reason": None}
    answer = broker.groups.leave_group(context_of(request), body | {"members": [single]})
    error = answer["errorCode"] or answer["members"][0]["errorCode"]
    return {"throttleTimeMs": 0, "errorCode": error}


# --- administration --------------------------------------------------------------------------------------


def handle_list_groups(broker: Broker, request: Request) -> Values:
    authorizer = broker.authorizer
    shows_all = authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, log=False)
    answer: Values = broker.groups.list_groups(context_of(request), request.body)
    if not shows_all:
        names = [each["groupId"] for each in answer["groups"]]
        shown = authorizer.filter_by_authorized(request, AclOperation.DESCRIBE, ResourceType.GROUP, names, log=False)
        answer["groups"] = [each for each in answer["groups"] if each["groupId"] in shown]
    return answer


def handle_describe_groups(broker: Broker, request: Request) -> Values:
    refused, found = described(broker, request, request.body["groups"], broker.groups.describe_groups)
    return {"throttleTimeMs": 0, "groups": refused + found}


def described(
    broker: Broker,
    request: Request,
    names: Iterable[str],
    describe: Callable[[RequestContext, list[str]], list[Values]],
) -> tuple[list[Values], list[Values]]:
    """Returns the groups that the client may not see, as errors, and the others, as `describe` describes them."""
    authorizer = broker.authorizer
    refused: list[Values] = []
    allowed = []
    for name in names:
        if authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.GROUP, name):
            allowed.append(name)
        else:
            refused.append({"groupId": name, "errorCode": int(Errors.GROUP_AUTHORIZATION_FAILED)})
    found = describe(context_of(request), allowed)
    if request.body["includeAuthorizedOperations"]:
        for each in found:
            if each["errorCode"] == Errors.NONE:
                operations = authorizer.authorized_operations(request, ResourceType.GROUP, each["groupId"])
                each["authorizedOperations"] = operations
    return refused, found


def handle_delete_groups(broker: Broker, request: Request) -> Values:
    authorizer = broker.authorizer
    names = list(dict.fromkeys(request.body["groupsNames"]))
    allowed = authorizer.filter_by_authorized(request, AclOperation.DELETE, ResourceType.GROUP, names)
    results = broker.groups.delete_groups(context_of(request), [each for each in names if each in allowed])
    error = int(Errors.GROUP_AUTHORIZATION_FAILED)
    results += [{"groupId": each, "errorCode": error} for each in names if each not in allowed]
    return {"throttleTimeMs": 0, "results": results}


HANDLERS: dict[int, Handler] = {
    ApiKeys.JOIN_GROUP: handle_join_group,
    ApiKeys.SYNC_GROUP: handle_sync_group,
    ApiKeys.HEARTBEAT: handle_heartbeat,
    ApiKeys.LEAVE_GROUP: handle_leave_group,
    ApiKeys.LIST_GROUPS: handle_list_groups,
    ApiKeys.DESCRIBE_GROUPS: handle_describe_groups,
    ApiKeys.DELETE_GROUPS: handle_delete_groups,
}
BLOCKING: set[int] = {ApiKeys.LIST_GROUPS, ApiKeys.DELETE_GROUPS}
BLOCKING_IF = {
    ApiKeys.DESCRIBE_GROUPS: LARGE,
}
