from libc.stdint cimport int64_t, uint8_t

# At least `needed` bytes that lay spare, and how many; NULL where none are.
cdef uint8_t* take_spare(int64_t needed, int64_t* capacity) noexcept nogil
# Gives memory of malloc's kind back: it lies spare, or is freed.
cdef void give_back(uint8_t* at, int64_t capacity) noexcept nogil
