"""Requests of the consumer group protocol (KIP-848): a member's heartbeat, and the description of groups.

A member may read its group, and describe every topic that it names. A description never shows topics that the client
may not describe.

Source: KafkaApis.handleConsumerGroupHeartbeat and handleConsumerGroupDescribe (4.4.0).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.server.error_answers import error_response
from kafkalog.server.handlers.groups import answered, context_of, described, may_read_group
from kafkalog.server.request import LARGE
from kafkalog.server.security.acls import AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.format.messages import Values
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request

HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


def _is_served(broker: Broker) -> bool:
    protocols = broker.settings.get("group.coordinator.rebalance.protocols")
    return protocols is None or "consumer" in protocols


def handle_consumer_group_heartbeat(broker: Broker, request: Request) -> Values | None:
    body = request.body
    if not _is_served(broker):
        return error_response(request, Errors.UNSUPPORTED_VERSION)
    if not may_read_group(broker, request, body["groupId"]):
        return error_response(request, Errors.GROUP_AUTHORIZATION_FAILED)
    topics = set(body["subscribedTopicNames"] or ())
    if topics and len(_describable(broker, request, topics)) < len(topics):
        return {"errorCode": int(Errors.TOPIC_AUTHORIZATION_FAILED)}
    context = context_of(request)
    if body["subscribedTopicRegex"]:  # it is resolved later, for this client
        context = context._replace(describable=partial(_describable, broker, request))
    return answered(lambda: broker.groups.consumer_group_heartbeat(context, body))


def handle_consumer_group_describe(broker: Broker, request: Request) -> Values | None:
    if not _is_served(broker):
        return error_response(request, Errors.UNSUPPORTED_VERSION)
    names = request.body["groupIds"]
    refused, found = described(broker, request, names, broker.groups.consumer_group_describe)
    topics = {topic for each in found for topic in _topics_of(each)}
    shown = _describable(broker, request, topics) if topics else ()
    groups = [each if all(topic in shown for topic in _topics_of(each)) else _hidden(each) for each in found]
    return {"throttleTimeMs": 0, "groups": refused + groups}


def _describable(broker: Broker, request: Request, topics: Collection[str]) -> Collection[str]:
    found: Collection[str] = broker.authorizer.filter_by_authorized(
        request, AclOperation.DESCRIBE, ResourceType.TOPIC, topics
    )
    return found


def _topics_of(group: Values) -> Iterator[str]:
    for member in group.get("members", ()):
        for assignment in (member["assignment"], member["targetAssignment"]):
            for topic in assignment["topicPartitions"]:
                yield topic["topicName"]


def _hidden(group: Values) -> Values:
    return {
        "groupId": group["groupId"],
        "errorCode": int(Errors.TOPIC_AUTHORIZATION_FAILED),
        "errorMessage": HIDDEN,
        "members": [],
    }


HANDLERS: dict[int, Handler] = {
    ApiKeys.CONSUMER_GROUP_HEARTBEAT: handle_consumer_group_heartbeat,
    ApiKeys.CONSUMER_GROUP_DESCRIBE: handle_consumer_group_describe,
}
BLOCKING_IF = {
    ApiKeys.CONSUMER_GROUP_DESCRIBE: LARGE,
}
