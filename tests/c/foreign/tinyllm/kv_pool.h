#ifndef FOREIGN_KV_POOL_H
#define FOREIGN_KV_POOL_H
#include <tinyllm/abi.h>
#define TL_KV_FORMAT_V1 1u
#define TL_KV_MAGIC "TLKV"
#define TL_KV_ENVELOPE_HEADER 28u
typedef struct {
    uint32_t n_blocks, block_tokens, n_layers, n_kv_heads, head_dim;
    int32_t dtype;
    uint32_t format;
} tl_kv_cfg;
typedef struct {
    uint32_t free, used, cached, evictions;
} tl_kv_stats;
typedef struct tl_kv_pool tl_kv_pool;
tl_status tl_kv_pool_create(const tl_kv_cfg *, tl_kv_pool **);
void tl_kv_pool_destroy(tl_kv_pool *);
void tl_kv_pool_cfg(const tl_kv_pool *, tl_kv_cfg *);
tl_status tl_kv_alloc(tl_kv_pool *, uint32_t, uint32_t *);
void tl_kv_ref(tl_kv_pool *, uint32_t);
tl_status tl_kv_unref(tl_kv_pool *, uint32_t);
tl_status tl_kv_cow(tl_kv_pool *, uint32_t, uint32_t *);
tl_status tl_kv_set_fill(tl_kv_pool *, uint32_t, uint32_t);
uint32_t tl_kv_fill(const tl_kv_pool *, uint32_t);
void *tl_kv_block_ptr(const tl_kv_pool *, uint32_t, uint32_t, int);
size_t tl_kv_block_bytes(const tl_kv_pool *);
void tl_kv_stats_get(const tl_kv_pool *, tl_kv_stats *);
uint64_t tl_kv_block_hash(uint64_t, const uint32_t *, uint32_t);
tl_status tl_kv_register(tl_kv_pool *, uint32_t, uint64_t);
tl_status tl_kv_lookup(tl_kv_pool *, uint64_t, uint32_t *);
size_t tl_kv_export_bytes(const tl_kv_pool *, uint32_t);
tl_status tl_kv_export(const tl_kv_pool *, const uint32_t *, uint32_t, void *, size_t, size_t *);
tl_status tl_kv_import(tl_kv_pool *, const void *, size_t, uint32_t *);
uint32_t tl_crc32c(const void *, size_t, uint32_t);
#endif
