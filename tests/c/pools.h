/* pools.h - what the pool's C tests share: pools, contents, envelopes written by hand.
 *
 * Nothing here computes with the library: hashes, checksums and envelopes are a
 * second implementation, as slow and plain as possible. */
#ifndef TL_TEST_POOLS_H
#define TL_TEST_POOLS_H

#include "kit.h"
#include "kv_check.h"

/* ---- pools --------------------------------------------------------------- */

tl_kv_cfg shape(uint32_t n_blocks, uint32_t block_tokens, uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim);

/* The shape of the worked example: B 2, L 1, H 1, D 2, 16 bytes a block. */
tl_kv_cfg worked_shape(uint32_t n_blocks);

tl_kv_pool *new_pool(tl_kv_cfg cfg);

/* Checks the pool's integrity and destroys it. */
void end_pool(tl_kv_pool *p);

/* ---- blocks -------------------------------------------------------------- */

/* Allocates one block. */
uint32_t take(tl_kv_pool *p);

/* Allocates a block, fills it and registers it under hash. */
uint32_t take_registered(tl_kv_pool *p, uint64_t hash);

/* Takes the block registered under hash; the case fails when there is none. */
uint32_t find(tl_kv_pool *p, uint64_t hash);

void drop(tl_kv_pool *p, uint32_t id);

/* The block's values, in slab order, and how many there are. */
uint16_t *values_of(const tl_kv_pool *p, uint32_t id);
size_t n_values(const tl_kv_pool *p);

/* Writes to every value of the block; no value is 0, and each seed gives others. */
void put_values(tl_kv_pool *p, uint32_t id, uint32_t seed);
void check_values(const tl_kv_pool *p, uint32_t id, uint32_t seed);

/* ---- checks -------------------------------------------------------------- */

#define CHECK_COUNTS(p, n_free, n_used, n_cached)       \
    do {                                                \
        tl_kv_stats counts_;                            \
        tl_kv_stats_get((p), &counts_);                 \
        CHECK_EQ(counts_.free, (n_free));               \
        CHECK_EQ(counts_.used, (n_used));               \
        CHECK_EQ(counts_.cached, (n_cached));           \
    } while (0)

#define CHECK_EVICTIONS(p, n)                           \
    do {                                                \
        tl_kv_stats counts_;                            \
        tl_kv_stats_get((p), &counts_);                 \
        CHECK_EQ(counts_.evictions, (n));               \
    } while (0)

/* The call fails with this status and a message of its own, and the pool is what it was. */
#define CHECK_REFUSED(p, call, status)                  \
    do {                                                \
        uint64_t before_ = tl_kv_digest(p);             \
        tl_set_last_error(NULL);                        \
        CHECK_STATUS(call, status);                     \
        CHECK_ERROR_FROM(function_of(#call));           \
        CHECK_EQ(tl_kv_digest(p), before_);             \
    } while (0)

/* The same for a call that answers with something else than a status. */
#define CHECK_COMPLAINS(p, call)                        \
    do {                                                \
        uint64_t before_ = tl_kv_digest(p);             \
        tl_set_last_error(NULL);                        \
        (void)(call);                                   \
        CHECK_ERROR_FROM(function_of(#call));           \
        CHECK_EQ(tl_kv_digest(p), before_);             \
    } while (0)

/* The call answers with this status and leaves the error slot alone. */
#define CHECK_QUIET(call, status)                       \
    do {                                                \
        tl_set_last_error("earlier");                   \
        CHECK_STATUS(call, status);                     \
        CHECK_STR(tl_last_error(), "earlier");          \
    } while (0)

/* "f" of the text "f(a, b)"; valid until the next call. */
const char *function_of(const char *call);

/* ---- the worked example -------------------------------------------------- */

#define H0 0xA91AB0C1027B9366u /* tokens 1 2, no parent */
#define H1 0x03DF829571605C60u /* tokens 3 4 after them */

enum { WORKED_BYTES = 60 };
extern const uint8_t worked_envelope[WORKED_BYTES];

/* K = [[1, 2], [3, 4]], V = [[0.5, -1], [0, 0.25]] in f16. */
extern const uint16_t worked_values[8];

/* Allocates a block of a pool of the worked shape with those values, full and
 * registered under H0. */
uint32_t take_worked(tl_kv_pool *p);

/* ---- the wire ------------------------------------------------------------ */

void put_le(uint8_t *to, uint64_t x, size_t n_bytes);

/* One bit at a time. */
uint32_t slow_crc32c(const uint8_t *data, size_t n, uint32_t crc);

/* FNV-1a 64 of parent and tokens, 0 replaced by 1. */
uint64_t slow_block_hash(uint64_t parent, const uint32_t *toks, uint32_t n);

/* Writes the right CRC into the last 4 of n bytes. */
void seal(uint8_t *envelope, size_t n);

typedef struct {
    uint64_t hash;
    uint32_t n_tokens;
    const uint16_t *values; /* of the whole block, in slab order */
} wire_block;

/* Writes the envelope of n blocks of this shape. Returns: its bytes. */
size_t write_envelope(uint8_t *out, const tl_kv_cfg *cfg, const wire_block *blocks, uint32_t n);

#endif
