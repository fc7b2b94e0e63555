/* random_ops.c - see random_ops.h. */

#include "random_ops.h"

/* ---- the model ----------------------------------------------------------- */

typedef struct {
    uint32_t ref, fill;
    uint64_t hash;
    uint16_t values[RANDOM_OPS_MAX_VALUES];
} model_block;

enum { MAX_RECORDS = 4, N_ENVELOPES = 4 };

typedef struct {
    uint32_t n;
    struct {
        uint64_t hash;
        uint32_t n_tokens;
        uint16_t values[RANDOM_OPS_MAX_VALUES]; /* zeros past n_tokens */
    } records[MAX_RECORDS];
    uint8_t bytes[32 + MAX_RECORDS * (12 + 2 * RANDOM_OPS_MAX_VALUES)];
    size_t size;
} envelope;

/* Where a block is follows from two arrays: the stack of free ids and the queue of
 * cached ones, oldest first. What is in neither is held. */
typedef struct {
    tl_kv_cfg cfg;
    tl_kv_pool *pool;
    model_block blocks[RANDOM_OPS_MAX_BLOCKS];
    uint32_t free_ids[RANDOM_OPS_MAX_BLOCKS], n_free;
    uint32_t cached[RANDOM_OPS_MAX_BLOCKS], n_cached;
    uint32_t evictions;
    size_t n_values;
    envelope envelopes[N_ENVELOPES]; /* exported earlier; size 0: not yet */
    uint64_t random;
    int releasing; /* a phase in which more is given back than taken */
} model;

static uint64_t next_random(model *m)
{
    uint64_t x = m->random += 0x9E3779B97F4A7C15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static uint32_t below(model *m, uint32_t n) { return (uint32_t)(next_random(m) % n); }

/* An id, now and then out of range. */
static uint32_t any_id(model *m)
{
    return below(m, 40) ? below(m, m->cfg.n_blocks) : below(m, 2) ? m->cfg.n_blocks : UINT32_MAX;
}

static uint64_t any_hash(model *m) { return below(m, 40) ? 1 + below(m, m->cfg.n_blocks * 2) : 0; }

static int held(const model *m, uint32_t id) { return id < m->cfg.n_blocks && m->blocks[id].ref > 0; }

static int holder_of(const model *m, uint64_t hash, uint32_t *id)
{
    for (*id = 0; *id < m->cfg.n_blocks; ++*id)
        if (hash && m->blocks[*id].hash == hash) return 1;
    return 0;
}

static uint32_t model_take(model *m)
{
    uint32_t id;
    if (m->n_free) {
        id = m->free_ids[--m->n_free];
    } else {
        id = m->cached[0];
        m->n_cached--;
        memmove(m->cached, m->cached + 1, m->n_cached * sizeof m->cached[0]);
        m->evictions++;
    }
    m->blocks[id].ref = 1;
    m->blocks[id].fill = 0;
    m->blocks[id].hash = 0;
    return id;
}

static void model_drop(model *m, uint32_t id)
{
    if (--m->blocks[id].ref) return;
    if (m->blocks[id].hash) {
        m->cached[m->n_cached++] = id;
    } else {
        m->blocks[id].fill = 0;
        m->free_ids[m->n_free++] = id;
    }
}

static void model_hold(model *m, uint32_t id)
{
    if (m->blocks[id].ref++) return;
    uint32_t i = 0;
    while (m->cached[i] != id) i++;
    m->n_cached--;
    memmove(m->cached + i, m->cached + i + 1, (m->n_cached - i) * sizeof m->cached[0]);
}

/* Whether value i of a block is one of the first n_tokens positions. */
static int filled(const model *m, size_t i, uint32_t n_tokens)
{
    return i / m->cfg.head_dim % m->cfg.block_tokens < n_tokens;
}

/* ---- the calls ----------------------------------------------------------- */

/* The call answers as expected, and the slot has a message of its own, or for an
 * answer that is no failure the one before. */
#define CHECK_ANSWER(call, expected)                                            \
    do {                                                                        \
        tl_status want_ = (expected);                                           \
        tl_set_last_error("earlier");                                           \
        CHECK_STATUS(call, want_);                                              \
        if (want_ == TL_OK || want_ == TL_ENOTFOUND)                            \
            CHECK_STR(tl_last_error(), "earlier");                              \
        else                                                                    \
            CHECK_ERROR_FROM(function_of(#call));                               \
    } while (0)

/* A holder writes, where it is alone and the block is not published. */
static void op_write(model *m, uint32_t id)
{
    if (!held(m, id) || m->blocks[id].ref > 1 || m->blocks[id].hash) return;
    uint16_t *values = values_of(m->pool, id);
    for (size_t i = 0; i < m->n_values; i++) values[i] = m->blocks[id].values[i] = (uint16_t)next_random(m);
}

static void op_alloc(model *m, uint32_t n)
{
    uint32_t ids[RANDOM_OPS_MAX_BLOCKS + 1];
    tl_status expected = n > m->n_free + m->n_cached ? TL_EFULL : TL_OK;
    for (uint32_t i = 0; i < n; i++) ids[i] = UINT32_MAX;
    CHECK_ANSWER(tl_kv_alloc(m->pool, n, ids), expected);
    for (uint32_t i = 0; i < n; i++) CHECK_EQ(ids[i], expected == TL_OK ? model_take(m) : UINT32_MAX);
    if (expected == TL_OK)
        for (uint32_t i = 0; i < n; i++) op_write(m, ids[i]);
}

static void op_ref(model *m, uint32_t id)
{
    tl_set_last_error("earlier");
    tl_kv_ref(m->pool, id);
    if (held(m, id)) {
        m->blocks[id].ref++;
        CHECK_STR(tl_last_error(), "earlier");
    } else {
        CHECK_ERROR_FROM("tl_kv_ref");
    }
}

static void op_unref(model *m, uint32_t id)
{
    CHECK_ANSWER(tl_kv_unref(m->pool, id), held(m, id) ? TL_OK : TL_EINVAL);
    if (held(m, id)) model_drop(m, id);
}

static void op_cow(model *m, uint32_t id)
{
    uint32_t out = UINT32_MAX;
    int copies = held(m, id) && m->blocks[id].ref > 1;
    tl_status expected = !held(m, id) ? TL_EINVAL : copies && m->n_free + m->n_cached == 0 ? TL_EFULL : TL_OK;
    CHECK_ANSWER(tl_kv_cow(m->pool, id, &out), expected);
    if (expected != TL_OK) {
        CHECK_EQ(out, UINT32_MAX);
    } else if (!copies) {
        CHECK_EQ(out, id);
    } else {
        uint32_t copy = model_take(m);
        CHECK_EQ(out, copy);
        m->blocks[copy].fill = m->blocks[id].fill;
        memcpy(m->blocks[copy].values, m->blocks[id].values, sizeof m->blocks[id].values);
        model_drop(m, id);
    }
}

static void op_set_fill(model *m, uint32_t id, uint32_t n_tokens)
{
    int ok = held(m, id) && n_tokens <= m->cfg.block_tokens && !m->blocks[id].hash;
    CHECK_ANSWER(tl_kv_set_fill(m->pool, id, n_tokens), ok ? TL_OK : TL_EINVAL);
    if (ok) m->blocks[id].fill = n_tokens;
}

static void op_register(model *m, uint32_t id, uint64_t hash)
{
    uint32_t holder;
    tl_status expected = TL_OK;
    if (!held(m, id) || !hash || m->blocks[id].fill != m->cfg.block_tokens ||
        (m->blocks[id].hash && m->blocks[id].hash != hash))
        expected = TL_EINVAL;
    else if (holder_of(m, hash, &holder) && holder != id)
        expected = TL_EBUSY;
    CHECK_ANSWER(tl_kv_register(m->pool, id, hash), expected);
    if (expected == TL_OK) m->blocks[id].hash = hash;
}

static void op_lookup(model *m, uint64_t hash)
{
    uint32_t id = UINT32_MAX, holder;
    int hit = holder_of(m, hash, &holder);
    CHECK_ANSWER(tl_kv_lookup(m->pool, hash, &id), hit ? TL_OK : TL_ENOTFOUND);
    CHECK_EQ(id, hit ? holder : UINT32_MAX);
    if (hit) model_hold(m, holder);
}

static void op_export(model *m)
{
    envelope *e = &m->envelopes[below(m, N_ENVELOPES)], fresh = {.n = below(m, MAX_RECORDS + 1)};
    uint32_t ids[MAX_RECORDS];
    uint8_t bytes[sizeof fresh.bytes + 1];
    wire_block blocks[MAX_RECORDS];
    size_t written = 77;
    int ok = 1;

    for (uint32_t i = 0; i < fresh.n; i++) {
        ids[i] = any_id(m);
        if (!held(m, ids[i]) || m->blocks[ids[i]].fill == 0) {
            ok = 0;
            continue;
        }
        const model_block *b = &m->blocks[ids[i]];
        fresh.records[i].hash = b->hash;
        fresh.records[i].n_tokens = b->fill;
        for (size_t v = 0; v < m->n_values; v++)
            fresh.records[i].values[v] = filled(m, v, b->fill) ? b->values[v] : 0;
        blocks[i] = (wire_block){b->hash, b->fill, b->values};
    }
    memset(bytes, 0xEE, sizeof bytes);
    if (!ok) {
        CHECK_ANSWER(tl_kv_export(m->pool, ids, fresh.n, bytes, sizeof bytes, &written), TL_EINVAL);
        CHECK_EQ(written, 77);
        CHECK_EQ(bytes[0], 0xEE);
        return;
    }
    fresh.size = write_envelope(fresh.bytes, &m->cfg, blocks, fresh.n);
    if (!below(m, 8)) {
        CHECK_ANSWER(tl_kv_export(m->pool, ids, fresh.n, bytes, fresh.size - 1, &written), TL_EFULL);
        CHECK_EQ(bytes[0], 0xEE);
    } else {
        CHECK_ANSWER(tl_kv_export(m->pool, ids, fresh.n, bytes, fresh.size, &written), TL_OK);
        CHECK_BYTES(bytes, fresh.bytes, fresh.size);
        CHECK_EQ(bytes[fresh.size], 0xEE);
        *e = fresh;
    }
    CHECK_EQ(written, fresh.size);
}

static void op_import(model *m)
{
    const envelope *e = &m->envelopes[below(m, N_ENVELOPES)];
    uint32_t ids[MAX_RECORDS] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    uint8_t bytes[sizeof e->bytes];
    uint32_t damage = below(m, 8);
    size_t size = e->size;
    if (size == 0) return;
    memcpy(bytes, e->bytes, size);
    if (damage == 0) bytes[below(m, (uint32_t)size)] ^= (uint8_t)(1u << below(m, 8));
    if (damage == 1) size = below(m, (uint32_t)size);

    tl_status expected = damage <= 1 ? TL_EFORMAT : e->n > m->n_free + m->n_cached ? TL_EFULL : TL_OK;
    CHECK_ANSWER(tl_kv_import(m->pool, bytes, size, ids), expected);
    if (expected != TL_OK) {
        for (uint32_t i = 0; i < MAX_RECORDS; i++) CHECK_EQ(ids[i], UINT32_MAX);
        return;
    }
    for (uint32_t i = 0; i < e->n; i++) {
        uint32_t id = model_take(m);
        CHECK_EQ(ids[i], id);
        m->blocks[id].fill = e->records[i].n_tokens;
        const uint16_t *values = values_of(m->pool, id);
        for (size_t v = 0; v < m->n_values; v++) {
            if (filled(m, v, e->records[i].n_tokens)) CHECK_EQ(values[v], e->records[i].values[v]);
            m->blocks[id].values[v] = values[v]; /* past the fill it is what it is */
        }
    }
    for (uint32_t i = 0; i < e->n; i++) {
        uint32_t holder;
        if (!holder_of(m, e->records[i].hash, &holder)) m->blocks[ids[i]].hash = e->records[i].hash;
    }
}

/* One call by chance. Ids come from all blocks, so that bad ones are frequent. */
static void random_op(model *m)
{
    uint32_t id = any_id(m);
    switch (below(m, 16)) {
    case 0: op_alloc(m, below(m, 3)); break;
    case 1: op_alloc(m, m->releasing ? 0 : below(m, m->cfg.n_blocks + 2)); break;
    case 2: op_ref(m, id); break;
    case 3: op_cow(m, id); break;
    case 4: op_set_fill(m, id, below(m, m->cfg.block_tokens + 2)); break;
    case 5: op_register(m, id, any_hash(m)); break;
    case 6: op_export(m); break;
    case 7: op_import(m); break;
    case 8: op_write(m, id); break;
    case 9:
    case 10:
        op_set_fill(m, id, m->cfg.block_tokens);
        op_register(m, id, any_hash(m));
        break;
    case 11:
    case 12: op_lookup(m, any_hash(m)); break;
    default:
        for (int i = 0; i < (m->releasing ? 4 : 1); i++) op_unref(m, any_id(m));
    }
}

/* ---- a run --------------------------------------------------------------- */

static void check_state(const model *m)
{
    const char *broken = tl_kv_check(m->pool);
    CHECK_STR(broken ? broken : "intact", "intact");
    CHECK_COUNTS(m->pool, m->n_free, m->cfg.n_blocks - m->n_free - m->n_cached, m->n_cached);
    CHECK_EVICTIONS(m->pool, m->evictions);
    for (uint32_t id = 0; id < m->cfg.n_blocks; id++) {
        CHECK_EQ(tl_kv_fill(m->pool, id), m->blocks[id].fill);
        if (held(m, id)) CHECK_BYTES(values_of(m->pool, id), m->blocks[id].values, m->n_values * sizeof(uint16_t));
    }
}

void random_ops(tl_kv_cfg cfg, uint64_t seed, size_t n_steps, unsigned occupied_percent)
{
    static model m;
    m = (model){.cfg = cfg, .pool = new_pool(cfg), .n_free = cfg.n_blocks, .random = seed};
    m.n_values = n_values(m.pool);
    CHECK(cfg.n_blocks <= RANDOM_OPS_MAX_BLOCKS && m.n_values <= RANDOM_OPS_MAX_VALUES);
    for (uint32_t i = 0; i < cfg.n_blocks; i++) m.free_ids[i] = cfg.n_blocks - 1 - i;
    size_t allocs = kit_allocs();

    for (size_t step = 0; step < n_steps; step++) {
        if (step % 128 == 0) m.releasing = (int)below(&m, 2);
        random_op(&m);
        while ((cfg.n_blocks - m.n_free) * 100 < cfg.n_blocks * occupied_percent) op_alloc(&m, 1);
        check_state(&m);
    }
    CHECK_EQ(kit_allocs(), allocs);
    end_pool(m.pool);
}
