"""The records of one batch as a producer collects them: copied, so that the caller may free its objects, and ready to
be encoded as columns.

The bytes are in chunks that never move. For each record, `Part`s point to its key, its value, and the name and content
of each header. A record is stored completely or, if memory runs out, not at all. One thread at a time adds records;
`ColumnEncoder.from_collected` reads them after the last one was added.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kafkalog._native.codec.memory cimport reserve

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    # The first chunk is small, so that a record in each of many partitions takes little memory. Later chunks double, up
    # to 64 KiB, which is below the size that an allocator requests from the system.
    CHUNK_BYTES = 512
    DOUBLINGS = 7
    ROWS_MIN = 4
    NOTHING = -1


@cython.auto_pickle(False)
@cython.final
cdef class Collected:
    """`rows` records, which count for `bytes` in all."""

    def __dealloc__(self):
        cdef int64_t at
        for at in range(self.chunk_count):
            free((<void**>self.chunks.at)[at])
        free(self.chunks.at)
        free(self.keys.at)
        free(self.values.at)
        free(self.times.at)
        free(self.lists.at)
        free(self.names.at)
        free(self.contents.at)

    cdef Py_ssize_t add(self, value, key, tuple headers, int64_t timestamp, int64_t size) except -1:
        """Adds a record that counts for `size` bytes and returns its number.

        Raises TypeError unless key and value are exact bytes or None, and headers are pairs of a str and such a value.
        """
        cdef Part value_part, key_part
        cdef int64_t row = self.rows, count = self.header_count
        with cython.critical_section(self):
            self.make_room(row)
            self.keep(value, &value_part)
            self.keep(key, &key_part)
            for pair in headers:
                self.keep_header(<tuple?>pair, count)
                count += 1
            (<Part*>self.values.at)[row] = value_part
            (<Part*>self.keys.at)[row] = key_part
            (<int64_t*>self.times.at)[row] = timestamp
            (<int64_t*>self.lists.at)[row] = self.header_count
            (<int64_t*>self.lists.at)[row + 1] = count
            self.header_count = count
            self.bytes += size
            self.rows = row + 1
            return row

    cdef int make_room(self, int64_t row) except -1:
        cdef int64_t rows = max(row + 1, <int64_t>ROWS_MIN)
        if not (
            reserve(&self.values, rows * sizeof(Part))
            and reserve(&self.keys, rows * sizeof(Part))
            and reserve(&self.times, rows * sizeof(int64_t))
            and reserve(&self.lists, (rows + 1) * sizeof(int64_t))
        ):
            raise MemoryError
        return 0

    cdef int keep(self, given, Part* part) except -1:
        if given is None:
            part.at = NULL
            part.size = NOTHING
        elif type(given) is bytes:
            self.copy(PyBytes_AS_STRING(given), PyBytes_GET_SIZE(given), part)
        else:
            raise TypeError(f"found a {type(given).__name__}, expected bytes or None")
        return 0

    cdef int keep_header(self, tuple pair, int64_t number) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* name
        if len(pair) != 2:
            raise TypeError(f"a header is a pair of a name and a content; found {len(pair)} items")
        name = PyUnicode_AsUTF8AndSize(pair[0], &size)
        if not (
            reserve(&self.names, (number + 1) * sizeof(Part)) and reserve(&self.contents, (number + 1) * sizeof(Part))
        ):
            raise MemoryError
        self.copy(name, size, <Part*>self.names.at + number)
        self.keep(pair[1], <Part*>self.contents.at + number)
        return 0

    cdef int copy(self, const char* source, int64_t size, Part* part) except -1:
        if size > self.free_bytes or self.free_at == NULL:
            self.add_chunk(size)
        memcpy(self.free_at, source, <size_t>size)
        part.at = self.free_at
        part.size = size
        self.free_at += size
        self.free_bytes -= size
        return 0

    cdef int add_chunk(self, int64_t size) except -1:
        cdef int64_t bytes = max(size, CHUNK_BYTES << min(self.chunk_count, <int64_t>DOUBLINGS))
        cdef uint8_t* chunk
        if not reserve(&self.chunks, (self.chunk_count + 1) * sizeof(void*)):
            raise MemoryError
        chunk = <uint8_t*>malloc(<size_t>bytes)
        if chunk == NULL:
            raise MemoryError
        (<void**>self.chunks.at)[self.chunk_count] = chunk
        self.chunk_count += 1
        self.free_at, self.free_bytes = chunk, bytes
        return 0
