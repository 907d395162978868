# Checks UTF-8 by Unicode's rules: no surrogates, no overlong forms, nothing above U+10FFFF.
from libc.stdint cimport int64_t, uint8_t, uint32_t


cdef inline bint is_utf8(const uint8_t* at, int64_t size) noexcept nogil:
    cdef int64_t i = 0
    cdef int more, k
    cdef uint32_t point, low
    while i < size:
        if at[i] < 0x80:
            i += 1
            continue
        if at[i] < 0xC2:
            return False
        if at[i] < 0xE0:
            more, point, low = 1, at[i] & 0x1F, 0x80
        elif at[i] < 0xF0:
            more, point, low = 2, at[i] & 0x0F, 0x800
        elif at[i] < 0xF5:
            more, point, low = 3, at[i] & 0x07, 0x10000
        else:
            return False
        if i + more >= size:
            return False
        for k in range(1, more + 1):
            if at[i + k] & 0xC0 != 0x80:
                return False
            point = (point << 6) | (at[i + k] & 0x3F)
        if point < low or point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            return False
        i += more + 1
    return True
