/* crc_bench.c - the speed of tl_crc32c, tl_kv_block_hash and the paths of crc32c.h, each
 * beside a plain one.
 *
 *      cc -O2 -Iinclude -Icsrc/runtime tests/bench/crc_bench.c csrc/runtime/{abi,kv_pool}.c \
 *          csrc/ds/{vec,swiss,lru}.c -o crc_bench && ./crc_bench
 *
 * prints one `name value unit` a line; an argument is the size of the largest buffer in
 * MiB, instead of 64. The contestants of a group take turns, round by round, so that what
 * else the machine does meets all of them; a value is the median of the rounds. Names:
 * what:size:who; a line in x is the speed compared with the plain contestant of the same
 * group (tables, memcpy, byte at a time), the median of the rounds' ratios. */
#define _POSIX_C_SOURCE 199309L
#include "crc32c.h"
#include "fnv1a.h"
#include "tinyllm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 15, CONTESTANTS = 8, TOKENS = 16 };

static unsigned char *src, *dst;
static uint32_t tokens[1 << 16];
static volatile uint64_t result; /* keeps the work from being left out */

/* One side of a comparison: does its work once, on n bytes (or tokens). */
typedef struct contestant {
    const char *who;
    void (*work)(const struct contestant *c, size_t n);
    const crc32c_path *path;
    int stream;
    double seconds[ROUNDS];
} contestant;

/* ---- the work --------------------------------------------------------------- */

static void sum_by_path(const contestant *c, size_t n) { result = c->path->update((uint32_t)result, src, n); }
static void sum(const contestant *c, size_t n) { (void)c, result = tl_crc32c(src, n, (uint32_t)result); }
static void copy_plain(const contestant *c, size_t n) { (void)c, memcpy(dst + 40, src, n), result = dst[n]; }
static void copy_and_sum(const contestant *c, size_t n) { result = crc32c_copy(0, dst + 40, src, n, c->stream); }

static void sum_then_copy(const contestant *c, size_t n)
{
    sum(c, n);
    copy_plain(c, n);
}

static void hash_by_byte(const contestant *c, size_t n)
{
    uint64_t h = FNV1A64_START;
    (void)c;
    for (int i = 0; i < 64; i += 8) h = (h ^ (result >> i & 255)) * FNV_PRIME;
    for (size_t t = 0; t < n; t++)
        for (int i = 0; i < 32; i += 8) h = (h ^ (tokens[t] >> i & 255)) * FNV_PRIME;
    result = h;
}

static void hash(const contestant *c, size_t n) { (void)c, result = tl_kv_block_hash(result, tokens, (uint32_t)n); }

/* ---- the measurement -------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static double median(double values[ROUNDS])
{
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

/* Prints each contestant's speed, and its ratio to the last one, which is the plain. */
static void compare(const char *what, contestant *c, size_t count, size_t n, size_t times, const char *unit)
{
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < count; i++) {
            double start = now();
            for (size_t t = 0; t < times; t++) c[i].work(&c[i], n);
            c[i].seconds[round] = (now() - start) / (double)times;
        }
    double *plain = c[count - 1].seconds, ratios[CONTESTANTS];
    for (size_t i = 0; i + 1 < count; i++) {
        double each[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) each[round] = plain[round] / c[i].seconds[round];
        ratios[i] = median(each);
    }
    for (size_t i = 0; i < count; i++) {
        const double seconds = median(c[i].seconds);
        printf("%s:%zu:%s %.2f %s\n", what, n, c[i].who, strcmp(unit, "ns") ? (double)n / seconds * 1e-9 : seconds * 1e9,
               unit);
        if (i + 1 < count) printf("%s:%zu:%s/%s %.2f x\n", what, n, c[i].who, c[count - 1].who, ratios[i]);
    }
}

static void compare_sums(size_t n)
{
    contestant c[CONTESTANTS] = {{.who = "tl_crc32c", .work = sum}};
    size_t count = 1;
    for (size_t i = 0; i < sizeof crc32c_paths / sizeof *crc32c_paths; i++)
        if (crc32c_paths[i].present())
            c[count++] = (contestant){.who = crc32c_paths[i].name, .work = sum_by_path, .path = &crc32c_paths[i]};
    compare("crc32c", c, count, n, n < 1 << 20 ? (1 << 20) / n : 1, "GB/s");
}

static void compare_copies(size_t n)
{
    contestant c[] = {{.who = "cached", .work = copy_and_sum},
                      {.who = "streamed", .work = copy_and_sum, .stream = 1},
                      {.who = "sum_then_memcpy", .work = sum_then_copy},
                      {.who = "memcpy", .work = copy_plain}};
    compare("copy", c, sizeof c / sizeof *c, n, 1, "GB/s");
}

static void compare_hashes(const char *what, uint32_t bits)
{
    contestant c[] = {{.who = "tl_kv_block_hash", .work = hash}, {.who = "byte", .work = hash_by_byte}};
    for (uint32_t i = 0; i < TOKENS; i++) tokens[i] = (0x9E3779B9u * (i + 1) | 1u << 31) >> (32 - bits);
    compare(what, c, sizeof c / sizeof *c, TOKENS, 4096, "ns");
}

int main(int argc, char **argv)
{
    const size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 64, largest = mib << 20;
    if (mib < 2 || mib > 1024) return 2;
    src = malloc(largest);
    dst = malloc(largest + 64);
    if (!src || !dst) return 1;
    for (size_t i = 0; i < largest; i++) src[i] = (unsigned char)(i * 2654435761u >> 13);
    memset(dst, 1, largest + 64);
    for (size_t n = 64; n <= 4096; n *= n == 64 ? 4 : 16) compare_sums(n);
    compare_sums(1 << 20);
    compare_sums(largest);
    compare_copies(2 << 20);
    compare_copies(largest);
    compare_hashes("block_hash_16_bits", 16);
    compare_hashes("block_hash_17_bits", 17);
    compare_hashes("block_hash_32_bits", 32);
    free(src);
    free(dst);
    return 0;
}
