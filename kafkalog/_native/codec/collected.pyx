"""Records of one batch as a producer collects them: copied, so that what was given may go, into columns to encode.

The bytes lie in chunks that never move; of each record a `Part` says where its key and value are, and each header's
name and content.  A record is there whole or, where memory is short, not at all.  Added by one thread at a time;
`ColumnEncoder.from_collected` reads it once nothing comes any more.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kafkalog._native.codec.memory cimport reserve

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    # Of the first chunk, so that a record in each of many partitions holds little; the others double, up to 64 KiB,
    # which is below what an allocator asks the system for.
    CHUNK_BYTES = 512
    DOUBLINGS = 7
    ROWS_MIN = 4
    NOTHING = -1


@cython.auto_pickle(False)
@cython.final
cdef class Collected:
    """`rows` records that count for `bytes` in all."""

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
        """Takes a record that counts for so many bytes; its number.

        TypeError for what is no exact bytes or None, and headers that are no pairs of str and such.
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
            raise TypeError("bytes or None are wanted")
        return 0

    cdef int keep_header(self, tuple pair, int64_t number) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* name
        if len(pair) != 2:
            raise TypeError("a header is a name and a content")
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
