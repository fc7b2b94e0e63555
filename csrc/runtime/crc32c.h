/* crc32c.h - CRC-32C (Castagnoli), alone or while copying. Private: all static.
 *
 * THE POLYNOMIALS. A message is a polynomial over GF(2), its first bit the highest
 * power; P = x^32 + 0x1EDC6F41 is the divisor. Values here are reflected: bit i of w
 * bits stands for x^(w-1-i), which is the order of a message's bits in little-endian
 * words. P without x^32 is then 0x82F63B78. A register r (32 bits, a remainder) that
 * takes in a message M of m bytes becomes
 *
 *      r * x^(8m) + M * x^32  mod P                                            (1)
 *
 * The CRC proper inverts the register before the first byte and after the last.
 *
 * BY TABLE. By (1), 8 bytes with the register added to the first four become the sum
 * of the remainders of 64 bits, x^32 .. x^95 mod P: a table of 256 for each byte.
 *
 * BY INSTRUCTION. The CPU's crc32 does (1) for an M of 8 bytes, but has to wait for the
 * r before. Three independent streams hide that. By (1) a stream's r is joined to what
 * follows m bytes further on by a multiplication with x^(8m). The carry-less product
 * (*) of two reflected words reads as one power too high, and the crc32 that reduces
 * it (as M, with r = 0) multiplies by x^32; so
 *
 *      r * x^(8m) mod P = crc32(0, r (*) K(m)),   K(m) = x^(8m-33) mod P       (2)
 *
 * BY FOLDING. 16 bytes, the halves F (first) and S, can be moved d bytes on and added
 * to the 16 bytes there, and the remainder is the same:
 *
 *      (F * x^64 + S) * x^(8d) = F (*) K(d+8) + S (*) K(d)  mod P              (3)
 *
 * with the K of (2), since a 32-bit constant read as 64 bits is higher by x^32. The
 * register is added to the first four bytes; two crc32 reduce the last 16.
 *
 * THE PATHS, of which the first that the CPU has is used:
 *
 *      avx512    folding, four accumulators of 64 bytes                  x86
 *      clmul     folding, four accumulators of 16 bytes, fused with
 *                three streams of crc32, another unit of the CPU         x86, AArch64
 *      hardware  three streams of crc32                                  x86, AArch64
 *      portable  tables, 8 bytes at a time, in any byte order            all
 *
 * TESTS go through crc32c_paths[]. A build with -DTL_CRC32C_FORCE=clmul (or any name
 * above) uses that path only, and must run on a CPU that has it; one with
 * -DTL_CRC32C_NO_STREAM writes nothing past the cache. */
#ifndef TL_CRC32C_H
#define TL_CRC32C_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#include <immintrin.h>
#define CRC_X86
#define CRC_HARDWARE __attribute__((target("sse4.2")))
#define CRC_CLMUL __attribute__((target("sse4.2,pclmul")))
#define CRC_AVX512 __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))
#elif defined(__GNUC__) && defined(__aarch64__) && defined(__linux__) && !defined(__AARCH64EB__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define CRC_ARM
#ifdef __clang__
#define CRC_HARDWARE __attribute__((target("crc")))
#define CRC_CLMUL __attribute__((target("crc,aes")))
#else
#define CRC_HARDWARE __attribute__((target("+crc")))
#define CRC_CLMUL __attribute__((target("+crc+crypto")))
#endif
#endif

/* For what has to become part of a function with a wider target. */
#define CRC_INLINE static inline __attribute__((always_inline))

/* ---- portable: tables ----------------------------------------------------- */

/* A table of 256 from the remainders of its index's bits, the highest last: each
 * bit doubles the table without it. */
#define CRC_1(v, a) (v), (v) ^ (a)
#define CRC_2(v, a, b) CRC_1(v, a), CRC_1((v) ^ (b), a)
#define CRC_3(v, a, b, c) CRC_2(v, a, b), CRC_2((v) ^ (c), a, b)
#define CRC_4(v, a, b, c, d) CRC_3(v, a, b, c), CRC_3((v) ^ (d), a, b, c)
#define CRC_5(v, a, b, c, d, e) CRC_4(v, a, b, c, d), CRC_4((v) ^ (e), a, b, c, d)
#define CRC_6(v, a, b, c, d, e, f) CRC_5(v, a, b, c, d, e), CRC_5((v) ^ (f), a, b, c, d, e)
#define CRC_7(v, a, b, c, d, e, f, g) CRC_6(v, a, b, c, d, e, f), CRC_6((v) ^ (g), a, b, c, d, e, f)
#define CRC_8(a, b, c, d, e, f, g, h) {CRC_7(0u, a, b, c, d, e, f, g), CRC_7(h, a, b, c, d, e, f, g)}

/* Row k is for a byte that k bytes follow; its bit j stands for x^(8k+39-j) mod P. */
static const uint32_t crc_table[8][256] = {
    CRC_8(0xF26B8303, 0xE13B70F7, 0xC79A971F, 0x8AD958CF, 0x105EC76F, 0x20BD8EDE, 0x417B1DBC, 0x82F63B78),
    CRC_8(0x13A29877, 0x274530EE, 0x4E8A61DC, 0x9D14C3B8, 0x3FC5F181, 0x7F8BE302, 0xFF17C604, 0xFBC3FAF9),
    CRC_8(0xA541927E, 0x4F6F520D, 0x9EDEA41A, 0x38513EC5, 0x70A27D8A, 0xE144FB14, 0xC76580D9, 0x8B277743),
    CRC_8(0xDD45AAB8, 0xBF672381, 0x7B2231F3, 0xF64463E6, 0xE964B13D, 0xD725148B, 0xABA65FE7, 0x52A0C93F),
    CRC_8(0x38116FAC, 0x7022DF58, 0xE045BEB0, 0xC5670B91, 0x8F2261D3, 0x1BA8B557, 0x37516AAE, 0x6EA2D55C),
    CRC_8(0xEF306B19, 0xDB8CA0C3, 0xB2F53777, 0x6006181F, 0xC00C303E, 0x85F4168D, 0x0E045BEB, 0x1C08B7D6),
    CRC_8(0x68032CC8, 0xD0065990, 0xA5E0C5D1, 0x4E2DFD53, 0x9C5BFAA6, 0x3D5B83BD, 0x7AB7077A, 0xF56E0EF4),
    CRC_8(0x493C7D27, 0x9278FA4E, 0x211D826D, 0x423B04DA, 0x847609B4, 0x0D006599, 0x1A00CB32, 0x34019664),
};

static inline uint32_t crc32c_portable(uint32_t r, const unsigned char *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        r ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        r = crc_table[7][r & 255] ^ crc_table[6][r >> 8 & 255] ^ crc_table[5][r >> 16 & 255] ^
            crc_table[4][r >> 24] ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^
            crc_table[0][p[7]];
    }
    for (; n; p++, n--) r = r >> 8 ^ crc_table[0][(r ^ *p) & 255];
    return r;
}

#if defined(CRC_X86) || defined(CRC_ARM)

/* ---- hardware: three streams of crc32 ------------------------------------- */

/* The clmul path's block, CRC_ROUNDS rounds; the hardware path's is the streams alone.
 *
 *      +---------------------+--------------+--------------+--------------+
 *      |  64 a round: folded |  40: stream  |  40: stream  |  40: stream  |
 *      +---------------------+--------------+--------------+--------------+
 */
enum {
    CRC_ROUNDS = 22,
    CRC_FOLDED = CRC_ROUNDS * 64,
    CRC_STREAM = CRC_ROUNDS * 40,
    CRC_BLOCK = CRC_FOLDED + 3 * CRC_STREAM
};

/* K(m) of one, two and three streams and of the block. */
enum { CRC_OVER_1, CRC_OVER_2, CRC_OVER_3, CRC_OVER_BLOCK };
static const uint32_t crc_over[4] = {0x49C3CC9C, 0x17F27698, 0x2E7D11A7, 0xD0C6D7C9};

CRC_INLINE uint64_t crc_load(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The instruction, for a byte and for 8. */
CRC_HARDWARE CRC_INLINE uint32_t crc_byte(uint32_t r, unsigned char v)
{
#if defined(CRC_X86)
    return _mm_crc32_u8(r, v);
#elif defined(__clang__)
    return __builtin_arm_crc32cb(r, v);
#else
    return __builtin_aarch64_crc32cb(r, v);
#endif
}

CRC_HARDWARE CRC_INLINE uint32_t crc_word(uint32_t r, uint64_t v)
{
#if defined(__x86_64__)
    return (uint32_t)_mm_crc32_u64(r, v);
#elif defined(CRC_X86)
    return _mm_crc32_u32(_mm_crc32_u32(r, (uint32_t)v), (uint32_t)(v >> 32));
#elif defined(__clang__)
    return __builtin_arm_crc32cd(r, v);
#else
    return __builtin_aarch64_crc32cx(r, v);
#endif
}

/* One stream, for what is too short for three. */
CRC_HARDWARE CRC_INLINE uint32_t crc_rest(uint32_t r, const unsigned char *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) r = crc_word(r, crc_load(p));
    for (; n; p++, n--) r = crc_byte(r, *p);
    return r;
}

/* One round of the streams, the first of them at p. */
CRC_HARDWARE CRC_INLINE void crc_round(uint32_t r[3], const unsigned char *p)
{
#pragma GCC unroll 5
    for (int i = 0; i < 40; i += 8) {
        r[0] = crc_word(r[0], crc_load(p + i));
        r[1] = crc_word(r[1], crc_load(p + i + CRC_STREAM));
        r[2] = crc_word(r[2], crc_load(p + i + 2 * CRC_STREAM));
    }
}

/* Asks for n bytes one block further on: a CPU does not foresee runs as short as a
 * stream's. They may lie past the buffer's end, where no pointer may be formed. */
CRC_INLINE void crc_prefetch(const unsigned char *p, uintptr_t n)
{
    for (uintptr_t i = 0; i < n; i += 64) __builtin_prefetch((const void *)((uintptr_t)p + CRC_BLOCK + i));
}

/* (2), the product without an instruction for it. */
CRC_HARDWARE CRC_INLINE uint32_t crc_shift_slowly(uint32_t r, uint32_t k)
{
    uint64_t product = 0;
    for (int i = 0; i < 32; i++) product ^= (uint64_t)r << i & (0 - (uint64_t)(k >> i & 1));
    return crc_word(0, product);
}

CRC_HARDWARE static inline uint32_t crc32c_hardware(uint32_t r, const unsigned char *p, size_t n)
{
    for (; n >= 3 * CRC_STREAM; p += 3 * CRC_STREAM, n -= 3 * CRC_STREAM) {
        uint32_t s[3] = {r, 0, 0};
        for (size_t i = 0; i < CRC_ROUNDS; i++) {
            crc_round(s, p + 40 * i);
            crc_prefetch(p + 120 * i, 120);
        }
        r = crc_shift_slowly(s[0], crc_over[CRC_OVER_2]) ^ crc_shift_slowly(s[1], crc_over[CRC_OVER_1]) ^ s[2];
    }
    return crc_rest(r, p, n);
}

/* ---- clmul: folding, fused with the streams ------------------------------- */

/* K(d+8) and K(d) for the distances d. */
enum { CRC_BY_256, CRC_BY_192, CRC_BY_128, CRC_BY_64, CRC_BY_48, CRC_BY_32, CRC_BY_16 };
static const uint64_t crc_by[7][2] = {
    {0xDCB17AA4, 0xB9E02B86}, {0xA87AB8A8, 0xAB7AFF2A}, {0x6992CEA2, 0x0D3B6092}, {0x740EEF02, 0x9E4ADDF8},
    {0x1C291D04, 0xDDC0152B}, {0x3DA6D0CB, 0xBA4FC28E}, {0xF20C0DFE, 0x493C7D27},
};

#ifdef CRC_X86
typedef __m128i crc_vec;

CRC_CLMUL CRC_INLINE crc_vec crc_vec_load(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
CRC_CLMUL CRC_INLINE crc_vec crc_vec_of(uint32_t v) { return _mm_cvtsi32_si128((int)v); }
CRC_CLMUL CRC_INLINE crc_vec crc_xor(crc_vec a, crc_vec b) { return _mm_xor_si128(a, b); }

/* The products of (3). */
CRC_CLMUL CRC_INLINE crc_vec crc_first(crc_vec v, crc_vec k) { return _mm_clmulepi64_si128(v, k, 0x00); }
CRC_CLMUL CRC_INLINE crc_vec crc_second(crc_vec v, crc_vec k) { return _mm_clmulepi64_si128(v, k, 0x11); }
#else
typedef uint64x2_t crc_vec;

CRC_CLMUL CRC_INLINE crc_vec crc_vec_load(const void *p) { return vreinterpretq_u64_u8(vld1q_u8(p)); }
CRC_CLMUL CRC_INLINE crc_vec crc_vec_of(uint32_t v) { return vsetq_lane_u64(v, vdupq_n_u64(0), 0); }
CRC_CLMUL CRC_INLINE crc_vec crc_xor(crc_vec a, crc_vec b) { return veorq_u64(a, b); }

/* The products of (3). */
#ifdef __clang__
#define CRC_PRODUCT(v, k, lane) \
    ((crc_vec)__builtin_neon_vmull_p64((poly64_t)vgetq_lane_u64(v, lane), (poly64_t)vgetq_lane_u64(k, lane)))
#else
#define CRC_PRODUCT(v, k, lane) \
    vreinterpretq_u64_p128(vmull_p64((poly64_t)vgetq_lane_u64(v, lane), (poly64_t)vgetq_lane_u64(k, lane)))
#endif
CRC_CLMUL CRC_INLINE crc_vec crc_first(crc_vec v, crc_vec k) { return CRC_PRODUCT(v, k, 0); }
CRC_CLMUL CRC_INLINE crc_vec crc_second(crc_vec v, crc_vec k) { return CRC_PRODUCT(v, k, 1); }
#endif

/* (3): v moved by the distance whose constants k holds. */
CRC_CLMUL CRC_INLINE crc_vec crc_fold(crc_vec v, crc_vec k) { return crc_xor(crc_first(v, k), crc_second(v, k)); }

/* (2) */
CRC_CLMUL CRC_INLINE uint32_t crc_shift(uint32_t r, uint32_t k)
{
    crc_vec product = crc_first(crc_vec_of(r), crc_vec_of(k));
    uint64_t low;
    memcpy(&low, &product, sizeof low);
    return crc_word(0, low);
}

/* Moves four accumulators 64 bytes on, to those at p. */
CRC_CLMUL CRC_INLINE void crc_fold4(crc_vec v[4], const unsigned char *p)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = crc_xor(crc_fold(v[i], crc_vec_load(crc_by[CRC_BY_64])), crc_vec_load(p + 16 * i));
}

/* The remainder of 64 bytes. */
CRC_CLMUL CRC_INLINE uint32_t crc_reduce4(const crc_vec v[4])
{
    crc_vec sum = v[3];
    uint64_t half[2];
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) sum = crc_xor(sum, crc_fold(v[i], crc_vec_load(crc_by[CRC_BY_48 + i])));
    memcpy(half, &sum, sizeof half);
    return crc_word(crc_word(0, half[0]), half[1]);
}

/* A block does not wait for the r before it, which is joined last. */
CRC_CLMUL static inline uint32_t crc32c_clmul(uint32_t r, const unsigned char *p, size_t n)
{
    for (; n >= CRC_BLOCK; p += CRC_BLOCK, n -= CRC_BLOCK) {
        crc_vec v[4] = {crc_vec_of(0), crc_vec_of(0), crc_vec_of(0), crc_vec_of(0)};
        uint32_t s[3] = {0, 0, 0};
        for (size_t i = 0; i < CRC_ROUNDS; i++) {
            crc_fold4(v, p + 64 * i);
            crc_round(s, p + CRC_FOLDED + 40 * i);
            crc_prefetch(p + 184 * i, 184);
        }
        r = crc_shift(r, crc_over[CRC_OVER_BLOCK]) ^ crc_shift(crc_reduce4(v), crc_over[CRC_OVER_3]) ^
            crc_shift(s[0], crc_over[CRC_OVER_2]) ^ crc_shift(s[1], crc_over[CRC_OVER_1]) ^ s[2];
    }
    if (n >= 128) {
        crc_vec v[4] = {crc_xor(crc_vec_load(p), crc_vec_of(r)), crc_vec_load(p + 16), crc_vec_load(p + 32),
                        crc_vec_load(p + 48)};
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) crc_fold4(v, p);
        r = crc_reduce4(v);
    }
    return crc_rest(r, p, n);
}
#endif

/* ---- avx512: folding, four times as wide ----------------------------------- */

#ifdef CRC_X86
CRC_AVX512 CRC_INLINE __m512i crc_wide_by(int distance)
{
    return _mm512_broadcast_i32x4(crc_vec_load(crc_by[distance]));
}

/* (3) in each 16 bytes, added to those of `onto` (0x96: the XOR of three). */
CRC_AVX512 CRC_INLINE __m512i crc_wide_fold(__m512i v, __m512i k, __m512i onto)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(v, k, 0x00), _mm512_clmulepi64_epi128(v, k, 0x11),
                                     onto, 0x96);
}

CRC_AVX512 static inline uint32_t crc32c_avx512(uint32_t r, const unsigned char *p, size_t n)
{
    if (n < 256) return crc32c_clmul(r, p, n);
    __m512i v[4] = {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_zextsi128_si512(crc_vec_of(r))),
                    _mm512_loadu_si512(p + 64), _mm512_loadu_si512(p + 128), _mm512_loadu_si512(p + 192)};
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            v[i] = crc_wide_fold(v[i], crc_wide_by(CRC_BY_256), _mm512_loadu_si512(p + 64 * i));
    }
    __m512i sum = v[3];
#pragma GCC unroll 3
    for (int i = 0; i < 3; i++) sum = crc_wide_fold(v[i], crc_wide_by(CRC_BY_192 + i), sum);
    for (; n >= 64; p += 64, n -= 64) sum = crc_wide_fold(sum, crc_wide_by(CRC_BY_64), _mm512_loadu_si512(p));
    const crc_vec lanes[4] = {_mm512_extracti32x4_epi32(sum, 0), _mm512_extracti32x4_epi32(sum, 1),
                              _mm512_extracti32x4_epi32(sum, 2), _mm512_extracti32x4_epi32(sum, 3)};
    return crc_rest(crc_reduce4(lanes), p, n);
}
#endif

/* ---- the choice ------------------------------------------------------------ */

#if defined(CRC_X86)
static inline int crc_has_hardware(void) { return __builtin_cpu_supports("sse4.2") != 0; }
static inline int crc_has_clmul(void) { return crc_has_hardware() && __builtin_cpu_supports("pclmul"); }
static inline int crc_has_avx512(void)
{
    return crc_has_clmul() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}
#elif defined(CRC_ARM)
static inline int crc_has_hardware(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
static inline int crc_has_clmul(void) { return crc_has_hardware() && (getauxval(AT_HWCAP) & HWCAP_PMULL); }
#endif
static inline int crc_has_portable(void) { return 1; }

typedef struct {
    const char *name;
    int (*present)(void);
    uint32_t (*update)(uint32_t r, const unsigned char *p, size_t n);
} crc32c_path;

/* The fastest first. */
static const crc32c_path crc32c_paths[] = {
#ifdef CRC_X86
    {"avx512", crc_has_avx512, crc32c_avx512},
#endif
#if defined(CRC_X86) || defined(CRC_ARM)
    {"clmul", crc_has_clmul, crc32c_clmul},
    {"hardware", crc_has_hardware, crc32c_hardware},
#endif
    {"portable", crc_has_portable, crc32c_portable},
};

static inline uint32_t crc_update(uint32_t r, const unsigned char *p, size_t n)
{
#ifdef TL_CRC32C_FORCE
#define CRC_PATH_(name) crc32c_##name
#define CRC_PATH(name) CRC_PATH_(name)
    return CRC_PATH(TL_CRC32C_FORCE)(r, p, n);
#else
    static const crc32c_path *_Atomic chosen; /* NULL at first; all threads choose the same */
    const crc32c_path *path = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!path) {
        for (path = crc32c_paths; !path->present();) path++;
        atomic_store_explicit(&chosen, path, memory_order_relaxed);
    }
    return path->update(r, p, n);
#endif
}

/* ---- the interface --------------------------------------------------------- */

/* In: crc  the result for the bytes before, 0 to start
 * Returns: the CRC of all bytes so far; crc itself for n 0 */
static inline uint32_t crc32c(uint32_t crc, const unsigned char *data, size_t n)
{
    return ~crc_update(~crc, data, n);
}

/* Destinations of this size or more, in bytes, are better written past the cache: they
 * would fill it, and what they held before would be read only to be overwritten. */
#define CRC32C_STREAM_FROM ((size_t)8 << 20)

/* A shorter run is written by way of the cache even so: the lines at its two ends, which
 * it shares with its neighbours, would cost more than the others save. */
#define CRC32C_STREAM_RUN ((size_t)4096)

#if defined(__SSE2__) && !defined(TL_CRC32C_NO_STREAM)
#define CRC_PAST_CACHE
#endif

/* memcpy past the cache, as far as the destination has whole lines and the CPU the
 * instruction. Needs a line of bytes, or a dst where a line begins. */
static inline void crc_stream(unsigned char *dst, const unsigned char *src, size_t n)
{
#ifdef CRC_PAST_CACHE
    for (; (uintptr_t)dst % 64; n--) *dst++ = *src++;
    for (; n >= 64; dst += 64, src += 64, n -= 64) {
        __m128i line[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) line[i] = _mm_loadu_si128((const __m128i *)(const void *)(src + 16 * i));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)(void *)(dst + 16 * i), line[i]);
    }
#endif
    memcpy(dst, src, n);
}

/* Ends a series of copies with `stream`: until then other threads may see later writes
 * first. */
static inline void stream_fence(void)
{
#ifdef CRC_PAST_CACHE
    _mm_sfence();
#endif
}

/* Copies n bytes between buffers that do not overlap, a long run past the cache with
 * stream; then stream_fence() has to follow. */
static inline void copy_bytes(unsigned char *dst, const unsigned char *src, size_t n, int stream)
{
    if (stream && n >= CRC32C_STREAM_RUN) crc_stream(dst, src, n);
    else memcpy(dst, src, n);
}

/* Does the same and continues crc over the bytes. A chunk is copied as soon as it is
 * summed, while the nearest cache holds it. Chunks end where a line of dst does, so that
 * every line is written at one go. */
static inline uint32_t crc32c_copy(uint32_t crc, unsigned char *dst, const unsigned char *src, size_t n, int stream)
{
    stream = stream && n >= CRC32C_STREAM_RUN;
    while (n) {
        size_t chunk = 4096 - (uintptr_t)dst % 64;
        if (chunk > n) chunk = n;
        crc = crc32c(crc, src, chunk);
        if (stream) crc_stream(dst, src, chunk);
        else memcpy(dst, src, chunk);
        dst += chunk, src += chunk, n -= chunk;
    }
    return crc;
}

#endif
