# cython: language_level=3, boundscheck=True, wraparound=False, binding=False, cdivision=True
"""Twins for the producer: packing messages, the inbox, batch bodies, receipts, and settling futures.

The references are in `client/producer/` (`batches.py`, `inbox.py`, `outcomes.py`, `receipts.py`), with what everything
means. These twins work on the caller's objects, so errors raised by a codec, an iterator or a key pass
through. A plain message builds its properties text only when it is read, which is usually in the body of a batch.
"""

include "guard.pxi"

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_GET_LENGTH
from libc.stdint cimport int64_t, uint32_t
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.string cimport memchr, memcpy, memset

from lanemq._fast.bytes cimport lane_put16, lane_put32
from lanemq._fast.ids cimport MessageIds
from lanemq._fast.loop_futures cimport LoopFuture, new_loop_future
from lanemq._fast.submissions cimport Submission, new_future

from lanemq._fast.submissions import SubmittedFuture
from lanemq.model.keys import key_text

cdef extern from *:
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    void *PyUnicode_DATA(object text)


cdef enum:
    BATCH_HEAD = 20
    BATCH_FRAME = 22
    MAX_PROPERTIES = 32767
    QUICK_KEY = 7800
    MESSAGE_OVERHEAD = 100
    MAX_IN_LINE = 4096
    MIN_INBOX_BYTES = 1024 * (4096 + 4 * 250 + 2 * 100)
    TEXT_FRAME = 35

cdef const char *BEFORE_KEY = b"__SHARDINGKEY\x01"
cdef const char *BEFORE_ID = b"\x02UNIQ_KEY\x01"
cdef const char *AFTER_ID = b"\x02WAIT\x01true\x02"


@cython.no_gc
@cython.freelist(1024)
cdef class QuickMessage:
    """A `PendingMessage` with a key and nothing special; all fields that it does not store are constants."""

    cdef readonly bytes body
    cdef readonly str key
    cdef str _id
    cdef MessageIds _ids
    cdef uint32_t _number
    cdef readonly object waiter
    cdef object _sender
    cdef readonly Py_ssize_t index
    cdef readonly Py_ssize_t size

    @property
    def message_id(self):
        return self._id if self._ids is None else self._ids.text(self._number)

    @property
    def properties(self):
        return _properties_text(self.key, self.message_id)

    @property
    def sys_flag(self):
        return 0

    @property
    def alone(self):
        return False

    @property
    def sender_waits(self):
        return False


cdef object _properties_text(str key, str message_id):
    from lanemq.client.producer.batches import properties_text  # which imports this module

    return properties_text(key, message_id)


cdef inline QuickMessage _new_message(bytes body, str key, MessageIds ids, next_id, waiter):
    """A message with the next id of `ids`, or of `next_id` if there are none."""
    cdef QuickMessage message = QuickMessage.__new__(QuickMessage)
    message.body, message.key, message.waiter = body, key, waiter
    if ids is None:
        message._id = next_id()
    else:
        message._ids, message._number = ids, ids.take()
    message.size = PyBytes_GET_SIZE(body) + PyUnicode_GET_LENGTH(key) + _id_length(message)
    message.size += TEXT_FRAME + MESSAGE_OVERHEAD
    return message


cdef inline Py_ssize_t _id_length(QuickMessage message):
    return PyUnicode_GET_LENGTH(message._id) if message._ids is None else message._ids.length()


cdef MessageIds _source(next_id):
    """The object whose `next` this is, to be used without a Python call; None if it is another function."""
    of = getattr(next_id, "__self__", None)
    return of if type(of) is MessageIds and next_id == of.next else None


cdef class Intake:
    """Twin of `client.producer.inbox.Intake`."""

    cdef public dict topics
    cdef public bint open
    cdef public Py_ssize_t max_messages, max_bytes
    cdef readonly Py_ssize_t bytes
    cdef object _encode, _next_id, _new_future, _loop
    cdef MessageIds _ids
    cdef Py_ssize_t _max_body
    cdef bint _passes_bytes, _makes_submitted, _makes_loop_futures
    cdef list _line

    def __init__(self, encode, next_id, new_future, Py_ssize_t max_body, bint passes_bytes):
        self.topics = {}
        self.max_messages, self.max_bytes = MAX_IN_LINE, MIN_INBOX_BYTES
        self._line = []
        self._encode, self._next_id, self._new_future = encode, next_id, new_future
        self._makes_submitted, self._makes_loop_futures = new_future is SubmittedFuture, new_future is LoopFuture
        self._ids = _source(next_id)
        self._max_body, self._passes_bytes = max_body, passes_bytes

    def take(self, topic, key, value, waiter=None):
        if type(key) is not str:
            key = key_text(key)
        senders = self.topics.get(topic) if type(topic) is str else None
        if senders is None or not self.open or len(self._line) >= self.max_messages or self.bytes > self.max_bytes:
            return None
        sender = (<dict>senders).get(key)
        if sender is None:
            sender = senders.find(key)
        body = value if self._passes_bytes and type(value) is bytes else self._encode(value)
        if sender is None or type(body) is not bytes or PyBytes_GET_SIZE(body) > self._max_body:
            return None
        if waiter is None:
            waiter = new_future() if self._makes_submitted else self._new_waiter()
        cdef QuickMessage message = _new_message(body, key, self._ids, self._next_id, waiter)
        message._sender = sender
        self._line.append(message)
        self.bytes += message.size
        return waiter

    def put(self, sender, message):
        self._line.append((sender, message))
        self.bytes += message.size

    cdef object _new_waiter(self):
        """A producer on an event loop uses one loop all its life, so it is looked up once."""
        if not self._makes_loop_futures:
            return self._new_future()
        if self._loop is None:
            from asyncio import get_running_loop

            self._loop = get_running_loop()
        return new_loop_future(self._loop)

    def __len__(self):
        return len(self._line)

    def take_out(self):
        cdef list line = self._line, messages = None
        cdef dict by_sender = {}
        cdef object last = None, sender
        self._line, self.bytes = [], 0
        for message in line:
            if type(message) is QuickMessage:
                sender = (<QuickMessage>message)._sender
            else:
                sender, message = <tuple>message
            if sender is not last:
                last = sender
                messages = by_sender.get(last)
                if messages is None:
                    messages = by_sender[last] = []
            messages.append(message)
        return by_sender


def pack_pairs(tools, source, waiter, Py_ssize_t index, list chunk not None, Py_ssize_t room):
    """Twin of `client.producer.batches.pack_pairs`."""
    encode, next_id, refuse, make, nothing, limits = tools
    cdef Py_ssize_t max_messages = limits[0], max_body = limits[1], size
    cdef bint passes_bytes = limits[2]
    cdef object errors = waiter.errors
    cdef MessageIds ids = _source(next_id)
    cdef QuickMessage message
    while len(chunk) < max_messages and not errors:
        given = next(source, nothing)
        if given is nothing:
            break
        if type(given) is not tuple or len(<tuple>given) != 2:
            return given, None, room
        key, value = <tuple>given
        if type(key) is not str and key is not None:
            key = key_text(key)
        if key is None or not _is_good_key(key):
            return given, None, room
        body = value if passes_bytes and type(value) is bytes else encode(value)
        if type(body) is not bytes:
            return given, None, room
        size = PyBytes_GET_SIZE(body)
        if size > max_body:
            refuse(size)
        message = _new_message(body, key, ids, next_id, waiter)
        message.index = index
        index += 1
        room -= size
        if room < 0:
            return nothing, message, room
        chunk.append(message)
    return nothing, None, room


cdef inline bint _is_good_key(str key):
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(key)
    if not 0 < length <= QUICK_KEY:
        return False
    if PyUnicode_IS_ASCII(key):
        return memchr(PyUnicode_DATA(key), 1, length) == NULL and memchr(PyUnicode_DATA(key), 2, length) == NULL
    return "\x01" not in key and "\x02" not in key and _is_unicode(key)


cdef bint _is_unicode(str key):
    """Twin of `model.keys.is_unicode`. The text keeps its UTF-8 form, which the body of a batch needs."""
    cdef Py_ssize_t size
    try:
        PyUnicode_AsUTF8AndSize(key, &size)
    except UnicodeEncodeError:
        return False
    return True


def sort_chunk(dict known not None, queue_of, chunk):
    """Twin of `client.producer.choosing.sort_chunk`."""
    cdef dict by_queue = {}, by_key = {}
    cdef list messages
    for message in chunk:
        key = (<QuickMessage>message).key if isinstance(message, QuickMessage) else message.key
        messages = None if key is None else by_key.get(key)
        if messages is None:
            queue = None if key is None else known.get(key)
            messages = by_queue.setdefault(queue_of(key) if queue is None else queue, [])
            if key is not None:
                by_key[key] = messages
        messages.append(message)
    return by_queue


def total_size(messages):
    """Twin of `client.producer.batches.total_size`."""
    cdef Py_ssize_t total = 0
    for message in messages:
        if isinstance(message, QuickMessage):  # a conditional expression would create an int for each size
            total += (<QuickMessage>message).size
        else:
            total += message.size
    return total


def batch_body(messages, str stamp not None, sequence):
    """Twin of `client.producer.batches.batch_body`."""
    body = _batch_body(messages, stamp, sequence) if type(messages) is tuple and 0 <= sequence < 1 << 60 else None
    return references["batch_body"](messages, stamp, sequence) if body is None else body


cdef bytes _batch_body(tuple messages, str stamp, int64_t sequence):
    """Computes the size first, then writes. None if the reference has to do it."""
    cdef Py_ssize_t stamp_size, size, total = 0, i = 0
    cdef const char *stamp_text = PyUnicode_AsUTF8AndSize(stamp, &stamp_size)
    cdef list others = []
    for message in messages:
        size = _message_size(message, others, stamp_size + _digits(sequence + i) + 1)
        if size < 0:
            return None
        total += size
        i += 1
    if total > 0x7FFFFFFF:
        return None
    cdef bytes whole = PyBytes_FromStringAndSize(NULL, total)
    cdef unsigned char *at = <unsigned char *>PyBytes_AS_STRING(whole)
    cdef unsigned char *end
    cdef bytes body
    texts = iter(others)
    for message in messages:
        if isinstance(message, QuickMessage):
            body = (<QuickMessage>message).body
            end = _put_quick_text(at + BATCH_FRAME + PyBytes_GET_SIZE(body), <QuickMessage>message)
        else:
            body = next(texts)
            end = _put_text(at + BATCH_FRAME + PyBytes_GET_SIZE(body), next(texts))
        end = _put_number(_put(end, stamp_text, stamp_size), sequence)
        at = _put_frame(at, body, end)
        sequence += 1
    return whole


cdef Py_ssize_t _message_size(message, list others, Py_ssize_t stamp_size) except? -2:
    """The bytes of one message in a batch; -1 if it is unusual. Adds body and text of other messages to `others`."""
    cdef Py_ssize_t text_size
    if isinstance(message, QuickMessage):
        body = (<QuickMessage>message).body
        PyUnicode_AsUTF8AndSize((<QuickMessage>message).key, &text_size)
        text_size += _id_length(<QuickMessage>message) + TEXT_FRAME
    else:
        body, text = message.body, message.properties
        if type(body) is not bytes or type(text) is not str or not PyUnicode_IS_ASCII(text):
            return -1
        text_size = PyUnicode_GET_LENGTH(text)
        others += (body, text)
    if text_size + stamp_size > MAX_PROPERTIES:
        return -1
    return BATCH_FRAME + PyBytes_GET_SIZE(body) + text_size + stamp_size


cdef inline int _digits(int64_t number) noexcept:
    cdef int count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


cdef inline unsigned char *_put(unsigned char *at, const char *text, Py_ssize_t size) noexcept:
    memcpy(at, text, size)
    return at + size


cdef inline unsigned char *_put_number(unsigned char *at, int64_t number) noexcept:
    """Writes the number in decimal, and the end of the property behind it."""
    cdef unsigned char *end = at + _digits(number)
    at = end
    end[0] = 2
    while True:
        at -= 1
        at[0] = <unsigned char>(48 + number % 10)
        number //= 10
        if number == 0:
            return end + 1


cdef inline unsigned char *_put_text(unsigned char *at, str text) except NULL:
    cdef Py_ssize_t size
    cdef const char *start = PyUnicode_AsUTF8AndSize(text, &size)
    return _put(at, start, size)


cdef unsigned char *_put_quick_text(unsigned char *at, QuickMessage message) except NULL:
    """Writes the properties without the stamp; the caller has made room."""
    at = _put(_put_text(_put(at, BEFORE_KEY, 14), message.key), BEFORE_ID, 10)
    at = _put_text(at, message._id) if message._ids is None else message._ids.put(at, message._number)
    return _put(at, AFTER_ID, 11)


cdef unsigned char *_put_frame(unsigned char *at, bytes body, unsigned char *end) noexcept:
    """Writes everything but the properties, which are already there and end at `end`."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    lane_put32(at, <uint32_t>(end - at))
    lane_put32(at + 4, 0)
    lane_put32(at + 8, 0)
    lane_put32(at + 12, 0)
    lane_put32(at + 16, <uint32_t>size)
    memcpy(at + BATCH_HEAD, PyBytes_AS_STRING(body), size)
    lane_put16(at + BATCH_HEAD + size, <unsigned short>(end - at - BATCH_FRAME - size))
    return end


cdef uint32_t OTHER = 0xFFFFFFFF
"""The batch of a message whose receipt is kept whole, or that is not stored yet."""


cdef class ReceiptTable:
    """Twin of `client.producer.receipts.ReceiptTable`: 24 bytes for each message, where a receipt takes 200."""

    cdef object _make
    cdef list _keys, _batches
    cdef dict _others
    cdef MessageIds _ids
    cdef Py_ssize_t _room
    cdef int64_t *_offsets
    cdef uint32_t *_numbers
    cdef uint32_t *_places

    def __init__(self, make):
        self._make = make
        self._keys, self._batches, self._others = [], [], {}

    def __dealloc__(self):
        PyMem_RawFree(self._offsets)
        PyMem_RawFree(self._numbers)
        PyMem_RawFree(self._places)

    def add(self, messages, waiter, queue, int64_t first_offset, stored, repeat):
        cdef Py_ssize_t index, largest = -1
        cdef uint32_t batch = <uint32_t>len(self._batches)
        cdef QuickMessage quick
        for message in messages:
            if isinstance(message, QuickMessage):
                quick = <QuickMessage>message
                if quick.waiter is not waiter:
                    return False
                index = quick.index
            else:
                if message.waiter is not waiter:
                    return False
                index = message.index
            if index < 0:
                raise ValueError("a message of a call has a number from 0 on")
            largest = max(largest, index)
        self._make_room(largest + 1)
        self._batches.append((queue, stored, repeat))
        for message in messages:
            if isinstance(message, QuickMessage) and self._knows((<QuickMessage>message)._ids):
                quick = <QuickMessage>message
                index = quick.index
                self._keys[index] = quick.key
                self._numbers[index], self._offsets[index], self._places[index] = quick._number, first_offset, batch
            else:
                index = message.index
                self._others[index] = self._make(
                    queue, first_offset, message.message_id, message.key, stored, repeat
                )
            first_offset += 1
        return True

    def put(self, Py_ssize_t index, receipt):
        self._make_room(index + 1)
        self._others[index] = receipt

    def get(self, Py_ssize_t index):
        if not 0 <= index < self._room or self._places[index] == OTHER:
            return self._others[index]
        queue, stored, repeat = self._batches[self._places[index]]
        message_id = self._ids.text(self._numbers[index])
        return self._make(queue, self._offsets[index], message_id, self._keys[index], stored, repeat)

    cdef bint _knows(self, MessageIds ids):
        """Whether the ids of the table's messages come from here; the first ones decide."""
        if self._ids is None:
            self._ids = ids
        return ids is not None and ids is self._ids

    cdef int _make_room(self, Py_ssize_t count) except -1:
        cdef Py_ssize_t room = self._room
        if count <= room:
            return 0
        count = max(count, room + room // 2, 1024)
        self._offsets = <int64_t *>_resized(self._offsets, count * sizeof(int64_t))
        self._numbers = <uint32_t *>_resized(self._numbers, count * sizeof(uint32_t))
        self._places = <uint32_t *>_resized(self._places, count * sizeof(uint32_t))
        memset(self._places + room, 0xFF, (count - room) * sizeof(uint32_t))
        self._keys.extend([None] * (count - room))
        self._room = count
        return 0


cdef void *_resized(void *block, size_t size) except NULL:
    block = PyMem_RawRealloc(block, size)
    if block == NULL:
        raise MemoryError
    return block


def settle(messages, make, queue, first_offset, stored, repeat):
    """Twin of `client.producer.outcomes.settle`."""
    cdef list rest = []
    cdef tuple facts = (make, queue, stored, repeat)
    cdef int64_t offset = first_offset
    cdef QuickMessage quick
    for message in messages:
        if isinstance(message, QuickMessage):
            quick = <QuickMessage>message
            waiter, key = quick.waiter, quick.key
            if quick._ids is not None and isinstance(waiter, Submission) and (<Submission>waiter)._made is None:
                (<Submission>waiter).settle_numbered(quick._ids, quick._number, key, offset, facts)
                offset += 1
                continue
            if quick._ids is not None and isinstance(waiter, LoopFuture):
                (<LoopFuture>waiter).settle_numbered(quick._ids, quick._number, key, offset, facts)
                offset += 1
                continue
        else:
            waiter, key = message.waiter, message.key
        message_id = message.message_id
        if isinstance(waiter, Submission) and (<Submission>waiter)._made is None:
            (<Submission>waiter).settle(message_id, key, offset, facts)
        elif isinstance(waiter, LoopFuture):
            (<LoopFuture>waiter).settle(message_id, key, offset, facts)
        else:
            rest.append((waiter, message.index, make(queue, offset, message_id, key, stored, repeat)))
        offset += 1
    return rest


TWINS = {
    "client.producer.batches.pack_pairs": pack_pairs,
    "client.producer.choosing.sort_chunk": sort_chunk,
    "client.producer.batches.batch_body": batch_body,
    "client.producer.receipts.ReceiptTable": ReceiptTable,
    "client.producer.outcomes.settle": settle,
    "client.producer.batches.total_size": total_size,
    "client.producer.inbox.Intake": Intake,
}
