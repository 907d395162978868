# Zig-zag LEB128, as Kafka's ByteUtils reads and writes it: at most 5 bytes for an int, 10 for a long.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkalog._native.codec.cursor cimport Cursor
from kafkalog._native.codec.layout cimport load8


cdef inline bint read_uvarint64(Cursor* cursor, uint64_t* out, int max_bytes) noexcept nogil:
    """Returns False if the bytes end early or the number is longer than `max_bytes`."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef int used = 0
    cdef uint32_t byte
    while used < max_bytes:
        if cursor.at >= cursor.end:
            return False
        byte = load8(cursor.at)
        cursor.at += 1
        used += 1
        value |= (<uint64_t>(byte & 0x7F)) << shift
        if byte < 0x80:
            out[0] = value
            return True
        shift += 7
    return False


cdef inline bint read_varint(Cursor* cursor, int32_t* out) noexcept nogil:
    cdef uint64_t raw
    # Nearly all numbers have one byte: lengths, deltas and counts.
    raw = load8(cursor.at) if cursor.at < cursor.end else 0x80
    if raw < 0x80:
        cursor.at += 1
    elif not read_uvarint64(cursor, &raw, 5):
        return False
    out[0] = <int32_t>((<uint32_t>raw >> 1) ^ (0 - (<uint32_t>raw & 1)))
    return True


cdef inline bint read_varlong(Cursor* cursor, int64_t* out) noexcept nogil:
    cdef uint64_t raw
    raw = load8(cursor.at) if cursor.at < cursor.end else 0x80
    if raw < 0x80:
        cursor.at += 1
    elif not read_uvarint64(cursor, &raw, 10):
        return False
    out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return True


cdef inline int size_of_uvarint64(uint64_t raw) noexcept nogil:
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline uint32_t zigzag32(int32_t value) noexcept nogil:
    return (<uint32_t>value << 1) ^ <uint32_t>(value >> 31)


cdef inline uint64_t zigzag64(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline uint8_t* write_uvarint64(uint8_t* at, uint64_t raw) noexcept nogil:
    """Writes `raw` (at most 10 bytes, the caller has made room) and returns the position after it."""
    while raw >= 0x80:
        at[0] = <uint8_t>(raw | 0x80)
        raw >>= 7
        at += 1
    at[0] = <uint8_t>raw
    return at + 1
