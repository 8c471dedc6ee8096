from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

cdef extern from "bytes.h" nogil:
    uint16_t lane_get16(const unsigned char *at)
    uint32_t lane_get32(const unsigned char *at)
    uint64_t lane_get64(const unsigned char *at)
    void lane_put16(unsigned char *at, uint16_t value)
    void lane_put32(unsigned char *at, uint32_t value)
    void lane_put64(unsigned char *at, uint64_t value)
    void lane_crc_prepare()
    uint32_t lane_crc(const unsigned char *at, size_t size, uint32_t crc)

ctypedef const unsigned char *Bytes

cdef enum:
    HEAD = 84
    SMALLEST = 91
    V6_HOSTS = 0x30
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB


cdef struct Part:
    Bytes at
    Py_ssize_t size


cdef inline bint record_parts(Bytes record, Py_ssize_t size, Part *topic, Part *properties) noexcept:
    """Topic and properties of a record of ours, which has `size` bytes; false if it is laid out otherwise."""
    cdef int64_t body, left
    if size < SMALLEST or lane_get32(record + 4) != <uint32_t>MAGIC_V1 or record[39] & V6_HOSTS:
        return False
    body = <int32_t>lane_get32(record + HEAD)
    left = size - SMALLEST
    if body < 0 or body > left:
        return False
    topic.at = record + HEAD + 5 + body
    topic.size = topic.at[-1]
    left -= body
    if topic.size > 127 or topic.size > left:
        return False
    properties.at = topic.at + topic.size + 2
    properties.size = <short>lane_get16(properties.at - 2)
    return 0 <= properties.size <= left - topic.size


cdef inline Part find_entry(Part text, const char *name, Py_ssize_t length) noexcept:
    """The value of the last entry with this name that has one."""
    cdef Bytes at = text.at
    cdef Bytes end = text.at + text.size
    cdef Bytes stop
    cdef Part found
    found.at, found.size = NULL, 0
    while at < end:
        stop = <Bytes>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > length and not memcmp(at, name, length):
            found.at, found.size = at + length, stop - at - length
        at = stop + 1
    return found
