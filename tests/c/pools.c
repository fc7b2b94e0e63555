/* pools.c - see pools.h. */

#include "pools.h"

/* ---- pools --------------------------------------------------------------- */

tl_kv_cfg shape(uint32_t n_blocks, uint32_t block_tokens, uint32_t n_layers, uint32_t n_kv_heads, uint32_t head_dim)
{
    return (tl_kv_cfg){n_blocks, block_tokens, n_layers, n_kv_heads, head_dim, TL_F16, TL_KV_FORMAT_V1};
}

tl_kv_cfg worked_shape(uint32_t n_blocks) { return shape(n_blocks, 2, 1, 1, 2); }

tl_kv_pool *new_pool(tl_kv_cfg cfg)
{
    tl_kv_pool *p = NULL;
    CHECK_STATUS(tl_kv_pool_create(&cfg, &p), TL_OK);
    CHECK(p != NULL);
    return p;
}

void end_pool(tl_kv_pool *p)
{
    const char *broken = tl_kv_check(p);
    CHECK_STR(broken ? broken : "intact", "intact");
    tl_kv_pool_destroy(p);
}

/* ---- blocks -------------------------------------------------------------- */

uint32_t take(tl_kv_pool *p)
{
    uint32_t id = UINT32_MAX;
    CHECK_STATUS(tl_kv_alloc(p, 1, &id), TL_OK);
    return id;
}

uint32_t take_registered(tl_kv_pool *p, uint64_t hash)
{
    tl_kv_cfg cfg;
    uint32_t id = take(p);
    tl_kv_pool_cfg(p, &cfg);
    CHECK_STATUS(tl_kv_set_fill(p, id, cfg.block_tokens), TL_OK);
    CHECK_STATUS(tl_kv_register(p, id, hash), TL_OK);
    return id;
}

uint32_t find(tl_kv_pool *p, uint64_t hash)
{
    uint32_t id = UINT32_MAX;
    CHECK_STATUS(tl_kv_lookup(p, hash, &id), TL_OK);
    return id;
}

void drop(tl_kv_pool *p, uint32_t id) { CHECK_STATUS(tl_kv_unref(p, id), TL_OK); }

uint16_t *values_of(const tl_kv_pool *p, uint32_t id)
{
    uint16_t *values = tl_kv_block_ptr(p, id, 0, 0);
    CHECK(values != NULL);
    return values;
}

size_t n_values(const tl_kv_pool *p) { return tl_kv_block_bytes(p) / sizeof(uint16_t); }

static uint16_t value(uint32_t seed, size_t i)
{
    uint32_t x = (seed + 1) * 0x9E3779B1u + (uint32_t)i * 0x85EBCA77u;
    return (uint16_t)((x >> 16) | 0x0101u);
}

void put_values(tl_kv_pool *p, uint32_t id, uint32_t seed)
{
    uint16_t *values = values_of(p, id);
    for (size_t i = 0; i < n_values(p); i++) values[i] = value(seed, i);
}

void check_values(const tl_kv_pool *p, uint32_t id, uint32_t seed)
{
    const uint16_t *values = values_of(p, id);
    for (size_t i = 0; i < n_values(p); i++) CHECK_EQ(values[i], value(seed, i));
}

/* ---- checks -------------------------------------------------------------- */

const char *function_of(const char *call)
{
    static char name[64];
    size_t n = strcspn(call, "(");
    CHECK(n < sizeof name);
    memcpy(name, call, n);
    name[n] = '\0';
    return name;
}

/* ---- the worked example -------------------------------------------------- */

const uint8_t worked_envelope[WORKED_BYTES] = {
    0x54, 0x4c, 0x4b, 0x56, 0x01, 0x00, 0x01, 0x00, /* magic, version 1, dtype 1 */
    0x01, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, /* 1 block of 2 tokens */
    0x01, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, /* 1 layer, 1 KV head */
    0x02, 0x00, 0x00, 0x00,                         /* head dimension 2 */
    0x66, 0x93, 0x7b, 0x02, 0xc1, 0xb0, 0x1a, 0xa9, /* hash */
    0x02, 0x00, 0x00, 0x00,                         /* 2 tokens in it */
    0x00, 0x3c, 0x00, 0x40, 0x00, 0x42, 0x00, 0x44, /* K */
    0x00, 0x38, 0x00, 0xbc, 0x00, 0x00, 0x00, 0x34, /* V */
    0x1c, 0x54, 0x0b, 0x4f,                         /* CRC-32C */
};

const uint16_t worked_values[8] = {0x3C00, 0x4000, 0x4200, 0x4400, 0x3800, 0xBC00, 0x0000, 0x3400};

uint32_t take_worked(tl_kv_pool *p)
{
    uint32_t id = take_registered(p, H0);
    memcpy(values_of(p, id), worked_values, sizeof worked_values);
    return id;
}

/* ---- the wire ------------------------------------------------------------ */

void put_le(uint8_t *to, uint64_t x, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) to[i] = (uint8_t)(x >> (8 * i));
}

uint32_t slow_crc32c(const uint8_t *data, size_t n, uint32_t crc)
{
    crc ^= 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    }
    return crc ^ 0xFFFFFFFFu;
}

static uint64_t fnv1a64(uint64_t h, uint64_t x, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) h = (h ^ (x >> (8 * i) & 0xFF)) * 0x00000100000001B3u;
    return h;
}

uint64_t slow_block_hash(uint64_t parent, const uint32_t *toks, uint32_t n)
{
    uint64_t h = fnv1a64(0xCBF29CE484222325u, parent, 8);
    for (uint32_t i = 0; i < n; i++) h = fnv1a64(h, toks[i], 4);
    return h ? h : 1;
}

void seal(uint8_t *envelope, size_t n) { put_le(envelope + n - 4, slow_crc32c(envelope, n - 4, 0), 4); }

size_t write_envelope(uint8_t *out, const tl_kv_cfg *cfg, const wire_block *blocks, uint32_t n)
{
    const uint32_t dimensions[] = {n, cfg->block_tokens, cfg->n_layers, cfg->n_kv_heads, cfg->head_dim};
    uint8_t *at = out;

    memcpy(at, "TLKV", 4);
    put_le(at + 4, 1, 2);
    put_le(at + 6, 1, 2);
    for (size_t i = 0; i < 5; i++) put_le(at + 8 + 4 * i, dimensions[i], 4);
    at += 28;
    for (uint32_t b = 0; b < n; b++) {
        const uint16_t *value = blocks[b].values;
        put_le(at, blocks[b].hash, 8);
        put_le(at + 8, blocks[b].n_tokens, 4);
        at += 12;
        for (uint32_t row = 0; row < cfg->n_layers * 2 * cfg->n_kv_heads; row++)
            for (uint32_t token = 0; token < cfg->block_tokens; token++)
                for (uint32_t d = 0; d < cfg->head_dim; d++, value++, at += 2)
                    put_le(at, token < blocks[b].n_tokens ? *value : 0, 2);
    }
    seal(out, (size_t)(at - out) + 4);
    return (size_t)(at - out) + 4;
}
