from libc.stdint cimport int32_t, int64_t


cdef class MessageBase:
    cdef public object _source
    cdef public object _buffer
    cdef public object _view
    cdef public object retried_here
    cdef public int64_t queue_offset
    cdef public Py_ssize_t _start
    cdef public int32_t size
    cdef bint _known
    cdef object _key


cdef object key_of(MessageBase message)
