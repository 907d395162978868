"""Keys of records as a column, which is how SkimpyOffsetMap takes them: bytes joined, int64 bounds beside them."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence


def column(keys: Sequence[bytes]) -> tuple[bytes, array[int]]:
    """The keys joined, and where each begins; key i is [bounds[i], bounds[i + 1])."""
    return b"".join(keys), array("q", itertools.accumulate(map(len, keys), initial=0))
