"""Finds the whole batches in a column's row, which has the bytes of a fetch response or of a .log file.

A response may end in an incomplete batch, and nothing in its bytes says so.  It counts as damage if the bytes
contradict that: no header begins there, or the checksum is right for fewer bytes than the size claims, or whole batches
are inside the claimed size.  If a header ends before its magic, only its offset and size are checked, as far as they
exist: text, read as a size, is 150 MB or more.  A row is in memory, so all of it is checked before the first record is
returned.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.files.closed import ClosedFile
from kafkalog.engine.format.batch import (
    LENGTH_AT,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_BYTES,
    declared_size,
    magic_byte,
    smallest_bytes,
)
from kafkalog.engine.segment.loss import reason
from kafkalog.engine.segment.resync import next_batch, sensible
from kafkalog.errors import CorruptRecordException

LIKELY_BYTES_MAX = 128 << 20  # four ASCII letters are a larger number
FILLS = (b"\0", b"\xff")  # the least and the greatest value of a number whose end is missing


class _InMemory(ClosedFile):
    """Bytes as a file, for code that only reads at positions."""

    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        super().__init__("")
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def pread(self, n: int, position: int) -> bytes:
        return bytes(self._data[position : position + n])

    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        found = self._data[position : position + len(buffer)]
        memoryview(buffer)[: len(found)] = found
        return len(found)


def whole_batches(data: memoryview, *, truncates: bool) -> NDArray[np.void]:
    """Returns the table (BATCH_DTYPE) of the whole batches in `data`, up to the first damage.

    Raises CorruptRecordException with the position of the damage, unless `truncates`.
    """
    table, verdict, end = native.scan(data, framing=native.FRAMING_BUFFER, max_batches=INT_MAX)
    what = None if truncates else damage_at(data, verdict, end)
    if what is not None:
        raise CorruptRecordException(
            f"found {what} in a row's bytes", position=end, hint='damage="truncate" returns the records before it'
        )
    return table


def damage_at(data: memoryview, verdict: int, position: int) -> str | None:
    """Says what is wrong where a scan stopped; None at the end, or at a batch that is only incomplete."""
    if verdict not in (native.OK, native.TORN):
        return reason(verdict)
    head = data[position : position + RECORD_BATCH_OVERHEAD]
    if len(head) >= LENGTH_AT and head[0] & 0x80:
        return "a negative offset"
    if verdict == native.OK:  # less than a header up to its magic
        return None if may_be_size(head[LENGTH_AT:LOG_OVERHEAD]) else reason(native.BAD_SIZE)
    size, left = declared_size(head), len(data) - position
    if size > INT_MAX or (magic_byte(head) == 2 and size < RECORD_BATCH_OVERHEAD):
        return reason(native.BAD_SIZE)
    if left < smallest_bytes(magic_byte(head)):
        return None
    claim = f"a batch that claims {size} bytes, of which {left} exist, but"
    if native.crc_matches(data, position, left):
        return f"{claim} its checksum is right for these"
    header = native.header_at(head)
    first, last = header.base_offset, header.base_offset
    if header.magic == 2 and sensible(header, first):
        last = header.last_offset
    # The values of an incomplete batch may be batches too, but their offsets differ, except by chance.
    found = next_batch(_InMemory(data), position + 1, len(data), min_offset=last + 1, base_offset=first)
    return None if found is None else f"{claim} a whole one begins at byte {found.position}"


def may_be_size(field: memoryview) -> bool:
    """Whether a size field that begins with these bytes, up to four, is probably a batch's size and not text.

    A larger batch is recognized by its magic, once that is available.
    """
    if not field:
        return True
    low, high = (LOG_OVERHEAD + int.from_bytes(bytes(field).ljust(4, fill), "big", signed=True) for fill in FILLS)
    return high >= SMALLEST_BATCH_BYTES and low <= LIKELY_BYTES_MAX
