/* tinyllm/ds.h - the data structures below the pool.
 *
 *   tl_vec   a growable array of equal elements
 *   tl_map   a hash map from u64 to u64 (a Swiss table)
 *   tl_lru   an intrusive list, oldest to newest
 *
 * tinyllm/abi.h has the rules about statuses, messages, memory and threads.
 */
#ifndef TINYLLM_DS_H
#define TINYLLM_DS_H

#include "tinyllm/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tl_vec: a growable array -------------------------------------------- */

/*      data
 *       |<------------ len * elem ------------>|
 *       +---------+---------+-----+------------+ - - - - - +
 *       | elem 0  | elem 1  | ... | elem len-1 |  unused   |
 *       +---------+---------+-----+------------+ - - - - - +
 *       |<------------------- cap * elem ----------------->|
 *
 * The fields are public to read, and data[0 .. len * elem) also to write. A
 * caller may lower len to drop elements from the end. */
typedef struct tl_vec {
    void *data;  /* NULL while cap is 0; aligned for any element */
    size_t len;  /* elements in use */
    size_t cap;  /* elements there is room for */
    size_t elem; /* bytes of one element, at least 1 */
} tl_vec;

TL_STATIC_ASSERT_PTR64(sizeof(tl_vec) == 32, "callers embed it by value");
TL_STATIC_ASSERT_PTR64(offsetof(tl_vec, data) == 0, "part of the binary interface");
TL_STATIC_ASSERT_PTR64(offsetof(tl_vec, len) == 8, "part of the binary interface");
TL_STATIC_ASSERT_PTR64(offsetof(tl_vec, cap) == 16, "part of the binary interface");
TL_STATIC_ASSERT_PTR64(offsetof(tl_vec, elem) == 24, "part of the binary interface");

/* Makes *v an empty array of elements of elem bytes. Takes no memory.
 * Returns: TL_OK
 *          TL_EINVAL  v is NULL or elem is 0; nothing is written */
tl_status tl_vec_init(tl_vec *v, size_t elem);

/* Makes room for cap_min elements in all. Never shrinks. Elements stay what they
 * are; data may move.
 * Returns: TL_OK
 *          TL_EINVAL  v is NULL or not initialized, or cap_min * elem does not
 *                     fit in size_t
 *          TL_ENOMEM  the allocator said no
 * On failure *v is unchanged. */
tl_status tl_vec_reserve(tl_vec *v, size_t cap_min);

/* Appends a copy of the elem bytes at x. Growth at least doubles the room, so a
 * push costs O(1) amortised; within reserved room it never allocates. x may point
 * into the array itself.
 * Returns: TL_OK
 *          TL_EINVAL, TL_ENOMEM  as tl_vec_reserve (of the doubled room), or x is NULL
 * On failure *v is unchanged. */
tl_status tl_vec_push(tl_vec *v, const void *x);

/* Returns: the address of element i, valid until the next growth;
 *          NULL with the slot set when v is NULL or i is not below len. */
void *tl_vec_at(const tl_vec *v, size_t i);

/* Gives the memory back: *v is as after tl_vec_init, elem kept. NULL is fine. */
void tl_vec_free(tl_vec *v);

/* ---- tl_map: u64 to u64 -------------------------------------------------- */

/* A Swiss table: open addressing in groups of 16 slots, one control byte a slot,
 * at most 7/8 of the slots occupied. Every u64 is a valid key and a valid value.
 *
 * A put + delete step costs O(1) amortised at every size, also with 7/8 of the
 * slots live, and neither allocates: only a put that would exceed 7/8 grows. Each map
 * hashes with a seed of its own, so that keys which collide cannot be prepared. */
typedef struct tl_map tl_map;

/* Creates an empty map that holds hint keys without growing.
 * Out: out  the map, NULL on failure
 * Returns: TL_OK
 *          TL_EINVAL  out is NULL, or hint needs more bytes than size_t counts
 *          TL_ENOMEM  the allocator said no; everything is given back */
tl_status tl_map_create(size_t hint, tl_map **out);

/* Maps k to v: inserts the key or overwrites its value.
 * Returns: TL_OK
 *          TL_EINVAL  m is NULL
 *          TL_ENOMEM  the map had to grow and could not: it is as it was */
tl_status tl_map_put(tl_map *m, uint64_t k, uint64_t v);

/* Out: v  the key's value, where there is one; may be NULL
 * Returns: 1 when k is in the map, 0 when not (or m is NULL). */
int tl_map_get(const tl_map *m, uint64_t k, uint64_t *v);

/* Removes k. Never allocates.
 * Returns: 1 when k was in the map, 0 when not (or m is NULL). */
int tl_map_del(tl_map *m, uint64_t k);

/* Returns: the number of keys; 0 for NULL. */
size_t tl_map_len(const tl_map *m);

/* Gives everything back. NULL is fine. */
void tl_map_destroy(tl_map *m);

/* ---- tl_lru: an intrusive list ------------------------------------------- */

/* A node lives inside the object it lists; both links are NULL while it is in no
 * list. Zero it before its first use. */
typedef struct tl_list_node {
    struct tl_list_node *prev, *next;
} tl_list_node;

TL_STATIC_ASSERT_PTR64(sizeof(tl_list_node) == 16, "callers embed it in their records");
TL_STATIC_ASSERT_PTR64(offsetof(tl_list_node, prev) == 0, "part of the binary interface");
TL_STATIC_ASSERT_PTR64(offsetof(tl_list_node, next) == 8, "part of the binary interface");

/* From a node to the struct that embeds it as its field `member`. */
#define TL_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* Circular, with a sentinel, so that no operation has an empty-list case:
 *
 *       +--> head --> oldest --> ... --> newest --+
 *       +----------------- next ------------------+      (prev: the other way)
 *
 * A tl_lru must not move in memory while it has nodes. */
typedef struct tl_lru {
    tl_list_node head; /* next: the oldest node; prev: the newest */
    size_t len;
} tl_lru;

TL_STATIC_ASSERT_PTR64(sizeof(tl_lru) == 24, "callers embed it by value");
TL_STATIC_ASSERT_PTR64(offsetof(tl_lru, head) == 0, "part of the binary interface");
TL_STATIC_ASSERT_PTR64(offsetof(tl_lru, len) == 16, "part of the binary interface");

/* Makes *l an empty list. NULL does nothing, here and below. */
void tl_lru_init(tl_lru *l);

/* Makes n the newest: inserts it, or moves it when it is in *l already. */
void tl_lru_touch(tl_lru *l, tl_list_node *n);

/* Takes n out of *l. A node that is in no list is left alone. */
void tl_lru_remove(tl_lru *l, tl_list_node *n);

/* Takes the oldest node out.
 * Returns: that node, or NULL when the list is empty. */
tl_list_node *tl_lru_pop_oldest(tl_lru *l);

#ifdef __cplusplus
}
#endif

#endif
