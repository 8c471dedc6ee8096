# cython: language_level=3, boundscheck=True, wraparound=False, binding=False, cdivision=True
"""Twins for the producer: packing messages, the inbox, the body of a batch, receipts, and what settles futures.

The references are in `client/send_packing.py`, `send_inbox.py`, `identity.py`, `send_requests.py`, `send_tickets.py`
and `send_outcomes.py`, with what everything means. These work on the caller's objects, so whatever a codec, an iterator or
a key raises goes through. A plain message writes its properties where they are read, which is in most cases into the
body of a batch.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_GET_LENGTH
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport getenv
from libc.string cimport memcpy

from lanemq._fast.bytes cimport lane_put16, lane_put32
from lanemq._fast.submissions cimport Submission, new_future

from lanemq._fast import references
from lanemq._fast.submissions import SubmittedFuture

cdef extern from *:
    const char *LANEMQ_SOURCES
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyUnicode_New(Py_ssize_t size, int largest)
    void *PyUnicode_DATA(object text)

cdef const char *_pure = getenv(b"LANEMQ_PURE")
if _pure != NULL and _pure[0] not in (0, 48):
    raise ImportError("LANEMQ_PURE is set")

SOURCES = LANEMQ_SOURCES.decode()

cdef enum:
    BATCH_HEAD = 20
    BATCH_FRAME = 22
    MOST_PROPERTIES = 32767
    QUICK_TEXT = 8000
    PARCEL_OVERHEAD = 100
    MOST_IN_LINE = 1024
    TEXT_FRAME = 35

cdef const char *BEFORE_KEY = b"__SHARDINGKEY\x01"
cdef const char *BEFORE_ID = b"\x02UNIQ_KEY\x01"
cdef const char *AFTER_ID = b"\x02WAIT\x01true\x02"
cdef const char *HEX_DIGITS = b"0123456789ABCDEF"


@cython.no_gc
@cython.freelist(1024)
cdef class QuickParcel:
    """A `Parcel` with a key and nothing special; what is not in here is the same for all of them."""

    cdef readonly bytes body
    cdef readonly str key
    cdef readonly str message_id
    cdef readonly object ticket
    cdef object _place
    cdef readonly Py_ssize_t index
    cdef readonly Py_ssize_t size

    @property
    def properties(self):
        return f"__SHARDINGKEY\x01{self.key}\x02UNIQ_KEY\x01{self.message_id}\x02WAIT\x01true\x02"

    @property
    def sys_flag(self):
        return 0

    @property
    def alone(self):
        return False

    @property
    def told(self):
        return False


cdef inline QuickParcel _parcel(bytes body, str key, str message_id, ticket):
    cdef QuickParcel parcel = QuickParcel.__new__(QuickParcel)
    parcel.body, parcel.key, parcel.message_id, parcel.ticket = body, key, message_id, ticket
    parcel.size = PyBytes_GET_SIZE(body) + PyUnicode_GET_LENGTH(key) + PyUnicode_GET_LENGTH(message_id)
    parcel.size += TEXT_FRAME + PARCEL_OVERHEAD
    return parcel


cdef class MessageIds:
    """Twin of `client.identity.MessageIds`."""

    cdef bytes _prefix
    cdef uint32_t _number

    def __init__(self, str prefix not None, uint32_t first_block):
        self._prefix = prefix.encode("ascii")
        self._number = first_block << 12

    def next(self):
        return self.give()

    cdef str give(self):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._prefix)
        cdef uint32_t number = self._number
        cdef int digit
        cdef object text = PyUnicode_New(size + 8, 127)
        cdef unsigned char *at = <unsigned char *>PyUnicode_DATA(text)
        memcpy(at, PyBytes_AS_STRING(self._prefix), size)
        for digit in range(7, -1, -1):
            at[size + digit] = HEX_DIGITS[number & 15]
            number >>= 4
        self._number += 1
        return <str>text


cdef MessageIds _source(next_id):
    """Whose `next` that is, to be asked without a call; None if it is something else."""
    of = getattr(next_id, "__self__", None)
    return of if type(of) is MessageIds and next_id == of.next else None


cdef class Intake:
    """Twin of `client.send_inbox.Intake`."""

    cdef public dict places
    cdef public bint open
    cdef object _encode, _next_id, _make, _empty
    cdef MessageIds _ids
    cdef Py_ssize_t _most_body
    cdef bint _as_it_is, _makes_futures
    cdef list _line

    def __init__(self, encode, next_id, make, empty, Py_ssize_t most_body, bint as_it_is):
        self.places = {}
        self._line = []
        self._encode, self._next_id, self._make, self._empty = encode, next_id, make, empty
        self._makes_futures = make is SubmittedFuture
        self._ids = _source(next_id)
        self._most_body, self._as_it_is = most_body, as_it_is

    def take(self, topic, key, value):
        places = self.places.get(topic)
        if places is None or not self.open or len(self._line) >= MOST_IN_LINE:
            return None
        place = (<dict>places).get(key)
        if place is None:
            place = places.find(key)
        body = value if self._as_it_is and type(value) is bytes else self._encode(value)
        if place is None or type(body) is not bytes or PyBytes_GET_SIZE(body) > self._most_body:
            return None
        ticket = new_future() if self._makes_futures else self._make()
        message_id = self._ids.give() if self._ids is not None else self._next_id()
        cdef QuickParcel parcel = _parcel(body, key, message_id, ticket)
        parcel._place = place
        self._line.append(parcel)
        if not self.open:
            self._empty()
        return ticket

    def __len__(self):
        return len(self._line)

    def take_out(self):
        cdef list line = self._line, parcels = None
        cdef dict placed = {}
        cdef object last = None
        cdef QuickParcel parcel
        self._line = []
        for parcel in line:
            if parcel._place is not last:
                last = parcel._place
                parcels = placed.get(last)
                if parcels is None:
                    parcels = placed[last] = []
            parcels.append(parcel)
        return placed


def pack_pairs(tools, source, ticket, Py_ssize_t index, list run not None, Py_ssize_t room):
    """Twin of `client.send_packing.pack_pairs`."""
    encode, next_id, refuse, make, nothing, limits = tools
    cdef Py_ssize_t most_messages = limits[0], most_body = limits[1], size
    cdef bint as_it_is = limits[2]
    cdef object errors = ticket.errors
    cdef MessageIds ids = _source(next_id)
    cdef QuickParcel parcel
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
        if type(body) is not bytes:
            return message, None, room
        size = PyBytes_GET_SIZE(body)
        if size > most_body:
            refuse(size)
        parcel = _parcel(body, key, ids.give() if ids is not None else next_id(), ticket)
        parcel.index = index
        index += 1
        room -= size
        if room < 0:
            return nothing, (key, parcel), room
        run.append((key, parcel))
    return nothing, None, room


cdef inline bint _is_good_key(str key):
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(key)
    return 0 < length <= QUICK_TEXT - 200 and "\x01" not in key and "\x02" not in key


def sort_run(queue_of, run):
    """Twin of `client.send_packing.sort_run`."""
    cdef dict placed = {}, known = {}
    cdef list parcels
    for key, parcel in run:
        parcels = known.get(key) if type(key) is str else None
        if parcels is None:
            parcels = placed.setdefault(queue_of(key), [])
            if type(key) is str:
                known[key] = parcels
        parcels.append(parcel)
    return placed


def total_size(parcels):
    """Twin of `client.send_requests.total_size`."""
    cdef Py_ssize_t total = 0
    for parcel in parcels:
        total += (<QuickParcel>parcel).size if isinstance(parcel, QuickParcel) else parcel.size
    return total


def batch_weights(parcels, too_large):
    """Twin of `client.send_requests.batch_weights`."""
    return [
        (<QuickParcel>parcel).size if isinstance(parcel, QuickParcel) else too_large if parcel.alone else parcel.size
        for parcel in parcels
    ]


def batch_body(parcels, str stamp not None, sequence):
    """Twin of `client.send_requests.batch_body`."""
    body = _batch_body(parcels, stamp, sequence) if type(parcels) is tuple and 0 <= sequence < 1 << 60 else None
    return references["batch_body"](parcels, stamp, sequence) if body is None else body


cdef bytes _batch_body(tuple parcels, str stamp, int64_t sequence):
    """In two steps, the size first; None for what the reference has to look at."""
    cdef Py_ssize_t stamp_size, size, total = 0, i = 0
    cdef const char *stamp_text = PyUnicode_AsUTF8AndSize(stamp, &stamp_size)
    cdef list others = []
    for parcel in parcels:
        size = _message_size(parcel, others, stamp_size + _digits(sequence + i) + 1)
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
    for parcel in parcels:
        if isinstance(parcel, QuickParcel):
            body = (<QuickParcel>parcel).body
            end = _put_quick_text(at + BATCH_FRAME + PyBytes_GET_SIZE(body), <QuickParcel>parcel)
        else:
            body = next(texts)
            end = _put_text(at + BATCH_FRAME + PyBytes_GET_SIZE(body), next(texts))
        end = _put_number(_put(end, stamp_text, stamp_size), sequence)
        at = _put_frame(at, body, end)
        sequence += 1
    return whole


cdef Py_ssize_t _message_size(parcel, list others, Py_ssize_t stamp_size) except? -2:
    """The bytes of one message in a batch, -1 for one that is not as usual. Keeps body and text of what is not quick."""
    cdef Py_ssize_t text_size
    if isinstance(parcel, QuickParcel):
        body = (<QuickParcel>parcel).body
        PyUnicode_AsUTF8AndSize((<QuickParcel>parcel).key, &text_size)
        text_size += PyUnicode_GET_LENGTH((<QuickParcel>parcel).message_id) + TEXT_FRAME
    else:
        body, text = parcel.body, parcel.properties
        if type(body) is not bytes or type(text) is not str or not PyUnicode_IS_ASCII(text):
            return -1
        text_size = PyUnicode_GET_LENGTH(text)
        others += (body, text)
    if text_size + stamp_size > MOST_PROPERTIES:
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
    """In decimal, and the end of the property behind it."""
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


cdef unsigned char *_put_quick_text(unsigned char *at, QuickParcel parcel) except NULL:
    """The properties without the stamp; the caller has made room."""
    at = _put_text(_put(at, BEFORE_KEY, 14), parcel.key)
    return _put(_put_text(_put(at, BEFORE_ID, 10), parcel.message_id), AFTER_ID, 11)


cdef unsigned char *_put_frame(unsigned char *at, bytes body, unsigned char *end) noexcept:
    """Everything but the properties, which are there already and reach to `end`."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    lane_put32(at, <uint32_t>(end - at))
    lane_put32(at + 4, 0)
    lane_put32(at + 8, 0)
    lane_put32(at + 12, 0)
    lane_put32(at + 16, <uint32_t>size)
    memcpy(at + BATCH_HEAD, PyBytes_AS_STRING(body), size)
    lane_put16(at + BATCH_HEAD + size, <unsigned short>(end - at - BATCH_FRAME - size))
    return end


def receipts_of(parcels, make, queue, first_offset, stored, repeat):
    """Twin of `client.send_outcomes.receipts_of`."""
    cdef list receipts = [], indexes = []
    cdef int64_t offset = first_offset
    cdef QuickParcel quick
    shared = parcels[0].ticket
    for parcel in parcels:
        if isinstance(parcel, QuickParcel):
            quick = <QuickParcel>parcel
            ticket, message_id, key, index = quick.ticket, quick.message_id, quick.key, quick.index
        else:
            ticket, message_id, key, index = parcel.ticket, parcel.message_id, parcel.key, parcel.index
        if ticket is not shared:
            return references["receipts_of"](parcels, make, queue, first_offset, stored, repeat)
        receipts.append(make(queue, offset, message_id, key, stored, repeat))
        indexes.append(index)
        offset += 1
    return receipts, indexes, True


def settle(parcels, make, queue, first_offset, stored, repeat):
    """Twin of `client.send_outcomes.settle`."""
    cdef list rest = []
    cdef tuple facts = (make, queue, stored, repeat)
    cdef int64_t offset = first_offset
    cdef QuickParcel quick
    for parcel in parcels:
        if isinstance(parcel, QuickParcel):
            quick = <QuickParcel>parcel
            ticket, message_id, key = quick.ticket, quick.message_id, quick.key
        else:
            ticket, message_id, key = parcel.ticket, parcel.message_id, parcel.key
        if isinstance(ticket, Submission) and (<Submission>ticket)._made is None:
            (<Submission>ticket).settle(message_id, key, offset, facts)
        else:
            rest.append((ticket, parcel.index, make(queue, offset, message_id, key, stored, repeat)))
        offset += 1
    return rest


_TWINS = pack_pairs, sort_run, batch_body, receipts_of, settle, total_size, batch_weights, MessageIds, Intake
TWINS = {each.__name__: each for each in _TWINS}
