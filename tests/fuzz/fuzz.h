/* fuzz.h - what the fuzz targets share.
 *
 * A target is a function of bytes that stops the program when the library does not
 * keep a promise. libFuzzer calls it with bytes it makes up; replay_main.c with files. */
#ifndef TL_TEST_FUZZ_H
#define TL_TEST_FUZZ_H

#include "kv_check.h"
#include "tinyllm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops the program where a condition does not hold. */
#define REQUIRE(condition)                                                                  \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);   \
            abort();                                                                        \
        }                                                                                   \
    } while (0)

/* The pool keeps all its invariants. */
#define REQUIRE_INTACT(p)                                                   \
    do {                                                                    \
        const char *broken = tl_kv_check(p);                                \
        if (broken) fprintf(stderr, "the pool is broken: %s\n", broken);    \
        REQUIRE(!broken);                                                   \
    } while (0)

static inline tl_kv_pool *fuzz_pool(uint32_t n_blocks, uint32_t block_tokens, uint32_t head_dim)
{
    tl_kv_pool *p;
    tl_kv_cfg cfg = {n_blocks, block_tokens, 1, 1, head_dim, TL_F16, TL_KV_FORMAT_V1};
    REQUIRE(tl_kv_pool_create(&cfg, &p) == TL_OK);
    memset(tl_kv_block_ptr(p, 0, 0, 0), 0xEE, n_blocks * tl_kv_block_bytes(p));
    return p;
}

#endif
