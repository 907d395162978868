# The one function with which native code opens a buffer: C-contiguous, with items of any type, as bytes.
from cpython.buffer cimport PyBUF_SIMPLE, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t


cdef inline int open_octets(object data, Py_buffer* view) except -1:
    """Opens the bytes of `data` until PyBuffer_Release; TypeError, which names the type, if they are not available in
    one piece.

    `view.len` is in bytes. The contents may change while they are read: code that needs a value twice loads it once.
    """
    try:
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    except (BufferError, ValueError) as error:  # memoryview raises the one, numpy the other
        raise TypeError(f"found a {type(data).__name__} whose bytes cannot be read ({error}), "
                        "expected a C-contiguous buffer") from error
    return 0


cdef inline int64_t open_rows(
    object offsets, object validity, int64_t first_row, Py_buffer* offsets_view, Py_buffer* bits_view
) except -1:
    """Returns the number of rows of an Arrow column of bytes. `offsets` are int32, one more than there are rows.
    `validity` is a bitmap whose bit `first_row` belongs to the first row, or None (then `bits_view.buf` stays NULL).
    Raises IndexError if they do not fit. Both views must be zeroed before; the caller releases them, also after an
    error.
    """
    cdef int64_t rows
    open_octets(offsets, offsets_view)
    rows = offsets_view.len // <Py_ssize_t>sizeof(int32_t) - 1
    if rows < 0 or first_row < 0:
        raise IndexError("offsets: found none, or a negative first_row; expected one more than there are rows")
    if validity is not None:
        open_octets(validity, bits_view)
        if first_row > bits_view.len * 8 - rows:
            raise IndexError("the bitmap has fewer bits than there are rows")
    return rows


cdef inline bint is_null(const uint8_t* bits, int64_t bit) noexcept nogil:
    """Returns whether a row is null, by a validity bitmap or NULL."""
    return bits != NULL and not (bits[bit >> 3] >> (bit & 7)) & 1
