/* swiss.h - what the library's own units ask of the hash map beyond tinyllm/ds.h. Private. */
#ifndef TL_SWISS_H
#define TL_SWISS_H

#include "tinyllm/ds.h"

/* Reads a group of control bytes and asks for the memory of the slot that a later call
 * about k will look at, without waiting for it: worth the while some calls ahead, in a map
 * that is larger than the caches. NULL is fine. */
void tl_map_prefetch(const tl_map *m, uint64_t k);

#endif
