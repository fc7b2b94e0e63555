/* test_messages.c - what a refusal says: the figures that tell the caller what is wrong. */

#include "kv_pool_impl.h"
#include "pools.h"

/* The call is refused with this whole message. */
#define CHECK_SAYS(call, status, text)        \
    do {                                      \
        CHECK_STATUS(call, status);           \
        CHECK_STR(tl_last_error(), (text));   \
    } while (0)

/* The worked envelope with one field changed and a right CRC is refused with this message. */
#define CHECK_IMPORT_SAYS(p, at, value, n_bytes, status, text)       \
    do {                                                             \
        uint8_t e[WORKED_BYTES];                                     \
        uint32_t got;                                                \
        memcpy(e, worked_envelope, WORKED_BYTES);                    \
        put_le(e + (at), (value), (n_bytes));                        \
        seal(e, WORKED_BYTES);                                       \
        CHECK_SAYS(tl_kv_import((p), e, WORKED_BYTES, &got), status, text); \
    } while (0)

CASE(create_names_what_it_cannot_make)
{
    tl_kv_pool *p;
    tl_kv_cfg cfg = {5, 4, 3, 2, 0, TL_F16, 1};
    CHECK_SAYS(tl_kv_pool_create(NULL, &p), TL_EINVAL, "tl_kv_pool_create: cfg is NULL");
    CHECK_SAYS(tl_kv_pool_create(&cfg, NULL), TL_EINVAL, "tl_kv_pool_create: out is NULL");
    CHECK_SAYS(tl_kv_pool_create(&cfg, &p), TL_EINVAL,
               "tl_kv_pool_create: a dimension is 0 (n_blocks 5, block_tokens 4, n_layers 3, n_kv_heads 2, head_dim 0)");
    cfg.head_dim = 1, cfg.format = 7;
    CHECK_SAYS(tl_kv_pool_create(&cfg, &p), TL_EUNSUPPORTED, "tl_kv_pool_create: format 7 is not supported, only 1");
    cfg.format = 1, cfg.dtype = -2;
    CHECK_SAYS(tl_kv_pool_create(&cfg, &p), TL_EUNSUPPORTED,
               "tl_kv_pool_create: dtype -2 is not supported, only TL_F16 (1)");
    cfg = shape(UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    CHECK_SAYS(tl_kv_pool_create(&cfg, &p), TL_EINVAL, "tl_kv_pool_create: the size does not fit in size_t");
    cfg = worked_shape(5);
    kit_fail_at(0, 0);
    CHECK_SAYS(tl_kv_pool_create(&cfg, &p), TL_ENOMEM, "tl_kv_pool_create: no memory for the pool");
    kit_fail_at(1, 0);
    CHECK_SAYS(tl_kv_pool_create(&cfg, &p), TL_ENOMEM, "tl_kv_pool_create: no memory for 5 blocks of 16 bytes");
    kit_fail_never();
}

/* A block is named, and the state in which it is. */
CASE(calls_name_the_block_and_its_state)
{
    uint32_t out;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t cached = take_registered(p, H0);
    drop(p, cached);
    CHECK_SAYS(tl_kv_unref(p, 0), TL_EINVAL, "tl_kv_unref: block 0 is cached: nobody holds it");
    CHECK_SAYS(tl_kv_cow(p, 2, &out), TL_EINVAL, "tl_kv_cow: block 2 is free: nobody holds it");
    CHECK_SAYS(tl_kv_set_fill(p, 3, 1), TL_EINVAL, "tl_kv_set_fill: block 3 is out of range");
    CHECK_SAYS(tl_kv_register(p, UINT32_MAX, 1), TL_EINVAL, "tl_kv_register: block 4294967295 is out of range");
    tl_kv_ref(p, 1);
    CHECK_STR(tl_last_error(), "tl_kv_ref: block 1 is free: nobody holds it");
    tl_kv_ref(NULL, 1);
    CHECK_STR(tl_last_error(), "tl_kv_ref: block 1 has no pool: it is NULL");
    CHECK_SAYS(tl_kv_unref(NULL, 1), TL_EINVAL, "tl_kv_unref: block 1 has no pool: it is NULL");
    CHECK_SAYS(tl_kv_set_fill(NULL, 1, 1), TL_EINVAL, "tl_kv_set_fill: block 1 has no pool: it is NULL");
    CHECK_SAYS(tl_kv_register(NULL, 1, 1), TL_EINVAL, "tl_kv_register: block 1 has no pool: it is NULL");
    CHECK(!tl_kv_block_ptr(p, 2, 5, 0));
    CHECK_STR(tl_last_error(), "tl_kv_block_ptr: block 2, layer 5 is out of range");

    CHECK_EQ(find(p, H0), cached);
    p->blocks[cached].ref = UINT32_MAX;
    tl_kv_ref(p, cached);
    CHECK_STR(tl_last_error(), "tl_kv_ref: block 0 has as many holders as can be counted");
    CHECK_SAYS(tl_kv_lookup(p, H0, &out), TL_EINVAL, "tl_kv_lookup: block 0 has as many holders as can be counted");
    p->blocks[cached].ref = 1;
    end_pool(p);
}

/* A request that finds no room says what there is. */
CASE(full_pools_say_what_they_have)
{
    uint32_t ids[5], got[6];
    uint8_t e[32 + 6 * 28];
    const uint16_t values[8] = {0};
    const wire_block block = {0, 1, values}, six[6] = {block, block, block, block, block, block};
    tl_kv_cfg cfg = worked_shape(5);
    tl_kv_pool *p = new_pool(cfg);
    drop(p, take_registered(p, 1)), take(p), take(p);
    CHECK_SAYS(tl_kv_alloc(p, 4, ids), TL_EFULL, "tl_kv_alloc: 4 blocks asked for, 2 free and 1 cached");
    CHECK_EQ(write_envelope(e, &cfg, six, 6), sizeof e);
    CHECK_SAYS(tl_kv_import(p, e, sizeof e, got), TL_EFULL,
               "tl_kv_import: 6 blocks in the envelope, 2 free and 1 cached");
    CHECK_STATUS(tl_kv_alloc(p, 3, ids), TL_OK);
    tl_kv_ref(p, 2);
    CHECK_SAYS(tl_kv_cow(p, 2, ids), TL_EFULL, "tl_kv_cow: no block is free or cached for a copy of block 2");
    CHECK_SAYS(tl_kv_alloc(p, 1, NULL), TL_EINVAL, "tl_kv_alloc: ids is NULL");
    CHECK_SAYS(tl_kv_alloc(NULL, 1, ids), TL_EINVAL, "tl_kv_alloc: the pool is NULL");
    end_pool(p);
}

CASE(fills_and_names_are_given_with_their_limits)
{
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t id = take_registered(p, 0xABC), other = take(p);
    CHECK_SAYS(tl_kv_set_fill(p, other, 3), TL_EINVAL, "tl_kv_set_fill: 3 tokens, a block has 2");
    CHECK_SAYS(tl_kv_set_fill(p, id, 1), TL_EINVAL, "tl_kv_set_fill: block 0 is registered");
    CHECK_STATUS(tl_kv_set_fill(p, other, 1), TL_OK);
    CHECK_SAYS(tl_kv_register(p, other, 1), TL_EINVAL, "tl_kv_register: block 1 holds 1 of 2 tokens: not full");
    CHECK_STATUS(tl_kv_set_fill(p, other, 2), TL_OK);
    CHECK_SAYS(tl_kv_register(p, other, 0), TL_EINVAL, "tl_kv_register: hash 0 means no hash");
    CHECK_SAYS(tl_kv_register(p, other, 0xABC), TL_EBUSY, "tl_kv_register: block 0 holds hash 0x0000000000000abc");
    CHECK_SAYS(tl_kv_register(p, id, 1), TL_EINVAL, "tl_kv_register: block 0 is registered under another hash");
    CHECK_SAYS(tl_kv_lookup(p, 1, NULL), TL_EINVAL, "tl_kv_lookup: id is NULL");
    CHECK_SAYS(tl_kv_lookup(NULL, 1, &id), TL_EINVAL, "tl_kv_lookup: the pool is NULL");
    CHECK_SAYS(tl_kv_cow(p, 1, NULL), TL_EINVAL, "tl_kv_cow: out is NULL");
    CHECK_SAYS(tl_kv_cow(NULL, 1, &id), TL_EINVAL, "tl_kv_cow: the pool is NULL");
    end_pool(p);
}

CASE(export_says_what_it_needs)
{
    uint8_t buf[60];
    size_t written;
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t id = take_worked(p), empty = take(p), free_id = 2;
    CHECK_SAYS(tl_kv_export(p, &id, 1, buf, 59, &written), TL_EFULL, "tl_kv_export: 60 bytes needed, 59 given");
    CHECK_SAYS(tl_kv_export(p, &id, 1, NULL, 59, &written), TL_EFULL, "tl_kv_export: 60 bytes needed, 0 given");
    CHECK_SAYS(tl_kv_export(p, &empty, 1, buf, 60, &written), TL_EINVAL, "tl_kv_export: block 1 is empty (fill 0)");
    CHECK_SAYS(tl_kv_export(p, &free_id, 1, buf, 60, &written), TL_EINVAL,
               "tl_kv_export: block 2 is free: nobody holds it");
    CHECK_SAYS(tl_kv_export(p, NULL, 1, buf, 60, &written), TL_EINVAL, "tl_kv_export: ids is NULL");
    CHECK_SAYS(tl_kv_export(p, &id, 1, buf, 60, NULL), TL_EINVAL, "tl_kv_export: written is NULL");
    CHECK_SAYS(tl_kv_export(NULL, &id, 1, buf, 60, &written), TL_EINVAL, "tl_kv_export: the pool is NULL");
    p->block_bytes = SIZE_MAX;
    CHECK_EQ(tl_kv_export_bytes(p, 3), SIZE_MAX);
    CHECK_STR(tl_last_error(), "tl_kv_export_bytes: the size of 3 blocks does not fit in size_t");
    CHECK_SAYS(tl_kv_export(p, &id, 1, buf, 60, &written), TL_EINVAL,
               "tl_kv_export: the size of 1 blocks does not fit in size_t");
    p->block_bytes = 16;
    end_pool(p);
}

/* An envelope is refused with what it says and what it should say. */
CASE(import_says_what_is_wrong)
{
    uint32_t id;
    uint8_t e[WORKED_BYTES];
    tl_kv_pool *p = new_pool(worked_shape(2));
    CHECK_SAYS(tl_kv_import(p, worked_envelope, 31, &id), TL_EFORMAT,
               "tl_kv_import: 31 bytes, an envelope has at least 32");
    CHECK_IMPORT_SAYS(p, 0, 'X', 1, TL_EFORMAT, "tl_kv_import: the magic is not TLKV");
    CHECK_IMPORT_SAYS(p, 0, 'A', 1, TL_EFORMAT, "tl_kv_import: the magic is not TLKV");
    CHECK_IMPORT_SAYS(p, 4, 0x102, 2, TL_EFORMAT, "tl_kv_import: version 258, only version 1 is read");
    CHECK_IMPORT_SAYS(p, 6, 0x301, 2, TL_EFORMAT, "tl_kv_import: dtype 769, version 1 has dtype 1 (f16)");
    CHECK_IMPORT_SAYS(p, 8, 2, 4, TL_EFORMAT, "tl_kv_import: 60 bytes are not the length that the header implies");
    memcpy(e, worked_envelope, WORKED_BYTES);
    e[59] ^= 0xFF;
    CHECK_SAYS(tl_kv_import(p, e, WORKED_BYTES, &id), TL_EFORMAT,
               "tl_kv_import: the CRC is 0x4f0b541c, the envelope states 0xb00b541c");
    CHECK_IMPORT_SAYS(p, 36, 3, 4, TL_EFORMAT, "tl_kv_import: record 0 has n_tokens 3, not in 1 .. 2");
    CHECK_IMPORT_SAYS(p, 36, 1, 4, TL_EFORMAT, "tl_kv_import: record 0 has a hash but only 1 of 2 tokens");
    CHECK_SAYS(tl_kv_import(p, worked_envelope, 60, NULL), TL_EINVAL, "tl_kv_import: ids_out is NULL");
    CHECK_SAYS(tl_kv_import(p, NULL, 60, &id), TL_EINVAL, "tl_kv_import: buf is NULL");
    CHECK_SAYS(tl_kv_import(NULL, worked_envelope, 60, &id), TL_EINVAL, "tl_kv_import: the pool is NULL");
    end_pool(p);

    p = new_pool(shape(2, 4, 3, 5, 7));
    CHECK_SAYS(tl_kv_import(p, worked_envelope, 60, &id), TL_ESHAPE,
               "tl_kv_import: the envelope has B 2, L 1, H 1, D 2, the pool B 4, L 3, H 5, D 7");
    end_pool(p);
}

CASES(create_names_what_it_cannot_make, calls_name_the_block_and_its_state, full_pools_say_what_they_have,
      fills_and_names_are_given_with_their_limits, export_says_what_it_needs, import_says_what_is_wrong)
