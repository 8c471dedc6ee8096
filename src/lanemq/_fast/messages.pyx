# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins of messages and records in the bytes of a pull, and of decoding their bodies. The references are in
`client/message.py`, `client/codec.py` (`checked_decoder`), `client/consumer/turns/arguments.py` and `wire/record.py`.

Every length is compared with what is left before a byte is read.
"""

include "guard.pxi"

from collections.abc import Mapping
from struct import Struct

from msgspec.json import Decoder as JsonDecoder

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memchr, memcmp

from lanemq._fast.bytes cimport (
    HEAD, MAGIC_V1, MAGIC_V2, SMALLEST, Bytes, Part, find_entry, lane_get32, lane_get64, record_parts
)


from lanemq._fast.keys import find_key

cdef extern from *:
    ctypedef struct PyTypeObject:
        object (*tp_new)(object kind, object arguments, PyObject *names)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint PyUnicode_IS_ASCII(object text)
    Py_ssize_t Py_REFCNT(object counted)
    bint PyObject_GC_IsTracked(object tracked)
    void PyObject_GC_Track(void *tracked)
    void PyObject_GC_UnTrack(void *tracked)


cdef object SIZE_AND_OFFSET = Struct(">i16xq").unpack_from
cdef tuple NOTHING = ()
cdef enum:
    KEY_NAME = 14
    COMPRESSED = 1


# --- messages


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

    @property
    def offset(self):
        """Its offset in the queue."""
        return self.queue_offset

    @property
    def queue(self):
        return self._source.queue

    @property
    def body(self):
        """The bytes as the producer sent them, decompressed."""
        return body_of(self)

    @property
    def properties(self):
        cdef MessageProperties properties
        cdef Part topic
        cdef Bytes record = record_of(self)
        if record == NULL:
            return MessageProperties(self.record)
        properties = MessageProperties.__new__(MessageProperties)
        if not record_parts(record, self.size, &topic, &properties._text):
            return MessageProperties(self.record)
        properties._buffer, properties._start = self._buffer, self._start
        return properties

    @property
    def record(self):
        """The stored record itself, for fields that have no property here."""
        if self._view is None:
            self._view = RecordView(self._buffer, self._start)
        return self._view


cdef inline Bytes record_of(MessageBase message) noexcept:
    """The record of a message, if all of it is in the buffer."""
    buffer = message._buffer
    if type(buffer) is bytes and SMALLEST <= message.size and 0 <= message._start <= PyBytes_GET_SIZE(buffer) - message.size:
        return <Bytes>PyBytes_AS_STRING(buffer) + message._start
    return NULL


cdef object key_of(MessageBase message):
    cdef Part value
    if message._known:
        return message._key
    if not find_key_bytes(message, &value):
        message._key = find_key(message._buffer, message._start)
    elif value.at != NULL:
        message._key = PyUnicode_DecodeUTF8(<char *>value.at, value.size, b"replace")
    message._known = True
    return message._key


cdef bint find_key_bytes(MessageBase message, Part *value) noexcept:
    """The bytes of a message's key, without any if it has none; false if the record must be read by the reference."""
    cdef Part topic, properties
    cdef Bytes record = record_of(message)
    if record == NULL or not record_parts(record, message.size, &topic, &properties):
        return False
    value[0] = find_entry(properties, b"__SHARDINGKEY\x01", KEY_NAME)
    return True


cdef void set_key(MessageBase message, key):
    """Tells a message its key, which was not read before."""
    message._key, message._known = key, True


cdef object body_of(MessageBase message):
    cdef Part topic, properties
    cdef Bytes record = record_of(message)
    if record == NULL or record[39] & COMPRESSED or not record_parts(record, message.size, &topic, &properties):
        return references["MessageBase"].body.fget(message)
    return PyBytes_FromStringAndSize(<char *>(record + HEAD + 4), <int32_t>lane_get32(record + HEAD))


cdef class MessageProperties:
    """Twin of `client.message.MessageProperties`. All but the look-up of one name it leaves to the decoded dict."""

    cdef object _buffer, _record
    cdef Py_ssize_t _start
    cdef Part _text

    def __init__(self, record):
        self._record = record

    def __getitem__(self, name):
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name, default=None):
        found = self._find(name)
        return default if found is None else found

    def __contains__(self, name):
        return self._find(name) is not None

    def __iter__(self):
        return iter(self._all())

    def __len__(self):
        return len(self._all())

    def keys(self):
        return self._all().keys()

    def values(self):
        return self._all().values()

    def items(self):
        return self._all().items()

    def __eq__(self, other):
        return self._all() == dict(other.items()) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None

    def __repr__(self):
        return repr(self._all())

    cdef object _find(self, name):
        cdef Part value
        cdef const char *sought
        cdef Py_ssize_t size
        if self._buffer is None or type(name) is not str or not PyUnicode_IS_ASCII(name):
            return self._all().get(name)
        sought = PyUnicode_AsUTF8AndSize(name, &size)
        value = find_named(self._text, sought, size)
        if value.at == NULL:
            return None
        return PyUnicode_DecodeUTF8(<char *>value.at, value.size, b"replace")

    cdef dict _all(self):
        if self._record is None:
            self._record = RecordView(self._buffer, self._start)
        return self._record.properties


Mapping.register(MessageProperties)


cdef inline Part find_named(Part text, const char *name, Py_ssize_t length) noexcept:
    """As `find_entry`, for a name without the separator behind it."""
    cdef Bytes at = text.at
    cdef Bytes end = text.at + text.size
    cdef Bytes stop
    cdef Part found
    found.at, found.size = NULL, 0
    if not length or memchr(name, 1, length) != NULL:
        return found
    while at < end:
        stop = <Bytes>memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > length + 1 and at[length] == 1 and not memcmp(at, name, length):
            found.at, found.size = at + length + 1, stop - at - length - 1
        at = stop + 1
    return found


def make_messages(kind, source, body, bint waiting=False):
    """Twin of `client.message.make_messages`."""
    if type(body) is not bytes or not issubclass(kind, MessageBase):
        return references["make_messages"](kind, source, body, waiting)
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
            return references["make_messages"](kind, source, body, waiting)
        message = (<PyTypeObject *>kind).tp_new(kind, NOTHING, NULL)
        message.size = size
        message.queue_offset = <int64_t>lane_get64(data + position + 20)
        message.retried_here = 0
        message._source, message._buffer, message._start = source, body, position
        if waiting:
            PyObject_GC_UnTrack(<void *>message)
        messages.append(message)
        position += size
    return messages if position == end else references["make_messages"](kind, source, body, waiting)


cdef int track(tuple messages) except -1:
    """Makes the garbage collector visit messages that were made `waiting`."""
    for message in messages:
        if isinstance(message, MessageBase) and not PyObject_GC_IsTracked(message):
            PyObject_GC_Track(<void *>message)
    return 0


# --- decoding bodies


cdef class BodyView:
    """Lends a body to a decoder where it lies in the bytes of a pull, which saves a copy for each message."""

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self.at, self.size, 1, flags)


cdef class CheckedDecoder:
    """What `checked_decoder` makes."""

    def __call__(self, body):
        return decoded(self, body)


cdef inline object decoded(CheckedDecoder decoder, body):
    try:
        return decoder.decode(body)
    except decoder.errors as error:
        raise decoder.explain(error) from error


def checked_decoder(decode, errors, explain):
    """Twin of `client.codec.checked_decoder`."""
    cdef CheckedDecoder decoder = CheckedDecoder.__new__(CheckedDecoder)
    decoder.decode, decoder.errors, decoder.explain = decode, errors, explain
    decoder.lends = type(getattr(decode, "__self__", None)) is JsonDecoder
    return decoder


cdef bint lend_body(CheckedDecoder decoder, MessageBase message, BodyView view) noexcept:
    """Lets `view` show the body of a message, if the decoder can read it there; nothing else may refer to `view`."""
    cdef Part topic, properties
    cdef Bytes record
    if not decoder.lends or Py_REFCNT(view) > 1:
        return False
    record = record_of(message)
    if record == NULL or record[39] & COMPRESSED or not record_parts(record, message.size, &topic, &properties):
        return False
    view.owner, view.at, view.size = message._buffer, record + HEAD + 4, <int32_t>lane_get32(record + HEAD)
    return True


cdef object lent_event(CheckedDecoder decoder, MessageBase message, BodyView view):
    """What the decoder makes of a body that was lent; raises its errors as they are.

    An event may refer to what it was decoded from (`msgspec.Raw`) and would keep a whole pull in memory. Its decoder
    gets a copy of each body from then on.
    """
    event = decoder.decode(view)
    if Py_REFCNT(view) > 1:
        decoder.lends = False
        event = decoder.decode(body_of(message))
    return event


cdef class EventCall:
    """What `event_call` makes."""

    def __call__(self, message):
        return call_with_event(self, message)


cdef object call_with_event(EventCall call, message):
    """Calls the handler; anything but a plain body of JSON is decoded by the reference."""
    decode = call.decode
    try:
        body = body_of(<MessageBase>message) if isinstance(message, MessageBase) else message.body
        event = decoded(<CheckedDecoder>decode, body) if type(decode) is CheckedDecoder else decode(body)
    except call.errors as error:
        raise call.explain(message, error) from error
    if call.message_at < 0:
        return call.handler(event)
    return call.handler(event, message) if call.message_at else call.handler(message, event)


def event_call(handler, decode, int message_at, errors, explain):
    """Twin of `client.consumer.turns.arguments.event_call`."""
    cdef EventCall call = EventCall.__new__(EventCall)
    call.handler, call.decode, call.message_at = handler, decode, message_at
    call.errors, call.explain = errors, explain
    return call


# --- records


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
    "client.codec.checked_decoder": checked_decoder,
    "client.consumer.turns.arguments.event_call": event_call,
    "client.message.MessageBase": MessageBase,
    "client.message.MessageProperties": MessageProperties,
    "client.message.make_messages": make_messages,
    "wire.record.RecordView": RecordView,
}
