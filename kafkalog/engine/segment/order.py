"""Do batches fit between their neighbours?  What no CRC covers (base offset, magic) is judged here."""

from __future__ import annotations

import numpy as np

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec.batches import rows_in_order


def highest_offset(base_offset: int, following_base: int | None) -> int:
    """The highest offset that a segment may hold, by its base offset and that of the one behind it."""
    return base_offset + INT_MAX if following_base is None else following_base - 1


def misfits(table: np.ndarray, expected: int, limit: int) -> list[int]:
    """Rows of a scan's table whose offsets or magic do not fit.

    `expected` is the lowest offset that the first row may begin with, `limit` the highest that any may end with.  Of a
    batch that jumps ahead and the ones behind it that seem to fall back, the one that jumps is the misfit.
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
