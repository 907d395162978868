# Memory that grows while columns are decoded and encoded.
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy, memset

from kafkalog._native.codec.record cimport NO_MEMORY
from kafkalog._native.codec.spares cimport take_spare

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #include <stdlib.h>
    /* Columns of megabytes are written once, front to back: huge pages save most of the page faults. */
    static void kl_huge(void *at, size_t size) {
        size_t start = ((size_t)at + 0x1FFFFF) & ~(size_t)0x1FFFFF, end = ((size_t)at + size) & ~(size_t)0x1FFFFF;
        if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
    }
    static void *kl_big(size_t size) {
        void *at = NULL;
        if (posix_memalign(&at, 0x200000, size) != 0) return NULL;
        kl_huge(at, size);
        return at;
    }
    #else
    static void kl_huge(void *at, size_t size) { (void)at; (void)size; }
    static void *kl_big(size_t size) { return malloc(size); }
    #endif
    static inline void kl_copy32(unsigned char *to, const unsigned char *from) { memcpy(to, from, 32); }
    static inline void kl_copy16(unsigned char *to, const unsigned char *from) { memcpy(to, from, 16); }
    """
    void kl_huge(void* at, size_t size) noexcept nogil
    void* kl_big(size_t size) noexcept nogil
    void kl_copy32(uint8_t* to, const uint8_t* source) noexcept nogil
    void kl_copy16(uint8_t* to, const uint8_t* source) noexcept nogil

cdef enum:
    # Copies move whole words: this many bytes after each data buffer may be overwritten.
    SLACK = 64
    BIG_BYTES = 4 << 20

cdef struct Block:
    uint8_t* at
    int64_t capacity


cdef inline bint reserve(Block* block, int64_t needed) noexcept nogil:
    """Reserves room for `needed` bytes; at least doubles, so that a run of calls stays linear."""
    cdef uint8_t* grown
    cdef int64_t capacity
    if needed <= block.capacity:
        return True
    capacity = 2 * block.capacity
    if capacity < needed:
        capacity = needed
    if block.at == NULL:
        block.at = take_spare(capacity, &block.capacity)
        if block.at != NULL:
            return True
    if capacity >= BIG_BYTES and block.at == NULL:
        grown = <uint8_t*>kl_big(<size_t>capacity)
    else:
        grown = <uint8_t*>realloc(block.at, <size_t>capacity)
        if grown != NULL and capacity >= BIG_BYTES:
            kl_huge(grown, <size_t>capacity)
    if grown == NULL:
        return False
    block.at = grown
    block.capacity = capacity
    return True


cdef inline bint reserve_bits(Block* block, int64_t bits) noexcept nogil:
    """Reserves room for a bitmap; new bits are ones, so that only nulls need a store."""
    cdef int64_t had = block.capacity
    if not reserve(block, (bits >> 3) + 1):
        return False
    if block.capacity > had:
        memset(block.at + had, 0xFF, <size_t>(block.capacity - had))
    return True


cdef inline void clear_bit(uint8_t* bitmap, int64_t i) noexcept nogil:
    bitmap[i >> 3] &= <uint8_t>(~(1 << (i & 7)))


cdef inline void set_bits_from(uint8_t* bitmap, int64_t start, int64_t stop) noexcept nogil:
    cdef int64_t i
    for i in range(start, stop):
        bitmap[i >> 3] |= <uint8_t>(1 << (i & 7))


cdef inline void copy_bytes(uint8_t* to, const uint8_t* source, int64_t size, const uint8_t* end) noexcept nogil:
    """Copies `size` bytes; may write SLACK bytes more, and reads nothing after `end`."""
    cdef int64_t i = 0
    if size <= 256 and end - source >= size + 32:
        if size <= 16:
            kl_copy16(to, source)
            return
        while i < size:
            kl_copy32(to + i, source + i)
            i += 32
        return
    memcpy(to, source, <size_t>size)


cdef inline int check_memory(int verdict) except -1:
    if verdict == NO_MEMORY:
        raise MemoryError
    return verdict
