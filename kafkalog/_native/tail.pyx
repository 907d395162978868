"""The end of a segment that appends go to: what a leader's common append needs to know and to move, in one call.

Decides like LogSegment.shouldRoll and LogSegment.append (Apache Kafka 4.4.0), writes through the files it is given and
leaves everything that is not common to its caller: `append` then answers -1, and nothing was done.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkalog._native.layout cimport store32
from kafkalog._native.validation cimport ClientBatch

cdef enum:
    INT_MAX = 0x7FFFFFFF


@cython.auto_pickle(False)
cdef class RecordsEnd:
    """A .log file's logical `size` in bytes, and `channel`, the open file.  The base of FileRecords."""

    cdef public int64_t size
    cdef public object channel


@cython.auto_pickle(False)
cdef class IndexEnd:
    """How far an index file is filled.  The base of AbstractIndex.

    `entries` count, `max_entries` fit; `last_offset` is the last one's, or the base offset; `last_timestamp` only a
    time index has, -1 without an entry.  `channel` is the file while it is open.  `behind` is how many bytes Kafka's
    map position is behind the entries: 0, but for an index that was cut below them.
    """

    cdef public int64_t entries
    cdef public int64_t max_entries
    cdef public int64_t last_offset
    cdef public int64_t last_timestamp
    cdef public int64_t behind
    cdef public bint dirty
    cdef public object channel


@cython.auto_pickle(False)
@cython.final
cdef class SegmentTail:
    """Timestamps and distances at a segment's end.

    `max_timestamp` is the largest so far, of the batch that ends at `offset_of_max_timestamp`, `first_timestamp` the
    first batch's; both None until someone looked.  `log`, `offset_index` and `time_index` are what is written to; the
    indexes None until they are open.
    """

    cdef readonly int64_t base_offset
    cdef readonly int64_t index_interval_bytes
    cdef readonly int64_t roll_jitter_ms
    cdef public int64_t bytes_since_last_index_entry
    cdef public int64_t offset_of_max_timestamp
    cdef public RecordsEnd log
    cdef public IndexEnd offset_index, time_index
    cdef int64_t largest, first
    cdef bint largest_known, first_known

    def __init__(
        self, int64_t base_offset, int64_t index_interval_bytes, int64_t roll_jitter_ms, RecordsEnd log not None
    ):
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self.roll_jitter_ms = roll_jitter_ms
        self.offset_of_max_timestamp = -1
        self.log = log

    @property
    def max_timestamp(self):
        return self.largest if self.largest_known else None

    @max_timestamp.setter
    def max_timestamp(self, timestamp):
        self.largest_known = timestamp is not None
        self.largest = timestamp if self.largest_known else -1

    @property
    def first_timestamp(self):
        return self.first if self.first_known else None

    @first_timestamp.setter
    def first_timestamp(self, timestamp):
        self.first_known = timestamp is not None
        self.first = timestamp if self.first_known else -1

    cdef int add_offset_entry(self, IndexEnd index, int64_t last_offset, int32_t position) except -1:
        cdef uint8_t entry[8]
        if index.channel is None or index.behind or (index.entries and last_offset <= index.last_offset):
            index.append(last_offset, position)
            return 0
        store32(entry, <uint32_t>(last_offset - self.base_offset))
        store32(entry + 4, <uint32_t>position)
        index.channel.pwrite(PyBytes_FromStringAndSize(<const char*>entry, 8), index.entries * 8)
        index.dirty = True
        index.entries += 1
        index.last_offset = last_offset
        return 0

    def append(
        self,
        ClientBatch batch not None,
        data,
        int64_t next_offset,
        int32_t leader_epoch,
        int64_t segment_ms,
        int64_t segment_bytes,
    ):
        """Writes the batch of `data` with offsets from `next_offset` on, and its index entries; its last offset.

        -1 when the segment must roll, or may have to.  An OSError leaves the log as it was, its indexes perhaps ahead.
        """
        cdef RecordsEnd log = self.log
        cdef IndexEnd offset_index = self.offset_index, time_index = self.time_index
        cdef int64_t size, last_offset = <int64_t>(<uint64_t>next_offset + <uint64_t>batch.row.record_count - 1)
        cdef int64_t timestamp = batch.row.max_timestamp
        if not self.largest_known or offset_index is None or time_index is None:
            return -1
        size = log.size
        if size > segment_bytes - batch.row.size:
            return -1
        if size > 0 and (
            not self.first_known or self.first < 0 or timestamp < 0
            or timestamp - self.first > segment_ms - self.roll_jitter_ms
        ):
            return -1
        if last_offset < next_offset or <uint64_t>last_offset - <uint64_t>self.base_offset > INT_MAX:
            return -1
        if offset_index.entries >= offset_index.max_entries or time_index.entries >= time_index.max_entries - 1:
            return -1

        buffers = batch.stamped(data, next_offset, leader_epoch)
        try:
            log.channel.pwritev(buffers, size)
        except OSError:
            log.undo_write(size)
            raise
        log.size = size + batch.row.size
        if timestamp > self.largest:
            self.largest = timestamp
            self.offset_of_max_timestamp = last_offset
        if self.bytes_since_last_index_entry > self.index_interval_bytes:
            self.add_offset_entry(offset_index, last_offset, <int32_t>size)
            if self.largest != time_index.last_timestamp:
                time_index.maybe_append(self.largest, self.offset_of_max_timestamp)
            self.bytes_since_last_index_entry = batch.row.size
        else:
            self.bytes_since_last_index_entry += batch.row.size
        if size == 0 and not self.first_known:
            self.first_known = True
            self.first = timestamp
        return last_offset
