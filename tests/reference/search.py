"""AbstractIndex's search over a list of keys: the specification of `_native.search`."""

from __future__ import annotations

from collections.abc import Sequence

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
