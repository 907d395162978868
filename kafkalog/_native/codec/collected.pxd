# Records copied into one place, for the encoder of columns.
from libc.stdint cimport int64_t, uint8_t

from kafkalog._native.codec.memory cimport Block


# One value of a column that consists of pieces; `size` is -1 for null.
cdef struct Part:
    const uint8_t* at
    int64_t size


cdef class Collected:
    cdef readonly int64_t rows
    cdef readonly int64_t bytes
    cdef int64_t header_count
    cdef Block keys, values, times, lists, names, contents
    cdef Block chunks
    cdef int64_t chunk_count
    cdef uint8_t* free_at
    cdef int64_t free_bytes

    cdef Py_ssize_t add(self, value, key, tuple headers, int64_t timestamp, int64_t size) except -1
    cdef int make_room(self, int64_t row) except -1
    cdef int keep(self, given, Part* part) except -1
    cdef int keep_header(self, tuple pair, int64_t number) except -1
    cdef int copy(self, const char* source, int64_t size, Part* part) except -1
    cdef int add_chunk(self, int64_t size) except -1
