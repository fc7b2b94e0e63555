/* kv_ext.h - what the Python package calls: a pool behind a lock, with batched
 * calls and introspection. The C core does not know of it.
 *
 * ANSWERS. Every call on a handle returns an int64_t: an answer of 0 or more, or
 * minus a status (-TL_EFULL ...), or -TL_KVX_CLOSED after tl_kvx_close. A refusal,
 * but for -TL_ENOTFOUND, which is an answer too, leaves its message where
 * tl_kvx_take_error finds it. A refused call has changed nothing, batches included.
 *
 * IDS are int64_t where one is passed, so that a negative one is refused by value
 * and not converted.
 *
 * THREADS. A handle's calls exclude each other; a call takes the lock, does its work
 * and lets go, and runs no foreign code in between. Whoever forks holds a group of
 * handles still meanwhile, so that parent and child both find whole pools.
 *
 * ARRAYS of ids, slots and counts are read more than once: nobody may change one during
 * a call. */
#ifndef TL_KV_EXT_H
#define TL_KV_EXT_H

#include "tinyllm/kv_pool.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TL_KVX_CLOSED 100

/* A block's state, as tl_kvx_state and tl_kvx_states answer it. */
#define TL_KVX_FREE 0
#define TL_KVX_USED 1
#define TL_KVX_CACHED 2

typedef struct tl_kvx tl_kvx;

/* ---- life ---------------------------------------------------------------- */

/* Creates a pool and a handle to it. The pool is the caller's to destroy, no earlier
 * than the handle is closed or destroyed: memory that others still look at may
 * outlive the handle. Out: both, NULL on failure. Refusals: tl_kv_pool_create's. */
int64_t tl_kvx_create(const tl_kv_cfg *cfg, tl_kvx **handle, tl_kv_pool **pool);

/* Lets go of the pool, after the call that runs, if one does. Every later call
 * answers -TL_KVX_CLOSED. Its slab is readable as a whole, also for AddressSanitizer. */
int64_t tl_kvx_close(tl_kvx *h);

/* Gives the handle back, not the pool. NULL is fine. */
void tl_kvx_destroy(tl_kvx *h);

/* ---- fork ---------------------------------------------------------------- */

/* Handles that are held still together. */
typedef struct tl_kvx_group tl_kvx_group;

/* Out: group, NULL on failure. Refusal: -TL_ENOMEM. */
int64_t tl_kvx_group_create(tl_kvx_group **group);

/* Gives a group back that no handle is in any more. NULL is fine. */
void tl_kvx_group_destroy(tl_kvx_group *g);

/* Puts a handle that no other thread knows yet into a group, until it is destroyed. */
void tl_kvx_join(tl_kvx *h, tl_kvx_group *g);

/* Waits for the calls that run and keeps other threads out of all handles of the group,
 * joins and destroys included, until tl_kvx_release; the calling thread's own calls go
 * on. A process forked meanwhile releases its copy the same way. Not to be nested. */
void tl_kvx_hold(tl_kvx_group *g);
void tl_kvx_release(tl_kvx_group *g);

/* ---- messages ------------------------------------------------------------ */

/* Moves the thread's latest message, that of its latest refused call, to out. Calls
 * nest (a refused call may interrupt the reading of another's message), so messages
 * are taken in reverse order. */
void tl_kvx_take_error(char out[256]);

/* ---- holding blocks ------------------------------------------------------ */

/* tl_kv_alloc for any n: -TL_EINVAL below 0, -TL_EFULL above n_blocks. */
int64_t tl_kvx_alloc(tl_kvx *h, int64_t n, uint32_t *ids);

/* tl_kv_ref and tl_kv_unref, which refuse aloud; for n ids all or nothing. An id may
 * stand more than once. unref_many lets go of the last id first. */
int64_t tl_kvx_ref(tl_kvx *h, int64_t id);
int64_t tl_kvx_ref_many(tl_kvx *h, const uint32_t *ids, size_t n);
int64_t tl_kvx_unref(tl_kvx *h, int64_t id);
int64_t tl_kvx_unref_many(tl_kvx *h, const uint32_t *ids, size_t n);

/* tl_kv_cow: the id to write to. */
int64_t tl_kvx_cow(tl_kvx *h, int64_t id);

/* tl_kv_fill and tl_kv_set_fill; for n ids all or nothing, each with its own n_tokens or
 * all with one. */
int64_t tl_kvx_fill(tl_kvx *h, int64_t id);
int64_t tl_kvx_set_fill(tl_kvx *h, int64_t id, int64_t n_tokens);
int64_t tl_kvx_set_fill_many(tl_kvx *h, const uint32_t *ids, const uint32_t *n_tokens, size_t n);
int64_t tl_kvx_set_fill_all(tl_kvx *h, const uint32_t *ids, size_t n, int64_t n_tokens);

/* Writes one position of one layer in each of n blocks: float16 rows [head_dim] from
 * k and v, that of position i and head h at element i * position_stride + h *
 * head_stride, to slot slots[i] of block ids[i]. A block may stand more than once. k and v are no
 * memory of the pool.
 * Refusals: -TL_EINVAL, a block that is not used, shared or registered, a slot or a
 * layer out of range. */
int64_t tl_kvx_write(tl_kvx *h, int64_t layer, const uint32_t *ids, const uint32_t *slots, size_t n,
                     const void *k, const void *v, size_t position_stride, size_t head_stride);

/* Evicts the n oldest cached blocks (all there are, where n is more) to free.
 * Answer: how many. */
int64_t tl_kvx_evict(tl_kvx *h, int64_t n);

/* ---- the prefix index ---------------------------------------------------- */

/* tl_kv_register. Answer: 1, or 0 when another block holds the hash. */
int64_t tl_kvx_register(tl_kvx *h, int64_t id, uint64_t hash);

/* tl_kv_register for n blocks. Answer: how many were newly registered. */
int64_t tl_kvx_register_many(tl_kvx *h, const uint32_t *ids, const uint64_t *hashes, size_t n);

/* tl_kv_lookup. Answer: the id, or -TL_ENOTFOUND. */
int64_t tl_kvx_lookup(tl_kvx *h, uint64_t hash);

/* Holds the blocks of the longest run of hits from the start. Out: ids, room for n.
 * Answer: the length of the run. */
int64_t tl_kvx_match(tl_kvx *h, const uint64_t *hashes, size_t n, uint32_t *ids);

/* Holds the longest run of hits, at most n, and fresh blocks up to n in all. A hit is
 * never evicted for the rest. Out: ids, room for n, or for n_blocks + n_hashes where
 * that is less (a larger n is refused). Answer: the number of hits. Refusals:
 * -TL_EFULL, after which counts and eviction order are what they were. */
int64_t tl_kvx_acquire(tl_kvx *h, const uint64_t *hashes, size_t n_hashes, int64_t n, uint32_t *ids);

/* The length of the run that tl_kvx_match would find. Holds and moves nothing. */
int64_t tl_kvx_count_prefix(tl_kvx *h, const uint64_t *hashes, size_t n);

/* 1 when a block is registered under hash, 0 when none is. Holds and moves nothing. */
int64_t tl_kvx_holds(tl_kvx *h, uint64_t hash);

/* The hashes of n_blocks full blocks of block_tokens tokens, each the next one's
 * parent. Out: hashes. */
void tl_kvx_block_hashes(uint64_t parent, const uint32_t *toks, uint32_t block_tokens,
                         size_t n_blocks, uint64_t *hashes);

/* ---- looking ------------------------------------------------------------- */

int64_t tl_kvx_refcount(tl_kvx *h, int64_t id);

/* Out: counts, room for n. Answer: 0. */
int64_t tl_kvx_refcount_many(tl_kvx *h, const uint32_t *ids, size_t n, uint32_t *counts);

int64_t tl_kvx_state(tl_kvx *h, int64_t id);

/* Out: hash, 0 for a block that is not registered. Answer: 0. */
int64_t tl_kvx_registered_hash(tl_kvx *h, int64_t id, uint64_t *hash);

/* 1 when the block has one holder and is not registered: nobody else reads it. */
int64_t tl_kvx_writable(tl_kvx *h, int64_t id);

/* Out: the state of every block, a byte each. */
int64_t tl_kvx_states(tl_kvx *h, uint8_t *states);

int64_t tl_kvx_stats(tl_kvx *h, tl_kv_stats *out);

/* ---- the envelope -------------------------------------------------------- */

/* tl_kv_export_bytes. Refusal: -TL_EINVAL, n out of range or no such size. */
int64_t tl_kvx_export_bytes(tl_kvx *h, int64_t n);

/* The bytes that tl_kvx_export would write. Refusals: what it would refuse, but for room. */
int64_t tl_kvx_export_size(tl_kvx *h, const uint32_t *ids, size_t n);

/* tl_kv_export. Answer: the bytes written. Refusals: also -TL_EINVAL for a buffer that
 * overlaps the slab. */
int64_t tl_kvx_export(tl_kvx *h, const uint32_t *ids, size_t n, void *buf, size_t cap);

/* tl_kv_import. Answer: the number of blocks. Out: ids, room for as many as whole
 * records fit in len, or for n_blocks where that is less. Refusals: as for export. */
int64_t tl_kvx_import(tl_kvx *h, const void *buf, size_t len, uint32_t *ids);

#ifdef __cplusplus
}
#endif

#endif
