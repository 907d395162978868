from collections.abc import Callable, Sequence
from typing import Final, final

from typing_extensions import Buffer

STICKY_BYTES: Final[int]

def partition_for_key(key: Buffer, partitions: int) -> int: ...

@final
class StickyPartition:
    def __init__(self, choose: Callable[[Sequence[int]], int] = ...) -> None: ...
    def take(self, value_bytes: int, partitions: Sequence[int]) -> int: ...
