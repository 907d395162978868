"""DescribeAcls, CreateAcls and DeleteAcls over the kept state.

Knows no request beyond its values.  Source: AclApis, AclControlManager, CreateAclsRequest, DeleteAclsResponse (4.4.0).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

from kafkalog.engine.format.error_codes import Errors
from kafkalog.errors import IllegalArgumentException, InvalidRequestException
from kafkalog.server.security.acls import (
    CLUSTER_NAME,
    AclFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    StandardAcl,
    problem_of,
)
from kafkalog.server.server_state import ServerState, StateFile

Values = dict[str, Any]
ACLS_MAX = 10_000  # that one request may create or delete
_E = TypeVar("_E", bound=IntEnum)


def _from_code(kind: type[_E], code: int) -> _E:
    """Returns what a number means; UNKNOWN for one that this version does not know."""
    try:
        return kind(code)
    except ValueError:
        return kind(0)


def refuse_unknown(*codes: int) -> None:
    """Raises InvalidRequestException for the number 0, which no client may send."""
    if 0 in codes:
        raise InvalidRequestException("the request contains UNKNOWN elements")


def acl_of(creation: Values) -> StandardAcl:
    """Returns the ACL of an element of a CreateAcls request."""
    return StandardAcl(
        _from_code(ResourceType, creation["resourceType"]),
        creation["resourceName"],
        _from_code(PatternType, creation["resourcePatternType"]),
        creation["principal"],
        creation["host"],
        _from_code(AclOperation, creation["operation"]),
        _from_code(AclPermissionType, creation["permissionType"]),
    )


def filter_of(given: Values) -> AclFilter:
    """Returns the filter of a DescribeAcls request, or of an element of a DeleteAcls request."""
    return AclFilter(
        _from_code(ResourceType, given["resourceTypeFilter"]),
        given["resourceNameFilter"],
        _from_code(PatternType, given["patternTypeFilter"]),
        given["principalFilter"],
        given["hostFilter"],
        _from_code(AclOperation, given["operation"]),
        _from_code(AclPermissionType, given["permissionType"]),
    )


def _row(acl: StandardAcl) -> Values:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permissionType": acl.permission_type,
    }


def _pattern(acl: StandardAcl) -> Values:
    return {
        "resourceType": acl.resource_type,
        "resourceName": acl.resource_name,
        "patternType": acl.pattern_type,
    }


def describe(state: ServerState, wanted: AclFilter) -> list[Values]:
    """Returns the resources of a DescribeAcls answer, sorted."""
    found: dict[tuple[object, ...], Values] = {}
    for acl in sorted(filter(wanted.matches, state.acls)):
        found.setdefault(acl[:3], {**_pattern(acl), "acls": []})["acls"].append(_row(acl))
    return list(found.values())


def create(state_file: StateFile, creations: list[Values]) -> list[Values]:
    """Creates ACLs, all in one step, and returns the results in their order.  An ACL that exists is no error.

    Raises:
        IllegalArgumentException: An ACL has ANY or MATCH, which are for filters.  As in Kafka, none is created then.
    """
    results: list[Values] = []
    wanted: set[StandardAcl] = set()
    acls = [acl_of(creation) for creation in creations]
    for acl in acls:
        for what in (acl.resource_type, acl.pattern_type, acl.operation, acl.permission_type):
            if what.name in ("ANY", "MATCH"):
                raise IllegalArgumentException(f"an ACL must not have {what.name}")
    for acl in acls:
        if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
            problem: str | None = "The only valid name for the CLUSTER resource is kafka-cluster"
        elif not acl.resource_name:
            problem = "Invalid empty resource name"
        else:
            problem = problem_of(acl)
        if problem is None:
            wanted.add(acl)
            results.append({"errorCode": Errors.NONE})
        else:
            results.append({"errorCode": Errors.INVALID_REQUEST, "errorMessage": problem})
    if len(wanted) > ACLS_MAX and len(wanted - state_file.state.acls) > ACLS_MAX:
        too_many = {
            "errorCode": Errors.POLICY_VIOLATION,
            "errorMessage": "Unable to perform excessively large batch operation.",
        }
        return [too_many if result["errorCode"] == Errors.NONE else result for result in results]
    state_file.change(lambda state: state._replace(acls=state.acls | wanted))
    return results


def delete(state_file: StateFile, filters: list[Values]) -> list[Values]:
    """Deletes the ACLs that the filters name, all in one step, and returns a result for each filter."""
    results: list[Values] = []

    def change(state: ServerState) -> ServerState:
        results.clear()
        doomed: set[StandardAcl] = set()
        for wanted in map(filter_of, filters):
            problem = _problem_of_filter(wanted)
            if problem is not None:
                results.append({"errorCode": Errors.INVALID_REQUEST, "errorMessage": problem, "matchingAcls": []})
                continue
            matching = sorted(filter(wanted.matches, state.acls))
            doomed.update(matching)
            if len(doomed) > ACLS_MAX:
                raise InvalidRequestException(f"Cannot remove more than {ACLS_MAX} acls in a single delete operation.")
            results.append(
                {
                    "errorCode": Errors.NONE,
                    "errorMessage": None,
                    "matchingAcls": [
                        {"errorCode": Errors.NONE, "errorMessage": None, **_pattern(acl), **_row(acl)}
                        for acl in matching
                    ],
                }
            )
        return state._replace(acls=state.acls - doomed)

    state_file.change(change)
    return results


def _problem_of_filter(wanted: AclFilter) -> str | None:
    if 0 in (wanted.resource_type, wanted.pattern_type):
        return "Unknown patternFilter."
    if 0 in (wanted.operation, wanted.permission_type):
        return "Unknown entryFilter."
    return None
