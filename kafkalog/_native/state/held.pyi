from typing import Any, final

from typing_extensions import disjoint_base

@disjoint_base
class Held:
    channel: Any
    used: bool
    closed: bool
    def shut(self, channel: Any = None) -> None: ...

@final
class Pin:
    def __new__(cls, held: Held) -> Pin: ...

@disjoint_base
class HeldFiles:
    def __len__(self) -> int: ...
    def enter(self, held: Held, channel: Any = None) -> bool: ...
    def trim(self, limit: int) -> int: ...
