"""Compaction's two loops over usual batches: collecting the keys, and deciding which records stay (Cleaner, 4.4.0).

`add_keys` puts the keys of a slice of a log into a SkimpyOffsetMap. `Survivors` looks up each record of a slice and
gives the bytes that stay. A batch that loses no record is unchanged. Other batches are rebuilt around the records that
stay, byte for byte as by Kafka's MemoryRecords.filterTo. A slice is a buffer and rows of the table that `batches.scan`
created of it.

A usual batch has magic 2, is not a control batch, belongs to no transaction, is well formed, and is not kept because of
its producer or the high watermark. If its records are compressed, the caller's `inflate(codec, body)` returns them, or
None. At any other batch both loops stop and return its row. `kafkalog.engine.cleaner` then follows the batch's
transaction and vouches for it, or handles it by the general path, which knows every rule, and calls again for the
batches after it. So this module makes no decision that the general path would make differently, and a test runs both.

Look-ups are done in bulk, over many batches at once: first all records are walked, then all keys are looked up, then
each batch is decided. A large batch is handled in parts, and memory is that of one part and of what stays. A length or
position that is read again from the buffer is checked again.
"""

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kafkalog._native.codec.batches cimport Row
from kafkalog._native.codec.crc32c cimport crc32c_update
from kafkalog._native.codec.cursor cimport Cursor
from kafkalog._native.codec.guard cimport claim, kl_enter, kl_leave
from kafkalog._native.codec.layout cimport (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC,
    DELETE_HORIZON_FLAG,
    LOG_OVERHEAD,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    RECORDS,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    load8,
    store16,
    store32,
    store64,
)
from kafkalog._native.codec.memory cimport Block, check_memory, reserve
from kafkalog._native.codec.octets cimport open_octets
from kafkalog._native.codec.offset_map cimport SkimpyOffsetMap, TOGETHER
from kafkalog._native.codec.record cimport (
    BUFFER,
    NO_MEMORY,
    OK,
    STREAM,
    Batch,
    RecordView,
    next_record,
    offset_of,
    timestamp_of,
)
from kafkalog._native.codec.varint cimport size_of_uvarint64, write_uvarint64, zigzag32, zigzag64

from kafkalog._native.codec.batches import BATCH_DTYPE as _BATCH_DTYPE

cdef enum:
    # Records that are walked before they are looked up; a batch with more is handled in parts.
    AT_ONCE = 8192
    KNOWN_FLAGS = 0x7F
    NOT_USUAL = 200
    VERBATIM = 201
    NOTHING = 202
    REBUILT = 203

ctypedef const uint8_t* Bytes

cdef struct Item:
    # A record of the slice: [start, end), its key (NULL for none), and the inputs of the decision.
    const uint8_t* start
    const uint8_t* end
    const uint8_t* key
    int64_t offset
    int64_t timestamp
    int64_t timestamp_delta
    int64_t found
    int32_t key_size
    int32_t body_size
    bint null_value
    bint plain
    bint kept


cdef struct Findings:
    # The result for the records of a batch that were examined so far. For the kept ones: the first timestamp, the
    # largest one and the last offset; whether a builder would write the same bytes; the bytes written. Also the delete
    # horizon that the batch gets, or has.
    int64_t count
    int64_t kept
    int64_t invalid
    int64_t tombstones
    int64_t first_timestamp
    int64_t max_timestamp
    int64_t last_offset
    int64_t copied_offset
    int64_t written
    int64_t horizon
    bint has_horizon
    bint has_tombstone
    bint copyable


cdef inline void begin(Findings* found) noexcept nogil:
    found.count = found.kept = found.invalid = found.tombstones = found.written = 0
    found.first_timestamp = found.max_timestamp = found.last_offset = found.copied_offset = found.horizon = -1
    found.has_horizon = found.has_tombstone = False
    found.copyable = True


@cython.auto_pickle(False)
cdef class _Slice:
    """A buffer, the table of its batches, and optionally the decompressed records of one of them; `vouched`: the caller
    has checked its transaction."""

    cdef Py_buffer data
    cdef Py_buffer table
    cdef Py_buffer payload
    cdef bint has_data
    cdef bint has_table
    cdef bint has_payload
    cdef bint vouched
    cdef int64_t base_position
    cdef int64_t rows

    def __cinit__(self, data, table, int64_t base_position, payload, bint vouched):
        if table.dtype != _BATCH_DTYPE:
            raise TypeError("table: found another dtype, expected BATCH_DTYPE")
        open_octets(data, &self.data)
        self.has_data = True
        open_octets(table, &self.table)
        self.has_table = True
        if payload is not None:
            open_octets(payload, &self.payload)
            self.has_payload = True
        self.base_position = base_position
        self.vouched = vouched
        self.rows = self.table.len // <Py_ssize_t>sizeof(Row)

    def __dealloc__(self):
        if self.has_data:
            PyBuffer_Release(&self.data)
        if self.has_table:
            PyBuffer_Release(&self.table)
        self.drop_payload()

    cdef void drop_payload(self) noexcept:
        if self.has_payload:
            self.has_payload = False
            PyBuffer_Release(&self.payload)

    cdef bint inflated(self, int64_t at, view, inflate) except -1:
        """Decompresses row `at` into the payload and returns True, if it is compressed and belongs to no transaction.
        `view`: `data`."""
        cdef Row row
        cdef int64_t place
        if at >= self.rows:
            return False
        row = (<const Row*>self.table.buf)[at]
        place = row.position - self.base_position
        if not row.attributes & CODEC_MASK or row.attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG) or row.magic != 2:
            return False
        if row.verdict or row.record_count <= 0 or place < 0 or row.size < RECORDS or row.size > self.data.len - place:
            return False
        payload = inflate(row.attributes & CODEC_MASK, view[place + RECORDS:place + row.size])
        if payload is None:
            return False
        self.drop_payload()
        open_octets(payload, &self.payload)
        self.has_payload = True
        return True

    cdef bint usual(self, int64_t at, Row* row, Batch* batch, Cursor* cursor, int* reader) noexcept nogil:
        """Returns whether row `at` is a batch that is decided here; if so, sets where its records are, and the
        reader."""
        cdef int64_t place
        row[0] = (<const Row*>self.table.buf)[at]
        if row.magic != 2 or row.verdict or row.attributes & ~KNOWN_FLAGS or row.record_count < 0:
            return False
        if row.attributes & CONTROL_FLAG or (row.attributes & TRANSACTIONAL_FLAG and not self.vouched):
            return False
        if row.base_offset < 0 or row.last_offset < 0:
            return False
        place = row.position - self.base_position
        if place < 0 or row.size < RECORDS or row.size > self.data.len - place:
            return False
        if self.has_payload:
            cursor.at = <const uint8_t*>self.payload.buf
            cursor.end = cursor.at + self.payload.len
            reader[0] = STREAM
        elif row.attributes & CODEC_MASK:
            return False
        else:
            cursor.at = <const uint8_t*>self.data.buf + place + RECORDS
            cursor.end = <const uint8_t*>self.data.buf + place + row.size
            reader[0] = BUFFER
        batch.count = row.record_count
        batch.base_offset = row.base_offset
        batch.base_timestamp = row.base_timestamp
        batch.log_append = (row.attributes & TIMESTAMP_TYPE_FLAG) != 0
        batch.append_time = row.max_timestamp
        return True


# --- the map -------------------------------------------------------------------------------------

cdef struct Pending:
    # Keys that wait to be put, in order, and the counters at the time when each was read.
    Bytes[TOGETHER] keys
    uint32_t[TOGETHER] sizes
    int64_t[TOGETHER] offsets
    int64_t[TOGETHER] read
    int64_t[TOGETHER] completed
    int64_t count
    # The number of records read, and the end of the last whole batch since the last key; -1 for none.
    int64_t read_so_far
    int64_t completed_since


cdef bint put_pending(SkimpyOffsetMap map, Pending* pending, int64_t limit) noexcept nogil:
    """Returns whether all keys were put; otherwise the map is full, and `read_so_far` is what was read before that."""
    cdef int64_t put = 0
    if pending.count:
        if pending.completed[0] >= 0 and map.size >= limit:
            map.latest_offset = pending.completed[0]
        put = map.put_some(pending.keys, pending.sizes, pending.offsets, pending.count, limit)
        if put < pending.count:
            pending.read_so_far = pending.read[put]
            if pending.completed[put] >= 0:
                map.latest_offset = pending.completed[put]
            return False
        pending.count = 0
    if pending.completed_since >= 0:
        map.latest_offset = pending.completed_since
    pending.completed_since = -1
    return True


cdef bint is_whole(const Batch* batch, Cursor cursor, int reader) noexcept nogil:
    """Returns whether a batch has the records that it declares, and nothing else."""
    cdef RecordView record
    cdef int64_t _i
    for _i in range(batch.count):
        if next_record(&cursor, reader, cursor.end - cursor.at, False, &record) != OK:
            return False
    return cursor.at == cursor.end


cdef int64_t add_rows(
    SkimpyOffsetMap map, _Slice slice, int64_t first, int64_t start_offset, int64_t limit, Pending* pending, bint* full
) noexcept nogil:
    cdef Row row
    cdef Batch batch
    cdef Cursor cursor
    cdef RecordView record
    cdef int64_t at = first, end = slice.rows, i, before, n
    cdef int reader
    if (slice.vouched or slice.has_payload) and end > first + 1:
        end = first + 1
    while at < end:
        if not slice.usual(at, &row, &batch, &cursor, &reader):
            break
        if map.size + pending.count + batch.count >= limit and not is_whole(&batch, cursor, reader):
            # The general path decides that the map is full before it finds damage: it must find none of this batch's
            # keys in the map.
            full[0] = not put_pending(map, pending, limit)
            return at
        before = pending.read_so_far
        i = 0
        while i < batch.count:
            if next_record(&cursor, reader, cursor.end - cursor.at, False, &record) != OK:
                break
            if record.key != NULL and offset_of(&batch, &record) >= start_offset:
                if pending.count == TOGETHER and not put_pending(map, pending, limit):
                    full[0] = True
                    return at
                n = pending.count
                pending.keys[n] = record.key
                pending.sizes[n] = <uint32_t>record.key_size
                pending.offsets[n] = offset_of(&batch, &record)
                pending.read[n] = pending.read_so_far
                pending.completed[n] = pending.completed_since
                pending.completed_since = -1
                pending.count = n + 1
            pending.read_so_far += 1
            i += 1
        if i < batch.count or cursor.at != cursor.end:
            # Damage: the general path reads the batch again and reports where.
            if not put_pending(map, pending, limit):
                full[0] = True
                return at
            pending.read_so_far = before
            return at
        if row.last_offset >= start_offset:
            pending.completed_since = row.last_offset
        at += 1
    full[0] = not put_pending(map, pending, limit)
    return at


def add_keys(
    SkimpyOffsetMap map not None, data, table, int64_t first=0, *, int64_t base_position=0, int64_t start_offset=0,
    int64_t limit, payload=None, bint vouched=False, inflate=None
):
    """Puts the keys at and above `start_offset` of the batches from row `first` on -> (row, full, records read).

    The row is the first one that was not added: the table's end, or a batch that is not usual. If the map had `limit`
    keys and met another one, it is the batch with that key, or one read together with it. `map.latest_offset` is
    Kafka's: the last key that was put, or the end of a whole batch. `vouched`: only row `first` is read, even if it
    belongs to a transaction, and `payload` has its records decompressed, if they are compressed. `row.position` -
    `base_position` is a batch's position in `data`. Runs without the GIL, except for `inflate`.

    More than eight parameters: three for a slice, two for a vouched batch, one for compressed ones.
    """
    cdef _Slice slice = _Slice(data, table, base_position, payload, vouched or payload is not None)
    cdef Pending pending
    cdef bint full = False
    cdef int64_t at, before
    if not 0 <= first <= slice.rows:
        raise IndexError(f"row: found {first}, expected 0 to {slice.rows}")
    pending.count = pending.read_so_far = 0
    pending.completed_since = -1
    view = None if inflate is None else memoryview(data).cast("B")
    at = first
    while True:
        before = at
        claim(&map.busy, "SkimpyOffsetMap")
        try:
            with nogil:
                at = add_rows(map, slice, at, start_offset, min(limit, map.slots), &pending, &full)
        finally:
            kl_leave(&map.busy)
        if full or view is None:
            break
        if slice.has_payload and at > before:
            slice.drop_payload()
        elif slice.has_payload or not slice.inflated(at, view, inflate):
            break
    return at, bool(full), pending.read_so_far


# --- what stays ----------------------------------------------------------------------------------

@cython.auto_pickle(False)
cdef class Survivors:
    """Reads batches and collects the bytes of what stays.

    `map` is complete.  `now_ms`: a tombstone is removed when its batch's delete horizon is not above it; a batch
    without a horizon gets `now_ms` + `delete_retention_ms`.  `keep_ends`: last offsets of batches that the general path
    decides (each producer's last one, the one below the high watermark).  The counters are those of Kafka's
    FilterResult: bytes and messages read, messages and bytes retained, and messages without a key; and `tombstones`,
    those whose time has passed.
    """

    cdef SkimpyOffsetMap map
    cdef int64_t now_ms
    cdef int64_t delete_retention_ms
    cdef object ends
    cdef Py_buffer ends_view
    cdef bint has_ends
    cdef Block items
    cdef Block rows
    cdef Block keys
    cdef Block sizes
    cdef Block offsets
    cdef Block out
    cdef int64_t filled
    cdef int busy
    cdef readonly int64_t bytes_read
    cdef readonly int64_t messages_read
    cdef readonly int64_t messages_retained
    cdef readonly int64_t bytes_retained
    cdef readonly int64_t invalid_messages
    cdef readonly int64_t tombstones
    cdef readonly int64_t max_offset

    def __cinit__(self, SkimpyOffsetMap map not None, *, int64_t now_ms, int64_t delete_retention_ms, keep_ends=()):
        self.map = map
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.ends = np.sort(np.asarray(keep_ends, np.int64))
        open_octets(self.ends, &self.ends_view)
        self.has_ends = True
        self.max_offset = -1

    def __dealloc__(self):
        if self.has_ends:
            PyBuffer_Release(&self.ends_view)
        free(self.items.at)
        free(self.rows.at)
        free(self.keys.at)
        free(self.sizes.at)
        free(self.offsets.at)
        free(self.out.at)

    def take(
        self, data, table, int64_t first=0, *, int64_t base_position=0, int64_t room=INT64_MAX, inflate=None,
        deflate=None
    ):
        """Processes the batches from row `first` on. Returns the row of the first one that is not usual, or the table's
        end, or the row after the batch with which `size` exceeded `room`.

        Runs without the GIL, except for `inflate` and `deflate(codec, records)`, which compresses the records that stay
        of a compressed batch."""
        cdef _Slice slice = _Slice(data, table, base_position, None, False)
        cdef int64_t at = first
        cdef int verdict
        if not 0 <= first <= slice.rows:
            raise IndexError(f"row: found {first}, expected 0 to {slice.rows}")
        view = None if inflate is None else memoryview(data).cast("B")
        while True:
            self.enter()
            try:
                with nogil:
                    verdict = self.take_rows(slice, &at, room)
                check_memory(verdict)
            finally:
                self.leave()
            if view is None or self.filled > room or not self.take_compressed(slice, at, view, inflate, deflate):
                return at
            at += 1
            if self.filled > room:
                return at

    cdef bint take_compressed(self, _Slice slice, int64_t at, view, inflate, deflate) except -1:
        """Processes row `at` and returns True, if it is a compressed batch that is otherwise usual."""
        if at >= slice.rows or self.is_end((<const Row*>slice.table.buf)[at].last_offset):
            return False
        if not slice.inflated(at, view, inflate):
            return False
        made = self.take_one(slice, at)
        slice.drop_payload()
        if made is None:
            return False
        if type(made) is tuple:
            self.add_batch(made[1], deflate((<const Row*>slice.table.buf)[at].attributes & CODEC_MASK, made[0]))
        return True

    def take_batch(self, data, table, int64_t row, payload=None, *, int64_t base_position=0):
        """Processes one batch that its transaction, if any, keeps, even if it is in `keep_ends`. `payload` has its
        records decompressed, if they are compressed.

        Returns None if the batch is not usual and was not processed; True if what stays of it was added; False if
        nothing stays. Otherwise returns the payload of the records that stay, to be compressed, and the header of their
        batch (without its size and checksum): both are for `add_batch`.
        """
        cdef _Slice slice = _Slice(data, table, base_position, payload, True)
        if not 0 <= row < slice.rows:
            raise IndexError(f"row: found {row}, expected 0 to {slice.rows - 1}")
        return self.take_one(slice, row)

    cdef object take_one(self, _Slice slice, int64_t row):
        cdef Row found
        cdef Cursor cursor
        cdef Batch batch
        cdef int64_t before
        cdef int reader, verdict
        self.enter()
        try:
            before = self.filled
            with nogil:
                verdict = NOT_USUAL
                if slice.usual(row, &found, &batch, &cursor, &reader):
                    verdict = self.judge_large(slice, &found, &batch, cursor, reader)
            check_memory(verdict)
            if verdict == NOT_USUAL:
                return None
            if verdict == VERBATIM or (verdict == REBUILT and not slice.has_payload):
                return True
            if verdict == NOTHING:
                return False
            made = self.out.at[before + RECORDS : self.filled], self.out.at[before : before + RECORDS]
            self.filled = before
            return made
        finally:
            self.leave()

    def add_batch(self, header, payload):
        """Adds a batch: the header from `take_batch` and the compressed payload."""
        cdef Py_buffer head, body
        cdef uint8_t* at
        claim(&self.busy, "Survivors")
        try:
            open_octets(header, &head)
            try:
                if head.len != RECORDS:
                    raise ValueError(f"header: found {head.len} bytes, expected {RECORDS}")
                open_octets(payload, &body)
                try:
                    if not reserve(&self.out, self.filled + RECORDS + body.len):
                        raise MemoryError
                    at = self.out.at + self.filled
                    memcpy(at, head.buf, RECORDS)
                    memcpy(at + RECORDS, body.buf, <size_t>body.len)
                    seal(at, RECORDS + body.len)
                    self.filled += RECORDS + body.len
                    self.bytes_retained += RECORDS + body.len
                finally:
                    PyBuffer_Release(&body)
            finally:
                PyBuffer_Release(&head)
        finally:
            kl_leave(&self.busy)

    @property
    def size(self):
        """The number of bytes that `bytes()` would return."""
        return self.filled

    def counted(self):
        """Returns the counts since the last call: bytes and messages read, messages and bytes retained, and of the
        removed messages those without a key and the last tombstones of their keys."""
        claim(&self.busy, "Survivors")
        try:
            found = (
                self.bytes_read, self.messages_read, self.messages_retained, self.bytes_retained,
                self.invalid_messages, self.tombstones,
            )
            self.bytes_read = self.messages_read = self.messages_retained = 0
            self.bytes_retained = self.invalid_messages = self.tombstones = 0
            return found
        finally:
            kl_leave(&self.busy)

    def bytes(self):
        """Returns the batches that stay, since the last call; resets `max_offset`."""
        claim(&self.busy, "Survivors")
        try:
            found = self.out.at[: self.filled]
            self.filled = 0
            self.max_offset = -1
            return found
        finally:
            kl_leave(&self.busy)

    # --- the steps -----------------------------------------------------------------------------------

    cdef int enter(self) except -1:
        """Claims this object and the map, which others may share; to be followed by `try: ... finally:
        self.leave()`."""
        claim(&self.busy, "Survivors")
        if not kl_enter(&self.map.busy):
            kl_leave(&self.busy)
            raise RuntimeError("another thread is using this SkimpyOffsetMap")
        return 0

    cdef void leave(self) noexcept nogil:
        kl_leave(&self.map.busy)
        kl_leave(&self.busy)

    cdef bint judged_here(
        self, _Slice slice, int64_t at, Row* row, Batch* batch, Cursor* cursor, int* reader
    ) noexcept nogil:
        return slice.usual(at, row, batch, cursor, reader) and not self.is_end(row.last_offset)

    cdef bint is_end(self, int64_t offset) noexcept nogil:
        cdef const int64_t* ends = <const int64_t*>self.ends_view.buf
        cdef int64_t low = 0, high = self.ends_view.len // 8, middle
        while low < high:
            middle = (low + high) // 2
            if ends[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low < self.ends_view.len // 8 and ends[low] == offset

    cdef int take_rows(self, _Slice slice, int64_t* at, int64_t room) noexcept nogil:
        cdef Row row
        cdef Batch batch
        cdef Cursor cursor
        cdef int64_t first, last, count, of
        cdef int reader, judged, verdict = OK
        cdef bint is_large
        while at[0] < slice.rows and verdict == OK:
            first = last = at[0]
            count = 0
            is_large = False
            while last < slice.rows and count < AT_ONCE:
                if not self.judged_here(slice, last, &row, &batch, &cursor, &reader):
                    verdict = NOT_USUAL
                    break
                is_large = count + batch.count > AT_ONCE
                if is_large:
                    break
                if not reserve(&self.rows, (last - first + 1) * <int64_t>sizeof(Row)):
                    return NO_MEMORY
                verdict = self.walk(&batch, &cursor, reader, &count)
                if verdict != OK:
                    break
                (<Row*>self.rows.at)[last - first] = row
                last += 1
            if verdict == NO_MEMORY:
                return NO_MEMORY
            if is_large and last == first:
                judged = self.judge_large(slice, &row, &batch, cursor, reader)
                if judged == NO_MEMORY:
                    return NO_MEMORY
                if judged == NOT_USUAL:
                    return OK
                at[0] += 1
                if self.filled > room:
                    return OK
                continue
            self.look_up(count)
            count = 0
            while at[0] < last:
                row = (<const Row*>self.rows.at)[at[0] - first]  # as it was walked; the table may have changed
                of = row.record_count
                judged = self.judge(slice, &row, <Item*>self.items.at + count, of)
                if judged == NO_MEMORY:
                    return NO_MEMORY
                if judged == NOT_USUAL:
                    return OK
                count += of
                at[0] += 1
                if self.filled > room:
                    return OK
        return OK

    cdef int walk(self, const Batch* batch, Cursor* cursor, int reader, int64_t* count) noexcept nogil:
        """Adds the records of a batch to the items; returns NOT_USUAL, and adds none, if the batch is damaged."""
        cdef int verdict
        if batch.count > cursor.end - cursor.at:  # a record takes more than one byte
            return NOT_USUAL
        verdict = self.walk_some(batch, cursor, reader, count[0], batch.count)
        if verdict != OK:
            return verdict
        if cursor.at != cursor.end:
            return NOT_USUAL
        count[0] += batch.count
        return OK

    cdef int walk_some(
        self, const Batch* batch, Cursor* cursor, int reader, int64_t known, int64_t more
    ) noexcept nogil:
        """Adds `more` records of a batch after the known items."""
        cdef RecordView record
        cdef Item* item
        cdef int64_t i
        if not reserve(&self.items, (known + more) * <int64_t>sizeof(Item)):
            return NO_MEMORY
        if not (
            reserve(&self.keys, (known + more) * 8)
            and reserve(&self.sizes, (known + more) * 4)
            and reserve(&self.offsets, (known + more) * 8)
        ):
            return NO_MEMORY
        for i in range(more):
            if next_record(cursor, reader, cursor.end - cursor.at, False, &record) != OK:
                return NOT_USUAL
            item = <Item*>self.items.at + known + i
            item.start = record.start
            item.end = record.end
            item.key = record.key
            item.key_size = record.key_size
            item.body_size = record.body_size
            item.null_value = record.value == NULL
            item.offset = offset_of(batch, &record)
            item.timestamp = timestamp_of(batch, &record)
            item.timestamp_delta = record.timestamp_delta
            item.plain = is_plain(&record) and item.timestamp >= -1
        return OK

    cdef void look_up(self, int64_t count) noexcept nogil:
        cdef Item* items = <Item*>self.items.at
        cdef Bytes* keys = <Bytes*>self.keys.at
        cdef uint32_t* sizes = <uint32_t*>self.sizes.at
        cdef int64_t* offsets = <int64_t*>self.offsets.at
        cdef int64_t i, asked = 0
        for i in range(count):
            if items[i].key != NULL and items[i].offset <= self.map.latest_offset:
                keys[asked] = items[i].key
                sizes[asked] = <uint32_t>items[i].key_size
                offsets[asked] = items[i].offset
                asked += 1
        self.map.last_of(keys, sizes, asked, offsets)
        asked = 0
        for i in range(count):
            if items[i].key != NULL and items[i].offset <= self.map.latest_offset:
                items[i].found = offsets[asked]
                asked += 1

    cdef int judge(self, _Slice slice, const Row* row, Item* items, int64_t count) noexcept nogil:
        """Decides one batch, whose records are `items`, and adds what stays to the output."""
        cdef Findings found
        cdef int verdict
        begin(&found)
        self.decide(row, items, count, &found)
        verdict = self.verdict_of(row, &found)
        if verdict == NOT_USUAL:
            return NOT_USUAL
        if verdict == VERBATIM and not self.copy(slice, row):
            return NO_MEMORY
        if verdict == REBUILT:
            if not (self.write(items, count, &found, &found) and self.close(slice, row, &found, &found)):
                return NO_MEMORY
        self.count_up(row, &found, verdict)
        return verdict

    cdef int judge_large(
        self, _Slice slice, const Row* row, const Batch* batch, Cursor cursor, int reader
    ) noexcept nogil:
        """Decides a batch of any number of records, AT_ONCE at a time. A batch to rebuild is walked again, and its keys
        are looked up again, because no record is kept in memory."""
        cdef Findings found, again
        cdef int verdict
        begin(&found)
        verdict = self.judge_parts(row, batch, cursor, reader, &found, NULL)
        if verdict != OK:
            return verdict
        verdict = self.verdict_of(row, &found)
        if verdict == NOT_USUAL:
            return NOT_USUAL
        if verdict == VERBATIM and not self.copy(slice, row):
            return NO_MEMORY
        if verdict == REBUILT:
            begin(&again)
            verdict = self.judge_parts(row, batch, cursor, reader, &again, &found)
            if verdict != OK:
                return verdict
            if again.kept != found.kept:  # the buffer changed: the two walks saw different batches
                return NOT_USUAL
            if not self.close(slice, row, &found, &again):
                return NO_MEMORY
            verdict = REBUILT
        self.count_up(row, &found, verdict)
        return verdict

    cdef int judge_parts(
        self, const Row* row, const Batch* batch, Cursor cursor, int reader, Findings* found, const Findings* first
    ) noexcept nogil:
        """Decides all records of a batch; if `first`, the result of a first walk, is given, writes those that stay."""
        cdef int64_t left = batch.count, more
        cdef int verdict
        if left > cursor.end - cursor.at:
            return NOT_USUAL
        while left:
            more = min(left, <int64_t>AT_ONCE)
            verdict = self.walk_some(batch, &cursor, reader, 0, more)
            if verdict != OK:
                return verdict
            self.look_up(more)
            self.decide(row, <Item*>self.items.at, more, found)
            if first != NULL and not self.write(<Item*>self.items.at, more, first, found):
                return NO_MEMORY
            left -= more
        return OK if cursor.at == cursor.end else NOT_USUAL

    cdef void decide(self, const Row* row, Item* items, int64_t count, Findings* found) noexcept nogil:
        """Decides which records of a batch stay."""
        cdef bint tombstones_stay = not row.attributes & DELETE_HORIZON_FLAG or self.now_ms < row.base_timestamp
        cdef int64_t i, kept = 0, invalid = 0, tombstones = 0, last = found.last_offset
        cdef bint has_tombstone = found.has_tombstone
        cdef Item* item
        for i in range(count):
            item = items + i
            if item.offset > self.map.latest_offset:
                item.kept = True
            elif item.key == NULL:
                item.kept = False
                invalid += 1
            else:
                item.kept = item.offset >= item.found and (not item.null_value or tombstones_stay)
                tombstones += not item.kept and item.offset >= item.found
            if item.kept:
                if found.kept + kept == 0:
                    found.first_timestamp = item.timestamp
                kept += 1
                last = max(last, item.offset)
                has_tombstone = has_tombstone or item.null_value
        found.count += count
        found.kept += kept
        found.invalid += invalid
        found.tombstones += tombstones
        found.last_offset = last
        found.has_tombstone = has_tombstone
        # Only a batch that is rebuilt needs it.
        if found.copyable and kept and (found.kept < found.count or has_tombstone or count < row.record_count):
            found.copyable = can_be_copied(items, count, &found.copied_offset)

    cdef int verdict_of(self, const Row* row, Findings* found) noexcept nogil:
        """Returns what happens to a batch, from the results of its records; also sets its delete horizon."""
        found.horizon = row.base_timestamp if row.attributes & DELETE_HORIZON_FLAG else -1
        found.has_horizon = (row.attributes & DELETE_HORIZON_FLAG) != 0
        if found.kept == 0:
            return NOTHING
        if found.kept == found.count and (found.has_horizon or not found.has_tombstone):
            return VERBATIM
        if not found.has_horizon and found.has_tombstone:
            found.has_horizon = True
            found.horizon = <int64_t>(<uint64_t>self.now_ms + <uint64_t>self.delete_retention_ms)
        if (found.has_horizon and found.horizon < 0) or not is_buildable(row) or not found.copyable:
            return NOT_USUAL
        return REBUILT

    cdef void count_up(self, const Row* row, const Findings* found, int verdict) noexcept nogil:
        self.bytes_read += row.size
        self.messages_read += found.count
        self.invalid_messages += found.invalid
        self.tombstones += found.tombstones
        if found.kept:
            self.messages_retained += found.kept
            self.max_offset = max(self.max_offset, row.last_offset if verdict == VERBATIM else found.last_offset)

    cdef bint copy(self, _Slice slice, const Row* row) noexcept nogil:
        """Outputs a batch unchanged."""
        if not reserve(&self.out, self.filled + row.size):
            return False
        memcpy(self.out.at + self.filled, self.header_of(slice, row), <size_t>row.size)
        self.filled += row.size
        self.bytes_retained += row.size
        return True

    cdef const uint8_t* header_of(self, _Slice slice, const Row* row) noexcept nogil:
        return <const uint8_t*>slice.data.buf + (row.position - slice.base_position)

    cdef bint write(self, const Item* items, int64_t count, const Findings* terms, Findings* found) noexcept nogil:
        """Writes the records that stay after those of the same batch before them, with the batch's horizon and first
        timestamp (`terms`); returns whether there was memory."""
        cdef int64_t i, kept = 0, size = 0, delta, body, copied
        cdef int64_t base_timestamp = terms.horizon if terms.has_horizon else terms.first_timestamp
        cdef const Item* item
        cdef const uint8_t* rest
        cdef uint8_t* at
        for i in range(count):
            if items[i].kept:
                kept += 1
                size += items[i].end - items[i].start
        # A timestamp takes at most nine bytes more, and the length before it one.
        if not reserve(&self.out, self.filled + RECORDS + found.written + size + 16 * kept):
            return False
        at = self.out.at + self.filled + RECORDS + found.written
        for i in range(count):
            item = items + i
            if not item.kept:
                continue
            if item.timestamp > found.max_timestamp:
                found.max_timestamp = item.timestamp
            delta = <int64_t>(<uint64_t>item.timestamp - <uint64_t>base_timestamp)
            if delta == item.timestamp_delta:
                memcpy(at, item.start, <size_t>(item.end - item.start))
                at += item.end - item.start
                continue
            copied = size_of_uvarint64(zigzag64(item.timestamp_delta))
            body = item.body_size - copied + size_of_uvarint64(zigzag64(delta))
            rest = item.end - item.body_size + 1 + copied
            at = write_uvarint64(at, zigzag32(<int32_t>body))
            at[0] = 0
            at = write_uvarint64(at + 1, zigzag64(delta))
            memcpy(at, rest, <size_t>(item.end - rest))
            at += item.end - rest
        found.written = at - (self.out.at + self.filled + RECORDS)
        return True

    cdef bint close(self, _Slice slice, const Row* row, const Findings* terms, const Findings* found) noexcept nogil:
        """Writes the header of a batch whose records were written; the payload of a decompressed batch is still to be
        compressed."""
        cdef int64_t size = RECORDS + found.written
        cdef uint8_t* start
        cdef uint16_t attributes = <uint16_t>row.attributes
        if not reserve(&self.out, self.filled + size):
            return False
        start = self.out.at + self.filled
        memcpy(start, self.header_of(slice, row), RECORDS)
        if terms.has_horizon:
            attributes |= DELETE_HORIZON_FLAG
        store16(start + ATTRIBUTES, attributes)
        store64(start + BASE_TIMESTAMP, <uint64_t>(terms.horizon if terms.has_horizon else terms.first_timestamp))
        store64(
            start + MAX_TIMESTAMP,
            <uint64_t>(row.max_timestamp if attributes & TIMESTAMP_TYPE_FLAG else found.max_timestamp),
        )
        store32(start + RECORD_COUNT, <uint32_t>found.kept)
        if not slice.has_payload:
            seal(start, size)
            self.bytes_retained += size
        self.filled += size
        return True


cdef inline bint is_buildable(const Row* row) noexcept nogil:
    """Returns whether a builder accepts the header's producer fields."""
    if row.producer_id == -1:
        return not row.attributes & TRANSACTIONAL_FLAG
    return row.producer_id >= 0 and row.producer_epoch >= 0 and row.base_sequence >= 0


cdef bint can_be_copied(const Item* items, int64_t count, int64_t* before) noexcept nogil:
    """Returns whether a builder would accept the kept records after one of offset `before`, and write them unchanged
    except for the timestamp."""
    cdef Cursor cursor
    cdef RecordView record
    cdef int64_t i
    for i in range(count):
        if not items[i].kept:
            continue
        if items[i].offset <= before[0]:
            return False
        before[0] = items[i].offset
        if items[i].plain:
            continue
        cursor.at = items[i].start
        cursor.end = items[i].end
        if items[i].timestamp < -1 or next_record(&cursor, BUFFER, items[i].body_size, True, &record) != OK:
            return False
        if not record.canonical:
            return False
    return True


cdef inline bint is_plain(const RecordView* record) noexcept nogil:
    """Returns whether a builder would surely write these bytes: no attributes, every number as short as possible, and
    no headers."""
    cdef int64_t size
    if record.key_size < -1 or record.value_size < -1 or load8(record.end - record.body_size) != 0:
        return False
    if record.header_count:
        return False
    size = (
        2
        + size_of_uvarint64(zigzag64(record.timestamp_delta))
        + size_of_uvarint64(zigzag32(record.offset_delta))
        + size_of_uvarint64(zigzag32(record.key_size))
        + size_of_uvarint64(zigzag32(record.value_size))
    )
    size += record.key_size if record.key_size > 0 else 0
    size += record.value_size if record.value_size > 0 else 0
    return size == record.body_size and record.end - record.start == size + size_of_uvarint64(zigzag32(<int32_t>size))


cdef inline void seal(uint8_t* batch, int64_t size) noexcept nogil:
    """Sets the size and the checksum of a batch of magic 2."""
    store32(batch + BATCH_LENGTH, <uint32_t>(size - LOG_OVERHEAD))
    store32(batch + CRC, crc32c_update(0, batch + ATTRIBUTES, <size_t>(size - ATTRIBUTES)))
