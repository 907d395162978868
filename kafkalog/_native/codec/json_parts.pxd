# The parts of a JSON text that are read without context: blanks, numbers, four hex digits, times, decimals. Each
# function accepts a pointer into bytes that have SCAN_SLACK zeros after them, so that none tests for the end. It
# returns where the part ends, NULL if it is invalid, or a verdict. The walk over a text, which knows schemas and
# columns, is `json_columns`.
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "json_scan.h" nogil:
    enum:
        SCAN_SLACK
        LEAST_POWER
        LARGEST_POWER
        KL_LOW_WORD
    const uint8_t* kl_plain_text(const uint8_t* p, uint8_t* to, uint32_t* high) noexcept
    bint kl_is_same(const uint8_t* a, const uint8_t* b, int32_t size) noexcept
    bint kl_is_word(const uint8_t* p, const char* word) noexcept
    bint kl_eight_digits(const uint8_t* p, uint64_t* value) noexcept
    double kl_nearest_double(const uint64_t* powers, uint64_t w, int64_t q) noexcept

cdef enum Verdict:
    OK = 0
    # The value as a whole.
    NO_MEMORY = 1
    NO_OBJECT = 2  # it begins with something else
    ENDS_EARLY = 3
    BAD_BYTE = 4  # no JSON has this byte here
    BAD_TEXT = 5  # a text that is not UTF-8
    BAD_ESCAPE = 6
    TOO_DEEP = 7
    BYTES_LEFT = 8  # after the object
    # One field.
    WRONG_TYPE = 9
    OUT_OF_RANGE = 10
    HAS_FRACTION = 11  # or an exponent, although the type is a whole number
    BAD_TIME = 12
    TOO_FINE = 13  # more digits than the type can hold
    LONE_SURROGATE = 14
    FIRST_OF_FIELD = 9

cdef enum:
    # This many significant digits fit into 64 bits.
    DIGITS_MAX = 19

cdef struct Number:
    uint64_t digits  # the first DIGITS_MAX significant ones
    int64_t power  # the power of ten by which they are multiplied
    int64_t exponent  # as it is written
    bint negative
    bint is_whole  # neither a point nor an exponent
    bint is_cut  # there are more digits, and not all of them are zeros


cdef inline const uint8_t* skip_blanks(const uint8_t* p) noexcept nogil:
    while p[0] <= c' ' and (p[0] == c' ' or p[0] == c'\n' or p[0] == c'\r' or p[0] == c'\t'):
        p += 1
    return p


cdef inline bint is_digit(uint8_t seen) noexcept nogil:
    return <uint8_t>(seen - c'0') <= 9


cdef inline const uint8_t* read_digits(const uint8_t* p, uint64_t* value) noexcept nogil:
    """Skips digits and appends them to `value`, which overflows if there are too many."""
    while kl_eight_digits(p, value):
        p += 8
    while is_digit(p[0]):
        value[0] = value[0] * 10 + (p[0] - c'0')
        p += 1
    return p


cdef inline const uint8_t* read_number(const uint8_t* p, Number* out) noexcept nogil:
    """Skips a JSON number and fills `out`."""
    cdef const uint8_t* first
    cdef const uint8_t* mark
    cdef int64_t count
    cdef int64_t exponent = 0
    cdef bint down
    out.negative = p[0] == c'-'
    p += out.negative
    first = p
    if not is_digit(p[0]):
        return NULL
    out.digits = 0
    if p[0] == c'0':
        p += 1
        if is_digit(p[0]):
            return NULL
    else:
        p = read_digits(p, &out.digits)
    count = p - first
    out.power = 0
    out.is_whole = True
    out.is_cut = False
    if p[0] == c'.':
        p += 1
        mark = p
        p = read_digits(p, &out.digits)
        if p == mark:
            return NULL
        out.power = mark - p
        count += p - mark
        out.is_whole = False
    mark = p
    if p[0] | 0x20 == c'e':
        p += 1
        down = p[0] == c'-'
        if down or p[0] == c'+':
            p += 1
        if not is_digit(p[0]):
            return NULL
        while is_digit(p[0]):
            if exponent < <int64_t>1 << 40:
                exponent = exponent * 10 + (p[0] - c'0')
            p += 1
        if down:
            exponent = -exponent
        out.power += exponent
        out.is_whole = False
    out.exponent = exponent
    if count > DIGITS_MAX:
        take_first_digits(first, mark, out)
    return p


cdef inline void take_first_digits(const uint8_t* p, const uint8_t* end, Number* out) noexcept nogil:
    """Sets `digits` and `power` of a number with many digits, from [p, end), which contains no character but digits and
    a point."""
    cdef int taken = 0
    cdef bint in_fraction = False
    out.digits, out.power = 0, out.exponent
    while p < end:
        if p[0] == c'.':
            in_fraction = True
        elif taken < DIGITS_MAX:
            out.digits = out.digits * 10 + (p[0] - c'0')
            taken += out.digits != 0
            out.power -= in_fraction
        else:
            if p[0] != c'0':
                out.is_cut = True
            out.power += not in_fraction
        p += 1


cdef inline int32_t read_hex4(const uint8_t* p) noexcept nogil:
    """Returns the number of four hex digits, or -1."""
    cdef int32_t found = 0
    cdef int i
    cdef uint8_t seen
    for i in range(4):
        seen = p[i]
        if is_digit(seen):
            found = found << 4 | (seen - c'0')
        elif c'a' <= seen | 0x20 <= c'f':
            found = found << 4 | ((seen | 0x20) - c'a' + 10)
        else:
            return -1
    return found


cdef inline int two_digits(const uint8_t* p) noexcept nogil:
    """Returns their number, or 1000 if they are not digits."""
    return 10 * (p[0] - c'0') + p[1] - c'0' if is_digit(p[0]) and is_digit(p[1]) else 1000


cdef inline int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Returns the days since 1970 of a date of the Gregorian calendar, from the year 0 on."""
    cdef int64_t era, of_era
    year -= month <= 2
    era = (year if year >= 0 else year - 399) // 400
    of_era = year - era * 400
    return (
        era * 146097 + of_era * 365 + of_era // 4 - of_era // 100
        + (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1 - 719468
    )


cdef inline int days_in(int year, int month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef inline int read_time(const uint8_t* p, const uint8_t* end, int64_t per_second, int64_t* out) noexcept nogil:
    """Reads the ISO 8601 time in [p, end) as a number of 1/`per_second` seconds since 1970; UTC if it names no zone.

    2026-03-01, with T or a blank and 12:30, 12:30:05 or 12:30:05.123456789, and Z, +02:00, +0200 or +02.
    """
    cdef int year, month, day, hour = 0, minute = 0, second = 0, zone_hour = 0, zone_minute = 0
    cdef int64_t fraction = 0, unit = per_second, seconds
    cdef bint west = False, fine = False
    if end - p < 10:
        return BAD_TIME
    year = 100 * two_digits(p) + two_digits(p + 2)
    month, day = two_digits(p + 5), two_digits(p + 8)
    if p[4] != c'-' or p[7] != c'-' or year > 9999 or not 1 <= month <= 12 or not 1 <= day <= days_in(year, month):
        return BAD_TIME
    p += 10
    if p < end:
        if p[0] | 0x20 != c't' and p[0] != c' ' or end - p < 6 or p[3] != c':':
            return BAD_TIME
        hour, minute = two_digits(p + 1), two_digits(p + 4)
        p += 6
        if p[0] == c':':
            second = two_digits(p + 1)
            p += 3
            if p < end and (p[0] == c'.' or p[0] == c','):
                p += 1
                if not is_digit(p[0]):
                    return BAD_TIME
                while is_digit(p[0]):
                    if unit == 1:
                        fine = fine or p[0] != c'0'
                    else:
                        unit //= 10
                        fraction += unit * (p[0] - c'0')
                    p += 1
        if p < end:
            if p[0] | 0x20 == c'z':
                p += 1
            elif p[0] == c'+' or p[0] == c'-':
                west = p[0] == c'-'
                zone_hour = two_digits(p + 1)
                p += 3
                if p < end:
                    p += p[0] == c':'
                    zone_minute = two_digits(p)
                    p += 2
        if p != end or hour > 23 or minute > 59 or second > 59 or zone_hour > 23 or zone_minute > 59:
            return BAD_TIME
    seconds = 3600 * zone_hour + 60 * zone_minute
    seconds = 86400 * days_of(year, month, day) + 3600 * hour + 60 * minute + second + (seconds if west else -seconds)
    if fine:
        return TOO_FINE
    if not -(INT64_MAX // per_second) <= seconds < INT64_MAX // per_second:
        return OUT_OF_RANGE
    out[0] = seconds * per_second + fraction
    return OK


cdef inline bint times_ten(uint32_t* limbs, uint32_t more) noexcept nogil:
    """Multiplies a number of 128 bits, low limb first, by ten and adds `more`; returns False if it does not fit."""
    cdef uint64_t carry = more
    cdef int i
    for i in range(4):
        carry += <uint64_t>limbs[i] * 10
        limbs[i] = <uint32_t>carry
        carry >>= 32
    return carry == 0


cdef inline uint32_t by_ten(uint32_t* limbs) noexcept nogil:
    """Divides the number by ten and returns the remainder."""
    cdef uint64_t left = 0
    cdef int i
    for i in range(3, -1, -1):
        left = left << 32 | limbs[i]
        limbs[i] = <uint32_t>(left // 10)
        left %= 10
    return <uint32_t>left


cdef inline int to_decimal(
    const uint8_t* p, const Number* number, int scale, int precision, uint64_t* out
) noexcept nogil:
    """Converts the number that begins at `p` and was read before to a decimal of 128 bits."""
    cdef uint32_t[4] limbs
    cdef uint32_t[4] limit
    cdef int64_t shift = scale + number.exponent
    cdef bint in_fraction = False
    cdef uint64_t low, high
    cdef int i, _i
    for i in range(4):
        limbs[i] = limit[i] = 0
    p += number.negative
    while is_digit(p[0]) or p[0] == c'.':
        if p[0] == c'.':
            in_fraction = True
        else:
            if not times_ten(limbs, p[0] - c'0'):
                return OUT_OF_RANGE
            shift -= in_fraction
        p += 1
    if number.digits != 0:
        while shift > 0:
            if not times_ten(limbs, 0):
                return OUT_OF_RANGE
            shift -= 1
        while shift < 0:
            if by_ten(limbs):
                return TOO_FINE
            shift += 1
    limit[0] = 1
    for _i in range(precision):
        times_ten(limit, 0)
    for i in range(3, -1, -1):
        if limbs[i] != limit[i]:
            if limbs[i] > limit[i]:
                return OUT_OF_RANGE
            break
    else:
        return OUT_OF_RANGE
    low = <uint64_t>limbs[1] << 32 | limbs[0]
    high = <uint64_t>limbs[3] << 32 | limbs[2]
    if number.negative:
        low = ~low + 1
        high = ~high + (low == 0)
    out[KL_LOW_WORD], out[1 - KL_LOW_WORD] = low, high
    return OK
