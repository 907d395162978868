# The checksums of src/crc32c.c, for the other native modules.
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "crc32c.h" nogil:
    uint32_t crc32c_update(uint32_t crc, const uint8_t* data, size_t length) noexcept
    uint32_t crc32_update(uint32_t crc, const uint8_t* data, size_t length) noexcept
    uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) noexcept
    int crc32c_implementations() noexcept
    const char* crc32c_implementation_name(int which) noexcept
    uint32_t crc32c_update_by(int which, uint32_t crc, const uint8_t* data, size_t length) noexcept
