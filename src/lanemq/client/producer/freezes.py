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
from typing import NamedTuple, Protocol

from lanemq.client.producer.batches import PendingMessage
from lanemq.client.producer.waiters import BatchWaiter, SingleWaiter
from lanemq.clock import Clock, wall_time
from lanemq.core.sending.frozen_keys import Freeze, FrozenKeys
from lanemq.core.sending.send_lane import SendLane
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


class FreezableLane(Protocol):
    """What this module needs to know of a queue's lane (`engine.QueueLane`)."""

    queue: MessageQueue
    sender: SendLane[PendingMessage]
    freeze: Freeze[BatchWaiter] | None
    frozen_keys: FrozenKeys[BatchWaiter]

    def resume(self) -> None: ...


class Freezes:
    """The freezes of one producer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Lanes with a freeze that a running call of `send_many` will lift.
        self._waiting: dict[FreezableLane, None] = {}

    def failed(self, lane: FreezableLane, messages: Sequence[PendingMessage], why: Exception) -> None:
        """Freezes what these failed messages require. Called before their senders are notified."""
        if lane.sender.frozen is not None and lane.freeze is None:
            lane.freeze = Freeze(self._clock.wall(), why)
        for message in messages:
            self._freeze_for(lane, message, why)

    def check(self, lane: FreezableLane, messages: Sequence[PendingMessage]) -> None:
        """Raises `LaneFrozen` if any of the messages may not be sent; then none of them is."""
        queue, frozen = lane.queue, lane.freeze
        if frozen is not None:
            for message in messages:
                self._freeze_for(lane, message, frozen.why)
            raise LaneFrozen(
                f"an earlier message to queue {queue} failed ({frozen.why}), and others would fail like it: "
                f"fix the cause, then call resume({queue.topic!r})"
            )
        refused = [message for message in messages if message.key in lane.frozen_keys]
        for message in refused:
            assert message.key is not None
            self._freeze_for(lane, message, lane.frozen_keys[message.key].why)
        if refused:
            key = refused[0].key or ""
            raise LaneFrozen(
                f"an earlier message of key {key!r} to queue {queue} failed ({lane.frozen_keys[key].why}): "
                f"decide what to do about it, then call resume({queue.topic!r}, key={key!r})"
            )

    def _freeze_for(self, lane: FreezableLane, message: PendingMessage, why: Exception) -> None:
        waiter, key = message.waiter, message.key
        if key is None:
            return
        if isinstance(waiter, BatchWaiter) and not waiter.interrupted:
            if not waiter.ended:
                self._waiting[lane] = None
                self._freeze(lane, key, why, waiter)
        elif isinstance(waiter, SingleWaiter) and not waiter.interrupted:
            waiter.on_interrupt = partial(self._freeze, lane, key, why, None)
        elif isinstance(waiter, SingleWaiter) or not message.sender_waits:
            self._freeze(lane, key, why, None)

    def _freeze(self, lane: FreezableLane, key: str, why: Exception, call: BatchWaiter | None) -> None:
        if lane.freeze is not None:
            lane.freeze.add(call)
        else:
            lane.frozen_keys.freeze(key, why, call, wall=self._clock.wall())

    def call_ended(self, call: BatchWaiter) -> None:
        """The caller of `send_many` knows the outcome: what was frozen only for it resumes."""
        call.ended = True
        for lane in tuple(self._waiting):
            lane.frozen_keys.call_ended(call)
            if lane.freeze is not None:
                lane.freeze.waits_for.discard(call)
                self.resume_if_known(lane)
            self._forget_if_done(lane)

    def call_interrupted(self, call: BatchWaiter) -> None:
        """The caller of `send_many` never learns the outcome: what has failed of it, or will fail, stays frozen."""
        call.interrupted = True
        for lane in tuple(self._waiting):
            for freeze in _freezes_of(lane):
                freeze.call_interrupted(call)
            self._forget_if_done(lane)

    def send_interrupted(self, waiter: SingleWaiter) -> None:
        """The same for `send`. The message may have failed already, with its error on the way to the caller."""
        waiter.interrupted = True
        if waiter.on_interrupt is not None:
            waiter.on_interrupt()

    def _forget_if_done(self, lane: FreezableLane) -> None:
        if not any(freeze.waits_for for freeze in _freezes_of(lane)):
            del self._waiting[lane]

    def resume_if_known(self, lane: FreezableLane) -> None:
        """Resumes a frozen queue if every caller concerned knows of it and no reply is outstanding."""
        if lane.freeze is not None and lane.freeze.is_known and lane.sender.idle:
            self.resume_queue(lane)

    def resume_queue(self, lane: FreezableLane) -> bool:
        """Resumes the queue under a new epoch; false if it was not frozen as a whole."""
        if lane.sender.frozen is None:
            return False
        lane.resume()
        return True

    def resume_key(self, lane: FreezableLane, key: str | None) -> bool:
        """Resumes one key of the queue, or all of them; false if none was frozen."""
        was_frozen = bool(lane.frozen_keys) if key is None else key in lane.frozen_keys
        if key is None:
            lane.frozen_keys.clear()
        else:
            lane.frozen_keys.pop(key, None)
        return was_frozen


def _freezes_of(lane: FreezableLane) -> list[Freeze[BatchWaiter]]:
    return [*lane.frozen_keys.values(), *([lane.freeze] if lane.freeze is not None else [])]


def frozen_of(lane: FreezableLane) -> list[Frozen]:
    """Everything that is frozen in one queue."""
    queue, found = lane.queue, list[Frozen]()
    if lane.freeze is not None:
        found.append(Frozen(queue.topic, None, queue, wall_time(lane.freeze.since), lane.freeze.why))
    found += [
        Frozen(queue.topic, key, queue, wall_time(each.since), each.why) for key, each in lane.frozen_keys.items()
    ]
    return found
