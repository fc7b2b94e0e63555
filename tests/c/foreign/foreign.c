/* The parts that kv_pool.c stands on, as another author might write them: nothing clever. */

#include <stdlib.h>
#include <string.h>
#include <tinyllm.h>

static _Thread_local char slot[TL_LAST_ERROR_CAP];
const char *tl_last_error(void) { return slot; }
void tl_set_last_error(const char *message)
{
    if (!message) message = "";
    size_t n = strlen(message) < sizeof slot ? strlen(message) : sizeof slot - 1;
    memmove(slot, message, n);
    slot[n] = 0;
}

uint32_t tl_abi_version(void) { return TL_ABI_VERSION; }
const char *tl_status_str(tl_status s)
{
    static const char *const names[] = {"TL_OK", "TL_EINVAL", "TL_ENOMEM", "TL_ESHAPE", "TL_EDTYPE", "TL_EFULL",
                                        "TL_ENOTFOUND", "TL_EFORMAT", "TL_EBUSY", "TL_EUNSUPPORTED", "TL_EIO"};
    return s >= 0 && s <= TL_EIO ? names[s] : "TL_UNKNOWN";
}

static void *plain_alloc(void *user, size_t n, size_t align)
{
    (void)user;
    return aligned_alloc(align, (n + align - 1) / align * align);
}
static void plain_free(void *user, void *p) { (void)user, free(p); }
static tl_allocator in_use = {plain_alloc, plain_free, NULL};
tl_status tl_set_allocator(const tl_allocator *a)
{
    in_use = a ? *a : (tl_allocator){plain_alloc, plain_free, NULL};
    return TL_OK;
}
void *tl_alloc(size_t n, size_t align)
{
    void *p = in_use.alloc(in_use.user, n, align);
    if (!p) tl_set_last_error("tl_alloc: no memory");
    return p;
}
void tl_free(void *p)
{
    if (p) in_use.free(in_use.user, p);
}

tl_status tl_vec_init(tl_vec *v, size_t elem)
{
    memset(v, 0, sizeof *v);
    v->elem = elem;
    return TL_OK;
}
tl_status tl_vec_reserve(tl_vec *v, size_t cap)
{
    if (cap <= v->cap) return TL_OK;
    void *data = tl_alloc(cap * v->elem, 16);
    if (!data) return TL_ENOMEM;
    if (v->len) memcpy(data, v->data, v->len * v->elem);
    tl_free(v->data);
    v->data = data;
    v->cap = cap;
    return TL_OK;
}
tl_status tl_vec_push(tl_vec *v, const void *x)
{
    tl_status status = v->len < v->cap ? TL_OK : tl_vec_reserve(v, v->cap * 2 + 8);
    if (status == TL_OK) memcpy((char *)v->data + v->len++ * v->elem, x, v->elem);
    return status;
}
void *tl_vec_at(const tl_vec *v, size_t i) { return i < v->len ? (char *)v->data + i * v->elem : NULL; }
void tl_vec_free(tl_vec *v)
{
    tl_free(v->data);
    tl_vec_init(v, v->elem);
}

/* Pairs in no order, searched from end to end. */
struct tl_map {
    tl_vec pairs;
};
static uint64_t *pair_of(const tl_map *m, uint64_t k)
{
    uint64_t *pair = m->pairs.data;
    for (size_t i = 0; i < m->pairs.len; i++, pair += 2)
        if (pair[0] == k) return pair;
    return NULL;
}
tl_status tl_map_create(size_t hint, tl_map **out)
{
    *out = tl_alloc(sizeof **out, 16);
    if (!*out) return TL_ENOMEM;
    tl_vec_init(&(*out)->pairs, 16);
    tl_status status = tl_vec_reserve(&(*out)->pairs, hint);
    if (status != TL_OK) {
        tl_free(*out);
        *out = NULL;
    }
    return status;
}
tl_status tl_map_put(tl_map *m, uint64_t k, uint64_t v)
{
    uint64_t *known = pair_of(m, k);
    if (!known) return tl_vec_push(&m->pairs, (uint64_t[]){k, v});
    known[1] = v;
    return TL_OK;
}
int tl_map_get(const tl_map *m, uint64_t k, uint64_t *v)
{
    uint64_t *known = pair_of(m, k);
    if (known && v) *v = known[1];
    return known != NULL;
}
int tl_map_del(tl_map *m, uint64_t k)
{
    uint64_t *known = pair_of(m, k);
    if (!known) return 0;
    memcpy(known, (uint64_t *)m->pairs.data + 2 * --m->pairs.len, 16);
    return 1;
}
size_t tl_map_len(const tl_map *m) { return m ? m->pairs.len : 0; }
void tl_map_destroy(tl_map *m)
{
    if (!m) return;
    tl_vec_free(&m->pairs);
    tl_free(m);
}

void tl_lru_init(tl_lru *l)
{
    l->head.prev = l->head.next = &l->head;
    l->len = 0;
}
void tl_lru_remove(tl_lru *l, tl_list_node *n)
{
    if (!n->prev) return;
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->prev = n->next = NULL;
    l->len--;
}
void tl_lru_touch(tl_lru *l, tl_list_node *n)
{
    tl_lru_remove(l, n);
    *n = (tl_list_node){l->head.prev, &l->head};
    n->prev->next = l->head.prev = n;
    l->len++;
}
tl_list_node *tl_lru_pop_oldest(tl_lru *l)
{
    tl_list_node *n = l->len ? l->head.next : NULL;
    if (n) tl_lru_remove(l, n);
    return n;
}
