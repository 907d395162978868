"""The wire format of schema registries: a zero byte, a schema's number (int32, big-endian), the payload. For Protobuf,
the indexes of the message in its schema are before the payload.

`split` finds the payloads in a binary column; `gather` builds a column of payloads in any order. Columns in, columns
out; the caller decodes the payloads.
"""
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

import numpy as np

from kafkalog._native.codec.arrow cimport Column, RecordColumns, taken_memory
from kafkalog._native.codec.layout cimport KL_ONCE, load8, load32
from kafkalog._native.codec.memory cimport Block, reserve
from kafkalog._native.codec.octets cimport is_null, open_octets, open_rows

cdef enum:
    HEADER_BYTES = 5
    # The largest encoded size of message indexes: they are identified by one number of 64 bits.
    INDEXES_BYTES_MAX = 8
    # The numbers of rows without a schema.
    OF_NULL = -1
    OF_NO_MAGIC = -2
    OF_BAD_INDEXES = -3

IS_NULL, NO_MAGIC, BAD_INDEXES = OF_NULL, OF_NO_MAGIC, OF_BAD_INDEXES


cdef int64_t read_index(const uint8_t** at, const uint8_t* end) noexcept nogil:
    """Reads a zigzag varint that is not negative; returns -1 for anything else."""
    cdef uint64_t found = 0
    cdef int shift = 0
    cdef uint64_t seen
    while at[0] < end and shift < 35:
        seen = load8(at[0])
        at[0] += 1
        found |= (seen & 0x7F) << shift
        if seen < 0x80:
            return -1 if found & 1 else <int64_t>(found >> 1)
        shift += 7
    return -1


cdef const uint8_t* skip_indexes(const uint8_t* at, const uint8_t* end, uint64_t* code) noexcept nogil:
    """Skips message indexes (how many, then each); NULL if they are invalid. `code` gets their bytes."""
    cdef const uint8_t* start = at
    cdef int64_t count = read_index(&at, end)
    cdef int shift = 0
    if count < 0:
        return NULL
    while count > 0:
        if read_index(&at, end) < 0:
            return NULL
        count -= 1
    if at - start > INDEXES_BYTES_MAX:
        return NULL
    code[0] = 0
    while start < at:
        code[0] |= <uint64_t>load8(start) << shift
        shift += 8
        start += 1
    return at


def split(data, offsets, validity=None, int64_t first_row=0, *, bint message_indexes=False):
    """Returns (schema numbers, starts, ends, codes) of the rows' payloads, int64 (codes: uint64); positions are in
    `data`.

    The number is IS_NULL for a null, NO_MAGIC for a row that does not have the format, BAD_INDEXES for one with message
    indexes that are invalid or take more than eight bytes. A code is the bytes of the message indexes, the first one
    lowest. `data`, `offsets` (int32, one more than there are rows) and `validity` (a bitmap, or None) are the buffers
    of an Arrow binary column. Bit `first_row` of the bitmap belongs to the first row. Raises IndexError if an offset is
    outside the data, or the bitmap is too short.
    """
    cdef Py_buffer data_view, offsets_view, bits_view
    cdef const int32_t* ends
    cdef const uint8_t* base
    cdef const uint8_t* at
    cdef const uint8_t* bits
    cdef int64_t rows, row, start, end
    cdef bint inside = True
    cdef int64_t[::1] ids, starts, stops
    cdef uint64_t[::1] codes
    memset(&bits_view, 0, sizeof(Py_buffer))
    memset(&offsets_view, 0, sizeof(Py_buffer))
    open_octets(data, &data_view)
    try:
        rows = open_rows(offsets, validity, first_row, &offsets_view, &bits_view)
        bits = <const uint8_t*>bits_view.buf
        found = np.full(rows, OF_NULL, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.int64), \
            np.zeros(rows, np.uint64)
        ids, starts, stops, codes = found
        ends = <const int32_t*>offsets_view.buf
        base = <const uint8_t*>data_view.buf
        with nogil:
            for row in range(rows):
                start, end = ends[row], ends[row + 1]
                KL_ONCE(start)
                KL_ONCE(end)
                if start < 0 or end < start or end > data_view.len:
                    inside = False
                    break
                if is_null(bits, first_row + row):
                    continue
                at = base + start
                if end - start < HEADER_BYTES or load8(at) != 0:
                    ids[row] = OF_NO_MAGIC
                    continue
                ids[row] = load32(at + 1)
                at += HEADER_BYTES
                if message_indexes:
                    at = skip_indexes(at, base + end, &codes[row])
                    if at == NULL:
                        ids[row] = OF_BAD_INDEXES
                        continue
                starts[row], stops[row] = at - base, end
        if not inside:
            raise IndexError("an offset is outside the column's data")
        return found
    finally:
        PyBuffer_Release(&bits_view)
        PyBuffer_Release(&offsets_view)
        PyBuffer_Release(&data_view)


def gather(data, starts, ends, rows):
    """Returns columns with one binary column, "payload": for each of `rows`, the bytes from its start to its end.

    All arguments are int64. Raises IndexError if one is outside, or all payloads take more than 2^31 - 1 bytes.
    """
    cdef Py_buffer data_view
    cdef const int64_t[::1] first = np.ascontiguousarray(starts, np.int64)
    cdef const int64_t[::1] last = np.ascontiguousarray(ends, np.int64)
    cdef const int64_t[::1] order = np.ascontiguousarray(rows, np.int64)
    cdef Block places, octets
    cdef int64_t i, row, start, end, count = order.shape[0], filled = 0
    cdef bint inside = True, good = False
    memset(&places, 0, sizeof(Block))
    memset(&octets, 0, sizeof(Block))
    open_octets(data, &data_view)
    try:
        with nogil:
            good = reserve(&places, 4 * (count + 1))
            if good:
                (<int32_t*>places.at)[0] = 0
            for i in range(count if good else 0):
                row = order[i]
                KL_ONCE(row)
                inside = 0 <= row < first.shape[0] and row < last.shape[0]
                if not inside:
                    break
                start, end = first[row], last[row]
                KL_ONCE(start)
                KL_ONCE(end)
                inside = 0 <= start <= end <= data_view.len and filled + (end - start) <= INT32_MAX
                if not inside:
                    break
                good = reserve(&octets, filled + (end - start))
                if not good:
                    break
                if end > start:
                    memcpy(octets.at + filled, <const uint8_t*>data_view.buf + start, <size_t>(end - start))
                filled += end - start
                (<int32_t*>places.at)[i + 1] = <int32_t>filled
        if not inside:
            raise IndexError("a payload is outside the column's data")
        if not good:
            raise MemoryError
        payload = Column(
            "payload", "z", count, 0, [None, taken_memory(&places, 4 * (count + 1)), taken_memory(&octets, filled)],
            [], True,
        )
        return RecordColumns(Column("", "+s", count, 0, [None], [payload], False))
    finally:
        free(places.at)
        free(octets.at)
        PyBuffer_Release(&data_view)
