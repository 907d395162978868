"""CRC-32C by the best instruction set of this CPU, chosen at run time.

The C of it is src/crc32c.c; other native modules call that directly.  This face is for Python callers
and for the tests, which run every implementation that the CPU has by its name.
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
    # Handing the GIL over costs about as much as this many bytes.
    WORTH_A_RELEASE = 8192


def crc32c(data, uint32_t value=0, *, implementation=None):
    """CRC-32C of `data` (any C-contiguous buffer), going on from `value`.

    `implementation` names one of `implementations()`; ValueError when this CPU does not run it.
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
    """CRC-32 (zlib's) of `data`, going on from `value`: the checksum of magic 0 and 1."""
    cdef Py_buffer view
    open_octets(data, &view)
    with nogil:
        value = crc32_update(value, <const uint8_t*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return value


def combine(uint32_t first, uint32_t second, unsigned long long second_bytes):
    """The CRC-32C of A+B from those of A and B and the length of B."""
    return crc32c_combine(first, second, second_bytes)


def implementations():
    """Names of what this CPU runs, best first: vpclmul, pclmul, sse42, armv8, portable."""
    return [crc32c_implementation_name(which).decode() for which in range(crc32c_implementations())]


def implementation():
    """The name of the one in use."""
    return crc32c_implementation_name(0).decode()
