# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins for single sends: reading those that arrive together, and encoding their replies.

The references are in `wire/sends.py`, with what everything means. The headers of one sender to one queue are equal except
for three values, so most are compared with one that the reference has decoded, and no JSON has to be parsed here.
"""

include "guard.pxi"

from msgspec.structs import replace

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy

from lanemq._fast.bytes cimport lane_put32


cdef enum:
    MAX_HEADER = 262144
    QUOTE = 34
    BACKSLASH = 92
    DIGIT = 48
    MAX_DIGITS = 18
    NUMBER_ROOM = 24
    MAX_FORMS = 1024
    MAX_FORM = 2048

ctypedef const unsigned char *Bytes


cdef struct Span:
    Py_ssize_t start
    Py_ssize_t end


# reading


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

cdef dict _headers = {}
# Decoded headers, by their text without the three values: a sender repeats everything else. What the reference decodes
# is remembered; it is forgotten when there are too many.


def read_sends(frames, Py_ssize_t most):
    """Twin of `wire.sends.read_sends`: the reference reads headers of a new form, the others are compared with it."""
    cdef Shape shape
    kind, model, body = frames[0]
    if (kind != 0 or most < 1 or type(model) is not bytes or PyBytes_GET_SIZE(model) > MAX_HEADER
            or not _find_shape(model, &shape)):
        return references["read_sends"](frames, most)
    form = _form_of(model, &shape)
    first = _read_known(form, model, &shape, body)
    if first is None:
        first = references["read_sends"](frames, 1)
        if first is None:
            return None
        _remember(form, first)
    if most > 1 and len(frames) > 1:
        _add_alike(frames, min(<Py_ssize_t>len(frames), most), model, &shape, first)
    return first


cdef bytes _form_of(bytes header, Shape *shape):
    """The text of a header without the three values."""
    cdef const char *text = PyBytes_AS_STRING(header)
    cdef Py_ssize_t at = 0, size = 0
    cdef int part
    for part in range(3):
        memcpy(_scratch + size, text + at, shape.spans[part].start - at)
        size += shape.spans[part].start - at
        at = shape.spans[part].end
    memcpy(_scratch + size, text + at, PyBytes_GET_SIZE(header) - at)
    return PyBytes_FromStringAndSize(<char *>_scratch, size + PyBytes_GET_SIZE(header) - at)


cdef void _remember(bytes form, object sends) except *:
    if PyBytes_GET_SIZE(form) <= MAX_FORM:
        if len(_headers) >= MAX_FORMS:
            _headers.clear()
        _headers[form] = (type(sends), sends.header)


cdef object _read_known(bytes form, bytes header, Shape *shape, object body):
    """The send if its header has a known form; None if not, or if one of the three values is unusual."""
    cdef int64_t opaque = 0, born = 0
    cdef Py_ssize_t length
    known = _headers.get(form)
    if known is None:
        return None
    length = _compare(header, header, shape, _scratch, &opaque, &born)
    if length < 0:
        return None
    kind, decoded = known
    properties = PyBytes_FromStringAndSize(<char *>_scratch, length)
    text = PyUnicode_DecodeASCII(<char *>_scratch, length, NULL)
    same = replace(decoded, properties=text, born_timestamp=born)
    return kind(same, [opaque], [body], [properties], [born])


cdef void _add_alike(object frames, Py_ssize_t end, bytes model, Shape *shape, object sends) except *:
    """Adds the sends behind the first one, up to one whose header differs in more than the three values."""
    cdef bytes header
    cdef int64_t opaque = 0, born = 0
    cdef Py_ssize_t i, length
    cdef list opaques = sends.opaques, bodies = sends.bodies, properties = sends.properties, borns = sends.born
    for i in range(1, end):
        kind, part, body = frames[i]
        if kind != 0 or type(part) is not bytes or PyBytes_GET_SIZE(part) > MAX_HEADER:
            break
        header = part
        length = _compare(model, header, shape, _scratch, &opaque, &born)
        if length < 0:
            break
        opaques.append(opaque)
        bodies.append(body)
        properties.append(PyBytes_FromStringAndSize(<char *>_scratch, length))
        borns.append(born)


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


# replies


def encode_send_answers(opaques, prefix, positions, queue_id, first_offset, stored):
    """Twin of `wire.sends.encode_send_answers`."""
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
    "wire.sends.read_sends": read_sends,
    "wire.sends.encode_send_answers": encode_send_answers,
}
