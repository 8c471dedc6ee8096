from libc.stdint cimport int32_t, int64_t

from lanemq._fast.bytes cimport Part


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


cdef class EventCall:
    cdef object handler, decode, errors, explain
    cdef int message_at


cdef object key_of(MessageBase message)
cdef bint find_key_bytes(MessageBase message, Part *value) noexcept
cdef void set_key(MessageBase message, key)
cdef object call_with_event(EventCall call, message)
cdef int track(tuple messages) except -1
