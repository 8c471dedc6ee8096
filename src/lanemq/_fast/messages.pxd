from libc.stdint cimport int32_t, int64_t

from lanemq._fast.bytes cimport Bytes, Part


cdef class MessageBase:
    cdef public object _source
    cdef public object _buffer
    cdef public object _view
    cdef public int64_t queue_offset
    cdef public Py_ssize_t _start
    cdef public int32_t size
    cdef public int32_t retried_here
    cdef bint _known
    cdef object _key


cdef class BodyView:
    cdef object owner
    cdef Bytes at
    cdef Py_ssize_t size


cdef class CheckedDecoder:
    cdef object decode, errors, explain
    cdef bint lends


cdef class EventCall:
    cdef object handler, decode, errors, explain
    cdef int message_at


cdef object key_of(MessageBase message)
cdef bint find_key_bytes(MessageBase message, Part *value) noexcept
cdef void set_key(MessageBase message, key)
cdef object call_with_event(EventCall call, message)
cdef bint lend_body(CheckedDecoder decoder, MessageBase message, BodyView view) noexcept
cdef object lent_event(CheckedDecoder decoder, MessageBase message, BodyView view)
cdef int track(tuple messages) except -1
