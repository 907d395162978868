"""Record batches as numbers: finds, checks, describes, re-stamps and indexes them.

Input is bytes (any C-contiguous buffer with bounds), output is tables and verdicts. The module knows no file and raises
no domain error. Framing follows Kafka's two readers: `ByteBufferLogInputStream` for received data, `FileLogInputStream`
for a file. Validity follows `DefaultRecordBatch.ensureValid` and `LegacyRecord`.

A buffer may change during a call: each result then describes bytes that were in it at some time. It must not shrink, as
the map of a file does that another process truncates: pass a copy of such a file's bytes.

The file is long because header, scan, re-stamp and index entries read the same struct, and calls across modules go
through slow pointers.
"""
import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, int8_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, realloc

from kafkalog._native.codec.crc32c cimport crc32_update, crc32c_update
from kafkalog._native.codec.guard cimport claim, kl_leave
from kafkalog._native.codec.layout cimport (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC,
    DELETE_HORIZON_FLAG,
    KL_LOADED,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LEGACY_CRC,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    OFFSET_ENTRY,
    OFFSET_ENTRY_OFFSET,
    OFFSET_ENTRY_POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORDS,
    TIME_ENTRY,
    TIME_ENTRY_OFFSET,
    TIME_ENTRY_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    load8,
    load16,
    load32,
    load64,
    store16,
    store32,
    store64,
)
from kafkalog._native.codec.octets cimport open_octets

OK = V_OK
TORN = V_TORN
BAD_SIZE = V_BAD_SIZE
BAD_MAGIC = V_BAD_MAGIC
BAD_CRC = V_BAD_CRC
MORE = V_MORE
FRAMING_BUFFER = F_BUFFER
FRAMING_FILE = F_FILE

# One row a batch; sequences, epochs and producer fields are -1 if the batch has none (magic 0 and 1).
BATCH_DTYPE = np.dtype(
    [
        ("position", "i8"),
        ("size", "i4"),
        ("verdict", "i1"),
        ("magic", "i1"),
        ("attributes", "i2"),
        ("leader_epoch", "i4"),
        ("crc", "u4"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("base_timestamp", "i8"),
        ("max_timestamp", "i8"),
        ("producer_id", "i8"),
        ("base_sequence", "i4"),
        ("last_sequence", "i4"),
        ("record_count", "i4"),
        ("producer_epoch", "i2"),
    ],
    align=True,
)
assert BATCH_DTYPE.itemsize == sizeof(Row)

cdef object _frombuffer = np.frombuffer
cdef object _empty = np.empty

cdef enum:
    # Releasing the GIL costs about as much as a checksum of this many bytes.
    WORTH_A_RELEASE = 8192
    FIRST_ROWS = 64
    FULL = 100


# --- bounds -------------------------------------------------------------------------------------


cdef int64_t checked_end(Py_ssize_t length, int64_t position, int64_t end) except -1:
    if end < 0:
        end = length
    if position < 0 or position > end or end > length:
        raise ValueError(f"bounds {position}..{end} are outside the buffer's {length} bytes")
    return end


cdef inline int64_t header_bytes(int8_t magic) noexcept nogil:
    return RECORDS if magic >= 2 else LEGACY_HEADER


cdef int require_header(const uint8_t* p, int64_t left, int8_t* magic) except -1:
    """The caller has found a batch here; ValueError if its header does not fit."""
    magic[0] = 0
    if left >= LEGACY_HEADER:
        magic[0] = <int8_t>load8(p + MAGIC)
    if left < LEGACY_HEADER or left < header_bytes(magic[0]):
        raise ValueError(f"the remaining {max(left, 0)} bytes are too few for a batch header")
    return 0


# --- checksums ----------------------------------------------------------------------------------


cdef inline uint32_t checksum(const uint8_t* p, int8_t magic, int64_t size) noexcept nogil:
    """Computes the checksum of the batch of `size` bytes (whole header included) at `p`, by its magic."""
    if magic >= 2:
        return crc32c_update(0, p + ATTRIBUTES, <size_t>(size - ATTRIBUTES))
    return crc32_update(0, p + MAGIC, <size_t>(size - MAGIC))


cdef inline uint32_t stored_checksum(const uint8_t* p, int8_t magic) noexcept nogil:
    return load32(p + (CRC if magic >= 2 else LEGACY_CRC))


cdef uint32_t checksum_of(data, int64_t position, int64_t size, bint* matches) except? 0:
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef uint32_t computed
    cdef int8_t magic
    open_octets(data, &view)
    try:
        if position < 0 or position > view.len:
            raise ValueError(f"position {position} is outside the buffer's {view.len} bytes")
        p = <const uint8_t*>view.buf + position
        require_header(p, view.len - position, &magic)
        if size < 0:
            size = <int64_t><int32_t>load32(p + BATCH_LENGTH) + LOG_OVERHEAD
        if size < header_bytes(magic) or size > view.len - position:
            raise ValueError(f"size: found {size}, expected {header_bytes(magic)} to {view.len - position} bytes")
        if size < WORTH_A_RELEASE:
            computed = checksum(p, magic, size)
        else:
            with nogil:
                computed = checksum(p, magic, size)
        matches[0] = computed == stored_checksum(p, magic)
        return computed
    finally:
        PyBuffer_Release(&view)


def compute_crc(data, int64_t position=0, int64_t size=-1):
    """Computes the checksum of the batch at `position`: CRC-32C from byte 21 (magic 2), CRC-32 from byte 16 (0, 1).

    `size` is the whole batch in bytes (`BatchHeader.size`), or -1 for the size in its header. Raises ValueError if the
    buffer has fewer bytes.
    """
    cdef bint matches = False
    return checksum_of(data, position, size, &matches)


def crc_matches(data, int64_t position=0, int64_t size=-1):
    """Returns whether the stored checksum is `compute_crc(...)`."""
    cdef bint matches = False
    checksum_of(data, position, size, &matches)
    return matches


# --- one batch ----------------------------------------------------------------------------------


@cython.freelist(64)
cdef class BatchHeader:
    """The fields of a batch's header. Read-only; `position` is the batch's position (bytes) in the scanned data.

    The names are those of Kafka's RecordBatch. For magic 0 and 1, `base_offset` and `last_offset` are the entry's
    offset.
    """

    def __init__(self):
        raise TypeError("a BatchHeader is created by headers(), header_at() or header_from_row()")

    @property
    def position(self):
        return self.row.position

    @property
    def size(self):
        """The whole batch in bytes."""
        return self.row.size

    @property
    def magic(self):
        return self.row.magic

    @property
    def attributes(self):
        return self.row.attributes

    @property
    def leader_epoch(self):
        return self.row.leader_epoch

    @property
    def crc(self):
        """The stored checksum."""
        return self.row.crc

    @property
    def base_offset(self):
        return self.row.base_offset

    @property
    def last_offset(self):
        return self.row.last_offset

    @property
    def next_offset(self):
        return self.row.last_offset + 1

    @property
    def base_timestamp(self):
        """The field as stored: a batch with a delete horizon keeps the horizon there."""
        return self.row.base_timestamp

    @property
    def max_timestamp(self):
        return self.row.max_timestamp

    @property
    def delete_horizon_ms(self):
        if self.row.magic >= 2 and self.row.attributes & DELETE_HORIZON_FLAG:
            return self.row.base_timestamp
        return None

    @property
    def producer_id(self):
        return self.row.producer_id

    @property
    def producer_epoch(self):
        return self.row.producer_epoch

    @property
    def base_sequence(self):
        return self.row.base_sequence

    @property
    def last_sequence(self):
        return self.row.last_sequence

    @property
    def count(self):
        """The number of records that the header declares; -1 for magic 0 and 1."""
        return self.row.record_count

    @property
    def codec(self):
        """0..4 as in format.codecs; 5..7 are no codec."""
        return self.row.attributes & CODEC_MASK

    @property
    def is_compressed(self):
        return self.row.attributes & CODEC_MASK != 0

    @property
    def is_transactional(self):
        return self.row.magic >= 2 and self.row.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self):
        return self.row.magic >= 2 and self.row.attributes & CONTROL_FLAG != 0

    @property
    def has_producer_id(self):
        return self.row.producer_id > -1

    @property
    def log_append(self):
        """Whether the timestamp is the broker's append time."""
        return self.row.magic != 0 and self.row.attributes & TIMESTAMP_TYPE_FLAG != 0

    @property
    def timestamp_type(self):
        if self.row.magic == 0:
            return "NoTimestampType"
        return "LogAppendTime" if self.row.attributes & TIMESTAMP_TYPE_FLAG else "CreateTime"

    def at(self, int64_t position):
        """Returns the same header with another `position`."""
        cdef BatchHeader moved = header_of(&self.row)
        moved.row.position = position
        return moved

    def __eq__(self, other):
        # Field by field, because a row's padding is undefined.
        if not isinstance(other, BatchHeader):
            return NotImplemented
        return header_tuple(self) == header_tuple(<BatchHeader>other)

    def __hash__(self):
        return hash((self.row.base_offset, self.row.last_offset, self.row.crc))

    def __reduce__(self):
        return header_from_row, (PyBytes_FromStringAndSize(<char*>&self.row, sizeof(Row)),)

    def __repr__(self):
        return (
            f"BatchHeader(position={self.row.position}, size={self.row.size}, magic={self.row.magic}, "
            f"base_offset={self.row.base_offset}, last_offset={self.row.last_offset}, count={self.row.record_count}, "
            f"attributes={self.row.attributes:#06x}, leader_epoch={self.row.leader_epoch}, "
            f"max_timestamp={self.row.max_timestamp}, producer_id={self.row.producer_id}, "
            f"producer_epoch={self.row.producer_epoch}, base_sequence={self.row.base_sequence})"
        )


cdef tuple header_tuple(BatchHeader header):
    cdef Row* row = &header.row
    return (
        row.position, row.size, row.magic, row.attributes, row.leader_epoch, row.crc, row.base_offset,
        row.last_offset, row.base_timestamp, row.max_timestamp, row.producer_id, row.base_sequence,
        row.record_count, row.producer_epoch,
    )


def header_at(data, int64_t position=0):
    """Returns the header at `position`; its body may be missing (61 bytes are enough, 26 for magic 0 and 1).

    Nothing but the size is checked: ValueError if the header does not fit.
    """
    cdef Py_buffer view
    cdef BatchHeader header
    cdef const uint8_t* p
    cdef int8_t magic
    open_octets(data, &view)
    try:
        if position < 0 or position > view.len:
            raise ValueError(f"position {position} is outside the buffer's {view.len} bytes")
        p = <const uint8_t*>view.buf + position
        require_header(p, view.len - position, &magic)
        header = BatchHeader.__new__(BatchHeader)
        parse_header(p, magic, position, declared_size(p), &header.row)
        return header
    finally:
        PyBuffer_Release(&view)


cdef inline int64_t declared_size(const uint8_t* p) noexcept nogil:
    # Wraps as Java's int does: a size near 2^31 becomes negative.
    return <int32_t>(load32(p + BATCH_LENGTH) + <uint32_t>LOG_OVERHEAD)


def header_from_row(row):
    """Returns the header of one row of a table (a numpy record or its 80 bytes)."""
    cdef bytes raw = row if isinstance(row, bytes) else row.tobytes()
    if len(raw) != sizeof(Row):
        raise ValueError(f"row: found {len(raw)} bytes, expected {sizeof(Row)}")
    return header_of(<const Row*><const char*>PyBytes_AS_STRING(raw))


def headers_from_table(table):
    """Returns the headers of all rows, in order."""
    cdef Py_buffer view
    cdef Py_ssize_t i
    cdef list found = []
    get_rows(table, &view)
    try:
        for i in range(view.len // <Py_ssize_t>sizeof(Row)):
            found.append(header_of(<const Row*>view.buf + i))
    finally:
        PyBuffer_Release(&view)
    return found


cdef int get_rows(table, Py_buffer* view) except -1:
    if table.dtype != BATCH_DTYPE:
        raise TypeError("table: found another dtype, expected BATCH_DTYPE")
    open_octets(table, view)
    return 0


def headers(data, int64_t position=0, int64_t end=-1, *, int64_t base_position=0, int framing=F_BUFFER,
            int64_t max_batches=-1):
    """Reads the headers in data[position:end] -> (headers, why it stopped, next position in data); checks no checksums.

    The verdicts are those of `scan`. `BatchHeader.position` is base_position + the position in data.
    """
    cdef Py_buffer view
    cdef const uint8_t* start
    cdef int64_t size
    cdef int8_t magic
    cdef int verdict
    cdef list found = []
    cdef BatchHeader header
    open_octets(data, &view)
    try:
        end = checked_end(view.len, position, end)
        start = <const uint8_t*>view.buf
        while True:
            verdict = next_frame(start + position, end - position, framing, &size, &magic)
            if verdict != V_OK or size == 0:
                break
            if max_batches == 0:
                verdict = V_MORE
                break
            header = BatchHeader.__new__(BatchHeader)
            parse_header(start + position, magic, base_position + position, size, &header.row)
            found.append(header)
            position += size
            max_batches -= 1
        return found, verdict, position
    finally:
        PyBuffer_Release(&view)


# --- many batches -------------------------------------------------------------------------------


@cython.auto_pickle(False)
cdef class _Rows:
    """The memory of a table; numpy holds this object, which frees it."""

    cdef Row* rows
    cdef Py_ssize_t count

    def __cinit__(self):
        self.rows = NULL
        self.count = 0

    def __dealloc__(self):
        free(self.rows)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.rows, self.count * <Py_ssize_t>sizeof(Row), False, flags)


# More than eight parameters: without the GIL the loop cannot take them from an object, and it resumes where it stopped.
cdef int scan_rows(const uint8_t* start, int64_t* at, int64_t end, int64_t base, int framing, bint check_crc,
                   bint stop_at_bad_crc, Row* rows, int64_t* count, int64_t capacity) noexcept nogil:
    cdef int64_t position = at[0]
    cdef int64_t filled = count[0]
    cdef int64_t size
    cdef int8_t magic
    cdef const uint8_t* p
    cdef int verdict
    while True:
        p = start + position
        verdict = next_frame(p, end - position, framing, &size, &magic)
        if verdict != V_OK or size == 0:
            break
        if filled == capacity:
            verdict = FULL
            break
        parse_header(p, magic, base + position, size, &rows[filled])
        if check_crc and checksum(p, magic, size) != rows[filled].crc:
            if stop_at_bad_crc:
                verdict = V_BAD_CRC
                break
            rows[filled].verdict = V_BAD_CRC
        filled += 1
        position += size
    at[0] = position
    count[0] = filled
    return verdict


def scan(data, int64_t position=0, int64_t end=-1, *, int64_t base_position=0, int framing=F_FILE,
         bint check_crc=True, bint stop_at_bad_crc=True, int64_t max_batches=65536):
    """Reads the batches of data[position:end] into a table -> (table of BATCH_DTYPE, why it stopped, next position in
    data).

    Why it stopped:

    - OK: the end. Remaining bytes, if any, are too few for this framing to see.
    - TORN: the next batch declares more bytes than remain.
    - BAD_SIZE: the next batch declares fewer bytes than any batch has.
    - BAD_MAGIC, BAD_CRC: the next batch has an unknown magic, or a bad checksum.
    - MORE: `max_batches` rows are full; call again with the next position.

    The next position is the start of the first batch that is not in the table.

    The `position` column is base_position + the position in data. With stop_at_bad_crc=False a bad checksum goes into
    the `verdict` column and the scan continues. Otherwise every row's verdict is OK. FRAMING_FILE frames as
    FileLogInputStream does: a tail of 17 bytes or less is the end, a magic above 2 is read as 2 and a negative one as
    legacy. FRAMING_BUFFER frames as ByteBufferLogInputStream does. Runs without the GIL.
    """
    cdef Py_buffer view
    cdef _Rows table = _Rows.__new__(_Rows)
    cdef Row* grown
    cdef int64_t count = 0
    cdef int64_t first = position
    cdef int64_t capacity
    cdef int verdict = V_MORE
    if max_batches < 1:
        raise ValueError(f"max_batches: found {max_batches}, expected at least 1")
    open_octets(data, &view)
    try:
        end = checked_end(view.len, position, end)
        capacity = min(max_batches, FIRST_ROWS)
        with nogil:
            while True:
                grown = <Row*>realloc(table.rows, <size_t>capacity * sizeof(Row))
                if grown == NULL:
                    verdict = -1
                    break
                table.rows = grown
                verdict = scan_rows(<const uint8_t*>view.buf, &position, end, base_position, framing, check_crc,
                                    stop_at_bad_crc, table.rows, &count, capacity)
                if verdict != FULL:
                    break
                if capacity == max_batches:
                    verdict = V_MORE
                    break
                # Room for what the rest would hold at the mean size so far, plus an eighth; at least twice as many
                # rows.
                capacity = max(2 * capacity, count + 16 + (end - position) * count // (position - first) * 9 // 8)
                capacity = min(capacity, max_batches)
    finally:
        PyBuffer_Release(&view)
    if verdict == -1:
        raise MemoryError
    if count == 0:
        return _empty(0, BATCH_DTYPE), verdict, position
    if capacity - count > capacity >> 2:
        grown = <Row*>realloc(table.rows, <size_t>count * sizeof(Row))
        if grown != NULL:
            table.rows = grown
    table.count = count
    return _frombuffer(table, BATCH_DTYPE), verdict, position


def any_of_interest(table, int64_t latest_epoch):
    """Returns whether a row belongs to a producer, or to a leader epoch above `latest_epoch`."""
    cdef Py_buffer view
    cdef const Row* row
    cdef Py_ssize_t i
    get_rows(table, &view)
    try:
        for i in range(view.len // <Py_ssize_t>sizeof(Row)):
            row = <const Row*>view.buf + i
            if row.producer_id > -1 or row.leader_epoch > latest_epoch:
                return True
        return False
    finally:
        PyBuffer_Release(&view)


def rows_in_order(table, int64_t expected, int64_t limit):
    """Counts the leading rows that have a known magic and ascending offsets from `expected` to `limit`. A row of magic
    0 or 1 counts with its last offset only."""
    cdef Py_buffer view
    cdef const Row* row
    cdef Py_ssize_t i = 0, count
    cdef int64_t before = expected - 1, first
    if expected < 0:
        raise ValueError(f"expected: found {expected}, expected 0 or more")
    get_rows(table, &view)
    try:
        count = view.len // <Py_ssize_t>sizeof(Row)
        while i < count:
            row = <const Row*>view.buf + i
            first = row.base_offset if row.magic >= 2 else row.last_offset
            if row.magic < 0 or row.magic > 2 or first <= before or row.last_offset < first or row.last_offset > limit:
                break
            before = row.last_offset
            i += 1
        return i
    finally:
        PyBuffer_Release(&view)


# --- re-stamping --------------------------------------------------------------------------------


cdef int stamp(uint8_t* header, const uint8_t* rest, int64_t rest_bytes, last_offset, leader_epoch, timestamp_type,
               max_timestamp) except -1:
    """Re-stamps a header of magic 2; `rest` is the rest of the batch, for the checksum."""
    cdef int64_t offset = 0
    cdef int64_t timestamp = <int64_t>load64(header + MAX_TIMESTAMP)
    cdef int32_t epoch = 0
    cdef int attributes = load16(header + ATTRIBUTES)
    cdef int type_flag = attributes & TIMESTAMP_TYPE_FLAG
    cdef uint32_t crc
    cdef bint same
    # All checks come before the first write.
    if last_offset is not None:
        offset = last_offset
        offset = <int64_t>(<uint64_t>offset - <uint64_t><int64_t><int32_t>load32(header + LAST_OFFSET_DELTA))
    if leader_epoch is not None:
        epoch = leader_epoch
    if timestamp_type is not None:
        if timestamp_type not in (0, 1):
            raise ValueError(f"timestamp type {timestamp_type!r} is neither 0 (CreateTime) nor 1 (LogAppendTime)")
        type_flag = TIMESTAMP_TYPE_FLAG if timestamp_type == 1 else 0
    same = type_flag == attributes & TIMESTAMP_TYPE_FLAG and (max_timestamp is None or max_timestamp == timestamp)
    if max_timestamp is not None:
        timestamp = max_timestamp
    # As setMaxTimestamp: the attributes are rebuilt from the known bits, so unknown bits are lost.
    if not same and attributes & CODEC_MASK > 4:
        raise ValueError(f"Unknown compression type id: {attributes & CODEC_MASK}")
    if last_offset is not None:
        store64(header + BASE_OFFSET, <uint64_t>offset)
    if leader_epoch is not None:
        store32(header + LEADER_EPOCH, <uint32_t>epoch)
    if same:
        return 0
    attributes &= CODEC_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG | DELETE_HORIZON_FLAG
    store16(header + ATTRIBUTES, <uint16_t>(attributes | type_flag))
    store64(header + MAX_TIMESTAMP, <uint64_t>timestamp)
    with nogil:
        crc = crc32c_update(0, header + ATTRIBUTES, RECORDS - ATTRIBUTES)
        store32(header + CRC, crc32c_update(crc, rest, <size_t>rest_bytes))
    return 0


cdef int64_t whole_batch(Py_buffer* view, int64_t position) except -1:
    """Returns the size of the batch of magic 2 at `position`; ValueError unless all of it is in the buffer."""
    cdef int64_t size = 0
    cdef int8_t magic = 0
    cdef const uint8_t* p
    if position < 0 or position > view.len:
        raise ValueError(f"position {position} is outside the buffer's {view.len} bytes")
    p = <const uint8_t*>view.buf + position
    if next_frame(p, view.len - position, F_FILE, &size, &magic) != V_OK or size == 0:
        raise ValueError(f"there is no whole batch at {position}")
    if magic != 2:
        raise ValueError(f"the batch at {position} has magic {magic}; expected 2")
    return size


def restamped_header(data, int64_t position=0, *, last_offset=None, leader_epoch=None, timestamp_type=None,
                     max_timestamp=None):
    """Returns the header (61 bytes) of the batch of magic 2 at `position` as Kafka's setters of the same names leave
    it; `data` is not changed.

    `last_offset` moves the base offset so that the batch ends at this offset; `leader_epoch` sets the epoch. Neither
    touches the checksum. `timestamp_type` (0 CreateTime, 1 LogAppendTime) and `max_timestamp` do nothing if both are as
    stored; otherwise attributes, maximum and checksum are written. Raises ValueError if Kafka refuses the change.
    """
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef int64_t size
    cdef bytes header
    open_octets(data, &view)
    try:
        size = whole_batch(&view, position)
        p = <const uint8_t*>view.buf + position
        header = PyBytes_FromStringAndSize(<const char*>p, RECORDS)
        stamp(<uint8_t*>PyBytes_AS_STRING(header), p + RECORDS, size - RECORDS, last_offset, leader_epoch,
              timestamp_type, max_timestamp)
        return header
    finally:
        PyBuffer_Release(&view)


def producer_header(data, int64_t position, int64_t producer_id, int producer_epoch, int base_sequence,
                    bint transactional):
    """Returns the header (61 bytes) of the batch of magic 2 at `position`, with its checksum, as that producer would
    have sent it; `data` is not changed. Raises ValueError if there is no such batch."""
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef uint8_t* head
    cdef int64_t size
    cdef uint32_t crc, attributes
    cdef bytes header
    open_octets(data, &view)
    try:
        size = whole_batch(&view, position)
        p = <const uint8_t*>view.buf + position
        header = PyBytes_FromStringAndSize(<const char*>p, RECORDS)
        head = <uint8_t*>PyBytes_AS_STRING(header)
        attributes = load16(head + ATTRIBUTES) & ~<uint32_t>TRANSACTIONAL_FLAG
        store16(head + ATTRIBUTES, <uint16_t>(attributes | (TRANSACTIONAL_FLAG if transactional else 0)))
        store64(head + PRODUCER_ID, <uint64_t>producer_id)
        store16(head + PRODUCER_EPOCH, <uint16_t>producer_epoch)
        store32(head + BASE_SEQUENCE, <uint32_t>base_sequence)
        with nogil:
            crc = crc32c_update(0, head + ATTRIBUTES, RECORDS - ATTRIBUTES)
            store32(head + CRC, crc32c_update(crc, p + RECORDS, <size_t>(size - RECORDS)))
        return header
    finally:
        PyBuffer_Release(&view)


# --- index entries ------------------------------------------------------------------------------

# Kinds of IndexPlan.error, with the exception that Kafka throws.
OFFSET_OUT_OF_RANGE = 1     # LogSegmentOffsetOverflowException with check_range, else IndexOffsetOverflowException
OFFSET_INDEX_FULL = 2       # IllegalArgumentException
OFFSET_NOT_INCREASING = 3   # InvalidOffsetException
TIME_INDEX_FULL = 4         # IllegalArgumentException
TIME_OFFSET_DECREASING = 5  # InvalidOffsetException
TIMESTAMP_DECREASING = 6    # IllegalStateException

cdef enum:
    E_NONE = 0
    E_OFFSET_OUT_OF_RANGE = 1
    E_OFFSET_INDEX_FULL = 2
    E_OFFSET_NOT_INCREASING = 3
    E_TIME_INDEX_FULL = 4
    E_TIME_OFFSET_DECREASING = 5
    E_TIMESTAMP_DECREASING = 6
    E_NO_MEMORY = 7


cdef uint8_t* room_for(Entries* entries, size_t length) noexcept nogil:
    cdef uint8_t* grown
    cdef size_t capacity
    if entries.capacity - entries.filled < length:
        capacity = 2 * entries.capacity + 96
        grown = <uint8_t*>realloc(entries.bytes, capacity)
        if grown == NULL:
            return NULL
        entries.bytes = grown
        entries.capacity = capacity
    return entries.bytes + entries.filled


cdef inline bytes packed(const Entries* entries):
    return PyBytes_FromStringAndSize(<const char*>entries.bytes, <Py_ssize_t>entries.filled)


@cython.final
@cython.auto_pickle(False)
cdef class IndexPlan:
    """Computes the index entries that LogSegment.append and .recover write for a run of batches, and keeps the state
    between runs.

    For each batch, in order: a larger max timestamp (ties keep the earlier batch) moves (max_timestamp,
    offset_of_max_timestamp). If more than `interval_bytes` have passed since the last entry, the offset index gets
    (last offset, position) and the time index, if its timestamp would grow, (max_timestamp, offset_of_max_timestamp).
    Then the batch's size is counted.

    `check_range` (for a recovery) refuses any batch whose last offset is not base_offset + 0..2^31-1; an append has
    checked its largest offset before. `max_*_entries` are the capacities of the index files; the time index keeps its
    last slot free, as Kafka's does. On an error the run stops before that entry and keeps everything before it, as in
    Kafka. One thread at a time: a second one gets a RuntimeError.
    """

    # More than eight parameters: a plan starts from the ends of two indexes, each field by its name.
    def __cinit__(self, int64_t base_offset, int64_t interval_bytes, *, int64_t bytes_since_last_entry=0,
                  int64_t max_timestamp=-1, int64_t offset_of_max_timestamp=-1, last_time_entry=None,
                  last_offset_entry=None, int64_t offset_entry_count=0, int64_t time_entry_count=0,
                  int64_t max_offset_entries=INT32_MAX, int64_t max_time_entries=INT32_MAX, bint check_range=False):
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self._bytes_since_last_entry = bytes_since_last_entry
        self._max_timestamp = max_timestamp
        self._offset_of_max_timestamp = offset_of_max_timestamp
        self.last_time, self.last_time_offset = (-1, base_offset) if last_time_entry is None else last_time_entry
        self._last_offset_entry = base_offset if last_offset_entry is None else last_offset_entry
        self.offset_entry_count_ = offset_entry_count
        self.time_entry_count_ = time_entry_count
        self.max_offset_entries = max_offset_entries
        self.max_time_entries = max_time_entries
        self.check_range = check_range
        self.error_kind = E_NONE
        self.error_row = -1

    def __dealloc__(self):
        free(self.offsets.bytes)
        free(self.times.bytes)

    cdef bint representable(self, int64_t offset) noexcept nogil:
        # Wraps as Java's subtraction does.
        cdef int64_t relative = <int64_t>(<uint64_t>offset - <uint64_t>self.base_offset)
        return 0 <= relative <= INT32_MAX

    cdef int add(self, const Row* row, int64_t position) noexcept nogil:
        cdef int error
        if self.check_range and not self.representable(row.last_offset):
            return E_OFFSET_OUT_OF_RANGE
        if row.max_timestamp > self._max_timestamp:
            self._max_timestamp = row.max_timestamp
            self._offset_of_max_timestamp = row.last_offset
        if entry_is_due(self._bytes_since_last_entry, self.interval_bytes):
            error = self.append_entries(row.last_offset, position)
            if error != E_NONE:
                return error
            self._bytes_since_last_entry = 0
        self._bytes_since_last_entry += row.size
        return E_NONE

    cdef int append_entries(self, int64_t offset, int64_t position) noexcept nogil:
        cdef uint8_t* at
        if self.offset_entry_count_ >= self.max_offset_entries:
            return E_OFFSET_INDEX_FULL
        if self.offset_entry_count_ != 0 and offset <= self._last_offset_entry:
            return E_OFFSET_NOT_INCREASING
        if not self.representable(offset):
            return E_OFFSET_OUT_OF_RANGE
        at = room_for(&self.offsets, OFFSET_ENTRY)
        if at == NULL:
            return E_NO_MEMORY
        store32(at + OFFSET_ENTRY_OFFSET, <uint32_t>(<uint64_t>offset - <uint64_t>self.base_offset))
        store32(at + OFFSET_ENTRY_POSITION, <uint32_t>position)
        self.offsets.filled += OFFSET_ENTRY
        self.offset_entry_count_ += 1
        self._last_offset_entry = offset
        return self.maybe_append_time(False)

    cdef int maybe_append_time(self, bint skip_full_check) noexcept nogil:
        cdef uint8_t* at
        cdef int64_t timestamp = self._max_timestamp
        cdef int64_t offset = self._offset_of_max_timestamp
        if not skip_full_check and self.time_entry_count_ >= self.max_time_entries - 1:
            return E_TIME_INDEX_FULL
        if self.time_entry_count_ != 0:
            if offset < self.last_time_offset:
                return E_TIME_OFFSET_DECREASING
            if timestamp < self.last_time:
                return E_TIMESTAMP_DECREASING
        if timestamp <= self.last_time:
            return E_NONE
        if not self.representable(offset):
            return E_OFFSET_OUT_OF_RANGE
        at = room_for(&self.times, TIME_ENTRY)
        if at == NULL:
            return E_NO_MEMORY
        store64(at + TIME_ENTRY_TIMESTAMP, <uint64_t>timestamp)
        store32(at + TIME_ENTRY_OFFSET, <uint32_t>(<uint64_t>offset - <uint64_t>self.base_offset))
        self.times.filled += TIME_ENTRY
        self.time_entry_count_ += 1
        self.last_time = timestamp
        self.last_time_offset = offset
        return E_NONE

    cdef bint settle(self, int error, int64_t row) except -1:
        if error == E_NO_MEMORY:
            raise MemoryError
        self.error_kind = error
        self.error_row = row if error != E_NONE else -1
        return error == E_NONE

    def add_table(self, table, *, int64_t base_position=0):
        """Adds the rows of a scan's table (verdicts are ignored); False: stopped, see `error`.

        The position in an entry is base_position + the row's.
        """
        cdef Py_buffer view
        cdef Py_ssize_t i = 0
        cdef Py_ssize_t count
        cdef const Row* rows
        cdef int error = E_NONE
        cdef Row row
        get_rows(table, &view)
        try:
            claim(&self.busy, "IndexPlan")
            try:
                rows = <const Row*>view.buf
                count = view.len // <Py_ssize_t>sizeof(Row)
                with nogil:
                    while i < count:
                        row = rows[i]
                        KL_LOADED()
                        error = self.add(&row, base_position + row.position)
                        if error != E_NONE:
                            break
                        i += 1
                return self.settle(error, i)
            finally:
                kl_leave(&self.busy)
        finally:
            PyBuffer_Release(&view)

    def add_header(self, BatchHeader header not None, *, int64_t base_position=0):
        """Adds one batch; False: stopped, see `error`."""
        claim(&self.busy, "IndexPlan")
        try:
            return self.settle(self.add(&header.row, base_position + header.row.position), 0)
        finally:
            kl_leave(&self.busy)

    def add_headers(self, list headers not None, *, int64_t base_position=0):
        """Adds batches in order; False: stopped, see `error` (row = index in the list)."""
        cdef Py_ssize_t i = 0
        cdef BatchHeader header
        cdef int error = E_NONE
        claim(&self.busy, "IndexPlan")
        try:
            for header in headers:  # reads the list's length at each step: another thread may shorten it
                if header is None:
                    raise TypeError("headers: found None in the list, expected BatchHeader objects")
                error = self.add(&header.row, base_position + header.row.position)
                if error != E_NONE:
                    return self.settle(error, i)
                i += 1
            return self.settle(E_NONE, -1)
        finally:
            kl_leave(&self.busy)

    def add_last_time_entry(self):
        """Adds the entry that closes a segment (maybeAppend with skipFullCheck); False: see `error` (row -1)."""
        claim(&self.busy, "IndexPlan")
        try:
            return self.settle(self.maybe_append_time(True), -1)
        finally:
            kl_leave(&self.busy)

    def take(self):
        """Returns the (offset entries, time entries) since the last take, as the bytes to append to the two files."""
        claim(&self.busy, "IndexPlan")
        try:
            made = (packed(&self.offsets), packed(&self.times))
            self.offsets.filled = 0
            self.times.filled = 0
            return made
        finally:
            kl_leave(&self.busy)

    @property
    def offset_entries(self):
        """8 bytes each: int32 offset - base, int32 position."""
        claim(&self.busy, "IndexPlan")
        try:
            return packed(&self.offsets)
        finally:
            kl_leave(&self.busy)

    @property
    def time_entries(self):
        """12 bytes each: int64 timestamp, int32 offset - base."""
        claim(&self.busy, "IndexPlan")
        try:
            return packed(&self.times)
        finally:
            kl_leave(&self.busy)

    cdef object number(self, const int64_t* which):
        claim(&self.busy, "IndexPlan")
        try:
            return which[0]
        finally:
            kl_leave(&self.busy)

    @property
    def bytes_since_last_entry(self):
        return self.number(&self._bytes_since_last_entry)

    @property
    def max_timestamp(self):
        return self.number(&self._max_timestamp)

    @property
    def offset_of_max_timestamp(self):
        return self.number(&self._offset_of_max_timestamp)

    @property
    def last_time_entry(self):
        """(timestamp, offset); (-1, base offset) if there is none."""
        claim(&self.busy, "IndexPlan")
        try:
            return self.last_time, self.last_time_offset
        finally:
            kl_leave(&self.busy)

    @property
    def last_offset_entry(self):
        return self.number(&self._last_offset_entry)

    @property
    def offset_entry_count(self):
        return self.number(&self.offset_entry_count_)

    @property
    def time_entry_count(self):
        return self.number(&self.time_entry_count_)

    @property
    def error(self):
        """None, or (kind, the row that was not added)."""
        claim(&self.busy, "IndexPlan")
        try:
            return None if self.error_kind == E_NONE else (self.error_kind, self.error_row)
        finally:
            kl_leave(&self.busy)
