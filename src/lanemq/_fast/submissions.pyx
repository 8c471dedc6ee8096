# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twin of the future that `submit` returns.

The reference is in `client/producer/waiters.py`. A future creates its receipt when it is read. What the reference guards
with a lock needs none here: no Python code runs in between, so no other thread does.
"""

include "guard.pxi"

import threading
from concurrent.futures import Future

from cpython.object cimport PyObject, PyTypeObject

cdef extern from *:
    bint PyObject_GC_IsTracked(object one)
    void PyObject_GC_Track(PyObject *one)
    void PyObject_GC_UnTrack(void *one)
    int PyObject_GenericSetAttr(object one, object name, object value) except -1


cdef tuple NO_ARGUMENTS = ()


cdef class Submission:
    """The state of a future. The condition variable is created when a caller looks before the result is there.

    The garbage collector would scan all futures that a caller keeps, again and again. They refer to nothing that refers
    back, so it tracks them only once they get a callback or an attribute.
    """

    def __cinit__(self):
        self._state = "PENDING"

    def __init__(self):
        pass

    def __setattr__(self, str name, value):
        if not PyObject_GC_IsTracked(self):
            PyObject_GC_Track(<PyObject *>self)
        PyObject_GenericSetAttr(self, name, value)

    @property
    def _condition(self):
        if self._made is None:
            condition = threading.Condition()
            if not PyObject_GC_IsTracked(self):
                PyObject_GC_Track(<PyObject *>self)
            if self._made is None:
                self._waiters = []
                self._done_callbacks = []
                self._made = condition
        return self._made

    @property
    def _result(self):
        if self._receipt is None and self._facts is not None:
            make, queue, stored, repeat = self._facts
            message_id = self._message_id if self._ids is None else self._ids.text(self._number)
            self._receipt = make(queue, self._offset, message_id, self._key, stored, repeat)
        return self._receipt

    @_result.setter
    def _result(self, receipt):
        self._receipt = receipt

    def cancel(self):
        return False

    def done(self):
        return self._state == "FINISHED"

    def result(self, timeout=None):
        receipt = self._result
        return Future.result(self, timeout) if receipt is None else receipt

    def end_unseen(self, receipt):
        if self._made is not None:
            return False
        self._state = "FINISHED"
        self._receipt = receipt
        return True

    def stored(self, index, receipt):
        if not self.end_unseen(receipt):
            self.set_result(receipt)

    def failed(self, index, error):
        self.set_exception(error)


class SubmittedFuture(Submission, Future):
    """Twin of `client.producer.waiters.SubmittedFuture`."""


cdef object new_future():
    """Creates a future without the calls that a type makes for its arguments, and not tracked by the garbage collector."""
    future = (<PyTypeObject *>SubmittedFuture).tp_new(SubmittedFuture, <PyObject *>NO_ARGUMENTS, NULL)
    PyObject_GC_UnTrack(<void *>future)
    return future


TWINS = {
    "client.producer.waiters.SubmittedFuture": SubmittedFuture,
}
