/* kv_pool.c - the paged KV block pool (tinyllm/kv_pool.h).
 *
 * The policy, numbered as in the code that carries it out (kv_pool_impl.h):
 *   (1) a fresh block is a free one, the last one freed first, as long as there is one;
 *   (2) then it is the least recently used cached one, which loses its name.
 */

#include "tinyllm/kv_pool.h"

#include "crc32c.h"
#include "fnv1a.h"
#include "kv_pool_impl.h"

#include <string.h>

/* ---- create and destroy -------------------------------------------------- */

/* The bytes of one block with these dimensions: none where one is 0, whatever the others
 * are. Returns 0 where u64 cannot hold it. */
static int payload_bytes(uint32_t tokens, uint32_t layers, uint32_t heads, uint32_t dim, uint64_t *bytes)
{
    const uint32_t factors[] = {tokens, layers, heads, dim};
    uint64_t product = 2 * sizeof(uint16_t); /* K and V, f16 */
    int fits = 1;
    for (unsigned i = 0; i < 4; i++) {
        if (factors[i] == 0) {
            *bytes = 0;
            return 1;
        }
        fits &= !__builtin_mul_overflow(product, factors[i], &product);
    }
    *bytes = product;
    return fits;
}

/* One and a quarter times as many keys as there can be: with the index below about
 * two thirds full its searches are short and tombstones rare, at every n_blocks. It
 * fits in size_t because n_blocks records do, which are larger. */
static size_t index_hint(size_t n_blocks) { return n_blocks + n_blocks / 4; }

static tl_status take_memory(tl_kv_pool *p, size_t slab_bytes, size_t record_bytes)
{
    const size_t n = p->cfg.n_blocks;
    p->slab = tl_alloc(slab_bytes, 64);
    p->blocks = tl_alloc(record_bytes, 64);
    if (!p->slab || !p->blocks) return TL_ENOMEM;

    tl_vec_init(&p->free_ids, sizeof(uint32_t));
    tl_status status = tl_vec_reserve(&p->free_ids, n);
    if (status == TL_OK) status = tl_map_create(index_hint(n), &p->index);
    return status;
}

tl_status tl_kv_pool_create(const tl_kv_cfg *cfg, tl_kv_pool **out)
{
    if (out) *out = NULL;
    if (!cfg || !out) return kv_fail(TL_EINVAL, "tl_kv_pool_create: %s is NULL", cfg ? "out" : "cfg");
    if (cfg->format != TL_KV_FORMAT_V1)
        return kv_fail(TL_EUNSUPPORTED, "tl_kv_pool_create: format %u is not supported, only 1", cfg->format);
    if (cfg->dtype != TL_F16)
        return kv_fail(TL_EUNSUPPORTED, "tl_kv_pool_create: dtype %d is not supported, only TL_F16 (1)", cfg->dtype);
    if (!cfg->n_blocks || !cfg->block_tokens || !cfg->n_layers || !cfg->n_kv_heads || !cfg->head_dim)
        return kv_fail(TL_EINVAL,
                       "tl_kv_pool_create: a dimension is 0 (n_blocks %u, block_tokens %u, n_layers %u, "
                       "n_kv_heads %u, head_dim %u)",
                       cfg->n_blocks, cfg->block_tokens, cfg->n_layers, cfg->n_kv_heads, cfg->head_dim);
    uint64_t bytes;
    size_t slab, records;
    if (!payload_bytes(cfg->block_tokens, cfg->n_layers, cfg->n_kv_heads, cfg->head_dim, &bytes) ||
        __builtin_mul_overflow(bytes, cfg->n_blocks, &slab) ||
        __builtin_mul_overflow(sizeof(kv_block), cfg->n_blocks, &records))
        return kv_fail(TL_EINVAL, "tl_kv_pool_create: the size does not fit in size_t");

    tl_kv_pool *p = tl_alloc(sizeof *p, _Alignof(tl_kv_pool));
    if (!p) return kv_fail(TL_ENOMEM, "tl_kv_pool_create: no memory for the pool");
    memset(p, 0, sizeof *p);
    p->cfg = *cfg;
    p->block_bytes = (size_t)bytes;
    tl_status status = take_memory(p, slab, records);
    if (status != TL_OK) {
        tl_kv_pool_destroy(p);
        return kv_fail(status, "tl_kv_pool_create: %s for %u blocks of %llu bytes",
                       status == TL_ENOMEM ? "no memory" : "no index in size_t", cfg->n_blocks,
                       (unsigned long long)bytes);
    }
    memset(p->blocks, 0, records);
    tl_lru_init(&p->lru);
    for (uint32_t id = cfg->n_blocks; id-- > 0;) kv_push_free(p, id); /* 0 is on top */
    *out = p;
    return TL_OK;
}

void tl_kv_pool_destroy(tl_kv_pool *p)
{
    if (!p) return;
    if (p->slab) KV_UNPOISON(p->slab, p->cfg.n_blocks * p->block_bytes);
    tl_map_destroy(p->index);
    tl_vec_free(&p->free_ids);
    tl_free(p->blocks);
    tl_free(p->slab);
    tl_free(p);
}

void tl_kv_pool_cfg(const tl_kv_pool *p, tl_kv_cfg *out)
{
    if (out) *out = p ? p->cfg : (tl_kv_cfg){0};
}

void tl_kv_stats_get(const tl_kv_pool *p, tl_kv_stats *out)
{
    if (!out) return;
    *out = (tl_kv_stats){0};
    if (!p) return;
    out->free = (uint32_t)p->free_ids.len;
    out->cached = (uint32_t)p->lru.len;
    out->used = p->cfg.n_blocks - out->free - out->cached;
    out->evictions = p->evictions;
}

/* ---- holding blocks ------------------------------------------------------ */

tl_status tl_kv_alloc(tl_kv_pool *p, uint32_t n, uint32_t *ids)
{
    if (!p) return kv_fail(TL_EINVAL, "tl_kv_alloc: the pool is NULL");
    if (n == 0) return TL_OK;
    if (!ids) return kv_fail(TL_EINVAL, "tl_kv_alloc: ids is NULL");
    if (n > kv_room(p))
        return kv_fail(TL_EFULL, "tl_kv_alloc: %u blocks asked for, %zu free and %zu cached", n, p->free_ids.len,
                       p->lru.len);
    for (uint32_t i = 0; i < n; i++) ids[i] = kv_take(p);
    return TL_OK;
}

void tl_kv_ref(tl_kv_pool *p, uint32_t id)
{
    const char *why = kv_why_not_used(p, id);
    if (why)
        kv_fail(TL_EINVAL, "tl_kv_ref: block %u %s", id, why);
    else if (p->blocks[id].ref == UINT32_MAX)
        kv_fail(TL_EINVAL, "tl_kv_ref: block %u has as many holders as can be counted", id);
    else
        p->blocks[id].ref++;
}

tl_status tl_kv_unref(tl_kv_pool *p, uint32_t id)
{
    const char *why = kv_why_not_used(p, id);
    if (why) return kv_fail(TL_EINVAL, "tl_kv_unref: block %u %s", id, why);
    kv_drop(p, id);
    return TL_OK;
}

tl_status tl_kv_cow(tl_kv_pool *p, uint32_t id, uint32_t *out)
{
    if (!p || !out) return kv_fail(TL_EINVAL, "tl_kv_cow: %s is NULL", p ? "out" : "the pool");
    const char *why = kv_why_not_used(p, id);
    if (why) return kv_fail(TL_EINVAL, "tl_kv_cow: block %u %s", id, why);
    if (p->blocks[id].ref == 1) {
        *out = id;
        return TL_OK;
    }
    if (kv_room(p) == 0) return kv_fail(TL_EFULL, "tl_kv_cow: no block is free or cached for a copy of block %u", id);
    uint32_t copy = kv_take(p);
    memcpy(kv_bytes(p, copy), kv_bytes(p, id), p->block_bytes);
    p->blocks[copy].fill = p->blocks[id].fill;
    kv_drop(p, id);
    *out = copy;
    return TL_OK;
}

tl_status tl_kv_set_fill(tl_kv_pool *p, uint32_t id, uint32_t n_tokens)
{
    const char *why = kv_why_not_used(p, id);
    if (why) return kv_fail(TL_EINVAL, "tl_kv_set_fill: block %u %s", id, why);
    if (n_tokens > p->cfg.block_tokens)
        return kv_fail(TL_EINVAL, "tl_kv_set_fill: %u tokens, a block has %u", n_tokens, p->cfg.block_tokens);
    if (p->blocks[id].hash) return kv_fail(TL_EINVAL, "tl_kv_set_fill: block %u is registered", id);
    p->blocks[id].fill = n_tokens;
    return TL_OK;
}

uint32_t tl_kv_fill(const tl_kv_pool *p, uint32_t id) { return p && kv_in_range(p, id) ? p->blocks[id].fill : 0; }

void *tl_kv_block_ptr(const tl_kv_pool *p, uint32_t id, uint32_t layer, int is_v)
{
    if (!p) {
        kv_fail(TL_EINVAL, "tl_kv_block_ptr: the pool is NULL");
        return NULL;
    }
    if (!kv_in_range(p, id) || layer >= p->cfg.n_layers) {
        kv_fail(TL_EINVAL, "tl_kv_block_ptr: block %u, layer %u is out of range", id, layer);
        return NULL;
    }
    size_t half_layer = p->block_bytes / p->cfg.n_layers / 2;
    return kv_bytes(p, id) + ((size_t)layer * 2 + !!is_v) * half_layer;
}

size_t tl_kv_block_bytes(const tl_kv_pool *p) { return p ? p->block_bytes : 0; }

/* ---- the prefix index ---------------------------------------------------- */

uint64_t tl_kv_block_hash(uint64_t parent, const uint32_t *toks, uint32_t n)
{
    if (!toks && n) {
        kv_fail(TL_EINVAL, "tl_kv_block_hash: toks is NULL");
        return 0;
    }
    uint64_t hash = fnv1a64_tokens(fnv1a64_u64(FNV1A64_START, parent), toks, n);
    return hash ? hash : 1;
}

tl_status tl_kv_register(tl_kv_pool *p, uint32_t id, uint64_t hash)
{
    const char *why = kv_why_not_used(p, id);
    if (why) return kv_fail(TL_EINVAL, "tl_kv_register: block %u %s", id, why);
    kv_block *b = &p->blocks[id];
    if (hash == 0) return kv_fail(TL_EINVAL, "tl_kv_register: hash 0 means no hash");
    if (!kv_is_full(p, b))
        return kv_fail(TL_EINVAL, "tl_kv_register: block %u holds %u of %u tokens: not full", id, b->fill,
                       p->cfg.block_tokens);
    if (b->hash == hash) return TL_OK;
    if (b->hash) return kv_fail(TL_EINVAL, "tl_kv_register: block %u is registered under another hash", id);
    uint32_t holder;
    if (kv_find(p, hash, &holder))
        return kv_fail(TL_EBUSY, "tl_kv_register: block %u holds hash 0x%016llx", holder, (unsigned long long)hash);
    tl_status status = tl_map_put(p->index, hash, id);
    if (status != TL_OK) return kv_fail(status, "tl_kv_register: the index has no memory to grow");
    b->hash = hash;
    return TL_OK;
}

tl_status tl_kv_lookup(tl_kv_pool *p, uint64_t hash, uint32_t *id)
{
    uint32_t found;
    if (!p || !id) return kv_fail(TL_EINVAL, "tl_kv_lookup: %s is NULL", p ? "id" : "the pool");
    if (!kv_find(p, hash, &found)) return TL_ENOTFOUND;
    if (p->blocks[found].ref == UINT32_MAX)
        return kv_fail(TL_EINVAL, "tl_kv_lookup: block %u has as many holders as can be counted", found);
    kv_hold(p, found);
    *id = found;
    return TL_OK;
}

/* ---- the envelope: writing ----------------------------------------------- */

#define RECORD_HEADER 12u /* hash and n_tokens */
#define TRAILER 4u        /* the CRC */

/* Where the next byte goes, and the CRC of all before it. */
typedef struct {
    unsigned char *at;
    uint32_t crc;
    int stream; /* long runs go past the cache */
} writer;

static void write_bytes(writer *w, const unsigned char *bytes, size_t n)
{
    w->crc = crc32c_copy(w->crc, w->at, bytes, n, w->stream);
    w->at += n;
}

static void write_zeros(writer *w, size_t n)
{
    static const unsigned char zeros[4096];
    for (size_t m; n; n -= m) {
        m = n < sizeof zeros ? n : sizeof zeros;
        write_bytes(w, zeros, m);
    }
}

static void write_le(writer *w, uint64_t value, size_t n)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)(value >> (8 * i));
    write_bytes(w, bytes, n);
}

static void write_f16(writer *w, const unsigned char *values, size_t n)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (size_t i = 0; i < n; i += 2) write_le(w, (uint64_t)values[i] << 8 | values[i + 1], 2);
#else
    write_bytes(w, values, n);
#endif
}

/* A block's payload: rows [head_dim] up to the fill, then zeros, in each
 * [block_tokens][head_dim] plane. A full block is one run. */
static void write_payload(writer *w, const tl_kv_pool *p, uint32_t id)
{
    const kv_block *b = &p->blocks[id];
    const unsigned char *plane = kv_bytes(p, id);
    if (kv_is_full(p, b)) {
        write_f16(w, plane, p->block_bytes);
        return;
    }
    const size_t row = (size_t)p->cfg.head_dim * 2, filled = b->fill * row, whole = p->cfg.block_tokens * row;
    for (const unsigned char *end = plane + p->block_bytes; plane < end; plane += whole) {
        write_f16(w, plane, filled);
        write_zeros(w, whole - filled);
    }
}

size_t tl_kv_export_bytes(const tl_kv_pool *p, uint32_t n)
{
    const size_t fixed = TL_KV_ENVELOPE_HEADER + TRAILER;
    size_t record, records, total;
    if (!p) return 0;
    if (__builtin_add_overflow(p->block_bytes, RECORD_HEADER, &record) ||
        __builtin_mul_overflow(record, n, &records) || __builtin_add_overflow(records, fixed, &total)) {
        kv_fail(TL_EINVAL, "tl_kv_export_bytes: the size of %u blocks does not fit in size_t", n);
        return SIZE_MAX;
    }
    return total;
}

tl_status tl_kv_export(const tl_kv_pool *p, const uint32_t *ids, uint32_t n, void *buf, size_t cap, size_t *written)
{
    if (!p || !written) return kv_fail(TL_EINVAL, "tl_kv_export: %s is NULL", p ? "written" : "the pool");
    if (!ids && n) return kv_fail(TL_EINVAL, "tl_kv_export: ids is NULL");
    for (uint32_t i = 0; i < n; i++) {
        const char *why = kv_why_not_used(p, ids[i]);
        if (!why && p->blocks[ids[i]].fill == 0) why = "is empty (fill 0)";
        if (why) return kv_fail(TL_EINVAL, "tl_kv_export: block %u %s", ids[i], why);
    }
    const size_t size = tl_kv_export_bytes(p, n);
    if (size == SIZE_MAX) return kv_fail(TL_EINVAL, "tl_kv_export: the size of %u blocks does not fit in size_t", n);
    if (!buf || cap < size) {
        *written = size;
        return kv_fail(TL_EFULL, "tl_kv_export: %zu bytes needed, %zu given", size, buf ? cap : 0);
    }

    writer w = {buf, 0, size >= CRC32C_STREAM_FROM};
    write_bytes(&w, (const unsigned char *)TL_KV_MAGIC, 4);
    write_le(&w, TL_KV_FORMAT_V1, 2);
    write_le(&w, TL_F16, 2);
    write_le(&w, n, 4);
    write_le(&w, p->cfg.block_tokens, 4);
    write_le(&w, p->cfg.n_layers, 4);
    write_le(&w, p->cfg.n_kv_heads, 4);
    write_le(&w, p->cfg.head_dim, 4);
    for (uint32_t i = 0; i < n; i++) {
        write_le(&w, p->blocks[ids[i]].hash, 8);
        write_le(&w, p->blocks[ids[i]].fill, 4);
        write_payload(&w, p, ids[i]);
    }
    write_le(&w, w.crc, TRAILER);
    if (w.stream) stream_fence();
    *written = size;
    return TL_OK;
}

/* ---- the envelope: reading ----------------------------------------------- */

static uint64_t read_le(const unsigned char *at, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static uint32_t read_u32(const unsigned char *at) { return (uint32_t)read_le(at, 4); }

static void read_f16(unsigned char *values, const unsigned char *at, size_t n, int stream)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    (void)stream;
    for (size_t i = 0; i < n; i += 2) {
        values[i] = at[i + 1];
        values[i + 1] = at[i];
    }
#else
    copy_bytes(values, at, n, stream);
#endif
}

/* Whether len is the length that the header implies. No figure of the header is
 * trusted: what does not fit in 64 bits is no length. */
static int length_is_implied(const unsigned char *e, size_t len)
{
    uint64_t payload, records, n = read_u32(e + 8);
    int fits = payload_bytes(read_u32(e + 12), read_u32(e + 16), read_u32(e + 20), read_u32(e + 24), &payload);
    if (n == 0) return len == TL_KV_ENVELOPE_HEADER + TRAILER;
    return fits && !__builtin_add_overflow(payload, RECORD_HEADER, &payload) &&
           !__builtin_mul_overflow(n, payload, &records) && records == len - TL_KV_ENVELOPE_HEADER - TRAILER;
}

/* Rules 1, 2 and 3, which need no pool. */
static tl_status check_envelope(const unsigned char *e, size_t len)
{
    const size_t least = TL_KV_ENVELOPE_HEADER + TRAILER;
    if (len < least) return kv_fail(TL_EFORMAT, "tl_kv_import: %zu bytes, an envelope has at least %zu", len, least);
    if (memcmp(e, TL_KV_MAGIC, 4) != 0) return kv_fail(TL_EFORMAT, "tl_kv_import: the magic is not TLKV");
    unsigned version = (unsigned)read_le(e + 4, 2), dtype = (unsigned)read_le(e + 6, 2);
    if (version != TL_KV_FORMAT_V1)
        return kv_fail(TL_EFORMAT, "tl_kv_import: version %u, only version 1 is read", version);
    if (dtype != TL_F16) return kv_fail(TL_EFORMAT, "tl_kv_import: dtype %u, version 1 has dtype 1 (f16)", dtype);
    if (!length_is_implied(e, len))
        return kv_fail(TL_EFORMAT, "tl_kv_import: %zu bytes are not the length that the header implies", len);
    uint32_t stated = read_u32(e + len - TRAILER), crc = crc32c(0, e, len - TRAILER);
    if (stated != crc) return kv_fail(TL_EFORMAT, "tl_kv_import: the CRC is 0x%08x, the envelope states 0x%08x", crc, stated);
    return TL_OK;
}

/* Rules 4 and 5. */
static tl_status check_against_pool(const tl_kv_pool *p, const unsigned char *e)
{
    const tl_kv_cfg *c = &p->cfg;
    const uint32_t n = read_u32(e + 8), B = read_u32(e + 12), L = read_u32(e + 16), H = read_u32(e + 20),
                   D = read_u32(e + 24);
    if (B != c->block_tokens || L != c->n_layers || H != c->n_kv_heads || D != c->head_dim)
        return kv_fail(TL_ESHAPE,
                       "tl_kv_import: the envelope has B %u, L %u, H %u, D %u, the pool B %u, L %u, H %u, D %u", B, L,
                       H, D, c->block_tokens, c->n_layers, c->n_kv_heads, c->head_dim);
    const unsigned char *record = e + TL_KV_ENVELOPE_HEADER;
    for (uint32_t i = 0; i < n; i++, record += RECORD_HEADER + p->block_bytes) {
        uint32_t fill = read_u32(record + 8);
        if (fill == 0 || fill > B)
            return kv_fail(TL_EFORMAT, "tl_kv_import: record %u has n_tokens %u, not in 1 .. %u", i, fill, B);
        if (fill < B && read_le(record, 8) != 0)
            return kv_fail(TL_EFORMAT, "tl_kv_import: record %u has a hash but only %u of %u tokens", i, fill, B);
    }
    return TL_OK;
}

tl_status tl_kv_import(tl_kv_pool *p, const void *buf, size_t len, uint32_t *ids_out)
{
    if (!p || !buf) return kv_fail(TL_EINVAL, "tl_kv_import: %s is NULL", p ? "buf" : "the pool");
    const unsigned char *e = buf;
    tl_status status = check_envelope(e, len);
    if (status == TL_OK) status = check_against_pool(p, e);
    if (status != TL_OK) return status;
    const uint32_t n = (uint32_t)((len - TL_KV_ENVELOPE_HEADER - TRAILER) / (RECORD_HEADER + p->block_bytes));
    if (!ids_out && n) return kv_fail(TL_EINVAL, "tl_kv_import: ids_out is NULL");
    if (n > kv_room(p))
        return kv_fail(TL_EFULL, "tl_kv_import: %u blocks in the envelope, %zu free and %zu cached", n,
                       p->free_ids.len, p->lru.len);

    const size_t stride = RECORD_HEADER + p->block_bytes;
    const int stream = len >= CRC32C_STREAM_FROM;
    const unsigned char *record = e + TL_KV_ENVELOPE_HEADER;
    for (uint32_t i = 0; i < n; i++, record += stride) {
        ids_out[i] = kv_take(p);
        read_f16(kv_bytes(p, ids_out[i]), record + RECORD_HEADER, p->block_bytes, stream);
        /* Shared memory may have changed since the check: a fill never exceeds B. */
        uint32_t fill = read_u32(record + 8);
        p->blocks[ids_out[i]].fill = fill < p->cfg.block_tokens ? fill : p->cfg.block_tokens;
    }
    if (stream) stream_fence();
    record = e + TL_KV_ENVELOPE_HEADER;
    for (uint32_t i = 0; i < n; i++, record += stride) {
        uint64_t hash = read_le(record, 8);
        uint32_t holder;
        kv_block *b = &p->blocks[ids_out[i]];
        if (hash && kv_is_full(p, b) && !kv_find(p, hash, &holder) && tl_map_put(p->index, hash, ids_out[i]) == TL_OK)
            b->hash = hash;
    }
    return TL_OK;
}

uint32_t tl_crc32c(const void *data, size_t n, uint32_t crc)
{
    if (!data && n) {
        kv_fail(TL_EINVAL, "tl_crc32c: data is NULL");
        return crc;
    }
    return crc32c(crc, data, n);
}
