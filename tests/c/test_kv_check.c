/* test_kv_check.c - the integrity check itself: each invariant is broken by hand, and
 * the check has to say which. */

#include "kv_pool_impl.h"
#include "pools.h"

/* N 6, one block in each situation: 0 held and private, 1 held and registered,
 * 2 and 3 cached (2 is older), 4 and 5 free. */
static tl_kv_pool *sample(void)
{
    tl_kv_pool *p = new_pool(worked_shape(6));
    take(p);
    for (uint64_t hash = 101; hash <= 103; hash++) take_registered(p, hash);
    drop(p, 2);
    drop(p, 3);
    CHECK(tl_kv_check(p) == NULL);
    return p;
}

static uint32_t *free_id(tl_kv_pool *p, size_t i) { return (uint32_t *)p->free_ids.data + i; }

/* Breaks the pool by a statement, demands the message, and undoes it by another. */
#define CHECK_NOTICED(broken, message, repaired) \
    do {                                         \
        broken;                                  \
        CHECK_STR(tl_kv_check(p), message);      \
        repaired;                                \
        CHECK(tl_kv_check(p) == NULL);           \
    } while (0)

/* An intact pool passes, in every state a block can have; NULL does not. */
CASE(an_intact_pool_passes)
{
    CHECK_STR(tl_kv_check(NULL), "the pool is NULL");
    end_pool(sample());
}

/* Wrong sizes, and a slab at an odd address, are named. */
CASE(broken_sizes_are_named)
{
    tl_kv_pool *p = sample();
    CHECK_NOTICED(p->block_bytes++, "sizes: block_bytes is not what the shape gives", p->block_bytes--);
    CHECK_NOTICED(p->slab++, "sizes: the slab is not 64-byte aligned", p->slab--);
    end_pool(p);
}

/* A free list with a foreign id, an id twice, or a wrong length is named. */
CASE(a_broken_free_list_is_named)
{
    tl_kv_pool *p = sample();
    uint32_t first = *free_id(p, 0);
    CHECK_EQ(p->free_ids.len, 2);
    CHECK_NOTICED(*free_id(p, 0) = 6, "free list: an id is out of range", *free_id(p, 0) = first);
    CHECK_NOTICED(*free_id(p, 0) = *free_id(p, 1), "free list: an id stands twice", *free_id(p, 0) = first);
    CHECK_NOTICED(p->free_ids.len = 7, "free list: it is longer than the pool", p->free_ids.len = 2);
    CHECK_NOTICED(p->free_ids.elem = 8, "free list: an element is not a u32", p->free_ids.elem = 4);
    size_t cap = p->free_ids.cap;
    CHECK_NOTICED(p->free_ids.cap = 5, "free list: it has no room for all blocks", p->free_ids.cap = cap);
    end_pool(p);
}

/* A list of cached blocks with a wrong link, a block twice, or a wrong length is named. */
CASE(a_broken_lru_is_named)
{
    tl_kv_pool *p = sample();
    tl_list_node *older = &p->blocks[2].lru, *newer = &p->blocks[3].lru, *head = &p->lru.head, foreign = {head, head};
    CHECK_NOTICED(older->next = &foreign, "LRU: a link leads out of the pool", older->next = newer);
    CHECK_NOTICED(older->next = NULL, "LRU: a link leads out of the pool", older->next = newer);
    CHECK_NOTICED(newer->next = older, "LRU: a block stands twice", newer->next = head);
    CHECK_NOTICED(newer->prev = head, "LRU: a link back is wrong", newer->prev = older);
    CHECK_NOTICED(head->prev = older, "LRU: a link back is wrong", head->prev = newer);
    CHECK_NOTICED(p->lru.len = 1, "LRU: its length is wrong", p->lru.len = 2);
    CHECK_NOTICED(p->blocks[0].lru.next = head, "LRU: a block outside has a link", p->blocks[0].lru.next = NULL);
    CHECK_NOTICED(p->blocks[4].lru.prev = head, "LRU: a block outside has a link", p->blocks[4].lru.prev = NULL);
    end_pool(p);
}

/* A block in two states, or in none, is named. */
CASE(a_block_in_no_single_state_is_named)
{
    tl_kv_pool *p = sample();
    uint32_t first = *free_id(p, 0);
    CHECK_NOTICED(p->blocks[2].ref = 1, "states: a block is used and cached", p->blocks[2].ref = 0);
    CHECK_NOTICED(p->blocks[4].ref = 1, "states: a block is used and free", p->blocks[4].ref = 0);
    CHECK_NOTICED(*free_id(p, 0) = 2, "states: a block is free and cached", *free_id(p, 0) = first);
    CHECK_NOTICED(p->blocks[0].ref = 0, "states: a block is in none", p->blocks[0].ref = 1);
    CHECK_NOTICED(p->free_ids.len = 1, "states: a block is in none", p->free_ids.len = 2);
    end_pool(p);
}

/* A record whose fill or hash does not go with its state is named. */
CASE(a_broken_record_is_named)
{
    tl_kv_pool *p = sample();
    CHECK_NOTICED(p->blocks[0].fill = 3, "records: a fill is above block_tokens", p->blocks[0].fill = 0);
    CHECK_NOTICED(p->blocks[1].fill = 1, "records: a registered block is not full", p->blocks[1].fill = 2);
    CHECK_NOTICED((p->blocks[4].hash = 9, p->blocks[4].fill = 2), "records: a free block is registered",
                  (p->blocks[4].hash = 0, p->blocks[4].fill = 0));
    CHECK_NOTICED(p->blocks[4].fill = 1, "records: a free block has a fill", p->blocks[4].fill = 0);
    CHECK_NOTICED(p->blocks[2].hash = 0, "records: a cached block is not registered", p->blocks[2].hash = 102);
    end_pool(p);
}

/* An index that misses a block, leads to another or knows one too many is named. */
CASE(a_broken_index_is_named)
{
    tl_kv_pool *p = sample();
    CHECK_NOTICED(tl_map_del(p->index, 102), "index: a registered block is missing", tl_map_put(p->index, 102, 2));
    CHECK_NOTICED(tl_map_put(p->index, 102, 3), "index: a hash leads to another block", tl_map_put(p->index, 102, 2));
    CHECK_NOTICED(tl_map_put(p->index, 7, 0), "index: it has a hash that no block is registered under",
                  tl_map_del(p->index, 7));
    CHECK_NOTICED(p->blocks[1].hash = 102, "index: a hash leads to another block", p->blocks[1].hash = 101);
    end_pool(p);
}

/* The digest tells apart all that a refused call could have changed. */
CASE(the_digest_sees_every_change)
{
    tl_kv_pool *p = sample();
    uint64_t intact = tl_kv_digest(p);
#define CHECK_SEEN(changed, restored)       \
    do {                                    \
        changed;                            \
        CHECK(tl_kv_digest(p) != intact);   \
        restored;                           \
        CHECK_EQ(tl_kv_digest(p), intact);  \
    } while (0)
    CHECK_SEEN(p->evictions++, p->evictions--);
    CHECK_SEEN(p->blocks[0].ref++, p->blocks[0].ref--);
    CHECK_SEEN(p->blocks[0].fill++, p->blocks[0].fill--);
    CHECK_SEEN(p->blocks[0].hash++, p->blocks[0].hash--);
    CHECK_SEEN(p->free_ids.len--, p->free_ids.len++);
    CHECK_SEEN((*free_id(p, 0) ^= 1, *free_id(p, 1) ^= 1), /* 5 4 is 4 5 */
               (*free_id(p, 0) ^= 1, *free_id(p, 1) ^= 1));
    CHECK_SEEN(tl_lru_touch(&p->lru, &p->blocks[2].lru), /* 2 3 is 3 2 */
               tl_lru_touch(&p->lru, &p->blocks[3].lru));
    CHECK_SEEN(tl_map_put(p->index, 102, 3), tl_map_put(p->index, 102, 2));
    CHECK_SEEN(tl_map_put(p->index, 7, 0), tl_map_del(p->index, 7));
    CHECK_SEEN(p->cfg.head_dim++, p->cfg.head_dim--);

    for (uint32_t id = 4; id < 6; id++) CHECK_EQ(take(p), id);
    put_values(p, 0, 0), put_values(p, 1, 1), put_values(p, 4, 4), put_values(p, 5, 5);
    uint32_t cached[2] = {find(p, 102), find(p, 103)};
    for (size_t i = 0; i < 2; i++) put_values(p, cached[i], cached[i]), drop(p, cached[i]);
    uint64_t slab = tl_kv_slab_digest(p);
    values_of(p, 5)[n_values(p) - 1] ^= 1;
    CHECK(tl_kv_slab_digest(p) != slab);
    values_of(p, 5)[n_values(p) - 1] ^= 1;
    drop(p, 5);
    CHECK_EQ(tl_kv_slab_digest(p), slab);
    end_pool(p);
}

CASES(an_intact_pool_passes, broken_sizes_are_named, a_broken_free_list_is_named, a_broken_lru_is_named,
      a_block_in_no_single_state_is_named, a_broken_record_is_named, a_broken_index_is_named,
      the_digest_sees_every_change)
