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

/* The CRC of zlib, sixteen bytes a step: table k gives what a byte contributes that lies k bytes before the end. */
static uint32_t lane_crc_table[16][256];

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
}

LANE_UNUSED static uint32_t lane_crc(const unsigned char *at, size_t size, uint32_t crc) {
    crc = ~crc;
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
