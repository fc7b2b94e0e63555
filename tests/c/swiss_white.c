/* swiss_white.c - see swiss_white.h. */

#ifndef WHITE
#define WHITE(name) native_##name
#define WHITE_OPS white_native
#endif

#include "swiss_white.h"

#include "../../csrc/ds/swiss_group.h"

static size_t groups_loaded;
#define group_load(ctrl) (groups_loaded++, group_load(ctrl))

#define tl_map_create WHITE(create)
#define tl_map_put WHITE(put)
#define tl_map_get WHITE(get)
#define tl_map_prefetch WHITE(prefetch)
#define tl_map_del WHITE(del)
#define tl_map_len WHITE(len)
#define tl_map_destroy WHITE(destroy)

#include "../../csrc/ds/swiss.c"

static uint32_t match(const uint8_t *ctrl, uint8_t byte) { return group_match(group_load(ctrl), byte); }

static uint32_t match_open(const uint8_t *ctrl) { return group_match_open(group_load(ctrl)); }

/* Without its seed a map puts every key where the test that chose the keys expects it. */
static tl_status create_unseeded(size_t hint, tl_map **out)
{
    tl_status status = tl_map_create(hint, out);
    if (status == TL_OK) (*out)->seed = 0;
    return status;
}

static uint64_t seed_in(const tl_map *m) { return m->seed; }

static size_t cap_of(const tl_map *m) { return m->cap; }

static size_t count(const tl_map *m, uint8_t byte)
{
    size_t n = 0;
    for (size_t i = 0; i < m->cap; i++) n += m->ctrl[i] == byte;
    return n;
}

static size_t tombstones(const tl_map *m) { return count(m, CTRL_TOMB); }

static const char *fault(const tl_map *m)
{
    size_t empty = count(m, CTRL_EMPTY), dead = tombstones(m);
    if (m->live != m->cap - empty - dead) return "live is not the number of keys";
    if (m->closed != m->cap - empty) return "closed is not the number of keys and tombstones";
    if (m->live > m->cap / 8 * 7) return "more than 7/8 of the slots hold keys";
    if (m->closed > m->cap / 16 * 15) return "more than 15/16 of the slots are closed";
    for (size_t i = 0; i < m->cap; i++) {
        if (m->ctrl[i] & 0x80) continue;
        if (find(m, m->slots[i].key, hash_in(m, m->slots[i].key)) != i) return "a key is not found where it lies";
    }
    return NULL;
}

static int grow_the_largest(void) { return grow(&(tl_map){.cap = CAP_MAX}); }

const white_ops WHITE_OPS = {
    create_unseeded, tl_map_put, tl_map_get, tl_map_prefetch, tl_map_del,    tl_map_len, tl_map_destroy,
    tl_map_create,   seed_in,    match,      match_open,      hash_of,       cap_of,     tombstones,
    fault,           grow_the_largest,       &groups_loaded,
};
