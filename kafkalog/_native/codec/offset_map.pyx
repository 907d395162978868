"""SkimpyOffsetMap: the last offset of each key, by the key's MD5 alone (org.apache.kafka.storage.internals.log, 4.4.0).

The memory is one allocation of slots, 16 bytes of digest and 8 of offset; keys are not kept. A key's probe sequence is
Kafka's: four bytes of the digest from byte 0, 1 ... 12, then one slot further each time. So the same memory holds the
same number of keys as Kafka's map, and a pass of the cleaner ends at the same record.

Keys come in bulk. A group of them is hashed in parallel (src/md5.c) and then walks its probe sequences in step: all
first slots are prefetched, then all second ones of the keys that are not done. So the cache misses of a group overlap.
If two keys are equal, the later one finds the entry of the earlier one, as if they came one by one. One thread at a
time, which is checked; knows nothing of records.
"""

import mmap

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kafkalog._native.codec.guard cimport claim, kl_leave
from kafkalog._native.codec.octets cimport open_octets

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define KL_FETCH(at) (__builtin_prefetch(at, 1), __builtin_prefetch((const char*)(at) + 16, 1))
    #define KL_REMAINDER(low, slots) ((uint32_t)(((unsigned __int128)(low) * (slots)) >> 64))
    #define KL_HAS_REMAINDER 1
    #else
    #define KL_FETCH(at) ((void)(at))
    #define KL_REMAINDER(low, slots) 0
    #define KL_HAS_REMAINDER 0
    #endif
    """
    void KL_FETCH(const void* at) noexcept nogil
    uint32_t KL_REMAINDER(uint64_t low, uint64_t slots) noexcept nogil
    enum:
        KL_HAS_REMAINDER


ctypedef const uint8_t* Bytes


cdef inline int64_t slot_of(const uint8_t* digest, int32_t attempt, uint64_t slots, uint64_t reciprocal) noexcept nogil:
    """Returns the `attempt`-th slot of a probe sequence, with Java's 32-bit arithmetic, in which the absolute value of
    the least number counts as 0."""
    cdef const uint8_t* at = digest + (attempt if attempt < DIGEST_BYTES - 4 else DIGEST_BYTES - 4)
    cdef uint32_t probe = <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]
    if attempt > DIGEST_BYTES - 4:
        probe += <uint32_t>(attempt - (DIGEST_BYTES - 4))
    if probe & <uint32_t>0x80000000:
        probe = (0 - probe) & <uint32_t>0x7FFFFFFF
    if KL_HAS_REMAINDER:
        # Lemire's remainder by multiplication: exact for 32 bits.
        return KL_REMAINDER(reciprocal * probe, slots)
    return probe % slots if slots else 0


@cython.auto_pickle(False)
cdef class SkimpyOffsetMap:
    """A map of `memory` bytes by MD5, with `slots` of 24 bytes. `size`: its number of keys; `latest_offset`: the last
    offset put.

    `implementation` is one of `implementations()`, for tests. Raises MemoryError; ValueError for negative memory, or
    more than Java's arrays can have.
    """

    def __cinit__(self, memory, *, implementation=None):
        cdef Py_buffer view
        memory = int(memory)
        if not 0 <= memory <= 0x7FFFFFFF:
            raise ValueError(f"memory: found {memory}, expected 0 to {0x7FFFFFFF} bytes")
        cdef int64_t slots = memory // SLOT_BYTES
        cdef int hashing = 0 if implementation is None else implementations().index(implementation)
        pages = zero_pages(max(slots, 1) * SLOT_BYTES)  # even without slots there is one empty slot to read
        claim(&self.busy, "SkimpyOffsetMap")
        try:
            if self._memory is not None:
                raise TypeError("a SkimpyOffsetMap cannot be initialized twice")
            PyObject_GetBuffer(pages, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
            self._memory = pages
            self._table = <Slot*>view.buf
            PyBuffer_Release(&view)  # the memory stays as long as this object holds it, and nobody closes it
            self.slots, self._hashing = slots, hashing
            if slots > 1:
                self._reciprocal = <uint64_t>-1 / <uint64_t>slots + 1
            self.latest_offset = -1
        finally:
            kl_leave(&self.busy)

    def __len__(self):
        return self.size

    @property
    def memory(self):
        """Bytes of the slots."""
        return self.slots * SLOT_BYTES

    @property
    def utilization(self):
        """The share of the slots that have a key, 0 to 1."""
        return <double>self.size / <double>self.slots

    @property
    def collision_rate(self):
        """Slots probed in vain, per look-up."""
        return <double>(self.probes - self.lookups) / <double>self.lookups if self.lookups else 0.0

    def clear(self):
        """Removes all keys and resets the counters."""
        claim(&self.busy, "SkimpyOffsetMap")
        try:
            self._clear()
        finally:
            kl_leave(&self.busy)

    cdef int _clear(self) except -1:
        """Clears the map; the caller has claimed it."""
        if self.size:
            with nogil:
                memset(self._table, 0, <size_t>(self.slots * SLOT_BYTES))
        self.size = self.lookups = self.probes = 0
        self.latest_offset = -1
        return 0

    def put(self, key, int64_t offset):
        """Sets the key's offset. Raises ValueError if there is no empty slot, even for a known key, as in Kafka."""
        cdef Py_buffer view
        cdef const uint8_t* at
        cdef uint32_t size
        open_octets(key, &view)
        try:
            claim(&self.busy, "SkimpyOffsetMap")
            try:
                if self.size >= self.slots:
                    raise ValueError("Attempt to add a new entry to a full offset map.")
                at = <const uint8_t*>view.buf
                size = <uint32_t>view.len
                self.put_some(&at, &size, &offset, 1, self.slots)
            finally:
                kl_leave(&self.busy)
        finally:
            PyBuffer_Release(&view)

    def get(self, key):
        """Returns the key's offset; -1 if it is unknown."""
        cdef Py_buffer view
        cdef const uint8_t* at
        cdef uint32_t size
        cdef int64_t offset
        open_octets(key, &view)
        try:
            claim(&self.busy, "SkimpyOffsetMap")
            at = <const uint8_t*>view.buf
            size = <uint32_t>view.len
            self.get_some(&at, &size, 1, &offset)
            kl_leave(&self.busy)
        finally:
            PyBuffer_Release(&view)
        return offset

    def put_many(self, data, bounds, offsets, limit=None):
        """Puts a column of keys in order, while fewer than `limit` keys (by default: slots) are in the map, and returns
        how many were put.

        Key i is [i], [i+1] of the int64 `bounds`, in `data`. Raises ValueError for bounds outside `data`."""
        cdef _Column column = _Column(data, bounds)
        cdef _Column values = _Column(offsets, None)
        cdef int64_t most = self.slots if limit is None else min(int(limit), self.slots)
        cdef int64_t done = 0, count, put
        if values.view.len != 8 * column.count:
            raise ValueError(f"offsets: found {values.view.len // 8}, expected {column.count}, one for each key")
        claim(&self.busy, "SkimpyOffsetMap")
        try:
            with nogil:
                while done < column.count:
                    count = column.next_keys(done)
                    put = self.put_some(column.at, column.sizes, <const int64_t*>values.view.buf + done, count, most)
                    done += put
                    if put < count:
                        break
        finally:
            kl_leave(&self.busy)
        return done

    def get_many(self, data, bounds, own=None):
        """Returns the offsets of a column of keys (as for `put_many`): a bytearray of int64, -1 for unknown keys.

        `own`: the offsets of the records that have the keys; a map of keys ignores them.
        """
        cdef _Column column = _Column(data, bounds)
        cdef bytearray found = bytearray(8 * column.count)
        cdef int64_t* to = <int64_t*><void*><char*>found
        cdef int64_t done = 0, count
        claim(&self.busy, "SkimpyOffsetMap")
        try:
            with nogil:
                while done < column.count:
                    count = column.next_keys(done)
                    self.get_some(column.at, column.sizes, count, to + done)
                    done += count
        finally:
            kl_leave(&self.busy)
        return found

    # --- for native callers --------------------------------------------------------------------------

    cdef int64_t put_some(
        self, const uint8_t* const* keys, const uint32_t* sizes, const int64_t* offsets, int64_t count, int64_t limit
    ) noexcept nogil:
        """Puts keys in order while fewer than `limit` (at most `slots`) are in the map; returns how many were put."""
        cdef int64_t done = 0, group
        while done < count and self.size < limit:
            group = min(count - done, <int64_t>TOGETHER)
            group = min(group, limit - self.size)  # all of them may be new
            self._put_group(keys + done, sizes + done, offsets + done, group)
            done += group
        if done:
            self.latest_offset = offsets[done - 1]
        return done

    cdef void last_of(
        self, const uint8_t* const* keys, const uint32_t* sizes, int64_t count, int64_t* offsets
    ) noexcept nogil:
        """`get_some`, for a caller that has put the offsets of the keys' records into `offsets`."""
        self.get_some(keys, sizes, count, offsets)

    cdef int64_t _put_group(
        self, const uint8_t* const* keys, const uint32_t* sizes, const int64_t* offsets, int64_t count
    ) noexcept nogil:
        cdef uint8_t[TOGETHER * DIGEST_BYTES] digests
        self._digest(keys, sizes, count, digests)
        self._put_digests(digests, offsets, count)
        return count

    cdef void _digest(
        self, const uint8_t* const* keys, const uint32_t* sizes, int64_t count, uint8_t* digests
    ) noexcept nogil:
        md5_many_by(self._hashing, keys, sizes, <size_t>count, digests)

    cdef void _put_digests(self, const uint8_t* digests, const int64_t* offsets, int64_t count) noexcept nogil:
        """Puts at most TOGETHER keys, for which there is room, by their concatenated digests."""
        cdef uint32_t[TOGETHER] at
        cdef int32_t[TOGETHER] left
        cdef uint64_t low, high
        cdef Slot* slot
        cdef int64_t waiting = count, still, i
        cdef int32_t attempt = 0, key
        for i in range(count):
            left[i] = <int32_t>i
            at[i] = <uint32_t>slot_of(digests + DIGEST_BYTES * i, 0, <uint64_t>self.slots, self._reciprocal)
            KL_FETCH(self._table + at[i])
        self.lookups += count
        while waiting:
            self.probes += waiting
            attempt += 1
            still = 0
            for i in range(waiting):
                key = left[i]
                slot = self._table + at[key]
                memcpy(&low, digests + DIGEST_BYTES * key, 8)
                memcpy(&high, digests + DIGEST_BYTES * key + 8, 8)
                if slot.low == low and slot.high == high:
                    slot.offset = offsets[key]
                elif slot.low == 0 and slot.high == 0 and slot.offset == 0:
                    slot.low = low
                    slot.high = high
                    slot.offset = offsets[key]
                    self.size += 1
                else:
                    at[key] = <uint32_t>slot_of(
                        digests + DIGEST_BYTES * key, attempt, <uint64_t>self.slots, self._reciprocal
                    )
                    KL_FETCH(self._table + at[key])
                    left[still] = key
                    still += 1
            waiting = still

    cdef void get_some(
        self, const uint8_t* const* keys, const uint32_t* sizes, int64_t count, int64_t* offsets
    ) noexcept nogil:
        """Gets the offsets of keys; -1 for unknown keys."""
        cdef uint8_t[TOGETHER * DIGEST_BYTES] digests
        cdef int64_t done = 0, group
        while done < count:
            group = min(count - done, <int64_t>TOGETHER)
            self._digest(keys + done, sizes + done, group, digests)
            self._get_digests(digests, group, offsets + done)
            done += group

    cdef void _get_digests(self, const uint8_t* digests, int64_t count, int64_t* offsets) noexcept nogil:
        """Gets the offsets of at most TOGETHER keys by their concatenated digests; -1 for unknown keys."""
        cdef uint32_t[TOGETHER] at
        cdef int32_t[TOGETHER] left
        cdef uint64_t low, high
        cdef const Slot* slot
        cdef int64_t waiting = count, still, i
        cdef int32_t attempt = 0, key
        for i in range(count):
            left[i] = <int32_t>i
            at[i] = <uint32_t>slot_of(digests + DIGEST_BYTES * i, 0, <uint64_t>self.slots, self._reciprocal)
            KL_FETCH(self._table + at[i])
        self.lookups += count
        while waiting:
            self.probes += waiting
            attempt += 1
            still = 0
            for i in range(waiting):
                key = left[i]
                slot = self._table + at[key]
                memcpy(&low, digests + DIGEST_BYTES * key, 8)
                memcpy(&high, digests + DIGEST_BYTES * key + 8, 8)
                if slot.low == low and slot.high == high:
                    offsets[key] = slot.offset
                elif (
                    slot.low == 0 and slot.high == 0 and slot.offset == 0
                ) or attempt >= self.slots + DIGEST_BYTES - 4:
                    offsets[key] = -1
                else:
                    at[key] = <uint32_t>slot_of(
                        digests + DIGEST_BYTES * key, attempt, <uint64_t>self.slots, self._reciprocal
                    )
                    KL_FETCH(self._table + at[key])
                    left[still] = key
                    still += 1
            waiting = still


@cython.auto_pickle(False)
cdef class LastOffsets(SkimpyOffsetMap):
    """Answers as a map would, from bits that the caller computed: one for each offset from `first_offset` on, 1 if the
    record there is the last one of its key.

    `LastOffsets(0)` has no bits; `use` sets them. The memory is one bit for each offset, in the caller's buffer,
    regardless of the keys."""

    cdef object _bits
    cdef const uint8_t* _at
    cdef int64_t _first
    cdef int64_t _count

    def use(self, bits, int64_t first_offset, int64_t end_offset):
        """Uses the bits of the offsets up to `end_offset` (exclusive), the lowest of a byte first; nothing is known
        about other offsets. Raises ValueError if there are too few bits."""
        cdef Py_buffer view
        cdef int64_t count
        if first_offset < 0 or end_offset < first_offset:
            raise ValueError(f"offsets: found {first_offset} to {end_offset}, expected an ascending range from 0")
        count = end_offset - first_offset
        open_octets(bits, &view)
        if view.len < count // 8 + (count % 8 != 0):  # written so that no sum exceeds an int64
            PyBuffer_Release(&view)
            raise ValueError(f"bits: found {view.len} bytes, expected {count} bits, one for each offset")
        claim(&self.busy, "LastOffsets")
        self._bits = memoryview(bits)  # keeps the buffer in its place
        self._at, self._first, self._count = <const uint8_t*>view.buf, first_offset, count
        self.latest_offset = end_offset - 1
        kl_leave(&self.busy)
        PyBuffer_Release(&view)

    def get_many(self, data, bounds, own=None):
        """Returns, for each record's offset in `own`, this offset, or one more if a later record has its key."""
        cdef bytearray found = bytearray(memoryview(own).cast("B"))
        cdef int64_t count = len(found) // 8
        claim(&self.busy, "LastOffsets")
        self.last_of(NULL, NULL, count, <int64_t*><void*><char*>found)
        kl_leave(&self.busy)
        return found

    cdef void last_of(
        self, const uint8_t* const* keys, const uint32_t* sizes, int64_t count, int64_t* offsets
    ) noexcept nogil:
        cdef int64_t i, place
        for i in range(count):
            if offsets[i] < self._first:
                continue
            place = offsets[i] - self._first
            if place < self._count and not (self._at[place >> 3] >> (place & 7)) & 1:
                offsets[i] += 1


@cython.auto_pickle(False)
cdef class _Column:
    """Keys in a buffer, TOGETHER at a time; each is inside the buffer, whatever the bounds are."""

    cdef Py_buffer view
    cdef Py_buffer bounds
    cdef bint has_view
    cdef bint has_bounds
    cdef int64_t count
    cdef Bytes[TOGETHER] at
    cdef uint32_t[TOGETHER] sizes

    def __cinit__(self, data, bounds):
        open_octets(data, &self.view)
        self.has_view = True
        if bounds is None:
            return
        open_octets(bounds, &self.bounds)
        self.has_bounds = True
        self.count = self.bounds.len // 8 - 1
        if self.count < 0 or self.bounds.len % 8:
            raise ValueError(f"bounds: found {self.bounds.len} bytes, expected int64, one more than there are keys")
        self._check()

    def __dealloc__(self):
        if self.has_view:
            PyBuffer_Release(&self.view)
        if self.has_bounds:
            PyBuffer_Release(&self.bounds)

    cdef int _check(self) except -1:
        cdef const int64_t* bounds = <const int64_t*>self.bounds.buf
        cdef int64_t i
        for i in range(self.count + 1):
            if not (bounds[i - 1] if i else 0) <= bounds[i] <= self.view.len:
                raise ValueError(f"bounds: found {bounds[i]} at {i}, expected them ascending, to {self.view.len}")
        return 0

    cdef int64_t next_keys(self, int64_t first) noexcept nogil:
        cdef const int64_t* bounds = <const int64_t*>self.bounds.buf
        cdef const uint8_t* data = <const uint8_t*>self.view.buf
        cdef int64_t count = min(self.count - first, <int64_t>TOGETHER), i, start, end
        for i in range(count):
            start = max(min(bounds[first + i], <int64_t>self.view.len), <int64_t>0)
            end = max(min(bounds[first + i + 1], <int64_t>self.view.len), start)
            self.at[i] = data + start
            self.sizes[i] = <uint32_t>(end - start)
        return count


def zero_pages(size):
    """Returns zeroed memory of this process alone (a child of a fork has a copy). It uses huge pages if possible,
    because each look-up is a cache miss. Raises MemoryError."""
    try:
        pages = mmap.mmap(-1, size, **_PRIVATE)
    except OSError as error:  # a map without a file: the cause is the system's memory, not a disk
        raise MemoryError(f"{size} bytes of memory are not available: {error.strerror}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages
    return pages


# On Windows a map without a file belongs to one process, and there are no forks.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def implementations():
    """Returns the hash implementations that this CPU supports, best first: avx512, avx2, sse2, neon, portable."""
    return [md5_implementation_name(which).decode() for which in range(md5_implementations())]
