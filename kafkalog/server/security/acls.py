"""An ACL, its numbers, and the filters that describe and delete ACLs.

An ACL says: this principal, from this host, may (or may not) do this operation to the resources of this pattern.
Knows no requests and no files.  Source: StandardAcl, AclBindingFilter, ResourcePatternFilter, CidrUtils,
AclControlManager.validateNewAcl (4.4.0).
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from kafkalog._limits import INT_MAX
from kafkalog.errors import IllegalArgumentException

CLUSTER_NAME = "kafka-cluster"
WILDCARD_RESOURCE = WILDCARD_HOST = "*"


class ResourceType(IntEnum):
    """The kind of resource that an ACL is about.  ANY is only in filters."""

    UNKNOWN, ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(8)


class PatternType(IntEnum):
    """How a pattern names resources.  ANY and MATCH are only in filters."""

    UNKNOWN, ANY, MATCH, LITERAL, PREFIXED = range(5)


class AclOperation(IntEnum):
    """The operation that a client wants to do.  ANY is only in filters; ALL is every operation."""

    UNKNOWN, ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(10)
    DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS, DESCRIBE_TOKENS, TWO_PHASE_COMMIT = range(10, 16)


class AclPermissionType(IntEnum):
    """Whether an ACL allows or denies.  ANY is only in filters."""

    UNKNOWN, ANY, DENY, ALLOW = range(4)


_OP = AclOperation
# The operations that a resource can have; authorized_operations reports these.
SUPPORTED_OPERATIONS: dict[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        *(_OP.READ, _OP.WRITE, _OP.CREATE, _OP.DESCRIBE, _OP.DELETE, _OP.ALTER),
        *(_OP.DESCRIBE_CONFIGS, _OP.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (_OP.READ, _OP.DESCRIBE, _OP.DELETE, _OP.DESCRIBE_CONFIGS, _OP.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        *(_OP.CREATE, _OP.CLUSTER_ACTION, _OP.DESCRIBE_CONFIGS, _OP.ALTER_CONFIGS, _OP.IDEMPOTENT_WRITE),
        *(_OP.ALTER, _OP.DESCRIBE),
    ),
    ResourceType.TRANSACTIONAL_ID: (_OP.DESCRIBE, _OP.WRITE, _OP.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_OP.DESCRIBE,),
    ResourceType.USER: (_OP.CREATE_TOKENS, _OP.DESCRIBE_TOKENS),
}
# An ACL that allows one of these also allows the operation; an ACL that denies never implies another.
IMPLIED_BY: dict[AclOperation, frozenset[AclOperation]] = {
    _OP.DESCRIBE: frozenset({_OP.DESCRIBE, _OP.READ, _OP.WRITE, _OP.DELETE, _OP.ALTER}),
    _OP.DESCRIBE_CONFIGS: frozenset({_OP.DESCRIBE_CONFIGS, _OP.ALTER_CONFIGS}),
}


class StandardAcl(NamedTuple):
    """An ACL.  `principal` is text such as `User:alice`; `host` is an address, a CIDR range, or `*`."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission_type: AclPermissionType

    def covers(self, operation: AclOperation) -> bool:
        """Returns whether the ACL speaks of the operation, itself or by implication."""
        if self.operation in (AclOperation.ALL, operation):
            return True
        return self.permission_type == AclPermissionType.ALLOW and self.operation in IMPLIED_BY.get(operation, ())


class AclFilter(NamedTuple):
    """A filter of ACLs.  None and ANY match everything."""

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission_type: AclPermissionType

    @property
    def is_unknown(self) -> bool:
        """Whether a client sent a number that this version does not know."""
        return 0 in (self.resource_type, self.pattern_type, self.operation, self.permission_type)

    def matches(self, acl: StandardAcl) -> bool:
        """Returns whether the ACL is one of those that the filter names."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission_type in (AclPermissionType.ANY, acl.permission_type)
        )

    def _matches_pattern(self, acl: StandardAcl) -> bool:
        """MATCH finds all patterns that apply to the name; the others compare names."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.name == acl.resource_name
        if acl.pattern_type == PatternType.LITERAL:
            return acl.resource_name in (self.name, WILDCARD_RESOURCE)
        return self.name.startswith(acl.resource_name)


def problem_of(acl: StandardAcl) -> str | None:
    """Returns why an ACL cannot be created, as Kafka's InvalidRequestException says it; None for a valid ACL."""
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return f"Invalid resourceType {acl.resource_type.name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type.name}"
    if acl.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
        return f"Invalid operation {acl.operation.name}"
    if acl.permission_type not in (AclPermissionType.DENY, AclPermissionType.ALLOW):
        return f"Invalid permissionType {acl.permission_type.name}"
    if not acl.resource_name:
        return "Resource name should not be empty"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    if not acl.host:
        return "Host pattern cannot be null or empty"
    if "/" in acl.host:
        try:
            cidr_range(acl.host)
        except IllegalArgumentException as error:
            return f"Invalid CIDR notation '{acl.host}': {error.args[0]}"
    return None


# --- hosts -----------------------------------------------------------------------------------------------

_IPV4 = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})", re.ASCII)
_IPV4_RANGE = re.compile(_IPV4.pattern + r"/(\d{1,2})", re.ASCII)


def _in(value: int, end: int) -> int:
    if value > end:
        raise IllegalArgumentException(f"Value [{value}] not in range [0,{end}]")
    return value


def _ipv4(groups: tuple[str, ...]) -> int:
    return int.from_bytes(bytes(_in(int(group), 255) for group in groups[:4]), "big")


def _ipv6(text: str) -> int:
    """Returns the number of an address, as Java's InetAddress reads it: in brackets too, and with a scope."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.IPv6Address(bare.partition("%")[0])
    except ValueError:
        raise IllegalArgumentException(f"Could not parse [{text}]") from None
    if address.ipv4_mapped is not None:
        raise IllegalArgumentException(f"Could not parse [{text}] - not an IPv6 address")
    return int(address)


@functools.lru_cache(maxsize=4096)
def cidr_range(text: str) -> Callable[[str], bool]:
    """Returns a function that says whether an address is in a range such as `10.0.0.0/8` or `fe80::/10`.

    Raises IllegalArgumentException, with Kafka's text, for a text that is no range.
    """
    if ":" not in text:
        found = _IPV4_RANGE.fullmatch(text)
        if found is None:
            raise IllegalArgumentException(f"Could not parse [{text}]")
        address = _ipv4(found.groups())
        low, high = _bounds(address, _in(int(found[5]), 32), 32)

        def has_ipv4(host: str) -> bool:
            parts = _IPV4.fullmatch(host)
            return parts is not None and low <= _ipv4(parts.groups()) <= high and host != "0.0.0.0"

        return has_ipv4
    part, slash, bits = text.partition("/")
    if not slash:
        raise IllegalArgumentException(f"Could not parse [{text}] - missing prefix length")
    if re.fullmatch(r"[+-]?[0-9]+", bits) is None or abs(int(bits)) > INT_MAX:
        raise IllegalArgumentException(f"Could not parse [{text}] - invalid prefix length")
    if not 0 <= int(bits) <= 128:
        raise IllegalArgumentException(f"Could not parse [{text}] - prefix length must be between 0 and 128")
    low, high = _bounds(_ipv6(part), int(bits), 128)

    def has_ipv6(host: str) -> bool:
        return ":" in host and low <= _ipv6(host) <= high

    return has_ipv6


def _bounds(address: int, prefix_bits: int, bits: int) -> tuple[int, int]:
    mask = (1 << (bits - prefix_bits)) - 1
    return address & ~mask, address | mask


def host_matches(pattern: str, host: str) -> bool:
    """Returns whether an ACL with the host `pattern` applies to the address `host`."""
    if pattern in (WILDCARD_HOST, host):
        return True
    if "/" not in pattern:
        return False
    try:
        return cidr_range(pattern)(host)
    except IllegalArgumentException:
        return False
