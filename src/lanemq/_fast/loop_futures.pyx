# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twin of the future that `submit` returns on an event loop.

The reference is in `client/producer/waiters.py`, a subclass of `asyncio.Future`. For each callback of such a future,
asyncio makes a handle and takes a place in the loop's queue, which costs more than sending the message. This twin offers
the same methods, so that tasks, `gather` and `wait` take it for a future (`asyncio.isfuture`), but callbacks of futures
that end in the same iteration of the loop run one after the other in one place of its queue. It creates its receipt when
that is read.

`asyncio` is imported when the first future is made: commands that send nothing do without.
"""

include "guard.pxi"

cimport cython
from cpython.object cimport PyObject

cdef extern from *:
    bint PyObject_GC_IsTracked(object one)
    void PyObject_GC_Track(PyObject *one)
    void PyObject_GC_UnTrack(void *one)
    object PyContext_CopyCurrent()


cdef enum:
    PENDING = 0
    CANCELLED = 1
    FINISHED = 2

cdef tuple STATES = ("PENDING", "CANCELLED", "FINISHED")
cdef object _future_class = None
cdef object _exceptions = None
cdef object _running_loop = None


cdef int _load() except -1:
    global _future_class, _exceptions, _running_loop
    import asyncio

    _exceptions, _running_loop, _future_class = asyncio.exceptions, asyncio.get_running_loop, asyncio.Future
    return 0


@cython.freelist(256)
cdef class LoopFuture:
    """Twin of `client.producer.waiters.LoopFuture`.

    The garbage collector would scan all futures that a caller keeps, again and again. The engine settles every future,
    which removes its callbacks, and a receipt refers to nothing that refers back. So the collector tracks a future only
    once it has failed: an error refers to frames, and they may refer to the future.
    """

    def __init__(self, *, loop=None):
        if _future_class is None:
            _load()
        self._of_loop = _running_loop() if loop is None else loop

    @property
    def __class__(self):
        """What `isinstance` looks at besides the type."""
        if _future_class is None:
            _load()
        return _future_class

    # what the engine does

    def stored(self, index, receipt):
        if self._stage == PENDING:
            self._receipt = receipt
            self._end(FINISHED)

    def failed(self, index, error):
        if self._stage == PENDING:
            self.set_exception(error)

    cdef int settle(self, str message_id, str key, int64_t offset, tuple facts) except -1:
        """The message is stored; the receipt is created when it is read."""
        if self._stage == PENDING:
            self._message_id, self._key, self._offset, self._facts = message_id, key, offset, facts
            self._end(FINISHED)
        return 0

    cdef int settle_numbered(self, MessageIds ids, uint32_t number, str key, int64_t offset, tuple facts) except -1:
        """As `settle`, for a message whose id is not written out yet."""
        if self._stage == PENDING:
            self._ids, self._number, self._key, self._offset, self._facts = ids, number, key, offset, facts
            self._end(FINISHED)
        return 0

    cdef object _made(self):
        """The result."""
        if self._facts is not None:
            make, queue, stored, repeat = self._facts
            message_id = self._message_id if self._ids is None else self._ids.text(self._number)
            self._receipt = make(queue, self._offset, message_id, self._key, stored, repeat)
            self._facts = None
        return self._receipt

    cdef int _end(self, int stage) except -1:
        cdef list others = self._others
        self._stage = stage
        if self._callback is not None:
            callback, context = self._callback, self._context
            self._callback = self._context = self._others = None
            _call_soon(self._of_loop, callback, self, context)
            if others is not None:
                for callback, context in others:
                    _call_soon(self._of_loop, callback, self, context)
        return 0

    # what callers of an asyncio.Future do

    def done(self):
        return self._stage != PENDING

    def cancelled(self):
        return self._stage == CANCELLED

    def result(self):
        if self._stage == FINISHED:
            if self._error is None:
                return self._made()
            (<Unread>self._unread).loop = None
            raise self._error.with_traceback(self._traceback)
        if self._stage == CANCELLED:
            raise self._make_cancelled_error()
        raise _exceptions.InvalidStateError("Result is not ready.")

    def exception(self):
        if self._stage == FINISHED:
            if self._error is not None:
                (<Unread>self._unread).loop = None
            return self._error
        if self._stage == CANCELLED:
            raise self._make_cancelled_error()
        raise _exceptions.InvalidStateError("Exception is not set.")

    def set_result(self, result):
        self._refuse_second()
        self._receipt = result
        self._end(FINISHED)

    def set_exception(self, exception):
        self._refuse_second()
        if isinstance(exception, type):
            exception = exception()
        if isinstance(exception, StopIteration):
            raise TypeError("StopIteration interacts badly with generators and cannot be raised into a Future")
        if not PyObject_GC_IsTracked(self):
            PyObject_GC_Track(<PyObject *>self)
        self._error, self._traceback = exception, exception.__traceback__
        self._unread = Unread(self._of_loop, exception)
        self._end(FINISHED)

    def cancel(self, msg=None):
        if self._stage != PENDING:
            return False
        self._cancel_text = msg
        self._end(CANCELLED)
        return True

    def add_done_callback(self, callback, *, context=None):
        if context is None:
            context = PyContext_CopyCurrent()
        if self._stage != PENDING:
            _call_soon(self._of_loop, callback, self, context)
        elif self._callback is None:
            self._callback, self._context = callback, context
        elif self._others is None:
            self._others = [(callback, context)]
        else:
            self._others.append((callback, context))

    def remove_done_callback(self, callback):
        if self._callback is None:
            return 0
        cdef list everything = [(self._callback, self._context)] + (self._others or [])
        cdef list kept = [each for each in everything if each[0] != callback]
        self._callback, self._context = kept[0] if kept else (None, None)
        self._others = kept[1:] or None
        return len(everything) - len(kept)

    def get_loop(self):
        return self._of_loop

    def __await__(self):
        if self._stage == PENDING:
            self._asyncio_future_blocking = True
            yield self
        if self._stage == PENDING:
            raise RuntimeError("await wasn't used with future")
        return self.result()

    def __iter__(self):
        return self.__await__()

    def __repr__(self):
        if self._stage != FINISHED:
            return f"<{type(self).__name__} {STATES[self._stage].lower()}>"
        shown = f"result={self._made()!r}" if self._error is None else f"exception={self._error!r}"
        return f"<{type(self).__name__} finished {shown}>"

    # what asyncio itself reads of a future

    @property
    def _state(self):
        return STATES[self._stage]

    @property
    def _loop(self):
        return self._of_loop

    @property
    def _exception(self):
        return self._error

    @property
    def _result(self):
        return self._made()

    @property
    def _source_traceback(self):
        return None

    @property
    def _cancel_message(self):
        return self._cancel_text

    @_cancel_message.setter
    def _cancel_message(self, text):
        self._cancel_text = text

    @property
    def _callbacks(self):
        first = [] if self._callback is None else [(self._callback, self._context)]
        return (first + (self._others or [])) or None

    @property
    def _log_traceback(self):
        return self._unread is not None and (<Unread>self._unread).loop is not None

    @_log_traceback.setter
    def _log_traceback(self, value):
        if value:
            raise ValueError("_log_traceback can only be set to False")
        if self._unread is not None:
            (<Unread>self._unread).loop = None

    def _make_cancelled_error(self):
        return _exceptions.CancelledError() if self._cancel_text is None else _exceptions.CancelledError(self._cancel_text)

    def _refuse_second(self):
        if self._stage != PENDING:
            raise _exceptions.InvalidStateError("invalid state")


cdef class Unread:
    """Reports an error that was not read before its future was deleted, as asyncio does."""

    cdef object loop
    cdef object _error

    def __init__(self, loop, error):
        self.loop, self._error = loop, error

    def __del__(self):
        if self.loop is not None:
            message = "LoopFuture exception was never retrieved"
            self.loop.call_exception_handler({"message": message, "exception": self._error})


cdef LoopFuture new_loop_future(object loop):
    """Creates a future of this loop, without a call for its arguments; the garbage collector does not track it."""
    if _future_class is None:
        _load()
    cdef LoopFuture future = LoopFuture.__new__(LoopFuture)
    future._of_loop = loop
    PyObject_GC_UnTrack(<void *>future)
    return future


# callbacks


cdef class Callbacks:
    """Callbacks that a loop runs in one place of its queue, in order, each in its own context."""

    cdef object _loop
    cdef list _calls

    def __init__(self, loop, calls):
        self._loop, self._calls = loop, calls

    def __call__(self):
        global _latest
        cdef list calls = self._calls
        cdef Py_ssize_t at = 0
        if _latest is self:
            _latest = None  # what ends from now on waits for the loop's next iteration
        try:
            while at < len(calls):
                callback, future, context = <tuple>calls[at]
                calls[at] = None
                at += 1
                try:
                    context.run(callback, future)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._loop.call_exception_handler(
                        {"message": f"Exception in callback {callback!r}", "exception": error, "future": future}
                    )
        finally:
            if at < len(calls):
                self._loop.call_soon(Callbacks(self._loop, calls[at:]))


cdef Callbacks _latest = None
# Takes more callbacks of its loop until the loop has run it. Loops of other threads replace it, and then it takes no more:
# the callbacks of a loop keep their order.


cdef int _call_soon(loop, callback, future, context) except -1:
    global _latest
    cdef tuple call = (callback, future, context)
    cdef Callbacks latest = _latest
    if latest is None or latest._loop is not loop:
        latest = Callbacks(loop, [])
        loop.call_soon(latest)
        _latest = latest
    latest._calls.append(call)
    return 0


TWINS = {
    "client.producer.waiters.LoopFuture": LoopFuture,
}
