# An upper bound of the bytes that a whole compressed frame gives, from its headers. A single library call can then
# decompress the frame into that much room. Only the frames that Kafka's clients write are known; -1 for all others.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

cdef enum:
    ZSTD_BLOCK_BYTES = 128 << 10


cdef inline int64_t lz4_bytes_max(const uint8_t* at, int64_t size) noexcept nogil:
    # Magic, version 1 with independent blocks and no checksums, 64 KiB blocks, and the check byte of these two.
    if size < 11 or memcmp(at, b"\x04\x22\x4d\x18\x60\x40\x82", 7) != 0:
        return -1
    return 255 * size  # a byte of a block gives no more


cdef inline int64_t zstd_bytes_max(const uint8_t* at, int64_t size) noexcept nogil:
    """Returns an upper bound of the bytes that one whole frame in [at, at + size) gives; -1 for anything else."""
    cdef int64_t next_at, declared = -1
    cdef int64_t bytes_max = 0
    cdef int64_t block_bytes
    cdef uint32_t header
    cdef uint8_t descriptor
    cdef int size_bytes, i
    if size < 9 or memcmp(at, b"\x28\xb5\x2f\xfd", 4) != 0:
        return -1
    descriptor = at[4]
    if descriptor & 0x0B:  # a dictionary, or a reserved bit
        return -1
    next_at = 5 if descriptor & 0x20 else 6
    size_bytes = descriptor >> 6
    size_bytes = (1 if descriptor & 0x20 else 0) if size_bytes == 0 else 1 << size_bytes
    if next_at + size_bytes > size:
        return -1
    if size_bytes:
        declared = 0
        for i in range(size_bytes):
            declared |= <int64_t>(<uint64_t>at[next_at + i] << (8 * i))
        if size_bytes == 2:
            declared += 256
        next_at += size_bytes
        if declared < 0:
            return -1
    while True:
        if size - next_at < 3:
            return -1
        header = at[next_at] | <uint32_t>at[next_at + 1] << 8 | <uint32_t>at[next_at + 2] << 16
        next_at += 3
        block_bytes = header >> 3
        if block_bytes > ZSTD_BLOCK_BYTES:
            return -1
        bytes_max += block_bytes if (header >> 1) & 3 < 2 else ZSTD_BLOCK_BYTES
        next_at += 1 if (header >> 1) & 3 == 1 else block_bytes
        if next_at > size:
            return -1
        if header & 1:
            break
    if next_at + (4 if descriptor & 0x04 else 0) != size or declared > bytes_max:
        return -1
    return declared if declared >= 0 else bytes_max
