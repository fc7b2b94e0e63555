/* test_poison.c - in builds with AddressSanitizer a block that nobody holds any more
 * cannot be read through an old pointer; in other builds nothing is poisoned. */

#include "kv_pool_impl.h"
#include "pools.h"

#include <stdlib.h>

#ifdef TL_KV_ASAN
enum { POISONS = 1 };
static int poisoned(const tl_kv_pool *p, uint32_t id)
{
    return __asan_region_is_poisoned(tl_kv_block_ptr(p, id, 0, 0), 1) != NULL &&
           __asan_region_is_poisoned((char *)tl_kv_block_ptr(p, id + 1, 0, 0) - 1, 1) != NULL;
}
static int readable(const tl_kv_pool *p, uint32_t id)
{
    return __asan_region_is_poisoned(tl_kv_block_ptr(p, id, 0, 0), tl_kv_block_bytes(p)) == NULL;
}
#else
enum { POISONS = 0 };
static int poisoned(const tl_kv_pool *p, uint32_t id) { return (void)p, (void)id, 0; }
static int readable(const tl_kv_pool *p, uint32_t id) { return (void)p, (void)id, 1; }
#endif

/* Freed, cached and given up by a copy: poisoned. Never used, held, and held again by
 * an allocation, a lookup or an import: readable. */
CASE(only_blocks_given_up_are_poisoned)
{
    uint32_t out;
    tl_kv_pool *p = new_pool(worked_shape(4)); /* block 3 stays out of it */
    for (uint32_t id = 0; id < 4; id++) CHECK(readable(p, id));

    uint32_t named = take_worked(p), plain = take(p);
    drop(p, plain);
    CHECK_EQ(poisoned(p, plain), POISONS);
    CHECK(readable(p, named) && readable(p, 2));
    CHECK_EQ(take(p), plain);
    CHECK(readable(p, plain));

    tl_kv_ref(p, named);
    drop(p, named);
    CHECK(readable(p, named));
    drop(p, named);
    CHECK_EQ(poisoned(p, named), POISONS);
    CHECK_EQ(find(p, H0), named);
    CHECK(readable(p, named));

    tl_kv_ref(p, plain);
    CHECK_STATUS(tl_kv_cow(p, plain, &out), TL_OK);
    CHECK(readable(p, plain) && readable(p, out));
    drop(p, out), drop(p, named);
    CHECK_EQ(poisoned(p, out), POISONS);
    CHECK_STATUS(tl_kv_import(p, worked_envelope, WORKED_BYTES, &out), TL_OK);
    CHECK(readable(p, out) && readable(p, 3));

    take(p), take(p); /* the last free one, and the cached one's place */
    CHECK(readable(p, named));
    drop(p, named);
    CHECK_EQ(poisoned(p, named), POISONS);
    end_pool(p);
}

/* Memory for the slab that outlives the pool. */
static _Alignas(64) unsigned char home[4 * 16];

static void *alloc_at_home(void *user, size_t n, size_t align)
{
    (void)user;
    return n == sizeof home && align == 64 ? home : aligned_alloc(align, (n + align - 1) / align * align);
}

static void free_elsewhere(void *user, void *block)
{
    (void)user;
    if (block != home) free(block);
}

/* A destroyed pool leaves its memory readable to whoever has it next. */
CASE(destroy_lifts_the_poison)
{
    const tl_allocator at_home = {alloc_at_home, free_elsewhere, NULL};
    uint32_t ids[4];
    CHECK_STATUS(tl_set_allocator(&at_home), TL_OK);
    tl_kv_pool *p = new_pool(worked_shape(4));
    CHECK(tl_kv_block_ptr(p, 0, 0, 0) == home);
    CHECK_STATUS(tl_kv_alloc(p, 4, ids), TL_OK);
    memset(home, 0x5A, sizeof home);
    for (uint32_t id = 0; id < 3; id++) drop(p, id);
    CHECK_EQ(poisoned(p, 1), POISONS);
    end_pool(p);
    for (size_t i = 0; i < sizeof home; i++) CHECK_EQ(home[i], 0x5A);
}

CASES(only_blocks_given_up_are_poisoned, destroy_lifts_the_poison)
