"""Finding the next real batch behind damage: a header that makes sense and whose CRC is right.

Candidates are found in one numpy pass a window (size, magic, codec and offset plausible), then proved by their CRC.
A wrong hit needs a 32-bit CRC to agree by chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkalog._native import batches as native

if TYPE_CHECKING:
    from kafkalog._native.batches import BatchHeader
    from kafkalog.files import File

WINDOW_BYTES = 1 << 20
HEADER_BYTES = 61
LOG_OVERHEAD = 12
MIN_SIZE_FIELD = 14
V2_MIN_SIZE_FIELD = 49
OFFSET_SPAN = 0x7FFFFFFF


def next_batch(file: File, start: int, end: int, *, min_offset: int, base_offset: int) -> BatchHeader | None:
    """The first provable batch at or behind `start`, its offsets in [min_offset, base_offset + 2^31); None if none.

    The header's `position` is the position in the file.
    """
    position = start
    while position < end - LOG_OVERHEAD - MIN_SIZE_FIELD:
        data = file.pread(min(WINDOW_BYTES + HEADER_BYTES, end - position), position)
        if len(data) < LOG_OVERHEAD + MIN_SIZE_FIELD:
            return None
        for at in _candidates(data, end - position, min_offset, base_offset):
            header = _proved(file, position + int(at), end)
            if header is not None:
                return header
        position += max(len(data) - HEADER_BYTES, 1) if position + len(data) < end else len(data)
    return None


def _candidates(data: bytes, room: int, min_offset: int, base_offset: int) -> np.ndarray:
    """Places in `data` where a batch could begin; `room` bytes are left in the file from its start."""
    view = np.frombuffer(data, np.uint8)
    count = len(view) - 22
    if count <= 0:
        return np.empty(0, np.int64)
    at = np.flatnonzero((view[16 : 16 + count] <= 2) & (view[8 : 8 + count] < 0x80) & (view[0:count] < 0x80))
    if not len(at):
        return at
    size = np.zeros(len(at), np.int64)
    offset = np.zeros(len(at), np.int64)
    for byte in range(4):
        size = (size << 8) | view[at + 8 + byte]
    for byte in range(8):
        offset = (offset << 8) | view[at + byte]
    magic = view[at + 16]
    codec = np.where(magic == 2, view[np.minimum(at + 22, len(view) - 1)], view[at + 17]) & 7
    good = (
        (size >= np.where(magic == 2, V2_MIN_SIZE_FIELD, MIN_SIZE_FIELD))
        & (size + LOG_OVERHEAD <= room - at)
        & (codec <= 4)
        & (offset >= min_offset)
        & (offset <= base_offset + OFFSET_SPAN)
    )
    hits: np.ndarray = at[good]
    return hits


def _proved(file: File, position: int, end: int) -> BatchHeader | None:
    head = file.pread(min(HEADER_BYTES, end - position), position)
    size = LOG_OVERHEAD + int.from_bytes(head[8:12], "big", signed=True)
    if position + size > end:
        return None
    data = file.pread(size, position)
    if len(data) < size or not native.crc_matches(data):
        return None
    return native.header_at(data).at(position)
