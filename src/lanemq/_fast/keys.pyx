# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins for what is looked for in every record: its key, and the hashes under which it can be found.

The references are in `client/message.py` and `log/key_index.py`, with what everything means. Every length is compared
with what is left before a byte is read: the bytes are not trusted.
"""

include "guard.pxi"

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp

from lanemq._fast.bytes cimport (
    HEAD, MAGIC_V1, SMALLEST, Bytes, Part, find_entry, lane_crc, lane_crc_prepare, lane_get32, lane_get64, lane_put32,
    record_parts
)


lane_crc_prepare()

cdef enum:
    CHECKSUM_AT = 76
    MAX_RECORD = 67108864
    KEY_NAME = 14
    ID_NAME = 9


def find_key(buffer, start):
    """Twin of `client.message.find_key`."""
    cdef Py_ssize_t at, end
    cdef Part topic, properties, value
    if type(buffer) is not bytes or start < 0:
        return references["find_key"](buffer, start)
    at, end = start, PyBytes_GET_SIZE(buffer)
    cdef Bytes record = <Bytes>PyBytes_AS_STRING(buffer) + at
    cdef int64_t size
    if end - at < SMALLEST:
        return references["find_key"](buffer, start)
    size = <int32_t>lane_get32(record)
    if size > end - at or not record_parts(record, <Py_ssize_t>size, &topic, &properties):
        return references["find_key"](buffer, start)
    value = find_entry(properties, b"__SHARDINGKEY\x01", KEY_NAME)
    return None if value.at == NULL else PyUnicode_DecodeUTF8(<char *>value.at, value.size, b"replace")


def scan_keys(bytes buffer not None, int64_t position):
    """Twin of `log.key_index.scan_keys`."""
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(buffer), size
    cdef list hashes = [], positions = []
    cdef int count
    cdef unsigned char found[8]
    cdef uint64_t places[2]
    while True:
        size = _intact(data + at, end - at, position + at)
        if size == 0:
            return b"".join(hashes), b"".join(positions), at
        count = _hashes(data + at, size, found)
        if count < 0:
            one = references["scan_keys"](buffer[at:at + size], position + at)
            hashes.append(one[0])
            positions.append(one[1])
        elif count:
            places[0] = places[1] = <uint64_t>(position + at)
            hashes.append(PyBytes_FromStringAndSize(<char *>found, 4 * count))
            positions.append(PyBytes_FromStringAndSize(<char *>places, 8 * count))
        at += size


cdef Py_ssize_t _intact(Bytes record, Py_ssize_t left, int64_t position) noexcept:
    """The size of the record that belongs here; 0 if it is not whole."""
    cdef int64_t size
    if left < SMALLEST:
        return 0
    size = <int32_t>lane_get32(record)
    if (lane_get32(record + 4) != <uint32_t>MAGIC_V1 or <int64_t>lane_get64(record + 28) != position or size < SMALLEST
            or size > MAX_RECORD or size > left):
        return 0
    cdef uint64_t check = lane_crc(record + HEAD, size - HEAD, lane_crc(record, CHECKSUM_AT, 0))
    cdef uint64_t stored = lane_get64(record + CHECKSUM_AT)
    if stored != check and stored != check ^ <uint64_t>0x1FFFFFFFF:  # `wire.record.proves`
        return 0
    return <Py_ssize_t>size


cdef int _hashes(Bytes record, Py_ssize_t size, unsigned char *found) noexcept:
    """Puts the hashes of unique id and key into `found`: how many, or -1 for what the reference has to look at."""
    cdef Part topic, text, unique, key
    cdef uint32_t scope
    cdef int count = 0
    if not record_parts(record, size, &topic, &text) or not _is_ascii(topic) or not _is_ascii(text):
        return -1
    if find_entry(text, b"KEYS\x01", 5).at != NULL:
        return -1
    unique, key = find_entry(text, b"UNIQ_KEY\x01", ID_NAME), find_entry(text, b"__SHARDINGKEY\x01", KEY_NAME)
    scope = lane_crc(<Bytes>b"#", 1, lane_crc(topic.at, topic.size, 0))
    if unique.at != NULL:
        lane_put32(found, lane_crc(unique.at, unique.size, scope))
        count = 1
    if key.at != NULL and not (key.size == unique.size and not memcmp(key.at, unique.at, key.size)):
        lane_put32(found + 4 * count, lane_crc(key.at, key.size, scope))
        count += 1
    return count


cdef inline bint _is_ascii(Part text) noexcept:
    cdef unsigned char seen = 0
    cdef Py_ssize_t i
    for i in range(text.size):
        seen |= text.at[i]
    return seen < 0x80


TWINS = {
    "client.message.find_key": find_key,
    "log.key_index.scan_keys": scan_keys,
}
