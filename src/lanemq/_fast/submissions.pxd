from libc.stdint cimport int64_t, uint32_t

from lanemq._fast.ids cimport MessageIds


cdef class Submission:
    cdef public object _made
    cdef public object _state
    cdef public object _exception
    cdef public object _waiters
    cdef public object _done_callbacks
    cdef object _receipt
    cdef tuple _facts
    cdef str _message_id, _key
    cdef MessageIds _ids
    cdef uint32_t _number
    cdef int64_t _offset

    cdef inline void settle(self, str message_id, str key, int64_t offset, tuple facts):
        """Sets the result of a future that no thread waits for; the receipt is created when it is read."""
        self._message_id, self._key, self._offset, self._facts = message_id, key, offset, facts
        self._state = "FINISHED"

    cdef inline void settle_numbered(self, MessageIds ids, uint32_t number, str key, int64_t offset, tuple facts):
        """As `settle`, for a message whose id is not written out yet."""
        self._ids, self._number, self._key, self._offset, self._facts = ids, number, key, offset, facts
        self._state = "FINISHED"


cdef object new_future()
