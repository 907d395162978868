"""The requests by which brokers ask the share coordinator: states of share partitions are made, read, written, deleted.

Only a client that may act for the cluster sends them. Source: KafkaApis (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.server.error_answers import error_response
from kafkalog.server.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.share_coordinator import ShareCoordinator
    from kafkalog.engine.format.messages import Values
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request


def _handler(answer: Callable[[ShareCoordinator, Values], Values]) -> Handler:
    def handle(broker: Broker, request: Request) -> Values | None:
        allowed = broker.authorizer.authorize(request, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        if not allowed:
            return error_response(request, Errors.CLUSTER_AUTHORIZATION_FAILED)
        return answer(broker.share_coordinator, request.body)

    return handle


HANDLERS: dict[int, Handler] = {
    ApiKeys.INITIALIZE_SHARE_GROUP_STATE: _handler(lambda shares, body: shares.initialize_state(body)),
    ApiKeys.READ_SHARE_GROUP_STATE: _handler(lambda shares, body: shares.read_state(body)),
    ApiKeys.WRITE_SHARE_GROUP_STATE: _handler(lambda shares, body: shares.write_state(body)),
    ApiKeys.DELETE_SHARE_GROUP_STATE: _handler(lambda shares, body: shares.delete_state(body)),
    ApiKeys.READ_SHARE_GROUP_STATE_SUMMARY: _handler(lambda shares, body: shares.read_state_summary(body)),
}
BLOCKING: set[int] = set(HANDLERS)
