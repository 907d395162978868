"""Kafka's messages: bytes become dictionaries of fields, and dictionaries become bytes.

A Program is a message in one version: its structs, inner ones first, each a row of fields. `engine.format.messages`
compiles it from the tables; nothing here knows a name of Kafka's. A struct's fields are in three runs: those that are
written in turn, the tagged ones in the order of their tags, and those of other versions. A dictionary begins as a copy
of its struct's template, which has every field with its default in the order of declaration; lists and structs among
the defaults are made anew for each dictionary.

The bytes are untrusted, and may change while they are read. Each length is checked before it is used, and an array of n
elements needs n bytes, so a list takes at most eight times the bytes that promise it. Structs nest as deep as the table
says, so the bytes cannot make the reader recurse further. A problem raises Refusal with a verdict, the field, and the
position or the value; the caller has the words.

The file is long because reading and writing walk the same rows of a Program, kind by kind.
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Copy, PyDict_SetItem, PyDict_Size
from cpython.list cimport PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT16_MAX, INT32_MAX, INT32_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

from collections.abc import Mapping

from kafkalog._native.codec.layout cimport load8, load16, load32, load64, store16, store32, store64
from kafkalog._native.codec.memory cimport Block, reserve
from kafkalog._native.codec.octets cimport open_octets
from kafkalog._native.codec.octets import bytes_of
from kafkalog._native.codec.varint cimport size_of_uvarint64, write_uvarint64

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char* text, Py_ssize_t size, const char* errors)
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 largest)
    void* PyUnicode_DATA(object text)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    int64_t PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    object PyNumber_Index(object number)
    double PyFloat_AsDouble(object number) except? -1.0
    Py_ssize_t PY_SSIZE_T_MAX

cdef enum Kind:
    BOOL
    INT8
    INT16
    UINT16
    INT32
    INT64
    FLOAT64
    UUID
    STRING
    STRING16
    BYTES
    RECORDS
    STRUCT
    ARRAY

cdef enum Fresh:
    SHARED_DEFAULT
    NEW_LIST
    NEW_STRUCT

cdef enum:
    UUID_BYTES = 16
    UUID_CHARS = 22
    ELEMENTS_MAX = 1000000
    TAGS_MAX = 10000
    FIRST_BYTES = 512
    COPIED_TEXT_MAX = 256

# The limits of MessageUtil, new in 4.4.0.
ARRAY_LENGTH_MAX, TAGGED_FIELDS_MAX = ELEMENTS_MAX, TAGS_MAX
KINDS = {
    "bool": BOOL,
    "int8": INT8,
    "int16": INT16,
    "uint16": UINT16,
    "int32": INT32,
    "int64": INT64,
    "float64": FLOAT64,
    "uuid": UUID,
    "string": STRING,
    "string16": STRING16,
    "bytes": BYTES,
    "records": RECORDS,
    "struct": STRUCT,
    "array": ARRAY,
}
SHARED, LIST, FIELDS = SHARED_DEFAULT, NEW_LIST, NEW_STRUCT
# The verdicts on bytes, then those on values.
(
    SHORT_NUMBER, SHORT_BYTES, NEGATIVE_SIZE, SHORT_UVARINT, LONG_UVARINT, IS_NULL, LONG_TEXT, FEW_BYTES, MANY_ELEMENTS,
    NEGATIVE_TAGS, FEW_BYTES_FOR_TAGS, MANY_TAGS, WRONG_TAG, TOO_NEW,
    BAD_VALUE, BAD_STRUCT, MISSING, UNKNOWN, NOT_DEFAULT, LONG_VALUE,
) = range(20)


class Refusal(Exception):
    """Bytes or a value do not fit.

    `field` is the name of the field or, for BAD_STRUCT, MISSING and UNKNOWN, of the struct. `position` is where it was
    seen, in the given bytes. `number` and `value` depend on the verdict: the promised size, the tag, the kind of value
    (plus NULLABLE), the value that was found.
    """

    def __init__(self, verdict, field, position=0, number=0, value=None):
        super().__init__(verdict, field, position, number)
        self.verdict = verdict
        self.field = field
        self.position = position
        self.number = number
        self.value = value


NULLABLE = 64

cdef struct Field:
    int kind
    int element  # the kind of an array's elements
    int inner  # the number of the struct, also of an array's
    int tag  # -1 if it has none
    bint nullable
    bint ignorable
    int fresh
    PyObject* name
    PyObject* default  # None for a list or a struct
    uint8_t* default_bytes
    Py_ssize_t default_size  # -1 if the default cannot be written

cdef struct Struct:
    int start  # fields[start:tagged] are written in turn
    int tagged  # fields[tagged:others] have tags
    int others  # fields[others:end] are of other versions
    int end
    bint fresh  # whether a field's default is a list or a struct
    PyObject* name
    PyObject* template

cdef str _TAGS = "tagged fields"
cdef str _TAG = "tag"
cdef str _TAG_SIZE = "size of a tagged field"
cdef Field tags_place, tag_place, tag_size_place
tags_place.name, tag_place.name, tag_size_place.name = <PyObject*>_TAGS, <PyObject*>_TAG, <PyObject*>_TAG_SIZE
cdef object _ABSENT = object()
cdef bytes _DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
cdef uint8_t digits[64]
cdef uint8_t values_of_digits[128]


def _fill_digits():
    memset(values_of_digits, 0xFF, 128)
    for i, digit in enumerate(_DIGITS):
        digits[i] = digit
        values_of_digits[<int>digit] = i


_fill_digits()


# --- bytes ----------------------------------------------------------------------------------------


@cython.final
@cython.auto_pickle(False)
cdef class _Reading:
    """The bytes, and the position in them."""

    cdef Py_buffer view
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef object data
    cdef object octets  # a memoryview of the bytes, once a field of records was read

    def __cinit__(self, data, Py_ssize_t at):
        open_octets(data, &self.view)
        if at < 0 or at > self.view.len:
            raise IndexError(f"position {at} is outside the {self.view.len} bytes")
        self.at = <const uint8_t*>self.view.buf + at
        self.end = <const uint8_t*>self.view.buf + self.view.len
        self.data = data

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef Py_ssize_t position(self) noexcept:
        return self.at - <const uint8_t*>self.view.buf


cdef object place_of(const Field* field, bint element):
    return f"{<object>field.name} element" if element else <object>field.name


cdef int refuse(_Reading read, int verdict, const Field* field, bint element, int64_t number) except -1:
    raise Refusal(verdict, place_of(field, element), read.position(), number)


cdef inline const uint8_t* take(_Reading read, Py_ssize_t size, const Field* field, bint element) except NULL:
    """Returns the bytes of a number."""
    cdef const uint8_t* at = read.at
    if size > read.end - at:
        refuse(read, SHORT_NUMBER, field, element, size)
    read.at = at + size
    return at


cdef int take_uvarint(_Reading read, const Field* field, bint element, int32_t* found) except -1:
    """Reads a number of up to 32 bits and interprets it as an int32, as Kafka does for lengths."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint32_t byte
    while shift < 35:
        if read.at >= read.end:
            refuse(read, SHORT_UVARINT, field, element, 0)
        byte = load8(read.at)
        read.at += 1
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            found[0] = <int32_t><uint32_t>value
            return 0
        shift += 7
    return refuse(read, LONG_UVARINT, field, element, <uint32_t>value)


cdef inline int take_length(
    _Reading read, const Field* field, bint element, bint flexible, bint short, int32_t* found
) except -1:
    """Reads the length of a string, bytes or an array; a negative one means null."""
    if flexible:
        take_uvarint(read, field, element, found)
        found[0] = found[0] - 1 if found[0] > INT32_MIN else INT32_MAX  # overflows like Java's int
    elif short:
        found[0] = <int16_t>load16(take(read, 2, field, element))
    else:
        found[0] = <int32_t>load32(take(read, 4, field, element))
    return 0


cdef object text_of(_Reading read, const uint8_t* at, Py_ssize_t size):
    """Decodes UTF-8 as Java does. Bytes that may change are copied first: the decoder reads them more than once."""
    cdef uint8_t[COPIED_TEXT_MAX] copied
    if type(read.data) is bytes:
        return PyUnicode_DecodeUTF8(<const char*>at, size, b"kafkalog.java")
    if size <= COPIED_TEXT_MAX:
        memcpy(copied, at, <size_t>size)
        return PyUnicode_DecodeUTF8(<const char*>copied, size, b"kafkalog.java")
    return PyBytes_FromStringAndSize(<const char*>at, size).decode("utf-8", "kafkalog.java")


cdef object uuid_of(const uint8_t* at):
    """Returns the 22 characters of base64, without padding."""
    cdef object text = PyUnicode_New(UUID_CHARS, 127)
    cdef uint8_t* to = <uint8_t*>PyUnicode_DATA(text)
    cdef uint32_t bits
    cdef int _group
    for _group in range(5):
        bits = (load8(at) << 16) | (load8(at + 1) << 8) | load8(at + 2)
        to[0] = digits[bits >> 18]
        to[1] = digits[(bits >> 12) & 63]
        to[2] = digits[(bits >> 6) & 63]
        to[3] = digits[bits & 63]
        at += 3
        to += 4
    bits = load8(at)
    to[0] = digits[bits >> 2]
    to[1] = digits[(bits & 3) << 4]
    return text


@cython.final
@cython.auto_pickle(False)
cdef class _Writing:
    """The bytes so far, and the slices of files between them: (position, object)."""

    cdef Block out
    cdef Py_ssize_t size
    cdef list slices  # None if the bytes must be in one piece

    def __cinit__(self, bint parts):
        self.slices = [] if parts else None
        self.out.at = <uint8_t*>malloc(FIRST_BYTES)
        if self.out.at == NULL:
            raise MemoryError
        self.out.capacity = FIRST_BYTES

    def __dealloc__(self):
        free(self.out.at)


cdef inline uint8_t* room(_Writing out, Py_ssize_t size) except NULL:
    cdef Py_ssize_t at = out.size
    if size > PY_SSIZE_T_MAX - at or not reserve(&out.out, at + size):
        raise MemoryError
    out.size = at + size
    return out.out.at + at


cdef inline int put_uvarint(_Writing out, uint32_t value) except -1:
    write_uvarint64(room(out, size_of_uvarint64(value)), value)
    return 0


cdef inline int put_length(_Writing out, Py_ssize_t size, bint flexible, bint short) except -1:
    """-1 is null."""
    if size > INT32_MAX - 1:
        raise OverflowError(f"found {size} bytes or elements, expected at most {INT32_MAX - 1}")
    if flexible:
        put_uvarint(out, <uint32_t>(size + 1))
    elif short:
        store16(room(out, 2), <int16_t>size)
    else:
        store32(room(out, 4), <int32_t>size)
    return 0


cdef int insert(_Writing out, Py_ssize_t at, const uint8_t* data, Py_ssize_t size) except -1:
    """Inserts bytes before those from `at` on."""
    cdef Py_ssize_t after = out.size - at
    room(out, size)
    memmove(out.out.at + at + size, out.out.at + at, <size_t>after)
    memcpy(out.out.at + at, data, <size_t>size)
    return 0


cdef int unsuitable(const Field* field, bint element, object value) except -1:
    """Refuses a value that is not of the field's kind."""
    cdef int kind = field.element if element else field.kind
    raise Refusal(BAD_VALUE, place_of(field, element), 0,
                  kind + (NULLABLE if field.nullable and not element else 0), value)


# --- a message in one version ---------------------------------------------------------------------


@cython.final
@cython.auto_pickle(False)
cdef class Program:
    """A message in one version; immutable, so any number of threads may use it.

    `structs` are (name, fields), inner ones first, and fields have the order of declaration. A field is (name, kind,
    kind of elements, number of its struct, tag, place, nullable, ignorable, fresh, default), with -1 for a number that
    it lacks. The place is 0 for a field that is written in turn, 1 for a tagged one, 2 for one of another version.
    `flexible` is the version's. A `complete` message has the fields of all versions. `too_new` is the version of a
    message that is newer than this program, whose inner structs are refused, or 0. `uuid_bytes(text, name)` decodes a
    uuid that is not 22 plain characters, or raises.
    """

    cdef Struct* structs
    cdef Field* fields
    cdef int struct_count
    cdef int field_count
    cdef bint flexible
    cdef bint complete
    cdef int64_t too_new
    cdef object uuid_bytes
    cdef list kept  # the objects that the structs and fields point to

    def __cinit__(self, structs, bint flexible, bint complete, int64_t too_new, uuid_bytes):
        cdef int number = 0, filled = 0
        self.flexible = flexible
        self.complete = complete
        self.too_new = too_new
        self.uuid_bytes = uuid_bytes
        self.kept = []
        self.field_count = sum(len(fields) for _, fields in structs)
        self.struct_count = len(structs)
        self.structs = <Struct*>PyMem_Calloc(self.struct_count, sizeof(Struct))
        self.fields = <Field*>PyMem_Calloc(self.field_count + 1, sizeof(Field))
        if self.structs == NULL or self.fields == NULL:
            raise MemoryError
        for name, fields in structs:
            filled = self.add(number, filled, name, fields)
            number += 1

    def __dealloc__(self):
        cdef int i
        if self.fields != NULL:
            for i in range(self.field_count):
                PyMem_Free(self.fields[i].default_bytes)
        PyMem_Free(self.fields)
        PyMem_Free(self.structs)

    cdef int add(self, int number, int filled, str name, list fields) except -1:
        """Adds a struct whose fields begin at `filled`, and returns where they end."""
        cdef Struct* of = &self.structs[number]
        cdef Field* field
        cdef int place, inner
        template = {}
        of.start = filled
        for place in range(3):
            if place == 1:
                of.tagged = filled
            if place == 2:
                of.others = filled
            chosen = [row for row in fields if row[5] == place]
            for row in sorted(chosen, key=lambda row: row[4]) if place == 1 else chosen:
                field = &self.fields[filled]
                field_name, field.kind, field.element, inner, field.tag, _, field.nullable = row[:7]
                field.ignorable, field.fresh, default = row[7:]
                if STRUCT in (field.kind, field.element) and not 0 <= inner < number:
                    raise ValueError("inner structs come first")
                field.inner = inner
                self.kept += [field_name, default]
                field.name, field.default = <PyObject*>field_name, <PyObject*>default
                field.default_size = -1
                of.fresh |= field.fresh != SHARED_DEFAULT and place != 0
                filled += 1
        of.end = filled
        for row in fields:
            if row[5] != 2 or self.complete:
                template[row[0]] = row[9]
        self.kept += [name, template]
        of.name, of.template = <PyObject*>name, <PyObject*>template
        self.write_defaults(of)
        return filled

    cdef int write_defaults(self, const Struct* of) except -1:
        """Keeps the bytes of each default."""
        cdef int i
        cdef Field* field
        cdef _Writing out
        for i in range(of.start, of.others):
            field = &self.fields[i]
            out = _Writing(False)
            try:
                self.write(out, field, self.default_of(field))
            except Refusal:
                continue  # null, in a version that cannot write it
            field.default_bytes = <uint8_t*>PyMem_Malloc(out.size + 1)
            if field.default_bytes == NULL:
                raise MemoryError
            memcpy(field.default_bytes, out.out.at, <size_t>out.size)
            field.default_size = out.size
        return 0

    cdef object default_of(self, const Field* field):
        if field.fresh == NEW_LIST:
            return []
        return self.defaults(&self.structs[field.inner]) if field.fresh == NEW_STRUCT else <object>field.default

    cdef dict defaults(self, const Struct* of):
        cdef dict values = PyDict_Copy(<object>of.template)
        self.renew(of, values, of.start)
        return values

    cdef int renew(self, const Struct* of, dict values, int start) except -1:
        """Gives a copy of the template its own lists and structs, for the fields from `start` on."""
        cdef int i
        for i in range(start, of.end if self.complete else of.others):
            if self.fields[i].fresh != SHARED_DEFAULT:
                PyDict_SetItem(values, <object>self.fields[i].name, self.default_of(&self.fields[i]))
        return 0

    def default_values(self):
        """Returns the message with all defaults."""
        return self.defaults(&self.structs[self.struct_count - 1])

    # --- reading ---

    def decode(self, data, Py_ssize_t at=0):
        """Returns the fields of the message that begins at `at`, and the position of its end.

        A field of records is a memoryview of `data`. Raises Refusal.
        """
        cdef _Reading read = _Reading(data, at)
        values = self.read_struct(read, &self.structs[self.struct_count - 1])
        return values, read.position()

    cdef dict read_struct(self, _Reading read, const Struct* of):
        cdef dict values = PyDict_Copy(<object>of.template)
        cdef const Field* field
        cdef int i
        if of.fresh:
            self.renew(of, values, of.tagged)
        for i in range(of.start, of.tagged):
            field = &self.fields[i]
            PyDict_SetItem(values, <object>field.name, self.read(read, field))
        if self.flexible:
            self.read_tags(read, of, values)
        return values

    cdef object read(self, _Reading read, const Field* field):
        cdef list items
        cdef int32_t count
        cdef Py_ssize_t i
        if field.kind != ARRAY:
            return self.read_value(read, field, field.kind, False)
        take_length(read, field, False, self.flexible, False, &count)
        if count < 0:
            if not field.nullable:
                refuse(read, IS_NULL, field, False, 0)
            return None
        if count > read.end - read.at:  # an element has at least one byte
            refuse(read, FEW_BYTES, field, False, count)
        if count > ELEMENTS_MAX:
            refuse(read, MANY_ELEMENTS, field, False, count)
        items = PyList_New(count)
        for i in range(count):
            item = self.read_value(read, field, field.element, True)
            Py_INCREF(item)
            PyList_SET_ITEM(items, i, item)
        return items

    cdef object read_value(self, _Reading read, const Field* field, int kind, bint element):
        cdef uint64_t bits
        cdef double double_
        if kind == INT32:
            return <int32_t>load32(take(read, 4, field, element))
        elif kind == INT64:
            return <int64_t>load64(take(read, 8, field, element))
        elif kind == INT16:
            return <int16_t>load16(take(read, 2, field, element))
        elif kind == STRUCT:
            return self.read_inner(read, field, element)
        elif kind == INT8:
            return <int8_t>load8(take(read, 1, field, element))
        elif kind == BOOL:
            return load8(take(read, 1, field, element)) != 0
        elif kind == UUID:
            return uuid_of(take(read, UUID_BYTES, field, element))
        elif kind == UINT16:
            return load16(take(read, 2, field, element))
        elif kind == FLOAT64:
            bits = load64(take(read, 8, field, element))
            memcpy(&double_, &bits, 8)
            return double_
        else:
            return self.read_octets(read, field, kind, element)

    cdef object read_octets(self, _Reading read, const Field* field, int kind, bint element):
        """Reads a text, bytes or records."""
        cdef bint text = kind == STRING or kind == STRING16
        cdef int32_t size
        cdef const uint8_t* at
        cdef Py_ssize_t start
        take_length(read, field, element, self.flexible and kind != STRING16, text, &size)
        if size < 0:
            if element or not field.nullable:
                refuse(read, IS_NULL, field, element, 0)
            return None
        if text and size > INT16_MAX:
            refuse(read, LONG_TEXT, field, element, size)
        at = read.at
        if size > read.end - at:
            refuse(read, SHORT_BYTES, field, element, size)
        read.at = at + size
        if text:
            return text_of(read, at, size)
        if kind == BYTES:
            return PyBytes_FromStringAndSize(<const char*>at, size)
        if read.octets is None:
            read.octets = bytes_of(read.data)
        start = at - <const uint8_t*>read.view.buf
        return read.octets[start:start + size]

    cdef object read_inner(self, _Reading read, const Field* field, bint element):
        """Reads a struct inside another."""
        cdef int32_t mark
        if field.nullable and not element:
            if field.tag >= 0:
                take_uvarint(read, field, element, &mark)
                if mark <= 0:
                    return None
            elif <int8_t>load8(take(read, 1, field, element)) < 0:
                return None
        if self.too_new:
            raise Refusal(TOO_NEW, place_of(field, element), read.position(), self.too_new,
                          <object>self.structs[field.inner].name)
        return self.read_struct(read, &self.structs[field.inner])

    cdef int read_tags(self, _Reading read, const Struct* of, dict values) except -1:
        cdef int32_t count, tag, size
        cdef int32_t seen = 0
        cdef const Field* field
        take_uvarint(read, &tags_place, False, &count)
        if count == 0:
            return 0
        if count < 0:
            refuse(read, NEGATIVE_TAGS, &tags_place, False, count)
        if count > read.end - read.at:  # each has at least two bytes
            refuse(read, FEW_BYTES_FOR_TAGS, &tags_place, False, count)
        if count > TAGS_MAX:
            refuse(read, MANY_TAGS, &tags_place, False, count)
        while seen < count:
            seen += 1
            take_uvarint(read, &tag_place, False, &tag)
            take_uvarint(read, &tag_size_place, False, &size)
            field = self.tagged(of, tag)
            if field == NULL:
                if size > read.end - read.at:
                    raise Refusal(SHORT_BYTES, f"tagged field {tag}", read.position(), size)
                if size < 0:
                    raise Refusal(NEGATIVE_SIZE, f"tagged field {tag}", read.position(), size)
                read.at += size
            elif field >= &self.fields[of.others]:
                refuse(read, WRONG_TAG, field, False, tag)
            else:  # Kafka ignores the size, too
                PyDict_SetItem(values, <object>field.name, self.read(read, field))
        return 0

    cdef const Field* tagged(self, const Struct* of, int32_t tag) noexcept:
        """Returns the field with a tag in any version, or NULL."""
        cdef int i
        if tag >= 0:
            for i in range(of.tagged, of.end):
                if self.fields[i].tag == tag:
                    return &self.fields[i]
        return NULL

    # --- writing ---

    def encode(self, values):
        """Returns the bytes of a dictionary of fields. Raises Refusal."""
        cdef _Writing out = _Writing(False)
        self.write_struct(out, &self.structs[self.struct_count - 1], values)
        return PyBytes_FromStringAndSize(<const char*>out.out.at, out.size)

    def encode_parts(self, values):
        """Returns the bytes in pieces, between which are the objects that had a `size` in fields of records."""
        cdef _Writing out = _Writing(True)
        cdef Py_ssize_t at = 0, position
        cdef list parts = []
        self.write_struct(out, &self.structs[self.struct_count - 1], values)
        for position, piece in out.slices:
            if position > at:
                parts.append(PyBytes_FromStringAndSize(<const char*>out.out.at + at, position - at))
            parts.append(piece)
            at = position
        if out.size > at:
            parts.append(PyBytes_FromStringAndSize(<const char*>out.out.at + at, out.size - at))
        return parts

    cdef int write_struct(self, _Writing out, const Struct* of, object given) except -1:
        cdef const Field* field
        cdef dict values
        cdef Py_ssize_t found = 0, size
        cdef int i
        if type(given) is dict:
            values = given
        elif isinstance(given, Mapping):
            values = dict(given)
        else:
            raise Refusal(BAD_STRUCT, <object>of.name, value=given)
        size = PyDict_Size(values)
        for i in range(of.start, of.tagged):
            field = &self.fields[i]
            value = values.get(<object>field.name, _ABSENT)
            if value is not _ABSENT:
                found += 1
                self.write(out, field, value)
            elif not self.complete:
                raise Refusal(MISSING, <object>of.name, value=<object>field.name)
            elif field.default_size < 0:
                unsuitable(field, False, None)
            else:
                memcpy(room(out, field.default_size), field.default_bytes, <size_t>field.default_size)
        if found < size:
            self.check_others(of, values, size - found)
        if self.flexible:
            if found < size and of.tagged < of.others:
                self.write_tags(out, of, values)
            else:
                room(out, 1)[0] = 0
        return 0

    cdef int check_others(self, const Struct* of, dict values, Py_ssize_t left) except -1:
        """Checks that the other `left` fields are tagged, or of other versions and have their defaults."""
        cdef const Field* field
        cdef int i
        for i in range(of.tagged, of.end if self.complete else of.others):
            field = &self.fields[i]
            value = values.get(<object>field.name, _ABSENT)
            if value is _ABSENT:
                continue
            left -= 1
            if i >= of.others and not field.ignorable and not self.is_default(field, value):
                raise Refusal(NOT_DEFAULT, <object>field.name, value=value)
            if left == 0:
                break
        if left:
            known = <object>of.template
            raise Refusal(UNKNOWN, <object>of.name, value=([name for name in values if name not in known], list(known)))
        return 0

    cdef bint is_default(self, const Field* field, object value) except -1:
        cdef const Struct* of
        cdef int i
        if field.fresh == SHARED_DEFAULT:
            return value is <object>field.default or value == <object>field.default
        if field.fresh == NEW_LIST:
            return isinstance(value, (list, tuple)) and not value
        if not isinstance(value, Mapping):
            return False
        of = &self.structs[field.inner]
        for i in range(of.start, of.end):
            item = value.get(<object>self.fields[i].name, _ABSENT)
            if item is not _ABSENT and not self.is_default(&self.fields[i], item):
                return False
        return True

    cdef int write_tags(self, _Writing out, const Struct* of, dict values) except -1:
        cdef uint8_t[10] head
        cdef Py_ssize_t start = out.size, begin, size
        cdef const Field* field
        cdef uint32_t count = 0
        cdef int i
        for i in range(of.tagged, of.others):
            field = &self.fields[i]
            value = values.get(<object>field.name, _ABSENT)
            if value is _ABSENT or (field.fresh == SHARED_DEFAULT and value is <object>field.default):
                continue
            begin = out.size
            self.write(out, field, value)
            size = out.size - begin
            if size == field.default_size and memcmp(out.out.at + begin, field.default_bytes, <size_t>size) == 0:
                out.size = begin
                continue
            count += 1
            insert(out, begin, head, write_uvarint64(write_uvarint64(head, field.tag), <uint64_t>size) - head)
        insert(out, start, head, write_uvarint64(head, count) - head)
        return 0

    cdef int write(self, _Writing out, const Field* field, object value) except -1:
        cdef Py_ssize_t i, count
        cdef list items
        if field.kind != ARRAY:
            return self.write_value(out, field, field.kind, False, value)
        if value is None and field.nullable:
            return put_length(out, -1, self.flexible, False)
        if isinstance(value, list):
            items = value
        elif isinstance(value, tuple):
            items = list(value)
        else:
            return unsuitable(field, False, value)
        count = PyList_GET_SIZE(items)
        put_length(out, count, self.flexible, False)
        for i in range(count):
            if i >= PyList_GET_SIZE(items):
                raise RuntimeError("another thread changed a list while it was written")
            item = items[i]
            self.write_value(out, field, field.element, True, item)
        return 0

    cdef int write_value(self, _Writing out, const Field* field, int kind, bint element, object value) except -1:
        if kind <= INT64:
            return self.write_number(out, field, kind, element, value)
        elif kind == STRUCT:
            return self.write_inner(out, field, element, value)
        elif kind == STRING or kind == STRING16:
            return self.write_text(out, field, kind, element, value)
        elif kind == UUID:
            return self.write_uuid(out, field, element, value)
        elif kind == FLOAT64:
            return self.write_double(out, field, element, value)
        else:
            return self.write_octets(out, field, kind, element, value)

    cdef int write_number(self, _Writing out, const Field* field, int kind, bint element, object value) except -1:
        cdef int overflow = 0
        cdef int64_t number
        if kind == BOOL:
            if value is not True and value is not False:
                unsuitable(field, element, value)
            room(out, 1)[0] = value is True
            return 0
        if isinstance(value, int):
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
        else:
            try:
                index = PyNumber_Index(value)
            except TypeError:
                return unsuitable(field, element, value)
            number = PyLong_AsLongLongAndOverflow(index, &overflow)
        if overflow:
            unsuitable(field, element, value)
        if kind == INT32:
            if number != <int32_t>number:
                unsuitable(field, element, value)
            store32(room(out, 4), <uint32_t>number)
        elif kind == INT64:
            store64(room(out, 8), <uint64_t>number)
        elif kind == INT16:
            if number != <int16_t>number:
                unsuitable(field, element, value)
            store16(room(out, 2), <int16_t>number)
        elif kind == INT8:
            if number != <int8_t>number:
                unsuitable(field, element, value)
            room(out, 1)[0] = <uint8_t>number
        else:
            if number < 0 or number > 0xFFFF:
                unsuitable(field, element, value)
            store16(room(out, 2), <int16_t>number)
        return 0

    cdef int write_double(self, _Writing out, const Field* field, bint element, object value) except -1:
        cdef double number
        cdef uint64_t bits
        try:
            number = PyFloat_AsDouble(value)
        except (TypeError, OverflowError):
            return unsuitable(field, element, value)
        memcpy(&bits, &number, 8)
        store64(room(out, 8), bits)
        return 0

    cdef int write_text(self, _Writing out, const Field* field, int kind, bint element, object value) except -1:
        cdef bint flexible = self.flexible and kind != STRING16
        cdef const char* data
        cdef Py_ssize_t size
        if value is None and field.nullable and not element:
            return put_length(out, -1, flexible, True)
        if not isinstance(value, str):
            unsuitable(field, element, value)
        try:
            data = PyUnicode_AsUTF8AndSize(value, &size)
        except UnicodeEncodeError:
            return unsuitable(field, element, value)
        if size > INT16_MAX:
            raise Refusal(LONG_VALUE, place_of(field, element), 0, size)
        put_length(out, size, flexible, True)
        memcpy(room(out, size), data, <size_t>size)
        return 0

    cdef int write_uuid(self, _Writing out, const Field* field, bint element, object value) except -1:
        cdef const uint8_t* text
        cdef uint8_t* to = room(out, UUID_BYTES)
        cdef uint32_t bits, all_bits = 0
        cdef uint8_t[UUID_CHARS] sextets
        cdef int i
        if not isinstance(value, str):
            unsuitable(field, element, value)
        if PyUnicode_IS_COMPACT_ASCII(value) and PyUnicode_GET_LENGTH(value) == UUID_CHARS:
            text = <const uint8_t*>PyUnicode_DATA(value)
            for i in range(UUID_CHARS):
                sextets[i] = values_of_digits[text[i]]
                all_bits |= sextets[i]
            if all_bits < 64:
                for i in range(5):
                    bits = ((<uint32_t>sextets[4 * i] << 18) | (<uint32_t>sextets[4 * i + 1] << 12)
                            | (<uint32_t>sextets[4 * i + 2] << 6) | sextets[4 * i + 3])
                    to[3 * i] = <uint8_t>(bits >> 16)
                    to[3 * i + 1] = <uint8_t>(bits >> 8)
                    to[3 * i + 2] = <uint8_t>bits
                to[15] = <uint8_t>((sextets[20] << 2) | (sextets[21] >> 4))
                return 0
        data = self.uuid_bytes(value, place_of(field, element))
        if not isinstance(data, bytes) or len(data) != UUID_BYTES:
            raise ValueError("a uuid has 16 bytes")
        memcpy(to, <const char*><bytes>data, UUID_BYTES)
        return 0

    cdef int write_octets(self, _Writing out, const Field* field, int kind, bint element, object value) except -1:
        """Writes bytes or records."""
        cdef Py_buffer view
        cdef Py_ssize_t size
        if value is None and field.nullable and not element:
            return put_length(out, -1, self.flexible, False)
        if not isinstance(value, (bytes, bytearray, memoryview)):
            if kind != RECORDS or out.slices is None or not isinstance(getattr(value, "size", None), int):
                unsuitable(field, element, value)
            size = value.size
            if size < 0:
                unsuitable(field, element, value)
            put_length(out, size, self.flexible, False)
            if size:
                out.slices.append((out.size, value))
            return 0
        if isinstance(value, memoryview) and not value.c_contiguous:
            value = bytes(value)
        open_octets(value, &view)
        try:
            put_length(out, view.len, self.flexible, False)
            memcpy(room(out, view.len), view.buf, <size_t>view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int write_inner(self, _Writing out, const Field* field, bint element, object value) except -1:
        """Writes a struct inside another."""
        if field.nullable and not element:
            room(out, 1)[0] = 1 if value is not None else 0 if field.tag >= 0 else 0xFF
            if value is None:
                return 0
        return self.write_struct(out, &self.structs[field.inner], value)


def read_uvarint(data, Py_ssize_t at=0, str what="number"):
    """Returns a number of up to 32 bits, interpreted as an int32, and the position of its end. Raises Refusal."""
    cdef _Reading read = _Reading(data, at)
    cdef Field place
    cdef int32_t found
    place.name = <PyObject*>what
    take_uvarint(read, &place, False, &found)
    return found, read.position()
