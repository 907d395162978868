"""Binary search over the bytes of a mapped index, exactly as AbstractIndex does it.

Kafka looks first at the last 8 KiB of entries (the pages that stay warm, as most lookups are near the end),
and takes an equal entry wherever it meets one, so with duplicate keys the path decides which slot is found,
and an upper bound may be equal to its target.  Both are kept.

An index is a read-only buffer and a number of entries; offsets are stored relative to the segment's base.
The answer is a slot, -1 for none.  Unsorted entries (a damaged file) give some slot, never a read outside.
"""
import numpy as np

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from kafkalog._native.layout cimport load32, load64
from kafkalog._native.octets cimport open_octets

cdef enum Column:
    OFFSET_OF_OFFSET_INDEX  # int32 at 0 of 8 bytes, + base
    POSITION                # int32 at 4 of 8 bytes
    TIMESTAMP               # int64 at 0 of 12 bytes
    OFFSET_OF_TIME_INDEX    # int32 at 8 of 12 bytes, + base

cdef enum:
    OFFSET_ENTRY = 8
    TIME_ENTRY = 12
    WARM_BYTES = 8192


cdef struct Index:
    const uint8_t* bytes
    int64_t entries
    int64_t base
    Column column
    bint upper


cdef inline int64_t entry_bytes(Column column) noexcept nogil:
    return OFFSET_ENTRY if column == OFFSET_OF_OFFSET_INDEX or column == POSITION else TIME_ENTRY


cdef inline int64_t position_at(const Index* index, int64_t slot) noexcept nogil:
    return <int32_t>load32(index.bytes + slot * OFFSET_ENTRY + 4)


cdef inline int64_t key(const Index* index, int64_t slot) noexcept nogil:
    if index.column == OFFSET_OF_OFFSET_INDEX:
        return index.base + <int32_t>load32(index.bytes + slot * OFFSET_ENTRY)
    if index.column == POSITION:
        return position_at(index, slot)
    if index.column == TIMESTAMP:
        return <int64_t>load64(index.bytes + slot * TIME_ENTRY)
    return index.base + <int32_t>load32(index.bytes + slot * TIME_ENTRY + 8)


cdef int64_t find(const Index* index, int64_t target) noexcept nogil:
    """indexSlotRangeFor: the largest slot whose key is at most `target`, or (upper) the smallest of at least that."""
    cdef int64_t low, high, middle, found
    cdef int64_t last = index.entries - 1
    cdef int64_t first_hot
    if last < 0:
        return -1
    first_hot = max(0, last - WARM_BYTES // entry_bytes(index.column))
    if key(index, first_hot) < target:
        low = first_hot
        high = last
    elif key(index, 0) > target:
        return 0 if index.upper else -1
    else:
        low = 0
        high = first_hot
    while low < high:
        middle = (low + high + 1) >> 1
        found = key(index, middle)
        if found > target:
            high = middle - 1
        elif found < target:
            low = middle
        else:
            return middle
    if not index.upper:
        return low
    return -1 if low == last else low + 1


cdef int open_index(Index* index, Py_buffer* view, data, int64_t entries, int64_t base, Column column,
                    bint upper) except -1:
    open_octets(data, view)
    if entries < 0 or entries > view.len // entry_bytes(column):
        length = view.len
        PyBuffer_Release(view)
        raise ValueError(f"{entries} entries of {entry_bytes(column)} bytes do not lie within {length} bytes")
    index.bytes = <const uint8_t*>view.buf
    index.entries = entries
    index.base = base
    index.column = column
    index.upper = upper
    return 0


cdef object find_one(data, int64_t entries, int64_t base, int64_t target, Column column, bint upper):
    # A lookup takes less time than it would to hand the GIL over.
    cdef Index index
    cdef Py_buffer view
    cdef int64_t slot
    open_index(&index, &view, data, entries, base, column, upper)
    slot = find(&index, target)
    PyBuffer_Release(&view)
    return slot


cdef object find_many(data, int64_t entries, int64_t base, targets, Column column, bint upper):
    cdef Index index
    cdef Py_buffer view, wanted, out
    cdef Py_ssize_t i
    targets = np.ascontiguousarray(targets, np.int64)
    slots = np.empty(targets.shape, np.int64)
    memset(&wanted, 0, sizeof(Py_buffer))
    memset(&out, 0, sizeof(Py_buffer))
    open_index(&index, &view, data, entries, base, column, upper)
    try:
        open_octets(targets, &wanted)
        PyObject_GetBuffer(slots, &out, PyBUF_WRITABLE)
        with nogil:
            for i in range(min(wanted.len, out.len) // <Py_ssize_t>sizeof(int64_t)):
                (<int64_t*>out.buf)[i] = find(&index, (<const int64_t*>wanted.buf)[i])
    finally:
        PyBuffer_Release(&out)
        PyBuffer_Release(&wanted)
        PyBuffer_Release(&view)
    return slots


def find_offset(index, int64_t entries, int64_t base_offset, int64_t target):
    """Offset index: the last slot with offset <= target."""
    return find_one(index, entries, base_offset, target, OFFSET_OF_OFFSET_INDEX, False)


def find_offset_upper_bound(index, int64_t entries, int64_t base_offset, int64_t target):
    """Offset index: the first slot with offset > target, or one that is equal, as the search meets it."""
    return find_one(index, entries, base_offset, target, OFFSET_OF_OFFSET_INDEX, True)


def find_position_upper_bound(index, int64_t entries, int64_t target):
    """Offset index: the first slot with position (bytes) > target, or one that is equal, as the search meets it."""
    return find_one(index, entries, 0, target, POSITION, True)


def find_timestamp(index, int64_t entries, int64_t target):
    """Time index: the last slot with timestamp (ms) <= target."""
    return find_one(index, entries, 0, target, TIMESTAMP, False)


def find_time_offset(index, int64_t entries, int64_t base_offset, int64_t target):
    """Time index: the last slot with offset <= target."""
    return find_one(index, entries, base_offset, target, OFFSET_OF_TIME_INDEX, False)


def lookup_offset(index, int64_t entries, int64_t base_offset, int64_t target):
    """Offset index: (offset, position in bytes) of the last slot with offset <= target, or (base_offset, 0)."""
    cdef Index opened
    cdef Py_buffer view
    cdef int64_t slot, offset = base_offset, position = 0
    open_index(&opened, &view, index, entries, base_offset, OFFSET_OF_OFFSET_INDEX, False)
    slot = find(&opened, target)
    if slot >= 0:
        offset = key(&opened, slot)
        position = position_at(&opened, slot)
    PyBuffer_Release(&view)
    return offset, position


def lookup_position(index, int64_t entries, int64_t base_offset, int64_t target):
    """The second half of `lookup_offset`."""
    cdef Index opened
    cdef Py_buffer view
    cdef int64_t slot, position = 0
    open_index(&opened, &view, index, entries, base_offset, OFFSET_OF_OFFSET_INDEX, False)
    slot = find(&opened, target)
    if slot >= 0:
        position = position_at(&opened, slot)
    PyBuffer_Release(&view)
    return position


def find_offsets(index, int64_t entries, int64_t base_offset, targets):
    """`find_offset` for each of `targets` (int64) -> int64 slots; without the GIL."""
    return find_many(index, entries, base_offset, targets, OFFSET_OF_OFFSET_INDEX, False)


def find_position_upper_bounds(index, int64_t entries, targets):
    """`find_position_upper_bound` for each of `targets` (int64) -> int64 slots; without the GIL."""
    return find_many(index, entries, 0, targets, POSITION, True)


def find_timestamps(index, int64_t entries, targets):
    """`find_timestamp` for each of `targets` (int64, ms) -> int64 slots; without the GIL."""
    return find_many(index, entries, 0, targets, TIMESTAMP, False)


def find_time_offsets(index, int64_t entries, int64_t base_offset, targets):
    """`find_time_offset` for each of `targets` (int64) -> int64 slots; without the GIL."""
    return find_many(index, entries, base_offset, targets, OFFSET_OF_TIME_INDEX, False)
