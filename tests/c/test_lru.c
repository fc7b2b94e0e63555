/* tl_lru, the intrusive list from oldest to newest. */
#include "kit.h"

typedef struct {
    uint64_t before;
    tl_list_node node;
    int id;
} item;

static item *item_of(tl_list_node *n) { return TL_CONTAINER_OF(n, item, node); }

/* The ids from oldest to newest, as a string of digits; both directions must agree. */
static const char *order(const tl_lru *l)
{
    static char text[32];
    size_t n = 0;
    for (tl_list_node *x = l->head.next; x != &l->head; x = x->next) text[n++] = (char)('0' + item_of(x)->id);
    text[n] = '\0';
    CHECK_EQ(l->len, n);
    for (tl_list_node *x = l->head.prev; x != &l->head; x = x->prev) CHECK_EQ(item_of(x)->id, text[--n] - '0');
    CHECK_EQ(n, 0);
    return text;
}

/* init makes an empty circle. */
CASE(init_is_empty)
{
    tl_lru l;
    memset(&l, 0xEE, sizeof l);
    tl_lru_init(&l);
    CHECK_EQ(l.len, 0);
    CHECK(l.head.next == &l.head);
    CHECK(l.head.prev == &l.head);
    CHECK(!tl_lru_pop_oldest(&l));
    CHECK_EQ(l.len, 0);
}

/* touch inserts as the newest: head.next is the oldest, head.prev the newest. */
CASE(touch_inserts_as_newest)
{
    tl_lru l;
    item a = {.id = 1}, b = {.id = 2}, c = {.id = 3};
    tl_lru_init(&l);
    tl_lru_touch(&l, &a.node);
    CHECK_STR(order(&l), "1");
    tl_lru_touch(&l, &b.node);
    tl_lru_touch(&l, &c.node);
    CHECK_STR(order(&l), "123");
    CHECK(l.head.next == &a.node);
    CHECK(l.head.prev == &c.node);
}

/* touch moves a node that is in the list already. */
CASE(touch_moves_to_newest)
{
    tl_lru l;
    item a = {.id = 1}, b = {.id = 2}, c = {.id = 3};
    tl_lru_init(&l);
    tl_lru_touch(&l, &a.node);
    tl_lru_touch(&l, &a.node);
    CHECK_STR(order(&l), "1");
    tl_lru_touch(&l, &b.node);
    tl_lru_touch(&l, &c.node);
    tl_lru_touch(&l, &a.node);
    CHECK_STR(order(&l), "231");
    tl_lru_touch(&l, &c.node);
    CHECK_STR(order(&l), "213");
    tl_lru_touch(&l, &c.node);
    CHECK_STR(order(&l), "213");
}

/* remove takes out the oldest, a middle one and the newest; links become NULL. */
CASE(remove_from_anywhere)
{
    tl_lru l;
    item x[5] = {{.id = 0}, {.id = 1}, {.id = 2}, {.id = 3}, {.id = 4}};
    tl_lru_init(&l);
    for (int i = 0; i < 5; i++) tl_lru_touch(&l, &x[i].node);
    tl_lru_remove(&l, &x[2].node);
    CHECK_STR(order(&l), "0134");
    tl_lru_remove(&l, &x[0].node);
    CHECK_STR(order(&l), "134");
    tl_lru_remove(&l, &x[4].node);
    CHECK_STR(order(&l), "13");
    CHECK(!x[2].node.prev && !x[2].node.next);
    tl_lru_remove(&l, &x[1].node);
    tl_lru_remove(&l, &x[3].node);
    CHECK_STR(order(&l), "");
    tl_lru_touch(&l, &x[2].node);
    CHECK_STR(order(&l), "2");
}

/* A node that is in no list is left alone. */
CASE(remove_of_an_unlisted_node)
{
    tl_lru l;
    item a = {.id = 1}, b = {.id = 2};
    tl_lru_init(&l);
    tl_lru_touch(&l, &a.node);
    tl_lru_remove(&l, &b.node);
    CHECK_STR(order(&l), "1");
    tl_lru_remove(&l, &a.node);
    tl_lru_remove(&l, &a.node);
    CHECK_STR(order(&l), "");
    CHECK(!b.node.prev && !b.node.next);
}

/* pop gives the oldest first, out of the list, and NULL at the end. */
CASE(pop_gives_the_oldest)
{
    tl_lru l;
    item a = {.id = 1}, b = {.id = 2}, c = {.id = 3};
    tl_lru_init(&l);
    tl_lru_touch(&l, &a.node);
    tl_lru_touch(&l, &b.node);
    tl_lru_touch(&l, &c.node);
    tl_lru_touch(&l, &a.node);
    CHECK(tl_lru_pop_oldest(&l) == &b.node);
    CHECK(!b.node.prev && !b.node.next);
    CHECK(tl_lru_pop_oldest(&l) == &c.node);
    CHECK(tl_lru_pop_oldest(&l) == &a.node);
    CHECK(!tl_lru_pop_oldest(&l));
    CHECK_STR(order(&l), "");
}

/* NULL does nothing in any call. */
CASE(null_does_nothing)
{
    tl_lru l;
    item a = {.id = 1};
    tl_lru_init(&l);
    tl_lru_touch(&l, &a.node);
    tl_lru_init(NULL);
    tl_lru_touch(NULL, &a.node);
    tl_lru_touch(&l, NULL);
    tl_lru_remove(NULL, &a.node);
    tl_lru_remove(&l, NULL);
    CHECK(!tl_lru_pop_oldest(NULL));
    CHECK_STR(order(&l), "1");
}

/* TL_CONTAINER_OF finds the struct around a node that does not stand first. */
CASE(container_of)
{
    item a = {.id = 5};
    CHECK(TL_CONTAINER_OF(&a.node, item, node) == &a);
    CHECK_EQ(TL_CONTAINER_OF(&a.node, item, node)->id, 5);
}

/* No call asks for memory. */
CASE(nothing_allocates)
{
    tl_lru l;
    item x[100] = {{.id = 0}};
    tl_lru_init(&l);
    for (int i = 0; i < 100; i++) tl_lru_touch(&l, &x[i].node);
    for (int i = 0; i < 100; i += 3) tl_lru_remove(&l, &x[i].node);
    while (tl_lru_pop_oldest(&l)) {
    }
    CHECK_EQ(kit_allocs(), 0);
}

CASES(init_is_empty, touch_inserts_as_newest, touch_moves_to_newest, remove_from_anywhere,
      remove_of_an_unlisted_node, pop_gives_the_oldest, null_does_nothing, container_of, nothing_allocates)
