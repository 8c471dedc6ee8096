# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins of messages in the bytes of a pull. The references are in `client/message.py`.

Every length is compared with what is left before a byte is read.
"""

include "guard.pxi"

from struct import Struct

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint32_t

from lanemq._fast.bytes cimport (
    MAGIC_V1, MAGIC_V2, SMALLEST, Bytes, Part, find_entry, lane_get32, lane_get64, record_parts
)


from lanemq._fast.keys import find_key

cdef extern from *:
    ctypedef struct PyTypeObject:
        object (*tp_new)(object kind, object arguments, PyObject *names)


cdef object SIZE_AND_OFFSET = Struct(">i16xq").unpack_from
cdef tuple NOTHING = ()
cdef enum:
    KEY_NAME = 14


cdef class MessageBase:
    """Twin of `client.message.MessageBase`."""

    def __init__(self, source, buffer, Py_ssize_t start):
        self.size, self.queue_offset = SIZE_AND_OFFSET(buffer, start)
        self.retried_here = 0
        self._source, self._buffer, self._start = source, buffer, start

    @property
    def key(self):
        """The key, which decides its lane; None if it was sent without one."""
        return key_of(self)


cdef object key_of(MessageBase message):
    cdef Part topic, properties, value
    cdef Bytes record
    if message._known:
        return message._key
    buffer = message._buffer
    if type(buffer) is bytes and 0 <= message._start <= PyBytes_GET_SIZE(buffer) - message.size:
        record = <Bytes>PyBytes_AS_STRING(buffer) + message._start
        if record_parts(record, message.size, &topic, &properties):
            value = find_entry(properties, b"__SHARDINGKEY\x01", KEY_NAME)
            if value.at != NULL:
                message._key = PyUnicode_DecodeUTF8(<char *>value.at, value.size, b"replace")
            message._known = True
            return message._key
    message._key = find_key(buffer, message._start)
    message._known = True
    return message._key


def make_messages(kind, source, body):
    """Twin of `client.message.make_messages`."""
    if type(body) is not bytes or not issubclass(kind, MessageBase):
        return references["make_messages"](kind, source, body)
    cdef Bytes data = <Bytes>PyBytes_AS_STRING(body)
    cdef Py_ssize_t position = 0, end = PyBytes_GET_SIZE(body)
    cdef int32_t size
    cdef uint32_t magic
    cdef list messages = []
    cdef MessageBase message
    while position + SMALLEST <= end:
        size = <int32_t>lane_get32(data + position)
        magic = lane_get32(data + position + 4)
        if size < SMALLEST or (magic != <uint32_t>MAGIC_V1 and magic != <uint32_t>MAGIC_V2):
            return references["make_messages"](kind, source, body)
        message = (<PyTypeObject *>kind).tp_new(kind, NOTHING, NULL)
        message.size = size
        message.queue_offset = <int64_t>lane_get64(data + position + 20)
        message.retried_here = 0
        message._source, message._buffer, message._start = source, body, position
        messages.append(message)
        position += size
    return messages if position == end else references["make_messages"](kind, source, body)


TWINS = {
    "client.message.MessageBase": MessageBase,
    "client.message.make_messages": make_messages,
}
