from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, disjoint_base

from kafkalog._native.codec.offset_map import SkimpyOffsetMap

def add_keys(
    map: SkimpyOffsetMap,
    data: Buffer,
    table: npt.NDArray[Any],
    first: int = 0,
    *,
    base_position: int = 0,
    start_offset: int = 0,
    limit: int,
    payload: Buffer | None = None,
    vouched: bool = False,
    inflate: Callable[[int, memoryview], Buffer | None] | None = None,
) -> tuple[int, bool, int]: ...

@disjoint_base
class Survivors:
    bytes_read: int
    messages_read: int
    messages_retained: int
    bytes_retained: int
    invalid_messages: int
    tombstones: int
    max_offset: int
    def __new__(
        cls,
        map: SkimpyOffsetMap,
        *,
        now_ms: int,
        delete_retention_ms: int,
        keep_ends: Sequence[int] | npt.NDArray[np.int64] = ...,
    ) -> Self: ...
    def take(
        self,
        data: Buffer,
        table: npt.NDArray[Any],
        first: int = 0,
        *,
        base_position: int = 0,
        room: int = ...,
        inflate: Callable[[int, memoryview], Buffer | None] | None = None,
        deflate: Callable[[int, bytes], Buffer] | None = None,
    ) -> int: ...
    def take_batch(
        self, data: Buffer, table: npt.NDArray[Any], row: int, payload: Buffer | None = None, *, base_position: int = 0
    ) -> tuple[bytes, bytes] | bool | None: ...
    def add_batch(self, header: Buffer, payload: Buffer) -> None: ...
    @property
    def size(self) -> int: ...
    def counted(self) -> tuple[int, int, int, int, int, int]: ...
    def bytes(self) -> bytes: ...
