"""LatestOffsets: the last offset of each key of a log, for readers of the log's latest values.

It is a SkimpyOffsetMap, so two keys count as one exactly if Kafka's cleaner treats them as one. In addition it can
grow, and it can restrict itself to a share of all keys: a log with more keys than fit in memory is read once for each
share. A key's share, 0 to 65,535, is the last two bytes of its digest, which few probes use.

It reads decoded columns, many rows a call, without the GIL. One thread at a time: all methods check this, including
those of SkimpyOffsetMap, with the same `busy`, because `grow` frees the memory that they read. Knows no file.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kafkalog._native.codec.arrow cimport Column, Memory, RecordColumns
from kafkalog._native.codec.guard cimport claim, kl_leave
from kafkalog._native.codec.offset_map cimport DIGEST_BYTES, SLOT_BYTES, TOGETHER, SkimpyOffsetMap, Slot

from kafkalog._native.codec.offset_map import zero_pages

SHARES = 1 << 16

ctypedef const uint8_t* Bytes


@cython.auto_pickle(False)
cdef class LatestOffsets(SkimpyOffsetMap):
    """A map of `memory` bytes that fills at most nine tenths of its slots. `keyless`: rows without a key.

    Raises MemoryError; ValueError for less memory than two slots take, or more than Java's arrays can have.
    """

    cdef int32_t first_share
    cdef int32_t share_end
    cdef int64_t most
    cdef LatestOffsets _among  # while columns are put: the keys that are accepted
    cdef readonly int64_t keyless

    def __cinit__(self, memory):
        if self.slots < 2:
            raise ValueError(f"memory: found {memory}, expected at least {2 * SLOT_BYTES} bytes")
        self.most = self.slots * 9 // 10
        self.first_share, self.share_end = 0, 1 << 16

    @property
    def shares(self):
        """The shares [first, end) whose keys are accepted."""
        return self.first_share, self.share_end

    def begin(self, int32_t first, int32_t end):
        """Removes all keys; from now on accepts those of the shares [first, end)."""
        if not 0 <= first < end <= 1 << 16:
            raise ValueError(f"shares: found {first} to {end}, expected a range within 0 to {1 << 16}")
        claim(&self.busy, "LatestOffsets")
        try:
            self._clear()
            self.first_share, self.share_end = first, end
        finally:
            kl_leave(&self.busy)

    def put_columns(self, RecordColumns columns not None, int64_t row=0, LatestOffsets among=None):
        """Puts the keys of the columns `offset` and `key` from `row` on, and returns the row reached. This is less than
        the number of rows if the map is full: then call `grow` or `narrow`, and continue there.

        `among`: only keys that this other map has; then the map is never full. Raises ValueError if it has fewer slots
        than the other map."""
        cdef Column numbers = columns.column("offset")
        cdef Column keys = columns.column("key")
        cdef Memory places, bounds, data, bits
        if numbers is None or keys is None:
            raise ValueError("columns: found no 'offset' and 'key', expected both")
        places, bounds, data, bits = numbers.buffers[1], keys.buffers[1], keys.buffers[2], keys.buffers[0]
        cdef int64_t rows = keys.length
        if (
            places is None
            or bounds is None
            or data is None
            or numbers.length != rows
            or places.size < 8 * rows
            or bounds.size < 4 * (rows + 1)
            or (bits is not None and 8 * bits.size < rows)
        ):
            raise ValueError("the columns 'offset' and 'key' have different lengths")
        if not 0 <= row <= rows:
            raise IndexError(f"row: found {row}, expected 0 to {rows}")
        claim(&self.busy, "LatestOffsets")
        try:
            if among is not None:
                if among.slots > self.slots:
                    raise ValueError(f"found {self.slots} slots, expected at least {among.slots}, as in the other map")
                claim(&among.busy, "LatestOffsets")
                self._among = among
            with nogil:
                row = self._put_rows(
                    <const int64_t*>places.at, <const int32_t*>bounds.at, data.at, data.size,
                    NULL if bits is None else bits.at, row, rows,
                )
            if row < 0:
                raise ValueError(f"row {-1 - row} points outside its column")
            return row
        finally:
            if self._among is not None:
                self._among = None
                kl_leave(&among.busy)
            kl_leave(&self.busy)

    cdef int64_t _put_rows(
        self,
        const int64_t* offsets,
        const int32_t* bounds,
        const uint8_t* data,
        int64_t size,
        const uint8_t* bits,
        int64_t row,
        int64_t rows,
    ) noexcept nogil:
        """Returns the row reached, or -1 minus the row whose key is outside the data."""
        cdef Bytes[TOGETHER] at
        cdef uint32_t[TOGETHER] sizes
        cdef int64_t[TOGETHER] last
        cdef int64_t[TOGETHER] whose
        cdef int64_t first, count, put
        while row < rows:
            first = row
            count = 0
            while row < rows and count < TOGETHER:
                if bits == NULL or (bits[row >> 3] >> (row & 7)) & 1:
                    if not 0 <= bounds[row] <= bounds[row + 1] <= size:
                        return -1 - row
                    at[count] = data + bounds[row]
                    sizes[count] = <uint32_t>(bounds[row + 1] - bounds[row])
                    last[count] = offsets[row]
                    whose[count] = row
                    count += 1
                row += 1
            put = self.put_some(at, sizes, last, count, self.most if self._among is None else self.slots)
            if put < count:
                row = whose[put]
            self.keyless += row - first - put
            if put < count:
                break
        return row

    cdef int64_t _put_group(
        self, const uint8_t* const* keys, const uint32_t* sizes, const int64_t* offsets, int64_t count
    ) noexcept nogil:
        cdef uint8_t[TOGETHER * DIGEST_BYTES] digests
        cdef int64_t[TOGETHER] kept_offsets
        cdef int64_t[TOGETHER] known
        cdef int64_t kept = 0, i
        self._digest(keys, sizes, count, digests)
        if self._among is not None:
            self._among._get_digests(digests, count, known)
        elif self.first_share == 0 and self.share_end == 1 << 16:
            self._put_digests(digests, offsets, count)
            return count
        for i in range(count):
            if known[i] >= 0 if self._among is not None else self._is_ours(digests + DIGEST_BYTES * i):
                if kept < i:
                    memcpy(digests + DIGEST_BYTES * kept, digests + DIGEST_BYTES * i, DIGEST_BYTES)
                kept_offsets[kept] = offsets[i]
                kept += 1
        self._put_digests(digests, kept_offsets, kept)
        return count

    cdef bint _is_ours(self, const uint8_t* digest) noexcept nogil:
        cdef int32_t share = <int32_t>digest[DIGEST_BYTES - 2] << 8 | digest[DIGEST_BYTES - 1]
        return self.first_share <= share < self.share_end

    def grow(self, memory):
        """Moves the keys to more memory; the old and the new exist at the same time. MemoryError leaves the map
        unchanged."""
        cdef Py_buffer view
        cdef Slot* before
        cdef int64_t slots
        memory = int(memory)  # may run foreign code: nothing of the map is read before
        claim(&self.busy, "LatestOffsets")
        try:
            if not self.memory < memory <= 0x7FFFFFFF:
                raise ValueError(f"memory: found {memory}, expected more than {self.memory}, to {0x7FFFFFFF} bytes")
            before, slots = self._table, self.slots
            pages = zero_pages(memory // SLOT_BYTES * SLOT_BYTES)
            held = self._memory  # until its keys are in the new memory
            PyObject_GetBuffer(pages, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
            self._memory = pages
            self._table = <Slot*>view.buf
            PyBuffer_Release(&view)  # the memory stays as long as this object holds it, and nobody closes it
            self.slots = memory // SLOT_BYTES
            self._reciprocal = <uint64_t>-1 / <uint64_t>self.slots + 1
            self.most = self.slots * 9 // 10
            self.size = 0
            with nogil:
                self._put_slots(before, slots)
            del held
        finally:
            kl_leave(&self.busy)

    def narrow(self, int32_t end):
        """Restricts the map to the shares below `end` and removes the keys of others. During the call the kept keys
        exist twice; MemoryError leaves the map unchanged."""
        cdef Slot* kept
        cdef int64_t count = 0, slot
        claim(&self.busy, "LatestOffsets")
        try:
            if not self.first_share < end <= self.share_end:
                raise ValueError(f"end: found {end}, expected a share from {self.first_share + 1} to {self.share_end}")
            self.share_end = end
            with nogil:
                for slot in range(self.slots):
                    count += self._stays(self._table + slot)
            kept = <Slot*>malloc(<size_t>(max(count, 1) * SLOT_BYTES))
            if kept == NULL:
                raise MemoryError
            with nogil:
                count = 0
                for slot in range(self.slots):
                    if self._stays(self._table + slot):
                        kept[count] = self._table[slot]
                        count += 1
                memset(self._table, 0, <size_t>(self.slots * SLOT_BYTES))
                self.size = 0
                self._put_slots(kept, count)
                free(kept)
        finally:
            kl_leave(&self.busy)

    cdef bint _stays(self, const Slot* slot) noexcept nogil:
        return not self._is_empty(slot) and self._is_ours(<const uint8_t*>slot)

    cdef bint _is_empty(self, const Slot* slot) noexcept nogil:
        return slot.low == 0 and slot.high == 0 and slot.offset == 0

    cdef void _put_slots(self, const Slot* slots, int64_t count) noexcept nogil:
        cdef uint8_t[TOGETHER * DIGEST_BYTES] digests
        cdef int64_t[TOGETHER] offsets
        cdef int64_t slot, waiting = 0
        for slot in range(count):
            if self._is_empty(slots + slot):
                continue
            memcpy(digests + DIGEST_BYTES * waiting, slots + slot, DIGEST_BYTES)
            offsets[waiting] = slots[slot].offset
            waiting += 1
            if waiting == TOGETHER:
                self._put_digests(digests, offsets, waiting)
                waiting = 0
        self._put_digests(digests, offsets, waiting)

    def pairs(self, LatestOffsets other not None):
        """Returns, for each key, its last offset and its offset in `other` (-1 for none), in no order: a bytearray of
        twice as many int64."""
        cdef uint8_t[TOGETHER * DIGEST_BYTES] digests
        cdef int64_t[TOGETHER] found
        cdef bytearray made
        cdef int64_t* to
        cdef int64_t slot = 0, count, i
        claim(&self.busy, "LatestOffsets")
        try:
            claim(&other.busy, "LatestOffsets")
            try:
                made = bytearray(16 * self.size)
                to = <int64_t*><void*><char*>made
                with nogil:
                    while slot < self.slots:
                        count = 0
                        while slot < self.slots and count < TOGETHER:
                            if not self._is_empty(self._table + slot):
                                memcpy(digests + DIGEST_BYTES * count, self._table + slot, DIGEST_BYTES)
                                to[2 * count] = self._table[slot].offset
                                count += 1
                            slot += 1
                        other._get_digests(digests, count, found)
                        for i in range(count):
                            to[2 * i + 1] = found[i]
                        to += 2 * count
                return made
            finally:
                kl_leave(&other.busy)
        finally:
            kl_leave(&self.busy)

    def offsets(self):
        """Returns the last offset of each key, in no order: a bytearray of int64."""
        cdef bytearray found
        cdef int64_t* to
        cdef int64_t slot, count = 0
        claim(&self.busy, "LatestOffsets")
        try:
            found = bytearray(8 * self.size)
            to = <int64_t*><void*><char*>found
            with nogil:
                for slot in range(self.slots):
                    if not self._is_empty(self._table + slot):
                        to[count] = self._table[slot].offset
                        count += 1
            return found
        finally:
            kl_leave(&self.busy)
