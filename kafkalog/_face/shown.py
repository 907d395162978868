"""What completion shows of an object: the names that its users call, not those that kafkalog's modules call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class Shown:
    """Leaves the names of `_inner` out of `dir()`."""

    __slots__ = ()

    _inner: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name not in self._inner]
