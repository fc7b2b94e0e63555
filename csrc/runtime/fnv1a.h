/* fnv1a.h - FNV-1a 64 of little-endian integers, on any byte order. Private: all static.
 *
 * FNV-1a takes in a byte with h = (h ^ byte) * PRIME: one multiplication waits for the
 * other. A zero byte changes nothing before its multiplication, so a run of k zeros is
 * one multiplication by PRIME^k (mod 2^64). The high bytes of a token id are zeros as
 * a rule: an id below 2^16 costs two multiplications, not four. */
#ifndef TL_FNV1A_H
#define TL_FNV1A_H

#include <stdint.h>

#define FNV1A64_START 0xCBF29CE484222325u

#define FNV_PRIME  0x00000100000001B3u
#define FNV_PRIME2 (FNV_PRIME * FNV_PRIME)
#define FNV_PRIME3 (FNV_PRIME2 * FNV_PRIME)
#define FNV_PRIME8 (FNV_PRIME3 * FNV_PRIME3 * FNV_PRIME2)

/* Takes in the 8 bytes of v. */
static inline uint64_t fnv1a64_u64(uint64_t h, uint64_t v)
{
    if (v == 0) return h * FNV_PRIME8;
    for (int i = 0; i < 64; i += 8) h = (h ^ (v >> i & 255)) * FNV_PRIME;
    return h;
}

/* Takes in the 4 bytes of each of n tokens. */
static inline uint64_t fnv1a64_tokens(uint64_t h, const uint32_t *toks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t t = toks[i];
        h = (h ^ (t & 255)) * FNV_PRIME;
        if (t < 1u << 16) {
            h = (h ^ t >> 8) * FNV_PRIME3;
            continue;
        }
        h = (h ^ (t >> 8 & 255)) * FNV_PRIME;
        if (t < 1u << 24) {
            h = (h ^ t >> 16) * FNV_PRIME2;
            continue;
        }
        h = (h ^ (t >> 16 & 255)) * FNV_PRIME;
        h = (h ^ t >> 24) * FNV_PRIME;
    }
    return h;
}

#endif
