# The ordinary batch, for the native end of a segment.
from libc.stdint cimport int32_t, int64_t

from kafkalog._native.codec.batches cimport BatchHeader
from kafkalog._native.codec.cursor cimport Cursor
from kafkalog._native.codec.encode cimport EncodedBatch
from kafkalog._native.codec.record cimport Batch

cdef struct Rules:
    int reader
    bint need_key
    bint create_time
    int64_t now
    int64_t before_max
    int64_t after_max
    int32_t max_record_bytes


cdef class OrdinaryBatch(BatchHeader)


cdef class OrdinaryRules:
    cdef readonly int64_t size_max
    cdef readonly bint need_key
    cdef readonly int64_t before_max_ms
    cdef readonly int64_t after_max_ms
    cdef readonly int codec
    cdef readonly int64_t max_segment_ms
    cdef readonly int64_t segment_bytes
    cdef readonly int64_t flush_messages
    cdef readonly bint create_time

    cpdef OrdinaryBatch admit(self, data, int64_t now, bint of_client=*)
    cdef bint is_known_good(self, EncodedBatch batch, int64_t now) noexcept


cdef class OrdinaryBatch(BatchHeader):
    cdef Batch batch
    cdef Rules rules
    cdef readonly int64_t record_bytes
    cdef readonly OrdinaryRules topic
    cdef int32_t given_epoch
    cdef bytes head
    cdef object data

    cdef bint check(self, Cursor cursor) noexcept nogil
    cdef int dated(self, int64_t now) except -1
    cdef tuple placed(self, int64_t next_offset, int32_t leader_epoch)
    cdef object info(self, kind, int64_t log_start_offset, record_validation_stats)
