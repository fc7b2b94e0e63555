/* driver.c - answers the parity suite kv.wire.v1 with the C library.
 *
 *     cc -Iinclude -o driver tests/parity/driver.c $(find csrc/runtime csrc/ds -name '*.c')
 *     echo '{"B":2,"L":1,"H":1,"D":2,"tokens":[],"values":[]}' | ./driver
 *
 * One case a line comes in, {"hex": "..."} a line goes out: the envelope of the
 * sequence's blocks. The blocks are built in one pool, exported, imported into a
 * second pool and exported again from there, so that the writer and the reader are
 * both on trial. Both pools start out full of ones: what an envelope does not owe
 * to the case would show.
 *
 * A line that is no case, or a call that fails, ends the program with status 1 and
 * one line on standard error that names the input line and the reason. */
#define _POSIX_C_SOURCE 200809L /* getline */

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "tinyllm.h"

/* ---- state ---------------------------------------------------------------- */

/* The members of a case that the driver reads, and their bits in `seen`. */
enum { KEY_B, KEY_L, KEY_H, KEY_D, KEY_TOKENS, KEY_VALUES, N_KEYS };
static const char *const KEYS[N_KEYS] = {"B", "L", "H", "D", "tokens", "values"};

typedef struct {
    uint32_t dim[4]; /* B, L, H, D, by KEY_* */
    tl_vec tokens;   /* of uint32_t */
    tl_vec values;   /* of uint32_t: f16 bit patterns */
    unsigned seen;   /* bit k: KEYS[k] has been read */
} wire_case;

static unsigned long line_no;

static _Noreturn void die(const char *format, ...)
{
    va_list args;
    fprintf(stderr, "driver: line %lu: ", line_no);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

static void must(tl_status status)
{
    if (status != TL_OK) {
        die("%s: %s", tl_status_str(status), tl_last_error());
    }
}

/* ---- JSON, as much of it as a case needs ---------------------------------- */

/* Each reader takes the position in a NUL-terminated line and moves it past what it
 * has read. */

static void skip_space(const char **at)
{
    *at += strspn(*at, " \t\r\n");
}

static int take(const char **at, char c)
{
    skip_space(at);
    if (**at != c) {
        return 0;
    }
    ++*at;
    return 1;
}

static void expect(const char **at, char c, const char *where)
{
    if (!take(at, c)) {
        die("'%c' expected %s, found '%.12s'", c, where, *at);
    }
}

/* Reads a string and gives its raw bytes between the quotes. */
static size_t read_string(const char **at, const char **text)
{
    expect(at, '"', "before a string");
    *text = *at;
    while (**at != '"') {
        if (**at == '\\' && (*at)[1] != '\0') {
            ++*at;
        }
        if ((unsigned char)**at < 0x20) {
            die("a string does not end");
        }
        ++*at;
    }
    return (size_t)((*at)++ - *text);
}

static uint32_t read_integer(const char **at, uint32_t max, const char *what)
{
    skip_space(at);
    const char *start = *at;
    uint64_t n = 0;
    while (**at >= '0' && **at <= '9') {
        n = n * 10 + (uint64_t)(*(*at)++ - '0');
        if (n > max) {
            die("%s: a number above %" PRIu32, what, max);
        }
    }
    if (*at == start || (*start == '0' && *at - start > 1) || strchr(".eE", **at ? **at : ' ') != NULL) {
        die("%s: an integer of at least 0 expected, found '%.12s'", what, start);
    }
    return (uint32_t)n;
}

static void read_list(const char **at, uint32_t max, const char *what, tl_vec *out)
{
    expect(at, '[', what);
    if (take(at, ']')) {
        return;
    }
    do {
        uint32_t n = read_integer(at, max, what);
        must(tl_vec_push(out, &n));
    } while (take(at, ','));
    expect(at, ']', what);
}

static void skip_value(const char **at, int depth)
{
    const char *text;
    if (depth > 64) {
        die("a value nested deeper than 64 levels");
    }
    if (take(at, '[')) {
        if (!take(at, ']')) {
            do {
                skip_value(at, depth + 1);
            } while (take(at, ','));
            expect(at, ']', "after a list");
        }
    } else if (take(at, '{')) {
        if (!take(at, '}')) {
            do {
                read_string(at, &text);
                expect(at, ':', "after a key");
                skip_value(at, depth + 1);
            } while (take(at, ','));
            expect(at, '}', "after an object");
        }
    } else if (**at == '"') {
        read_string(at, &text);
    } else { /* a number, true, false or null: their letters, not their grammar */
        size_t n = strspn(*at, "+-.0123456789Eaeflnrstu");
        if (n == 0) {
            die("a value expected, found '%.12s'", *at);
        }
        *at += n;
    }
}

static int which_key(const char *text, size_t n)
{
    int k = 0;
    while (k < N_KEYS && (strlen(KEYS[k]) != n || memcmp(KEYS[k], text, n) != 0)) {
        k++;
    }
    return k;
}

static void read_member(const char **at, wire_case *c)
{
    const char *text;
    size_t n = read_string(at, &text);
    int k = which_key(text, n);
    expect(at, ':', "after a key");
    if (k == N_KEYS) {
        skip_value(at, 0);
        return;
    }
    if (c->seen & (1u << k)) {
        die("%s stands twice", KEYS[k]);
    }
    c->seen |= 1u << k;
    if (k == KEY_TOKENS) {
        read_list(at, UINT32_MAX, "tokens", &c->tokens);
    } else if (k == KEY_VALUES) {
        read_list(at, UINT16_MAX, "values", &c->values);
    } else {
        c->dim[k] = read_integer(at, UINT32_MAX, KEYS[k]);
        if (c->dim[k] == 0) {
            die("%s is 0", KEYS[k]);
        }
    }
}

/* Checks that there is a value for each position, layer, K and V, head and dim. */
static void check_values(const wire_case *c)
{
    const size_t factors[4] = {2, c->dim[KEY_L], c->dim[KEY_H], c->dim[KEY_D]};
    size_t n = c->tokens.len;
    for (int i = 0; i < 4; i++) {
        if (n > SIZE_MAX / factors[i]) {
            die("more values than memory can hold");
        }
        n *= factors[i];
    }
    if (n != c->values.len) {
        die("values: %zu expected for %zu tokens, found %zu", n, c->tokens.len, c->values.len);
    }
}

static void read_case(const char *line, wire_case *c)
{
    const char *at = line;
    c->seen = 0;
    c->tokens.len = c->values.len = 0;
    expect(&at, '{', "before a case");
    if (!take(&at, '}')) {
        do {
            read_member(&at, c);
        } while (take(&at, ','));
        expect(&at, '}', "after a case");
    }
    skip_space(&at);
    if (*at != '\0') {
        die("more than one case on a line: '%.12s'", at);
    }
    for (int k = 0; k < N_KEYS; k++) {
        if (!(c->seen & (1u << k))) {
            die("%s is missing", KEYS[k]);
        }
    }
    check_values(c);
}

/* ---- the blocks ------------------------------------------------------------ */

static tl_kv_pool *create_pool(const wire_case *c, uint32_t n_blocks)
{
    tl_kv_cfg cfg = {.n_blocks = n_blocks ? n_blocks : 1, .block_tokens = c->dim[KEY_B],
                     .n_layers = c->dim[KEY_L], .n_kv_heads = c->dim[KEY_H], .head_dim = c->dim[KEY_D],
                     .dtype = TL_F16, .format = TL_KV_FORMAT_V1};
    tl_kv_pool *pool;
    must(tl_kv_pool_create(&cfg, &pool));
    for (uint32_t id = 0; id < n_blocks; id++) {
        memset(tl_kv_block_ptr(pool, id, 0, 0), 0xFF, tl_kv_block_bytes(pool));
    }
    return pool;
}

/* Writes n positions, from position `first` of the sequence on, into a block. */
static void write_positions(tl_kv_pool *pool, uint32_t id, const wire_case *c, size_t first, uint32_t n)
{
    const uint32_t B = c->dim[KEY_B], L = c->dim[KEY_L], H = c->dim[KEY_H], D = c->dim[KEY_D];
    const uint32_t *next = (const uint32_t *)c->values.data + first * L * 2 * H * D;
    for (uint32_t slot = 0; slot < n; slot++) {
        for (uint32_t layer = 0; layer < L; layer++) {
            for (int is_v = 0; is_v < 2; is_v++) {
                uint16_t *rows = tl_kv_block_ptr(pool, id, layer, is_v);
                for (uint32_t head = 0; head < H; head++) {
                    for (uint32_t dim = 0; dim < D; dim++) {
                        rows[((size_t)head * B + slot) * D + dim] = (uint16_t)*next++;
                    }
                }
            }
        }
    }
}

/* Builds a sequence's blocks: full ones under their chained hash, the tail without. */
static void build_blocks(tl_kv_pool *pool, const wire_case *c, uint32_t *ids, uint32_t n_blocks)
{
    const uint32_t B = c->dim[KEY_B];
    uint64_t hash = 0;
    must(tl_kv_alloc(pool, n_blocks, ids));
    for (uint32_t i = 0; i < n_blocks; i++) {
        const size_t first = (size_t)i * B, left = c->tokens.len - first;
        const uint32_t n = left < B ? (uint32_t)left : B;
        write_positions(pool, ids[i], c, first, n);
        must(tl_kv_set_fill(pool, ids[i], n));
        if (n == B) {
            hash = tl_kv_block_hash(hash, (const uint32_t *)c->tokens.data + first, n);
            must(tl_kv_register(pool, ids[i], hash));
        }
    }
}

static void *allocate(size_t n)
{
    void *p = malloc(n);
    if (p == NULL) {
        die("no memory for %zu bytes", n);
    }
    return p;
}

static unsigned char *export_blocks(tl_kv_pool *pool, const uint32_t *ids, uint32_t n, size_t *size)
{
    unsigned char *envelope = allocate(tl_kv_export_bytes(pool, n));
    must(tl_kv_export(pool, ids, n, envelope, tl_kv_export_bytes(pool, n), size));
    return envelope;
}

static void answer(const wire_case *c)
{
    const size_t B = c->dim[KEY_B], n = c->tokens.len / B + (c->tokens.len % B != 0);
    if (n >= UINT32_MAX) {
        die("tokens: more blocks than a pool can have");
    }
    const uint32_t n_blocks = (uint32_t)n;
    uint32_t *ids = allocate((n + 1) * sizeof *ids);
    size_t size;

    tl_kv_pool *writer = create_pool(c, n_blocks);
    build_blocks(writer, c, ids, n_blocks);
    unsigned char *sent = export_blocks(writer, ids, n_blocks, &size);
    tl_kv_pool_destroy(writer);

    tl_kv_pool *reader = create_pool(c, n_blocks);
    must(tl_kv_import(reader, sent, size, ids));
    unsigned char *envelope = export_blocks(reader, ids, n_blocks, &size);
    tl_kv_pool_destroy(reader);

    fputs("{\"hex\": \"", stdout);
    for (size_t i = 0; i < size; i++) {
        printf("%02x", envelope[i]);
    }
    puts("\"}");
    fflush(stdout);
    free(envelope);
    free(sent);
    free(ids);
}

int main(void)
{
    static wire_case c; /* static, like the line: what die() leaves behind stays reachable */
    static char *line;
    size_t room = 0;
    ssize_t n;
    must(tl_vec_init(&c.tokens, sizeof(uint32_t)));
    must(tl_vec_init(&c.values, sizeof(uint32_t)));
    while ((n = getline(&line, &room, stdin)) >= 0) {
        line_no++;
        if (strlen(line) != (size_t)n) {
            die("a NUL byte");
        }
        line[strcspn(line, "\r\n")] = '\0';
        read_case(line, &c);
        answer(&c);
    }
    tl_vec_free(&c.tokens);
    tl_vec_free(&c.values);
    free(line);
    return 0;
}
