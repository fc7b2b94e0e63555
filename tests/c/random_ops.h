/* random_ops.h - random calls on a pool, each answer compared with a model's. */
#ifndef TL_TEST_RANDOM_OPS_H
#define TL_TEST_RANDOM_OPS_H

#include "pools.h"

#define RANDOM_OPS_MAX_BLOCKS 64
#define RANDOM_OPS_MAX_VALUES 48 /* of one block */

/* Makes a pool and n_steps random calls on it: alloc, ref, unref, cow, set_fill,
 * register, lookup, writes, export, import, with good arguments and bad ones. A model
 * that shares no code with the pool predicts every status, id and envelope, the order
 * of evictions included. After every step the integrity check runs, the counts are the
 * model's, and the bytes of every held block are what its holders wrote.
 * In: occupied_percent  least share of blocks that are not free after a step, kept up
 *                       by allocations: 0 .. 100 */
void random_ops(tl_kv_cfg cfg, uint64_t seed, size_t n_steps, unsigned occupied_percent);

#endif
