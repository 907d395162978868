"""The rights of clients: Kafka's StandardAuthorizer over a set of ACLs.

    authorizer = StandardAuthorizer(super_users=["User:admin"])
    authorizer.replace(acls)
    authorizer.authorize(request, AclOperation.READ, ResourceType.TOPIC, "orders")

A super user may do everything.  For everybody else the ACLs of the resource decide: one that denies wins over all that
allow; without one that allows, the answer is no.  A resource without any ACL is closed, unless
`allow_everyone_if_no_acl_found`.  The ACLs are an immutable table that `replace` swaps whole, so readers need no lock.
Answers are kept until the next swap, because a client asks the same again with each request.

Denials are logged with level INFO to `kafkalog.authorizer`, permissions with DEBUG.
Source: StandardAuthorizerData, Authorizer.authorizeByResourceType, AuthHelper (4.4.0).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Protocol

from kafkalog.engine.format.requests import apis
from kafkalog.errors import ClusterAuthorizationException
from kafkalog.server.request import ConnectionInfo, KafkaPrincipal, Request
from kafkalog.server.security.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD_RESOURCE,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    StandardAcl,
    host_matches,
)
from kafkalog.server.security.principal import host_address, parse_kafka_principal

LOG = logging.getLogger("kafkalog.authorizer")
ANSWERS_MAX = 10_000
WILDCARD_PRINCIPAL = "User:*"
Operation = AclOperation | str
Resource = ResourceType | str
_Answers = dict[tuple[object, ...], bool]


def operation_of(operation: Operation) -> AclOperation:
    """Returns the operation of Kafka's name, such as "READ"."""
    return AclOperation[operation] if isinstance(operation, str) else operation


def resource_of(resource_type: Resource) -> ResourceType:
    """Returns the resource type of Kafka's name, such as "TOPIC"."""
    return ResourceType[resource_type] if isinstance(resource_type, str) else resource_type


class Authorizer(Protocol):
    """The interface that handlers ask.  `AllowAll` and `StandardAuthorizer` answer.

    An operation and a resource type are given by the enumerations or by their names, such as "READ" and "TOPIC".
    """

    is_on: bool

    def authorize(
        self, request: Request, operation: Operation, resource_type: Resource, name: str, *, log: bool = True
    ) -> bool:
        """Returns whether the client may do the operation.  `log=False` for names that the client did not ask for."""

    def filter_by_authorized(
        self,
        request: Request,
        operation: Operation,
        resource_type: Resource,
        names: Iterable[str],
        *,
        log: bool = True,
    ) -> set[str]:
        """Returns the names for which the client may do the operation."""

    def authorize_by_resource_type(self, request: Request, operation: Operation, resource_type: Resource) -> bool:
        """Returns whether there is any resource of the type for which the client may do the operation."""

    def authorized_operations(self, request: Request, resource_type: Resource, name: str) -> int:
        """Returns the client's operations on a resource as bits: 1 << operation for each."""

    def authorize_cluster(self, request: Request, operation: Operation) -> None:
        """Raises ClusterAuthorizationException unless the client may do the operation on the cluster."""


def bits_of(operations: Iterable[int]) -> int:
    """Returns a signed 32-bit field with one bit for each operation."""
    return sum(1 << operation for operation in set(operations))


class AllowAll:
    """A server without an authorizer: everybody may do everything."""

    is_on = False

    def authorize(
        self, request: Request, operation: Operation, resource_type: Resource, name: str, *, log: bool = True
    ) -> bool:
        """See `Authorizer.authorize`."""
        return True

    def filter_by_authorized(
        self,
        request: Request,
        operation: Operation,
        resource_type: Resource,
        names: Iterable[str],
        *,
        log: bool = True,
    ) -> set[str]:
        """See `Authorizer.filter_by_authorized`."""
        return set(names)

    def authorize_by_resource_type(self, request: Request, operation: Operation, resource_type: Resource) -> bool:
        """See `Authorizer.authorize_by_resource_type`."""
        return True

    def authorized_operations(self, request: Request, resource_type: Resource, name: str) -> int:
        """See `Authorizer.authorized_operations`."""
        return bits_of(SUPPORTED_OPERATIONS[resource_of(resource_type)])

    def authorize_cluster(self, request: Request, operation: Operation) -> None:
        """See `Authorizer.authorize_cluster`."""


class AclTable:
    """An immutable set of ACLs, found by resource.

    Prefixed patterns are looked up once for each length that occurs, not once for each pattern.
    """

    __slots__ = ("_lengths", "_literal", "_prefixed", "acls")

    def __init__(self, acls: Iterable[StandardAcl] = ()) -> None:
        self.acls = frozenset(acls)
        self._literal: dict[tuple[int, str], list[StandardAcl]] = {}
        self._prefixed: dict[tuple[int, str], list[StandardAcl]] = {}
        lengths: dict[int, set[int]] = {}
        for acl in self.acls:
            if acl.pattern_type == PatternType.PREFIXED:
                lengths.setdefault(acl.resource_type, set()).add(len(acl.resource_name))
                self._prefixed.setdefault((acl.resource_type, acl.resource_name), []).append(acl)
            else:
                self._literal.setdefault((acl.resource_type, acl.resource_name), []).append(acl)
        self._lengths = {kind: sorted(found) for kind, found in lengths.items()}

    def of_resource(self, kind: ResourceType, name: str) -> list[StandardAcl]:
        """Returns the ACLs that apply to a resource.

        As in Kafka, the wildcard `*` does not apply to a longer name that begins with `*`.
        """
        found = list(self._literal.get((kind, name), ()))
        if not name.startswith(WILDCARD_RESOURCE):
            found += self._literal.get((kind, WILDCARD_RESOURCE), ())
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            found += self._prefixed.get((kind, name[:length]), ())
        return found

    def of_type(self, kind: ResourceType) -> list[StandardAcl]:
        """Returns all ACLs of a type of resource."""
        return [acl for acl in self.acls if acl.resource_type == kind]


class StandardAuthorizer:
    """The authorizer.  Thread-safe.

    Args:
        super_users: Principals such as `User:admin`.
        allow_everyone_if_no_acl_found: Whether a resource without an ACL is open to everybody.

    Raises:
        IllegalArgumentException: A super user has no type.
    """

    is_on = True

    def __init__(self, super_users: Collection[str] = (), *, allow_everyone_if_no_acl_found: bool = False) -> None:
        self._super_users = frozenset(parse_kafka_principal(user) for user in super_users)
        self._no_acl_answer = allow_everyone_if_no_acl_found
        # Replaced together, so that an answer of old ACLs never meets new ones.
        self._state: tuple[AclTable, _Answers] = AclTable(), {}

    @property
    def acls(self) -> frozenset[StandardAcl]:
        """The ACLs."""
        return self._state[0].acls

    def replace(self, acls: Iterable[StandardAcl]) -> None:
        """Sets the ACLs."""
        self._state = AclTable(acls), {}

    def authorize(
        self, request: Request, operation: Operation, resource_type: Resource, name: str, *, log: bool = True
    ) -> bool:
        """See `Authorizer.authorize`."""
        connection = request.connection
        table, answers = self._state
        key = connection.principal, connection.host, operation, resource_type, name
        answer = answers.get(key)
        if answer is None:
            if len(answers) >= ANSWERS_MAX:
                answers.clear()
            resource_type, operation = resource_of(resource_type), operation_of(operation)
            answer = answers[key] = self._decide(table, connection, operation, resource_type, name)
        if log and LOG.isEnabledFor(logging.INFO):
            _tell(request, operation_of(operation), resource_of(resource_type), name, answer)
        return answer

    def _decide(
        self,
        table: AclTable,
        connection: ConnectionInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        if connection.principal in self._super_users:
            return True
        found = table.of_resource(resource_type, name)
        if not found:
            return self._no_acl_answer
        spoken = [
            acl.permission_type
            for acl in found
            if acl.covers(operation) and _is_of(acl, connection.principal, host_address(connection.host))
        ]
        return AclPermissionType.DENY not in spoken and AclPermissionType.ALLOW in spoken

    def filter_by_authorized(
        self,
        request: Request,
        operation: Operation,
        resource_type: Resource,
        names: Iterable[str],
        *,
        log: bool = True,
    ) -> set[str]:
        """See `Authorizer.filter_by_authorized`."""
        return {name for name in set(names) if self.authorize(request, operation, resource_type, name, log=log)}

    def authorize_by_resource_type(self, request: Request, operation: Operation, resource_type: Resource) -> bool:
        """See `Authorizer.authorize_by_resource_type`."""
        # Kafka asks for this name first, which answers for super users and for resources without ACLs.
        if self.authorize(request, operation, resource_type, "hardcode", log=False):
            return True
        connection = request.connection
        resource_type, operation = resource_of(resource_type), operation_of(operation)
        host = host_address(connection.host)
        denied: set[tuple[PatternType, str]] = set()
        allowed: set[tuple[PatternType, str]] = set()
        for acl in self._state[0].of_type(resource_type):
            if acl.operation in (operation, AclOperation.ALL) and _is_of(acl, connection.principal, host):
                pattern = acl.pattern_type, acl.resource_name
                (denied if acl.permission_type == AclPermissionType.DENY else allowed).add(pattern)
        everything = PatternType.LITERAL, WILDCARD_RESOURCE
        if everything in denied:
            return False
        return everything in allowed or any(not _is_dominated(pattern, denied) for pattern in allowed)

    def authorized_operations(self, request: Request, resource_type: Resource, name: str) -> int:
        """See `Authorizer.authorized_operations`."""
        return bits_of(
            operation
            for operation in SUPPORTED_OPERATIONS[resource_of(resource_type)]
            if self.authorize(request, operation, resource_type, name, log=False)
        )

    def authorize_cluster(self, request: Request, operation: Operation) -> None:
        """See `Authorizer.authorize_cluster`."""
        if not self.authorize(request, operation, ResourceType.CLUSTER, CLUSTER_NAME):
            raise ClusterAuthorizationException(f"Request {request} needs {operation_of(operation).name} permission.")


def _is_of(acl: StandardAcl, principal: KafkaPrincipal, host: str) -> bool:
    return acl.principal in (str(principal), WILDCARD_PRINCIPAL) and host_matches(acl.host, host)


def _is_dominated(pattern: tuple[PatternType, str], denied: set[tuple[PatternType, str]]) -> bool:
    """Returns whether what a pattern allows is denied by an equal literal, or by a prefix of it."""
    kind, name = pattern
    if kind == PatternType.LITERAL and pattern in denied:
        return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


def _tell(request: Request, operation: AclOperation, kind: ResourceType, name: str, answer: bool) -> None:
    LOG.log(
        logging.DEBUG if answer else logging.INFO,
        "Principal = %s is %s operation = %s from host = %s on resource = %s:LITERAL:%s for request = %s",
        *(request.principal, "Allowed" if answer else "Denied", operation.name, request.connection.host),
        *(kind.name, name, known.name if (known := apis().get(request.api_key)) else request.api_key),
    )
