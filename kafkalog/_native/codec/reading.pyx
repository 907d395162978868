"""Records as a reader gets them: `Record`, whose fields are created when they are first used, and the walk that creates
the records.

A Record of a batch points into the batch's bytes and holds them. A record that its user keeps holds them only until the
walk has returned two more records, or ends. Then its key, value and headers are created, so that a kept record never
keeps a chunk in memory. A record that nobody kept is reused, so a loop creates no objects except those it uses.

The walk (`RecordWalk`) gets whole batches from its caller and knows nothing of files, later offsets or errors. A batch
goes back to the caller, which has the slower path and the error texts, if its records are damaged, or if it is not an
uncompressed batch of magic 2 with few records. All records of a batch are checked before the first one is returned.

A Record may be shared between threads; a walk belongs to one thread (RuntimeError for a second one).

The file is long because the walk sets the private fields of a Record and reuses its objects: they stay together.
"""

from collections.abc import Sequence

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject_RichCompare
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t

from kafkalog import _shown
from kafkalog._native.codec cimport record as rec
from kafkalog._native.codec.batches cimport BatchHeader
from kafkalog._native.codec.cursor cimport Cursor
from kafkalog._native.codec.guard cimport claim, kl_leave
from kafkalog._native.codec.keys cimport KeyFilter, is_wanted_key
from kafkalog._native.codec.layout cimport CODEC_MASK, RECORDS, TIMESTAMP_TYPE_FLAG
from kafkalog._native.codec.octets cimport open_octets
from kafkalog._native.codec.record cimport Batch, HeaderView, RecordView

cdef extern from *:
    """
    #include <pthread.h>
    static int kl_forked;
    static int times_forked(void) { return __atomic_load_n(&kl_forked, __ATOMIC_RELAXED); }
    static void count_fork(void) { kl_forked++; }
    static int count_forks(void) { return pthread_atfork(NULL, NULL, count_fork); }
    /* The thread that is in a walk; an address in it stands for the thread.  Only that thread finds itself here. */
    static _Thread_local char kl_here;
    static void note_thread(char **in) { __atomic_store_n(in, &kl_here, __ATOMIC_RELAXED); }
    static void forget_thread(char **in) { __atomic_store_n(in, (char *)0, __ATOMIC_RELAXED); }
    static int is_this_thread(char **in) { return __atomic_load_n(in, __ATOMIC_RELAXED) == &kl_here; }
    /* Whether the caller has the only references, `mine` of them.  Without the GIL that cannot be known. */
    #ifdef Py_GIL_DISABLED
      static int nobody_else_has(PyObject *it, Py_ssize_t mine) { (void)it; (void)mine; return 0; }
    #else
      static int nobody_else_has(PyObject *it, Py_ssize_t mine) { return Py_REFCNT(it) == mine; }
    #endif
    """
    int times_forked() noexcept nogil
    int count_forks() noexcept nogil
    void note_thread(char** inside) noexcept nogil
    void forget_thread(char** inside) noexcept nogil
    bint is_this_thread(char** inside) noexcept nogil
    bint nobody_else_has(object it, Py_ssize_t mine) noexcept

if count_forks() != 0:
    raise MemoryError

cdef enum:
    FIELDS = 9
    NOGIL_BYTES = 1 << 15

cdef tuple NO_HEADERS = ()
NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1


cdef enum:
    SHOWN_BYTES = 4 * 60 + 1  # the bytes that _shown.octets reads, and one more


@cython.auto_pickle(False)
@cython.no_gc
@cython.final
cdef class _Payload:
    """Bytes that records point into, held as long as one of them needs them."""

    cdef Py_buffer view

    def __cinit__(self, data):
        open_octets(data, &self.view)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef inline object octets_at(const uint8_t* at, int32_t size):
    if at == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char*>at, size)


@cython.auto_pickle(False)
@cython.freelist(32)
cdef class Record:
    """One record of a partition, as a reader returns it.

    A record behaves as a named tuple of its fields: it compares, hashes and unpacks as that tuple, equals a tuple with
    the same content, and cannot be changed.

    Attributes:
        topic: The topic's name.
        partition: The partition's number, counted from 0.
        leader_epoch: The epoch of the leader that appended it; -1 if its batch has none.
        offset: The offset in the partition.
        timestamp: Milliseconds since 1970; -1 if there is none.
        timestamp_type: -1 for none, 0 for CreateTime, 1 for LogAppendTime.
        key: The key in bytes, or None.
        value: The value in bytes; None for a tombstone.
        headers: Pairs of a name and bytes (or None).

    Example:
        >>> with kafkalog.open("shop") as store:
        ...     orders = store.create_topic("orders")
        ...     place = orders.append(b"tea", key=b"c-7", headers=[("source", b"web")], timestamp=1_772_355_600_000)
        ...     record = next(orders.records())
        >>> record.key, record.value, record.offset, record.timestamp
        (b'c-7', b'tea', 0, 1772355600000)
        >>> record.headers
        (('source', b'web'),)
    """

    # The fields of a record that was created from objects; None for one that was read.
    cdef tuple given
    cdef object topic_
    cdef int32_t partition_, leader_epoch_
    cdef int timestamp_type_
    cdef int64_t offset_, timestamp_
    # The bytes for the remaining fields; None once all of them are created.
    cdef _Payload source
    cdef const uint8_t* key_at
    cdef const uint8_t* value_at
    cdef const uint8_t* headers_at
    cdef const uint8_t* end
    cdef int32_t key_size, value_size, header_count
    cdef bint has_key, has_value
    cdef object key_, value_
    cdef tuple headers_

    _fields = (
        "topic", "partition", "leader_epoch", "offset", "timestamp", "timestamp_type", "key", "value", "headers",
    )
    _field_defaults = {}
    __match_args__ = _fields

    # More than eight parameters: a record has as many fields.
    def __init__(
        self, topic, partition, leader_epoch, offset, timestamp, timestamp_type, key, value, headers
    ):
        if self.given is not None or self.topic_ is not None:
            raise RuntimeError("a Record cannot be initialized twice")
        self.given = (topic, partition, leader_epoch, offset, timestamp, timestamp_type, key, value, headers)

    # --- fields created on first use ---

    cdef object made_key(self):
        if not self.has_key:
            self.key_ = octets_at(self.key_at, self.key_size)
            self.has_key = True
        return self.key_

    cdef object made_value(self):
        if not self.has_value:
            self.value_ = octets_at(self.value_at, self.value_size)
            self.has_value = True
        return self.value_

    cdef tuple made_headers(self):
        if self.headers_ is None:
            self.headers_ = NO_HEADERS if self.header_count == 0 else self.read_headers()
        return self.headers_

    cdef tuple read_headers(self):
        cdef Cursor cursor
        cdef HeaderView header
        cdef RecordView view
        cdef list found = []
        cursor.at = self.headers_at
        cursor.end = self.end
        for _ in range(self.header_count):
            # They were checked before the record was returned.
            if rec.next_header(&cursor, rec.BUFFER, False, &view, &header) != rec.OK:
                break
            name = PyUnicode_DecodeUTF8(<const char*>header.key, header.key_size, "replace")
            found.append((name, octets_at(header.value, header.value_size)))
        return tuple(found)

    @cython.critical_section
    cdef int detach(self) except -1:
        """Creates the remaining fields and releases the batch's bytes."""
        if self.source is not None:
            self.made_key()
            self.made_value()
            self.made_headers()
            self.source = None
        return 0

    # --- fields ---

    @property
    def topic(self):
        return self.topic_ if self.given is None else self.given[0]

    @property
    def partition(self):
        return self.partition_ if self.given is None else self.given[1]

    @property
    def leader_epoch(self):
        return self.leader_epoch_ if self.given is None else self.given[2]

    @property
    def offset(self):
        return self.offset_ if self.given is None else self.given[3]

    @property
    def timestamp(self):
        return self.timestamp_ if self.given is None else self.given[4]

    @property
    def timestamp_type(self):
        return self.timestamp_type_ if self.given is None else self.given[5]

    @property
    def key(self):
        if self.given is not None:
            return self.given[6]
        with cython.critical_section(self):
            return self.made_key()

    @property
    def value(self):
        if self.given is not None:
            return self.given[7]
        with cython.critical_section(self):
            return self.made_value()

    @property
    def headers(self):
        if self.given is not None:
            return self.given[8]
        with cython.critical_section(self):
            return self.made_headers()

    @property
    def checksum(self):
        """None, as in kafka-python for records of the v2 format: the CRC belongs to the batch."""
        return None

    @property
    def serialized_key_size(self):
        """Bytes of the key; -1 for None."""
        key = self.key
        return -1 if key is None else len(key)

    @property
    def serialized_value_size(self):
        """Bytes of the value; -1 for None."""
        value = self.value
        return -1 if value is None else len(value)

    @property
    def serialized_header_size(self):
        """Bytes of all header keys and values; -1 if there are no headers."""
        headers = self.headers
        if not headers:
            return -1
        return sum([len(name.encode()) + (0 if value is None else len(value)) for name, value in headers])

    # --- as a named tuple ---

    cdef tuple fields(self):
        if self.given is not None:
            return self.given
        with cython.critical_section(self):
            return (
                self.topic_, self.partition_, self.leader_epoch_, self.offset_, self.timestamp_, self.timestamp_type_,
                self.made_key(), self.made_value(), self.made_headers(),
            )

    def __len__(self):
        return FIELDS

    def __iter__(self):
        return iter(self.fields())

    def __getitem__(self, at):
        return self.fields()[at]

    def __richcmp__(self, other, int how):
        if isinstance(other, Record):
            return PyObject_RichCompare(self.fields(), (<Record>other).fields(), how)
        if isinstance(other, tuple):
            return PyObject_RichCompare(self.fields(), other, how)
        return NotImplemented

    def __hash__(self):
        return hash(self.fields())

    def __add__(self, other):
        if isinstance(other, Record):
            other = (<Record>other).fields()
        return self.fields() + other

    def __radd__(self, other):
        return other + self.fields()

    def index(self, value, *between):
        """Returns the index of `value` in the tuple of the fields."""
        return self.fields().index(value, *between)

    def count(self, value):
        """Returns how often `value` occurs in the tuple of the fields."""
        return self.fields().count(value)

    def _asdict(self):
        """Returns the fields by name."""
        return dict(zip(self._fields, self.fields(), strict=True))

    def _replace(self, **fields):
        """Returns the same record with some fields replaced."""
        given = self._asdict()
        unknown = fields.keys() - given.keys()
        if unknown:
            raise TypeError(f"Got unexpected field names: {sorted(unknown)!r}")
        return type(self)(**(given | fields))

    @classmethod
    def _make(cls, iterable):
        """Creates a Record from its fields in order."""
        return cls(*iterable)

    def __reduce__(self):
        return (type(self), self.fields())

    def __repr__(self):
        return _shown.or_none(lambda: line_of(self)) or f"<{type(self).__name__}>"

    def _repr_html_(self):
        """Returns a table for notebooks."""
        return _shown.or_none(lambda: table_of(self))


Sequence.register(Record)


def line_of(Record record not None):
    """Returns the record's repr."""
    headers = record.headers
    more = f", {_shown.number(len(headers), 'header')}" if headers else ""
    what = f"{type(record).__name__} {_shown.place(record)} {_shown.moment(record.timestamp)}"
    return f"<{what}, key {_shown.octets(record.key)}, value {shown_value(record)}{more}>"


def table_of(Record record not None):
    """Returns the record's table."""
    return _shown.table(_shown.place(record), _shown.RECORD_COLUMNS, [_shown.record_row(record, shown_value(record))])


def shown_value(Record record not None):
    """Returns the value as it is shown; for a large value that was not created yet, only its beginning is created."""
    beginning = None
    with cython.critical_section(record):
        if record.given is None and not record.has_value and record.value_at != NULL:
            beginning = octets_at(record.value_at, min(record.value_size, SHOWN_BYTES))
    return _shown.octets(record.value) if beginning is None else _shown.octets(beginning, record.value_size)


@cython.auto_pickle(False)
@cython.final
cdef class RecordWalk:
    """An iterator of the records of one or more partitions, over `batches`: triples of a reader, a chunk and a
    BatchHeader.

    A chunk has `data`, in which the header's `position` is.  A reader has:

    - `topic_partition`: the batch's partition.
    - `first_offset` and `end_offset` (None: no end): records between them are returned.
    - `body_of(chunk, header)`: a compressed batch's records as bytes, or None.
    - `plain_records(chunk, header)`: an iterator of Records, for every unusual batch.
    - `check_usable()`: called after a fork.

    A batch of more than `part_records` records is unusual.

    `asynchronously()` returns the iterator for `async for`. Records are skipped if their key is not in `wanted_keys`,
    if their timestamp is not in [timestamp_min, timestamp_max], or if `keep(record)` is false.
    """

    cdef object batches, reader, chunk, plain, refusal
    cdef str topic
    cdef int32_t partition
    cdef int64_t part_records, max_body, first_offset, end_offset, left
    # The offset after the last record that was returned of the current batch (-1: none yet), its reader and its leader
    # epoch.
    cdef object told_reader
    cdef int64_t told_offset
    cdef int32_t told_epoch
    cdef object asynchronously
    cdef KeyFilter wanted_keys
    cdef object keep
    cdef int64_t timestamp_min, timestamp_max
    cdef bint filters
    cdef _Payload chunk_payload, source
    cdef Batch batch
    cdef Cursor cursor
    cdef int how
    cdef int32_t leader_epoch
    cdef int timestamp_type, forks, busy
    cdef char* inside  # the thread that waits for the next record; NULL for none
    cdef bint is_over
    # The last two records returned: a loop's variable still holds the later one when the next is requested.
    cdef Record last, before_last

    def __init__(
        self, batches, *, int64_t part_records, int64_t max_body, KeyFilter wanted_keys=None,
        int64_t timestamp_min=INT64_MIN, int64_t timestamp_max=INT64_MAX, keep=None, asynchronously=None,
    ):
        self.batches = iter(batches)
        self.part_records = part_records
        self.max_body = max_body
        self.asynchronously = asynchronously
        self.wanted_keys = wanted_keys
        self.keep = keep
        self.timestamp_min = timestamp_min
        self.timestamp_max = timestamp_max
        self.filters = wanted_keys is not None or timestamp_min != INT64_MIN or timestamp_max != INT64_MAX
        self.told_offset = -1
        self.forks = times_forked()

    def __iter__(self):
        return self

    def __aiter__(self):
        if self.asynchronously is None:
            raise TypeError(
                "use `for` with these records; for `async for` there are readers: "
                "`async for record in store.reader(topics=[\"orders\"])`"
            )
        return self.asynchronously()

    def __repr__(self):
        loops = "`for`, `list()`" if self.asynchronously is None else "`for`, `async for`"
        return f"<{'ended ' if self.is_over else ''}iterator of records: {loops}, `next()`>"

    def __next__(self):
        cdef Record found
        self.claimed()
        note_thread(&self.inside)
        try:
            if self.is_over:
                if self.refusal is not None:
                    raise self.refusal
                raise StopIteration
            try:
                found = self.step()
            except BaseException:
                self.finish()
                raise
            if found is None:
                self.finish()
                raise StopIteration
            return found
        finally:
            forget_thread(&self.inside)
            kl_leave(&self.busy)

    cdef int claimed(self) except -1:
        """Claims the walk for this thread. RuntimeError if a thread is in it, also if it is this one."""
        if self.is_inside():
            raise RuntimeError("this iterator of records is being advanced: a callback cannot read from it or close it")
        return claim(&self.busy, "iterator of records")

    cpdef bint is_inside(self):
        """Returns whether this thread is waiting for the next record, and called what asks for it: a callback."""
        return is_this_thread(&self.inside)

    def close(self):
        """Ends the iteration, as a generator's close does."""
        self.claimed()
        try:
            self.finish()
        finally:
            kl_leave(&self.busy)

    def refuse(self, error):
        """Ends the iteration; the next request for a record raises the error."""
        self.claimed()
        try:
            self.refusal = error
            self.finish()
        finally:
            kl_leave(&self.busy)

    def told(self):
        """Returns how far the iterator is in the current batch: (its reader, the offset after the last record
        returned, that record's leader epoch); None if no record was returned, or there is no batch. Also available
        after the end, and to a callback."""
        if self.is_inside():
            return self.reached()
        claim(&self.busy, "iterator of records")
        try:
            return self.reached()
        finally:
            kl_leave(&self.busy)

    cdef object reached(self):
        return None if self.told_offset < 0 else (self.told_reader, self.told_offset, self.told_epoch)

    def leave_batch(self):
        """Skips the rest of the current batch. A callback may do it, too."""
        if self.is_inside():
            self.end_batch()
            return
        claim(&self.busy, "iterator of records")
        try:
            self.end_batch()
        finally:
            kl_leave(&self.busy)

    cdef void end_batch(self):
        self.left = 0
        self.plain = None
        self.told_offset = -1

    def __del__(self):
        self.let_go()

    cdef int let_go(self) except -1:
        """Ends the iteration, and detaches the last records from the log's bytes."""
        cdef Record record
        self.is_over = True
        for record in (self.last, self.before_last):
            if record is not None:
                record.detach()
        self.last = self.before_last = None
        self.source = self.chunk_payload = None
        self.reader = self.chunk = self.plain = self.asynchronously = None
        return 0

    cdef int finish(self) except -1:
        if self.is_over:
            return 0
        self.let_go()
        batches = self.batches
        self.batches = None
        if hasattr(batches, "close"):
            batches.close()
        return 0

    cdef Record step(self):
        cdef RecordView view
        cdef int64_t offset
        cdef Record found
        while True:
            if self.left > 0:
                self.left -= 1
                if rec.next_record(&self.cursor, self.how, self.max_body, False, &view) != rec.OK:
                    raise RuntimeError("the batch changed while it was read")  # nobody else has it, and it was checked
                offset = rec.offset_of(&self.batch, &view)
                if not self.first_offset <= offset < self.end_offset:
                    continue
                if self.filters and not self.is_wanted(view.key, view.key_size, rec.timestamp_of(&self.batch, &view)):
                    continue
                self.check_forks()
                found = self.filled(&view, offset)
                if self.keep is not None and not self.keep(found):
                    continue
                self.told_offset = offset + 1
                self.told_epoch = self.leader_epoch
                return found
            if self.plain is not None:
                for found in self.plain:
                    self.check_forks()
                    if self.filters and not self.is_wanted_object(found):
                        continue
                    if self.keep is not None and not self.keep(found):
                        continue
                    self.told_offset = found.offset + 1
                    self.told_epoch = found.leader_epoch
                    return found
                self.plain = None
            if not self.next_batch():
                return None

    cdef bint is_wanted(self, const uint8_t* key, int64_t key_size, int64_t timestamp) except -1:
        """Returns whether the filters let a record through."""
        if not self.timestamp_min <= timestamp <= self.timestamp_max:
            return False
        return self.wanted_keys is None or is_wanted_key(&self.wanted_keys.keys, key, key_size)

    cdef bint is_wanted_object(self, Record record) except -1:
        cdef bytes key = record.key
        if key is None:
            return self.is_wanted(NULL, 0, record.timestamp)
        return self.is_wanted(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), record.timestamp)

    cdef int check_forks(self) except -1:
        if times_forked() != self.forks:
            self.reader.check_usable()
        return 0

    cdef bint next_batch(self) except -1:
        cdef BatchHeader header
        for reader, chunk, header in self.batches:  # if this raises, the position so far is still known
            self.told_offset = -1
            if self.filters and self.is_outside(header):
                continue
            if reader is not self.reader:
                self.reader = self.told_reader = reader
                self.topic, self.partition = reader.topic_partition
            self.first_offset = reader.first_offset
            end = reader.end_offset
            self.end_offset = INT64_MAX if end is None else end
            if not self.open_batch(chunk, header):
                self.left = 0
                self.plain = reader.plain_records(chunk, header)
            return True
        return False

    cdef bint is_outside(self, BatchHeader header) noexcept:
        """Returns whether no timestamp of the batch is wanted, by its header."""
        if header.row.magic != 2:
            return False
        if header.row.max_timestamp < self.timestamp_min:
            return True
        return header.row.attributes & TIMESTAMP_TYPE_FLAG and header.row.max_timestamp > self.timestamp_max

    cdef bint open_batch(self, chunk, BatchHeader header) except -1:
        """Returns whether the batch is a usual one with valid records; if so, they come next."""
        cdef const uint8_t* start
        cdef int64_t size = header.row.size
        cdef _Payload payload
        cdef bint good
        if header.row.magic != 2 or not 0 <= header.row.record_count <= self.part_records or size < RECORDS:
            return False
        if header.row.attributes & CODEC_MASK:
            body = self.reader.body_of(chunk, header)
            if body is None:
                return False
            payload = _Payload(body)
            start = <const uint8_t*>payload.view.buf
            size = payload.view.len
            self.how = rec.STREAM
        else:
            if chunk is not self.chunk:
                self.chunk_payload = _Payload(chunk.data)
                self.chunk = chunk
            payload = self.chunk_payload
            if not 0 <= header.row.position <= payload.view.len - size:
                return False
            start = <const uint8_t*>payload.view.buf + header.row.position + RECORDS
            size -= RECORDS
            self.how = rec.BUFFER
        if size <= 0:
            return False
        self.source = payload
        self.batch.count = header.row.record_count
        self.batch.base_offset = header.row.base_offset
        self.batch.base_timestamp = header.row.base_timestamp
        self.batch.log_append = (header.row.attributes & TIMESTAMP_TYPE_FLAG) != 0
        self.batch.append_time = header.row.max_timestamp
        self.timestamp_type = LOG_APPEND_TIME if self.batch.log_append else CREATE_TIME
        self.leader_epoch = header.row.leader_epoch
        self.cursor.at = start
        self.cursor.end = start + size
        if size < NOGIL_BYTES:
            good = is_whole(self.cursor, self.batch.count, self.how, self.max_body)
        else:
            with nogil:
                good = is_whole(self.cursor, self.batch.count, self.how, self.max_body)
        self.left = self.batch.count if good else 0
        return good

    cdef Record filled(self, const RecordView* view, int64_t offset):
        """Returns the record of `view`: reuses the last but one that was returned, if nobody kept it."""
        cdef Record record = self.before_last
        self.before_last = self.last
        self.last = None
        if record is None or not nobody_else_has(record, 1):
            if record is not None:
                record.detach()
            record = Record.__new__(Record)
        else:
            record.key_ = record.value_ = record.headers_ = None
            record.has_key = record.has_value = False
        if record.topic_ is not self.topic:
            record.topic_ = self.topic
        record.partition_ = self.partition
        record.leader_epoch_ = self.leader_epoch
        record.timestamp_type_ = self.timestamp_type
        record.offset_ = offset
        record.timestamp_ = rec.timestamp_of(&self.batch, view)
        record.source = self.source
        record.key_at = view.key
        record.key_size = view.key_size
        record.value_at = view.value
        record.value_size = view.value_size
        record.headers_at = view.headers
        record.header_count = view.header_count
        record.end = view.end
        self.last = record
        return record


@cython.auto_pickle(False)
@cython.final
cdef class Iteration:
    """An iterator of the things in `placed`, pairs of a place and a thing; `asynchronously()` is the iterator for
    `async for`.

    As in RecordWalk, no signal can come between returning a thing and recording its place, which `told` returns."""

    cdef object placed, asynchronously, place

    def __init__(self, placed, asynchronously=None):
        self.placed = placed
        self.asynchronously = asynchronously

    def __iter__(self):
        return self

    def __aiter__(self):
        if self.asynchronously is None:
            raise TypeError("use `for` with these record batches")
        return self.asynchronously()

    def __repr__(self):
        loops = "`for`, `list()`" if self.asynchronously is None else "`for`, `async for`"
        return f"<iterator of record batches: {loops}, `next()`>"

    def __next__(self):
        place, thing = next(self.placed)
        self.place = place
        return thing

    def told(self):
        """Returns the place of the last thing that was returned; None if there was none."""
        return self.place

    def close(self):
        """Closes the iterator, as a generator's close does."""
        self.placed.close()


cdef bint is_whole(Cursor cursor, int64_t count, int how, int64_t max_body) noexcept nogil:
    """Returns whether these are `count` records and nothing else."""
    cdef RecordView view
    cdef int64_t _i
    for _i in range(count):
        if rec.next_record(&cursor, how, max_body, False, &view) != rec.OK:
            return False
    return count == 0 or cursor.at == cursor.end
