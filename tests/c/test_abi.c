/* Status names, the error slot, element types, the allocator hook; and the figures
 * of the binary interface: constants, sizes, offsets. */
#include "kit.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- version, statuses, element types ------------------------------------ */

/* The linked library answers the version of the header, 1. */
CASE(version_is_1)
{
    CHECK_EQ(TL_ABI_VERSION, 1);
    CHECK_EQ(tl_abi_version(), 1);
}

/* Each status has its number, and its own name as a string. */
CASE(status_values_and_names)
{
    static const struct {
        tl_status status;
        int value;
        const char *name;
    } all[] = {
        {TL_OK, 0, "TL_OK"},
        {TL_EINVAL, 1, "TL_EINVAL"},
        {TL_ENOMEM, 2, "TL_ENOMEM"},
        {TL_ESHAPE, 3, "TL_ESHAPE"},
        {TL_EDTYPE, 4, "TL_EDTYPE"},
        {TL_EFULL, 5, "TL_EFULL"},
        {TL_ENOTFOUND, 6, "TL_ENOTFOUND"},
        {TL_EFORMAT, 7, "TL_EFORMAT"},
        {TL_EBUSY, 8, "TL_EBUSY"},
        {TL_EUNSUPPORTED, 9, "TL_EUNSUPPORTED"},
        {TL_EIO, 10, "TL_EIO"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        CHECK_EQ(all[i].status, all[i].value);
        CHECK_STR(tl_status_str(all[i].status), all[i].name);
    }
}

/* Any other number is TL_UNKNOWN. */
CASE(other_statuses_are_unknown)
{
    CHECK_STR(tl_status_str(11), "TL_UNKNOWN");
    CHECK_STR(tl_status_str(-1), "TL_UNKNOWN");
    CHECK_STR(tl_status_str(INT32_MAX), "TL_UNKNOWN");
    CHECK_STR(tl_status_str(INT32_MIN), "TL_UNKNOWN");
}

/* Element types are numbered 0 to 8 in the order of the header. */
CASE(dtype_values)
{
    CHECK_EQ(TL_F32, 0);
    CHECK_EQ(TL_F16, 1);
    CHECK_EQ(TL_BF16, 2);
    CHECK_EQ(TL_F8_E4M3, 3);
    CHECK_EQ(TL_F8_E5M2, 4);
    CHECK_EQ(TL_I8, 5);
    CHECK_EQ(TL_U8, 6);
    CHECK_EQ(TL_I32, 7);
    CHECK_EQ(TL_Q4_G, 8);
}

/* Enumerations are signed and have 4 bytes. */
CASE(enumerations_are_int32)
{
    CHECK_EQ(_Generic((tl_status)0, int32_t: 1, default: 0), 1);
    CHECK_EQ(_Generic((tl_dtype)0, int32_t: 1, default: 0), 1);
}

/* ---- layout -------------------------------------------------------------- */

/* The two structs without pointers have the same layout everywhere. */
CASE(pool_structs_have_their_layout)
{
    CHECK_EQ(sizeof(tl_kv_cfg), 28);
    CHECK_EQ(offsetof(tl_kv_cfg, n_blocks), 0);
    CHECK_EQ(offsetof(tl_kv_cfg, block_tokens), 4);
    CHECK_EQ(offsetof(tl_kv_cfg, n_layers), 8);
    CHECK_EQ(offsetof(tl_kv_cfg, n_kv_heads), 12);
    CHECK_EQ(offsetof(tl_kv_cfg, head_dim), 16);
    CHECK_EQ(offsetof(tl_kv_cfg, dtype), 20);
    CHECK_EQ(offsetof(tl_kv_cfg, format), 24);
    CHECK_EQ(sizeof(tl_kv_stats), 16);
    CHECK_EQ(offsetof(tl_kv_stats, free), 0);
    CHECK_EQ(offsetof(tl_kv_stats, used), 4);
    CHECK_EQ(offsetof(tl_kv_stats, cached), 8);
    CHECK_EQ(offsetof(tl_kv_stats, evictions), 12);
}

/* The others count in words: 8 bytes each on a 64-bit machine. */
CASE(structs_of_pointers_have_their_layout)
{
    const size_t word = sizeof(void *);
    CHECK_EQ(sizeof(tl_allocator), 3 * word);
    CHECK_EQ(offsetof(tl_allocator, alloc), 0);
    CHECK_EQ(offsetof(tl_allocator, free), word);
    CHECK_EQ(offsetof(tl_allocator, user), 2 * word);
    CHECK_EQ(sizeof(tl_vec), 4 * word);
    CHECK_EQ(offsetof(tl_vec, data), 0);
    CHECK_EQ(offsetof(tl_vec, len), word);
    CHECK_EQ(offsetof(tl_vec, cap), 2 * word);
    CHECK_EQ(offsetof(tl_vec, elem), 3 * word);
    CHECK_EQ(sizeof(tl_list_node), 2 * word);
    CHECK_EQ(offsetof(tl_list_node, prev), 0);
    CHECK_EQ(offsetof(tl_list_node, next), word);
    CHECK_EQ(sizeof(tl_lru), 3 * word);
    CHECK_EQ(offsetof(tl_lru, head), 0);
    CHECK_EQ(offsetof(tl_lru, len), 2 * word);
}

/* The constants of the envelope. */
CASE(envelope_constants)
{
    CHECK_EQ(TL_KV_FORMAT_V1, 1);
    CHECK_STR(TL_KV_MAGIC, "TLKV");
    CHECK_EQ(TL_KV_ENVELOPE_HEADER, 28);
}

/* ---- the error slot ------------------------------------------------------ */

/* Before any error the message is "", not NULL: asked in a thread of its own, as
 * this one's slot has been emptied by hand. */
static void *message_of_new_thread(void *out)
{
    const char **first = out;
    *first = tl_last_error();
    return (*first)[0] == '\0' ? out : NULL;
}

CASE(slot_is_empty_before_any_error)
{
    pthread_t thread;
    const char *first = NULL;
    void *was_empty = NULL;
    tl_set_last_error("of the first thread");
    CHECK_EQ(pthread_create(&thread, NULL, message_of_new_thread, &first), 0);
    CHECK_EQ(pthread_join(thread, &was_empty), 0);
    CHECK(was_empty);
}

/* The text is copied: the caller's buffer may change afterwards. */
CASE(slot_keeps_a_copy)
{
    char text[] = "tl_x: first";
    tl_set_last_error(text);
    text[0] = '?';
    CHECK_STR(tl_last_error(), "tl_x: first");
}

/* NULL empties the slot. */
CASE(slot_takes_null_as_empty)
{
    tl_set_last_error("something");
    tl_set_last_error(NULL);
    CHECK_STR(tl_last_error(), "");
}

/* 255 bytes fit, of 256 the last is cut; nothing past them is read. */
CASE(slot_cuts_at_255_bytes)
{
    CHECK_EQ(TL_LAST_ERROR_CAP, 256);
    for (size_t n = 254; n <= 257; n++) {
        char *text = malloc(n + 1), expected[256] = {0};
        memset(text, 'x', n);
        text[n - 1] = 'y';
        text[n] = '\0';
        memcpy(expected, text, n < 255 ? n : 255);
        tl_set_last_error(text);
        free(text);
        CHECK_STR(tl_last_error(), expected);
    }
}

/* A text that is cut needs no end within reach. */
CASE(slot_reads_no_further_than_it_keeps)
{
    char *text = malloc(255), expected[256] = {0};
    memset(text, 'z', 255);
    memset(expected, 'z', 255);
    tl_set_last_error(text);
    free(text);
    CHECK_STR(tl_last_error(), expected);
}

/* The message may be the slot itself or a part of it. */
CASE(slot_may_be_set_from_itself)
{
    tl_set_last_error("tl_x: reason");
    tl_set_last_error(tl_last_error());
    CHECK_STR(tl_last_error(), "tl_x: reason");
    tl_set_last_error(tl_last_error() + 4); /* from where it overlaps with its new place */
    CHECK_STR(tl_last_error(), ": reason");
}

static void *write_own_message(void *unused)
{
    tl_set_last_error("of the second thread");
    return strcmp(tl_last_error(), "of the second thread") == 0 ? unused : NULL;
}

/* Each thread has a slot of its own. */
CASE(slot_belongs_to_a_thread)
{
    pthread_t thread;
    int own = 0;
    void *result = NULL;
    tl_set_last_error("of the first thread");
    CHECK_EQ(pthread_create(&thread, NULL, write_own_message, &own), 0);
    CHECK_EQ(pthread_join(thread, &result), 0);
    CHECK(result == &own);
    CHECK_STR(tl_last_error(), "of the first thread");
}

/* ---- the allocator hook -------------------------------------------------- */

/* A hook that notes what it was asked and hands out one buffer, or nothing. */
typedef struct {
    void *answer, *freed;
    size_t n, align;
    int allocs, frees;
} notes;

static void *noting_alloc(void *user, size_t n, size_t align)
{
    notes *x = user;
    x->allocs++;
    x->n = n;
    x->align = align;
    return x->answer;
}

static void noting_free(void *user, void *p)
{
    notes *x = user;
    x->frees++;
    x->freed = p;
}

/* The hook sees size, alignment and its own pointer, and its answer is handed on. */
CASE(hook_is_asked)
{
    char buffer[8];
    notes seen = {.answer = buffer};
    CHECK_STATUS(tl_set_allocator(&(tl_allocator){noting_alloc, noting_free, &seen}), TL_OK);
    CHECK(tl_alloc(5, 16) == buffer);
    CHECK_EQ(seen.n, 5);
    CHECK_EQ(seen.align, 16);
    tl_free(buffer);
    CHECK_EQ(seen.frees, 1);
    CHECK(seen.freed == buffer);
}

/* A copy is installed: the caller's struct may change afterwards. */
CASE(hook_is_copied)
{
    char buffer[8];
    notes seen = {.answer = buffer};
    tl_allocator mine = {noting_alloc, noting_free, &seen};
    CHECK_STATUS(tl_set_allocator(&mine), TL_OK);
    memset(&mine, 0, sizeof mine);
    CHECK(tl_alloc(1, 1) == buffer);
}

/* Without one of its functions a hook is refused and the old one stays. */
CASE(hook_needs_both_functions)
{
    char buffer[8];
    notes seen = {.answer = buffer};
    CHECK_STATUS(tl_set_allocator(&(tl_allocator){noting_alloc, noting_free, &seen}), TL_OK);
    CHECK_STATUS(tl_set_allocator(&(tl_allocator){NULL, noting_free, NULL}), TL_EINVAL);
    CHECK_ERROR_FROM("tl_set_allocator");
    CHECK_STATUS(tl_set_allocator(&(tl_allocator){noting_alloc, NULL, NULL}), TL_EINVAL);
    CHECK_ERROR_FROM("tl_set_allocator");
    CHECK(tl_alloc(1, 1) == buffer);
    tl_free(buffer);
    CHECK_EQ(seen.allocs, 1);
    CHECK_EQ(seen.frees, 1);
}

/* NULL restores the default, which gives aligned memory to write to. */
CASE(null_restores_the_default_hook)
{
    notes seen = {0};
    CHECK_STATUS(tl_set_allocator(&(tl_allocator){noting_alloc, noting_free, &seen}), TL_OK);
    CHECK_STATUS(tl_set_allocator(NULL), TL_OK);
    for (size_t align = 1; align <= 4096; align *= 2)
        for (size_t n = 1; n <= 200; n += 33) {
            void *p = tl_alloc(n, align);
            CHECK(p);
            CHECK_EQ((uintptr_t)p % align, 0);
            memset(p, 0xFF, n);
            tl_free(p);
        }
    CHECK_EQ(seen.allocs, 0);
    CHECK_EQ(seen.frees, 0);
}

/* The default hook answers a size no machine has with NULL and a message. */
CASE(default_hook_runs_out)
{
    CHECK_STATUS(tl_set_allocator(NULL), TL_OK);
    const size_t much = sizeof(size_t) == 8 ? SIZE_MAX / 2 : SIZE_MAX - 4095; /* a 32-bit machine may have half */
    CHECK(!tl_alloc(much, 64));
    CHECK_ERROR_FROM("tl_alloc");
}

/* 0 bytes: NULL with a message, and the hook is not asked. */
CASE(alloc_refuses_0_bytes)
{
    CHECK(!tl_alloc(0, 8));
    CHECK_ERROR_FROM("tl_alloc");
    CHECK_EQ(kit_allocs(), 0);
}

/* An alignment that is no power of two: the same. */
CASE(alloc_refuses_odd_alignments)
{
    static const size_t odd[] = {0, 3, 6, 24, 65, SIZE_MAX};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        CHECK(!tl_alloc(8, odd[i]));
        CHECK_ERROR_FROM("tl_alloc");
    }
    CHECK_EQ(kit_allocs(), 0);
}

/* A hook that fails: NULL with a message. */
CASE(alloc_passes_a_failure_on)
{
    kit_fail_at(0, 0);
    CHECK(!tl_alloc(8, 8));
    CHECK_ERROR_FROM("tl_alloc");
    CHECK(kit_failed());
}

/* A success leaves the message alone. */
CASE(alloc_leaves_the_slot_on_success)
{
    tl_set_last_error("tl_x: old");
    tl_free(tl_alloc(8, 8));
    CHECK_STR(tl_last_error(), "tl_x: old");
}

/* NULL goes to no hook. */
CASE(free_takes_null)
{
    notes seen = {0};
    CHECK_STATUS(tl_set_allocator(&(tl_allocator){noting_alloc, noting_free, &seen}), TL_OK);
    tl_free(NULL);
    CHECK_EQ(seen.frees, 0);
}

CASES(version_is_1, status_values_and_names, other_statuses_are_unknown, dtype_values,
      enumerations_are_int32, pool_structs_have_their_layout, structs_of_pointers_have_their_layout,
      envelope_constants, slot_is_empty_before_any_error, slot_keeps_a_copy, slot_takes_null_as_empty,
      slot_cuts_at_255_bytes, slot_reads_no_further_than_it_keeps, slot_may_be_set_from_itself,
      slot_belongs_to_a_thread, hook_is_asked, hook_is_copied, hook_needs_both_functions,
      null_restores_the_default_hook, default_hook_runs_out, alloc_refuses_0_bytes,
      alloc_refuses_odd_alignments, alloc_passes_a_failure_on, alloc_leaves_the_slot_on_success,
      free_takes_null)
