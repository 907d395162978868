"""The ranges of Java's integers, which Kafka uses for offsets, positions, sequences and times, and Java's casts.

C has these limits in <stdint.h>.  ARRAY_BYTES_MAX is also defined in `_native/codec/layout.pxd`, and a test compares
both.
"""

from __future__ import annotations

SHORT_MIN, SHORT_MAX = -(1 << 15), (1 << 15) - 1
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
# The size of Java's largest array.  No record, and no payload that Kafka reads as a whole, can be larger.
ARRAY_BYTES_MAX = INT_MAX - 8
# The largest size of a segment's file, because Kafka's positions are ints.  Bytes beyond it are not read.
SEGMENT_FILE_BYTES_MAX = INT_MAX


def to_int32(number: int) -> int:
    """Returns Java's `(int)` cast: the low 32 bits, signed."""
    return ((number - INT_MIN) & 0xFFFFFFFF) + INT_MIN


def to_int64(number: int) -> int:
    """Returns Java's `(long)` cast: the low 64 bits, signed."""
    return ((number - LONG_MIN) & 0xFFFFFFFFFFFFFFFF) + LONG_MIN
