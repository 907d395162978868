/* MD5 (RFC 1321) of many messages at once.
 *
 * Theory. A step of MD5 depends on the step before it, so one message keeps at most a quarter of a CPU core busy.
 * Messages are independent: lane i of every register is message i's, and each step is done for all of them together.
 * The digest of a message is taken after its last block; what its lane computes afterwards is ignored. Keys are short:
 * if all keys of a group fit into one block, only the words that they reach are filled, and the rest of the block stays
 * zero. */
#include "md5.h"

#include <string.h>

static inline uint32_t load_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void store_le32(uint8_t *p, uint32_t x)
{
    p[0] = (uint8_t)x, p[1] = (uint8_t)(x >> 8), p[2] = (uint8_t)(x >> 16), p[3] = (uint8_t)(x >> 24);
}

#define ROTATE(x, n) ((x) << (n) | (x) >> (32 - (n)))
#define F(x, y, z) ((z) ^ ((x) & ((y) ^ (z))))
#define G(x, y, z) ((y) ^ ((z) & ((x) ^ (y))))
#define H(x, y, z) ((x) ^ (y) ^ (z))
#define I(x, y, z) ((y) ^ ((x) | ~(z)))

#define MD5_NAME md5_portable
#define MD5_LANES 1
#define MD5_TARGET
#define MD5_ROTATE ROTATE
#define MD5_F F
#define MD5_G G
#define MD5_H H
#define MD5_I I
#include "md5_lanes.h"

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__aarch64__))
#define MD5_NAME md5_lanes8 /* SSE2 and NEON, which every such CPU has */
#define MD5_LANES 8
#define MD5_TARGET
#define MD5_ROTATE ROTATE
#define MD5_F F
#define MD5_G G
#define MD5_H H
#define MD5_I I
#include "md5_lanes.h"
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define MD5_NAME md5_lanes16
#define MD5_LANES 16
#define MD5_TARGET __attribute__((target("avx2")))
#define MD5_ROTATE ROTATE
#define MD5_F F
#define MD5_G G
#define MD5_H H
#define MD5_I I
#include "md5_lanes.h"

#define MD5_NAME md5_lanes32
#define MD5_LANES 32
#define MD5_TARGET __attribute__((target("avx512f")))
#define MD5_ROTATE ROTATE
#define MD5_F F
#define MD5_G G
#define MD5_H H
#define MD5_I I
#include "md5_lanes.h"
#endif

typedef void many(const uint8_t *const *, const uint32_t *, size_t, uint8_t *);

struct implementation {
    const char *name;
    many *run;
    int here; /* whether this CPU has the instructions */
};

/* Returns the `which`-th best implementation of this CPU; NULL if it has fewer. */
static const struct implementation *choose(int which)
{
    static const struct implementation all[] = {
#if defined(__GNUC__) && defined(__x86_64__)
        {"avx512", md5_lanes32, 2}, {"avx2", md5_lanes16, 1}, {"sse2", md5_lanes8, 0},
#elif defined(__GNUC__) && defined(__aarch64__)
        {"neon", md5_lanes8, 0},
#endif
        {"portable", md5_portable, 0},
    };
    int level = 0;
#if defined(__GNUC__) && defined(__x86_64__)
    level = __builtin_cpu_supports("avx512f") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0;
#endif
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].here <= level && which-- == 0)
            return &all[i];
    return NULL;
}

int md5_implementations(void)
{
    int count = 0;
    while (choose(count) != NULL)
        count++;
    return count;
}

const char *md5_implementation_name(int which)
{
    const struct implementation *found = which < 0 ? NULL : choose(which);
    return found == NULL ? NULL : found->name;
}

void md5_many_by(int which, const uint8_t *const *messages, const uint32_t *sizes, size_t count, uint8_t *digests)
{
    const struct implementation *found = which < 0 ? NULL : choose(which);
    if (found != NULL)
        found->run(messages, sizes, count, digests);
}

void md5_many(const uint8_t *const *messages, const uint32_t *sizes, size_t count, uint8_t *digests)
{
    choose(0)->run(messages, sizes, count, digests);
}
