/* crc32c.h - CRC-32C and a copy that sums what it copies. Private to kv_pool.c. */
#ifndef TL_CRC32C_H
#define TL_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32c(uint32_t crc, const unsigned char *data, size_t n)
{
    crc = ~crc;
    while (n--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static uint32_t crc32c_copy(uint32_t crc, unsigned char *dst, const unsigned char *src, size_t n)
{
    if (n) memcpy(dst, src, n);
    return crc32c(crc, dst, n);
}

#endif
