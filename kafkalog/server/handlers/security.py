"""Handlers of SASL after the authentication, of ACLs, of SCRAM credentials and of quotas.

Handlers that change the kept state wait for the disk, so they run in the pool.
Source: AclApis, KafkaApis, ControllerApis (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import ApiKeys, api
from kafkalog.errors import SecurityDisabledException
from kafkalog.server.error_answers import error_response
from kafkalog.server.request import Encoded, Pending, Request, Values
from kafkalog.server.security import acl_control, quota_control, scram_control
from kafkalog.server.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from kafkalog.server.security.setup import state_file_of

if TYPE_CHECKING:
    from kafkalog.server.broker import Broker


Handler = Callable[["Broker", Request], "Values | Encoded | Pending | None"]


# --- SASL ------------------------------------------------------------------------------------------------


def handle_sasl_handshake(broker: Broker, request: Request) -> Values:
    """Answers a handshake of a client that is already known, or that must not authenticate here."""
    return {"errorCode": Errors.ILLEGAL_SASL_STATE, "mechanisms": []}


def handle_sasl_authenticate(broker: Broker, request: Request) -> Values:
    """As `handle_sasl_handshake`."""
    return {
        "errorCode": Errors.ILLEGAL_SASL_STATE,
        "errorMessage": "SaslAuthenticate request received after successful authentication",
    }


# --- ACLs ------------------------------------------------------------------------------------------------


def _need_authorizer(broker: Broker, text: str = "No Authorizer is configured.") -> None:
    if not broker.authorizer.is_on:
        raise SecurityDisabledException(text)


def handle_describe_acls(broker: Broker, request: Request) -> Values:
    """DescribeAcls."""
    broker.authorizer.authorize_cluster(request, AclOperation.DESCRIBE)
    _need_authorizer(broker, "No Authorizer is configured on the broker")
    found = acl_control.describe(state_file_of(broker).state, acl_control.filter_of(request.body))
    return {"errorCode": Errors.NONE, "resources": found}


def handle_create_acls(broker: Broker, request: Request) -> Values:
    """CreateAcls."""
    broker.authorizer.authorize_cluster(request, AclOperation.ALTER)
    _need_authorizer(broker)
    return {"results": acl_control.create(state_file_of(broker), request.body["creations"])}


def handle_delete_acls(broker: Broker, request: Request) -> Values:
    """DeleteAcls."""
    broker.authorizer.authorize_cluster(request, AclOperation.ALTER)
    _need_authorizer(broker)
    return {"filterResults": acl_control.delete(state_file_of(broker), request.body["filters"])}


def _decode_describe_acls(frame: memoryview, version: int, at: int) -> Values:
    body: Values = api(ApiKeys.DESCRIBE_ACLS).request.decode(frame, version, at=at)[0]
    _refuse_unknown_filter(body)
    return body


def _decode_delete_acls(frame: memoryview, version: int, at: int) -> Values:
    body: Values = api(ApiKeys.DELETE_ACLS).request.decode(frame, version, at=at)[0]
    for wanted in body["filters"]:
        _refuse_unknown_filter(wanted)
    return body


def _refuse_unknown_filter(given: Values) -> None:
    acl_control.refuse_unknown(
        given["resourceTypeFilter"], given["patternTypeFilter"], given["operation"], given["permissionType"]
    )


def _decode_create_acls(frame: memoryview, version: int, at: int) -> Values:
    body: Values = api(ApiKeys.CREATE_ACLS).request.decode(frame, version, at=at)[0]
    for given in body["creations"]:
        acl_control.refuse_unknown(
            given["resourceType"], given["resourcePatternType"], given["operation"], given["permissionType"]
        )
    return body


# --- SCRAM and quotas ------------------------------------------------------------------------------------


def _may(broker: Broker, request: Request, operation: AclOperation) -> bool:
    return broker.authorizer.authorize(request, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def handle_describe_user_scram_credentials(broker: Broker, request: Request) -> Values | None:
    """DescribeUserScramCredentials."""
    if not _may(broker, request, AclOperation.DESCRIBE):
        return error_response(request, Errors.CLUSTER_AUTHORIZATION_FAILED)
    found = scram_control.describe(state_file_of(broker).state, request.body["users"])
    return {"errorCode": Errors.NONE, "results": found}


def handle_alter_user_scram_credentials(broker: Broker, request: Request) -> Values:
    """AlterUserScramCredentials."""
    broker.authorizer.authorize_cluster(request, AclOperation.ALTER)
    body = request.body
    return {"results": scram_control.alter(state_file_of(broker), body["deletions"], body["upsertions"])}


def handle_describe_client_quotas(broker: Broker, request: Request) -> Values | None:
    """DescribeClientQuotas."""
    if not _may(broker, request, AclOperation.DESCRIBE_CONFIGS):
        return error_response(request, Errors.CLUSTER_AUTHORIZATION_FAILED)
    body = request.body
    found = quota_control.describe(state_file_of(broker).state, body["components"], strict=body["strict"])
    return {"errorCode": Errors.NONE, "entries": found}


def handle_alter_client_quotas(broker: Broker, request: Request) -> Values:
    """AlterClientQuotas."""
    broker.authorizer.authorize_cluster(request, AclOperation.ALTER_CONFIGS)
    body = request.body
    return {"entries": quota_control.alter(state_file_of(broker), body["entries"], validate_only=body["validateOnly"])}


HANDLERS: dict[int, Handler] = {
    ApiKeys.SASL_HANDSHAKE: handle_sasl_handshake,
    ApiKeys.SASL_AUTHENTICATE: handle_sasl_authenticate,
    ApiKeys.DESCRIBE_ACLS: handle_describe_acls,
    ApiKeys.CREATE_ACLS: handle_create_acls,
    ApiKeys.DELETE_ACLS: handle_delete_acls,
    ApiKeys.DESCRIBE_USER_SCRAM_CREDENTIALS: handle_describe_user_scram_credentials,
    ApiKeys.ALTER_USER_SCRAM_CREDENTIALS: handle_alter_user_scram_credentials,
    ApiKeys.DESCRIBE_CLIENT_QUOTAS: handle_describe_client_quotas,
    ApiKeys.ALTER_CLIENT_QUOTAS: handle_alter_client_quotas,
}
BLOCKING = {
    ApiKeys.CREATE_ACLS,
    ApiKeys.DELETE_ACLS,
    ApiKeys.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKeys.ALTER_CLIENT_QUOTAS,
}
DECODERS = {
    ApiKeys.DESCRIBE_ACLS: _decode_describe_acls,
    ApiKeys.CREATE_ACLS: _decode_create_acls,
    ApiKeys.DELETE_ACLS: _decode_delete_acls,
}
