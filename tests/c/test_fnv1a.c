/* test_fnv1a.c - fnv1a.h against FNV-1a as it is defined, a byte at a time. */
#include "kit.h"

#include "fnv1a.h"

static uint64_t reference(uint64_t h, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ bytes[i]) * 1099511628211u;
    return h;
}

static uint64_t reference_le(uint64_t h, uint64_t value, size_t n)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)(value >> 8 * i);
    return reference(h, bytes, n);
}

static uint64_t reference_tokens(uint64_t h, const uint32_t *toks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) h = reference_le(h, toks[i], 4);
    return h;
}

static uint64_t noise(void)
{
    static uint64_t x = 88172645463325252u;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x;
}

static const uint32_t edges[] = {0,          1,          255,         256,        257,        65535,     65536,     65537,
                                 0x00FF0000, 0x00FFFFFF, 0x01000000, 0x01000001, 0x80000000, 0xFF000000, 0xFFFFFFFF};
enum { EDGES = sizeof edges / sizeof *edges };

/* The published FNV-1a 64 of "" and "foob" (fnv_test.c). */
CASE(published_vectors)
{
    const uint32_t foob = 'f' | 'o' << 8 | 'o' << 16 | (uint32_t)'b' << 24;
    CHECK_EQ(fnv1a64_tokens(FNV1A64_START, NULL, 0), 0xCBF29CE484222325u);
    CHECK_EQ(fnv1a64_tokens(FNV1A64_START, &foob, 1), 0xDD120E790C2512AFu);
    CHECK_EQ(reference(FNV1A64_START, (const unsigned char *)"foobar", 6), 0x85944171F73967E8u);
}

/* Every pair of tokens at the edges of their byte counts. */
CASE(edge_tokens)
{
    for (int i = 0; i < EDGES; i++)
        for (int j = 0; j < EDGES; j++) {
            const uint32_t pair[] = {edges[i], edges[j]};
            CHECK_EQ(fnv1a64_tokens(FNV1A64_START, pair, 2), reference_tokens(FNV1A64_START, pair, 2));
        }
}

/* Tokens of every size, in sequences of 0 to 40. */
CASE(random_tokens)
{
    uint32_t toks[40];
    for (int round = 0; round < 20000; round++) {
        const uint32_t n = noise() % 41;
        for (uint32_t i = 0; i < n; i++) toks[i] = (uint32_t)noise() >> noise() % 32;
        const uint64_t h = noise();
        CHECK_EQ(fnv1a64_tokens(h, toks, n), reference_tokens(h, toks, n));
    }
}

/* Words of every size, 0 among them. */
CASE(words)
{
    CHECK_EQ(fnv1a64_u64(FNV1A64_START, 0), reference_le(FNV1A64_START, 0, 8));
    for (int round = 0; round < 20000; round++) {
        const uint64_t h = noise(), v = noise() >> noise() % 64;
        CHECK_EQ(fnv1a64_u64(h, v), reference_le(h, v, 8));
    }
}

CASES(published_vectors, edge_tokens, random_tokens, words)
