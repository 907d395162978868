"""Magic-2 records as Python objects, and back: one call for each batch.

Raises no domain error: the verdict, the position and the numbers of the error text go to
`kafkalog.engine.format.records`, which has Kafka's texts for them.
"""
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kafkalog._native.codec cimport record as rec
from kafkalog._native.codec.batches cimport increment_sequence
from kafkalog._native.codec.cursor cimport Cursor
from kafkalog._native.codec.octets cimport open_octets
from kafkalog._native.codec.record cimport Batch, HeaderView, RecordView
from kafkalog._native.codec.varint cimport size_of_uvarint64, write_uvarint64, zigzag32, zigzag64

# Verdicts and readers, for all code that walks over records; record.pxd says which numbers belong to which verdict.
OK = rec.OK
NEGATIVE_COUNT = rec.NEGATIVE_COUNT
PREMATURE_END = rec.PREMATURE_END
LONG_VARINT = rec.LONG_VARINT
NEGATIVE_SIZE = rec.NEGATIVE_SIZE
SIZE_OVER_LIMIT = rec.SIZE_OVER_LIMIT
SHORT_STREAM = rec.SHORT_STREAM
SHORT_BUFFER = rec.SHORT_BUFFER
BAD_STRUCTURE = rec.BAD_STRUCTURE
NEGATIVE_HEADER_COUNT = rec.NEGATIVE_HEADER_COUNT
EXCESS_HEADER_COUNT = rec.EXCESS_HEADER_COUNT
NEGATIVE_HEADER_KEY = rec.NEGATIVE_HEADER_KEY
SIZE_MISMATCH = rec.SIZE_MISMATCH
SHORT_SKIP = rec.SHORT_SKIP
BYTES_LEFT = rec.BYTES_LEFT
BAD_BOUNDS = rec.BAD_BOUNDS
BUFFER, STREAM, SKIP = rec.BUFFER, rec.STREAM, rec.SKIP


cdef class Record:
    """One record as read. `size` is the number of its bytes in the (decompressed) batch; `headers` is a tuple of (key,
    value) pairs; `timestamp` is -1 for none; `sequence` is -1 outside idempotent batches."""

    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object timestamp_type
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers
    cdef readonly int sequence
    cdef readonly int magic
    cdef readonly int64_t size

    # More than eight parameters: a record has as many fields.
    def __init__(
        self,
        int64_t offset,
        int64_t timestamp,
        str timestamp_type,
        bytes key,
        bytes value,
        headers=(),
        int sequence=-1,
        int magic=2,
        int64_t size=0,
    ):
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = tuple(headers)
        self.sequence = sequence
        self.magic = magic
        self.size = size

    def _astuple(self):
        return (
            self.offset, self.timestamp, self.timestamp_type, self.key, self.value,
            self.headers, self.sequence, self.magic, self.size,
        )

    def __reduce__(self):
        return (Record, self._astuple())

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self._astuple() == (<Record>other)._astuple()

    def __hash__(self):
        return hash(self._astuple())

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, timestamp_type={self.timestamp_type!r}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r}, sequence={self.sequence}, "
            f"magic={self.magic}, size={self.size})"
        )


cdef inline object nullable_bytes(const uint8_t* at, int32_t size):
    if at == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char*>at, size)


cdef tuple read_headers(RecordView* view):
    cdef Cursor cursor
    cdef HeaderView header
    cdef list found = []
    cursor.at = view.headers
    cursor.end = view.end
    for _ in range(view.header_count):
        # next_record has checked them before
        if rec.next_header(&cursor, rec.BUFFER, False, view, &header) != rec.OK:
            break
        name = PyUnicode_DecodeUTF8(<const char*>header.key, header.key_size, "replace")
        found.append((name, nullable_bytes(header.value, header.value_size)))
    return tuple(found)


def read_records(
    data,
    int64_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    log_append_time,
    int base_sequence,
    bint streaming,
    int64_t max_body,
):
    """Reads the records of a payload -> (records, verdict, position of the bad record, expected, found).

    `log_append_time` replaces the timestamps if it is not None. `streaming` says that the payload was compressed:
    Kafka's rules differ a little. The records before a bad one are returned, too.
    """
    cdef Py_buffer buffer
    cdef Batch batch
    batch.count = count
    batch.base_offset = base_offset
    batch.base_timestamp = base_timestamp
    batch.log_append = log_append_time is not None
    batch.append_time = log_append_time if batch.log_append else 0
    open_octets(data, &buffer)
    try:
        return read_from(&buffer, &batch, base_sequence, rec.STREAM if streaming else rec.BUFFER, max_body)
    finally:
        PyBuffer_Release(&buffer)


cdef tuple read_from(const Py_buffer* buffer, const Batch* batch, int base_sequence, int reader, int64_t max_body):
    cdef Py_ssize_t length = buffer.len
    cdef uint8_t nothing = 0
    cdef const uint8_t* start = <const uint8_t*>buffer.buf if length > 0 else &nothing
    cdef Cursor cursor
    cdef RecordView view
    cdef int verdict
    cdef list found = []
    cdef Record record
    cdef int64_t _i
    cdef object timestamp_type = "LogAppendTime" if batch.log_append else "CreateTime"
    cdef tuple no_headers = ()
    if batch.count < 0:
        return found, NEGATIVE_COUNT, 0, 0, batch.count
    cursor.at = start
    cursor.end = start + length
    for _i in range(batch.count):
        verdict = rec.next_record(&cursor, reader, max_body, False, &view)
        if verdict != rec.OK:
            return found, verdict, view.start - start, view.expected, view.found
        record = Record.__new__(Record)
        record.offset = rec.offset_of(batch, &view)
        record.timestamp = rec.timestamp_of(batch, &view)
        record.timestamp_type = timestamp_type
        record.key = nullable_bytes(view.key, view.key_size)
        record.value = nullable_bytes(view.value, view.value_size)
        record.headers = no_headers if view.header_count == 0 else read_headers(&view)
        record.sequence = increment_sequence(base_sequence, view.offset_delta) if base_sequence >= 0 else -1
        record.magic = 2
        record.size = view.end - view.start
        found.append(record)
    if batch.count > 0 and cursor.at != cursor.end:
        return found, BYTES_LEFT, cursor.at - start, 0, cursor.end - cursor.at
    return found, OK, cursor.at - start, 0, 0


cdef int64_t body_size(
    int64_t timestamp_delta, int32_t offset_delta, object key, object value, object headers
) except -1:
    cdef int64_t size = 1
    cdef bytes part
    size += size_of_uvarint64(zigzag64(timestamp_delta)) + size_of_uvarint64(zigzag32(offset_delta))
    for part in (key, value):
        if part is None:
            size += 1
        else:
            size += size_of_uvarint64(zigzag32(<int32_t>PyBytes_GET_SIZE(part))) + PyBytes_GET_SIZE(part)
    size += size_of_uvarint64(zigzag32(<int32_t>len(headers)))
    for name, part in headers:
        size += size_of_uvarint64(zigzag32(<int32_t>PyBytes_GET_SIZE(name))) + PyBytes_GET_SIZE(name)
        if part is None:
            size += 1
        else:
            size += size_of_uvarint64(zigzag32(<int32_t>PyBytes_GET_SIZE(part))) + PyBytes_GET_SIZE(part)
    return size


def record_size(int64_t timestamp_delta, int32_t offset_delta, bytes key, bytes value, tuple headers):
    """Returns the bytes that one record takes in a batch, including its length prefix; headers as for write_records."""
    cdef int64_t size = body_size(timestamp_delta, offset_delta, key, value, headers)
    return size + size_of_uvarint64(zigzag32(<int32_t>size))


cdef uint8_t* put(uint8_t* at, object part):
    cdef Py_ssize_t size
    if part is None:
        at[0] = 1
        return at + 1
    size = PyBytes_GET_SIZE(part)
    at = write_uvarint64(at, zigzag32(<int32_t>size))
    memcpy(at, PyBytes_AS_STRING(part), size)
    return at + size


def write_records(list rows):
    """Returns the payload of a batch: `rows` of (timestamp delta, offset delta, key, value, headers), where headers is
    a tuple of (bytes, bytes or None) and key and value are bytes or None."""
    cdef int64_t total = 0
    cdef int64_t size
    cdef int64_t timestamp_delta
    cdef int32_t offset_delta
    cdef object key, value, headers, name, part
    cdef uint8_t* at
    cdef uint8_t* end
    cdef bytes out
    cdef list checked = []
    # Counts and writes the values read here: the caller's list may change, and so may lists in it.
    for timestamp_delta, offset_delta, key, value, headers in rows:
        if not ((key is None or type(key) is bytes) and (value is None or type(value) is bytes)):
            raise TypeError("expected bytes or None for keys and values")
        if type(headers) is not tuple:
            raise TypeError(f"headers: found a {type(headers).__name__}, expected a tuple")
        if headers:
            headers = tuple([(name, part) for name, part in headers])
        for name, part in headers:
            if type(name) is not bytes or not (part is None or type(part) is bytes):
                raise TypeError("headers: expected a pair of bytes, and bytes or None")
        size = body_size(timestamp_delta, offset_delta, key, value, headers)
        if size > INT32_MAX:
            raise OverflowError(f"a record has {size} bytes, expected at most 2 GiB")
        checked.append((size, timestamp_delta, offset_delta, key, value, headers))
        total += size + size_of_uvarint64(zigzag32(<int32_t>size))
    out = PyBytes_FromStringAndSize(NULL, total)
    at = <uint8_t*>PyBytes_AS_STRING(out)
    end = at + total
    for size, timestamp_delta, offset_delta, key, value, headers in checked:
        at = write_uvarint64(at, zigzag32(<int32_t>size))
        at[0] = 0
        at = write_uvarint64(at + 1, zigzag64(timestamp_delta))
        at = write_uvarint64(at, zigzag32(offset_delta))
        at = put(at, key)
        at = put(at, value)
        at = write_uvarint64(at, zigzag32(<int32_t>len(headers)))
        for name, part in headers:
            at = put(at, name)
            at = put(at, part)
    assert at == end, "the size of a record was computed wrong"
    return out
