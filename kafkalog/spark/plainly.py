"""Errors as Spark shows them to its user: one sentence at the end of a short traceback.

Spark puts a Python source's whole traceback into its message, and its own last word (an SQLSTATE, a stream's plan)
behind it.  What kafkalog raises on purpose says all that there is to know in its text; where it was raised is left out,
so that the sentence is found.  Other exceptions are bugs, and keep their traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from kafkalog.errors import KafkalogError

Work = TypeVar("Work", bound=Callable[..., Any])


def plainly(work: Work) -> Work:
    """The same method, whose KafkalogErrors begin here; also those of the iterator that it returns."""

    @wraps(work)
    def plain(*given: Any, **named: Any) -> Any:
        try:
            found = work(*given, **named)
        except KafkalogError as error:
            raise error.with_traceback(None) from None
        return _each(found) if isinstance(found, Iterator) else found

    return plain  # type: ignore[return-value]


def _each(found: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from found
    except KafkalogError as error:
        raise error.with_traceback(None) from None
