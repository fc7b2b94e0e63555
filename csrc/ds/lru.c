/* lru.c - an intrusive list, oldest to newest (tl_lru of tinyllm/ds.h). */

#include "tinyllm/ds.h"

void tl_lru_init(tl_lru *l)
{
    if (!l) return;
    l->head.prev = l->head.next = &l->head;
    l->len = 0;
}

void tl_lru_touch(tl_lru *l, tl_list_node *n)
{
    if (!l || !n) return;
    tl_lru_remove(l, n);
    n->prev = l->head.prev;
    n->next = &l->head;
    n->prev->next = n;
    l->head.prev = n;
    l->len++;
}

void tl_lru_remove(tl_lru *l, tl_list_node *n)
{
    if (!l || !n || !n->next) return;
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->prev = n->next = NULL;
    l->len--;
}

tl_list_node *tl_lru_pop_oldest(tl_lru *l)
{
    if (!l || l->len == 0) return NULL;
    tl_list_node *oldest = l->head.next;
    tl_lru_remove(l, oldest);
    return oldest;
}
