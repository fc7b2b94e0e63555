/* kv_check.c - see kv_check.h. */

#include "kv_check.h"

#include "kv_pool_impl.h"

#include <stdlib.h>

/* Where a block was found. */
enum { ON_FREE_LIST = 1, AMONG_CACHED = 2 };

static const char *check_sizes(const tl_kv_pool *p)
{
    const tl_kv_cfg *c = &p->cfg;
    size_t bytes = (size_t)2 * sizeof(uint16_t) * c->block_tokens * c->n_layers * c->n_kv_heads * c->head_dim;
    if (p->block_bytes != bytes) return "sizes: block_bytes is not what the shape gives";
    if ((uintptr_t)p->slab % 64 != 0) return "sizes: the slab is not 64-byte aligned";
    return NULL;
}

static const char *check_free_list(const tl_kv_pool *p, uint8_t *found)
{
    const tl_vec *v = &p->free_ids;
    if (v->elem != sizeof(uint32_t)) return "free list: an element is not a u32";
    if (v->cap < p->cfg.n_blocks) return "free list: it has no room for all blocks";
    if (v->len > p->cfg.n_blocks) return "free list: it is longer than the pool";
    for (size_t i = 0; i < v->len; i++) {
        uint32_t id = ((const uint32_t *)v->data)[i];
        if (id >= p->cfg.n_blocks) return "free list: an id is out of range";
        if (found[id]) return "free list: an id stands twice";
        found[id] = ON_FREE_LIST;
    }
    return NULL;
}

/* Finds the block whose node this is. Returns 0 for any other pointer. */
static int block_of(const tl_kv_pool *p, const tl_list_node *node, uint32_t *id)
{
    uintptr_t at = (uintptr_t)node - (uintptr_t)p->blocks;
    if (at / sizeof(kv_block) >= p->cfg.n_blocks || at % sizeof(kv_block) != offsetof(kv_block, lru)) return 0;
    *id = (uint32_t)(at / sizeof(kv_block));
    return 1;
}

static const char *check_lru(const tl_kv_pool *p, uint8_t *found)
{
    const tl_list_node *last = &p->lru.head;
    size_t n = 0;
    for (const tl_list_node *at = last->next; at != &p->lru.head; last = at, at = at->next, n++) {
        uint32_t id;
        if (!block_of(p, at, &id)) return "LRU: a link leads out of the pool";
        if (found[id] == AMONG_CACHED) return "LRU: a block stands twice";
        if (found[id] == ON_FREE_LIST) return "states: a block is free and cached";
        if (at->prev != last) return "LRU: a link back is wrong";
        found[id] = AMONG_CACHED;
    }
    if (p->lru.head.prev != last) return "LRU: a link back is wrong";
    if (p->lru.len != n) return "LRU: its length is wrong";
    return NULL;
}

static const char *check_record(const tl_kv_pool *p, uint32_t id, uint8_t found)
{
    const kv_block *b = &p->blocks[id];
    if (b->ref > 0 && found == ON_FREE_LIST) return "states: a block is used and free";
    if (b->ref > 0 && found == AMONG_CACHED) return "states: a block is used and cached";
    if (b->ref == 0 && !found) return "states: a block is in none";
    if (found != AMONG_CACHED && (b->lru.prev || b->lru.next)) return "LRU: a block outside has a link";
    if (b->fill > p->cfg.block_tokens) return "records: a fill is above block_tokens";
    if (b->hash && b->fill != p->cfg.block_tokens) return "records: a registered block is not full";
    if (found == ON_FREE_LIST && b->hash) return "records: a free block is registered";
    if (found == ON_FREE_LIST && b->fill) return "records: a free block has a fill";
    if (found == AMONG_CACHED && !b->hash) return "records: a cached block is not registered";
    return NULL;
}

static const char *check_index(const tl_kv_pool *p)
{
    size_t registered = 0;
    for (uint32_t id = 0; id < p->cfg.n_blocks; id++) {
        uint64_t value, hash = p->blocks[id].hash;
        if (!hash) continue;
        registered++;
        if (!tl_map_get(p->index, hash, &value)) return "index: a registered block is missing";
        if (value != id) return "index: a hash leads to another block";
    }
    if (tl_map_len(p->index) != registered) return "index: it has a hash that no block is registered under";
    return NULL;
}

static const char *check_counts(const tl_kv_pool *p, const uint8_t *found)
{
    tl_kv_stats told;
    uint32_t n_free = 0, n_cached = 0;
    for (uint32_t id = 0; id < p->cfg.n_blocks; id++) {
        n_free += found[id] == ON_FREE_LIST;
        n_cached += found[id] == AMONG_CACHED;
    }
    tl_kv_stats_get(p, &told);
    if (told.free != n_free || told.cached != n_cached || told.used != p->cfg.n_blocks - n_free - n_cached)
        return "counts: tl_kv_stats_get tells others";
    if (told.evictions != p->evictions) return "counts: tl_kv_stats_get tells other evictions";
    return NULL;
}

const char *tl_kv_check(const tl_kv_pool *p)
{
    if (!p) return "the pool is NULL";
    uint8_t *found = calloc(p->cfg.n_blocks, 1);
    if (!found) return "no memory to check the pool";

    const char *broken = check_sizes(p);
    if (!broken) broken = check_free_list(p, found);
    if (!broken) broken = check_lru(p, found);
    for (uint32_t id = 0; id < p->cfg.n_blocks && !broken; id++) broken = check_record(p, id, found[id]);
    if (!broken) broken = check_index(p);
    if (!broken) broken = check_counts(p, found);
    free(found);
    return broken;
}

/* ---- digests ------------------------------------------------------------- */

static uint64_t mix(uint64_t digest, uint64_t x)
{
    digest = (digest ^ x) * 0x9E3779B97F4A7C15u;
    return digest ^ digest >> 29;
}

uint64_t tl_kv_digest(const tl_kv_pool *p)
{
    if (!p) return 0;
    const uint32_t cfg[] = {p->cfg.n_blocks, p->cfg.block_tokens, p->cfg.n_layers,       p->cfg.n_kv_heads,
                            p->cfg.head_dim, p->cfg.format,       (uint32_t)p->cfg.dtype};
    uint64_t digest = mix(p->evictions, p->block_bytes);
    for (size_t i = 0; i < sizeof cfg / sizeof cfg[0]; i++) digest = mix(digest, cfg[i]);
    digest = mix(digest, p->free_ids.len);
    for (size_t i = 0; i < p->free_ids.len; i++) digest = mix(digest, ((const uint32_t *)p->free_ids.data)[i]);
    digest = mix(digest, p->lru.len);
    for (const tl_list_node *at = p->lru.head.next; at != &p->lru.head; at = at->next)
        digest = mix(digest, (uintptr_t)at - (uintptr_t)p->blocks);
    digest = mix(digest, tl_map_len(p->index));
    for (uint32_t id = 0; id < p->cfg.n_blocks; id++) {
        const kv_block *b = &p->blocks[id];
        uint64_t holder = UINT64_MAX;
        tl_map_get(p->index, b->hash, &holder);
        digest = mix(mix(mix(mix(digest, b->hash), b->ref), b->fill), holder);
    }
    return digest;
}

/* Blocks that nobody holds are poisoned in builds with AddressSanitizer; here they
 * are looked at all the same. */
__attribute__((no_sanitize_address)) uint64_t tl_kv_slab_digest(const tl_kv_pool *p)
{
    uint64_t digest = 0;
    for (size_t i = 0; i < p->cfg.n_blocks * p->block_bytes; i++) {
        digest = (digest ^ p->slab[i]) * 0x100000001B3u; /* no call: mix() would be checked */
        digest ^= digest >> 29;
    }
    return digest;
}
