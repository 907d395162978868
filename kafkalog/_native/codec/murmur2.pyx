"""Kafka's hash of keys, which its producers use to choose a partition (org.apache.kafka.common.utils.Utils.murmur2).

Bytes to a number; knows no topics. Each byte is loaded once, so a buffer that changes meanwhile gives an arbitrary
number.
"""

from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kafkalog._native.codec.octets cimport open_octets


def murmur2(data):
    """Returns the hash of `data` (any C-contiguous buffer) as Java's signed int."""
    cdef Py_buffer view
    cdef uint32_t seen
    cdef int32_t signed_hash
    open_octets(data, &view)
    with nogil:
        seen = hash_of(<const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    memcpy(&signed_hash, &seen, sizeof(int32_t))
    return signed_hash
