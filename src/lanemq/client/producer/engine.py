"""The send logic of both producers: which batch is sent when, and what a reply or a deadline means for its messages.

No sockets, threads or tasks: messages, replies and a clock go in, requests and outcomes come out, and the producers
carry them. `SendEngine` has one `QueueLane` per queue.

A batch that is not full waits while an earlier one is in flight (as in Nagle's algorithm): it is sent with the next
reply at the latest, and grows until then. Under load batches grow by themselves, without load no message waits. A batch
that has to be sent again does not wait.

Invariant: an error says "not stored" only if that is certain, and what a failure freezes (`freezes`) is frozen before
any sender is notified. Other keys of the queue continue.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from lanemq.client.producer.batches import PendingMessage, RequestBuilder, batch_weights, total_size
from lanemq.client.producer.freezes import Freezes, Frozen, frozen_of
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import (
    NotStored,
    Outcome,
    all_unknown,
    dropped,
    failed_outcomes,
    forgotten,
    may_be_stored,
    receipt_of,
    stored_outcomes,
    without,
)
from lanemq.client.producer.unsettled import Unsettled
from lanemq.client.producer.waiters import BatchWaiter, SingleWaiter
from lanemq.client.receipt import Receipt
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock
from lanemq.core.sending.frozen_keys import Freeze, FrozenKeys
from lanemq.core.sending.send_lane import SendLane, SendOptions
from lanemq.core.sending.sent_window import Failed, SendBatch, SendError
from lanemq.model.errors import (
    BrokerBusy,
    BrokerReadOnly,
    BrokerRefused,
    Closed,
    LaneError,
    MessageRefused,
    SequenceGap,
)
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, to_millis
from lanemq.wire.codes import LATE_CODES, STORED_CODES, ResponseCode, error_for, unconfirmed
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_EXPECTED

LOG_NAME = __name__
"""The logger of the lines in `Actions`."""
FIRST_EPOCH = Epoch(1)
DIAL_BACKOFF_MILLIS = (0, 50, 100, 200, 500, 1000)
"""The wait before the next attempt to connect, by failures in a row; the last one repeats."""
_NEVER = Millis(2**62)
_KEY_OF = attrgetter("key")


class SendEngine:
    """All lanes of one producer. Not thread-safe: the producer guards it."""

    def __init__(self, options: ProducerOptions, builder: RequestBuilder, clock: Clock) -> None:
        self._options = options
        self._builder = builder
        self._clock = clock
        self._accepted = STORED_CODES if options.on_unconfirmed == "accept" else STORED_CODES - LATE_CODES
        self._linger_ms = to_millis(options.linger)
        # A message that cannot share a batch is declared larger than a batch, and so travels alone.
        self._too_large = options.max_batch_bytes + 1
        self._lanes: dict[MessageQueue, QueueLane] = {}
        # Lanes with unsettled messages, in the order in which they became active, so that simulations repeat exactly.
        self._active: dict[QueueLane, None] = {}
        self._brokers: dict[str, BrokerState] = {}
        self._freezes = Freezes(clock)
        self.unsettled = Unsettled(options.history)

    # messages in

    def offer(
        self,
        queue: MessageQueue,
        messages: Sequence[PendingMessage],
        *,
        checks_stamps: bool,
        creates: bool = False,
        lingers: bool = False,
    ) -> "QueueLane":
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

    def offer_one(self, queue: MessageQueue, message: PendingMessage, route: TopicRoute) -> "QueueLane":
        """Offers the message of a call that sends one. It lingers if its sender does not wait."""
        stamps, lingers = route.is_lane(queue.broker), not message.sender_waits
        return self.offer(queue, (message,), checks_stamps=stamps, creates=route.provisional, lingers=lingers)

    def send_alone(self, queue: MessageQueue, message: PendingMessage, route: TopicRoute) -> "SendRequest | None":
        """As `offer_one` and `take_requests`, for a message that would be sent at once.

        None if anything about its lane is unusual, or not idle, or if the message lingers; nothing is changed then.
        """
        lane = self._lanes.get(queue)
        if (
            lane is None
            or lane.waiting
            or lane.in_flight
            or lane.has_repeats
            or lane.recovering
            or lane.freeze is not None
            or lane.frozen_keys
            or message.alone
            or (self._linger_ms and not message.sender_waits)
            or not lane.broker.connected
            or lane.checks_stamps is not route.is_lane(queue.broker)
        ):
            return None
        now, size = self._clock.now(), message.size
        batch = lane.sender.send_alone(message, size, now=now)
        if batch is None:
            return None
        lane.creates, lane.linger_until = route.provisional, 0
        lane.accepted += 1
        self.unsettled.accepted(queue, (message,), size)
        self._active[lane] = None
        return lane.request(batch, now)

    def offer_all(
        self, by_queue: Mapping[MessageQueue, Sequence[PendingMessage]], route: TopicRoute
    ) -> "list[QueueLane]":
        """Offers all messages of a chunk, or none: raises `LaneFrozen` if one of them may not be sent."""
        for queue, messages in by_queue.items():
            lane = self._lanes.get(queue)
            if lane is not None and (lane.freeze is not None or lane.frozen_keys):
                self._freezes.check(lane, messages)
        return [
            self.offer(queue, messages, checks_stamps=route.is_lane(queue.broker), creates=route.provisional)
            for queue, messages in by_queue.items()
        ]

    def send_all_now(self) -> "list[SendRequest]":
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

    def replied(self, request: "SendRequest", reply: Command | None, error: LaneError | None) -> "Actions":
        """A request was answered, or failed without a reply."""
        actions, lane = Actions(), request.lane
        if reply is not None and reply.code in self._accepted:
            self._stored(request, reply, actions)
        elif reply is not None and reply.code in STORED_CODES:
            self._not_stored(request, unconfirmed(reply.code), reply, actions)
        else:
            problem = error_for(reply.code, reply.remark) if reply is not None else error
            assert problem is not None
            self._not_stored(request, problem, reply, actions)
        self._continue(lane, actions)
        return actions

    def stored_alone(self, request: "SendRequest", reply: Command | None) -> Receipt | None:
        """As `replied`, for the reply "stored" to a `send` in whose lane nothing else waits or is unanswered.

        Returns the receipt for the caller; None if it is not so, and nothing is changed then.
        """
        lane, batch = request.lane, request.batch
        message = batch.messages[0]
        if (
            reply is None
            or reply.code != ResponseCode.SUCCESS
            or len(batch.messages) != 1
            or message.alone
            or not isinstance(message.waiter, SingleWaiter)
            or lane.freeze is not None
            or not lane.sender.acknowledged_alone(batch)
        ):
            return None
        lane.in_flight.clear()
        lane.commands.clear()
        self._active.pop(lane, None)
        receipt = receipt_of(message, lane.queue, reply)
        self.unsettled.stored_one(message, receipt)
        return receipt

    def _stored(self, request: "SendRequest", reply: Command, actions: "Actions") -> None:
        lane, batch = request.lane, request.batch
        outcomes = stored_outcomes(batch.messages, lane.queue, reply)
        if not lane.acknowledged(batch):
            return
        if batch.given_up:
            outcomes = without(outcomes, batch.given_up)
        for outcome in outcomes:
            self.unsettled.stored(outcome)
            actions.outcomes.append(outcome)

    def _not_stored(
        self, request: "SendRequest", problem: LaneError, reply: Command | None, actions: "Actions"
    ) -> None:
        lane, batch = request.lane, request.batch
        if lane.in_flight.get(batch.first_sequence) is not request:
            return  # a reply to an attempt that was given up
        lane.last_error = problem
        if isinstance(problem, BrokerRefused) and problem.stale_route:
            actions.stale_topics.append(lane.queue.topic)
        if isinstance(problem, BrokerBusy) and not lane.checks_stamps:
            actions.silent_topics.append(lane.queue.topic)
        kind = _kind_of(problem, reply)
        if kind is SendError.REFUSED:
            lane.commands.pop(batch.first_sequence, None)  # if it is sent again, it is cut into other batches
        failed = lane.sender.failed(batch, kind, now=self._clock.now())
        lane.forget_answered()
        if failed is None:
            lane.has_repeats = True
            return
        if kind is SendError.FORGOTTEN:
            problem = forgotten(lane.queue)
        elif isinstance(problem, BrokerReadOnly):
            failed = all_unknown(failed)
        elif not failed.refused:
            problem = may_be_stored(problem)
        self._give_up(lane, failed, problem, actions)

    def _give_up(
        self, lane: "QueueLane", failed: Failed[PendingMessage], reason: LaneError | None, actions: "Actions"
    ) -> None:
        count, why = len(failed.everything), str(reason or failed.error.value)  # the error itself would keep its frames
        actions.log(logging.WARNING, "queue %s: messages not stored: %d: %s", lane.queue, count, why)
        self.unsettled.given_up(lane.queue, failed)
        for outcome in failed_outcomes(lane.queue, failed, reason, self._options.delivery_timeout):
            self._freezes.failed(lane, outcome.messages, outcome.error)
            actions.outcomes.append(outcome)
        lane.recount_waiting()

    def connected(self, broker: str) -> "list[SendRequest]":
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

    def tick(self) -> "Actions":
        """Handles passed deadlines, ended waits, and requests without a reply."""
        actions, now = Actions(), self._clock.now()
        for lane in tuple(self._active):
            self._expire(lane, now, actions)
            if lane.is_overdue(now) and lane.queue.broker not in actions.hang_up:
                actions.hang_up.append(lane.queue.broker)
            if lane.is_silent(now) and lane.queue.topic not in actions.silent_topics:
                actions.silent_topics.append(lane.queue.topic)
            self._continue(lane, actions)
        return actions

    def _expire(self, lane: "QueueLane", now: Millis, actions: "Actions") -> None:
        """Gives up messages whose deadline has passed."""
        failed = lane.sender.expire(now=now)
        if failed is not None:
            lane.forget_answered()
            self._give_up(lane, failed, lane.last_error, actions)

    def to_dial(self) -> list[tuple[str, str]]:
        """Brokers to connect to now, each with a topic whose route has it. `connected` or `dial_failed` follows."""
        now = self._clock.now()
        active = {lane.broker.name: lane.broker for lane in self._active}
        return [(broker.name, broker.topic) for broker in active.values() if broker.start_dialing(now)]

    def topic_of(self, broker: str) -> str:
        """A topic whose route has the broker."""
        return self._brokers[broker].topic

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

    def _open_lane(self, queue: MessageQueue, checks_stamps: bool) -> "QueueLane":
        options = SendOptions(self._window(checks_stamps), to_millis(self._options.delivery_timeout))
        sender = SendLane[PendingMessage](options, epoch=FIRST_EPOCH, key_of=_KEY_OF, total_size=total_size)
        broker = self._brokers.setdefault(queue.broker, BrokerState(queue.broker, queue.topic))
        lane = self._lanes[queue] = QueueLane(
            queue, broker, self._options, self._builder, self._clock, checks_stamps, sender
        )
        return lane

    def _window(self, checks_stamps: bool) -> int:
        return self._options.window if checks_stamps else 1

    def _lanes_of(self, broker: str) -> "list[QueueLane]":
        return [lane for lane in self._active if lane.queue.broker == broker]

    def _lanes_with(self, topic: str) -> "list[QueueLane]":
        return [lane for queue, lane in self._lanes.items() if queue.topic == topic]

    def _continue(self, lane: "QueueLane", actions: "Actions") -> None:
        """Takes the next requests of the lane, or retires it if nothing is left.

        After a failure, other keys are sent under a new epoch, and a frozen queue resumes if every caller knows of it.
        """
        if lane.sender.must_renew:
            lane.renew()
            text = "queue %s: %d messages are sent again in a new epoch"
            actions.log(logging.INFO, text, lane.queue, lane.recovering)
        if lane.freeze is not None:
            self._freezes.resume_if_known(lane)
        if lane.sender.idle:
            self._active.pop(lane, None)
        else:
            actions.requests += lane.take_requests()


@dataclass(slots=True, eq=False)
class QueueLane:
    """One queue: its `SendLane` (core), which keeps the order, and the requests made of its batches."""

    queue: MessageQueue
    broker: "BrokerState"
    options: ProducerOptions
    builder: RequestBuilder
    clock: Clock
    checks_stamps: bool
    """Whether the broker refuses gaps and drops repeats (LaneMQ); an Apache broker does not."""
    sender: SendLane[PendingMessage]
    in_flight: "dict[int, SendRequest]" = field(default_factory=dict)
    """By first sequence; the newest attempt of each batch."""
    commands: dict[int, Command] = field(default_factory=dict)
    """The commands of unacknowledged batches, by first sequence: a repetition must be the same bytes."""
    waiting: int = 0
    waiting_bytes: int = 0
    """Messages that wait to be sent, and their size."""
    has_repeats: bool = False
    """Batches wait to be sent again; they go before the waiting messages."""
    linger_until: int = 0
    last_error: LaneError | None = None
    creates: bool = False
    """Its newest route is provisional: the first message creates the topic."""
    accepted: int = 0
    """Messages that it was ever given."""
    recovering: int = 0
    """How many of the waiting messages were sent before, in an epoch that has ended. They do not wait for a batch to
    fill."""
    freeze: Freeze[BatchWaiter] | None = None
    """Set while the whole queue is frozen, exactly as long as `sender.frozen`."""
    frozen_keys: FrozenKeys[BatchWaiter] = field(default_factory=FrozenKeys)

    def take_requests(self) -> "list[SendRequest]":
        """The requests to send now."""
        requests: list[SendRequest] = []
        options, clock = self.options, self.clock
        while self._may_send():
            now = clock.now()
            batch = self.sender.take_batch(
                max_count=options.max_batch_messages, max_bytes=options.max_batch_bytes, now=now
            )
            if batch is None:
                break
            requests.append(self.request(batch, now))
            if batch.attempt == 1:
                self.has_repeats = False
                self.recovering = max(0, self.recovering - len(batch.messages))
                self.waiting -= len(batch.messages)
                self.waiting_bytes -= total_size(batch.messages)
            elif self.has_repeats:
                self.has_repeats = self.sender.must_repeat
        return requests

    @property
    def needs_wake(self) -> bool:
        """Whether the maintenance thread has to act for this lane: to connect, or to watch the time."""
        if self.broker.connected:
            return self.linger_until != 0 and self.waiting == 1
        return not self.broker.dialing

    def _may_send(self) -> bool:
        options = self.options
        full = self.waiting >= options.max_batch_messages or self.waiting_bytes >= options.max_batch_bytes
        if not full and not self.has_repeats and not self.recovering:
            if self.linger_until and self.clock.now() >= self.linger_until:
                self.linger_until = 0
            if self.linger_until or self.in_flight or not self.waiting:
                return False
        return self.broker.connected

    def request(self, batch: SendBatch[PendingMessage], now: Millis) -> "SendRequest":
        """The request of a batch that is sent now."""
        queue, first, born = self.queue, batch.first_sequence, self.clock.wall()
        command = self.commands.get(first) or self.builder.send(
            queue, batch.messages, epoch=batch.epoch, sequence=first, born=born, creates=self.creates
        )
        self.commands[first] = command
        request = self.in_flight[first] = SendRequest(self, queue.broker, batch, command, now)
        return request

    def acknowledged(self, batch: SendBatch[PendingMessage]) -> bool:
        """The broker has stored the batch: nothing of it is sent again. False if that was known."""
        if not self.sender.acknowledged(batch):
            return False
        self.in_flight.pop(batch.first_sequence, None)
        self.commands.pop(batch.first_sequence, None)
        return True

    def renew(self) -> None:
        """Continues in a new epoch, behind the hole that a failed message left in the old one."""
        self.recovering += self.sender.renew()
        self.forget_requests()
        self.recount_waiting()

    def resume(self) -> None:
        """Continues in a new epoch, after the whole queue was frozen."""
        self.sender.resume()
        self.freeze = None
        self.forget_requests()
        self.has_repeats = False
        self.last_error = None

    def recount_waiting(self) -> None:
        """Messages left the middle of the line, or came back to it."""
        self.waiting = self.sender.waiting_count
        self.waiting_bytes += self.sender.take_moved()
        self.recovering = min(self.recovering, self.waiting)

    def forget_answered(self) -> None:
        """Drops requests that no reply is expected for."""
        expected = self.sender.in_flight()
        self.in_flight = {first: request for first, request in self.in_flight.items() if first in expected}

    def forget_requests(self) -> None:
        """The epoch has ended, and all its requests with it."""
        self.in_flight.clear()
        self.commands.clear()

    def is_overdue(self, now: Millis) -> bool:
        """A request got no reply for `request_timeout`, and may be repeated.

        Never for a broker that does not check stamps: it would store a repetition twice.
        """
        return self.checks_stamps and self._is_unanswered(now)

    def is_silent(self, now: Millis) -> bool:
        """A request that may not be repeated got no reply for `request_timeout`."""
        return not self.checks_stamps and self._is_unanswered(now)

    def _is_unanswered(self, now: Millis) -> bool:
        if not self.in_flight:
            return False
        return now - min(request.sent_at for request in self.in_flight.values()) >= self.options.request_timeout * 1000


@dataclass(slots=True, eq=False)
class SendRequest:
    """One batch in flight. A batch that is sent again is a new request with the same command."""

    lane: QueueLane
    broker: str
    batch: SendBatch[PendingMessage]
    command: Command
    sent_at: Millis


@dataclass(slots=True)
class BrokerState:
    """Whether one broker is connected, and when to try again. There is at most one attempt at a time."""

    name: str
    topic: str
    """A topic whose route contains the broker."""
    connected: bool = False
    dialing: bool = False
    dial_at: int = 0
    failures: int = 0

    def has_connected(self) -> None:
        self.connected, self.dialing, self.failures = True, False, 0

    def has_failed(self, now: Millis) -> None:
        self.failures += 1
        self.dialing = False
        self.dial_at = now + DIAL_BACKOFF_MILLIS[min(self.failures, len(DIAL_BACKOFF_MILLIS) - 1)]

    def start_dialing(self, now: Millis) -> bool:
        """True if the caller has to connect now."""
        if self.connected or self.dialing or self.dial_at > now:
            return False
        self.dialing = True
        return True


class LogLine(NamedTuple):
    """One line of the log, with its arguments."""

    level: int
    text: str
    args: tuple[object, ...]


@dataclass(slots=True)
class Actions:
    """What a producer has to do for its engine: write requests in this order, notify waiters in this order, log."""

    requests: list[SendRequest] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    stale_topics: list[str] = field(default_factory=list)
    silent_topics: list[str] = field(default_factory=list)
    """Topics with a broker that does not answer, or not as a master: another replica may be the master now."""
    hang_up: list[str] = field(default_factory=list)
    """Brokers that do not reply. Closing the connection sends everything again over a new one."""
    lines: "list[LogLine]" = field(default_factory=list)
    """What to log. A handler of the log may use the producer, so the engine does not call it in the middle of its
    work."""

    def log(self, level: int, text: str, *args: object) -> None:
        self.lines.append(LogLine(level, text, args))


NO_ACTIONS = Actions()


def _kind_of(problem: LaneError, reply: Command | None) -> SendError:
    """Whether the moment, the message or the queue is at fault."""
    if problem.retriable:
        return SendError.RETRY
    if isinstance(problem, MessageRefused):
        return SendError.REFUSED
    if isinstance(problem, SequenceGap):
        forgot = reply is not None and reply.ext.get(LANE_EXPECTED) == "0"
        return SendError.FORGOTTEN if forgot else SendError.GAP
    return SendError.FATAL


class FlushMark:
    """Everything that was accepted before the mark was made."""

    def __init__(self, lanes: Iterable[QueueLane]) -> None:
        self._lanes = [(lane, lane.accepted) for lane in lanes]

    @property
    def settled(self) -> bool:
        return all(lane.accepted - lane.sender.open_span >= accepted for lane, accepted in self._lanes)
