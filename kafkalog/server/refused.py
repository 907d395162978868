"""The refusal of one part of a request: a topic, a resource, a partition, with the error code of its result."""

from __future__ import annotations

from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.errors import KafkalogError

Refusal = tuple[Errors, "str | None"]
ALLOWED: Refusal = (Errors.NONE, None)


class Refused(Exception):
    """A part of a request is refused; `refusal` goes into its result."""

    def __init__(self, code: Errors, message: str | None = None) -> None:
        super().__init__(message)
        self.refusal: Refusal = (code, message)


def refusal_of(error: KafkalogError | Refused) -> Refusal:
    """Returns the error code and the message of a result."""
    return error.refusal if isinstance(error, Refused) else (code_of(error), error.message)
