from collections.abc import Collection
from typing import final

@final
class KeyFilter:
    def __new__(cls, keys: Collection[bytes | None] | None = None, prefix: bytes | None = None) -> KeyFilter: ...
    def __contains__(self, key: bytes | None) -> bool: ...
