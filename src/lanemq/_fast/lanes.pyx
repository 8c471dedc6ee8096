# cython: language_level=3, boundscheck=True, wraparound=False, binding=False
"""Twins of turns and lanes, and of the steps that every message takes from a pull to the handler and back.

The references are in `core/turns.py` (`Gate`, `Turn`, `Lane`), `core/lane_turns.py`, `client/attempts.py`
(`plain_attempt`), `client/turn_run.py` (`run_turns`) and `clock.py`, with what everything means. The gain is that of
the classes: their fields are read and written without asking for them by name. Messages may be of any class; those of
`messages.pyx` are read in the same way.
"""

from types import GenericAlias

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport getenv

from lanemq._fast.messages cimport Laid, key_of

from lanemq._fast import references

cdef extern from *:
    """
    #include <time.h>
    #if defined(__linux__) && defined(CLOCK_BOOTTIME)
    static int64_t lane_running_ms(void) {
        struct timespec at;
        if (clock_gettime(CLOCK_BOOTTIME, &at)) return -1;
        return (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000;
    }
    #else
    static int64_t lane_running_ms(void) { return -1; }
    #endif
    """
    const char *LANEMQ_SOURCES
    int64_t lane_running_ms() nogil

cdef const char *_pure = getenv(b"LANEMQ_PURE")
if _pure != NULL and _pure[0] not in (0, 48):
    raise ImportError("LANEMQ_PURE is set")

SOURCES = LANEMQ_SOURCES.decode()


# --- turns


cdef class Gate:
    """Twin of `core.turns.Gate`."""

    cdef public int64_t usable_until
    cdef public bint closed
    cdef dict __dict__

    def __init__(self, usable_until):
        self.usable_until = usable_until


cdef class Turn:
    """Twin of `core.turns.Turn`."""

    cdef public object queue
    cdef public object key
    cdef public tuple messages
    cdef public object began
    cdef public object given
    cdef public Gate gate
    cdef public Lane lane
    cdef public int64_t token
    cdef public int64_t slice_end
    cdef public int32_t attempt
    cdef public bint running

    def __init__(self, queue, key, messages, attempt, token, gate, slice_end, lane=None):
        self.queue, self.key, self.messages, self.attempt = queue, key, messages, attempt
        self.token, self.gate, self.slice_end, self.lane = token, gate, slice_end, lane

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    @property
    def usable_until(self):
        return self.gate.usable_until

    def may_go_on(self, *, now):
        return may_go_on(self, now)


cdef inline bint may_go_on(Turn turn, int64_t now) noexcept:
    cdef Gate gate = turn.gate
    return not gate.closed and now < gate.usable_until and now <= turn.slice_end


cdef class Lane:
    """Twin of `core.turns.Lane`."""

    cdef public object key
    cdef public list pending
    cdef public Turn turn
    cdef public object slice_end
    cdef public object redriven

    def __init__(self, key, pending):
        self.key, self.pending = key, pending

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)


cdef Lane grow(Turn turn):
    """As `core.lane_turns.grow`."""
    cdef Lane lane = Lane.__new__(Lane)
    lane.key, lane.pending = turn.key, [] if turn.running else list(turn.messages)
    if turn.running:
        lane.turn, lane.slice_end = turn, turn.slice_end
    turn.lane = lane
    return lane


# --- from a pull to turns, and back


def lay_in_lanes(dict lanes not None, ready, messages, queue, Gate gate):
    """Twin of `core.lane_turns.lay_in_lanes`."""
    cdef PyObject *found
    cdef Turn turn
    cdef Lane lane
    join = ready.append
    for message in messages:
        key = key_of(<Laid>message) if isinstance(message, Laid) else message.key
        found = PyDict_GetItemWithError(lanes, key)
        if found == NULL:
            turn = Turn.__new__(Turn)
            turn.queue, turn.key, turn.messages, turn.attempt, turn.gate = queue, key, (message,), 1, gate
            lanes[key] = turn
            join(turn)
            continue
        place = <object>found
        if type(place) is Turn:
            lanes[key] = lane = grow(<Turn>place)
        else:
            lane = place
        lane.pending.append(message)


def cut_turns(messages, Py_ssize_t size, queue, Gate gate):
    """Twin of `core.lane_turns.cut_turns`."""
    cdef list turns = []
    cdef Turn turn
    cdef Py_ssize_t at
    if size < 1:
        return references["cut_turns"](messages, size, queue, gate)
    for at in range(0, len(messages), size):
        turn = Turn.__new__(Turn)
        turn.messages = (messages[at],) if size == 1 else tuple(messages[at:at + size])
        turn.queue, turn.attempt, turn.gate = queue, 1, gate
        turns.append(turn)
    return turns


def take_turns(home, Py_ssize_t most, limit, int64_t slice_end, tokens):
    """Twin of `core.lane_turns.take_turns`."""
    cdef list turns = [], taken
    cdef Turn turn
    cdef Lane lane
    ready = home.ready
    first = ready.popleft
    while most > 0 and ready:
        place = first()
        turn = <Turn>place if type(place) is Turn else None
        if turn is None or turn.lane is not None:
            lane = place if turn is None else turn.lane
            taken = home.take(lane, limit)
            if not taken:
                continue
            turn = turn_of(home, lane, taken, slice_end)
        else:
            turn.slice_end = slice_end
        turn.token = next(tokens)
        turn.running = True
        turns.append(turn)
        most -= len(turn.messages)
    home.running += len(turns)
    return turns


cdef Turn turn_of(home, Lane lane, list taken, int64_t slice_end):
    cdef Turn turn = Turn.__new__(Turn)
    if lane.slice_end is None:
        lane.slice_end = slice_end
    failures = home.failures
    turn.queue, turn.key, turn.messages, turn.gate = home.queue, lane.key, tuple(taken), home
    turn.attempt = failures.get(taken[0].queue_offset, 0) + 1 if failures else 1
    turn.slice_end, turn.lane = lane.slice_end, lane
    lane.turn = turn
    return turn


def count_messages(list turns not None):
    """Twin of `core.lane_turns.count_messages`."""
    cdef Py_ssize_t count = 0
    cdef Turn turn
    for turn in turns:
        count += len(turn.messages)
    return count


def end_turns(turns, dict lanes):
    """Twin of `core.lane_turns.end_turns`."""
    cdef list done = [], more = [], redriven = []
    cdef Turn turn
    cdef Lane lane
    for turn in turns:
        turn.running = False
        lane = turn.lane
        if lane is not None:
            lane.turn = None
            if lane.redriven is not None:
                redriven.append(lane)
                continue
            if lane.pending:
                more.append(lane)
                done.extend(turn.messages)
                continue
        if lanes is not None:
            del lanes[turn.key]
        done.extend(turn.messages)
    return done, more, redriven


def pass_finished(offsets, set finished not None, done):
    """Twin of `core.lane_turns.pass_finished`."""
    cdef int64_t size = 0, offset, head = 0
    cdef bint known = False
    cdef Py_ssize_t left = len(offsets)
    pop = offsets.popleft
    for message in done:
        if isinstance(message, Laid):
            size += (<Laid>message).size
            offset = (<Laid>message).queue_offset
        else:
            size += message.size
            offset = message.queue_offset
        if left and not known:
            head, known = offsets[0], True
        if left and head == offset:
            pop()
            left -= 1
            known = False
        else:
            finished.add(offset)
    while finished and left and offsets[0] in finished:
        finished.remove(pop())
        left -= 1
    return size


# --- running


def running_ms():
    """Twin of `clock.running_ms`."""
    cdef int64_t now = lane_running_ms()
    return references["running_ms"]() if now < 0 else now


cdef object OUR_CLOCK = running_ms


cdef class PlainAttempt:
    """What `plain_attempt` makes."""

    cdef object call, stop_after
    cdef bint batched

    def __call__(self, batch, turn):
        try:
            self.call(batch if self.batched else batch[0])
        except Exception as error:
            return self.stop_after(error, batch)
        return None


def plain_attempt(call, bint batched, stop_after):
    """Twin of `client.attempts.plain_attempt`."""
    cdef PlainAttempt attempt = PlainAttempt.__new__(PlainAttempt)
    attempt.call, attempt.batched, attempt.stop_after = call, batched, stop_after
    return attempt


def run_turns(visit, attempt, Py_ssize_t batch_size, now, closed):
    """Twin of `client.turn_run.run_turns`."""
    cdef Py_ssize_t turns = 0, messages = 0, done, count
    cdef Turn turn
    cdef tuple batch
    cdef int64_t time
    cdef bint own_clock = now is OUR_CLOCK and lane_running_ms() >= 0
    waiting = visit.waiting
    first, end = waiting.popleft, visit.ended.append
    while waiting:
        try:
            turn = first()
        except IndexError:
            break
        visit.turn = turn
        batch = turn.messages
        count, done = len(batch), 0
        mark(batch[0], turn.attempt - 1)
        while done < count:
            time = lane_running_ms() if own_clock else now()
            if not may_go_on(turn, time):
                return turns, messages, closed, done
            if not done:
                turn.began = time
            if batch_size < count:
                batch = turn.messages[done:done + batch_size]
            stop = attempted(attempt, batch, turn)
            if stop is not None:
                return turns, messages, stop, done + <Py_ssize_t>stop.succeeded
            done += batch_size
        end(turn)
        turns += 1
        messages += count
    visit.turn = None
    return turns, messages, None, 0


cdef inline int mark(message, int retried) except -1:
    if isinstance(message, Laid):
        if retried or (<Laid>message).retried_here != 0:
            (<Laid>message).retried_here = retried
    else:
        message.retried_here = retried
    return 0


cdef inline object attempted(attempt, tuple batch, Turn turn):
    """A handler that takes messages is called without a detour."""
    cdef PlainAttempt plain
    if type(attempt) is not PlainAttempt:
        return attempt(batch, turn)
    plain = <PlainAttempt>attempt
    try:
        plain.call(batch if plain.batched else batch[0])
    except Exception as error:
        return plain.stop_after(error, batch)
    return None


TWINS = {
    each.__name__: each
    for each in (Gate, Turn, Lane, lay_in_lanes, cut_turns, take_turns, count_messages, end_turns,
                 pass_finished, running_ms, plain_attempt, run_turns)
}
