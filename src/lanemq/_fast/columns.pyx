# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins for Spark's columns: where the parts of records, the entries of properties and the parts of stamps lie, and
how parts and property values become Arrow columns.

The references are in `spark/columns.py`, with what everything means. NumPy and Arrow are imported when a function
is called: a broker has neither.
"""

include "guard.pxi"

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from lanemq._fast.bytes cimport lane_get16, lane_get32, lane_get64


cdef enum:
    HEAD = 84
    SMALLEST = 91
    BORN_V6 = 0x10
    STORE_V6 = 0x20
    V6_SHIFT = 12
    COLUMNS = 10
    MAX_PRODUCER = 64
    MAX_DIGITS = 19
    MAX_COLUMN = 0x7FFFFFFF

cdef uint32_t MAGIC_V1 = 0xDAA320A7
cdef uint32_t MAGIC_V2 = 0xDAA320AB
cdef uint64_t MAX_NUMBER = 0x7FFFFFFFFFFFFFFF

ctypedef const unsigned char *Bytes


def record_spans(body, low, high):
    """Twin of `spark.columns.record_spans`."""
    found = _record_spans(body, low, high) if type(body) is bytes else None
    return references["record_spans"](body, low, high) if found is None else found


cdef tuple _record_spans(bytes body, int64_t low, int64_t high):
    """None for a body that the reference has to look at: it knows what to say."""
    import numpy

    cdef Bytes data = <Bytes>PyBytes_AS_STRING(body)
    cdef Py_ssize_t position = 0, end = PyBytes_GET_SIZE(body), count = 0, row = 0
    cdef int32_t size
    cdef uint32_t magic
    cdef int64_t offset
    while position + SMALLEST <= end:
        size = <int32_t>lane_get32(data + position)
        magic = lane_get32(data + position + 4)
        if size < SMALLEST or (magic != MAGIC_V1 and magic != MAGIC_V2):
            return None
        if position + size > end:
            return None
        offset = <int64_t>lane_get64(data + position + 20)
        count += low <= offset < high
        position += size
    if position != end:
        return None
    if not count:
        return references["record_spans"](body, low, high)
    columns = numpy.empty((COLUMNS, count), numpy.int64)
    cdef int64_t[:, ::1] into = columns
    position = 0
    while position < end:
        size = <int32_t>lane_get32(data + position)
        offset = <int64_t>lane_get64(data + position + 20)
        if low <= offset < high:
            if not _measure(data, position, size, into, row):
                return None
            row += 1
        position += size
    return tuple(columns)


cdef bint _measure(Bytes data, int64_t start, int64_t size, int64_t[:, ::1] into, Py_ssize_t row):
    """One record into a row of all columns; false if its lengths contradict its size."""
    cdef int64_t flags = <int32_t>lane_get32(data + start + 36)
    cdef int64_t born_shift = V6_SHIFT if flags & BORN_V6 else 0
    cdef int64_t shift = born_shift + (V6_SHIFT if flags & STORE_V6 else 0)
    cdef int64_t end = start + size, first, length, at = start + HEAD + shift
    into[0, row], into[1, row], into[2, row], into[3, row] = start, flags, born_shift, shift
    first = at + 4
    if first > end:
        return False
    length = <int32_t>lane_get32(data + at)
    if length < 0 or length > end - first:
        return False
    into[4, row], into[5, row] = first, first + length
    at = first + length
    first = at + (2 if lane_get32(data + start + 4) == MAGIC_V2 else 1)
    if first > end:
        return False
    length = <short>lane_get16(data + at) if first - at == 2 else <signed char>data[at]
    if length < 0 or length > end - first:
        return False
    into[6, row], into[7, row] = first, first + length
    at = first + length
    first = at + 2
    if first > end:
        return False
    length = <short>lane_get16(data + at)
    if length < 0 or length > end - first:
        return False
    into[8, row], into[9, row] = first, first + length
    return True


def number_column(body, positions, kind):
    """Twin of `spark.columns.number_column`."""
    import numpy
    import pyarrow

    if kind.bit_width == 32:
        column = numpy.empty(len(positions), numpy.int32)
        _ints(body, positions, column)
    else:
        column = numpy.empty(len(positions), numpy.int64)
        _longs(body, positions, 1 if kind == pyarrow.int64() else 1000, column)
    return pyarrow.Array.from_buffers(kind, len(positions), [None, pyarrow.py_buffer(column)])


cdef int _ints(const unsigned char[::1] body, const int64_t[::1] positions, int32_t[::1] into) except -1:
    cdef int64_t last = body.shape[0] - 4
    cdef Py_ssize_t row
    for row in range(positions.shape[0]):
        if not 0 <= positions[row] <= last:
            raise IndexError("a number lies outside of the body")
        into[row] = <int32_t>lane_get32(&body[0] + positions[row])
    return 0


cdef int _longs(
    const unsigned char[::1] body, const int64_t[::1] positions, uint64_t factor, int64_t[::1] into
) except -1:
    cdef int64_t last = body.shape[0] - 8
    cdef Py_ssize_t row
    for row in range(positions.shape[0]):
        if not 0 <= positions[row] <= last:
            raise IndexError("a number lies outside of the body")
        into[row] = <int64_t>(lane_get64(&body[0] + positions[row]) * factor)
    return 0


def part_column(body, spans, kind):
    """Twin of `spark.columns.part_column`."""
    made = _gathered(body, spans[0], spans[1], kind, None) if len(spans[0]) else None
    return references["part_column"](body, spans, kind) if made is None else made


cdef object _gathered(
    const unsigned char[::1] body, const int64_t[::1] first, const int64_t[::1] end, object kind, object valid
):
    """The parts as an Arrow array; `valid` are its bits, or None if no row is null. None if they are too long."""
    import numpy
    import pyarrow

    cdef Py_ssize_t rows = first.shape[0], row
    cdef int64_t total = 0
    for row in range(rows):
        if not 0 <= first[row] <= end[row] <= body.shape[0]:
            raise IndexError("a part lies outside of the body")
        total += end[row] - first[row]
    if total > MAX_COLUMN:
        return None
    offsets, data = numpy.empty(rows + 1, numpy.int32), numpy.empty(max(total, 1), numpy.uint8)
    cdef int32_t[::1] offset_of = offsets
    cdef unsigned char[::1] into = data
    cdef unsigned char *put = &into[0]
    cdef Bytes get = &body[0] if body.shape[0] else NULL
    cdef int64_t filled = 0
    offset_of[0] = 0
    for row in range(rows):
        if end[row] > first[row]:
            memcpy(put + filled, get + first[row], end[row] - first[row])
            filled += end[row] - first[row]
        offset_of[row + 1] = <int32_t>filled
    bits = None if valid is None else pyarrow.py_buffer(valid)
    buffers = [bits, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data[:total])]
    return pyarrow.Array.from_buffers(kind, rows, buffers)


def property_column(records, name):
    """Twin of `spark.columns.property_column`."""
    layout = records.layout
    made = _named(layout.body, layout.properties[0], layout.properties[1], name.encode())
    return references["property_column"](records, name) if made is None else made


cdef object _named(const unsigned char[::1] body, const int64_t[::1] first, const int64_t[::1] end, bytes name):
    """The values of one name; None if they are not UTF-8, which the reference replaces."""
    import numpy
    import pyarrow

    cdef Py_ssize_t rows = first.shape[0], row, found = 0
    cdef int64_t at, stop, size = PyBytes_GET_SIZE(name)
    cdef Bytes wanted = <Bytes>PyBytes_AS_STRING(name)
    cdef Bytes data = &body[0] if body.shape[0] else NULL
    cdef Bytes separator
    spans, valid = numpy.zeros((2, rows), numpy.int64), numpy.zeros(rows, numpy.uint8)
    cdef int64_t[:, ::1] span = spans
    cdef unsigned char[::1] has = valid
    for row in range(rows):
        at = first[row]
        if not 0 <= at <= end[row] <= body.shape[0]:
            raise IndexError("a part lies outside of the body")
        while at < end[row]:
            separator = <Bytes>memchr(data + at, 2, end[row] - at)
            stop = end[row] if separator == NULL else separator - data
            if stop - at > size + 1 and data[at + size] == 1 and memcmp(data + at, wanted, size) == 0:
                span[0, row], span[1, row], has[row] = at + size + 1, stop, 1
            at = stop + 1
        found += has[row]
    if not found:
        return pyarrow.nulls(rows, pyarrow.string())
    bits = None if found == rows else numpy.packbits(valid, bitorder="little")
    column = _gathered(body, spans[0], spans[1], pyarrow.string(), bits)
    try:
        column.validate(full=True)
    except pyarrow.ArrowInvalid:
        return None
    return column


def entry_spans(const unsigned char[::1] text not None, const int64_t[::1] offsets not None):
    """Twin of `spark.columns.entry_spans`."""
    import numpy

    cdef Py_ssize_t records = offsets.shape[0] - 1, row, count = 0, most
    cdef int64_t at, stop, end, middle
    cdef const unsigned char *data = NULL
    cdef const unsigned char *found
    if text.shape[0]:
        data = &text[0]
    most = records
    for at in range(text.shape[0]):
        most += data[at] == 2
    columns = numpy.empty((4, most), numpy.int64)
    cdef int64_t[:, ::1] into = columns
    for row in range(records):
        at, end = offsets[row], offsets[row + 1]
        if at < 0 or end > text.shape[0]:
            raise IndexError("an offset lies outside of the text")
        while at < end:
            found = <const unsigned char *>memchr(data + at, 2, end - at)
            stop = end if found == NULL else found - data
            found = <const unsigned char *>memchr(data + at, 1, stop - at)
            middle = at if found == NULL else found - data
            if middle > at and middle + 1 < stop:
                into[0, count], into[1, count], into[2, count], into[3, count] = row, at, middle, stop
                count += 1
            at = stop + 1
    return tuple(columns[:, :count])


def stamp_column(values):
    """Twin of `spark.columns.stamp_column`."""
    import pyarrow

    if values.type != pyarrow.string() or values.offset or not len(values):
        return references["stamp_column"](values)
    return _stamps(values, pyarrow)


cdef object _stamps(object values, object arrow):
    import numpy

    cdef Py_ssize_t rows = len(values), row
    _, offset_buffer, data_buffer = values.buffers()
    cdef const int32_t[::1] offsets = numpy.frombuffer(offset_buffer, numpy.int32)
    cdef const unsigned char[::1] text = numpy.frombuffer(data_buffer or b"\0", numpy.uint8)
    empty, ends = numpy.zeros(rows, numpy.bool_), numpy.zeros(rows + 1, numpy.int32)
    epochs, sequences = numpy.zeros(rows, numpy.int64), numpy.zeros(rows, numpy.int64)
    names = bytearray(text.shape[0])
    cdef unsigned char[::1] mask = empty.view(numpy.uint8), put = names
    cdef int32_t[::1] end_of = ends
    cdef int64_t[::1] epoch_of = epochs, sequence_of = sequences
    cdef Py_ssize_t filled = 0, dot
    cdef bint some_null = values.null_count > 0
    for row in range(rows):
        if not 0 <= offsets[row] <= offsets[row + 1] <= text.shape[0]:
            return references["stamp_column"](values)
        dot = -1
        if offsets[row] < offsets[row + 1]:
            dot = _cut_stamp(&text[offsets[row]], offsets[row + 1] - offsets[row], &epoch_of[row], &sequence_of[row])
        if dot < 0:
            mask[row] = 1
        else:
            memcpy(&put[filled], &text[offsets[row]], dot)
            filled += dot
        end_of[row + 1] = <int32_t>filled
    if some_null:
        empty |= values.is_null().to_numpy(zero_copy_only=False)
    buffers = [None, arrow.py_buffer(ends), arrow.py_buffer(bytes(names[:filled]))]
    producers = arrow.Array.from_buffers(arrow.string(), rows, buffers)
    kinds = {"producer": arrow.string(), "epoch": arrow.int64(), "sequence": arrow.int64()}
    fields = [arrow.field(name, kind) for name, kind in kinds.items()]
    return arrow.StructArray.from_arrays(
        [producers, arrow.array(epochs), arrow.array(sequences)], fields=fields, mask=arrow.array(empty)
    )


cdef Py_ssize_t _cut_stamp(const unsigned char *text, Py_ssize_t size, int64_t *epoch, int64_t *sequence) noexcept:
    """The length of the producer's id; -1 if it is not a stamp."""
    cdef Py_ssize_t dot = 0, at
    while dot < size and _is_name(text[dot]):
        dot += 1
    if dot == 0 or dot > MAX_PRODUCER or dot >= size or text[dot] != b".":
        return -1
    at = _number(text, dot + 1, size, epoch)
    if at < 0 or at >= size or text[at] != b".":
        return -1
    return dot if _number(text, at + 1, size, sequence) == size else -1


cdef inline bint _is_name(unsigned char byte) noexcept:
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95 or byte == 45


cdef Py_ssize_t _number(const unsigned char *text, Py_ssize_t at, Py_ssize_t size, int64_t *number) noexcept:
    """Where the number ends; -1 if it is none that a stamp may hold."""
    cdef Py_ssize_t start = at
    cdef uint64_t value = 0
    while at < size and 48 <= text[at] <= 57:
        if at - start == MAX_DIGITS:
            return -1
        value = value * 10 + text[at] - 48
        at += 1
    if at == start or (text[start] == 48 and at - start > 1) or value > MAX_NUMBER:
        return -1
    number[0] = <int64_t>value
    return at


TWINS = {
    "spark.columns.record_spans": record_spans,
    "spark.columns.number_column": number_column,
    "spark.columns.part_column": part_column,
    "spark.columns.property_column": property_column,
    "spark.columns.entry_spans": entry_spans,
    "spark.columns.stamp_column": stamp_column,
}
