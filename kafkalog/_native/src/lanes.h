/* Parallel binary searches: the steps of `find_in` (search.pyx) for 32 targets together, without unpredictable
 * branches, so that their cache misses overlap and AVX2, if available, gathers their keys. */
#ifndef KAFKALOG_LANES_H
#define KAFKALOG_LANES_H

#include <stdint.h>
#include <string.h>

enum { KL_LANES = 32 };

/* The key of an entry, big-endian: an int64, or an int32 to which `base` is added. Not a function: GCC does not inline
 * a function into one with other tuning. */
#define LANE_KEY(at)                                                                                                  \
    if (wide) {                                                                                                       \
        uint64_t x;                                                                                                   \
        memcpy(&x, at, 8);                                                                                            \
        found = (int64_t)KL_SWAP64(x);                                                                                \
    } else {                                                                                                          \
        uint32_t x;                                                                                                   \
        memcpy(&x, at, 4);                                                                                            \
        found = (int64_t)((uint64_t)base + (uint64_t)(int64_t)(int32_t)KL_SWAP32(x));                                 \
    }

/* Turns `low` and `room` (high - low) of each lane into the slot in `low`. `widest`: the largest room. Memory may
 * change meanwhile: low + room never grows. */
#define LANES_BODY                                                                                                    \
    for (; widest > 0; widest >>= 1)                                                                                  \
        for (int i = 0; i < KL_LANES; i++) {                                                                          \
            int64_t half = (room[i] + 1) >> 1, found, above, left;                                                    \
            LANE_KEY(keys + (low[i] + half) * stride)                                                                 \
            above = -(int64_t)(found > targets[i]);                                                                   \
            left = ((half - 1) & above) | ((room[i] - half) & ~above);                                                \
            low[i] += half & ~above;                                                                                  \
            left &= ~(left >> 63);                                  /* a room of 0 stays 0 */                         \
            room[i] = left & -(int64_t)(found != targets[i]);       /* an equal key ends the search at once */        \
        }

static inline void lanes_plain(const uint8_t *restrict keys, int stride, int wide, int64_t base, const int64_t *restrict targets,
                               int64_t *restrict low, int64_t *restrict room, int64_t widest)
{
    LANES_BODY
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
/* Without this tuning GCC considers gathers slow. */
#define LANES_AVX2 __attribute__((target("avx2,tune=haswell"), noinline))
LANES_AVX2 static void lanes_avx2_offsets(const uint8_t *restrict keys, int64_t base, const int64_t *restrict targets, int64_t *restrict low,
                                          int64_t *restrict room, int64_t widest)
{
    const int stride = 8, wide = 0;
    LANES_BODY
}
LANES_AVX2 static void lanes_avx2_times(const uint8_t *restrict keys, const int64_t *restrict targets, int64_t *restrict low, int64_t *restrict room,
                                        int64_t widest)
{
    const int stride = 12, wide = 1;
    const int64_t base = 0;
    LANES_BODY
}
#define LANES_HAVE_AVX2 __builtin_cpu_supports("avx2")
#endif

/* `times`: search a time index by timestamps, otherwise an offset index by offsets. */
static inline void lanes_step(const uint8_t *index, int times, int64_t base, const int64_t *restrict targets, int64_t *restrict low,
                              int64_t *restrict room, int64_t widest)
{
#if defined(LANES_HAVE_AVX2)
    if (LANES_HAVE_AVX2) {
        if (times)
            lanes_avx2_times(index, targets, low, room, widest);
        else
            lanes_avx2_offsets(index, base, targets, low, room, widest);
        return;
    }
#endif
    if (times)
        lanes_plain(index, 12, 1, 0, targets, low, room, widest);
    else
        lanes_plain(index, 8, 0, base, targets, low, room, widest);
}
#endif
