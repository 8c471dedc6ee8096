"""One queue of a producer: the messages that wait for it, and which batch is sent when.

A batch that is not full waits while an earlier one is in flight (as in Nagle's algorithm): it is sent with the next
reply at the latest, and grows until then. Under load batches grow by themselves, without load no message waits. A batch
that has to be sent again does not wait.
"""

from dataclasses import dataclass, field

from lanemq.client.producer.batches import PendingMessage, RequestBuilder, total_size
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.waiters import BatchWaiter
from lanemq.clock import Clock
from lanemq.core.sending.frozen_keys import Freeze, FrozenKeys
from lanemq.core.sending.send_lane import SendLane
from lanemq.core.sending.sent_window import SendBatch
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.wire.command import Command

DIAL_BACKOFF_MILLIS = (0, 50, 100, 200, 500, 1000)
"""The wait before the next attempt to connect, by failures in a row; the last one repeats."""


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


@dataclass(slots=True, eq=False)
class SendRequest:
    """One batch in flight. A batch that is sent again is a new request with the same command."""

    lane: "QueueLane"
    broker: str
    batch: SendBatch[PendingMessage]
    command: Command
    sent_at: Millis


@dataclass(slots=True, eq=False)
class QueueLane:
    """One queue: its `SendLane` (core), which keeps the order, and the requests made of its batches."""

    queue: MessageQueue
    broker: BrokerState
    options: ProducerOptions
    builder: RequestBuilder
    clock: Clock
    checks_stamps: bool
    """Whether the broker refuses gaps and drops repeats (LaneMQ); an Apache broker does not."""
    sender: SendLane[PendingMessage]
    in_flight: dict[int, SendRequest] = field(default_factory=dict)
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

    def take_requests(self) -> list[SendRequest]:
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
            requests.append(self._request(batch, now))
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

    def _request(self, batch: SendBatch[PendingMessage], now: Millis) -> SendRequest:
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
        if not self.checks_stamps or not self.in_flight:
            return False
        return now - min(request.sent_at for request in self.in_flight.values()) >= self.options.request_timeout * 1000
