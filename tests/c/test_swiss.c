/* tl_map, the hash map: what its interface promises, and, through swiss_white.h,
 * what it does inside, with both implementations of the group operations. */
#include "kit.h"

#include "swiss_white.h"

#include <stdlib.h>

/* The maps under test: the library's, and the two that can be looked into. */
static const white_ops library = {
    .create = tl_map_create, .put = tl_map_put, .get = tl_map_get,
    .del = tl_map_del,       .len = tl_map_len, .destroy = tl_map_destroy,
};
static const white_ops *const all_maps[] = {&library, &white_native, &white_portable};
static const white_ops *const white_maps[] = {&white_native, &white_portable};

#define EACH_MAP(map, list) \
    for (const white_ops *const *map##_at = (list), *map = *map##_at; \
         map##_at < (list) + sizeof(list) / sizeof((list)[0]) && (map = *map##_at, 1); map##_at++)

/* A fixed sequence of random numbers (splitmix64). */
static uint64_t random_state;

static uint64_t random_u64(void)
{
    uint64_t x = random_state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* ---- the interface ------------------------------------------------------- */

/* A new map is empty; what is put is found, with its value, and nothing else. */
CASE(put_get_del)
{
    EACH_MAP(map, all_maps) {
        tl_map *m;
        uint64_t v = 5;
        CHECK_STATUS(map->create(0, &m), TL_OK);
        CHECK_EQ(map->len(m), 0);
        CHECK_EQ(map->get(m, 1, &v), 0);
        CHECK_EQ(v, 5);
        CHECK_STATUS(map->put(m, 1, 100), TL_OK);
        CHECK_STATUS(map->put(m, 2, 200), TL_OK);
        CHECK_EQ(map->len(m), 2);
        CHECK_EQ(map->get(m, 1, &v), 1);
        CHECK_EQ(v, 100);
        CHECK_EQ(map->get(m, 2, NULL), 1);
        CHECK_EQ(map->get(m, 3, NULL), 0);
        CHECK_EQ(map->del(m, 1), 1);
        CHECK_EQ(map->del(m, 1), 0);
        CHECK_EQ(map->get(m, 1, &v), 0);
        CHECK_EQ(map->get(m, 2, &v), 1);
        CHECK_EQ(v, 200);
        CHECK_EQ(map->len(m), 1);
        CHECK_STR(tl_last_error(), "");
        map->destroy(m);
    }
}

/* A put of a key that is there overwrites its value and adds no key. */
CASE(put_overwrites)
{
    tl_map *m;
    uint64_t v;
    CHECK_STATUS(tl_map_create(0, &m), TL_OK);
    CHECK_STATUS(tl_map_put(m, 7, 1), TL_OK);
    CHECK_STATUS(tl_map_put(m, 7, UINT64_MAX), TL_OK);
    CHECK_EQ(tl_map_len(m), 1);
    CHECK_EQ(tl_map_get(m, 7, &v), 1);
    CHECK_EQ(v, UINT64_MAX);
    tl_map_destroy(m);
}

/* Overwriting at the limit of the load does not grow. */
CASE(put_overwrites_a_full_table_without_growing)
{
    tl_map *m;
    CHECK_STATUS(tl_map_create(14, &m), TL_OK);
    for (uint64_t k = 0; k < 14; k++) CHECK_STATUS(tl_map_put(m, k, k), TL_OK);
    size_t allocs = kit_allocs();
    for (uint64_t k = 0; k < 14; k++) CHECK_STATUS(tl_map_put(m, k, k + 1), TL_OK);
    CHECK_EQ(kit_allocs(), allocs);
    CHECK_EQ(tl_map_len(m), 14);
    tl_map_destroy(m);
}

/* Every u64 is a key, those that look like marks of empty slots included. */
CASE(every_u64_is_a_key)
{
    static const uint64_t keys[] = {
        0, 1, UINT64_MAX, UINT64_MAX - 1, 0x80, 0xFE, 0xFF, UINT64_C(1) << 63, UINT64_C(1) << 32, UINT32_MAX,
        0x8080808080808080u, 0xFEFEFEFEFEFEFEFEu,
    };
    const size_t n = sizeof keys / sizeof keys[0];
    EACH_MAP(map, all_maps) {
        tl_map *m;
        uint64_t v;
        CHECK_STATUS(map->create(0, &m), TL_OK);
        for (size_t i = 0; i < n; i++) {
            CHECK_EQ(map->get(m, keys[i], NULL), 0);
            CHECK_STATUS(map->put(m, keys[i], ~keys[i]), TL_OK);
        }
        for (size_t i = 0; i < n; i++) {
            CHECK_EQ(map->get(m, keys[i], &v), 1);
            CHECK_EQ(v, ~keys[i]);
        }
        CHECK_EQ(map->len(m), n);
        for (size_t i = 0; i < n; i++) CHECK_EQ(map->del(m, keys[i]), 1);
        CHECK_EQ(map->len(m), 0);
        map->destroy(m);
    }
}

/* A map created for hint keys holds that many without asking for memory again. */
CASE(hint_keys_fit_without_growing)
{
    static const size_t hints[] = {0, 1, 13, 14, 15, 28, 29, 56, 57, 112, 896, 897, 1000, 3584};
    for (size_t h = 0; h < sizeof hints / sizeof hints[0]; h++) {
        tl_map *m;
        CHECK_STATUS(tl_map_create(hints[h], &m), TL_OK);
        size_t allocs = kit_allocs();
        for (uint64_t k = 0; k < hints[h]; k++) CHECK_STATUS(tl_map_put(m, k * k, k), TL_OK);
        CHECK_EQ(kit_allocs(), allocs);
        CHECK_EQ(tl_map_len(m), hints[h]);
        tl_map_destroy(m);
    }
}

/* The map grows past its hint and keeps every key. */
CASE(growth_keeps_the_keys)
{
    EACH_MAP(map, all_maps) {
        tl_map *m;
        CHECK_STATUS(map->create(0, &m), TL_OK);
        size_t allocs = kit_allocs();
        for (uint64_t k = 0; k < 5000; k++) CHECK_STATUS(map->put(m, k << 40, k), TL_OK);
        CHECK(kit_allocs() > allocs);
        CHECK_EQ(kit_live(), 2);
        CHECK_EQ(map->len(m), 5000);
        for (uint64_t k = 0; k < 5000; k++) {
            uint64_t v = 0;
            CHECK_EQ(map->get(m, k << 40, &v), 1);
            CHECK_EQ(v, k);
        }
        map->destroy(m);
    }
}

/* NULL arguments: create and put refuse, get, del and len answer 0, destroy does
 * nothing. */
CASE(calls_take_null)
{
    uint64_t v = 3;
    CHECK_STATUS(tl_map_create(1, NULL), TL_EINVAL);
    CHECK_ERROR_FROM("tl_map_create");
    CHECK_STATUS(tl_map_put(NULL, 1, 1), TL_EINVAL);
    CHECK_ERROR_FROM("tl_map_put");
    CHECK_EQ(tl_map_get(NULL, 1, &v), 0);
    CHECK_EQ(v, 3);
    CHECK_EQ(tl_map_del(NULL, 1), 0);
    CHECK_EQ(tl_map_len(NULL), 0);
    tl_map_destroy(NULL);
    CHECK_EQ(kit_allocs(), 0);
}

/* A hint no memory can hold is TL_EINVAL or, where its bytes can at least be
 * counted, TL_ENOMEM: nothing wraps around to a small table. */
CASE(create_refuses_a_hint_past_size_t)
{
    for (int bit = 0; bit < 6; bit++) {
        tl_map *m = (tl_map *)&m;
        CHECK_STATUS(tl_map_create(SIZE_MAX >> bit, &m), TL_EINVAL);
        CHECK_ERROR_FROM("tl_map_create");
        CHECK(!m);
    }
    CHECK_EQ(kit_allocs(), 0);
    kit_fail_at(1, 0);
    tl_map *m = (tl_map *)&m;
    CHECK_STATUS(tl_map_create(SIZE_MAX >> 6, &m), TL_ENOMEM);
    CHECK_ERROR_FROM("tl_map_create");
    CHECK(!m);
    CHECK(kit_failed());
}

/* A table of the largest capacity does not grow: its double would wrap around. */
CASE(the_largest_table_does_not_grow)
{
    EACH_MAP(map, white_maps) CHECK_EQ(map->grow_the_largest(), 0);
    CHECK_EQ(kit_allocs(), 0);
}

/* ---- failing allocations ------------------------------------------------- */

/* Whichever allocation fails: TL_ENOMEM, the map as it was, nothing leaks. */
CASE(every_allocation_may_fail)
{
    KIT_EACH_ALLOC_FAILURE(n) {
        tl_map *m = (tl_map *)&m;
        tl_status status = tl_map_create(3, &m);
        if (status != TL_OK) {
            CHECK_STATUS(status, TL_ENOMEM);
            CHECK_ERROR_FROM("tl_map_create");
            CHECK(!m);
            CHECK(kit_failed());
            continue;
        }
        uint64_t k = 0;
        while (k < 200 && (status = tl_map_put(m, k, k + 1)) == TL_OK) k++;
        CHECK_EQ(status, kit_failed() ? TL_ENOMEM : TL_OK);
        if (kit_failed()) CHECK_ERROR_FROM("tl_map_put");
        CHECK_EQ(tl_map_len(m), k);
        for (uint64_t i = 0; i < 300; i++) {
            uint64_t v = 0;
            CHECK_EQ(tl_map_get(m, i, &v), i < k);
            CHECK_EQ(v, i < k ? i + 1 : 0);
        }
        tl_map_destroy(m);
    }
}

/* A map that could not grow is not one bit different, and grows when it can. */
CASE(failed_growth_changes_nothing)
{
    EACH_MAP(map, white_maps) {
        tl_map *m;
        CHECK_STATUS(map->create(14, &m), TL_OK);
        for (uint64_t k = 0; k < 14; k++) CHECK_STATUS(map->put(m, k, k), TL_OK);
        kit_fail_at(0, 0);
        CHECK_STATUS(map->put(m, 99, 99), TL_ENOMEM);
        CHECK_EQ(map->cap(m), 16);
        CHECK_EQ(map->len(m), 14);
        CHECK_EQ(map->get(m, 99, NULL), 0);
        CHECK(!map->fault(m));
        for (uint64_t k = 0; k < 14; k++) CHECK_EQ(map->get(m, k, NULL), 1);
        CHECK_STATUS(map->put(m, 99, 99), TL_OK);
        CHECK_EQ(map->cap(m), 32);
        CHECK_EQ(map->len(m), 15);
        map->destroy(m);
    }
}

/* ---- against a model ----------------------------------------------------- */

/* Random puts, gets and deletes on few enough keys that all paths are met: after
 * every step the answer is the model's, every so often the whole map is. */
CASE(random_ops_match_a_model)
{
    enum { KEYS = 400, STEPS = 6000 };
    static const size_t key_counts[] = {KEYS, 100, 28, 7};
    EACH_MAP(map, all_maps) {
        for (size_t seed = 0; seed < 4; seed++) {
            static uint64_t values[KEYS];
            static int there[KEYS];
            size_t n = 0, keys = key_counts[seed];
            tl_map *m;
            memset(there, 0, sizeof there);
            random_state = seed;
            CHECK_STATUS(map->create(0, &m), TL_OK);
            for (size_t step = 0; step < STEPS; step++) {
                uint64_t r = random_u64(), v = 0;
                size_t i = (size_t)(r >> 8) % keys;
                uint64_t key = i * UINT64_C(0x0123456789ABCDEF);
                /* the share of puts goes up and down, and with it the load */
                if ((r & 63) < (step / 500 % 2 ? 20u : 44u)) {
                    CHECK_STATUS(map->put(m, key, r), TL_OK);
                    n += !there[i];
                    there[i] = 1;
                    values[i] = r;
                } else {
                    CHECK_EQ(map->del(m, key), there[i]);
                    n -= (size_t)there[i];
                    there[i] = 0;
                }
                CHECK_EQ(map->len(m), n);
                CHECK_EQ(map->get(m, key, &v), there[i]);
                CHECK_EQ(v, there[i] ? values[i] : 0);
                if (step % 97) continue;
                if (map->fault) CHECK_STR(map->fault(m) ? map->fault(m) : "sound", "sound");
                for (i = 0; i < keys; i++) {
                    v = 0;
                    CHECK_EQ(map->get(m, i * UINT64_C(0x0123456789ABCDEF), &v), there[i]);
                    CHECK_EQ(v, there[i] ? values[i] : 0);
                }
            }
            map->destroy(m);
        }
    }
}

/* ---- tombstones ---------------------------------------------------------- */

/* At exactly `live` keys for ever: deletes one of them, puts a new one. Returns the
 * groups loaded a step. */
static size_t churn(const white_ops *map, size_t live, size_t steps)
{
    tl_map *m;
    uint64_t *keys = malloc(live * sizeof *keys);
    random_state = live;
    CHECK_STATUS(map->create(live, &m), TL_OK);
    for (size_t i = 0; i < live; i++) CHECK_STATUS(map->put(m, keys[i] = random_u64(), i), TL_OK);
    size_t allocs = kit_allocs(), cap = map->cap(m), work = *map->work;
    for (size_t step = 0; step < steps; step++) {
        size_t i = (size_t)(random_u64() % live);
        CHECK_EQ(map->del(m, keys[i]), 1);
        CHECK_STATUS(map->put(m, keys[i] = random_u64(), i), TL_OK);
    }
    work = *map->work - work;
    CHECK_EQ(kit_allocs(), allocs);
    CHECK_EQ(map->cap(m), cap);
    CHECK_EQ(map->len(m), live);
    CHECK(!map->fault(m));
    for (size_t i = 0; i < live; i++) {
        uint64_t v;
        CHECK_EQ(map->get(m, keys[i], &v), 1);
        CHECK_EQ(v, i);
    }
    map->destroy(m);
    free(keys);
    return work / steps;
}

/* A put + delete step neither allocates nor costs more in a larger table, also with
 * exactly 7/8 of the slots live (14 of 16 ... 57,344 of 65,536). A rebuild at every
 * put would load as many groups as there are keys. */
CASE(churn_is_amortised_constant)
{
    static const size_t full[] = {14, 28, 56, 112, 896, 7168, 57344};
    EACH_MAP(map, white_maps)
        for (size_t i = 0; i < sizeof full / sizeof full[0]; i++) {
            CHECK(churn(map, full[i], full[i] + 20000) <= 40);
            CHECK(churn(map, full[i] - 1, full[i] + 20000) <= 40);
        }
}

/* The library's own map: a million steps at 7/8 and not one allocation. */
CASE(churn_never_allocates)
{
    tl_map *m;
    const uint64_t live = 112;
    CHECK_STATUS(tl_map_create(live, &m), TL_OK);
    for (uint64_t k = 0; k < live; k++) CHECK_STATUS(tl_map_put(m, k, k), TL_OK);
    size_t allocs = kit_allocs();
    for (uint64_t k = live; k < 1000000; k++) {
        CHECK_EQ(tl_map_del(m, k - live), 1);
        CHECK_STATUS(tl_map_put(m, k, k), TL_OK);
    }
    CHECK_EQ(kit_allocs(), allocs);
    CHECK_EQ(tl_map_len(m), live);
    tl_map_destroy(m);
}

/* Deleting never allocates, and a del or put that fails to find changes nothing. */
CASE(delete_never_allocates)
{
    tl_map *m;
    CHECK_STATUS(tl_map_create(100, &m), TL_OK);
    for (uint64_t k = 0; k < 100; k++) CHECK_STATUS(tl_map_put(m, k, k), TL_OK);
    size_t allocs = kit_allocs();
    for (uint64_t k = 0; k < 200; k++) CHECK_EQ(tl_map_del(m, k), k < 100);
    CHECK_EQ(kit_allocs(), allocs);
    CHECK_EQ(tl_map_len(m), 0);
    tl_map_destroy(m);
}

/* A delete from a group with an empty slot leaves no tombstone; one from a full
 * group does, since a search may have gone past. */
CASE(tombstones_only_in_full_groups)
{
    EACH_MAP(map, white_maps) {
        tl_map *m;
        CHECK_STATUS(map->create(14, &m), TL_OK);
        for (uint64_t k = 0; k < 14; k++) CHECK_STATUS(map->put(m, k, k), TL_OK);
        for (uint64_t k = 0; k < 14; k++) CHECK_EQ(map->del(m, k), 1);
        CHECK_EQ(map->tombstones(m), 0);
        map->destroy(m);
    }
}

static size_t least_align;

static void *note_align(void *user, size_t n, size_t align)
{
    (void)user;
    if (n >= 17 * 16 && align < least_align) least_align = align;
    return aligned_alloc(align, (n + align - 1) / align * align);
}

static void give_back(void *user, void *p)
{
    (void)user;
    free(p);
}

/* A table is asked for where a group of control bytes, read in one go, may lie. */
CASE(a_table_is_aligned_for_its_groups)
{
    const tl_allocator noting = {note_align, give_back, NULL};
    tl_map *m;
    least_align = 4096;
    CHECK_STATUS(tl_set_allocator(&noting), TL_OK);
    CHECK_STATUS(tl_map_create(1, &m), TL_OK);
    for (uint64_t k = 0; k < 100; k++) CHECK_STATUS(tl_map_put(m, k, k), TL_OK);
    tl_map_destroy(m);
    CHECK(least_align >= 16);
    CHECK(least_align < 4096);
}

/* However many tombstones many deletes leave, the next put clears them all. */
CASE(a_put_clears_what_many_deletes_left)
{
    EACH_MAP(map, white_maps) {
        enum { KEYS = 896 }; /* 7/8 of 1024: many groups are full */
        tl_map *m;
        CHECK_STATUS(map->create(KEYS, &m), TL_OK);
        for (uint64_t k = 0; k < KEYS; k++) CHECK_STATUS(map->put(m, k, k), TL_OK);
        CHECK_EQ(map->cap(m), 1024);
        for (uint64_t k = 0; k < KEYS; k++) CHECK_EQ(map->del(m, k), 1);
        CHECK(map->tombstones(m) > 1024 / 16);
        CHECK_STATUS(map->put(m, 1, 1), TL_OK);
        CHECK_EQ(map->tombstones(m), 0);
        CHECK(map->fault(m) == NULL);
        map->destroy(m);
    }
}

/* Over long churn with half of the slots live, a search looks at little more than its
 * first group: groups that were full once do not stay closed for good. */
CASE(churn_keeps_searches_short)
{
    EACH_MAP(map, white_maps) {
        enum { LIVE = 1000, STEPS = 100000 };
        tl_map *m;
        CHECK_STATUS(map->create(LIVE + LIVE / 4, &m), TL_OK);
        for (uint64_t k = 0; k < LIVE; k++) CHECK_STATUS(map->put(m, k, k), TL_OK);
        size_t before = *map->work;
        for (uint64_t k = LIVE; k < STEPS; k++) {
            CHECK_EQ(map->del(m, k - LIVE), 1);
            CHECK_STATUS(map->put(m, k, k), TL_OK);
            CHECK(map->tombstones(m) <= map->cap(m) / 16 + 1);
        }
        /* A delete looks at two groups, its search and itself; a put at two searches. */
        CHECK(*map->work - before < STEPS * 5);
        map->destroy(m);
    }
}

/* ---- collisions ---------------------------------------------------------- */

static uint64_t inverse(uint64_t odd)
{
    uint64_t x = odd; /* right in 3 bits; each step doubles them */
    for (int i = 0; i < 5; i++) x *= 2 - odd * x;
    return x;
}

/* The key that has this hash: each step of the hash can be undone. */
static uint64_t key_for(const white_ops *map, uint64_t hash)
{
    uint64_t x = hash;
    x = (x ^ x >> 33) * inverse(0xC4CEB9FE1A85EC53u);
    x = (x ^ x >> 33) * inverse(0xFF51AFD7ED558CCDu);
    x ^= x >> 33;
    CHECK_EQ(map->hash(x), hash);
    return x;
}

/* 100 keys that all begin their search in one group, first with one tag for all,
 * then with as many as there are: all are found through long searches, deleted in
 * another order, and the tombstones left behind are used again. */
CASE(keys_of_one_group)
{
    EACH_MAP(map, white_maps)
        for (int one_tag = 0; one_tag < 2; one_tag++) {
            enum { N = 100 };
            uint64_t keys[N], v;
            tl_map *m;
            CHECK_STATUS(map->create(N, &m), TL_OK);
            CHECK_EQ(map->cap(m), 128);
            /* the group is bits 7, 8, 9 of the hash for 8 groups; the tag is below */
            for (uint64_t i = 0; i < N; i++) keys[i] = key_for(map, i << 32 | 5 << 7 | (one_tag ? 42 : i));
            for (int round = 0; round < 20; round++) {
                for (uint64_t i = 0; i < N; i++) CHECK_STATUS(map->put(m, keys[i], i), TL_OK);
                CHECK(!map->fault(m));
                for (uint64_t i = 0; i < N; i++) {
                    CHECK_EQ(map->get(m, keys[i], &v), 1);
                    CHECK_EQ(v, i);
                }
                CHECK_EQ(map->get(m, key_for(map, UINT64_C(7) << 50 | 5 << 7 | 42), NULL), 0);
                for (size_t i = 0; i < N; i++) {
                    CHECK_EQ(map->del(m, keys[i * 37 % N]), 1);
                    if (i == 0) CHECK(map->tombstones(m) <= 1);
                    CHECK_EQ(map->get(m, keys[(i + 1) * 37 % N], NULL), i + 1 < N);
                }
                CHECK_EQ(map->len(m), 0);
                CHECK(!map->fault(m));
            }
            map->destroy(m);
        }
}

/* A tombstone on the way does not end a search, and is where a new key settles. */
CASE(a_search_goes_past_tombstones)
{
    EACH_MAP(map, white_maps) {
        tl_map *m;
        CHECK_STATUS(map->create(28, &m), TL_OK);
        CHECK_EQ(map->cap(m), 32);
        for (uint64_t i = 0; i < 17; i++) CHECK_STATUS(map->put(m, key_for(map, i << 32), i), TL_OK);
        CHECK_EQ(map->del(m, key_for(map, 3ULL << 32)), 1);
        CHECK_EQ(map->tombstones(m), 1);
        CHECK_EQ(map->get(m, key_for(map, 16ULL << 32), NULL), 1);
        CHECK_STATUS(map->put(m, key_for(map, 16ULL << 32), 99), TL_OK);
        CHECK_EQ(map->len(m), 16);
        CHECK_EQ(map->tombstones(m), 1);
        CHECK_STATUS(map->put(m, key_for(map, 40ULL << 32), 40), TL_OK);
        CHECK_EQ(map->tombstones(m), 0);
        CHECK(!map->fault(m));
        map->destroy(m);
    }
}

/* Keys that collide in one map do not in another: each has a seed of its own, which
 * growth keeps. */
CASE(maps_hash_differently)
{
    EACH_MAP(map, white_maps) {
        tl_map *a, *b;
        CHECK_STATUS(map->create_seeded(0, &a), TL_OK);
        CHECK_STATUS(map->create_seeded(0, &b), TL_OK);
        uint64_t seed = map->seed(a);
        CHECK(seed != 0);
        CHECK(seed != map->seed(b));
        for (uint64_t k = 0; k < 1000; k++) CHECK_STATUS(map->put(a, k, k), TL_OK);
        CHECK_EQ(map->seed(a), seed);
        CHECK(map->fault(a) == NULL);
        map->destroy(a), map->destroy(b);
    }
}

/* Asking for the memory of a search changes nothing: of a key that is there, of one that
 * is not, and of one whose first group is full of others. NULL is fine. */
CASE(prefetch_changes_nothing)
{
    EACH_MAP(map, white_maps) {
        tl_map *m;
        uint64_t v;
        map->prefetch(NULL, 1);
        CHECK_STATUS(map->create(28, &m), TL_OK);
        for (uint64_t i = 0; i < 17; i++) CHECK_STATUS(map->put(m, key_for(map, i << 32), i), TL_OK);
        for (uint64_t i = 0; i < 20; i++) map->prefetch(m, key_for(map, i << 32));
        map->prefetch(m, key_for(map, 5)); /* the first group, another tag */
        map->prefetch(m, key_for(map, 1 << 7));
        CHECK(!map->fault(m));
        CHECK_EQ(map->len(m), 17);
        for (uint64_t i = 0; i < 20; i++) {
            CHECK_EQ(map->get(m, key_for(map, i << 32), &v), i < 17);
            if (i < 17) CHECK_EQ(v, i);
        }
        map->destroy(m);
    }
}

/* Churn that fills the table with tombstones clears them in place: keys stay, no
 * allocation, and afterwards there are none. */
CASE(tombstones_are_cleared_in_place)
{
    EACH_MAP(map, white_maps) {
        tl_map *m;
        int cleared = 0;
        size_t most = 0;
        CHECK_STATUS(map->create(112, &m), TL_OK);
        for (uint64_t k = 0; k < 112; k++) CHECK_STATUS(map->put(m, k, k), TL_OK);
        size_t allocs = kit_allocs();
        for (uint64_t k = 112; k < 2000; k++) {
            CHECK_EQ(map->del(m, k - 112), 1);
            size_t before = map->tombstones(m);
            if (before > most) most = before;
            CHECK_STATUS(map->put(m, k, k), TL_OK);
            if (map->tombstones(m) == 0 && before > 1) {
                cleared++;
                CHECK(!map->fault(m));
                for (uint64_t i = k - 111; i <= k; i++) CHECK_EQ(map->get(m, i, NULL), 1);
            }
        }
        CHECK(cleared > 0);
        CHECK(most <= 128 / 16 + 1);
        CHECK_EQ(kit_allocs(), allocs);
        map->destroy(m);
    }
}

/* ---- group operations ---------------------------------------------------- */

/* Both implementations answer what a plain loop answers: for every byte sought,
 * on random groups that hold it often, and on its neighbours of one bit. */
CASE(group_operations_agree)
{
    random_state = 16;
    for (unsigned round = 0; round < 4096; round++) {
        _Alignas(16) uint8_t ctrl[16];
        uint8_t sought = (uint8_t)round;
        uint32_t match = 0, open = 0;
        for (unsigned i = 0; i < 16; i++) {
            uint64_t r = random_u64();
            ctrl[i] = r & 3 ? (uint8_t)(sought ^ (r & 4 ? 0 : 1u << (r >> 8 & 7))) : (uint8_t)(r >> 16);
            match |= (uint32_t)(ctrl[i] == sought) << i;
            open |= (uint32_t)(ctrl[i] >= 0x80) << i;
        }
        EACH_MAP(map, white_maps) {
            CHECK_EQ(map->match(ctrl, sought), match);
            CHECK_EQ(map->match_open(ctrl), open);
        }
    }
}

CASES(put_get_del, put_overwrites, put_overwrites_a_full_table_without_growing, every_u64_is_a_key,
      hint_keys_fit_without_growing, growth_keeps_the_keys, calls_take_null, create_refuses_a_hint_past_size_t,
      the_largest_table_does_not_grow, every_allocation_may_fail, failed_growth_changes_nothing,
      random_ops_match_a_model, churn_is_amortised_constant, churn_never_allocates,
      delete_never_allocates, tombstones_only_in_full_groups, a_put_clears_what_many_deletes_left,
      a_table_is_aligned_for_its_groups,
      churn_keeps_searches_short, prefetch_changes_nothing, maps_hash_differently, keys_of_one_group,
      a_search_goes_past_tombstones, tombstones_are_cleared_in_place, group_operations_agree)
