# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins for stored records: sealing them, finding them in a pull's body, proving them, and their index entries.

The references are in `wire/record.py`, `wire/batch.py`, `wire/stamp_runs.py`, `log/appender.py`,
`log/reading.py` and `log/record_bytes.py`, with what everything means.
Every length is compared with what is left before a byte is read: the bytes are not trusted.
"""

include "guard.pxi"

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memchr, memcmp, memcpy

from lanemq._fast.bytes cimport (
    lane_crc, lane_crc_prepare, lane_get16, lane_get32, lane_get64, lane_put16, lane_put32, lane_put64,
)


lane_crc_prepare()

cdef enum:
    HEAD = 84
    SMALLEST = 91
    CHECKSUM_AT = 76
    MAX_TOPIC = 127
    MAX_PROPERTIES = 32767
    MAX_RECORD = 67108864
    ENTRY = 20
    BATCH_FRAME = 22
    COMPARED = 16

ctypedef const unsigned char *Bytes

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef int64_t INT32_LIMIT = 0x7FFFFFFF
cdef int64_t MAX_POSITION = <int64_t>1 << 62
cdef int64_t NOT_PLAIN = 0x7FFFFFFFFFFF


cdef inline bint _is_int(int64_t number) noexcept:
    return -INT32_LIMIT - 1 <= number <= INT32_LIMIT


def crc(const unsigned char[::1] data not None, uint32_t before=0):
    """For the tests: must be zlib's."""
    return lane_crc(&data[0], data.shape[0], before) if data.shape[0] else before


def seal_records(items, bytes topic not None, int64_t queue_id, int64_t queue_offset, int64_t position,
                 bytes born_host not None, int64_t store_timestamp, bytes store_host not None):
    """Twin of `wire.record.seal_records`."""
    records = _seal_all(items, topic, queue_id, queue_offset, position, born_host, store_timestamp, store_host)
    if records is None:
        return references["seal_records"](
            items, topic, queue_id, queue_offset, position, born_host, store_timestamp, store_host
        )
    return records


cdef list _seal_all(object items, bytes topic, int64_t queue_id, int64_t queue_offset, int64_t position,
                    bytes born_host, int64_t store_timestamp, bytes store_host):
    """None for what the reference has to look at."""
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic)
    cdef list records
    cdef bytes record
    if (topic_size > MAX_TOPIC or PyBytes_GET_SIZE(born_host) != 8 or PyBytes_GET_SIZE(store_host) != 8
            or not _is_int(queue_id) or type(items) not in (list, tuple)):
        return None
    records = []
    for item in items:
        if type(item) is not tuple or len(<tuple>item) != 7:
            return None
        record = _seal(<tuple>item, topic, topic_size, queue_id, queue_offset, position, born_host, store_timestamp,
                       store_host)
        if record is None:
            return None
        records.append(record)
        queue_offset += 1
        position += PyBytes_GET_SIZE(record)
    return records


cdef bytes _seal(tuple item, bytes topic, Py_ssize_t topic_size, int64_t queue_id, int64_t queue_offset,
                 int64_t position, bytes born_host, int64_t store_timestamp, bytes store_host):
    cdef int64_t flag, sys_flag, born, reconsumed
    try:
        flag, sys_flag, born, reconsumed = item[3], item[4], item[5], item[6]
    except (OverflowError, TypeError):
        return None
    return _seal_one(<object>PyTuple_GET_ITEM(item, 0), <object>PyTuple_GET_ITEM(item, 1), flag, sys_flag, born,
                     reconsumed, topic, topic_size, queue_id, queue_offset, position, born_host, store_timestamp,
                     store_host)


cdef bytes _seal_one(object body, object properties, int64_t flag, int64_t sys_flag, int64_t born, int64_t reconsumed,
                     bytes topic, Py_ssize_t topic_size, int64_t queue_id, int64_t queue_offset, int64_t position,
                     bytes born_host, int64_t store_timestamp, bytes store_host):
    if type(body) is not bytes or type(properties) is not bytes:
        return None
    cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body), text_size = PyBytes_GET_SIZE(properties)
    if (text_size > MAX_PROPERTIES or body_size > INT32_LIMIT - 65536
            or not (_is_int(flag) and _is_int(sys_flag) and _is_int(reconsumed))):
        return None
    cdef bytes record = PyBytes_FromStringAndSize(NULL, SMALLEST + body_size + topic_size + text_size)
    _put_record(<unsigned char *>PyBytes_AS_STRING(record), <Bytes>PyBytes_AS_STRING(body), body_size,
                <Bytes>PyBytes_AS_STRING(properties), text_size, flag, sys_flag, born, reconsumed, topic, topic_size,
                queue_id, queue_offset, position, born_host, store_timestamp, store_host)
    return record


cdef Py_ssize_t _put_record(unsigned char *at, Bytes body, Py_ssize_t body_size, Bytes properties, Py_ssize_t text_size,
                            int64_t flag, int64_t sys_flag, int64_t born, int64_t reconsumed, bytes topic,
                            Py_ssize_t topic_size, int64_t queue_id, int64_t queue_offset, int64_t position,
                            bytes born_host, int64_t store_timestamp, bytes store_host) noexcept:
    """Writes a record where the caller has made room, and returns its size."""
    cdef Py_ssize_t size = SMALLEST + body_size + topic_size + text_size
    cdef unsigned char *tail = at + HEAD
    lane_put32(at, <uint32_t>size)
    lane_put32(at + 4, MAGIC_V1)
    lane_put32(at + 8, lane_crc(body, body_size, 0) & 0x7FFFFFFF)
    lane_put32(at + 12, <uint32_t>queue_id)
    lane_put32(at + 16, <uint32_t>flag)
    lane_put64(at + 20, <uint64_t>queue_offset)
    lane_put64(at + 28, <uint64_t>position)
    lane_put32(at + 36, <uint32_t>sys_flag & ~<uint32_t>0x30)
    lane_put64(at + 40, <uint64_t>born)
    memcpy(at + 48, PyBytes_AS_STRING(born_host), 8)
    lane_put64(at + 56, <uint64_t>store_timestamp)
    memcpy(at + 64, PyBytes_AS_STRING(store_host), 8)
    lane_put32(at + 72, <uint32_t>reconsumed)
    lane_put32(tail, <uint32_t>body_size)
    memcpy(tail + 4, body, body_size)
    tail += 4 + body_size
    tail[0] = <unsigned char>topic_size
    memcpy(tail + 1, PyBytes_AS_STRING(topic), topic_size)
    tail += 1 + topic_size
    lane_put16(tail, <unsigned short>text_size)
    memcpy(tail + 2, properties, text_size)
    lane_put64(at + CHECKSUM_AT, lane_crc(at + HEAD, size - HEAD, lane_crc(at, CHECKSUM_AT, 0)))
    return size


def seal_batch(batch, bytes topic not None, int64_t queue_id, int64_t queue_offset, int64_t position,
               bytes born_host not None, int64_t store_timestamp, bytes store_host not None):
    """Twin of `wire.batch.seal_batch`."""
    records = None
    try:
        records = _seal_batch(batch.body, batch.count, batch.sys_flag, batch.born, batch.reconsume_times, topic, queue_id,
                              queue_offset, position, born_host, store_timestamp, store_host)
    except (OverflowError, TypeError):
        records = None
    if records is None:
        return references["seal_batch"](
            batch, topic, queue_id, queue_offset, position, born_host, store_timestamp, store_host
        )
    return records


cdef bytes _seal_batch(bytes body, Py_ssize_t count, int64_t sys_flag, int64_t born, int64_t reconsumed, bytes topic,
                       int64_t queue_id, int64_t queue_offset, int64_t position, bytes born_host,
                       int64_t store_timestamp, bytes store_host):
    """None for what the reference has to look at. Every length is checked before anything is written."""
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic), at = 0, end = PyBytes_GET_SIZE(body), found = 0
    cdef int64_t size, length, text_length
    cdef Bytes whole = <Bytes>PyBytes_AS_STRING(body)
    cdef unsigned char *to
    if (topic_size > MAX_TOPIC or PyBytes_GET_SIZE(born_host) != 8 or PyBytes_GET_SIZE(store_host) != 8
            or end > INT32_LIMIT - 65536 or not (_is_int(queue_id) and _is_int(sys_flag) and _is_int(reconsumed))):
        return None
    while at + BATCH_FRAME <= end:
        size = <int32_t>lane_get32(whole + at)
        length = <int32_t>lane_get32(whole + at + 16)
        if length < 0 or size > end - at or BATCH_FRAME + length > size:
            return None
        text_length = <int16_t>lane_get16(whole + at + BATCH_FRAME - 2 + length)
        if text_length < 0 or BATCH_FRAME + length + text_length != size:
            return None
        found += 1
        at += <Py_ssize_t>size
    if at != end or found != count or not count:
        return None
    cdef bytes records = PyBytes_FromStringAndSize(NULL, end + count * (SMALLEST - BATCH_FRAME + topic_size))
    to, at = <unsigned char *>PyBytes_AS_STRING(records), 0
    while at < end:
        size = <int32_t>lane_get32(whole + at)
        length = <int32_t>lane_get32(whole + at + 16)
        found = _put_record(to, whole + at + BATCH_FRAME - 2, <Py_ssize_t>length, whole + at + BATCH_FRAME + length,
                            <Py_ssize_t>(size - BATCH_FRAME - length), <int32_t>lane_get32(whole + at + 12), sys_flag,
                            born, reconsumed, topic, topic_size, queue_id, queue_offset, position, born_host,
                            store_timestamp, store_host)
        to += found
        position += found
        queue_offset += 1
        at += <Py_ssize_t>size
    return records


def record_starts(buffer):
    """Twin of `wire.record.record_starts`."""
    if type(buffer) is not bytes:
        return references["record_starts"](buffer)
    cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t position = 0, end = PyBytes_GET_SIZE(buffer)
    cdef int32_t size
    cdef uint32_t magic
    cdef list starts = []
    while position + SMALLEST <= end:
        size = <int32_t>lane_get32(data + position)
        magic = lane_get32(data + position + 4)
        if size < SMALLEST or (magic != MAGIC_V1 and magic != MAGIC_V2):
            return references["record_starts"](buffer)
        starts.append(position)
        position += size
    return starts if position == end else references["record_starts"](buffer)


def hides_record(records, int64_t position):
    """Twin of `log.record_bytes.hides_record`."""
    if type(records) is not bytes or position < 0 or position > MAX_POSITION:
        return references["hides_record"](records, position)
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(records)
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(records), size
    while at + SMALLEST <= end:
        size = <int32_t>lane_get32(data + at)
        if size < SMALLEST or size > end - at or lane_get32(data + at + 4) != MAGIC_V1:
            return references["hides_record"](records, position)
        if _hides_record(data + at, size, position + at):
            return True
        at += size
    return False if at == end else references["hides_record"](records, position)


cdef bint _hides_record(Bytes record, Py_ssize_t size, int64_t position) noexcept:
    """After each byte of the magic's first value, some more are compared in place: where that value is frequent, a new
    search for each would take long."""
    cdef Py_ssize_t at = 5, near
    cdef const void *found
    while at + 4 <= size:
        found = memchr(record + at, 0xDA, size - 3 - at)
        if found == NULL:
            return False
        at = <Bytes>found - record
        near = at + COMPARED if at + COMPARED < size - 3 else size - 3
        while at < near:
            if lane_get32(record + at) == MAGIC_V1 and _may_lie_there(record, size, at, position):
                return True
            at += 1
    return False


cdef bint _may_lie_there(Bytes record, Py_ssize_t size, Py_ssize_t magic_at, int64_t position) noexcept:
    """Whether the position after a magic, or as much of it as the record has, is that of the bytes themselves."""
    cdef unsigned char expected[8]
    cdef Py_ssize_t there = size - magic_at - 24
    lane_put64(expected, <uint64_t>(position + magic_at - 4))
    return there <= 0 or memcmp(record + magic_at + 24, expected, 8 if there > 8 else there) == 0


def entries_of(bytes records not None, offset, int64_t position, tag_codes):
    """Twin of `log.appender.entries_of`."""
    packed = None
    if tag_codes is None or type(tag_codes) is list:
        try:
            packed = _entries_of(records, offset & 0xFFFFFFFF, position, tag_codes)
        except (OverflowError, TypeError):
            packed = None
    return references["entries_of"](records, offset, position, tag_codes) if packed is None else packed


cdef bytes _entries_of(bytes records, uint32_t offset, int64_t position, list tag_codes):
    """None for what the reference has to look at."""
    cdef Bytes whole = <Bytes>PyBytes_AS_STRING(records)
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(records), count = 0, i
    cdef int64_t tag_code = 0
    cdef int32_t size
    while at + SMALLEST <= end:
        size = <int32_t>lane_get32(whole + at)
        if size < SMALLEST or size > end - at:
            return None
        at += size
        count += 1
    if at != end or not (tag_codes is None or PyList_GET_SIZE(tag_codes) == count):
        return None
    cdef bytes packed = PyBytes_FromStringAndSize(NULL, count * ENTRY)
    cdef unsigned char *to = <unsigned char *>PyBytes_AS_STRING(packed)
    at = 0
    for i in range(count):
        if tag_codes is not None:
            tag_code = tag_codes[i]
            if not _is_int(tag_code):
                return None
        size = <int32_t>lane_get32(whole + at)
        lane_put64(to, <uint64_t>(position + at))
        lane_put32(to + 8, <uint32_t>size)
        lane_put32(to + 12, <uint32_t>tag_code)
        lane_put32(to + 16, lane_crc(to, 16, offset + <uint32_t>i))
        at += size
        to += ENTRY
    return packed


def verify(bytes data not None, queue_id, entries, offsets):
    """Twin of `log.reading.verify`."""
    if type(entries) is not list or type(offsets) is not list or len(<list>offsets) < len(<list>entries):
        return references["verify"](data, queue_id, entries, offsets)
    bad = _verify(data, queue_id, entries, offsets)
    return references["verify"](data, queue_id, entries, offsets) if bad is None else bad


cdef list _verify(bytes data, int64_t queue_id, list entries, list offsets):
    cdef const unsigned char *whole = <const unsigned char *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(data), i
    cdef int64_t base = 0, position, size, start, offset
    cdef list bad = []
    cdef tuple entry
    for i in range(PyList_GET_SIZE(entries)):
        entry = entries[i]
        position, size, offset = entry[0], entry[1], offsets[i]
        if i == 0:
            base = position
        start = position - base
        if start < 0 or size < HEAD or start > length or size > length - start:
            bad.append(i)
            continue
        if not _is_record(whole + start, size, queue_id, offset, position):
            bad.append(i)
    return bad


def adjacent_runs(raw, int64_t max_bytes):
    """Twin of `log.reading.adjacent_runs`."""
    if type(raw) is not bytes or PyBytes_GET_SIZE(raw) % ENTRY:
        return references["adjacent_runs"](raw, max_bytes)
    cdef const unsigned char *at = <const unsigned char *>PyBytes_AS_STRING(raw)
    cdef const unsigned char *stop = at + PyBytes_GET_SIZE(raw)
    cdef int64_t position, size, total = 0, start = 0, end = -1, length = 0
    cdef list runs = []
    while at < stop:
        position, size = <int64_t>lane_get64(at), <int32_t>lane_get32(at + 8)
        if size <= 0 or not 0 <= position < MAX_POSITION:
            return None
        total += size
        if total > max_bytes and length:
            break
        if position == end:
            length += 1
        else:
            if length:
                runs.append((start, end - start, length))
            start, length = position, 1
        end = position + size
        at += ENTRY
    if length:
        runs.append((start, end - start, length))
    return runs


def is_intact(bytes data not None, int64_t queue_id, int64_t offset, bytes raw not None, Py_ssize_t first,
              Py_ssize_t count):
    """Twin of `log.reading.is_intact`."""
    cdef const unsigned char *whole = <const unsigned char *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(data), entries = PyBytes_GET_SIZE(raw) // ENTRY, i
    if first < 0 or count < 1 or first > entries or count > entries - first or offset < 0:
        return references["is_intact"](data, queue_id, offset, raw, first, count)
    cdef const unsigned char *entry = <const unsigned char *>PyBytes_AS_STRING(raw) + first * ENTRY
    cdef int64_t base = <int64_t>lane_get64(entry), position, size, at = 0
    for i in range(count):
        position, size = <int64_t>lane_get64(entry), <int32_t>lane_get32(entry + 8)
        if (position != base + at or size < HEAD or size > length - at
                or not _is_record(whole + at, size, queue_id, offset + first + i, position)):
            return False
        at += size
        entry += ENTRY
    return at == length


cdef bint _is_record(const unsigned char *at, int64_t size, int64_t queue_id, int64_t offset, int64_t position) noexcept:
    """Whether these bytes, which are there, are exactly what was stored at this place in queue and log."""
    return (lane_get32(at) == <uint32_t>size and lane_get32(at + 4) == MAGIC_V1
            and <int32_t>lane_get32(at + 12) == queue_id and <int64_t>lane_get64(at + 20) == offset
            and <int64_t>lane_get64(at + 28) == position
            and _proves(lane_get64(at + CHECKSUM_AT), lane_crc(at + HEAD, size - HEAD, lane_crc(at, CHECKSUM_AT, 0))))


cdef inline bint _proves(uint64_t stored, uint64_t check) noexcept:
    """Twin of `wire.record.proves`."""
    return stored == check or stored == check ^ <uint64_t>0x1FFFFFFFF


def index_runs(buffer, position, dropped):
    """Twin of `log.record_bytes.index_runs`."""
    if type(buffer) is not bytes or type(dropped) is not dict:
        return references["index_runs"](buffer, position, dropped)
    found = _index_runs(buffer, position, dropped)
    return references["index_runs"](buffer, position, dropped) if found is None else found


cdef class _Run:
    """The entries of one queue, and where its topic was last seen."""

    cdef bytes topic
    cdef int32_t queue_id
    cdef int64_t first, following
    cdef bytearray entries
    cdef Py_ssize_t size


cdef tuple _index_runs(bytes buffer, int64_t position, dict dropped):
    """None for what the reference has to look at."""
    cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(buffer)
    cdef const unsigned char *record
    cdef const unsigned char *text
    cdef Py_ssize_t length = PyBytes_GET_SIZE(buffer), at = 0
    cdef int64_t size, body, topic_at, text_at, offset, store_time, tag_code, newest = 0, count = 0
    cdef Py_ssize_t topic_size, text_size
    cdef int32_t queue_id
    cdef dict runs = {}
    cdef _Run run = None
    cdef bytes topic
    while at + HEAD <= length:
        record = data + at
        size = <int32_t>lane_get32(record)
        if (lane_get32(record + 4) != MAGIC_V1 or <int64_t>lane_get64(record + 28) != position + at
                or size < SMALLEST or size > MAX_RECORD or size > length - at):
            break
        if not _proves(lane_get64(record + CHECKSUM_AT),
                       lane_crc(record + HEAD, size - HEAD, lane_crc(record, CHECKSUM_AT, 0))):
            break
        body = <int32_t>lane_get32(record + HEAD)
        topic_at = HEAD + 4 + body
        if body < 0 or topic_at + 3 > size:
            break
        topic_size = record[topic_at]
        text_at = topic_at + 1 + topic_size + 2
        if text_at > size:
            break
        text_size = <int16_t>lane_get16(record + text_at - 2)
        if text_size < 0 or text_at + text_size != size:
            break
        queue_id = <int32_t>lane_get32(record + 12)
        offset = <int64_t>lane_get64(record + 20)
        if (run is None or run.queue_id != queue_id or PyBytes_GET_SIZE(run.topic) != topic_size
                or memcmp(PyBytes_AS_STRING(run.topic), record + topic_at + 1, topic_size) != 0):
            topic = PyBytes_FromStringAndSize(<const char *>(record + topic_at + 1), topic_size)
            run = runs.get((topic, queue_id))
            if run is None:
                run = _Run.__new__(_Run)
                run.topic, run.queue_id, run.first, run.following = topic, queue_id, offset, offset
                run.entries, run.size = bytearray(), 0
                if not dropped or position + at >= dropped.get(topic, 0):
                    runs[topic, queue_id] = run
        if not dropped or position + at >= dropped.get(run.topic, 0):
            if run.size == 0:
                # It may have begun with records of a dropped topic, which have no entry.
                run.first = run.following = offset
                runs[run.topic, queue_id] = run
            if run.following != offset:
                break
            tag_code = _tag_code(record + text_at, text_size)
            if tag_code == NOT_PLAIN:
                return None
            _add_entry(run, position + at, size, <int32_t>tag_code)
        store_time = <int64_t>lane_get64(record + 56)
        if store_time > newest:
            newest = store_time
        count += 1
        at += size
    found = []
    for run in runs.values():
        if run.size:
            found.append((run.topic, run.queue_id, run.first, bytes(run.entries[:run.size])))
        else:
            found.append((run.topic, run.queue_id, run.first, b""))
    return found, count, newest, at


cdef int _add_entry(_Run run, int64_t position, int64_t size, int32_t tag_code) except -1:
    cdef Py_ssize_t room = PyByteArray_GET_SIZE(run.entries)
    if run.size + ENTRY > room:
        PyByteArray_Resize(run.entries, 2 * room + 64 * ENTRY)
    cdef unsigned char *at = <unsigned char *>PyByteArray_AS_STRING(run.entries) + run.size
    lane_put64(at, <uint64_t>position)
    lane_put32(at + 8, <uint32_t>size)
    lane_put32(at + 12, <uint32_t>tag_code)
    lane_put32(at + 16, lane_crc(at, 16, <uint32_t>run.following))
    run.size += ENTRY
    run.following += 1
    return 0


cdef int64_t _tag_code(const unsigned char *text, Py_ssize_t size) noexcept:
    """As `wire.properties.tag_code_of` for a plain tag, or none; `NOT_PLAIN` for what the reference has to look at."""
    cdef Py_ssize_t i, at = -1
    cdef uint32_t hashed = 0
    for i in range(size - 4):
        if text[i] == 84 and memcmp(text + i, b"TAGS\x01", 5) == 0:
            if at >= 0 or (i and text[i - 1] != 2):
                return NOT_PLAIN
            at = i + 5
    if at < 0:
        return 0
    if at == size or text[at] == 2:
        return NOT_PLAIN
    while at < size and text[at] != 2:
        if text[at] >= 128:
            return NOT_PLAIN
        hashed = 31 * hashed + text[at]
        at += 1
    return <int32_t>hashed


cdef class _Stamped:
    """A run of `stamp_runs` that grows. `prefix` is what the properties of its records end with, but for the number."""

    cdef bytes topic
    cdef int32_t queue_id
    cdef object run
    cdef bytes prefix
    cdef int64_t sequence, offset, count, newest


def stamp_runs(buffer, start, end):
    """Twin of `wire.stamp_runs.stamp_runs`."""
    found = None
    if type(buffer) is bytes and 0 <= start and end <= len(buffer):
        found = _stamp_runs(buffer, start, end)
    return references["stamp_runs"](buffer, start, end) if found is None else found


cdef list _stamp_runs(bytes buffer, Py_ssize_t at, Py_ssize_t end):
    """None for what the reference has to look at."""
    cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(buffer)
    cdef const unsigned char *record
    cdef int64_t size, body, topic_at, text_at, offset, store_time
    cdef Py_ssize_t topic_size, text_size
    cdef int32_t queue_id
    cdef dict newest = {}
    cdef list runs = []
    cdef _Stamped run = None, following
    cdef bytes topic
    while at < end:
        record = data + at
        if at + SMALLEST > end:
            return None
        size = <int32_t>lane_get32(record)
        body = <int32_t>lane_get32(record + HEAD)
        topic_at = HEAD + 4 + body
        if (lane_get32(record + 4) != MAGIC_V1 or lane_get32(record + 36) & 0x30 or size < SMALLEST
                or size > end - at or body < 0 or topic_at + 3 > size):
            return None
        topic_size = record[topic_at]
        text_at = topic_at + 1 + topic_size + 2
        if topic_size > MAX_TOPIC or text_at > size:
            return None
        text_size = <int16_t>lane_get16(record + text_at - 2)
        if text_size < 0 or text_at + text_size != size:
            return None
        queue_id = <int32_t>lane_get32(record + 12)
        if (run is None or run.queue_id != queue_id or PyBytes_GET_SIZE(run.topic) != topic_size
                or memcmp(PyBytes_AS_STRING(run.topic), record + topic_at + 1, topic_size) != 0):
            topic = PyBytes_FromStringAndSize(<const char *>(record + topic_at + 1), topic_size)
            run = newest.get((topic, queue_id))
        else:
            topic = run.topic
        offset, store_time = <int64_t>lane_get64(record + 20), <int64_t>lane_get64(record + 56)
        if run is not None and offset == run.offset and _ends_with(record + text_at, text_size, run):
            _grow(run, store_time)
        elif _has_stamp(record + text_at, text_size):
            for each in references["stamp_runs"](buffer, at, at + size):
                following = _begun(each, topic, queue_id)
                if (run is not None and offset == run.offset and following.sequence == run.sequence + 1
                        and following.prefix == run.prefix and run.run[:2] == each[:2]):
                    _grow(run, store_time)
                else:
                    run = following
                    newest[topic, queue_id] = run
                    runs.append(run)
        at += size
    return [(<_Stamped>each).run._replace(length=(<_Stamped>each).count, stored_at=(<_Stamped>each).newest)
            for each in runs]


cdef _Stamped _begun(object run, bytes topic, int32_t queue_id):
    cdef _Stamped begun = _Stamped.__new__(_Stamped)
    producer, epoch, sequence = run.first
    begun.topic, begun.queue_id, begun.run = topic, queue_id, run
    begun.prefix = f"\x02LANE_STAMP\x01{producer}.{epoch}.".encode()
    begun.sequence, begun.offset, begun.count, begun.newest = sequence + 1, run.offset + 1, 1, run.stored_at
    return begun


cdef inline void _grow(_Stamped run, int64_t store_time) noexcept:
    run.count += 1
    run.sequence += 1
    run.offset += 1
    if store_time > run.newest:
        run.newest = store_time


cdef bint _ends_with(const unsigned char *text, Py_ssize_t size, _Stamped run) noexcept:
    """Whether properties end with the next stamp of a run."""
    cdef char number[24]
    cdef Py_ssize_t prefix = PyBytes_GET_SIZE(run.prefix)
    cdef Py_ssize_t digits = snprintf(number, 24, b"%lld\x02", <long long>run.sequence)
    return (size >= prefix + digits and memcmp(text + size - digits, number, digits) == 0
            and memcmp(text + size - digits - prefix, PyBytes_AS_STRING(run.prefix), prefix) == 0)


cdef bint _has_stamp(const unsigned char *text, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size - 10):
        if text[i] == 76 and memcmp(text + i, b"LANE_STAMP\x01", 11) == 0:
            return True
    return False


TWINS = {
    "wire.stamp_runs.stamp_runs": stamp_runs,
    "log.record_bytes.index_runs": index_runs,
    "log.record_bytes.hides_record": hides_record,
    "wire.record.seal_records": seal_records,
    "wire.batch.seal_batch": seal_batch,
    "log.appender.entries_of": entries_of,
    "wire.record.record_starts": record_starts,
    "log.reading.adjacent_runs": adjacent_runs,
    "log.reading.is_intact": is_intact,
    "log.reading.verify": verify,
}
