"""Converts a column of bytes to fields of JSON objects: `"name":"text"`, `"name":null`, or `"name_base64":"..."`.

Columns in, columns out, both in Arrow's layout; the caller writes the text around the fields. Loops run without the
GIL. Every offset of a column is checked against its data before it is used, because a buffer may change meanwhile: then
the text is undefined, but nothing outside the data is read.
"""
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

import numpy as np

from kafkalog._native.codec.layout cimport KL_ONCE
from kafkalog._native.codec.memory cimport Block, reserve
from kafkalog._native.codec.octets cimport is_null, open_octets, open_rows
from kafkalog._native.codec.utf8 cimport is_utf8

cdef const uint8_t* DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef const uint8_t* HEX = b"0123456789abcdef"

cdef struct Text:
    Block block
    int64_t filled


cdef inline bint put(Text* out, const uint8_t* at, int64_t size) noexcept nogil:
    if not size:
        return True
    if not reserve(&out.block, out.filled + size):
        return False
    memcpy(out.block.at + out.filled, at, <size_t>size)
    out.filled += size
    return True


cdef bint put_escaped(Text* out, const uint8_t* at, int64_t size) noexcept nogil:
    """Escapes as Python's json without ensure_ascii does: quotes, backslashes and control characters."""
    cdef int64_t start = 0
    cdef int64_t i
    cdef uint8_t seen
    cdef uint8_t[6] escape
    for i in range(size):
        seen = at[i]
        if seen >= 0x20 and seen != c'"' and seen != c'\\':
            continue
        if not put(out, at + start, i - start):
            return False
        start = i + 1
        escape[0] = c'\\'
        escape[1] = seen
        if seen == c'\n':
            escape[1] = c'n'
        elif seen == c'\r':
            escape[1] = c'r'
        elif seen == c'\t':
            escape[1] = c't'
        elif seen == 8:
            escape[1] = c'b'
        elif seen == 12:
            escape[1] = c'f'
        elif seen < 0x20:
            escape[1] = c'u'
            escape[2] = escape[3] = c'0'
            escape[4] = HEX[seen >> 4]
            escape[5] = HEX[seen & 15]
        if not put(out, escape, 6 if escape[1] == c'u' else 2):
            return False
    return put(out, at + start, size - start)


cdef bint put_base64(Text* out, const uint8_t* at, int64_t size) noexcept nogil:
    cdef uint8_t* to
    cdef int64_t i = 0
    cdef uint8_t first, second, third
    if not size:
        return True
    if not reserve(&out.block, out.filled + (size + 2) // 3 * 4):
        return False
    to = out.block.at + out.filled
    out.filled += (size + 2) // 3 * 4
    while i < size:
        first = at[i]
        second = at[i + 1] if i + 1 < size else 0
        third = at[i + 2] if i + 2 < size else 0
        to[0] = DIGITS[first >> 2]
        to[1] = DIGITS[(first & 3) << 4 | second >> 4]
        to[2] = DIGITS[(second & 15) << 2 | third >> 6] if i + 1 < size else c'='
        to[3] = DIGITS[third & 63] if i + 2 < size else c'='
        to += 4
        i += 3
    return True


cdef inline bint put_field(
    Text* out, const uint8_t* label, int64_t label_size, const uint8_t* at, int64_t size, bint absent, bint in_base64
) noexcept nogil:
    """`label` is the text before the name, and the name, without its last quote."""
    if not put(out, label, label_size):
        return False
    if absent:
        return put(out, b'":null', 6)
    if in_base64 or not is_utf8(at, size):
        return put(out, b'_base64":"', 10) and put_base64(out, at, size) and put(out, b'"', 1)
    return put(out, b'":"', 3) and put_escaped(out, at, size) and put(out, b'"', 1)


def json_fields(bytes before, bytes name, data, offsets, validity=None, int64_t first_row=0, *, bint in_base64=False):
    """Returns the field of each row -> (the concatenated texts as bytes, int64 offsets of the rows and the end).

    `before` is inserted unchanged before each field. `data`, `offsets` (int32, one more than there are rows) and
    `validity` (a bitmap, or None) are the buffers of an Arrow binary or string column. Bit `first_row` of the bitmap
    belongs to the first row. `in_base64` also encodes text that is UTF-8. Raises IndexError if an offset is outside the
    data, or the bitmap is too short.
    """
    cdef Py_buffer data_view, offsets_view, bits_view
    cdef Text out
    cdef const int32_t* at
    cdef const uint8_t* label
    cdef const uint8_t* bits
    cdef int64_t label_size, rows, row, start, end
    cdef int64_t[::1] places
    cdef bint absent
    cdef bint good = True
    cdef bint inside = True
    head = before + b'"' + name
    label, label_size = <const uint8_t*><const char*>head, len(head)
    memset(&out, 0, sizeof(Text))
    memset(&offsets_view, 0, sizeof(Py_buffer))
    memset(&bits_view, 0, sizeof(Py_buffer))
    open_octets(data, &data_view)
    try:
        try:
            rows = open_rows(offsets, validity, first_row, &offsets_view, &bits_view)
            bits = <const uint8_t*>bits_view.buf
            found = np.empty(rows + 1, np.int64)
            places = found
            at = <const int32_t*>offsets_view.buf
            with nogil:
                places[0] = 0
                for row in range(rows):
                    start, end = at[row], at[row + 1]
                    KL_ONCE(start)
                    KL_ONCE(end)
                    if start < 0 or end < start or end > data_view.len:
                        inside = False
                        break
                    absent = is_null(bits, first_row + row)
                    good = put_field(
                        &out, label, label_size, <const uint8_t*>data_view.buf + start, end - start, absent, in_base64
                    )
                    if not good:
                        break
                    places[row + 1] = out.filled
            if not inside:
                raise IndexError("an offset is outside the column's data")
            if not good:
                raise MemoryError
            return out.block.at[:out.filled] if out.filled else b"", found
        finally:
            free(out.block.at)
            PyBuffer_Release(&bits_view)
            PyBuffer_Release(&offsets_view)
    finally:
        PyBuffer_Release(&data_view)
