"""Shortens the errors that Spark shows to its users to one sentence at the end of a short traceback.

Spark puts the whole traceback of a Python source into its message, and adds an SQLSTATE or a stream's plan after it.
The text of a KafkalogError says everything, so its place in the code is left out and the sentence is easy to find.
Other exceptions are bugs and keep their tracebacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

from kafkalog.errors import KafkalogError

Work = TypeVar("Work", bound=Callable[..., Any])


def plainly(work: Work) -> Work:
    """Wraps a method so that the tracebacks of its KafkalogErrors begin here, also those of the iterator it returns."""

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
