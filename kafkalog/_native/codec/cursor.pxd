# A bounded walk over bytes: every pointer comes from `take`, so nothing is read past the end.
from libc.stdint cimport int64_t, uint8_t

cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end


cdef inline const uint8_t* take(Cursor* cursor, int64_t length) noexcept nogil:
    """Returns the next `length` bytes, or NULL if fewer remain (or `length` is negative)."""
    cdef const uint8_t* here = cursor.at
    if length < 0 or length > cursor.end - here:
        return NULL
    cursor.at = here + length
    return here
