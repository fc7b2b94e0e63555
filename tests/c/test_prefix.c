/* test_prefix.c - the prefix index over a pool's life: churn, chains, block 0, key
 * spaces. */

#include "pools.h"

#include <stdlib.h>

#ifndef CHURN_STEPS /* fewer where the machine is emulated */
#define CHURN_STEPS 1000000u
#endif

/* Registers `steps` different hashes, one after another, in a pool of n blocks. */
static void churn(uint32_t n, uint32_t steps)
{
    tl_kv_pool *p = new_pool(worked_shape(n));
    const size_t allocs = kit_allocs();
    uint32_t id;
    for (uint64_t step = 1; step <= steps; step++) {
        tl_status status = tl_kv_alloc(p, 1, &id);
        if (status == TL_OK) status = tl_kv_set_fill(p, id, 2);
        if (status == TL_OK) status = tl_kv_register(p, id, step * 0x9E3779B97F4A7C15u);
        if (status == TL_OK) status = tl_kv_unref(p, id);
        if (status != TL_OK) CHECK_STATUS(status, TL_OK);
    }
    CHECK_EQ(kit_allocs(), allocs);
    CHECK_COUNTS(p, 0, 0, n);
    CHECK_EVICTIONS(p, steps - n);
    for (uint64_t step = steps; step > steps - n; step--) drop(p, find(p, step * 0x9E3779B97F4A7C15u));
    CHECK_QUIET(tl_kv_lookup(p, (uint64_t)(steps - n) * 0x9E3779B97F4A7C15u, &id), TL_ENOTFOUND);
    end_pool(p);
}

/* A million fresh hashes in pools of a few blocks: always TL_OK, no allocation after
 * create, all but the last N evicted, and those found. */
CASE(churn_in_small_pools_allocates_nothing)
{
    const uint32_t sizes[] = {1, 2, 7, 14, 15, 28, 56, 112};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) churn(sizes[i], CHURN_STEPS);
}

/* The same where N is exactly 7/8 of a power of two, which a table may be full at. */
CASE(churn_at_seven_eighths_allocates_nothing)
{
    churn(896, CHURN_STEPS);
    churn(917504, 917504 + CHURN_STEPS);
}

/* ---- chains -------------------------------------------------------------- */

/* Holds the blocks of the longest prefix of a chain that is there. Returns: how many. */
static uint32_t match(tl_kv_pool *p, const uint64_t *chain, uint32_t n, uint32_t *ids)
{
    uint32_t i = 0;
    while (i < n && tl_kv_lookup(p, chain[i], &ids[i]) == TL_OK) i++;
    return i;
}

/* A pool of 3 with a chain of three registered blocks, 0 1 2, held. */
static tl_kv_pool *with_chain(uint64_t *chain)
{
    tl_kv_pool *p = new_pool(worked_shape(3));
    const uint32_t toks[6] = {1, 2, 3, 4, 5, 6};
    for (uint32_t i = 0; i < 3; i++) {
        chain[i] = tl_kv_block_hash(i ? chain[i - 1] : 0, toks + 2 * i, 2);
        CHECK_EQ(take_registered(p, chain[i]), i);
    }
    return p;
}

static size_t largest;

static void *note_size(void *user, size_t n, size_t align)
{
    (void)user;
    if (n > largest) largest = n;
    return aligned_alloc(align, (n + align - 1) / align * align);
}

static void give_back(void *user, void *p)
{
    (void)user;
    free(p);
}

/* Where N is exactly 7/8 of a table's capacity the index is twice as large: 17 bytes a
 * slot, of the smallest blocks the largest thing in the pool. */
CASE(an_index_has_slack)
{
    const tl_allocator noting = {note_size, give_back, NULL};
    const uint32_t sizes[] = {896, 917504};
    for (int i = 0; i < 2; i++) {
        largest = 0;
        CHECK_STATUS(tl_set_allocator(&noting), TL_OK);
        tl_kv_pool *p;
        tl_kv_cfg cfg = {sizes[i], 1, 1, 1, 1, TL_F16, TL_KV_FORMAT_V1};
        CHECK_STATUS(tl_kv_pool_create(&cfg, &p), TL_OK);
        tl_kv_pool_destroy(p);
        CHECK_EQ(largest, (size_t)sizes[i] / 7 * 8 * 2 * 17);
    }
}

/* A chain released tail first loses its tail first, and the same prompt still matches
 * the two blocks before. */
CASE(a_chain_released_tail_first_keeps_its_head)
{
    uint64_t chain[3];
    uint32_t ids[3];
    tl_kv_pool *p = with_chain(chain);
    for (uint32_t id = 3; id-- > 0;) drop(p, id);
    CHECK_EQ(take(p), 2);
    CHECK_EQ(match(p, chain, 3, ids), 2);
    CHECK(ids[0] == 0 && ids[1] == 1);
    end_pool(p);
}

/* Behind a hole nothing counts: with the first block evicted the match is empty and
 * holds nothing. */
CASE(a_match_ends_at_the_first_hole)
{
    uint64_t chain[3];
    uint32_t ids[3];
    tl_kv_pool *p = with_chain(chain);
    for (uint32_t id = 0; id < 3; id++) drop(p, id);
    CHECK_EQ(take(p), 0);
    CHECK_EQ(match(p, chain, 3, ids), 0);
    CHECK_COUNTS(p, 0, 1, 2);
    CHECK_EQ(find(p, chain[1]), 1); /* it is there, and only its parent is missing */
    end_pool(p);
}

/* Block 0 is a block like any other: handed out, registered, found, copied, exported. */
CASE(id_0_is_a_block)
{
    uint8_t buf[WORKED_BYTES];
    size_t written;
    uint32_t id = 99, copy = 99;
    tl_kv_pool *p = new_pool(worked_shape(2));
    CHECK_EQ(take_worked(p), 0);
    drop(p, 0);
    CHECK_STATUS(tl_kv_lookup(p, H0, &id), TL_OK);
    CHECK_EQ(id, 0);
    tl_kv_ref(p, 0);
    CHECK_STATUS(tl_kv_cow(p, 0, &copy), TL_OK);
    CHECK_EQ(copy, 1);
    CHECK_STATUS(tl_kv_register(p, copy, H0), TL_EBUSY); /* 0 is a holder */
    CHECK_STATUS(tl_kv_export(p, &id, 1, buf, sizeof buf, &written), TL_OK);
    CHECK_BYTES(buf, worked_envelope, WORKED_BYTES);
    CHECK(tl_kv_block_ptr(p, 0, 0, 0) != NULL);
    drop(p, 0), drop(p, copy);
    id = 99;
    CHECK_STATUS(tl_kv_alloc(p, 1, &id), TL_OK);
    CHECK_EQ(id, 1);
    CHECK_STATUS(tl_kv_alloc(p, 1, &id), TL_OK);
    CHECK_EQ(id, 0); /* evicted */
    drop(p, 1);
    CHECK_STATUS(tl_kv_import(p, worked_envelope, WORKED_BYTES, &id), TL_OK);
    drop(p, id), drop(p, 0);
    CHECK_STATUS(tl_kv_alloc(p, 1, &id), TL_OK);
    CHECK_EQ(id, 0); /* freed */
    end_pool(p);
}

/* Another root than 0 opens a key space of its own: no block of one is found from the
 * other. */
CASE(roots_separate_key_spaces)
{
    const uint32_t toks[2] = {1, 2};
    uint32_t id;
    tl_kv_pool *p = new_pool(worked_shape(4));
    for (uint64_t root = 0; root < 4; root++) {
        CHECK_QUIET(tl_kv_lookup(p, tl_kv_block_hash(root, toks, 2), &id), TL_ENOTFOUND);
        take_registered(p, tl_kv_block_hash(root, toks, 2));
    }
    for (uint32_t root = 0; root < 4; root++) CHECK_EQ(find(p, tl_kv_block_hash(root, toks, 2)), root);
    end_pool(p);
}

CASES(churn_in_small_pools_allocates_nothing, churn_at_seven_eighths_allocates_nothing,
      an_index_has_slack,
      a_chain_released_tail_first_keeps_its_head, a_match_ends_at_the_first_hole, id_0_is_a_block,
      roots_separate_key_spaces)
