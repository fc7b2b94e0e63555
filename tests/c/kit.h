/* kit.h - the kit of the C tests: a case table, checks, a counting allocator.
 *
 *      #include "kit.h"
 *
 *      CASE(push_appends)
 *      {
 *          CHECK_STATUS(tl_vec_init(&v, 4), TL_OK);
 *          ...
 *      }
 *
 *      CASES(push_appends, push_grows)
 *
 * is a whole program. Without arguments it runs all cases, with arguments those
 * named; --list prints the names. The first check that fails prints where it stands
 * and what it saw, and ends its case; the next case goes on. The exit status is 1
 * when a case failed, 2 for a wrong command line.
 *
 * A case also fails when it leaves memory of the library alive, when it gives back
 * what the library did not ask for, and when it checked nothing.
 *
 * Checks belong into the thread that runs the case. */
#ifndef TL_TEST_KIT_H
#define TL_TEST_KIT_H

#include "tinyllm.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- cases --------------------------------------------------------------- */

#define CASE(name) static void name(void)

/* The table of a file's cases, and main(). The last line of the file. */
#define CASES(...)                                                        \
    static void (*const kit_cases[])(void) = {__VA_ARGS__};               \
    int main(int argc, char **argv) { return kit_main(argc, argv, kit_cases, #__VA_ARGS__); }

/* ---- checks -------------------------------------------------------------- */

/* Each evaluates its arguments once, what is tested before what is expected. */

/* Any scalar expression. */
#define CHECK(condition) kit_check(KIT_HERE, #condition, (condition) ? 1 : 0)

/* Two integers of any types, compared as numbers: -1 is not SIZE_MAX. */
#define CHECK_EQ(actual, expected)                                             \
    do {                                                                       \
        kit_integer kit_actual = KIT_INTEGER(actual);                          \
        kit_check_eq(KIT_HERE, #actual, kit_actual, KIT_INTEGER(expected));    \
    } while (0)

/* A call's tl_status; shows the names and, for a failure, its message. */
#define CHECK_STATUS(call, expected)                                           \
    do {                                                                       \
        tl_status kit_actual = (call);                                         \
        kit_check_status(KIT_HERE, #call, kit_actual, (expected));             \
    } while (0)

/* NUL-terminated strings. */
#define CHECK_STR(actual, expected) kit_check_str(KIT_HERE, #actual, (actual), (expected))

/* n bytes; shows the first that differs. */
#define CHECK_BYTES(actual, expected, n) kit_check_bytes(KIT_HERE, #actual, (actual), (expected), (n))

/* The error slot holds a message of this function. Empties the slot, so that the
 * next check cannot pass on an old message. */
#define CHECK_ERROR_FROM(function) kit_check_error_from(KIT_HERE, (function))

/* ---- the allocator ------------------------------------------------------- */

/* In force during a case. A block has exactly the bytes asked for, so that
 * AddressSanitizer sees its ends; below KIT_PATTERN_BELOW bytes it is filled with
 * KIT_PATTERN (larger ones are not touched). */
#define KIT_PATTERN 0xA5
#ifndef KIT_PATTERN_BELOW
#define KIT_PATTERN_BELOW 65536 /* 1 where a tool wants to see uninitialized memory as such */
#endif

/* Allocations asked for in this case, those that failed included. */
size_t kit_allocs(void);

/* Allocations of this case that have not been given back. */
size_t kit_live(void);

/* The n-th allocation from now fails, counted from 0; with all_after so do all
 * later ones. Replaces the plan before. */
void kit_fail_at(size_t n, int all_after);

/* No allocation fails by plan any more. kit_failed() keeps its answer. */
void kit_fail_never(void);

/* Returns: whether an allocation has failed by the plan of the latest kit_fail_at. */
int kit_failed(void);

/* Repeats the block that follows with allocation n failing, for n = 0, 1, 2 ...
 * until a round passes without a failure: first with only the n-th failing, then
 * with all from the n-th. After each round no more memory may be alive than before
 * the first. A block that never allocates fails the case. `continue` ends a round;
 * `break` must not be used.
 *
 *      KIT_EACH_ALLOC_FAILURE(n) {
 *          CHECK_STATUS(tl_map_create(5, &m), kit_failed() ? TL_ENOMEM : TL_OK);
 *          tl_map_destroy(m);
 *      } */
#define KIT_EACH_ALLOC_FAILURE(n) for (size_t n = kit_rounds_begin(); kit_round(KIT_HERE, &n);)

/* ---- behind the macros --------------------------------------------------- */

#define KIT_HERE __FILE__, __LINE__

/* An integer of any type: its low 64 bits and whether it is below 0. */
typedef struct {
    uint64_t bits;
    int negative;
} kit_integer;

#define KIT_INTEGER(x) \
    _Generic((x) + 0, int: kit_signed, long: kit_signed, long long: kit_signed, default: kit_unsigned)(x)

kit_integer kit_signed(int64_t x);
kit_integer kit_unsigned(uint64_t x);

void kit_check(const char *file, int line, const char *text, int holds);
void kit_check_eq(const char *file, int line, const char *text, kit_integer actual, kit_integer expected);
void kit_check_status(const char *file, int line, const char *text, tl_status actual, tl_status expected);
void kit_check_str(const char *file, int line, const char *text, const char *actual, const char *expected);
void kit_check_bytes(const char *file, int line, const char *text,
                     const void *actual, const void *expected, size_t n);
void kit_check_error_from(const char *file, int line, const char *function);
size_t kit_rounds_begin(void);
int kit_round(const char *file, int line, size_t *n);
int kit_main(int argc, char **argv, void (*const cases[])(void), const char *names);

#endif
