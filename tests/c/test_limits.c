/* test_limits.c - the ends of every range: NULL, ids and layers just out of range, sizes
 * that wrap, counters at their maximum, a slab that nobody may touch early. */

#define _DEFAULT_SOURCE /* mmap without a file */

#include "kv_pool_impl.h"
#include "pools.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Every function answers NULL with a message of its own or with its neutral value. */
CASE(null_is_answered_by_every_function)
{
    tl_kv_cfg cfg, zero_cfg = {0};
    tl_kv_stats stats, zero_stats = {0};
    uint32_t id = 99;
    size_t written = 77;
    tl_kv_pool *p = new_pool(worked_shape(2));
    CHECK_REFUSED(NULL, tl_kv_pool_create(NULL, NULL), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_alloc(NULL, 1, &id), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_alloc(NULL, 0, NULL), TL_EINVAL);
    CHECK_COMPLAINS(NULL, tl_kv_ref(NULL, 0));
    CHECK_REFUSED(NULL, tl_kv_unref(NULL, 0), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_cow(NULL, 0, &id), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_set_fill(NULL, 0, 0), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_register(NULL, 0, H0), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_lookup(NULL, H0, &id), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_lookup(p, H0, NULL), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_lookup(p, 0, NULL), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_export(NULL, NULL, 0, NULL, 0, &written), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_export(p, NULL, 0, NULL, 0, NULL), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_import(NULL, worked_envelope, 60, &id), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_import(p, NULL, 60, &id), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_import(p, NULL, 0, &id), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_import(p, worked_envelope, 60, NULL), TL_EINVAL);
    CHECK_COMPLAINS(NULL, tl_kv_block_ptr(NULL, 0, 0, 0));
    CHECK(tl_kv_block_ptr(NULL, 0, 0, 0) == NULL);
    CHECK_EQ(id, 99);
    CHECK_EQ(written, 77);

    CHECK_EQ(tl_kv_fill(NULL, 0), 0);
    CHECK_EQ(tl_kv_block_bytes(NULL), 0);
    CHECK_EQ(tl_kv_export_bytes(NULL, 1), 0);
    memset(&cfg, 0xEE, sizeof cfg), memset(&stats, 0xEE, sizeof stats);
    tl_kv_pool_cfg(NULL, &cfg);
    CHECK_BYTES(&cfg, &zero_cfg, sizeof cfg);
    tl_kv_stats_get(NULL, &stats);
    CHECK_BYTES(&stats, &zero_stats, sizeof stats);
    tl_kv_pool_cfg(p, NULL), tl_kv_stats_get(p, NULL);
    tl_kv_pool_cfg(NULL, NULL), tl_kv_stats_get(NULL, NULL);
    tl_kv_pool_destroy(NULL);
    end_pool(p);
}

/* Id N and id -1 are refused by every call that takes an id, layer L and -1 too, fill
 * B+1 and -1; is_v of any value stays in its layer. */
CASE(both_ends_of_every_range)
{
    tl_kv_pool *p = new_pool(shape(2, 3, 2, 1, 2));
    const uint32_t bad[] = {2, UINT32_MAX};
    uint32_t id = take(p), out = 99;
    size_t written = 77;
    uint8_t buf[200];
    for (size_t i = 0; i < 2; i++) {
        CHECK_COMPLAINS(p, tl_kv_ref(p, bad[i]));
        CHECK_REFUSED(p, tl_kv_unref(p, bad[i]), TL_EINVAL);
        CHECK_REFUSED(p, tl_kv_cow(p, bad[i], &out), TL_EINVAL);
        CHECK_REFUSED(p, tl_kv_set_fill(p, bad[i], 1), TL_EINVAL);
        CHECK_REFUSED(p, tl_kv_register(p, bad[i], H0), TL_EINVAL);
        CHECK_REFUSED(p, tl_kv_export(p, &bad[i], 1, buf, sizeof buf, &written), TL_EINVAL);
        CHECK_EQ(tl_kv_fill(p, bad[i]), 0);
        CHECK_COMPLAINS(p, tl_kv_block_ptr(p, bad[i], 0, 0));
        CHECK_COMPLAINS(p, tl_kv_block_ptr(p, id, bad[i], 0)); /* L is 2 as well */
        CHECK(tl_kv_block_ptr(p, bad[i], 0, 0) == NULL);
        CHECK(tl_kv_block_ptr(p, id, bad[i], 0) == NULL);
    }
    CHECK_REFUSED(p, tl_kv_set_fill(p, id, 4), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_set_fill(p, id, UINT32_MAX), TL_EINVAL);
    for (uint32_t fill = 0; fill <= 3; fill++) {
        CHECK_QUIET(tl_kv_set_fill(p, id, fill), TL_OK);
        CHECK_EQ(tl_kv_fill(p, id), fill);
    }
    const int any_v[] = {1, 2, -1, INT32_MAX, INT32_MIN};
    for (uint32_t layer = 0; layer < 2; layer++) {
        char *k = tl_kv_block_ptr(p, id, layer, 0);
        for (size_t i = 0; i < 5; i++) CHECK_EQ((char *)tl_kv_block_ptr(p, id, layer, any_v[i]) - k, 12);
    }
    CHECK_EQ(out, 99);
    CHECK_EQ(written, 77);
    end_pool(p);
}

/* A count at its maximum takes no further holder, by ref or lookup, and nothing wraps;
 * a writer still gets its copy, which gives one back. */
CASE(a_reference_count_never_wraps)
{
    uint32_t out = 99;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t id = take_worked(p);
    p->blocks[id].ref = UINT32_MAX - 1;
    tl_kv_ref(p, id);
    CHECK_EQ(p->blocks[id].ref, UINT32_MAX);
    CHECK_COMPLAINS(p, tl_kv_ref(p, id));
    CHECK_REFUSED(p, tl_kv_lookup(p, H0, &out), TL_EINVAL);
    CHECK_EQ(out, 99);
    CHECK_QUIET(tl_kv_import(p, worked_envelope, 60, &out), TL_OK); /* a private copy */
    CHECK_EQ(p->blocks[id].ref, UINT32_MAX);
    drop(p, out);

    CHECK_QUIET(tl_kv_cow(p, id, &out), TL_OK);
    CHECK(out != id);
    CHECK_EQ(p->blocks[id].ref, UINT32_MAX - 1);
    CHECK_EQ(find(p, H0), id);
    CHECK_REFUSED(p, tl_kv_lookup(p, H0, &out), TL_EINVAL);
    drop(p, id);
    CHECK_EQ(p->blocks[id].ref, UINT32_MAX - 1);
    CHECK_COUNTS(p, 1, 2, 0);
    end_pool(p);
}

/* The eviction count stays at its maximum, whichever call evicts. */
CASE(evictions_saturate)
{
    uint32_t out;
    tl_kv_pool *p = new_pool(worked_shape(2));
    uint32_t shared = take(p);
    p->evictions = UINT32_MAX - 1;
    for (int round = 0; round < 4; round++) {
        drop(p, take_registered(p, 1 + (uint64_t)round)); /* evicts, but the first time */
        CHECK_EVICTIONS(p, round == 0 ? UINT32_MAX - 1 : UINT32_MAX);
    }
    tl_kv_ref(p, shared);
    CHECK_STATUS(tl_kv_cow(p, shared, &out), TL_OK);
    CHECK_EVICTIONS(p, UINT32_MAX);
    drop(p, out);
    drop(p, take_registered(p, 9));
    CHECK_STATUS(tl_kv_import(p, worked_envelope, 60, &out), TL_OK);
    CHECK_EVICTIONS(p, UINT32_MAX);
    end_pool(p);
}

/* A slab whose size wraps around size_t, at any factor, is TL_EINVAL before memory is
 * asked for; the largest that fit are asked for, and TL_ENOMEM where there is none. */
CASE(a_pool_larger_than_size_t_is_refused)
{
    const uint32_t M = UINT32_MAX, h = 0x80000000u, q = 0x10000;
    const tl_kv_cfg wraps[] = {
        shape(M, M, M, M, M), shape(1, M, M, M, M), shape(M, 1, M, M, 1),    /* far too much */
        shape(1, h, h, 1, 1), shape(1, 1, h, h, 1),    shape(1, 1, 1, h, h), /* a block: 2^64 */
        shape(1, q, q, q, q), shape(1, h, q, q, 2),                          /* more than 2^64, 0 modulo */
        shape(h, q, q, 1, 1), shape(h, h, 1, 1, 1),    shape(q, q, q, q, 1), /* the slab: 2^64 and more */
        shape(h, h, 2, 1, 1), shape(0x40000000u, h, 2, 1, 1),
    };
    const tl_kv_cfg fits[] = {shape(q, 16, 32, 8, 128), shape(1, q, q, 256, 64)}; /* 128 GiB, 2^48 */
    size_t asked = 0;
    kit_fail_at(0, 1);
    for (size_t i = 0; i < sizeof wraps / sizeof wraps[0]; i++) {
        tl_kv_pool *p = (tl_kv_pool *)(void *)&asked;
        CHECK_REFUSED(NULL, tl_kv_pool_create(&wraps[i], &p), TL_EINVAL);
        CHECK(p == NULL);
        CHECK_EQ(kit_allocs(), 0);
    }
    for (size_t i = 0; i < 2; i++) {
        tl_kv_pool *p = (tl_kv_pool *)(void *)&asked;
        CHECK_REFUSED(NULL, tl_kv_pool_create(&fits[i], &p), sizeof(size_t) == 8 ? TL_ENOMEM : TL_EINVAL);
        CHECK(p == NULL);
        CHECK_EQ(kit_allocs() > asked, sizeof(size_t) == 8);
        asked = kit_allocs();
    }
    kit_fail_never();
}

/* An envelope whose size wraps around is SIZE_MAX bytes, and export answers TL_EINVAL. */
CASE(an_envelope_larger_than_size_t_is_refused)
{
    uint32_t ids[3];
    uint8_t buf[200];
    size_t written = 77;
    tl_kv_pool *p = new_pool(worked_shape(3));
    const size_t block_bytes = p->block_bytes;
    CHECK_STATUS(tl_kv_alloc(p, 3, ids), TL_OK);
    for (uint32_t i = 0; i < 3; i++) CHECK_STATUS(tl_kv_set_fill(p, i, 2), TL_OK);
    const size_t wraps[] = {SIZE_MAX,          SIZE_MAX - 11,     SIZE_MAX / 2 + 1, SIZE_MAX / 3,
                            SIZE_MAX / 3 - 11, SIZE_MAX / 3 - 22};
    for (size_t i = 0; i < 6; i++) {
        p->block_bytes = wraps[i]; /* a pool of such blocks cannot be had */
        CHECK_COMPLAINS(p, tl_kv_export_bytes(p, 3));
        CHECK_EQ(tl_kv_export_bytes(p, 3), SIZE_MAX);
        CHECK_REFUSED(p, tl_kv_export(p, ids, 3, NULL, 0, &written), TL_EINVAL);
        CHECK_REFUSED(p, tl_kv_export(p, ids, 3, buf, sizeof buf, &written), TL_EINVAL);
    }
    CHECK_EQ(written, 77);
    p->block_bytes = (SIZE_MAX - 32) / 3 - 13; /* just fits */
    tl_set_last_error("earlier");
    CHECK_EQ(tl_kv_export_bytes(p, 3), 32 + 3 * ((SIZE_MAX - 32) / 3 - 1));
    CHECK_STR(tl_last_error(), "earlier");
    CHECK_REFUSED(p, tl_kv_export(p, ids, 3, buf, sizeof buf, &written), TL_EFULL);
    CHECK_EQ(written, 32 + 3 * ((SIZE_MAX - 32) / 3 - 1));
    p->block_bytes = block_bytes;
#if SIZE_MAX > UINT32_MAX
    CHECK_EQ(tl_kv_export_bytes(p, UINT32_MAX), 32 + (size_t)UINT32_MAX * 28);
#else
    CHECK_EQ(tl_kv_export_bytes(p, UINT32_MAX), SIZE_MAX);
#endif
    end_pool(p);
}

/* Over an index that has to grow and cannot, register passes TL_ENOMEM on and changes
 * nothing, and import keeps its block as a private copy. */
CASE(an_index_that_cannot_grow_registers_nothing)
{
    enum { KEYS = 14 }; /* what a map of no planned size holds */
    uint32_t id, came = 99;
    tl_kv_pool *p = new_pool(worked_shape(KEYS + 2));
    tl_map_destroy(p->index);
    CHECK_STATUS(tl_map_create(0, &p->index), TL_OK);
    for (uint64_t hash = 1; hash <= KEYS; hash++) take_registered(p, hash);
    id = take(p);
    CHECK_STATUS(tl_kv_set_fill(p, id, 2), TL_OK);
    kit_fail_at(0, 1);
    CHECK_REFUSED(p, tl_kv_register(p, id, H1), TL_ENOMEM);
    CHECK_STATUS(tl_kv_import(p, worked_envelope, WORKED_BYTES, &came), TL_OK);
    CHECK(kit_failed());
    kit_fail_never();
    CHECK_EQ(tl_kv_fill(p, came), 2);
    CHECK_STATUS(tl_kv_set_fill(p, came, 1), TL_OK);
    CHECK_STATUS(tl_kv_lookup(p, H0, &came), TL_ENOTFOUND);
    CHECK_STATUS(tl_kv_register(p, id, H1), TL_OK); /* now it grows */
    CHECK_EQ(find(p, H1), id);
    end_pool(p);
}

/* Block 0's address and n_blocks * block_bytes span the pool: 64-byte aligned, every
 * byte writable once the blocks are held. */
CASE(the_slab_is_aligned_and_contiguous)
{
    const tl_kv_cfg shapes[] = {shape(1, 1, 1, 1, 1), shape(7, 3, 1, 1, 1), shape(5, 16, 2, 2, 8),
                                shape(33, 1, 3, 1, 5)};
    const size_t block_bytes[] = {4, 12, 2048, 60};
    for (size_t i = 0; i < 4; i++) {
        const uint32_t n = shapes[i].n_blocks;
        uint32_t ids[33];
        tl_kv_pool *p = new_pool(shapes[i]);
        const size_t bytes = tl_kv_block_bytes(p);
        CHECK_EQ(bytes, block_bytes[i]);
        char *base = tl_kv_block_ptr(p, 0, 0, 0);
        CHECK_EQ((uintptr_t)base % 64, 0);
        for (uint32_t id = 0; id < n; id++)
            CHECK_EQ((char *)tl_kv_block_ptr(p, id, 0, 0) - base, (ptrdiff_t)(id * bytes));
        CHECK_STATUS(tl_kv_alloc(p, n, ids), TL_OK);
        memset(base, 0x5A, n * bytes);
        CHECK_EQ(base[n * bytes - 1], 0x5A);
        end_pool(p);
    }
}

/* ---- a slab that nobody may touch ---------------------------------------- */

#define SLAB_BYTES ((size_t)1 << (sizeof(size_t) == 8 ? 30 : 26))

static void *slab_home;

/* Memory that faults at the first access, for the slab; the heap for the rest. */
static void *alloc_no_access(void *user, size_t n, size_t align)
{
    (void)user;
    if (n < SLAB_BYTES) return aligned_alloc(align, (n + align - 1) / align * align);
    void *home = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return slab_home = home == MAP_FAILED ? NULL : home;
}

static void free_no_access(void *user, void *block)
{
    (void)user;
    if (block == slab_home)
        munmap(block, SLAB_BYTES);
    else
        free(block);
}

/* Nothing but the contents touches the slab: create, the life of empty blocks, their
 * names and the destroy run over memory that cannot be accessed. */
CASE(a_slab_is_touched_only_for_its_contents)
{
    const tl_allocator no_access = {alloc_no_access, free_no_access, NULL};
    const uint32_t n = 64;
    uint32_t ids[64], out;
    CHECK_STATUS(tl_set_allocator(&no_access), TL_OK);
    tl_kv_pool *p = new_pool(shape(n, 16, 1, 1, (uint32_t)(SLAB_BYTES / n / 64)));
    CHECK_EQ(tl_kv_block_bytes(p) * n, SLAB_BYTES);
    CHECK(tl_kv_block_ptr(p, 0, 0, 0) == slab_home);
    CHECK_STATUS(tl_kv_alloc(p, n, ids), TL_OK);
    for (uint32_t i = 0; i < n; i++) {
        CHECK_STATUS(tl_kv_set_fill(p, i, 16), TL_OK);
        CHECK_STATUS(tl_kv_register(p, i, 1 + i), TL_OK);
    }
    CHECK_STATUS(tl_kv_cow(p, 0, &out), TL_OK);
    CHECK_EQ(find(p, 1), 0);
    CHECK_COUNTS(p, 0, n, 0);
    end_pool(p);
}

CASES(null_is_answered_by_every_function, both_ends_of_every_range, a_reference_count_never_wraps,
      evictions_saturate, a_pool_larger_than_size_t_is_refused, an_envelope_larger_than_size_t_is_refused,
      an_index_that_cannot_grow_registers_nothing, the_slab_is_aligned_and_contiguous,
      a_slab_is_touched_only_for_its_contents)
