# One batch as numbers (a row of the table) and the step from one batch to the next, for all native modules.
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkalog._native.codec.layout cimport (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    CRC,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LEGACY_ATTRIBUTES,
    LEGACY_CRC,
    LEGACY_TIMESTAMP,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    MIN_RECORD_OVERHEAD,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    RECORDS,
    load8,
    load16,
    load32,
    load64,
)
from kafkalog._native.codec.layout cimport BASE_SEQUENCE as BASE_SEQUENCE_AT
from kafkalog._native.codec.layout cimport HEADER_SIZE_UP_TO_MAGIC as HEADER_UP_TO_MAGIC

cdef enum Verdict:
    V_OK = 0
    V_TORN = 1
    V_BAD_SIZE = 2
    V_BAD_MAGIC = 3
    V_BAD_CRC = 4
    V_MORE = 5

cdef enum Framing:
    F_BUFFER = 0
    F_FILE = 1

cdef enum:
    # The fields that every whole legacy entry has: offset, size, CRC, magic, attributes, timestamp (v1).
    LEGACY_HEADER = 26

# BATCH_DTYPE in C; 80 bytes.
cdef struct Row:
    int64_t position
    int32_t size
    int8_t verdict
    int8_t magic
    int16_t attributes
    int32_t leader_epoch
    uint32_t crc
    int64_t base_offset
    int64_t last_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t base_sequence
    int32_t last_sequence
    int32_t record_count
    int16_t producer_epoch


cdef inline int next_frame(
    const uint8_t* p, int64_t left, int framing, int64_t* size, int8_t* magic_byte
) noexcept nogil:
    """Finds the end of the batch at `p`, by the rules of Kafka's two readers; `size[0] == 0` means the end of the data.

    V_OK guarantees `left >= size[0]` and that the whole header of `magic_byte[0]` (61 bytes, legacy 26) is available.
    The magic byte in the buffer may have changed since it was read.
    """
    cdef int64_t length
    cdef int8_t magic
    size[0] = 0
    magic_byte[0] = 0
    if framing == F_FILE:
        # As FileLogInputStream: a tail of 17 bytes or less is ignored.
        if left <= HEADER_UP_TO_MAGIC:
            return V_OK
    elif left < LOG_OVERHEAD:
        return V_OK
    length = <int32_t>load32(p + BATCH_LENGTH)
    if length < MIN_RECORD_OVERHEAD:
        return V_BAD_SIZE
    if left < HEADER_UP_TO_MAGIC:
        return V_OK
    magic = <int8_t>load8(p + MAGIC)
    magic_byte[0] = magic
    if framing == F_FILE:
        if length > left - LOG_OVERHEAD:
            return V_TORN
        # As in Kafka, a negative magic is read as a legacy one and a magic above 2 as 2, so the batches after it are
        # still found.
    else:
        if magic < 0 or magic > 2:
            return V_BAD_MAGIC
        if length > left - LOG_OVERHEAD:
            return V_TORN
    if magic >= 2 and length < RECORDS - LOG_OVERHEAD:
        return V_BAD_SIZE
    size[0] = length + LOG_OVERHEAD
    return V_OK


cdef inline int32_t increment_sequence(int32_t sequence, int32_t increment) noexcept nogil:
    """DefaultRecordBatch.incrementSequence, with Java's wrapping."""
    if sequence > <int32_t>(<uint32_t>INT32_MAX - <uint32_t>increment):
        return <int32_t>(<uint32_t>increment - (<uint32_t>INT32_MAX - <uint32_t>sequence) - 1)
    return <int32_t>(<uint32_t>sequence + <uint32_t>increment)


cdef inline void parse_header(
    const uint8_t* p, int8_t magic, int64_t position, int64_t size, Row* row
) noexcept nogil:
    """Fills `row` from the 61 bytes (legacy: 26) at `p`, whose magic byte was loaded as `magic`."""
    cdef int32_t delta
    row.position = position
    row.size = <int32_t>size
    row.verdict = V_OK
    row.magic = magic
    row.base_offset = <int64_t>load64(p + BASE_OFFSET)
    if magic >= 2:
        delta = <int32_t>load32(p + LAST_OFFSET_DELTA)
        row.attributes = <int16_t>load16(p + ATTRIBUTES)
        row.leader_epoch = <int32_t>load32(p + LEADER_EPOCH)
        row.crc = load32(p + CRC)
        row.last_offset = <int64_t>(<uint64_t>row.base_offset + <uint64_t><int64_t>delta)
        row.base_timestamp = <int64_t>load64(p + BASE_TIMESTAMP)
        row.max_timestamp = <int64_t>load64(p + MAX_TIMESTAMP)
        row.producer_id = <int64_t>load64(p + PRODUCER_ID)
        row.producer_epoch = <int16_t>load16(p + PRODUCER_EPOCH)
        row.base_sequence = <int32_t>load32(p + BASE_SEQUENCE_AT)
        row.last_sequence = -1 if row.base_sequence == -1 else increment_sequence(row.base_sequence, delta)
        row.record_count = <int32_t>load32(p + RECORD_COUNT)
    else:
        row.attributes = load8(p + LEGACY_ATTRIBUTES)
        row.leader_epoch = -1
        row.crc = load32(p + LEGACY_CRC)
        row.last_offset = row.base_offset
        row.base_timestamp = -1 if magic == 0 else <int64_t>load64(p + LEGACY_TIMESTAMP)
        row.max_timestamp = row.base_timestamp
        row.producer_id = -1
        row.producer_epoch = -1
        row.base_sequence = -1
        row.last_sequence = -1
        row.record_count = -1


cdef class BatchHeader:
    cdef Row row


cdef inline BatchHeader header_of(const Row* row):
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    header.row = row[0]
    return header


cdef inline bint entry_is_due(int64_t bytes_since_last_entry, int64_t interval_bytes) noexcept nogil:
    """Returns whether the next batch gets index entries: more than index.interval.bytes were written since the last
    ones."""
    return bytes_since_last_entry > interval_bytes


# Index entries in the bytes of the index file.
cdef struct Entries:
    uint8_t* bytes
    size_t filled
    size_t capacity


cdef class IndexPlan:
    cdef int64_t base_offset
    cdef int64_t interval_bytes
    cdef int64_t _bytes_since_last_entry
    cdef int64_t _max_timestamp
    cdef int64_t _offset_of_max_timestamp
    cdef int64_t last_time
    cdef int64_t last_time_offset
    cdef int64_t _last_offset_entry
    cdef int64_t offset_entry_count_
    cdef int64_t time_entry_count_
    cdef int64_t max_offset_entries
    cdef int64_t max_time_entries
    cdef bint check_range
    cdef Entries offsets
    cdef Entries times
    cdef int error_kind
    cdef int64_t error_row
    cdef int busy

    cdef bint representable(self, int64_t offset) noexcept nogil
    cdef int add(self, const Row* row, int64_t position) noexcept nogil
    cdef int append_entries(self, int64_t offset, int64_t position) noexcept nogil
    cdef int maybe_append_time(self, bint skip_full_check) noexcept nogil
    cdef bint settle(self, int error, int64_t row) except -1
    cdef object number(self, const int64_t* which)
