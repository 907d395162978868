"""Which bytes of a column's row are batches: those of a fetch response, or of a .log file.

A response may end in a batch that is cut off, and nothing in its bytes says whether that is so.  It is damage where
they contradict it: no header begins there, or the checksum is right for fewer bytes than the size claims, or whole
batches lie within what it claims.  Of a header that is cut off before its magic the offset and the size are left to
tell, as far as they are there: text, as a size, is 150 MB or more.  A row is in memory, so that all is looked at before
the first record is given.
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

LIKELY_BYTES_MAX = 128 << 20  # four letters of ASCII are more
FILLS = (b"\0", b"\xff")  # for the least and the most that a number is whose end is missing


class _InMemory(ClosedFile):
    """Bytes as a file, for who only reads with positions."""

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
    """The table (BATCH_DTYPE) of the batches that `data` holds whole, up to the first damage.  CorruptRecordException
    with its byte, unless `truncates`."""
    table, verdict, end = native.scan(data, framing=native.FRAMING_BUFFER, max_batches=INT_MAX)
    what = None if truncates else damage_at(data, verdict, end)
    if what is not None:
        raise CorruptRecordException(
            f"found {what} in a row's bytes", position=end, hint='damage="truncate" takes what lies before it'
        )
    return table


def damage_at(data: memoryview, verdict: int, position: int) -> str | None:
    """What is wrong where a scan stopped; None at the end, or at a batch that is only cut off."""
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
    claim = f"a batch that claims {size} bytes, of which {left} are there, but"
    if native.crc_matches(data, position, left):
        return f"{claim} its checksum is right without more"
    header = native.header_at(head)
    first, last = header.base_offset, header.base_offset
    if header.magic == 2 and sensible(header, first):
        last = header.last_offset
    # The values of a batch that is cut off may be batches as well: of other offsets, but by chance.
    found = next_batch(_InMemory(data), position + 1, len(data), min_offset=last + 1, base_offset=first)
    return None if found is None else f"{claim} a whole one begins at byte {found.position}"


def may_be_size(field: memoryview) -> bool:
    """Whether a size field that begins so, with up to four bytes, is likely to be one of a batch, and not text.

    A larger batch is known by its magic, once that is there.
    """
    if not field:
        return True
    low, high = (LOG_OVERHEAD + int.from_bytes(bytes(field).ljust(4, fill), "big", signed=True) for fill in FILLS)
    return high >= SMALLEST_BATCH_BYTES and low <= LIKELY_BYTES_MAX
