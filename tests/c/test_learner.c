/* test_learner.c - the eight tests that somebody who learns to write such a pool would write
 * first: one subject each, and together they find a wrong pool. They stand alone: what they
 * show does not rest on test_kv_pool.c. */

#include "pools.h"

/* The two hashes of tokens 1 2 3 4 are those worked out by hand: 64-bit FNV-1a over 8
 * bytes of parent and 4 of each token; parent, order and every byte of a token count. */
CASE(hash_chain_by_hand)
{
    const uint32_t toks[] = {1, 2, 3, 4}, swapped[] = {2, 1};
    uint64_t h0 = tl_kv_block_hash(0, toks, 2);
    CHECK_EQ(h0, 0xA91AB0C1027B9366u);
    CHECK_EQ(tl_kv_block_hash(h0, toks + 2, 2), 0x03DF829571605C60u);
    CHECK(tl_kv_block_hash(0, toks + 2, 2) != tl_kv_block_hash(h0, toks + 2, 2));
    CHECK(tl_kv_block_hash(0, swapped, 2) != h0);
    for (int byte = 0; byte < 4; byte++) {
        uint32_t other[] = {1, 2 ^ 0x80u << 8 * byte};
        CHECK(tl_kv_block_hash(0, other, 2) != h0);
        CHECK_EQ(tl_kv_block_hash(0, other, 2), slow_block_hash(0, other, 2));
    }
    for (int byte = 0; byte < 8; byte++) CHECK(tl_kv_block_hash((uint64_t)0x80 << 8 * byte, toks, 2) != h0);

    const uint32_t zero = 0; /* FNV-1a of this parent's bytes and 4 zeros is 0, which means "no hash" */
    CHECK_EQ(tl_kv_block_hash(0x3608874253B96BD5u, &zero, 1), 1);
}

/* A pool starts with what it was asked for or not at all; a request gets all its
 * blocks, free ones before cached ones, or none; every block given back comes again. */
CASE(alloc_all_or_nothing)
{
    tl_kv_pool *p;
    tl_kv_cfg good = worked_shape(4), bad[] = {good, good, good, good, good, good, good};
    bad[0].format = 2, bad[1].dtype = TL_BF16;
    bad[2].n_blocks = 0, bad[3].block_tokens = 0, bad[4].n_layers = 0, bad[5].n_kv_heads = 0, bad[6].head_dim = 0;
    for (size_t i = 0; i < 7; i++) {
        CHECK_REFUSED(NULL, tl_kv_pool_create(&bad[i], &p), i < 2 ? TL_EUNSUPPORTED : TL_EINVAL);
        CHECK(p == NULL);
    }
    KIT_EACH_ALLOC_FAILURE(n) {
        tl_status status = tl_kv_pool_create(&good, &p);
        CHECK_STATUS(status, kit_failed() ? TL_ENOMEM : TL_OK);
        CHECK((p == NULL) == (status != TL_OK));
        tl_kv_pool_destroy(p);
    }

    uint32_t ids[5] = {99, 99, 99, 99, 99};
    p = new_pool(good);
    CHECK_REFUSED(p, tl_kv_alloc(p, 5, ids), TL_EFULL);
    CHECK_COUNTS(p, 4, 0, 0);
    CHECK_EQ(ids[0], 99);
    CHECK_STATUS(tl_kv_alloc(p, 4, ids), TL_OK);
    for (uint32_t i = 0; i < 4; i++) CHECK_EQ(ids[i], i);
    CHECK_REFUSED(p, tl_kv_alloc(p, 1, ids), TL_EFULL);
    CHECK_STATUS(tl_kv_set_fill(p, 2, 2), TL_OK);
    CHECK_STATUS(tl_kv_register(p, 2, H0), TL_OK);
    drop(p, 2), drop(p, 0), drop(p, 3);
    CHECK_COUNTS(p, 2, 1, 1);
    CHECK_REFUSED(p, tl_kv_alloc(p, 4, ids), TL_EFULL); /* three can be taken */
    CHECK_COUNTS(p, 2, 1, 1);
    CHECK_STATUS(tl_kv_alloc(p, 3, ids), TL_OK);
    CHECK(ids[0] == 3 && ids[1] == 0 && ids[2] == 2);
    CHECK_COUNTS(p, 0, 4, 0);
    CHECK_EVICTIONS(p, 1);

    for (int round = 0; round < 10; round++) {
        for (uint32_t i = 0; i < 4; i++) drop(p, i);
        CHECK_COUNTS(p, 4, 0, 0);
        CHECK_STATUS(tl_kv_alloc(p, 4, ids), TL_OK);
    }
    end_pool(p);
}

/* The last unref keeps a registered block findable, its bytes intact, until an
 * allocation needs it: the oldest first, each counted. Any other block becomes free. */
CASE(unref_caches_registered_blocks)
{
    uint32_t id;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t named = take_registered(p, 1), newer = take_registered(p, 2), plain = take(p);
    put_values(p, named, 1), put_values(p, newer, 2);
    tl_kv_ref(p, named);
    drop(p, named);
    CHECK_COUNTS(p, 0, 3, 0);
    drop(p, named), drop(p, newer), drop(p, plain);
    CHECK_COUNTS(p, 1, 0, 2);
    CHECK_EQ(find(p, 1), named);
    check_values(p, named, 1);
    drop(p, named); /* the newest now */

    CHECK_EQ(take(p), plain);
    CHECK_EVICTIONS(p, 0);
    CHECK_EQ(take(p), newer);
    CHECK_EVICTIONS(p, 1);
    CHECK_QUIET(tl_kv_lookup(p, 2, &id), TL_ENOTFOUND);
    CHECK_EQ(take(p), named);
    CHECK_EVICTIONS(p, 2);
    CHECK_QUIET(tl_kv_lookup(p, 1, &id), TL_ENOTFOUND);
    CHECK_COUNTS(p, 0, 3, 0);
    for (uint32_t i = 0; i < 3; i++) drop(p, i); /* evicted blocks have no name any more */
    CHECK_COUNTS(p, 3, 0, 0);
    end_pool(p);
}

/* An unref or a ref of a block that nobody holds is refused and changes nothing, so
 * that no block is handed out twice. */
CASE(double_unref_refused)
{
    uint32_t ids[3];
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t plain = take(p), cached = take_registered(p, H0);
    drop(p, plain), drop(p, cached);
    CHECK_REFUSED(p, tl_kv_unref(p, plain), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_unref(p, cached), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_unref(p, 3), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_unref(p, UINT32_MAX), TL_EINVAL);
    CHECK_COMPLAINS(p, tl_kv_ref(p, plain));
    CHECK_COMPLAINS(p, tl_kv_ref(p, cached));
    CHECK_COMPLAINS(p, tl_kv_ref(p, 3));
    CHECK_COUNTS(p, 2, 0, 1);
    CHECK_STATUS(tl_kv_alloc(p, 3, ids), TL_OK);
    CHECK(ids[0] != ids[1] && ids[1] != ids[2] && ids[2] != ids[0]);
    CHECK_COUNTS(p, 0, 3, 0);
    end_pool(p);
}

/* A block that a lookup has revived is out of the eviction's reach as long as it is
 * held; a miss says so quietly. */
CASE(lookup_hit_is_not_evicted)
{
    uint32_t id = 99, ids[3];
    tl_kv_pool *p = new_pool(worked_shape(3));
    for (uint32_t i = 0; i < 3; i++) put_values(p, take_registered(p, i + 1), i);
    for (uint32_t i = 0; i < 3; i++) drop(p, i);
    CHECK_QUIET(tl_kv_lookup(p, 4, &id), TL_ENOTFOUND);
    CHECK_EQ(id, 99);
    CHECK_QUIET(tl_kv_lookup(p, 1, &id), TL_OK); /* the oldest: the next victim otherwise */
    CHECK_EQ(id, 0);
    CHECK_COUNTS(p, 0, 1, 2);
    CHECK_REFUSED(p, tl_kv_alloc(p, 3, ids), TL_EFULL);
    CHECK_STATUS(tl_kv_alloc(p, 2, ids), TL_OK);
    CHECK(ids[0] == 1 && ids[1] == 2);
    CHECK_EVICTIONS(p, 2);
    check_values(p, 0, 0);
    CHECK_REFUSED(p, tl_kv_alloc(p, 1, ids), TL_EFULL);
    CHECK_EQ(find(p, 1), 0);
    drop(p, 0), drop(p, 0);
    CHECK_COUNTS(p, 0, 2, 1);
    CHECK_EQ(take(p), 0);
    end_pool(p);
}

/* A writer that shares a block gets its own, bytes and fill copied, and leaves the
 * original to the others; alone, it writes in place. K and V are slabs of their own. */
CASE(cow_copies_shared_blocks)
{
    uint32_t out = 99;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t id = take(p);
    uint16_t *k = tl_kv_block_ptr(p, id, 0, 0), *v = tl_kv_block_ptr(p, id, 0, 1);
    CHECK_EQ(v - k, 4);
    for (uint16_t i = 0; i < 4; i++) k[i] = 100 + i, v[i] = 200 + i;
    for (uint16_t i = 0; i < 4; i++) CHECK_EQ(k[i], 100 + i);

    CHECK_STATUS(tl_kv_set_fill(p, id, 1), TL_OK);
    CHECK_STATUS(tl_kv_cow(p, id, &out), TL_OK);
    CHECK_EQ(out, id);
    tl_kv_ref(p, id);
    CHECK_STATUS(tl_kv_cow(p, id, &out), TL_OK);
    CHECK(out != id);
    CHECK_EQ(tl_kv_fill(p, out), 1);
    CHECK_BYTES(values_of(p, out), values_of(p, id), 16);
    put_values(p, out, 5);
    CHECK_EQ(k[0], 100);
    CHECK_EQ(v[3], 203);
    drop(p, id);
    CHECK_COUNTS(p, 2, 1, 0);

    tl_kv_ref(p, out);
    take(p), take(p);
    uint32_t none = 99;
    CHECK_REFUSED(p, tl_kv_cow(p, out, &none), TL_EFULL);
    CHECK_EQ(none, 99);
    drop(p, out), drop(p, out);
    CHECK_REFUSED(p, tl_kv_unref(p, out), TL_EINVAL);
    end_pool(p);
}

/* Only a full block that somebody holds gets a name, and only one that is free to
 * take; the first holder of a hash keeps it, and its fill stands. */
CASE(partial_blocks_not_registered)
{
    uint32_t id;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t first = take(p), second = take(p);
    for (uint32_t fill = 0; fill < 2; fill++) {
        CHECK_STATUS(tl_kv_set_fill(p, first, fill), TL_OK);
        CHECK_REFUSED(p, tl_kv_register(p, first, H0), TL_EINVAL);
        CHECK_QUIET(tl_kv_lookup(p, H0, &id), TL_ENOTFOUND);
    }
    CHECK_REFUSED(p, tl_kv_set_fill(p, first, 3), TL_EINVAL);
    CHECK_STATUS(tl_kv_set_fill(p, first, 2), TL_OK);
    CHECK_STATUS(tl_kv_set_fill(p, second, 2), TL_OK);
    CHECK_REFUSED(p, tl_kv_register(p, first, 0), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_register(p, 2, H0), TL_EINVAL);
    CHECK_STATUS(tl_kv_register(p, first, H0), TL_OK);
    CHECK_STATUS(tl_kv_register(p, first, H0), TL_OK);
    CHECK_REFUSED(p, tl_kv_register(p, first, H1), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_set_fill(p, first, 1), TL_EINVAL);
    CHECK_REFUSED(p, tl_kv_register(p, second, H0), TL_EBUSY);
    CHECK_EQ(find(p, H0), first);
    drop(p, first), drop(p, first), drop(p, second);
    CHECK_COUNTS(p, 2, 0, 1);
    end_pool(p);
}

/* A good CRC over what is no good envelope for this pool: refused, with this status. */
static void check_rule(tl_kv_pool *p, size_t at, uint64_t value, size_t n_bytes, tl_status status)
{
    uint8_t e[WORKED_BYTES];
    uint32_t id = 99;
    memcpy(e, worked_envelope, WORKED_BYTES);
    put_le(e + at, value, n_bytes);
    seal(e, WORKED_BYTES);
    CHECK_REFUSED(p, tl_kv_import(p, e, WORKED_BYTES, &id), status);
    CHECK_EQ(id, 99);
}

/* Blocks travel whole: every byte of the envelope is where it belongs, stale data stays
 * at home, names and fills arrive, a held hash keeps its holder, and no envelope that
 * differs in a bit or breaks a rule gets in. */
CASE(roundtrip_and_bit_flip)
{
    CHECK_EQ(tl_crc32c("123456789", 9, 0), 0xE3069283u);
    CHECK_EQ(tl_crc32c("6789", 4, tl_crc32c("12345", 5, 0)), 0xE3069283u);

    /* The worked envelope, out and in. */
    uint8_t buf[WORKED_BYTES + 1];
    size_t written = 0;
    uint32_t got = 99;
    tl_kv_pool *p = new_pool(worked_shape(2));
    uint32_t id = take_worked(p);
    memset(buf, 0xEE, sizeof buf);
    CHECK_EQ(tl_kv_export_bytes(p, 1), 60);
    CHECK_REFUSED(p, tl_kv_export(p, &id, 1, buf, 59, &written), TL_EFULL);
    CHECK_EQ(written, 60);
    CHECK_EQ(buf[0], 0xEE);
    CHECK_STATUS(tl_kv_export(p, &id, 1, buf, 60, &written), TL_OK);
    CHECK_BYTES(buf, worked_envelope, 60);
    CHECK_EQ(buf[60], 0xEE);
    put_values(p, id, 9); /* the pool's own block keeps the name, the guest is private */
    CHECK_STATUS(tl_kv_import(p, worked_envelope, 60, &got), TL_OK);
    CHECK_BYTES(values_of(p, got), worked_values, 16);
    CHECK_EQ(find(p, H0), id);
    check_values(p, id, 9);
    drop(p, got);
    CHECK_COUNTS(p, 1, 1, 0);

    /* Bits and rules. */
    for (size_t bit = 0; bit < 480; bit++) {
        memcpy(buf, worked_envelope, 60);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_REFUSED(p, tl_kv_import(p, buf, 60, &got), TL_EFORMAT);
    }
    for (size_t n = 0; n < 60; n++) CHECK_REFUSED(p, tl_kv_import(p, worked_envelope, n, &got), TL_EFORMAT);
    check_rule(p, 0, 'X', 1, TL_EFORMAT);
    check_rule(p, 4, 0, 2, TL_EFORMAT), check_rule(p, 4, 2, 2, TL_EFORMAT);
    check_rule(p, 6, TL_BF16, 2, TL_EFORMAT);
    check_rule(p, 36, 0, 4, TL_EFORMAT), check_rule(p, 36, 1, 4, TL_EFORMAT), check_rule(p, 36, 3, 4, TL_EFORMAT);
    CHECK_COUNTS(p, 1, 1, 0);
    end_pool(p);
    for (uint32_t other = 0; other < 4; other++) {
        p = new_pool(shape(2, other == 0 ? 3 : 2, other == 1 ? 2 : 1, other == 2 ? 2 : 1, other == 3 ? 3 : 2));
        check_rule(p, 0, 'T', 1, TL_ESHAPE);
        end_pool(p);
    }

    /* Two full blocks and a tail, stale data behind its fill, into another pool. */
    enum { P = 4 * 2 * 3 * 2 * 5, SIZE = 32 + 3 * (12 + P) };
    uint8_t sent[SIZE], expected[SIZE], again[SIZE];
    uint16_t values[3][P / 2];
    uint32_t ids[3], came[3];
    tl_kv_cfg cfg = shape(3, 2, 3, 2, 5);
    tl_kv_pool *from = new_pool(cfg), *to = new_pool(cfg);
    ids[0] = take_registered(from, H0), ids[1] = take_registered(from, H1), ids[2] = take(from);
    CHECK_STATUS(tl_kv_set_fill(from, ids[2], 1), TL_OK);
    for (uint32_t i = 0; i < 3; i++) {
        put_values(from, ids[i], i);
        memcpy(values[i], values_of(from, ids[i]), P);
    }
    const wire_block blocks[3] = {{H0, 2, values[0]}, {H1, 2, values[1]}, {0, 1, values[2]}};
    CHECK_EQ(write_envelope(expected, &cfg, blocks, 3), SIZE);
    CHECK_STATUS(tl_kv_export(from, ids, 3, sent, SIZE, &written), TL_OK);
    CHECK_EQ(written, SIZE);
    CHECK_BYTES(sent, expected, SIZE);

    CHECK_STATUS(tl_kv_import(to, sent, SIZE, came), TL_OK);
    for (uint32_t i = 0; i < 3; i++) CHECK_EQ(tl_kv_fill(to, came[i]), i < 2 ? 2 : 1);
    CHECK_EQ(find(to, H0), came[0]);
    CHECK_EQ(find(to, H1), came[1]);
    CHECK_STATUS(tl_kv_export(to, came, 3, again, SIZE, &written), TL_OK);
    CHECK_BYTES(again, sent, SIZE);
    CHECK_REFUSED(to, tl_kv_import(to, sent, SIZE, came), TL_EFULL);
    end_pool(from), end_pool(to);
}

CASES(hash_chain_by_hand, alloc_all_or_nothing, unref_caches_registered_blocks, double_unref_refused,
      lookup_hit_is_not_evicted, cow_copies_shared_blocks, partial_blocks_not_registered, roundtrip_and_bit_flip)
