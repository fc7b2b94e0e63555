/* kit.c - see kit.h. */

#define _POSIX_C_SOURCE 200112L /* posix_memalign: any size at any alignment */

#include "kit.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the case that runs -------------------------------------------------- */

static jmp_buf end_of_case;
static size_t checks;

/* Prints FILE:LINE: and the text, and ends the case. */
static _Noreturn void fail(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    longjmp(end_of_case, 1);
}

/* ---- the allocator ------------------------------------------------------- */

/* One node an allocation that is alive, newest first. Beside the blocks and not
 * in them, so that a block has no byte too many. */
typedef struct node {
    struct node *next;
    void *block;
} node;

static node *alive;
static size_t n_alive, n_allocs;
static int foreign_free; /* something came back that was not alive */

static struct {
    int set, all_after, happened;
    size_t at; /* an index of n_allocs */
} plan;

/* Two pools may be created in two threads. */
static atomic_flag locked = ATOMIC_FLAG_INIT;

static void lock(void)
{
    while (atomic_flag_test_and_set(&locked)) {
    }
}

static void unlock(void) { atomic_flag_clear(&locked); }

static void *must(void *p)
{
    if (p) return p;
    fputs("kit: out of memory\n", stderr);
    abort();
}

static int refused(void)
{
    lock();
    size_t i = n_allocs++;
    int now = plan.set && (i == plan.at || (plan.all_after && i > plan.at));
    if (now) plan.happened = 1;
    unlock();
    return now;
}

static void *kit_alloc(void *user, size_t n, size_t align)
{
    (void)user;
    void *block;
    if (refused()) return NULL;
    if (align < sizeof(void *)) align = sizeof(void *); /* posix_memalign's least */
    if (posix_memalign(&block, align, n) != 0) return NULL;
    if (n < KIT_PATTERN_BELOW) memset(block, KIT_PATTERN, n);
    node *x = must(malloc(sizeof *x));
    lock();
    *x = (node){alive, block};
    alive = x;
    n_alive++;
    unlock();
    return block;
}

static void kit_free(void *user, void *block)
{
    (void)user;
    lock();
    node **at = &alive;
    while (*at && (*at)->block != block) at = &(*at)->next;
    node *x = *at;
    if (x) {
        *at = x->next;
        n_alive--;
    } else {
        foreign_free = 1;
    }
    unlock();
    free(x);
    free(block); /* also a foreign one: a sanitizer tells who gave it back */
}

/* Forgets what is alive. */
static void forget(int give_back)
{
    while (alive) {
        node *x = alive;
        alive = x->next;
        if (give_back) free(x->block);
        free(x);
    }
    n_alive = 0;
}

size_t kit_allocs(void) { return n_allocs; }

size_t kit_live(void) { return n_alive; }

void kit_fail_at(size_t n, int all_after)
{
    plan.set = 1;
    plan.all_after = all_after;
    plan.happened = 0;
    plan.at = n_allocs + n;
}

void kit_fail_never(void) { plan.set = 0; }

int kit_failed(void) { return plan.happened; }

/* ---- rounds of failing allocations --------------------------------------- */

static struct {
    int running, all_after;
    size_t alive_before;
} rounds;

size_t kit_rounds_begin(void)
{
    rounds.running = rounds.all_after = 0;
    rounds.alive_before = n_alive;
    return 0;
}

/* Judges the round that ends and plans the next. Returns: whether there is one. */
int kit_round(const char *file, int line, size_t *n)
{
    kit_fail_never();
    checks++;
    if (rounds.running) {
        if (n_alive != rounds.alive_before)
            fail(file, line, "with %s %zu failing, %zu allocations are alive, %zu were before",
                 rounds.all_after ? "all allocations from" : "allocation", *n, n_alive, rounds.alive_before);
        if (plan.happened) {
            ++*n;
        } else if (*n == 0) {
            fail(file, line, "the block of KIT_EACH_ALLOC_FAILURE never allocates");
        } else if (!rounds.all_after) {
            rounds.all_after = 1;
            *n = 0;
        } else {
            return 0;
        }
    }
    rounds.running = 1;
    kit_fail_at(*n, rounds.all_after);
    return 1;
}

/* ---- checks -------------------------------------------------------------- */

kit_integer kit_signed(int64_t x) { return (kit_integer){(uint64_t)x, x < 0}; }

kit_integer kit_unsigned(uint64_t x) { return (kit_integer){x, 0}; }

/* The number in decimal and, where it helps, in hex; in one of two buffers. */
static const char *integer_text(kit_integer x)
{
    static char texts[2][64];
    static int turn;
    char *text = texts[turn ^= 1];
    if (x.negative)
        snprintf(text, sizeof texts[0], "-%" PRIu64, 0 - x.bits);
    else
        snprintf(text, sizeof texts[0], x.bits < 10 ? "%" PRIu64 : "%" PRIu64 " (0x%" PRIX64 ")", x.bits, x.bits);
    return text;
}

void kit_check(const char *file, int line, const char *text, int holds)
{
    checks++;
    if (!holds) fail(file, line, "%s does not hold", text);
}

void kit_check_eq(const char *file, int line, const char *text, kit_integer actual, kit_integer expected)
{
    checks++;
    if (actual.bits != expected.bits || actual.negative != expected.negative)
        fail(file, line, "%s is %s, expected %s", text, integer_text(actual), integer_text(expected));
}

void kit_check_status(const char *file, int line, const char *text, tl_status actual, tl_status expected)
{
    checks++;
    if (actual != expected)
        fail(file, line, "%s is %s (%" PRId32 "), expected %s; the error slot says \"%s\"", text,
             tl_status_str(actual), actual, tl_status_str(expected), tl_last_error());
}

void kit_check_str(const char *file, int line, const char *text, const char *actual, const char *expected)
{
    checks++;
    if (!actual) fail(file, line, "%s is NULL, expected \"%s\"", text, expected);
    if (strcmp(actual, expected) != 0)
        fail(file, line, "%s is \"%s\", expected \"%s\"", text, actual, expected);
}

void kit_check_bytes(const char *file, int line, const char *text,
                     const void *actual, const void *expected, size_t n)
{
    const unsigned char *a = actual, *e = expected;
    checks++;
    if (n && (!a || !e)) fail(file, line, "%s: NULL where %zu bytes are compared", text, n);
    for (size_t i = 0; i < n; i++)
        if (a[i] != e[i])
            fail(file, line, "%s: byte %zu of %zu is 0x%02X, expected 0x%02X", text, i, n, a[i], e[i]);
}

void kit_check_error_from(const char *file, int line, const char *function)
{
    const char *message = tl_last_error();
    size_t n = strlen(function);
    checks++;
    if (strncmp(message, function, n) != 0 || message[n] != ':')
        fail(file, line, "the error slot says \"%s\", expected a message of %s", message, function);
    tl_set_last_error(NULL);
}

/* ---- main ---------------------------------------------------------------- */

static void start_case(void)
{
    static const tl_allocator counting = {kit_alloc, kit_free, NULL};
    n_allocs = checks = 0;
    foreign_free = 0;
    memset(&plan, 0, sizeof plan);
    tl_set_last_error(NULL);
    tl_set_allocator(&counting);
}

/* What is wrong with a case whose checks all passed, or NULL. */
static const char *fault(void)
{
    if (n_alive) return "memory is alive at its end";
    if (foreign_free) return "it gave back what was not alive";
    if (!checks) return "it checked nothing";
    return NULL;
}

/* Returns: whether the case passed. */
static int run_case(void (*function)(void), const char *name)
{
    volatile int by_check = 0; /* as it stands between setjmp and longjmp */
    start_case();
    if (setjmp(end_of_case) == 0)
        function();
    else
        by_check = 1;
    tl_set_allocator(NULL);

    const char *why = by_check ? "a check failed" : fault();
    if (why) fprintf(stderr, "case %s: %s (%zu allocations alive)\n", name, why, n_alive);
    forget(by_check); /* a leak proper stays one, and LeakSanitizer tells where it began */
    return !why;
}

/* Copies the next name of "a, b, c" from *names; cases are identifiers. */
static int next_name(const char **names, char *name, size_t room)
{
    size_t n;
    *names += strspn(*names, ", \t\n");
    n = strcspn(*names, ", \t\n");
    if (n == 0 || n >= room) return 0;
    memcpy(name, *names, n);
    name[n] = '\0';
    *names += n;
    return 1;
}

/* The index of `wanted` among the names, or -1. */
static int case_index(const char *names, const char *wanted)
{
    char name[256];
    for (int i = 0; next_name(&names, name, sizeof name); i++)
        if (strcmp(name, wanted) == 0) return i;
    return -1;
}

int kit_main(int argc, char **argv, void (*const cases[])(void), const char *names)
{
    char name[256];
    unsigned passed = 0, failed = 0;

    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        while (next_name(&names, name, sizeof name)) puts(name);
        return 0;
    }
    for (int i = 1; i < argc; i++)
        if (case_index(names, argv[i]) < 0) {
            fprintf(stderr, "%s: no case is named %s\n", argv[0], argv[i]);
            return 2;
        }
    if (argc > 1) {
        for (int i = 1; i < argc; i++)
            run_case(cases[case_index(names, argv[i])], argv[i]) ? passed++ : failed++;
    } else {
        for (int i = 0; next_name(&names, name, sizeof name); i++)
            run_case(cases[i], name) ? passed++ : failed++;
    }
    fflush(stderr);
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
