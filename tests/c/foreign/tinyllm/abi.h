#ifndef FOREIGN_ABI_H
#define FOREIGN_ABI_H
#include <stddef.h>
#include <stdint.h>
#define TL_ABI_VERSION 1
#define TL_LAST_ERROR_CAP 256
typedef int32_t tl_status, tl_dtype;
enum { TL_OK, TL_EINVAL, TL_ENOMEM, TL_ESHAPE, TL_EDTYPE, TL_EFULL, TL_ENOTFOUND, TL_EFORMAT, TL_EBUSY,
       TL_EUNSUPPORTED, TL_EIO };
enum { TL_F32, TL_F16, TL_BF16, TL_F8_E4M3, TL_F8_E5M2, TL_I8, TL_U8, TL_I32, TL_Q4_G };
typedef struct {
    void *(*alloc)(void *, size_t, size_t);
    void (*free)(void *, void *);
    void *user;
} tl_allocator;
uint32_t tl_abi_version(void);
const char *tl_status_str(tl_status);
const char *tl_last_error(void);
void tl_set_last_error(const char *);
tl_status tl_set_allocator(const tl_allocator *);
void *tl_alloc(size_t, size_t);
void tl_free(void *);
#endif
