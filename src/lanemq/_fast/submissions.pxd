from libc.stdint cimport int64_t


cdef class Submission:
    cdef public object _made
    cdef public object _state
    cdef public object _exception
    cdef public object _waiters
    cdef public object _done_callbacks
    cdef object _receipt
    cdef tuple _facts
    cdef str _message_id, _key
    cdef int64_t _offset

    cdef inline void settle(self, str message_id, str key, int64_t offset, tuple facts):
        """Sets the result of a future that no thread waits for; the receipt is created when it is read."""
        self._message_id, self._key, self._offset, self._facts = message_id, key, offset, facts
        self._state = "FINISHED"


cdef object new_future()
