/* tinyllm/abi.h - what every call of the library shares.
 *
 * Rules that hold for the whole library:
 *
 *  - A function that fails first writes a message into the calling thread's
 *    error slot. The message begins with the function's own name and says why.
 *    Then it returns a positive status (or NULL). A call that succeeds leaves
 *    the slot alone.
 *  - Memory comes from tl_alloc alone, and only constructors (*_create) and the
 *    growth functions of tl_vec and tl_map ask for it. Every *_destroy takes NULL.
 *  - Enumerations are int32_t with named constants, so that their size is fixed.
 *  - An object with state is not thread-safe: the caller serializes all calls on
 *    one object. Calls on different objects may run at the same time.
 */
#ifndef TINYLLM_ABI_H
#define TINYLLM_ABI_H

#include <stddef.h>
#include <stdint.h>

/* An assumption about the platform, checked by the compiler, with its reason. */
#ifdef __cplusplus
#define TL_STATIC_ASSERT(condition, reason) static_assert(condition, reason)
#else
#define TL_STATIC_ASSERT(condition, reason) _Static_assert(condition, reason)
#endif

/* The same for the layout of a struct that holds pointers: its figures are those
 * of 8-byte pointers, and nothing is claimed where pointers have another size. */
#define TL_STATIC_ASSERT_PTR64(condition, reason) \
    TL_STATIC_ASSERT(sizeof(void *) != 8 || (condition), reason)

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; a change that breaks a caller raises it. */
#define TL_ABI_VERSION 1

/* Returns: TL_ABI_VERSION of the library that is linked, which a caller may
 * compare with the TL_ABI_VERSION it was compiled with. */
uint32_t tl_abi_version(void);

/* ---- status ------------------------------------------------------------- */

typedef int32_t tl_status;

#define TL_OK           ((tl_status)0)
#define TL_EINVAL       ((tl_status)1)  /* an argument no valid call has */
#define TL_ENOMEM       ((tl_status)2)  /* the allocator said no */
#define TL_ESHAPE       ((tl_status)3)  /* dimensions that do not agree */
#define TL_EDTYPE       ((tl_status)4)  /* an element type that does not agree */
#define TL_EFULL        ((tl_status)5)  /* no room; the same call may work later */
#define TL_ENOTFOUND    ((tl_status)6)  /* a miss: an answer, not a failure */
#define TL_EFORMAT      ((tl_status)7)  /* bytes that are not what they claim */
#define TL_EBUSY        ((tl_status)8)  /* someone else holds it */
#define TL_EUNSUPPORTED ((tl_status)9)  /* valid, but not offered by this build */
#define TL_EIO          ((tl_status)10) /* input or output failed */

/* Returns: the constant's own name ("TL_EINVAL"), or "TL_UNKNOWN" for a value
 * that is not in the list. Never NULL; static storage. */
const char *tl_status_str(tl_status status);

/* ---- the error slot ------------------------------------------------------ */

/* Bytes of the slot, the terminating NUL among them. */
#define TL_LAST_ERROR_CAP 256

/* Returns: the calling thread's latest message, "" before any. Never NULL. The
 * text stays valid until the thread's next failing call. */
const char *tl_last_error(void);

/* Sets the calling thread's message.
 * In: message  copied, cut after TL_LAST_ERROR_CAP - 1 bytes; NULL means "".
 *              May be (part of) the slot itself. */
void tl_set_last_error(const char *message);

/* ---- element types ------------------------------------------------------- */

typedef int32_t tl_dtype;

#define TL_F32     ((tl_dtype)0)
#define TL_F16     ((tl_dtype)1)
#define TL_BF16    ((tl_dtype)2)
#define TL_F8_E4M3 ((tl_dtype)3)
#define TL_F8_E5M2 ((tl_dtype)4)
#define TL_I8      ((tl_dtype)5)
#define TL_U8      ((tl_dtype)6)
#define TL_I32     ((tl_dtype)7)
#define TL_Q4_G    ((tl_dtype)8)

/* ---- the allocator hook -------------------------------------------------- */

/* Where memory comes from.
 *   alloc  returns n bytes (not always a multiple of align) aligned to align (a power
 *          of two), or NULL
 *   free   takes back what alloc returned; never called with NULL
 *   user   handed to both, for the hook's own use */
typedef struct tl_allocator {
    void *(*alloc)(void *user, size_t n, size_t align);
    void (*free)(void *user, void *p);
    void *user;
} tl_allocator;

TL_STATIC_ASSERT_PTR64(sizeof(tl_allocator) == 24, "callers build it by hand, also from other languages");
TL_STATIC_ASSERT_PTR64(offsetof(tl_allocator, alloc) == 0, "part of the binary interface");
TL_STATIC_ASSERT_PTR64(offsetof(tl_allocator, free) == 8, "part of the binary interface");
TL_STATIC_ASSERT_PTR64(offsetof(tl_allocator, user) == 16, "part of the binary interface");

/* Installs a copy of *allocator for the whole process, or the default (the C
 * library's heap) for NULL. Call it while no object of the library lives: what
 * one allocator gave, another must not take back.
 * Returns: TL_OK
 *          TL_EINVAL  alloc or free is NULL; the hook stays what it was */
tl_status tl_set_allocator(const tl_allocator *allocator);

/* Asks the hook for memory.
 * Returns: n bytes aligned to align, uninitialized;
 *          NULL with the slot set when n is 0, when align is no power of two, or
 *          when the hook fails. */
void *tl_alloc(size_t n, size_t align);

/* Gives memory from tl_alloc back to the hook. NULL does nothing. */
void tl_free(void *p);

#ifdef __cplusplus
}
#endif

#endif
