from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef extern from "bytes.h" nogil:
    uint16_t lane_get16(const unsigned char *at)
    uint32_t lane_get32(const unsigned char *at)
    uint64_t lane_get64(const unsigned char *at)
    void lane_put16(unsigned char *at, uint16_t value)
    void lane_put32(unsigned char *at, uint32_t value)
    void lane_put64(unsigned char *at, uint64_t value)
    void lane_crc_prepare()
    uint32_t lane_crc(const unsigned char *at, size_t size, uint32_t crc)
