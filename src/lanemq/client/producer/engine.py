"""The send logic, once, for both producers.

No sockets, threads or tasks here: parcels, replies and a clock come in, requests and outcomes go out, and the
shells carry them. Per queue there is a `SendLane` (core), which owns the order; this file keeps the lanes, gives them
parcels and tells them of connections and of time.

Which batch goes out when is `send_pump`; what an answer means is `send_answers`; what a failure closes, and when that
opens again, is `send_freezes`; what is in the buffer is `send_ledger`.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from lanemq.client.producer.answers import Answers
from lanemq.client.producer.freezes import Freezes, Frozen, frozen_of
from lanemq.client.producer.known_brokers import KnownBroker, KnownBrokers
from lanemq.client.producer.ledger import SendLedger
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import NotStored, Outcome, dropped
from lanemq.client.producer.pump import SendPump
from lanemq.client.producer.requests import Parcel, RequestBuilder, batch_weights, total_size
from lanemq.client.producer.waiters import Crowd, Sole
from lanemq.client.producer.work import EngineLane, Mark, SendRequest, Work
from lanemq.client.routing import TopicRoute
from lanemq.clock import Clock
from lanemq.core.sending.send_lane import SendLane, SendOptions
from lanemq.model.errors import Closed, LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis
from lanemq.wire.command import Command

FIRST_EPOCH = Epoch(1)
_NEVER = Millis(2**62)
_KEY_OF = attrgetter("key")


class SendEngine:
    """All lanes of one producer. Not thread-safe: the shell guards it."""

    def __init__(self, options: ProducerOptions, builder: RequestBuilder, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._lanes: dict[MessageQueue, EngineLane] = {}
        # In the order in which they became active, so that a run can be repeated exactly.
        self._active: dict[EngineLane, None] = {}
        self._brokers = KnownBrokers()
        self._freezes = Freezes(clock)
        self._ledger = SendLedger(options.history)
        self._pump = SendPump(options, builder, clock, self._brokers)
        self._answers = Answers(options, clock, self._ledger, self._freezes)

    @property
    def buffered_bytes(self) -> int:
        """Of messages that wait or are under way."""
        return self._ledger.buffered_bytes

    # parcels in

    def offer(
        self,
        queue: MessageQueue,
        parcels: Sequence[Parcel],
        *,
        checks_stamps: bool,
        creates: bool = False,
        hurry: bool = True,
    ) -> EngineLane:
        """Gives the parcels their places. `LaneFrozen` if nothing may be sent there; nothing has changed then."""
        lane = self._lanes.get(queue) or self._open_lane(queue, checks_stamps)
        if lane.checks_stamps is not checks_stamps:
            lane.checks_stamps = checks_stamps  # another kind of broker took over its name
            lane.sender.set_window(self._window(checks_stamps))
        if lane.freeze is not None or lane.frozen_keys:
            self._freezes.check_open(lane, parcels)
        now, lane.creates = self._clock.now(), creates
        if hurry:
            lane.linger_until = 0
        elif not lane.gathered and self._options.linger_ms:
            lane.linger_until = now + self._options.linger_ms
        self._place(lane, parcels, now)
        self._active[lane] = None
        return lane

    def _place(self, lane: EngineLane, parcels: Sequence[Parcel], now: Millis) -> None:
        # A parcel that cannot share a batch is declared larger than one: it then travels alone.
        too_large = self._options.max_batch_bytes + 1
        if len(parcels) == 1:
            parcel = parcels[0]
            total = parcel.size
            lane.sender.offer(parcel, too_large if parcel.alone else total, now=now)
        else:
            lane.sender.offer_all(parcels, batch_weights(parcels, too_large), now=now)
            total = total_size(parcels)
        lane.accepted += len(parcels)
        lane.gathered += len(parcels)
        lane.gathered_bytes += total
        self._ledger.taken(lane.queue, parcels, total)

    def offer_all(self, placed: Mapping[MessageQueue, Sequence[Parcel]], route: TopicRoute) -> list[EngineLane]:
        """All parcels of a run, or none: `LaneFrozen` if one of them may not be sent."""
        for queue, parcels in placed.items():
            lane = self._lanes.get(queue)
            if lane is not None and (lane.freeze is not None or lane.frozen_keys):
                self._freezes.check_open(lane, parcels)
        return [
            self.offer(queue, parcels, checks_stamps=route.is_lane(queue.broker), creates=route.provisional)
            for queue, parcels in placed.items()
        ]

    def call_ended(self, crowd: Crowd, *, told: bool = True) -> None:
        """If its caller knows now what became of the messages, what was frozen for that opens again."""
        if told:
            self._freezes.call_ended(crowd)
        else:
            self._freezes.call_left(crowd)

    def send_left(self, ticket: Sole) -> None:
        """Its caller was interrupted, and will not know what became of the message."""
        self._freezes.send_left(ticket)

    def pump(self, lane: EngineLane) -> list[SendRequest]:
        """What may go out on this lane now."""
        return self._pump.take(lane)

    def needs_keeper(self, lane: EngineLane) -> bool:
        """Nothing will happen on this lane by itself: somebody has to connect, or to watch the clock."""
        broker = self._brokers[lane.queue.broker]
        return lane.linger_until != 0 and lane.gathered == 1 if broker.connected else not broker.dialing

    def hurry(self) -> list[SendRequest]:
        """Everything goes out without waiting for company."""
        requests: list[SendRequest] = []
        for lane in self._active:
            lane.linger_until = 0
            requests += self.pump(lane)
        return requests

    # answers in

    def replied(self, request: SendRequest, reply: Command | None, error: LaneError | None) -> Work:
        """The answer to a request, or why there is none."""
        work, lane = Work(), request.lane
        self._answers.came(request, reply, error, work)
        work.requests += self.pump(lane)
        self._retire(lane)
        return work

    def connected(self, broker: str) -> list[SendRequest]:
        self._brokers[broker].has_connected()
        return [request for lane in self._lanes_of(broker) for request in self.pump(lane)]

    def disconnected(self, broker: str) -> None:
        """The connection ended; what was unanswered is answered by the shell, one request after the other."""
        self._brokers[broker].connected = False

    def dial_failed(self, broker: str, error: LaneError) -> None:
        self._brokers[broker].has_failed(self._clock.now())
        for lane in self._lanes_of(broker):
            lane.last_error = error

    # time

    def tick(self) -> Work:
        """Deadlines, waits that are over, requests that nobody answers."""
        work, now, request_millis = Work(), self._clock.now(), self._options.request_timeout * 1000
        for lane in tuple(self._active):
            self._answers.time_is(lane, work)
            if lane.is_overdue(now, request_millis) and lane.queue.broker not in work.hang_up:
                work.hang_up.append(lane.queue.broker)
            work.requests += self.pump(lane)
            self._retire(lane)
        return work

    def to_dial(self) -> list[tuple[str, str]]:
        """Brokers to connect to now, each with a topic whose route knows it. `connected` or `dial_failed` follows."""
        return self._brokers.to_dial({lane.queue.broker for lane in self._active}, self._clock.now())

    def next_wake(self) -> int | None:
        """When `tick` has something to do. Not at once: it has just run, and what is left waits for an answer."""
        times: list[int] = []
        for lane in self._active:
            broker = self._brokers[lane.queue.broker]
            if not broker.connected:
                if not broker.dialing:
                    times.append(broker.dial_at)
            elif lane.linger_until:
                times.append(lane.linger_until)
            elif (deadline := lane.sender.next_deadline()) is not None:
                times.append(deadline)
        return max(min(times), self._clock.now() + 1) if times else None

    # people

    def resume(self, topic: str, key: str | None = None, queue: MessageQueue | None = None) -> bool:
        """Opens the queue (without one, all of the topic) if it is frozen as a whole, and its keys, or only that key.

        A key is opened wherever it is frozen. False if nothing of all this was frozen.
        """
        freezes, lanes = self._freezes, self._lanes_with(topic)
        chosen = lanes if queue is None else [lane for lane in lanes if lane.queue == queue]
        opened = [freezes.open_queue(lane) for lane in chosen]
        opened += [freezes.open_key(lane, key) for lane in (chosen if key is None else lanes)]
        return any(opened)

    def drop(self, topic: str, key: str) -> list[Outcome]:
        """Gives up everything of the key that waits, and opens it; what is under way is settled as usual."""
        outcomes: list[Outcome] = []
        for lane in self._lanes_with(topic):
            self._freezes.open_key(lane, key)
            parcels = lane.sender.withdraw(key)
            if not parcels:
                continue
            self._ledger.dropped(lane.queue, parcels)
            outcomes.append(NotStored(parcels, dropped(lane.queue, key)))
            lane.gather_anew()
            self._retire(lane)
        return outcomes

    def frozen(self, topic: str | None = None) -> list[Frozen]:
        """Everything that is closed: keys, and queues as a whole."""
        lanes = self._lanes.values() if topic is None else self._lanes_with(topic)
        return [each for lane in lanes for each in frozen_of(lane)]

    @property
    def is_idle(self) -> bool:
        return not self._active

    def mark(self) -> Mark:
        return Mark(self._active)

    def abandon(self) -> list[Outcome]:
        """The producer is closed: whatever is left is told so."""
        closed = Closed("the producer was closed before the broker answered: the message may be stored or not")
        outcomes: list[Outcome] = []
        for lane in self._active:
            left = lane.sender.expire(now=_NEVER)
            if left is not None:
                outcomes.append(NotStored(left.everything, closed))
        self._active.clear()
        return outcomes

    # inside

    def _open_lane(self, queue: MessageQueue, checks_stamps: bool) -> EngineLane:
        options = SendOptions(self._window(checks_stamps), Millis(round(self._options.timeout * 1000)))
        lane = EngineLane(queue, checks_stamps, SendLane(options, epoch=FIRST_EPOCH, key_of=_KEY_OF))
        self._lanes[queue] = lane
        self._brokers.setdefault(queue.broker, KnownBroker(queue.topic))
        return lane

    def _window(self, checks_stamps: bool) -> int:
        return self._options.window if checks_stamps else 1

    def _lanes_of(self, broker: str) -> list[EngineLane]:
        return [lane for lane in self._active if lane.queue.broker == broker]

    def _lanes_with(self, topic: str) -> list[EngineLane]:
        return [lane for queue, lane in self._lanes.items() if queue.topic == topic]

    def _retire(self, lane: EngineLane) -> None:
        if lane.sender.idle:
            self._active.pop(lane, None)
