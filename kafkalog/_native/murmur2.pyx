"""Kafka's hash of keys, by which its producers choose a partition (org.apache.kafka.common.utils.Utils.murmur2).

Bytes to a number; knows no topics.  Each byte is loaded once, so a buffer that changes meanwhile gives some number.
"""

from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kafkalog._native.octets cimport open_octets

cdef enum:
    SEED = 0x9747b28c
    MULTIPLIER = 0x5bd1e995
    SHIFT = 24


cdef uint32_t hash_of(const uint8_t* at, size_t length) noexcept nogil:
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


def murmur2(data):
    """The hash of `data` (any C-contiguous buffer) as Java's signed int."""
    cdef Py_buffer view
    cdef uint32_t seen
    cdef int32_t signed_hash
    open_octets(data, &view)
    with nogil:
        seen = hash_of(<const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    memcpy(&signed_hash, &seen, sizeof(int32_t))
    return signed_hash
