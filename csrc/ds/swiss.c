/* swiss.c - a hash map from u64 to u64 (tl_map of tinyllm/ds.h).
 *
 * One allocation holds the table, for cap slots (a power of two, at least 16):
 *
 *      +--------------------------+---------------------------------------------+
 *      | ctrl: cap control bytes  | slots: cap pairs of key and value           |
 *      +--------------------------+---------------------------------------------+
 *
 * A key's hash gives 7 bits for its control byte and the group where its search
 * begins; the search visits groups at growing distances (1, 2, 3 ...: all of them,
 * for a power of two) and ends at the first group that has an empty slot.
 *
 * Rules of the load, in slots:
 *   (1) live keys are at most 7/8; the put that would exceed it grows the table.
 *   (2) a put that finds tombstones in more than 1/16 first clears them, in place, so
 *       that searches stay short, and by (1) always end: keys and tombstones are at
 *       most 15/16. The slots that come free pay for the walk: O(1) amortised at any
 *       number of live keys.
 *   (3) deleting from a group that has an empty slot leaves no tombstone: no search
 *       has ever gone past that group. Below about half load hardly any arise. */

#include "tinyllm/ds.h"

#include "swiss.h"
#include "swiss_group.h"

#include <string.h>

typedef struct {
    uint64_t key, value;
} slot;

struct tl_map {
    uint8_t *ctrl;  /* the allocation */
    slot *slots;    /* within it */
    size_t cap;     /* slots */
    size_t live;    /* keys */
    size_t closed;  /* keys and tombstones */
    uint64_t seed;  /* part of every hash */
};

static size_t live_max(size_t cap) { return cap - cap / 8; }
static size_t tombs_max(size_t cap) { return cap / 16; }

/* Mixes all bits of a key into all bits of its hash (the finalizer of MurmurHash3). */
static uint64_t hash_of(uint64_t key)
{
    key = (key ^ key >> 33) * 0xFF51AFD7ED558CCDu;
    key = (key ^ key >> 33) * 0xC4CEB9FE1A85EC53u;
    return key ^ key >> 33;
}

/* No two maps hash alike, so that nobody can prepare keys that collide: what differs is
 * where the system has put them, which it keeps to itself. */
static uint64_t seed_of(const tl_map *m) { return hash_of((uintptr_t)m) ^ hash_of((uintptr_t)&m); }

static uint64_t hash_in(const tl_map *m, uint64_t key) { return hash_of(key ^ m->seed); }

static uint8_t tag_of(uint64_t hash) { return hash & 0x7F; }

/* A search: the first slot of the group it looks at, and how far to the next. */
typedef struct {
    size_t at, stride;
} probe;

static probe probe_start(const tl_map *m, uint64_t hash)
{
    return (probe){(size_t)(hash >> 7) * GROUP_SLOTS & (m->cap - 1), 0};
}

static void probe_next(const tl_map *m, probe *p)
{
    p->stride += GROUP_SLOTS;
    p->at = (p->at + p->stride) & (m->cap - 1);
}

#define NOT_FOUND SIZE_MAX

static size_t find(const tl_map *m, uint64_t key, uint64_t hash)
{
    for (probe p = probe_start(m, hash);; probe_next(m, &p)) {
        group g = group_load(m->ctrl + p.at);
        for (uint32_t hits = group_match(g, tag_of(hash)); hits; hits &= hits - 1) {
            size_t i = p.at + mask_first(hits);
            if (m->slots[i].key == key) return i;
        }
        if (group_match(g, CTRL_EMPTY)) return NOT_FOUND;
    }
}

/* The first slot on a key's way that holds no key; there is one, by (2). */
static size_t find_open(const tl_map *m, uint64_t hash)
{
    for (probe p = probe_start(m, hash);; probe_next(m, &p)) {
        uint32_t open = group_match_open(group_load(m->ctrl + p.at));
        if (open) return p.at + mask_first(open);
    }
}

static void fill_slot(tl_map *m, size_t i, uint64_t hash, slot s)
{
    m->closed += m->ctrl[i] == CTRL_EMPTY;
    m->ctrl[i] = tag_of(hash);
    m->slots[i] = s;
    m->live++;
}

/* ---- sizes --------------------------------------------------------------- */

#define CAP_MAX ((SIZE_MAX / 2 + 1) / 16) /* the last power of two whose 17 bytes a slot fit */

/* The least capacity for n keys, by (1); 0 when there is none. */
static size_t cap_for(size_t n)
{
    size_t cap = GROUP_SLOTS;
    while (cap <= CAP_MAX && live_max(cap) < n) cap *= 2;
    return cap <= CAP_MAX ? cap : 0;
}

/* Gives m an empty table. On failure m is as it was. */
static int new_table(tl_map *m, size_t cap)
{
    uint8_t *ctrl = tl_alloc(cap + cap * sizeof(slot), 64);
    if (!ctrl) return 0;
    memset(ctrl, CTRL_EMPTY, cap);
    *m = (tl_map){.ctrl = ctrl, .slots = (slot *)(void *)(ctrl + cap), .cap = cap, .seed = m->seed};
    return 1;
}

static int grow(tl_map *m)
{
    tl_map old = *m;
    if (old.cap >= CAP_MAX || !new_table(m, old.cap * 2)) return 0;
    for (size_t i = 0; i < old.cap; i++) {
        if (old.ctrl[i] & CTRL_EMPTY) continue;
        uint64_t hash = hash_in(m, old.slots[i].key);
        fill_slot(m, find_open(m, hash), hash, old.slots[i]);
    }
    tl_free(old.ctrl);
    return 1;
}

/* Rehashes in place. Every key is first marked as waiting (with the tombstone's
 * byte, which counts as open) and then settles in the first open slot on its way:
 * in its own group, in an empty slot, or in that of another waiting key, which
 * takes its place and is next. Settled keys never move again. */
static void clear_tombstones(tl_map *m)
{
    for (size_t i = 0; i < m->cap; i++) m->ctrl[i] = m->ctrl[i] & CTRL_EMPTY ? CTRL_EMPTY : CTRL_TOMB;

    for (size_t i = 0; i < m->cap; i++) {
        while (m->ctrl[i] == CTRL_TOMB) {
            uint64_t hash = hash_in(m, m->slots[i].key);
            size_t to = find_open(m, hash);
            if (to / GROUP_SLOTS == i / GROUP_SLOTS) {
                m->ctrl[i] = tag_of(hash);
                break;
            }
            slot moved = m->slots[i];
            m->slots[i] = m->slots[to]; /* means something only where a key waits */
            m->slots[to] = moved;
            m->ctrl[i] = m->ctrl[to];
            m->ctrl[to] = tag_of(hash);
        }
    }
    m->closed = m->live;
}

/* ---- the interface ------------------------------------------------------- */

static tl_status fail(tl_status status, const char *message)
{
    tl_set_last_error(message);
    return status;
}

tl_status tl_map_create(size_t hint, tl_map **out)
{
    if (!out) return fail(TL_EINVAL, "tl_map_create: out is NULL");
    *out = NULL;
    size_t cap = cap_for(hint);
    if (cap == 0) return fail(TL_EINVAL, "tl_map_create: hint needs more bytes than size_t counts");
    tl_map *m = tl_alloc(sizeof *m, _Alignof(tl_map));
    if (m) m->seed = seed_of(m);
    if (!m || !new_table(m, cap)) {
        tl_free(m);
        return fail(TL_ENOMEM, "tl_map_create: out of memory");
    }
    *out = m;
    return TL_OK;
}

tl_status tl_map_put(tl_map *m, uint64_t k, uint64_t v)
{
    if (!m) return fail(TL_EINVAL, "tl_map_put: m is NULL");
    uint64_t hash = hash_in(m, k);
    size_t i = find(m, k, hash);
    if (i != NOT_FOUND) {
        m->slots[i].value = v;
        return TL_OK;
    }
    if (m->live == live_max(m->cap) && !grow(m)) return fail(TL_ENOMEM, "tl_map_put: no memory to grow");
    if (m->closed - m->live > tombs_max(m->cap)) clear_tombstones(m);
    fill_slot(m, find_open(m, hash), hash, (slot){k, v});
    return TL_OK;
}

int tl_map_get(const tl_map *m, uint64_t k, uint64_t *v)
{
    if (!m) return 0;
    size_t i = find(m, k, hash_in(m, k));
    if (i == NOT_FOUND) return 0;
    if (v) *v = m->slots[i].value;
    return 1;
}

/* The slot of k, as far as its first group tells; or else the one a put would fill. */
void tl_map_prefetch(const tl_map *m, uint64_t k)
{
    if (!m) return;
    uint64_t hash = hash_in(m, k);
    size_t at = probe_start(m, hash).at;
    group g = group_load(m->ctrl + at);
    uint32_t likely = group_match(g, tag_of(hash));
    if (!likely) likely = group_match_open(g);
    if (likely) __builtin_prefetch(&m->slots[at + mask_first(likely)]);
}

int tl_map_del(tl_map *m, uint64_t k)
{
    if (!m) return 0;
    size_t i = find(m, k, hash_in(m, k));
    if (i == NOT_FOUND) return 0;
    int passed = !group_match(group_load(m->ctrl + i / GROUP_SLOTS * GROUP_SLOTS), CTRL_EMPTY);
    m->ctrl[i] = passed ? CTRL_TOMB : CTRL_EMPTY; /* (3) */
    m->closed -= !passed;
    m->live--;
    return 1;
}

size_t tl_map_len(const tl_map *m) { return m ? m->live : 0; }

void tl_map_destroy(tl_map *m)
{
    if (!m) return;
    tl_free(m->ctrl);
    tl_free(m);
}
