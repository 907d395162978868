"""Records <-> columns in Arrow's layout: one call decodes a buffer of batches, one call encodes a batch.

`ColumnBuilder` collects decoded records; `finish` hands them out as `RecordColumns`, through the Arrow PyCapsule
interface (no Arrow library is needed) and as numpy arrays over the same memory.  `encode` writes a batch's
payload from columns.  Bad bytes give a verdict of `_native.records`, the position and the numbers of the error
text; this module raises nothing of the domain.  Loops run without the GIL and allocate in proportion to the
bytes given, never to a count that a header claims.  Long, because decoding, handing out and encoding share one
memory layout, and the compiler inlines across them only within a module.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import numpy as np

from kafkalog._native cimport record as rec
from kafkalog._native.batches cimport Row
from kafkalog._native.crc32c cimport crc32c_update
from kafkalog._native.cursor cimport Cursor
from kafkalog._native.guard cimport claim, kl_leave
from kafkalog._native.layout cimport (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC,
    KL_LOADED,
    KL_ONCE,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    RECORDS,
    TIMESTAMP_TYPE_FLAG,
    load8,
    store16,
    store32,
    store64,
)
from kafkalog._native.octets cimport open_octets
from kafkalog._native.octets import bytes_of
from kafkalog._native.record cimport RecordView
from kafkalog._native.varint cimport size_of_uvarint64, write_uvarint64, zigzag64
from kafkalog._native.batches import BATCH_DTYPE as _BATCH_DTYPE

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #include <stdlib.h>
    /* Columns of megabytes are written once, front to back: huge pages save most of the page faults. */
    static void kl_huge(void *at, size_t size) {
        size_t start = ((size_t)at + 0x1FFFFF) & ~(size_t)0x1FFFFF, end = ((size_t)at + size) & ~(size_t)0x1FFFFF;
        if (end > start) madvise((void *)start, end - start, MADV_HUGEPAGE);
    }
    static void *kl_big(size_t size) {
        void *at = NULL;
        if (posix_memalign(&at, 0x200000, size) != 0) return NULL;
        kl_huge(at, size);
        return at;
    }
    #else
    static void kl_huge(void *at, size_t size) { (void)at; (void)size; }
    static void *kl_big(size_t size) { return malloc(size); }
    #endif
    static inline void kl_copy32(unsigned char *to, const unsigned char *from) { memcpy(to, from, 32); }
    static inline void kl_copy16(unsigned char *to, const unsigned char *from) { memcpy(to, from, 16); }
    """
    void kl_huge(void* at, size_t size) noexcept nogil
    void* kl_big(size_t size) noexcept nogil
    void kl_copy32(uint8_t* to, const uint8_t* source) noexcept nogil
    void kl_copy16(uint8_t* to, const uint8_t* source) noexcept nogil

cdef enum:
    # Beyond the verdicts of record.pxd.
    NEEDS_PAYLOAD_ = 20
    FULL_ = 21
    BAD_TABLE_ = 22
    NO_MEMORY_ = 23
    BAD_TIMESTAMP_ = 24
    BAD_OFFSET_ = 25
    BAD_COLUMN_ = 26
    TOO_LONG_ = 27
    # The smallest record: a length and six bytes.
    RECORD_BYTES_MIN = 7
    # Copies move whole words: that many bytes behind each data buffer are ours to overwrite.
    SLACK = 64
    # What one record takes around its key, value and headers, at most: 5 varints of 5 bytes, one of 10, a byte.
    RECORD_OVERHEAD_MAX = 36
    HEADER_OVERHEAD_MAX = 10
    MAX_DATA_BYTES = 0x7FFFFFFF
    BIG_BYTES = 4 << 20

OK = rec.RECORD_OK
NEEDS_PAYLOAD = NEEDS_PAYLOAD_
FULL = FULL_
BAD_TABLE = BAD_TABLE_
BAD_TIMESTAMP = BAD_TIMESTAMP_
BAD_OFFSET = BAD_OFFSET_
BAD_COLUMN = BAD_COLUMN_
TOO_LONG = TOO_LONG_


# --- growing memory -------------------------------------------------------------------------------

cdef struct Block:
    uint8_t* at
    int64_t capacity


cdef inline bint reserve(Block* block, int64_t needed) noexcept nogil:
    """Room for `needed` bytes; at least doubles, so that a run of calls stays linear."""
    cdef uint8_t* grown
    cdef int64_t capacity
    if needed <= block.capacity:
        return True
    capacity = 2 * block.capacity
    if capacity < needed:
        capacity = needed
    if capacity >= BIG_BYTES and block.at == NULL:
        grown = <uint8_t*>kl_big(<size_t>capacity)
    else:
        grown = <uint8_t*>realloc(block.at, <size_t>capacity)
        if grown != NULL and capacity >= BIG_BYTES:
            kl_huge(grown, <size_t>capacity)
    if grown == NULL:
        return False
    block.at = grown
    block.capacity = capacity
    return True


cdef inline bint reserve_bits(Block* block, int64_t bits) noexcept nogil:
    """Room for a bitmap; what is new is all ones, so that only nulls need a store."""
    cdef int64_t had = block.capacity
    if not reserve(block, (bits >> 3) + 1):
        return False
    if block.capacity > had:
        memset(block.at + had, 0xFF, <size_t>(block.capacity - had))
    return True


cdef inline void clear_bit(uint8_t* bitmap, int64_t i) noexcept nogil:
    bitmap[i >> 3] &= <uint8_t>(~(1 << (i & 7)))


cdef inline void set_bits_from(uint8_t* bitmap, int64_t start, int64_t stop) noexcept nogil:
    cdef int64_t i
    for i in range(start, stop):
        bitmap[i >> 3] |= <uint8_t>(1 << (i & 7))


# A column of bytes or text: `rows` + 1 offsets, data, and a bitmap.
cdef struct Binary:
    Block offsets
    Block data
    Block validity
    int64_t filled
    int64_t nulls

cdef struct Mark:
    int64_t rows
    int64_t key_filled
    int64_t key_nulls
    int64_t value_filled
    int64_t value_nulls
    int64_t headers
    int64_t header_key_filled
    int64_t header_value_filled
    int64_t header_value_nulls
    int64_t list_nulls

cdef struct Sink:
    int64_t rows
    Block offsets
    Block timestamps
    Block types
    Binary key
    Binary value
    # headers: a list of (key, value) a record
    Block lists
    Block list_validity
    int64_t list_nulls
    int64_t headers
    Binary header_key
    Binary header_value
    bint with_keys
    bint with_values
    bint with_headers
    bint with_types
    bint null_empty_headers
    bint bad_text
    int64_t offset_min
    int64_t offset_max


cdef inline void copy_bytes(uint8_t* to, const uint8_t* source, int64_t size, const uint8_t* end) noexcept nogil:
    """Copies `size` bytes; may write SLACK bytes more, and reads no further than `end`."""
    cdef int64_t i = 0
    if size <= 256 and end - source >= size + 32:
        if size <= 16:
            kl_copy16(to, source)
            return
        while i < size:
            kl_copy32(to + i, source + i)
            i += 32
        return
    memcpy(to, source, <size_t>size)


cdef inline void put_binary(
    Binary* column, int64_t row, const uint8_t* at, int32_t size, const uint8_t* end
) noexcept nogil:
    """The caller has made room: an offset, a bit, and the bytes with SLACK behind them."""
    if at == NULL:
        clear_bit(column.validity.at, row)
        column.nulls += 1
    else:
        copy_bytes(column.data.at + column.filled, at, size, end)
        column.filled += size
    (<int32_t*>column.offsets.at)[row + 1] = <int32_t>column.filled


cdef bint is_utf8(const uint8_t* at, int64_t size) noexcept nogil:
    cdef int64_t i = 0
    cdef int more, k
    cdef uint32_t point, low
    while i < size:
        if at[i] < 0x80:
            i += 1
            continue
        if at[i] < 0xC2:
            return False
        if at[i] < 0xE0:
            more, point, low = 1, at[i] & 0x1F, 0x80
        elif at[i] < 0xF0:
            more, point, low = 2, at[i] & 0x0F, 0x800
        elif at[i] < 0xF5:
            more, point, low = 3, at[i] & 0x07, 0x10000
        else:
            return False
        if i + more >= size:
            return False
        for k in range(1, more + 1):
            if at[i + k] & 0xC0 != 0x80:
                return False
            point = (point << 6) | (at[i + k] & 0x3F)
        if point < low or point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            return False
        i += more + 1
    return True


cdef bint reserve_rows(Sink* sink, int64_t rows, int64_t data_bytes) noexcept nogil:
    """Room for `rows` more rows whose parts sum up to `data_bytes` at most."""
    cdef int64_t total = sink.rows + rows
    if not reserve(&sink.offsets, 8 * total) or not reserve(&sink.timestamps, 8 * total):
        return False
    if sink.with_types and not reserve(&sink.types, 4 * total):
        return False
    if sink.with_keys and not reserve_binary(&sink.key, total, data_bytes):
        return False
    if sink.with_values and not reserve_binary(&sink.value, total, data_bytes):
        return False
    if sink.with_headers:
        if not reserve(&sink.lists, 4 * (total + 1)) or not reserve_bits(&sink.list_validity, total):
            return False
    return True


cdef bint reserve_binary(Binary* column, int64_t rows, int64_t data_bytes) noexcept nogil:
    return (
        reserve(&column.offsets, 4 * (rows + 1))
        and reserve(&column.data, column.filled + data_bytes + SLACK)
        and reserve_bits(&column.validity, rows)
    )


cdef bint put_headers(Sink* sink, RecordView* view) noexcept nogil:
    """False when memory ends.  next_record has walked these headers already."""
    cdef Cursor cursor
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef int32_t key_size, value_size, _i
    cdef int64_t room, at
    if view.header_count > 0:
        cursor.at = view.headers
        cursor.end = view.end
        room = view.end - view.headers
        if not reserve_binary(&sink.header_key, sink.headers + view.header_count, room):
            return False
        if not reserve_binary(&sink.header_value, sink.headers + view.header_count, room):
            return False
        for _i in range(view.header_count):
            if rec.next_header(&cursor, &key, &key_size, &value, &value_size) != rec.RECORD_OK:
                break
            at = sink.header_key.filled
            put_binary(&sink.header_key, sink.headers, key, key_size, view.end)
            # Of our copy: the original may become another text meanwhile.
            if not sink.bad_text and not is_utf8(sink.header_key.data.at + at, key_size):
                sink.bad_text = True
            put_binary(&sink.header_value, sink.headers, value, value_size, view.end)
            sink.headers += 1
    elif sink.null_empty_headers:
        clear_bit(sink.list_validity.at, sink.rows)
        sink.list_nulls += 1
    (<int32_t*>sink.lists.at)[sink.rows + 1] = <int32_t>sink.headers
    return True


# --- decode ---------------------------------------------------------------------------------------

cdef inline const uint8_t* quick_varint(const uint8_t* at, uint32_t* raw) noexcept nogil:
    """Up to three bytes, which the caller has made sure of; NULL for anything longer."""
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


cdef inline const uint8_t* quick_record(const uint8_t* at, const uint8_t* end, RecordView* out) noexcept nogil:
    """The place behind a record of the usual shape (short varints, no headers, no null but as -1), else NULL:
    then the careful walk decides."""
    cdef uint32_t raw
    cdef const uint8_t* body_end
    if end - at < 24:
        return NULL
    at = quick_varint(at, &raw)
    if at == NULL or raw & 1:
        return NULL
    raw >>= 1
    # 21 bytes at least are left
    if <int64_t>raw > end - at:
        return NULL
    body_end = at + raw
    at = quick_varint(at + 1, &raw)
    if at == NULL:
        return NULL
    out.timestamp_delta = <int64_t>(raw >> 1) ^ -(<int64_t>(raw & 1))
    at = quick_varint(at, &raw)
    if at == NULL:
        return NULL
    out.offset_delta = <int32_t>(raw >> 1) ^ -(<int32_t>(raw & 1))
    at = quick_varint(at, &raw)
    if at == NULL:
        return NULL
    if raw & 1:
        out.key = NULL
        out.key_size = -1
    else:
        raw >>= 1
        if <int64_t>raw > end - at:
            return NULL
        out.key = at
        out.key_size = <int32_t>raw
        at += raw
    if end - at < 4:
        return NULL
    at = quick_varint(at, &raw)
    if at == NULL:
        return NULL
    if raw & 1:
        out.value = NULL
        out.value_size = -1
    else:
        raw >>= 1
        # one byte more: the count of headers
        if <int64_t>raw >= end - at:
            return NULL
        out.value = at
        out.value_size = <int32_t>raw
        at += raw
    if at >= end or at[0] != 0 or at + 1 != body_end:
        return NULL
    out.header_count = 0
    return at + 1


cdef int decode_payload(
    Sink* sink,
    const uint8_t* start,
    int64_t size,
    int64_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    bint log_append,
    int64_t append_time,
    bint streaming,
    int64_t max_body,
    RecordView* view,
    int64_t* position,
) noexcept nogil:
    """Adds the records of one payload, all or none; the verdict."""
    cdef Cursor cursor
    cdef const uint8_t* here
    cdef const uint8_t* end = start + size
    cdef const uint8_t* after
    cdef int64_t _i, offset, row
    cdef int64_t rows = count if count < size // RECORD_BYTES_MIN else size // RECORD_BYTES_MIN
    cdef int verdict = rec.RECORD_OK
    cdef Mark mark
    cdef int64_t* offsets
    cdef int64_t* timestamps
    cdef int32_t type_id = 1 if log_append else 0
    if count < 0:
        view.detail = count
        return rec.NEGATIVE_COUNT
    if count == 0:
        return rec.RECORD_OK
    if sink.key.filled + size > MAX_DATA_BYTES or sink.value.filled + size > MAX_DATA_BYTES:
        return FULL_
    if sink.header_key.filled + size > MAX_DATA_BYTES or sink.header_value.filled + size > MAX_DATA_BYTES:
        return FULL_
    if sink.rows + rows > MAX_DATA_BYTES - 1 or sink.headers + size // 2 > MAX_DATA_BYTES - 1:
        return FULL_
    if not reserve_rows(sink, rows, size):
        return NO_MEMORY_
    take_mark(sink, &mark)
    offsets = <int64_t*>sink.offsets.at
    timestamps = <int64_t*>sink.timestamps.at
    cursor.at = start
    cursor.end = end
    for _i in range(count):
        here = cursor.at
        after = quick_record(here, end, view)
        if after != NULL and not (streaming and after - here > max_body):
            cursor.at = after
        else:
            verdict = rec.next_record(&cursor, streaming, max_body, view)
            if verdict != rec.RECORD_OK:
                position[0] = here - start
                break
        offset = <int64_t>(<uint64_t>base_offset + <uint64_t><int64_t>view.offset_delta)
        if offset < sink.offset_min or offset > sink.offset_max:
            continue
        row = sink.rows
        offsets[row] = offset
        if log_append:
            timestamps[row] = append_time
        else:
            timestamps[row] = <int64_t>(<uint64_t>base_timestamp + <uint64_t>view.timestamp_delta)
        if sink.with_types:
            (<int32_t*>sink.types.at)[row] = type_id
        if sink.with_keys:
            put_binary(&sink.key, row, view.key, view.key_size, end)
        if sink.with_values:
            put_binary(&sink.value, row, view.value, view.value_size, end)
        if sink.with_headers and not put_headers(sink, view):
            verdict = NO_MEMORY_
            break
        sink.rows = row + 1
    if verdict == rec.RECORD_OK and cursor.at != end:
        verdict = rec.LEFTOVER
        position[0] = cursor.at - start
    if verdict != rec.RECORD_OK:
        roll_back(sink, &mark)
    return verdict


cdef inline void take_mark(Sink* sink, Mark* mark) noexcept nogil:
    mark.rows = sink.rows
    mark.key_filled, mark.key_nulls = sink.key.filled, sink.key.nulls
    mark.value_filled, mark.value_nulls = sink.value.filled, sink.value.nulls
    mark.headers, mark.list_nulls = sink.headers, sink.list_nulls
    mark.header_key_filled = sink.header_key.filled
    mark.header_value_filled, mark.header_value_nulls = sink.header_value.filled, sink.header_value.nulls


cdef void roll_back(Sink* sink, Mark* mark) noexcept nogil:
    # The row that failed may have cleared its bits too.
    if sink.with_keys:
        set_bits_from(sink.key.validity.at, mark.rows, sink.rows + 1)
    if sink.with_values:
        set_bits_from(sink.value.validity.at, mark.rows, sink.rows + 1)
    if sink.with_headers:
        set_bits_from(sink.list_validity.at, mark.rows, sink.rows + 1)
        if sink.headers > mark.headers:
            set_bits_from(sink.header_value.validity.at, mark.headers, sink.headers)
    sink.rows = mark.rows
    sink.key.filled, sink.key.nulls = mark.key_filled, mark.key_nulls
    sink.value.filled, sink.value.nulls = mark.value_filled, mark.value_nulls
    sink.headers, sink.list_nulls = mark.headers, mark.list_nulls
    sink.header_key.filled = mark.header_key_filled
    sink.header_value.filled, sink.header_value.nulls = mark.header_value_filled, mark.header_value_nulls


cdef inline Row row_at(const Row* rows, int64_t i) noexcept nogil:
    # A table is an array that somebody may write to: what is checked is what is used.
    cdef Row row = rows[i]
    KL_LOADED()
    return row


cdef int decode_table(
    Sink* sink,
    const uint8_t* data,
    int64_t size,
    const Row* rows,
    int64_t row_count,
    int64_t base_position,
    const uint8_t* skip,
    bint skip_control,
    int64_t* next_row,
    RecordView* view,
    int64_t* position,
) noexcept nogil:
    cdef Row row
    cdef int64_t at, i
    cdef int64_t rows_ahead = 0
    cdef int64_t bytes_ahead = 0
    cdef int verdict
    # Room for all of it at once, as far as `data` can hold it.
    for i in range(next_row[0], row_count):
        row = row_at(rows, i)
        if row.magic < 2 or row.attributes & CODEC_MASK or row.size < RECORDS or row.record_count < 0:
            break
        if bytes_ahead + row.size > size or sink.key.filled + sink.value.filled + bytes_ahead > MAX_DATA_BYTES // 2:
            break
        bytes_ahead += row.size - RECORDS
        rows_ahead += min(<int64_t>row.record_count, row.size // RECORD_BYTES_MIN)
    if not reserve_rows(sink, rows_ahead, bytes_ahead):
        return NO_MEMORY_
    while next_row[0] < row_count:
        row = row_at(rows, next_row[0])
        at = row.position - base_position
        if at < 0 or at > size or row.size < 0 or row.size > size - at:
            return BAD_TABLE_
        if (skip != NULL and skip[next_row[0]]) or (
            skip_control and row.magic >= 2 and row.attributes & CONTROL_FLAG
        ) or row.last_offset < sink.offset_min or (row.magic >= 2 and row.base_offset > sink.offset_max):
            next_row[0] += 1
            continue
        if row.magic < 2 or row.attributes & CODEC_MASK:
            return NEEDS_PAYLOAD_
        if row.size < RECORDS:
            return BAD_TABLE_
        verdict = decode_payload(
            sink, data + at + RECORDS, row.size - RECORDS, row.record_count, row.base_offset, row.base_timestamp,
            (row.attributes & TIMESTAMP_TYPE_FLAG) != 0, row.max_timestamp, False, INT64_MAX, view, position,
        )
        if verdict != rec.RECORD_OK:
            position[0] += RECORDS
            return verdict
        next_row[0] += 1
    return rec.RECORD_OK


cdef int check_memory(int verdict) except -1:
    if verdict == NO_MEMORY_:
        raise MemoryError
    return verdict


# --- frames of compressed batches -------------------------------------------------------------------

cdef enum:
    LZ4_CODEC = 3
    ZSTD_CODEC = 4
    ZSTD_BLOCK_BYTES = 128 << 10
    ZSTD_STEP_BYTES = 1 << 20

# Magic, version 1 with independent blocks and no checksums, 64 KiB blocks, and the check byte of these two.
cdef const uint8_t* LZ4_USUAL = b"\x04\x22\x4d\x18\x60\x40\x82"


cdef int64_t lz4_bytes_max(const uint8_t* at, int64_t size) noexcept nogil:
    """At most how many bytes come out of a frame as Kafka's clients write it; -1 for another."""
    if size < 11 or memcmp(at, LZ4_USUAL, 7) != 0:
        return -1
    return 255 * size  # no byte of a block gives more


cdef int64_t zstd_bytes_max(const uint8_t* at, int64_t size) noexcept nogil:
    """At most how many bytes come out of one whole frame that fills [at, at + size); -1 for anything else."""
    cdef int64_t next_at, declared = -1
    cdef int64_t bytes_max = 0
    cdef int64_t block_bytes
    cdef uint32_t header
    cdef uint8_t descriptor
    cdef int size_bytes, i
    if size < 9 or memcmp(at, b"\x28\xb5\x2f\xfd", 4) != 0:
        return -1
    descriptor = at[4]
    if descriptor & 0x0B:  # a dictionary, or a reserved bit
        return -1
    next_at = 5 if descriptor & 0x20 else 6
    size_bytes = descriptor >> 6
    size_bytes = (1 if descriptor & 0x20 else 0) if size_bytes == 0 else 1 << size_bytes
    if next_at + size_bytes > size:
        return -1
    if size_bytes:
        declared = 0
        for i in range(size_bytes):
            declared |= <int64_t>(<uint64_t>at[next_at + i] << (8 * i))
        if size_bytes == 2:
            declared += 256
        next_at += size_bytes
        if declared < 0:
            return -1
    while True:
        if size - next_at < 3:
            return -1
        header = at[next_at] | <uint32_t>at[next_at + 1] << 8 | <uint32_t>at[next_at + 2] << 16
        next_at += 3
        block_bytes = header >> 3
        if block_bytes > ZSTD_BLOCK_BYTES:
            return -1
        bytes_max += block_bytes if (header >> 1) & 3 < 2 else ZSTD_BLOCK_BYTES
        next_at += 1 if (header >> 1) & 3 == 1 else block_bytes
        if next_at > size:
            return -1
        if header & 1:
            break
    if next_at + (4 if descriptor & 0x04 else 0) != size or declared > bytes_max:
        return -1
    return declared if declared >= 0 else bytes_max


cdef dict KINDS = {"CreateTime": 0, "LogAppendTime": 1}


cdef void free_binary(Binary* column) noexcept nogil:
    free(column.offsets.at)
    free(column.data.at)
    free(column.validity.at)


@cython.auto_pickle(False)
cdef class ColumnBuilder:
    """Collects records as columns until `finish`.

    keys, values, headers, timestamp_types: which columns beside offset and timestamp.  null_empty_headers: a record
    without headers gets a null instead of an empty list.  offset_min, offset_max: records outside are left out
    (both inclusive).  At most 2^31-1 bytes a column: then FULL is answered, and `finish` makes room.
    One thread at a time: a second one gets a RuntimeError.
    """
    cdef Sink sink
    cdef int busy

    def __init__(
        self, bint keys=True, bint values=True, bint headers=True, *, bint timestamp_types=False,
        bint null_empty_headers=False, offset_min=None, offset_max=None,
    ):
        self.sink.with_keys = keys
        self.sink.with_values = values
        self.sink.with_headers = headers
        self.sink.with_types = timestamp_types
        self.sink.null_empty_headers = null_empty_headers
        self.sink.offset_min = INT64_MIN if offset_min is None else offset_min
        self.sink.offset_max = INT64_MAX if offset_max is None else offset_max

    def __dealloc__(self):
        free(self.sink.offsets.at)
        free(self.sink.timestamps.at)
        free(self.sink.types.at)
        free(self.sink.lists.at)
        free(self.sink.list_validity.at)
        free_binary(&self.sink.key)
        free_binary(&self.sink.value)
        free_binary(&self.sink.header_key)
        free_binary(&self.sink.header_value)

    @property
    def rows(self):
        """Records collected so far."""
        claim(&self.busy, "ColumnBuilder")
        try:
            return self.sink.rows
        finally:
            kl_leave(&self.busy)

    @property
    def data_bytes(self):
        """Bytes of keys, values and headers collected so far."""
        claim(&self.busy, "ColumnBuilder")
        try:
            return self.filled()
        finally:
            kl_leave(&self.busy)

    cdef int64_t filled(self) noexcept nogil:
        return (
            self.sink.key.filled + self.sink.value.filled + self.sink.header_key.filled
            + self.sink.header_value.filled
        )

    def append_payload(
        self, payload, int64_t count, int64_t base_offset, int64_t base_timestamp, log_append_time=None, *,
        bint streaming=True, int64_t max_body=2147483639,
    ):
        """The records of one magic-2 batch, all or none: (verdict, position, detail, second detail).

        `payload` is what stands behind the header, decompressed; `log_append_time` replaces the timestamps;
        `streaming` says that it was compressed (Kafka's rules differ a little).
        """
        cdef Py_buffer view
        cdef RecordView record
        cdef int64_t position = 0
        cdef int verdict
        cdef bint log_append = log_append_time is not None
        cdef int64_t append_time = log_append_time if log_append else 0
        cdef uint8_t nothing = 0
        memset(&record, 0, sizeof(RecordView))
        open_octets(payload, &view)
        try:
            claim(&self.busy, "ColumnBuilder")
            try:
                with nogil:
                    verdict = decode_payload(
                        &self.sink, <const uint8_t*>view.buf if view.len else &nothing, view.len, count, base_offset,
                        base_timestamp, log_append, append_time, streaming, max_body, &record, &position,
                    )
            finally:
                kl_leave(&self.busy)
        finally:
            PyBuffer_Release(&view)
        return check_memory(verdict), position, record.detail, record.second_detail

    def append_table(
        self, data, table, int64_t start_row=0, *, int64_t base_position=0, skip=None, bint skip_control=False,
        decoders=None, int64_t max_body=2147483639, int64_t max_payload=2147483639,
    ):
        """The records of the batches that a scan's `table` found in `data`, from `start_row` on:
        (next row, verdict, position in the batch, detail, second detail).

        `base_position` is what the scan added to positions.  `skip`, one byte a row, leaves out the batches where it
        is not 0; `skip_control` leaves out control batches.  Stops in front of a batch that is compressed or older
        than magic 2 (NEEDS_PAYLOAD: give it to append_payload or append_records), one that does not fit any more
        (FULL), one whose row is outside of `data` (BAD_TABLE), or one with a bad record.  `decoders` are the
        libraries' functions for whole frames, (lz4(frame), zstd(frame, bytes at most)): with them the frames that
        Kafka's clients write are read on the way, and only what is unusual or bad stops it.
        """
        cdef Py_buffer view, rows, flags
        cdef RecordView record
        cdef int64_t position = 0
        cdef int64_t next_row = start_row
        cdef int verdict
        cdef const uint8_t* flag = NULL
        if start_row < 0:
            raise IndexError("start_row is negative")
        if table.dtype != _BATCH_DTYPE:
            raise TypeError("a table of BATCH_DTYPE is wanted")
        memset(&record, 0, sizeof(RecordView))
        memset(&flags, 0, sizeof(Py_buffer))
        open_octets(data, &view)
        try:
            open_octets(table, &rows)
            try:
                if skip is not None:
                    open_octets(skip, &flags)
                    flag = <const uint8_t*>flags.buf
                    if flags.len != rows.len // <Py_ssize_t>sizeof(Row):
                        raise IndexError("skip has one byte a row")
                claim(&self.busy, "ColumnBuilder")
                try:
                    while True:
                        with nogil:
                            verdict = decode_table(
                                &self.sink, <const uint8_t*>view.buf, view.len, <const Row*>rows.buf,
                                rows.len // <Py_ssize_t>sizeof(Row), base_position, flag, skip_control, &next_row,
                                &record, &position,
                            )
                        if verdict != NEEDS_PAYLOAD_ or decoders is None:
                            break
                        verdict = self.append_frame(
                            data, &view, row_at(<const Row*>rows.buf, next_row), base_position, decoders, max_body,
                            max_payload,
                        )
                        if verdict != rec.RECORD_OK:
                            break
                        next_row += 1
                finally:
                    kl_leave(&self.busy)
            finally:
                PyBuffer_Release(&flags)
                PyBuffer_Release(&rows)
        finally:
            PyBuffer_Release(&view)
        return next_row, check_memory(verdict), position, record.detail, record.second_detail

    cdef int append_frame(
        self, data, Py_buffer* view, Row row, int64_t base_position, tuple decoders, int64_t max_body,
        int64_t max_payload,
    ) except -1:
        """The records of one compressed batch whose payload is one usual frame; NEEDS_PAYLOAD for all others, and
        for whatever is wrong: the caller's slower way says what."""
        cdef int64_t at = row.position - base_position
        cdef int64_t size = <int64_t>row.size - RECORDS
        cdef int codec = row.attributes & CODEC_MASK
        cdef int64_t bytes_max, position = 0
        cdef const uint8_t* frame
        cdef Py_buffer payload_view
        cdef RecordView record
        cdef int verdict
        if row.magic < 2 or size <= 0 or row.record_count <= 0:
            return NEEDS_PAYLOAD_
        if at < 0 or at > view.len or row.size > view.len - at:  # the row is not the one that decode_table saw
            return BAD_TABLE_
        at += RECORDS
        frame_object = None
        frame = <const uint8_t*>view.buf + at
        if type(data) is not bytes and not (type(data) is memoryview and type(data.obj) is bytes):
            # The libraries' decoders expect a frame that stays as it is.
            frame_object = PyBytes_FromStringAndSize(<const char*>frame, size)
            frame = <const uint8_t*>PyBytes_AS_STRING(frame_object)
        if codec == LZ4_CODEC:
            bytes_max = lz4_bytes_max(frame, size)
        elif codec == ZSTD_CODEC:
            bytes_max = zstd_bytes_max(frame, size)
            if bytes_max > ZSTD_STEP_BYTES and bytes_max > 16 * size:
                return NEEDS_PAYLOAD_  # believed step by step, not at once
        else:
            return NEEDS_PAYLOAD_
        if bytes_max < 0 or bytes_max > max_payload:
            return NEEDS_PAYLOAD_
        if frame_object is None:
            frame_object = bytes_of(data)[at:at + size]
        try:
            payload = decoders[0](frame_object) if codec == LZ4_CODEC else decoders[1](frame_object, max(bytes_max, 1))
        except Exception:
            return NEEDS_PAYLOAD_
        memset(&record, 0, sizeof(RecordView))
        open_octets(payload, &payload_view)
        with nogil:
            verdict = decode_payload(
                &self.sink, <const uint8_t*>payload_view.buf, payload_view.len, row.record_count, row.base_offset,
                row.base_timestamp, (row.attributes & TIMESTAMP_TYPE_FLAG) != 0, row.max_timestamp, True, max_body,
                &record, &position,
            )
        PyBuffer_Release(&payload_view)
        if verdict == rec.RECORD_OK or verdict == FULL_ or verdict == NO_MEMORY_:
            return verdict
        return NEEDS_PAYLOAD_

    def append_records(self, list records):
        """Records as Python objects (what magic 0 and 1 decode to): OK, or FULL and none was added."""
        cdef int64_t total = 0
        cdef Sink* sink = &self.sink
        cdef bytes key, value, name
        cdef tuple taken
        cdef list rows = []
        # Taken once: objects may answer otherwise the next time, and the list may grow.
        for record in records:
            key, value = record.key, record.value
            headers = []
            for text, part in record.headers:
                name = text.encode("utf-8", "replace")
                headers.append((name, part))
                total += len(name) + (0 if part is None else len(<bytes?>part))
            total += len(key or b"") + len(value or b"")
            rows.append((
                <int64_t>record.offset, <int64_t>record.timestamp, KINDS.get(record.timestamp_type, -1), key, value,
                headers,
            ))
        claim(&self.busy, "ColumnBuilder")
        try:
            if self.filled() + total > MAX_DATA_BYTES or sink.rows + len(rows) > MAX_DATA_BYTES - 1:
                return FULL_
            if not reserve_rows(sink, len(rows), total):
                raise MemoryError
            for taken in rows:
                if sink.offset_min <= <int64_t>taken[0] <= sink.offset_max:
                    self.put_record(taken[0], taken[1], taken[2], taken[3], taken[4], taken[5])
            return rec.RECORD_OK
        finally:
            kl_leave(&self.busy)

    cdef int put_record(
        self, int64_t offset, int64_t timestamp, int32_t kind, bytes key, bytes value, list headers
    ) except -1:
        cdef Sink* sink = &self.sink
        cdef int64_t row = sink.rows
        cdef bytes name, part
        (<int64_t*>sink.offsets.at)[row] = offset
        (<int64_t*>sink.timestamps.at)[row] = timestamp
        if sink.with_types:
            (<int32_t*>sink.types.at)[row] = kind
        if sink.with_keys:
            put_object(&sink.key, row, key)
        if sink.with_values:
            put_object(&sink.value, row, value)
        if sink.with_headers:
            if not headers and sink.null_empty_headers:
                clear_bit(sink.list_validity.at, row)
                sink.list_nulls += 1
            for name, part in headers:
                if not reserve_binary(&sink.header_key, sink.headers + 1, len(name)):
                    raise MemoryError
                if not reserve_binary(&sink.header_value, sink.headers + 1, len(part or b"")):
                    raise MemoryError
                put_object(&sink.header_key, sink.headers, name)
                put_object(&sink.header_value, sink.headers, part)
                sink.headers += 1
            (<int32_t*>sink.lists.at)[row + 1] = <int32_t>sink.headers
        sink.rows = row + 1
        return 0

    def finish(self):
        """What was collected, as RecordColumns; the builder is empty again."""
        claim(&self.busy, "ColumnBuilder")
        try:
            return self.hand_out()
        finally:
            kl_leave(&self.busy)

    cdef object hand_out(self):
        cdef Sink* sink = &self.sink
        cdef list children
        if not reserve_rows(sink, 0, 0):
            raise MemoryError
        if sink.with_headers:
            if not reserve_binary(&sink.header_key, sink.headers, 0):
                raise MemoryError
            if not reserve_binary(&sink.header_value, sink.headers, 0):
                raise MemoryError
        children = [
            fixed_column("offset", "l", np.int64, &sink.offsets, sink.rows, 8),
            fixed_column("timestamp", "l", np.int64, &sink.timestamps, sink.rows, 8),
        ]
        if sink.with_types:
            children.append(fixed_column("timestamp_type", "i", np.int32, &sink.types, sink.rows, 4))
        if sink.with_keys:
            children.append(binary_column("key", "z", &sink.key, sink.rows, True))
        if sink.with_values:
            children.append(binary_column("value", "z", &sink.value, sink.rows, True))
        if sink.with_headers:
            key_column = binary_column("key", "u", &sink.header_key, sink.headers, False)
            if sink.bad_text:
                replace_bad_text(key_column)
            pair = Column(
                "entries", "+s", sink.headers, 0, [None],
                [key_column, binary_column("value", "z", &sink.header_value, sink.headers, True)], False,
            )
            (<int32_t*>sink.lists.at)[0] = 0
            children.append(Column(
                "headers", "+l", sink.rows, sink.list_nulls,
                [taken_bits(&sink.list_validity, sink.rows, sink.list_nulls),
                 taken(&sink.lists, 4 * (sink.rows + 1))],
                [pair], bool(sink.null_empty_headers),
            ))
        columns = RecordColumns(Column("", "+s", sink.rows, 0, [None], children, False))
        sink.rows = sink.headers = sink.list_nulls = 0
        sink.bad_text = False
        return columns


cdef int put_object(Binary* column, int64_t row, bytes part) except -1:
    if part is None:
        put_binary(column, row, NULL, 0, NULL)
    else:
        # An end at the start: the exact copy, for a Python object has no slack.
        put_binary(
            column, row, <const uint8_t*>PyBytes_AS_STRING(part), <int32_t>len(part),
            <const uint8_t*>PyBytes_AS_STRING(part),
        )
    return 0


# --- what is handed out ---------------------------------------------------------------------------

@cython.auto_pickle(False)
cdef class Memory:
    """malloc'ed bytes with the buffer protocol."""
    cdef uint8_t* at
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.at)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.size, 1, flags)


cdef Memory taken(Block* block, int64_t size):
    """The block's memory, shrunk to `size`; the block is empty afterwards."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef uint8_t* shrunk
    if block.at == NULL:
        block.at = <uint8_t*>malloc(SLACK)
        if block.at == NULL:
            raise MemoryError
    elif block.capacity > size + SLACK:
        shrunk = <uint8_t*>realloc(block.at, <size_t>(size + SLACK))
        if shrunk != NULL:
            block.at = shrunk
    memory.at = block.at
    memory.size = <Py_ssize_t>size
    block.at = NULL
    block.capacity = 0
    return memory


cdef object taken_bits(Block* block, int64_t rows, int64_t nulls):
    cdef Memory memory = taken(block, (rows + 7) >> 3)
    return memory if nulls else None


cdef object fixed_column(str name, str format, object dtype, Block* block, int64_t rows, int64_t width):
    return Column(name, format, rows, 0, [None, taken(block, width * rows)], [], False)


cdef object binary_column(str name, str format, Binary* column, int64_t rows, bint nullable):
    cdef int64_t filled = column.filled
    cdef int64_t nulls = column.nulls
    (<int32_t*>column.offsets.at)[0] = 0
    column.filled = column.nulls = 0
    return Column(
        name, format, rows, nulls,
        [taken_bits(&column.validity, rows, nulls), taken(&column.offsets, 4 * (rows + 1)),
         taken(&column.data, filled)],
        [], nullable,
    )


cdef object memory_of(bytes data):
    cdef Memory memory = Memory.__new__(Memory)
    memory.at = <uint8_t*>malloc(len(data) + SLACK)
    if memory.at == NULL:
        raise MemoryError
    memcpy(memory.at, PyBytes_AS_STRING(data), len(data))
    memory.size = len(data)
    return memory


cdef int replace_bad_text(Column column) except -1:
    """Header keys that are no UTF-8 become what Java's decoder makes of them."""
    cdef Memory offsets = column.buffers[1]
    cdef Memory data = column.buffers[2]
    cdef const int32_t* at = <const int32_t*>offsets.at
    cdef int64_t i
    cdef list parts = []
    for i in range(column.length):
        text = PyUnicode_DecodeUTF8(<const char*>data.at + at[i], at[i + 1] - at[i], "replace")
        parts.append(text.encode())
    ends = np.zeros(column.length + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=ends[1:])
    column.buffers[1] = memory_of(ends.tobytes())
    column.buffers[2] = memory_of(b"".join(parts))
    return 0


@cython.auto_pickle(False)
cdef class Column:
    """One node of the tree that Arrow's C data interface describes."""
    cdef readonly str name
    cdef readonly str format
    cdef readonly int64_t length
    cdef readonly int64_t null_count
    cdef list buffers
    cdef list children
    cdef readonly bint nullable
    # what the C structs point to
    cdef bytes c_name
    cdef bytes c_format

    def __init__(
        self, str name, str format, int64_t length, int64_t null_count, list buffers, list children, bint nullable
    ):
        self.name, self.format, self.length, self.null_count = name, format, length, null_count
        self.buffers, self.children, self.nullable = buffers, children, nullable
        self.c_name = name.encode()
        self.c_format = format.encode()

    @property
    def validity(self):
        """Arrow's bitmap as numpy uint8, or None where nothing is null."""
        return None if self.buffers[0] is None else np.frombuffer(self.buffers[0], np.uint8)

    @property
    def offsets(self):
        """length + 1 int32 offsets into `data` (binary columns) or into the entries (headers)."""
        return np.frombuffer(self.buffers[1], np.int32)

    @property
    def data(self):
        """The bytes of a binary column, or the numbers of a fixed one."""
        if len(self.buffers) == 3:
            memory, dtype = self.buffers[2], np.uint8
        else:
            memory, dtype = self.buffers[1], (np.int32 if self.format == "i" else np.int64)
        return np.frombuffer(memory, dtype) if (<Memory>memory).size else np.empty(0, dtype)

    def child(self, Py_ssize_t i):
        """The i-th child: the entries of headers, and their key and value."""
        return self.children[i]

    def to_list(self):
        """A binary column as Python bytes and None."""
        cdef Memory offsets = self.buffers[1]
        cdef Memory data = self.buffers[2]
        cdef Memory bits = self.buffers[0]
        cdef const int32_t* at = <const int32_t*>offsets.at
        cdef int64_t i
        cdef list found = []
        for i in range(self.length):
            if bits is not None and not (bits.at[i >> 3] >> (i & 7)) & 1:
                found.append(None)
            else:
                found.append(PyBytes_FromStringAndSize(<const char*>data.at + at[i], at[i + 1] - at[i]))
        return found


# The structs of Arrow's C data and stream interfaces.
cdef extern from *:
    """
    #ifndef ARROW_C_DATA_INTERFACE
    #define ARROW_C_DATA_INTERFACE
    #define ARROW_FLAG_NULLABLE 2
    struct ArrowSchema {
      const char* format; const char* name; const char* metadata; int64_t flags; int64_t n_children;
      struct ArrowSchema** children; struct ArrowSchema* dictionary;
      void (*release)(struct ArrowSchema*); void* private_data;
    };
    struct ArrowArray {
      int64_t length; int64_t null_count; int64_t offset; int64_t n_buffers; int64_t n_children;
      const void** buffers; struct ArrowArray** children; struct ArrowArray* dictionary;
      void (*release)(struct ArrowArray*); void* private_data;
    };
    #endif
    #ifndef ARROW_C_STREAM_INTERFACE
    #define ARROW_C_STREAM_INTERFACE
    struct ArrowArrayStream {
      int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
      int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
      const char* (*get_last_error)(struct ArrowArrayStream*);
      void (*release)(struct ArrowArrayStream*); void* private_data;
    };
    #endif
    """
    struct ArrowSchema:
        const char* format
        const char* name
        const char* metadata
        int64_t flags
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept
        void* private_data
    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept
        void* private_data
    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept
        const char* (*get_last_error)(ArrowArrayStream*) noexcept
        void (*release)(ArrowArrayStream*) noexcept
        void* private_data


cdef void release_schema(ArrowSchema* schema) noexcept with gil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i].release != NULL:
            schema.children[i].release(schema.children[i])
        free(schema.children[i])
    free(schema.children)
    Py_DECREF(<object>schema.private_data)
    schema.release = NULL


cdef void release_array(ArrowArray* array) noexcept with gil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
        free(array.children[i])
    free(array.children)
    free(array.buffers)
    Py_DECREF(<object>array.private_data)
    array.release = NULL


cdef int fill_schema(Column column, ArrowSchema* out) except -1:
    cdef Py_ssize_t i, n = len(column.children)
    cdef ArrowSchema* child
    memset(out, 0, sizeof(ArrowSchema))
    out.format = column.c_format
    out.name = column.c_name
    out.flags = 2 if column.nullable else 0
    out.children = <ArrowSchema**>calloc(n + 1, sizeof(ArrowSchema*))
    if out.children == NULL:
        raise MemoryError
    Py_INCREF(column)
    out.private_data = <void*>column
    out.release = release_schema
    for i in range(n):
        child = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if child == NULL:
            raise MemoryError
        out.children[i] = child
        out.n_children = i + 1
        fill_schema(column.children[i], child)
    return 0


cdef int fill_array(Column column, ArrowArray* out) except -1:
    cdef Py_ssize_t i, n = len(column.children)
    cdef ArrowArray* child
    cdef Memory memory
    memset(out, 0, sizeof(ArrowArray))
    out.length = column.length
    out.null_count = column.null_count
    out.children = <ArrowArray**>calloc(n + 1, sizeof(ArrowArray*))
    out.buffers = <const void**>calloc(4, sizeof(void*))
    if out.children == NULL or out.buffers == NULL:
        free(out.children)
        free(out.buffers)
        raise MemoryError
    out.n_buffers = len(column.buffers)
    for i in range(out.n_buffers):
        memory = column.buffers[i]
        if memory is not None:
            out.buffers[i] = memory.at
    Py_INCREF(column)
    out.private_data = <void*>column
    out.release = release_array
    for i in range(n):
        child = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if child == NULL:
            raise MemoryError
        out.children[i] = child
        out.n_children = i + 1
        fill_array(column.children[i], child)
    return 0


cdef void drop_schema(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void drop_array(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef object schema_capsule(Column column):
    cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError
    capsule = PyCapsule_New(schema, "arrow_schema", drop_schema)
    fill_schema(column, schema)
    return capsule


cdef object array_capsule(Column column):
    cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
    if array == NULL:
        raise MemoryError
    capsule = PyCapsule_New(array, "arrow_array", drop_array)
    fill_array(column, array)
    return capsule


@cython.auto_pickle(False)
cdef class RecordColumns:
    """Records as columns: offset and timestamp (int64; -1 for none), timestamp_type (int32: 0 create, 1 log append,
    -1 magic 0), key and value (binary, nullable), headers (list of key and value).  Columns that were not asked
    for are None.  Immutable; numpy arrays and Arrow consumers share its memory.
    """
    cdef Column root

    def __init__(self, Column root):
        self.root = root

    def __len__(self):
        return self.root.length

    def column(self, str name):
        """The column of that name, or None."""
        for child in self.root.children:
            if child.name == name:
                return child
        return None

    @property
    def column_names(self):
        return [child.name for child in self.root.children]

    @property
    def offsets(self):
        """Record offsets (numpy int64)."""
        return self.column("offset").data

    @property
    def timestamps(self):
        """Milliseconds (numpy int64)."""
        return self.column("timestamp").data

    @property
    def timestamp_types(self):
        column = self.column("timestamp_type")
        return None if column is None else column.data

    @property
    def keys(self):
        return self.column("key")

    @property
    def values(self):
        return self.column("value")

    @property
    def headers(self):
        return self.column("headers")

    @property
    def nbytes(self):
        """Bytes of all buffers."""
        return total_bytes(self.root)

    def header_lists(self):
        """The headers of each record as a list of (str, bytes or None)."""
        headers = self.column("headers")
        ends = headers.offsets.tolist()
        pairs = headers.child(0)
        names = [name.decode() for name in pairs.child(0).to_list()]
        entries = list(zip(names, pairs.child(1).to_list()))
        return [entries[start:stop] for start, stop in zip(ends, ends[1:])]

    def __arrow_c_schema__(self):
        return schema_capsule(self.root)

    def __arrow_c_array__(self, requested_schema=None):
        return schema_capsule(self.root), array_capsule(self.root)


cdef int64_t total_bytes(Column column) except -1:
    cdef int64_t total = 0
    for memory in column.buffers:
        if memory is not None:
            total += (<Memory>memory).size
    for child in column.children:
        total += total_bytes(child)
    return total


# --- encode ---------------------------------------------------------------------------------------

# A binary column as it comes in: 32 or 64 bit offsets, a bitmap or none.
cdef struct Source:
    const uint8_t* validity
    const int32_t* narrow
    const int64_t* wide
    const uint8_t* data
    int64_t shift
    int64_t data_size
    bint absent


cdef inline int64_t span(const Source* column, int64_t i, const uint8_t** at) noexcept nogil:
    """Size of the i-th value, -1 for null, -2 for offsets that make no sense."""
    cdef int64_t start, stop
    if column.absent:
        return -1
    i += column.shift
    if column.validity != NULL and not (column.validity[i >> 3] >> (i & 7)) & 1:
        return -1
    if column.narrow != NULL:
        start, stop = column.narrow[i], column.narrow[i + 1]
    else:
        start, stop = column.wide[i], column.wide[i + 1]
    KL_ONCE(start)
    KL_ONCE(stop)
    if start < 0 or stop < start or (column.data_size >= 0 and stop > column.data_size):
        return -2
    at[0] = column.data + start
    return stop - start


cdef inline int varint_size(int64_t size) noexcept nogil:
    """Bytes of a length as a zig-zag varint; lengths only, so never negative."""
    if size < 64:
        return 1
    if size < 8192:
        return 2
    return size_of_uvarint64(<uint64_t>size << 1)


cdef inline uint8_t* put_varint(uint8_t* to, int64_t size) noexcept nogil:
    cdef uint64_t raw = <uint64_t>size << 1
    if raw < 0x80:
        to[0] = <uint8_t>raw
        return to + 1
    if raw < 0x4000:
        to[0] = <uint8_t>(raw | 0x80)
        to[1] = <uint8_t>(raw >> 7)
        return to + 2
    return write_uvarint64(to, raw)


cdef inline uint8_t* put_part(
    uint8_t* to, const uint8_t* at, int64_t size, const uint8_t* end
) noexcept nogil:
    if size < 0:
        to[0] = 1
        return to + 1
    to = put_varint(to, size)
    copy_bytes(to, at, size, end)
    return to + size


cdef struct Encoder:
    const int64_t* timestamps
    const int64_t* offsets
    Source key
    Source value
    # headers: list offsets (NULL: no headers), the entries' key and value
    const int32_t* narrow_lists
    const int64_t* wide_lists
    const uint8_t* list_validity
    int64_t list_shift
    int64_t header_count
    Source header_key
    Source header_value
    int64_t base_timestamp
    int64_t base_offset
    int64_t max_timestamp
    # of the last row that was written
    int64_t offset_delta


cdef int encode_rows(
    Encoder* it, int64_t start, int64_t stop, int64_t max_bytes, Block* out, int64_t* filled, int64_t* next_row
) noexcept nogil:
    """Writes rows behind the first `filled[0]` bytes of `out`, as many as `max_bytes` in all let in, one at least."""
    cdef int64_t row, timestamp, timestamp_delta, offset_delta, key_size, value_size, size, left
    cdef int64_t last_delta = -1
    cdef int64_t total = filled[0]
    cdef int64_t first, last, h, name_size, part_size
    cdef const uint8_t* key = NULL
    cdef const uint8_t* value = NULL
    cdef const uint8_t* name = NULL
    cdef const uint8_t* part = NULL
    cdef const uint8_t* key_end = NULL
    cdef const uint8_t* value_end = NULL
    cdef uint64_t zig
    cdef uint8_t* to
    if it.key.data_size >= 0 and it.key.data != NULL:
        key_end = it.key.data + it.key.data_size
    if it.value.data_size >= 0 and it.value.data != NULL:
        value_end = it.value.data + it.value.data_size
    for row in range(start, stop):
        next_row[0] = row
        timestamp = it.timestamps[row]
        KL_ONCE(timestamp)
        if timestamp < -1:
            return BAD_TIMESTAMP_
        timestamp_delta = <int64_t>(<uint64_t>timestamp - <uint64_t>it.base_timestamp)
        if it.offsets != NULL:
            offset_delta = it.offsets[row]
            KL_ONCE(offset_delta)
            offset_delta = <int64_t>(<uint64_t>offset_delta - <uint64_t>it.base_offset)
        else:
            offset_delta = row - start
        if offset_delta <= last_delta or offset_delta > 0x7FFFFFFF:
            return BAD_OFFSET_
        key_size = span(&it.key, row, &key)
        value_size = span(&it.value, row, &value)
        if key_size < -1 or value_size < -1:
            return BAD_COLUMN_
        zig = zigzag64(timestamp_delta)
        size = 1 + size_of_uvarint64(zig) + varint_size(offset_delta)
        size += 1 if key_size < 0 else varint_size(key_size) + key_size
        size += 1 if value_size < 0 else varint_size(value_size) + value_size
        first = last = 0
        if it.narrow_lists != NULL or it.wide_lists != NULL:
            h = row + it.list_shift
            if it.list_validity == NULL or (it.list_validity[h >> 3] >> (h & 7)) & 1:
                if it.narrow_lists != NULL:
                    first, last = it.narrow_lists[h], it.narrow_lists[h + 1]
                else:
                    first, last = it.wide_lists[h], it.wide_lists[h + 1]
                KL_ONCE(first)
                KL_ONCE(last)
                if first < 0 or last < first or last > it.header_count:
                    return BAD_COLUMN_
            for h in range(first, last):
                name_size = span(&it.header_key, h, &name)
                part_size = span(&it.header_value, h, &part)
                if name_size < 0 or part_size < -1:
                    return BAD_COLUMN_
                size += varint_size(name_size) + name_size
                size += 1 if part_size < 0 else varint_size(part_size) + part_size
        size += varint_size(last - first)
        if size > 0x7FFFFFFF - 5 - RECORDS:
            return TOO_LONG_
        if row > start and total + size + varint_size(size) > max_bytes:
            filled[0] = total
            return rec.RECORD_OK
        it.offset_delta = last_delta = offset_delta
        if not reserve(out, total + size + 5 + SLACK):
            return NO_MEMORY_
        to = put_varint(out.at + total, size)
        to[0] = 0
        to = write_uvarint64(to + 1, zig)
        to = put_varint(to, offset_delta)
        to = put_part(to, key, key_size, key_end if key_end != NULL else key)
        to = put_part(to, value, value_size, value_end if value_end != NULL else value)
        to = put_varint(to, last - first)
        # The columns may hold other headers by now: they get the bytes that were counted for them, no more, no less.
        left = total + varint_size(size) + size - (to - out.at)
        for h in range(first, last):
            name_size = span(&it.header_key, h, &name)
            part_size = span(&it.header_value, h, &part)
            if name_size < 0 or part_size < -1:
                return BAD_COLUMN_
            left -= varint_size(name_size) + name_size
            left -= 1 if part_size < 0 else varint_size(part_size) + part_size
            if left < 0:
                return BAD_COLUMN_
            to = put_part(to, name, name_size, name)
            to = put_part(to, part, part_size, part)
        if left != 0:
            return BAD_COLUMN_
        total = to - out.at
        if timestamp > it.max_timestamp:
            it.max_timestamp = timestamp
    next_row[0] = stop
    filled[0] = total
    return rec.RECORD_OK


@cython.auto_pickle(False)
cdef class ColumnEncoder:
    """Columns to be written: `timestamps` (int64), `keys` and `values` (None, or (offsets int32 or int64, data) or
    (offsets, data, bitmap)), `headers` (None, or (list offsets, keys, values)), `offsets` (None: consecutive).

    Buffers are checked for their sizes once and read in place.  One thread at a time: a second one gets a
    RuntimeError.
    """
    cdef Encoder it
    cdef list held
    cdef readonly int64_t rows
    cdef Block scratch
    cdef int busy

    def __dealloc__(self):
        free(self.scratch.at)

    def __init__(self, timestamps, keys=None, values=None, headers=None, offsets=None):
        if self.held is not None:
            raise RuntimeError("a ColumnEncoder is made once")
        self.held = []
        timestamps = np.ascontiguousarray(timestamps)
        self.it.timestamps = <const int64_t*><size_t>self.numbers(timestamps, np.int64)
        self.rows = len(timestamps)
        if offsets is not None:
            offsets = np.ascontiguousarray(offsets)
            if len(offsets) != self.rows:
                raise IndexError("as many offsets as timestamps are wanted")
            self.it.offsets = <const int64_t*><size_t>self.numbers(offsets, np.int64)
        self.source(&self.it.key, keys, self.rows)
        self.source(&self.it.value, values, self.rows)
        if headers is not None:
            lists, names, parts = headers
            lists = np.ascontiguousarray(lists)
            if len(lists) != self.rows + 1:
                raise IndexError("one list offset more than timestamps is wanted")
            if lists.dtype == np.int32:
                self.it.narrow_lists = <const int32_t*><size_t>self.numbers(lists, np.int32)
            else:
                self.it.wide_lists = <const int64_t*><size_t>self.numbers(lists, np.int64)
            self.it.header_count = len(names[0]) - 1
            self.source(&self.it.header_key, names, self.it.header_count)
            self.source(&self.it.header_value, parts, self.it.header_count)

    cdef size_t numbers(self, array, dtype) except? 0:
        cdef Py_buffer view
        cdef size_t at
        array = np.ascontiguousarray(array)
        if array.dtype != dtype or array.ndim != 1:
            raise TypeError(f"a one-dimensional array of {np.dtype(dtype).name} is wanted, not {array.dtype}")
        self.held.append(array)
        # Stays where it is as long as the array is held.
        open_octets(array, &view)
        at = <size_t>view.buf
        PyBuffer_Release(&view)
        return at

    cdef int source(self, Source* out, column, int64_t rows) except -1:
        if column is None:
            out.absent = True
            return 0
        ends = np.ascontiguousarray(column[0])
        if len(ends) != rows + 1:
            raise IndexError("one offset more than rows is wanted")
        if ends.dtype == np.int32:
            out.narrow = <const int32_t*><size_t>self.numbers(ends, np.int32)
        else:
            out.wide = <const int64_t*><size_t>self.numbers(ends, np.int64)
        view = bytes_of(column[1])
        data = np.frombuffer(view, np.uint8) if len(view) else np.zeros(1, np.uint8)
        out.data_size = len(view)
        out.data = <const uint8_t*><size_t>self.numbers(data, np.uint8)
        if len(column) > 2 and column[2] is not None:
            view = bytes_of(column[2])
            bits = np.frombuffer(view, np.uint8) if len(view) else np.zeros(0, np.uint8)
            if len(bits) < (rows + 7) >> 3:
                raise IndexError("a bitmap is too short")
            out.validity = <const uint8_t*><size_t>self.numbers(bits, np.uint8)
        return 0

    def offset_at(self, int64_t row):
        """The explicit offset of a row, or None where offsets are consecutive."""
        if not 0 <= row < self.rows:
            raise IndexError("no such row")
        return None if self.it.offsets == NULL else self.it.offsets[row]

    @staticmethod
    def from_arrow(batch):
        """Of anything with `__arrow_c_array__` whose columns are called timestamp (int64 or timestamp[ms]), and as
        they are there key, value (binary, string, large or not), headers (list of key and value), offset (int64).
        A column of another type is a TypeError."""
        cdef ColumnEncoder encoder = ColumnEncoder.__new__(ColumnEncoder)
        cdef ArrowSchema* schema
        cdef ArrowArray* array
        cdef ArrowSchema* entry
        cdef int64_t i
        schema_capsule_, array_capsule_ = batch.__arrow_c_array__()
        encoder.held = [schema_capsule_, array_capsule_]
        schema = <ArrowSchema*>PyCapsule_GetPointer(schema_capsule_, "arrow_schema")
        array = <ArrowArray*>PyCapsule_GetPointer(array_capsule_, "arrow_array")
        if schema.format != b"+s":
            raise TypeError("a struct of columns is wanted")
        if array.null_count > 0:
            raise TypeError("rows may not be null")
        encoder.rows = array.length
        encoder.it.key.absent = encoder.it.value.absent = True
        for i in range(schema.n_children):
            entry = schema.children[i]
            name = entry.name.decode()
            if name == "timestamp":
                encoder.it.timestamps = encoder.arrow_numbers(entry, array.children[i], array.offset)
            elif name == "offset":
                encoder.it.offsets = encoder.arrow_numbers(entry, array.children[i], array.offset)
            elif name == "key":
                encoder.arrow_source(&encoder.it.key, entry, array.children[i], array.offset)
            elif name == "value":
                encoder.arrow_source(&encoder.it.value, entry, array.children[i], array.offset)
            elif name == "headers":
                encoder.arrow_headers(entry, array.children[i], array.offset)
            else:
                raise TypeError(f"no column {name!r} in a record")
        if encoder.it.timestamps == NULL and encoder.rows > 0:
            raise TypeError("a column timestamp is wanted")
        return encoder

    cdef const int64_t* arrow_numbers(self, ArrowSchema* schema, ArrowArray* array, int64_t shift) except? NULL:
        if schema.format != b"l" and not schema.format.startswith(b"tsm:"):
            raise TypeError(f"column {schema.name.decode()!r} is no int64 or timestamp in milliseconds")
        if array.null_count != 0 and array.buffers[0] != NULL:
            raise TypeError(f"column {schema.name.decode()!r} has nulls")
        return <const int64_t*>array.buffers[1] + array.offset + shift

    cdef int arrow_source(self, Source* out, ArrowSchema* schema, ArrowArray* array, int64_t shift) except -1:
        out.absent = False
        out.shift = array.offset + shift
        out.validity = <const uint8_t*>array.buffers[0] if array.null_count != 0 else NULL
        if schema.format == b"n":
            out.absent = True
            return 0
        if schema.format == b"z" or schema.format == b"u":
            out.narrow = <const int32_t*>array.buffers[1]
            out.data_size = out.narrow[array.offset + array.length] if array.length else 0
        elif schema.format == b"Z" or schema.format == b"U":
            out.wide = <const int64_t*>array.buffers[1]
            out.data_size = out.wide[array.offset + array.length] if array.length else 0
        else:
            raise TypeError(f"column {schema.name.decode()!r} is neither binary nor text")
        out.data = <const uint8_t*>array.buffers[2]
        return 0

    cdef int arrow_headers(self, ArrowSchema* schema, ArrowArray* array, int64_t shift) except -1:
        cdef ArrowSchema* entries = schema.children[0]
        cdef ArrowArray* pairs = array.children[0]
        if entries.format != b"+s" or entries.n_children != 2:
            raise TypeError("headers are a list of key and value")
        if schema.format == b"+l":
            self.it.narrow_lists = <const int32_t*>array.buffers[1]
        elif schema.format == b"+L":
            self.it.wide_lists = <const int64_t*>array.buffers[1]
        else:
            raise TypeError("headers are a list of key and value")
        self.it.list_validity = <const uint8_t*>array.buffers[0] if array.null_count != 0 else NULL
        self.it.list_shift = array.offset + shift
        self.it.header_count = pairs.length
        self.arrow_source(&self.it.header_key, entries.children[0], pairs.children[0], pairs.offset)
        self.arrow_source(&self.it.header_value, entries.children[1], pairs.children[1], pairs.offset)
        return 0

    cdef int run(
        self, int64_t start, int64_t stop, int64_t max_bytes, base_timestamp, base_offset, int64_t* filled,
        int64_t* next_row,
    ) except -1:
        """Encodes into `scratch` behind the first `filled[0]` bytes; the verdict.  The caller has claimed it."""
        cdef int verdict
        if max_bytes > 0x7FFFFFFF:
            max_bytes = 0x7FFFFFFF
        self.it.base_timestamp = self.it.timestamps[start] if base_timestamp is None else base_timestamp
        if self.it.offsets != NULL:
            self.it.base_offset = self.it.offsets[start] if base_offset is None else base_offset
        self.it.max_timestamp = self.it.offset_delta = -1
        with nogil:
            verdict = encode_rows(&self.it, start, stop, max_bytes, &self.scratch, filled, next_row)
        return check_memory(verdict)

    cdef int64_t bounded(self, int64_t start, int64_t stop) except -1:
        if start < 0:
            raise IndexError("start is negative")
        return self.rows if stop < 0 or stop > self.rows else stop

    def encode(self, int64_t start=0, int64_t stop=-1, int64_t max_bytes=0x7FFFFFFF, *, base_timestamp=None,
               base_offset=None):
        """A payload of rows from `start` on, of at most `max_bytes` but one row at least:
        (payload, next row, base timestamp, max timestamp, verdict).

        The base timestamp is the first row's unless given; explicit offsets count from `base_offset` (the first
        row's unless given).  A verdict other than OK names what is wrong with the row `next row`: BAD_TIMESTAMP,
        BAD_OFFSET, BAD_COLUMN, TOO_LONG.
        """
        cdef int64_t next_row = start
        cdef int64_t filled = 0
        cdef int verdict
        stop = self.bounded(start, stop)
        if start >= stop:
            return b"", stop, -1, -1, rec.RECORD_OK
        claim(&self.busy, "ColumnEncoder")
        try:
            verdict = self.run(start, stop, max_bytes, base_timestamp, base_offset, &filled, &next_row)
            payload = b""
            if verdict == rec.RECORD_OK:
                payload = PyBytes_FromStringAndSize(<const char*>self.scratch.at, filled)
            return payload, next_row, self.it.base_timestamp, self.it.max_timestamp, verdict
        finally:
            kl_leave(&self.busy)

    def encode_batch(
        self, int64_t start=0, int64_t stop=-1, int64_t max_bytes=0x7FFFFFFF, *, int64_t base_offset=0,
        int attributes=0, log_append_time=None, int64_t producer_id=-1, int producer_epoch=-1, int base_sequence=-1,
        int leader_epoch=-1,
    ):
        """An uncompressed batch with its header and CRC, of at most `max_bytes` but one row at least:
        (bytes, next row, verdict).

        `base_offset` is for consecutive offsets; explicit ones name it themselves.  `log_append_time` replaces the
        max timestamp; `attributes` are written as they are.  Verdicts as in `encode`.
        """
        cdef int64_t next_row = start
        cdef int64_t filled = RECORDS
        cdef int verdict
        stop = self.bounded(start, stop)
        if start >= stop:
            return b"", stop, rec.RECORD_OK
        claim(&self.busy, "ColumnEncoder")
        try:
            verdict = self.run(start, stop, max_bytes, None, None, &filled, &next_row)
            if verdict != rec.RECORD_OK:
                return b"", next_row, verdict
            if self.it.offsets != NULL:
                base_offset = self.it.base_offset
            self.put_header(
                filled, next_row - start, base_offset, attributes,
                self.it.max_timestamp if log_append_time is None else <int64_t>log_append_time,
                producer_id, producer_epoch, base_sequence, leader_epoch,
            )
            return PyBytes_FromStringAndSize(<const char*>self.scratch.at, filled), next_row, verdict
        finally:
            kl_leave(&self.busy)

    cdef void put_header(
        self, int64_t size, int64_t count, int64_t base_offset, int attributes, int64_t max_timestamp,
        int64_t producer_id, int producer_epoch, int base_sequence, int leader_epoch,
    ) noexcept:
        """In front of the records in `scratch`, which end at byte `size`."""
        cdef uint8_t* head = self.scratch.at
        store64(head + BASE_OFFSET, <uint64_t>base_offset)
        store32(head + BATCH_LENGTH, <uint32_t>(size - LOG_OVERHEAD))
        store32(head + LEADER_EPOCH, <uint32_t>leader_epoch)
        head[MAGIC] = 2
        store16(head + ATTRIBUTES, <uint16_t>attributes)
        store32(head + LAST_OFFSET_DELTA, <uint32_t>self.it.offset_delta)
        store64(head + BASE_TIMESTAMP, <uint64_t>self.it.base_timestamp)
        store64(head + MAX_TIMESTAMP, <uint64_t>max_timestamp)
        store64(head + PRODUCER_ID, <uint64_t>producer_id)
        store16(head + PRODUCER_EPOCH, <uint16_t>producer_epoch)
        store32(head + BASE_SEQUENCE, <uint32_t>base_sequence)
        store32(head + RECORD_COUNT, <uint32_t>count)
        store32(head + CRC, crc32c_update(0, head + ATTRIBUTES, <size_t>(size - ATTRIBUTES)))
