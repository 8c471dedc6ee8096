"""The parked lanes of one assigned queue: lanes whose retries are used up, in this member or in a former owner.

The broker stores the messages of a parked lane. As soon as the broker has them they count as finished here, so the
queue's committed offset can pass them. When an operator redrives the lane, the broker gives its messages back one by
one; each runs in the lane and is then removed at the broker. After the last one the lane is an ordinary lane again.

Invariants:

1. No message of a parked lane runs, except the one that the broker gave back.
2. A message counts as finished only after the broker has confirmed it; what the broker refuses stays here.
3. A lane is released only when the broker has nothing left of it. Newer messages wait until then.
4. At most one request about a lane is under way, so answers cannot overtake each other.
5. After a request without an answer the broker may have the messages that were offered. They are offered again before
   anything else happens to the lane; otherwise the broker's copies would run, and then the ones that are still here.

The caller takes `requests`, sends them, and reports each once: `parked`, `next_given`, `redrive_accepted` or
`unanswered`. Lanes may be ready afterwards, so the scheduler must look at the queue again.
"""

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeAlias

from lanemq.core.consuming.runs import Lane, LaneRun, M
from lanemq.core.parked_lane import Failure, LaneStatus
from lanemq.model.units import Millis

MAX_IN_REQUEST = 256
"""Messages of a lane in one request."""
NOTHING_DONE = -1
_IMMEDIATELY = Millis(-(2**62))


@dataclass(frozen=True, slots=True)
class ParkRequest(Generic[M]):
    """Hand these messages to the broker. With a failure, the lane's first message is the one that failed."""

    key: str | None
    messages: tuple[M, ...]
    failure: Failure | None
    failed_again: int = NOTHING_DONE
    """Offset of a redriven message that failed; the broker still has it."""


@dataclass(frozen=True, slots=True)
class NextRequest:
    """Report which redriven message is done, and ask for the next one."""

    key: str | None
    done: int


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Redrive the lane: an operator asked this member instead of the broker."""

    key: str | None


LaneRequest: TypeAlias = ParkRequest[M] | NextRequest | RedriveRequest


class ParkingQueue(Protocol[M]):
    """What the queue provides to its parked lanes."""

    ready: deque[Lane[M] | LaneRun[M]]

    def count_finished(self, messages: Sequence[M]) -> None:
        """Counts messages as finished: the broker has them."""

    def remove_lane(self, lane: Lane[M]) -> None:
        """Removes an empty lane that is no longer parked."""

    def reset_failures(self, lane: Lane[M]) -> None:
        """Counts the failures of the lane from zero again."""


class ParkedAtBroker(NamedTuple):
    """A lane that the broker has parked, as the queue's new owner reads it."""

    key: str | None
    redriving: bool
    through: int
    """The last offset that was ever parked in it: up to here its messages are at the broker, or done."""


class _ParkedLane(Generic[M]):
    __slots__ = ("asked", "at_broker", "done", "doubt", "failed_again", "failure", "goes_to_broker", "lane",
                 "not_before", "redrive_wanted", "redriving", "through")  # fmt: skip

    def __init__(self, lane: Lane[M], *, at_broker: bool, redriving: bool = False, through: int = NOTHING_DONE) -> None:
        self.lane = lane
        # Messages up to this offset do not run when they are pulled again.
        self.through = through
        # The broker has this lane.
        self.at_broker = at_broker
        self.redriving = redriving
        # Its messages are to be stored at the broker; false where the broker cannot park.
        self.goes_to_broker = at_broker
        # A request about it is under way.
        self.asked = False
        # What the broker does not know yet: a failure, a redriven message that is done, one that failed again.
        self.failure: Failure | None = None
        self.done = NOTHING_DONE
        self.failed_again = NOTHING_DONE
        # The broker may or may not have the messages that were offered last.
        self.doubt = False
        self.redrive_wanted = False
        self.not_before = _IMMEDIATELY


class LocalParkedLanes(Generic[M]):
    """The parked lanes of one queue, by key."""

    def __init__(self, queue: ParkingQueue[M]) -> None:
        self._queue = queue
        self._lanes: dict[str | None, _ParkedLane[M]] = {}
        # Lanes that may need a request; `requests` removes those that do not.
        self._open: dict[str | None, None] = {}
        self.news = False
        """The queue needs requests that were not taken yet."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __contains__(self, key: object) -> bool:
        return key in self._lanes

    def __iter__(self) -> Iterator[str | None]:
        return iter(tuple(self._lanes))

    # called by the queue

    def restore(self, lane: Lane[M], known: ParkedAtBroker) -> None:
        """Adds a lane that a former owner parked."""
        self._lanes[lane.key] = _ParkedLane(lane, at_broker=True, redriving=known.redriving, through=known.through)
        self._look_at(lane.key)

    def settled(self, message: M) -> bool:
        """Whether a former owner parked the message, or finished it before its lane failed."""
        entry = self._lanes.get(message.key)
        return entry is not None and message.queue_offset <= entry.through

    def park(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        """Parks a lane: the retries of its first message, or of the redriven one, are used up."""
        entry = self._lanes.get(lane.key)
        if entry is None:
            entry = self._lanes[lane.key] = _ParkedLane(lane, at_broker=False)
            entry.goes_to_broker = at_broker
        elif lane.redriven is not None:
            entry.failed_again = lane.redriven.queue_offset
            lane.redriven = None
        entry.failure = failure
        self._look_at(lane.key)

    def finished(self, lane: Lane[M]) -> None:
        """Records that the redriven message is done."""
        assert lane.redriven is not None
        entry = self._lanes[lane.key]
        entry.done, lane.redriven = lane.redriven.queue_offset, None
        self._look_at(lane.key)

    def arrived(self, keys: Iterable[str | None]) -> None:
        """Records that a pull brought messages of these keys."""
        for key in keys:
            if key in self._lanes:
                self._look_at(key)

    def resume(self, key: str | None) -> bool:
        """Redrives a lane for an operator: at once if it is only here, otherwise through the broker."""
        entry = self._lanes.get(key)
        if entry is None:
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
            request = None if entry is None else _request_for(key, entry)
            if request is None:
                del self._open[key]
            else:
                assert entry is not None
                entry.asked = True
                found.append(request)
        return found

    def parked(
        self, request: ParkRequest[M], settled: int, status: LaneStatus | None, *, now: Millis, pause: Millis
    ) -> None:
        """The broker has the first `settled` messages; `status` is None if it has no such lane.

        Messages that it did not take stay here and are offered again after `pause`.
        """
        entry = self._answered(request)
        if entry is None:
            return
        entry.doubt = False
        self._queue.count_finished(entry.lane.pending[:settled])
        del entry.lane.pending[:settled]
        if status is not None:
            entry.at_broker = True
            entry.redriving = status is LaneStatus.REDRIVING
            entry.failure, entry.failed_again = None, NOTHING_DONE
        elif entry.at_broker or entry.redrive_wanted:
            self._release(entry)  # emptied at the broker; or never taken, and an operator wants it to run
            return
        if settled < len(request.messages):
            entry.not_before = Millis(now + pause)

    def next_given(self, request: NextRequest | RedriveRequest, message: M | None, status: LaneStatus | None) -> None:
        """The broker's answer to a `NextRequest`; also to a `RedriveRequest` if nothing is left to redrive."""
        entry = self._answered(request)
        if entry is None:
            return
        entry.done = NOTHING_DONE
        if status is None:
            self._release(entry)
            return
        entry.redriving = status is LaneStatus.REDRIVING
        if message is not None:
            entry.lane.redriven = message
            self._queue.ready.append(entry.lane)

    def redrive_accepted(self, request: RedriveRequest) -> None:
        """The broker redrives the lane now."""
        entry = self._answered(request)
        if entry is not None:
            entry.redrive_wanted = False
            entry.redriving = True

    def unanswered(self, request: LaneRequest[M], *, now: Millis, pause: Millis) -> None:
        """The request got no answer; the same one follows after `pause`."""
        entry = self._answered(request)
        if entry is not None:
            entry.doubt = entry.doubt or isinstance(request, ParkRequest)
            entry.not_before = Millis(now + pause)

    def at_broker(self) -> frozenset[str | None]:
        """Keys of the lanes that the broker is known to have."""
        return frozenset(key for key, entry in self._lanes.items() if entry.at_broker)

    def reconcile(self, at_broker: Mapping[str | None, bool], asked_about: Container[str | None]) -> None:
        """Takes over what the broker has (key to whether it is being redriven) after an operator's change.

        `asked_about` are the lanes that the broker was known to have when it was asked: its answer may miss newer
        ones. Lanes with a request under way or a running message are left alone.
        """
        for key, entry in list(self._lanes.items()):
            if entry.asked or key not in asked_about or entry.lane.redriven is not None:
                continue
            if key in at_broker:
                entry.redriving = at_broker[key] and entry.failure is None
                entry.not_before = _IMMEDIATELY  # messages that the broker refused are offered again without a pause
                self._open[key] = None
            else:
                self._release(entry)

    def forget(self) -> None:
        self._lanes.clear()
        self._open.clear()

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
        """Makes the lane an ordinary one again."""
        lane = entry.lane
        del self._lanes[lane.key]
        self._open.pop(lane.key, None)
        self._queue.reset_failures(lane)
        if lane.pending:
            self._queue.ready.append(lane)
        else:
            self._queue.remove_lane(lane)


def _request_for(key: str | None, entry: _ParkedLane[M]) -> LaneRequest[M] | None:
    lane = entry.lane
    if lane.redriven is not None or not (entry.goes_to_broker or entry.at_broker):
        return None
    if entry.done != NOTHING_DONE:
        return NextRequest(key, entry.done)
    if entry.failure is not None:
        return ParkRequest(key, tuple(lane.pending[:MAX_IN_REQUEST]), entry.failure, entry.failed_again)
    if entry.doubt and lane.pending:
        return ParkRequest(key, tuple(lane.pending[:MAX_IN_REQUEST]), None)
    if entry.redrive_wanted and entry.at_broker:
        return RedriveRequest(key)
    if entry.redriving:
        return NextRequest(key, NOTHING_DONE)
    if lane.pending and entry.at_broker:
        return ParkRequest(key, tuple(lane.pending[:MAX_IN_REQUEST]), None)
    return None
