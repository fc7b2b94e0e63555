/* fuzz_roundtrip.c - what tl_kv_import accepts can be used, and goes out as it came in. */

#define SEALED_BLOCK_BYTES 16
#include "sealed.h"

enum { BLOCKS = 8, B = 2, D = 2, RECORD = RECORD_HEADER + SEALED_BLOCK_BYTES };

/* Shares every block, writes to copies and gives all of that up again. */
static void use(tl_kv_pool *p, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t copy;
        tl_kv_ref(p, ids[i]);
        const tl_status status = tl_kv_cow(p, ids[i], &copy);
        REQUIRE(status == (n == BLOCKS ? TL_EFULL : TL_OK));
        if (status == TL_OK) {
            REQUIRE(copy != ids[i] && tl_kv_fill(p, copy) == tl_kv_fill(p, ids[i]));
            REQUIRE(memcmp(tl_kv_block_ptr(p, copy, 0, 0), tl_kv_block_ptr(p, ids[i], 0, 0), SEALED_BLOCK_BYTES) == 0);
            memset(tl_kv_block_ptr(p, copy, 0, 0), 0x5A, SEALED_BLOCK_BYTES);
        }
        REQUIRE(tl_kv_unref(p, status == TL_OK ? copy : ids[i]) == TL_OK);
        REQUIRE_INTACT(p);
    }
}

/* The first record of a hash is registered, so that a lookup finds its block. */
static void look_up(tl_kv_pool *p, const uint8_t *e, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t hash = get_le(e + HEADER + i * RECORD, 8);
        uint32_t first = 0, found = 99;
        while (get_le(e + HEADER + first * RECORD, 8) != hash) first++;
        REQUIRE(tl_kv_lookup(p, hash, &found) == (hash ? TL_OK : TL_ENOTFOUND));
        REQUIRE(found == (hash ? ids[first] : 99));
        if (hash) REQUIRE(tl_kv_unref(p, found) == TL_OK);
    }
}

/* The envelope that comes out: that of what came in, without the names of private
 * copies and whatever stood past the fill. */
static void expect(uint8_t *out, const uint8_t *in, size_t size, uint32_t n)
{
    memcpy(out, in, size);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *record = out + HEADER + i * RECORD;
        for (uint32_t earlier = 0; earlier < i; earlier++)
            if (get_le(in + HEADER + earlier * RECORD, 8) == get_le(record, 8)) put_le(record, 0, 8);
        if (get_le(record + 8, 4) == 1) /* of two positions, in K and in V */
            for (int plane = 0; plane < 2; plane++) memset(record + RECORD_HEADER + plane * 8 + 4, 0, 4);
    }
    put_le(out + size - TRAILER, plain_crc32c(out, size - TRAILER), TRAILER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t wanted[HEADER + BLOCKS * RECORD + TRAILER], out[sizeof wanted];
    uint32_t ids[BLOCKS], again[BLOCKS];
    size_t written;
    if (size > sizeof wanted) return 0;
    tl_kv_pool *p = fuzz_pool(BLOCKS, B, D), *other = fuzz_pool(BLOCKS, B, D);
    if (tl_kv_import(p, data, size, ids) == TL_OK) {
        const uint32_t n = (uint32_t)get_le(data + 8, 4);
        use(p, ids, n);
        look_up(p, data, ids, n);
        expect(wanted, data, size, n);
        REQUIRE(tl_kv_export(p, ids, n, out, sizeof out, &written) == TL_OK);
        REQUIRE(written == size && memcmp(out, wanted, size) == 0);

        REQUIRE(tl_kv_import(other, out, written, again) == TL_OK);
        REQUIRE(tl_kv_export(other, again, n, out, sizeof out, &written) == TL_OK);
        REQUIRE(written == size && memcmp(out, wanted, size) == 0);
        for (uint32_t i = 0; i < n; i++) REQUIRE(tl_kv_unref(p, ids[i]) == TL_OK);
        REQUIRE_INTACT(p);
        REQUIRE_INTACT(other);
    }
    tl_kv_pool_destroy(p);
    tl_kv_pool_destroy(other);
    return 0;
}
