/* Big-endian numbers and CRC32, for the compiled twins. Nothing here knows how long a buffer is: callers check first. */
#ifndef LANEMQ_BYTES_H
#define LANEMQ_BYTES_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define LANE_UNUSED __attribute__((unused))
#else
#define LANE_UNUSED
#endif

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define LANE_FOLDS
#include <immintrin.h>
#endif

LANE_UNUSED static inline uint16_t lane_get16(const unsigned char *at) { return (uint16_t)(at[0] << 8 | at[1]); }

LANE_UNUSED static inline uint32_t lane_get32(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

LANE_UNUSED static inline uint64_t lane_get64(const unsigned char *at) {
    return (uint64_t)lane_get32(at) << 32 | lane_get32(at + 4);
}

LANE_UNUSED static inline void lane_put16(unsigned char *at, uint16_t value) {
    at[0] = (unsigned char)(value >> 8);
    at[1] = (unsigned char)value;
}

LANE_UNUSED static inline void lane_put32(unsigned char *at, uint32_t value) {
    lane_put16(at, (uint16_t)(value >> 16));
    lane_put16(at + 2, (uint16_t)value);
}

LANE_UNUSED static inline void lane_put64(unsigned char *at, uint64_t value) {
    lane_put32(at, (uint32_t)(value >> 32));
    lane_put32(at + 4, (uint32_t)value);
}

/* The CRC of zlib. Processors that multiply without carry fold 64 bytes a step; others, and what is left, go by table,
   sixteen bytes a step: table k gives what a byte contributes that lies k bytes before the end. */
static uint32_t lane_crc_table[16][256];
static int lane_crc_folds;

LANE_UNUSED static void lane_crc_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++) rest = rest & 1 ? rest >> 1 ^ 0xEDB88320u : rest >> 1;
        lane_crc_table[0][byte] = rest;
    }
    for (int table = 1; table < 16; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = lane_crc_table[table - 1][byte];
            lane_crc_table[table][byte] = before >> 8 ^ lane_crc_table[0][before & 0xFF];
        }
#ifdef LANE_FOLDS
    lane_crc_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

#ifdef LANE_FOLDS
/* Numbers of the polynomial 0x104C11DB7, bits reversed: what 128 bits become that move past 512 and past 128 others,
   then the steps from 128 to 64 and from 64 to 32 bits (Gopal et al., Intel, 2009). */
#define LANE_BY_512 _mm_set_epi64x(0x01C6E41596, 0x0154442BD4)
#define LANE_BY_128 _mm_set_epi64x(0x00CCAA009E, 0x01751997D0)
#define LANE_TO_64 _mm_set_epi64x(0, 0x0163CD6124)
#define LANE_TO_32 _mm_set_epi64x(0x01F7011641, 0x01DB710641)

__attribute__((target("pclmul,sse4.1"))) static inline __m128i lane_fold(__m128i sum, __m128i by, __m128i next) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00), _mm_clmulepi64_si128(sum, by, 0x11)), next);
}

/* `size` is a multiple of 16, at least 64; `crc` is inverted, before and after. */
__attribute__((target("pclmul,sse4.1"), unused)) static uint32_t lane_crc_folded(
    const unsigned char *at, size_t size, uint32_t crc) {
    const __m128i *next = (const __m128i *)at, *end = (const __m128i *)(at + size);
    const __m128i low = _mm_set_epi32(0, 0, 0, -1);
    __m128i sums[4];
    for (int i = 0; i < 4; i++) sums[i] = _mm_loadu_si128(next++);
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128((int)crc));
    for (; end - next >= 4; next += 4)
        for (int i = 0; i < 4; i++) sums[i] = lane_fold(sums[i], LANE_BY_512, _mm_loadu_si128(next + i));
    __m128i sum = sums[0];
    for (int i = 1; i < 4; i++) sum = lane_fold(sum, LANE_BY_128, sums[i]);
    while (next < end) sum = lane_fold(sum, LANE_BY_128, _mm_loadu_si128(next++));
    sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, LANE_BY_128, 0x10));
    sum = _mm_xor_si128(_mm_srli_si128(sum, 4), _mm_clmulepi64_si128(_mm_and_si128(sum, low), LANE_TO_64, 0x00));
    __m128i parts = _mm_clmulepi64_si128(_mm_and_si128(sum, low), LANE_TO_32, 0x10);
    parts = _mm_clmulepi64_si128(_mm_and_si128(parts, low), LANE_TO_32, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(sum, parts), 1);
}
#endif

LANE_UNUSED static uint32_t lane_crc(const unsigned char *at, size_t size, uint32_t crc) {
    crc = ~crc;
#ifdef LANE_FOLDS
    if (lane_crc_folds && size >= 64) {
        size_t whole = size & ~(size_t)15;
        crc = lane_crc_folded(at, whole, crc);
        at += whole;
        size -= whole;
    }
#endif
    while (size >= 16) {
        uint32_t first = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = lane_crc_table[15][first & 0xFF] ^ lane_crc_table[14][first >> 8 & 0xFF] ^
              lane_crc_table[13][first >> 16 & 0xFF] ^ lane_crc_table[12][first >> 24] ^
              lane_crc_table[11][at[4]] ^ lane_crc_table[10][at[5]] ^ lane_crc_table[9][at[6]] ^
              lane_crc_table[8][at[7]] ^ lane_crc_table[7][at[8]] ^ lane_crc_table[6][at[9]] ^
              lane_crc_table[5][at[10]] ^ lane_crc_table[4][at[11]] ^ lane_crc_table[3][at[12]] ^
              lane_crc_table[2][at[13]] ^ lane_crc_table[1][at[14]] ^ lane_crc_table[0][at[15]];
        at += 16;
        size -= 16;
    }
    while (size--) crc = crc >> 8 ^ lane_crc_table[0][(crc ^ *at++) & 0xFF];
    return ~crc;
}
#endif
