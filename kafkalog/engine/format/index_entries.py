"""Entries of the three index files: each layout as a struct for one entry and as a numpy type for many.

A new kind of index begins with its table here.  The C half is `_native/codec/layout.pxd`, and a test compares the two.
This module knows no file and no rule: `kafkalog.engine.segment` (`offset_index`, `time_index`, `transaction_index`)
holds the rules that entries must follow.  The offset index and the time index store offsets minus the segment's base
offset.
"""

from __future__ import annotations

import struct

import numpy as np


def _layouts(*fields: tuple[str, str]) -> tuple[struct.Struct, np.dtype[np.void]]:
    """Returns the layouts of one entry and of many: the fields in order, big-endian, as (name, struct's code)."""
    one = struct.Struct(">" + "".join(code for _, code in fields))
    many = np.dtype([(name, ">" + code) for name, code in fields])
    assert one.size == many.itemsize
    return one, many


OFFSET_ENTRY, OFFSET_ENTRIES = _layouts(("offset", "i"), ("position", "i"))
TIME_ENTRY, TIME_ENTRIES = _layouts(("timestamp", "q"), ("offset", "i"))
TXN_ENTRY, TXN_ENTRIES = _layouts(
    ("version", "h"), ("producer_id", "q"), ("first_offset", "q"), ("last_offset", "q"), ("last_stable_offset", "q")
)
