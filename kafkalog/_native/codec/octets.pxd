# The one way in which native code takes a buffer: C-contiguous, of whatever items, as bytes.
from cpython.buffer cimport PyBUF_SIMPLE, PyObject_GetBuffer


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
