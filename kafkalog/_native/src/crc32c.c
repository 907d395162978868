/* CRC-32C and CRC-32.
 *
 * Theory. A CRC is the remainder of the message, read as a polynomial over GF(2), divided by P. Both CRCs here are
 * reflected: bit 0 of a word is its highest power. Everything below follows from two facts:
 *   - the remainder of A*x^n + B is that of (A mod P)*x^n, plus that of B: parts of a message can be processed in
 *     parallel and joined by a multiplication with x^n mod P ("shift");
 *   - PCLMULQDQ multiplies reflected 64-bit words into a*b*x (one power too many), and the CRC32 instruction over a
 *     64-bit word w gives w*x^32 mod P. The exponents in `init` are off by 1 and 33 for that reason.
 *
 * On x86 the CRC32 instruction and PCLMULQDQ use different execution ports, each with a throughput of 8 bytes a cycle:
 * the `pclmul` kernel runs four folding accumulators and three CRC32 streams at once, 136 bytes in each iteration. */
#include "crc32c.h"

#include <string.h>

#define POLY_CRC32C 0x82F63B78u
#define POLY_CRC32 0xEDB88320u

#if defined(__x86_64__) && defined(__GNUC__)
#define KL_X86 1
#include <immintrin.h>
#if defined(__has_attribute) || __GNUC__ >= 8
#define KL_VPCLMUL 1
#endif
#elif defined(__aarch64__) && defined(__GNUC__)
#define KL_ARM 1
#if defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif
#endif

/* The most iterations of the big kernel: 64 * 136 bytes fit into the first-level cache. */
#define TURNS_MAX 64
/* Longest input of the simple three-stream loop, in 8-byte words of one stream. */
#define STREAM_WORDS_MAX 24
/* Below this many bytes one chain is faster than three streams and their join. */
#define CHAIN_MAX 208

static struct {
    uint32_t crc32c[8][256];
    uint32_t crc32[8][256];
    /* x^(8n-33): multiply, then CRC32 over the product, and n zero bytes have been appended. */
    uint64_t shift_words[2 * STREAM_WORDS_MAX + 1]; /* n = 8 * index */
    uint64_t shift_turns[3 * TURNS_MAX + 1];        /* n = 24 * index */
    /* Folding distance in bytes -> {for the low half, for the high half}, as 64-bit words. */
    uint64_t fold16[2], fold32[2], fold48[2], fold64[2], fold256[2];
    uint64_t zlib_fold16[2], zlib_fold64[2];
#if defined(KL_ARM)
    uint32_t stream_shift[2][4][256];
#endif
} K;

/* ---- arithmetic modulo P, bit by bit: for the tables and for combine ---- */

static uint32_t multiply(uint32_t a, uint32_t b, uint32_t poly)
{
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = (b >> 1) ^ ((b & 1) ? poly : 0);
    }
    return product;
}

static uint32_t power_of_x(uint64_t n, uint32_t poly)
{
    uint32_t result = 0x80000000u, square = 0x40000000u; /* x^0 and x^1, reflected */
    for (; n != 0; n >>= 1) {
        if (n & 1)
            result = multiply(result, square, poly);
        square = multiply(square, square, poly);
    }
    return result;
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b)
{
    return multiply(crc_a, power_of_x(8 * length_b, POLY_CRC32C), POLY_CRC32C) ^ crc_b;
}

/* ---- portable: slicing by 8 (Kounavis and Berry) ---- */

static void build_slices(uint32_t table[8][256], uint32_t poly)
{
    for (int i = 0; i < 256; i++) {
        uint32_t value = (uint32_t)i;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ ((value & 1) ? poly : 0);
        table[0][i] = value;
    }
    for (int i = 0; i < 256; i++)
        for (int slice = 1; slice < 8; slice++)
            table[slice][i] = (table[slice - 1][i] >> 8) ^ table[0][table[slice - 1][i] & 0xFF];
}

static inline uint32_t load_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Continues an unfinished value (not inverted). */
static uint32_t by_slices(uint32_t table[8][256], uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t low = crc ^ load_le32(p), high = load_le32(p + 4);
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^ table[4][low >> 24] ^
              table[3][high & 0xFF] ^ table[2][high >> 8 & 0xFF] ^ table[1][high >> 16 & 0xFF] ^ table[0][high >> 24];
    }
    for (; n != 0; n--, p++)
        crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xFF];
    return crc;
}

static uint32_t crc32c_portable(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~by_slices(K.crc32c, ~crc, p, n);
}

static uint32_t crc32_portable(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~by_slices(K.crc32, ~crc, p, n);
}

#if defined(KL_X86)

#define SSE42 __attribute__((target("sse4.2")))
#define PCLMUL __attribute__((target("sse4.2,pclmul,avx")))
#define VPCLMUL __attribute__((target("sse4.2,pclmul,avx,avx512f,avx512vl,avx512bw,vpclmulqdq")))

static inline uint64_t load_word(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* One chain of CRC32 on an unfinished value: the fastest for short inputs and for tails. */
SSE42 static inline uint32_t chain(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t value = crc;
    for (; n >= 8; n -= 8, p += 8)
        value = _mm_crc32_u64(value, load_word(p));
    crc = (uint32_t)value;
    if (n & 4) {
        uint32_t word;
        memcpy(&word, p, 4);
        crc = _mm_crc32_u32(crc, word);
        p += 4;
    }
    if (n & 2) {
        uint16_t word;
        memcpy(&word, p, 2);
        crc = _mm_crc32_u16(crc, word);
        p += 2;
    }
    if (n & 1)
        crc = _mm_crc32_u8(crc, *p);
    return crc;
}

/* ---- SSE4.2 alone: three streams, joined through a bitwise product (for CPUs without PCLMULQDQ) ---- */

SSE42 static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *p, size_t n)
{
    /* Long enough to make the 2 * 32 steps of a join negligible, short enough for three to stay in the first-level
     * cache. */
    enum { STREAM = 4096 };
    crc = ~crc;
    if (n >= 3 * STREAM) {
        uint32_t one = power_of_x(8 * (uint64_t)STREAM, POLY_CRC32C);
        do {
            uint64_t a = crc, b = 0, c = 0;
            for (size_t i = 0; i < STREAM; i += 8) {
                a = _mm_crc32_u64(a, load_word(p + i));
                b = _mm_crc32_u64(b, load_word(p + STREAM + i));
                c = _mm_crc32_u64(c, load_word(p + 2 * STREAM + i));
            }
            b ^= multiply((uint32_t)a, one, POLY_CRC32C);
            crc = (uint32_t)c ^ multiply((uint32_t)b, one, POLY_CRC32C);
            p += 3 * STREAM;
            n -= 3 * STREAM;
        } while (n >= 3 * STREAM);
    }
    return ~chain(crc, p, n);
}

/* ---- PCLMULQDQ with CRC32 ---- */

PCLMUL static inline __m128i load128(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

PCLMUL static inline __m128i fold(__m128i x, __m128i k, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Returns the unfinished CRC of a folded accumulator. */
PCLMUL static inline uint32_t reduce128(__m128i x)
{
    uint64_t value = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(x));
    return (uint32_t)_mm_crc32_u64(value, (uint64_t)_mm_extract_epi64(x, 1));
}

PCLMUL static inline uint64_t shifted(uint64_t crc, uint64_t by)
{
    return (uint64_t)_mm_cvtsi128_si64(
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128((long long)by), 0x00));
}

/* Runs three CRC32 streams of `words` words each, on an unfinished value. */
PCLMUL static inline uint32_t streams(uint32_t crc, const uint8_t *p, size_t words)
{
    uint64_t a = crc, b = 0, c = 0;
    const uint8_t *q = p + 8 * words, *r = q + 8 * words;
    for (size_t i = 0; i < 8 * words; i += 8) {
        a = _mm_crc32_u64(a, load_word(p + i));
        b = _mm_crc32_u64(b, load_word(q + i));
        c = _mm_crc32_u64(c, load_word(r + i));
    }
    a = shifted(a, K.shift_words[2 * words]) ^ shifted(b, K.shift_words[words]);
    return (uint32_t)(_mm_crc32_u64(0, a) ^ c);
}

/* 136 bytes in each iteration: 64 folded, then 3 streams of 24. All the folded bytes come first in memory. */
PCLMUL static inline uint32_t turns(uint32_t crc, const uint8_t *p, size_t count)
{
    const __m128i k64 = load128((const uint8_t *)K.fold64);
    __m128i x0 = _mm_xor_si128(load128(p), _mm_cvtsi32_si128((int)crc));
    __m128i x1 = load128(p + 16), x2 = load128(p + 32), x3 = load128(p + 48);
    const uint8_t *s = p + 64 * count;
    const size_t stride = 24 * count;
    uint64_t a = 0, b = 0, c = 0;
    for (size_t turn = 1;; turn++) {
        a = _mm_crc32_u64(a, load_word(s));
        b = _mm_crc32_u64(b, load_word(s + stride));
        c = _mm_crc32_u64(c, load_word(s + 2 * stride));
        a = _mm_crc32_u64(a, load_word(s + 8));
        b = _mm_crc32_u64(b, load_word(s + stride + 8));
        c = _mm_crc32_u64(c, load_word(s + 2 * stride + 8));
        a = _mm_crc32_u64(a, load_word(s + 16));
        b = _mm_crc32_u64(b, load_word(s + stride + 16));
        c = _mm_crc32_u64(c, load_word(s + 2 * stride + 16));
        if (turn == count)
            break;
        s += 24;
        p += 64;
        x0 = fold(x0, k64, load128(p));
        x1 = fold(x1, k64, load128(p + 16));
        x2 = fold(x2, k64, load128(p + 32));
        x3 = fold(x3, k64, load128(p + 48));
    }
    x1 = fold(x0, load128((const uint8_t *)K.fold16), x1);
    x3 = fold(x2, load128((const uint8_t *)K.fold16), x3);
    x3 = fold(x1, load128((const uint8_t *)K.fold32), x3);
    a = shifted(reduce128(x3), K.shift_turns[3 * count]) ^ shifted(a, K.shift_turns[2 * count]) ^
        shifted(b, K.shift_turns[count]);
    return (uint32_t)(_mm_crc32_u64(0, a) ^ c);
}

/* Not inlined, so that a short input does not pay for saving the registers. */
PCLMUL __attribute__((noinline)) static uint32_t unfinished_pclmul(uint32_t crc, const uint8_t *p, size_t n)
{
    while (n >= 8 * STREAM_WORDS_MAX * 3) {
        size_t count = n / 136 < TURNS_MAX ? n / 136 : TURNS_MAX;
        crc = turns(crc, p, count);
        p += 136 * count;
        n -= 136 * count;
    }
    if (n >= CHAIN_MAX) {
        size_t words = n / 24;
        crc = streams(crc, p, words);
        p += 24 * words;
        n -= 24 * words;
    }
    return chain(crc, p, n);
}

PCLMUL static uint32_t crc32c_pclmul(uint32_t crc, const uint8_t *p, size_t n)
{
    if (n < CHAIN_MAX)
        return ~chain(~crc, p, n);
    return ~unfinished_pclmul(~crc, p, n);
}

/* CRC-32 has no instruction: folding, and the last 16 bytes through the tables. */
PCLMUL static uint32_t crc32_pclmul(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    if (n >= 128) {
        const __m128i k64 = load128((const uint8_t *)K.zlib_fold64), k16 = load128((const uint8_t *)K.zlib_fold16);
        __m128i x0 = _mm_xor_si128(load128(p), _mm_cvtsi32_si128((int)crc));
        __m128i x1 = load128(p + 16), x2 = load128(p + 32), x3 = load128(p + 48);
        uint8_t last[16];
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
            x0 = fold(x0, k64, load128(p));
            x1 = fold(x1, k64, load128(p + 16));
            x2 = fold(x2, k64, load128(p + 32));
            x3 = fold(x3, k64, load128(p + 48));
        }
        x1 = fold(x0, k16, x1);
        x2 = fold(x1, k16, x2);
        x3 = fold(x2, k16, x3);
        _mm_storeu_si128((__m128i *)last, x3);
        crc = by_slices(K.crc32, 0, last, 16);
    }
    return ~by_slices(K.crc32, crc, p, n);
}

/* ---- VPCLMULQDQ: 256 bytes in each iteration in four 512-bit accumulators ---- */

#if defined(KL_VPCLMUL)
#if defined(KAFKALOG_EMULATE_VPCLMUL)
/* For tests on a CPU that has AVX-512 but not this instruction: the same product, lane by lane. */
#undef VPCLMUL
#define VPCLMUL __attribute__((target("sse4.2,pclmul,avx,avx512f,avx512vl,avx512bw,avx512dq")))
#define LANE(a, b, how, i) _mm_clmulepi64_si128(_mm512_extracti32x4_epi32(a, i), _mm512_extracti32x4_epi32(b, i), how)
#define CLMUL512(a, b, how)                                                                                           \
    _mm512_inserti32x4(                                                                                               \
        _mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(LANE(a, b, how, 0)), LANE(a, b, how, 1), 1),     \
                           LANE(a, b, how, 2), 2),                                                                    \
        LANE(a, b, how, 3), 3)
#else
#define CLMUL512(a, b, how) _mm512_clmulepi64_epi128(a, b, how)
#endif

#define FOLD512(x, k, next) _mm512_ternarylogic_epi64(CLMUL512(x, k, 0x00), CLMUL512(x, k, 0x11), next, 0x96)

VPCLMUL static uint32_t crc32c_vpclmul(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    if (n >= 1024) {
        const __m512i k256 = _mm512_broadcast_i32x4(load128((const uint8_t *)K.fold256));
        const __m512i k64 = _mm512_broadcast_i32x4(load128((const uint8_t *)K.fold64));
        __m512i x0 = _mm512_loadu_si512(p), x1 = _mm512_loadu_si512(p + 64);
        __m512i x2 = _mm512_loadu_si512(p + 128), x3 = _mm512_loadu_si512(p + 192);
        __m128i last;
        x0 = _mm512_xor_si512(x0, _mm512_inserti32x4(_mm512_setzero_si512(), _mm_cvtsi32_si128((int)crc), 0));
        for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
            x0 = FOLD512(x0, k256, _mm512_loadu_si512(p));
            x1 = FOLD512(x1, k256, _mm512_loadu_si512(p + 64));
            x2 = FOLD512(x2, k256, _mm512_loadu_si512(p + 128));
            x3 = FOLD512(x3, k256, _mm512_loadu_si512(p + 192));
        }
        x1 = FOLD512(x0, k64, x1);
        x2 = FOLD512(x1, k64, x2);
        x3 = FOLD512(x2, k64, x3);
        last = fold(_mm512_extracti32x4_epi32(x3, 0), load128((const uint8_t *)K.fold48), _mm512_extracti32x4_epi32(x3, 3));
        last = fold(_mm512_extracti32x4_epi32(x3, 1), load128((const uint8_t *)K.fold32), last);
        last = fold(_mm512_extracti32x4_epi32(x3, 2), load128((const uint8_t *)K.fold16), last);
        crc = reduce128(last);
    }
    return ~unfinished_pclmul(crc, p, n);
}
#endif
#endif /* KL_X86 */

#if defined(KL_ARM)
/* ---- ARMv8: the CRC extension, three streams, joined through tables ---- */

#if defined(__clang__)
#define ARM_CRC __attribute__((target("crc")))
#else
#define ARM_CRC __attribute__((target("+crc")))
#endif
#define ARM_STREAM 1024

ARM_CRC static inline uint32_t arm_word(uint32_t crc, const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    __asm__("crc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

ARM_CRC static inline uint32_t arm_byte(uint32_t crc, uint8_t byte)
{
    __asm__("crc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}

static inline uint32_t arm_shift(uint32_t table[4][256], uint32_t crc)
{
    return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^ table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
}

ARM_CRC static uint32_t crc32c_armv8(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (; n >= 3 * ARM_STREAM; p += 3 * ARM_STREAM, n -= 3 * ARM_STREAM) {
        uint32_t a = crc, b = 0, c = 0;
        for (size_t i = 0; i < ARM_STREAM; i += 8) {
            a = arm_word(a, p + i);
            b = arm_word(b, p + ARM_STREAM + i);
            c = arm_word(c, p + 2 * ARM_STREAM + i);
        }
        crc = arm_shift(K.stream_shift[1], a) ^ arm_shift(K.stream_shift[0], b) ^ c;
    }
    for (; n >= 8; p += 8, n -= 8)
        crc = arm_word(crc, p);
    for (; n != 0; p++, n--)
        crc = arm_byte(crc, *p);
    return ~crc;
}

static int has_armv8_crc(void)
{
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#elif defined(__APPLE__)
    return 1;
#else
    return 0;
#endif
}
#endif /* KL_ARM */

/* ---- the choice ---- */

/* A switch over direct calls, not a pointer: where the kernel has switched off the prediction of indirect
 * branches (a mitigation that sandboxes often turn on), a call by pointer costs more than a short checksum. */
enum { UNCHOSEN, PORTABLE, SSE42_ONLY, PCLMUL_AND_SSE42, VPCLMUL_512, ARMV8 };

#define IMPLEMENTATIONS_MAX 4
static struct {
    const char *name;
    int kind;
} available[IMPLEMENTATIONS_MAX];
static int available_count;
static int chosen = UNCHOSEN;

static inline uint32_t update_by_kind(int kind, uint32_t crc, const uint8_t *data, size_t length)
{
#if defined(KL_X86)
    if (kind == PCLMUL_AND_SSE42)
        return crc32c_pclmul(crc, data, length);
#if defined(KL_VPCLMUL)
    if (kind == VPCLMUL_512)
        return crc32c_vpclmul(crc, data, length);
#endif
    if (kind == SSE42_ONLY)
        return crc32c_sse42(crc, data, length);
#elif defined(KL_ARM)
    if (kind == ARMV8)
        return crc32c_armv8(crc, data, length);
#endif
    return crc32c_portable(crc, data, length);
}

#if defined(KL_X86)
static void build_fold(uint64_t out[2], uint64_t bytes, uint32_t poly)
{
    /* The low half is 64 bits higher; both products have one power of x too many. */
    out[0] = (uint64_t)power_of_x(8 * bytes + 63, poly) << 32;
    out[1] = (uint64_t)power_of_x(8 * bytes - 1, poly) << 32;
}
#endif

/* The first thread here chooses and publishes `chosen` last; other threads wait for that. */
#if defined(__GNUC__)
#define PUBLISH(where, what) __atomic_store_n(&(where), what, __ATOMIC_RELEASE)
#define READ(where) __atomic_load_n(&(where), __ATOMIC_ACQUIRE)
#define FIRST_HERE(where) (__atomic_exchange_n(&(where), 1, __ATOMIC_ACQ_REL) == 0)
#else
#include <intrin.h>
#define PUBLISH(where, what) _InterlockedExchange((volatile long *)&(where), what)
#define READ(where) _InterlockedOr((volatile long *)&(where), 0)
#define FIRST_HERE(where) (_InterlockedExchange((volatile long *)&(where), 1) == 0)
#endif
static int choosing;

static void choose(void)
{
    int count = 0;
    build_slices(K.crc32c, POLY_CRC32C);
    build_slices(K.crc32, POLY_CRC32);
#if defined(KL_X86)
    for (int i = 1; i <= 2 * STREAM_WORDS_MAX; i++)
        K.shift_words[i] = power_of_x(64 * (uint64_t)i - 33, POLY_CRC32C);
    for (int i = 1; i <= 3 * TURNS_MAX; i++)
        K.shift_turns[i] = power_of_x(192 * (uint64_t)i - 33, POLY_CRC32C);
    build_fold(K.fold16, 16, POLY_CRC32C);
    build_fold(K.fold32, 32, POLY_CRC32C);
    build_fold(K.fold48, 48, POLY_CRC32C);
    build_fold(K.fold64, 64, POLY_CRC32C);
    build_fold(K.fold256, 256, POLY_CRC32C);
    build_fold(K.zlib_fold16, 16, POLY_CRC32);
    build_fold(K.zlib_fold64, 64, POLY_CRC32);
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) {
        if (__builtin_cpu_supports("pclmul") && __builtin_cpu_supports("avx")) {
#if defined(KL_VPCLMUL)
            if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512bw")
#if !defined(KAFKALOG_EMULATE_VPCLMUL)
                && __builtin_cpu_supports("vpclmulqdq")
#endif
            ) {
                available[count].name = "vpclmul";
                available[count++].kind = VPCLMUL_512;
            }
#endif
            available[count].name = "pclmul";
            available[count++].kind = PCLMUL_AND_SSE42;
        }
        available[count].name = "sse42";
        available[count++].kind = SSE42_ONLY;
    }
#elif defined(KL_ARM)
    for (int stream = 0; stream < 2; stream++) {
        uint32_t shift = power_of_x(8 * (uint64_t)ARM_STREAM * (stream + 1), POLY_CRC32C);
        for (int slice = 0; slice < 4; slice++)
            for (int i = 0; i < 256; i++)
                K.stream_shift[stream][slice][i] = multiply((uint32_t)i << (8 * slice), shift, POLY_CRC32C);
    }
    if (has_armv8_crc()) {
        available[count].name = "armv8";
        available[count++].kind = ARMV8;
    }
#endif
    available[count].name = "portable";
    available[count++].kind = PORTABLE;
    available_count = count;
    PUBLISH(chosen, available[0].kind);
}

static inline int kind_in_use(void)
{
    int kind = READ(chosen);
    if (kind == UNCHOSEN) {
        if (FIRST_HERE(choosing))
            choose();
        while ((kind = READ(chosen)) == UNCHOSEN)
            ; /* microseconds, once in a process */
    }
    return kind;
}

uint32_t crc32c_update(uint32_t crc, const uint8_t *data, size_t length)
{
    return update_by_kind(kind_in_use(), crc, data, length);
}

uint32_t crc32_update(uint32_t crc, const uint8_t *data, size_t length)
{
    int kind = kind_in_use();
#if defined(KL_X86)
    if (kind == PCLMUL_AND_SSE42 || kind == VPCLMUL_512)
        return crc32_pclmul(crc, data, length);
#endif
    (void)kind;
    return crc32_portable(crc, data, length);
}

int crc32c_implementations(void)
{
    kind_in_use();
    return available_count;
}

const char *crc32c_implementation_name(int which)
{
    return which >= 0 && which < crc32c_implementations() ? available[which].name : NULL;
}

uint32_t crc32c_update_by(int which, uint32_t crc, const uint8_t *data, size_t length)
{
    return which >= 0 && which < crc32c_implementations() ? update_by_kind(available[which].kind, crc, data, length) : 0;
}
