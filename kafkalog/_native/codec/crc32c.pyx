"""CRC-32C with the best instruction set of this CPU, chosen at run time.

The C code is src/crc32c.c, which other native modules call directly. This module is for Python callers and for the
tests, which run every implementation that the CPU supports, by its name.
"""
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport uint8_t, uint32_t

from kafkalog._native.codec.crc32c cimport (
    crc32_update,
    crc32c_combine,
    crc32c_implementation_name,
    crc32c_implementations,
    crc32c_update_by,
)
from kafkalog._native.codec.octets cimport open_octets

cdef enum:
    # Releasing the GIL costs about as much as this many bytes.
    WORTH_A_RELEASE = 8192


def crc32c(data, uint32_t value=0, *, implementation=None):
    """Returns the CRC-32C of `data` (any C-contiguous buffer), continued from `value`.

    `implementation` is one of `implementations()`; ValueError if this CPU does not support it.
    """
    cdef int which = 0 if implementation is None else implementations().index(implementation)
    cdef Py_buffer view
    cdef const uint8_t* at
    cdef size_t length
    open_octets(data, &view)
    at = <const uint8_t*>view.buf
    length = <size_t>view.len
    if length < WORTH_A_RELEASE:
        value = crc32c_update_by(which, value, at, length)
    else:
        with nogil:
            value = crc32c_update_by(which, value, at, length)
    PyBuffer_Release(&view)
    return value


def crc32(data, uint32_t value=0):
    """Returns the CRC-32 (zlib's) of `data`, continued from `value`: the checksum of magic 0 and 1."""
    cdef Py_buffer view
    open_octets(data, &view)
    with nogil:
        value = crc32_update(value, <const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return value


def combine(uint32_t first, uint32_t second, unsigned long long second_bytes):
    """Returns the CRC-32C of A+B from those of A and B and the length of B."""
    return crc32c_combine(first, second, second_bytes)


def implementations():
    """Returns the names of the implementations that this CPU supports, best first: vpclmul, pclmul, sse42, armv8,
    portable."""
    return [crc32c_implementation_name(which).decode() for which in range(crc32c_implementations())]


def implementation():
    """Returns the name of the implementation in use."""
    return crc32c_implementation_name(0).decode()
