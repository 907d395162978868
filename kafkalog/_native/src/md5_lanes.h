/* One implementation of md5_many: included by md5.c once for each width, with
 *     MD5_NAME    the function's name
 *     MD5_LANES   messages in parallel: twice what a register holds, so that two chains of steps overlap
 *     MD5_TARGET  attributes that allow the instructions
 * and, if the compiler needs help to find them, MD5_ROTATE and MD5_F, MD5_G, MD5_H, MD5_I. */

#if MD5_LANES > 1
#define MD5_JOIN_(a, b) a##b
#define MD5_JOIN(a, b) MD5_JOIN_(a, b)
#define WORDS MD5_JOIN(MD5_NAME, _words)
typedef uint32_t WORDS __attribute__((vector_size(4 * MD5_LANES)));
#else
#define WORDS uint32_t
#endif

/* a += f + word + constant; a = b + (a rotated) */
#define STEP(f, a, b, c, d, row, shift, constant)                                                                     \
    a += f(b, c, d) + block[row] + (uint32_t)constant;                                                                \
    a = MD5_ROTATE(a, shift) + b;
#define FOUR(f, r0, r1, r2, r3, s0, s1, s2, s3, k0, k1, k2, k3)                                                       \
    STEP(f, a, b, c, d, r0, s0, k0)                                                                                   \
    STEP(f, d, a, b, c, r1, s1, k1)                                                                                   \
    STEP(f, c, d, a, b, r2, s2, k2)                                                                                   \
    STEP(f, b, c, d, a, r3, s3, k3)

MD5_TARGET static void MD5_NAME(const uint8_t *const *messages, const uint32_t *sizes, size_t count, uint8_t *digests)
{
    union {
        WORDS rows[16];
        uint32_t words[16][MD5_LANES];
    } input;
    union {
        WORDS rows[4];
        uint32_t words[4][MD5_LANES];
    } state;
    const WORDS *block = input.rows;
    int dirty = 16; /* rows below 14 that may not be zero */

    for (size_t first = 0; first < count; first += MD5_LANES) {
        int lanes = count - first < MD5_LANES ? (int)(count - first) : MD5_LANES;
        uint32_t longest = sizes[first], shortest = sizes[first];
        for (int lane = 1; lane < lanes; lane++) {
            longest = sizes[first + lane] > longest ? sizes[first + lane] : longest;
            shortest = sizes[first + lane] < shortest ? sizes[first + lane] : shortest;
        }
        uint64_t blocks = ((uint64_t)longest + 8) / 64 + 1;
        WORDS a = {0}, b = {0}, c = {0}, d = {0};
        a += 0x67452301u, b += 0xefcdab89u, c += 0x98badcfeu, d += 0x10325476u;
        for (uint64_t at = 0; at < blocks; at++) {
            int rows = blocks == 1 ? (int)(longest / 4) + 1 : 16;
            int ends = 0; /* whether this block is one message's last and not another's */
            for (int row = rows; row < dirty; row++)
                memset(input.words[row], 0, sizeof input.words[row]);
            dirty = rows;
            if (blocks == 1 && lanes == MD5_LANES && longest == shortest) { /* keys of one size: the usual case */
                uint32_t whole = longest & ~3u;
                for (int lane = 0; lane < MD5_LANES; lane++) {
                    const uint8_t *message = messages[first + lane];
                    for (uint32_t i = 0; i < whole; i += 4)
                        input.words[i / 4][lane] = load_le32(message + i);
                    uint32_t word = 0x80u << 8 * (longest & 3);
                    for (uint32_t i = whole; i < longest; i++)
                        word |= (uint32_t)message[i] << 8 * (i & 3);
                    input.words[rows - 1][lane] = word;
                    input.words[14][lane] = longest << 3;
                    input.words[15][lane] = 0;
                }
            } else
                for (int lane = 0; lane < MD5_LANES; lane++) {
                uint32_t size = lane < lanes ? sizes[first + lane] : 0;
                const uint8_t *message = lane < lanes ? messages[first + lane] : NULL;
                uint64_t own_blocks = ((uint64_t)size + 8) / 64 + 1;
                int64_t left = (int64_t)size - (int64_t)(64 * at);
                int row = 0;
                for (; row < rows && left >= 4 * (row + 1); row++)
                    input.words[row][lane] = load_le32(message + 64 * at + 4 * row);
                if (row < rows && left >= 4 * row) { /* the message ends in this word */
                    uint32_t word = 0x80u << 8 * (left & 3);
                    for (int64_t i = 4 * row; i < left; i++)
                        word |= (uint32_t)message[64 * at + i] << 8 * (i & 3);
                    input.words[row++][lane] = word;
                }
                for (; row < rows; row++)
                    input.words[row][lane] = 0;
                if (at + 1 == own_blocks) {
                    input.words[14][lane] = size << 3;
                    input.words[15][lane] = size >> 29;
                }
                ends |= own_blocks <= at + 1 && at + 1 < blocks;
            }
            WORDS a0 = a, b0 = b, c0 = c, d0 = d;
            FOUR(MD5_F, 0, 1, 2, 3, 7, 12, 17, 22, 0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee)
            FOUR(MD5_F, 4, 5, 6, 7, 7, 12, 17, 22, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501)
            FOUR(MD5_F, 8, 9, 10, 11, 7, 12, 17, 22, 0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be)
            FOUR(MD5_F, 12, 13, 14, 15, 7, 12, 17, 22, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821)
            FOUR(MD5_G, 1, 6, 11, 0, 5, 9, 14, 20, 0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa)
            FOUR(MD5_G, 5, 10, 15, 4, 5, 9, 14, 20, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8)
            FOUR(MD5_G, 9, 14, 3, 8, 5, 9, 14, 20, 0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed)
            FOUR(MD5_G, 13, 2, 7, 12, 5, 9, 14, 20, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a)
            FOUR(MD5_H, 5, 8, 11, 14, 4, 11, 16, 23, 0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c)
            FOUR(MD5_H, 1, 4, 7, 10, 4, 11, 16, 23, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70)
            FOUR(MD5_H, 13, 0, 3, 6, 4, 11, 16, 23, 0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05)
            FOUR(MD5_H, 9, 12, 15, 2, 4, 11, 16, 23, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665)
            FOUR(MD5_I, 0, 7, 14, 5, 6, 10, 15, 21, 0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039)
            FOUR(MD5_I, 12, 3, 10, 1, 6, 10, 15, 21, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1)
            FOUR(MD5_I, 8, 15, 6, 13, 6, 10, 15, 21, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1)
            FOUR(MD5_I, 4, 11, 2, 9, 6, 10, 15, 21, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391)
            a += a0, b += b0, c += c0, d += d0;
            if (ends || at + 1 == blocks) {
                state.rows[0] = a, state.rows[1] = b, state.rows[2] = c, state.rows[3] = d;
                for (int lane = 0; lane < lanes; lane++)
                    if (((uint64_t)sizes[first + lane] + 8) / 64 == at)
                        for (int i = 0; i < 4; i++)
                            store_le32(digests + 16 * (first + lane) + 4 * i, state.words[i][lane]);
            }
        }
    }
}

#undef WORDS
#undef STEP
#undef FOUR
#undef MD5_NAME
#undef MD5_LANES
#undef MD5_TARGET
#undef MD5_ROTATE
#undef MD5_F
#undef MD5_G
#undef MD5_H
#undef MD5_I
