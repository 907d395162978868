from typing import Any

from typing_extensions import disjoint_base

from kafkalog._native.state.tail import SegmentTail

def batch_with_offset(file: Any, target: int, position: int, end: int) -> tuple[int, int, int] | None: ...

@disjoint_base
class RecordsSlice:
    def __new__(cls, file: Any, position: int, size: int) -> RecordsSlice: ...
    @property
    def file(self) -> Any: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...
    def to_bytes(self) -> bytes: ...

def slice_at(
    kinds: tuple[type, type, type],
    segment_base: int,
    log: Any,
    channel: Any,
    found: tuple[int, int, int],
    max_size: int,
    max_position: int,
) -> Any: ...
def read(
    tail: SegmentTail,
    kinds: tuple[type, type, type],
    offset: int,
    max_size: int,
    max_position: int,
    min_one_message: bool,
) -> Any: ...
