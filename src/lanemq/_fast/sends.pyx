# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins for single sends: reading a burst of them, encoding its replies, and reading one that comes alone.

The references are in `wire/send_bursts.py` and `wire/single_sends.py`, with what everything means. The references read the
first send. The headers of the others must be equal to the first except for a few values, so no JSON has to be parsed here.
"""

include "guard.pxi"

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memchr, memcmp, memcpy

from lanemq._fast.bytes cimport lane_get32, lane_put32


cdef enum:
    MAX_HEADER = 262144
    QUOTE = 34
    BACKSLASH = 92
    DIGIT = 48
    MAX_DIGITS = 18
    NUMBER_ROOM = 24

ctypedef const unsigned char *Bytes


cdef struct Span:
    Py_ssize_t start
    Py_ssize_t end


# bursts of single sends


cdef struct Shape:
    # The positions of the three values that differ from send to send, in the order in which they come.
    Span spans[3]
    int names[3]


cdef enum:
    OPAQUE = 0
    BORN = 1
    PROPERTIES = 2


cdef unsigned char _scratch[MAX_HEADER]
# The properties of one send between reading and copying them; guarded by the interpreter's lock.


def read_sends(list frames not None, Py_ssize_t start):
    """Twin of `wire.send_bursts.read_sends`: the reference reads the first send, the others are compared with it."""
    first = references["read_sends"](frames[start:start + 1], 0)
    if first is None or len(frames) - start < 2:
        return first
    known = _read_alike(frames, start, first, _scratch)
    return references["read_sends"](frames, start) if known is None else known


cdef object _read_alike(list frames, Py_ssize_t start, object first, unsigned char *scratch):
    """The burst, or None if the first header has an unusual form."""
    cdef Shape shape
    cdef bytes model = frames[start][1], header
    cdef Bytes text
    cdef int64_t opaque = 0, born = 0
    cdef Py_ssize_t i, length
    if PyBytes_GET_SIZE(model) > MAX_HEADER or not _find_shape(model, &shape):
        return None
    cdef list opaques = first[1], bodies = first[2], properties = first[3], borns = first[4]
    for i in range(start + 1, PyList_GET_SIZE(frames)):
        kind, part, body = frames[i]
        if kind != 0 or type(part) is not bytes or PyBytes_GET_SIZE(part) > MAX_HEADER:
            break
        header = part
        length = _compare(model, header, &shape, scratch, &opaque, &born)
        if length < 0:
            break
        opaques.append(opaque)
        bodies.append(body)
        properties.append(PyBytes_FromStringAndSize(<char *>scratch, length))
        borns.append(born)
    return first


cdef Py_ssize_t _compare(bytes model, bytes header, Shape *shape, unsigned char *scratch, int64_t *opaque,
                         int64_t *born) noexcept:
    """The length of the properties put into `scratch`; -1 if the headers differ in more than the three values."""
    cdef Bytes mine = <Bytes>PyBytes_AS_STRING(model), other = <Bytes>PyBytes_AS_STRING(header)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(header), model_end = PyBytes_GET_SIZE(model)
    cdef Py_ssize_t at = 0, model_at = 0, same, stop, length = -1
    cdef int part
    for part in range(3):
        same = shape.spans[part].start - model_at
        if end - at < same or memcmp(mine + model_at, other + at, same):
            return -1
        at += same
        if shape.names[part] == PROPERTIES:
            stop = _unescape(other, at, end, scratch, &length)
        elif shape.names[part] == BORN:
            stop = _number(other, at, end, born)
        else:
            stop = _number(other, at, end, opaque)
        if stop < 0:
            return -1
        at = stop
        model_at = shape.spans[part].end
    if opaque[0] > 0x7FFFFFFF or end - at != model_end - model_at or memcmp(mine + model_at, other + at, end - at):
        return -1
    return length


cdef Py_ssize_t _number(Bytes text, Py_ssize_t at, Py_ssize_t end, int64_t *number) noexcept:
    """The end of the number that begins here; -1 for anything but plain digits."""
    cdef Py_ssize_t start = at
    number[0] = 0
    while at < end and DIGIT <= text[at] <= DIGIT + 9:
        number[0] = number[0] * 10 + text[at] - DIGIT
        at += 1
        if at - start > MAX_DIGITS:
            return -1
    if at == start or (text[start] == DIGIT and at - start > 1):
        return -1
    return at


cdef Py_ssize_t _unescape(Bytes text, Py_ssize_t at, Py_ssize_t end, unsigned char *to, Py_ssize_t *length) noexcept:
    """Writes the unescaped text to `to` and returns its end (the quote); -1 for anything but ASCII."""
    cdef Py_ssize_t put = 0
    cdef unsigned char byte
    cdef int code
    while at < end:
        byte = text[at]
        if byte == QUOTE:
            length[0] = put
            return at
        if byte < 0x20 or byte >= 0x80:
            return -1
        at += 1
        if byte == BACKSLASH:
            if at >= end:
                return -1
            if text[at] == b"u":
                code = _hex4(text, at + 1, end)
                if code < 0 or code >= 0x80:
                    return -1
                byte = <unsigned char>code
                at += 5
            else:
                byte = _escaped(text[at])
                if byte == 0:
                    return -1
                at += 1
        to[put] = byte
        put += 1
    return -1


cdef inline unsigned char _escaped(unsigned char byte) noexcept:
    if byte == QUOTE or byte == BACKSLASH or byte == b"/":
        return byte
    if byte == b"n":
        return 10
    if byte == b"t":
        return 9
    if byte == b"r":
        return 13
    if byte == b"b":
        return 8
    return 12 if byte == b"f" else 0


cdef int _hex4(Bytes text, Py_ssize_t at, Py_ssize_t end) noexcept:
    cdef int code = 0, i
    cdef unsigned char byte
    if end - at < 4:
        return -1
    for i in range(4):
        byte = text[at + i]
        if DIGIT <= byte <= DIGIT + 9:
            code = code * 16 + byte - DIGIT
        elif b"a" <= byte | 32 <= b"f":
            code = code * 16 + (byte | 32) - 87
        else:
            return -1
    return code


cdef bint _find_shape(bytes header, Shape *shape) noexcept:
    """Finds the three values in a header that `read_sends` has parsed; false unless each occurs once."""
    cdef Bytes text = <Bytes>PyBytes_AS_STRING(header)
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(header), key, key_end
    cdef int found = 0, depth = 0, name
    cdef Span span
    while at < end:
        if text[at] == b"{":
            depth += 1
            at += 1
        elif text[at] == b"}":
            depth -= 1
            at += 1
            if depth == 0:
                return at == end and found == 3 and _all_three(shape)
            continue
        elif text[at] == b"," and depth:
            at += 1
        else:
            return False
        if at < end and text[at] == b"}":
            continue
        if depth > 2 or at >= end or text[at] != QUOTE:
            return False
        key = at + 1
        key_end = _string_end(text, key, end)
        if key_end < 0 or end - key_end < 3 or text[key_end + 1] != b":":
            return False
        at = key_end + 2
        if text[at] == b"{":
            if depth != 1 or key_end - key != 9 or memcmp(text + key, b"extFields", 9):
                return False
            continue
        name = _name_of(text, key, key_end - key, depth)
        if name >= 0:
            if found == 3:
                return False
            shape.names[found] = name
        at = _skip_value(text, at, end, name, &span)
        if at < 0:
            return False
        if name >= 0:
            shape.spans[found] = span
            found += 1
    return False


cdef inline bint _all_three(Shape *shape) noexcept:
    return shape.names[0] + shape.names[1] + shape.names[2] == 3 and shape.names[0] != shape.names[1] != shape.names[2] \
        and shape.names[0] != shape.names[2]


cdef int _name_of(Bytes text, Py_ssize_t key, Py_ssize_t size, int depth) noexcept:
    if depth == 1 and size == 6 and not memcmp(text + key, b"opaque", 6):
        return OPAQUE
    if depth == 2 and size == 1 and text[key] == b"g":
        return BORN
    if depth == 2 and size == 1 and text[key] == b"i":
        return PROPERTIES
    return -1


cdef Py_ssize_t _string_end(Bytes text, Py_ssize_t at, Py_ssize_t end) noexcept:
    """The quote that ends a text; -1 unless it is all ASCII. Skips escaped characters."""
    while at < end:
        if text[at] == QUOTE:
            return at
        if text[at] < 0x20 or text[at] >= 0x80:
            return -1
        at += 2 if text[at] == BACKSLASH else 1
    return -1


cdef Py_ssize_t _skip_value(Bytes text, Py_ssize_t at, Py_ssize_t end, int name, Span *span) noexcept:
    """The end of the value; `span` is its content. The opaque is a number, the two others are strings."""
    cdef Py_ssize_t start = at
    if text[at] == QUOTE:
        if name == OPAQUE:
            return -1
        at = _string_end(text, at + 1, end)
        if at < 0:
            return -1
        span.start, span.end = start + 1, at
        return at + 1
    if name > OPAQUE:
        return -1
    while at < end and text[at] != b"," and text[at] != b"}":
        if text[at] == b"{" or text[at] == b"[" or text[at] == QUOTE:
            return -1
        at += 1
    span.start, span.end = start, at
    return at


# sends that come alone


cdef enum:
    ALONE_OPAQUE = 0
    ALONE_QUEUE = 1
    ALONE_BORN = 2
    ALONE_PROPERTIES = 3
    STAMP_NAME = 11
    INT32_LIMIT = 0x7FFFFFFF


def read_alike(data, tuple shape not None):
    """Twin of `wire.single_sends.read_alike`."""
    if type(data) is not bytes:
        return references["read_alike"](data, shape)
    return _read_alone(data, shape[0], shape[1], shape[2], _scratch)


cdef tuple _read_alone(bytes data, bytes model, tuple spans, bytes prefix, unsigned char *scratch):
    cdef Bytes whole = <Bytes>PyBytes_AS_STRING(data), mine = <Bytes>PyBytes_AS_STRING(model), other
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), model_end = PyBytes_GET_SIZE(model)
    cdef Py_ssize_t at = 0, model_at = 0, end, start, stop, length = 0, same
    cdef int64_t[3] numbers = [0, 0, 0]
    cdef int64_t sequence
    cdef int place, name, tagged
    if size < 8:
        return None
    end = lane_get32(whole + 4)
    if <int64_t>lane_get32(whole) + 4 != size or end > MAX_HEADER or 8 + end > size or len(spans) != 12:
        return None
    other = whole + 8
    for place in range(0, 12, 3):
        name, start = spans[place], spans[place + 1]
        same = start - model_at
        if same < 0 or start > model_end or end - at < same or memcmp(mine + model_at, other + at, same):
            return None
        at += same
        if name == ALONE_PROPERTIES:
            stop = _unescape(other, at, end, scratch, &length)
        elif 0 <= name < ALONE_PROPERTIES:
            stop = _number(other, at, end, &numbers[name])
        else:
            return None
        if stop < 0:
            return None
        at, model_at = stop, spans[place + 2]
    if model_at > model_end or end - at != model_end - model_at or memcmp(mine + model_at, other + at, end - at):
        return None
    if numbers[ALONE_OPAQUE] > INT32_LIMIT or numbers[ALONE_QUEUE] > INT32_LIMIT:
        return None
    sequence = _sequence(scratch, length, <Bytes>PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
    tagged = _maybe_tagged(scratch, length)
    if sequence < -1 or tagged < 0:
        return None
    return (
        numbers[ALONE_OPAQUE],
        numbers[ALONE_QUEUE],
        numbers[ALONE_BORN],
        PyBytes_FromStringAndSize(<char *>scratch, length),
        PyBytes_FromStringAndSize(<char *>whole + 8 + end, size - 8 - end),
        sequence,
        tagged == 1,
    )


cdef int64_t _sequence(Bytes text, Py_ssize_t size, Bytes prefix, Py_ssize_t prefix_size) noexcept:
    """The sequence number behind the prefix, -1 for a message without a stamp; -2 for anything else."""
    cdef Py_ssize_t start = size - 1
    cdef int64_t number = 0
    cdef Bytes found = text
    if not prefix_size:
        while size - (found - text) >= STAMP_NAME:
            found = <Bytes>memchr(found, b"L", size - (found - text) - STAMP_NAME + 1)
            if found == NULL:
                return -1
            if not memcmp(found, b"LANE_STAMP\x01", STAMP_NAME):
                return -2
            found += 1
        return -1
    if size < 1 or text[size - 1] != 2:
        return -2
    while start > 0 and DIGIT <= text[start - 1] <= DIGIT + 9:
        start -= 1
    if _number(text, start, size - 1, &number) != size - 1:
        return -2
    if start < prefix_size or memcmp(text + start - prefix_size, prefix, prefix_size):
        return -2
    return number


cdef int _maybe_tagged(Bytes text, Py_ssize_t size) noexcept:
    """1 if a name ends as that of a tag, 0 if none does; -1 if one asks for something special."""
    cdef Bytes entry = text
    cdef Bytes end = text + size
    cdef Bytes at = text
    cdef Py_ssize_t before
    cdef int tagged = 0
    while at < end:
        if at[0] == 2:
            entry = at + 1
        elif at[0] == 1:
            before = at - text
            if at - entry >= 6 and not memcmp(entry, b"TIMER_", 6):
                return -1
            if before >= 5 and not memcmp(at - 5, b"DELAY", 5):
                return -1
            if before >= 15 and not memcmp(at - 15, b"REPLY_TO_CLIENT", 15):
                return -1
            if before >= 4 and not memcmp(at - 4, b"TAGS", 4):
                tagged = 1
        at += 1
    return tagged


# replies


def encode_send_answers(opaques, prefix, positions, queue_id, first_offset, stored):
    """Twin of `wire.send_bursts.encode_send_answers`."""
    cdef bytes before, after
    if (type(opaques) is not list or type(positions) is not list or len(opaques) != len(positions)
            or not prefix.isascii() or not prefix.isalnum() or not stored.isascii() or not stored.isalnum()
            or len(prefix) > 64 or len(stored) > 16):
        return references["encode_send_answers"](opaques, prefix, positions, queue_id, first_offset, stored)
    before = b'{"code":0,"extFields":{"msgId":"' + prefix.encode()
    after = f'"}},"flag":1,"language":"PYTHON","opaque":'.encode()
    middle = f'","queueId":"{queue_id}","queueOffset":"'.encode()
    rest = f'","MSG_REGION":"DefaultRegion","TRACE_ON":"true","laneStored":"{stored}'.encode() + after
    last = b',"serializeTypeCurrentRPC":"JSON","version":473}'
    return _answers(opaques, positions, first_offset, before, middle, rest, last)


cdef bytes _answers(list opaques, list positions, int64_t offset, bytes before, bytes middle, bytes rest, bytes last):
    cdef Py_ssize_t fixed = 8 + len(before) + 16 + len(middle) + len(rest) + len(last), count = len(opaques), i
    cdef unsigned char *buffer = <unsigned char *>PyMem_Malloc(count * (fixed + 2 * NUMBER_ROOM) + 1)
    cdef unsigned char *at = buffer
    cdef unsigned char *start
    cdef uint64_t position
    cdef int64_t opaque
    if buffer == NULL:
        raise MemoryError
    try:
        for i in range(count):
            start = at
            position, opaque = positions[i], opaques[i]
            at = _put(at + 8, before)
            at = _put_hex(at, position)
            at = _put(at, middle)
            at = _put_number(at, offset + i)
            at = _put(at, rest)
            at = _put_number(at, opaque)
            at = _put(at, last)
            lane_put32(start, <uint32_t>(at - start - 4))
            lane_put32(start + 4, <uint32_t>(at - start - 8))
        return PyBytes_FromStringAndSize(<char *>buffer, at - buffer)
    finally:
        PyMem_Free(buffer)


cdef inline unsigned char *_put(unsigned char *at, bytes text) noexcept:
    memcpy(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return at + PyBytes_GET_SIZE(text)


cdef inline unsigned char *_put_hex(unsigned char *at, uint64_t number) noexcept:
    cdef int i
    for i in range(15, -1, -1):
        at[i] = b"0123456789ABCDEF"[number & 15]
        number >>= 4
    return at + 16


cdef inline unsigned char *_put_number(unsigned char *at, int64_t number) noexcept:
    return at + snprintf(<char *>at, NUMBER_ROOM, b"%lld", <long long>number)


TWINS = {
    "wire.send_bursts.read_sends": read_sends,
    "wire.send_bursts.encode_send_answers": encode_send_answers,
    "wire.single_sends.read_alike": read_alike,
}
