"""Requests of members of share groups, and those that describe, set and delete the groups' start offsets.

Each asks whether the client may, and hands the request to the coordinator of groups. Source: KafkaApis (4.4.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalog.engine.format.error_codes import Errors, code_of, message_of
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import InvalidRequestException, KafkalogError
from kafkalog.server.error_answers import error_response
from kafkalog.server.handlers.groups import answered, context_of, described, may_read_group
from kafkalog.server.request import LARGE
from kafkalog.server.security.acls import AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.format.messages import Values
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request

MEMBER_ID_LENGTH_MAX = 36
TOPICS_ARE_HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


def handle_share_group_heartbeat(broker: Broker, request: Request) -> Values | None:
    body = request.body
    if not may_read_group(broker, request, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    if not 0 < len(body["memberId"]) <= MEMBER_ID_LENGTH_MAX:
        return error_response(request, InvalidRequestException("Invalid member id in the request."))
    names = set(body["subscribedTopicNames"] or ())
    allowed = broker.authorizer.filter_by_authorized(request, AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    if len(allowed) < len(names):
        return {"errorCode": Errors.TOPIC_AUTHORIZATION_FAILED}
    return answered(lambda: broker.groups.share_group_heartbeat(context_of(request), body))


def handle_share_group_describe(broker: Broker, request: Request) -> Values:
    names = request.body["groupIds"]
    refused, found = described(broker, request, names, broker.groups.share_group_describe)
    groups = refused + found
    if broker.authorizer.is_on:
        groups = _with_visible_topics(broker, request, groups)
    return {"throttleTimeMs": 0, "groups": groups}


def _with_visible_topics(broker: Broker, request: Request, groups: list[Values]) -> list[Values]:
    """Replaces groups whose members have topics that the client may not see by an error."""
    names = {each: _assigned(group) for each, group in enumerate(groups)}
    every = set().union(*names.values())
    visible = broker.authorizer.filter_by_authorized(request, AclOperation.DESCRIBE, ResourceType.TOPIC, every)
    hidden = {"errorCode": Errors.TOPIC_AUTHORIZATION_FAILED, "errorMessage": TOPICS_ARE_HIDDEN, "members": []}
    return [
        group if names[number] <= visible else {"groupId": group["groupId"], **hidden}
        for number, group in enumerate(groups)
    ]


def _assigned(group: Values) -> set[str]:
    members = group.get("members", ())
    return {topic["topicName"] for member in members for topic in member["assignment"]["topicPartitions"]}


def handle_describe_share_group_offsets(broker: Broker, request: Request) -> Values:
    groups = []
    for group in request.body["groups"]:
        name: str = group["groupId"]
        if not broker.authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.GROUP, name):
            groups.append({"groupId": name, "errorCode": Errors.GROUP_AUTHORIZATION_FAILED})
        elif group["topics"] == []:
            groups.append({"groupId": name})
        else:
            try:
                groups.append(_described_offsets(broker, request, group))
            except KafkalogError as error:
                code = code_of(error)
                groups.append({"groupId": name, "errorCode": code, "errorMessage": message_of(code)})
    return {"throttleTimeMs": 0, "groups": groups}


def _described_offsets(broker: Broker, request: Request, group: Values) -> Values:
    def visible(topics: list[Values]) -> set[str]:
        names = [each["topicName"] for each in topics]
        return broker.authorizer.filter_by_authorized(request, AclOperation.DESCRIBE, ResourceType.TOPIC, names)

    asked: list[Values] | None = group["topics"]
    if asked is None:
        found: Values = broker.groups.describe_share_group_offsets(context_of(request), group)
        shown = visible(found["topics"])
        return {**found, "topics": [each for each in found["topics"] if each["topicName"] in shown]}
    shown = visible(asked)
    seen = [each for each in asked if each["topicName"] in shown]
    found = broker.groups.describe_share_group_offsets(context_of(request), {**group, "topics": seen})
    code = Errors.TOPIC_AUTHORIZATION_FAILED
    refused: list[Values] = [
        {
            "topicName": each["topicName"],
            "topicId": ZERO_UUID,
            "partitions": [
                {"partitionIndex": number, "startOffset": -1, "errorCode": code, "errorMessage": message_of(code)}
                for number in each["partitions"]
            ],
        }
        for each in asked
        if each["topicName"] not in shown
    ]
    return {**found, "topics": [*found["topics"], *refused]}


def handle_alter_share_group_offsets(broker: Broker, request: Request) -> Values | None:
    body = request.body
    if not may_read_group(broker, request, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    names = [each["topicName"] for each in body["topics"]]
    allowed = broker.authorizer.filter_by_authorized(request, AclOperation.READ, ResourceType.TOPIC, names)
    responses: dict[str, Values] = {}
    wanted = []
    for topic in body["topics"]:
        name: str = topic["topicName"]
        topic_id = broker.topics.topic_id(name)
        if name in allowed and topic_id is not None:
            wanted.append(topic)
            continue
        code = Errors.UNKNOWN_TOPIC_OR_PARTITION if name in allowed else Errors.TOPIC_AUTHORIZATION_FAILED
        refused = [
            {"partitionIndex": each["partitionIndex"], "errorCode": code, "errorMessage": message_of(code)}
            for each in topic["partitions"]
        ]
        if refused:
            none = {"topicName": name, "topicId": topic_id or ZERO_UUID, "partitions": []}
            responses.setdefault(name, none)["partitions"] += refused  # the topic may be listed again
    answer = answered(lambda: broker.groups.alter_share_group_offsets(context_of(request), {**body, "topics": wanted}))
    if not answer["errorCode"]:
        for topic in answer["responses"]:
            responses[topic["topicName"]] = topic
        answer["responses"] = list(responses.values())
    return answer


def handle_delete_share_group_offsets(broker: Broker, request: Request) -> Values | None:
    body = request.body
    if not broker.authorizer.authorize(request, AclOperation.DELETE, ResourceType.GROUP, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    names = [each["topicName"] for each in body["topics"]]
    allowed = broker.authorizer.filter_by_authorized(request, AclOperation.READ, ResourceType.TOPIC, names)
    code = Errors.TOPIC_AUTHORIZATION_FAILED
    refused: list[dict[str, Any]] = [
        {"topicName": each, "topicId": ZERO_UUID, "errorCode": code, "errorMessage": message_of(code)}
        for each in names
        if each not in allowed
    ]
    wanted = [each for each in body["topics"] if each["topicName"] in allowed]
    answer = answered(lambda: broker.groups.delete_share_group_offsets(context_of(request), {**body, "topics": wanted}))
    if not answer["errorCode"]:
        answer["responses"] = refused + answer["responses"]
    return answer


HANDLERS: dict[int, Handler] = {
    ApiKeys.SHARE_GROUP_HEARTBEAT: handle_share_group_heartbeat,
    ApiKeys.SHARE_GROUP_DESCRIBE: handle_share_group_describe,
    ApiKeys.DESCRIBE_SHARE_GROUP_OFFSETS: handle_describe_share_group_offsets,
    ApiKeys.ALTER_SHARE_GROUP_OFFSETS: handle_alter_share_group_offsets,
    ApiKeys.DELETE_SHARE_GROUP_OFFSETS: handle_delete_share_group_offsets,
}
BLOCKING: set[int] = {
    ApiKeys.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKeys.ALTER_SHARE_GROUP_OFFSETS,
    ApiKeys.DELETE_SHARE_GROUP_OFFSETS,
}
BLOCKING_IF = {
    ApiKeys.SHARE_GROUP_DESCRIBE: LARGE,
    # The state of new topics is initialized then.
    ApiKeys.SHARE_GROUP_HEARTBEAT: lambda request: request.body["subscribedTopicNames"] is not None,
}
