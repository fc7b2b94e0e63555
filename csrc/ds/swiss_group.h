/* swiss_group.h - 16 control bytes looked at in one go. Private to swiss.c.
 *
 *      control byte     bits        the slot
 *      0x00 .. 0x7F     0hhhhhhh    holds a key; h are 7 bits of the key's hash
 *      CTRL_EMPTY       10000000    never used since the group last had to be full
 *      CTRL_TOMB        11111110    held a key; a search must go on past it
 *
 * Two implementations of the same three operations, so that callers see no #if:
 * SSE2, and plain C for any CPU and byte order (TL_SWISS_PORTABLE forces it). A
 * mask has one bit a slot, bit 0 for the first. */
#ifndef TL_SWISS_GROUP_H
#define TL_SWISS_GROUP_H

#include <stdint.h>

#define GROUP_SLOTS 16u
#define CTRL_EMPTY 0x80u
#define CTRL_TOMB 0xFEu

#if defined(__SSE2__) && !defined(TL_SWISS_PORTABLE)

#include <emmintrin.h>

typedef __m128i group;

static inline group group_load(const uint8_t *ctrl)
{
    return _mm_load_si128((const __m128i *)(const void *)ctrl);
}

/* The slots whose control byte is `byte`. */
static inline uint32_t group_match(group g, uint8_t byte)
{
    return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(g, _mm_set1_epi8((char)byte)));
}

/* The slots that hold no key: CTRL_EMPTY or CTRL_TOMB. */
static inline uint32_t group_match_open(group g) { return (uint32_t)_mm_movemask_epi8(g); }

#else

typedef struct {
    uint64_t half[2]; /* slots 0 .. 7 and 8 .. 15, the first in the low byte */
} group;

static inline uint64_t load_half(const uint8_t *ctrl)
{
    uint64_t half = 0;
    for (unsigned i = 0; i < 8; i++) half |= (uint64_t)ctrl[i] << (8 * i);
    return half;
}

static inline group group_load(const uint8_t *ctrl)
{
    return (group){{load_half(ctrl), load_half(ctrl + 8)}};
}

#define EACH_BYTE 0x0101010101010101u

/* Gathers the top bits of the 8 bytes: the products meet only in the top byte. */
static inline uint32_t top_bits(uint64_t half)
{
    return (uint32_t)((((half >> 7) & EACH_BYTE) * 0x0102040810204080u) >> 56);
}

/* The top bit of each byte that is 0: adding 0x7F carries into the top bit of every
 * other one, and no carry leaves its byte. */
static inline uint64_t zero_bytes(uint64_t x)
{
    const uint64_t low7 = 0x7F * EACH_BYTE;
    return ~(((x & low7) + low7) | x | low7);
}

static inline uint32_t group_match(group g, uint8_t byte)
{
    return top_bits(zero_bytes(g.half[0] ^ byte * EACH_BYTE)) |
           top_bits(zero_bytes(g.half[1] ^ byte * EACH_BYTE)) << 8;
}

static inline uint32_t group_match_open(group g) { return top_bits(g.half[0]) | top_bits(g.half[1]) << 8; }

#endif

/* The first slot of a mask that is not 0. */
static inline uint32_t mask_first(uint32_t mask) { return (uint32_t)__builtin_ctz(mask); }

#endif
