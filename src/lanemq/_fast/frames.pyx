# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins for what arrives at a broker: frames, batches, and the stamps of messages that follow one another.

The references are in `wire/command.py`, `wire/batch.py` and `wire/properties.py`, with what everything means. Every
length is compared with what is left before a byte is read: the bytes are not trusted.
"""

include "guard.pxi"

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memchr, memcmp, memcpy

from lanemq._fast.bytes cimport lane_get16, lane_get32

from lanemq.model.stamp import Stamp

cdef object _new_tuple = tuple.__new__


cdef enum:
    MAX_HEADER = 262144
    BATCH_HEAD = 20
    BATCH_FRAME = 22
    NUMBER_ROOM = 24
    MAX_DIGITS = 18
    MAX_ID = 64
    STAMP_NAME = 11

ctypedef const unsigned char *Bytes


# frames


def split_frames(data, limit, kind):
    """Twin of `wire.command.split_frames`."""
    found = _split_frames(data, limit, kind) if type(data) is bytes and type(limit) is int else None
    return references["split_frames"](data, limit, kind) if found is None else found


cdef tuple _split_frames(bytes data, uint64_t limit, object kind):
    cdef Bytes whole = <Bytes>PyBytes_AS_STRING(data)
    cdef Py_ssize_t position = 0, end = PyBytes_GET_SIZE(data), body_at, next_at
    cdef uint64_t length
    cdef uint32_t mark
    cdef list frames = []
    cdef tuple parts
    while end - position >= 8:
        length = lane_get32(whole + position)
        mark = lane_get32(whole + position + 4)
        if length + 4 > limit or 4 + (mark & 0xFFFFFF) > length or (mark & 0xFEFFFFFF) > MAX_HEADER:
            return None
        next_at = position + 4 + <Py_ssize_t>length
        if next_at > end:
            return frames, position, next_at - position
        body_at = position + 8 + (mark & 0xFFFFFF)
        parts = (
            <int>(mark >> 24),
            PyBytes_FromStringAndSize(<char *>whole + position + 8, body_at - position - 8),
            PyBytes_FromStringAndSize(<char *>whole + body_at, next_at - body_at),
        ),
        frames.append((<PyTypeObject *>tuple).tp_new(kind, <PyObject *>parts, NULL))
        position = next_at
    if end - position >= 4:
        length = lane_get32(whole + position)
        if length < 4 or length + 4 > limit:
            return None
    return frames, position, 8


cdef class BodyBuffer:
    """Twin of `wire.command.BodyBuffer`. It lets a socket write into the bytes object that becomes the body, which no
    other code has seen until then."""

    cdef bytes _body
    cdef readonly Py_ssize_t left

    def __init__(self, Py_ssize_t size):
        if size < 2:  # the interpreter shares bytes objects of this size
            raise ValueError("a body this small needs no buffer")
        self._body = PyBytes_FromStringAndSize(NULL, size)
        self.left = size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self._body is None:
            raise BufferError("the body is taken")
        PyBuffer_FillInfo(buffer, self, self._at(), self.left, 0, flags)

    cdef char *_at(self):
        return PyBytes_AS_STRING(self._body) + PyBytes_GET_SIZE(self._body) - self.left

    def space(self):
        return memoryview(self)

    def filled(self, Py_ssize_t count):
        if not 0 <= count <= self.left:
            raise ValueError(f"{count} bytes were written where {self.left} fit")
        self.left -= count

    def put(self, bytes data not None, Py_ssize_t start=0):
        cdef Py_ssize_t count
        if not 0 <= start <= PyBytes_GET_SIZE(data):
            raise ValueError("the start is not in the data")
        count = min(PyBytes_GET_SIZE(data) - start, self.left)
        if count:
            memcpy(self._at(), PyBytes_AS_STRING(data) + start, count)
        self.left -= count
        return start + count

    def take(self):
        cdef bytes body = self._body
        if self.left:
            raise ValueError(f"{self.left} bytes of the body are missing")
        self._body = None
        return body


# batches


def batch_parts(body, Py_ssize_t most):
    """Twin of `wire.batch.batch_parts`."""
    found = _batch_parts(body, most) if type(body) is bytes else None
    return references["batch_parts"](body, most) if found is None else found


cdef tuple _batch_parts(bytes body, Py_ssize_t most):
    cdef Bytes whole = <Bytes>PyBytes_AS_STRING(body)
    cdef Py_ssize_t position = 0, end = PyBytes_GET_SIZE(body), text_at
    cdef int64_t size, length, text_length
    cdef list flags = [], bodies = [], texts = []
    while position + BATCH_FRAME <= end and PyList_GET_SIZE(flags) <= most:
        size = <int32_t>lane_get32(whole + position)
        length = <int32_t>lane_get32(whole + position + 16)
        if length < 0 or size > end - position or BATCH_FRAME + length > size:
            return None
        text_at = position + BATCH_FRAME + <Py_ssize_t>length
        text_length = <short>lane_get16(whole + text_at - 2)
        if BATCH_FRAME + length + text_length != size or not _is_ascii(whole + text_at, <Py_ssize_t>text_length):
            return None
        flags.append(<int32_t>lane_get32(whole + position + 12))
        bodies.append(PyBytes_FromStringAndSize(<char *>whole + position + BATCH_HEAD, <Py_ssize_t>length))
        texts.append(PyBytes_FromStringAndSize(<char *>whole + text_at, <Py_ssize_t>text_length))
        position += <Py_ssize_t>size
    if PyList_GET_SIZE(flags) > most:
        return flags, bodies, texts
    return (flags, bodies, texts) if position == end and flags else None


cdef inline bint _is_ascii(Bytes at, Py_ssize_t size) noexcept:
    cdef unsigned char seen = 0
    cdef Py_ssize_t i
    for i in range(size):
        seen |= at[i]
    return seen < 0x80


def all_stamped(body, bytes prefix not None, sequence):
    """Twin of `wire.batch.all_stamped`, for a body that `scan_batch` has accepted; the lengths are checked again."""
    if type(body) is not bytes or not 0 <= sequence < 1 << 60:
        return references["all_stamped"](body, prefix, sequence)
    stamped = _all_stamped(body, prefix, sequence)
    return references["all_stamped"](body, prefix, sequence) if stamped < 0 else stamped == 1


cdef int _all_stamped(bytes body, bytes prefix, int64_t sequence) except -2:
    """1 if all are, 0 if not, -1 for a body that makes no sense."""
    cdef Bytes whole = <Bytes>PyBytes_AS_STRING(body)
    cdef Bytes begin = <Bytes>PyBytes_AS_STRING(prefix)
    cdef Py_ssize_t position = 0, end = PyBytes_GET_SIZE(body), prefix_size = PyBytes_GET_SIZE(prefix), digits, size
    cdef int64_t length
    cdef Bytes stop
    cdef char number[NUMBER_ROOM]
    while position + BATCH_FRAME <= end:
        size = <int32_t>lane_get32(whole + position)
        length = <int32_t>lane_get32(whole + position + 16)
        if length < 0 or size > end - position or BATCH_FRAME + length > size:
            return -1
        stop = whole + position + size
        digits = snprintf(number, NUMBER_ROOM, b"%lld\x02", <long long>sequence)
        if (size - BATCH_FRAME - length < prefix_size + digits or memcmp(stop - digits, number, digits)
                or memcmp(stop - digits - prefix_size, begin, prefix_size)):
            return 0
        sequence += 1
        position += size
    return 1 if position == end and end else -1


def weigh(list bodies not None, list properties not None):
    """Twin of `wire.batch.weigh`."""
    cdef Py_ssize_t total = 0, largest = 0, longest = 0, size
    cdef int apart = 0
    for body in bodies:
        if type(body) is not bytes:
            return references["weigh"](bodies, properties)
        size = PyBytes_GET_SIZE(body)
        total += size
        largest = max(largest, size)
    for text in properties:
        if type(text) is not bytes:
            return references["weigh"](bodies, properties)
        size = PyBytes_GET_SIZE(text)
        total += size
        longest = max(longest, size)
        apart |= _apart(<Bytes>PyBytes_AS_STRING(text), size)
    return total, largest, longest, apart


cdef int _apart(Bytes at, Py_ssize_t size) noexcept:
    """Looks at the begin of every entry."""
    cdef Bytes end = at + size
    cdef Bytes next_at
    cdef int found = 0
    while at < end:
        if at[0] == b"T" or at[0] == b"D" or at[0] == b"R":
            if end - at >= 5 and not memcmp(at, b"TAGS\x01", 5):
                found |= 2
            elif end - at >= 6 and not (memcmp(at, b"DELAY\x01", 6) and memcmp(at, b"TIMER_", 6)):
                found |= 1
            elif end - at >= 16 and not memcmp(at, b"REPLY_TO_CLIENT\x01", 16):
                found |= 4
        next_at = <Bytes>memchr(at, 2, end - at)
        if next_at == NULL:
            break
        at = next_at + 1
    return found


# stamps


cdef struct StampEnd:
    # The stamp at the end of a message's properties. `start` to `sequence_start` is what the stamps of a producer share.
    Py_ssize_t start
    Py_ssize_t producer_end
    Py_ssize_t sequence_start
    int64_t epoch
    int64_t sequence


def following_stamps(texts):
    """Twin of `wire.properties.following_stamps`, for stamps at the end, where our producers put them."""
    found = _following_stamps(texts) if type(texts) is list and texts else None
    return references["following_stamps"](texts) if found is None else found


cdef tuple _following_stamps(list texts):
    cdef StampEnd first, other
    cdef Py_ssize_t at, count = PyList_GET_SIZE(texts)
    cdef bytes text = _ascii(texts[0]), another
    if text is None or not _stamp_at_end(text, &first):
        return None
    for at in range(1, count):
        another = _ascii(texts[at])
        if another is None or not _stamp_at_end(another, &other):
            return None
        if other.sequence != first.sequence + at or not _same_producer(text, &first, another, &other):
            count = at
            break
    producer = text[first.start:first.producer_end].decode("ascii")
    return _new_tuple(Stamp, (producer, first.epoch, first.sequence)), count


cdef bytes _ascii(object text):
    """The text, or None if it may have to be decoded."""
    return text if type(text) is bytes and (<bytes>text).isascii() else None


cdef bint _same_producer(bytes text, StampEnd *stamp, bytes another, StampEnd *other) noexcept:
    cdef Py_ssize_t size = stamp.sequence_start - stamp.start
    return size == other.sequence_start - other.start and not memcmp(
        PyBytes_AS_STRING(text) + stamp.start, PyBytes_AS_STRING(another) + other.start, size)


cdef bint _stamp_at_end(bytes properties, StampEnd *stamp) noexcept:
    """Finds `LANE_STAMP\\x01producer.epoch.sequence\\x02` at the end; false for everything else."""
    cdef Bytes text = <Bytes>PyBytes_AS_STRING(properties)
    cdef Py_ssize_t at = PyBytes_GET_SIZE(properties) - 1
    if at < 0 or text[at] != 2:
        return False
    at = _number_before(text, at, &stamp.sequence)
    stamp.sequence_start = at
    if at < 1 or text[at - 1] != b".":
        return False
    at = _number_before(text, at - 1, &stamp.epoch)
    if at < 1 or text[at - 1] != b".":
        return False
    stamp.producer_end = at = at - 1
    while at > 0 and _is_id(text[at - 1]):
        at -= 1
    stamp.start = at
    if not 1 <= stamp.producer_end - at <= MAX_ID or at < STAMP_NAME or memcmp(text + at - STAMP_NAME, b"LANE_STAMP\x01", STAMP_NAME):
        return False
    return at == STAMP_NAME or text[at - STAMP_NAME - 1] == 2


cdef inline bint _is_id(unsigned char byte) noexcept:
    return b"a" <= byte <= b"z" or b"A" <= byte <= b"Z" or b"0" <= byte <= b"9" or byte == b"_" or byte == b"-"


cdef Py_ssize_t _number_before(Bytes text, Py_ssize_t end, int64_t *number) noexcept:
    """Where the number that ends here begins; -1 without one, with a zero in front, or with more than 18 digits."""
    cdef Py_ssize_t at = end, i
    while at > 0 and b"0" <= text[at - 1] <= b"9" and end - at <= MAX_DIGITS:
        at -= 1
    if at == end or end - at > MAX_DIGITS or (text[at] == b"0" and end - at > 1):
        return -1
    number[0] = 0
    for i in range(at, end):
        number[0] = number[0] * 10 + text[i] - 48
    return at


TWINS = {
    "wire.command.BodyBuffer": BodyBuffer,
    "wire.command.split_frames": split_frames,
    "wire.batch.batch_parts": batch_parts,
    "wire.batch.all_stamped": all_stamped,
    "wire.batch.weigh": weigh,
    "wire.properties.following_stamps": following_stamps,
}
