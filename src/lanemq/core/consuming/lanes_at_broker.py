"""The lanes of one assigned queue that are set aside at the broker, or are about to be.

A lane is parked when its retries are used up, in this member or in a former owner. A held lane with many messages
behind the failed one is set aside in the same way, so that it fills neither the cache nor the finished ranges.

The broker keeps the offsets of a lane that is set aside. As soon as it has them, these messages count as finished here:
the queue's committed offset can pass them, and their bodies are given up. To run the lane (after its backoff, or when
an operator redrives it), the owner fetches its messages again, some at a time (`lane.redriven`), and reports which are
done. After the last one the lane is an ordinary lane again.

Invariants:

1. No message of such a lane runs, except those that the broker gave back. Newer messages wait until the broker has
   nothing left of the lane, or join the lane at the broker.
2. A message counts as finished only after the broker has confirmed it; what the broker refuses stays here.
3. At most one request about a lane is under way, so answers cannot overtake each other.
4. After a request without an answer the broker may have the messages that were offered. They are offered again before
   anything else happens to the lane; otherwise the broker's messages would run, and then the ones that are still here.
5. A lane with messages to run (`redriven` is not None) is ready, running or on a timer; one that waits for its backoff
   (`waiting`) is on a timer; every other one is in none of these places.

The caller takes `requests`, sends them, and reports each once: `parked`, `next_given`, `redrive_accepted` or
`unanswered`. Lanes may be ready afterwards, so the scheduler must look at the queue again.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeAlias

from lanemq.core.consuming.runs import Lane, LaneRun, M
from lanemq.core.lane_status import MAX_GIVEN, MAX_PARKED, Failure, LaneStatus
from lanemq.model.units import Millis

NOTHING_DONE = -1
_IMMEDIATELY = Millis(-(2**62))
_offset_of = attrgetter("queue_offset")


@dataclass(frozen=True, slots=True)
class ParkRequest(Generic[M]):
    """Hand these messages to the broker. With a failure, the lane's first message is the one that failed."""

    key: str | None
    messages: tuple[M, ...]
    failure: Failure | None
    failed_again: int = NOTHING_DONE
    """Offset of a message that failed after the broker gave it back; the broker still has it."""
    held: bool = False
    """The failed message has retries left: the lane is set aside, and this member continues with it by itself."""


@dataclass(frozen=True, slots=True)
class NextRequest:
    """Report up to which offset the lane is done, and ask for the next messages."""

    key: str | None
    done: int
    wanted: int = MAX_GIVEN
    """Number of messages to fetch; 0 while some are here."""
    may_repeat: bool = False
    """A former owner ran the lane: it may have finished some of these messages without reporting them."""


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Redrive the lane: an operator asked this member instead of the broker."""

    key: str | None


LaneRequest: TypeAlias = ParkRequest[M] | NextRequest | RedriveRequest


class ParkingQueue(Protocol[M]):
    """What the queue provides to its parked lanes."""

    ready: deque[Lane[M] | LaneRun[M]]
    sets_aside: bool
    """Whether held lanes are set aside at the broker."""

    def count_finished(self, messages: Sequence[M]) -> None:
        """Counts messages as finished: the broker has them."""

    def remove_lane(self, lane: Lane[M]) -> None:
        """Removes an empty lane that is no longer parked."""

    def reset_failures(self, lane: Lane[M]) -> None:
        """Counts the failures of the lane from zero again."""

    def lane_ended(self, key: str | None, through: int) -> None:
        """The broker has nothing left of a lane that a former owner parked; its messages up to `through` are done."""


class ParkedAtBroker(NamedTuple):
    """A lane that the broker has set aside, as the queue's owner reads it."""

    key: str | None
    status: LaneStatus
    through: int
    """The last offset that was ever parked in it: up to here its messages are at the broker, or done."""
    first: int = 0
    """The first offset that is still in it."""
    attempts: int = 0
    """How often its first message has failed."""


class _ParkedLane(Generic[M]):
    __slots__ = ("asked", "at_broker", "done", "doubt", "failed_again", "failure", "first", "goes_to_broker", "gone",
                 "lane", "may_repeat", "not_before", "redrive_wanted", "status", "through", "waiting")  # fmt: skip

    def __init__(self, lane: Lane[M], status: LaneStatus, *, at_broker: bool, through: int = NOTHING_DONE) -> None:
        self.lane = lane
        self.status = status
        # The offset of its first message, if that is held.
        self.first = NOTHING_DONE
        # Messages up to this offset do not run when they are pulled again.
        self.through = through
        # The broker has this lane.
        self.at_broker = at_broker
        # Its messages are to be stored at the broker; false where the broker cannot park.
        self.goes_to_broker = at_broker
        # A request about it is under way.
        self.asked = False
        # What the broker does not know yet: a failure, up to where the lane is done, which message failed again.
        self.failure: Failure | None = None
        self.done = NOTHING_DONE
        self.failed_again = NOTHING_DONE
        # The broker may or may not have the messages that were offered last.
        self.doubt = False
        self.redrive_wanted = False
        self.not_before = _IMMEDIATELY
        # The lane waits for its backoff, on a timer.
        self.waiting = False
        # A former owner ran the lane, and this one has fetched nothing of it.
        self.may_repeat = at_broker and status.runs
        # The broker has nothing left of the lane, but a message of it is ready, running or on a timer here.
        self.gone = False


class LanesAtBroker(Generic[M]):
    """The lanes of one queue that are set aside, by key. A lane with more than `keep` messages is a long one."""

    def __init__(self, queue: ParkingQueue[M], keep: int) -> None:
        self._queue = queue
        self._keep = keep
        self._lanes: dict[str | None, _ParkedLane[M]] = {}
        # Lanes that may need a request; `requests` removes those that do not.
        self._open: dict[str | None, None] = {}
        self.news = False
        """The queue needs requests that were not taken yet."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __contains__(self, lane: Lane[M]) -> bool:
        entry = self._lanes.get(lane.key)
        return entry is not None and entry.lane is lane

    def __iter__(self) -> Iterator[str | None]:
        """The keys of the lanes that wait for an operator or are redriven; not those that are only held."""
        return iter([key for key, entry in self._lanes.items() if entry.status is not LaneStatus.HELD])

    def not_at_broker(self) -> list[str | None]:
        """The keys of parked lanes that the broker does not have: it cannot park, or has not confirmed them yet."""
        return [key for key, entry in self._lanes.items() if entry.status is LaneStatus.PARKED and not entry.at_broker]

    def is_parked(self, lane: Lane[M]) -> bool:
        return lane in self and self._lanes[lane.key].status is not LaneStatus.HELD

    def first_offsets(self) -> frozenset[int]:
        """The first offsets of the lanes that are held."""
        return frozenset(entry.first for entry in self._lanes.values() if entry.status is LaneStatus.HELD)

    # called by the queue

    def restore(self, lane: Lane[M], known: ParkedAtBroker) -> None:
        """Adds a lane that a former owner set aside."""
        self._enter(_ParkedLane(lane, known.status, at_broker=True, through=known.through)).first = known.first

    def park(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        """Parks a lane: the retries of its first message are used up."""
        entry = self._lanes.get(lane.key)
        if entry is None:
            entry = self._enter(_ParkedLane(lane, LaneStatus.PARKED, at_broker=False))
            entry.goes_to_broker = at_broker
        elif lane.redriven:
            entry.failed_again = lane.redriven[0].queue_offset
        lane.redriven = None
        if entry.gone:  # an operator discarded the message while it ran
            self._release(entry)
            return
        entry.status, entry.failure = LaneStatus.PARKED, failure
        self._look_at(lane.key)

    def set_aside(self, lane: Lane[M], failure: Failure) -> None:
        """Sets a held lane aside; it is on a timer."""
        entry = self._enter(_ParkedLane(lane, LaneStatus.HELD, at_broker=False))
        entry.goes_to_broker = entry.waiting = True
        entry.failure, entry.first = failure, lane.pending[0].queue_offset

    def hold(self, lane: Lane[M], failure: Failure, keep: int) -> None:
        """A message that the broker gave back failed and has retries left. Keeps the first messages only."""
        entry = self._lanes[lane.key]
        assert lane.redriven
        del lane.redriven[keep:]
        entry.status, entry.failure = LaneStatus.HELD, failure
        entry.first = entry.failed_again = lane.redriven[0].queue_offset
        self._look_at(lane.key)

    def paused(self, lane: Lane[M]) -> None:
        """The lane was put on a timer."""
        self._lanes[lane.key].waiting = True

    def timer_fired(self, lane: Lane[M]) -> bool:
        """The lane may run; returns false if its messages must be fetched first."""
        self._lanes[lane.key].waiting = False
        if lane.redriven is not None:
            self._queue.ready.append(lane)
            return True
        self._look_at(lane.key)
        return False

    def to_run(self, lane: Lane[M]) -> list[M] | None:
        """The messages that the broker gave back; None if the lane is an ordinary one from now on."""
        entry = self._lanes[lane.key]
        if entry.gone:
            self._leave(entry)
            return None
        if not lane.redriven:  # discarded before they could run
            lane.redriven = None
            self._look_at(lane.key)
            return []
        return lane.redriven

    def finished(self, lane: Lane[M], messages: Iterable[M]) -> bool:
        """Messages that the broker gave back are done; returns whether the lane has more to run now."""
        entry = self._lanes[lane.key]
        assert lane.redriven is not None
        done = {message.queue_offset for message in messages}
        left = [message for message in lane.redriven if message.queue_offset not in done]
        if done:
            entry.done = max(entry.done, left[0].queue_offset - 1 if left else max(done))
            self._look_at(lane.key)
        if left:
            lane.redriven = left
            return True
        lane.redriven = None
        return self._leave(entry) if entry.gone else False

    def take_settled(self, lane: Lane[M]) -> list[M]:
        """Removes and returns messages that a former owner parked, or finished before the lane failed."""
        through, pending = self._lanes[lane.key].through, lane.pending
        if not pending or pending[0].queue_offset > through:
            return []
        count = bisect_right(pending, through, key=_offset_of)
        settled = pending[:count]
        del pending[:count]
        return settled

    def arrived(self, lane: Lane[M]) -> None:
        """A pull brought messages of the lane."""
        if self._joins(self._lanes[lane.key]):
            self._look_at(lane.key)

    def resume(self, key: str | None) -> bool:
        """Redrives a lane for an operator: at once if it is only here, otherwise through the broker."""
        entry = self._lanes.get(key)
        if entry is None or entry.status is LaneStatus.HELD:
            return False
        if entry.asked or entry.at_broker or entry.doubt:
            entry.redrive_wanted = True
            entry.not_before = _IMMEDIATELY
            self._look_at(key)
        else:
            self._release(entry)
        return True

    # called by the client; an answer about a lane that is no longer parked changes nothing

    def requests(self, *, now: Millis) -> list[LaneRequest[M]]:
        """Requests to send to the broker; each is reported before its lane gets another."""
        found: list[LaneRequest[M]] = []
        self.news = False
        for key in tuple(self._open):
            entry = self._lanes.get(key)
            if entry is not None and (entry.asked or now < entry.not_before):
                continue
            request = None if entry is None else self._request_for(key, entry)
            if request is None:
                del self._open[key]
            else:
                assert entry is not None
                entry.asked = True
                found.append(request)
        return found

    def last_reports(self, below: int) -> list[NextRequest]:
        """What the broker does not know to be done below an offset at which the queue starts again.

        Asks for no messages. What is done from that offset on is to run again.
        """
        return [
            NextRequest(key, min(entry.done, below - 1), wanted=0)
            for key, entry in self._lanes.items()
            if entry.at_broker and min(entry.done, below - 1) > NOTHING_DONE
        ]

    def parked(
        self, request: ParkRequest[M], settled: int, status: LaneStatus | None, *, now: Millis, pause: Millis
    ) -> None:
        """The broker has the first `settled` messages; `status` is None if it has no such lane.

        Messages that it did not take stay here and are offered again after `pause`.
        """
        entry = self._answered(request)
        if entry is None:
            return
        lane = entry.lane
        entry.doubt = False
        self._queue.count_finished(lane.pending[:settled])
        del lane.pending[:settled]
        if status is None:
            if lane.redriven is not None:
                entry.gone = True
            elif entry.at_broker or entry.redrive_wanted or entry.status is LaneStatus.HELD:
                self._release(entry)  # emptied at the broker; or never taken, and it is to run
                return
        else:
            entry.at_broker = True
            self._failure_known(entry, request, status)
        if settled < len(request.messages):
            entry.not_before = Millis(now + pause)

    def _failure_known(self, entry: _ParkedLane[M], request: ParkRequest[M], status: LaneStatus) -> None:
        """The broker knows the failure that the request named. The lane may have failed again since then."""
        failure = request.failure
        if failure is not None and entry.failure is failure:
            entry.failure, entry.failed_again = None, NOTHING_DONE
            if entry.done < request.failed_again:
                entry.done = NOTHING_DONE  # the request said so
        if entry.failure is None:
            entry.status = status

    def next_given(
        self, request: NextRequest | RedriveRequest, messages: Sequence[M], status: LaneStatus | None
    ) -> None:
        """The broker's answer to a `NextRequest`; also to a `RedriveRequest` if nothing is left to redrive."""
        entry = self._answered(request)
        if entry is None:
            return
        lane = entry.lane
        if isinstance(request, NextRequest) and entry.done == request.done:
            entry.done = NOTHING_DONE
        if status is None:
            if lane.redriven is not None:
                entry.gone = True
            else:
                self._release(entry)
            return
        if entry.failure is None:
            entry.status = status
        if messages:
            assert lane.redriven is None
            entry.may_repeat = False
            lane.redriven = list(messages)
            self._queue.ready.append(lane)

    def redrive_accepted(self, request: RedriveRequest) -> None:
        """The broker redrives the lane now."""
        entry = self._answered(request)
        if entry is not None:
            entry.redrive_wanted = False
            entry.status = LaneStatus.REDRIVING

    def unanswered(self, request: LaneRequest[M], *, now: Millis, pause: Millis) -> None:
        """The request got no answer; the same one follows after `pause`."""
        entry = self._answered(request)
        if entry is not None:
            entry.doubt = entry.doubt or isinstance(request, ParkRequest)
            entry.not_before = Millis(now + pause)

    def at_broker(self) -> Mapping[str | None, object]:
        """The lanes that the broker is known to have, by key, as `reconcile` takes them."""
        return {key: entry for key, entry in self._lanes.items() if entry.at_broker}

    def reconcile(
        self, at_broker: Mapping[str | None, ParkedAtBroker], asked_about: Mapping[str | None, object]
    ) -> None:
        """Takes over what the broker has after an operator's change.

        `asked_about` are the lanes that the broker was known to have when it was asked: its answer may miss newer
        ones. Lanes with a request under way or a running message are left alone.
        """
        for key, entry in list(self._lanes.items()):
            lane, known = entry.lane, at_broker.get(key)
            if entry.asked or asked_about.get(key) is not entry or lane.run is not None:
                continue
            if known is None:
                if lane.redriven is None:
                    self._release(entry)
                entry.gone = True
                continue
            if entry.failure is None:
                entry.status = known.status
            if lane.redriven is not None:
                lane.redriven = [message for message in lane.redriven if message.queue_offset >= known.first]
            entry.not_before = _IMMEDIATELY  # messages that the broker refused are offered again without a pause
            self._open[key] = None

    def forget(self) -> None:
        self._lanes.clear()
        self._open.clear()

    def _enter(self, entry: _ParkedLane[M]) -> _ParkedLane[M]:
        key = entry.lane.key
        entry.lane.watched = True
        self._lanes[key] = entry
        self._look_at(key)
        return entry

    def _look_at(self, key: str | None) -> None:
        self._open[key] = None
        self.news = True

    def _answered(self, request: LaneRequest[M]) -> _ParkedLane[M] | None:
        entry = self._lanes.get(request.key)
        if entry is not None:
            entry.asked = False
            self._open[request.key] = None
        return entry

    def _release(self, entry: _ParkedLane[M]) -> None:
        """Makes a lane without messages to run an ordinary one again. If it waits for its backoff, it still does."""
        lane = entry.lane
        if entry.status is not LaneStatus.HELD:
            self._queue.reset_failures(lane)
        if self._leave(entry) and not entry.waiting:
            self._queue.ready.append(lane)

    def _leave(self, entry: _ParkedLane[M]) -> bool:
        """Makes the lane an ordinary one, where it is; returns whether it has messages."""
        lane = entry.lane
        del self._lanes[lane.key]
        self._open.pop(lane.key, None)
        if entry.through != NOTHING_DONE:
            self._queue.lane_ended(lane.key, entry.through)
        lane.redriven, lane.watched = None, False
        if not lane.pending:
            self._queue.remove_lane(lane)
        return bool(lane.pending)

    def _request_for(self, key: str | None, entry: _ParkedLane[M]) -> LaneRequest[M] | None:
        pending, at_broker = entry.lane.pending, entry.at_broker
        if entry.gone or not (entry.goes_to_broker or at_broker):
            return None
        if entry.failure is not None:
            held = entry.status is LaneStatus.HELD
            return ParkRequest(key, tuple(pending[:MAX_PARKED]), entry.failure, entry.failed_again, held)
        if entry.doubt and pending:
            return ParkRequest(key, tuple(pending[:MAX_PARKED]), None)
        if entry.redrive_wanted and at_broker:
            return RedriveRequest(key)
        fetch = at_broker and entry.status.runs and not entry.waiting and entry.lane.redriven is None
        if fetch or entry.done != NOTHING_DONE:
            return NextRequest(key, entry.done, MAX_GIVEN if fetch else 0, entry.may_repeat)
        if at_broker and pending and self._joins(entry):
            return ParkRequest(key, tuple(pending[:MAX_PARKED]), None)
        return None

    def _joins(self, entry: _ParkedLane[M]) -> bool:
        """Whether waiting messages join the lane at the broker. While it runs, a few wait here until it is empty."""
        return not entry.status.runs or entry.waiting or self.is_long(entry.lane)

    def is_long(self, lane: Lane[M]) -> bool:
        """Whether so many messages of the lane wait that they should wait at the broker."""
        return len(lane.pending) > self._keep
