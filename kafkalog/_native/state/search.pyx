"""The filled end of an index, and binary search over its bytes exactly as AbstractIndex does it.

Kafka first searches the last 8 KiB of entries, the pages that stay in memory because most look-ups are near the end. It
returns an equal entry as soon as it finds one, so with duplicate keys the path decides which slot is found, and an
upper bound may be equal to its target. Both are kept. Unsorted entries (a damaged file) give an arbitrary slot, never a
read outside the bytes.

An IndexEnd holds the bytes that are searched, a map of the file or a copy, from `hold` to `let_go`. Each search runs
inside one critical section, or with the GIL, which is equivalent for `let_go`. Only `lookup_many` releases the GIL, and
is counted in `users` meanwhile. So a file is unmapped before it is truncated, while nobody reads the map, and a search
that finds no bytes returns NOT_NOW (`lookup` then calls `lookup_under_lock`). The layout of entries is in `layout`.
"""
import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from kafkalog._native.state.held cimport HeldFiles
from kafkalog._native.codec.layout cimport (
    OFFSET_ENTRY,
    OFFSET_ENTRY_OFFSET,
    OFFSET_ENTRY_POSITION,
    TIME_ENTRY,
    TIME_ENTRY_OFFSET,
    TIME_ENTRY_TIMESTAMP,
    load32,
    load64,
)
from kafkalog._native.codec.named cimport made, set_item
from kafkalog._native.codec.octets cimport open_octets

# The field that a search compares; it also determines the kind of index.
OFFSET, BYTE_POSITION, TIME, TIME_OFFSET = OFFSET_OF_OFFSET_INDEX, POSITION, TIMESTAMP, OFFSET_OF_TIME_INDEX

cdef enum:
    WARM_BYTES = 8192

cdef extern from *:
    """
    #if defined(__GNUC__)
      #define KL_PREFETCH(p) __builtin_prefetch(p)
    #else
      #define KL_PREFETCH(p) ((void)0)
    #endif
    """
    void KL_PREFETCH(const void* p) noexcept nogil

cdef extern from "lanes.h" nogil:
    enum:
        LANES "KL_LANES"
    # Parallel searches: `low` (with `room` above it) becomes the slot.
    void lanes_step(const uint8_t* index, bint times, int64_t base, const int64_t* targets, int64_t* low, int64_t* room,
                    int64_t widest) noexcept


cdef inline int64_t entry_bytes(Column column) noexcept nogil:
    return OFFSET_ENTRY if column == OFFSET_OF_OFFSET_INDEX or column == POSITION else TIME_ENTRY


cdef inline int64_t key(const uint8_t* index, int64_t slot, int64_t base, Column column) noexcept nogil:
    """Returns the key of an entry; offsets wrap as Java's addition does."""
    if column == OFFSET_OF_OFFSET_INDEX:
        return absolute(base, load32(index + slot * OFFSET_ENTRY + OFFSET_ENTRY_OFFSET))
    if column == POSITION:
        return <int32_t>load32(index + slot * OFFSET_ENTRY + OFFSET_ENTRY_POSITION)
    if column == TIMESTAMP:
        return <int64_t>load64(index + slot * TIME_ENTRY + TIME_ENTRY_TIMESTAMP)
    return absolute(base, load32(index + slot * TIME_ENTRY + TIME_ENTRY_OFFSET))


cdef inline int64_t absolute(int64_t base, int32_t relative) noexcept nogil:
    return <int64_t>(<uint64_t>base + <uint64_t><int64_t>relative)


cdef inline int64_t beyond(int64_t slot) noexcept nogil:
    return NOT_NOW - 1 - slot


cdef inline int64_t find_in(const uint8_t* index, int64_t inside, int64_t entries, int64_t base, int64_t target,
                            Column column, bint upper) noexcept nogil:
    """indexSlotRangeFor: the largest slot whose key is at most `target`, or (upper) the smallest whose key is at least
    `target`.

    `inside` of the `entries` are within the bytes.
    """
    cdef int64_t middle, found
    cdef bint above
    cdef int64_t last = entries - 1
    cdef int64_t low = 0, high = max(0, last - WARM_BYTES // entry_bytes(column))
    if last < 0:
        return NO_SLOT
    if high >= inside:
        return beyond(high)
    if key(index, high, base, column) < target:
        low = high
        high = last
    elif key(index, 0, base, column) > target:
        return 0 if upper else NO_SLOT
    while low < high:
        middle = (low + high + 1) >> 1
        if middle >= inside:
            return beyond(middle)
        # The two places that the next step may read.
        KL_PREFETCH(index + ((low + middle) >> 1) * entry_bytes(column))
        KL_PREFETCH(index + ((middle + high + 1) >> 1) * entry_bytes(column))
        found = key(index, middle, base, column)
        if found == target:
            return middle
        above = found > target
        high = middle - 1 if above else high  # conditional moves, not branches: nothing could predict these
        low = low if above else middle
    if not upper:
        return low
    return NO_SLOT if low == last else low + 1


cdef inline void find_lanes(const uint8_t* index, int64_t entries, int64_t base, const int64_t* targets,
                            Column column, int64_t* slots) noexcept nogil:
    """Does `find_in` for LANES targets in step; all entries are within the bytes, and there is at least one."""
    cdef int64_t[LANES] room
    cdef int64_t last = entries - 1
    cdef int64_t warm = max(0, last - WARM_BYTES // entry_bytes(column))
    cdef int64_t least = key(index, 0, base, column), warmest = key(index, warm, base, column)
    cdef int lane
    for lane in range(LANES):
        slots[lane] = warm if warmest < targets[lane] else 0
        room[lane] = last - warm if warmest < targets[lane] else 0 if least > targets[lane] else warm
    lanes_step(index, column == TIMESTAMP, base, targets, slots, room, max(warm, last - warm))
    for lane in range(LANES):
        if warmest >= targets[lane] and least > targets[lane]:
            slots[lane] = NO_SLOT


cdef object pair(kind, int64_t first, int64_t second):
    named = made(kind, 2)
    set_item(named, 0, first)
    set_item(named, 1, second)
    return named


@cython.auto_pickle(False)
@cython.no_gc_clear  # the bytes stay held until nobody can search them
cdef class IndexEnd(Held):
    """The filled part of an index file, and the bytes that are searched. The base of AbstractIndex.

    `kind` is a named tuple of an entry's two numbers, `column` the first of them, which `lookup` searches. `entries` is
    the number of entries, `max_entries` the capacity. `last_offset` is the last entry's, or the base offset; only a
    time index has `last_timestamp`, -1 without an entry. `channel` is the file while it is open. `behind` is how many
    bytes Kafka's map position is after the entries: 0, unless the index was truncated below it.
    """

    def __cinit__(self, *args, **kwargs):
        memset(&self.view, 0, sizeof(Py_buffer))
        self.kind = tuple

    def __init__(self, int64_t base_offset, type kind not None, int column):
        if not issubclass(kind, tuple):
            raise TypeError(kind)
        if column != OFFSET_OF_OFFSET_INDEX and column != TIMESTAMP:
            raise ValueError(column)
        self.base_offset = self.last_offset = base_offset
        self.last_timestamp = -1
        self.kind = kind
        self.column = <Column>column

    def __dealloc__(self):
        if self.view.buf != NULL:
            PyBuffer_Release(&self.view)

    def added(self, int64_t count, int64_t last_offset, int64_t last_timestamp):
        """Counts entries that were written and sets the last one, in one step."""
        with cython.critical_section(self):
            self.entries += count
            self.last_offset = last_offset
            self.last_timestamp = last_timestamp
            self.dirty = True

    @property
    def last(self):
        """(last_timestamp, last_offset), read at one moment."""
        with cython.critical_section(self):
            return self.last_timestamp, self.last_offset

    @last.setter
    def last(self, entry):
        cdef int64_t timestamp, offset
        timestamp, offset = entry
        with cython.critical_section(self):
            self.last_timestamp = timestamp
            self.last_offset = offset

    # --- the bytes (changed under the index's lock) ---

    @property
    def held_bytes(self):
        """The number of bytes held; -1 for none at all."""
        with cython.critical_section(self):
            return -1 if self.view.buf == NULL else self.view.len

    cdef bint has_none(self) noexcept:
        return self.channel is None and self.view.buf == NULL

    cdef bint is_busy(self) noexcept:
        return self.pins != 0 or self.users != 0

    cdef object give_up(self):
        channel = self.channel
        self.channel = None
        if self.view.buf != NULL:
            PyBuffer_Release(&self.view)
            memset(&self.view, 0, sizeof(Py_buffer))
        return channel

    def hold(self, data, HeldFiles files=None):
        """Searches these bytes from now on, unless others are held already: a signal handler may have set them
        meanwhile.

        In `files` they count as a file, because they may be a map of one.
        """
        cdef Py_buffer view
        cdef bint taken = False
        open_octets(data, &view)
        with cython.critical_section(self):
            if self.view.buf == NULL:
                memcpy(&self.view, &view, sizeof(Py_buffer))
                taken = True
        if not taken:
            PyBuffer_Release(&view)
        elif files is not None:
            files.count(self, None)

    def let_go(self, bint forked=False):
        """Releases the bytes; returns False, and does nothing, while a search runs without the GIL.

        `forked`: this process was forked, and the counted searches are threads of its parent.
        """
        cdef Py_buffer view
        with cython.critical_section(self):
            if forked:
                self.users = 0
            if self.users:
                return False
            memcpy(&view, &self.view, sizeof(Py_buffer))
            memset(&self.view, 0, sizeof(Py_buffer))
        if view.buf != NULL:
            PyBuffer_Release(&view)  # the last holder of a map unmaps it
        return True

    def copied(self, int64_t start, int64_t length):
        """Returns up to `length` bytes from `start`, fewer at the end of the held bytes; None if none are held."""
        with cython.critical_section(self):
            if self.view.buf == NULL:
                return None
            if start < 0 or length < 0:
                raise ValueError(f"start, length: found {start} and {length}, expected 0 or more")
            start = min(start, self.view.len)
            return PyBytes_FromStringAndSize(<const char*>self.view.buf + start, min(length, self.view.len - start))

    # --- searching ---

    cdef int64_t slot_of(self, int64_t entries, Column column, int64_t target, bint upper) noexcept:
        """Searches; called inside the critical section."""
        cdef const uint8_t* index = <const uint8_t*>self.view.buf
        cdef int64_t inside
        self.used = True
        if index == NULL or entries < 0:
            return NOT_NOW
        inside = self.view.len // entry_bytes(column)
        if column == OFFSET_OF_OFFSET_INDEX:  # a separate loop for each column: the compiler knows the constant
            return find_in(index, inside, entries, self.base_offset, target, OFFSET_OF_OFFSET_INDEX, upper)
        if column == TIMESTAMP:
            return find_in(index, inside, entries, 0, target, TIMESTAMP, upper)
        return find_in(index, inside, entries, self.base_offset, target, column, upper)

    @cython.critical_section
    cdef int64_t look(self, int64_t entries, int64_t target, int64_t* first, int64_t* second) noexcept:
        """Finds the two numbers of the last entry at or below `target` and returns its slot; entries < 0: all, if they
        are held."""
        cdef const uint8_t* index = <const uint8_t*>self.view.buf
        cdef int64_t slot
        cdef Column other = POSITION if self.column == OFFSET_OF_OFFSET_INDEX else OFFSET_OF_TIME_INDEX
        first[0] = self.base_offset if self.column == OFFSET_OF_OFFSET_INDEX else -1
        second[0] = 0 if self.column == OFFSET_OF_OFFSET_INDEX else self.base_offset
        if entries < 0:
            entries = self.entries
            if entries == 0:
                return NO_SLOT
            if index == NULL or entries > self.view.len // entry_bytes(self.column):
                return NOT_NOW
        slot = self.slot_of(entries, self.column, target, False)
        if slot >= 0:
            first[0] = key(index, slot, self.base_offset, self.column)
            second[0] = key(index, slot, self.base_offset, other)
        return slot

    def lookup(self, int64_t target):
        """Returns the last entry at or below `target`. Before the first entry this is (base offset, 0), or (-1, base
        offset) in a time index."""
        cdef int64_t first, second
        if self.look(-1, target, &first, &second) < NO_SLOT:
            return self.lookup_under_lock(target)
        return pair(self.kind, first, second)

    def lookup_among(self, int64_t entries, int64_t target):
        """`lookup` among the first `entries`, although fewer may be held; IndexError if the search needs a slot that is
        not held."""
        cdef int64_t first, second
        checked(self.look(max(entries, 0), target, &first, &second))
        return pair(self.kind, first, second)

    def find(self, int column, int64_t target, bint upper=False):
        """Returns the last slot whose `column` is at most `target`, or (upper) the first one that is above it, or
        equal, as the search finds it. Returns -1 for none, and -2 or less if not all entries' bytes are held."""
        with cython.critical_section(self):
            return self.slot_of(self.entries, <Column>column, target, upper)

    def find_among(self, int64_t entries, int column, int64_t target, bint upper=False):
        """`find` among the first `entries`, although fewer may be held; IndexError as in `lookup_among`."""
        cdef int64_t slot
        with cython.critical_section(self):
            slot = self.slot_of(max(entries, 0), <Column>column, target, upper)
        return checked(slot)

    def lookup_many(self, targets):
        """Does `lookup` for each of `targets` (int64), without the GIL -> (the entries' first numbers, their second
        ones).

        Returns None if the bytes do not hold all entries.
        """
        cdef Py_buffer wanted, out_first, out_second
        cdef int64_t[LANES] slots, target
        cdef const uint8_t* index
        cdef int64_t* first
        cdef int64_t* second
        cdef int64_t entries, at = 0, count
        cdef int64_t base = self.base_offset
        cdef Column column = self.column
        cdef bint of_offsets = column == OFFSET_OF_OFFSET_INDEX
        cdef int64_t lane, lanes
        targets = np.ascontiguousarray(targets, np.int64)
        firsts = np.full(targets.shape, base if of_offsets else -1, np.int64)
        seconds = np.full(targets.shape, 0 if of_offsets else base, np.int64)
        memset(&wanted, 0, sizeof(Py_buffer))
        memset(&out_first, 0, sizeof(Py_buffer))
        memset(&out_second, 0, sizeof(Py_buffer))
        with cython.critical_section(self):
            entries = self.entries
            if entries and (self.view.buf == NULL or entries > self.view.len // entry_bytes(column)):
                return None
            index = <const uint8_t*>self.view.buf
            self.used = True
            self.users += 1
        try:
            open_octets(targets, &wanted)
            PyObject_GetBuffer(firsts, &out_first, PyBUF_WRITABLE)
            PyObject_GetBuffer(seconds, &out_second, PyBUF_WRITABLE)
            count = wanted.len // <Py_ssize_t>sizeof(int64_t) if entries else 0
            with nogil:
                while at < count:
                    lanes = min(LANES, count - at)
                    memset(target, 0, sizeof(target))
                    memcpy(target, <const int64_t*>wanted.buf + at, lanes * sizeof(int64_t))
                    first = <int64_t*>out_first.buf + at
                    second = <int64_t*>out_second.buf + at
                    find_lanes(index, entries, base, target, column, slots)
                    for lane in range(lanes):
                        if slots[lane] >= 0:
                            first[lane] = key(index, slots[lane], base, column)
                            second[lane] = key(
                                index, slots[lane], base, POSITION if of_offsets else OFFSET_OF_TIME_INDEX
                            )
                    at += lanes
        finally:
            with cython.critical_section(self):
                self.users -= 1
            PyBuffer_Release(&out_second)
            PyBuffer_Release(&out_first)
            PyBuffer_Release(&wanted)
        return firsts, seconds


cdef int64_t checked(int64_t slot) except? -2:
    if slot < NO_SLOT:
        raise IndexError("no bytes are held" if slot == NOT_NOW else f"entry {NOT_NOW - 1 - slot} is not held")
    return slot
