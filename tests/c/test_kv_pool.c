/* test_kv_pool.c - the pool's promises, one case each: hashes and envelopes worked out
 * by hand, states and counts, copy on write, the prefix index, the wire. */

#include "random_ops.h"

/* ---- worked by hand ------------------------------------------------------ */

/* Tokens 1 2 and 3 4 give the two hashes of the worked example, another parent gives
 * others, and a hash is never 0. */
CASE(hand_example_block_hash_chain)
{
    const uint32_t toks[] = {1, 2, 3, 4, 0xFFFFFFFFu, 0x80000000u, 0x01020304u, 0};
    CHECK_EQ(tl_kv_block_hash(0, toks, 2), 0xA91AB0C1027B9366u);
    CHECK_EQ(tl_kv_block_hash(0xA91AB0C1027B9366u, toks + 2, 2), 0x03DF829571605C60u);
    CHECK(tl_kv_block_hash(0, toks + 2, 2) != 0x03DF829571605C60u);
    CHECK(tl_kv_block_hash(1, toks, 2) != H0);

    const uint64_t parents[] = {0, 1, H0, H1, UINT64_MAX, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof parents / sizeof parents[0]; i++)
        for (uint32_t n = 0; n <= 8; n++)
            CHECK_EQ(tl_kv_block_hash(parents[i], toks, n), slow_block_hash(parents[i], toks, n));

    /* FNV-1a 64 of d5 6b b9 53 42 87 08 36 is 0, and zero bytes leave it there. */
    const uint32_t zeros[2] = {0, 0};
    CHECK_EQ(tl_kv_block_hash(0x3608874253B96BD5u, zeros, 2), 1);
    CHECK_EQ(tl_kv_block_hash(0x3608874253B96BD5u, NULL, 0), 1);

    CHECK_COMPLAINS(NULL, tl_kv_block_hash(0, NULL, 1));
    CHECK_EQ(tl_kv_block_hash(0, NULL, 1), 0);
}

/* The worked block gives the 60 bytes of the format's description and nothing after
 * them; every dimension stands in its own place. */
CASE(hand_example_export_envelope)
{
    uint8_t buf[80];
    size_t written = 0;
    memset(buf, 0xEE, sizeof buf);
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t id = take_worked(p);
    CHECK_EQ(tl_kv_block_bytes(p), 16);
    CHECK_EQ(tl_kv_export_bytes(p, 1), 60);
    CHECK_QUIET(tl_kv_export(p, &id, 1, buf, sizeof buf, &written), TL_OK);
    CHECK_EQ(written, 60);
    CHECK_BYTES(buf, worked_envelope, 60);
    for (size_t i = 60; i < sizeof buf; i++) CHECK_EQ(buf[i], 0xEE);
    end_pool(p);

    const uint8_t header[28] = {'T', 'L', 'K', 'V', 1, 0, 1, 0, 2, 0, 0, 0, 7, 0, 0, 0,
                                3,   0,   0,   0,   4, 0, 0, 0, 5, 0, 0, 0};
    static uint8_t big[32 + 2 * (12 + 7 * 3 * 4 * 5 * 4)];
    p = new_pool(shape(2, 7, 3, 4, 5));
    uint32_t ids[2] = {take(p), take(p)};
    for (size_t i = 0; i < 2; i++) {
        put_values(p, ids[i], ids[i]);
        CHECK_STATUS(tl_kv_set_fill(p, ids[i], 1), TL_OK);
    }
    CHECK_STATUS(tl_kv_export(p, ids, 2, big, sizeof big, &written), TL_OK);
    CHECK_EQ(written, sizeof big);
    CHECK_BYTES(big, header, 28);
    end_pool(p);
}

/* The published vectors of CRC-32C; the CRC of a whole from that of any first part. */
CASE(crc32c_check_value_and_continuation)
{
    const char *check = "123456789";
    CHECK_EQ(tl_crc32c(check, 9, 0), 0xE3069283u);
    for (size_t split = 0; split <= 9; split++)
        CHECK_EQ(tl_crc32c(check + split, 9 - split, tl_crc32c(check, split, 0)), 0xE3069283u);

    uint8_t bytes[32]; /* the four of RFC 3720, B.4 */
    memset(bytes, 0, 32);
    CHECK_EQ(tl_crc32c(bytes, 32, 0), 0x8A9136AAu);
    memset(bytes, 0xFF, 32);
    CHECK_EQ(tl_crc32c(bytes, 32, 0), 0x62A8AB43u);
    for (uint8_t i = 0; i < 32; i++) bytes[i] = i;
    CHECK_EQ(tl_crc32c(bytes, 32, 0), 0x46DD794Eu);
    for (uint8_t i = 0; i < 32; i++) bytes[i] = (uint8_t)(31 - i);
    CHECK_EQ(tl_crc32c(bytes, 32, 0), 0x113FDB5Cu);

    CHECK_EQ(tl_crc32c(worked_envelope, 56, 0), 0x4F0B541Cu);
    CHECK_EQ(tl_crc32c("", 0, 0), 0);
    CHECK_EQ(tl_crc32c(NULL, 0, 0x12345678u), 0x12345678u);
    CHECK_EQ(tl_crc32c(check, 0, UINT32_MAX), UINT32_MAX);
    CHECK_COMPLAINS(NULL, tl_crc32c(NULL, 1, 5));
    CHECK_EQ(tl_crc32c(NULL, 1, 5), 5);
}

/* ---- states -------------------------------------------------------------- */

/* A request above free + cached takes nothing; one of exactly as many takes all, free
 * ones first, then cached ones, oldest first. */
CASE(alloc_is_all_or_nothing)
{
    uint32_t ids[6] = {99, 99, 99, 99, 99, 99};
    tl_kv_pool *p = new_pool(worked_shape(5));
    CHECK_COUNTS(p, 5, 0, 0);
    CHECK_REFUSED(p, tl_kv_alloc(p, 6, ids), TL_EFULL);
    CHECK_REFUSED(p, tl_kv_alloc(p, UINT32_MAX, ids), TL_EFULL);
    CHECK_EQ(ids[0], 99);
    CHECK_REFUSED(p, tl_kv_alloc(p, 1, NULL), TL_EINVAL);
    CHECK_QUIET(tl_kv_alloc(p, 0, NULL), TL_OK);
    CHECK_COUNTS(p, 5, 0, 0);

    CHECK_QUIET(tl_kv_alloc(p, 5, ids), TL_OK);
    for (uint32_t i = 0; i < 5; i++) CHECK_EQ(ids[i], i);
    CHECK_EQ(ids[5], 99);
    for (uint32_t i = 0; i < 5; i++) CHECK_EQ(tl_kv_fill(p, i), 0);
    CHECK_COUNTS(p, 0, 5, 0);
    CHECK_REFUSED(p, tl_kv_alloc(p, 1, ids + 5), TL_EFULL);
    CHECK_QUIET(tl_kv_alloc(p, 0, ids), TL_OK);
    CHECK_EQ(ids[5], 99);

    /* 3 and 1 become cached, in this order, then 0 and 4 free. */
    for (uint32_t i = 0; i < 4; i++) CHECK_STATUS(tl_kv_set_fill(p, i, 2), TL_OK);
    CHECK_STATUS(tl_kv_register(p, 3, 33), TL_OK);
    CHECK_STATUS(tl_kv_register(p, 1, 11), TL_OK);
    drop(p, 3), drop(p, 1), drop(p, 0), drop(p, 4);
    CHECK_COUNTS(p, 2, 1, 2);
    CHECK_REFUSED(p, tl_kv_alloc(p, 5, ids), TL_EFULL);
    CHECK_QUIET(tl_kv_alloc(p, 4, ids), TL_OK);
    const uint32_t order[4] = {4, 0, 3, 1};
    for (uint32_t i = 0; i < 4; i++) CHECK_EQ(ids[i], order[i]);
    for (uint32_t i = 0; i < 4; i++) CHECK_EQ(tl_kv_fill(p, ids[i]), 0);
    CHECK_COUNTS(p, 0, 5, 0);
    CHECK_EVICTIONS(p, 2);
    end_pool(p);
}

/* The last unref caches a registered block and frees any other; the last one freed is
 * the first handed out; free + used + cached is N throughout. */
CASE(unref_frees_or_caches)
{
    tl_kv_pool *p = new_pool(worked_shape(4));
    uint32_t named = take_registered(p, H0), plain = take(p), other = take(p);
    CHECK_STATUS(tl_kv_set_fill(p, plain, 2), TL_OK);
    tl_kv_ref(p, named);
    CHECK_COUNTS(p, 1, 3, 0);
    drop(p, named);
    CHECK_COUNTS(p, 1, 3, 0);
    drop(p, named);
    CHECK_COUNTS(p, 1, 2, 1);
    CHECK_EQ(tl_kv_fill(p, named), 2);
    drop(p, plain);
    CHECK_COUNTS(p, 2, 1, 1);
    CHECK_EQ(tl_kv_fill(p, plain), 0);
    drop(p, other);
    CHECK_COUNTS(p, 3, 0, 1);
    CHECK_EQ(take(p), other);
    CHECK_EQ(take(p), plain);
    CHECK_EQ(take(p), 3);
    CHECK_COUNTS(p, 0, 3, 1);
    CHECK_EQ(find(p, H0), named);
    CHECK_COUNTS(p, 0, 4, 0);
    CHECK_EVICTIONS(p, 0);
    end_pool(p);
}

/* An unref of a block nobody holds is TL_EINVAL, a ref of one sets the error slot, and
 * neither changes anything. */
CASE(double_unref_is_einval_and_changes_nothing)
{
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t plain = take(p), cached = take_registered(p, H0);
    const uint32_t bad[] = {plain, cached, 2, 3, UINT32_MAX};
    drop(p, plain), drop(p, cached);
    for (size_t i = 0; i < 5; i++) {
        CHECK_REFUSED(p, tl_kv_unref(p, bad[i]), TL_EINVAL);
        CHECK_COMPLAINS(p, tl_kv_ref(p, bad[i]));
    }
    CHECK_COUNTS(p, 2, 0, 1);

    uint32_t ids[3];
    CHECK_STATUS(tl_kv_alloc(p, 3, ids), TL_OK);
    CHECK(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    tl_set_last_error("earlier");
    tl_kv_ref(p, ids[0]);
    CHECK_STR(tl_last_error(), "earlier");
    CHECK_QUIET(tl_kv_unref(p, ids[0]), TL_OK);
    CHECK_QUIET(tl_kv_unref(p, ids[0]), TL_OK);
    CHECK_REFUSED(p, tl_kv_unref(p, ids[0]), TL_EINVAL);
    CHECK_COUNTS(p, 1, 2, 0);
    end_pool(p);
}

/* ---- the prefix index ---------------------------------------------------- */

/* A hit holds the block, its contents as they were; a miss is TL_ENOTFOUND, changes
 * nothing and leaves the error slot alone, for hash 0 too. */
CASE(lookup_revives_a_cached_block_and_misses_quietly)
{
    uint32_t id = 99;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t named = take_worked(p);
    CHECK_EQ(find(p, H0), named);
    drop(p, named);
    CHECK_COUNTS(p, 2, 1, 0);
    drop(p, named);
    CHECK_COUNTS(p, 2, 0, 1);

    uint64_t before = tl_kv_digest(p);
    CHECK_QUIET(tl_kv_lookup(p, H1, &id), TL_ENOTFOUND);
    CHECK_QUIET(tl_kv_lookup(p, 0, &id), TL_ENOTFOUND);
    CHECK_EQ(id, 99);
    CHECK_EQ(tl_kv_digest(p), before);

    CHECK_QUIET(tl_kv_lookup(p, H0, &id), TL_OK);
    CHECK_EQ(id, named);
    CHECK_COUNTS(p, 2, 1, 0);
    CHECK_EQ(tl_kv_fill(p, id), 2);
    CHECK_BYTES(values_of(p, id), worked_values, 16);
    CHECK_QUIET(tl_kv_lookup(p, H0, &id), TL_OK);
    drop(p, id), drop(p, id);
    CHECK_COUNTS(p, 2, 0, 1);
    CHECK_REFUSED(p, tl_kv_unref(p, named), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_lookup(p, H0, NULL), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_lookup(NULL, H0, &id), TL_EINVAL);
    end_pool(p);
}

/* A hit makes a block the newest; allocations evict the oldest, and each eviction is
 * counted and takes the name away. */
CASE(eviction_takes_the_least_recently_used)
{
    uint32_t ids[2], id = 99;
    tl_kv_pool *p = new_pool(worked_shape(4));
    for (uint64_t hash = 10; hash < 14; hash++) take_registered(p, hash);
    for (uint32_t i = 0; i < 4; i++) drop(p, i);
    drop(p, find(p, 10)); /* oldest to newest: 1 2 3 0 */
    CHECK_COUNTS(p, 0, 0, 4);
    CHECK_EVICTIONS(p, 0);
    CHECK_STATUS(tl_kv_alloc(p, 2, ids), TL_OK);
    CHECK_EQ(ids[0], 1);
    CHECK_EQ(ids[1], 2);
    CHECK_EVICTIONS(p, 2);
    CHECK_COUNTS(p, 0, 2, 2);
    CHECK_QUIET(tl_kv_lookup(p, 11, &id), TL_ENOTFOUND);
    CHECK_QUIET(tl_kv_lookup(p, 12, &id), TL_ENOTFOUND);
    CHECK_EQ(find(p, 13), 3);
    CHECK_EQ(find(p, 10), 0);
    drop(p, 0), drop(p, 3), drop(p, 1); /* 1 is plain now: free */
    CHECK_EQ(take(p), 1);
    CHECK_EVICTIONS(p, 2);
    CHECK_EQ(take(p), 0);
    CHECK_EVICTIONS(p, 3);
    end_pool(p);
}

/* After a hit the next allocations reclaim the other cached blocks, then nothing. */
CASE(a_revived_block_is_never_evicted)
{
    uint32_t id = 99;
    tl_kv_pool *p = new_pool(worked_shape(3));
    for (uint64_t hash = 10; hash < 13; hash++) put_values(p, take_registered(p, hash), (uint32_t)hash);
    for (uint32_t i = 0; i < 3; i++) drop(p, i);
    CHECK_EQ(find(p, 10), 0);
    CHECK_COUNTS(p, 0, 1, 2);
    CHECK_EQ(take(p), 1);
    CHECK_EQ(take(p), 2);
    CHECK_REFUSED(p, tl_kv_alloc(p, 1, &id), TL_EFULL);
    put_values(p, 1, 77), put_values(p, 2, 78);
    check_values(p, 0, 10);
    CHECK_EQ(find(p, 10), 0);
    CHECK_COUNTS(p, 0, 3, 0);
    end_pool(p);
}

/* The last holder writes in place; one of several gets a copy of all bytes and the
 * fill, without the name, and gives its share of the original up. */
CASE(cow_copies_only_when_shared)
{
    uint32_t out = 99;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t id = take(p);
    put_values(p, id, 1);
    CHECK_STATUS(tl_kv_set_fill(p, id, 1), TL_OK);
    CHECK_QUIET(tl_kv_cow(p, id, &out), TL_OK);
    CHECK_EQ(out, id);
    CHECK_COUNTS(p, 2, 1, 0);

    tl_kv_ref(p, id);
    CHECK_QUIET(tl_kv_cow(p, id, &out), TL_OK);
    CHECK(out != id);
    CHECK_COUNTS(p, 1, 2, 0);
    CHECK_EQ(tl_kv_fill(p, out), 1);
    check_values(p, out, 1); /* past the fill too */
    put_values(p, out, 2);
    check_values(p, id, 1);
    drop(p, id); /* the other holder's: it was the last */
    CHECK_COUNTS(p, 2, 1, 0);
    CHECK_REFUSED(p, tl_kv_cow(p, id, &out), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_cow(p, 3, &out), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_cow(p, out, NULL), TL_EINVAL);
    drop(p, out);

    /* A shared block with a name: the copy has none, the original keeps its own. */
    id = take_worked(p);
    tl_kv_ref(p, id);
    CHECK_STATUS(tl_kv_cow(p, id, &out), TL_OK);
    CHECK_EQ(tl_kv_fill(p, out), 2);
    CHECK_STATUS(tl_kv_set_fill(p, out, 1), TL_OK);
    drop(p, out);
    CHECK_COUNTS(p, 2, 1, 0);
    drop(p, id);
    CHECK_COUNTS(p, 2, 0, 1);
    CHECK_REFUSED(p, tl_kv_cow(p, id, &out), TL_EINVAL);
    end_pool(p);
}

/* A copy that finds no room is TL_EFULL and changes nothing; a cached block makes
 * room; the last holder needs none. */
CASE(cow_in_a_full_pool_is_efull)
{
    uint32_t out = 99;
    tl_kv_pool *p = new_pool(worked_shape(2));
    uint32_t id = take(p), other = take_registered(p, H1);
    put_values(p, id, 1), put_values(p, other, 2);
    CHECK_STATUS(tl_kv_set_fill(p, id, 1), TL_OK);
    CHECK_QUIET(tl_kv_cow(p, id, &out), TL_OK);
    CHECK_EQ(out, id);
    tl_kv_ref(p, id);
    out = 99;
    CHECK_REFUSED(p, tl_kv_cow(p, id, &out), TL_EFULL);
    CHECK_EQ(out, 99);
    check_values(p, id, 1), check_values(p, other, 2);

    drop(p, other); /* cached */
    CHECK_QUIET(tl_kv_cow(p, id, &out), TL_OK);
    CHECK_EQ(out, other);
    CHECK_COUNTS(p, 0, 2, 0);
    CHECK_EVICTIONS(p, 1);
    check_values(p, out, 1);
    CHECK_EQ(tl_kv_fill(p, out), 1);
    CHECK_QUIET(tl_kv_lookup(p, H1, &out), TL_ENOTFOUND);
    end_pool(p);
}

/* A block that is partial, not held, or without a hash to take is refused; so is a
 * second name. A hash that another block holds is TL_EBUSY. A name freezes the fill. */
CASE(only_full_blocks_are_registered)
{
    tl_kv_pool *p = new_pool(worked_shape(4));
    uint32_t first = take(p), second = take(p), id;
    CHECK_REFUSED(p, tl_kv_register(p, first, H0), TL_EINVAL);
    CHECK_STATUS(tl_kv_set_fill(p, first, 1), TL_OK);
    CHECK_REFUSED(p, tl_kv_register(p, first, H0), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_set_fill(p, first, 3), TL_EINVAL);
    CHECK_STATUS(tl_kv_set_fill(p, first, 2), TL_OK);
    CHECK_REFUSED(p, tl_kv_register(p, first, 0), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_register(p, 2, H0), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_register(p, 4, H0), TL_EINVAL);
    CHECK_QUIET(tl_kv_lookup(p, H0, &id), TL_ENOTFOUND);

    CHECK_QUIET(tl_kv_register(p, first, H0), TL_OK);
    CHECK_QUIET(tl_kv_register(p, first, H0), TL_OK);
    CHECK_REFUSED(p, tl_kv_register(p, first, H1), TL_EINVAL);
    for (uint32_t n = 0; n <= 3; n++) CHECK_REFUSED(p, tl_kv_set_fill(p, first, n), TL_EINVAL);
    CHECK_EQ(tl_kv_fill(p, first), 2);

    CHECK_STATUS(tl_kv_set_fill(p, second, 2), TL_OK);
    CHECK_REFUSED(p, tl_kv_register(p, second, H0), TL_EBUSY);
    CHECK_EQ(find(p, H0), first);
    drop(p, first), drop(p, first); /* cached, and still the holder of its hash */
    CHECK_REFUSED(p, tl_kv_register(p, second, H0), TL_EBUSY);
    CHECK_REFUSED(p, tl_kv_register(p, first, H0), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_set_fill(p, first, 1), TL_EINVAL);
    CHECK_EQ(find(p, H0), first);
    drop(p, second); /* a private copy: free */
    CHECK_COUNTS(p, 3, 1, 0);
    end_pool(p);
}

/* ---- the slab ------------------------------------------------------------ */

/* Each slab of (block, layer, K or V) is H*B*D f16 long and lies at its own place in
 * the order of the payload; anything out of range is NULL. */
CASE(block_ptr_layout)
{
    enum { N = 3, B = 4, L = 2, H = 3, D = 5, SLAB = H * B * D };
    tl_kv_pool *p = new_pool(shape(N, B, L, H, D));
    CHECK_EQ(tl_kv_block_bytes(p), L * 2 * SLAB * 2);
    char *base = tl_kv_block_ptr(p, 0, 0, 0);
    CHECK_EQ((uintptr_t)base % 64, 0);
    uint16_t next = 0;
    for (uint32_t id = 0; id < N; id++)
        for (uint32_t layer = 0; layer < L; layer++)
            for (int is_v = 0; is_v < 2; is_v++) {
                uint16_t *slab = tl_kv_block_ptr(p, id, layer, is_v);
                uint32_t nth = (id * L + layer) * 2 + (uint32_t)is_v;
                CHECK_EQ((char *)slab - base, (ptrdiff_t)(nth * SLAB * 2));
                for (int i = 0; i < SLAB; i++) slab[i] = next++;
            }
    for (uint16_t i = 0; i < N * L * 2 * SLAB; i++) CHECK_EQ(((uint16_t *)(void *)base)[i], i);

    CHECK(tl_kv_block_ptr(p, 1, 1, 2) == tl_kv_block_ptr(p, 1, 1, 1));
    CHECK(tl_kv_block_ptr(p, 1, 1, -1) == tl_kv_block_ptr(p, 1, 1, 1));
    CHECK(tl_kv_block_ptr(p, 2, 1, 1) != NULL); /* held or not */
    const uint32_t bad[][2] = {{N, 0}, {UINT32_MAX, 0}, {0, L}, {0, UINT32_MAX}, {N, L}};
    for (size_t i = 0; i < 5; i++) {
        CHECK_COMPLAINS(p, tl_kv_block_ptr(p, bad[i][0], bad[i][1], 0));
        CHECK(tl_kv_block_ptr(p, bad[i][0], bad[i][1], 1) == NULL);
    }
    CHECK(tl_kv_block_ptr(NULL, 0, 0, 0) == NULL);
    CHECK_ERROR_FROM("tl_kv_block_ptr");
    end_pool(p);
}

/* ---- the envelope -------------------------------------------------------- */

/* What lies past the fill is written as zeros, in each layer, K and V, and head; a
 * buffer too short is TL_EFULL with the size needed, and stays as it was. */
CASE(export_zeroes_past_the_fill_and_reports_its_size)
{
    enum { SIZE = 32 + 12 + 4 * 2 * 2 * 3 * 4 };
    uint8_t buf[SIZE], expected[SIZE], untouched[SIZE];
    uint16_t values[SIZE];
    size_t written;
    tl_kv_cfg cfg = shape(2, 4, 2, 2, 3);
    tl_kv_pool *p = new_pool(cfg);
    uint32_t id = take(p);
    memset(untouched, 0xEE, SIZE);
    for (uint32_t fill = 1; fill <= 4; fill++) {
        put_values(p, id, fill); /* all positions */
        memcpy(values, values_of(p, id), tl_kv_block_bytes(p));
        CHECK_STATUS(tl_kv_set_fill(p, id, fill), TL_OK);
        wire_block block = {0, fill, values};
        CHECK_EQ(write_envelope(expected, &cfg, &block, 1), SIZE);

        for (size_t cap = 0; cap < SIZE; cap += cap < SIZE - 2 ? 7 : 1) {
            memset(buf, 0xEE, SIZE);
            written = 0;
            CHECK_REFUSED(p, tl_kv_export(p, &id, 1, buf, cap, &written), TL_EFULL);
            CHECK_EQ(written, SIZE);
            CHECK_BYTES(buf, untouched, SIZE);
        }
        written = 0;
        CHECK_REFUSED(p, tl_kv_export(p, &id, 1, NULL, SIZE, &written), TL_EFULL);
        CHECK_EQ(written, SIZE);
        written = 0;
        CHECK_QUIET(tl_kv_export(p, &id, 1, buf, SIZE, &written), TL_OK);
        CHECK_EQ(written, SIZE);
        CHECK_BYTES(buf, expected, SIZE);
    }
    CHECK_EQ(tl_kv_export_bytes(p, 0), 32);
    CHECK_EQ(tl_kv_export_bytes(p, 1), SIZE);
    CHECK_EQ(tl_kv_export_bytes(p, 3), 32 + 3 * (SIZE - 32));

    CHECK_STATUS(tl_kv_set_fill(p, id, 0), TL_OK); /* rule 5 would refuse it */
    written = 77;
    CHECK_REFUSED(p, tl_kv_export(p, &id, 1, buf, SIZE, &written), TL_EINVAL);
    CHECK_EQ(written, 77);
    end_pool(p);
}

/* Exported, imported elsewhere and exported again, the bytes are the same; full blocks
 * arrive with their name, the tail with its fill. */
CASE(export_import_roundtrip)
{
    enum { P = 2 * 2 * 2 * 3 * 4, SIZE = 32 + 3 * (12 + P) };
    uint8_t sent[SIZE], again[SIZE];
    size_t written;
    uint32_t ids[3], got[3] = {99, 99, 99}, found;
    tl_kv_cfg cfg = shape(5, 2, 2, 2, 3);
    tl_kv_pool *from = new_pool(cfg), *to = new_pool(cfg);
    ids[0] = take_registered(from, H0), ids[1] = take_registered(from, H1), ids[2] = take(from);
    for (uint32_t i = 0; i < 3; i++) put_values(from, ids[i], i);
    CHECK_STATUS(tl_kv_set_fill(from, ids[2], 1), TL_OK);
    CHECK_STATUS(tl_kv_export(from, ids, 3, sent, SIZE, &written), TL_OK);
    CHECK_EQ(written, SIZE);

    take(to); /* so that the ids differ */
    CHECK_QUIET(tl_kv_import(to, sent, SIZE, got), TL_OK);
    for (uint32_t i = 0; i < 3; i++) CHECK_EQ(got[i], i + 1);
    CHECK_COUNTS(to, 1, 4, 0);
    CHECK_EQ(tl_kv_fill(to, got[0]), 2);
    CHECK_EQ(tl_kv_fill(to, got[1]), 2);
    CHECK_EQ(tl_kv_fill(to, got[2]), 1);
    check_values(to, got[0], 0), check_values(to, got[1], 1);
    CHECK_STATUS(tl_kv_export(to, got, 3, again, SIZE, &written), TL_OK);
    CHECK_BYTES(again, sent, SIZE);

    CHECK_STATUS(tl_kv_lookup(to, H0, &found), TL_OK);
    CHECK_EQ(found, got[0]);
    CHECK_STATUS(tl_kv_lookup(to, H1, &found), TL_OK);
    CHECK_EQ(found, got[1]);
    CHECK_STATUS(tl_kv_set_fill(to, got[2], 2), TL_OK); /* no name, so its fill may change */
    drop(to, got[2]);
    CHECK_COUNTS(to, 2, 3, 0);
    for (uint32_t i = 0; i < 2; i++) drop(to, got[i]), drop(to, got[i]);
    CHECK_COUNTS(to, 2, 1, 2);
    end_pool(from), end_pool(to);
}

/* Where the hash is held, by a used or a cached block, the imported block is a private
 * copy of the caller's. */
CASE(import_keeps_the_first_holder_of_a_hash)
{
    uint32_t got = 99;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t first = take_registered(p, H0);
    put_values(p, first, 5);
    CHECK_QUIET(tl_kv_import(p, worked_envelope, 60, &got), TL_OK);
    CHECK(got != first);
    CHECK_BYTES(values_of(p, got), worked_values, 16);
    check_values(p, first, 5);
    CHECK_EQ(find(p, H0), first);
    drop(p, first), drop(p, first);
    drop(p, got);
    CHECK_COUNTS(p, 2, 0, 1);

    CHECK_QUIET(tl_kv_import(p, worked_envelope, 60, &got), TL_OK); /* first is cached now */
    CHECK(got != first);
    CHECK_STATUS(tl_kv_set_fill(p, got, 1), TL_OK);
    CHECK_EQ(find(p, H0), first);
    check_values(p, first, 5);
    end_pool(p);
}

/* Each of the 480 envelopes that differ from the worked one in a bit is refused as
 * TL_EFORMAT, and nothing changes. */
CASE(every_bit_flip_is_eformat)
{
    uint8_t flipped[WORKED_BYTES];
    uint32_t id = 99;
    tl_kv_pool *p = new_pool(worked_shape(3));
    for (size_t bit = 0; bit < 8 * WORKED_BYTES; bit++) {
        memcpy(flipped, worked_envelope, WORKED_BYTES);
        flipped[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_REFUSED(p, tl_kv_import(p, flipped, WORKED_BYTES, &id), TL_EFORMAT);
        CHECK_EQ(id, 99);
    }
    CHECK_COUNTS(p, 3, 0, 0);
    CHECK_QUIET(tl_kv_import(p, worked_envelope, WORKED_BYTES, &id), TL_OK);
    CHECK_EQ(id, 0);
    end_pool(p);
}

/* Envelopes whose CRC is right but whose version, dtype, n_tokens or hash is not are
 * TL_EFORMAT; each dimension of another pool is TL_ESHAPE. */
CASE(import_reader_rules)
{
    static const struct {
        size_t at, n_bytes;
        uint64_t value;
    } wrong[] = {
        {0, 4, 0x564B4C55}, {4, 2, 0}, {4, 2, 2}, {4, 2, 0x0101}, {4, 2, 0xFFFF},        /* magic, version */
        {6, 2, 0}, {6, 2, 2}, {6, 2, 5}, {6, 2, 0x0101},                                 /* dtype */
        {8, 4, 0}, {8, 4, 2}, {8, 4, UINT32_MAX},                                        /* n_blocks: the length */
        {36, 4, 0}, {36, 4, 3}, {36, 4, UINT32_MAX}, {36, 4, 0x80000002u}, {36, 4, 1},   /* n_tokens; 1 has a hash */
    };
    uint8_t e[WORKED_BYTES];
    uint32_t id = 99;
    tl_kv_pool *p = new_pool(worked_shape(2));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(e, worked_envelope, WORKED_BYTES);
        put_le(e + wrong[i].at, wrong[i].value, wrong[i].n_bytes);
        seal(e, WORKED_BYTES);
        CHECK_REFUSED(p, tl_kv_import(p, e, WORKED_BYTES, &id), TL_EFORMAT);
    }
    memcpy(e, worked_envelope, WORKED_BYTES);
    put_le(e + 28, 0, 8), put_le(e + 36, 1, 4); /* partial, but without a hash: right */
    seal(e, WORKED_BYTES);
    CHECK_EQ(id, 99);
    CHECK_QUIET(tl_kv_import(p, e, WORKED_BYTES, &id), TL_OK);
    CHECK_EQ(tl_kv_fill(p, id), 1);
    end_pool(p);

    const tl_kv_cfg others[] = {
        shape(2, 3, 1, 1, 2), shape(2, 2, 2, 1, 2), shape(2, 2, 1, 2, 2), shape(2, 2, 1, 1, 3), /* one differs */
        shape(2, 1, 2, 1, 2), shape(2, 2, 1, 2, 1), shape(2, 4, 1, 1, 1), shape(2, 2, 2, 1, 1), /* as many bytes */
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        p = new_pool(others[i]);
        CHECK_REFUSED(p, tl_kv_import(p, worked_envelope, WORKED_BYTES, &id), TL_ESHAPE);
        end_pool(p);
    }
}

/* ---- create -------------------------------------------------------------- */

/* What create cannot make is refused, *out NULL, before any memory is asked for; each
 * failing allocation is TL_ENOMEM, and everything is given back. */
CASE(create_rules_and_alloc_failure)
{
    int anything;
    tl_kv_pool *p = (tl_kv_pool *)(void *)&anything;
    tl_kv_cfg good = worked_shape(4), got, cfg;
#define CHECK_CREATE_REFUSED(field, value, status)                    \
    do {                                                              \
        cfg = good;                                                   \
        cfg.field = (value);                                          \
        p = (tl_kv_pool *)(void *)&anything;                          \
        CHECK_REFUSED(NULL, tl_kv_pool_create(&cfg, &p), status);     \
        CHECK(p == NULL);                                             \
    } while (0)
    CHECK_CREATE_REFUSED(format, 2, TL_EUNSUPPORTED);
    CHECK_CREATE_REFUSED(format, 0, TL_EUNSUPPORTED);
    CHECK_CREATE_REFUSED(format, UINT32_MAX, TL_EUNSUPPORTED);
    for (tl_dtype dtype = -1; dtype <= 9; dtype++)
        if (dtype != TL_F16) CHECK_CREATE_REFUSED(dtype, dtype, TL_EUNSUPPORTED);
    CHECK_CREATE_REFUSED(n_blocks, 0, TL_EINVAL);
    CHECK_CREATE_REFUSED(block_tokens, 0, TL_EINVAL);
    CHECK_CREATE_REFUSED(n_layers, 0, TL_EINVAL);
    CHECK_CREATE_REFUSED(n_kv_heads, 0, TL_EINVAL);
    CHECK_CREATE_REFUSED(head_dim, 0, TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_pool_create(NULL, &p), TL_EINVAL);
    CHECK_REFUSED(NULL, tl_kv_pool_create(&good, NULL), TL_EINVAL);
    CHECK_EQ(kit_allocs(), 0);

    KIT_EACH_ALLOC_FAILURE(n) {
        p = (tl_kv_pool *)(void *)&anything;
        tl_set_last_error(NULL);
        tl_status status = tl_kv_pool_create(&good, &p);
        CHECK_STATUS(status, kit_failed() ? TL_ENOMEM : TL_OK);
        if (status == TL_OK) {
            tl_kv_pool_destroy(p);
        } else {
            CHECK(p == NULL);
            CHECK_ERROR_FROM("tl_kv_pool_create");
        }
    }

    p = new_pool(good);
    tl_kv_pool_cfg(p, &got);
    CHECK_BYTES(&got, &good, sizeof good);
    CHECK_COUNTS(p, 4, 0, 0);
    CHECK_EVICTIONS(p, 0);
    end_pool(p);
    tl_kv_pool_destroy(NULL);
}

/* ---- everything ---------------------------------------------------------- */

/* 40 seeded runs of all calls, good and bad, on pools of many sizes: every answer is
 * the model's, the pool stays intact, and held blocks keep their bytes. */
CASE(random_ops_keep_the_invariants)
{
    for (uint32_t seed = 0; seed < 40; seed++) {
        uint32_t n_blocks = seed < 20 ? 1 + seed % 5 : seed - 10;
        random_ops(seed % 2 ? worked_shape(n_blocks) : shape(n_blocks, 3, 2, 2, 2), seed, 1000, seed % 4 ? 0 : 95);
    }
}

CASES(hand_example_block_hash_chain, hand_example_export_envelope, crc32c_check_value_and_continuation,
      alloc_is_all_or_nothing, unref_frees_or_caches, double_unref_is_einval_and_changes_nothing,
      lookup_revives_a_cached_block_and_misses_quietly, eviction_takes_the_least_recently_used,
      a_revived_block_is_never_evicted, cow_copies_only_when_shared, cow_in_a_full_pool_is_efull,
      only_full_blocks_are_registered, block_ptr_layout, export_zeroes_past_the_fill_and_reports_its_size,
      export_import_roundtrip, import_keeps_the_first_holder_of_a_hash, every_bit_flip_is_eformat,
      import_reader_rules, create_rules_and_alloc_failure, random_ops_keep_the_invariants)
