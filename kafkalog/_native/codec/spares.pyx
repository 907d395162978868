"""Spare blocks of megabytes, left by columns and reused by the next columns.

The allocator returns such blocks to the system at once, and a reader of columns allocates and frees some with each
batch. Half of the time of a read would go into pages that the system clears and maps for bytes that are overwritten
anyway. So the process keeps a few blocks, KEPT_BYTES at most. Any thread may use them; if two threads meet, the second
one continues without.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free

from kafkalog._native.codec.guard cimport kl_enter, kl_leave

cdef extern from *:
    """
    #if defined(__SANITIZE_ADDRESS__)
    #define KL_KEPT_BYTES 0  /* so that the sanitizer sees each use after free */
    #elif defined(__has_feature)
    #if __has_feature(address_sanitizer)
    #define KL_KEPT_BYTES 0
    #endif
    #endif
    #ifndef KL_KEPT_BYTES
    #define KL_KEPT_BYTES (24 << 20)
    #endif
    """
    int64_t KL_KEPT_BYTES

cdef enum:
    SLOTS = 8
    LEAST_BYTES = 1 << 20

cdef struct Spare:
    uint8_t* at
    int64_t capacity

cdef Spare[SLOTS] spares
cdef int64_t kept_bytes = 0
cdef int busy = 0


cdef uint8_t* take_spare(int64_t needed, int64_t* capacity) noexcept nogil:
    global kept_bytes
    cdef uint8_t* found = NULL
    cdef int i, largest = -1
    if needed < LEAST_BYTES or not kl_enter(&busy):
        return NULL
    for i in range(SLOTS):  # the largest one, because the column that takes it will grow
        if spares[i].capacity >= needed and (largest < 0 or spares[i].capacity > spares[largest].capacity):
            largest = i
    if largest >= 0:
        found, capacity[0] = spares[largest].at, spares[largest].capacity
        kept_bytes -= capacity[0]
        spares[largest].at, spares[largest].capacity = NULL, 0
    kl_leave(&busy)
    return found


cdef void give_back(uint8_t* at, int64_t capacity) noexcept nogil:
    global kept_bytes
    cdef int i
    if capacity >= LEAST_BYTES and capacity <= KL_KEPT_BYTES and kl_enter(&busy):
        if kept_bytes + capacity <= KL_KEPT_BYTES:
            for i in range(SLOTS):
                if spares[i].at == NULL:
                    spares[i].at, spares[i].capacity = at, capacity
                    kept_bytes += capacity
                    at = NULL
                    break
        kl_leave(&busy)
    free(at)


def spare_bytes():
    """Returns the bytes that are spare now."""
    return kept_bytes
