# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins of messages and records in the bytes of a pull. The references are in `client/message.py` and `wire/record.py`.

Every length is compared with what is left before a byte is read.
"""

include "guard.pxi"

from struct import Struct

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint32_t

from lanemq._fast.bytes cimport (
    HEAD, MAGIC_V1, MAGIC_V2, SMALLEST, Bytes, Part, find_entry, lane_get32, lane_get64, record_parts
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


cdef class RecordView:
    """Twin of `wire.record.RecordView`. It reads a record of ours itself; any other it passes to the reference."""

    cdef object _buffer, _reference
    cdef Py_ssize_t _start
    cdef Bytes _record
    cdef Part _body, _topic, _text

    def __init__(self, buffer, Py_ssize_t start=0):
        cdef Py_ssize_t left
        cdef int32_t size
        self._buffer, self._start, self._record = buffer, start, NULL
        if type(buffer) is bytes:
            left = PyBytes_GET_SIZE(buffer) - start
            if start >= 0 and left >= SMALLEST:
                record = <Bytes>PyBytes_AS_STRING(buffer) + start
                size = <int32_t>lane_get32(record)
                if size <= left and record_parts(record, size, &self._topic, &self._text):
                    self._record = record
                    self._body.at, self._body.size = record + HEAD + 4, <int32_t>lane_get32(record + HEAD)
        if self._record == NULL:
            self._reference = references["RecordView"](buffer, start)

    @property
    def size(self):
        return self._reference.size if self._record == NULL else <int32_t>lane_get32(self._record)

    @property
    def queue_id(self):
        return self._reference.queue_id if self._record == NULL else <int32_t>lane_get32(self._record + 12)

    @property
    def flag(self):
        return self._reference.flag if self._record == NULL else <int32_t>lane_get32(self._record + 16)

    @property
    def queue_offset(self):
        return self._reference.queue_offset if self._record == NULL else <int64_t>lane_get64(self._record + 20)

    @property
    def position(self):
        return self._reference.position if self._record == NULL else <int64_t>lane_get64(self._record + 28)

    @property
    def sys_flag(self):
        return self._reference.sys_flag if self._record == NULL else <int32_t>lane_get32(self._record + 36)

    @property
    def born_timestamp(self):
        return self._reference.born_timestamp if self._record == NULL else <int64_t>lane_get64(self._record + 40)

    @property
    def born_host(self):
        return self._rare().born_host

    @property
    def store_timestamp(self):
        return self._reference.store_timestamp if self._record == NULL else <int64_t>lane_get64(self._record + 56)

    @property
    def store_host(self):
        return self._rare().store_host

    @property
    def reconsume_times(self):
        return self._reference.reconsume_times if self._record == NULL else <int32_t>lane_get32(self._record + 72)

    @property
    def body(self):
        """The body as stored: compressed if `sys_flag` says so."""
        if self._record == NULL:
            return self._reference.body
        return PyBytes_FromStringAndSize(<char *>self._body.at, self._body.size)

    @property
    def topic(self):
        if self._record == NULL:
            return self._reference.topic
        return PyUnicode_DecodeUTF8(<char *>self._topic.at, self._topic.size, b"replace")

    @property
    def properties_text(self):
        """Bytes that are not UTF-8 are replaced, as in Java: one odd message must not block its queue."""
        if self._record == NULL:
            return self._reference.properties_text
        return PyUnicode_DecodeUTF8(<char *>self._text.at, self._text.size, b"replace")

    @property
    def properties(self):
        """Parsed once and shared: callers must not change it."""
        return self._rare().properties

    def to_bytes(self):
        """A copy of the record alone."""
        return self._rare().to_bytes()

    cdef object _rare(self):
        """The reference, for what is not read often enough to be written twice."""
        if self._reference is None:
            self._reference = references["RecordView"](self._buffer, self._start)
        return self._reference


TWINS = {
    "client.message.MessageBase": MessageBase,
    "client.message.make_messages": make_messages,
    "wire.record.RecordView": RecordView,
}
