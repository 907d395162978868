# One magic-2 record: a bounded walk that finds its parts, with Kafka's rules (DefaultRecord.readFrom, 4.4.0).
# Shared by records.pyx (Python objects) and columns.pyx (Arrow columns).
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkalog._native.cursor cimport Cursor, take
from kafkalog._native.varint cimport read_uvarint64, read_varint, read_varlong

cdef enum RecordVerdict:
    RECORD_OK = 0
    NEGATIVE_COUNT = 1
    EARLY_END = 2
    LONG_VARINT = 3
    NEGATIVE_SIZE = 4
    OVERSIZE = 5
    SHORT_PAYLOAD = 6
    BAD_STRUCTURE = 7
    BAD_HEADER_COUNT = 8
    HEADER_COUNT_TOO_BIG = 9
    NEGATIVE_HEADER_KEY = 10
    BODY_MISMATCH = 11
    LEFTOVER = 12

cdef struct RecordView:
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers
    const uint8_t* end
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_size
    int32_t value_size
    int32_t header_count
    int32_t body_size
    # What the error text says: a size, a count, what was read.
    int64_t detail
    int64_t second_detail


cdef inline int take_nullable(Cursor* cursor, const uint8_t** out, int32_t* size) noexcept nogil:
    if not read_varint(cursor, size):
        return BAD_STRUCTURE
    if size[0] < 0:
        size[0] = -1
        out[0] = NULL
        return RECORD_OK
    out[0] = take(cursor, size[0])
    return RECORD_OK if out[0] != NULL else BAD_STRUCTURE


cdef inline int next_header(
    Cursor* cursor, const uint8_t** key, int32_t* key_size, const uint8_t** value, int32_t* value_size
) noexcept nogil:
    if not read_varint(cursor, key_size):
        return BAD_STRUCTURE
    if key_size[0] < 0:
        return NEGATIVE_HEADER_KEY
    key[0] = take(cursor, key_size[0])
    if key[0] == NULL:
        return BAD_STRUCTURE
    return take_nullable(cursor, value, value_size)


cdef inline int read_length(Cursor* cursor, bint streaming, int64_t max_body, RecordView* out) noexcept nogil:
    """The length in front of a record; `streaming` is how Kafka reads compressed batches."""
    cdef const uint8_t* start = cursor.at
    cdef uint32_t raw = 0
    cdef int i
    if not read_varint(cursor, &out.body_size):
        if cursor.at - start >= 5:
            for i in range(4):
                raw |= (<uint32_t>(start[i] & 0x7F)) << (7 * i)
            out.detail = raw | (<uint32_t>start[4]) << 28
            return EARLY_END if streaming else LONG_VARINT
        return EARLY_END
    out.detail = out.body_size
    if out.body_size < 0:
        return NEGATIVE_SIZE if streaming else BODY_MISMATCH
    if streaming and out.body_size > max_body:
        out.second_detail = max_body
        return OVERSIZE
    if out.body_size > cursor.end - cursor.at:
        out.second_detail = cursor.end - cursor.at
        return SHORT_PAYLOAD
    return RECORD_OK


cdef inline int next_record(Cursor* cursor, bint streaming, int64_t max_body, RecordView* out) noexcept nogil:
    """Reads one record and moves behind it; every part lies within its declared body."""
    cdef int verdict = read_length(cursor, streaming, max_body, out)
    cdef Cursor body
    cdef const uint8_t* start
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef int32_t key_size = 0
    cdef int32_t value_size, _i
    if verdict != RECORD_OK:
        return verdict
    start = cursor.at
    body.at = start
    body.end = start + out.body_size
    # attributes: one byte that says nothing
    if take(&body, 1) == NULL:
        return BAD_STRUCTURE
    if not read_varlong(&body, &out.timestamp_delta) or not read_varint(&body, &out.offset_delta):
        return BAD_STRUCTURE
    if take_nullable(&body, &out.key, &out.key_size) != RECORD_OK:
        return BAD_STRUCTURE
    if take_nullable(&body, &out.value, &out.value_size) != RECORD_OK:
        return BAD_STRUCTURE
    if not read_varint(&body, &out.header_count):
        return BAD_STRUCTURE
    out.headers = body.at
    if out.header_count != 0:
        out.detail = out.header_count
        if out.header_count < 0:
            return BAD_HEADER_COUNT
        if out.header_count > body.end - body.at:
            return HEADER_COUNT_TOO_BIG
        for _i in range(out.header_count):
            verdict = next_header(&body, &key, &key_size, &value, &value_size)
            if verdict != RECORD_OK:
                out.detail = key_size
                return verdict
    if body.at != body.end:
        out.detail = out.body_size
        out.second_detail = body.at - start
        return BODY_MISMATCH
    out.end = body.end
    cursor.at = body.end
    return RECORD_OK
