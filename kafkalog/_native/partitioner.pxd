from libc.stdint cimport int32_t, int64_t, uint8_t


cdef class StickyPartition:
    cdef object choose, partitions
    cdef int32_t present
    cdef int64_t filled

    cdef int32_t next(self, int64_t value_bytes, partitions) except -1


cdef int32_t of_key(const uint8_t* at, int64_t size, int32_t partitions) noexcept nogil


# As a number that a topic can have of partitions; IndexError.
cdef int32_t counted(partitions) except -1
