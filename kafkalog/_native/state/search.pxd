# The filled part of an index, and its bytes while they are searched: for the end of the segment and for reads.
from libc.stdint cimport int64_t

from kafkalog._native.state.held cimport Held

cdef enum Column:
    OFFSET_OF_OFFSET_INDEX
    POSITION
    TIMESTAMP
    OFFSET_OF_TIME_INDEX

cdef enum:
    NO_SLOT = -1
    NOT_NOW = -2  # no bytes are held, or fewer than the entries take
    # Below: NOT_NOW - 1 - the slot after the end of the bytes.


cdef class IndexEnd(Held):
    cdef public int64_t base_offset
    cdef public int64_t entries
    cdef public int64_t max_entries
    cdef public int64_t last_offset
    cdef public int64_t last_timestamp
    cdef public int64_t behind
    cdef public bint dirty
    cdef Column column  # the column that `lookup` searches
    cdef object kind
    cdef Py_buffer view
    cdef int users  # the searches without the GIL

    cdef int64_t slot_of(self, int64_t entries, Column column, int64_t target, bint upper) noexcept
    cdef int64_t look(self, int64_t entries, int64_t target, int64_t* first, int64_t* second) noexcept
