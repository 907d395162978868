"""Any C-contiguous buffer as its bytes: memoryviews of other items, numpy arrays of any type and shape, array.array.

`memoryview.cast` supports neither byte orders, nor records, nor empty shapes; the buffer protocol's simplest request
sees bytes only.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.memoryview cimport PyMemoryView_FromObject

from kafkalog._native.codec.octets cimport open_octets


@cython.auto_pickle(False)
@cython.final
cdef class _Octets:
    """Holds one buffer open and exports its bytes, read-only."""

    cdef Py_buffer view

    def __cinit__(self, data):
        open_octets(data, &self.view)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.view.buf, self.view.len, 1, flags)


cdef extern from *:
    Py_buffer* PyMemoryView_GET_BUFFER(object view)


cdef bint is_of_bytes(object data) except -1:
    cdef Py_buffer view
    cdef const Py_buffer* shape
    if type(data) is not memoryview:
        return False
    open_octets(data, &view)
    PyBuffer_Release(&view)
    shape = PyMemoryView_GET_BUFFER(data)
    return shape.ndim == 1 and shape.format != NULL and shape.format[0] == b"B" and shape.format[1] == 0


def bytes_of(data):
    """Returns the bytes of `data`, not copied and read-only: one dimension, format "B", so that len() is their number.

    A memoryview that already has this form is returned itself. Raises TypeError if `data` is not a buffer or is not in
    one piece.
    """
    return data if is_of_bytes(data) else PyMemoryView_FromObject(_Octets(data))
