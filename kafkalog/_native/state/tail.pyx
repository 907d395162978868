"""The end of the segment that is appended to: when it must roll, what an append writes, and how a failed one is undone.

Decides like LogSegment.shouldRoll and LogSegment.append (Apache Kafka 4.4.0). Index entries are planned before the
first byte is written (the caller handles an index that refuses them); then all files are written; then, once nothing
can fail any more, the numbers here change. A failed write is truncated again. No Python code, and so no signal handler,
runs between the first byte and the last number. Everything that an append changes (RecordsEnd, IndexEnd,
TransactionsEnd, the bases of the Python classes) is native, and the native IndexPlan lays out the entries. The only
possible Python code is a test's file object between a write and the disk.

On free-threaded Python readers read these fields during an append: Cython's getters and setters hold the object's
critical section. So does all code here that writes, or that reads what a reader may have opened. Fields that only
writers of the log change are read directly, under the log's lock. Elsewhere critical sections do nothing.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EIO, ENOSPC
from libc.stdint cimport INT32_MAX, int64_t, uint64_t

from kafkalog._native.codec.batches cimport BatchHeader, Entries, IndexPlan, Row, entry_is_due
from kafkalog._native.state.descriptor cimport Descriptor, is_plain
from kafkalog._native.codec.layout cimport OFFSET_ENTRY, TIME_ENTRY
from kafkalog._native.state.search cimport IndexEnd

# The result of an append: done, or why nothing was done.
WRITTEN, INDEX_REFUSES, FILE_AWAY = W_WRITTEN, W_INDEX_REFUSES, W_FILE_AWAY


cdef int set_size(channel, int64_t size) except -1:
    if is_plain(channel):
        return (<Descriptor>channel).set_size(size)
    channel.truncate(size)
    return 0


@cython.auto_pickle(False)
cdef class RecordsEnd(Held):
    """A .log file's logical `size` in bytes, and `channel`, the file while it is open. The base of FileRecords."""

    cdef int cut_to(self, int64_t size) except -1:
        set_size(self.channel, size)
        with cython.critical_section(self):
            self.size = size
        return 0

    def cut(self, int64_t size):
        """Truncates or extends the file to `size` bytes and sets `size`, in one step; a Pin keeps the channel open."""
        self.cut_to(size)


@cython.auto_pickle(False)
cdef class TransactionsEnd(Held):
    """The position of the next record of a transaction index. The base of TransactionIndex.

    `end` in bytes; `last_offset` of the last append, None if it is unknown; `channel`, the file while it is open.
    """

    cdef int cut_to(self, int64_t end) except -1:
        set_size(self.channel, end)
        with cython.critical_section(self):
            self.end = end
        return 0

    def cut(self, int64_t end):
        """Truncates or extends the file to `end` bytes and sets `end`, in one step; a Pin keeps the channel open."""
        self.cut_to(end)


cdef int write_entries(channel, const Entries* entries, int64_t position) except -1:
    if is_plain(channel):
        return (<Descriptor>channel).write_all(entries.bytes, <Py_ssize_t>entries.filled, position)
    channel.pwrite(PyBytes_FromStringAndSize(<const char*>entries.bytes, <Py_ssize_t>entries.filled), position)
    return 0


cdef extern from "errno.h":
    int EDQUOT


cdef int write_all(channel, tuple buffers, int64_t position, bint keeps_gil=False) except -1:
    """Writes the buffers, one after the other, at `position` of a file."""
    cdef Py_buffer head, body
    cdef Descriptor file
    if not is_plain(channel) or len(buffers) > 2:
        channel.pwritev(buffers, position)
        return 0
    file = <Descriptor>channel
    PyObject_GetBuffer(buffers[0], &head, PyBUF_SIMPLE)
    try:
        if len(buffers) == 1:
            return file.write_all(head.buf, head.len, position, keeps_gil)
        PyObject_GetBuffer(buffers[1], &body, PyBUF_SIMPLE)
        try:
            return file.write_pair(&head, &body, position)
        finally:
            PyBuffer_Release(&body)
    finally:
        PyBuffer_Release(&head)


@cython.auto_pickle(False)
@cython.final
cdef class SegmentTail:
    """Timestamps and distances at a segment's end.

    `max_timestamp` is the largest so far, of the batch that ends at `offset_of_max_timestamp` (together they are
    `largest_timestamp`); `first_timestamp` is the first batch's. Both are None until they were read. `log`,
    `offset_index`, `time_index` and `transactions` are written to; the indexes are None until they are open.
    """

    def __init__(
        self, int64_t base_offset, int64_t index_interval_bytes, int64_t roll_jitter_ms, int64_t created_ms,
        RecordsEnd log not None, TransactionsEnd transactions not None,
    ):
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.roll_jitter_ms = roll_jitter_ms
        self.created_ms = created_ms
        self.offset_of_largest = -1
        self.log = log
        self.transactions = transactions
        self.plan = IndexPlan.__new__(IndexPlan, base_offset, index_interval_bytes)  # created once, then reset

    @property
    def max_timestamp(self):
        with cython.critical_section(self):
            return self.largest if self.largest_known else None

    @property
    def offset_of_max_timestamp(self):
        with cython.critical_section(self):
            return self.offset_of_largest

    @property
    def largest_timestamp(self):
        """(max_timestamp, offset_of_max_timestamp), read and set at one moment; None until it was read from the
        index."""
        with cython.critical_section(self):
            return (self.largest, self.offset_of_largest) if self.largest_known else None

    @largest_timestamp.setter
    def largest_timestamp(self, found):
        cdef int64_t timestamp = -1, offset = -1
        if found is not None:
            timestamp, offset = found
        with cython.critical_section(self):
            self.largest_known = found is not None
            self.largest = timestamp
            self.offset_of_largest = offset

    def learn_largest_timestamp(self, found):
        """Stores what a reader found in the time index, unless a value is known already; returns the known value."""
        cdef int64_t timestamp, offset
        timestamp, offset = found
        with cython.critical_section(self):
            if not self.largest_known:
                self.largest_known = True
                self.largest = timestamp
                self.offset_of_largest = offset
            return self.largest, self.offset_of_largest

    @property
    def first_timestamp(self):
        with cython.critical_section(self):
            return self.first if self.first_known else None

    @first_timestamp.setter
    def first_timestamp(self, timestamp):
        cdef int64_t found = -1 if timestamp is None else timestamp
        with cython.critical_section(self):
            self.first_known = timestamp is not None
            self.first = found

    @property
    def is_known(self):
        """Whether `must_roll` and `append` may be called: indexes are open, timestamps known."""
        return self.knows_end()

    @cython.critical_section
    cdef bint knows_end(self) noexcept:
        return (
            self.offset_index is not None and self.time_index is not None and self.largest_known
            and (self.first_known or self.log.size == 0)
        )

    @cython.critical_section
    cdef IndexEnd offsets_end(self):
        return self.offset_index

    @cython.critical_section
    cdef IndexEnd times_end(self):
        return self.time_index

    def time_waited_for_roll(self, int64_t now, int64_t timestamp):
        """Returns the ms from the first batch's timestamp to `timestamp`; without one, from opening to `now`. Wraps as
        Java's."""
        return self.waited(now, timestamp)

    @cython.critical_section
    cdef int64_t waited(self, int64_t now, int64_t timestamp) noexcept:
        if self.first_known and self.first >= 0:
            return <int64_t>(<uint64_t>timestamp - <uint64_t>self.first)
        return <int64_t>(<uint64_t>now - <uint64_t>self.created_ms)

    def must_roll(
        self, int64_t max_segment_ms, int64_t max_segment_bytes, int64_t max_timestamp, int64_t max_offset,
        int64_t messages_bytes, int64_t now,
    ):
        """Returns whether an append must go to a new segment: because of bytes, time, a full index or too large an
        offset."""
        return self.is_over(max_segment_ms, max_segment_bytes, max_timestamp, max_offset, messages_bytes, now)

    cdef bint is_over(
        self, int64_t max_segment_ms, int64_t max_segment_bytes, int64_t max_timestamp, int64_t max_offset,
        int64_t messages_bytes, int64_t now,
    ) noexcept:
        cdef IndexEnd offset_index, time_index
        cdef uint64_t distance = <uint64_t>max_offset - <uint64_t>self.base_offset
        if self.log.size > max_segment_bytes - messages_bytes:
            return True
        if self.log.size > 0 and self.waited(now, max_timestamp) > max_segment_ms - self.roll_jitter_ms:
            return True
        offset_index, time_index = self.offsets_end(), self.times_end()
        return (
            offset_index.entries >= offset_index.max_entries
            or time_index.entries >= time_index.max_entries - 1
            or distance > INT32_MAX
        )

    cdef IndexPlan planned(self, list headers):
        """Plans the entries of these batches and the numbers after them; `error_kind` of the plan says what an index
        refuses."""
        cdef IndexEnd offset_index = self.offsets_end(), time_index = self.times_end()
        cdef IndexPlan plan = self.plan
        cdef int64_t position = self.log.size
        cdef BatchHeader header
        cdef int error
        plan.offsets.filled = plan.times.filled = 0
        plan._bytes_since_last_entry = self.bytes_since_last_index_entry
        plan._max_timestamp = self.largest
        plan._offset_of_max_timestamp = self.offset_of_largest
        plan.last_time = time_index.last_timestamp
        plan.last_time_offset = time_index.last_offset
        plan._last_offset_entry = offset_index.last_offset
        plan.offset_entry_count_ = offset_index.entries
        plan.time_entry_count_ = time_index.entries
        plan.max_offset_entries = offset_index.max_entries
        plan.max_time_entries = time_index.max_entries
        for header in headers:
            error = plan.add(&header.row, position)
            if not plan.settle(error, 0):
                break
            position += header.row.size
        return plan

    cdef int write(
        self, tuple buffers, list headers, bytes aborted, last_aborted, bint keeps_gil=False,
    ) except -1:
        """Writes whole batches at the end, with their entries in the indexes and the transaction index; all or nothing.

        Returns INDEX_REFUSES if an index is full, or its last entry is not below the new one; FILE_AWAY if a file must
        be opened again first. In both cases, and if a write fails and raises, nothing was done. `keeps_gil`: as
        `Descriptor.write_all`.
        """
        cdef RecordsEnd log = self.log
        cdef IndexEnd offset_index = None, time_index = None
        cdef TransactionsEnd transactions = None
        cdef IndexPlan plan = None
        cdef BatchHeader header
        cdef int64_t size = 0
        if len(headers) == 0:  # a batch without records may have been rebuilt to nothing
            return W_WRITTEN
        for header in headers:
            size += header.row.size
        if len(headers) > 1 or entry_is_due(self.bytes_since_last_index_entry, self.index_interval_bytes):
            plan = self.planned(headers)
            if plan.error_row >= 0:
                return W_INDEX_REFUSES
            if plan.offsets.filled:
                offset_index, time_index = self.offsets_end(), self.times_end()
                if offset_index.behind or time_index.behind:
                    return W_INDEX_REFUSES
        if aborted:
            transactions = self.transactions
        # From here on the files cannot be closed.
        log.pin()
        if offset_index is not None:
            offset_index.pin()
            time_index.pin()
        if transactions is not None:
            transactions.pin()
        try:
            if (
                log.is_away() or (transactions is not None and transactions.is_away())
                or (offset_index is not None and (offset_index.is_away() or time_index.is_away()))
            ):
                return W_FILE_AWAY
            self.write_pinned(
                buffers, headers, size, plan, offset_index, time_index, aborted, last_aborted, keeps_gil
            )
            return W_WRITTEN
        finally:
            log.unpin()
            if offset_index is not None:
                offset_index.unpin()
                time_index.unpin()
            if transactions is not None:
                transactions.unpin()

    # More than eight parameters: the results of `write`, its only caller.
    cdef int write_pinned(
        self, tuple buffers, list headers, int64_t size, IndexPlan plan, IndexEnd offset_index, IndexEnd time_index,
        bytes aborted, last_aborted, bint keeps_gil,
    ) except -1:
        """Does `write` when all its files are open, and stay so; `offset_index` and `time_index` are None if the plan
        has no entries."""
        cdef RecordsEnd log = self.log
        cdef TransactionsEnd transactions = self.transactions
        cdef BatchHeader first = headers[0]
        cdef const Row* row = &first.row
        cdef int64_t position = log.size
        try:
            write_all(log.channel, buffers, position, keeps_gil)
            if offset_index is not None:
                write_entries(offset_index.channel, &plan.offsets, offset_index.entries * OFFSET_ENTRY)
                if plan.times.filled:
                    write_entries(time_index.channel, &plan.times, time_index.entries * TIME_ENTRY)
            if aborted:
                write_all(transactions.channel, (aborted,), transactions.end)
        except BaseException as error:
            self.take_back(position, bool(aborted), error)
            raise

        with cython.critical_section(log):
            log.size = position + size
        with cython.critical_section(self):
            if plan is None:
                self.bytes_since_last_index_entry += size
                if row.max_timestamp > self.largest:
                    self.largest = row.max_timestamp
                    self.offset_of_largest = row.last_offset
            else:
                self.bytes_since_last_index_entry = plan._bytes_since_last_entry
                self.largest = plan._max_timestamp
                self.offset_of_largest = plan._offset_of_max_timestamp
            if position == 0 and not self.first_known:
                self.first_known = True
                self.first = row.max_timestamp
        if offset_index is not None:
            with cython.critical_section(offset_index):
                offset_index.entries = plan.offset_entry_count_
                offset_index.last_offset = plan._last_offset_entry
                offset_index.dirty = True
            if plan.times.filled:
                with cython.critical_section(time_index):
                    time_index.entries = plan.time_entry_count_
                    time_index.last_timestamp = plan.last_time
                    time_index.last_offset = plan.last_time_offset
                    time_index.dirty = True
        if aborted:
            with cython.critical_section(transactions):
                transactions.end += len(aborted)
                transactions.last_offset = last_aborted
        return 0

    cdef int take_back(self, int64_t size, bint with_transactions, error) except -1:
        """Truncates what a failed append wrote, as far as the disk permits; index entries after the last one do not
        count.

        The first error is the one to raise. The exception is lack of space, which may pass: the next append would then
        come after bytes that could not be truncated. So in this case the disk counts as failed (EIO).
        """
        left = None
        try:
            self.log.cut_to(size)
        except Exception as another:
            left = another
        try:
            if with_transactions:
                self.transactions.cut_to(self.transactions.end)
        except Exception as another:
            left = another
        if left is not None and isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
            raise OSError(EIO, f"the incomplete write cannot be truncated ({left}), after: {error}", error.filename)
        return 0

    def append(self, tuple buffers not None, list headers not None):
        """`write` for a segment without a log; returns 0, or the reason why nothing was done."""
        return self.write(buffers, headers, None, None)
