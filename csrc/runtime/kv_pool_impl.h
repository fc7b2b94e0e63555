/* kv_pool_impl.h - what a pool is made of, and the moves of a block between its
 * states. Private: for kv_pool.c, for units that extend it, and for white-box tests.
 *
 *      tl_kv_pool
 *        cfg, block_bytes
 *        slab ------> | block 0 | block 1 | block 2 | ...            N * P bytes
 *        blocks ----> | record  | record  | record  | ...            N * 32 bytes
 *        free_ids --> | id id id |   a stack: the last is handed out first
 *        index -----> hash -> id, the registered blocks
 *        lru -------> oldest <-> ... <-> newest, the cached blocks' records
 *        evictions
 *
 * A state is a predicate over a record, not a field that could disagree:
 *
 *        used    ref > 0
 *        cached  ref == 0 and linked in the LRU (then hash != 0)
 *        free    ref == 0 and not linked (then hash == 0, fill == 0, id in free_ids)
 */
#ifndef TL_KV_POOL_IMPL_H
#define TL_KV_POOL_IMPL_H

#include "tinyllm/abi.h"
#include "tinyllm/ds.h"
#include "tinyllm/kv_pool.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- AddressSanitizer sees who may touch a block -------------------------- */

/* In builds with AddressSanitizer the bytes of a block are poisoned from the moment
 * its last holder gives it up until somebody holds it again, so that a read through
 * a stale pointer is reported although the slab is alive. Its unit is 8 bytes: at the
 * ends of a block whose size is no multiple of that it errs on the side of silence. */
#if defined(__SANITIZE_ADDRESS__)
#define TL_KV_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TL_KV_ASAN 1
#endif
#endif

#ifdef TL_KV_ASAN
#include <sanitizer/asan_interface.h>
#define KV_POISON(p, n) __asan_poison_memory_region((p), (n))
#define KV_UNPOISON(p, n) __asan_unpoison_memory_region((p), (n))
#else
#define KV_POISON(p, n) ((void)(p), (void)(n))
#define KV_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

/* ---- the structs --------------------------------------------------------- */

typedef struct kv_block {
    tl_list_node lru; /* linked while the block is cached */
    uint64_t hash;    /* its name in the index, 0 while it is not registered */
    uint32_t ref;     /* holders */
    uint32_t fill;    /* positions that hold data, 0 .. block_tokens */
} kv_block;

struct tl_kv_pool {
    tl_kv_cfg cfg;
    size_t block_bytes;  /* P; the slab has cfg.n_blocks * P */
    unsigned char *slab; /* 64-byte aligned */
    kv_block *blocks;    /* one record a block */
    tl_vec free_ids;     /* u32, room for all */
    tl_map *index;       /* hash -> id */
    tl_lru lru;
    uint32_t evictions; /* saturates */
};

_Static_assert(sizeof(kv_block) == 16 + 2 * sizeof(void *), "no padding: two records a cache line with 8-byte pointers");

/* ---- failures ------------------------------------------------------------ */

#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static inline tl_status
kv_fail(tl_status status, const char *format, ...)
{
    char message[TL_LAST_ERROR_CAP];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    tl_set_last_error(message);
    return status;
}

/* ---- looking ------------------------------------------------------------- */

static inline int kv_in_range(const tl_kv_pool *p, uint32_t id) { return id < p->cfg.n_blocks; }
static inline int kv_is_used(const kv_block *b) { return b->ref > 0; }
static inline int kv_is_cached(const kv_block *b) { return b->lru.next != NULL; }
static inline int kv_is_full(const tl_kv_pool *p, const kv_block *b) { return b->fill == p->cfg.block_tokens; }

/* Blocks that an allocation can take: free ones and cached ones. */
static inline size_t kv_room(const tl_kv_pool *p) { return p->free_ids.len + p->lru.len; }

static inline unsigned char *kv_bytes(const tl_kv_pool *p, uint32_t id) { return p->slab + id * p->block_bytes; }

/* Finds the block registered under a hash without holding it. Returns 1 or 0; hash 0 is
 * never found, as nothing is registered under it. */
static inline int kv_find(const tl_kv_pool *p, uint64_t hash, uint32_t *id)
{
    uint64_t value;
    if (!tl_map_get(p->index, hash, &value)) return 0;
    *id = (uint32_t)value;
    return 1;
}

/* Why a call that needs a used block refuses this id, or NULL for a used one. */
static inline const char *kv_why_not_used(const tl_kv_pool *p, uint32_t id)
{
    if (!p) return "has no pool: it is NULL";
    if (!kv_in_range(p, id)) return "is out of range";
    if (kv_is_used(&p->blocks[id])) return NULL;
    return kv_is_cached(&p->blocks[id]) ? "is cached: nobody holds it" : "is free: nobody holds it";
}

/* ---- moves --------------------------------------------------------------- */

/* cached -> neither: takes the least recently used block out of the LRU and the
 * index. The caller gives it its next state. Needs a cached block. */
static inline uint32_t kv_evict_oldest(tl_kv_pool *p)
{
    tl_list_node *oldest = tl_lru_pop_oldest(&p->lru);
    kv_block *b = TL_CONTAINER_OF(oldest, kv_block, lru);
    tl_map_del(p->index, b->hash);
    b->hash = 0;
    b->fill = 0;
    if (p->evictions < UINT32_MAX) p->evictions++;
    return (uint32_t)(b - p->blocks);
}

static inline void kv_push_free(tl_kv_pool *p, uint32_t id)
{
    ((uint32_t *)p->free_ids.data)[p->free_ids.len++] = id; /* reserved for all ids at create */
}

/* free or cached -> used, with one holder and fill 0. Needs kv_room() > 0. */
static inline uint32_t kv_take(tl_kv_pool *p)
{
    uint32_t id = p->free_ids.len ? ((uint32_t *)p->free_ids.data)[--p->free_ids.len] /* (1) */
                                  : kv_evict_oldest(p);                              /* (2) */
    p->blocks[id].ref = 1;
    KV_UNPOISON(kv_bytes(p, id), p->block_bytes);
    return id;
}

/* One more holder for a registered block: used stays used, cached -> used. Needs
 * ref < UINT32_MAX. */
static inline void kv_hold(tl_kv_pool *p, uint32_t id)
{
    kv_block *b = &p->blocks[id];
    if (b->ref++ > 0) return;
    tl_lru_remove(&p->lru, &b->lru);
    KV_UNPOISON(kv_bytes(p, id), p->block_bytes);
}

/* One holder less; at the last one used -> cached or free. Needs ref > 0. */
static inline void kv_drop(tl_kv_pool *p, uint32_t id)
{
    kv_block *b = &p->blocks[id];
    if (--b->ref > 0) return;
    KV_POISON(kv_bytes(p, id), p->block_bytes);
    if (b->hash) {
        tl_lru_touch(&p->lru, &b->lru);
    } else {
        b->fill = 0;
        kv_push_free(p, id);
    }
}

#endif
