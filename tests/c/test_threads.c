/* test_threads.c - pools share nothing: two in two threads need no lock. Meant for
 * ThreadSanitizer as well as for a plain run. */

#include "pools.h"

#include <pthread.h>

enum { ROUNDS = 2000 };

/* One thread's work. Checks belong to the case's thread, so wrong answers are counted. */
typedef struct {
    tl_kv_pool *pool;
    uint64_t first_hash;
    const char *function; /* whose failures this thread provokes */
    unsigned wrong;
} work;

/* Blocks are taken, named, sent and fetched; each round fails once. */
static void *live(void *argument)
{
    work *w = argument;
    tl_kv_pool *p = w->pool;
    uint8_t envelope[60];
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const uint64_t hash = w->first_hash + round;
        uint32_t id = 0, came = 0, found = 0;
        size_t written = 0;
        w->wrong += tl_kv_alloc(p, 1, &id) != TL_OK;
        w->wrong += tl_kv_set_fill(p, id, 2) != TL_OK;
        memcpy(tl_kv_block_ptr(p, id, 0, 0), worked_values, sizeof worked_values);
        w->wrong += tl_kv_register(p, id, hash) != TL_OK;
        w->wrong += tl_kv_export(p, &id, 1, envelope, sizeof envelope, &written) != TL_OK;
        w->wrong += tl_kv_import(p, envelope, written, &came) != TL_OK;
        w->wrong += memcmp(tl_kv_block_ptr(p, came, 0, 0), worked_values, sizeof worked_values) != 0;
        w->wrong += tl_kv_unref(p, id) != TL_OK || tl_kv_unref(p, came) != TL_OK;
        w->wrong += tl_kv_lookup(p, hash, &found) != TL_OK || found != id;
        w->wrong += tl_kv_unref(p, found) != TL_OK;

        tl_status refused = w->function[6] == 'u' ? tl_kv_unref(p, id) : tl_kv_alloc(p, 1, NULL);
        w->wrong += refused != TL_EINVAL || strncmp(tl_last_error(), w->function, strlen(w->function)) != 0;
    }
    return NULL;
}

/* Two pools live in two threads at once, and every answer and message is right. */
CASE(two_pools_in_two_threads)
{
    work works[2] = {{new_pool(worked_shape(4)), 1, "tl_kv_unref: ", 0},
                     {new_pool(worked_shape(8)), 1000000, "tl_kv_alloc: ", 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_create(&threads[i], NULL, live, &works[i]), 0);
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(works[i].wrong, 0);
        CHECK_COUNTS(works[i].pool, 1, 0, i ? 7 : 3);
        end_pool(works[i].pool);
    }
}

CASES(two_pools_in_two_threads)
