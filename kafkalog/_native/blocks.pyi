from types import TracebackType
from typing import NoReturn, SupportsIndex

from typing_extensions import disjoint_base

class Single:
    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn: ...

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
