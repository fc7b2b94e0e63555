/* test_crc32c.c - every path of crc32c.h that this machine has, and the copy. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "kit.h"

#include "crc32c.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- what is expected ------------------------------------------------------ */

/* The definition, bit by bit, without the two inversions. */
static uint32_t reference(uint32_t r, unsigned char byte)
{
    r ^= byte;
    for (int bit = 0; bit < 8; bit++) r = r >> 1 ^ (r & 1 ? 0x82F63B78u : 0);
    return r;
}

/* x^n mod P, reflected. */
static uint32_t x_to_the(unsigned n)
{
    uint32_t r = 0x80000000u;
    while (n--) r = r >> 1 ^ (r & 1 ? 0x82F63B78u : 0);
    return r;
}

/* More than three blocks of any path; noise that repeats nowhere. */
enum { NOISE = 13000 };
static unsigned char noise[NOISE + 64];
static uint32_t expected[NOISE + 1]; /* by length, from a register of START */
#define START 0x9B3C5A17u

static void prepare(size_t at)
{
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < sizeof noise; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        noise[i] = (unsigned char)(x >> 32);
    }
    expected[0] = START;
    for (size_t n = 0; n < NOISE; n++) expected[n + 1] = reference(expected[n], noise[at + n]);
}

#define FOR_EACH_PATH(path)                                                                            \
    for (const crc32c_path *path = crc32c_paths;                                                       \
         path < crc32c_paths + sizeof crc32c_paths / sizeof *crc32c_paths; path++)                     \
        if (path->present())

static void check(const crc32c_path *path, const unsigned char *p, size_t n, uint32_t expect)
{
    uint32_t actual = path->update(START, p, n);
    if (actual != expect) fprintf(stderr, "path %s, %zu bytes:\n", path->name, n);
    CHECK_EQ(actual, expect);
}

/* ---- each path -------------------------------------------------------------- */

/* The published check values: RFC 3720, B.4, and the catalogue's "123456789". */
CASE(published_vectors)
{
    unsigned char zeros[32] = {0}, ones[32], up[32], down[32];
    const unsigned char read_pdu[48] = {
        0x01, 0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0,    0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
        0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < 32; i++) {
        ones[i] = 0xFF;
        up[i] = (unsigned char)i;
        down[i] = (unsigned char)(31 - i);
    }
    const struct {
        const void *data;
        size_t n;
        uint32_t crc;
    } vectors[] = {
        {zeros, 32, 0x8A9136AA}, {ones, 32, 0x62A8AB43},     {up, 32, 0x46DD794E},
        {down, 32, 0x113FDB5C},  {read_pdu, 48, 0xD9963A56}, {"123456789", 9, 0xE3069283},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        FOR_EACH_PATH(path) CHECK_EQ(~path->update(~0u, vectors[i].data, vectors[i].n), vectors[i].crc);
        CHECK_EQ(crc32c(0, vectors[i].data, vectors[i].n), vectors[i].crc);
        CHECK_EQ(tl_crc32c(vectors[i].data, vectors[i].n, 0), vectors[i].crc);
    }
}

/* Every length to 1,024 at every alignment is the definition's remainder. */
CASE(short_lengths_at_every_alignment)
{
    for (size_t at = 0; at < 16; at++) {
        prepare(at);
        FOR_EACH_PATH(path)
            for (size_t n = 0; n <= 1024; n++) check(path, noise + at, n, expected[n]);
    }
}

/* So is every length to more than three of the longest blocks. */
CASE(every_length_through_every_threshold)
{
    prepare(3);
    FOR_EACH_PATH(path)
        for (size_t n = 0; n <= NOISE; n++) check(path, noise + 3, n, expected[n]);
}

/* Two calls over the parts are one call over the whole, wherever it is cut. */
CASE(every_split_point)
{
    const size_t n = 4500;
    prepare(1);
    FOR_EACH_PATH(path)
        for (size_t cut = 0; cut <= n; cut++)
            CHECK_EQ(path->update(path->update(START, noise + 1, cut), noise + 1 + cut, n - cut), expected[n]);
}

/* The portable path is always there, and last. */
CASE(portable_is_the_last_resort)
{
    const crc32c_path *last = &crc32c_paths[sizeof crc32c_paths / sizeof *crc32c_paths - 1];
    CHECK_STR(last->name, "portable");
    CHECK(last->present());
}

/* The tables and constants are the powers of x that their comments state. */
CASE(constants_are_powers_of_x)
{
    for (unsigned row = 0; row < 8; row++)
        for (unsigned byte = 0; byte < 256; byte++) {
            uint32_t sum = 0;
            for (unsigned bit = 0; bit < 8; bit++)
                if (byte >> bit & 1) sum ^= x_to_the(8 * row + 39 - bit);
            CHECK_EQ(crc_table[row][byte], sum);
        }
#if defined(CRC_X86) || defined(CRC_ARM)
    const unsigned distances[] = {256, 192, 128, 64, 48, 32, 16};
    for (int i = 0; i < 7; i++) {
        CHECK_EQ(crc_by[i][0], x_to_the(8 * (distances[i] + 8) - 33));
        CHECK_EQ(crc_by[i][1], x_to_the(8 * distances[i] - 33));
    }
    CHECK_EQ(crc_over[CRC_OVER_1], x_to_the(8 * CRC_STREAM - 33));
    CHECK_EQ(crc_over[CRC_OVER_2], x_to_the(16 * CRC_STREAM - 33));
    CHECK_EQ(crc_over[CRC_OVER_3], x_to_the(24 * CRC_STREAM - 33));
    CHECK_EQ(crc_over[CRC_OVER_BLOCK], x_to_the(8 * CRC_BLOCK - 33));
#endif
}

/* ---- memory around the buffer ------------------------------------------------ */

/* Pages that may be used between two that may not. */
enum { ROOM = 16384 };

static unsigned char *guarded(size_t page)
{
    unsigned char *p = mmap(NULL, page + ROOM + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    CHECK_EQ(mprotect(p, page, PROT_NONE), 0);
    CHECK_EQ(mprotect(p + page + ROOM, page, PROT_NONE), 0);
    return p + page;
}

/* Nothing outside the buffer is read or written: it ends at a forbidden page, then
 * begins at one. */
CASE(forbidden_pages_on_both_sides)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *src = guarded(page), *dst = guarded(page);
    prepare(0);
    for (size_t n = 0; n <= NOISE; n += n < 600 ? 1 : 97) {
        unsigned char *const at_end = src + ROOM - n, *const to_end = dst + ROOM - n;
        memcpy(at_end, noise, n);
        FOR_EACH_PATH(path) check(path, at_end, n, expected[n]);
        for (int stream = 0; stream <= 1; stream++) CHECK_EQ(crc32c_copy(~START, to_end, at_end, n, stream), ~expected[n]);
        memcpy(src, noise, n);
        FOR_EACH_PATH(path) check(path, src, n, expected[n]);
        for (int stream = 0; stream <= 1; stream++) CHECK_EQ(crc32c_copy(~START, dst, src, n, stream), ~expected[n]);
    }
    munmap(src - page, page + ROOM + page);
    munmap(dst - page, page + ROOM + page);
}

/* ---- the copy ------------------------------------------------------------------ */

/* At all alignments of both buffers the copy, summed or not, has the bytes, the CRC is theirs, and the
 * bytes around the destination stay what they were. */
CASE(copy_writes_exactly_its_bytes)
{
    static const size_t lengths[] = {0, 1, 7, 15, 16, 17, 63, 64, 65, 127, 128, 300, 4031, 4096, 4097, 8300};
    static unsigned char dst[64 + 64 + 8300 + 64], canary[64];
    memset(canary, 0xC5, sizeof canary);
    for (size_t from = 0; from < 16; from++) {
        prepare(from);
        for (size_t to = 0; to < 64; to++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (int stream = 0; stream <= 1; stream++) {
                    const size_t n = lengths[i];
                    unsigned char *const at = dst + 64 + to;
                    for (int sum = 0; sum <= 1; sum++) {
                        memset(at - 64, 0xC5, 64 + n + 64);
                        if (sum) CHECK_EQ(crc32c_copy(~START, at, noise + from, n, stream), ~expected[n]);
                        else copy_bytes(at, noise + from, n, stream);
                        CHECK_BYTES(at, noise + from, n);
                        CHECK_BYTES(at - 64, canary, 64);
                        CHECK_BYTES(at + n, canary, 64);
                    }
                }
    }
}

/* No bytes at no address leave the CRC as it is. */
CASE(nothing_at_all)
{
    CHECK_EQ(crc32c(7, NULL, 0), 7);
    CHECK_EQ(crc32c_copy(7, NULL, NULL, 0, 0), 7);
    CHECK_EQ(crc32c_copy(7, NULL, NULL, 0, 1), 7);
    FOR_EACH_PATH(path) CHECK_EQ(path->update(7, NULL, 0), 7);
}

CASES(published_vectors, short_lengths_at_every_alignment, every_length_through_every_threshold, every_split_point,
      portable_is_the_last_resort, constants_are_powers_of_x, forbidden_pages_on_both_sides,
      copy_writes_exactly_its_bytes, nothing_at_all)
