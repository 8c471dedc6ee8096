# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins of runs and lanes, and of the steps that every message takes from a pull to the handler and back.

The references are in `core/consuming/runs.py`, `core/consuming/unfinished.py`, `client/consumer/turns/handler.py`
(`plain_handler`), `client/consumer/turns/workers.py` (`run_waiting`) and `clock.py`; they say what everything means. The
classes are what makes this faster: their fields are read and written without a lookup by name. Messages may be of any
class; those of `messages.pyx` are read in the same way.
"""

include "guard.pxi"

from types import GenericAlias

cimport cython
from cpython.contextvars cimport PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit
from cpython.dict cimport PyDict_GetItemWithError
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcmp, memmove, memset

from lanemq._fast.bytes cimport Part
from lanemq._fast.messages cimport (
    BodyView, CheckedDecoder, EventCall, MessageBase, call_with_event, find_key_bytes, key_of, lend_body, lent_event,
    set_key, track
)


cdef extern from *:
    """
    #include <time.h>
    #if defined(__linux__) && defined(CLOCK_BOOTTIME)
    static int64_t lane_running_ns(void) {
        struct timespec at;
        if (clock_gettime(CLOCK_BOOTTIME, &at)) return -1;
        return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
    }
    #else
    static int64_t lane_running_ns(void) { return -1; }
    #endif
    """
    int64_t lane_running_ns() nogil


cdef enum:
    MAX_RANGES = 32

# --- runs and lanes


cdef class RunPermit:
    """Twin of `core.consuming.runs.RunPermit`."""

    cdef public int64_t usable_until
    cdef public bint withdrawn
    cdef public bint dropped
    cdef dict __dict__

    def __init__(self, usable_until):
        self.usable_until = usable_until


@cython.freelist(512)
cdef class LaneRun:
    """Twin of `core.consuming.runs.LaneRun`."""

    cdef public object queue
    cdef public object key
    cdef public tuple messages
    cdef public object began
    cdef public object sending_back
    cdef public RunPermit permit
    cdef public Lane lane
    cdef public int64_t token
    cdef public int64_t slice_end
    cdef public int32_t attempt
    cdef public int32_t done
    cdef public int32_t settled
    cdef public bint running

    def __init__(self, queue, key, messages, attempt, token, permit, slice_end, lane=None):
        self.queue, self.key, self.messages, self.attempt = queue, key, messages, attempt
        self.token, self.permit, self.slice_end, self.lane = token, permit, slice_end, lane

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    @property
    def usable_until(self):
        return self.permit.usable_until

    def may_continue(self, *, now):
        return may_continue(self, now)


cdef inline bint may_continue(LaneRun run, int64_t now) noexcept:
    cdef RunPermit permit = run.permit
    return not permit.withdrawn and now < permit.usable_until and now <= run.slice_end


cdef class Lane:
    """Twin of `core.consuming.runs.Lane`."""

    cdef public object key
    cdef public list pending
    cdef public LaneRun run
    cdef public object slice_end
    cdef public list redriven
    cdef public bint watched

    def __init__(self, key, pending):
        self.key, self.pending = key, pending

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)


cdef Lane grow(LaneRun run):
    """As `core.consuming.runs.grow`."""
    cdef Lane lane = Lane.__new__(Lane)
    lane.key, lane.pending = run.key, [] if run.running else list(run.messages)
    if run.running:
        lane.run, lane.slice_end = run, run.slice_end
    run.lane = lane
    return lane


# --- from a pull to runs, and back


def lay_in_lanes(dict lanes not None, ready, messages, queue, RunPermit permit):
    """Twin of `core.consuming.runs.lay_in_lanes`.

    Most keys of a pull occur in it more than once. A small table finds their lanes by the bytes of the key, which saves
    the text, its hash and the look-up, and lets all messages of a lane share one text. It refers only to lanes: they
    stay in `lanes` during the call, whereas `grow` replaces a run that stands for a lane.
    """
    cdef PyObject *found
    cdef LaneRun run
    cdef Lane lane, last = None
    cdef list watched = []
    cdef KnownLane[KNOWN_LANES] known
    cdef KnownLane *slot
    cdef Part text
    join = ready.append
    memset(known, 0, sizeof(known))
    for message in messages:
        slot = NULL
        if isinstance(message, MessageBase):
            if find_key_bytes(<MessageBase>message, &text) and text.at != NULL:
                slot = &known[slot_of(text)]
                if slot.lane != NULL and slot.key.size == text.size and not memcmp(slot.key.at, text.at, text.size):
                    lane = <Lane>slot.lane
                    set_key(<MessageBase>message, lane.key)
                    lane.pending.append(message)
                    if lane.watched and lane is not last:
                        watched.append(lane)
                        last = lane
                    continue
            key = key_of(<MessageBase>message)
        else:
            key = message.key
        found = PyDict_GetItemWithError(lanes, key)
        if found == NULL:
            run = LaneRun.__new__(LaneRun)
            run.queue, run.key, run.messages, run.attempt, run.permit = queue, key, (message,), 1, permit
            lanes[key] = run
            join(run)
            continue
        place = <object>found
        if type(place) is LaneRun:
            lanes[key] = lane = grow(<LaneRun>place)
        else:
            lane = place
        if slot != NULL:
            slot.key, slot.lane = text, <PyObject *>lane
        lane.pending.append(message)
        if lane.watched and lane is not last:
            watched.append(lane)
            last = lane
    return watched


cdef enum:
    KNOWN_LANES = 256


cdef struct KnownLane:
    Part key
    PyObject *lane


cdef inline Py_ssize_t slot_of(Part key) noexcept:
    """FNV-1a over the last bytes, by which keys usually differ."""
    cdef uint32_t mixed = 2166136261
    cdef Py_ssize_t at
    for at in range(max(0, key.size - 12), key.size):
        mixed = (mixed ^ key.at[at]) * 16777619
    return (mixed ^ mixed >> 16) % KNOWN_LANES


def cut_runs(messages, Py_ssize_t size, queue, RunPermit permit):
    """Twin of `core.consuming.runs.cut_runs`."""
    cdef list runs = []
    cdef LaneRun run
    cdef Py_ssize_t at
    if size < 1:
        return references["cut_runs"](messages, size, queue, permit)
    for at in range(0, len(messages), size):
        run = LaneRun.__new__(LaneRun)
        run.messages = (messages[at],) if size == 1 else tuple(messages[at:at + size])
        run.queue, run.attempt, run.permit = queue, 1, permit
        runs.append(run)
    return runs


def take_runs(source, Py_ssize_t max_messages, limit, int64_t slice_end, tokens):
    """Twin of `core.consuming.runs.take_runs`."""
    cdef list runs = [], taken
    cdef LaneRun run
    cdef Lane lane
    ready = source.ready
    first = ready.popleft
    while max_messages > 0 and ready:
        place = first()
        run = <LaneRun>place if type(place) is LaneRun else None
        if run is None or run.lane is not None:
            lane = place if run is None else run.lane
            taken = source.take(lane, limit)
            if not taken:
                continue
            run = run_of(source, lane, taken, slice_end)
        else:
            run.slice_end = slice_end
        track(run.messages)
        run.token = next(tokens)
        run.running = True
        runs.append(run)
        max_messages -= len(run.messages)
    source.running += len(runs)
    return runs


cdef LaneRun run_of(source, Lane lane, list taken, int64_t slice_end):
    cdef LaneRun run = LaneRun.__new__(LaneRun)
    if lane.slice_end is None:
        lane.slice_end = slice_end
    failures = source.failures
    run.queue, run.key, run.messages, run.permit = source.queue, lane.key, tuple(taken), source
    run.attempt = failures.get(taken[0].queue_offset, 0) + 1 if failures else 1
    run.slice_end, run.lane = lane.slice_end, lane
    lane.run = run
    return run


def count_messages(list runs not None):
    """Twin of `core.consuming.runs.count_messages`."""
    cdef Py_ssize_t count = 0
    cdef LaneRun run
    for run in runs:
        count += len(run.messages)
    return count


def by_permit(runs):
    """Twin of `core.consuming.runs.by_permit`."""
    cdef list groups = [], group = None
    cdef RunPermit last = None
    cdef LaneRun run
    for run in runs:
        if not run.running:
            continue
        if group is None or run.permit is not last:
            last, group = run.permit, []
            groups.append((last, group))
        group.append(run)
    return groups


def end_runs(runs, dict lanes):
    """Twin of `core.consuming.runs.end_runs`."""
    cdef list done = [], more = [], redriven = []
    cdef LaneRun run
    cdef Lane lane
    for run in runs:
        run.running = False
        lane = run.lane
        if lane is not None:
            lane.run = None
            if lane.redriven is not None:
                redriven.append(run)
                continue
            if lane.pending:
                more.append(lane)
                done.extend(run.messages[run.settled:] if run.settled else run.messages)
                continue
        if lanes is not None:
            del lanes[run.key]
        done.extend(run.messages[run.settled:] if run.settled else run.messages)
    return done, more, redriven


cdef class UnfinishedOffsets:
    """Twin of `core.consuming.unfinished.UnfinishedOffsets`: an array of offsets, and a mark for each of them."""

    cdef int64_t *_offsets
    cdef unsigned char *_marks
    cdef Py_ssize_t _first, _end, _room, _finished
    cdef public int64_t bytes

    def __dealloc__(self):
        PyMem_Free(self._offsets)
        PyMem_Free(self._marks)

    def __len__(self):
        return self._end - self._first - self._finished

    @property
    def first(self):
        return self._offsets[self._first] if self._first < self._end else None

    @property
    def finished_count(self):
        return self._finished

    def offsets(self):
        cdef Py_ssize_t at
        return [self._offsets[at] for at in range(self._first, self._end) if not self._marks[at]]

    def add(self, messages):
        cdef Py_ssize_t end
        self._make_room(len(messages))
        end = self._end
        for message in messages:
            if end == self._room:  # the sequence has grown
                raise ValueError("messages were added while they were read")
            if isinstance(message, MessageBase):
                self._offsets[end] = (<MessageBase>message).queue_offset
                self.bytes += (<MessageBase>message).size
            else:
                self._offsets[end] = message.queue_offset
                self.bytes += <int64_t>message.size
            self._marks[end] = 0
            end += 1
        self._end = end

    def finish(self, messages):
        cdef Py_ssize_t at
        for message in messages:
            if isinstance(message, MessageBase):
                at = self._index((<MessageBase>message).queue_offset)
                self.bytes -= (<MessageBase>message).size
            else:
                at = self._index(message.queue_offset)
                self.bytes -= <int64_t>message.size
            if at >= 0 and not self._marks[at]:
                self._marks[at] = 1
                self._finished += 1
        while self._first < self._end and self._marks[self._first]:
            self._first += 1
            self._finished -= 1

    def forget_finished(self):
        cdef Py_ssize_t at, end = self._first
        for at in range(self._first, self._end):
            if not self._marks[at]:
                self._offsets[end], self._marks[end] = self._offsets[at], 0
                end += 1
        self._end, self._finished = end, 0

    cdef Py_ssize_t _index(self, int64_t offset) noexcept:
        """Where the offset is; -1 if it is not there. Without gaps between them, an offset says where it is."""
        cdef Py_ssize_t low = self._first, high, middle
        cdef int64_t distance
        if low == self._end or offset < self._offsets[low]:
            return -1
        distance = offset - self._offsets[low]
        high = self._end - 1
        if distance <= high - low:
            high = low + distance
            if self._offsets[high] == offset:
                return high
        while low <= high:
            middle = (low + high) // 2
            if self._offsets[middle] == offset:
                return middle
            if self._offsets[middle] < offset:
                low = middle + 1
            else:
                high = middle - 1
        return -1

    cdef int _make_room(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t count = self._end - self._first, room
        cdef void *moved
        if self._end + more <= self._room:
            return 0
        if count:
            memmove(self._offsets, self._offsets + self._first, count * sizeof(int64_t))
            memmove(self._marks, self._marks + self._first, count)
        self._first, self._end = 0, count
        room = 2 * (count + more)
        if room <= self._room:
            return 0
        moved = PyMem_Realloc(self._offsets, room * sizeof(int64_t))
        if moved == NULL:
            raise MemoryError
        self._offsets = <int64_t *>moved
        moved = PyMem_Realloc(self._marks, room)
        if moved == NULL:
            raise MemoryError
        self._marks = <unsigned char *>moved
        self._room = room
        return 0


# --- running


def running_ns():
    """Twin of `clock.running_ns`."""
    cdef int64_t now = lane_running_ns()
    return references["running_ns"]() if now < 0 else now


cdef object OUR_CLOCK = running_ns


cdef class PlainHandler:
    """What `plain_handler` makes."""

    cdef object call, stop_after, check_result
    cdef bint batched

    def __call__(self, batch, run):
        return called(self, batch if self.batched else batch[0], batch)


cdef inline object called(PlainHandler handler, given, batch):
    """`batch` is None if `given` is its only message: a tuple for it is made when it fails."""
    call = handler.call
    try:
        result = call_with_event(<EventCall>call, given) if type(call) is EventCall else call(given)
        if result is not None:
            handler.check_result(result)
    except BaseException as error:
        return handler.stop_after(error, (given,) if batch is None else batch)
    return None


cdef object called_with_lent(PlainHandler handler, EventCall call, MessageBase message, BodyView view):
    """As `called`, for a message whose body was lent to `view`."""
    cdef CheckedDecoder decoder = <CheckedDecoder>call.decode
    cdef bint is_decoded = False
    try:
        event = lent_event(decoder, message, view)
        is_decoded = True
        if call.message_at < 0:
            result = call.handler(event)
        elif call.message_at:
            result = call.handler(event, message)
        else:
            result = call.handler(message, event)
        if result is not None:
            handler.check_result(result)
        return None
    except BaseException as error:
        if is_decoded or not isinstance(error, decoder.errors):
            return handler.stop_after(error, (message,))
        problem = error
    return undecodable(handler, call, message, problem)


cdef object undecodable(PlainHandler handler, EventCall call, message, problem):
    """Stops with the error that `call_with_event` would have raised."""
    try:
        try:
            raise (<CheckedDecoder>call.decode).explain(problem) from problem
        except call.errors as error:
            raise call.explain(message, error) from error
    except BaseException as error:
        return handler.stop_after(error, (message,))


def plain_handler(call, bint batched, stop_after, check_result):
    """Twin of `client.consumer.turns.handler.plain_handler`."""
    cdef PlainHandler handler = PlainHandler.__new__(PlainHandler)
    handler.call, handler.batched = call, batched
    handler.stop_after, handler.check_result = stop_after, check_result
    return handler


def run_waiting(worker, handler, Py_ssize_t batch_size, now, withdrawn, times):
    """Twin of `client.consumer.turns.workers.run_waiting`."""
    cdef Py_ssize_t runs = 0, messages = 0, done, count
    cdef LaneRun run
    cdef tuple batch
    cdef int64_t time, began = -1
    cdef TurnCounts turns
    cdef bint own_clock = now is OUR_CLOCK and lane_running_ns() >= 0
    cdef PlainHandler plain = <PlainHandler>handler if type(handler) is PlainHandler else None
    cdef bint single = plain is not None and not plain.batched and batch_size == 1
    cdef EventCall events = <EventCall>plain.call if single and type(plain.call) is EventCall else None
    cdef CheckedDecoder decoder = None
    cdef BodyView view = BodyView.__new__(BodyView)
    if events is not None and type(events.decode) is CheckedDecoder:
        decoder = <CheckedDecoder>events.decode
    waiting = worker.waiting
    first, end = waiting.popleft, worker.ended.append
    open_turns(&turns, times)
    try:
        while waiting:
            try:
                run = first()
            except IndexError:
                break
            worker.run = run
            batch = run.messages
            count, done = len(batch), 0
            mark(batch[0], run.attempt - 1)
            while done < count:
                time = lane_running_ns() if own_clock else now()
                if began >= 0:
                    count_turn(&turns, time - began)
                began = -1
                if not may_continue(run, time // 1000000):
                    return runs, messages, withdrawn, done
                if not done:
                    run.began = time // 1000000
                began = time
                context = PyContext_CopyCurrent()
                PyContext_Enter(context)
                try:
                    if single:
                        message = batch[done]
                        if decoder is not None and isinstance(message, MessageBase) and lend_body(decoder, <MessageBase>message, view):
                            stop = called_with_lent(plain, events, <MessageBase>message, view)
                        else:
                            stop = called(plain, message, None)
                    else:
                        if batch_size < count:
                            batch = run.messages[done:done + batch_size]
                        stop = handled(handler, batch, run)
                finally:
                    PyContext_Exit(context)
                if stop is not None:
                    return runs, messages, stop, done + <Py_ssize_t>stop.succeeded
                done += batch_size
                run.done = done
            end(run)
            runs += 1
            messages += count
        worker.run = None
        return runs, messages, None, 0
    finally:
        if began >= 0:
            count_turn(&turns, (lane_running_ns() if own_clock else now()) - began)
        add_turns(&turns, times)


cdef struct TurnCounts:
    Py_ssize_t ranges
    int64_t sum
    int64_t counts[MAX_RANGES + 1]


cdef object limits_from = None
cdef int64_t turn_limits[MAX_RANGES]


cdef inline int open_turns(TurnCounts *turns, times) except -1:
    global limits_from
    cdef Py_ssize_t i
    limits = times.limits_ns
    if limits is not limits_from:
        if len(limits) > MAX_RANGES:
            raise ValueError("too many limits")
        for i in range(len(limits)):
            turn_limits[i] = limits[i]
        limits_from = limits
    turns.ranges, turns.sum = len(limits), 0
    for i in range(turns.ranges + 1):
        turns.counts[i] = 0
    return 0


cdef inline void count_turn(TurnCounts *turns, int64_t spent) noexcept:
    cdef Py_ssize_t i = 0
    while i < turns.ranges and spent > turn_limits[i]:
        i += 1
    turns.counts[i] += 1
    turns.sum += spent


cdef inline int add_turns(TurnCounts *turns, times) except -1:
    cdef list counts = times.counts
    cdef Py_ssize_t i
    for i in range(turns.ranges + 1):
        if turns.counts[i]:
            counts[i] += turns.counts[i]
    times.sum_ns += turns.sum
    return 0


cdef inline int mark(message, int retried) except -1:
    if isinstance(message, MessageBase):
        (<MessageBase>message).retried_here = retried
    else:
        message.retried_here = retried
    return 0


cdef inline object handled(handler, tuple batch, LaneRun run):
    """Calls the handler; a plain function is called directly."""
    if type(handler) is not PlainHandler:
        return handler(batch, run)
    return called(<PlainHandler>handler, batch if (<PlainHandler>handler).batched else batch[0], batch)


TWINS = {
    "core.consuming.runs.RunPermit": RunPermit,
    "core.consuming.runs.LaneRun": LaneRun,
    "core.consuming.runs.Lane": Lane,
    "core.consuming.runs.lay_in_lanes": lay_in_lanes,
    "core.consuming.runs.by_permit": by_permit,
    "core.consuming.runs.cut_runs": cut_runs,
    "core.consuming.runs.take_runs": take_runs,
    "core.consuming.runs.count_messages": count_messages,
    "core.consuming.runs.end_runs": end_runs,
    "core.consuming.unfinished.UnfinishedOffsets": UnfinishedOffsets,
    "clock.running_ns": running_ns,
    "client.consumer.turns.handler.plain_handler": plain_handler,
    "client.consumer.turns.workers.run_waiting": run_waiting,
}
