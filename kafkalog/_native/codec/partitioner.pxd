# Partitions of keys and of records without one, for the encoder of rows.
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t

from kafkalog._native.codec.murmur2 cimport hash_of


cdef inline int32_t of_key(const uint8_t* at, int64_t size, int32_t partitions) noexcept nogil:
    return <int32_t>((hash_of(at, <size_t>size) & <uint32_t>INT32_MAX) % <uint32_t>partitions)


# Returns `partitions` as an int32; IndexError unless a topic can have this many partitions.
cdef inline int32_t counted(partitions) except -1:
    if not 1 <= partitions <= INT32_MAX:
        raise IndexError(f"partitions: found {partitions}, expected at least 1")
    return partitions


cdef class StickyPartition:
    cdef object choose, partitions
    cdef int32_t present
    cdef int64_t filled

    cdef int32_t next(self, int64_t value_bytes, partitions) except -1
