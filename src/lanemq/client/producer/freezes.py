"""Which keys and queues of a producer are frozen after a failure, and when they resume.

Invariant: no message is stored behind a failed message of its key unless the sender knows of the failure.

There are two kinds of failures. A message that the broker calls illegal, a time-out, and a reply that was lost for good
freeze the keys concerned; other keys of the queue continue. Everything else (no permission, topic deleted, disk
failure, producer replaced) would affect any message and freezes the queue.

Nothing is frozen if every caller concerned learns of the failure before it can send anything else: it waits in `send`,
or the message has no key. The keys of a `send_many` call are frozen until the call ends. If a call ends before its
messages are settled (its source raised, or it was interrupted or cancelled), its caller never learns the outcome: the
keys stay frozen until the user resumes them, as after a failed `submit`.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeAlias

from lanemq.client.producer.batches import PendingMessage
from lanemq.client.producer.outcomes import NotStored
from lanemq.client.producer.waiters import BatchWaiter, SingleWaiter
from lanemq.clock import Clock, wall_time
from lanemq.core.sending.frozen_keys import Freeze
from lanemq.core.sending.queue_sender import QueueSender
from lanemq.model.errors import LaneFrozen
from lanemq.model.queue import MessageQueue


class Frozen(NamedTuple):
    """A key that may not be sent to its queue; without a key, the whole queue."""

    topic: str
    key: str | None
    queue: MessageQueue
    frozen_since: datetime
    """Time of the first failure."""
    why: Exception
    """The error of the first message that failed."""


Sender: TypeAlias = QueueSender[PendingMessage, BatchWaiter]


class Freezes:
    """The freezes of one producer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Queues with a freeze that a running call of `send_many` will lift.
        self._waiting: dict[Sender, None] = {}

    def failed(self, sender: Sender, messages: Sequence[PendingMessage], why: Exception) -> None:
        """Freezes what these failed messages require. Called before their senders are notified."""
        for message in messages:
            self._freeze_for(sender, message, why)

    def sort_out(
        self, sender: Sender, messages: Sequence[PendingMessage]
    ) -> tuple[Sequence[PendingMessage], list[NotStored]]:
        """The messages that may be sent, and the others with the error that says why not."""
        queue, freeze, refused = sender.queue, sender.freeze, dict[str | None, list[PendingMessage]]()
        for message in messages:
            if freeze is not None or message.key in sender.frozen_keys:
                refused.setdefault(message.key, []).append(message)
        outcomes = []
        for key, of_key in refused.items():
            why = freeze.why if freeze is not None else sender.frozen_keys[key or ""].why
            error = _queue_is_frozen(queue, why) if freeze is not None else _key_is_frozen(queue, key, why)
            outcomes.append(NotStored(of_key, error))
            for message in of_key:
                self._freeze_for(sender, message, why)
        return [message for message in messages if message.key not in refused], outcomes

    def _freeze_for(self, sender: Sender, message: PendingMessage, why: Exception) -> None:
        waiter, key = message.waiter, message.key
        if key is None:
            return
        if isinstance(waiter, BatchWaiter) and not waiter.interrupted:
            if not waiter.ended:
                self._waiting[sender] = None
                self._freeze(sender, key, why, waiter)
        elif isinstance(waiter, SingleWaiter) and not waiter.interrupted:
            waiter.on_interrupt = partial(self._freeze, sender, key, why, None)
        elif isinstance(waiter, SingleWaiter) or not message.sender_waits:
            self._freeze(sender, key, why, None)

    def _freeze(self, sender: Sender, key: str, why: Exception, call: BatchWaiter | None) -> None:
        if sender.freeze is not None:
            sender.freeze.add(call)
        else:
            sender.frozen_keys.freeze(key, why, call, wall=self._clock.wall())

    def call_ended(self, call: BatchWaiter) -> None:
        """The caller of `send_many` knows the outcome: what was frozen only for it resumes."""
        call.ended = True
        for sender in tuple(self._waiting):
            sender.frozen_keys.call_ended(call)
            if sender.freeze is not None:
                sender.freeze.waits_for.discard(call)
                self.resume_if_known(sender)
            self._forget_if_done(sender)

    def call_interrupted(self, call: BatchWaiter) -> None:
        """The caller of `send_many` never learns the outcome: what has failed of it, or will fail, stays frozen."""
        call.interrupted = True
        for sender in tuple(self._waiting):
            for freeze in _freezes_of(sender):
                freeze.call_interrupted(call)
            self._forget_if_done(sender)

    def send_interrupted(self, waiter: SingleWaiter) -> None:
        """The same for `send`. The message may have failed already, with its error on the way to the caller."""
        waiter.interrupted = True
        if waiter.on_interrupt is not None:
            waiter.on_interrupt()

    def _forget_if_done(self, sender: Sender) -> None:
        if not any(freeze.waits_for for freeze in _freezes_of(sender)):
            del self._waiting[sender]

    def resume_if_known(self, sender: Sender) -> None:
        """Resumes a frozen queue if every caller concerned knows of it and no reply is outstanding."""
        if sender.freeze is not None and sender.freeze.is_known and sender.idle:
            sender.resume()


def _queue_is_frozen(queue: MessageQueue, why: Exception) -> LaneFrozen:
    return LaneFrozen(
        f"an earlier message to queue {queue} failed ({why}), and others would fail like it: "
        f"fix the cause, then call resume({queue.topic!r})"
    )


def _key_is_frozen(queue: MessageQueue, key: str | None, why: Exception) -> LaneFrozen:
    return LaneFrozen(
        f"an earlier message of key {key!r} to queue {queue} failed ({why}): "
        f"decide what to do about it, then call resume({queue.topic!r}, key={key!r})"
    )


def _freezes_of(sender: Sender) -> list[Freeze[BatchWaiter]]:
    return [*sender.frozen_keys.values(), *([sender.freeze] if sender.freeze is not None else [])]


def frozen_of(sender: Sender) -> list[Frozen]:
    """Everything that is frozen in one queue."""
    queue, frozen = sender.queue, list[Frozen]()
    if sender.freeze is not None:
        frozen.append(Frozen(queue.topic, None, queue, wall_time(sender.freeze.since), sender.freeze.why))
    frozen += [
        Frozen(queue.topic, key, queue, wall_time(each.since), each.why) for key, each in sender.frozen_keys.items()
    ]
    return frozen
