"""The ranges of Java's numbers, in which Kafka counts offsets, positions, sequences and times, and Java's casts.

C has the same in <stdint.h>; ARRAY_BYTES_MAX stands in `_native/codec/layout.pxd` too, and a test compares the two.
"""

from __future__ import annotations

SHORT_MIN, SHORT_MAX = -(1 << 15), (1 << 15) - 1
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
# Java's largest array: no record can be longer, so no payload that Kafka reads whole.
ARRAY_BYTES_MAX = INT_MAX - 8
# Of one file of a segment: Kafka counts positions as ints.  What a damaged size says beyond that is not looked at.
SEGMENT_FILE_BYTES_MAX = INT_MAX


def to_int32(number: int) -> int:
    """Java's `(int)`: the low 32 bits, signed."""
    return ((number - INT_MIN) & 0xFFFFFFFF) + INT_MIN


def to_int64(number: int) -> int:
    """Java's `(long)`: the low 64 bits, signed."""
    return ((number - LONG_MIN) & 0xFFFFFFFFFFFFFFFF) + LONG_MIN
