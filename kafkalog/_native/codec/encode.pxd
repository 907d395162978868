# The encoder's batch, for the code that checks and appends it.
from libc.stdint cimport int64_t


cdef class EncodedBatch:
    cdef readonly bytes data
    cdef readonly int64_t min_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t record_bytes
    cdef readonly bint has_keys

    @staticmethod
    cdef EncodedBatch of_row(tuple row, int64_t now_ms, int64_t max_bytes)
