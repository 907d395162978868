# SkimpyOffsetMap for the native modules: keys at any address, many at a time.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    # Keys that are hashed and looked up together, so that their cache misses overlap.
    TOGETHER = 256
    SLOT_BYTES = 24
    DIGEST_BYTES = 16

cdef extern from "md5.h" nogil:
    void md5_many_by(
        int which, const uint8_t* const* messages, const uint32_t* sizes, size_t count, uint8_t* digests
    ) noexcept
    int md5_implementations() noexcept
    const char* md5_implementation_name(int which) noexcept


cdef struct Slot:
    # 24 bytes, all zero if it is empty; the digest as two words of this machine.
    uint64_t low
    uint64_t high
    int64_t offset


cdef class SkimpyOffsetMap:
    cdef object _memory
    cdef Slot* _table
    cdef uint64_t _reciprocal
    cdef int _hashing
    cdef int busy  # `guard`: set while a thread uses the memory
    cdef readonly int64_t slots
    cdef readonly int64_t size
    cdef readonly int64_t lookups
    cdef readonly int64_t probes
    cdef public int64_t latest_offset

    cdef int _clear(self) except -1
    cdef int64_t put_some(
        self, const uint8_t* const* keys, const uint32_t* sizes, const int64_t* offsets, int64_t count, int64_t limit
    ) noexcept nogil
    cdef void get_some(
        self, const uint8_t* const* keys, const uint32_t* sizes, int64_t count, int64_t* offsets
    ) noexcept nogil
    cdef void last_of(
        self, const uint8_t* const* keys, const uint32_t* sizes, int64_t count, int64_t* offsets
    ) noexcept nogil
    cdef int64_t _put_group(
        self, const uint8_t* const* keys, const uint32_t* sizes, const int64_t* offsets, int64_t count
    ) noexcept nogil
    cdef void _put_digests(self, const uint8_t* digests, const int64_t* offsets, int64_t count) noexcept nogil
    cdef void _get_digests(self, const uint8_t* digests, int64_t count, int64_t* offsets) noexcept nogil
    cdef void _digest(
        self, const uint8_t* const* keys, const uint32_t* sizes, int64_t count, uint8_t* digests
    ) noexcept nogil
