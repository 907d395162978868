"""Which error code a coordinator answers with if an operation on one of its partitions fails.

A client asks the coordinator of its group, and does not know of the partition that keeps the group's state. So an error
of that partition becomes one of the coordinator. Source: CoordinatorOperationExceptionHelper (4.4.0).
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.errors import BadBytesError

CODES: Mapping[Errors, Errors] = {
    Errors.NETWORK_EXCEPTION: Errors.COORDINATOR_LOAD_IN_PROGRESS,
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.REQUEST_TIMED_OUT: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.RECORD_LIST_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.INVALID_FETCH_SIZE: Errors.UNKNOWN_SERVER_ERROR,
}


def operation_code(error: BaseException) -> Errors:
    """Returns the code. A partition whose records cannot be understood has no coordinator."""
    if isinstance(error, BadBytesError):
        return Errors.NOT_COORDINATOR
    code = code_of(error)
    return CODES.get(code, code)
