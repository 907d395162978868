# The byte layout of Kafka's record batches and index entries, once for all native modules; the limits of Java's
# integers; and big-endian loads and stores. The Python counterparts are kafkalog.engine.format.batch.HEADER,
# kafkalog.engine.format.index_entries and kafkalog._limits; `batches.LAYOUT` exports these numbers, and a test compares
# them. Source: DefaultRecordBatch (4.4.0).
#
# A buffer may change while it is read. A loaded value must stay one number: without KL_ONCE a compiler may read memory
# again where the number is used again, after the check that it had passed.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
      #define KL_SWAP16(x) (x)
      #define KL_SWAP32(x) (x)
      #define KL_SWAP64(x) (x)
    #elif defined(_MSC_VER)
      #include <stdlib.h>
      #define KL_SWAP16(x) _byteswap_ushort(x)
      #define KL_SWAP32(x) _byteswap_ulong(x)
      #define KL_SWAP64(x) _byteswap_uint64(x)
    #else
      #define KL_SWAP16(x) __builtin_bswap16(x)
      #define KL_SWAP32(x) __builtin_bswap32(x)
      #define KL_SWAP64(x) __builtin_bswap64(x)
    #endif
    #if defined(_MSC_VER) && !defined(__clang__)
      #include <intrin.h>
      #define KL_ONCE(x) _ReadWriteBarrier()
      #define KL_LOADED() _ReadWriteBarrier()
    #else
      #define KL_ONCE(x) __asm__("" : "+r"(x))
      #define KL_LOADED() __asm__ volatile("" : : : "memory")
    #endif
    """
    uint16_t KL_SWAP16(uint16_t x) noexcept nogil
    uint32_t KL_SWAP32(uint32_t x) noexcept nogil
    uint64_t KL_SWAP64(uint64_t x) noexcept nogil
    # `x` is the loaded value; KL_LOADED has the same effect for everything copied before it.
    void KL_ONCE(...) noexcept nogil
    void KL_LOADED() noexcept nogil

cdef enum:
    # Common to all magics: [base offset int64][size int32] then the part that `size` counts.
    BASE_OFFSET = 0
    BATCH_LENGTH = 8
    LOG_OVERHEAD = 12
    MAGIC = 16
    # Magic 2.
    LEADER_EPOCH = 12
    CRC = 17
    ATTRIBUTES = 21
    LAST_OFFSET_DELTA = 23
    BASE_TIMESTAMP = 27
    MAX_TIMESTAMP = 35
    PRODUCER_ID = 43
    PRODUCER_EPOCH = 51
    BASE_SEQUENCE = 53
    RECORD_COUNT = 57
    RECORDS = 61
    # Magic 0 and 1: [offset][size][crc uint32][magic][attributes][v1: timestamp int64]...
    LEGACY_CRC = 12
    LEGACY_ATTRIBUTES = 17
    LEGACY_TIMESTAMP = 18
    MIN_RECORD_OVERHEAD = 14
    HEADER_SIZE_UP_TO_MAGIC = 17

cdef enum:
    # Offset index: [offset - base offset int32][position int32].
    OFFSET_ENTRY_OFFSET = 0
    OFFSET_ENTRY_POSITION = 4
    OFFSET_ENTRY = 8
    # Time index: [timestamp int64][offset - base offset int32].
    TIME_ENTRY_TIMESTAMP = 0
    TIME_ENTRY_OFFSET = 8
    TIME_ENTRY = 12

cdef enum:
    CODEC_MASK = 0x07
    TIMESTAMP_TYPE_FLAG = 0x08
    TRANSACTIONAL_FLAG = 0x10
    CONTROL_FLAG = 0x20
    DELETE_HORIZON_FLAG = 0x40
    # Under CODEC_MASK; kafkalog.engine.format.codecs lists what else a new codec needs.
    LZ4_CODEC = 3
    ZSTD_CODEC = 4
    LAST_CODEC = 4
    # Java's largest array: no record is longer.
    ARRAY_BYTES_MAX = 2147483639


cdef inline uint32_t load8(const uint8_t* p) noexcept nogil:
    # A whole register: after KL_ONCE a byte would be widened at each use.
    cdef uint32_t x = p[0]
    KL_ONCE(x)
    return x


cdef inline uint16_t load16(const uint8_t* p) noexcept nogil:
    cdef uint16_t x
    memcpy(&x, p, 2)
    KL_ONCE(x)
    return KL_SWAP16(x)


cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    cdef uint32_t x
    memcpy(&x, p, 4)
    KL_ONCE(x)
    return KL_SWAP32(x)


cdef inline uint64_t load64(const uint8_t* p) noexcept nogil:
    cdef uint64_t x
    memcpy(&x, p, 8)
    KL_ONCE(x)
    return KL_SWAP64(x)


cdef inline void store16(uint8_t* p, uint16_t x) noexcept nogil:
    x = KL_SWAP16(x)
    memcpy(p, &x, 2)


cdef inline void store32(uint8_t* p, uint32_t x) noexcept nogil:
    x = KL_SWAP32(x)
    memcpy(p, &x, 4)


cdef inline void store64(uint8_t* p, uint64_t x) noexcept nogil:
    x = KL_SWAP64(x)
    memcpy(p, &x, 8)
