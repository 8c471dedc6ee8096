# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins for the producer: packing messages, the body of a batch, receipts.

The references are in `client/send_packing.py`, `client/send_requests.py` and `client/send_outcomes.py`, with what
everything means. These work on the caller's objects, so whatever a codec, an iterator or a key raises goes through.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_GET_LENGTH
from libc.stdint cimport int64_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport getenv
from libc.string cimport memcpy

from lanemq._fast.bytes cimport lane_put16, lane_put32

from lanemq._fast import references

cdef extern from *:
    const char *LANEMQ_SOURCES
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef const char *_pure = getenv(b"LANEMQ_PURE")
if _pure != NULL and _pure[0] not in (0, 48):
    raise ImportError("LANEMQ_PURE is set")

SOURCES = LANEMQ_SOURCES.decode()

cdef enum:
    BATCH_HEAD = 20
    BATCH_FRAME = 22
    NUMBER_ROOM = 24
    MOST_PROPERTIES = 32767
    QUICK_TEXT = 8000
    PARCEL_OVERHEAD = 100


def pack_pairs(tools, source, ticket, Py_ssize_t index, list run not None, Py_ssize_t room):
    """Twin of `client.send_packing.pack_pairs`."""
    encode, next_id, refuse, make, nothing, limits = tools
    cdef Py_ssize_t most_messages = limits[0], most_body = limits[1], size
    cdef bint as_it_is = limits[2]
    cdef object errors = ticket.errors
    while len(run) < most_messages and not errors:
        message = next(source, nothing)
        if message is nothing:
            break
        if type(message) is not tuple or len(<tuple>message) != 2:
            return message, None, room
        key, value = <tuple>message
        if type(key) is not str or not _is_good_key(key):
            return message, None, room
        body = value if as_it_is and type(value) is bytes else encode(value)
        size = len(body)
        if size > most_body:
            refuse(size)
        message_id = next_id()
        text = f"__SHARDINGKEY\x01{key}\x02UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02"
        parcel = make(
            body, text, message_id, key, 0, False, False, ticket, index, size + PyUnicode_GET_LENGTH(text) + PARCEL_OVERHEAD
        )
        index += 1
        room -= size
        if room < 0:
            return nothing, (key, parcel), room
        run.append((key, parcel))
    return nothing, None, room


cdef inline bint _is_good_key(str key):
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(key)
    return 0 < length <= QUICK_TEXT - 200 and "\x01" not in key and "\x02" not in key


def batch_body(parcels, str stamp not None, sequence):
    """Twin of `client.send_requests.batch_body`."""
    body = _batch_body(parcels, stamp, sequence) if type(parcels) is tuple and 0 <= sequence < 1 << 60 else None
    return references["batch_body"](parcels, stamp, sequence) if body is None else body


cdef bytes _batch_body(tuple parcels, str stamp, int64_t sequence):
    """In two steps, the size first; None for what the reference has to look at."""
    cdef Py_ssize_t stamp_size, text_size, size, total = 0, room = 0
    cdef const char *stamp_text = PyUnicode_AsUTF8AndSize(stamp, &stamp_size)
    cdef const char *text
    cdef list bodies = [], texts = []
    cdef unsigned char *at
    cdef Py_ssize_t i
    for parcel in parcels:
        body, properties = parcel.body, parcel.properties
        if type(body) is not bytes or type(properties) is not str or not PyUnicode_IS_ASCII(properties):
            return None
        text_size = PyUnicode_GET_LENGTH(properties)
        if text_size + stamp_size + NUMBER_ROOM > MOST_PROPERTIES:
            return None
        room += BATCH_FRAME + PyBytes_GET_SIZE(body) + text_size + stamp_size + NUMBER_ROOM
        bodies.append(body)
        texts.append(properties)
    if room > 0x7FFFFFFF:
        return None
    cdef bytes scratch = PyBytes_FromStringAndSize(NULL, room)
    cdef unsigned char *start = <unsigned char *>PyBytes_AS_STRING(scratch)
    at = start
    for i in range(len(bodies)):
        body, properties = bodies[i], texts[i]
        size = PyBytes_GET_SIZE(body)
        text = PyUnicode_AsUTF8AndSize(properties, &text_size)
        total = _put_message(at, PyBytes_AS_STRING(body), size, text, text_size, stamp_text, stamp_size, sequence + i)
        at += total
    return PyBytes_FromStringAndSize(<char *>start, at - start)


cdef Py_ssize_t _put_message(unsigned char *at, const char *body, Py_ssize_t size, const char *text,
                             Py_ssize_t text_size, const char *stamp, Py_ssize_t stamp_size, int64_t number) noexcept:
    """The bytes written; the caller has made room."""
    cdef unsigned char *properties = at + BATCH_FRAME + size
    cdef Py_ssize_t length = text_size + stamp_size
    memcpy(at + BATCH_HEAD, body, size)
    memcpy(properties, text, text_size)
    memcpy(properties + text_size, stamp, stamp_size)
    length += snprintf(<char *>properties + length, NUMBER_ROOM, b"%lld\x02", <long long>number)
    lane_put32(at, <uint32_t>(BATCH_FRAME + size + length))
    lane_put32(at + 4, 0)
    lane_put32(at + 8, 0)
    lane_put32(at + 12, 0)
    lane_put32(at + 16, <uint32_t>size)
    lane_put16(at + BATCH_HEAD + size, <unsigned short>length)
    return BATCH_FRAME + size + length


def receipts_of(parcels, make, queue, first_offset, stored, repeat):
    """Twin of `client.send_outcomes.receipts_of`."""
    cdef list receipts = [], indexes = []
    cdef int64_t offset = first_offset
    shared = None
    for parcel in parcels:
        ticket = parcel.ticket
        if shared is None:
            shared = ticket
        elif ticket is not shared:
            return references["receipts_of"](parcels, make, queue, first_offset, stored, repeat)
        receipts.append(make(queue, offset, parcel.message_id, parcel.key, stored, repeat))
        indexes.append(parcel.index)
        offset += 1
    return receipts, indexes, True


TWINS = {each.__name__: each for each in (pack_pairs, batch_body, receipts_of)}
