/* The inner loops of JSON columns: where a text stops being plain, whether a key is the expected one, eight digits at
 * once, and a decimal number as the nearest double.
 *
 * The caller's bytes have SCAN_SLACK zeros after them: a zero ends each of the loops here, and blocks are loaded whole.
 * Nothing here allocates. */
#ifndef KAFKALOG_JSON_SCAN_H
#define KAFKALOG_JSON_SCAN_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
#define KL_SSE2 1
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#include <arm_neon.h>
#define KL_NEON 1
#endif
#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#endif

#define SCAN_SLACK 64

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define KL_LITTLE(x) __builtin_bswap64(x)
#define KL_LOW_WORD 1 /* the index in a 128-bit number */
#else
#define KL_LITTLE(x) (x)
#define KL_LOW_WORD 0
#endif

static inline int kl_low_bit(uint64_t bits) {
#if defined(_MSC_VER) && !defined(__clang__)
    unsigned long found;
    _BitScanForward64(&found, bits);
    return (int)found;
#else
    return __builtin_ctzll(bits);
#endif
}

static inline int kl_leading_zeros(uint64_t bits) {
#if defined(_MSC_VER) && !defined(__clang__)
    unsigned long found;
    _BitScanReverse64(&found, bits);
    return 63 - (int)found;
#else
    return __builtin_clzll(bits);
#endif
}

/* Returns the first byte from `p` on that is a quote, a backslash or a control character. `high` becomes nonzero if a
 * byte before it is not ASCII. The bytes before it are copied to `to` (unless that is NULL); the copy may be up to 15
 * bytes longer. */
static inline const uint8_t *kl_plain_text(const uint8_t *p, uint8_t *to, uint32_t *high) {
    for (;;) {
#if defined(KL_SSE2)
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(block, _mm_set1_epi8(0x1F)), block);
        __m128i marks = _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8('"')),
                                     _mm_cmpeq_epi8(block, _mm_set1_epi8('\\')));
        uint32_t found = (uint32_t)_mm_movemask_epi8(_mm_or_si128(marks, low));
        uint32_t above = (uint32_t)_mm_movemask_epi8(block);
        if (to) {
            _mm_storeu_si128((__m128i *)to, block);
            to += 16;
        }
        if (found) {
            *high |= above & (found ^ (found - 1)) >> 1;
            return p + kl_low_bit(found);
        }
        *high |= above;
        p += 16;
#elif defined(KL_NEON)
        uint8x16_t block = vld1q_u8(p);
        uint8x16_t marks = vorrq_u8(vorrq_u8(vceqq_u8(block, vdupq_n_u8('"')), vceqq_u8(block, vdupq_n_u8('\\'))),
                                    vcltq_u8(block, vdupq_n_u8(0x20)));
        uint64_t found = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(marks), 4)), 0);
        uint64_t above = vget_lane_u64(
            vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(vcgeq_u8(block, vdupq_n_u8(0x80))), 4)), 0);
        if (to) {
            vst1q_u8(to, block);
            to += 16;
        }
        if (found) {
            *high |= (above & (found ^ (found - 1)) >> 1) != 0;
            return p + (kl_low_bit(found) >> 2);
        }
        *high |= above != 0;
        p += 16;
#else
        uint64_t block;
        memcpy(&block, p, 8);
        if (to) {
            memcpy(to, &block, 8);
            to += 8;
        }
        block = KL_LITTLE(block);
        /* The lowest mark is right; those above it may be borrows. */
        uint64_t ones = 0x0101010101010101ULL, tops = 0x8080808080808080ULL;
        uint64_t quotes = block ^ ones * '"', slashes = block ^ ones * '\\';
        uint64_t found = (((quotes - ones) & ~quotes) | ((slashes - ones) & ~slashes) | ((block - ones * 0x20) & ~block)) & tops;
        uint64_t above = block & tops;
        if (found) {
            *high |= (above & (found ^ (found - 1)) >> 1) != 0;
            return p + (kl_low_bit(found) >> 3);
        }
        *high |= above != 0;
        p += 8;
#endif
    }
}

/* Returns whether `size` bytes are the same; both sides may be read up to 8 bytes further. */
static inline int kl_is_same(const uint8_t *a, const uint8_t *b, int32_t size) {
    uint64_t x, y;
    while (size > 8) {
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        if (x != y) return 0;
        a += 8, b += 8, size -= 8;
    }
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    return size <= 0 || KL_LITTLE(x ^ y) << (64 - 8 * size) == 0;
}

static inline int kl_is_word(const uint8_t *p, const char *word) {
    uint32_t x, y;
    memcpy(&x, p, 4);
    memcpy(&y, word, 4);
    return x == y;
}

/* Returns whether there are eight digits here; if so, `value` becomes value * 10^8 + those. */
static inline int kl_eight_digits(const uint8_t *p, uint64_t *value) {
    uint64_t x;
    memcpy(&x, p, 8);
    x = KL_LITTLE(x);
    if (((x & 0xF0F0F0F0F0F0F0F0ULL) | (((x + 0x0606060606060606ULL) & 0xF0F0F0F0F0F0F0F0ULL) >> 4)) !=
        0x3333333333333333ULL)
        return 0;
    x -= 0x3030303030303030ULL;
    x = x * 10 + (x >> 8);
    x = ((x & 0x000000FF000000FFULL) * 0x000F424000000064ULL + ((x >> 16) & 0x000000FF000000FFULL) * 0x0000271000000001ULL) >> 32;
    *value = *value * 100000000 + (uint32_t)x;
    return 1;
}

static inline void kl_product(uint64_t a, uint64_t b, uint64_t *high, uint64_t *low) {
#if defined(__SIZEOF_INT128__)
    unsigned __int128 product = (unsigned __int128)a * b;
    *high = (uint64_t)(product >> 64);
    *low = (uint64_t)product;
#elif defined(_M_X64)
    *low = _umul128(a, b, high);
#else
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t ll = al * bl, lh = al * bh, hl = ah * bl, middle = (ll >> 32) + (uint32_t)lh + (uint32_t)hl;
    *high = ah * bh + (lh >> 32) + (hl >> 32) + (middle >> 32);
    *low = middle << 32 | (uint32_t)ll;
#endif
}

#define LEAST_POWER (-342)
#define LARGEST_POWER 308

/* Returns the double nearest to w * 10^q, ties to even: the algorithm of Eisel and Lemire (D. Lemire, Number Parsing at
 * a Gigabyte per Second, 2021). `powers` are the first 128 bits of 5^q from LEAST_POWER to LARGEST_POWER, high and
 * low. */
static inline double kl_nearest_double(const uint64_t *powers, uint64_t w, int64_t q) {
    uint64_t high, low, second_high, second_low, mantissa, bits;
    int64_t power;
    int zeros, upper, shift;
    double found;
    if (w == 0 || q < LEAST_POWER) return 0.0;
    if (q > LARGEST_POWER) {
        bits = 0x7FF0000000000000ULL;
        memcpy(&found, &bits, 8);
        return found;
    }
    zeros = kl_leading_zeros(w);
    w <<= zeros;
    kl_product(w, powers[2 * (q - LEAST_POWER)], &high, &low);
    if ((high & 0x1FF) == 0x1FF) {
        kl_product(w, powers[2 * (q - LEAST_POWER) + 1], &second_high, &second_low);
        low += second_high;
        if (second_high > low) high++;
    }
    upper = (int)(high >> 63);
    shift = upper + 64 - 52 - 3;
    mantissa = high >> shift;
    power = ((217706 * q) >> 16) + 63 + upper - zeros + 1023;
    if (power <= 0) {
        if (1 - power >= 64) return 0.0;
        mantissa >>= 1 - power;
        mantissa += mantissa & 1;
        mantissa >>= 1;
        power = mantissa < (1ULL << 52) ? 0 : 1;
        bits = (mantissa & ~(1ULL << 52)) | (uint64_t)power << 52;
        memcpy(&found, &bits, 8);
        return found;
    }
    if (low <= 1 && q >= -4 && q <= 23 && (mantissa & 3) == 1 && mantissa << shift == high) mantissa &= ~1ULL;
    mantissa += mantissa & 1;
    mantissa >>= 1;
    if (mantissa >= 2ULL << 52) {
        mantissa = 1ULL << 52;
        power++;
    }
    bits = power >= 0x7FF ? 0x7FF0000000000000ULL : (mantissa & ~(1ULL << 52)) | (uint64_t)power << 52;
    memcpy(&found, &bits, 8);
    return found;
}

#endif
