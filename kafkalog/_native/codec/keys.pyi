from collections.abc import Collection

from typing_extensions import disjoint_base

@disjoint_base
class KeyFilter:
    def __new__(cls, keys: Collection[bytes | None] | None = None, prefix: bytes | None = None) -> KeyFilter: ...
    def __contains__(self, key: bytes | None) -> bool: ...
