/* fuzz_import.c - any bytes to tl_kv_import: refused without a trace, or whole. */

#define SEALED_BLOCK_BYTES 16
#include "sealed.h"

#define HELD_HASH 0xA91AB0C1027B9366u /* tokens 1 2: the worked envelope's */

enum { BLOCKS = 5, B = 2, D = 2 };

/* One block held, one cached under a hash, three free. */
static tl_kv_pool *busy_pool(void)
{
    tl_kv_pool *p = fuzz_pool(BLOCKS, B, D);
    uint32_t ids[2];
    REQUIRE(tl_kv_alloc(p, 2, ids) == TL_OK);
    REQUIRE(tl_kv_set_fill(p, 1, B) == TL_OK);
    REQUIRE(tl_kv_register(p, 1, HELD_HASH) == TL_OK);
    REQUIRE(tl_kv_unref(p, 1) == TL_OK);
    return p;
}

/* The reader's rules in the order in which they are checked. */
static tl_status expected(const uint8_t *e, size_t size)
{
    if (size < HEADER + TRAILER || memcmp(e, "TLKV", 4) != 0) return TL_EFORMAT;
    if (get_le(e + 4, 2) != 1 || get_le(e + 6, 2) != 1) return TL_EFORMAT;
    const uint64_t n = get_le(e + 8, 4);
    const uint64_t dims[4] = {get_le(e + 12, 4), get_le(e + 16, 4), get_le(e + 20, 4), get_le(e + 24, 4)};
    const uint64_t much = (uint64_t)1 << 31; /* more than any input has, and n times that is no overflow */
    uint64_t payload = 4;
    for (int i = 0; i < 4; i++) payload = dims[i] == 0 || payload <= much / dims[i] ? payload * dims[i] : much;
    if (!dims[0] || !dims[1] || !dims[2] || !dims[3]) payload = 0;
    const uint64_t implied = HEADER + TRAILER + n * (RECORD_HEADER + payload);
    if (implied != size) return TL_EFORMAT;
    if (get_le(e + size - TRAILER, 4) != plain_crc32c(e, size - TRAILER)) return TL_EFORMAT;
    if (dims[0] != B || dims[1] != 1 || dims[2] != 1 || dims[3] != D) return TL_ESHAPE;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *record = e + HEADER + i * (RECORD_HEADER + SEALED_BLOCK_BYTES);
        const uint64_t n_tokens = get_le(record + 8, 4);
        if (n_tokens < 1 || n_tokens > B || (n_tokens < B && get_le(record, 8) != 0)) return TL_EFORMAT;
    }
    return n > BLOCKS - 1 ? TL_EFULL : TL_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t ids[BLOCKS] = {99, 99, 99, 99, 99};
    tl_kv_pool *p = busy_pool();
    const uint64_t before = tl_kv_digest(p), bytes_before = tl_kv_slab_digest(p);
    tl_kv_stats stats;
    tl_set_last_error(NULL);
    const tl_status status = tl_kv_import(p, data, size, ids);
    REQUIRE(status == (data ? expected(data, size) : TL_EINVAL));
    REQUIRE_INTACT(p);
    tl_kv_stats_get(p, &stats);
    if (status == TL_OK) {
        REQUIRE(stats.used == 1 + get_le(data + 8, 4));
        REQUIRE(*tl_last_error() == '\0');
    } else {
        REQUIRE(strncmp(tl_last_error(), "tl_kv_import: ", 14) == 0);
        REQUIRE(tl_kv_digest(p) == before && tl_kv_slab_digest(p) == bytes_before);
        for (int i = 0; i < BLOCKS; i++) REQUIRE(ids[i] == 99);
    }
    tl_kv_pool_destroy(p);
    return 0;
}
