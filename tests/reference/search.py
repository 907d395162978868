"""AbstractIndex's search over a list of keys: the specification of `_native.search`; and an index over bare bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkalog._native.state.search import OFFSET, TIME, IndexEnd

if TYPE_CHECKING:
    from typing_extensions import Buffer

WARM_BYTES = 8192


def find(keys: Sequence[int], target: int, *, entry_bytes: int, upper: bool) -> int:
    """The slot that Kafka's `indexSlotRangeFor` answers; -1 for none."""
    last = len(keys) - 1
    if last < 0:
        return -1
    first_hot = max(0, last - WARM_BYTES // entry_bytes)
    if keys[first_hot] < target:
        low, high = first_hot, last
    elif keys[0] > target:
        return 0 if upper else -1
    else:
        low, high = 0, first_hot
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle] > target:
            high = middle - 1
        elif keys[middle] < target:
            low = middle
        else:
            return middle
    if upper:
        return low + 1 if low < last else -1
    return low


def offset_end(data: Buffer, entries: int, base: int = 0) -> IndexEnd:
    """An offset index that holds `data`; its lookups answer (offset, position)."""
    index = IndexEnd(base, tuple, OFFSET)
    index.hold(data)
    index.entries = entries
    return index


def time_end(data: Buffer, entries: int, base: int = 0) -> IndexEnd:
    """A time index; its lookups answer (timestamp, offset)."""
    index = IndexEnd(base, tuple, TIME)
    index.hold(data)
    index.entries = entries
    return index
