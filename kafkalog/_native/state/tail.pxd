# The end of a segment, for the end of the log.
from libc.stdint cimport int64_t

from kafkalog._native.codec.batches cimport IndexPlan
from kafkalog._native.state.held cimport Held
from kafkalog._native.state.search cimport IndexEnd

cdef enum:
    W_WRITTEN = 0
    W_INDEX_REFUSES = 1
    W_FILE_AWAY = 2


cdef class RecordsEnd(Held):
    cdef public int64_t size

    cdef int cut_to(self, int64_t size) except -1


cdef class TransactionsEnd(Held):
    cdef public int64_t end
    cdef public object last_offset

    cdef int cut_to(self, int64_t end) except -1


cdef class SegmentTail:
    cdef readonly int64_t base_offset
    cdef readonly int64_t index_interval_bytes
    cdef readonly int64_t roll_jitter_ms
    cdef public int64_t created_ms
    cdef public int64_t bytes_since_last_index_entry
    cdef readonly RecordsEnd log
    cdef public IndexEnd offset_index, time_index
    cdef readonly TransactionsEnd transactions
    cdef IndexPlan plan
    cdef int64_t largest, offset_of_largest, first
    cdef bint largest_known, first_known

    cdef bint knows_end(self) noexcept
    cdef IndexEnd offsets_end(self)
    cdef IndexEnd times_end(self)
    cdef int64_t waited(self, int64_t now, int64_t timestamp) noexcept
    cdef bint is_over(
        self, int64_t max_segment_ms, int64_t max_segment_bytes, int64_t max_timestamp, int64_t max_offset,
        int64_t messages_bytes, int64_t now,
    ) noexcept
    cdef IndexPlan planned(self, list headers)
    cdef int take_back(self, int64_t size, bint with_transactions, error) except -1
    cdef int write(self, tuple buffers, list headers, bytes aborted, last_aborted, bint keeps_gil=*) except -1
    cdef int write_pinned(
        self, tuple buffers, list headers, int64_t size, IndexPlan plan, IndexEnd offset_index, IndexEnd time_index,
        bytes aborted, last_aborted, bint keeps_gil,
    ) except -1
