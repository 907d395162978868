"""Columns to records: one call encodes a batch, with the payload that MemoryRecordsBuilder would write.

A row that cannot be written gives a verdict of `record.pxd` and its number. This module raises no domain error, only
TypeErrors and IndexErrors for bad columns. Loops run without the GIL. A column's offsets are checked at each use,
because the column may change meanwhile.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

import numpy as np

from kafkalog._native.codec cimport record as rec
from kafkalog._native.codec.arrow cimport ArrowArray, ArrowSchema
from kafkalog._native.codec.collected cimport Collected, Part
from kafkalog._native.codec.crc32c cimport crc32c_update
from kafkalog._native.codec.guard cimport claim, kl_leave
from kafkalog._native.codec.layout cimport (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    CODEC_MASK,
    CRC,
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
    load16,
    load32,
    load64,
    store16,
    store32,
    store64,
)
from kafkalog._native.codec.memory cimport SLACK, Block, check_memory, copy_bytes, reserve
from kafkalog._native.codec.octets cimport open_octets
from kafkalog._native.codec.octets import bytes_of
from kafkalog._native.codec.partitioner cimport StickyPartition, counted, of_key
from kafkalog._native.codec.reading import Record
from kafkalog._native.codec.varint cimport size_of_uvarint64, write_uvarint64, zigzag64

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text) noexcept
    void* PyUnicode_DATA(object text) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef enum:
    RECORD_OVERHEAD = 21  # the most that lengths, deltas and attributes of one record take (DefaultRecord)
    FEW_ROWS = 16  # encoded before another thread would have woken up

BAD_TIMESTAMP, BAD_OFFSET, BAD_COLUMN, TOO_LONG = rec.BAD_TIMESTAMP, rec.BAD_OFFSET, rec.BAD_COLUMN, rec.TOO_LONG


# A binary input column: 32 or 64 bit offsets, with or without a bitmap; or in pieces.
cdef struct Source:
    const Part* parts
    const uint8_t* validity
    const int32_t* narrow
    const int64_t* wide
    const uint8_t* data
    int64_t shift
    int64_t data_size
    bint absent


cdef inline int64_t span(const Source* column, int64_t i, const uint8_t** at) noexcept nogil:
    """Returns the size of the i-th value, -1 for null, -2 for invalid offsets."""
    cdef int64_t start, stop
    if column.parts != NULL:
        at[0] = column.parts[i].at
        return column.parts[i].size
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
    """Returns the bytes of a length as a zig-zag varint; a length is never negative."""
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
    # Headers: list offsets (NULL: no headers), the entries' key and value.
    const int32_t* narrow_lists
    const int64_t* wide_lists
    const uint8_t* list_validity
    int64_t list_shift
    int64_t header_count
    Source header_key
    Source header_value
    int64_t base_timestamp
    int64_t base_offset
    int64_t min_timestamp
    int64_t max_timestamp
    bint has_keys  # each written row has a key
    # The last row that was written.
    int64_t offset_delta


cdef int encode_rows(
    Encoder* it, int64_t start, int64_t stop, int64_t max_bytes, Block* out, int64_t* filled, int64_t* next_row
) noexcept nogil:
    """Writes rows after the first `filled[0]` bytes of `out`: at least one row, and at most `max_bytes` in total."""
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
            return rec.BAD_TIMESTAMP
        timestamp_delta = <int64_t>(<uint64_t>timestamp - <uint64_t>it.base_timestamp)
        if it.offsets != NULL:
            offset_delta = it.offsets[row]
            KL_ONCE(offset_delta)
            offset_delta = <int64_t>(<uint64_t>offset_delta - <uint64_t>it.base_offset)
        else:
            offset_delta = row - start
        if offset_delta <= last_delta or offset_delta > INT32_MAX:
            return rec.BAD_OFFSET
        key_size = span(&it.key, row, &key)
        value_size = span(&it.value, row, &value)
        if key_size < -1 or value_size < -1:
            return rec.BAD_COLUMN
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
                    return rec.BAD_COLUMN
            for h in range(first, last):
                name_size = span(&it.header_key, h, &name)
                part_size = span(&it.header_value, h, &part)
                if name_size < 0 or part_size < -1:
                    return rec.BAD_COLUMN
                size += varint_size(name_size) + name_size
                size += 1 if part_size < 0 else varint_size(part_size) + part_size
        size += varint_size(last - first)
        if size > INT32_MAX - 5 - RECORDS:
            return rec.TOO_LONG
        if row > start and total + size + varint_size(size) > max_bytes:
            filled[0] = total
            return rec.OK
        it.offset_delta = last_delta = offset_delta
        if not reserve(out, total + size + 5 + SLACK):
            return rec.NO_MEMORY
        to = put_varint(out.at + total, size)
        to[0] = 0
        to = write_uvarint64(to + 1, zig)
        to = put_varint(to, offset_delta)
        to = put_part(to, key, key_size, key_end if key_end != NULL else key)
        to = put_part(to, value, value_size, value_end if value_end != NULL else value)
        to = put_varint(to, last - first)
        # The columns may have changed: the headers get the bytes that were counted for them, no more, no less.
        left = total + varint_size(size) + size - (to - out.at)
        for h in range(first, last):
            name_size = span(&it.header_key, h, &name)
            part_size = span(&it.header_value, h, &part)
            if name_size < 0 or part_size < -1:
                return rec.BAD_COLUMN
            left -= varint_size(name_size) + name_size
            left -= 1 if part_size < 0 else varint_size(part_size) + part_size
            if left < 0:
                return rec.BAD_COLUMN
            to = put_part(to, name, name_size, name)
            to = put_part(to, part, part_size, part)
        if left != 0:
            return rec.BAD_COLUMN
        total = to - out.at
        if timestamp > it.max_timestamp:
            it.max_timestamp = timestamp
        if timestamp < it.min_timestamp:
            it.min_timestamp = timestamp
        if key_size < 0:
            it.has_keys = False
    next_row[0] = stop
    filled[0] = total
    return rec.OK


cdef inline bint take_part(Part* part, given) noexcept:
    """Returns whether the value is bytes or None. The caller holds a reference to it."""
    if given is None:
        part.at = NULL
        part.size = -1
        return True
    if type(given) is not bytes:
        return False
    part.at = <const uint8_t*>PyBytes_AS_STRING(given)
    part.size = PyBytes_GET_SIZE(given)
    return True


cdef inline int32_t counted_below(int32_t number, int32_t count) except -1:
    if number >= count:
        raise IndexError(f"partition {number} does not exist; the topic has {count}")
    return number


cdef bint take_time(given, int64_t* out) except -1:
    """Returns whether the value is an int that a timestamp can be."""
    cdef int overflow = 0
    if type(given) is not int:
        return False
    out[0] = PyLong_AsLongLongAndOverflow(given, &overflow)
    return overflow == 0 and out[0] >= -1


# More than eight parameters: a header's fields.
cdef void write_head(
    uint8_t* head, const Encoder* it, int64_t filled, int64_t count, int64_t base_offset, int attributes,
    int64_t max_timestamp, int64_t producer_id, int producer_epoch, int base_sequence, int leader_epoch,
) noexcept nogil:
    """Writes the header, with its checksum, before records that were just written; `filled` bytes in all."""
    store64(head + BASE_OFFSET, <uint64_t>base_offset)
    store32(head + BATCH_LENGTH, <uint32_t>(filled - LOG_OVERHEAD))
    store32(head + LEADER_EPOCH, <uint32_t>leader_epoch)
    head[MAGIC] = 2
    store16(head + ATTRIBUTES, <uint16_t>attributes)
    store32(head + LAST_OFFSET_DELTA, <uint32_t>it.offset_delta)
    store64(head + BASE_TIMESTAMP, <uint64_t>it.base_timestamp)
    store64(head + MAX_TIMESTAMP, <uint64_t>max_timestamp)
    store64(head + PRODUCER_ID, <uint64_t>producer_id)
    store16(head + PRODUCER_EPOCH, <uint16_t>producer_epoch)
    store32(head + BASE_SEQUENCE, <uint32_t>base_sequence)
    store32(head + RECORD_COUNT, <uint32_t>count)
    store32(head + CRC, crc32c_update(0, head + ATTRIBUTES, <size_t>(filled - ATTRIBUTES)))


@cython.auto_pickle(False)
@cython.final
cdef class EncodedBatch:
    """A whole batch that a ColumnEncoder created and nothing has changed since: `data`, and facts about its records
    that need no second check.

    `min_timestamp` and `max_timestamp` of its records in milliseconds; `record_bytes`, their bytes before compression,
    or -1 if the header disagrees with the records; `has_keys`: each of them has a key. Supports the buffer protocol for
    `data`.
    """

    def __init__(self):
        raise TypeError("an EncodedBatch is created by a ColumnEncoder")

    def __len__(self):
        return len(self.data)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, PyBytes_AS_STRING(self.data), PyBytes_GET_SIZE(self.data), 1, flags)

    @staticmethod
    cdef EncodedBatch of_row(tuple row, int64_t now_ms, int64_t max_bytes):
        """Returns the uncompressed batch of one record of the usual kind, as `from_rows` and `encode_batch` create it;
        None if the record is of another kind, or might take more than `max_bytes`."""
        cdef ColumnEncoder encoder = ColumnEncoder.__new__(ColumnEncoder)
        cdef int64_t next_row = 0, filled = RECORDS
        encoder.held = []
        encoder.rows = 1
        if not encoder.take_rows((row,), now_ms) or encoder.bytes_bound + RECORDS > max_bytes:
            return None
        if encoder.run(0, 1, max_bytes, None, None, &filled, &next_row) != rec.OK:
            return None
        write_head(encoder.scratch.at, &encoder.it, filled, 1, 0, 0, encoder.it.max_timestamp, -1, -1, -1, -1)
        data = PyBytes_FromStringAndSize(<const char*>encoder.scratch.at, filled)
        return encoder.made_of(data, filled - RECORDS, False)


@cython.auto_pickle(False)
cdef class ColumnEncoder:
    """Columns to be written: `timestamps` (int64), `keys` and `values` (None, or (offsets int32 or int64, data) or
    (offsets, data, bitmap)), `headers` (None, or (list offsets, keys, values)), `offsets` (None: consecutive).

    The sizes of the buffers are checked once; the buffers are read in place.  One thread at a time: a second one gets a
    RuntimeError.
    """
    cdef Encoder it
    cdef list held
    cdef readonly int64_t rows
    # An upper bound of the records' bytes; 0 if it was not computed.
    cdef readonly int64_t bytes_bound
    cdef Block scratch, pieces, lists, names, contents
    cdef int busy
    cdef bytes encoded  # the payload that `encode` returned last
    cdef int64_t count  # rows that were written last

    def __dealloc__(self):
        free(self.scratch.at)
        free(self.pieces.at)
        free(self.lists.at)
        free(self.names.at)
        free(self.contents.at)

    def __init__(self, timestamps, keys=None, values=None, headers=None, offsets=None):
        if self.held is not None:
            raise RuntimeError("a ColumnEncoder cannot be initialized twice")
        self.held = []
        timestamps = np.ascontiguousarray(timestamps)
        self.it.timestamps = <const int64_t*><size_t>self.numbers(timestamps, np.int64)
        self.rows = len(timestamps)
        if offsets is not None:
            offsets = np.ascontiguousarray(offsets)
            if len(offsets) != self.rows:
                raise IndexError(f"found {len(offsets)} offsets, expected {self.rows}, one for each timestamp")
            self.it.offsets = <const int64_t*><size_t>self.numbers(offsets, np.int64)
        self.source(&self.it.key, keys, self.rows)
        self.source(&self.it.value, values, self.rows)
        if headers is not None:
            lists, names, parts = headers
            lists = np.ascontiguousarray(lists)
            if len(lists) != self.rows + 1:
                raise IndexError(f"found {len(lists)} list offsets, expected {self.rows + 1}")
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
            raise TypeError(f"found an array of {array.dtype}, expected one dimension of {np.dtype(dtype).name}")
        self.held.append(array)
        # The address stays valid as long as the array is held.
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
            raise IndexError(f"found {len(ends)} offsets, expected {rows + 1}, one more than rows")
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
                raise IndexError(f"bitmap: found {len(bits)} bytes, expected at least {(rows + 7) >> 3}")
            out.validity = <const uint8_t*><size_t>self.numbers(bits, np.uint8)
        return 0

    def offset_at(self, int64_t row):
        """Returns the explicit offset of a row, or None if offsets are consecutive."""
        if not 0 <= row < self.rows:
            raise IndexError(f"row: found {row}, expected 0 to {self.rows - 1}")
        return None if self.it.offsets == NULL else self.it.offsets[row]

    @staticmethod
    def from_rows(records, int64_t now_ms):
        """Creates an encoder of a list or tuple of records as `append_many` accepts them. Returns None unless each is
        of the usual kind: bytes or None, a tuple (value, key, headers, timestamp) of exact types with header names in
        ASCII, or a Record. The caller's slower path handles other records.

        A timestamp of None, or -1 in a Record, becomes `now_ms`. The encoder holds references to the rows' objects; it
        copies nothing.
        """
        cdef ColumnEncoder encoder
        cdef tuple rows
        if type(records) is list:
            rows = tuple(records)  # another thread may change the list
        elif type(records) is tuple:
            rows = records
        else:
            return None
        if len(rows) == 0:
            return None
        encoder = ColumnEncoder.__new__(ColumnEncoder)
        encoder.held = [rows]
        encoder.rows = len(rows)
        return encoder if encoder.take_rows(rows, now_ms) else None

    cdef bint take_rows(self, tuple rows, int64_t now_ms) except -1:
        """Returns whether all rows are of the usual kind."""
        cdef Py_ssize_t count = len(rows), row, given
        cdef Part* keys
        cdef Part* values
        cdef int64_t* times
        cdef int64_t bound = 0, time
        if not reserve(&self.pieces, count * (2 * sizeof(Part) + sizeof(int64_t))):
            raise MemoryError
        keys = <Part*>self.pieces.at
        values = keys + count
        times = <int64_t*>(values + count)
        self.it.key.parts = keys
        self.it.value.parts = values
        self.it.timestamps = times
        self.it.header_key.absent = self.it.header_value.absent = True
        for row in range(count):
            record = rows[row]
            times[row] = now_ms
            keys[row].at = NULL
            keys[row].size = -1
            if type(record) is tuple:
                given = len(<tuple>record)
                if not 1 <= given <= 4 or not take_part(&values[row], (<tuple>record)[0]):
                    return False
                if given > 1 and not take_part(&keys[row], (<tuple>record)[1]):
                    return False
                if given > 2 and not self.take_headers(row, (<tuple>record)[2]):
                    return False
                if given > 3:
                    timestamp = (<tuple>record)[3]
                    if timestamp is not None:
                        if not take_time(timestamp, &time):
                            return False
                        times[row] = time
            elif type(record) is Record:
                if not self.take_record(row, record, &keys[row], &values[row]):
                    return False
                if not take_time(record.timestamp, &time):
                    return False
                if time != -1:
                    times[row] = time
            elif not take_part(&values[row], record):
                return False
            bound += RECORD_OVERHEAD + max(keys[row].size, 0) + max(values[row].size, 0)
            if self.it.wide_lists != NULL:
                (<int64_t*>self.lists.at)[row + 1] = self.it.header_count
        self.bytes_bound += bound
        self.it.header_key.parts = <const Part*>self.names.at
        self.it.header_value.parts = <const Part*>self.contents.at
        return True

    cdef bint take_record(self, Py_ssize_t row, record, Part* key, Part* value) except -1:
        cdef object key_given = record.key, value_given = record.value
        self.held.append(key_given)
        self.held.append(value_given)
        return (
            take_part(key, key_given) and take_part(value, value_given) and self.take_headers(row, record.headers)
        )

    cdef bint take_headers(self, Py_ssize_t row, headers) except -1:
        cdef Py_ssize_t at, count
        cdef Part* name
        cdef int64_t total
        if headers is None:
            return True
        if type(headers) is list:
            headers = tuple(headers)
        elif type(headers) is not tuple:
            return False
        count = len(<tuple>headers)
        if count == 0:
            return True
        if self.it.wide_lists == NULL:
            if not reserve(&self.lists, (self.rows + 1) * sizeof(int64_t)):
                raise MemoryError
            memset(self.lists.at, 0, (self.rows + 1) * sizeof(int64_t))
            self.it.wide_lists = <const int64_t*>self.lists.at
        self.held.append(headers)
        total = self.it.header_count + count
        if not reserve(&self.names, total * sizeof(Part)) or not reserve(&self.contents, total * sizeof(Part)):
            raise MemoryError
        for at in range(count):
            pair = (<tuple>headers)[at]
            if type(pair) is not tuple or len(<tuple>pair) != 2:
                return False
            text = (<tuple>pair)[0]
            if type(text) is not str or not PyUnicode_IS_COMPACT_ASCII(text):
                return False
            name = <Part*>self.names.at + self.it.header_count
            name.at = <const uint8_t*>PyUnicode_DATA(text)
            name.size = PyUnicode_GET_LENGTH(text)
            if not take_part(<Part*>self.contents.at + self.it.header_count, (<tuple>pair)[1]):
                return False
            self.bytes_bound += 10 + 4 * name.size + max((<Part*>self.contents.at + self.it.header_count).size, 0)
            self.it.header_count += 1
        return True

    @staticmethod
    def from_collected(Collected given not None, int64_t start=0, int64_t stop=-1):
        """Creates an encoder of a producer's collected records in [start, stop). Nothing may be added to `given`
        afterwards."""
        cdef ColumnEncoder encoder = ColumnEncoder.__new__(ColumnEncoder)
        if stop < 0:
            stop = given.rows
        if not 0 <= start <= stop <= given.rows:
            raise IndexError(f"rows: found {start} to {stop}, expected some of 0 to {given.rows}")
        encoder.held = [given]
        encoder.rows = stop - start
        encoder.bytes_bound = given.bytes
        encoder.it.key.parts = <const Part*>given.keys.at + start
        encoder.it.value.parts = <const Part*>given.values.at + start
        encoder.it.timestamps = <const int64_t*>given.times.at + start
        if given.header_count:
            encoder.it.wide_lists = <const int64_t*>given.lists.at + start
            encoder.it.header_count = given.header_count
            encoder.it.header_key.parts = <const Part*>given.names.at
            encoder.it.header_value.parts = <const Part*>given.contents.at
        else:
            encoder.it.header_key.absent = encoder.it.header_value.absent = True
        return encoder

    @staticmethod
    def from_arrow(batch):
        """Creates an encoder of an object with `__arrow_c_array__`. Its columns are timestamp (int64 or timestamp[ms])
        and, optionally, key and value (binary, string, large or not), headers (list of key and value) and offset
        (int64). A column of another type raises a TypeError."""
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
            raise TypeError(f"found the Arrow format {schema.format.decode()!r}, expected a struct of columns")
        if array.null_count > 0:
            raise TypeError("the struct has null rows, which cannot be records")
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
                raise TypeError(f"column {name!r} is not part of a record")
        if encoder.it.timestamps == NULL and encoder.rows > 0:
            raise TypeError("column 'timestamp' is missing")
        return encoder

    cdef const int64_t* arrow_numbers(self, ArrowSchema* schema, ArrowArray* array, int64_t shift) except? NULL:
        if schema.format != b"l" and not schema.format.startswith(b"tsm:"):
            raise TypeError(f"column {schema.name.decode()!r} is neither int64 nor a timestamp in milliseconds")
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

    def by_partition(self, partitions, StickyPartition sticky not None, available=None, wanted=None):
        """Returns an encoder for the rows of each partition that gets some, as a dict by partition number.

        `partitions` is the topic's number of partitions. `available` are those that rows without a key may go to, by
        default all. `wanted` is a column (int32) of the partitions that rows request, negative for none; a number that
        the topic does not have raises an IndexError. The rows of one partition keep their order. The encoders hold
        references to the rows' objects; they copy nothing.
        """
        cdef int32_t count = counted(partitions), number
        cdef Block plan
        cdef int64_t* starts
        cdef int64_t* order
        cdef int32_t* numbers
        cdef int64_t row, start
        cdef dict found = {}
        if self.it.offsets != NULL:
            raise TypeError("rows with explicit offsets cannot be distributed over partitions")
        memset(&plan, 0, sizeof(Block))
        claim(&self.busy, "ColumnEncoder")
        try:
            if not reserve(&plan, (count + 1 + self.rows) * sizeof(int64_t) + self.rows * sizeof(int32_t)):
                raise MemoryError
            starts = <int64_t*>plan.at
            order = starts + count + 1
            numbers = <int32_t*>(order + self.rows)
            memset(starts, 0, (count + 1) * sizeof(int64_t))
            self.choose(numbers, count, sticky, range(count) if available is None else available, wanted)
            for row in range(self.rows):
                starts[numbers[row] + 1] += 1
            for number in range(count):
                starts[number + 1] += starts[number]
            for row in range(self.rows):
                number = numbers[row]
                order[starts[number]] = row
                starts[number] += 1
            start = 0  # each of `starts` is now the start of the next partition's rows
            for number in range(count):
                if starts[number] > start:
                    found[number] = self.of_rows(order + start, starts[number] - start)
                    start = starts[number]
            return found
        finally:
            kl_leave(&self.busy)
            free(plan.at)

    cdef int choose(self, int32_t* numbers, int32_t count, StickyPartition sticky, available, wanted) except -1:
        """Finds the partition of each row."""
        cdef const uint8_t* at = NULL
        cdef const int32_t* asked = NULL
        cdef int64_t row, size
        cdef bint is_sticky = False
        if wanted is not None:
            wanted = np.ascontiguousarray(wanted)
            if len(wanted) != self.rows:
                raise IndexError(f"found {len(wanted)} partitions, expected {self.rows}, one for each row")
            asked = <const int32_t*><size_t>self.numbers(wanted, np.int32)
        with nogil:
            for row in range(self.rows):
                numbers[row] = -1
                if asked != NULL:
                    numbers[row] = asked[row]
                    KL_ONCE(numbers[row])
                if numbers[row] < 0:
                    size = span(&self.it.key, row, &at)
                    numbers[row] = of_key(at, size, count) if size >= 0 else -1
                    is_sticky = is_sticky or size < 0
                elif numbers[row] >= count:
                    with gil:
                        raise IndexError(f"partition {numbers[row]} does not exist; the topic has {count}")
        if is_sticky:
            for row in range(self.rows):
                if numbers[row] < 0:
                    size = span(&self.it.value, row, &at)
                    numbers[row] = counted_below(sticky.next(max(size, 0), available), count)
        return 0

    cdef ColumnEncoder of_rows(self, const int64_t* order, int64_t count):
        """Creates an encoder of some of the rows. An invalid row stays invalid and is reported when it is written."""
        cdef ColumnEncoder made = ColumnEncoder.__new__(ColumnEncoder)
        cdef Part* keys
        cdef Part* values
        cdef int64_t* times
        cdef int64_t at, row
        cdef bint has_headers = self.it.narrow_lists != NULL or self.it.wide_lists != NULL
        made.held = [self]
        made.rows = count
        if not reserve(&made.pieces, count * (2 * sizeof(Part) + sizeof(int64_t))):
            raise MemoryError
        keys = <Part*>made.pieces.at
        values = keys + count
        times = <int64_t*>(values + count)
        made.it.key.parts = keys
        made.it.value.parts = values
        made.it.timestamps = times
        made.it.header_key.absent = made.it.header_value.absent = True
        if has_headers:
            if not reserve(&made.lists, (count + 1) * sizeof(int64_t)):
                raise MemoryError
            (<int64_t*>made.lists.at)[0] = 0
            made.it.wide_lists = <const int64_t*>made.lists.at
        for at in range(count):
            row = order[at]
            times[at] = self.it.timestamps[row]
            keys[at].size = span(&self.it.key, row, &keys[at].at)
            values[at].size = span(&self.it.value, row, &values[at].at)
            made.bytes_bound += RECORD_OVERHEAD + max(keys[at].size, 0) + max(values[at].size, 0)
            if has_headers:
                self.copy_headers(row, made)
                (<int64_t*>made.lists.at)[at + 1] = made.it.header_count
        made.it.header_key.parts = <const Part*>made.names.at
        made.it.header_value.parts = <const Part*>made.contents.at
        return made

    cdef int copy_headers(self, int64_t row, ColumnEncoder made) except -1:
        cdef int64_t first = 0, last = 0, h = row + self.it.list_shift, total
        cdef Part* name
        cdef Part* part
        if self.it.list_validity == NULL or (self.it.list_validity[h >> 3] >> (h & 7)) & 1:
            if self.it.narrow_lists != NULL:
                first, last = self.it.narrow_lists[h], self.it.narrow_lists[h + 1]
            else:
                first, last = self.it.wide_lists[h], self.it.wide_lists[h + 1]
        KL_ONCE(first)
        KL_ONCE(last)
        if first < 0 or last < first or last > self.it.header_count:
            raise IndexError("a list of headers is outside its column")
        total = made.it.header_count + last - first
        if not reserve(&made.names, total * sizeof(Part)) or not reserve(&made.contents, total * sizeof(Part)):
            raise MemoryError
        for h in range(first, last):
            name = <Part*>made.names.at + made.it.header_count
            part = <Part*>made.contents.at + made.it.header_count
            name.size = span(&self.it.header_key, h, &name.at)
            part.size = span(&self.it.header_value, h, &part.at)
            made.bytes_bound += 10 + max(name.size, 0) + max(part.size, 0)
            made.it.header_count += 1
        return 0

    cdef int run(
        self, int64_t start, int64_t stop, int64_t max_bytes, base_timestamp, base_offset, int64_t* filled,
        int64_t* next_row,
    ) except -1:
        """Encodes into `scratch` after the first `filled[0]` bytes and returns the verdict. The caller has claimed the
        encoder."""
        cdef int verdict
        self.encoded = None  # the facts about it are overwritten
        if max_bytes > INT32_MAX:
            max_bytes = INT32_MAX
        self.it.base_timestamp = self.it.timestamps[start] if base_timestamp is None else base_timestamp
        if self.it.offsets != NULL:
            self.it.base_offset = self.it.offsets[start] if base_offset is None else base_offset
        self.it.max_timestamp = self.it.offset_delta = -1
        self.it.min_timestamp = INT64_MAX
        self.it.has_keys = True
        if self.bytes_bound and not reserve(&self.scratch, filled[0] + min(max_bytes, self.bytes_bound) + 5 + SLACK):
            raise MemoryError
        if self.rows <= FEW_ROWS:
            verdict = encode_rows(&self.it, start, stop, max_bytes, &self.scratch, filled, next_row)
        else:
            with nogil:
                verdict = encode_rows(&self.it, start, stop, max_bytes, &self.scratch, filled, next_row)
        self.count = next_row[0] - start
        return check_memory(verdict)

    cdef int64_t bounded(self, int64_t start, int64_t stop) except -1:
        if start < 0:
            raise IndexError(f"start: found {start}, expected 0 or more")
        return self.rows if stop < 0 or stop > self.rows else stop

    def encode(self, int64_t start=0, int64_t stop=-1, int64_t max_bytes=INT32_MAX, *, base_timestamp=None,
               base_offset=None):
        """Encodes rows from `start` on, of at most `max_bytes` but at least one row -> (payload, next row, base
        timestamp, max timestamp, verdict).

        The base timestamp is the first row's unless given. Explicit offsets count from `base_offset` (the first row's
        unless given). A verdict other than OK says why the row `next row` cannot be written: BAD_TIMESTAMP, BAD_OFFSET,
        BAD_COLUMN, TOO_LONG.
        """
        cdef int64_t next_row = start
        cdef int64_t filled = 0
        cdef int verdict
        stop = self.bounded(start, stop)
        if start >= stop:
            return b"", stop, -1, -1, rec.OK
        claim(&self.busy, "ColumnEncoder")
        try:
            verdict = self.run(start, stop, max_bytes, base_timestamp, base_offset, &filled, &next_row)
            payload = b""
            if verdict == rec.OK:
                payload = PyBytes_FromStringAndSize(<const char*>self.scratch.at, filled)
            self.encoded = payload
            return payload, next_row, self.it.base_timestamp, self.it.max_timestamp, verdict
        finally:
            kl_leave(&self.busy)

    def packed(self, bytes payload, bytes batch not None):
        """Returns the EncodedBatch of `payload`, which must be the last result of `encode`; `batch` is its compressed
        batch with header."""
        claim(&self.busy, "ColumnEncoder")
        try:
            if payload is None or payload is not self.encoded:
                raise ValueError("other rows were encoded since: this payload is not the last result")
            return self.made_of(batch, PyBytes_GET_SIZE(payload), True)
        finally:
            kl_leave(&self.busy)

    cdef EncodedBatch made_of(self, bytes data, int64_t record_bytes, bint is_packed):
        """Wraps `data`, a batch of the rows that were written last; the facts about the records are kept only if its
        header agrees with them."""
        cdef EncodedBatch made = EncodedBatch.__new__(EncodedBatch)
        cdef const uint8_t* head = <const uint8_t*>PyBytes_AS_STRING(data)
        if (
            PyBytes_GET_SIZE(data) < RECORDS
            or ((load16(head + ATTRIBUTES) & CODEC_MASK) != 0) != is_packed
            or <int32_t>load32(head + LAST_OFFSET_DELTA) != self.it.offset_delta
            or <int32_t>load32(head + RECORD_COUNT) != self.count
            or <int64_t>load64(head + BASE_TIMESTAMP) != self.it.base_timestamp
            or <int64_t>load64(head + MAX_TIMESTAMP) != self.it.max_timestamp
        ):
            record_bytes = -1
        made.data = data
        made.min_timestamp = self.it.min_timestamp
        made.max_timestamp = self.it.max_timestamp
        made.record_bytes = record_bytes
        made.has_keys = self.it.has_keys
        return made

    def encode_batch(
        self, int64_t start=0, int64_t stop=-1, int64_t max_bytes=INT32_MAX, *, int64_t base_offset=0,
        int attributes=0, log_append_time=None, int64_t producer_id=-1, int producer_epoch=-1, int base_sequence=-1,
        int leader_epoch=-1,
    ):
        """Encodes an uncompressed batch with its header and CRC, of at most `max_bytes` but at least one row ->
        (EncodedBatch or None, next row, verdict).

        More than eight parameters: they are the header's fields, by name. `base_offset` is for consecutive offsets;
        explicit offsets determine it themselves. `log_append_time` replaces the max timestamp; `attributes` are written
        unchanged. Verdicts as in `encode`.
        """
        cdef int64_t next_row = start
        cdef int64_t filled = RECORDS
        cdef int verdict
        stop = self.bounded(start, stop)
        if start >= stop:
            return None, stop, rec.OK
        claim(&self.busy, "ColumnEncoder")
        try:
            verdict = self.run(start, stop, max_bytes, None, None, &filled, &next_row)
            if verdict != rec.OK:
                return None, next_row, verdict
            if self.it.offsets != NULL:
                base_offset = self.it.base_offset
            write_head(
                self.scratch.at, &self.it, filled, next_row - start, base_offset, attributes,
                self.it.max_timestamp if log_append_time is None else <int64_t>log_append_time,
                producer_id, producer_epoch, base_sequence, leader_epoch,
            )
            data = PyBytes_FromStringAndSize(<const char*>self.scratch.at, filled)
            return self.made_of(data, filled - RECORDS, False), next_row, verdict
        finally:
            kl_leave(&self.busy)
