/* kv_check.h - looks at the inside of a pool. For tests only. */
#ifndef TL_TEST_KV_CHECK_H
#define TL_TEST_KV_CHECK_H

#include "tinyllm/kv_pool.h"

/* Walks the free list, the list of cached blocks, the prefix index, every record and
 * the counts. Follows no pointer that leads out of the pool, so that a broken pool
 * cannot crash it.
 * Returns: NULL for an intact pool, or which invariant broke. Static storage. */
const char *tl_kv_check(const tl_kv_pool *p);

/* Returns: a number over all that the pool knows, its blocks' bytes excepted: the
 * records, the order of the free list and of the cached blocks, the index, the
 * evictions. Two states that differ give different numbers. 0 for NULL. */
uint64_t tl_kv_digest(const tl_kv_pool *p);

/* Returns: a number over the bytes of all blocks, held or not. All must have been
 * written once. */
uint64_t tl_kv_slab_digest(const tl_kv_pool *p);

#endif
