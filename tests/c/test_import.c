/* test_import.c - what import refuses, in which order, and that a refusal leaves no
 * trace; what becomes of names that are held already. */

#include "pools.h"

#include <ctype.h>
#include <stdlib.h>

static void header(uint8_t *e, uint32_t n, uint32_t B, uint32_t L, uint32_t H, uint32_t D)
{
    const uint32_t dimensions[] = {n, B, L, H, D};
    memcpy(e, worked_envelope, 8);
    for (size_t i = 0; i < 5; i++) put_le(e + 8 + 4 * i, dimensions[i], 4);
}

/* The bytes in memory of exactly their size, so that AddressSanitizer sees a read past
 * the end. */
static tl_status import_exact(tl_kv_pool *p, const uint8_t *e, size_t len, uint32_t *ids)
{
    uint8_t *copy = malloc(len ? len : 1);
    CHECK(copy != NULL);
    memcpy(copy, e, len);
    tl_status status = tl_kv_import(p, copy + (len ? 0 : 1), len, ids);
    free(copy);
    return status;
}

#define CHECK_IMPORT_REFUSED(p, e, len, ids, status)                  \
    do {                                                              \
        uint64_t digest_ = tl_kv_digest(p);                           \
        tl_set_last_error(NULL);                                      \
        CHECK_STATUS(import_exact((p), (e), (len), (ids)), (status)); \
        CHECK_ERROR_FROM("tl_kv_import");                             \
        CHECK_EQ(tl_kv_digest(p), digest_);                           \
    } while (0)

/* ---- sizes that lie ------------------------------------------------------ */

/* A header that claims 2^32-1 blocks over 32 bytes, and every truncation of it, is
 * TL_EFORMAT at once; nothing is allocated. */
CASE(a_claim_of_many_blocks_is_refused_before_anything_is_sized)
{
    const uint8_t claim[32] = {
        0x54, 0x4c, 0x4b, 0x56, 0x01, 0x00, 0x01, 0x00, 0xff, 0xff, 0xff, 0xff, 0x02, 0x00, 0x00, 0x00,
        0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x89, 0x39, 0x9f, 0x5e,
    };
    CHECK_EQ(slow_crc32c(claim, 28, 0), 0x5E9F3989u);
    tl_kv_pool *p = new_pool(worked_shape(3));
    size_t allocs = kit_allocs();
    uint32_t id = 99;
    for (size_t len = 0; len <= 32; len++) CHECK_IMPORT_REFUSED(p, claim, len, &id, TL_EFORMAT);
    for (size_t len = 0; len < 60; len++) CHECK_IMPORT_REFUSED(p, worked_envelope, len, &id, TL_EFORMAT);
    CHECK_EQ(id, 99);
    CHECK_EQ(kit_allocs(), allocs);
    end_pool(p);
}

/* A dimension of 0 makes the payload empty, however large the others are and whichever it
 * is: the length is right, and it is the shape that is refused. */
CASE(a_dimension_of_0_is_another_shape)
{
    tl_kv_pool *p = new_pool(worked_shape(3));
    uint32_t id = 99;
    for (int zero = 0; zero < 4; zero++) {
        uint32_t d[] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
        uint8_t e[28 + 12 + 4] = {0};
        d[zero] = 0;
        header(e, 1, d[0], d[1], d[2], d[3]);
        seal(e, sizeof e);
        CHECK_IMPORT_REFUSED(p, e, sizeof e, &id, TL_ESHAPE);
    }
    end_pool(p);
}

/* Headers whose length wraps around to the true one, in 32 or 64 bits, at any of its
 * products and sums, are TL_EFORMAT: TL_ESHAPE would mean that the length was believed. */
CASE(a_length_that_wraps_around_is_refused)
{
    static const struct {
        uint32_t n, B, L, H, D;
        size_t len; /* what the header implies modulo 2^64 or 2^32 */
    } wraps[] = {
        {0x40000000, 1, 0xFFFFFFFD, 1, 1, 32},                  /* (12 + P) n = 2^64 */
        {1, 0x80000000, 0x80000000, 1, 1, 44},                  /* P = 2^64 */
        {1, 0x10000, 0x10000, 0x10000, 0x10000, 44},            /* P = 2^66 */
        {2, 0x10000, 0x10000, 0x10000, 0x4000, 56},             /* P = 2^64 */
        {1, 0x40000000, 1, 1, 1, 44},                           /* P = 2^32 */
        {1, 0x8000, 0x8000, 1, 1, 44},                          /* P = 2^32 */
        {4, 0x3FFFFFFD, 1, 1, 1, 32},                           /* 12 + P = 2^32 */
        {0x10000000, 1, 1, 1, 1, 32},                           /* (12 + P) n = 2^32 */
        {0x80000000, 0x3FFFFFFF, 2, 1, 1, 32},
        {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 32},
        {1, 0x7FFFFFFF, 0x80000001, 1, 1, 40},                  /* P = 2^64 - 4: 12 + P wraps */
        {1, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 48}, /* P = 4 modulo 2^64 */
    };
    const uint8_t given[32] = {
        0x54, 0x4c, 0x4b, 0x56, 0x01, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x40, 0x01, 0x00, 0x00, 0x00,
        0xfd, 0xff, 0xff, 0xff, 0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x77, 0x77, 0x07, 0x55,
    };
    uint8_t e[60] = {0};
    uint32_t id = 99;
    tl_kv_pool *p = new_pool(worked_shape(3));
    CHECK_IMPORT_REFUSED(p, given, 32, &id, TL_EFORMAT);
    for (size_t i = 0; i < sizeof wraps / sizeof wraps[0]; i++) {
        header(e, wraps[i].n, wraps[i].B, wraps[i].L, wraps[i].H, wraps[i].D);
        memset(e + 28, 0, sizeof e - 28);
        seal(e, wraps[i].len);
        if (i == 0) CHECK_BYTES(e, given, 32);
        CHECK_IMPORT_REFUSED(p, e, wraps[i].len, &id, TL_EFORMAT);
    }
    CHECK_EQ(id, 99);
    end_pool(p);
}

/* Without records 32 bytes are the right length whatever the dimensions, which are
 * then compared; a right envelope of no blocks is taken, without a place for ids. */
CASE(an_envelope_of_no_blocks)
{
    uint8_t e[33] = {0};
    uint32_t id = 99;
    tl_kv_pool *p = new_pool(worked_shape(1));
    header(e, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX), seal(e, 32);
    CHECK_IMPORT_REFUSED(p, e, 32, &id, TL_ESHAPE);
    header(e, 0, 2, 1, 0, 2), seal(e, 32);
    CHECK_IMPORT_REFUSED(p, e, 32, &id, TL_ESHAPE);
    header(e, 0, 2, 1, 1, 2), seal(e, 33);
    CHECK_IMPORT_REFUSED(p, e, 33, &id, TL_EFORMAT);
    seal(e, 32);
    CHECK_QUIET(import_exact(p, e, 32, NULL), TL_OK);
    take(p);
    CHECK_QUIET(import_exact(p, e, 32, &id), TL_OK); /* a full pool has room for none */
    CHECK_EQ(id, 99);
    end_pool(p);
}

/* ---- the order of the checks --------------------------------------------- */

enum { MAGIC, VERSION_AND_DTYPE, LENGTH, CRC, DIMENSIONS, RECORD, IDS_OUT, ROOM, N_FAULTS };

/* Imports the worked envelope with these two faults (which may be one) into a pool of
 * the worked shape without room. Keeps the message, its figures as '#'. */
static tl_status import_with(int fault, int other, char *message)
{
    uint8_t e[WORKED_BYTES + 1];
    uint32_t id = 99, held;
    size_t len = WORKED_BYTES;
#define HAS(f) (fault == (f) || other == (f))
    memcpy(e, worked_envelope, len);
    e[len] = 0;
    if (HAS(MAGIC)) e[3] = 'W';
    if (HAS(VERSION_AND_DTYPE)) e[4] = 2, e[6] = 3;
    if (HAS(LENGTH)) len++;
    if (HAS(DIMENSIONS)) put_le(e + 12, 1, 4), put_le(e + 16, 2, 4);
    if (HAS(RECORD)) e[36] = 3;
    seal(e, len);
    if (HAS(CRC)) e[len - 1] ^= 1;

    tl_kv_pool *p = new_pool(worked_shape(1));
    if (HAS(ROOM)) held = take(p), put_values(p, held, 1);
    tl_set_last_error(NULL);
    tl_status status = import_exact(p, e, len, HAS(IDS_OUT) ? NULL : &id);
    const char *from = tl_last_error();
    while (*from) {
        if (isdigit((unsigned char)*from)) {
            *message++ = '#';
            while (isalnum((unsigned char)*from)) from++;
        } else {
            *message++ = *from++;
        }
    }
    *message = '\0';
    CHECK_ERROR_FROM("tl_kv_import");
    CHECK_EQ(id, 99);
    end_pool(p);
    return status;
}

/* Of two faults the earlier in the order is told: magic, version and dtype, length,
 * CRC, dimensions, records, ids_out, room. Each has a message of its own. */
CASE(the_first_fault_in_order_is_told)
{
    const tl_status statuses[N_FAULTS] = {TL_EFORMAT, TL_EFORMAT, TL_EFORMAT, TL_EFORMAT,
                                          TL_ESHAPE,  TL_EFORMAT, TL_EINVAL,  TL_EFULL};
    char alone[N_FAULTS][TL_LAST_ERROR_CAP], both[TL_LAST_ERROR_CAP];
    for (int fault = 0; fault < N_FAULTS; fault++) {
        CHECK_STATUS(import_with(fault, fault, alone[fault]), statuses[fault]);
        for (int before = 0; before < fault; before++) CHECK(strcmp(alone[before], alone[fault]) != 0);
    }
    for (int fault = 0; fault < N_FAULTS; fault++)
        for (int later = fault + 1; later < N_FAULTS; later++) {
            CHECK_STATUS(import_with(fault, later, both), statuses[fault]);
            CHECK_STR(both, alone[fault]);
        }
}

/* ---- no trace ------------------------------------------------------------ */

/* N 5: 0 held; 1, 2, 3 cached, 2 the oldest; 4 free. Every byte of the slab written. */
static tl_kv_pool *with_history(void)
{
    tl_kv_pool *p = new_pool(worked_shape(5));
    take(p);
    for (uint32_t id = 1; id <= 3; id++) take_registered(p, 10 + id);
    take(p);
    for (uint32_t id = 0; id < 5; id++) put_values(p, id, id);
    drop(p, 2), drop(p, 3), drop(p, 1), drop(p, 4);
    CHECK_COUNTS(p, 1, 1, 3);
    return p;
}

/* An envelope of n records; the last one's hash and n_tokens are given. */
static size_t envelope_ending(uint8_t *e, uint32_t n, uint64_t hash, uint32_t n_tokens)
{
    wire_block blocks[8];
    tl_kv_cfg cfg = worked_shape(1);
    for (uint32_t i = 0; i < n; i++) blocks[i] = (wire_block){100 + i, 2, worked_values};
    size_t len = write_envelope(e, &cfg, blocks, n);
    put_le(e + len - 4 - 28, hash, 8);
    put_le(e + len - 4 - 20, n_tokens, 4);
    seal(e, len);
    return len;
}

/* A bad last record, or one record more than there is room for, leaves counts,
 * evictions, their order, the next id, the slab and ids_out as they were. */
CASE(a_refused_import_leaves_no_trace)
{
    static const struct {
        uint32_t n;
        uint64_t hash;
        uint32_t n_tokens;
        tl_status status;
    } bad[] = {{3, 0, 0, TL_EFORMAT}, {3, 5, 0, TL_EFORMAT},          {3, 0, 3, TL_EFORMAT}, {3, 5, 3, TL_EFORMAT},
               {3, 5, 1, TL_EFORMAT}, {3, 0, UINT32_MAX, TL_EFORMAT}, {5, 5, 2, TL_EFULL},   {8, 0, 1, TL_EFULL}};
    uint8_t e[32 + 8 * 28];
    uint32_t ids[8], next[4];
    tl_kv_pool *p = with_history();
    uint64_t slab = tl_kv_slab_digest(p);
    size_t allocs = kit_allocs();
    memset(ids, 0x77, sizeof ids);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t len = envelope_ending(e, bad[i].n, bad[i].hash, bad[i].n_tokens);
        CHECK_IMPORT_REFUSED(p, e, len, ids, bad[i].status);
        CHECK_EQ(tl_kv_slab_digest(p), slab);
        for (size_t k = 0; k < 8; k++) CHECK_EQ(ids[k], 0x77777777u);
    }
    CHECK_EQ(kit_allocs(), allocs);
    CHECK_COUNTS(p, 1, 1, 3);
    CHECK_EVICTIONS(p, 0);
    const uint32_t order[4] = {4, 2, 3, 1};
    CHECK_STATUS(tl_kv_alloc(p, 4, next), TL_OK);
    for (size_t i = 0; i < 4; i++) CHECK_EQ(next[i], order[i]);
    end_pool(p);
}

/* Exactly as many records as free + cached fit; the blocks come in the order of an
 * allocation, the evicted names are gone, the new ones are there. */
CASE(an_import_may_take_all_the_room)
{
    uint8_t e[32 + 8 * 28];
    uint32_t ids[4], id = 99;
    const uint32_t order[4] = {4, 2, 3, 1};
    tl_kv_pool *p = with_history();
    size_t len = envelope_ending(e, 4, 0, 1);
    CHECK_QUIET(import_exact(p, e, len, ids), TL_OK);
    for (size_t i = 0; i < 4; i++) CHECK_EQ(ids[i], order[i]);
    CHECK_COUNTS(p, 0, 5, 0);
    CHECK_EVICTIONS(p, 3);
    for (uint64_t hash = 11; hash <= 13; hash++) CHECK_QUIET(tl_kv_lookup(p, hash, &id), TL_ENOTFOUND);
    for (uint32_t i = 0; i < 3; i++) CHECK_EQ(find(p, 100 + i), ids[i]);
    check_values(p, 0, 0);
    for (uint32_t i = 0; i < 3; i++) CHECK_BYTES(values_of(p, ids[i]), worked_values, 16);
    end_pool(p);
}

/* ---- names --------------------------------------------------------------- */

/* Two records with one hash: the first gets the name, the second is a private copy. */
CASE(of_two_records_with_one_hash_the_first_is_registered)
{
    const tl_kv_cfg cfg = worked_shape(3);
    const uint16_t others[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const wire_block blocks[3] = {{H0, 2, worked_values}, {H0, 2, others}, {H1, 2, others}};
    uint8_t e[32 + 3 * 28];
    uint32_t ids[3];
    tl_kv_pool *p = new_pool(cfg);
    CHECK_QUIET(import_exact(p, e, write_envelope(e, &cfg, blocks, 3), ids), TL_OK);
    CHECK_EQ(find(p, H0), ids[0]);
    CHECK_EQ(find(p, H1), ids[2]);
    CHECK_BYTES(values_of(p, ids[0]), worked_values, 16);
    CHECK_BYTES(values_of(p, ids[1]), others, 16);
    CHECK_STATUS(tl_kv_set_fill(p, ids[1], 1), TL_OK);
    drop(p, ids[1]);
    CHECK_COUNTS(p, 1, 2, 0);
    end_pool(p);
}

/* All blocks are taken before any is registered: a hash whose cached holder made the
 * room is registered anew, wherever in the envelope it stands. */
CASE(a_hash_whose_holder_made_the_room_is_registered_anew)
{
    const tl_kv_cfg cfg = worked_shape(2);
    const wire_block blocks[2] = {{H0, 2, worked_values}, {H1, 2, worked_values}};
    uint8_t e[32 + 2 * 28];
    for (int first = 0; first < 2; first++) { /* the one whose holder is evicted first */
        uint32_t ids[2] = {99, 99};
        tl_kv_pool *p = new_pool(cfg);
        uint32_t held[2];
        held[0] = take_registered(p, H0), held[1] = take_registered(p, H1);
        put_values(p, 0, 7), put_values(p, 1, 8);
        drop(p, held[first]), drop(p, held[!first]);
        CHECK_QUIET(import_exact(p, e, write_envelope(e, &cfg, blocks, 2), ids), TL_OK);
        CHECK_EQ(ids[0], held[first]);
        CHECK_EQ(ids[1], held[!first]);
        CHECK_EVICTIONS(p, 2);
        CHECK_EQ(find(p, H0), ids[0]);
        CHECK_EQ(find(p, H1), ids[1]);
        CHECK_BYTES(values_of(p, ids[0]), worked_values, 16);
        end_pool(p);
    }
}

/* A hash of all ones, or of one bit, is a hash like any other. */
CASE(any_hash_but_0_is_a_name)
{
    const uint64_t hashes[] = {1, UINT64_MAX, (uint64_t)1 << 63, 0xFFFFFFFF00000000u, 0x00000000FFFFFFFFu};
    const tl_kv_cfg cfg = worked_shape(5);
    uint8_t e[60];
    tl_kv_pool *p = new_pool(cfg);
    for (size_t i = 0; i < 5; i++) {
        const wire_block block = {hashes[i], 2, worked_values};
        uint32_t id = 99;
        CHECK_QUIET(import_exact(p, e, write_envelope(e, &cfg, &block, 1), &id), TL_OK);
        CHECK_EQ(find(p, hashes[i]), id);
    }
    end_pool(p);
}

CASES(a_claim_of_many_blocks_is_refused_before_anything_is_sized, a_length_that_wraps_around_is_refused,
      a_dimension_of_0_is_another_shape,
      an_envelope_of_no_blocks, the_first_fault_in_order_is_told, a_refused_import_leaves_no_trace,
      an_import_may_take_all_the_room, of_two_records_with_one_hash_the_first_is_registered,
      a_hash_whose_holder_made_the_room_is_registered_anew, any_hash_but_0_is_a_name)
