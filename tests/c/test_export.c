/* test_export.c - the writer's promises beyond the worked example: refusals that touch
 * nothing, no leak through padding, any alignment. */

#include "pools.h"

#include <stdlib.h>

/* An id that is not held, an empty block, or a NULL is TL_EINVAL; neither buf nor
 * *written is touched. */
CASE(a_refused_export_touches_nothing)
{
    uint8_t buf[100], untouched[100];
    size_t written = 77;
    tl_kv_pool *p = new_pool(worked_shape(4));
    const uint32_t good = take_worked(p), empty = take(p), cached = take_registered(p, H1);
    drop(p, cached);
    memset(buf, 0xEE, sizeof buf), memset(untouched, 0xEE, sizeof untouched);
    const uint32_t bad[] = {empty, cached, 3, 4, UINT32_MAX};
    for (size_t i = 0; i < 5; i++) {
        const uint32_t first[] = {bad[i], good}, last[] = {good, bad[i]};
        CHECK_REFUSED(p, tl_kv_export(p, first, 2, buf, sizeof buf, &written), TL_EINVAL);
        CHECK_REFUSED(p, tl_kv_export(p, last, 2, buf, sizeof buf, &written), TL_EINVAL);
        CHECK_REFUSED(p, tl_kv_export(p, last, 2, NULL, 0, &written), TL_EINVAL);
    }
    CHECK_REFUSED(p, tl_kv_export(p, NULL, 1, buf, sizeof buf, &written), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_export(NULL, &good, 1, buf, sizeof buf, &written), TL_EINVAL);
    CHECK_EQ(written, 77);
    CHECK_REFUSED(p, tl_kv_export(p, &good, 1, buf, sizeof buf, NULL), TL_EINVAL);
    CHECK_BYTES(buf, untouched, sizeof buf);
    end_pool(p);
}

/* No blocks are an envelope of 32 bytes; asking for its size without a buffer too. */
CASE(an_export_of_no_blocks_is_32_bytes)
{
    uint8_t buf[32], expected[32];
    size_t written = 0;
    tl_kv_cfg cfg = worked_shape(1);
    tl_kv_pool *p = new_pool(cfg);
    CHECK_EQ(tl_kv_export_bytes(p, 0), 32);
    CHECK_EQ(write_envelope(expected, &cfg, NULL, 0), 32);
    CHECK_REFUSED(p, tl_kv_export(p, NULL, 0, NULL, 0, &written), TL_EFULL);
    CHECK_EQ(written, 32);
    written = 0;
    CHECK_REFUSED(p, tl_kv_export(p, NULL, 0, buf, 31, &written), TL_EFULL);
    CHECK_EQ(written, 32);
    CHECK_QUIET(tl_kv_export(p, NULL, 0, buf, 32, &written), TL_OK);
    CHECK_BYTES(buf, expected, 32);
    end_pool(p);
}

/* The same id may stand twice, and the order is the caller's. */
CASE(an_id_may_stand_twice)
{
    uint8_t buf[32 + 3 * 28], expected[32 + 3 * 28];
    uint16_t tail[8];
    size_t written;
    tl_kv_cfg cfg = worked_shape(2);
    tl_kv_pool *p = new_pool(cfg);
    uint32_t full = take_worked(p), part = take(p);
    put_values(p, part, 3);
    memcpy(tail, values_of(p, part), 16);
    CHECK_STATUS(tl_kv_set_fill(p, part, 1), TL_OK);
    const uint32_t ids[3] = {part, full, part};
    const wire_block blocks[3] = {{0, 1, tail}, {H0, 2, worked_values}, {0, 1, tail}};
    CHECK_EQ(write_envelope(expected, &cfg, blocks, 3), sizeof expected);
    CHECK_QUIET(tl_kv_export(p, ids, 3, buf, sizeof buf, &written), TL_OK);
    CHECK_EQ(written, sizeof expected);
    CHECK_BYTES(buf, expected, sizeof expected);
    end_pool(p);
}

/* A slab of 0xFF, 1 of 4 positions filled: 48 payload bytes are 0xFF and 144 are 0, the
 * first row of 6 bytes in each layer, K and V, and head. */
CASE(old_bytes_do_not_leak_through_padding)
{
    enum { P = 192, PLANE = 4 * 3 * 2, ROW = 3 * 2 };
    uint8_t buf[32 + 12 + P];
    size_t written, set = 0;
    tl_kv_pool *p = new_pool(shape(1, 4, 2, 2, 3));
    uint32_t id = take(p);
    CHECK_EQ(tl_kv_block_bytes(p), P);
    memset(values_of(p, id), 0xFF, P);
    CHECK_STATUS(tl_kv_set_fill(p, id, 1), TL_OK);
    CHECK_STATUS(tl_kv_export(p, &id, 1, buf, sizeof buf, &written), TL_OK);
    for (size_t i = 0; i < P; i++) {
        CHECK_EQ(buf[40 + i], i % PLANE < ROW ? 0xFF : 0);
        set += buf[40 + i] == 0xFF;
    }
    CHECK_EQ(set, 48);

    /* Nor does an import bring them back: the receiver's export is the same. */
    uint8_t again[sizeof buf];
    drop(p, id);
    CHECK_STATUS(tl_kv_import(p, buf, sizeof buf, &id), TL_OK);
    CHECK_STATUS(tl_kv_export(p, &id, 1, again, sizeof again, &written), TL_OK);
    CHECK_BYTES(again, buf, sizeof buf);
    end_pool(p);
}

/* However long the padding is, it is zeros: planes of 20,000 bytes with one row filled. */
CASE(long_padding_is_zeros)
{
    enum { B = 100, D = 100, PLANE = B * D * 2, ROW = D * 2 };
    tl_kv_pool *p = new_pool(shape(1, B, 1, 1, D));
    uint32_t id = take(p);
    memset(values_of(p, id), 0xFF, 2 * PLANE);
    CHECK_STATUS(tl_kv_set_fill(p, id, 1), TL_OK);
    size_t written, size = tl_kv_export_bytes(p, 1);
    uint8_t *buf = malloc(size);
    CHECK(buf != NULL);
    memset(buf, 0xEE, size);
    CHECK_STATUS(tl_kv_export(p, &id, 1, buf, size, &written), TL_OK);
    size_t wrong = 0;
    for (size_t i = 0; i < 2 * PLANE; i++) wrong += buf[28 + 12 + i] != (i % PLANE < ROW ? 0xFF : 0);
    uint8_t crc[4];
    put_le(crc, slow_crc32c(buf, size - 4, 0), 4);
    int crc_differs = memcmp(crc, buf + size - 4, 4);
    free(buf);
    CHECK_EQ(written, size);
    CHECK_EQ(wrong, 0);
    CHECK_EQ(crc_differs, 0);
    end_pool(p);
}

/* The CRC of 0 to 1024 bytes at every offset from a 16-byte boundary is the one
 * computed bit by bit. */
CASE(crc_at_every_offset_and_length)
{
    enum { MOST = 1024 };
    for (size_t offset = 0; offset < 16; offset++) {
        uint8_t *memory = aligned_alloc(16, 16 + MOST + 16), *data = memory + offset;
        CHECK(memory != NULL);
        for (size_t i = 0; i < MOST; i++) data[i] = (uint8_t)(i * 151 + (i >> 8) + offset);
        uint32_t expected = 0;
        for (size_t n = 0; n <= MOST; n++) {
            CHECK_EQ(tl_crc32c(data, n, 0), expected);
            expected = slow_crc32c(data + n, n < MOST, expected);
        }
        free(memory);
    }
}

/* Blocks of 4 to 1024 bytes go out to and come in from every offset, right up to the
 * end of the memory. */
CASE(export_and_import_at_every_offset)
{
    for (uint32_t D = 1; D <= 256; D++) {
        const tl_kv_cfg cfg = D % 2 ? shape(2, 1, 1, 1, D) : shape(2, 2, 1, 1, D / 2);
        const uint32_t fill = D % 4 ? cfg.block_tokens : 1;
        const size_t size = 32 + 12 + 4 * D;
        uint8_t expected[32 + 12 + 1024];
        uint16_t values[512];
        size_t written;
        tl_kv_pool *p = new_pool(cfg);
        uint32_t id = take(p), came = 99;
        put_values(p, id, D);
        memcpy(values, values_of(p, id), 4 * D);
        CHECK_STATUS(tl_kv_set_fill(p, id, fill), TL_OK);
        const wire_block block = {0, fill, values};
        CHECK_EQ(write_envelope(expected, &cfg, &block, 1), size);
        for (size_t offset = 0; offset < 16; offset++) {
            uint8_t *memory = malloc(offset + size);
            CHECK(memory != NULL);
            CHECK_STATUS(tl_kv_export(p, &id, 1, memory + offset, size, &written), TL_OK);
            CHECK_BYTES(memory + offset, expected, size);
            CHECK_STATUS(tl_kv_import(p, memory + offset, size, &came), TL_OK);
            CHECK_EQ(tl_kv_fill(p, came), fill);
            for (int is_v = 0; is_v < 2; is_v++)
                CHECK_BYTES(tl_kv_block_ptr(p, came, 0, is_v), values + is_v * D, 2 * fill * cfg.head_dim);
            drop(p, came);
            free(memory);
        }
        end_pool(p);
    }
}

CASES(a_refused_export_touches_nothing, an_export_of_no_blocks_is_32_bytes, an_id_may_stand_twice,
      old_bytes_do_not_leak_through_padding, long_padding_is_zeros, crc_at_every_offset_and_length,
      export_and_import_at_every_offset)
