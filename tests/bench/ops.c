/* ops.c - what a call costs in a pool of a given size.
 *
 *      ops N LAPS
 *
 * prints `memory BYTES`, what a pool of N blocks takes beside its slab, and for each
 * operation a line `NAME STEPS NS`: how often it was done and how long each took. Under
 * Callgrind, with --instr-atstart=no --collect-atstart=no, each operation's instructions
 * are dumped under its name. What prepares an operation is outside both figures. With
 * 0 laps there is the memory alone.
 *
 * A lap is LAP operations; churn, which shows its cost over long runs only, has CHURN
 * times as many laps as the others. */
#define _POSIX_C_SOURCE 200112L
#include "tinyllm.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__has_include)
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif
#endif
#ifndef CALLGRIND_TOGGLE_COLLECT
#define CALLGRIND_START_INSTRUMENTATION ((void)0)
#define CALLGRIND_STOP_INSTRUMENTATION ((void)0)
#define CALLGRIND_TOGGLE_COLLECT ((void)0)
#define CALLGRIND_DUMP_STATS_AT(name) ((void)(name))
#endif

enum { LAP = 400, CHURN = 50, STRIDE = 7919, BLOCK_TOKENS = 16 };

static tl_kv_pool *pool;
static uint64_t n_blocks, next_name, next_pick; /* blocks; names and choices made so far */
static uint32_t ids[LAP];
static uint64_t hashes[LAP];

static void must(tl_status status)
{
    if (status == TL_OK) return;
    fprintf(stderr, "ops: %s\n", tl_last_error());
    exit(1);
}

/* The i-th of a sequence of random numbers, never 0 (SplitMix64). */
static uint64_t random_at(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) | 1;
}

/* ---- the operations: n of each, and what comes before and after ---------------- */

static void alloc(size_t n)
{
    for (size_t i = 0; i < n; i++) must(tl_kv_alloc(pool, 1, &ids[i]));
}

static void unref(size_t n)
{
    while (n-- > 0) must(tl_kv_unref(pool, ids[n]));
}

/* Names of blocks far apart, each once (STRIDE is prime). */
static void pick_names(size_t n)
{
    uint64_t block = random_at(next_pick++);
    for (size_t i = 0; i < n; i++, block += STRIDE) hashes[i] = random_at(block % n_blocks);
}

static void lookup(size_t n)
{
    for (size_t i = 0; i < n; i++) must(tl_kv_lookup(pool, hashes[i], &ids[i]));
}

static void pick_and_lookup(size_t n)
{
    pick_names(n);
    lookup(n);
}

static void new_names(size_t n)
{
    for (size_t i = 0; i < n; i++) hashes[i] = random_at(next_name++);
}

/* A block's life; where all others are cached it begins with an eviction. */
static void register_evict(size_t n)
{
    for (size_t i = 0; i < n; i++) {
        must(tl_kv_alloc(pool, 1, &ids[i]));
        must(tl_kv_set_fill(pool, ids[i], BLOCK_TOKENS));
        must(tl_kv_register(pool, ids[i], hashes[i]));
        must(tl_kv_unref(pool, ids[i]));
    }
}

static void nothing(size_t n) { (void)n; }

/* ---- the measurement ----------------------------------------------------------- */

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void measure(const char *name, void (*before)(size_t), void (*lap)(size_t), void (*after)(size_t), int laps)
{
    double ns = 0;
    CALLGRIND_START_INSTRUMENTATION;
    for (int i = 0; i < laps; i++) {
        before(LAP);
        const double start = now_ns();
        CALLGRIND_TOGGLE_COLLECT;
        lap(LAP);
        CALLGRIND_TOGGLE_COLLECT;
        ns += now_ns() - start;
        after(LAP);
    }
    CALLGRIND_DUMP_STATS_AT(name);
    CALLGRIND_STOP_INSTRUMENTATION;
    printf("%s %d %.1f\n", name, laps * LAP, ns / laps / LAP);
}

/* An allocator that counts the bytes asked for. */
static void *counted_alloc(void *bytes, size_t n, size_t align)
{
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, n)) return NULL;
    *(size_t *)bytes += n;
    return p;
}

static void plain_free(void *bytes, void *p) { (void)bytes, free(p); }

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    n_blocks = strtoull(argv[1], NULL, 10);
    const int laps = atoi(argv[2]);
    if (n_blocks < LAP || n_blocks > UINT32_MAX || laps < 0) return 2;

    size_t bytes = 0;
    const tl_allocator counted = {counted_alloc, plain_free, &bytes};
    const tl_kv_cfg cfg = {(uint32_t)n_blocks, BLOCK_TOKENS, 1, 1, 1, TL_F16, TL_KV_FORMAT_V1};
    must(tl_set_allocator(&counted));
    must(tl_kv_pool_create(&cfg, &pool));
    printf("memory %zu\n", bytes - n_blocks * tl_kv_block_bytes(pool));

    if (laps == 0) return 0;
    measure("alloc", nothing, alloc, unref, laps);
    measure("unref", alloc, unref, nothing, laps);
    while (next_name < n_blocks) {
        const size_t n = n_blocks - next_name < LAP ? n_blocks - next_name : LAP;
        new_names(n);
        register_evict(n);
    }
    measure("lookup", pick_names, lookup, unref, laps);
    measure("unref_registered", pick_and_lookup, unref, nothing, laps);
    measure("register_evict", new_names, register_evict, nothing, laps * CHURN);
    tl_kv_pool_destroy(pool);
    return 0;
}
