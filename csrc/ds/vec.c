/* vec.c - a growable array (tl_vec of tinyllm/ds.h). */

#include "tinyllm/ds.h"

#include <string.h>

static tl_status fail(tl_status status, const char *message)
{
    tl_set_last_error(message);
    return status;
}

/* Copies the elements to a new home of cap elements. Returns NULL where there is no
 * memory; the caller swaps the homes with adopt(). */
static void *new_home(const tl_vec *v, size_t cap)
{
    void *data = tl_alloc(cap * v->elem, _Alignof(max_align_t));
    if (data && v->len) memcpy(data, v->data, v->len * v->elem);
    return data;
}

static void adopt(tl_vec *v, void *data, size_t cap)
{
    tl_free(v->data);
    v->data = data;
    v->cap = cap;
}

tl_status tl_vec_init(tl_vec *v, size_t elem)
{
    if (!v) return fail(TL_EINVAL, "tl_vec_init: v is NULL");
    if (elem == 0) return fail(TL_EINVAL, "tl_vec_init: elem is 0");
    *v = (tl_vec){.elem = elem};
    return TL_OK;
}

tl_status tl_vec_reserve(tl_vec *v, size_t cap_min)
{
    if (!v) return fail(TL_EINVAL, "tl_vec_reserve: v is NULL");
    if (v->elem == 0) return fail(TL_EINVAL, "tl_vec_reserve: v is not initialized (elem is 0)");
    if (cap_min <= v->cap) return TL_OK;
    if (cap_min > SIZE_MAX / v->elem) return fail(TL_EINVAL, "tl_vec_reserve: cap_min * elem overflows");

    void *data = new_home(v, cap_min);
    if (!data) return fail(TL_ENOMEM, "tl_vec_reserve: out of memory");
    adopt(v, data, cap_min);
    return TL_OK;
}

tl_status tl_vec_push(tl_vec *v, const void *x)
{
    if (!v) return fail(TL_EINVAL, "tl_vec_push: v is NULL");
    if (!x) return fail(TL_EINVAL, "tl_vec_push: x is NULL");
    if (v->elem == 0) return fail(TL_EINVAL, "tl_vec_push: v is not initialized (elem is 0)");

    size_t cap = v->cap;
    unsigned char *data = v->data;
    if (v->len == cap) {
        cap = cap ? cap * 2 : 1;
        if (cap > SIZE_MAX / v->elem || cap <= v->cap)
            return fail(TL_EINVAL, "tl_vec_push: the byte count overflows");
        data = new_home(v, cap);
        if (!data) return fail(TL_ENOMEM, "tl_vec_push: out of memory");
    }
    memcpy(data + v->len * v->elem, x, v->elem); /* before the old home goes: x may lie in it */
    if (data != v->data) adopt(v, data, cap);
    v->len++;
    return TL_OK;
}

void *tl_vec_at(const tl_vec *v, size_t i)
{
    if (!v || i >= v->len) {
        tl_set_last_error(v ? "tl_vec_at: the index is past the end" : "tl_vec_at: v is NULL");
        return NULL;
    }
    return (unsigned char *)v->data + i * v->elem;
}

void tl_vec_free(tl_vec *v)
{
    if (!v) return;
    tl_free(v->data);
    *v = (tl_vec){.elem = v->elem};
}
