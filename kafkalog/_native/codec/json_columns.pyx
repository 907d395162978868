"""Fields of JSON objects to Arrow columns: one pass over a binary column that has an object in each row.

The schema guides the walk. A field that the schema has goes to its column. Other fields are skipped: they must be valid
JSON, but their content is ignored. The keys of an object mostly come in the order of the object before. So the bytes
from the end of one value to the start of the next are compared with those of the last row, and a key is read and looked
up only if they differ.

A row is copied before it is read, with zeros after it. So nothing changes under the walk, and no step tests for the
end: a zero is never valid JSON. Each row is in all columns or, if it is broken, in none; the last of equal keys counts,
as in Python's json. Bad bytes give a verdict of `json_parts` and a position. This module raises no domain error, opens
nothing, and allocates in proportion to the bytes given.

`odd_rows` requests what Spark's from_json makes of the same bytes. For most rows the result is the same. A row that is
not strictly JSON, or that Jackson reads differently from what is written, is marked, null in all columns, and left to
the caller (`kafkalog/spark/from_json.py`).

The file is long because the code that fills the columns and the code that walks and calls it are inlined only within a
module.
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.math cimport NAN
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from kafkalog._native.codec cimport json_parts as parts
from kafkalog._native.codec.arrow cimport Column, RecordColumns, taken_bits, taken_memory
from kafkalog._native.codec.json_parts cimport (
    Number,
    is_digit,
    kl_is_same,
    kl_is_word,
    kl_nearest_double,
    kl_plain_text,
    read_digits,
    read_number,
    read_time,
    skip_blanks,
    to_decimal,
)
from kafkalog._native.codec.json_walk cimport Scan, copy_escaped, fail, skip_text, skip_value
from kafkalog._native.codec.layout cimport KL_ONCE
from kafkalog._native.codec.memory cimport SLACK, Block, clear_bit, reserve, reserve_bits, set_bits_from
from kafkalog._native.codec.octets cimport is_null, open_octets, open_rows
from kafkalog._native.codec.spares cimport give_back
from kafkalog._native.codec.utf8 cimport is_utf8

import numpy as np

cdef extern from "Python.h":
    # A number that is too large gives an infinity, not an exception.
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0

OK, NO_MEMORY, NO_OBJECT, ENDS_EARLY = parts.OK, parts.NO_MEMORY, parts.NO_OBJECT, parts.ENDS_EARLY
BAD_BYTE, BAD_TEXT, BAD_ESCAPE, TOO_DEEP = parts.BAD_BYTE, parts.BAD_TEXT, parts.BAD_ESCAPE, parts.TOO_DEEP
BYTES_LEFT, WRONG_TYPE, OUT_OF_RANGE, HAS_FRACTION = (
    parts.BYTES_LEFT, parts.WRONG_TYPE, parts.OUT_OF_RANGE, parts.HAS_FRACTION
)
BAD_TIME, TOO_FINE, LONE_SURROGATE = parts.BAD_TIME, parts.TOO_FINE, parts.LONE_SURROGATE

cdef enum Kind:
    BOOL
    INT32
    INT64
    FLOAT64
    TEXT
    RAW  # any type: its bytes as text
    TIME
    DECIMAL
    OBJECT
    ARRAY

cdef enum:
    # The largest depth of a schema.
    LEVELS_MAX = 64
    # The number of expected keys of an object, and the bytes that are kept of each.
    EXPECTED_MAX = 1024
    EXPECTED_BYTES = 56
    # Jackson refuses longer numbers and texts.
    NUMBER_BYTES_MAX = 1000
    NAME_BYTES_MAX = 50_000
    TEXT_BYTES_MAX = 20_000_000
    # This many expected keys may be missing before the next one is looked up.
    AHEAD = 3
    NO_CHILD = -1
    OBJECT_ENDS = -2
    # The digits that decide which double is nearest.
    DOUBLE_DIGITS = 780
    DOUBLE_TEXT = 820

# The bytes between two values, including the key, and which child the key is.
cdef struct Expected:
    uint8_t[EXPECTED_BYTES] text
    int32_t size
    int32_t child

# A column in progress, and its place in the schema. Children are next to each other.
cdef struct Node:
    int kind
    int64_t per_second      # for a TIME
    int scale               # for a DECIMAL
    int precision
    bint is_loose  # a TEXT that accepts any JSON
    int32_t parent
    int32_t first_child
    int32_t children
    const uint8_t* name
    int32_t name_size
    const int32_t* slots    # children by the hash of their name
    uint32_t slots_mask
    int64_t rows
    int64_t room
    int64_t nulls
    int64_t filled          # bytes of text
    Block validity
    Block cells             # numbers, or offsets: one more than rows
    Block data
    Block expected
    int32_t expected_count
    # The first value that does not have the type.
    int bad_verdict
    int64_t bad_row
    int64_t bad_at
    int64_t bad_size

cdef struct Walk:
    Scan scan               # over the row's copy
    Node* nodes
    const uint64_t* powers
    Block copy
    Block key
    int64_t bad  # nodes that have a bad value in this row
    bint is_odd  # Jackson reads this row differently
    bint is_twice  # a key occurs twice


# --- room ---------------------------------------------------------------------------------------------------


cdef inline int width_of(int kind) noexcept nogil:
    """Returns the bytes of a cell; 0 for an object, which has no cells, and for bits."""
    if kind == BOOL or kind == OBJECT:
        return 0
    if kind == INT32 or kind == TEXT or kind == RAW or kind == ARRAY:
        return 4
    return 16 if kind == DECIMAL else 8


cdef bint make_room(Node* node, int64_t rows) noexcept nogil:
    if not reserve_bits(&node.validity, rows):
        return False
    if node.kind == BOOL:
        if not reserve_bits(&node.cells, rows):
            return False
    elif not reserve(&node.cells, width_of(node.kind) * (rows + 1)):
        return False
    if node.rows == 0 and (node.kind == TEXT or node.kind == RAW or node.kind == ARRAY):
        (<int32_t*>node.cells.at)[0] = 0
    node.room = rows
    return True


cdef inline bint has_room(Node* node) noexcept nogil:
    return node.rows < node.room or make_room(node, max(2 * node.room, <int64_t>64))


cdef bint put_null(Walk* it, Node* node) noexcept nogil:
    cdef int32_t i
    cdef int64_t row = node.rows
    if not has_room(node):
        return False
    clear_bit(node.validity.at, row)
    node.nulls += 1
    if node.kind == OBJECT:
        for i in range(node.children):
            if not put_null(it, it.nodes + node.first_child + i):
                return False
    elif node.kind == TEXT or node.kind == RAW:
        (<int32_t*>node.cells.at)[row + 1] = <int32_t>node.filled
    elif node.kind == ARRAY:
        (<int32_t*>node.cells.at)[row + 1] = <int32_t>it.nodes[node.first_child].rows
    elif node.kind != BOOL:
        memset(node.cells.at + width_of(node.kind) * row, 0, <size_t>width_of(node.kind))
    node.rows = row + 1
    return True


cdef void cut(Walk* it, Node* node, int64_t rows) noexcept nogil:
    """Removes the rows from `rows` on from a column and its descendants."""
    cdef int64_t row
    cdef int32_t i
    if node.kind == OBJECT:
        for i in range(node.children):
            cut(it, it.nodes + node.first_child + i, rows)
    elif node.kind == ARRAY:
        cut(it, it.nodes + node.first_child, 0 if node.room == 0 else (<int32_t*>node.cells.at)[rows])
    if node.rows > rows:
        for row in range(rows, node.rows):
            node.nulls -= not (node.validity.at[row >> 3] >> (row & 7)) & 1
        set_bits_from(node.validity.at, rows, node.rows)
        if node.kind == BOOL:
            set_bits_from(node.cells.at, rows, node.rows)
        elif node.kind == TEXT or node.kind == RAW:
            node.filled = (<int32_t*>node.cells.at)[rows]
        node.rows = rows
    if node.bad_row >= rows:
        node.bad_row = -1
        it.bad -= 1


# --- values -------------------------------------------------------------------------------------------------


cdef const uint8_t* put_other(Walk* it, Node* node, const uint8_t* p, int verdict) noexcept nogil:
    """Adds a null: for null itself, or for a value of another type, which is noted as the bad value."""
    cdef const uint8_t* start = p
    if not has_room(node):
        return fail(&it.scan, parts.NO_MEMORY, p)
    p = skip_value(&it.scan, p)
    if p == NULL:
        return NULL
    if start[0] != c'n' and node.bad_row < 0:
        node.bad_row, node.bad_verdict = node.rows, verdict
        node.bad_at, node.bad_size = start - it.scan.start, p - start
        it.bad += 1
        # One bad item ends an array in Spark.
        it.is_odd = it.is_odd or verdict == parts.LONE_SURROGATE or it.nodes[node.parent].kind == ARRAY
    if not put_null(it, node):
        return fail(&it.scan, parts.NO_MEMORY, p)
    return p


cdef inline const uint8_t* put_bool(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    if kl_is_word(p, b"true"):
        node.rows += 1
        return p + 4
    if kl_is_word(p, b"fals") and p[4] == c'e':
        clear_bit(node.cells.at, node.rows)
        node.rows += 1
        return p + 5
    return put_other(it, node, p, parts.WRONG_TYPE)


cdef inline const uint8_t* put_whole(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    cdef const uint8_t* start = p
    cdef const uint8_t* first
    cdef uint64_t value = 0
    cdef int64_t signed
    cdef bint negative = p[0] == c'-'
    cdef int64_t most = INT32_MAX if node.kind == INT32 else INT64_MAX
    p += negative
    first = p
    if not is_digit(p[0]):
        return put_other(it, node, start, parts.WRONG_TYPE)
    if p[0] == c'0':
        p += 1
        if is_digit(p[0]):
            return fail(&it.scan, parts.BAD_BYTE, p)
    else:
        p = read_digits(p, &value)
    if p[0] == c'.' or p[0] | 0x20 == c'e':
        return put_other(it, node, start, parts.HAS_FRACTION)
    if p - first > 19 or value > <uint64_t>most + negative:
        return put_other(it, node, start, parts.OUT_OF_RANGE)
    signed = <int64_t>(<uint64_t>0 - value if negative else value)
    if node.kind == INT32:
        (<int32_t*>node.cells.at)[node.rows] = <int32_t>signed
    else:
        (<int64_t*>node.cells.at)[node.rows] = signed
    node.rows += 1
    return p


cdef double double_of_many(const uint8_t* p, const uint8_t* end, int64_t exponent) noexcept with gil:
    """Returns the double nearest to a number with more digits than the fast path can decide, by Python's algorithm."""
    cdef char[DOUBLE_TEXT] text
    cdef int64_t power = exponent
    cdef int taken = 0
    cdef bint in_fraction = False, is_more = False
    while p < end and (is_digit(p[0]) or p[0] == c'.'):
        if p[0] == c'.':
            in_fraction = True
        elif taken < DOUBLE_DIGITS:
            if taken or p[0] != c'0':
                text[taken] = <char>p[0]
                taken += 1
            power -= in_fraction
        else:
            is_more = is_more or p[0] != c'0'
            power += not in_fraction
        p += 1
    if taken == 0:
        return 0.0
    if is_more:  # a further nonzero digit: it cannot be a tie
        text[taken] = c'1'
        taken += 1
        power -= 1
    tail = b"e%d" % max(-100_000, min(power, 100_000))
    memcpy(text + taken, <const char*>tail, <size_t>len(tail) + 1)
    return PyOS_string_to_double(text, NULL, NULL)


cdef inline const uint8_t* put_double(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    cdef const uint8_t* start = p
    cdef Number number
    cdef double value
    p = read_number(p, &number)
    if p == NULL:
        if start[0] == c'N' and start[1] == c'a' and start[2] == c'N':
            p, value = start + 3, NAN
        else:
            p = start + (start[0] == c'-')
            if start[0] == c'"':  # Jackson accepts "NaN", "-INF" and similar texts
                it.is_odd = it.is_odd or start[1] in (c'N', c'I', c'+', c'-', c'\\')
            if not (kl_is_word(p, b"Infi") and kl_is_word(p + 4, b"nity")):
                return put_other(it, node, start, parts.WRONG_TYPE)
            p, value = p + 8, kl_nearest_double(it.powers, 1, 400)
            if start[0] == c'-':
                value = -value
    else:
        value = kl_nearest_double(it.powers, number.digits, number.power)
        if number.is_cut and kl_nearest_double(it.powers, number.digits + 1, number.power) != value:
            value = double_of_many(start + number.negative, p, number.exponent)
        if number.negative:
            it.is_odd = it.is_odd or value == 0  # -0 is the whole number 0
            value = -value
    (<double*>node.cells.at)[node.rows] = value
    node.rows += 1
    return p


cdef inline const uint8_t* put_text(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    cdef const uint8_t* start = p
    cdef uint8_t* to
    cdef uint8_t* filled
    cdef uint32_t high = 0
    cdef bint is_lone = False
    if p[0] != c'"':
        return put_loose(it, node, p) if node.is_loose else put_other(it, node, p, parts.WRONG_TYPE)
    # A text is never longer than its JSON; copying a block may go SLACK bytes further.
    if not reserve(&node.data, node.filled + (it.scan.end - p) + SLACK):
        return fail(&it.scan, parts.NO_MEMORY, p)
    to = node.data.at + node.filled
    p = kl_plain_text(start + 1, to, &high)
    filled = to + (p - start - 1)
    if p[0] != c'"':
        p = copy_escaped(&it.scan, p, &filled, &high, &is_lone)
        if p == NULL:
            return NULL
    if high and not is_utf8(to, filled - to):
        return fail(&it.scan, parts.BAD_TEXT, start)
    if is_lone:
        return put_other(it, node, start, parts.LONE_SURROGATE)
    node.filled += filled - to
    (<int32_t*>node.cells.at)[node.rows + 1] = <int32_t>node.filled
    node.rows += 1
    return p + 1


cdef const uint8_t* put_loose(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    """Adds any JSON as text, without blanks. Jackson has its own format for fractions, escapes, and characters outside
    the BMP."""
    cdef const uint8_t* at = p
    cdef uint8_t* to
    cdef bint in_text = False
    if kl_is_word(p, b"null"):
        return put_other(it, node, p, parts.OK)
    p = skip_value(&it.scan, p)
    if p == NULL:
        return NULL
    if not reserve(&node.data, node.filled + (p - at) + SLACK):
        return fail(&it.scan, parts.NO_MEMORY, p)
    to = node.data.at + node.filled
    while at < p:
        if at[0] == c'"':
            in_text = not in_text
        elif in_text:
            it.is_odd = it.is_odd or at[0] == c'\\' or at[0] >= 0xF0
        elif at[0] <= c' ':
            at += 1
            continue
        elif at[0] == c'.' or at[0] | 0x20 == c'e' or at[0] == c'-' or at[0] == c'N' or at[0] == c'I':
            # The e of true and false follows a letter.
            it.is_odd = it.is_odd or (
                at[1] == c'0' if at[0] == c'-' else at[0] | 0x20 != c'e' or is_digit((at - 1)[0])
            )
        to[0] = at[0]
        to += 1
        at += 1
    node.filled = to - node.data.at
    (<int32_t*>node.cells.at)[node.rows + 1] = <int32_t>node.filled
    node.rows += 1
    return p


cdef const uint8_t* put_raw(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    cdef const uint8_t* start = p
    if kl_is_word(p, b"null"):
        return put_other(it, node, p, parts.OK)
    p = skip_value(&it.scan, p)
    if p == NULL:
        return NULL
    if not reserve(&node.data, node.filled + (p - start) + SLACK):
        return fail(&it.scan, parts.NO_MEMORY, p)
    memcpy(node.data.at + node.filled, start, <size_t>(p - start))
    node.filled += p - start
    (<int32_t*>node.cells.at)[node.rows + 1] = <int32_t>node.filled
    node.rows += 1
    return p


cdef const uint8_t* put_time(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    """A text of ISO 8601, or milliseconds since 1970 as a whole number."""
    cdef const uint8_t* start = p
    cdef int64_t value = 0
    cdef uint64_t digits = 0
    cdef int verdict = parts.OK
    cdef bint negative = p[0] == c'-'
    if p[0] == c'"':
        p = skip_text(&it.scan, p + 1)
        if p == NULL:
            return NULL
        verdict = read_time(start + 1, p - 1, node.per_second, &value)
    else:
        p += negative
        if not is_digit(p[0]):
            return put_other(it, node, start, parts.WRONG_TYPE)
        if p[0] == c'0' and is_digit(p[1]):
            return fail(&it.scan, parts.BAD_BYTE, p + 1)
        p = read_digits(p, &digits)
        if p[0] == c'.' or p[0] | 0x20 == c'e':
            verdict = parts.HAS_FRACTION
        elif p - start - negative > 19 or digits > INT64_MAX:
            verdict = parts.OUT_OF_RANGE
        else:
            value = -<int64_t>digits if negative else <int64_t>digits
            if node.per_second >= 1000:
                if digits > INT64_MAX // (node.per_second // 1000):
                    verdict = parts.OUT_OF_RANGE
                else:
                    value *= node.per_second // 1000
            elif value % 1000:
                verdict = parts.TOO_FINE
            else:
                value //= 1000
    if verdict != parts.OK:
        return put_other(it, node, start, verdict)
    (<int64_t*>node.cells.at)[node.rows] = value
    node.rows += 1
    return p


cdef const uint8_t* put_decimal(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    """A number, or a text that is one: many programs write amounts as text, so that no reader turns them into
    doubles."""
    cdef const uint8_t* start = p
    cdef const uint8_t* end
    cdef Number number
    cdef int verdict
    p += p[0] == c'"'
    end = read_number(p, &number)
    if end == NULL or start[0] == c'"' and end[0] != c'"':
        return put_other(it, node, start, parts.WRONG_TYPE)
    verdict = to_decimal(p, &number, node.scale, node.precision, <uint64_t*>node.cells.at + 2 * node.rows)
    if verdict != parts.OK:
        return put_other(it, node, start, verdict)
    node.rows += 1
    return end + (start[0] == c'"')


cdef const uint8_t* put_array(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    cdef Node* child = it.nodes + node.first_child
    if p[0] != c'[':
        return put_other(it, node, p, parts.WRONG_TYPE)
    p = skip_blanks(p + 1)
    if p[0] == c']':
        p += 1
    else:
        while True:
            p = put_value(it, child, p)
            if p == NULL:
                return NULL
            p = skip_blanks(p)
            if p[0] == c',':
                p = skip_blanks(p + 1)
            elif p[0] == c']':
                p += 1
                break
            else:
                return fail(&it.scan, parts.BAD_BYTE, p)
    (<int32_t*>node.cells.at)[node.rows + 1] = <int32_t>child.rows
    node.rows += 1
    return p


cdef inline const uint8_t* put_value(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    """Adds the value at `p` to a column and returns the position after it."""
    if not has_room(node):
        return fail(&it.scan, parts.NO_MEMORY, p)
    if node.kind == TEXT:
        return put_text(it, node, p)
    elif node.kind == INT32 or node.kind == INT64:
        return put_whole(it, node, p)
    elif node.kind == FLOAT64:
        return put_double(it, node, p)
    elif node.kind == BOOL:
        return put_bool(it, node, p)
    elif node.kind == RAW:
        return put_raw(it, node, p)
    elif node.kind == TIME:
        return put_time(it, node, p)
    elif node.kind == DECIMAL:
        return put_decimal(it, node, p)
    elif node.kind == ARRAY:
        return put_array(it, node, p)
    return put_object(it, node, p)


# --- objects ------------------------------------------------------------------------------------------------


cdef inline uint32_t hash_of(const uint8_t* name, int64_t size) noexcept nogil:
    cdef uint32_t found = 2166136261
    cdef int64_t i
    for i in range(size):
        found = (found ^ name[i]) * 16777619
    return found ^ found >> 15


cdef int32_t child_of(const Node* nodes, const Node* node, const uint8_t* name, int64_t size) noexcept nogil:
    cdef uint32_t slot = hash_of(name, size) & node.slots_mask
    cdef const Node* child
    while node.slots[slot] >= 0:
        child = nodes + node.first_child + node.slots[slot]
        if child.name_size == size and memcmp(child.name, name, <size_t>size) == 0:
            return node.slots[slot]
        slot = (slot + 1) & node.slots_mask
    return NO_CHILD


cdef bint learn(Node* node, int32_t number, const uint8_t* text, int64_t size, int32_t child) noexcept nogil:
    """Stores these bytes as the `number`-th expected key; returns False if memory runs out."""
    cdef Expected* place
    if number >= EXPECTED_MAX:
        return True
    if not reserve(&node.expected, (number + 1) * <int64_t>sizeof(Expected)):
        return False
    place = <Expected*>node.expected.at + number
    if size > EXPECTED_BYTES - 8:
        size = 0  # too long: nothing is expected
    memcpy(place.text, text, <size_t>size)
    place.size, place.child = <int32_t>size, child
    if number == node.expected_count:
        node.expected_count = number + 1
    return True


cdef const uint8_t* next_key(
    Walk* it, Node* node, const uint8_t* p, int32_t number, int32_t* child
) noexcept nogil:
    """Goes from the end of a value, or from an object's brace, to the next value."""
    cdef const uint8_t* start = p
    cdef const uint8_t* quote
    cdef const uint8_t* name
    cdef uint8_t* filled
    cdef uint32_t high = 0
    cdef bint is_lone = False
    p = skip_blanks(p)
    if p[0] == c'}':
        child[0] = OBJECT_ENDS
        return p + 1
    if number:
        if p[0] != c',':
            return fail(&it.scan, parts.BAD_BYTE, p)
        p = skip_blanks(p + 1)
    if p[0] != c'"':
        return fail(&it.scan, parts.BAD_BYTE, p)
    quote, name = p, p + 1
    p = kl_plain_text(name, NULL, &high)
    if p[0] == c'"':
        filled = <uint8_t*>p
    else:
        if not reserve(&it.key, it.scan.end - name + SLACK):
            return fail(&it.scan, parts.NO_MEMORY, p)
        memcpy(it.key.at, name, <size_t>(p - name))
        filled = it.key.at + (p - name)
        name = it.key.at
        p = copy_escaped(&it.scan, p, &filled, &high, &is_lone)
        if p == NULL:
            return NULL
    if high and not is_utf8(name, filled - name):
        return fail(&it.scan, parts.BAD_TEXT, quote)
    # No column's name contains half of a surrogate pair.
    child[0] = NO_CHILD if is_lone else child_of(it.nodes, node, name, filled - name)
    p = skip_blanks(p + 1)
    if p[0] != c':':
        return fail(&it.scan, parts.BAD_BYTE, p)
    p = skip_blanks(p + 1)
    if not learn(node, number, start, p - start, child[0]):
        return fail(&it.scan, parts.NO_MEMORY, p)
    return p


cdef const uint8_t* put_fields(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    """Goes from after an object's opening brace to after the closing one, and adds a row to each child.

    On failure some children have the row already; `cut` removes it.
    """
    cdef Node* children = it.nodes + node.first_child
    cdef Expected* expected
    cdef int64_t row = node.rows
    cdef int32_t child = NO_CHILD, number = 0, seen = 0, i
    while True:
        if p[0] == c'}':
            p += 1
            break
        child = OBJECT_ENDS
        if number < node.expected_count:
            expected = <Expected*>node.expected.at + number
            for i in range(min(node.expected_count - number, AHEAD)):
                if expected.size and kl_is_same(p, expected.text, expected.size):
                    child = expected.child
                    p = skip_blanks(p + expected.size)  # there may be more blanks than last time
                    number += i
                    break
                if number == 0:
                    break  # the first key has no comma before it
                expected += 1
        if child == OBJECT_ENDS:
            p = next_key(it, node, p, number, &child)
            if p == NULL:
                return NULL
            if child == OBJECT_ENDS:
                break
        number += 1
        if child == NO_CHILD:
            p = skip_value(&it.scan, p)
        else:
            if children[child].rows > row:  # the last one of equal keys counts
                cut(it, children + child, row)
                seen -= 1
                it.is_twice = True
            seen += 1
            p = put_value(it, children + child, p)
        if p == NULL:
            return NULL
    if seen < node.children:
        for i in range(node.children):
            if children[i].rows == row and not put_null(it, children + i):
                return fail(&it.scan, parts.NO_MEMORY, p)
    node.rows = row + 1
    return p


cdef const uint8_t* put_object(Walk* it, Node* node, const uint8_t* p) noexcept nogil:
    if p[0] != c'{':
        return put_other(it, node, p, parts.WRONG_TYPE)
    return put_fields(it, node, p + 1)


# --- rows ---------------------------------------------------------------------------------------------------


cdef const uint8_t* put_row(Walk* it, const uint8_t* at, int64_t size) noexcept nogil:
    cdef const uint8_t* p
    if not reserve(&it.copy, size + parts.SCAN_SLACK):
        return fail(&it.scan, parts.NO_MEMORY, NULL)
    memcpy(it.copy.at, at, <size_t>size)
    memset(it.copy.at + size, 0, parts.SCAN_SLACK)
    it.scan.start, it.scan.end = it.copy.at, it.copy.at + size
    p = skip_blanks(it.scan.start)
    if p[0] == c'{':
        p = put_fields(it, it.nodes, p + 1)
    elif kl_is_word(p, b"null") and skip_blanks(p + 4) == it.scan.end:
        it.is_odd = True
        if not put_null(it, it.nodes):
            return fail(&it.scan, parts.NO_MEMORY, p)
        return it.scan.end
    else:
        return fail(&it.scan, parts.NO_OBJECT, p)
    if p == NULL:
        return NULL
    p = skip_blanks(p)
    if p != it.scan.end:
        return fail(&it.scan, parts.BYTES_LEFT, p)
    return p


cdef int32_t first_bad(const Node* nodes, int32_t count) noexcept nogil:
    """Returns the node whose bad value comes first in the row."""
    cdef int32_t i, found = -1
    for i in range(count):
        if nodes[i].bad_row >= 0 and (found < 0 or nodes[i].bad_at < nodes[found].bad_at):
            found = i
    return found


cdef bint is_too_long(const uint8_t* at, int64_t size) noexcept nogil:
    """Returns whether Jackson may refuse a number, a key or a text because of its length."""
    cdef int64_t i = NUMBER_BYTES_MAX, begin = 0, end = 0
    cdef const void* quote
    if size > TEXT_BYTES_MAX:
        return True
    while size - end > NAME_BYTES_MAX:
        quote = memchr(at + end, c'"', <size_t>(size - end))
        if quote == NULL:
            break
        begin, end = end, <const uint8_t*>quote - at + 1
        if end - begin > NAME_BYTES_MAX:
            return True
    while i < size:  # a number this long includes one of these bytes
        begin = end = i
        while end < size and is_of_number(at[end]):
            end += 1
        while end > begin > 0 and is_of_number(at[begin - 1]):
            begin -= 1
        if end - begin > NUMBER_BYTES_MAX:
            return True
        i += NUMBER_BYTES_MAX
    return False


cdef inline bint is_of_number(uint8_t byte) noexcept nogil:
    return is_digit(byte) or byte == c'.' or byte == c'-' or byte == c'+' or byte | 0x20 == c'e'


cdef bint is_taken(
    Walk* it, int32_t count, const uint8_t* at, int64_t size, bint null_errors, uint8_t* odd
) noexcept nogil:
    """Adds a row; returns False if its verdict is to be reported. An odd row is marked, and nulls are added."""
    cdef int64_t row = it.nodes[0].rows
    cdef int32_t i
    cdef bint is_whole
    it.scan.verdict = parts.OK
    it.is_odd = it.is_twice = False
    if odd != NULL and is_too_long(at, size):
        odd[0] = 1
        if not put_null(it, it.nodes):
            it.scan.verdict = parts.NO_MEMORY
            return False
        return True
    is_whole = put_row(it, at, size) != NULL
    # If a key occurs twice, Spark keeps the value that has the type.
    if odd != NULL and not (is_whole and not it.is_odd and not (it.is_twice and it.bad)):
        is_whole, odd[0] = False, 1
    if not is_whole:
        if it.scan.verdict == parts.NO_MEMORY or not null_errors:
            return False
        cut(it, it.nodes, row)
        if not put_null(it, it.nodes):
            it.scan.verdict = parts.NO_MEMORY
            return False
    if it.bad:
        if not null_errors:
            return False
        for i in range(count):
            it.nodes[i].bad_row = -1
        it.bad = 0
    return True


# --- schemas ------------------------------------------------------------------------------------------------

cdef dict KINDS = {
    "b": BOOL, "i": INT32, "l": INT64, "g": FLOAT64, "u": TEXT, "loose": TEXT, "json": RAW, "+s": OBJECT, "+l": ARRAY,
}
cdef dict PER_SECOND = {"s": 1, "m": 1000, "u": 1_000_000, "n": 1_000_000_000}


def _powers():
    """Returns the first 128 bits of 5^q, rounded down, or up for negative q: the table for kl_nearest_double."""
    found = np.empty((parts.LARGEST_POWER - parts.LEAST_POWER + 1, 2), np.uint64)
    for q in range(parts.LEAST_POWER, parts.LARGEST_POWER + 1):
        five = 5 ** abs(q)
        if q >= 0:
            bits = (five << 128) >> five.bit_length()
        else:
            zeros = (five - 1).bit_length()  # the least power of two that is not smaller
            bits = (1 << (zeros + 127 if q >= -27 else 2 * zeros + 128)) // five + 1
            bits >>= max(0, bits.bit_length() - 128)
        found[q - parts.LEAST_POWER, 0] = bits >> 64
        found[q - parts.LEAST_POWER, 1] = bits & (1 << 64) - 1
    return found


cdef object POWERS = _powers()


@cython.auto_pickle(False)
@cython.final
cdef class JsonSchema:
    """The fields that are read from each object. `fields` are (name, format, children), with the format as in Arrow's C
    data interface, or "json" for the text of any value, or "loose" for a text, or for other JSON its text without
    blanks.

    Formats: b i l g u +s +l, tss: tsm: tsu: tsn: with a zone, d:precision,scale. Raises ValueError for other formats,
    for a duplicate name, and for more than 64 levels. Immutable; any number of threads may use one.
    """
    cdef Block nodes  # as they are before the first row
    cdef int32_t count
    cdef list names, formats, held

    def __dealloc__(self):
        free(self.nodes.at)

    def __init__(self, fields):
        if self.names is not None:
            raise RuntimeError("a JsonSchema cannot be initialized twice")
        self.names, self.formats, self.held = [], [], []
        self.add("", "+s", -1)
        self.add_children(0, tuple(fields), 1)

    cdef int add(self, str name, str format, int32_t parent) except -1:
        cdef Node* node
        cdef bytes encoded = name.encode()
        if not reserve(&self.nodes, (self.count + 1) * sizeof(Node)):
            raise MemoryError
        node = <Node*>self.nodes.at + self.count
        memset(node, 0, sizeof(Node))
        node.parent, node.bad_row = parent, -1
        node.name, node.name_size = <const uint8_t*><const char*>encoded, <int32_t>len(encoded)
        node.is_loose = format == "loose"
        if format in KINDS:
            node.kind = KINDS[format]
        elif format[:2] == "ts" and format[2:3] in PER_SECOND and format[3:4] == ":":
            node.kind, node.per_second = TIME, PER_SECOND[format[2]]
        elif format[:2] == "d:":
            node.kind = DECIMAL
            node.precision, node.scale = map(int, format[2:].split(","))
            if not (1 <= node.precision <= 38 and 0 <= node.scale <= node.precision):
                raise ValueError(f"{format!r} is not a decimal of 128 bits")
        else:
            raise ValueError(f"{format!r} is not a format that JSON can be read as")
        self.names.append(name)
        self.formats.append("u" if format in ("json", "loose") else format)
        self.held.append(encoded)
        self.count += 1
        return 0

    cdef int add_children(self, int32_t parent, tuple fields, int level) except -1:
        cdef Node* node = <Node*>self.nodes.at + parent
        cdef int32_t first = self.count
        cdef int32_t i
        if level > LEVELS_MAX:
            raise ValueError(f"fields: found more than {LEVELS_MAX} levels of nesting")
        if node.kind == ARRAY and len(fields) != 1:
            raise ValueError(f"an array has one child; found {len(fields)}")
        if fields and node.kind != ARRAY and node.kind != OBJECT:
            raise ValueError("only objects and arrays have children")
        for name, format, _ in fields:
            self.add(name, format, parent)
        node = <Node*>self.nodes.at + parent  # `add` may have moved the nodes
        node.first_child, node.children = first, self.count - first
        if node.kind == OBJECT:
            self.sort(node)
        for i in range(len(fields)):
            self.add_children(first + i, tuple(fields[i][2]), level + 1)
        return 0

    cdef int sort(self, Node* node) except -1:
        """Builds an object's table of children by the hashes of their names."""
        cdef Node* nodes = <Node*>self.nodes.at
        cdef const Node* child
        cdef int32_t i
        cdef uint32_t slot
        cdef int32_t[::1] slots
        size = 1 << (2 * node.children + 1).bit_length()
        places = np.full(size, -1, np.int32)
        slots = places
        self.held.append(places)
        node.slots, node.slots_mask = &slots[0], size - 1
        for i in range(node.children):
            child = nodes + node.first_child + i
            if child_of(nodes, node, child.name, child.name_size) >= 0:
                raise ValueError(f"two fields are named {self.names[node.first_child + i]!r}")
            slot = hash_of(child.name, child.name_size) & node.slots_mask
            while slots[slot] >= 0:
                slot = (slot + 1) & node.slots_mask
            slots[slot] = i
        return 0

    def path(self, int32_t number):
        """Returns a node's path, such as "user.tags[]"; "" for the whole value."""
        cdef const Node* nodes = <const Node*>self.nodes.at
        if not 0 <= number < self.count:
            raise IndexError(f"node: found {number}, expected 0 to {self.count - 1}")
        if number == 0:
            return ""
        before = self.path(nodes[number].parent)
        if nodes[nodes[number].parent].kind == ARRAY:
            return f"{before}[]"
        return f"{before}.{self.names[number]}" if before else self.names[number]

    def columns(
        self, data, offsets, validity=None, int64_t first_row=0, *, bint null_errors=False, uint8_t[::1] odd_rows=None
    ):
        """Returns (RecordColumns, OK, -1, -1, 0, 0), or (None, verdict, row, position, size, node) of the first bad
        row.

        `data`, `offsets` (int32, one more than there are rows) and `validity` (a bitmap, or None) are the buffers of an
        Arrow binary column. Bit `first_row` of the bitmap belongs to the first row; null rows are null in all columns.
        `position` is in the row's bytes; `size` is the size of a value that does not have its type, and `node` is for
        `path`.

        `null_errors`: such a value becomes null, and a row that is not a JSON object becomes null in all columns.
        `odd_rows`, a zero for each row, has the same effect; in addition, it gets a one for each row that Spark's
        from_json reads differently, which is null in all columns. Raises IndexError if an offset is outside the data,
        the bitmap is too short, or there are more rows than `odd_rows` has.
        """
        cdef Py_buffer data_view, offsets_view, bits_view
        cdef Walk it
        cdef const int32_t* ends
        cdef const uint8_t* bits
        cdef int64_t rows, row = 0, start, end
        cdef int32_t bad
        cdef bint inside = True, good = True
        cdef uint8_t* odd = NULL
        cdef const uint64_t[:, ::1] powers = POWERS
        memset(&it, 0, sizeof(Walk))
        memset(&offsets_view, 0, sizeof(Py_buffer))
        memset(&bits_view, 0, sizeof(Py_buffer))
        it.powers = &powers[0, 0]
        open_octets(data, &data_view)
        try:
            try:
                rows = open_rows(offsets, validity, first_row, &offsets_view, &bits_view)
                bits = <const uint8_t*>bits_view.buf
                if odd_rows is not None and rows:
                    if odd_rows.shape[0] < rows:
                        raise IndexError(f"odd_rows: found {odd_rows.shape[0]} bytes, expected {rows}")
                    null_errors, odd = True, &odd_rows[0]
                it.nodes = self.fresh(rows)
                ends = <const int32_t*>offsets_view.buf
                with nogil:
                    end = ends[0]
                    KL_ONCE(end)
                    inside = end >= 0
                    while row < rows and inside:
                        start, end = end, ends[row + 1]
                        KL_ONCE(end)
                        if end < start or end > data_view.len:
                            inside = False
                            break
                        if is_null(bits, first_row + row):
                            good = put_null(&it, it.nodes)
                            it.scan.verdict = parts.OK if good else parts.NO_MEMORY
                        else:
                            good = is_taken(
                                &it, self.count, <const uint8_t*>data_view.buf + start, end - start, null_errors,
                                NULL if odd == NULL else odd + row,
                            )
                        if not good:
                            break
                        row += 1
                if not inside:
                    raise IndexError("an offset is outside the column's data")
                if good:
                    return RecordColumns(self.hand_out(it.nodes, 0)), parts.OK, -1, -1, 0, 0
                if it.scan.verdict == parts.NO_MEMORY:
                    raise MemoryError
                if it.scan.verdict == parts.OK:
                    bad = first_bad(it.nodes, self.count)
                    return None, it.nodes[bad].bad_verdict, row, it.nodes[bad].bad_at, it.nodes[bad].bad_size, bad
                return None, it.scan.verdict, row, it.scan.at - it.scan.start, 0, 0
            finally:
                if it.nodes != NULL:
                    self.drop(it.nodes)
                give_back(it.copy.at, it.copy.capacity)
                free(it.key.at)
                PyBuffer_Release(&bits_view)
                PyBuffer_Release(&offsets_view)
        finally:
            PyBuffer_Release(&data_view)

    cdef Node* fresh(self, int64_t rows) except NULL:
        """Returns nodes to fill, with room for `rows` rows wherever each row has one value."""
        cdef Block copy
        cdef Node* nodes
        cdef int32_t i
        memset(&copy, 0, sizeof(Block))
        if not reserve(&copy, self.count * sizeof(Node)):
            raise MemoryError
        memcpy(copy.at, self.nodes.at, self.count * sizeof(Node))
        nodes = <Node*>copy.at
        for i in range(self.count):
            if i and (nodes[nodes[i].parent].kind == ARRAY or nodes[nodes[i].parent].room == 0):
                continue  # arrays have any number of items: room is reserved during the walk
            if not make_room(nodes + i, max(rows, <int64_t>1)):
                self.drop(nodes)
                raise MemoryError
        return nodes

    cdef void drop(self, Node* nodes) noexcept:
        cdef int32_t i
        for i in range(self.count):
            free(nodes[i].validity.at)
            free(nodes[i].cells.at)
            give_back(nodes[i].data.at, nodes[i].data.capacity)
            free(nodes[i].expected.at)
        free(nodes)

    cdef Column hand_out(self, Node* nodes, int32_t number):
        cdef Node* node = nodes + number
        cdef int64_t rows = node.rows
        cdef int32_t i
        cdef list buffers, children
        if node.room == 0 and not make_room(node, 1):
            raise MemoryError
        buffers = [taken_bits(&node.validity, rows, node.nulls)]
        if node.kind == BOOL:
            buffers.append(taken_memory(&node.cells, (rows + 7) >> 3))
        elif node.kind == TEXT or node.kind == RAW:
            buffers += [taken_memory(&node.cells, 4 * (rows + 1)), taken_memory(&node.data, node.filled)]
        elif node.kind == ARRAY:
            buffers.append(taken_memory(&node.cells, 4 * (rows + 1)))
        elif node.kind != OBJECT:
            buffers.append(taken_memory(&node.cells, width_of(node.kind) * rows))
        children = [self.hand_out(nodes, node.first_child + i) for i in range(node.children)]
        if number == 0:
            # A record batch has no nulls; each of its columns has them.
            return Column("", "+s", rows, 0, [None], children, False)
        return Column(self.names[number], self.formats[number], rows, node.nulls, buffers, children, True)
