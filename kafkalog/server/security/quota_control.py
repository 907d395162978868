"""DescribeClientQuotas and AlterClientQuotas over the kept state.

Source: ClientQuotasImage.describe, ClientQuotaControlManager.alterClientQuotas, QuotaConfig (4.4.0).
"""

from __future__ import annotations

import math
import socket
from typing import Any

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec.java_hash import hash_map_order, string_hash
from kafkalog.engine.format.error_codes import Errors
from kafkalog.errors import InvalidRequestException, UnsupportedVersionException
from kafkalog.server.security.quotas import QuotaEntity
from kafkalog.server.server_state import ServerState, StateFile, entity_of, entity_parts

Values = dict[str, Any]
_Key = tuple[tuple[str, str | None], ...]  # an entity as the request names it, sorted
EXACT, DEFAULT_ONLY, SPECIFIED = 0, 1, 2  # match types
TYPES = ("ip", "user", "client-id")
# The keys of each kind of entity, with the largest whole number; None for any number.
USER_KEYS: dict[str, int | None] = {
    "producer_byte_rate": LONG_MAX,
    "consumer_byte_rate": LONG_MAX,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
IP_KEYS: dict[str, int | None] = {"connection_creation_rate": INT_MAX}


# --- describe --------------------------------------------------------------------------------------------


def describe(state: ServerState, components: list[Values], *, strict: bool) -> list[Values]:
    """Returns the entries that match a filter.

    Raises:
        InvalidRequestException: The filter contradicts itself.
        UnsupportedVersionException: A type of entity is unknown.
    """
    exact: dict[str, str] = {}
    specified: set[str] = set()
    for component in components:
        kind, match_type, match = component["entityType"], component["matchType"], component["match"]
        if not kind:
            raise InvalidRequestException("Invalid empty entity type.")
        if kind in exact or kind in specified:
            raise InvalidRequestException(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in TYPES:
            raise UnsupportedVersionException(f"Unsupported entity type {kind}")
        if match_type == EXACT:
            if match is None:
                raise InvalidRequestException("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            exact[kind] = match
        elif match_type in (DEFAULT_ONLY, SPECIFIED):
            if match is not None:
                name = "MATCH_TYPE_DEFAULT" if match_type == DEFAULT_ONLY else "MATCH_TYPE_SPECIFIED"
                raise InvalidRequestException(f"Request specified {name}, but also specified a match string.")
            if match_type == DEFAULT_ONLY:
                exact[kind] = ""
            else:
                specified.add(kind)
        else:
            raise InvalidRequestException(f"Unknown match type {match_type}")
    named = exact.keys() | specified
    if "ip" in named and len(named) > 1:
        raise InvalidRequestException(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    if not named and strict:
        return []
    return [
        _entry(entity, values)
        for entity, values in state.quotas.items()
        if _matches(dict(entity_parts(entity)), exact, specified, strict=strict)
    ]


def _matches(parts: dict[str, str], exact: dict[str, str], specified: set[str], *, strict: bool) -> bool:
    if strict and len(parts) != len(exact) + len(specified):
        return False
    return all(parts.get(kind) == name for kind, name in exact.items()) and specified <= parts.keys()


def _entry(entity: QuotaEntity, values: dict[str, float] | Any) -> Values:
    return {
        "entity": [{"entityType": kind, "entityName": name or None} for kind, name in entity_parts(entity)],
        "values": [{"key": key, "value": value} for key, value in values.items()],
    }


# --- alter -----------------------------------------------------------------------------------------------


def alter(state_file: StateFile, entries: list[Values], *, validate_only: bool) -> list[Values]:
    """Sets and removes quotas, all in one step, and returns a result for each entity.

    An entity with an error is not changed; the others are."""
    results: dict[_Key, str | None] = {}

    def change(state: ServerState) -> ServerState:
        results.clear()
        quotas = dict(state.quotas)
        for entry in entries:
            parts = _in_order({part["entityType"]: part["entityName"] for part in entry["entity"]}, entry["entity"])
            key = tuple(sorted(parts.items()))
            given: dict[str, float | None] = {}
            for op in entry["ops"]:
                if op["key"] in given:
                    results[key] = f"Duplicate quota key {op['key']} not updating quota for this entity {_shown(parts)}"
                else:
                    given[op["key"]] = None if op["remove"] else op["value"]
            if key in results:
                results[key] = f"Ignoring duplicate entity {_shown(parts)}"
                continue
            problem = _problem_of_entity(parts) or _problem_of_values(parts, given)
            results[key] = problem
            if problem is None:
                # Against the state before the request: an entity comes once, so this is the same.
                entity = entity_of(parts.items())
                _apply(quotas, entity, given)
        return state if validate_only else state._replace(quotas=quotas)

    state_file.change(change)
    return [
        {
            "errorCode": Errors.NONE if problem is None else Errors.INVALID_REQUEST,
            "errorMessage": problem,
            "entity": [{"entityType": kind, "entityName": name} for kind, name in key],
        }
        for key, problem in results.items()
    ]


def _apply(quotas: dict[QuotaEntity, Any], entity: QuotaEntity, given: dict[str, float | None]) -> None:
    values = dict(quotas.get(entity, {}))
    for key, value in given.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    if values:
        quotas[entity] = values
    else:
        quotas.pop(entity, None)


def _in_order(parts: dict[str, str | None], given: list[Values]) -> dict[str, str | None]:
    """Returns the parts in the order of Kafka's hash map: the first wrong one is told."""
    return {kind: parts[kind] for kind in hash_map_order(parts, string_hash, initial_capacity=max(len(given), 1))}


def _shown(parts: dict[str, str | None]) -> str:
    inside = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in parts.items())
    return f"ClientQuotaEntity(entries={{{inside}}})"


def _problem_of_entity(parts: dict[str, str | None]) -> str | None:
    if not parts:
        return "Invalid empty client quota entity"
    for kind, name in parts.items():
        if kind not in TYPES:
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    if "ip" in parts:
        if len(parts) > 1:
            return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        ip = parts["ip"]
        if ip is not None and not _is_host(ip):
            return f"{ip} is not a valid IP or resolvable host."
    return None


def _is_host(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    return True


def _problem_of_values(parts: dict[str, str | None], given: dict[str, float | None]) -> str | None:
    keys = IP_KEYS if "ip" in parts else USER_KEYS
    for key, value in given.items():
        if value is None:
            continue
        if key not in keys:
            return f"Invalid configuration key {key}"
        if not math.isfinite(value):
            return f"Quota {key} must be a finite number"
        if value <= 0:
            return f"Quota {key} must be greater than 0"
        most = keys[key]
        if most is not None and value > float(most):
            return f"Proposed value for {key} is too large for {'an INT' if most == INT_MAX else 'a LONG'}."
        if most is not None and math.fmod(value, 1.0) > 1e-6:
            return f"{key} cannot be a fractional value."
    return None
