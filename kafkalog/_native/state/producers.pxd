# The producer state of a partition, for the native end of the log.
from libc.stdint cimport int32_t, int64_t

from kafkalog._native.codec.batches cimport Row
from kafkalog._native.codec.validation cimport OrdinaryBatch

cdef enum:
    REMEMBERED = 5

cdef struct Remembered:
    int64_t last_offset
    int64_t timestamp
    int32_t last_seq
    int32_t offset_delta


cdef class ProducerEntry:
    cdef readonly int64_t producer_id
    cdef public int32_t producer_epoch
    cdef public int32_t coordinator_epoch
    cdef public int64_t last_timestamp
    cdef public object current_txn_first_offset
    cdef Remembered ring[REMEMBERED]
    cdef int oldest, count

    cdef Remembered* newest(self) noexcept
    cdef const Remembered* known(self, int32_t first_seq, int32_t last_seq) noexcept
    cdef void add(self, Remembered batch) noexcept
    cdef bint goes_on(self, const Row* row) noexcept
    cdef void go_on(self, const Row* row) noexcept
    cdef void enter_epoch(self, int32_t producer_epoch) noexcept


cdef class OffsetMap:
    cdef list offsets
    cdef dict by_offset
    cdef readonly object first

    cdef int store(self, offset, value) except -1
    cdef object take(self, offset)
    cdef object lowest(self)


cdef class ProducerTable:
    cdef public object _producers
    cdef public OffsetMap _ongoing_txns, _unreplicated_txns
    cdef public int64_t _oldest_txn_last_timestamp
    cdef public object map_end_offset
    cdef public dict _verification_states

    cdef ProducerEntry continued(self, OrdinaryBatch batch)
    cdef object first_unstable(self)
    cdef int take_over(self, ProducerEntry entry, started) except -1
    cdef int close_txn(self, completed) except -1
    cdef int drop_replicated(self, int64_t offset) except -1
    cdef int note_oldest(self) except -1
