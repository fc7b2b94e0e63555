/* kv_ext.c, what the Python package calls: batches, introspection, messages, locks, fork. */
#include "pools.h"

#include "../ext/kv_ext.h"
#include "crc32c.h"
#include "kv_pool_impl.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a handle and its pool ----------------------------------------------- */

typedef struct {
    tl_kvx *h;
    tl_kv_pool *p;
} both;

static both open_shape(tl_kv_cfg cfg)
{
    both b;
    CHECK_EQ(tl_kvx_create(&cfg, &b.h, &b.p), 0);
    CHECK(b.h && b.p);
    return b;
}

static both open_both(uint32_t n_blocks) { return open_shape(worked_shape(n_blocks)); }

static void end_both(both b)
{
    CHECK_EQ(tl_kvx_close(b.h), 0);
    tl_kvx_destroy(b.h);
    end_pool(b.p);
}

/* The message of the latest refusal, taken. */
static const char *message(void)
{
    static char text[256];
    memset(text, 'x', sizeof text);
    tl_kvx_take_error(text);
    return text;
}

/* The message begins with the name of a function. */
static int from(const char *text, const char *function)
{
    size_t n = strlen(function);
    return strncmp(text, function, n) == 0 && text[n] == ':';
}

/* The call answers minus this status, says so under this name, and changes nothing. */
#define CHECK_ANSWERS_NO(b, call, status, function)  \
    do {                                             \
        uint64_t before_ = tl_kv_digest((b).p);      \
        CHECK_EQ(call, -(int64_t)(status));          \
        CHECK(from(message(), function));            \
        CHECK_EQ(tl_kv_digest((b).p), before_);      \
    } while (0)

/* The call answers this and changes nothing. */
#define CHECK_LOOKS(b, call, answer)                 \
    do {                                             \
        uint64_t before_ = tl_kv_digest((b).p);      \
        CHECK_EQ(call, answer);                      \
        CHECK_EQ(tl_kv_digest((b).p), before_);      \
    } while (0)

/* n full blocks, the i-th registered under 10 + i; all are held. */
static void take_chain(both b, uint32_t n, uint32_t *ids)
{
    for (uint32_t i = 0; i < n; i++) ids[i] = take_registered(b.p, 10 + i);
}

static const int64_t out_of_range[] = {-1, 3, 4, UINT32_MAX, (int64_t)UINT32_MAX + 1, INT64_MAX, INT64_MIN};
enum { N_OUT = sizeof out_of_range / sizeof *out_of_range };

/* ---- life ---------------------------------------------------------------- */

/* create gives a handle and a pool; a closed handle refuses every call; destroy leaves the pool. */
CASE(create_close_destroy)
{
    both b = open_both(3);
    CHECK_COUNTS(b.p, 3, 0, 0);
    CHECK_EQ(tl_kvx_alloc(b.h, 1, (uint32_t[1]){0}), 0);
    CHECK_EQ(tl_kvx_close(b.h), 0);
    CHECK_EQ(tl_kvx_close(b.h), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_unref(b.h, 0), TL_KVX_CLOSED, "tl_kvx_unref");
    tl_kvx_destroy(b.h);
    CHECK_COUNTS(b.p, 2, 1, 0);
    end_pool(b.p);
    tl_kvx_destroy(NULL);
}

/* What tl_kv_pool_create refuses is refused with its message; nothing is given. */
CASE(create_refuses)
{
    tl_kv_cfg cfg = worked_shape(0);
    tl_kvx *h = (tl_kvx *)&cfg;
    tl_kv_pool *p = (tl_kv_pool *)&cfg;
    CHECK_EQ(tl_kvx_create(&cfg, &h, &p), -TL_EINVAL);
    CHECK(from(message(), "tl_kv_pool_create"));
    CHECK(!h && !p);
    cfg = worked_shape(1);
    cfg.dtype = TL_F32;
    CHECK_EQ(tl_kvx_create(&cfg, &h, &p), -TL_EUNSUPPORTED);
    CHECK(from(message(), "tl_kv_pool_create"));
    CHECK(!h && !p);
}

/* Every failing allocation of create, the handle's too, gives all back. */
CASE(create_without_memory)
{
    KIT_EACH_ALLOC_FAILURE(n)
    {
        tl_kvx *h;
        tl_kv_pool *p;
        tl_kv_cfg cfg = worked_shape(3);
        int64_t answer = tl_kvx_create(&cfg, &h, &p);
        if (kit_failed()) {
            CHECK_EQ(answer, -TL_ENOMEM);
            const char *text = message();
            CHECK(from(text, "tl_kv_pool_create") || from(text, "tl_kvx_create"));
            CHECK(!h && !p);
            continue;
        }
        CHECK_EQ(answer, 0);
        tl_kvx_destroy(h);
        tl_kv_pool_destroy(p);
    }
}

/* Every call on a closed handle answers -TL_KVX_CLOSED under its own name. */
CASE(closed_handle_refuses_every_call)
{
    both b = open_both(3);
    uint32_t ids[3] = {0};
    uint64_t hash = 5;
    uint8_t states[3], buf[64];
    tl_kv_stats stats;
    CHECK_EQ(tl_kvx_close(b.h), 0);
#define CHECK_CLOSED(function, ...) CHECK_ANSWERS_NO(b, function(b.h, __VA_ARGS__), TL_KVX_CLOSED, #function)
    CHECK_CLOSED(tl_kvx_alloc, 1, ids);
    CHECK_CLOSED(tl_kvx_ref, 0);
    CHECK_CLOSED(tl_kvx_ref_many, ids, 1);
    CHECK_CLOSED(tl_kvx_unref, 0);
    CHECK_CLOSED(tl_kvx_unref_many, ids, 1);
    CHECK_CLOSED(tl_kvx_cow, 0);
    CHECK_CLOSED(tl_kvx_fill, 0);
    CHECK_CLOSED(tl_kvx_set_fill, 0, 1);
    CHECK_CLOSED(tl_kvx_set_fill_many, ids, (uint32_t[]){1}, 1);
    CHECK_CLOSED(tl_kvx_set_fill_all, ids, 1, 1);
    CHECK_CLOSED(tl_kvx_write, 0, ids, (uint32_t[]){0}, 1, buf, buf, 2, 2);
    CHECK_CLOSED(tl_kvx_evict, 1);
    CHECK_CLOSED(tl_kvx_register, 0, 1);
    CHECK_CLOSED(tl_kvx_register_many, ids, &hash, 1);
    CHECK_CLOSED(tl_kvx_lookup, 5);
    CHECK_CLOSED(tl_kvx_match, &hash, 1, ids);
    CHECK_CLOSED(tl_kvx_acquire, &hash, 1, 1, ids);
    CHECK_CLOSED(tl_kvx_count_prefix, &hash, 1);
    CHECK_CLOSED(tl_kvx_holds, 5);
    CHECK_CLOSED(tl_kvx_export_size, ids, 1);
    CHECK_CLOSED(tl_kvx_refcount, 0);
    CHECK_CLOSED(tl_kvx_refcount_many, ids, 1, ids);
    CHECK_CLOSED(tl_kvx_state, 0);
    CHECK_CLOSED(tl_kvx_registered_hash, 0, &hash);
    CHECK_CLOSED(tl_kvx_writable, 0);
    CHECK_CLOSED(tl_kvx_states, states);
    CHECK_CLOSED(tl_kvx_stats, &stats);
    CHECK_CLOSED(tl_kvx_export_bytes, 1);
    CHECK_CLOSED(tl_kvx_export, ids, 1, buf, sizeof buf);
    CHECK_CLOSED(tl_kvx_import, buf, sizeof buf, ids);
    end_both(b);
}

/* ---- messages ------------------------------------------------------------ */

/* Messages are taken in reverse order; the answers that are no errors leave none. */
CASE(messages_nest)
{
    both b = open_both(3);
    CHECK_EQ(tl_kvx_ref(b.h, 7), -TL_EINVAL);
    CHECK_EQ(tl_kvx_unref(b.h, 8), -TL_EINVAL);
    CHECK_EQ(tl_kvx_lookup(b.h, 5), -TL_ENOTFOUND);
    CHECK_EQ(tl_kvx_alloc(b.h, 9, NULL), -TL_EFULL);
    CHECK(from(message(), "tl_kvx_alloc"));
    CHECK(from(message(), "tl_kvx_unref"));
    CHECK(from(message(), "tl_kvx_ref"));
    end_both(b);
}

/* Messages that nobody takes cost nothing but themselves. */
CASE(messages_left_behind)
{
    both b = open_both(3);
    for (int i = 0; i < 1000; i++) CHECK_EQ(tl_kvx_ref(b.h, 7), -TL_EINVAL);
    CHECK_ANSWERS_NO(b, tl_kvx_unref(b.h, 8), TL_EINVAL, "tl_kvx_unref");
    CHECK(from(message(), "tl_kvx_ref"));
    end_both(b);
}

/* ---- holding blocks ------------------------------------------------------ */

CASE(alloc_counts)
{
    both b = open_both(3);
    uint32_t ids[3] = {9, 9, 9};
    CHECK_LOOKS(b, tl_kvx_alloc(b.h, 0, NULL), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_alloc(b.h, -1, ids), TL_EINVAL, "tl_kvx_alloc");
    CHECK_ANSWERS_NO(b, tl_kvx_alloc(b.h, INT64_MIN, ids), TL_EINVAL, "tl_kvx_alloc");
    CHECK_ANSWERS_NO(b, tl_kvx_alloc(b.h, 4, ids), TL_EFULL, "tl_kvx_alloc");
    CHECK_ANSWERS_NO(b, tl_kvx_alloc(b.h, (int64_t)UINT32_MAX + 2, ids), TL_EFULL, "tl_kvx_alloc");
    CHECK_EQ(ids[0], 9);
    CHECK_EQ(tl_kvx_alloc(b.h, 2, ids), 0);
    CHECK_EQ(ids[0], 0);
    CHECK_EQ(ids[1], 1);
    CHECK_ANSWERS_NO(b, tl_kvx_alloc(b.h, 2, ids), TL_EFULL, "tl_kv_alloc");
    end_both(b);
}

/* An id out of range, free or cached is refused by every call that needs a holder. */
CASE(holders_are_needed)
{
    both b = open_both(3);
    drop(b.p, take_registered(b.p, 5)); /* 0 is cached, 1 and 2 are free */
    for (int i = 0; i < N_OUT + 3; i++) {
        int64_t id = i < N_OUT ? out_of_range[i] : i - N_OUT;
        CHECK_ANSWERS_NO(b, tl_kvx_ref(b.h, id), TL_EINVAL, "tl_kvx_ref");
        CHECK_ANSWERS_NO(b, tl_kvx_unref(b.h, id), TL_EINVAL, "tl_kvx_unref");
        CHECK_ANSWERS_NO(b, tl_kvx_cow(b.h, id), TL_EINVAL, "tl_kvx_cow");
        CHECK_ANSWERS_NO(b, tl_kvx_set_fill(b.h, id, 1), TL_EINVAL, "tl_kvx_set_fill");
        CHECK_ANSWERS_NO(b, tl_kvx_register(b.h, id, 6), TL_EINVAL, i < N_OUT ? "tl_kvx_register" : "tl_kv_register");
    }
    end_both(b);
}

/* Looking at an id out of range is refused; any other is looked at. */
CASE(looking)
{
    both b = open_both(3);
    uint64_t hash = 77;
    uint8_t states[3];
    tl_kv_stats stats;
    drop(b.p, take_registered(b.p, 5));
    uint32_t used = take(b.p);
    CHECK_EQ(used, 1);
    for (int i = 0; i < N_OUT; i++) {
        CHECK_ANSWERS_NO(b, tl_kvx_fill(b.h, out_of_range[i]), TL_EINVAL, "tl_kvx_fill");
        CHECK_ANSWERS_NO(b, tl_kvx_refcount(b.h, out_of_range[i]), TL_EINVAL, "tl_kvx_refcount");
        CHECK_ANSWERS_NO(b, tl_kvx_state(b.h, out_of_range[i]), TL_EINVAL, "tl_kvx_state");
        CHECK_ANSWERS_NO(b, tl_kvx_registered_hash(b.h, out_of_range[i], &hash), TL_EINVAL, "tl_kvx_registered_hash");
        CHECK_ANSWERS_NO(b, tl_kvx_writable(b.h, out_of_range[i]), TL_EINVAL, "tl_kvx_writable");
    }
    CHECK_EQ(hash, 77);
    CHECK_LOOKS(b, tl_kvx_fill(b.h, 0), 2);
    CHECK_LOOKS(b, tl_kvx_refcount(b.h, 0), 0);
    CHECK_LOOKS(b, tl_kvx_refcount(b.h, 1), 1);
    CHECK_LOOKS(b, tl_kvx_state(b.h, 0), TL_KVX_CACHED);
    CHECK_LOOKS(b, tl_kvx_state(b.h, 1), TL_KVX_USED);
    CHECK_LOOKS(b, tl_kvx_state(b.h, 2), TL_KVX_FREE);
    CHECK_LOOKS(b, tl_kvx_registered_hash(b.h, 0, &hash), 0);
    CHECK_EQ(hash, 5);
    CHECK_LOOKS(b, tl_kvx_registered_hash(b.h, 1, &hash), 0);
    CHECK_EQ(hash, 0);
    CHECK_LOOKS(b, tl_kvx_states(b.h, states), 0);
    CHECK_BYTES(states, "\2\1\0", 3);
    CHECK_LOOKS(b, tl_kvx_stats(b.h, &stats), 0);
    CHECK_EQ(stats.free * 100 + stats.used * 10 + stats.cached, 111);
    end_both(b);
}

/* Writable is a block with one holder and no hash. */
CASE(writable_is_private)
{
    both b = open_both(3);
    uint32_t id = take(b.p);
    CHECK_LOOKS(b, tl_kvx_writable(b.h, id), 1);
    tl_kv_ref(b.p, id);
    CHECK_LOOKS(b, tl_kvx_writable(b.h, id), 0);
    drop(b.p, id);
    CHECK_LOOKS(b, tl_kvx_writable(b.h, id), 1);
    CHECK_STATUS(tl_kv_set_fill(b.p, id, 2), TL_OK);
    CHECK_STATUS(tl_kv_register(b.p, id, 5), TL_OK);
    CHECK_LOOKS(b, tl_kvx_writable(b.h, id), 0);
    CHECK_LOOKS(b, tl_kvx_writable(b.h, 2), 0);
    end_both(b);
}

/* ref_many adds one holder for each time an id stands there, or none at all. */
CASE(ref_many_is_all_or_nothing)
{
    both b = open_both(3);
    uint32_t a = take(b.p), c = take(b.p);
    CHECK_EQ(tl_kvx_ref_many(b.h, (uint32_t[]){a, c, a}, 3), 0);
    CHECK_EQ(b.p->blocks[a].ref, 3);
    CHECK_EQ(b.p->blocks[c].ref, 2);
    CHECK_LOOKS(b, tl_kvx_ref_many(b.h, NULL, 0), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_ref_many(b.h, (uint32_t[]){a, c, a, 2}, 4), TL_EINVAL, "tl_kvx_ref");
    CHECK_ANSWERS_NO(b, tl_kvx_ref_many(b.h, (uint32_t[]){a, UINT32_MAX}, 2), TL_EINVAL, "tl_kvx_ref");
    CHECK_EQ(tl_kvx_ref(b.h, a), 0);
    CHECK_EQ(b.p->blocks[a].ref, 4);
    end_both(b);
}

/* Counts of holders never wrap, in a batch neither. */
CASE(holders_do_not_wrap)
{
    both b = open_both(3);
    uint32_t id = take_registered(b.p, 5), ids[4], free_ids[3];
    b.p->blocks[id].ref = UINT32_MAX - 1;
    CHECK_ANSWERS_NO(b, tl_kvx_ref_many(b.h, (uint32_t[]){id, id}, 2), TL_EINVAL, "tl_kvx_ref");
    CHECK_ANSWERS_NO(b, tl_kvx_match(b.h, (uint64_t[]){5, 5}, 2, ids), TL_EINVAL, "tl_kvx_match");
    CHECK_ANSWERS_NO(b, tl_kvx_acquire(b.h, (uint64_t[]){5, 5}, 2, 3, ids), TL_EINVAL, "tl_kvx_acquire");
    CHECK_EQ(tl_kvx_ref(b.h, id), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_ref(b.h, id), TL_EINVAL, "tl_kvx_ref");
    CHECK_ANSWERS_NO(b, tl_kvx_lookup(b.h, 5), TL_EINVAL, "tl_kv_lookup");
    CHECK_EQ(tl_kvx_acquire(b.h, (uint64_t[]){5}, 1, 0, ids), 0);
    b.p->blocks[id].ref = 1;
    CHECK_EQ(tl_kvx_alloc(b.h, 2, free_ids), 0);
    end_both(b);
}

/* unref_many lets go of the last first, takes an id as often as it has holders, and no more. */
CASE(unref_many_is_all_or_nothing)
{
    both b = open_both(3);
    uint32_t ids[3];
    take_chain(b, 3, ids);
    tl_kv_ref(b.p, 1);
    CHECK_ANSWERS_NO(b, tl_kvx_unref_many(b.h, (uint32_t[]){0, 1, 1, 1}, 4), TL_EINVAL, "tl_kvx_unref");
    CHECK_ANSWERS_NO(b, tl_kvx_unref_many(b.h, (uint32_t[]){0, 0}, 2), TL_EINVAL, "tl_kvx_unref");
    CHECK_ANSWERS_NO(b, tl_kvx_unref_many(b.h, (uint32_t[]){0, 1, 3}, 3), TL_EINVAL, "tl_kvx_unref");
    CHECK_LOOKS(b, tl_kvx_unref_many(b.h, NULL, 0), 0);
    CHECK_EQ(tl_kvx_unref_many(b.h, (uint32_t[]){1, 0, 1, 2}, 4), 0);
    CHECK_COUNTS(b.p, 0, 0, 3);
    CHECK_ANSWERS_NO(b, tl_kvx_unref_many(b.h, (uint32_t[]){0}, 1), TL_EINVAL, "tl_kvx_unref");
    CHECK_EQ(take(b.p), 2);
    CHECK_EQ(take(b.p), 0); /* 1 went last, though it stands first and third */
    CHECK_EQ(take(b.p), 1);
    CHECK_EQ(tl_kvx_unref(b.h, 1), 0);
    CHECK_COUNTS(b.p, 1, 2, 0);
    end_both(b);
}

CASE(cow_gives_the_id_to_write_to)
{
    both b = open_both(2);
    uint32_t id = take(b.p);
    put_values(b.p, id, 1);
    CHECK_LOOKS(b, tl_kvx_cow(b.h, id), id);
    tl_kv_ref(b.p, id);
    CHECK_EQ(tl_kvx_cow(b.h, id), 1);
    check_values(b.p, 1, 1);
    tl_kv_ref(b.p, id);
    CHECK_ANSWERS_NO(b, tl_kvx_cow(b.h, id), TL_EFULL, "tl_kv_cow");
    end_both(b);
}

/* set_fill takes 0 .. block_tokens on blocks that are held and not registered; a batch all or nothing. */
CASE(set_fill_is_all_or_nothing)
{
    both b = open_both(4);
    uint32_t a = take(b.p), c = take(b.p), named = take_registered(b.p, 5);
    CHECK_EQ(tl_kvx_set_fill(b.h, a, 2), 0);
    CHECK_EQ(tl_kvx_fill(b.h, a), 2);
    CHECK_EQ(tl_kvx_set_fill_many(b.h, (uint32_t[]){a, c, a}, (uint32_t[]){2, 1, 0}, 3), 0);
    CHECK_EQ(tl_kvx_fill(b.h, a), 0);
    CHECK_EQ(tl_kvx_fill(b.h, c), 1);
    CHECK_LOOKS(b, tl_kvx_set_fill_many(b.h, NULL, NULL, 0), 0);
    const int64_t bad[] = {-1, 3, (int64_t)UINT32_MAX + 1, INT64_MAX, INT64_MIN};
    for (int i = 0; i < 5; i++) {
        CHECK_ANSWERS_NO(b, tl_kvx_set_fill(b.h, a, bad[i]), TL_EINVAL, "tl_kvx_set_fill");
        CHECK_ANSWERS_NO(b, tl_kvx_set_fill_all(b.h, (uint32_t[]){c, a}, 2, bad[i]), TL_EINVAL, "tl_kvx_set_fill");
        CHECK_ANSWERS_NO(b, tl_kvx_set_fill_all(b.h, NULL, 0, bad[i]), TL_EINVAL, "tl_kvx_set_fill");
    }
    CHECK_EQ(tl_kvx_set_fill_all(b.h, (uint32_t[]){a, c, a}, 3, 2), 0);
    CHECK_EQ(tl_kvx_fill(b.h, a), 2);
    CHECK_EQ(tl_kvx_fill(b.h, c), 2);
    CHECK_LOOKS(b, tl_kvx_set_fill_all(b.h, NULL, 0, 2), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_set_fill_all(b.h, (uint32_t[]){a, named, c}, 3, 2), TL_EINVAL, "tl_kvx_set_fill");
    const uint32_t too_many[] = {3, UINT32_MAX};
    for (int i = 0; i < 2; i++) {
        const uint32_t last[] = {2, too_many[i]}, first[] = {too_many[i], 2};
        CHECK_ANSWERS_NO(b, tl_kvx_set_fill_many(b.h, (uint32_t[]){c, a}, last, 2), TL_EINVAL, "tl_kvx_set_fill");
        CHECK_ANSWERS_NO(b, tl_kvx_set_fill_many(b.h, (uint32_t[]){c, a}, first, 2), TL_EINVAL, "tl_kvx_set_fill");
    }
    CHECK_ANSWERS_NO(b, tl_kvx_set_fill(b.h, named, 2), TL_EINVAL, "tl_kvx_set_fill");
    CHECK_ANSWERS_NO(b, tl_kvx_set_fill_many(b.h, (uint32_t[]){a, named, c}, (uint32_t[]){2, 2, 2}, 3), TL_EINVAL,
                     "tl_kvx_set_fill");
    CHECK_ANSWERS_NO(b, tl_kvx_set_fill_many(b.h, (uint32_t[]){a, 3}, (uint32_t[]){2, 2}, 2), TL_EINVAL, "tl_kvx_set_fill");
    end_both(b);
}

/* refcount_many counts the holders of each block, free and cached ones too; one id out
 * of range, wherever it stands, and it refuses. */
CASE(refcount_many_counts_holders)
{
    both b = open_both(3);
    uint32_t a = take(b.p), named = take_registered(b.p, 5), counts[4];
    tl_kv_ref(b.p, a);
    drop(b.p, named);
    CHECK_LOOKS(b, tl_kvx_refcount_many(b.h, (uint32_t[]){a, named, 2, a}, 4, counts), 0);
    CHECK(counts[0] == 2 && counts[1] == 0 && counts[2] == 0 && counts[3] == 2);
    CHECK_LOOKS(b, tl_kvx_refcount_many(b.h, NULL, 0, NULL), 0);
    for (size_t at = 0; at < 2; at++) {
        uint32_t ids[2] = {a, a};
        ids[at] = 3;
        CHECK_ANSWERS_NO(b, tl_kvx_refcount_many(b.h, ids, 2, counts), TL_EINVAL, "tl_kvx_refcount");
    }
    end_both(b);
}

/* The rows of n positions, their strides in elements, land in layer, K and V, head and slot. */
CASE(write_puts_a_position_into_each_block)
{
    enum { B = 3, L = 2, H = 2, D = 2, N = 3 };
    both b = open_shape(shape(4, B, L, H, D));
    tl_kvx *h = b.h;
    tl_kv_pool *p = b.p;
    uint32_t a = take(p), c = take(p);
    memset(values_of(p, a), 0, tl_kv_block_bytes(p)), memset(values_of(p, c), 0, tl_kv_block_bytes(p));
    uint16_t k[N * H * D], v[N * H * D];
    for (uint16_t i = 0; i < N * H * D; i++) k[i] = (uint16_t)(i + 1), v[i] = (uint16_t)(i + 101);
    const uint32_t ids[N] = {a, c, a}, slots[N] = {0, 2, 1};
    CHECK_EQ(tl_kvx_write(h, 1, ids, slots, N, k, v, H * D, D), 0);

    /* Written out by hand: [layer][K, V][head][position][dim] of each block. */
    const uint16_t expected_a[L * 2 * H * B * D] = {
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        1, 2, 9, 10, 0, 0, 3, 4, 11, 12, 0, 0, 101, 102, 109, 110, 0, 0, 103, 104, 111, 112, 0, 0,
    };
    const uint16_t expected_c[L * 2 * H * B * D] = {
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 5, 6, 0, 0, 0, 0, 7, 8, 0, 0, 0, 0, 105, 106, 0, 0, 0, 0, 107, 108,
    };
    CHECK_BYTES(values_of(p, a), expected_a, sizeof expected_a);
    CHECK_BYTES(values_of(p, c), expected_c, sizeof expected_c);
    CHECK_LOOKS(b, tl_kvx_write(h, 0, NULL, NULL, 0, NULL, NULL, 0, 0), 0);
    end_both(b);
}

/* A pool beyond the cache's size holds, bit for bit, what a small one of its shape does. */
CASE(write_past_the_cache)
{
    enum { B = 4, L = 2, H = 2, D = 32, N = 8, BLOCK = L * 2 * H * B * D * 2, LARGE = CRC32C_STREAM_FROM / BLOCK };
    both small = open_shape(shape(N, B, L, H, D)), large = open_shape(shape(LARGE, B, L, H, D));
    uint16_t k[N * H * D], v[N * H * D];
    uint32_t ids[N], slots[N];
    for (uint32_t i = 0; i < N * H * D; i++) k[i] = (uint16_t)(i + 1), v[i] = (uint16_t)(i + 10001);
    for (uint32_t i = 0; i < N; i++) {
        ids[i] = take(small.p), slots[i] = i % B;
        CHECK_EQ(take(large.p), ids[i]);
        memset(values_of(small.p, ids[i]), 7, BLOCK), memset(values_of(large.p, ids[i]), 7, BLOCK);
    }
    CHECK_EQ(tl_kvx_write(small.h, 1, ids, slots, N, k, v, H * D, D), 0);
    CHECK_EQ(tl_kvx_write(large.h, 1, ids, slots, N, k, v, H * D, D), 0);
    for (uint32_t i = 0; i < N; i++) {
        const size_t first = ((size_t)2 * H * B + slots[i]) * D; /* layer 1, K, head 0 */
        CHECK_BYTES(values_of(large.p, ids[i]) + first, k + i * H * D, D * 2);
        CHECK_BYTES(values_of(large.p, ids[i]), values_of(small.p, ids[i]), BLOCK);
    }
    end_both(small), end_both(large);
}

/* A block not used, shared or registered, a layer or a slot out of range: nothing is
 * written, in the blocks before the bad one either. */
CASE(write_is_all_or_nothing)
{
    both b = open_both(4);
    uint32_t a = take(b.p), shared = take(b.p), named = take_registered(b.p, 5);
    tl_kv_ref(b.p, shared);
    const uint16_t row[4] = {9, 9, 9, 9};
    const uint32_t bad[][2] = {{shared, 0}, {named, 0}, {3, 0}, {4, 0}, {UINT32_MAX, 0}, {a, 2}, {a, UINT32_MAX}};
    put_values(b.p, a, 1), put_values(b.p, shared, 2), put_values(b.p, named, 3);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const uint32_t ids[] = {a, bad[i][0], a}, slots[] = {0, bad[i][1], 1};
        CHECK_ANSWERS_NO(b, tl_kvx_write(b.h, 0, ids, slots, 3, row, row, 0, 2), TL_EINVAL, "tl_kvx_write");
    }
    const int64_t layers[] = {-1, 1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < 4; i++)
        CHECK_ANSWERS_NO(b, tl_kvx_write(b.h, layers[i], &a, (uint32_t[]){0}, 1, row, row, 2, 2), TL_EINVAL, "tl_kvx_write");
    check_values(b.p, a, 1), check_values(b.p, shared, 2), check_values(b.p, named, 3);
    end_both(b);
}

/* evict drops the oldest cached blocks to free, at most as many as there are, and counts them. */
CASE(evict_drops_the_oldest)
{
    both b = open_both(3);
    uint32_t ids[3];
    take_chain(b, 3, ids);
    CHECK_EQ(tl_kvx_unref_many(b.h, (uint32_t[]){2, 0, 1}, 3), 0); /* the oldest: 1, 0, 2 */
    CHECK_ANSWERS_NO(b, tl_kvx_evict(b.h, -1), TL_EINVAL, "tl_kvx_evict");
    CHECK_LOOKS(b, tl_kvx_evict(b.h, 0), 0);
    CHECK_EQ(tl_kvx_evict(b.h, 1), 1);
    CHECK_LOOKS(b, tl_kvx_holds(b.h, 11), 0);
    CHECK_LOOKS(b, tl_kvx_holds(b.h, 10), 1);
    CHECK_EQ(tl_kvx_evict(b.h, INT64_MAX), 2);
    CHECK_LOOKS(b, tl_kvx_evict(b.h, 1), 0);
    CHECK_COUNTS(b.p, 3, 0, 0);
    CHECK_EVICTIONS(b.p, 3);
    end_both(b);
}

/* ---- the prefix index ---------------------------------------------------- */

/* register answers 1, also again; 0 for a hash that another block holds. */
CASE(register_answers)
{
    both b = open_both(3);
    uint32_t id = take(b.p), other = take(b.p);
    CHECK_ANSWERS_NO(b, tl_kvx_register(b.h, id, 5), TL_EINVAL, "tl_kv_register"); /* not full */
    CHECK_EQ(tl_kvx_set_fill_many(b.h, (uint32_t[]){id, other}, (uint32_t[]){2, 2}, 2), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_register(b.h, id, 0), TL_EINVAL, "tl_kv_register");
    CHECK_EQ(tl_kvx_register(b.h, id, 5), 1);
    CHECK_LOOKS(b, tl_kvx_register(b.h, id, 5), 1);
    CHECK_LOOKS(b, tl_kvx_register(b.h, other, 5), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_register(b.h, id, 6), TL_EINVAL, "tl_kv_register");
    end_both(b);
}

/* register_many skips taken hashes and counts what is new. */
CASE(register_many_counts)
{
    both b = open_both(5);
    uint32_t named = take_registered(b.p, 5), cached = take_registered(b.p, 6), a = take(b.p), c = take(b.p);
    drop(b.p, cached);
    CHECK_EQ(tl_kvx_set_fill_many(b.h, (uint32_t[]){a, c}, (uint32_t[]){2, 2}, 2), 0);
    CHECK_LOOKS(b, tl_kvx_register_many(b.h, NULL, NULL, 0), 0);
    CHECK_LOOKS(b, tl_kvx_register_many(b.h, (uint32_t[]){a, named, c}, (uint64_t[]){5, 5, 6}, 3), 0);
    /* a is new, again no more; c wants a's hash, then its own, then a's again */
    CHECK_EQ(tl_kvx_register_many(b.h, (uint32_t[]){a, a, c, c, c}, (uint64_t[]){7, 7, 7, 8, 8}, 5), 2);
    CHECK_EQ(b.p->blocks[a].hash, 7);
    CHECK_EQ(b.p->blocks[c].hash, 8);
    CHECK(!tl_kv_check(b.p));
    drop(b.p, a); /* its LRU node was lent out and is in order */
    CHECK_EQ(find(b.p, 7), a);
    end_both(b);
}

/* A refusal anywhere in register_many takes back what was new before it, and nothing else. */
CASE(register_many_is_all_or_nothing)
{
    both b = open_both(6);
    uint32_t named = take_registered(b.p, 5), a = take(b.p), c = take(b.p), partial = take(b.p);
    CHECK_EQ(tl_kvx_set_fill_many(b.h, (uint32_t[]){a, c}, (uint32_t[]){2, 2}, 2), 0);
    CHECK_EQ(tl_kvx_set_fill(b.h, partial, 1), 0);
    const uint32_t bad_id[] = {partial, 4, 6, UINT32_MAX, named, a, c};
    const uint64_t bad_hash[] = {9, 9, 9, 9, 9, 9, 0};
    for (int i = 0; i < 7; i++) {
        const uint32_t ids[] = {a, a, named, c, bad_id[i], c};
        const uint64_t hashes[] = {7, 7, 5, 7, bad_hash[i], 8};
        CHECK_ANSWERS_NO(b, tl_kvx_register_many(b.h, ids, hashes, 6), TL_EINVAL, "tl_kv_register");
        CHECK(!tl_kv_check(b.p));
    }
    CHECK_LOOKS(b, tl_kvx_holds(b.h, 7), 0);
    CHECK_LOOKS(b, tl_kvx_holds(b.h, 5), 1);
    end_both(b);
}

CASE(lookup_answers)
{
    both b = open_both(2);
    uint32_t id = take_registered(b.p, 5);
    drop(b.p, id);
    tl_set_last_error("earlier");
    CHECK_LOOKS(b, tl_kvx_lookup(b.h, 6), -TL_ENOTFOUND);
    CHECK_LOOKS(b, tl_kvx_lookup(b.h, 0), -TL_ENOTFOUND);
    CHECK_STR(tl_last_error(), "earlier");
    CHECK_EQ(tl_kvx_lookup(b.h, 5), id);
    CHECK_EQ(b.p->blocks[id].ref, 1);
    end_both(b);
}

/* match holds each of the run once for each time it stands there, and nothing behind a miss. */
CASE(match_holds_the_run)
{
    both b = open_both(4);
    uint32_t ids[4], got[4] = {9, 9, 9, 9};
    take_chain(b, 4, ids);
    CHECK_EQ(tl_kvx_unref_many(b.h, (uint32_t[]){1, 2, 3}, 3), 0);
    CHECK_LOOKS(b, tl_kvx_match(b.h, (uint64_t[]){99, 10}, 2, got), 0);
    CHECK_LOOKS(b, tl_kvx_match(b.h, NULL, 0, NULL), 0);
    CHECK_LOOKS(b, tl_kvx_count_prefix(b.h, (uint64_t[]){10, 11, 11, 99}, 4), 3);
    CHECK_LOOKS(b, tl_kvx_count_prefix(b.h, (uint64_t[]){0}, 1), 0);
    CHECK_EQ(tl_kvx_match(b.h, (uint64_t[]){10, 11, 11, 99}, 4, got), 3);
    CHECK_EQ(got[0] * 100 + got[1] * 10 + got[2], 11);
    CHECK_EQ(got[3], 9);
    CHECK_EQ(b.p->blocks[0].ref, 2);
    CHECK_EQ(b.p->blocks[1].ref, 2);
    CHECK_COUNTS(b.p, 0, 2, 2);
    CHECK(!tl_kv_check(b.p));
    end_both(b);
}

/* acquire holds hits and takes the rest; hits are never evicted for it. */
CASE(acquire_admits)
{
    both b = open_both(4);
    uint32_t ids[4], got[9];
    take_chain(b, 3, ids);
    CHECK_EQ(tl_kvx_unref_many(b.h, (uint32_t[]){2, 1, 0}, 3), 0); /* the oldest: 0, 1, 2; 3 is free */
    CHECK_LOOKS(b, tl_kvx_acquire(b.h, (uint64_t[]){10}, 1, 0, got), 0);
    CHECK_EQ(tl_kvx_acquire(b.h, (uint64_t[]){10, 99, 11}, 3, 3, got), 1);
    CHECK_EQ(got[0], 0);
    CHECK_EQ(got[1], 3);
    CHECK_EQ(got[2], 1); /* the oldest that is no hit */
    CHECK_COUNTS(b.p, 0, 3, 1);
    CHECK_EQ(tl_kvx_acquire(b.h, (uint64_t[]){10, 10, 12, 10, 10}, 5, 5, got), 5);
    CHECK_EQ(b.p->blocks[0].ref, 5);
    CHECK_EQ(tl_kvx_acquire(b.h, (uint64_t[]){10, 12}, 2, 1, got), 1); /* cut */
    CHECK_EQ(b.p->blocks[2].ref, 1);
    CHECK(!tl_kv_check(b.p));
    end_both(b);
}

/* Without room acquire leaves no trace: no reference, the same eviction order. */
CASE(acquire_is_all_or_nothing)
{
    both b = open_both(4);
    uint32_t ids[4], got[9];
    uint64_t hashes[] = {12, 10, 10, 99};
    take_chain(b, 3, ids);
    CHECK_EQ(tl_kvx_unref_many(b.h, (uint32_t[]){2, 1, 0}, 3), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_acquire(b.h, hashes, 4, -1, got), TL_EINVAL, "tl_kvx_acquire");
    CHECK_ANSWERS_NO(b, tl_kvx_acquire(b.h, hashes, 4, INT64_MIN, got), TL_EINVAL, "tl_kvx_acquire");
    CHECK_ANSWERS_NO(b, tl_kvx_acquire(b.h, NULL, 0, 5, got), TL_EFULL, "tl_kvx_acquire");
    CHECK_ANSWERS_NO(b, tl_kvx_acquire(b.h, hashes, 4, 6, got), TL_EFULL, "tl_kvx_acquire"); /* 3 hits, 3 fresh of 2 */
    CHECK_ANSWERS_NO(b, tl_kvx_acquire(b.h, hashes, 4, 8, got), TL_EFULL, "tl_kvx_acquire");
    CHECK_ANSWERS_NO(b, tl_kvx_acquire(b.h, hashes, 4, 9, NULL), TL_EFULL, "tl_kvx_acquire"); /* beyond ids */
    CHECK_ANSWERS_NO(b, tl_kvx_acquire(b.h, hashes, 4, INT64_MAX, NULL), TL_EFULL, "tl_kvx_acquire");
    CHECK_EQ(tl_kvx_acquire(b.h, hashes, 4, 5, got), 3);
    CHECK_COUNTS(b.p, 0, 4, 0);
    end_both(b);
}

/* Batches so long that they look ahead in the index do what single calls do, evictions too. */
CASE(long_batches_are_single_calls)
{
    enum { N = 40 };
    both batch = open_both(N), single = open_both(N);
    const uint64_t first_name[] = {100, 200, 200, 220, 500}; /* all misses, again, all hits, then half of them */
    for (int round = 0; round < 5; round++) {
        uint64_t names[N];
        uint32_t ids[N], other[N], hits = 0;
        for (uint32_t i = 0; i < N; i++) names[i] = first_name[round] + i;
        while (hits < N && tl_kv_lookup(single.p, names[hits], &other[hits]) == TL_OK) hits++;
        for (uint32_t i = hits; i < N; i++) {
            CHECK_STATUS(tl_kv_alloc(single.p, 1, &other[i]), TL_OK);
            CHECK_STATUS(tl_kv_set_fill(single.p, other[i], 2), TL_OK);
            CHECK_STATUS(tl_kv_register(single.p, other[i], names[i]), TL_OK);
        }
        for (uint32_t i = N; i-- > 0;) CHECK_STATUS(tl_kv_unref(single.p, other[i]), TL_OK);

        CHECK_EQ(tl_kvx_acquire(batch.h, names, N, N, ids), hits);
        CHECK_EQ(tl_kvx_set_fill_all(batch.h, ids + hits, N - hits, 2), 0);
        CHECK_EQ(tl_kvx_register_many(batch.h, ids + hits, names + hits, N - hits), N - hits);
        CHECK_EQ(tl_kvx_unref_many(batch.h, ids, N), 0);
        CHECK_BYTES(ids, other, sizeof ids);
        CHECK_EQ(tl_kv_digest(batch.p), tl_kv_digest(single.p));
    }
    uint32_t ids[30], other[30];
    CHECK_EQ(tl_kvx_alloc(batch.h, 30, ids), 0);
    for (int i = 0; i < 30; i++) CHECK_STATUS(tl_kv_alloc(single.p, 1, &other[i]), TL_OK);
    CHECK_BYTES(ids, other, sizeof ids);
    CHECK_EQ(tl_kv_digest(batch.p), tl_kv_digest(single.p));
    end_both(batch);
    end_both(single);
}

/* The hashes of a sequence are those of its blocks, chained. */
CASE(block_hashes_chain)
{
    const uint32_t toks[] = {1, 2, 3, 4, 5};
    uint64_t hashes[3] = {0, 0, 7};
    tl_kvx_block_hashes(0, toks, 2, 2, hashes);
    CHECK_EQ(hashes[0], H0);
    CHECK_EQ(hashes[1], H1);
    CHECK_EQ(hashes[2], 7);
    tl_kvx_block_hashes(9, toks, 5, 1, hashes);
    CHECK_EQ(hashes[0], slow_block_hash(9, toks, 5));
    tl_kvx_block_hashes(9, NULL, 5, 0, NULL);
}

/* ---- the envelope -------------------------------------------------------- */

CASE(export_bytes_of_any_n)
{
    both b = open_both(2);
    CHECK_LOOKS(b, tl_kvx_export_bytes(b.h, 0), 32);
    CHECK_LOOKS(b, tl_kvx_export_bytes(b.h, 3), 32 + 3 * 28);
#if SIZE_MAX > UINT32_MAX
    CHECK_LOOKS(b, tl_kvx_export_bytes(b.h, UINT32_MAX), 32 + (int64_t)UINT32_MAX * 28);
#else
    CHECK_ANSWERS_NO(b, tl_kvx_export_bytes(b.h, UINT32_MAX), TL_EINVAL, "tl_kvx_export_bytes");
#endif
    CHECK_ANSWERS_NO(b, tl_kvx_export_bytes(b.h, -1), TL_EINVAL, "tl_kvx_export_bytes");
    CHECK_ANSWERS_NO(b, tl_kvx_export_bytes(b.h, (int64_t)UINT32_MAX + 1), TL_EINVAL, "tl_kvx_export_bytes");
    end_both(b);
}

/* Blocks so large that two of them fit in size_t but in no object: there is no such envelope. */
CASE(export_bytes_beyond_an_object)
{
    both b = open_both(2);
    const size_t true_bytes = b.p->block_bytes;
    b.p->block_bytes = SIZE_MAX / 3;
    CHECK_EQ(tl_kvx_export_bytes(b.h, 2), -TL_EINVAL);
    CHECK(from(message(), "tl_kvx_export_bytes"));
    b.p->block_bytes = true_bytes;
    end_both(b);
}

CASE(export_and_import_answer_sizes)
{
    both b = open_both(3);
    uint8_t buf[128];
    uint32_t id = take_worked(b.p), ids[2] = {9, 9};
    CHECK_LOOKS(b, tl_kvx_export(b.h, &id, 1, buf, sizeof buf), WORKED_BYTES);
    CHECK_BYTES(buf, worked_envelope, WORKED_BYTES);
    CHECK_LOOKS(b, tl_kvx_export(b.h, NULL, 0, buf, sizeof buf), 32);
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, buf, 59), TL_EFULL, "tl_kv_export");
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, NULL, 0), TL_EFULL, "tl_kv_export");
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, (uint32_t[]){1}, 1, buf, sizeof buf), TL_EINVAL, "tl_kv_export");
    CHECK_LOOKS(b, tl_kvx_export_size(b.h, &id, 1), WORKED_BYTES);
    CHECK_LOOKS(b, tl_kvx_export_size(b.h, NULL, 0), 32);
    CHECK_ANSWERS_NO(b, tl_kvx_export_size(b.h, (uint32_t[]){1}, 1), TL_EINVAL, "tl_kv_export");
#if SIZE_MAX > UINT32_MAX
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, (size_t)UINT32_MAX + 1, buf, sizeof buf), TL_EINVAL, "tl_kvx_export");
    CHECK_ANSWERS_NO(b, tl_kvx_export_size(b.h, &id, (size_t)UINT32_MAX + 1), TL_EINVAL, "tl_kvx_export");
#endif
    CHECK_EQ(tl_kvx_import(b.h, worked_envelope, WORKED_BYTES, ids), 1);
    CHECK_EQ(ids[0], 1);
    CHECK_EQ(ids[1], 9);
    CHECK_EQ(tl_kvx_export(b.h, NULL, 0, buf, sizeof buf), 32);
    CHECK_LOOKS(b, tl_kvx_import(b.h, buf, 32, NULL), 0);
    CHECK_ANSWERS_NO(b, tl_kvx_import(b.h, worked_envelope, 59, ids), TL_EFORMAT, "tl_kv_import");
    end_both(b);
}

/* The pool's own memory is no buffer for envelopes; what lies beside it is. */
CASE(envelopes_stay_apart_from_the_slab)
{
    both b = open_both(8);
    uint32_t id = take_worked(b.p), ids[1];
    unsigned char *slab = b.p->slab, *end = slab + 8 * 16;
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, slab, 128), TL_EINVAL, "tl_kvx_export");
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, end - 1, 60), TL_EINVAL, "tl_kvx_export");
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, slab - 59, 60), TL_EINVAL, "tl_kvx_export");
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, slab - 60, 60 + 999), TL_EINVAL, "tl_kvx_export");
    CHECK_ANSWERS_NO(b, tl_kvx_import(b.h, slab + 5, 60, ids), TL_EINVAL, "tl_kvx_import");
    /* judged as too small, not as overlapping */
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, slab - 5, 5), TL_EFULL, "tl_kv_export");
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, end, 5), TL_EFULL, "tl_kv_export");
    CHECK_ANSWERS_NO(b, tl_kvx_export(b.h, &id, 1, slab + 5, 0), TL_EFULL, "tl_kv_export");
    end_both(b);
}

/* ---- threads and fork ---------------------------------------------------- */

static void *hammer(void *handle)
{
    uint32_t ids[2];
    for (int i = 0; i < 20000; i++) {
        if (tl_kvx_alloc(handle, 2, ids) != 0 || ids[0] == ids[1]) return "alloc";
        if (tl_kvx_refcount(handle, ids[0]) != 1) return "refcount";
        if (tl_kvx_unref_many(handle, ids, 2) != 0) return "unref";
        if (tl_kvx_ref(handle, 99) != -TL_EINVAL || !from((tl_kvx_take_error((char[256]){0}), tl_last_error()), "tl_kvx_ref"))
            return "message";
    }
    return NULL;
}

/* Eight threads on one handle never share a block. */
CASE(threads_exclude_each_other)
{
    both b = open_both(16);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) CHECK_EQ(pthread_create(&threads[i], NULL, hammer, b.h), 0);
    for (int i = 0; i < 8; i++) {
        void *what;
        CHECK_EQ(pthread_join(threads[i], &what), 0);
        CHECK(!what);
    }
    CHECK_COUNTS(b.p, 16, 0, 0);
    end_both(b);
}

static tl_kvx_group *group_of(tl_kvx *h)
{
    tl_kvx_group *g;
    CHECK_EQ(tl_kvx_group_create(&g), 0);
    tl_kvx_join(h, g);
    return g;
}

static void end_group(both b, tl_kvx_group *g)
{
    end_both(b);
    tl_kvx_group_destroy(g);
}

/* Where there is no memory for a group there is none, and the refusal says so. */
CASE(group_create_may_fail)
{
    tl_kvx_group *g;
    char message[256];
    KIT_EACH_ALLOC_FAILURE(n) {
        int64_t answer = tl_kvx_group_create(&g);
        CHECK_EQ(answer, kit_failed() ? -TL_ENOMEM : 0);
        CHECK((g == NULL) == (answer != 0));
        if (answer) tl_kvx_take_error(message), CHECK(from(message, "tl_kvx_group_create"));
        tl_kvx_group_destroy(g);
    }
}

/* Whoever holds a group may join handles to it and destroy them; all are free afterwards. */
CASE(handles_come_and_go_while_held)
{
    both a = open_both(4), b = open_both(4), c = open_both(4);
    tl_kvx_group *g = group_of(a.h);
    tl_kvx_join(b.h, g);
    tl_kvx_hold(g);
    tl_kvx_join(c.h, g);
    CHECK_EQ(tl_kvx_alloc(c.h, 1, (uint32_t[1]){0}), 0);
    end_both(b);
    tl_kvx_release(g);
    pthread_t thread;
    void *what;
    CHECK_EQ(pthread_create(&thread, NULL, hammer, c.h), 0);
    CHECK_EQ(pthread_join(thread, &what), 0);
    CHECK(!what);
    end_both(c);
    tl_kvx_hold(g);
    tl_kvx_release(g);
    end_group(a, g);
}

/* A handle held still keeps other threads out, not its holder, whose calls go on as ever. */
CASE(hold_keeps_others_out)
{
    both b = open_both(16);
    tl_kvx_group *g = group_of(b.h);
    pthread_t thread;
    void *what;
    tl_kvx_hold(g);
    CHECK_EQ(pthread_create(&thread, NULL, hammer, b.h), 0);
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ(tl_kvx_alloc(b.h, 16, (uint32_t[16]){0}), 0);
        CHECK_ANSWERS_NO(b, tl_kvx_alloc(b.h, 1, (uint32_t[1]){0}), TL_EFULL, "tl_kv_alloc");
        for (int64_t id = 0; id < 16; id++) CHECK_EQ(tl_kvx_unref(b.h, id), 0);
    }
    tl_kvx_release(g);
    CHECK_EQ(pthread_join(thread, &what), 0);
    CHECK(!what);
    end_group(b, g);
}

/* A child of fork finds handles that were held still over it whole, whatever other threads were doing. It
 * answers with a signal: at an exit, what it has of its parent's memory would be taken for leaks. */
CASE(fork_finds_whole_pools)
{
    both b = open_both(16);
    tl_kvx_group *g = group_of(b.h);
    pthread_t thread;
    void *what;
    CHECK_EQ(pthread_create(&thread, NULL, hammer, b.h), 0);
    for (int i = 0; i < 20; i++) {
        tl_kvx_hold(g);
        pid_t child = fork();
        tl_kvx_release(g);
        CHECK(child >= 0);
        if (child == 0) {
            alarm(30);
            uint32_t ids[2];
            raise(!tl_kv_check(b.p) && tl_kvx_alloc(b.h, 2, ids) == 0 ? SIGUSR1 : SIGUSR2);
        }
        int status;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status));
        CHECK_EQ(WTERMSIG(status), SIGUSR1);
    }
    CHECK_EQ(pthread_join(thread, &what), 0);
    CHECK(!what);
    end_group(b, g);
}

CASES(create_close_destroy, create_refuses, create_without_memory, closed_handle_refuses_every_call, messages_nest,
      messages_left_behind, alloc_counts, holders_are_needed, looking, writable_is_private, ref_many_is_all_or_nothing,
      holders_do_not_wrap, unref_many_is_all_or_nothing, cow_gives_the_id_to_write_to, set_fill_is_all_or_nothing,
      refcount_many_counts_holders, write_puts_a_position_into_each_block, write_past_the_cache,
      write_is_all_or_nothing, evict_drops_the_oldest, register_answers, register_many_counts, register_many_is_all_or_nothing, lookup_answers,
      match_holds_the_run, acquire_admits, acquire_is_all_or_nothing, long_batches_are_single_calls, block_hashes_chain,
      export_bytes_of_any_n, export_bytes_beyond_an_object, export_and_import_answer_sizes, envelopes_stay_apart_from_the_slab,
      threads_exclude_each_other, group_create_may_fail, handles_come_and_go_while_held, hold_keeps_others_out,
      fork_finds_whole_pools)
