/* tinyllm/kv_pool.h - a paged pool of KV blocks.
 *
 * The attention keys and values of many sequences live in fixed-size blocks of
 * one slab. A sequence is a list of block ids. Sequences share blocks until one of
 * them writes (copy on write); a full block has a name, the chained hash of its
 * tokens, under which the next sequence with the same prefix finds it; blocks
 * travel between engines as a checksummed envelope.
 *
 * THE SLAB. n_blocks blocks of tl_kv_block_bytes each; element type f16:
 *
 *       block 0             block 1                        block N-1
 *      +-------------------+-------------------+--     --+-------------------+
 *      |                   |                   |   ...   |                   |
 *      +-------------------+-------------------+--     --+-------------------+
 *       /                 \
 *      | layer 0 | layer 0 | layer 1 | layer 1 |  ...  | layer L-1 |
 *      |    K    |    V    |    K    |    V    |       |     V     |
 *       /       \
 *      [n_kv_heads][block_tokens][head_dim]
 *
 * A BLOCK'S LIFE. In each pool free + used + cached == n_blocks after every call:
 *
 *                    alloc                        unref, the last one,
 *      +--------+  ----------->  +------------+   registered      +----------+
 *      |  free  |                |    used    |  -------------->  |  cached  |
 *      | ref 0  |  <-----------  |  ref >= 1  |  <--------------  |  ref 0   |
 *      +--------+  unref, the    +------------+      lookup       +----------+
 *          ^       last one, not registered                            |
 *          +-----------------------------------------------------------+
 *                     evicted, the least recently used first
 *
 * An evicted block is handed out by the same call that evicted it.
 *
 * THE ENVELOPE, version 1. Little-endian, unaligned, nothing between the fields:
 *
 *      offset  size  field
 *           0     4  magic, "TLKV"
 *           4     2  version, 1
 *           6     2  dtype, TL_F16
 *           8     4  n_blocks
 *          12     4  block_tokens
 *          16     4  n_layers
 *          20     4  n_kv_heads
 *          24     4  head_dim
 *          28        n_blocks records:
 *                      8  hash, 0 for a block that is not registered
 *                      4  n_tokens, the block's fill, 1 .. block_tokens
 *                      P  payload: the block's bytes in slab order, all
 *                         positions at or past n_tokens written as zeros
 *         end     4  CRC-32C of everything before it
 *
 * The reader's rules:
 *      1  the length is at least 32 and what the header implies
 *      2  the magic and the CRC are right
 *      3  the version is 1 and the dtype is TL_F16
 *      4  the four dimensions are the pool's
 *      5  n_tokens is in 1 .. block_tokens, and a block with a hash is full
 *
 * Beside the slab a pool of some hundred blocks or more takes 60 to 85 bytes a block, most
 * of them for the records and the index.
 *
 * A pool is not thread-safe: the caller serializes all calls on it. Every call answers
 * a NULL pool with a failure, or with zeros where it only looks; never with a crash.
 */
#ifndef TINYLLM_KV_POOL_H
#define TINYLLM_KV_POOL_H

#include "tinyllm/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TL_KV_FORMAT_V1 1u
#define TL_KV_MAGIC "TLKV"
#define TL_KV_ENVELOPE_HEADER 28u

/* ---- the pool ------------------------------------------------------------ */

/* The shape of a pool. Every dimension is at least 1. */
typedef struct tl_kv_cfg {
    uint32_t n_blocks;     /* blocks in the pool */
    uint32_t block_tokens; /* token positions of a block */
    uint32_t n_layers;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    tl_dtype dtype;  /* TL_F16 */
    uint32_t format; /* TL_KV_FORMAT_V1 */
} tl_kv_cfg;

TL_STATIC_ASSERT(sizeof(tl_kv_cfg) == 28, "seven 4-byte fields without padding");
TL_STATIC_ASSERT(offsetof(tl_kv_cfg, n_blocks) == 0, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_cfg, block_tokens) == 4, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_cfg, n_layers) == 8, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_cfg, n_kv_heads) == 12, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_cfg, head_dim) == 16, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_cfg, dtype) == 20, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_cfg, format) == 24, "part of the binary interface");

/* Blocks by state, and how often a cached block was given up. */
typedef struct tl_kv_stats {
    uint32_t free;
    uint32_t used;
    uint32_t cached;
    uint32_t evictions; /* since create; stays at UINT32_MAX once there */
} tl_kv_stats;

TL_STATIC_ASSERT(sizeof(tl_kv_stats) == 16, "four 4-byte fields without padding");
TL_STATIC_ASSERT(offsetof(tl_kv_stats, free) == 0, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_stats, used) == 4, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_stats, cached) == 8, "part of the binary interface");
TL_STATIC_ASSERT(offsetof(tl_kv_stats, evictions) == 12, "part of the binary interface");

typedef struct tl_kv_pool tl_kv_pool;

/* Creates a pool with all blocks free. No later call on the pool allocates. The
 * slab is 64-byte aligned and is not touched: what a block holds that nobody has
 * written is unspecified.
 * In:  cfg  copied
 * Out: out  the pool, NULL on failure
 * Returns: TL_OK
 *          TL_EINVAL       an argument is NULL, a dimension is 0, or a size does
 *                          not fit in size_t
 *          TL_EUNSUPPORTED format is not TL_KV_FORMAT_V1 or dtype not TL_F16
 *          TL_ENOMEM       the allocator said no; everything is given back */
tl_status tl_kv_pool_create(const tl_kv_cfg *cfg, tl_kv_pool **out);

/* Gives everything back, whatever is still held. NULL is fine. */
void tl_kv_pool_destroy(tl_kv_pool *p);

/* Out: out  the cfg of create, all zeros for a NULL pool; NULL does nothing */
void tl_kv_pool_cfg(const tl_kv_pool *p, tl_kv_cfg *out);

/* Out: out  a snapshot, all zeros for a NULL pool; NULL does nothing */
void tl_kv_stats_get(const tl_kv_pool *p, tl_kv_stats *out);

/* ---- holding blocks ------------------------------------------------------ */

/* Takes n blocks, all or nothing, each with one holder, fill 0 and no hash. Free
 * blocks go first, the last one freed before the others (a new pool hands out
 * 0, 1, 2 ...); then cached blocks are evicted, the least recently used first. The
 * bytes of a block are not cleared.
 * Out: ids  n ids in the order taken; untouched on failure
 * Returns: TL_OK      n 0 with ids NULL is fine
 *          TL_EINVAL  p is NULL, or ids is NULL and n is not 0
 *          TL_EFULL   fewer than n blocks are free or cached; nothing is taken */
tl_status tl_kv_alloc(tl_kv_pool *p, uint32_t n, uint32_t *ids);

/* Adds a holder to a block that has one. For any other block (free, cached, out
 * of range), and at UINT32_MAX holders, it sets the slot and changes nothing: a
 * block nobody holds comes back through tl_kv_alloc or tl_kv_lookup only. */
void tl_kv_ref(tl_kv_pool *p, uint32_t id);

/* Drops a holder. At the last one a registered block becomes cached, as the most
 * recently used; any other becomes free.
 * Returns: TL_OK
 *          TL_EINVAL  id is out of range or nobody holds it; nothing changes */
tl_status tl_kv_unref(tl_kv_pool *p, uint32_t id);

/* Makes a block safe to write for one of its holders (copy on write). With one
 * holder the block itself is the answer. With more, the caller's share moves to a
 * new block: the contents (all bytes, also past the fill) and the fill are copied,
 * the hash is not. The new block is taken as tl_kv_alloc takes one.
 * A registered block's contents are published: copy it (see tl_kv_register)
 * instead of writing to it, even as its only holder.
 * Out: out  the id to write to; untouched on failure
 * Returns: TL_OK
 *          TL_EINVAL  nobody holds the block, or out is NULL
 *          TL_EFULL   a copy is needed and no block is free or cached; nothing
 *                     changes */
tl_status tl_kv_cow(tl_kv_pool *p, uint32_t id, uint32_t *out);

/* States that the first n_tokens positions of a block hold data.
 * Returns: TL_OK
 *          TL_EINVAL  nobody holds the block, it is registered, or n_tokens is
 *                     above block_tokens; nothing changes */
tl_status tl_kv_set_fill(tl_kv_pool *p, uint32_t id, uint32_t n_tokens);

/* Returns: the block's fill; 0 for a free block, for an id out of range and for a
 * NULL pool. */
uint32_t tl_kv_fill(const tl_kv_pool *p, uint32_t id);

/* Returns: the K (is_v 0) or V (any other is_v) values of one layer of a block,
 * f16 [n_kv_heads][block_tokens][head_dim], in place;
 *          NULL with the slot set when p is NULL or id or layer is out of range.
 * Every block in range has an address, held or not, and keeps it for the pool's
 * life. The bytes are the caller's to read and write only while it holds the block
 * (builds with AddressSanitizer report an access to a block given up; of a block whose
 * size is no multiple of 8 they may miss the ends). */
void *tl_kv_block_ptr(const tl_kv_pool *p, uint32_t id, uint32_t layer, int is_v);

/* Returns: bytes of one block, n_layers * 2 * n_kv_heads * block_tokens * head_dim
 * * 2; 0 for NULL. */
size_t tl_kv_block_bytes(const tl_kv_pool *p);

/* ---- the prefix index ---------------------------------------------------- */

/* Names a full block by its tokens and everything before them: FNV-1a 64 over the
 * 8 little-endian bytes of parent, then 4 little-endian bytes a token.
 * In: parent  hash of the block before, 0 for a sequence's first block (any other
 *             value there opens a key space of its own)
 *     toks    n token ids; NULL only with n 0
 * Returns: the hash, never 0 for n tokens that are there (a 0 becomes 1, as 0 says
 *          "no hash"); 0 with the slot set for NULL toks with n > 0. */
uint64_t tl_kv_block_hash(uint64_t parent, const uint32_t *toks, uint32_t n);

/* Puts a full block into the prefix index. From here on its contents are shared
 * and must not change, and its fill cannot. It leaves the index when it is evicted.
 * Returns: TL_OK      also when it is registered under this hash already
 *          TL_EINVAL  nobody holds the block, it is not full, hash is 0, or it is
 *                     registered under another hash
 *          TL_EBUSY   another block holds the hash; this one stays private
 *          TL_ENOMEM  from a tl_map that has to grow; never with this library's
 * On failure nothing changes. */
tl_status tl_kv_register(tl_kv_pool *p, uint32_t id, uint64_t hash);

/* Finds the block registered under hash and takes a reference; a cached block is
 * used again. The tokens are not compared: the hash is the name.
 * Out: id  the block; untouched on anything but TL_OK
 * Returns: TL_OK
 *          TL_ENOTFOUND  a miss (hash 0 always is one): an answer, which leaves
 *                        the error slot alone
 *          TL_EINVAL     an argument is NULL, or the block has UINT32_MAX holders */
tl_status tl_kv_lookup(tl_kv_pool *p, uint64_t hash, uint32_t *id);

/* ---- the envelope -------------------------------------------------------- */

/* Returns: bytes of an envelope of n blocks, 32 + n * (12 + block bytes); 0 for a
 * NULL pool; SIZE_MAX, with the slot set, where size_t cannot hold it. */
size_t tl_kv_export_bytes(const tl_kv_pool *p, uint32_t n);

/* Writes the envelope of n blocks, in the order of ids; the same id may stand
 * twice. Nothing is written past the envelope.
 * In:  ids      blocks that are held and have a fill of at least 1; NULL only with
 *               n 0 (the envelope of no blocks, 32 bytes)
 *      cap      bytes of room at buf, which may have any alignment, but no byte in common
 *               with the pool, ids or written
 * Out: buf      the envelope; untouched on failure. NULL asks for the size
 *      written  its size; with TL_EFULL the size needed; otherwise untouched
 * Returns: TL_OK
 *          TL_EINVAL  p or written is NULL, ids is NULL with n > 0, a block is not
 *                     held or is empty, or the size does not fit in size_t
 *          TL_EFULL   buf is NULL or cap is too small */
tl_status tl_kv_export(const tl_kv_pool *p, const uint32_t *ids, uint32_t n,
                       void *buf, size_t cap, size_t *written);

/* Takes an envelope's blocks into the pool: the caller holds each, filled, and
 * registered under its hash unless that hash is held already, by a block of the
 * pool or an earlier record (then the caller's block is a private copy). All blocks
 * are taken first, as tl_kv_alloc takes them, then registered. (Over a tl_map that has to
 * grow and cannot, which this library's never does, a copy stays private too.)
 * In:  buf      len bytes of any alignment, none in common with the pool or ids_out
 * Out: ids_out  one id a record, in order: room for the u32 at offset 8 of buf
 * Returns: TL_OK
 *          TL_EINVAL  p or buf is NULL, or (after all checks of the envelope)
 *                     ids_out is NULL with records
 *          TL_EFORMAT rules 1, 2, 3 and 5
 *          TL_ESHAPE  rule 4
 *          TL_EFULL   fewer blocks are free or cached than the envelope has
 * The checks run in this order: 32 bytes and the magic, version and dtype, the
 * length, the CRC, the dimensions, the records, ids_out, room. On failure nothing
 * is taken and nothing changes, ids_out included. */
tl_status tl_kv_import(tl_kv_pool *p, const void *buf, size_t len, uint32_t *ids_out);

/* CRC-32C (Castagnoli): reflected polynomial 0x82F63B78, initial value and final
 * XOR 0xFFFFFFFF; the check value of "123456789" is 0xE3069283.
 * In: crc  the result for the bytes before, 0 to start
 * Returns: the result for all bytes so far; crc itself for n 0 (or NULL data,
 *          which with n > 0 sets the slot). */
uint32_t tl_crc32c(const void *data, size_t n, uint32_t crc);

#ifdef __cplusplus
}
#endif

#endif
