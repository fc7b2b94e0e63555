/* tinyllm.h - every public header of the library.
 *
 *   tinyllm/abi.h      status codes, the error slot, the allocator hook
 *   tinyllm/ds.h       growable array, hash map, intrusive LRU list
 *   tinyllm/kv_pool.h  the paged KV block pool, its prefix index, its envelope
 */
#ifndef TINYLLM_H
#define TINYLLM_H

#include "tinyllm/abi.h"
#include "tinyllm/ds.h"
#include "tinyllm/kv_pool.h"

#endif
