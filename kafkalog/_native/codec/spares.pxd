from libc.stdint cimport int64_t, uint8_t

# At least `needed` bytes that lay spare, and how many: the largest block for what `will_grow`, else the smallest that
# is enough; NULL where none is.
cdef uint8_t* take_spare(int64_t needed, bint will_grow, int64_t* capacity) noexcept nogil
# Gives memory of malloc's kind back: it lies spare, or is freed.
cdef void give_back(uint8_t* at, int64_t capacity) noexcept nogil
