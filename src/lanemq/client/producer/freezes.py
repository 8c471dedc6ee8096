"""Which keys and queues of a producer are closed after a failure, and when they open again.

The rule guarded here: what is sent after a failure does not pass the failed message behind its sender's back. Two
kinds of failure are told apart. The fault of a message (the broker calls it illegal), a time-out and an answer that
was lost for good close the keys concerned; other keys of the queue go on. Everything else (no permission, the topic
is gone, the disk fails, the producer was replaced) would meet any message, and closes the queue.

If everybody concerned is told before they can send anything else (they wait, or the messages have no key), nothing
is closed; a call that sends many is told when it ends, and until then its keys are. If a call ends before its messages
are settled (its source raised, it was interrupted or cancelled), its caller is told nothing of them, then or later.
That and the rest waits for a person.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from lanemq.client.producer.outcomes import NotStored
from lanemq.client.producer.requests import Parcel
from lanemq.client.producer.waiters import Crowd, Sole
from lanemq.client.producer.work import EngineLane
from lanemq.clock import Clock
from lanemq.core.sending.frozen_keys import Freeze
from lanemq.model.errors import LaneFrozen
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis


class Frozen(NamedTuple):
    """A key that may not be sent to its queue; without a key, the whole queue."""

    topic: str
    key: str | None
    queue: MessageQueue
    since: Millis
    """Wall time, in milliseconds."""
    why: Exception
    """What became of the first message that failed."""


class Freezes:
    """All of one producer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Lanes that wait for the end of a call.
        self._held: dict[EngineLane, None] = {}

    def given_up(self, lane: EngineLane, outcomes: Iterable[NotStored]) -> None:
        """These messages failed, the root of it first."""
        for outcome in outcomes:
            if lane.sender.frozen is not None and lane.freeze is None:
                lane.freeze = Freeze(self._clock.wall(), outcome.error)
            for parcel in outcome.parcels:
                self._concern(lane, parcel, outcome.error)

    def _concern(self, lane: EngineLane, parcel: Parcel, why: Exception) -> None:
        ticket, key = parcel.ticket, parcel.key
        if key is None:
            return
        if isinstance(ticket, Crowd) and not ticket.left:
            if not ticket.over:
                self._held[lane] = None
                self._close(lane, key, why, ticket)
        elif isinstance(ticket, Sole) and not ticket.left:
            ticket.if_unheard = partial(self._close, lane, key, why, None)
        elif isinstance(ticket, Sole) or not parcel.told:
            self._close(lane, key, why, None)

    def _close(self, lane: EngineLane, key: str, why: Exception, call: Crowd | None) -> None:
        if lane.freeze is not None:
            lane.freeze.concern(call)
        else:
            lane.frozen_keys.freeze(key, why, call, wall=self._clock.wall())

    def check_open(self, lane: EngineLane, parcels: Sequence[Parcel]) -> None:
        """Raises `LaneFrozen` if one of them may not be sent; then none of them is."""
        queue, frozen = lane.queue, lane.freeze
        if frozen is not None:
            for parcel in parcels:
                self._concern(lane, parcel, frozen.why)
            raise LaneFrozen(
                f"an earlier message to queue {queue} failed ({frozen.why}), and others would fail like it: "
                f"see to the cause, then call resume({queue.topic!r})"
            )
        closed = [parcel for parcel in parcels if parcel.key in lane.frozen_keys]
        for parcel in closed:
            assert parcel.key is not None
            self._concern(lane, parcel, lane.frozen_keys[parcel.key].why)
        if closed:
            key = closed[0].key or ""
            raise LaneFrozen(
                f"an earlier message of key {key!r} to queue {queue} failed ({lane.frozen_keys[key].why}): "
                f"decide what to do about it, then call resume({queue.topic!r}, key={key!r})"
            )

    def call_ended(self, call: Crowd) -> None:
        """Its caller knows what became of the messages now; what was closed for that opens again."""
        call.over = True
        for lane in tuple(self._held):
            lane.frozen_keys.told(call)
            if lane.freeze is not None:
                lane.freeze.waits_for.discard(call)
                self.reopen(lane)
            if not _waits(lane):
                del self._held[lane]

    def call_left(self, call: Crowd) -> None:
        """Its caller hears nothing of its messages: what failed of them, or will fail, waits for a person."""
        call.left = True
        for lane in tuple(self._held):
            for freeze in _all_of(lane):
                freeze.leave(call)
            if not _waits(lane):
                del self._held[lane]

    def send_left(self, ticket: Sole) -> None:
        """The same of a call that sends one. It may have failed already, and the news of it be on the way."""
        ticket.left = True
        if ticket.if_unheard is not None:
            ticket.if_unheard()

    def reopen(self, lane: EngineLane) -> None:
        """Opens a queue that is frozen as a whole, if everybody knows of it and nothing is unanswered."""
        if lane.freeze is not None and lane.freeze.everybody_knows and lane.sender.idle:
            self.open_queue(lane)

    def open_queue(self, lane: EngineLane) -> bool:
        """Under a new epoch; false if it was not frozen as a whole."""
        if lane.sender.frozen is None:
            return False
        lane.sender.resume()
        lane.freeze = None
        lane.forget_requests()
        lane.repeats = False
        lane.last_error = None
        return True

    def open_key(self, lane: EngineLane, key: str | None) -> bool:
        """One key of the queue, or all of them; false if none was frozen."""
        was_frozen = bool(lane.frozen_keys) if key is None else key in lane.frozen_keys
        if key is None:
            lane.frozen_keys.clear()
        else:
            lane.frozen_keys.open(key)
        return was_frozen


def _all_of(lane: EngineLane) -> list[Freeze[Crowd]]:
    return [*lane.frozen_keys.values(), *([lane.freeze] if lane.freeze is not None else [])]


def _waits(lane: EngineLane) -> bool:
    return any(freeze.waits_for for freeze in _all_of(lane))


def frozen_of(lane: EngineLane) -> list[Frozen]:
    """What is closed in one queue."""
    queue, found = lane.queue, list[Frozen]()
    if lane.freeze is not None:
        found.append(Frozen(queue.topic, None, queue, lane.freeze.since, lane.freeze.why))
    found += [Frozen(queue.topic, key, queue, each.since, each.why) for key, each in lane.frozen_keys.items()]
    return found
