from libc.stdint cimport int64_t, uint32_t

from lanemq._fast.ids cimport MessageIds


cdef class LoopFuture:
    cdef object __weakref__
    cdef public bint _asyncio_future_blocking
    cdef object _of_loop
    cdef int _stage
    cdef object _receipt
    cdef object _error, _traceback, _unread
    cdef object _cancel_text
    cdef tuple _facts
    cdef str _message_id, _key
    cdef MessageIds _ids
    cdef uint32_t _number
    cdef int64_t _offset
    cdef object _callback, _context
    cdef list _others

    cdef int settle(self, str message_id, str key, int64_t offset, tuple facts) except -1
    cdef int settle_numbered(self, MessageIds ids, uint32_t number, str key, int64_t offset, tuple facts) except -1
    cdef object _made(self)
    cdef int _end(self, int stage) except -1


cdef LoopFuture new_loop_future(object loop)
