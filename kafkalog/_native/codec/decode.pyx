"""Records to columns: one call decodes the batches of a buffer.

`ColumnBuilder` collects decoded records; `finish` returns them as `_native.codec.arrow.RecordColumns`. Bad bytes give a
verdict of `record.pxd`, the position and the numbers of the error text; this module raises no domain error. Loops run
without the GIL. They allocate in proportion to the bytes given, never by a count that a header claims.

The file is long because the growing columns, the loop that fills them and the builder that owns them share one memory
layout, and the compiler inlines only within a module.
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

import numpy as np

from kafkalog._native.codec cimport record as rec
from kafkalog._native.codec.arrow cimport Column, Memory, RecordColumns, taken_bits, taken_memory
from kafkalog._native.codec.batches cimport Row
from kafkalog._native.codec.cursor cimport Cursor
from kafkalog._native.codec.frames cimport lz4_bytes_max, zstd_bytes_max
from kafkalog._native.codec.guard cimport claim, kl_leave
from kafkalog._native.codec.keys cimport KeyFilter, Keys, is_wanted_key
from kafkalog._native.codec.layout cimport (
    ARRAY_BYTES_MAX,
    CODEC_MASK,
    CONTROL_FLAG,
    KL_LOADED,
    LZ4_CODEC,
    RECORDS,
    TIMESTAMP_TYPE_FLAG,
    ZSTD_CODEC,
)
from kafkalog._native.codec.memory cimport (
    SLACK,
    Block,
    check_memory,
    clear_bit,
    copy_bytes,
    reserve,
    reserve_bits,
    set_bits_from,
)
from kafkalog._native.codec.octets cimport open_octets
from kafkalog._native.codec.spares cimport give_back
from kafkalog._native.codec.octets import bytes_of
from kafkalog._native.codec.record cimport Batch, HeaderView, RecordView
from kafkalog._native.codec.utf8 cimport is_utf8
from kafkalog._native.codec.batches import BATCH_DTYPE as _BATCH_DTYPE

NEEDS_PAYLOAD, FULL = rec.NEEDS_PAYLOAD, rec.FULL

cdef enum:
    # The smallest record: a length and six bytes.
    RECORD_BYTES_MIN = 7
    # Up to this many bytes, the size that a frame declares is trusted at once.
    ZSTD_STEP_BYTES = 1 << 20


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
    # Headers: a list of (key, value) for each record.
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
    int64_t timestamp_min
    int64_t timestamp_max
    const Keys* wanted_keys  # NULL: all keys
    int64_t rows_max
    int64_t bytes_max


cdef inline int64_t filled_bytes(const Sink* sink) noexcept nogil:
    return sink.key.filled + sink.value.filled + sink.header_key.filled + sink.header_value.filled


cdef inline bint is_wanted(const Sink* sink, const Row* row) noexcept nogil:
    """Returns whether a batch may have records for the sink, by its header alone.

    If the log set the timestamps, the largest one is every record's. Batches older than magic 2 are not tested.
    """
    if row.last_offset < sink.offset_min:
        return False
    if row.magic < 2:
        return True
    if row.base_offset > sink.offset_max or row.max_timestamp < sink.timestamp_min:
        return False
    return not (row.attributes & TIMESTAMP_TYPE_FLAG and row.max_timestamp > sink.timestamp_max)


cdef inline void put_binary(
    Binary* column, int64_t row, const uint8_t* at, int32_t size, const uint8_t* end
) noexcept nogil:
    """Appends a value. The caller has reserved an offset, a bit, and the bytes with SLACK after them."""
    if at == NULL:
        clear_bit(column.validity.at, row)
        column.nulls += 1
    else:
        copy_bytes(column.data.at + column.filled, at, size, end)
        column.filled += size
    (<int32_t*>column.offsets.at)[row + 1] = <int32_t>column.filled


cdef bint reserve_rows(Sink* sink, int64_t rows, int64_t data_bytes) noexcept nogil:
    """Reserves room for `rows` more rows whose parts have at most `data_bytes` bytes in all."""
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
    """Returns False if memory runs out. next_record has checked these headers before."""
    cdef Cursor cursor
    cdef HeaderView header
    cdef int32_t _i
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
            if rec.next_header(&cursor, rec.BUFFER, False, view, &header) != rec.OK:
                break
            at = sink.header_key.filled
            put_binary(&sink.header_key, sink.headers, header.key, header.key_size, view.end)
            # Checks our copy: the original may change meanwhile.
            if not sink.bad_text and not is_utf8(sink.header_key.data.at + at, header.key_size):
                sink.bad_text = True
            put_binary(&sink.header_value, sink.headers, header.value, header.value_size, view.end)
            sink.headers += 1
    elif sink.null_empty_headers:
        clear_bit(sink.list_validity.at, sink.rows)
        sink.list_nulls += 1
    (<int32_t*>sink.lists.at)[sink.rows + 1] = <int32_t>sink.headers
    return True


cdef int decode_payload(
    Sink* sink,
    const uint8_t* start,
    int64_t size,
    const Batch* batch,
    int reader,
    int64_t max_body,
    RecordView* failed,
    int64_t* position,
) noexcept nogil:
    """Adds the records of one payload, all or none, and returns the verdict."""
    # Local, not the caller's: the compiler can keep it in registers if no pointer leads to it.
    cdef RecordView view
    cdef Cursor cursor
    cdef const uint8_t* end = start + size
    cdef int64_t _i, offset, timestamp, row
    cdef int64_t rows = min(batch.count, size // RECORD_BYTES_MIN)
    cdef int verdict = rec.OK
    cdef Mark mark
    cdef Batch base = batch[0]
    cdef int64_t* offsets
    cdef int64_t* timestamps
    cdef int32_t type_id = 1 if batch.log_append else 0
    if batch.count < 0:
        failed.expected, failed.found = 0, batch.count
        return rec.NEGATIVE_COUNT
    if batch.count == 0:
        return rec.OK
    if sink.key.filled + size > INT32_MAX or sink.value.filled + size > INT32_MAX:
        return rec.FULL
    if sink.header_key.filled + size > INT32_MAX or sink.header_value.filled + size > INT32_MAX:
        return rec.FULL
    if sink.rows + rows > INT32_MAX - 1 or sink.headers + size // 2 > INT32_MAX - 1:
        return rec.FULL
    if not reserve_rows(sink, rows, size):
        return rec.NO_MEMORY
    take_mark(sink, &mark)
    offsets = <int64_t*>sink.offsets.at
    timestamps = <int64_t*>sink.timestamps.at
    cursor.at = start
    cursor.end = end
    for _i in range(batch.count):
        verdict = rec.next_record(&cursor, reader, max_body, False, &view)
        if verdict != rec.OK:
            failed.expected, failed.found = view.expected, view.found
            position[0] = view.start - start
            break
        offset = rec.offset_of(&base, &view)
        if offset < sink.offset_min or offset > sink.offset_max:
            continue
        timestamp = rec.timestamp_of(&base, &view)
        if timestamp < sink.timestamp_min or timestamp > sink.timestamp_max:
            continue
        if sink.wanted_keys != NULL and not is_wanted_key(sink.wanted_keys, view.key, view.key_size):
            continue
        row = sink.rows
        offsets[row] = offset
        timestamps[row] = timestamp
        if sink.with_types:
            (<int32_t*>sink.types.at)[row] = type_id
        if sink.with_keys:
            put_binary(&sink.key, row, view.key, view.key_size, end)
        if sink.with_values:
            put_binary(&sink.value, row, view.value, view.value_size, end)
        if sink.with_headers and not put_headers(sink, &view):
            verdict = rec.NO_MEMORY
            break
        sink.rows = row + 1
    if verdict == rec.OK and cursor.at != end:
        verdict = rec.BYTES_LEFT
        failed.expected, failed.found = 0, end - cursor.at
        position[0] = cursor.at - start
    if verdict != rec.OK:
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
    # The row that failed may have cleared its bits, too.
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
    # Another thread may write to the table: the row that is checked is the one that is used.
    cdef Row row = rows[i]
    KL_LOADED()
    return row


cdef inline Batch batch_of(const Row* row) noexcept nogil:
    return Batch(
        row.record_count, row.base_offset, row.base_timestamp, (row.attributes & TIMESTAMP_TYPE_FLAG) != 0,
        row.max_timestamp,
    )


# More than eight parameters: without the GIL the loop cannot take them from an object, and it resumes where it stopped.
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
    cdef Batch batch
    cdef int64_t at, i
    cdef int64_t rows_ahead = 0
    cdef int64_t bytes_ahead = 0
    cdef int verdict
    # Reserve room for all of it at once, as far as `data` can hold it.
    for i in range(next_row[0], row_count):
        row = row_at(rows, i)
        if row.magic < 2 or row.attributes & CODEC_MASK or row.size < RECORDS or row.record_count < 0:
            break
        if bytes_ahead + row.size > size or sink.key.filled + sink.value.filled + bytes_ahead > INT32_MAX // 2:
            break
        bytes_ahead += row.size - RECORDS
        rows_ahead += min(<int64_t>row.record_count, row.size // RECORD_BYTES_MIN)
    if not reserve_rows(sink, rows_ahead, bytes_ahead):
        return rec.NO_MEMORY
    while next_row[0] < row_count:
        row = row_at(rows, next_row[0])
        at = row.position - base_position
        if at < 0 or at > size or row.size < 0 or row.size > size - at:
            return rec.BAD_BOUNDS
        if (skip != NULL and skip[next_row[0]]) or (
            skip_control and row.magic >= 2 and row.attributes & CONTROL_FLAG
        ) or not is_wanted(sink, &row):
            next_row[0] += 1
            continue
        if sink.rows and (sink.rows >= sink.rows_max or filled_bytes(sink) >= sink.bytes_max):
            return rec.FULL
        if row.magic < 2 or row.attributes & CODEC_MASK:
            return rec.NEEDS_PAYLOAD
        if row.size < RECORDS:
            return rec.BAD_BOUNDS
        batch = batch_of(&row)
        verdict = decode_payload(
            sink, data + at + RECORDS, row.size - RECORDS, &batch, rec.BUFFER, INT64_MAX, view, position
        )
        if verdict != rec.OK:
            position[0] += RECORDS
            return verdict
        next_row[0] += 1
    return rec.OK


cdef dict KINDS = {"CreateTime": 0, "LogAppendTime": 1}


cdef void free_binary(Binary* column) noexcept nogil:
    free(column.offsets.at)
    give_back(column.data.at, column.data.capacity)
    free(column.validity.at)


@cython.auto_pickle(False)
cdef class ColumnBuilder:
    """Collects records as columns until `finish`.

    - keys, values, headers, timestamp_types: the columns to collect in addition to offset and timestamp.
    - null_empty_headers: a record without headers gets a null instead of an empty list.
    - offset_min, offset_max, timestamp_min, timestamp_max (ms): the first and the last value to collect.
    - wanted_keys: a filter; only records with the keys that it accepts are collected.
    - rows_max, bytes_max: no further batch of a table is added after this many rows, or bytes of keys, values and
      headers.

    A column has at most 2^31-1 bytes. At a limit the verdict is FULL, and `finish` makes room. One thread at a time: a
    second one gets a RuntimeError.
    """
    cdef Sink sink
    cdef KeyFilter wanted_keys
    cdef int busy

    # More than eight parameters: the columns and the limits, each by its name.
    def __init__(
        self, bint keys=True, bint values=True, bint headers=True, *, bint timestamp_types=False,
        bint null_empty_headers=False, offset_min=None, offset_max=None, timestamp_min=None, timestamp_max=None,
        KeyFilter wanted_keys=None, rows_max=None, bytes_max=None,
    ):
        self.sink.with_keys = keys
        self.sink.with_values = values
        self.sink.with_headers = headers
        self.sink.with_types = timestamp_types
        self.sink.null_empty_headers = null_empty_headers
        self.sink.offset_min = INT64_MIN if offset_min is None else offset_min
        self.sink.offset_max = INT64_MAX if offset_max is None else offset_max
        self.sink.timestamp_min = INT64_MIN if timestamp_min is None else timestamp_min
        self.sink.timestamp_max = INT64_MAX if timestamp_max is None else timestamp_max
        self.wanted_keys = wanted_keys
        self.sink.wanted_keys = NULL if wanted_keys is None else &wanted_keys.keys
        self.sink.rows_max = INT64_MAX if rows_max is None else rows_max
        self.sink.bytes_max = INT64_MAX if bytes_max is None else bytes_max

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
        return filled_bytes(&self.sink)

    def append_payload(
        self, payload, int64_t count, int64_t base_offset, int64_t base_timestamp, log_append_time=None, *,
        bint streaming=True, int64_t max_body=ARRAY_BYTES_MAX,
    ):
        """Adds the records of one magic-2 batch, all or none -> (verdict, position, expected, found).

        `payload` is the part after the header, decompressed. `log_append_time` replaces the timestamps. `streaming`
        says that the payload was compressed (Kafka's rules differ a little).
        """
        cdef Py_buffer view
        cdef RecordView record
        cdef int64_t position = 0
        cdef int verdict
        cdef bint log_append = log_append_time is not None
        cdef Batch batch = Batch(
            count, base_offset, base_timestamp, log_append, log_append_time if log_append else 0
        )
        cdef uint8_t nothing = 0
        memset(&record, 0, sizeof(RecordView))
        open_octets(payload, &view)
        try:
            claim(&self.busy, "ColumnBuilder")
            try:
                with nogil:
                    verdict = decode_payload(
                        &self.sink, <const uint8_t*>view.buf if view.len else &nothing, view.len, &batch,
                        rec.STREAM if streaming else rec.BUFFER, max_body, &record, &position,
                    )
            finally:
                kl_leave(&self.busy)
        finally:
            PyBuffer_Release(&view)
        return check_memory(verdict), position, record.expected, record.found

    # More than eight parameters: a buffer, its table, and the selection, by name.
    def append_table(
        self, data, table, int64_t start_row=0, *, int64_t base_position=0, skip=None, bint skip_control=False,
        decoders=None, int64_t max_body=ARRAY_BYTES_MAX, int64_t max_payload=ARRAY_BYTES_MAX,
    ):
        """Adds the records of the batches that a scan's `table` found in `data`, from `start_row` on -> (next row,
        verdict, position in the batch, expected, found).

        `base_position` is what the scan added to positions. `skip` has one byte for each row; batches where it is not 0
        are skipped. `skip_control` skips control batches. The call stops before a batch that is compressed or older
        than magic 2 (NEEDS_PAYLOAD: pass it to append_payload or append_records). It also stops before a batch that no
        longer fits (FULL), one whose row is outside `data` (BAD_BOUNDS), and one with a bad record. `decoders` are the
        libraries' functions for whole frames, (lz4(frame), zstd(frame, bytes at most)): with them the call also reads
        the frames that Kafka's clients write, and stops only before an unusual or bad frame.
        """
        cdef Py_buffer view, rows, flags
        cdef RecordView record
        cdef int64_t position = 0
        cdef int64_t next_row = start_row
        cdef int verdict
        cdef const uint8_t* flag = NULL
        if start_row < 0:
            raise IndexError(f"start_row: found {start_row}, expected 0 or more")
        if table.dtype != _BATCH_DTYPE:
            raise TypeError("table: found another dtype, expected BATCH_DTYPE")
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
                        raise IndexError(f"skip: found {flags.len} bytes, expected one for each row")
                claim(&self.busy, "ColumnBuilder")
                try:
                    while True:
                        with nogil:
                            verdict = decode_table(
                                &self.sink, <const uint8_t*>view.buf, view.len, <const Row*>rows.buf,
                                rows.len // <Py_ssize_t>sizeof(Row), base_position, flag, skip_control, &next_row,
                                &record, &position,
                            )
                        if verdict != rec.NEEDS_PAYLOAD or decoders is None:
                            break
                        verdict = self.append_frame(
                            data, &view, row_at(<const Row*>rows.buf, next_row), base_position, decoders, max_body,
                            max_payload,
                        )
                        if verdict != rec.OK:
                            break
                        next_row += 1
                finally:
                    kl_leave(&self.busy)
            finally:
                PyBuffer_Release(&flags)
                PyBuffer_Release(&rows)
        finally:
            PyBuffer_Release(&view)
        return next_row, check_memory(verdict), position, record.expected, record.found

    cdef int append_frame(
        self, data, Py_buffer* view, Row row, int64_t base_position, tuple decoders, int64_t max_body,
        int64_t max_payload,
    ) except -1:
        """Adds the records of one compressed batch whose payload is one usual frame. Returns NEEDS_PAYLOAD for all
        other batches and for any error: the caller's slower path finds the cause."""
        cdef int64_t at = row.position - base_position
        cdef int64_t size = <int64_t>row.size - RECORDS
        cdef int codec = row.attributes & CODEC_MASK
        cdef int64_t bytes_max, position = 0
        cdef const uint8_t* frame
        cdef Py_buffer payload_view
        cdef RecordView record
        cdef Batch batch = batch_of(&row)
        cdef int verdict
        if row.magic < 2 or size <= 0 or row.record_count <= 0:
            return rec.NEEDS_PAYLOAD
        if at < 0 or at > view.len or row.size > view.len - at:  # the row has changed since decode_table checked it
            return rec.BAD_BOUNDS
        at += RECORDS
        frame_object = None
        frame = <const uint8_t*>view.buf + at
        if type(data) is not bytes and not (type(data) is memoryview and type(data.obj) is bytes):
            # The libraries' decoders expect a frame that does not change.
            frame_object = PyBytes_FromStringAndSize(<const char*>frame, size)
            frame = <const uint8_t*>PyBytes_AS_STRING(frame_object)
        if codec == LZ4_CODEC:
            bytes_max = lz4_bytes_max(frame, size)
        elif codec == ZSTD_CODEC:
            bytes_max = zstd_bytes_max(frame, size)
            if bytes_max > ZSTD_STEP_BYTES and bytes_max > 16 * size:
                return rec.NEEDS_PAYLOAD  # such a size is trusted step by step, not at once
        else:
            return rec.NEEDS_PAYLOAD
        if bytes_max < 0 or bytes_max > max_payload:
            return rec.NEEDS_PAYLOAD
        if frame_object is None:
            frame_object = bytes_of(data)[at:at + size]
        try:
            payload = decoders[0](frame_object) if codec == LZ4_CODEC else decoders[1](frame_object, max(bytes_max, 1))
        except Exception:
            return rec.NEEDS_PAYLOAD
        frame_object = None  # a copy, which is freed before the records take memory
        memset(&record, 0, sizeof(RecordView))
        open_octets(payload, &payload_view)
        with nogil:
            verdict = decode_payload(
                &self.sink, <const uint8_t*>payload_view.buf, payload_view.len, &batch, rec.STREAM, max_body, &record,
                &position,
            )
        PyBuffer_Release(&payload_view)
        if verdict == rec.OK or verdict == rec.FULL or verdict == rec.NO_MEMORY:
            return verdict
        return rec.NEEDS_PAYLOAD

    def append_records(self, list records):
        """Adds records as Python objects (decoded from magic 0 and 1); OK, or FULL if none was added."""
        cdef int64_t total = 0
        cdef Sink* sink = &self.sink
        cdef bytes key, value, name
        cdef tuple taken
        cdef list rows = []
        # Attributes are read once: an object may return another value next time, and the list may grow.
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
            if self.filled() + total > INT32_MAX or sink.rows + len(rows) > INT32_MAX - 1:
                return rec.FULL
            if not reserve_rows(sink, len(rows), total):
                raise MemoryError
            for taken in rows:
                if (
                    sink.offset_min <= <int64_t>taken[0] <= sink.offset_max
                    and sink.timestamp_min <= <int64_t>taken[1] <= sink.timestamp_max
                    and (self.wanted_keys is None or taken[3] in self.wanted_keys)
                ):
                    self.put_record(taken[0], taken[1], taken[2], taken[3], taken[4], taken[5])
            return rec.OK
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
        """Returns the collected records as RecordColumns; the builder is empty again."""
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
                 taken_memory(&sink.lists, 4 * (sink.rows + 1))],
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
        # The start passed as the end: an exact copy, because a Python object has no slack.
        put_binary(
            column, row, <const uint8_t*>PyBytes_AS_STRING(part), <int32_t>len(part),
            <const uint8_t*>PyBytes_AS_STRING(part),
        )
    return 0


# --- results --------------------------------------------------------------------------------------

cdef object fixed_column(str name, str format, object dtype, Block* block, int64_t rows, int64_t width):
    return Column(name, format, rows, 0, [None, taken_memory(block, width * rows)], [], False)


cdef object binary_column(str name, str format, Binary* column, int64_t rows, bint nullable):
    cdef int64_t filled = column.filled
    cdef int64_t nulls = column.nulls
    (<int32_t*>column.offsets.at)[0] = 0
    column.filled = column.nulls = 0
    return Column(
        name, format, rows, nulls,
        [taken_bits(&column.validity, rows, nulls), taken_memory(&column.offsets, 4 * (rows + 1)),
         taken_memory(&column.data, filled)],
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
    """Replaces header keys that are not UTF-8 by what Java's decoder makes of them."""
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
