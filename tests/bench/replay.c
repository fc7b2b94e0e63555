/* replay.c - the replay of a trace in C, through the calls of tinyllm/kv_pool.h alone.
 *
 *      replay N BLOCK_TOKENS < REQUESTS
 *
 * serves the requests in a pool of N blocks of the smallest other dimensions and prints
 * `hits evictions ns`, the time without the reading. A request is a u64, its number of
 * blocks, and then the u64 hash of each, in the machine's byte order. It holds the
 * longest run of hits from its start, takes fresh blocks for the rest, registers those
 * and lets go of everything, the tail first. */
#define _POSIX_C_SOURCE 199309L
#include "tinyllm/kv_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void must(tl_status status)
{
    if (status == TL_OK) return;
    fprintf(stderr, "replay: %s\n", tl_last_error());
    exit(1);
}

/* Returns: the number of hits. */
static uint32_t serve(tl_kv_pool *p, uint32_t block_tokens, const uint64_t *hashes, uint32_t n, uint32_t *ids)
{
    uint32_t hits = 0;
    while (hits < n && tl_kv_lookup(p, hashes[hits], &ids[hits]) == TL_OK) hits++;
    must(tl_kv_alloc(p, n - hits, ids + hits));
    for (uint32_t i = hits; i < n; i++) {
        must(tl_kv_set_fill(p, ids[i], block_tokens));
        tl_status status = tl_kv_register(p, ids[i], hashes[i]);
        if (status != TL_EBUSY) must(status);
    }
    for (uint32_t i = n; i-- > 0;) must(tl_kv_unref(p, ids[i]));
    return hits;
}

static void *read_all(FILE *file, size_t *n)
{
    size_t cap = 1 << 20, got;
    char *bytes = NULL;
    *n = 0;
    do {
        cap *= 2;
        bytes = realloc(bytes, cap);
        if (!bytes) exit(1);
        got = fread(bytes + *n, 1, cap - *n, file);
        *n += got;
    } while (got);
    return bytes;
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    const tl_kv_cfg cfg = {(uint32_t)strtoul(argv[1], NULL, 10), (uint32_t)strtoul(argv[2], NULL, 10), 1, 1, 1,
                           TL_F16, TL_KV_FORMAT_V1};
    tl_kv_pool *p;
    must(tl_kv_pool_create(&cfg, &p));
    size_t n_words, at = 0;
    uint32_t *ids = malloc(cfg.n_blocks * sizeof *ids);
    uint64_t *words = read_all(stdin, &n_words);
    if (!ids) return 1;
    n_words /= sizeof *words;

    uint64_t hits = 0;
    const double start = now_ns();
    while (at < n_words) {
        const uint32_t n = (uint32_t)words[at++];
        hits += serve(p, cfg.block_tokens, words + at, n, ids);
        at += n;
    }
    const double ns = now_ns() - start;

    tl_kv_stats stats;
    tl_kv_stats_get(p, &stats);
    printf("%llu %u %.0f\n", (unsigned long long)hits, stats.evictions, ns);
    free(ids);
    free(words);
    tl_kv_pool_destroy(p);
    return 0;
}
