#ifndef FOREIGN_DS_H
#define FOREIGN_DS_H
#include <tinyllm/abi.h>
typedef struct {
    void *data;
    size_t len, cap, elem;
} tl_vec;
tl_status tl_vec_init(tl_vec *, size_t);
tl_status tl_vec_reserve(tl_vec *, size_t);
tl_status tl_vec_push(tl_vec *, const void *);
void *tl_vec_at(const tl_vec *, size_t);
void tl_vec_free(tl_vec *);
typedef struct tl_map tl_map;
tl_status tl_map_create(size_t, tl_map **);
tl_status tl_map_put(tl_map *, uint64_t, uint64_t);
int tl_map_get(const tl_map *, uint64_t, uint64_t *);
int tl_map_del(tl_map *, uint64_t);
size_t tl_map_len(const tl_map *);
void tl_map_destroy(tl_map *);
typedef struct tl_list_node {
    struct tl_list_node *prev, *next;
} tl_list_node;
#define TL_CONTAINER_OF(node, type, field) ((type *)((char *)(node) - offsetof(type, field)))
typedef struct {
    tl_list_node head;
    size_t len;
} tl_lru;
void tl_lru_init(tl_lru *);
void tl_lru_touch(tl_lru *, tl_list_node *);
void tl_lru_remove(tl_lru *, tl_list_node *);
tl_list_node *tl_lru_pop_oldest(tl_lru *);
#endif
