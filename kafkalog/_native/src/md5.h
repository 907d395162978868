/* MD5 of many short messages at once, with the widest lanes of this CPU.
 *
 * Nothing here allocates, locks or reads past a message's last byte. */
#ifndef KAFKALOG_MD5_H
#define KAFKALOG_MD5_H

#include <stddef.h>
#include <stdint.h>

/* Hidden for the same reason as in crc32c.h. */
#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* Message i is sizes[i] bytes at messages[i]; its digest goes to digests + 16 * i. */
void md5_many(const uint8_t *const *messages, const uint32_t *sizes, size_t count, uint8_t *digests);

/* The implementations that this CPU supports, best first; for tests and diagnostics. */
int md5_implementations(void);
const char *md5_implementation_name(int which);
void md5_many_by(int which, const uint8_t *const *messages, const uint32_t *sizes, size_t count, uint8_t *digests);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
