"""An iterator whose repr says what it yields, unlike a Python generator.

`for` iterates over the generator itself, so that it costs nothing. Knows nothing of the items.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from inspect import GEN_CLOSED, getgeneratorstate
from typing import NoReturn, TypeVar

T = TypeVar("T")


class Lazy(Iterator[T]):
    """The items of the generator `inner`. One thread may use it at a time."""

    __slots__ = ("_inner", "_what")

    def __init__(self, inner: Generator[T], what: str) -> None:
        """`what` names the items, such as "records"."""
        self._inner = inner
        self._what = what

    def __iter__(self) -> Iterator[T]:
        return self._inner

    def __next__(self) -> T:
        return next(self._inner)

    def __aiter__(self) -> NoReturn:
        raise TypeError(
            f"use `for` with these {self._what}; for `async for` there are readers: "
            '`async for record in store.reader(topics=["orders"])`'
        )

    def close(self) -> None:
        """Closes the generator."""
        self._inner.close()

    def __repr__(self) -> str:
        ended = "ended " if getgeneratorstate(self._inner) == GEN_CLOSED else ""
        return f"<{ended}iterator of {self._what}: `for`, `list()`, `next()`>"
