from libc.stdint cimport int64_t, uint8_t

# Returns a spare block of at least `needed` bytes and sets `capacity` to its size; NULL if there is none.
cdef uint8_t* take_spare(int64_t needed, int64_t* capacity) noexcept nogil
# Returns a block from malloc: it is kept as spare, or freed.
cdef void give_back(uint8_t* at, int64_t capacity) noexcept nogil
