/* CRC-32C (v2 batches) and CRC-32 (magic 0 and 1), with the best instruction set of this CPU.
 *
 * Values are finished ones, as zlib's crc32(): start with 0, pass the result in again to continue. Nothing here
 * allocates, locks or reads past data[length - 1]. */
#ifndef KAFKALOG_CRC32C_H
#define KAFKALOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Hidden: each extension module has its own copy and calls it directly, without a table of pointers in between. */
#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

uint32_t crc32c_update(uint32_t crc, const uint8_t *data, size_t length);
uint32_t crc32_update(uint32_t crc, const uint8_t *data, size_t length);

/* Returns the CRC-32C of A+B, given those of A and B and B's length. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* The implementations that this CPU supports, best first; for tests and diagnostics. */
int crc32c_implementations(void);
const char *crc32c_implementation_name(int which);
uint32_t crc32c_update_by(int which, uint32_t crc, const uint8_t *data, size_t length);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
