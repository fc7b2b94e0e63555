/* abi.c - status names, the error slot, the allocator hook (tinyllm/abi.h). */

/* posix_memalign: any size at any alignment, so that AddressSanitizer sees the
 * exact end of an allocation, which aligned_alloc would round up. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200112L
#endif

#include "tinyllm/abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t tl_abi_version(void) { return TL_ABI_VERSION; }

/* ---- status ------------------------------------------------------------- */

const char *tl_status_str(tl_status status)
{
    static const char *const names[] = {
        "TL_OK",     "TL_EINVAL",    "TL_ENOMEM",  "TL_ESHAPE", "TL_EDTYPE",       "TL_EFULL",
        "TL_ENOTFOUND", "TL_EFORMAT", "TL_EBUSY", "TL_EUNSUPPORTED", "TL_EIO",
    };
    const tl_status n = sizeof names / sizeof names[0];
    return 0 <= status && status < n ? names[status] : "TL_UNKNOWN";
}

/* ---- the error slot ------------------------------------------------------ */

static _Thread_local char last_error[TL_LAST_ERROR_CAP];

const char *tl_last_error(void) { return last_error; }

void tl_set_last_error(const char *message)
{
    size_t n = 0;
    if (message)
        while (n < TL_LAST_ERROR_CAP - 1 && message[n]) n++;
    if (n) memmove(last_error, message, n); /* message may lie in the slot */
    last_error[n] = '\0';
}

/* ---- the allocator hook -------------------------------------------------- */

static void *heap_alloc(void *user, size_t n, size_t align)
{
    void *p;
    (void)user;
    if (align < sizeof(void *)) align = sizeof(void *); /* posix_memalign's least */
    return posix_memalign(&p, align, n) == 0 ? p : NULL;
}

static void heap_free(void *user, void *p)
{
    (void)user;
    free(p);
}

static const tl_allocator heap = {heap_alloc, heap_free, NULL};
static tl_allocator hook = {heap_alloc, heap_free, NULL};

tl_status tl_set_allocator(const tl_allocator *allocator)
{
    if (!allocator) allocator = &heap;
    if (!allocator->alloc || !allocator->free) {
        tl_set_last_error("tl_set_allocator: alloc and free must not be NULL");
        return TL_EINVAL;
    }
    hook = *allocator;
    return TL_OK;
}

void *tl_alloc(size_t n, size_t align)
{
    char message[TL_LAST_ERROR_CAP];
    if (n == 0) {
        tl_set_last_error("tl_alloc: 0 bytes asked for");
        return NULL;
    }
    if (align == 0 || (align & (align - 1)) != 0) {
        snprintf(message, sizeof message, "tl_alloc: alignment %zu is no power of two", align);
        tl_set_last_error(message);
        return NULL;
    }
    void *p = hook.alloc(hook.user, n, align);
    if (!p) {
        snprintf(message, sizeof message, "tl_alloc: the allocator has no %zu bytes", n);
        tl_set_last_error(message);
    }
    return p;
}

void tl_free(void *p)
{
    if (p) hook.free(hook.user, p);
}
