"""The entries of a segment's three indexes as numpy sees them: the one Python home of their layouts.

For whoever takes a whole file of them at once.  Offsets are relative to the segment's base but in a .txnindex, where
they are whole; times are milliseconds.
"""

from __future__ import annotations

import numpy as np

OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])  # 8 bytes
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])  # 12 bytes
TXN_ENTRY = np.dtype(  # 34 bytes: a version, then the fields of AbortedTxn
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
