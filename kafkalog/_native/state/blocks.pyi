from collections.abc import Callable
from threading import RLock
from types import TracebackType
from typing import NoReturn, Protocol, Self, SupportsIndex, final

from typing_extensions import disjoint_base

class Single:
    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn: ...

class _Waiter(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

@disjoint_base
class Block(Single):
    _is_over: bool
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def _abandon(self) -> None: ...

class Closing(Single):
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def close(self) -> None: ...

@final
class Held:
    def __new__(
        cls,
        lock: RLock,
        settle: Callable[[], object],
        afterwards: list[Callable[[], object]],
        run: Callable[[list[Callable[[], object]]], object],
    ) -> Self: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exc: object) -> None: ...

@final
class Turn:
    def joined(self) -> _Waiter: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, *exc: object) -> None: ...
