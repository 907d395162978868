"""An iterator that says what it is: what a generator of Python's own does not.

`for` goes over the generator itself, so that nothing is paid for it.  Knows nothing of what is in it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import NoReturn, TypeVar

T = TypeVar("T")


class Lazy(Iterator[T]):
    """The things of `inner`, which is asked for the next one by whoever has this; one thread's at a time."""

    __slots__ = ("_inner", "_what")

    def __init__(self, inner: Generator[T], what: str) -> None:
        """`what`: "records", say."""
        self._inner = inner
        self._what = what

    def __iter__(self) -> Iterator[T]:
        return self._inner

    def __next__(self) -> T:
        return next(self._inner)

    def __aiter__(self) -> NoReturn:
        raise TypeError(
            f"these {self._what} are gone over by `for`; for `async for` there are readers: "
            '`async for record in store.reader(topics=["orders"])`'
        )

    def close(self) -> None:
        """As a generator's close."""
        self._inner.close()

    def __repr__(self) -> str:
        ended = "ended " if getgeneratorstate(self._inner) == GEN_CLOSED else ""
        return f"<{ended}iterator of {self._what}: `for`, `list()`, `next()`>"
