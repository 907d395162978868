"""DescribeUserScramCredentials and AlterUserScramCredentials over the kept state.

Source: ScramImage.describe, ScramControlManager.alterCredentials (4.4.0).
"""

from __future__ import annotations

from typing import Any

from kafkalog.engine.format.error_codes import Errors
from kafkalog.server.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, credential_of_salted
from kafkalog.server.server_state import ServerState, StateFile

Values = dict[str, Any]
_Problem = tuple[Errors, str]
_TWICE: _Problem = (Errors.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


def describe(state: ServerState, users: list[Values] | None) -> list[Values]:
    """Returns the results for the users; for all users if none is named."""
    names = [user["name"] for user in users or ()] or sorted({name for name, _ in state.scram})
    results = []
    for name in dict.fromkeys(names):
        found = [
            {"mechanism": mechanism, "iterations": state.scram[name, mechanism].iterations}
            for mechanism in ScramMechanism
            if (name, mechanism) in state.scram
        ]
        result: Values = {"user": name, "errorCode": Errors.NONE, "credentialInfos": []}
        if names.count(name) > 1:
            result["errorCode"] = Errors.DUPLICATE_RESOURCE
            result["errorMessage"] = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            )
        elif not found:
            result["errorCode"] = Errors.RESOURCE_NOT_FOUND
            result["errorMessage"] = f"Attempt to describe a user credential that does not exist: {name}"
        else:
            result["credentialInfos"] = found
        results.append(result)
    return results


def _mechanism_of(code: int) -> ScramMechanism | None:
    try:
        return ScramMechanism(code)
    except ValueError:
        return None


def _problem_of_name(name: str, mechanism: ScramMechanism | None) -> _Problem | None:
    if not name:
        return Errors.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if mechanism is None:
        return Errors.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    return None


def _problem_of_deletion(state: ServerState, row: Values) -> _Problem | None:
    mechanism = _mechanism_of(row["mechanism"])
    problem = _problem_of_name(row["name"], mechanism)
    if problem is None and (row["name"], mechanism) not in state.scram:
        return Errors.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    return problem


def _problem_of_upsertion(row: Values) -> _Problem | None:
    problem = _problem_of_name(row["name"], _mechanism_of(row["mechanism"]))
    if problem is None and row["iterations"] < ITERATIONS_MIN:
        return Errors.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if problem is None and row["iterations"] > ITERATIONS_MAX:
        return Errors.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    return problem


def alter(state_file: StateFile, deletions: list[Values], upsertions: list[Values]) -> list[Values]:
    """Deletes and sets credentials, all in one step, and returns a result for each user.

    A user that the request names twice is not changed at all."""
    results: list[Values] = []

    def change(state: ServerState) -> ServerState:
        removed: dict[str, Values] = {}
        added: dict[str, Values] = {}
        problems: dict[str, _Problem] = {}
        for row in deletions:
            name = row["name"]
            if name in problems:
                continue
            problem = _TWICE if removed.pop(name, None) else _problem_of_deletion(state, row)
            if problem is not None:
                problems[name] = problem
            else:
                removed[name] = row
        for row in upsertions:
            name = row["name"]
            if name in problems:
                continue
            again = removed.pop(name, None) or added.pop(name, None)
            problem = _TWICE if again else _problem_of_upsertion(row)
            if problem is not None:
                problems[name] = problem
            else:
                added[name] = row
        scram = dict(state.scram)
        for name, row in removed.items():
            del scram[name, ScramMechanism(row["mechanism"])]
        for name, row in added.items():
            mechanism = ScramMechanism(row["mechanism"])
            scram[name, mechanism] = credential_of_salted(
                mechanism, bytes(row["salt"]), bytes(row["saltedPassword"]), row["iterations"]
            )
        results[:] = [{"user": name, "errorCode": Errors.NONE, "errorMessage": None} for name in (*removed, *added)]
        results.extend(
            {"user": name, "errorCode": code, "errorMessage": text} for name, (code, text) in problems.items()
        )
        return state._replace(scram=scram)

    state_file.change(change)
    return results
