"""Checks the records of a v2 batch before an append: is their structure valid, and may each of them be appended?

One loop over `record.next_record`, with the Kafka reader that the caller names; the check of each record is here. Knows
bytes and numbers; the caller words and raises errors. Source: DefaultRecordBatch and LogValidator.validateRecord
(4.4.0).
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kafkalog._native.codec cimport record as rec
from kafkalog._native.codec.batches cimport BatchHeader, Row, parse_header
from kafkalog._native.codec.crc32c cimport crc32c_update
from kafkalog._native.codec.cursor cimport Cursor
from kafkalog._native.codec.layout cimport (
    ARRAY_BYTES_MAX,
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC,
    KL_LOADED,
    LAST_CODEC,
    LEADER_EPOCH,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    RECORDS,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    load16,
    load32,
    load64,
    store16,
    store32,
    store64,
)
from kafkalog._native.codec.octets cimport open_octets
from kafkalog._native.codec.record cimport Batch, RecordView
from kafkalog._native.codec.varint cimport size_of_uvarint64, zigzag32

# Why a record is refused.
NO_KEY, TIMESTAMP_OUT_OF_RANGE, CLAIMS_APPEND_TIME = 0, 1, 2

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject*, object, void*)

cdef enum:
    E_NO_KEY = 0
    E_TIMESTAMP = 1
    E_CLAIMS_APPEND_TIME = 2
    # Below this many bytes, releasing the GIL costs more than it gains.
    NOGIL_BYTES = 32768
    # So many refused records of a batch are named; a small compressed batch may have millions.
    REFUSALS_MAX = 10000
    # Up to this many bytes a copy costs less than a second buffer in the write.
    COPY_BYTES = 32768

cdef struct Refusal:
    int32_t index
    int32_t kind
    int64_t timestamp
    int64_t offset
    int32_t key_size
    int32_t value_size

# The first refused records; the memory grows with their number.
cdef struct Refusals:
    Refusal* rows
    int32_t count
    int32_t capacity

cdef struct Findings:
    int verdict
    int32_t row
    int64_t expected
    int64_t found
    int32_t refused
    int32_t missing_keys
    int64_t max_timestamp
    int64_t first_timestamp
    int64_t record_bytes
    bint sequential
    bint canonical

cdef inline void fail(Findings* out, int verdict, int64_t expected, int64_t found) noexcept nogil:
    out.verdict = verdict
    out.expected = expected
    out.found = found


cdef inline int judge(const Rules* rules, const Batch* batch, int64_t timestamp, bint has_key) noexcept nogil:
    """Returns why the record may not be appended, or -1. Differences wrap as Java's longs do."""
    cdef uint64_t age
    if rules.need_key and not has_key:
        return E_NO_KEY
    if rules.create_time and timestamp != -1:
        age = <uint64_t>rules.now - <uint64_t>timestamp
        if <int64_t>age > rules.before_max or <int64_t>(0 - age) > rules.after_max:
            return E_TIMESTAMP
    elif batch.log_append:
        return E_CLAIMS_APPEND_TIME
    return -1


cdef bint keep(Refusals* refusals, Refusal refusal) noexcept nogil:
    """Returns False if memory runs out."""
    cdef int32_t capacity
    cdef Refusal* grown
    if refusals.count == REFUSALS_MAX:
        return True
    if refusals.count == refusals.capacity:
        capacity = 16 if refusals.capacity == 0 else 2 * refusals.capacity
        grown = <Refusal*>realloc(refusals.rows, <size_t>capacity * sizeof(Refusal))
        if grown == NULL:
            return False
        refusals.rows = grown
        refusals.capacity = capacity
    refusals.rows[refusals.count] = refusal
    refusals.count += 1
    return True


cdef void walk(
    Cursor cursor, const Batch* batch, const Rules* rules, bint canonical, Findings* out, Refusals* kept
) noexcept nogil:
    """Fills `out`, and `kept` if it is given, in one walk: a second walk might find other records.

    Without `canonical`, that field is False."""
    cdef RecordView view
    cdef int64_t timestamp, offset
    cdef int32_t i
    cdef int kind, verdict
    out.verdict = rec.OK
    out.row = -1
    out.expected = out.found = 0
    out.refused = out.missing_keys = 0
    out.max_timestamp = out.first_timestamp = -1
    out.record_bytes = 0
    out.sequential = True
    out.canonical = canonical
    if batch.count < 0:
        fail(out, rec.NEGATIVE_COUNT, 0, batch.count)
        return
    for i in range(<int32_t>batch.count):
        out.row = i
        verdict = rec.next_record(&cursor, rules.reader, rules.max_record_bytes, canonical, &view)
        if verdict != rec.OK:
            fail(out, verdict, view.expected, view.found)
            return
        if i == batch.count - 1 and cursor.at != cursor.end:
            fail(out, rec.BYTES_LEFT, 0, cursor.end - cursor.at)
            return
        timestamp, offset = rec.timestamp_of(batch, &view), rec.offset_of(batch, &view)
        if i == 0:
            out.first_timestamp = timestamp
        # Canonical: a builder with these records would write these bytes.
        if (
            not view.canonical
            or view.offset_delta != i
            or timestamp < -1
            or ((i == 0 or batch.log_append) and view.timestamp_delta != 0)
        ):
            out.canonical = False
        kind = judge(rules, batch, timestamp, view.key_size >= 0)
        if kind >= 0:
            if kept != NULL and not keep(
                kept, Refusal(i, kind, timestamp, offset, view.key_size, view.value_size)
            ):
                fail(out, rec.NO_MEMORY, 0, 0)
                return
            out.refused += 1
            if kind == E_NO_KEY:
                out.missing_keys += 1
            continue
        if timestamp > out.max_timestamp:
            out.max_timestamp = timestamp
        if offset != i:
            out.sequential = False
        out.record_bytes += size_of_uvarint64(zigzag32(view.body_size)) + view.body_size


@cython.auto_pickle(False)
@cython.final
cdef class RecordWalk:
    """The result of a walk.

    `verdict`, `row`, `expected`, `found`: the first structure error and its record. Otherwise, for the records that may
    be appended: `max_timestamp` (-1 without any), `record_bytes` (their sizes with length prefix), `sequential` (their
    offsets are 0, 1, 2...). `first_timestamp` is the first record's; `canonical`, if requested: a builder with these
    records would write these bytes. `refusals`, at most 10,000: (index, kind, timestamp, offset, key size, value size).
    """

    cdef Findings findings
    cdef readonly object refusals
    cdef readonly int record_count

    @property
    def verdict(self):
        return self.findings.verdict

    @property
    def row(self):
        return self.findings.row

    @property
    def expected(self):
        return self.findings.expected

    @property
    def found(self):
        return self.findings.found

    @property
    def missing_keys(self):
        return self.findings.missing_keys

    @property
    def max_timestamp(self):
        return self.findings.max_timestamp

    @property
    def first_timestamp(self):
        return self.findings.first_timestamp

    @property
    def record_bytes(self):
        return self.findings.record_bytes

    @property
    def sequential(self):
        return bool(self.findings.sequential)

    @property
    def canonical(self):
        return bool(self.findings.canonical)


cdef list refusal_list(const Refusals* refusals):
    cdef list out = []
    cdef Refusal row
    cdef int32_t i
    for i in range(refusals.count):
        row = refusals.rows[i]
        out.append((row.index, row.kind, row.timestamp, row.offset, row.key_size, row.value_size))
    return out


cdef const uint8_t* whole_batch(const Py_buffer* view, int64_t position, uint8_t* header, int64_t* size) noexcept nogil:
    """Returns the records of the v2 batch at `position` and a copy of its 61 bytes, or NULL if it is not inside the
    buffer. All header fields are read from the copy, so that they belong to one header."""
    cdef const uint8_t* at
    if position < 0 or position > view.len - RECORDS:
        return NULL
    at = <const uint8_t*>view.buf + position
    memcpy(header, at, RECORDS)
    KL_LOADED()
    size[0] = <int64_t><int32_t>load32(header + BATCH_LENGTH) + LOG_OVERHEAD
    if size[0] < RECORDS or size[0] > view.len - position:
        return NULL
    return at + RECORDS


cdef void load_batch(const uint8_t* header, Batch* batch) noexcept nogil:
    batch.base_offset = <int64_t>load64(header + BASE_OFFSET)
    batch.base_timestamp = <int64_t>load64(header + BASE_TIMESTAMP)
    batch.append_time = <int64_t>load64(header + MAX_TIMESTAMP)
    batch.log_append = (load16(header + ATTRIBUTES) & TIMESTAMP_TYPE_FLAG) != 0
    batch.count = <int32_t>load32(header + RECORD_COUNT)


def walk_records(
    object data,
    int64_t position,
    object payload,
    int reader,
    bint need_key,
    bint create_time,
    int64_t now,
    int64_t before_max,
    int64_t after_max,
    int32_t max_record_bytes=ARRAY_BYTES_MAX,
    bint canonical=True,
):
    """Walks over the records of the v2 batch at byte `position` of `data`.

    `payload` holds the records if they were compressed; None: they follow the header. `create_time`: compare the
    records' times with `now` (milliseconds) and the two limits; otherwise a batch whose records claim append time is
    refused. `max_record_bytes` limits the readers STREAM and SKIP. `canonical`: report this field, too; without it,
    usual records take a faster path.

    More than eight parameters: one call checks all records of a batch.
    """
    cdef Py_buffer view, payload_view
    cdef Batch batch
    cdef Rules rules
    cdef Cursor cursor
    cdef uint8_t header[RECORDS]
    cdef const uint8_t* records
    cdef Refusals refused = Refusals(NULL, 0, 0)
    cdef int64_t size
    cdef RecordWalk result = RecordWalk.__new__(RecordWalk)
    cdef bint has_payload = payload is not None
    open_octets(data, &view)
    try:
        records = whole_batch(&view, position, header, &size)
        if records == NULL:
            result.findings.verdict = rec.BAD_BOUNDS
            return result
        load_batch(header, &batch)
        rules = Rules(reader, need_key, create_time, now, before_max, after_max, max_record_bytes)
        result.record_count = <int32_t>batch.count
        if has_payload:
            open_octets(payload, &payload_view)
            cursor.at = <const uint8_t*>payload_view.buf
            cursor.end = cursor.at + payload_view.len
        else:
            cursor.at = records
            cursor.end = records + (size - RECORDS)
        try:
            if cursor.end - cursor.at < NOGIL_BYTES:
                walk(cursor, &batch, &rules, canonical, &result.findings, &refused)
            else:
                with nogil:
                    walk(cursor, &batch, &rules, canonical, &result.findings, &refused)
            if result.findings.verdict == rec.NO_MEMORY:
                raise MemoryError
            if refused.count > 0 and result.findings.verdict == rec.OK:
                result.refusals = refusal_list(&refused)
        finally:
            free(refused.rows)
            if has_payload:
                PyBuffer_Release(&payload_view)
    finally:
        PyBuffer_Release(&view)
    return result


# --- the ordinary batch -------------------------------------------------------------------------


@cython.auto_pickle(False)
cdef class AppendInfo:
    """The fields of `kafkalog.engine.log.types.LogAppendInfo`."""

    cdef public int64_t first_offset
    cdef public int64_t last_offset
    cdef public object last_leader_epoch
    cdef public int64_t max_timestamp
    cdef public int64_t log_append_time
    cdef public int64_t log_start_offset
    cdef public int source_compression
    cdef public int64_t valid_bytes
    cdef public int64_t last_offset_of_first_batch
    cdef public object record_validation_stats
    cdef list refused

    # More than eight parameters: Kafka's LogAppendInfo has as many fields.
    def __init__(
        self, int64_t first_offset, int64_t last_offset, last_leader_epoch, int64_t max_timestamp,
        int64_t log_append_time, int64_t log_start_offset, int source_compression, int64_t valid_bytes,
        int64_t last_offset_of_first_batch, record_validation_stats,
    ):
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.last_leader_epoch = last_leader_epoch
        self.max_timestamp = max_timestamp
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        self.source_compression = source_compression
        self.valid_bytes = valid_bytes
        self.last_offset_of_first_batch = last_offset_of_first_batch
        self.record_validation_stats = record_validation_stats

    @property
    def record_errors(self):
        with cython.critical_section(self):
            if self.refused is None:
                self.refused = []
            return self.refused

    @record_errors.setter
    def record_errors(self, list errors not None):
        with cython.critical_section(self):
            self.refused = errors


@cython.auto_pickle(False)
@cython.final
cdef class OrdinaryBatch(BatchHeader):
    """A producer's single batch that needs no change but its offset and leader epoch. Created by `OrdinaryRules.admit`.

    Its records are already checked if they are not compressed; otherwise (`codec` above 0) they are valid once
    `check_payload` returned True. It is a header like any other, first as the producer wrote it, then as `date` and
    `place` leave it. `record_bytes` is the size of the records with their framing before compression, -1 until they
    were checked.
    """

    def __init__(self):
        raise TypeError("an OrdinaryBatch is created by OrdinaryRules.admit()")

    @property
    def payload(self):
        """The records as they are in the batch."""
        whole = self.head if self.data is None else self.data
        return PyMemoryView_FromObject(whole)[RECORDS:]

    cdef bint check(self, Cursor cursor) noexcept nogil:
        cdef Findings findings
        walk(cursor, &self.batch, &self.rules, False, &findings, NULL)
        self.record_bytes = findings.record_bytes
        return (
            findings.verdict == rec.OK
            and findings.refused == 0
            and (findings.max_timestamp == self.batch.append_time or not self.rules.create_time)
            and (findings.sequential or self.rules.reader == rec.BUFFER)
        )

    def check_payload(self, payload, int32_t max_record_bytes):
        """Returns whether the decompressed records may be appended unchanged; if False, the caller's slower path finds
        the reason."""
        cdef Py_buffer view
        cdef Cursor cursor
        cdef bint good
        open_octets(payload, &view)
        cursor.at = <const uint8_t*>view.buf
        cursor.end = cursor.at + view.len
        self.rules.max_record_bytes = max_record_bytes
        if view.len < NOGIL_BYTES:
            good = self.check(cursor)
        else:
            with nogil:
                good = self.check(cursor)
        PyBuffer_Release(&view)
        return good

    def place(self, int64_t next_offset, int32_t leader_epoch):
        """Gives the batch its offsets, from `next_offset` on; returns the buffers to write, one after the other.

        Raises OverflowError if the offsets exceed an int64.
        """
        return self.placed(next_offset, leader_epoch)

    cdef tuple placed(self, int64_t next_offset, int32_t leader_epoch):
        cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(self.head)  # nobody else has these bytes
        cdef int64_t last_offset = <int64_t>(<uint64_t>next_offset + <uint64_t>self.row.record_count - 1)
        if last_offset < next_offset:
            raise OverflowError(next_offset)
        store64(out + BASE_OFFSET, <uint64_t>next_offset)
        store32(out + LEADER_EPOCH, <uint32_t>leader_epoch)
        self.row.base_offset = next_offset
        self.row.last_offset = last_offset
        self.row.leader_epoch = leader_epoch
        if self.data is None:
            return (self.head,)
        return (self.head, PyMemoryView_FromObject(self.data)[RECORDS:])

    def told(self, kind, int64_t log_start_offset, record_validation_stats):
        """Returns an AppendInfo of class `kind` for this batch; call it after `place`."""
        return self.info(kind, log_start_offset, record_validation_stats)

    def date(self, int64_t now):
        """If the topic is so configured, sets the append time `now` and the new checksum. Called under the log's lock,
        so that append times never decrease."""
        self.dated(now)

    cdef int dated(self, int64_t now) except -1:
        cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(self.head)
        cdef const uint8_t* records = out
        cdef size_t size = <size_t>(self.row.size - RECORDS)
        cdef uint32_t crc
        if self.rules.create_time:
            return 0
        if self.data is not None:
            records = <const uint8_t*>PyBytes_AS_STRING(self.data)
        self.rules.now = self.row.max_timestamp = now
        self.row.attributes |= TIMESTAMP_TYPE_FLAG
        store16(out + ATTRIBUTES, <uint16_t>self.row.attributes)
        store64(out + MAX_TIMESTAMP, <uint64_t>now)
        crc = crc32c_update(0, out + ATTRIBUTES, RECORDS - ATTRIBUTES)
        if size < NOGIL_BYTES:
            crc = crc32c_update(crc, records + RECORDS, size)
        else:
            with nogil:
                crc = crc32c_update(crc, records + RECORDS, size)
        self.row.crc = crc
        store32(out + CRC, crc)
        return 0

    cdef object info(self, kind, int64_t log_start_offset, record_validation_stats):
        cdef AppendInfo info = (<PyTypeObject*>kind).tp_new(<PyTypeObject*>kind, (), NULL)
        info.first_offset = self.row.base_offset
        info.last_offset = self.row.last_offset
        info.last_leader_epoch = None if self.given_epoch == -1 else self.given_epoch
        info.max_timestamp = self.row.max_timestamp
        info.log_append_time = -1 if self.rules.create_time else self.row.max_timestamp
        info.log_start_offset = log_start_offset
        info.source_compression = self.row.attributes & CODEC_MASK
        info.valid_bytes = self.row.size
        info.last_offset_of_first_batch = self.row.record_count - 1
        info.record_validation_stats = record_validation_stats
        return info


cdef inline bint is_ordinary(const Row* row, bint of_client) noexcept nogil:
    """Returns whether a batch is like nearly all batches of producers, or of coordinators (not `of_client`). Other
    batches need additional checks and error texts."""
    cdef int known = CODEC_MASK | TRANSACTIONAL_FLAG
    if not of_client:
        known |= CONTROL_FLAG  # a marker, which has a producer and no sequence
    if row.magic != 2 or row.base_offset != 0 or row.record_count <= 0 or row.last_offset != row.record_count - 1:
        return False
    if row.attributes & ~known or row.attributes & CODEC_MASK > LAST_CODEC:
        return False
    if row.producer_id == -1:
        return not row.attributes & TRANSACTIONAL_FLAG
    return row.producer_id >= 0 and (row.base_sequence >= 0 or not of_client)


@cython.auto_pickle(False)
@cython.final
cdef class OrdinaryRules:
    """The requirements of a topic, and of the segment, for a batch. `size_max`: its largest size in bytes. `need_key`:
    a key in every record. `before_max_ms` and `after_max_ms`: how far the records' times may differ from now. `codec`:
    -1 accepts any. `create_time`: records keep their times; otherwise the batch gets the append time."""

    # More than eight parameters: a topic's settings, by name.
    def __init__(
        self, int64_t size_max, bint need_key, int64_t before_max_ms, int64_t after_max_ms, int codec=-1,
        int64_t max_segment_ms=INT64_MAX, int64_t segment_bytes=INT32_MAX, int64_t flush_messages=INT64_MAX,
        bint create_time=True,
    ):
        self.size_max = size_max
        self.need_key = need_key
        self.before_max_ms = before_max_ms
        self.after_max_ms = after_max_ms
        self.codec = codec
        self.max_segment_ms = max_segment_ms
        self.segment_bytes = segment_bytes
        self.flush_messages = flush_messages
        self.create_time = create_time

    cpdef OrdinaryBatch admit(self, data, int64_t now, bint of_client=True):
        """Returns the single ordinary v2 batch in `data`, complete and with the right checksum, if these rules admit
        it.

        Returns None for anything else: the slower checks find the reason and word the error. The checked bytes are the
        ones that `place` returns: a small batch is copied first (one buffer is written faster than two); a large one
        must be `bytes`, which cannot change. The records of an EncodedBatch are not read if its facts already show that
        the checks succeed. `of_client` False: the batch is a coordinator's and may be a marker.
        """
        cdef Py_buffer view
        cdef OrdinaryBatch found
        cdef EncodedBatch encoded = None
        cdef Cursor cursor
        cdef const uint8_t* header
        cdef bytes head
        cdef int64_t size
        cdef bint good
        if type(data) is EncodedBatch:
            encoded = data
            data = encoded.data
        open_octets(data, &view)
        try:
            if view.len < RECORDS or view.len > self.size_max:
                return None
            if view.len <= COPY_BYTES:
                head = PyBytes_FromStringAndSize(<const char*>view.buf, view.len)
                header = <const uint8_t*>PyBytes_AS_STRING(head)
            elif type(data) is bytes:
                head = PyBytes_FromStringAndSize(<const char*>view.buf, RECORDS)
                header = <const uint8_t*>view.buf
            else:
                return None
            size = <int64_t><int32_t>load32(header + BATCH_LENGTH) + LOG_OVERHEAD
            if size != view.len:
                return None
            found = OrdinaryBatch.__new__(OrdinaryBatch)
            found.head = head
            found.data = data if view.len > COPY_BYTES else None
            parse_header(header, <int8_t>header[MAGIC], 0, size, &found.row)
            found.given_epoch = found.row.leader_epoch
            if not is_ordinary(&found.row, of_client):
                return None
            if self.codec >= 0 and self.codec != found.row.attributes & CODEC_MASK:
                return None
            found.topic = self
            load_batch(header, &found.batch)
            found.rules = Rules(rec.SKIP if found.row.attributes & CODEC_MASK else rec.BUFFER, self.need_key,
                                self.create_time, now, self.before_max_ms, self.after_max_ms, 0)
            found.record_bytes = -1
            if encoded is not None and self.is_known_good(encoded, now):
                found.record_bytes = encoded.record_bytes
            cursor.at = header + RECORDS
            cursor.end = header + size
            if size < NOGIL_BYTES:
                good = good_bytes(found, header, cursor)
            else:
                with nogil:
                    good = good_bytes(found, header, cursor)
            return found if good else None
        finally:
            PyBuffer_Release(&view)

    cdef bint is_known_good(self, EncodedBatch batch, int64_t now) noexcept:
        """Returns whether all records of such a batch may be appended; False if each must be checked."""
        if batch.record_bytes < 0 or (self.need_key and not batch.has_keys):
            return False
        if not self.create_time:
            return True
        # Missing times, or times so far away that differences wrap, need the walk.
        if batch.min_timestamp < 0 or now < 0:
            return False
        return now - batch.min_timestamp <= self.before_max_ms and batch.max_timestamp - now <= self.after_max_ms


cdef bint good_bytes(OrdinaryBatch found, const uint8_t* header, Cursor cursor) noexcept nogil:
    """Returns whether the checksum is right, and the records are valid if they are not compressed."""
    if found.record_bytes >= 0:
        return True
    if crc32c_update(0, header + ATTRIBUTES, <size_t>(cursor.end - header - ATTRIBUTES)) != found.row.crc:
        return False
    return found.rules.reader == rec.SKIP or found.check(cursor)
