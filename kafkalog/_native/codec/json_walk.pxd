# A walk over one JSON text: finds the first invalid byte, and skips values that are not kept. The text has SCAN_SLACK
# zeros after it, as for `json_parts`. A step returns where it ends, or NULL and sets the verdict in the Scan.
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from kafkalog._native.codec cimport json_parts as parts
from kafkalog._native.codec.json_parts cimport (
    Number,
    is_digit,
    kl_is_word,
    kl_plain_text,
    read_hex4,
    read_number,
    skip_blanks,
)
from kafkalog._native.codec.utf8 cimport is_utf8

cdef enum:
    # The nesting limit of objects and arrays, and the 64-bit words that hold a bit for each level.
    DEPTH_MAX = 512
    DEPTH_WORDS = 8

cdef struct Scan:
    const uint8_t* start
    const uint8_t* end
    int verdict
    const uint8_t* at


cdef inline const uint8_t* fail(Scan* it, int verdict, const uint8_t* at) noexcept nogil:
    it.verdict = parts.ENDS_EARLY if verdict == parts.BAD_BYTE and at >= it.end else verdict
    it.at = at
    return NULL


cdef inline uint8_t escaped(uint8_t letter) noexcept nogil:
    """Returns the character that a backslash and a letter stand for; 0 for none."""
    if letter == c'"' or letter == c'\\' or letter == c'/':
        return letter
    if letter == c'n':
        return c'\n'
    if letter == c't':
        return c'\t'
    if letter == c'r':
        return c'\r'
    if letter == c'b':
        return 8
    return 12 if letter == c'f' else 0


cdef inline uint8_t* put_point(uint8_t* to, int32_t point) noexcept nogil:
    """Writes a code point as UTF-8."""
    if point < 0x80:
        to[0] = <uint8_t>point
        return to + 1
    if point < 0x800:
        to[0] = <uint8_t>(0xC0 | point >> 6)
        to[1] = <uint8_t>(0x80 | point & 0x3F)
        return to + 2
    if point < 0x10000:
        to[0] = <uint8_t>(0xE0 | point >> 12)
        to[1] = <uint8_t>(0x80 | point >> 6 & 0x3F)
        to[2] = <uint8_t>(0x80 | point & 0x3F)
        return to + 3
    to[0] = <uint8_t>(0xF0 | point >> 18)
    to[1] = <uint8_t>(0x80 | point >> 12 & 0x3F)
    to[2] = <uint8_t>(0x80 | point >> 6 & 0x3F)
    to[3] = <uint8_t>(0x80 | point & 0x3F)
    return to + 4


cdef inline const uint8_t* copy_escaped(
    Scan* it, const uint8_t* p, uint8_t** filled, uint32_t* high, bint* is_lone
) noexcept nogil:
    """Reads from a backslash in a text to its closing quote and writes the decoded text at `filled`, which is advanced.

    `is_lone`: the text has half of a surrogate pair, which has no UTF-8 form.
    """
    cdef uint8_t* to = filled[0]
    cdef const uint8_t* plain
    cdef int32_t point, second
    while p[0] != c'"':
        if p[0] != c'\\':
            return fail(it, parts.BAD_BYTE, p)
        if p[1] == c'u':
            point = read_hex4(p + 2)
            if point < 0:
                return fail(it, parts.BAD_ESCAPE if p + 5 < it.end else parts.ENDS_EARLY, p)
            p += 6
            if 0xD800 <= point < 0xE000:
                second = read_hex4(p + 2) if point < 0xDC00 and p[0] == c'\\' and p[1] == c'u' else -1
                if 0xDC00 <= second < 0xE000:
                    point = 0x10000 + ((point - 0xD800) << 10) + (second - 0xDC00)
                    p += 6
                else:
                    is_lone[0] = True
                    point = 0xFFFD
            to = put_point(to, point)
        else:
            to[0] = escaped(p[1])
            if to[0] == 0:
                return fail(it, parts.BAD_ESCAPE if p + 1 < it.end else parts.ENDS_EARLY, p)
            to += 1
            p += 2
        plain = p
        p = kl_plain_text(plain, to, high)
        to += p - plain
    filled[0] = to
    return p


cdef inline const uint8_t* skip_text(Scan* it, const uint8_t* p) noexcept nogil:
    """Skips a text whose opening quote is before `p`."""
    cdef const uint8_t* start = p
    cdef uint32_t high = 0
    while True:
        p = kl_plain_text(p, NULL, &high)
        if p[0] == c'"':
            break
        if p[0] != c'\\':
            return fail(it, parts.BAD_BYTE, p)
        p += 1
        if p[0] == c'u':
            if read_hex4(p + 1) < 0:
                return fail(it, parts.BAD_ESCAPE if p + 4 < it.end else parts.ENDS_EARLY, p - 1)
            p += 5
        elif escaped(p[0]):
            p += 1
        else:
            return fail(it, parts.BAD_ESCAPE if p < it.end else parts.ENDS_EARLY, p - 1)
    if high and not is_utf8(start, p - start):
        return fail(it, parts.BAD_TEXT, start - 1)
    return p + 1


cdef inline const uint8_t* skip_scalar(Scan* it, const uint8_t* p) noexcept nogil:
    """Skips a text, a number or a word; accepts Python's NaN and Infinity."""
    cdef Number number
    cdef const uint8_t* found
    if p[0] == c'"':
        return skip_text(it, p + 1)
    if is_digit(p[0]) or p[0] == c'-':
        found = read_number(p, &number)
        if found != NULL:
            return found
        p += p[0] == c'-'
        if kl_is_word(p, b"Infi") and kl_is_word(p + 4, b"nity"):
            return p + 8
        if p[0] == c'0' and is_digit(p[1]):
            return fail(it, parts.BAD_BYTE, p + 1)
        while is_digit(p[0]) or p[0] == c'.':
            p += 1
        return fail(it, parts.BAD_BYTE, p)
    if kl_is_word(p, b"null") or kl_is_word(p, b"true"):
        return p + 4
    if kl_is_word(p, b"fals") and p[4] == c'e':
        return p + 5
    if p[0] == c'N' and p[1] == c'a' and p[2] == c'N':
        return p + 3
    if kl_is_word(p, b"Infi") and kl_is_word(p + 4, b"nity"):
        return p + 8
    # An incomplete word, or no byte at all, is an early end.
    found = p
    while found < it.end and c'a' <= found[0] | 0x20 <= c'z':
        found += 1
    return fail(it, parts.ENDS_EARLY if found == it.end else parts.BAD_BYTE, p)


cdef inline const uint8_t* skip_key(Scan* it, const uint8_t* p) noexcept nogil:
    """Goes from where a key must be to its value."""
    if p[0] != c'"':
        return fail(it, parts.BAD_BYTE, p)
    p = skip_text(it, p + 1)
    if p == NULL:
        return NULL
    p = skip_blanks(p)
    if p[0] != c':':
        return fail(it, parts.BAD_BYTE, p)
    return skip_blanks(p + 1)


cdef inline const uint8_t* skip_nested(Scan* it, const uint8_t* p) noexcept nogil:
    """Skips an object or an array."""
    cdef uint64_t[DEPTH_WORDS] objects  # one bit for each level
    cdef int depth = 0
    cdef bint in_object = False
    memset(objects, 0, sizeof(objects))
    while True:
        if p[0] == c'{' or p[0] == c'[':
            if depth == DEPTH_MAX:
                return fail(it, parts.TOO_DEEP, p)
            in_object = p[0] == c'{'
            if in_object:
                objects[depth >> 6] |= <uint64_t>1 << (depth & 63)
            else:
                objects[depth >> 6] &= ~(<uint64_t>1 << (depth & 63))
            depth += 1
            p = skip_blanks(p + 1)
            if p[0] != (c'}' if in_object else c']'):
                if in_object:
                    p = skip_key(it, p)
                    if p == NULL:
                        return NULL
                continue
        else:
            p = skip_scalar(it, p)
            if p == NULL:
                return NULL
            p = skip_blanks(p)
        # After a value, or at the end of an empty object or array.
        while p[0] == (c'}' if in_object else c']'):
            depth -= 1
            if depth == 0:
                return p + 1
            in_object = objects[(depth - 1) >> 6] >> ((depth - 1) & 63) & 1
            p = skip_blanks(p + 1)
        if p[0] != c',':
            return fail(it, parts.BAD_BYTE, p)
        p = skip_blanks(p + 1)
        if in_object:
            p = skip_key(it, p)
            if p == NULL:
                return NULL


cdef inline const uint8_t* skip_value(Scan* it, const uint8_t* p) noexcept nogil:
    if p[0] == c'{' or p[0] == c'[':
        return skip_nested(it, p)
    return skip_scalar(it, p)
