# The one way in which native code takes a buffer: C-contiguous, of whatever items, as bytes.
from cpython.buffer cimport PyBUF_SIMPLE, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t


cdef inline int open_octets(object data, Py_buffer* view) except -1:
    """`data`'s bytes until PyBuffer_Release; TypeError saying what was found where it has none in one piece.

    `view.len` is in bytes.  The contents may change while they are looked at: whoever needs a value twice
    loads it once.
    """
    try:
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
    except (BufferError, ValueError) as error:  # memoryview raises the one, numpy the other
        raise TypeError(f"found a {type(data).__name__} whose bytes cannot be had ({error}), "
                        "expected a C-contiguous buffer") from error
    return 0


cdef inline int64_t open_rows(
    object offsets, object validity, int64_t first_row, Py_buffer* offsets_view, Py_buffer* bits_view
) except -1:
    """How many rows an Arrow column of bytes has: `offsets` are int32, one more than there are rows, `validity` is a
    bitmap whose bit `first_row` is the first row's, or None (`bits_view.buf` stays NULL).  IndexError where they do not
    fit.  Both views are zero before; the caller releases them, behind an error too.
    """
    cdef int64_t rows
    open_octets(offsets, offsets_view)
    rows = offsets_view.len // <Py_ssize_t>sizeof(int32_t) - 1
    if rows < 0 or first_row < 0:
        raise IndexError("offsets are one more than there are rows")
    if validity is not None:
        open_octets(validity, bits_view)
        if first_row > bits_view.len * 8 - rows:
            raise IndexError("the bitmap has fewer bits than there are rows")
    return rows


cdef inline bint is_null(const uint8_t* bits, int64_t bit) noexcept nogil:
    """By a bitmap of validity, or NULL."""
    return bits != NULL and not (bits[bit >> 3] >> (bit & 7)) & 1
