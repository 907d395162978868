"""Records as columns in Arrow's layout. They are exported through the Arrow PyCapsule interface (no Arrow library is
needed) and as numpy arrays that share the memory. `_native.codec.decode` creates them; this module reads no record.
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strdup, strlen, strncmp, strstr

from kafkalog._native.codec.memory cimport BIG_BYTES, SLACK
from kafkalog._native.codec.spares cimport give_back

import numpy as np


@cython.auto_pickle(False)
cdef class Memory:
    """Memory from malloc with the buffer protocol."""

    def __dealloc__(self):
        give_back(self.at, self.capacity)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.size, 1, flags)


cdef Memory taken_memory(Block* block, int64_t size):
    """Returns the block's memory without its unused part; the block is empty afterwards.

    The bytes of a block that is mostly empty are copied. If such a block were shrunk in place, its remainder would be
    too small for the next block of the same size. A few rows of each of many batches would then take as much memory as
    all rows."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef uint8_t* fitting = block.at
    cdef int64_t capacity = block.capacity
    if fitting == NULL or 2 * (size + SLACK) <= capacity:
        fitting = <uint8_t*>malloc(<size_t>(size + SLACK))
        if fitting == NULL:
            raise MemoryError
        if block.at != NULL:
            memcpy(fitting, block.at, <size_t>size)
            give_back(block.at, capacity)
        capacity = size + SLACK
    elif capacity < BIG_BYTES and capacity > size + SLACK:
        fitting = <uint8_t*>realloc(block.at, <size_t>(size + SLACK))
        if fitting == NULL:
            fitting = block.at
        else:
            capacity = size + SLACK
    memory.at = fitting
    memory.size = <Py_ssize_t>size
    memory.capacity = capacity
    block.at = NULL
    block.capacity = 0
    return memory


cdef object taken_bits(Block* block, int64_t rows, int64_t nulls):
    cdef Memory memory = taken_memory(block, (rows + 7) >> 3)
    return memory if nulls else None


@cython.auto_pickle(False)
cdef class Column:
    """One node of the tree that Arrow's C data interface describes."""

    def __init__(
        self, str name, str format, int64_t length, int64_t null_count, list buffers, list children, bint nullable
    ):
        self.name, self.format, self.length, self.null_count = name, format, length, null_count
        self.buffers, self.children, self.nullable = buffers, children, nullable
        self.c_name = name.encode()
        self.c_format = format.encode()

    @property
    def validity(self):
        """Arrow's validity bitmap as numpy uint8, or None if nothing is null."""
        return None if self.buffers[0] is None else np.frombuffer(self.buffers[0], np.uint8)

    @property
    def offsets(self):
        """length + 1 int32 offsets into `data` (binary columns) or into the entries (headers)."""
        return np.frombuffer(self.buffers[1], np.int32)

    @property
    def data(self):
        """The bytes of a binary column, or the numbers of a fixed-width column."""
        if len(self.buffers) == 3:
            memory, dtype = self.buffers[2], np.uint8
        else:
            memory, dtype = self.buffers[1], (np.int32 if self.format == "i" else np.int64)
        return np.frombuffer(memory, dtype) if (<Memory>memory).size else np.empty(0, dtype)

    def child(self, Py_ssize_t i):
        """Returns the i-th child: the entries of headers, or an entry's key or value."""
        return self.children[i]

    def to_list(self):
        """Returns a binary column as a list of bytes and None."""
        cdef Memory offsets = self.buffers[1]
        cdef Memory data = self.buffers[2]
        cdef Memory bits = self.buffers[0]
        cdef const int32_t* at = <const int32_t*>offsets.at
        cdef int64_t i
        cdef list found = []
        for i in range(self.length):
            if bits is not None and not (bits.at[i >> 3] >> (i & 7)) & 1:
                found.append(None)
            else:
                found.append(PyBytes_FromStringAndSize(<const char*>data.at + at[i], at[i + 1] - at[i]))
        return found


cdef void release_schema(ArrowSchema* schema) noexcept with gil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i].release != NULL:
            schema.children[i].release(schema.children[i])
        free(schema.children[i])
    free(schema.children)
    Py_DECREF(<object>schema.private_data)
    schema.release = NULL


cdef void release_array(ArrowArray* array) noexcept with gil:
    cdef int64_t i
    for i in range(array.n_children):
        if array.children[i].release != NULL:
            array.children[i].release(array.children[i])
        free(array.children[i])
    free(array.children)
    free(array.buffers)
    Py_DECREF(<object>array.private_data)
    array.release = NULL


cdef int fill_schema(Column column, ArrowSchema* out) except -1:
    cdef Py_ssize_t i, n = len(column.children)
    cdef ArrowSchema* child
    memset(out, 0, sizeof(ArrowSchema))
    out.format = column.c_format
    out.name = column.c_name
    out.flags = 2 if column.nullable else 0
    out.children = <ArrowSchema**>calloc(n + 1, sizeof(ArrowSchema*))
    if out.children == NULL:
        raise MemoryError
    Py_INCREF(column)
    out.private_data = <void*>column
    out.release = release_schema
    for i in range(n):
        child = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if child == NULL:
            raise MemoryError
        out.children[i] = child
        out.n_children = i + 1
        fill_schema(column.children[i], child)
    return 0


cdef int fill_array(Column column, ArrowArray* out) except -1:
    cdef Py_ssize_t i, n = len(column.children)
    cdef ArrowArray* child
    cdef Memory memory
    memset(out, 0, sizeof(ArrowArray))
    out.length = column.length
    out.null_count = column.null_count
    out.children = <ArrowArray**>calloc(n + 1, sizeof(ArrowArray*))
    out.buffers = <const void**>calloc(4, sizeof(void*))
    if out.children == NULL or out.buffers == NULL:
        free(out.children)
        free(out.buffers)
        raise MemoryError
    out.n_buffers = len(column.buffers)
    for i in range(out.n_buffers):
        memory = column.buffers[i]
        if memory is not None:
            out.buffers[i] = memory.at
    Py_INCREF(column)
    out.private_data = <void*>column
    out.release = release_array
    for i in range(n):
        child = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if child == NULL:
            raise MemoryError
        out.children[i] = child
        out.n_children = i + 1
        fill_array(column.children[i], child)
    return 0


cdef void drop_schema(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void drop_array(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef object schema_capsule(Column column):
    cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
    if schema == NULL:
        raise MemoryError
    capsule = PyCapsule_New(schema, "arrow_schema", drop_schema)
    fill_schema(column, schema)
    return capsule


cdef object array_capsule(Column column):
    cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
    if array == NULL:
        raise MemoryError
    capsule = PyCapsule_New(array, "arrow_array", drop_array)
    fill_array(column, array)
    return capsule


@cython.auto_pickle(False)
cdef class RecordColumns:
    """Records as columns: offset and timestamp (int64; -1 for none), timestamp_type (int32: 0 create, 1 log append, -1
    magic 0), key and value (binary, nullable), headers (list of key and value). Columns that were not requested are
    None. Immutable; numpy arrays and Arrow consumers share its memory.
    """

    def __init__(self, Column root):
        self.root = root

    def __len__(self):
        return self.root.length

    def column(self, str name):
        """Returns the column of that name, or None."""
        for child in self.root.children:
            if child.name == name:
                return child
        return None

    @property
    def column_names(self):
        return [child.name for child in self.root.children]

    @property
    def offsets(self):
        """Record offsets (numpy int64)."""
        return self.column("offset").data

    @property
    def timestamps(self):
        """Record timestamps in milliseconds (numpy int64)."""
        return self.column("timestamp").data

    @property
    def timestamp_types(self):
        column = self.column("timestamp_type")
        return None if column is None else column.data

    @property
    def keys(self):
        return self.column("key")

    @property
    def values(self):
        return self.column("value")

    @property
    def headers(self):
        return self.column("headers")

    @property
    def nbytes(self):
        """Bytes of all buffers."""
        return total_bytes(self.root)

    def header_lists(self):
        """Returns the headers of each record as a list of (str, bytes or None)."""
        headers = self.column("headers")
        ends = headers.offsets.tolist()
        pairs = headers.child(0)
        names = [name.decode() for name in pairs.child(0).to_list()]
        entries = list(zip(names, pairs.child(1).to_list()))
        return [entries[start:stop] for start, stop in zip(ends, ends[1:])]

    def __arrow_c_schema__(self):
        return schema_capsule(self.root)

    def __arrow_c_array__(self, requested_schema=None):
        return schema_capsule(self.root), array_capsule(self.root)


cdef int64_t total_bytes(Column column) except -1:
    cdef int64_t total = 0
    for memory in column.buffers:
        if memory is not None:
            total += (<Memory>memory).size
    for child in column.children:
        total += total_bytes(child)
    return total


# --- streams ----------------------------------------------------------------------------------------------

cdef const char* UNKNOWN = b"Unknown error: "  # pyarrow's prefix for exceptions that are not its own
cdef const char* DETAIL = b". Detail: Python exception: "  # a traceback follows, which ends with the same text

cdef struct Told:
    ArrowArrayStream inner
    char* text  # the last error's text, shortened
    char* ours  # a traceback that contains this text is removed


cdef int told_schema(ArrowArrayStream* stream, ArrowSchema* out) noexcept nogil:
    cdef ArrowArrayStream* inner = &(<Told*>stream.private_data).inner
    return inner.get_schema(inner, out)


cdef int told_next(ArrowArrayStream* stream, ArrowArray* out) noexcept nogil:
    cdef ArrowArrayStream* inner = &(<Told*>stream.private_data).inner
    return inner.get_next(inner, out)


cdef const char* told_error(ArrowArrayStream* stream) noexcept nogil:
    cdef Told* told = <Told*>stream.private_data
    cdef const char* text = told.inner.get_last_error(&told.inner)
    cdef const char* detail = NULL if text == NULL else strstr(text, DETAIL)
    cdef size_t size
    if detail == NULL or strstr(detail, told.ours) == NULL:
        return text  # the error comes from other code, such as a caller's function: its traceback says where
    if strncmp(text, UNKNOWN, strlen(UNKNOWN)) == 0:
        text += strlen(UNKNOWN)
    size = detail - text
    free(told.text)
    told.text = <char*>malloc(size + 1)
    if told.text == NULL:
        return text
    memcpy(told.text, text, size)
    told.text[size] = 0
    return told.text


cdef void told_release(ArrowArrayStream* stream) noexcept nogil:
    cdef Told* told = <Told*>stream.private_data
    if told.inner.release != NULL:
        told.inner.release(&told.inner)
    free(told.text)
    free(told.ours)
    free(told)
    stream.release = NULL


cdef void drop_stream(object capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


def told_stream(capsule not None, bytes ours not None):
    """Returns a new capsule for the stream in `capsule` ("arrow_array_stream"), which is empty afterwards.

    pyarrow appends a traceback to an error's text. If this traceback contains `ours`, the new stream removes it and
    reports the exception's message only."""
    cdef ArrowArrayStream* inner = <ArrowArrayStream*>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>calloc(1, sizeof(ArrowArrayStream))
    cdef Told* told = <Told*>calloc(1, sizeof(Told))
    if stream == NULL or told == NULL:
        free(stream)
        free(told)
        raise MemoryError
    try:
        found = PyCapsule_New(stream, "arrow_array_stream", drop_stream)
    except BaseException:
        free(stream)
        free(told)
        raise
    if inner.release == NULL:
        free(told)
        raise ValueError("the stream was taken already")
    told.ours = strdup(ours)
    if told.ours == NULL:
        free(told)
        raise MemoryError
    told.inner = inner[0]
    inner.release = NULL
    stream.get_schema = told_schema
    stream.get_next = told_next
    stream.get_last_error = told_error
    stream.private_data = told
    stream.release = told_release
    return found
