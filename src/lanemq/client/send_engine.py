"""The send logic, once, for both producers: which batch goes out when, and what an answer means.

No sockets, threads or tasks here: parcels, replies and a clock come in, requests and outcomes go out, and the
shells carry them. Per queue there is a `SendLane` (core), which owns the order; this file gives it parcels,
turns its batches into requests, and translates replies, lost connections and deadlines into its events.

After a failure that cannot be retried a lane is frozen: what was sent behind the failed message must not pass
it. If everybody concerned is told before they can send anything else (they wait, or the messages have no key),
the lane opens again by itself; otherwise it waits for `resume`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from lanemq.client.producer_options import ProducerOptions
from lanemq.client.send_outcomes import NotStored, Outcome, failed_outcomes, stored_outcome
from lanemq.client.send_requests import Parcel, RequestBuilder
from lanemq.clock import Clock
from lanemq.core.send_lane import Failed, SendBatch, SendError, SendLane, SendOptions
from lanemq.model.errors import BrokerRefused, Closed, LaneError, LaneFrozen, SequenceGap, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.wire.codes import STORED_CODES, ResponseCode, error_for
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

FIRST_EPOCH = Epoch(1)
DIAL_BACKOFF_MILLIS = (0, 50, 100, 200, 500, 1000)
"""How long to wait before the next attempt to connect, by failures in a row; the last one repeats."""


@dataclass(slots=True, eq=False)
class SendRequest:
    """One batch on its way. A batch that is sent again is a new request with the same command."""

    lane: "EngineLane"
    batch: SendBatch[Parcel]
    command: Command
    sent_at: Millis

    @property
    def broker(self) -> str:
        return self.lane.queue.broker


@dataclass(slots=True)
class Work:
    """What the shell must do: write requests in this order, then tell outcomes in this order."""

    requests: list[SendRequest] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    stale_topics: list[str] = field(default_factory=list)
    hang_up: list[str] = field(default_factory=list)
    """Brokers that do not answer: close the connection, which sends everything again over a new one."""


@dataclass(slots=True, eq=False)
class EngineLane:
    """One queue: its lane, and what the engine remembers beside it."""

    queue: MessageQueue
    checks_stamps: bool
    sender: SendLane[Parcel]
    under_way: dict[int, SendRequest] = field(default_factory=dict)
    """By first sequence; the newest attempt of each batch."""
    gathered: int = 0
    linger_until: Millis = Millis(0)
    last_error: LaneError | None = None
    opens_itself: bool = False
    """Frozen, but everybody concerned was told: opens as soon as nothing is unanswered."""


@dataclass(slots=True)
class _Broker:
    topic: str
    connected: bool = False
    failures: int = 0
    dial_at: Millis = Millis(0)


class SendEngine:
    """All lanes of one producer. Not thread-safe: the shell guards it."""

    def __init__(self, options: ProducerOptions, builder: RequestBuilder, clock: Clock) -> None:
        self._options = options
        self._builder = builder
        self._clock = clock
        self._lanes: dict[MessageQueue, EngineLane] = {}
        self._active: set[EngineLane] = set()
        self._brokers: dict[str, _Broker] = {}
        self.buffered_bytes = 0

    # parcels in

    def offer(self, queue: MessageQueue, parcel: Parcel, *, checks_stamps: bool, hurry: bool = True) -> EngineLane:
        """Gives the parcel its place. `LaneFrozen` if nothing may be sent there; nothing has changed then."""
        lane = self._lanes.get(queue) or self._open_lane(queue, checks_stamps)
        now = self._clock.now()
        size = parcel.size
        lane.sender.offer(parcel, self._options.max_batch_bytes + 1 if parcel.alone else size, now=now)
        self.buffered_bytes += size
        self._active.add(lane)
        lane.gathered += 1
        if hurry or not self._options.linger_ms or lane.gathered >= self._options.max_batch_messages:
            lane.linger_until = Millis(0)
        elif lane.gathered == 1:
            lane.linger_until = Millis(now + self._options.linger_ms)
        return lane

    def pump(self, lane: EngineLane) -> list[SendRequest]:
        """What may go out on this lane now."""
        broker = self._brokers[lane.queue.broker]
        now = self._clock.now()
        if not broker.connected or now < lane.linger_until:
            return []
        options, requests = self._options, []
        while True:
            batch = lane.sender.take_batch(
                max_count=options.max_batch_messages, max_bytes=options.max_batch_bytes, now=now
            )
            if batch is None:
                return requests
            lane.gathered = 0
            requests.append(self._request(lane, batch, now))

    def hurry(self) -> list[SendRequest]:
        """Everything goes out without waiting for company."""
        requests = []
        for lane in self._active:
            lane.linger_until = Millis(0)
            requests += self.pump(lane)
        return requests

    # answers in

    def replied(self, request: SendRequest, reply: Command | None, error: LaneError | None) -> Work:
        """The answer to a request, or why there is none."""
        work, lane = Work(), request.lane
        if reply is not None and reply.code in STORED_CODES:
            self._acknowledged(lane, request, reply, work)
        else:
            problem = error_for(reply.code, reply.remark) if reply is not None else error
            assert problem is not None
            self._refused(lane, request, problem, reply, work)
        self._reopen(lane)
        work.requests += self.pump(lane)
        if lane.sender.idle:
            self._active.discard(lane)
        return work

    def connected(self, broker: str) -> list[SendRequest]:
        state = self._brokers[broker]
        state.connected, state.failures = True, 0
        return [request for lane in self._lanes_of(broker) for request in self.pump(lane)]

    def disconnected(self, broker: str) -> None:
        """The connection ended; what was unanswered is answered by the shell, one request after the other."""
        self._brokers[broker].connected = False

    def dial_failed(self, broker: str, error: LaneError) -> None:
        state = self._brokers[broker]
        state.failures += 1
        wait = DIAL_BACKOFF_MILLIS[min(state.failures, len(DIAL_BACKOFF_MILLIS) - 1)]
        state.dial_at = Millis(self._clock.now() + wait)
        for lane in self._lanes_of(broker):
            lane.last_error = error

    # time

    def tick(self) -> Work:
        """Deadlines, waits that are over, requests that nobody answers."""
        work, now = Work(), self._clock.now()
        for lane in tuple(self._active):
            failed = lane.sender.expire(now=now)
            if failed is not None:
                self._give_up(lane, failed, lane.last_error, work)
                self._reopen(lane)
            if self._is_unanswered(lane, now) and lane.queue.broker not in work.hang_up:
                work.hang_up.append(lane.queue.broker)
            work.requests += self.pump(lane)
            if lane.sender.idle:
                self._active.discard(lane)
        return work

    def to_dial(self) -> list[tuple[str, str]]:
        """Brokers that messages wait for and that may be tried now, each with a topic whose route knows it."""
        now = self._clock.now()
        wanted = {lane.queue.broker for lane in self._active}
        return [
            (name, broker.topic)
            for name, broker in self._brokers.items()
            if name in wanted and not broker.connected and broker.dial_at <= now
        ]

    def next_wake(self) -> Millis | None:
        """When `tick` and `to_dial` have something to do, if nothing happens before."""
        times: list[Millis] = []
        for lane in self._active:
            broker = self._brokers[lane.queue.broker]
            if not broker.connected:
                times.append(broker.dial_at)
            elif lane.linger_until:
                times.append(lane.linger_until)
            deadline = lane.sender.next_deadline()
            if deadline is not None:
                times.append(deadline)
        return min(times, default=None)

    # people

    def resume(self, queue: MessageQueue) -> bool:
        """Opens a frozen lane; false if it was not frozen."""
        lane = self._lanes.get(queue)
        if lane is None or lane.sender.frozen is None:
            return False
        lane.sender.resume()
        return True

    def frozen(self) -> list[MessageQueue]:
        return [queue for queue, lane in self._lanes.items() if lane.sender.frozen is not None]

    @property
    def is_idle(self) -> bool:
        return not self._active

    def abandon(self) -> list[Outcome]:
        """The producer is closed: whatever is left is told so."""
        outcomes: list[Outcome] = []
        for lane in self._active:
            parcels = [parcel for request in lane.under_way.values() for parcel in request.batch.messages]
            outcomes.append(NotStored(parcels, Closed("the producer was closed before the broker answered")))
        self._active.clear()
        return outcomes
