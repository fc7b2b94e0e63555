/* sealed.h - lets a target of envelopes get past the CRC.
 *
 * libFuzzer cannot guess a checksum. Its mutator is therefore replaced by one that
 * does what it does and then, in most cases, makes the length the one the header
 * implies and writes the right CRC. Without -DFUZZING there is only the CRC. */
#ifndef TL_TEST_FUZZ_SEALED_H
#define TL_TEST_FUZZ_SEALED_H

#include "fuzz.h"

enum { HEADER = 28, RECORD_HEADER = 12, TRAILER = 4 };

/* One bit at a time, so that a fault of the library's CRC shows. */
static inline uint32_t plain_crc32c(const uint8_t *data, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static inline uint64_t get_le(const uint8_t *at, size_t n)
{
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++) x |= (uint64_t)at[i] << (8 * i);
    return x;
}

static inline void put_le(uint8_t *at, uint64_t x, size_t n)
{
    for (size_t i = 0; i < n; i++) at[i] = (uint8_t)(x >> (8 * i));
}

#ifdef FUZZING
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    enum { RECORD = RECORD_HEADER + SEALED_BLOCK_BYTES };
    size = LLVMFuzzerMutate(data, size, max_size);
    if (size < HEADER + TRAILER || seed % 8 == 0) return size;
    if (seed % 8 < 6) { /* whole records */
        size_t n = (size - HEADER - TRAILER) / RECORD;
        size = HEADER + n * RECORD + TRAILER;
        put_le(data + 8, n, 4);
    }
    put_le(data + size - TRAILER, plain_crc32c(data, size - TRAILER), TRAILER);
    return size;
}
#endif

#endif
