# An open file, for native modules that write to it themselves.
from libc.stdint cimport int64_t

cdef extern from "<sys/types.h>" nogil:
    ctypedef int64_t off_t


cdef class Descriptor:
    cdef public str path
    cdef public Py_ssize_t call_bytes
    cdef int fd
    cdef readonly bint plain  # no subclass overrides reading or writing

    cdef int fail(self, int code) except -1
    cdef bytes read_bytes(self, Py_ssize_t n, off_t position)
    cdef Py_ssize_t read_all(self, void* data, Py_ssize_t count, off_t position) except -1
    cdef Py_ssize_t read_quietly(self, void* data, Py_ssize_t count, off_t position) noexcept nogil
    cdef int write_all(self, const void* data, Py_ssize_t count, off_t position, bint keeps_gil=*) except -1
    cdef int set_size(self, off_t size) except -1
    cdef int write_pair(self, const Py_buffer* head, const Py_buffer* body, off_t position) except -1


cdef inline bint is_plain(channel) noexcept:
    """Returns whether native code may read and write the file itself."""
    return isinstance(channel, Descriptor) and (<Descriptor>channel).plain
