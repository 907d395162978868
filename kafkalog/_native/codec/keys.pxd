# The keys that are wanted, for the loops over records.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from kafkalog._native.codec.murmur2 cimport hash_of


# One wanted key, in a table with open addressing; `at` is NULL in a free slot.
cdef struct Wanted:
    const uint8_t* at
    int64_t size
    uint32_t hash

cdef struct Keys:
    Wanted* table
    int64_t mask
    const Wanted* only  # if there is one key only
    uint64_t sizes  # a bit for each size that a wanted key has
    bint takes_all
    bint takes_none
    const uint8_t* prefix
    int64_t prefix_size


cdef inline uint64_t bit_of_size(int64_t size) noexcept nogil:
    return <uint64_t>1 << min(size, <int64_t>63)


cdef inline bint is_wanted_key(const Keys* keys, const uint8_t* at, int64_t size) noexcept nogil:
    """Returns whether a record's key is wanted; `at` is NULL for a record without a key."""
    cdef uint32_t hash
    cdef int64_t place
    if at == NULL:
        return keys.takes_none
    if keys.prefix != NULL and (size < keys.prefix_size or memcmp(at, keys.prefix, <size_t>keys.prefix_size) != 0):
        return False
    if keys.takes_all:
        return True
    # Most keys have another size: none of their bytes is read.
    if not keys.sizes & bit_of_size(size):
        return False
    if keys.only != NULL:
        return keys.only.size == size and memcmp(keys.only.at, at, <size_t>size) == 0
    hash = hash_of(at, <size_t>size)
    place = hash & keys.mask
    while keys.table[place].at != NULL:
        if (
            keys.table[place].hash == hash
            and keys.table[place].size == size
            and memcmp(keys.table[place].at, at, <size_t>size) == 0
        ):
            return True
        place = (place + 1) & keys.mask
    return False


cdef class KeyFilter:
    cdef Keys keys
    cdef tuple held

    cdef int put(self, bytes key) except -1
