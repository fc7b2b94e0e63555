/* test_large_envelope.c - envelopes that are written and read past the cache. */
#include "kit.h"

#include "crc32c.h"

#include <stdlib.h>

/* Five blocks of 2 MiB: more than CRC32C_STREAM_FROM. Block i has FILLS[i] of 16 rows.
 * The two bytes of a value are the same, and so in any byte order. */
static const tl_kv_cfg SHAPE = {5, 16, 32, 8, 128, TL_F16, TL_KV_FORMAT_V1};
static const uint32_t FILLS[5] = {16, 1, 16, 15, 16};
enum { ROW = 128 * 2, PLANE = 16 * ROW };

/* The envelope's payload of a block: its rows up to the fill, zeros after. */
static void expect_payload(const unsigned char *payload, const unsigned char *block, size_t bytes, uint32_t fill)
{
    static const unsigned char zeros[PLANE];
    for (size_t at = 0; at < bytes; at += PLANE) {
        CHECK_BYTES(payload + at, block + at, fill * ROW);
        CHECK_BYTES(payload + at + fill * ROW, zeros, PLANE - fill * ROW);
    }
}

/* A large envelope holds the same bytes as a small one would, at any alignment, and a
 * pool that reads it has them in its blocks. */
CASE(large_envelopes_are_exact)
{
    tl_kv_pool *from, *to;
    uint32_t ids[5], taken[5];
    CHECK_STATUS(tl_kv_pool_create(&SHAPE, &from), TL_OK);
    CHECK_STATUS(tl_kv_pool_create(&SHAPE, &to), TL_OK);
    const size_t bytes = tl_kv_block_bytes(from), size = tl_kv_export_bytes(from, 5);
    CHECK(size >= CRC32C_STREAM_FROM);
    CHECK_STATUS(tl_kv_alloc(from, 5, ids), TL_OK);
    for (uint32_t i = 0; i < 5; i++) {
        unsigned char *block = tl_kv_block_ptr(from, ids[i], 0, 0);
        for (size_t b = 0; b < bytes; b++) block[b] = (unsigned char)((b / 2 + i) * 2654435761u >> 13);
        CHECK_STATUS(tl_kv_set_fill(from, ids[i], FILLS[i]), TL_OK);
    }
    for (size_t offset = 0; offset < 64; offset += 21) {
        unsigned char *room = malloc(offset + size), *e = room + offset;
        size_t written;
        CHECK(room);
        CHECK_STATUS(tl_kv_export(from, ids, 5, e, size, &written), TL_OK);
        CHECK_EQ(written, size);
        CHECK_STATUS(tl_kv_import(to, e, size, taken), TL_OK);
        for (uint32_t i = 0; i < 5; i++) {
            const unsigned char *payload = e + TL_KV_ENVELOPE_HEADER + i * (12 + bytes) + 12;
            expect_payload(payload, tl_kv_block_ptr(from, ids[i], 0, 0), bytes, FILLS[i]);
            CHECK_BYTES((unsigned char *)tl_kv_block_ptr(to, taken[i], 0, 0), payload, bytes);
            CHECK_EQ(tl_kv_fill(to, taken[i]), FILLS[i]);
            CHECK_STATUS(tl_kv_unref(to, taken[i]), TL_OK);
        }
        free(room);
    }
    tl_kv_pool_destroy(from);
    tl_kv_pool_destroy(to);
}

CASES(large_envelopes_are_exact)
