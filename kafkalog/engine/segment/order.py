"""Checks whether batches fit between their neighbours.

No CRC covers the base offset and the magic; this module does.
"""

from __future__ import annotations

import numpy as np

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec.batches import rows_in_order


def highest_offset(base_offset: int, following_base: int | None) -> int:
    """Returns the highest offset that a segment may hold, from its base offset and that of the next segment."""
    return base_offset + INT_MAX if following_base is None else following_base - 1


def misfits(table: np.ndarray, expected: int, limit: int) -> list[int]:
    """Returns the rows of a scan's table whose offsets or magic do not fit.

    `expected` is the lowest offset that the first row may begin with; `limit` is the highest that any row may end with.
    If a batch jumps ahead and the next ones seem to fall back, the misfit is the one that jumps.
    """
    if expected <= LONG_MAX and rows_in_order(table, expected, min(limit, LONG_MAX)) == len(table):
        return []
    modern = table["magic"] >= 2
    starts = np.where(modern, table["base_offset"], table["last_offset"])  # a legacy wrapper names only its last offset
    ends = table["last_offset"]
    plain = (table["magic"] >= 0) & (table["magic"] <= 2) & (ends <= limit) & (ends >= starts)
    found = []
    for row in range(len(table)):
        fits = bool(plain[row]) and int(starts[row]) >= expected
        if fits and int(starts[row]) > expected and row + 1 < len(table) and bool(plain[row + 1]):
            following = int(starts[row + 1])
            fits = not expected <= following <= int(ends[row])
        if fits:
            expected = int(ends[row]) + 1
        else:
            found.append(row)
    return found
