# Kafka's hash of keys, for the other native modules.
from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    SEED = 0x9747b28c
    MULTIPLIER = 0x5bd1e995
    SHIFT = 24


cdef inline uint32_t hash_of(const uint8_t* at, size_t length) noexcept nogil:
    cdef uint32_t seen = <uint32_t>SEED ^ <uint32_t>length
    cdef uint32_t word
    while length >= 4:
        word = at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24
        word *= <uint32_t>MULTIPLIER
        word ^= word >> SHIFT
        word *= <uint32_t>MULTIPLIER
        seen *= <uint32_t>MULTIPLIER
        seen ^= word
        at += 4
        length -= 4
    if length == 3:
        seen ^= <uint32_t>at[2] << 16
    if length >= 2:
        seen ^= <uint32_t>at[1] << 8
    if length >= 1:
        seen ^= at[0]
        seen *= <uint32_t>MULTIPLIER
    seen ^= seen >> 13
    seen *= <uint32_t>MULTIPLIER
    seen ^= seen >> 15
    return seen
