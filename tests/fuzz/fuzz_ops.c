/* fuzz_ops.c - bytes as a sequence of calls on a pool, each answer compared with a
 * model's. A byte is a call, those after it are its arguments. */

#include "fuzz.h"

enum { N = 5, B = 2, BYTES = 8, HASHES = 8, RECORDS = 3, ENVELOPE = 32 + RECORDS * (12 + BYTES) };

/* ---- the model ----------------------------------------------------------- */

typedef struct {
    uint32_t ref, fill, hash;
    uint8_t bytes[BYTES];
} block;

typedef struct {
    tl_kv_pool *pool;
    block blocks[N];
    uint32_t free_ids[N], n_free;  /* a stack */
    uint32_t cached[N], n_cached;  /* oldest first */
    uint32_t evictions;
    struct {
        uint32_t n;
        block records[RECORDS];
        uint8_t bytes[ENVELOPE];
        size_t size; /* 0: nothing has been exported yet */
    } sent;
} model;

static int used(const model *m, uint32_t id) { return id < N && m->blocks[id].ref > 0; }

static uint32_t room(const model *m) { return m->n_free + m->n_cached; }

/* The block registered under a hash, or N. */
static uint32_t holder(const model *m, uint32_t hash)
{
    uint32_t id = 0;
    while (id < N && (hash == 0 || m->blocks[id].hash != hash)) id++;
    return id;
}

static void uncache(model *m, uint32_t id)
{
    uint32_t i = 0;
    while (m->cached[i] != id) i++;
    m->n_cached--;
    for (; i < m->n_cached; i++) m->cached[i] = m->cached[i + 1];
}

static uint32_t model_take(model *m)
{
    uint32_t id;
    if (m->n_free) {
        id = m->free_ids[--m->n_free];
    } else {
        id = m->cached[0];
        uncache(m, id);
        m->evictions++;
    }
    m->blocks[id].ref = 1;
    m->blocks[id].fill = m->blocks[id].hash = 0;
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

/* What a block that was taken held before is not the model's business. */
static void read_bytes(model *m, uint32_t id) { memcpy(m->blocks[id].bytes, tl_kv_block_ptr(m->pool, id, 0, 0), BYTES); }

static void compare(const model *m)
{
    tl_kv_stats stats;
    tl_kv_stats_get(m->pool, &stats);
    REQUIRE_INTACT(m->pool);
    REQUIRE(stats.free == m->n_free && stats.cached == m->n_cached && stats.used == N - room(m));
    REQUIRE(stats.evictions == m->evictions);
    for (uint32_t id = 0; id < N; id++) {
        REQUIRE(tl_kv_fill(m->pool, id) == m->blocks[id].fill);
        if (used(m, id)) REQUIRE(memcmp(tl_kv_block_ptr(m->pool, id, 0, 0), m->blocks[id].bytes, BYTES) == 0);
    }
}

/* ---- the calls ----------------------------------------------------------- */

static void do_alloc(model *m, uint32_t n)
{
    uint32_t ids[N + 1];
    const tl_status expected = n > room(m) ? TL_EFULL : TL_OK;
    REQUIRE(tl_kv_alloc(m->pool, n, ids) == expected);
    for (uint32_t i = 0; expected == TL_OK && i < n; i++) {
        REQUIRE(ids[i] == model_take(m));
        read_bytes(m, ids[i]);
    }
}

static void do_ref(model *m, uint32_t id)
{
    tl_set_last_error(NULL);
    tl_kv_ref(m->pool, id);
    REQUIRE((*tl_last_error() == '\0') == used(m, id));
    if (used(m, id)) m->blocks[id].ref++;
}

static void do_unref(model *m, uint32_t id)
{
    REQUIRE(tl_kv_unref(m->pool, id) == (used(m, id) ? TL_OK : TL_EINVAL));
    if (used(m, id)) model_drop(m, id);
}

static void do_cow(model *m, uint32_t id)
{
    uint32_t out = 99;
    const int copies = used(m, id) && m->blocks[id].ref > 1;
    const tl_status expected = !used(m, id) ? TL_EINVAL : copies && room(m) == 0 ? TL_EFULL : TL_OK;
    REQUIRE(tl_kv_cow(m->pool, id, &out) == expected);
    if (expected != TL_OK) {
        REQUIRE(out == 99);
    } else if (!copies) {
        REQUIRE(out == id);
    } else {
        REQUIRE(out == model_take(m));
        m->blocks[out].fill = m->blocks[id].fill;
        memcpy(m->blocks[out].bytes, m->blocks[id].bytes, BYTES);
        model_drop(m, id);
    }
}

static void do_set_fill(model *m, uint32_t id, uint32_t n)
{
    const int allowed = used(m, id) && n <= B && !m->blocks[id].hash;
    REQUIRE(tl_kv_set_fill(m->pool, id, n) == (allowed ? TL_OK : TL_EINVAL));
    if (allowed) m->blocks[id].fill = n;
}

static void do_register(model *m, uint32_t id, uint32_t hash)
{
    tl_status expected = TL_OK;
    if (!used(m, id) || m->blocks[id].fill != B || hash == 0) expected = TL_EINVAL;
    else if (m->blocks[id].hash && m->blocks[id].hash != hash) expected = TL_EINVAL;
    else if (holder(m, hash) != N && holder(m, hash) != id) expected = TL_EBUSY;
    REQUIRE(tl_kv_register(m->pool, id, hash) == expected);
    if (expected == TL_OK) m->blocks[id].hash = hash;
}

static void do_lookup(model *m, uint32_t hash)
{
    uint32_t id = 99, expected = holder(m, hash);
    REQUIRE(tl_kv_lookup(m->pool, hash, &id) == (expected < N ? TL_OK : TL_ENOTFOUND));
    REQUIRE(id == (expected < N ? expected : 99));
    if (expected < N && m->blocks[id].ref++ == 0) uncache(m, id);
}

static void do_write(model *m, uint32_t id, uint8_t value)
{
    if (!used(m, id)) return;
    memset(tl_kv_block_ptr(m->pool, id, 0, 0), value, BYTES);
    memset(m->blocks[id].bytes, value, BYTES);
}

/* Exports the n blocks from `first` on, or learns the size from a buffer too small. */
static void do_export(model *m, uint32_t first, uint32_t n, int too_small)
{
    uint32_t ids[RECORDS];
    tl_status expected = TL_OK;
    const size_t size = 32 + n * (12 + BYTES);
    size_t written = 77;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = first + i;
        if (!used(m, ids[i]) || m->blocks[ids[i]].fill == 0) expected = TL_EINVAL;
    }
    if (expected == TL_OK && too_small) expected = TL_EFULL;
    uint8_t out[ENVELOPE];
    REQUIRE(tl_kv_export(m->pool, ids, n, out, too_small ? size - 1 : size, &written) == expected);
    REQUIRE(written == (expected == TL_EINVAL ? 77 : size));
    if (expected != TL_OK) return;
    memcpy(m->sent.bytes, out, size);
    m->sent.size = size;
    m->sent.n = n;
    for (uint32_t i = 0; i < n; i++) {
        block *record = &m->sent.records[i];
        *record = m->blocks[ids[i]];
        if (record->fill == 1) memset(record->bytes + 2, 0, 2), memset(record->bytes + 6, 0, 2); /* K and V */
    }
}

/* Imports what was exported last; with a bit flipped (of 1 .. 255) it is refused. */
static void do_import(model *m, uint8_t flip)
{
    uint32_t ids[RECORDS];
    uint8_t e[ENVELOPE];
    if (m->sent.size == 0) return;
    memcpy(e, m->sent.bytes, m->sent.size);
    if (flip) e[flip / 8 % m->sent.size] ^= (uint8_t)(1 << flip % 8);
    const tl_status expected = flip ? TL_EFORMAT : m->sent.n > room(m) ? TL_EFULL : TL_OK;
    REQUIRE(tl_kv_import(m->pool, e, m->sent.size, ids) == expected);
    if (expected != TL_OK) return;
    for (uint32_t i = 0; i < m->sent.n; i++) {
        REQUIRE(ids[i] == model_take(m));
        m->blocks[ids[i]].fill = m->sent.records[i].fill;
        memcpy(m->blocks[ids[i]].bytes, m->sent.records[i].bytes, BYTES);
    }
    for (uint32_t i = 0; i < m->sent.n; i++)
        if (holder(m, m->sent.records[i].hash) == N) m->blocks[ids[i]].hash = m->sent.records[i].hash;
}

/* ---- bytes to calls ------------------------------------------------------ */

typedef struct {
    const uint8_t *at, *end;
} bytes;

static uint8_t next(bytes *in) { return in->at < in->end ? *in->at++ : 0; }

/* An id, or one out of range. */
static uint32_t next_id(bytes *in)
{
    const uint8_t x = next(in) % (N + 2);
    return x == N + 1 ? UINT32_MAX : x;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes in = {data, data + size};
    model m = {.pool = fuzz_pool(N, B, 1), .n_free = N};
    for (uint32_t i = 0; i < N; i++) m.free_ids[i] = N - 1 - i;
    for (int calls = 0; in.at < in.end && calls < 100; calls++) {
        const uint8_t call = next(&in) % 10;
        uint32_t id;
        switch (call) {
        case 0: do_alloc(&m, next(&in) % (N + 2)); break;
        case 1: do_ref(&m, next_id(&in)); break;
        case 2: do_unref(&m, next_id(&in)); break;
        case 3: do_cow(&m, next_id(&in)); break;
        case 4: id = next_id(&in), do_set_fill(&m, id, next(&in) % (B + 2)); break;
        case 5: id = next_id(&in), do_register(&m, id, next(&in) % HASHES); break;
        case 6: do_lookup(&m, next(&in) % HASHES); break;
        case 7: id = next_id(&in), do_write(&m, id, next(&in)); break;
        case 8: id = next(&in) % N, do_export(&m, id, next(&in) % (RECORDS + 1), next(&in) % 4 == 3); break;
        default: do_import(&m, next(&in)); break;
        }
        compare(&m);
    }
    tl_kv_pool_destroy(m.pool);
    return 0;
}
