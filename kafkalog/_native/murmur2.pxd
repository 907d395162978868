from libc.stdint cimport uint8_t, uint32_t


# The hash of a key as Kafka's producers make it, before it is a signed int.
cdef uint32_t hash_of(const uint8_t* at, size_t length) noexcept nogil
