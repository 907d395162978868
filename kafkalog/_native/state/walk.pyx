"""Walks from batch to batch in a short, ordinary part of a .log file: one read, one call, no table.

It is for callers that only need the end of a log, in a file or in the bytes of one. The caller handles everything
unusual in Python (`LogScan`, `misfits`): an old or damaged batch, offsets that are not consecutive, a file that ends
too early, an error, a test's file object.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int8_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from kafkalog._native.codec.batches cimport F_FILE, V_OK, Row, next_frame, parse_header
from kafkalog._native.codec.crc32c cimport crc32c_update
from kafkalog._native.codec.layout cimport ATTRIBUTES
from kafkalog._native.state.descriptor cimport Descriptor, is_plain


cdef enum:
    OF_TRANSACTIONS = 0x30  # the attribute bits of a batch in a transaction, and of a marker


def walked(source, int64_t position, int64_t size, int64_t expected, int64_t limit):
    """Walks over the whole good batches in [position, size) of a file, or of its first bytes, with increasing offsets
    from `expected` to `limit`.

    Returns (the offset after the last record, or `expected`; the position of their end; their largest timestamp, or -1;
    whether one belongs to a transaction or is a marker). Returns None unless the whole range consists of such batches
    of magic 2, except for an end that is too short to be seen (FRAMING_FILE).
    """
    cdef uint8_t* data = NULL
    cdef const uint8_t* batches
    cdef Descriptor plain
    cdef Row row
    cdef int64_t left = size - position, at = 0, newest = -1, batch_bytes = 0
    cdef int8_t magic
    cdef bint is_ordinary = True, of_transactions = False
    if left < 0 or position < 0 or expected < 0:
        return None
    if isinstance(source, bytes):
        if PyBytes_GET_SIZE(source) < size:
            return None
        batches = <const uint8_t*>PyBytes_AS_STRING(source) + position
    elif is_plain(source):
        plain = <Descriptor>source
        data = <uint8_t*>malloc(<size_t>left + 1)
        if data == NULL:
            return None
        with nogil:
            is_ordinary = plain.read_quietly(data, left, position) == left
        batches = data
    else:
        return None
    with nogil:
        while is_ordinary:
            is_ordinary = next_frame(batches + at, left - at, F_FILE, &batch_bytes, &magic) == V_OK
            if not is_ordinary or batch_bytes == 0:
                break
            is_ordinary = False
            if magic != 2:
                break
            parse_header(batches + at, magic, position + at, batch_bytes, &row)
            if row.base_offset < expected or row.last_offset < row.base_offset or row.last_offset > limit:
                break
            if row.last_offset == INT64_MAX:
                break
            if crc32c_update(0, batches + at + ATTRIBUTES, <size_t>(batch_bytes - ATTRIBUTES)) != row.crc:
                break
            is_ordinary = True
            expected = row.last_offset + 1
            newest = max(newest, row.max_timestamp)
            of_transactions = of_transactions or (row.attributes & OF_TRANSACTIONS) != 0
            at += batch_bytes
        free(data)
    return (expected, position + at, newest, of_transactions) if is_ordinary else None
