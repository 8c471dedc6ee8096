"""The lanes of one assigned queue that are set aside: parked, or held with many messages behind the failed one.

A lane is parked when its retries are used up, in this member or in a former owner. A held lane with many messages is
set aside in the same way, so that it fills neither the cache nor the finished ranges. If lanes cannot go to the broker
(the whole queue is one lane, or the policy keeps them here), a parked lane waits in memory until it is resumed.

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
   (`on_timer`) is on a timer; every other one is in none of these places.

The caller takes `requests`, sends them, and reports the answer of each once: `answered`.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeAlias

from lanemq.core.consuming.runs import Lane, LaneOptions, LaneRun, M, Order
from lanemq.core.lane_status import MAX_GIVEN, MAX_PARKED, Failure, LaneStatus
from lanemq.model.units import Millis

NO_ANSWER_PAUSE = Millis(1_000)
"""Pause after a request that failed: the broker is away, or the lease was lost; then its renewal fails, too."""
FULL_PAUSE = Millis(30_000)
"""Pause after the broker did not take everything; its limits may be raised, or lanes discarded, in the meantime."""
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
    overtaken: bool = False
    """As in `ParkedAtBroker`. If not, messages of the lane that were applied before are repeats."""


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Redrive the lane: an operator asked this member instead of the broker."""

    key: str | None


LaneRequest: TypeAlias = ParkRequest[M] | NextRequest | RedriveRequest


class LaneAnswer(NamedTuple, Generic[M]):
    """The broker's answer to a request about a lane."""

    status: LaneStatus | None
    """None: the broker has no such lane."""
    settled: int = 0
    """How many messages of a `ParkRequest` the broker has. Those that it did not take are offered again later."""
    messages: Sequence[M] = ()
    """The lane's next messages, which the broker gave back."""


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
    overtaken: bool = False
    """An owner that does not know lanes had the queue: it may have run newer messages of the key."""


class QueueOfLanes(Protocol[M]):
    """What the queue provides to its lanes that are set aside."""

    ready: deque[Lane[M] | LaneRun[M]]
    failures: dict[int, int]

    @property
    def next_offset(self) -> int:
        """Where the next pull starts."""

    def finish(self, messages: Sequence[M]) -> None:
        """Counts messages as finished: the broker has them."""

    def offer(self, lane: Lane[M]) -> None:
        """The lane may run."""

    def remove_lane(self, lane: Lane[M]) -> None:
        """Removes an empty lane that is no longer set aside."""


class _BrokerHas(Enum):
    """What the broker has of a lane, as far as this member knows.

    NOTHING ──offered──▶ LANE ◀──offered, answered──▶ PERHAPS_MORE        a lane that a former owner set aside
       │                  ▲ │                                             begins with LANE
       ╰─▶ PERHAPS ───────╯ ╰──▶ NOTHING_LEFT ──▶ an ordinary lane
    """

    NOTHING = "nothing"
    """It was not offered, or was refused."""
    PERHAPS = "perhaps"
    """The messages that were offered last, or nothing: the answer was lost."""
    LANE = "lane"
    PERHAPS_MORE = "perhaps more"
    """The lane, and perhaps the messages that were offered last: the answer was lost."""
    NOTHING_LEFT = "nothing left"
    """The lane was there. A message that the broker gave back is still ready, running or on a timer here."""

    @property
    def is_lane(self) -> bool:
        return self in (_BrokerHas.LANE, _BrokerHas.PERHAPS_MORE)

    @property
    def is_certain(self) -> bool:
        return self not in (_BrokerHas.PERHAPS, _BrokerHas.PERHAPS_MORE)


_UNCONFIRMED = (_BrokerHas.NOTHING, _BrokerHas.PERHAPS)


class _NewFailure(NamedTuple):
    """A failure that the broker does not know yet."""

    failure: Failure
    failed_again: int
    """As in `ParkRequest`."""


class _LaneAside(Generic[M]):
    __slots__ = ("broker_has", "done", "first", "lane", "new_failure", "next_request_at", "on_timer", "overtaken",
                 "redrive_wanted", "status", "through")  # fmt: skip

    def __init__(
        self, lane: Lane[M], status: LaneStatus, broker_has: _BrokerHas, *, first: int = NOTHING_DONE,
        through: int = NOTHING_DONE, overtaken: bool = False,
    ) -> None:  # fmt: skip
        # What the lane waits for, here and at the broker.
        self.lane = lane
        self.status = status
        self.broker_has = broker_has
        self.on_timer = False
        # As a former owner left it (`ParkedAtBroker`): messages up to `through` do not run when they are pulled again.
        self.through = through
        self.overtaken = overtaken
        # The offset of its first message, if that is held.
        self.first = first
        # What the broker has to be told: a failure, up to where the lane is done, an operator's wish.
        self.new_failure: _NewFailure | None = None
        self.done = NOTHING_DONE
        self.redrive_wanted = False
        # When the next request about it may be sent; None while one is under way.
        self.next_request_at: Millis | None = _IMMEDIATELY

    def failed(self, status: LaneStatus, failure: Failure) -> None:
        redriven = self.lane.redriven
        self.status = status
        self.new_failure = _NewFailure(failure, redriven[0].queue_offset if redriven else NOTHING_DONE)


class LanesAside(Generic[M]):
    """The lanes of one queue that are set aside, by key."""

    def __init__(self, queue: QueueOfLanes[M], options: LaneOptions, *, broker_parks: bool) -> None:
        """`broker_parks`: the broker can keep lanes."""
        self._queue = queue
        self._batch_size = options.batch_size
        self._keep = options.keep
        # Whether parked lanes, and held ones with many messages, are stored at the broker.
        self._to_broker = broker_parks and options.parks_at_broker and options.order is Order.KEY
        self._lanes: dict[str | None, _LaneAside[M]] = {}
        # Lanes that may need a request; `requests` removes those that do not.
        self._open: dict[str | None, None] = {}
        # Held lanes that are not set aside yet, and why each is held.
        self._held: dict[str | None, tuple[Lane[M], Failure]] = {}
        # Lanes of former owners that ended here, and up to which offset they are done, as long as pulls may bring such
        # messages: a former owner may have parked them without committing past them.
        self._ended: dict[str | None, int] = {}
        self.news = False
        """The queue needs requests that were not taken yet."""

    def parked(self) -> tuple[str | None, ...]:
        """The keys of the lanes that wait for an operator or are redriven; not those that are only held."""
        return tuple(key for key, entry in self._lanes.items() if entry.status is not LaneStatus.HELD)

    def parked_here(self) -> tuple[str | None, ...]:
        """The keys of parked lanes that the broker does not have: it cannot park, or has not confirmed them yet."""
        entries = self._lanes.items()
        return tuple(
            key for key, entry in entries if entry.status is LaneStatus.PARKED and entry.broker_has in _UNCONFIRMED
        )

    def attempts(self, lane: Lane[M]) -> int:
        """How often the first message of a lane that is parked here has failed; 0 if that is not known."""
        entry = self._of(lane)
        new = None if entry is None else entry.new_failure
        return 0 if new is None else new.failure.attempts

    def is_parked(self, lane: Lane[M]) -> bool:
        entry = self._of(lane)
        return entry is not None and entry.status is not LaneStatus.HELD

    def first_offsets(self) -> frozenset[int]:
        """The first offsets of the lanes that are held."""
        return frozenset(entry.first for entry in self._lanes.values() if entry.status is LaneStatus.HELD)

    # called by the queue and its scheduler

    def restore(self, lane: Lane[M], known: ParkedAtBroker) -> None:
        """Adds a lane that a former owner set aside."""
        first, through = known.first, known.through
        self._add(
            _LaneAside(lane, known.status, _BrokerHas.LANE, first=first, through=through, overtaken=known.overtaken)
        )
        if known.status is LaneStatus.HELD:
            self._queue.failures[known.first] = known.attempts

    def park(self, lane: Lane[M], failure: Failure) -> None:
        """Parks a lane: the retries of its first message are used up."""
        if self._to_broker:
            for message in (lane.redriven or lane.pending)[: self._batch_size]:
                self._queue.failures.pop(message.queue_offset, None)  # a redrive has all retries again
        entry = self._lanes.get(lane.key)
        if entry is None:
            entry = self._add(_LaneAside(lane, LaneStatus.PARKED, _BrokerHas.NOTHING))
        if entry.broker_has is _BrokerHas.NOTHING_LEFT:  # an operator discarded the message while it ran
            lane.redriven = None
            self._release(entry)
            return
        entry.failed(LaneStatus.PARKED, failure)
        lane.redriven = None
        self._look_at(lane.key)

    def hold(self, lane: Lane[M], failure: Failure) -> None:
        """A message of the lane failed and has retries left; the lane is on a timer now."""
        entry = self._of(lane)
        if entry is not None:
            assert lane.redriven
            del lane.redriven[self._batch_size :]  # the rest is fetched again when they succeed
            entry.failed(LaneStatus.HELD, failure)
            entry.first = lane.redriven[0].queue_offset
            self._look_at(lane.key)
        elif self._to_broker:
            self._held[lane.key] = lane, failure
            lane.watched = True
            self._set_aside_if_long(lane)

    def paused(self, lane: Lane[M]) -> None:
        """The lane is put on a timer."""
        entry = self._of(lane)
        if entry is not None:
            entry.on_timer = True

    def timer_fired(self, lane: Lane[M]) -> bool:
        """The time of a lane on a timer has come; returns false if its messages must be fetched first."""
        entry = self._of(lane)
        if entry is not None:
            entry.on_timer = False
            if lane.redriven is None:
                self._look_at(lane.key)
                return False
        elif self._held and self._held.get(lane.key, (None,))[0] is lane:
            del self._held[lane.key]
            lane.watched = False
        self._queue.ready.append(lane)
        return True

    def to_run(self, lane: Lane[M]) -> list[M] | None:
        """The messages that the broker gave back; None if the lane is an ordinary one from now on."""
        entry = self._lanes[lane.key]
        if entry.broker_has is _BrokerHas.NOTHING_LEFT:
            self._remove(entry)
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
        return self._remove(entry) if entry.broker_has is _BrokerHas.NOTHING_LEFT else False

    def arrived(self, lane: Lane[M]) -> None:
        """A pull brought messages of a lane that is held or set aside.

        What a former owner parked of them, or finished before the lane failed, joins the finished ranges: the next
        owner must leave it out together with what runs behind it.
        """
        entry = self._of(lane)
        if entry is None:
            self._set_aside_if_long(lane)
            return
        pending = lane.pending
        if pending and pending[0].queue_offset <= entry.through:
            count = bisect_right(pending, entry.through, key=_offset_of)
            settled = pending[:count]
            del pending[:count]
            self._queue.finish(settled)
        if self._joins(entry):
            self._look_at(lane.key)

    def without_ended(self, messages: Sequence[M]) -> Sequence[M]:
        """Finishes those messages of a pull that belong to ended lanes, and returns the others."""
        ended = self._ended
        if not ended:
            return messages
        settled = [message for message in messages if message.queue_offset <= ended.get(message.key, NOTHING_DONE)]
        self._ended = {key: through for key, through in ended.items() if through >= self._queue.next_offset}
        if not settled:
            return messages
        self._queue.finish(settled)
        return [message for message in messages if message.queue_offset > ended.get(message.key, NOTHING_DONE)]

    def resume(self, key: str | None) -> bool:
        """Redrives a lane for an operator: at once if it is only here, otherwise through the broker."""
        entry = self._lanes.get(key)
        if entry is None or entry.status is LaneStatus.HELD:
            return False
        if entry.next_request_at is not None:
            if entry.broker_has is _BrokerHas.NOTHING:
                self._release(entry)
                return True
            entry.next_request_at = _IMMEDIATELY
        entry.redrive_wanted = True
        self._look_at(key)
        return True

    # called by the client

    def requests(self, *, now: Millis) -> list[LaneRequest[M]]:
        """Requests to send to the broker; each is answered before its lane gets another."""
        requests: list[LaneRequest[M]] = []
        self.news = False
        for key in tuple(self._open):
            entry = self._lanes.get(key)
            if entry is not None and (entry.next_request_at is None or now < entry.next_request_at):
                continue
            request = None if entry is None else self._request_for(key, entry)
            if request is None:
                del self._open[key]
            else:
                assert entry is not None
                entry.next_request_at = None
                requests.append(request)
        return requests

    def last_reports(self, below: int) -> list[NextRequest]:
        """Reports of what is done below the offset at which the queue starts again; they ask for no messages.

        What is done above that offset is not reported, because it runs again.
        """
        return [
            NextRequest(key, min(entry.done, below - 1), wanted=0)
            for key, entry in self._lanes.items()
            if entry.broker_has.is_lane and min(entry.done, below - 1) > NOTHING_DONE
        ]

    def answered(self, request: LaneRequest[M], answer: LaneAnswer[M] | None, *, now: Millis) -> None:
        """Takes the answer to a request; None if there was none: then the same request follows after a pause.

        An answer about a lane that is no longer set aside changes nothing.
        """
        entry = self._lanes.get(request.key)
        if entry is None:
            return
        self._open[request.key] = None
        if answer is None:
            entry.next_request_at = Millis(now + NO_ANSWER_PAUSE)
            if isinstance(request, ParkRequest):
                has_lane = entry.broker_has.is_lane
                entry.broker_has = _BrokerHas.PERHAPS_MORE if has_lane else _BrokerHas.PERHAPS
            return
        entry.next_request_at = _IMMEDIATELY
        if isinstance(request, ParkRequest):
            self._after_offer(entry, request, answer, now)
        else:
            self._after_report(entry, request, answer)

    def _after_offer(self, entry: _LaneAside[M], request: ParkRequest[M], answer: LaneAnswer[M], now: Millis) -> None:
        """The broker has the first messages of a lane that were offered. The lane may have failed again since then."""
        pending, had_lane = entry.lane.pending, entry.broker_has.is_lane
        self._queue.finish(pending[: answer.settled])
        del pending[: answer.settled]
        if answer.settled < len(request.messages):
            entry.next_request_at = Millis(now + FULL_PAUSE)
        if answer.status is None:
            entry.broker_has = _BrokerHas.NOTHING
            # Emptied at the broker; or never taken, and it is to run.
            if had_lane or entry.redrive_wanted or entry.status is LaneStatus.HELD:
                self._return_here(entry)
            return
        entry.broker_has = _BrokerHas.LANE
        if entry.new_failure is not None and entry.new_failure.failure is request.failure:
            entry.new_failure = None
            if entry.done < request.failed_again:
                entry.done = NOTHING_DONE  # the request said so
        if entry.new_failure is None:
            entry.status = answer.status

    def _after_report(self, entry: _LaneAside[M], request: NextRequest | RedriveRequest, answer: LaneAnswer[M]) -> None:
        """The broker knows what is done of the lane, or that it is redriven, and may have given its next messages."""
        lane = entry.lane
        if isinstance(request, RedriveRequest):
            entry.redrive_wanted = False
        elif entry.done == request.done:
            entry.done = NOTHING_DONE
        if answer.status is None:
            self._return_here(entry)
            return
        if entry.new_failure is None:
            entry.status = answer.status
        if answer.messages:
            assert lane.redriven is None
            lane.redriven = list(answer.messages)
            self._queue.offer(lane)

    def at_broker(self) -> Mapping[str | None, object]:
        """The lanes that the broker is known to have, by key, as `reconcile` takes them."""
        return {key: entry for key, entry in self._lanes.items() if entry.broker_has.is_lane}

    def reconcile(
        self, at_broker: Mapping[str | None, ParkedAtBroker], asked_about: Mapping[str | None, object]
    ) -> None:
        """Takes over what the broker has after an operator's change.

        `asked_about` are the lanes that the broker was known to have when it was asked: its answer may miss newer
        ones. Lanes with a request under way or a running message are left alone.
        """
        for key, entry in list(self._lanes.items()):
            lane, known = entry.lane, at_broker.get(key)
            if entry.next_request_at is None or asked_about.get(key) is not entry or lane.run is not None:
                continue
            if known is None:
                self._return_here(entry)
                continue
            if entry.new_failure is None:
                entry.status = known.status
            if lane.redriven is not None:
                lane.redriven = [message for message in lane.redriven if message.queue_offset >= known.first]
            entry.next_request_at = _IMMEDIATELY  # messages that the broker refused are offered again without a pause
            self._open[key] = None

    def forget(self) -> None:
        for table in (self._lanes, self._open, self._held, self._ended):
            table.clear()

    # lanes come and go

    def _of(self, lane: Lane[M]) -> _LaneAside[M] | None:
        entry = self._lanes.get(lane.key)
        return entry if entry is not None and entry.lane is lane else None

    def _add(self, entry: _LaneAside[M]) -> _LaneAside[M]:
        key = entry.lane.key
        entry.lane.watched = True
        self._lanes[key] = entry
        self._look_at(key)
        return entry

    def _set_aside_if_long(self, lane: Lane[M]) -> None:
        """Sets a held lane aside if many of its messages wait; it is on a timer."""
        if self._is_long(lane):
            _, failure = self._held.pop(lane.key)
            first = lane.pending[0].queue_offset
            entry = self._add(_LaneAside(lane, LaneStatus.HELD, _BrokerHas.NOTHING, first=first))
            entry.on_timer = True
            entry.failed(LaneStatus.HELD, failure)

    def _look_at(self, key: str | None) -> None:
        self._open[key] = None
        self.news = True

    def _return_here(self, entry: _LaneAside[M]) -> None:
        """The broker has nothing left of the lane: it is ordinary now, or after the messages that were given back."""
        if entry.lane.redriven is not None:
            entry.broker_has = _BrokerHas.NOTHING_LEFT
        else:
            self._release(entry)

    def _release(self, entry: _LaneAside[M]) -> None:
        """Makes a lane without messages to run an ordinary one again. If it waits for its backoff, it still does."""
        lane = entry.lane
        if entry.status is not LaneStatus.HELD:
            for message in lane.pending:
                self._queue.failures.pop(message.queue_offset, None)
        if self._remove(entry) and not entry.on_timer:
            self._queue.offer(lane)

    def _remove(self, entry: _LaneAside[M]) -> bool:
        """Makes the lane an ordinary one, where it is; returns whether it has messages."""
        lane = entry.lane
        del self._lanes[lane.key]
        self._open.pop(lane.key, None)
        if entry.through >= self._queue.next_offset:
            self._ended[lane.key] = entry.through
        lane.redriven, lane.watched = None, False
        if not lane.pending:
            self._queue.remove_lane(lane)
        return bool(lane.pending)

    # what to ask the broker

    def _request_for(self, key: str | None, entry: _LaneAside[M]) -> LaneRequest[M] | None:
        pending, at_broker = entry.lane.pending, entry.broker_has.is_lane
        if entry.broker_has is _BrokerHas.NOTHING_LEFT or not (self._to_broker or at_broker):
            return None
        if entry.new_failure is not None:
            held = entry.status is LaneStatus.HELD
            return ParkRequest(key, tuple(pending[:MAX_PARKED]), *entry.new_failure, held)
        if not entry.broker_has.is_certain and pending:
            return ParkRequest(key, tuple(pending[:MAX_PARKED]), None)
        if entry.redrive_wanted and at_broker:
            return RedriveRequest(key)
        fetch = at_broker and entry.status.runs and not entry.on_timer and entry.lane.redriven is None
        if fetch or entry.done != NOTHING_DONE:
            return NextRequest(key, entry.done, MAX_GIVEN if fetch else 0, entry.overtaken)
        if at_broker and pending and self._joins(entry):
            return ParkRequest(key, tuple(pending[:MAX_PARKED]), None)
        return None

    def _joins(self, entry: _LaneAside[M]) -> bool:
        """Whether waiting messages join the lane at the broker. While it runs, a few wait here until it is empty."""
        return not entry.status.runs or entry.on_timer or self._is_long(entry.lane)

    def _is_long(self, lane: Lane[M]) -> bool:
        """Whether so many messages of the lane wait that they should wait at the broker."""
        return len(lane.pending) > self._keep
