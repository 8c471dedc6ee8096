"""The send logic of both producers: which batch is sent when, and what a reply or a deadline means for its messages.

No sockets, threads or tasks: messages, replies and a clock go in, requests and outcomes come out, and the producers
carry them. `SendEngine` has one `QueueSender` per queue, which knows everything that is waiting or in flight there.

Invariant: an error says "not stored" only if that is certain, and what a failure freezes (`freezes`) is frozen before
any sender is notified. Other keys of the queue continue.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from lanemq.client.producer.batches import PendingMessage, RequestBuilder, batch_weights
from lanemq.client.producer.freezes import Freezes, Frozen, Sender, frozen_of
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import (
    NotStored,
    Outcome,
    all_unknown,
    dropped,
    failed_outcomes,
    forgotten,
    may_be_stored,
    stored_outcomes,
    without,
)
from lanemq.client.producer.unsettled import Unsettled
from lanemq.client.producer.waiters import BatchWaiter, SingleWaiter
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock
from lanemq.core.sending.queue_sender import QueueSender, SendOptions
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
from lanemq.model.units import Millis, to_millis
from lanemq.wire.codes import LATE_CODES, STORED_CODES, error_for, unconfirmed
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_EXPECTED

LOG_NAME = __name__
"""The logger of the lines in `Actions`."""
SENDING = SendOptions()
"""What every producer sends with; only its `delivery_timeout` is the program's choice."""
DIAL_BACKOFF_MILLIS = (0, 50, 100, 200, 500, 1000)
"""The wait before the next attempt to connect, by failures in a row; the last one repeats."""
_NEVER = Millis(2**62)
_KEY_OF = attrgetter("key")


class SendEngine:
    """All queues of one producer. Not thread-safe: the producer guards it."""

    def __init__(
        self, options: ProducerOptions, builder: RequestBuilder, clock: Clock, sending: SendOptions = SENDING
    ) -> None:
        self._options = options
        self._builder = builder
        self._clock = clock
        self._accepted = STORED_CODES if options.on_unconfirmed == "accept" else STORED_CODES - LATE_CODES
        self._send_options = replace(sending, delivery_timeout=to_millis(options.delivery_timeout))
        # A message that cannot share a batch is declared larger than a batch, and so travels alone.
        self._too_large = sending.max_bytes + 1
        self._senders: dict[MessageQueue, Sender] = {}
        # Senders with unsettled messages, in the order in which they became active, so that simulations repeat exactly.
        self._active: dict[Sender, None] = {}
        self._brokers: dict[str, BrokerState] = {}
        self._freezes = Freezes(clock)
        self.unsettled = Unsettled(options.history)

    # messages in

    def sender_for(self, queue: MessageQueue, route: TopicRoute) -> Sender:
        """The sender of a queue, as its newest route says."""
        sender = self._senders.get(queue)
        if sender is None:
            self._brokers.setdefault(queue.broker, BrokerState(queue.broker, queue.topic))
            # Not by assignment: a finalizer that sends may have come in between.
            sender = self._senders.setdefault(queue, QueueSender(queue, self._send_options, key_of=_KEY_OF))
        checks_stamps = route.is_lanemq(queue.broker)
        if sender.checks_stamps is not checks_stamps:
            sender.set_broker(checks_stamps=checks_stamps)  # another kind of broker took over the name
        sender.creates = route.provisional
        return sender

    def accept(self, messages: Mapping[Sender, Sequence[PendingMessage]]) -> "Actions":
        """Puts messages at the end of their queues. Messages of frozen keys and queues are refused."""
        actions, now = Actions(), self._clock.now()
        for sender, together in messages.items():
            if sender.freeze is not None or sender.frozen_keys:
                together, refused = self._freezes.sort_out(sender, together)
                actions.outcomes += refused
            if together:
                sender.append(together, batch_weights(together, self._too_large), now=now)
                self.unsettled.accepted(sender.queue, together)
                self._active[sender] = None
                broker = self._brokers[sender.queue.broker]
                actions.requests += self.requests_of(sender, now)
                actions.wake |= not broker.connected and not broker.dialing
        return actions

    def check(self, by_queue: Mapping[MessageQueue, Sequence[PendingMessage]]) -> None:
        """Raises `LaneFrozen` if one of these messages would be refused."""
        for queue, messages in by_queue.items():
            sender = self._senders.get(queue)
            if sender is not None and (sender.freeze is not None or sender.frozen_keys):
                _, refused = self._freezes.sort_out(sender, messages)
                if refused:
                    raise refused[0].error

    def call_ended(self, call: BatchWaiter, *, interrupted: bool) -> None:
        """A call of `send_many` has ended; if interrupted, its caller does not learn the outcome."""
        if interrupted:
            self._freezes.call_interrupted(call)
        else:
            self._freezes.call_ended(call)

    def send_interrupted(self, waiter: SingleWaiter) -> None:
        """A call of `send` was interrupted: its caller does not learn the outcome."""
        self._freezes.send_interrupted(waiter)

    # requests out

    def requests_of(self, sender: Sender, now: Millis) -> "list[SendRequest]":
        """The requests of a queue to send now."""
        requests: list[SendRequest] = []
        if self._brokers[sender.queue.broker].connected:
            while (batch := sender.next_batch(now)) is not None:
                if batch.command is None:
                    batch.command = self._builder.send(
                        sender.queue,
                        batch.messages,
                        epoch=batch.epoch,
                        sequence=batch.first_sequence,
                        born=self._clock.wall(),
                        creates=sender.creates,
                    )
                requests.append(SendRequest(sender, batch, batch.attempt, batch.command))
        return requests

    # replies in

    def replied(
        self,
        request: "SendRequest",
        reply: Command | None,
        error: LaneError | None,
        actions: "Actions | None" = None,
    ) -> "Actions":
        """A request was answered, or failed without a reply. Adds what is to be done to `actions`, if given."""
        actions = actions or Actions()
        before = len(actions.outcomes)
        if reply is not None and reply.code in self._accepted:
            self._stored(request, reply, actions)
        elif reply is not None and reply.code in STORED_CODES:
            self._not_stored(request, unconfirmed(reply.code), reply, actions)
        else:
            problem = error_for(reply.code, reply.remark) if reply is not None else error
            assert problem is not None
            self._not_stored(request, problem, reply, actions)
        if len(actions.outcomes) == before:
            actions.wake = True  # the batch will be sent again later
        self._continue(request.sender, actions)
        return actions

    def _stored(self, request: "SendRequest", reply: Command, actions: "Actions") -> None:
        sender, batch = request.sender, request.batch
        if not sender.acknowledged(batch):
            return
        outcomes = stored_outcomes(batch.messages, sender.queue, reply)
        if batch.given_up:
            outcomes = without(outcomes, batch.given_up)
        for outcome in outcomes:
            self.unsettled.stored(outcome)
        actions.outcomes += outcomes

    def _not_stored(
        self, request: "SendRequest", problem: LaneError, reply: Command | None, actions: "Actions"
    ) -> None:
        sender, batch = request.sender, request.batch
        if not sender.awaits(batch, request.attempt):
            return  # a reply to an attempt that was given up
        if isinstance(problem, BrokerRefused) and problem.stale_route:
            actions.stale_topics += (sender.queue.topic,)
        if isinstance(problem, BrokerBusy) and not sender.checks_stamps:
            actions.silent_topics += (sender.queue.topic,)
        kind = _kind_of(problem, reply)
        failed = sender.failed(batch, kind, problem, now=self._clock.now(), wall=self._clock.wall())
        if failed is None:
            return
        if kind is SendError.FORGOTTEN:
            problem = forgotten(sender.queue)
        elif isinstance(problem, BrokerReadOnly):
            failed = all_unknown(failed)
        elif not failed.refused:
            problem = may_be_stored(problem)
        self._give_up(sender, failed, problem, actions)

    def _give_up(
        self, sender: Sender, failed: Failed[PendingMessage], reason: LaneError | None, actions: "Actions"
    ) -> None:
        count, why = len(failed.everything), str(reason or failed.error.value)  # the error itself would keep its frames
        actions.log(logging.WARNING, "queue %s: messages not stored: %d: %s", sender.queue, count, why)
        self.unsettled.given_up(sender.queue, failed)
        for outcome in failed_outcomes(sender.queue, failed, reason, self._options.delivery_timeout):
            self._freezes.failed(sender, outcome.messages, outcome.error)
            actions.outcomes.append(outcome)

    def _continue(self, sender: Sender, actions: "Actions") -> None:
        """Takes the next requests of the queue, or retires it if nothing is left.

        After a failure, other keys are sent under a new epoch, and a frozen queue resumes if every caller knows of it.
        """
        if sender.must_renew:
            again = sender.renew()
            actions.log(logging.INFO, "queue %s: %d messages are sent again in a new epoch", sender.queue, again)
        if sender.freeze is not None:
            self._freezes.resume_if_known(sender)
        if sender.idle:
            self._active.pop(sender, None)
        else:
            actions.requests += self.requests_of(sender, self._clock.now())

    # connections

    def connected(self, broker: str) -> "list[SendRequest]":
        self._brokers[broker].has_connected()
        now = self._clock.now()
        return [request for sender in self._active_at(broker) for request in self.requests_of(sender, now)]

    def disconnected(self, broker: str) -> None:
        """The connection was lost. The producer then calls `replied` for every request without a reply."""
        self._brokers[broker].connected = False

    def dial_failed(self, broker: str, error: LaneError) -> None:
        self._brokers[broker].has_failed(self._clock.now())
        for sender in self._active_at(broker):
            sender.last_error = error

    def to_dial(self) -> list[tuple[str, str]]:
        """Brokers to connect to now, each with a topic whose route has it. `connected` or `dial_failed` follows."""
        now = self._clock.now()
        active = [self._brokers[name] for name in dict.fromkeys(sender.queue.broker for sender in self._active)]
        return [(broker.name, broker.topic) for broker in active if broker.start_dialing(now)]

    def topic_of(self, broker: str) -> str:
        """A topic whose route has the broker."""
        return self._brokers[broker].topic

    def _active_at(self, broker: str) -> list[Sender]:
        return [sender for sender in self._active if sender.queue.broker == broker]

    # time

    def tick(self) -> "Actions":
        """Handles passed deadlines, ended waits, and requests without a reply."""
        actions, now = Actions(), self._clock.now()
        for sender in tuple(self._active):
            failed = sender.expire(now=now)
            if failed is not None:
                self._give_up(sender, failed, sender.last_error, actions)
            if sender.is_overdue(now):
                self._is_overdue(sender, actions)
            self._continue(sender, actions)
        return actions

    def _is_overdue(self, sender: Sender, actions: "Actions") -> None:
        """A request got no reply in time. It is sent again, but not to a broker that does not check stamps: that one
        would store a repetition twice."""
        queue = sender.queue
        if sender.checks_stamps and queue.broker not in actions.hang_up:
            actions.hang_up += (queue.broker,)
        if not sender.checks_stamps and queue.topic not in actions.silent_topics:
            actions.silent_topics += (queue.topic,)

    def next_wake(self) -> int | None:
        """When to call `tick` again. Later than now: `tick` has just run, and the rest waits for replies."""
        times: list[int] = []
        for sender in self._active:
            broker = self._brokers[sender.queue.broker]
            if not broker.connected:
                if not broker.dialing:
                    times.append(broker.dial_at)
            elif (deadline := sender.next_deadline()) is not None:
                times.append(deadline)
        return max(min(times), self._clock.now() + 1) if times else None

    # what the user decides

    def resume(self, topic: str, key: str | None = None, queue: MessageQueue | None = None) -> bool:
        """Resumes a queue that is frozen as a whole (without one, all queues of the topic), and its keys or one key.

        A key is resumed in every queue. False if nothing was frozen.
        """
        senders = self._senders_of(topic)
        chosen = senders if queue is None else [sender for sender in senders if sender.queue == queue]
        resumed = [sender.resume() for sender in chosen]
        resumed += [sender.frozen_keys.resume(key) for sender in (chosen if key is None else senders)]
        return any(resumed)

    def drop(self, topic: str, key: str) -> list[Outcome]:
        """Gives up all waiting messages of the key, and resumes it. Messages in flight are settled as usual."""
        outcomes: list[Outcome] = []
        for sender in self._senders_of(topic):
            sender.frozen_keys.resume(key)
            messages = sender.withdraw(key)
            if messages:
                self.unsettled.dropped(sender.queue, messages)
                outcomes.append(NotStored(messages, dropped(sender.queue, key)))
                if sender.idle:
                    self._active.pop(sender, None)
        return outcomes

    def frozen(self, topic: str | None = None) -> list[Frozen]:
        """Everything that is frozen: keys, and queues as a whole."""
        senders = [*self._senders.values()] if topic is None else self._senders_of(topic)
        return [frozen for sender in senders for frozen in frozen_of(sender)]

    def _senders_of(self, topic: str) -> list[Sender]:
        return [sender for queue, sender in [*self._senders.items()] if queue.topic == topic]

    # the end

    def mark(self) -> "FlushMark":
        return FlushMark(self._active)

    def abandon(self) -> list[Outcome]:
        """The producer is closed: every message that is left fails with `Closed`."""
        closed = Closed("the producer was closed before the broker answered: the message may be stored or not")
        left = [sender.expire(now=_NEVER) for sender in self._active]
        self._active.clear()
        return [NotStored(failed.everything, closed) for failed in left if failed is not None]


class SendRequest(Struct, frozen=True):
    """One attempt at a batch. A batch that is sent again is a new request with the same command."""

    sender: Sender
    batch: SendBatch[PendingMessage]
    attempt: int
    command: Command

    @property
    def broker(self) -> str:
        return self.sender.queue.broker


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


class Actions(Struct):
    """What a producer has to do for its engine: write requests in this order, notify waiters in this order, log."""

    requests: list[SendRequest] = []
    outcomes: list[Outcome] = []
    wake: bool = False
    """The maintenance thread has to act: to connect, or to watch the time."""
    stale_topics: tuple[str, ...] = ()
    silent_topics: tuple[str, ...] = ()
    """Topics with a broker that does not answer, or not as a master: another replica may be the master now."""
    hang_up: tuple[str, ...] = ()
    """Brokers that do not reply. Closing the connection sends everything again over a new one."""
    lines: "tuple[LogLine, ...]" = ()
    """What to log. A handler of the log may use the producer, so the engine does not call it in the middle of its
    work."""

    def log(self, level: int, text: str, *args: object) -> None:
        self.lines += (LogLine(level, text, args),)


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

    def __init__(self, senders: Iterable[Sender]) -> None:
        self._accepted = [(sender, sender.accepted) for sender in senders]

    @property
    def settled(self) -> bool:
        return all(sender.settled_before >= accepted for sender, accepted in self._accepted)
