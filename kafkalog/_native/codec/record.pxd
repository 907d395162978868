# The only walk over magic-2 records: a bounded step that finds a record's parts, by the rules of Kafka's three readers
# (DefaultRecord.readFrom and readPartiallyFrom, 4.4.0), and the verdicts that it gives. Records as objects, columns,
# validation and compaction are built on it. A view says where its record begins and ends, so that it can be copied as
# bytes. Knows bytes; the error texts of the verdicts are in `kafkalog.engine.format.records`.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkalog._native.codec.cursor cimport Cursor, take
from kafkalog._native.codec.layout cimport load8
from kafkalog._native.codec.varint cimport read_varint, read_varlong, size_of_uvarint64, zigzag32, zigzag64

# Kafka has three readers, which refuse different things.
cdef enum Reader:
    BUFFER = 0  # uncompressed batches: a record may be read past its length, the sum must fit
    STREAM = 1  # decompressed: each record within its bounds
    SKIP = 2  # decompressed and kept unchanged: keys and values are skipped, the length is not compared

# `expected` and `found` of the view hold the numbers that belong to a verdict.
cdef enum Verdict:
    OK = 0
    NEGATIVE_COUNT = 1          # found: the batch's count
    PREMATURE_END = 2
    LONG_VARINT = 3             # found: the 32 bits that were read of a record's length
    NEGATIVE_SIZE = 4           # found: the length
    SIZE_OVER_LIMIT = 5         # found: the length, expected: the limit
    SHORT_STREAM = 6            # expected: the length
    SHORT_BUFFER = 7            # expected: the length, found: the bytes left
    BAD_STRUCTURE = 8
    NEGATIVE_HEADER_COUNT = 9   # found: the count
    EXCESS_HEADER_COUNT = 10    # found: the count
    NEGATIVE_HEADER_KEY = 11    # found: the size
    SIZE_MISMATCH = 12          # expected: the length, found: what the parts take
    SHORT_SKIP = 13             # found: the bytes that are missing
    BYTES_LEFT = 14             # found: how many
    # Whole batches, not single records.
    BAD_BOUNDS = 15  # the batch is not inside the buffer: the caller's mistake
    NO_MEMORY = 16
    NEEDS_PAYLOAD = 17  # compressed or older: the caller has to decompress or convert it
    FULL = 18
    # Columns that are to be written.
    BAD_TIMESTAMP = 19
    BAD_OFFSET = 20
    BAD_COLUMN = 21
    TOO_LONG = 22

# The base values of the deltas in a batch's records.
cdef struct Batch:
    int64_t count
    int64_t base_offset
    int64_t base_timestamp
    # Whether `append_time` is every record's timestamp.
    bint log_append
    int64_t append_time

cdef struct RecordView:
    # [start, end): the record including its length prefix.
    const uint8_t* start
    const uint8_t* end
    # NULL for null; then the size is negative, as it was read.
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_size
    int32_t value_size
    int32_t header_count
    int32_t body_size
    # Whether a builder would write these bytes; only set if the caller requested it.
    bint canonical
    int64_t expected
    int64_t found

cdef struct HeaderView:
    const uint8_t* key
    const uint8_t* value
    int32_t key_size
    int32_t value_size


cdef inline int next_record(
    Cursor* cursor, int reader, int64_t max_body, bint canonical, RecordView* out
) noexcept nogil:
    """Reads one record and moves after it; `max_body` limits the bodies that STREAM and SKIP read.

    `canonical` requests whether the record is written as a builder would write it. Without it, usual records take a
    faster path, with the same results.
    """
    out.start = cursor.at
    if not canonical:
        out.canonical = False
        if usual_record(cursor, reader, max_body, out):
            return OK
    return any_record(cursor, reader, max_body, canonical, out)


cdef inline int64_t offset_of(const Batch* batch, const RecordView* record) noexcept nogil:
    """Wraps as Java's longs do, and so does `timestamp_of`."""
    return <int64_t>(<uint64_t>batch.base_offset + <uint64_t><int64_t>record.offset_delta)


cdef inline int64_t timestamp_of(const Batch* batch, const RecordView* record) noexcept nogil:
    if batch.log_append:
        return batch.append_time
    return <int64_t>(<uint64_t>batch.base_timestamp + <uint64_t>record.timestamp_delta)


# --- parts ----------------------------------------------------------------------------------------

cdef inline bint read_number(Cursor* cursor, bint canonical, RecordView* record, int32_t* out) noexcept nogil:
    cdef const uint8_t* before = cursor.at
    if not read_varint(cursor, out):
        return False
    if canonical and cursor.at - before > 1 and cursor.at - before != size_of_uvarint64(zigzag32(out[0])):
        record.canonical = False
    return True


cdef inline int find_part(
    Cursor* cursor, int reader, int32_t size, RecordView* record, const uint8_t** out
) noexcept nogil:
    """Finds the `size` bytes of a key or value; a negative size means null, which has no bytes."""
    out[0] = NULL
    if size < 0:
        return OK
    out[0] = take(cursor, size)
    if out[0] != NULL:
        return OK
    if reader != SKIP:
        return BAD_STRUCTURE
    record.found = size - (cursor.end - cursor.at)
    return SHORT_SKIP


cdef inline int next_header(
    Cursor* cursor, int reader, bint canonical, RecordView* record, HeaderView* out
) noexcept nogil:
    """Reads one header of `record` and moves after it."""
    cdef int verdict
    if not read_number(cursor, canonical, record, &out.key_size):
        return BAD_STRUCTURE
    if out.key_size < 0:
        record.found = out.key_size
        return NEGATIVE_HEADER_KEY
    verdict = find_part(cursor, reader, out.key_size, record, &out.key)
    if verdict != OK:
        return verdict
    if not read_number(cursor, canonical, record, &out.value_size):
        return BAD_STRUCTURE
    return find_part(cursor, reader, out.value_size, record, &out.value)


# --- the usual record -----------------------------------------------------------------------------

cdef inline const uint8_t* short_varint(const uint8_t* at, uint32_t* raw) noexcept nogil:
    """Reads a varint of up to three bytes, which the caller has checked to be available; NULL for a longer one."""
    cdef uint32_t first = load8(at)
    cdef uint32_t second, third
    if first < 0x80:
        raw[0] = first
        return at + 1
    second = load8(at + 1)
    if second < 0x80:
        raw[0] = (first & 0x7F) | (second << 7)
        return at + 2
    third = load8(at + 2)
    if third < 0x80:
        raw[0] = (first & 0x7F) | ((second & 0x7F) << 7) | (third << 14)
        return at + 3
    return NULL


cdef inline bint usual_record(Cursor* cursor, int reader, int64_t max_body, RecordView* out) noexcept nogil:
    """Returns whether the record has short varints, few headers, exactly its length, and bytes after it. Every reader
    accepts such a record. False says nothing about the record, and leaves the cursor where it was."""
    cdef Cursor rest
    cdef HeaderView header
    cdef int32_t _i
    cdef const uint8_t* at = cursor.at
    cdef const uint8_t* end = cursor.end
    cdef const uint8_t* body_end
    cdef uint32_t raw
    if end - at < 24:
        return False
    at = short_varint(at, &raw)
    if at == NULL or raw & 1:
        return False
    raw >>= 1
    # at least 21 bytes are left
    if <int64_t>raw > end - at or (<int64_t>raw > max_body and reader != BUFFER):
        return False
    out.body_size = <int32_t>raw
    body_end = at + raw
    at = short_varint(at + 1, &raw)  # attributes: one byte, which is ignored
    if at == NULL:
        return False
    out.timestamp_delta = <int64_t>(raw >> 1) ^ -(<int64_t>(raw & 1))
    at = short_varint(at, &raw)
    if at == NULL:
        return False
    out.offset_delta = <int32_t>(raw >> 1) ^ -(<int32_t>(raw & 1))
    at = short_varint(at, &raw)
    if at == NULL:
        return False
    if raw & 1:
        out.key = NULL
        out.key_size = -1 - <int32_t>(raw >> 1)
    else:
        raw >>= 1
        if <int64_t>raw > end - at:
            return False
        out.key = at
        out.key_size = <int32_t>raw
        at += raw
    if end - at < 4:
        return False
    at = short_varint(at, &raw)
    if at == NULL:
        return False
    if raw & 1:
        out.value = NULL
        out.value_size = -1 - <int32_t>(raw >> 1)
    else:
        raw >>= 1
        # one more byte: the count of headers
        if <int64_t>raw >= end - at:
            return False
        out.value = at
        out.value_size = <int32_t>raw
        at += raw
    if at >= body_end:
        return False
    raw = load8(at)
    if raw & 0x81:
        return False
    rest.at = at + 1
    rest.end = body_end
    out.headers = rest.at
    out.header_count = <int32_t>(raw >> 1)
    for _i in range(out.header_count):
        if next_header(&rest, BUFFER, False, out, &header) != OK:
            return False
    if rest.at != body_end:
        return False
    out.end = cursor.at = body_end
    return True


# --- any record -----------------------------------------------------------------------------------

cdef inline bint is_ascii(const uint8_t* at, int32_t size) noexcept nogil:
    cdef int32_t i
    for i in range(size):
        if load8(at + i) >= 0x80:
            return False
    return True


cdef inline int read_length(
    Cursor* cursor, int reader, int64_t max_body, bint canonical, RecordView* out
) noexcept nogil:
    cdef uint32_t raw = 0
    cdef int i
    if not read_number(cursor, canonical, out, &out.body_size):
        if reader != BUFFER or cursor.end - out.start < 5:
            return PREMATURE_END
        for i in range(5):
            raw |= <uint32_t>(load8(out.start + i) & (0x7F if i < 4 else 0xFF)) << (7 * i)
        out.found = raw
        return LONG_VARINT
    if reader == BUFFER:
        if out.body_size > cursor.end - cursor.at:
            out.expected, out.found = out.body_size, cursor.end - cursor.at
            return SHORT_BUFFER
    elif out.body_size < 0:
        out.found = out.body_size
        return NEGATIVE_SIZE
    elif out.body_size > max_body:
        out.expected, out.found = max_body, out.body_size
        return SIZE_OVER_LIMIT
    elif reader == STREAM and out.body_size > cursor.end - cursor.at:
        out.expected = out.body_size
        return SHORT_STREAM
    return OK


cdef inline int any_record(
    Cursor* cursor, int reader, int64_t max_body, bint canonical, RecordView* out
) noexcept nogil:
    cdef Cursor body
    cdef const uint8_t* first
    cdef const uint8_t* attributes
    cdef HeaderView header
    cdef int verdict
    cdef int32_t _i
    out.canonical = canonical
    out.expected = out.found = 0
    verdict = read_length(cursor, reader, max_body, canonical, out)
    if verdict != OK:
        return verdict
    body = cursor[0]
    if reader == STREAM:
        body.end = body.at + out.body_size
    first = body.at
    attributes = take(&body, 1)
    if attributes == NULL or not read_varlong(&body, &out.timestamp_delta):
        return BAD_STRUCTURE
    if canonical and (
        load8(attributes) != 0 or body.at - first - 1 != size_of_uvarint64(zigzag64(out.timestamp_delta))
    ):
        out.canonical = False
    if not read_number(&body, canonical, out, &out.offset_delta):
        return BAD_STRUCTURE
    if not read_number(&body, canonical, out, &out.key_size):
        return BAD_STRUCTURE
    verdict = find_part(&body, reader, out.key_size, out, &out.key)
    if verdict != OK:
        return verdict
    if not read_number(&body, canonical, out, &out.value_size):
        return BAD_STRUCTURE
    verdict = find_part(&body, reader, out.value_size, out, &out.value)
    if verdict != OK:
        return verdict
    if not read_number(&body, canonical, out, &out.header_count):
        return BAD_STRUCTURE
    if out.header_count < 0 or (reader != SKIP and out.header_count > body.end - body.at):
        out.found = out.header_count
        return NEGATIVE_HEADER_COUNT if out.header_count < 0 else EXCESS_HEADER_COUNT
    if canonical and (out.key_size < -1 or out.value_size < -1):
        out.canonical = False
    out.headers = body.at
    for _i in range(out.header_count):
        verdict = next_header(&body, reader, canonical, out, &header)
        if verdict != OK:
            return verdict
        # A builder would decode and encode the key: only ASCII is sure to come back unchanged.
        if canonical and (header.value_size < -1 or not is_ascii(header.key, header.key_size)):
            out.canonical = False
    if reader != SKIP and body.at - first != out.body_size:
        out.expected, out.found = out.body_size, body.at - first
        return SIZE_MISMATCH
    out.end = cursor.at = body.at
    return OK
