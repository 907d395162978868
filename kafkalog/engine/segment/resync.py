"""Finds the next valid batch after damage: its header is plausible and its CRC is right.

One numpy pass over a window finds candidates (plausible size, magic, codec and offset). The CRC, computed in slices,
then proves them. A wrong hit would need a 32-bit CRC to agree by chance. A file made to keep this busy can hold a long
candidate every few bytes. The cost of failed proofs is therefore limited; after that, long candidates are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import (
    CODEC_MASK,
    LOG_OVERHEAD,
    MIN_RECORD_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_BYTES,
    declared_size,
    magic_byte,
)
from kafkalog.engine.segment.scan import LogScan, ScanSlice, crc_matches_in

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.files import File

WINDOW_BYTES = 1 << 20
MIN_RECORD_BYTES = 7  # length, attributes, two deltas, two null lengths, no headers
LONG_BYTES = 1 << 20
FAILED_PROOFS_BYTES = 16 << 30  # some seconds of checksums


def next_batch(file: File, start: int, end: int, *, min_offset: int, base_offset: int) -> BatchHeader | None:
    """Returns the first proven batch at or after `start`, with offsets in [min_offset, base_offset + 2^31), or None.

    The header's `position` is the position in the file.
    """
    position = start
    spent_bytes = 0
    while position < end - SMALLEST_BATCH_BYTES:
        data = file.pread(min(WINDOW_BYTES + RECORD_BATCH_OVERHEAD, end - position), position)
        if len(data) < SMALLEST_BATCH_BYTES:
            return None
        for at in _candidates(data, end - position, min_offset, base_offset):
            place = position + int(at)
            head = data[at : at + RECORD_BATCH_OVERHEAD]
            size = declared_size(head)
            if size > LONG_BYTES and spent_bytes > FAILED_PROOFS_BYTES:
                continue
            told = magic_byte(head) == 2 and len(head) == RECORD_BATCH_OVERHEAD
            if (not told or sensible(native.header_at(head), base_offset)) and crc_matches_in(file, place, size):
                return native.header_at(file.pread(RECORD_BATCH_OVERHEAD, place)).at(place)
            spent_bytes += size
        position += max(len(data) - RECORD_BATCH_OVERHEAD, 1) if position + len(data) < end else len(data)
    return None


def slices_past_damage(file: File, end: int, skip: Callable[[int, int], int]) -> Iterator[ScanSlice]:
    """Yields all valid batches of a file's first `end` bytes, also those after damage.

    `skip` is called with the position of the damage and the scan's verdict, and returns where to continue.
    """
    position = 0
    while position < end:
        scan = LogScan(file, position, end)
        yield from scan
        position = scan.position if scan.position >= end else skip(scan.position, scan.stopped)


def _candidates(data: bytes, room: int, min_offset: int, base_offset: int) -> np.ndarray:
    """Returns the places in `data` where a batch could begin. `room` bytes are left in the file from its start."""
    view = np.frombuffer(data, np.uint8)
    count = len(view) - 22
    if count <= 0 or not view.any():
        return np.empty(0, np.int64)
    sized = view[8 : 8 + count] | view[9 : 9 + count] | view[10 : 10 + count] | view[11 : 11 + count]
    at = np.flatnonzero(
        (view[16 : 16 + count] <= 2) & (view[8 : 8 + count] < 0x80) & (view[0:count] < 0x80) & (sized != 0)
    )
    if not len(at):
        return at
    size = np.zeros(len(at), np.int64)
    offset = np.zeros(len(at), np.int64)
    for byte in range(4):
        size = (size << 8) | view[at + 8 + byte]
    for byte in range(8):
        offset = (offset << 8) | view[at + byte]
    magic = view[at + 16]
    codec = np.where(magic == 2, view[np.minimum(at + 22, len(view) - 1)], view[at + 17]) & CODEC_MASK
    good = (
        (size >= np.where(magic == 2, RECORD_BATCH_OVERHEAD - LOG_OVERHEAD, MIN_RECORD_OVERHEAD))
        & (size + LOG_OVERHEAD <= room - at)
        & (codec < len(codecs.NAMES))
        & (offset >= min_offset)
        & (offset <= base_offset + INT_MAX)
    )
    hits: np.ndarray = at[good]
    return hits


def sensible(header: BatchHeader, base_offset: int) -> bool:
    """Returns whether a v2 header's counts and offsets agree with its size: cheaper than its checksum."""
    return (
        header.base_offset <= header.last_offset <= base_offset + INT_MAX
        and header.count >= 0
        and (header.is_compressed or header.count * MIN_RECORD_BYTES <= header.size - RECORD_BATCH_OVERHEAD)
    )
