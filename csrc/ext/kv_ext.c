/* kv_ext.c - a pool behind a lock, with batched calls and introspection (kv_ext.h). */

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "kv_ext.h"

#include "../ds/swiss.h"
#include "../runtime/crc32c.h"
#include "../runtime/kv_pool_impl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct tl_kvx_group {
    pthread_mutex_t lock;    /* of the list; held as long as the handles are */
    atomic_uintptr_t holder; /* the thread that holds the handles still, 0 for none */
    tl_lru handles;
};

struct tl_kvx {
    pthread_mutex_t lock;
    tl_kv_pool *pool;    /* NULL once closed */
    tl_kvx_group *group; /* NULL for none */
    tl_list_node node;   /* in the group's list */
};

/* ---- messages ------------------------------------------------------------ */

/* Between a refused call and the reading of its message the caller's language may run
 * other code (a finalizer), whose own refused call would overwrite tl_last_error. Each
 * refusal is therefore pushed here and popped by its reader; what an interrupted reader
 * left behind is overwritten in time. */
enum { PENDING = 8 };
static _Thread_local char pending[PENDING][TL_LAST_ERROR_CAP];
static _Thread_local unsigned n_pending;

static int64_t refuse(tl_status status)
{
    if (status != TL_ENOTFOUND) /* an answer, no refusal */
        memcpy(pending[n_pending++ % PENDING], tl_last_error(), TL_LAST_ERROR_CAP);
    return -(int64_t)status;
}

void tl_kvx_take_error(char out[256]) { memcpy(out, pending[--n_pending % PENDING], TL_LAST_ERROR_CAP); }

/* ---- the lock ------------------------------------------------------------ */

static uintptr_t this_thread(void) { return (uintptr_t)pthread_self(); } /* never 0 on Linux */

/* Whether this very thread holds the group still: then it has all locks already. Only
 * the thread itself ever writes its own name here, so no order is needed. */
static int is_holder(tl_kvx_group *g)
{
    return g && atomic_load_explicit(&g->holder, memory_order_relaxed) == this_thread();
}

static tl_kv_pool *enter(tl_kvx *h)
{
    if (!is_holder(h->group)) pthread_mutex_lock(&h->lock);
    return h->pool;
}

static int64_t leave(tl_kvx *h, int64_t answer)
{
    if (!is_holder(h->group)) pthread_mutex_unlock(&h->lock);
    return answer < 0 ? refuse((tl_status)-answer) : answer;
}

/* Returns the value of expr, in which `p` is h's pool, computed under its lock. */
#define RETURN_LOCKED(h, p, expr)                                                                   \
    do {                                                                                            \
        tl_kv_pool *p = enter(h);                                                                   \
        return leave((h), p ? (expr) : -(int64_t)kv_fail(TL_KVX_CLOSED, "%s: the pool is closed", __func__)); \
    } while (0)

/* ---- fork ---------------------------------------------------------------- */

int64_t tl_kvx_group_create(tl_kvx_group **group)
{
    tl_kvx_group *g = *group = tl_alloc(sizeof *g, _Alignof(tl_kvx_group));
    if (!g) return refuse(kv_fail(TL_ENOMEM, "tl_kvx_group_create: no memory for the group"));
    pthread_mutex_init(&g->lock, NULL);
    atomic_init(&g->holder, 0);
    tl_lru_init(&g->handles);
    return 0;
}

void tl_kvx_group_destroy(tl_kvx_group *g)
{
    if (!g) return;
    pthread_mutex_destroy(&g->lock);
    tl_free(g);
}

/* A handle that joins or leaves while its own thread holds the group is locked as the
 * others are, or no longer. */
void tl_kvx_join(tl_kvx *h, tl_kvx_group *g)
{
    const int held = is_holder(g);
    if (held) pthread_mutex_lock(&h->lock);
    else pthread_mutex_lock(&g->lock);
    h->group = g;
    tl_lru_touch(&g->handles, &h->node);
    if (!held) pthread_mutex_unlock(&g->lock);
}

static void leave_group(tl_kvx *h)
{
    tl_kvx_group *g = h->group;
    const int held = is_holder(g);
    if (held) pthread_mutex_unlock(&h->lock);
    else pthread_mutex_lock(&g->lock);
    tl_lru_remove(&g->handles, &h->node);
    if (!held) pthread_mutex_unlock(&g->lock);
}

static tl_kvx *handle_of(tl_list_node *node) { return TL_CONTAINER_OF(node, tl_kvx, node); }

void tl_kvx_hold(tl_kvx_group *g)
{
    pthread_mutex_lock(&g->lock);
    for (tl_list_node *n = g->handles.head.next; n != &g->handles.head; n = n->next)
        pthread_mutex_lock(&handle_of(n)->lock);
    atomic_store_explicit(&g->holder, this_thread(), memory_order_relaxed);
}

void tl_kvx_release(tl_kvx_group *g)
{
    atomic_store_explicit(&g->holder, 0, memory_order_relaxed);
    for (tl_list_node *n = g->handles.head.next; n != &g->handles.head; n = n->next)
        pthread_mutex_unlock(&handle_of(n)->lock);
    pthread_mutex_unlock(&g->lock);
}

/* ---- life ---------------------------------------------------------------- */

int64_t tl_kvx_create(const tl_kv_cfg *cfg, tl_kvx **handle, tl_kv_pool **pool)
{
    *handle = NULL;
    tl_status status = tl_kv_pool_create(cfg, pool);
    if (status != TL_OK) return refuse(status);
    tl_kvx *h = tl_alloc(sizeof *h, _Alignof(tl_kvx));
    if (!h) {
        tl_kv_pool_destroy(*pool);
        *pool = NULL;
        return refuse(kv_fail(TL_ENOMEM, "tl_kvx_create: no memory for the handle"));
    }
    memset(h, 0, sizeof *h);
    h->pool = *pool;
    pthread_mutex_init(&h->lock, NULL);
    *handle = h;
    return 0;
}

int64_t tl_kvx_close(tl_kvx *h)
{
    tl_kv_pool *p = enter(h);
    if (p) KV_UNPOISON(p->slab, p->cfg.n_blocks * p->block_bytes);
    h->pool = NULL;
    return leave(h, 0);
}

void tl_kvx_destroy(tl_kvx *h)
{
    if (!h) return;
    if (h->group) leave_group(h);
    pthread_mutex_destroy(&h->lock);
    tl_free(h);
}

/* ---- checks -------------------------------------------------------------- */

static int64_t check_id(const tl_kv_pool *p, int64_t id, const char *call)
{
    if (id >= 0 && id < (int64_t)p->cfg.n_blocks) return 0;
    return -(int64_t)kv_fail(TL_EINVAL, "%s: block %lld is out of range: the pool has %u", call, (long long)id,
                             p->cfg.n_blocks);
}

static int64_t check_used(const tl_kv_pool *p, int64_t id, const char *call)
{
    int64_t refusal = check_id(p, id, call);
    if (refusal) return refusal;
    const char *why = kv_why_not_used(p, (uint32_t)id);
    return why ? -(int64_t)kv_fail(TL_EINVAL, "%s: block %lld %s", call, (long long)id, why) : 0;
}

/* ---- looking ahead -------------------------------------------------------- */

/* In a large pool the index is larger than the caches. A batch asks for the memory of
 * each search this many searches ahead, so that they wait together and not in turn; with
 * 0, the plain way, it asks for nothing. The answers are the same. */
#ifndef TL_KVX_AHEAD
#define TL_KVX_AHEAD 8
#endif
enum { AHEAD = TL_KVX_AHEAD };

static void ask_for(const tl_kv_pool *p, uint64_t hash)
{
    if (AHEAD > 0) tl_map_prefetch(p->index, hash);
}

/* Before search i of the n for `hashes`, in order. */
static void look_ahead(const tl_kv_pool *p, const uint64_t *hashes, size_t i, size_t n)
{
    if (i + AHEAD < n) ask_for(p, hashes[i + AHEAD]);
}

/* Takes n blocks, as n times kv_take. Needs kv_room() >= n. */
static void take_blocks(tl_kv_pool *p, uint32_t *ids, size_t n)
{
    size_t i = 0;
    for (; i < n && p->free_ids.len; i++) ids[i] = kv_take(p);

    tl_list_node *oldest = p->lru.head.next; /* of those not asked for yet */
    for (size_t asked = i; i < n; i++) {
        for (; asked < n && asked <= i + AHEAD; asked++, oldest = oldest->next)
            ask_for(p, TL_CONTAINER_OF(oldest, kv_block, lru)->hash);
        ids[i] = kv_take(p);
    }
}

/* Whether a used block is its one holder's to write to: nobody else reads it. */
static int is_own(const kv_block *b) { return b->ref == 1 && b->hash == 0; }

/* ---- holding blocks ------------------------------------------------------ */

static int64_t alloc_blocks(tl_kv_pool *p, int64_t n, uint32_t *ids)
{
    if (n < 0) return -(int64_t)kv_fail(TL_EINVAL, "tl_kvx_alloc: %lld blocks asked for", (long long)n);
    if (n > (int64_t)p->cfg.n_blocks)
        return -(int64_t)kv_fail(TL_EFULL, "tl_kvx_alloc: %lld blocks asked for, the pool has %u", (long long)n,
                                 p->cfg.n_blocks);
    if ((size_t)n > kv_room(p)) return -(int64_t)tl_kv_alloc(p, (uint32_t)n, ids); /* which refuses */
    take_blocks(p, ids, (size_t)n);
    return 0;
}

int64_t tl_kvx_alloc(tl_kvx *h, int64_t n, uint32_t *ids) { RETURN_LOCKED(h, p, alloc_blocks(p, n, ids)); }

static int64_t check_holdable(const tl_kv_pool *p, uint32_t id, const char *call)
{
    if (p->blocks[id].ref < UINT32_MAX) return 0;
    return -(int64_t)kv_fail(TL_EINVAL, "%s: block %u has as many holders as can be counted", call, id);
}

/* Takes n holds on the counts alone back. */
static void unhold(tl_kv_pool *p, const uint32_t *ids, size_t n)
{
    while (n-- > 0) p->blocks[ids[n]].ref--;
}

static int64_t ref_blocks(tl_kv_pool *p, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t refusal = check_used(p, ids[i], "tl_kvx_ref");
        if (!refusal) refusal = check_holdable(p, ids[i], "tl_kvx_ref");
        if (refusal) {
            unhold(p, ids, i);
            return refusal;
        }
        p->blocks[ids[i]].ref++;
    }
    return 0;
}

static int64_t ref_block(tl_kv_pool *p, int64_t id)
{
    int64_t refusal = check_id(p, id, "tl_kvx_ref");
    return refusal ? refusal : ref_blocks(p, &(uint32_t){(uint32_t)id}, 1);
}

int64_t tl_kvx_ref(tl_kvx *h, int64_t id) { RETURN_LOCKED(h, p, ref_block(p, id)); }

int64_t tl_kvx_ref_many(tl_kvx *h, const uint32_t *ids, size_t n) { RETURN_LOCKED(h, p, ref_blocks(p, ids, n)); }

/* A rehearsal on the counts alone finds an id that stands more often than it has holders.
 * It is taken back either way; then the real thing cannot fail. */
static int64_t unref_blocks(tl_kv_pool *p, const uint32_t *ids, size_t n)
{
    size_t held = 0;
    for (; held < n && kv_in_range(p, ids[held]) && kv_is_used(&p->blocks[ids[held]]); held++)
        p->blocks[ids[held]].ref--;
    for (size_t i = held; i-- > 0;) p->blocks[ids[i]].ref++;
    if (held < n) {
        int64_t refusal = check_used(p, ids[held], "tl_kvx_unref");
        if (refusal) return refusal;
        return -(int64_t)kv_fail(TL_EINVAL, "tl_kvx_unref: block %u stands more often than it has holders (%u)",
                                 ids[held], p->blocks[ids[held]].ref);
    }
    for (size_t i = n; i-- > 0;) kv_drop(p, ids[i]);
    return 0;
}

static int64_t unref_block(tl_kv_pool *p, int64_t id)
{
    int64_t refusal = check_used(p, id, "tl_kvx_unref");
    if (!refusal) kv_drop(p, (uint32_t)id);
    return refusal;
}

int64_t tl_kvx_unref(tl_kvx *h, int64_t id) { RETURN_LOCKED(h, p, unref_block(p, id)); }

int64_t tl_kvx_unref_many(tl_kvx *h, const uint32_t *ids, size_t n) { RETURN_LOCKED(h, p, unref_blocks(p, ids, n)); }

static int64_t cow_block(tl_kv_pool *p, int64_t id)
{
    uint32_t out = 0;
    int64_t refusal = check_used(p, id, "tl_kvx_cow");
    if (!refusal) refusal = -(int64_t)tl_kv_cow(p, (uint32_t)id, &out);
    return refusal ? refusal : out;
}

int64_t tl_kvx_cow(tl_kvx *h, int64_t id) { RETURN_LOCKED(h, p, cow_block(p, id)); }

static int64_t fill_of(const tl_kv_pool *p, int64_t id)
{
    int64_t refusal = check_id(p, id, "tl_kvx_fill");
    return refusal ? refusal : p->blocks[id].fill;
}

int64_t tl_kvx_fill(tl_kvx *h, int64_t id) { RETURN_LOCKED(h, p, fill_of(p, id)); }

static int64_t check_count(const tl_kv_pool *p, int64_t n_tokens)
{
    if (n_tokens >= 0 && n_tokens <= (int64_t)p->cfg.block_tokens) return 0;
    return -(int64_t)kv_fail(TL_EINVAL, "tl_kvx_set_fill: %lld tokens, a block has %u", (long long)n_tokens,
                             p->cfg.block_tokens);
}

static int64_t check_fill(const tl_kv_pool *p, int64_t id, int64_t n_tokens)
{
    int64_t refusal = check_used(p, id, "tl_kvx_set_fill");
    if (!refusal) refusal = check_count(p, n_tokens);
    if (!refusal && p->blocks[id].hash)
        refusal = -(int64_t)kv_fail(TL_EINVAL, "tl_kvx_set_fill: block %lld is registered", (long long)id);
    return refusal;
}

static int64_t set_fills(tl_kv_pool *p, const uint32_t *ids, const uint32_t *n_tokens, size_t n)
{
    int64_t refusal = 0;
    for (size_t i = 0; i < n && !refusal; i++) refusal = check_fill(p, ids[i], n_tokens[i]);
    for (size_t i = 0; i < n && !refusal; i++) p->blocks[ids[i]].fill = n_tokens[i];
    return refusal;
}

static int64_t set_fill_of_all(tl_kv_pool *p, const uint32_t *ids, size_t n, int64_t n_tokens)
{
    int64_t refusal = check_count(p, n_tokens);
    for (size_t i = 0; i < n && !refusal; i++) refusal = check_fill(p, ids[i], n_tokens);
    for (size_t i = 0; i < n && !refusal; i++) p->blocks[ids[i]].fill = (uint32_t)n_tokens;
    return refusal;
}

static int64_t set_fill(tl_kv_pool *p, int64_t id, int64_t n_tokens)
{
    int64_t refusal = check_fill(p, id, n_tokens);
    if (!refusal) p->blocks[id].fill = (uint32_t)n_tokens;
    return refusal;
}

int64_t tl_kvx_set_fill(tl_kvx *h, int64_t id, int64_t n_tokens) { RETURN_LOCKED(h, p, set_fill(p, id, n_tokens)); }

int64_t tl_kvx_set_fill_many(tl_kvx *h, const uint32_t *ids, const uint32_t *n_tokens, size_t n)
{
    RETURN_LOCKED(h, p, set_fills(p, ids, n_tokens, n));
}

int64_t tl_kvx_set_fill_all(tl_kvx *h, const uint32_t *ids, size_t n, int64_t n_tokens)
{
    RETURN_LOCKED(h, p, set_fill_of_all(p, ids, n, n_tokens));
}

static int64_t check_write(const tl_kv_pool *p, int64_t layer, const uint32_t *ids, const uint32_t *slots, size_t n)
{
    const char *call = "tl_kvx_write";
    if (layer < 0 || layer >= (int64_t)p->cfg.n_layers)
        return -(int64_t)kv_fail(TL_EINVAL, "%s: layer %lld is out of range: a block has %u", call, (long long)layer,
                                 p->cfg.n_layers);
    for (size_t i = 0; i < n; i++) {
        int64_t refusal = check_used(p, ids[i], call);
        if (refusal) return refusal;
        if (slots[i] >= p->cfg.block_tokens)
            return -(int64_t)kv_fail(TL_EINVAL, "%s: slot %u is out of range: a block has %u", call, slots[i],
                                     p->cfg.block_tokens);
        if (!is_own(&p->blocks[ids[i]]))
            return -(int64_t)kv_fail(TL_EINVAL, "%s: block %u is shared or registered", call, ids[i]);
    }
    return 0;
}

/* A large pool's rows are not in the cache when the next position is due. Whole lines are
 * better written past it: their old contents need not be read. */
static int writes_past_cache(const tl_kv_pool *p, size_t row)
{
    return row % 64 == 0 && p->cfg.n_blocks * p->block_bytes >= CRC32C_STREAM_FROM;
}

static void write_row(unsigned char *to, const unsigned char *from, size_t row, int past_cache)
{
    if (past_cache) crc_stream(to, from, row);
    else memcpy(to, from, row);
}

static int64_t write_positions(tl_kv_pool *p, int64_t layer, const uint32_t *ids, const uint32_t *slots, size_t n,
                               const unsigned char *k, const unsigned char *v, size_t position_stride,
                               size_t head_stride)
{
    const size_t heads = p->cfg.n_kv_heads, row = (size_t)p->cfg.head_dim * 2, plane = p->cfg.block_tokens * row;
    const int past_cache = writes_past_cache(p, row);
    int64_t refusal = check_write(p, layer, ids, slots, n);
    if (refusal) return refusal;
    for (size_t i = 0; i < n; i++) {
        unsigned char *to = kv_bytes(p, ids[i]) + (size_t)layer * 2 * heads * plane + slots[i] * row;
        for (size_t head = 0; head < heads; head++, to += plane) {
            const size_t from = 2 * (i * position_stride + head * head_stride);
            write_row(to, k + from, row, past_cache);
            write_row(to + heads * plane, v + from, row, past_cache);
        }
    }
    if (past_cache) stream_fence();
    return 0;
}

int64_t tl_kvx_write(tl_kvx *h, int64_t layer, const uint32_t *ids, const uint32_t *slots, size_t n, const void *k,
                     const void *v, size_t position_stride, size_t head_stride)
{
    RETURN_LOCKED(h, p, write_positions(p, layer, ids, slots, n, k, v, position_stride, head_stride));
}

static int64_t evict_oldest(tl_kv_pool *p, int64_t n)
{
    if (n < 0) return -(int64_t)kv_fail(TL_EINVAL, "tl_kvx_evict: %lld blocks to evict", (long long)n);
    int64_t evicted = 0;
    for (; evicted < n && p->lru.len; evicted++) kv_push_free(p, kv_evict_oldest(p));
    return evicted;
}

int64_t tl_kvx_evict(tl_kvx *h, int64_t n) { RETURN_LOCKED(h, p, evict_oldest(p, n)); }

/* ---- the prefix index ---------------------------------------------------- */

static int64_t register_block(tl_kv_pool *p, int64_t id, uint64_t hash)
{
    int64_t refusal = check_id(p, id, "tl_kvx_register");
    if (refusal) return refusal;
    tl_status status = tl_kv_register(p, (uint32_t)id, hash);
    return status == TL_OK ? 1 : status == TL_EBUSY ? 0 : -(int64_t)status;
}

int64_t tl_kvx_register(tl_kvx *h, int64_t id, uint64_t hash) { RETURN_LOCKED(h, p, register_block(p, id, hash)); }

/* The newly registered blocks form a stack through the LRU nodes, which a used block
 * does not need (prev alone is set; next, which says "cached", stays NULL). */
static int64_t register_blocks(tl_kv_pool *p, const uint32_t *ids, const uint64_t *hashes, size_t n)
{
    tl_list_node *const bottom = &p->lru.head, *top = bottom;
    tl_status refusal = TL_OK;
    int64_t fresh = 0;
    for (size_t i = 0; i < n && refusal == TL_OK; i++) {
        look_ahead(p, hashes, i, n);
        int known = kv_in_range(p, ids[i]) && p->blocks[ids[i]].hash != 0;
        tl_status status = tl_kv_register(p, ids[i], hashes[i]);
        if (status == TL_OK && !known) {
            p->blocks[ids[i]].lru.prev = top;
            top = &p->blocks[ids[i]].lru;
            fresh++;
        } else if (status != TL_EBUSY) {
            refusal = status;
        }
    }
    while (top != bottom) {
        kv_block *b = TL_CONTAINER_OF(top, kv_block, lru);
        if (refusal != TL_OK) {
            tl_map_del(p->index, b->hash);
            b->hash = 0;
        }
        top = b->lru.prev;
        b->lru.prev = NULL;
    }
    return refusal == TL_OK ? fresh : -(int64_t)refusal;
}

int64_t tl_kvx_register_many(tl_kvx *h, const uint32_t *ids, const uint64_t *hashes, size_t n)
{
    RETURN_LOCKED(h, p, register_blocks(p, ids, hashes, n));
}

static int64_t lookup(tl_kv_pool *p, uint64_t hash)
{
    uint32_t id;
    tl_status status = tl_kv_lookup(p, hash, &id);
    return status == TL_OK ? (int64_t)id : -(int64_t)status;
}

int64_t tl_kvx_lookup(tl_kvx *h, uint64_t hash) { RETURN_LOCKED(h, p, lookup(p, hash)); }

/* Holds the run of hits on the counts alone: a cached block stays linked, so that
 * unhold leaves no trace. Answer: the run's length. */
static int64_t hold_run(tl_kv_pool *p, const uint64_t *hashes, size_t n, uint32_t *ids, size_t *revived,
                        const char *call)
{
    size_t hits = 0;
    *revived = 0;
    for (; hits < n; hits++) {
        look_ahead(p, hashes, hits, n);
        if (!kv_find(p, hashes[hits], &ids[hits])) break;
        int64_t refusal = check_holdable(p, ids[hits], call);
        if (refusal) {
            unhold(p, ids, hits);
            return refusal;
        }
        *revived += p->blocks[ids[hits]].ref++ == 0;
    }
    return (int64_t)hits;
}

/* Makes the run's cached blocks used ones. */
static void settle_run(tl_kv_pool *p, const uint32_t *ids, int64_t hits)
{
    for (int64_t i = 0; i < hits; i++) {
        tl_lru_remove(&p->lru, &p->blocks[ids[i]].lru);
        KV_UNPOISON(kv_bytes(p, ids[i]), p->block_bytes);
    }
}

static int64_t match(tl_kv_pool *p, const uint64_t *hashes, size_t n, uint32_t *ids)
{
    size_t revived;
    int64_t hits = hold_run(p, hashes, n, ids, &revived, "tl_kvx_match");
    settle_run(p, ids, hits);
    return hits;
}

int64_t tl_kvx_match(tl_kvx *h, const uint64_t *hashes, size_t n, uint32_t *ids)
{
    RETURN_LOCKED(h, p, match(p, hashes, n, ids));
}

static int64_t acquire(tl_kv_pool *p, const uint64_t *hashes, size_t n_hashes, int64_t n, uint32_t *ids)
{
    if (n < 0) return -(int64_t)kv_fail(TL_EINVAL, "tl_kvx_acquire: %lld blocks asked for", (long long)n);
    int64_t hits = 0, fresh = n - (int64_t)n_hashes;
    size_t room = kv_room(p), revived = 0;
    if (fresh <= (int64_t)p->cfg.n_blocks) { /* ids has room */
        size_t most = n < (int64_t)n_hashes ? (size_t)n : n_hashes;
        hits = hold_run(p, hashes, most, ids, &revived, "tl_kvx_acquire");
        if (hits < 0) return hits;
        room -= revived;
        fresh = n - hits;
    }
    if (fresh > (int64_t)room) {
        unhold(p, ids, (size_t)hits);
        return -(int64_t)kv_fail(TL_EFULL, "tl_kvx_acquire: %lld fresh blocks needed, %zu are free or cached",
                                 (long long)fresh, room);
    }
    settle_run(p, ids, hits);
    take_blocks(p, ids + hits, (size_t)(n - hits));
    return hits;
}

int64_t tl_kvx_acquire(tl_kvx *h, const uint64_t *hashes, size_t n_hashes, int64_t n, uint32_t *ids)
{
    RETURN_LOCKED(h, p, acquire(p, hashes, n_hashes, n, ids));
}

static int64_t count_prefix(const tl_kv_pool *p, const uint64_t *hashes, size_t n)
{
    uint32_t id;
    size_t hits = 0;
    while (hits < n && kv_find(p, hashes[hits], &id)) hits++;
    return (int64_t)hits;
}

int64_t tl_kvx_count_prefix(tl_kvx *h, const uint64_t *hashes, size_t n)
{
    RETURN_LOCKED(h, p, count_prefix(p, hashes, n));
}

int64_t tl_kvx_holds(tl_kvx *h, uint64_t hash) { RETURN_LOCKED(h, p, count_prefix(p, &hash, 1)); }

void tl_kvx_block_hashes(uint64_t parent, const uint32_t *toks, uint32_t block_tokens, size_t n_blocks,
                         uint64_t *hashes)
{
    for (size_t i = 0; i < n_blocks; i++, toks += block_tokens)
        parent = hashes[i] = tl_kv_block_hash(parent, toks, block_tokens);
}

/* ---- looking ------------------------------------------------------------- */

static int64_t refcount(const tl_kv_pool *p, int64_t id)
{
    int64_t refusal = check_id(p, id, "tl_kvx_refcount");
    return refusal ? refusal : p->blocks[id].ref;
}

int64_t tl_kvx_refcount(tl_kvx *h, int64_t id) { RETURN_LOCKED(h, p, refcount(p, id)); }

static int64_t refcounts(const tl_kv_pool *p, const uint32_t *ids, size_t n, uint32_t *counts)
{
    int64_t refusal = 0;
    for (size_t i = 0; i < n && !refusal; i++) {
        refusal = check_id(p, ids[i], "tl_kvx_refcount");
        if (!refusal) counts[i] = p->blocks[ids[i]].ref;
    }
    return refusal;
}

int64_t tl_kvx_refcount_many(tl_kvx *h, const uint32_t *ids, size_t n, uint32_t *counts)
{
    RETURN_LOCKED(h, p, refcounts(p, ids, n, counts));
}

static uint8_t state_of(const kv_block *b)
{
    return kv_is_used(b) ? TL_KVX_USED : kv_is_cached(b) ? TL_KVX_CACHED : TL_KVX_FREE;
}

static int64_t state(const tl_kv_pool *p, int64_t id)
{
    int64_t refusal = check_id(p, id, "tl_kvx_state");
    return refusal ? refusal : state_of(&p->blocks[id]);
}

int64_t tl_kvx_state(tl_kvx *h, int64_t id) { RETURN_LOCKED(h, p, state(p, id)); }

static int64_t registered_hash(const tl_kv_pool *p, int64_t id, uint64_t *hash)
{
    int64_t refusal = check_id(p, id, "tl_kvx_registered_hash");
    if (!refusal) *hash = p->blocks[id].hash;
    return refusal;
}

int64_t tl_kvx_registered_hash(tl_kvx *h, int64_t id, uint64_t *hash)
{
    RETURN_LOCKED(h, p, registered_hash(p, id, hash));
}

static int64_t writable(const tl_kv_pool *p, int64_t id)
{
    int64_t refusal = check_id(p, id, "tl_kvx_writable");
    return refusal ? refusal : is_own(&p->blocks[id]);
}

int64_t tl_kvx_writable(tl_kvx *h, int64_t id) { RETURN_LOCKED(h, p, writable(p, id)); }

static int64_t states(const tl_kv_pool *p, uint8_t *out)
{
    for (uint32_t id = 0; id < p->cfg.n_blocks; id++) out[id] = state_of(&p->blocks[id]);
    return 0;
}

int64_t tl_kvx_states(tl_kvx *h, uint8_t *out) { RETURN_LOCKED(h, p, states(p, out)); }

static int64_t stats(const tl_kv_pool *p, tl_kv_stats *out)
{
    tl_kv_stats_get(p, out);
    return 0;
}

int64_t tl_kvx_stats(tl_kvx *h, tl_kv_stats *out) { RETURN_LOCKED(h, p, stats(p, out)); }

/* ---- the envelope -------------------------------------------------------- */

static int64_t export_bytes(const tl_kv_pool *p, int64_t n)
{
    size_t size = n >= 0 && n <= UINT32_MAX ? tl_kv_export_bytes(p, (uint32_t)n) : SIZE_MAX;
    if (size <= SIZE_MAX / 2) return (int64_t)size;
    return -(int64_t)kv_fail(TL_EINVAL, "tl_kvx_export_bytes: there is no envelope of %lld blocks", (long long)n);
}

int64_t tl_kvx_export_bytes(tl_kvx *h, int64_t n) { RETURN_LOCKED(h, p, export_bytes(p, n)); }

/* The pool's own memory, through a view, is no place for an envelope. */
static int64_t check_apart(const tl_kv_pool *p, const void *buf, size_t len, const char *call)
{
    uintptr_t slab = (uintptr_t)p->slab, at = (uintptr_t)buf;
    if (at < slab ? len <= slab - at : at - slab >= p->cfg.n_blocks * p->block_bytes || len == 0) return 0;
    return -(int64_t)kv_fail(TL_EINVAL, "%s: the buffer overlaps the pool", call);
}

static int64_t check_length(size_t n)
{
    if (n <= UINT32_MAX) return 0;
    return -(int64_t)kv_fail(TL_EINVAL, "tl_kvx_export: %zu blocks are too many", n);
}

static int64_t export_size(const tl_kv_pool *p, const uint32_t *ids, size_t n)
{
    size_t size;
    int64_t refusal = check_length(n);
    if (refusal) return refusal;
    tl_status status = tl_kv_export(p, ids, (uint32_t)n, NULL, 0, &size);
    return status == TL_EFULL ? (int64_t)size : -(int64_t)status;
}

int64_t tl_kvx_export_size(tl_kvx *h, const uint32_t *ids, size_t n) { RETURN_LOCKED(h, p, export_size(p, ids, n)); }

static int64_t export_blocks(const tl_kv_pool *p, const uint32_t *ids, size_t n, void *buf, size_t cap)
{
    size_t written;
    int64_t refusal = check_length(n);
    if (!refusal) refusal = check_apart(p, buf, cap, "tl_kvx_export");
    if (refusal) return refusal;
    tl_status status = tl_kv_export(p, ids, (uint32_t)n, buf, cap, &written);
    return status == TL_OK ? (int64_t)written : -(int64_t)status;
}

int64_t tl_kvx_export(tl_kvx *h, const uint32_t *ids, size_t n, void *buf, size_t cap)
{
    RETURN_LOCKED(h, p, export_blocks(p, ids, n, buf, cap));
}

static int64_t import_blocks(tl_kv_pool *p, const void *buf, size_t len, uint32_t *ids)
{
    int64_t refusal = check_apart(p, buf, len, "tl_kvx_import");
    if (refusal) return refusal;
    tl_status status = tl_kv_import(p, buf, len, ids);
    const size_t fixed = tl_kv_export_bytes(p, 0), record = tl_kv_export_bytes(p, 1) - fixed;
    return status == TL_OK ? (int64_t)((len - fixed) / record) : -(int64_t)status;
}

int64_t tl_kvx_import(tl_kvx *h, const void *buf, size_t len, uint32_t *ids)
{
    RETURN_LOCKED(h, p, import_blocks(p, buf, len, ids));
}
