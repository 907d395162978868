"""Computes a number for each row of an Arrow binary column: its CRC-32C, or the partition of its key.

`data` and `offsets` (int32, one more than there are rows) are the column's buffers. A null row gets the number of zero
bytes; the caller, which has the bitmap, skips it. Columns in, columns out; the module knows no Arrow library.
"""
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

import numpy as np

from kafkalog._native.codec.crc32c cimport crc32c_update
from kafkalog._native.codec.layout cimport KL_ONCE
from kafkalog._native.codec.octets cimport open_octets
from kafkalog._native.codec.partitioner cimport counted, of_key


def crc32c_column(data, offsets):
    """Returns the CRC-32C of each row, as int64. Raises IndexError if an offset is outside the data."""
    return _each(data, offsets, 0)


def partition_column(data, offsets, partitions):
    """Returns the partition of the key in each row, among `partitions` partitions, as int64. Raises IndexError if an
    offset is outside the data, or for fewer than one partition."""
    return _each(data, offsets, counted(partitions))


cdef _each(data, offsets, int32_t partitions):
    cdef Py_buffer data_view, offsets_view
    cdef const int32_t* at
    cdef const uint8_t* base
    cdef int64_t rows, row, start, end
    cdef int64_t[::1] out
    cdef bint inside = True
    memset(&offsets_view, 0, sizeof(Py_buffer))
    open_octets(data, &data_view)
    try:
        open_octets(offsets, &offsets_view)
        rows = offsets_view.len // <Py_ssize_t>sizeof(int32_t) - 1
        if rows < 0:
            raise IndexError("offsets: found none, expected one more than there are rows")
        found = np.empty(rows, np.int64)
        out = found
        at = <const int32_t*>offsets_view.buf
        base = <const uint8_t*>data_view.buf
        with nogil:
            for row in range(rows):
                start, end = at[row], at[row + 1]
                KL_ONCE(start)
                KL_ONCE(end)
                if start < 0 or end < start or end > data_view.len:
                    inside = False
                    break
                if partitions:
                    out[row] = of_key(base + start, end - start, partitions)
                else:
                    out[row] = crc32c_update(0, base + start, <size_t>(end - start))
        if not inside:
            raise IndexError("an offset is outside the column's data")
        return found
    finally:
        PyBuffer_Release(&offsets_view)
        PyBuffer_Release(&data_view)
