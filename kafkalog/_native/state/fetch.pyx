"""From an offset to a slice of the .log file: LogSegment.read for the ordinary case, in one call.

The index gives a position; headers are read from there until the batch is found, and the slice is returned. No record
bodies are read. The caller holds no lock. The caller handles everything unusual in Python, by Kafka's rules: closed
files, indexes that are not held, doubtful entries, old or damaged batches on the way, and the file objects of tests.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint64_t, uint8_t
from libc.string cimport memcpy

from kafkalog._native.state.descriptor cimport Descriptor, is_plain
from kafkalog._native.codec.layout cimport (
    BASE_OFFSET,
    BATCH_LENGTH,
    HEADER_SIZE_UP_TO_MAGIC,
    LAST_OFFSET_DELTA,
    LOG_OVERHEAD,
    MAGIC,
    RECORDS,
    load32,
    load64,
)
from kafkalog._native.codec.named cimport made, set_item
from kafkalog._native.state.search cimport NO_SLOT, IndexEnd
from kafkalog._native.state.tail cimport RecordsEnd, SegmentTail

cdef enum:
    # About two index intervals: the wanted header and the one after it. With larger batches it would hold one header
    # and much that is not needed.
    SEARCH_WINDOW = 8192
    LARGE_BATCH = 2048

cdef struct Found:
    int64_t base_offset
    int64_t position
    int64_t size


cdef int header_bytes(file, Descriptor plain, uint8_t* window, int64_t want, int64_t position) except -1 nogil:
    """Returns whether `want` bytes of the file are in the window."""
    if plain is not None:
        return plain.read_quietly(window, want, position) == want
    with gil:
        return read_python(file, window, want, position)


cdef int read_python(file, uint8_t* window, int64_t want, int64_t position) except -1:
    cdef bytes data = file.pread(want, position)
    if len(data) != want:
        return False
    memcpy(window, PyBytes_AS_STRING(data), <size_t>want)
    return True


cdef int walk(file, Descriptor plain, int64_t target, int64_t position, int64_t end, Found* found) except -1 nogil:
    """Returns whether the batch was found; see `batch_with_offset`."""
    cdef uint8_t[SEARCH_WINDOW] window
    cdef const uint8_t* p
    cdef int64_t at = 0, filled = 0, want = RECORDS
    cdef int64_t left, base_offset, size
    cdef int64_t previous_base = 0, previous_last = 0, previous_size = 0
    if position < 0 or position > end:
        return False
    while end - position > HEADER_SIZE_UP_TO_MAGIC:
        left = end - position
        if left < RECORDS:
            return False
        if at > filled - RECORDS:
            want = min(want, left)
            if not header_bytes(file, plain, window, want, position):
                return False
            filled = want
            at = 0
        p = window + at
        size = <int64_t><int32_t>load32(p + BATCH_LENGTH) + LOG_OVERHEAD
        if p[MAGIC] != 2 or size < RECORDS or size > left:
            return False
        base_offset = <int64_t>load64(p + BASE_OFFSET)
        if base_offset >= target:
            if base_offset == target or previous_size == 0 or previous_last < target:
                found.base_offset, found.position, found.size = base_offset, position, size
                return True
            break
        previous_base = base_offset
        previous_last = <int64_t>(load64(p + BASE_OFFSET) + <uint64_t><int64_t><int32_t>load32(p + LAST_OFFSET_DELTA))
        previous_size = size
        want = RECORDS if size >= LARGE_BATCH else SEARCH_WINDOW
        position += size
        at += size
    if previous_size == 0 or previous_last < target:
        return False
    found.base_offset, found.position, found.size = previous_base, position - previous_size, previous_size
    return True


cdef int find(file, int64_t target, int64_t position, int64_t end, Found* found) except -1:
    cdef Descriptor plain = None
    cdef bint done
    if is_plain(file):
        plain = <Descriptor>file
        with nogil:
            done = walk(file, plain, target, position, end, found)
        return done
    return walk(file, None, target, position, end, found)


def batch_with_offset(file, int64_t target, int64_t position, int64_t end):
    """Finds the batch that contains `target`, or the first one after it, from `position` on in a file of `end` bytes.

    `file.pread(count, position)` returns its bytes; bodies are not read while batches are large. Returns (base offset,
    position, size), or None if there is no such batch, or if anything but whole batches of magic 2 is on the way. The
    caller then walks itself, by the rules of `FRAMING_FILE`.
    """
    cdef Found found
    if find(file, target, position, end, &found):
        return found.base_offset, found.position, found.size
    return None


@cython.auto_pickle(False)
cdef class RecordsSlice:
    """`size` bytes of `file` from `position` on. The base of FileRecordsSlice."""

    cdef readonly object file
    cdef readonly int64_t position
    cdef readonly int64_t size

    def __cinit__(self, file, int64_t position, int64_t size):
        self.file = file
        self.position = position
        self.size = size

    def to_bytes(self):
        """Returns all bytes; KafkaException if the file was truncated since."""
        cdef bytes data = b""
        if self.size and is_plain(self.file):
            data = (<Descriptor>self.file).read_bytes(<Py_ssize_t>self.size, self.position)
        elif self.size:
            data = self.file.pread(self.size, self.position)
        if len(data) < self.size:
            raise self.truncated(len(data))
        return data


def slice_at(
    tuple kinds not None, int64_t segment_base, log, channel, tuple found not None, int64_t max_size,
    int64_t max_position,
):
    """Returns the result of a read that found a batch (base offset, position, size). `kinds` are the classes
    LogOffsetMetadata, FileRecordsSlice and FetchDataInfo, `log` is the FileRecords whose open file is `channel`."""
    cdef Found batch
    batch.base_offset, batch.position, batch.size = found
    return told(kinds, segment_base, log, channel, &batch, max_size, max_position)


cdef object told(
    tuple kinds, int64_t segment_base, RecordsEnd log, channel, const Found* found, int64_t max_size,
    int64_t max_position,
):
    cdef int64_t left = max_position - found.position
    cdef int64_t size, there
    if left < 0:
        left = <int32_t>left  # Java's cast
    size = min(left, max_size)
    with cython.critical_section(log):
        there = log.size - found.position
    if size < 0 or size > there:
        size = log.slice(found.position, size).size  # limits it, or raises
    records = kinds[1](channel, found.position, size)
    metadata = made(kinds[0], 3)
    set_item(metadata, 0, found.base_offset)
    set_item(metadata, 1, segment_base)
    set_item(metadata, 2, found.position)
    info = made(kinds[2], 4)
    set_item(info, 0, metadata)
    set_item(info, 1, records)
    set_item(info, 2, max_size < found.size)
    set_item(info, 3, None)
    return info


def read(
    SegmentTail tail not None, tuple kinds not None, int64_t offset, int64_t max_size, int64_t max_position,
    bint min_one_message,
):
    """Returns `slice_at` for the batch that contains `offset`: at most `max_size` bytes, up to `max_position` (-2^63+1:
    the end).

    `min_one_message`: that batch completely, however large. None if the caller must search itself.
    """
    cdef RecordsEnd log = tail.log
    cdef IndexEnd index
    cdef Found found
    cdef int64_t entry_offset, position, end
    with cython.critical_section(tail):
        index = tail.offset_index
    if index is None or max_size < 1:
        return None
    with cython.critical_section(log):
        channel = log.channel
        end = log.size
        log.used = True
    if channel is None or index.look(-1, offset, &entry_offset, &position) < NO_SLOT:
        return None
    if not find(channel, offset, position, end, &found):
        return None
    if position > 0 and found.base_offset > offset:
        return None  # either the entry is wrong, or this batch is the first one after a gap
    if min_one_message and found.size > max_size:
        max_size = found.size
    if max_position == -INT64_MAX:
        max_position = end
    return told(kinds, tail.base_offset, log, channel, &found, max_size, max_position)
