"""The send logic of both producers.

No sockets, threads or tasks: messages, replies and a clock go in, requests and outcomes come out, and the producers
carry them. There is one `QueueLane` per queue, which decides what is sent when; `replies` decides what a reply means,
and `freezes` what a failure freezes.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from lanemq.client.producer.batches import PendingMessage, RequestBuilder, batch_weights, total_size
from lanemq.client.producer.freezes import Freezes, Frozen, frozen_of
from lanemq.client.producer.lane import BrokerState, QueueLane, SendRequest
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.replies import Actions, NotStored, Outcome, Replies, Unsettled, dropped
from lanemq.client.producer.waiters import BatchWaiter, SingleWaiter
from lanemq.client.routing import TopicRoute
from lanemq.clock import Clock
from lanemq.core.sending.send_lane import SendLane, SendOptions
from lanemq.model.errors import Closed, LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, to_millis
from lanemq.wire.command import Command

FIRST_EPOCH = Epoch(1)
_NEVER = Millis(2**62)
_KEY_OF = attrgetter("key")


class SendEngine:
    """All lanes of one producer. Not thread-safe: the producer guards it."""

    def __init__(self, options: ProducerOptions, builder: RequestBuilder, clock: Clock) -> None:
        self._options = options
        self._builder = builder
        self._clock = clock
        self._linger_ms = to_millis(options.linger)
        # A message that cannot share a batch is declared larger than a batch, and so travels alone.
        self._too_large = options.max_batch_bytes + 1
        self._lanes: dict[MessageQueue, QueueLane] = {}
        # Lanes with unsettled messages, in the order in which they became active, so that simulations repeat exactly.
        self._active: dict[QueueLane, None] = {}
        self._brokers: dict[str, BrokerState] = {}
        self._freezes = Freezes(clock)
        self.unsettled = Unsettled(options.history)
        self._replies = Replies(options, clock, self.unsettled, self._freezes)

    # messages in

    def offer(
        self,
        queue: MessageQueue,
        messages: Sequence[PendingMessage],
        *,
        checks_stamps: bool,
        creates: bool = False,
        lingers: bool = False,
    ) -> QueueLane:
        """Puts messages at the end of their lane. Raises `LaneFrozen` if they may not be sent, and changes nothing."""
        lane = self._lanes.get(queue) or self._open_lane(queue, checks_stamps)
        if lane.checks_stamps is not checks_stamps:
            lane.checks_stamps = checks_stamps  # another kind of broker took over the name
            lane.sender.set_window(self._window(checks_stamps))
        if lane.freeze is not None or lane.frozen_keys:
            self._freezes.check(lane, messages)
        now, lane.creates = self._clock.now(), creates
        if not lingers:
            lane.linger_until = 0
        elif not lane.waiting and self._linger_ms:
            lane.linger_until = now + self._linger_ms
        if len(messages) == 1:
            message = messages[0]
            size = message.size
            lane.sender.offer(message, self._too_large if message.alone else size, now=now)
        else:
            lane.sender.offer_all(messages, batch_weights(messages, self._too_large), now=now)
            size = total_size(messages)
        lane.accepted += len(messages)
        lane.waiting += len(messages)
        lane.waiting_bytes += size
        self.unsettled.accepted(queue, messages, size)
        self._active[lane] = None
        return lane

    def offer_one(self, queue: MessageQueue, message: PendingMessage, route: TopicRoute) -> QueueLane:
        """Offers the message of a call that sends one. It lingers if its sender does not wait."""
        stamps, lingers = route.is_lane(queue.broker), not message.sender_waits
        return self.offer(queue, (message,), checks_stamps=stamps, creates=route.provisional, lingers=lingers)

    def offer_all(
        self, by_queue: Mapping[MessageQueue, Sequence[PendingMessage]], route: TopicRoute
    ) -> list[QueueLane]:
        """Offers all messages of a run, or none: raises `LaneFrozen` if one of them may not be sent."""
        for queue, messages in by_queue.items():
            lane = self._lanes.get(queue)
            if lane is not None and (lane.freeze is not None or lane.frozen_keys):
                self._freezes.check(lane, messages)
        return [
            self.offer(queue, messages, checks_stamps=route.is_lane(queue.broker), creates=route.provisional)
            for queue, messages in by_queue.items()
        ]

    def send_all_now(self) -> list[SendRequest]:
        """The requests that remain if no message lingers any longer."""
        requests: list[SendRequest] = []
        for lane in self._active:
            lane.linger_until = 0
            requests += lane.take_requests()
        return requests

    def call_ended(self, call: BatchWaiter, *, interrupted: bool) -> None:
        """A call of `send_many` has ended; if interrupted, its caller does not learn the outcome."""
        if interrupted:
            self._freezes.call_interrupted(call)
        else:
            self._freezes.call_ended(call)

    def send_interrupted(self, waiter: SingleWaiter) -> None:
        """A call of `send` was interrupted: its caller does not learn the outcome."""
        self._freezes.send_interrupted(waiter)

    # replies in

    def replied(self, request: SendRequest, reply: Command | None, error: LaneError | None) -> Actions:
        """A request was answered, or failed without a reply."""
        actions, lane = Actions(), request.lane
        self._replies.replied(request, reply, error, actions)
        self._continue(lane, actions)
        return actions

    def connected(self, broker: str) -> list[SendRequest]:
        self._brokers[broker].has_connected()
        return [request for lane in self._lanes_of(broker) for request in lane.take_requests()]

    def disconnected(self, broker: str) -> None:
        """The connection was lost. The producer then calls `replied` for every request without a reply."""
        self._brokers[broker].connected = False

    def dial_failed(self, broker: str, error: LaneError) -> None:
        self._brokers[broker].has_failed(self._clock.now())
        for lane in self._lanes_of(broker):
            lane.last_error = error

    # time

    def tick(self) -> Actions:
        """Handles passed deadlines, ended waits, and requests without a reply."""
        actions, now = Actions(), self._clock.now()
        for lane in tuple(self._active):
            self._replies.expire(lane, actions)
            if lane.is_overdue(now) and lane.queue.broker not in actions.hang_up:
                actions.hang_up.append(lane.queue.broker)
            self._continue(lane, actions)
        return actions

    def to_dial(self) -> list[tuple[str, str]]:
        """Brokers to connect to now, each with a topic whose route has it. `connected` or `dial_failed` follows."""
        now = self._clock.now()
        active = {lane.broker.name: lane.broker for lane in self._active}
        return [(broker.name, broker.topic) for broker in active.values() if broker.start_dialing(now)]

    def next_wake(self) -> int | None:
        """When to call `tick` again. Later than now: `tick` has just run, and the rest waits for replies."""
        times: list[int] = []
        for lane in self._active:
            if not lane.broker.connected:
                if not lane.broker.dialing:
                    times.append(lane.broker.dial_at)
            elif lane.linger_until:
                times.append(lane.linger_until)
            elif (deadline := lane.sender.next_deadline()) is not None:
                times.append(deadline)
        return max(min(times), self._clock.now() + 1) if times else None

    # what the user decides

    def resume(self, topic: str, key: str | None = None, queue: MessageQueue | None = None) -> bool:
        """Resumes a queue that is frozen as a whole (without one, all queues of the topic), and its keys or one key.

        A key is resumed in every queue. False if nothing was frozen.
        """
        freezes, lanes = self._freezes, self._lanes_with(topic)
        chosen = lanes if queue is None else [lane for lane in lanes if lane.queue == queue]
        resumed = [freezes.resume_queue(lane) for lane in chosen]
        resumed += [freezes.resume_key(lane, key) for lane in (chosen if key is None else lanes)]
        return any(resumed)

    def drop(self, topic: str, key: str) -> list[Outcome]:
        """Gives up all waiting messages of the key, and resumes it. Messages in flight are settled as usual."""
        outcomes: list[Outcome] = []
        for lane in self._lanes_with(topic):
            self._freezes.resume_key(lane, key)
            messages = lane.sender.withdraw(key)
            if not messages:
                continue
            self.unsettled.dropped(lane.queue, messages)
            outcomes.append(NotStored(messages, dropped(lane.queue, key)))
            lane.recount_waiting()
            if lane.sender.idle:
                self._active.pop(lane, None)
        return outcomes

    def frozen(self, topic: str | None = None) -> list[Frozen]:
        """Everything that is frozen: keys, and queues as a whole."""
        lanes = self._lanes.values() if topic is None else self._lanes_with(topic)
        return [each for lane in lanes for each in frozen_of(lane)]

    # the end

    @property
    def is_idle(self) -> bool:
        return not self._active

    def mark(self) -> "FlushMark":
        return FlushMark(self._active)

    def abandon(self) -> list[Outcome]:
        """The producer is closed: every message that is left fails with `Closed`."""
        closed = Closed("the producer was closed before the broker answered: the message may be stored or not")
        outcomes: list[Outcome] = []
        for lane in self._active:
            left = lane.sender.expire(now=_NEVER)
            if left is not None:
                outcomes.append(NotStored(left.everything, closed))
        self._active.clear()
        return outcomes

    # lanes

    def _open_lane(self, queue: MessageQueue, checks_stamps: bool) -> QueueLane:
        options = SendOptions(self._window(checks_stamps), to_millis(self._options.delivery_timeout))
        sender = SendLane[PendingMessage](options, epoch=FIRST_EPOCH, key_of=_KEY_OF, total_size=total_size)
        broker = self._brokers.setdefault(queue.broker, BrokerState(queue.broker, queue.topic))
        lane = self._lanes[queue] = QueueLane(
            queue, broker, self._options, self._builder, self._clock, checks_stamps, sender
        )
        return lane

    def _window(self, checks_stamps: bool) -> int:
        return self._options.window if checks_stamps else 1

    def _lanes_of(self, broker: str) -> list[QueueLane]:
        return [lane for lane in self._active if lane.queue.broker == broker]

    def _lanes_with(self, topic: str) -> list[QueueLane]:
        return [lane for queue, lane in self._lanes.items() if queue.topic == topic]

    def _continue(self, lane: QueueLane, actions: Actions) -> None:
        """Takes the next requests of the lane, or retires it if nothing is left."""
        if lane.sender.idle:
            self._active.pop(lane, None)
        else:
            actions.requests += lane.take_requests()


class FlushMark:
    """Everything that was accepted before the mark was made."""

    def __init__(self, lanes: Iterable[QueueLane]) -> None:
        self._lanes = [(lane, lane.accepted) for lane in lanes]

    @property
    def settled(self) -> bool:
        return all(lane.accepted - lane.sender.open_span >= accepted for lane, accepted in self._lanes)
