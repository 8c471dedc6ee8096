"""What a reply, or a deadline, means for the messages of a queue: stored, to be sent again, or failed.

Invariant: an error says "not stored" only if that is certain, and what a failure freezes (`freezes`) is frozen before
any sender is notified. Other keys of the queue continue.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from lanemq._fast import compiled
from lanemq.client.producer.batches import PendingMessage, delay_of, total_size
from lanemq.client.producer.freezes import Freezes
from lanemq.client.producer.lane import QueueLane, SendRequest
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.waiters import FUTURE_LOCK, BatchWaiter, SubmittedFuture, Waiter
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.clock import Clock
from lanemq.core.sending.sent_window import Failed, SendError
from lanemq.history import History
from lanemq.model.errors import (
    BrokerReadOnly,
    BrokerRefused,
    Dropped,
    LaneError,
    LaneFrozen,
    MessageRefused,
    RequestTimedOut,
    SequenceGap,
)
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.wire.codes import STORED_CODES, error_for
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_EXPECTED, LANE_KNOWN_OFFSET, LANE_SKIPPED, LANE_STORED

log = logging.getLogger(__name__)

_STORED_AS = {each.value: each for each in StoredAs}


class Replies:
    """Handles the replies and deadlines of one producer. What the producer has to do goes into `actions`."""

    def __init__(self, options: ProducerOptions, clock: Clock, unsettled: "Unsettled", freezes: Freezes) -> None:
        self._options = options
        self._clock = clock
        self._unsettled = unsettled
        self._freezes = freezes

    def replied(self, request: SendRequest, reply: Command | None, error: LaneError | None, actions: "Actions") -> None:
        """A request was answered, or failed without a reply."""
        if reply is not None and reply.code in STORED_CODES:
            self._stored(request, reply, actions)
        else:
            problem = error_for(reply.code, reply.remark) if reply is not None else error
            assert problem is not None
            self._not_stored(request, problem, reply, actions)
        self._continue(request.lane)

    def expire(self, lane: QueueLane, actions: "Actions") -> None:
        """Gives up messages whose deadline has passed."""
        failed = lane.sender.expire(now=self._clock.now())
        if failed is not None:
            lane.forget_answered()
            self._give_up(lane, failed, lane.last_error, actions)
            self._continue(lane)

    def _stored(self, request: SendRequest, reply: Command, actions: "Actions") -> None:
        lane, batch = request.lane, request.batch
        outcomes = stored_outcomes(batch.messages, lane.queue, reply)
        if not lane.acknowledged(batch):
            return
        if batch.given_up:
            outcomes = without(outcomes, batch.given_up)
        for outcome in outcomes:
            self._unsettled.stored(outcome)
            actions.outcomes.append(outcome)

    def _not_stored(self, request: SendRequest, problem: LaneError, reply: Command | None, actions: "Actions") -> None:
        lane, batch = request.lane, request.batch
        if lane.in_flight.get(batch.first_sequence) is not request:
            return  # a reply to an attempt that was given up
        lane.last_error = problem
        if isinstance(problem, BrokerRefused) and problem.stale_route:
            actions.stale_topics.append(lane.queue.topic)
        kind = _kind_of(problem, reply)
        if kind is SendError.REFUSED:
            lane.commands.pop(batch.first_sequence, None)  # if it is sent again, it is cut into other batches
        failed = lane.sender.failed(batch, kind, now=self._clock.now())
        lane.forget_answered()
        if failed is None:
            lane.has_repeats = True
            return
        if kind is SendError.FORGOTTEN:
            problem = _forgotten(lane.queue)
        elif isinstance(problem, BrokerReadOnly):
            failed = _all_unknown(failed)
        elif not failed.refused:
            problem = _may_be_stored(problem)
        self._give_up(lane, failed, problem, actions)

    def _give_up(
        self, lane: QueueLane, failed: Failed[PendingMessage], reason: LaneError | None, actions: "Actions"
    ) -> None:
        count, why = len(failed.everything), str(reason or failed.error.value)  # the error itself would keep its frames
        log.warning("queue %s: messages not stored: %d: %s", lane.queue, count, why)
        self._unsettled.given_up(lane.queue, failed)
        for outcome in failed_outcomes(lane.queue, failed, reason, self._options.delivery_timeout):
            self._freezes.failed(lane, outcome.messages, outcome.error)
            actions.outcomes.append(outcome)
        lane.recount_waiting()

    def _continue(self, lane: QueueLane) -> None:
        """After a failure, sends other keys under a new epoch, or resumes the queue if every caller knows of it."""
        if lane.sender.must_renew:
            lane.recovering += lane.sender.renew()
            lane.forget_requests()
            lane.recount_waiting()
            log.info("queue %s: %d messages are sent again in a new epoch", lane.queue, lane.recovering)
        if lane.freeze is not None:
            self._freezes.resume_if_known(lane)


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


@dataclass(slots=True)
class Actions:
    """What a producer has to do for its engine: write requests in this order, then notify waiters in this order."""

    requests: list[SendRequest] = field(default_factory=list)
    outcomes: "list[Outcome]" = field(default_factory=list)
    stale_topics: list[str] = field(default_factory=list)
    hang_up: list[str] = field(default_factory=list)
    """Brokers that do not reply. Closing the connection sends everything again over a new one."""


NO_ACTIONS = Actions()


# outcomes


@dataclass(frozen=True, slots=True)
class Stored:
    """Messages that were stored one behind the other."""

    messages: Sequence[PendingMessage]
    queue: MessageQueue
    first_offset: int
    stored: StoredAs
    repeat: bool

    def notify(self) -> None:
        messages, waiter = self.messages, self.messages[0].waiter
        facts = Receipt, self.queue, self.first_offset, self.stored, self.repeat
        if isinstance(waiter, BatchWaiter):
            receipts, indexes, shared = receipts_of(messages, *facts)
            if shared:
                waiter.stored_all(indexes, receipts)
                return
        for each, index, receipt in settle(messages, *facts):
            each.stored(index, receipt)


@dataclass(frozen=True, slots=True)
class NotStored:
    """Messages that are given up. The error says whether the broker may have them."""

    messages: Sequence[PendingMessage]
    error: LaneError

    def notify(self) -> None:
        for message in self.messages:
            message.waiter.failed(message.index, self.error)


Outcome: TypeAlias = Stored | NotStored


def _numbered(messages: Sequence[PendingMessage], first_offset: int) -> Iterable[tuple[QueueOffset, PendingMessage]]:
    """Messages with their offsets. A cast for all of them: `QueueOffset(...)` would be a call per message."""
    return cast(Iterable[tuple[QueueOffset, PendingMessage]], enumerate(messages, first_offset))


@compiled
def receipts_of(
    messages: Sequence[PendingMessage],
    make: type[Receipt],
    queue: MessageQueue,
    first_offset: int,
    stored: StoredAs,
    repeat: bool,
) -> tuple[list[Receipt], list[int], bool]:
    """The receipts of messages stored one behind the other, their indexes, and whether they share one waiter."""
    receipts = [
        make(queue, offset, message.message_id, message.key, stored, repeat)
        for offset, message in _numbered(messages, first_offset)
    ]
    waiter = messages[0].waiter
    return receipts, [message.index for message in messages], all([message.waiter is waiter for message in messages])


@compiled
def settle(
    messages: Sequence[PendingMessage],
    make: type[Receipt],
    queue: MessageQueue,
    first_offset: int,
    stored: StoredAs,
    repeat: bool,
) -> list[tuple[Waiter, int, Receipt]]:
    """Sets the result of all futures that no thread looks at; returns the waiters that still have to be notified."""
    rest: list[tuple[Waiter, int, Receipt]] = []
    with FUTURE_LOCK:
        for offset, message in _numbered(messages, first_offset):
            receipt = make(queue, offset, message.message_id, message.key, stored, repeat)
            waiter = message.waiter
            if type(waiter) is not SubmittedFuture or not waiter.end_unseen(receipt):
                rest.append((waiter, message.index, receipt))
    return rest


def stored_outcomes(messages: Sequence[PendingMessage], queue: MessageQueue, reply: Command) -> list[Stored]:
    """The outcomes of a batch that is stored; two if a broker crash had cut the batch in two."""
    ext = reply.ext
    # A delayed message gets its place when it is due; the broker answers with its place among the delayed ones.
    offset = -1 if delay_of(messages[0]) else _number(ext, "queueOffset", -1)
    stored_as = _STORED_AS.get(ext.get(LANE_STORED, ""), StoredAs.UNKNOWN)
    skipped = _number(ext, LANE_SKIPPED, 0)
    if not 0 < skipped < len(messages):
        return _placed(Stored(messages, queue, offset, stored_as, ext.get(LANE_DUPLICATE) == "true"))
    known = _number(ext, LANE_KNOWN_OFFSET, -1)
    return [
        *_placed(Stored(messages[:skipped], queue, known, stored_as, True)),
        *_placed(Stored(messages[skipped:], queue, offset, stored_as, False)),
    ]


def _number(ext: Mapping[str, str], name: str, default: int) -> int:
    """The number, or `default` if it cannot be read: the message is stored all the same, as the code says."""
    try:
        number = int(ext.get(name, default))
    except ValueError:
        return default
    return number if 0 <= number < 1 << 62 else default


def _placed(stored: Stored) -> list[Stored]:
    """If the broker no longer knows the offsets, one outcome per message: none is known to follow another."""
    if stored.first_offset >= 0:
        return [stored]
    return [replace(stored, messages=(message,)) for message in stored.messages]


def without(outcomes: Sequence[Stored], given_up: Collection[int]) -> list[Stored]:
    """The outcomes without messages that were given up before the reply came: their waiters were notified then."""
    left: list[Stored] = []
    index = 0
    for outcome in outcomes:
        for place, message in enumerate(outcome.messages):
            offset = outcome.first_offset + place if outcome.first_offset >= 0 else -1
            if index not in given_up:
                left.append(Stored((message,), outcome.queue, offset, outcome.stored, outcome.repeat))
            index += 1
    return left


def failed_outcomes(
    queue: MessageQueue, failed: Failed[PendingMessage], reason: LaneError | None, seconds: float
) -> list[NotStored]:
    """The error of each message, root causes first. `reason` is the last error seen, if any."""
    if failed.error is SendError.TOO_LATE:
        why = f"; the last problem was: {reason}" if reason is not None else ""
        late = f"no answer for queue {queue} within {seconds:g} s"
        request = "counted from the oldest message of its request"
        unknown: LaneError = RequestTimedOut(f"{late}, {request}: the message may be stored or not{why}")
        unsent: LaneError = RequestTimedOut(f"{late}: the message was not sent{why}")
        causes = ((failed.unknown, unknown), (failed.unsent, unsent))
    else:
        problem = reason or _queue_frozen(queue, None)
        # If the first of them is in doubt, that is the reason itself; otherwise they were sent behind a refused one.
        behind = _queue_frozen(queue, reason) if failed.refused else problem
        causes = ((failed.refused, problem), (failed.unknown, behind))
    roots = [NotStored(messages, error) for messages, error in causes if messages]
    if failed.error in (SendError.FATAL, SendError.GAP):
        return [*roots, NotStored(failed.blocked, _queue_frozen(queue, reason))] if failed.blocked else roots
    behind_doubt = () if failed.refused else failed.behind
    certain = (*failed.behind, *failed.blocked) if failed.refused else failed.blocked
    return [
        *roots,
        *_behind_their_keys(queue, behind_doubt, roots, "it may be stored or not"),
        *_behind_their_keys(queue, certain, roots, "not stored"),
    ]


def _behind_their_keys(
    queue: MessageQueue, messages: Sequence[PendingMessage], roots: Sequence[NotStored], fate: str
) -> list[NotStored]:
    reasons = {message.key: outcome.error for outcome in reversed(roots) for message in outcome.messages}
    by_key: dict[str | None, list[PendingMessage]] = {}
    for message in messages:
        by_key.setdefault(message.key, []).append(message)
    return [NotStored(of_key, _key_frozen(queue, key, reasons.get(key), fate)) for key, of_key in by_key.items()]


def _all_unknown(failed: Failed[PendingMessage]) -> Failed[PendingMessage]:
    """After a disk failure, a restarted broker may find messages that it refused."""
    return replace(failed, refused=(), unknown=(*failed.refused, *failed.unknown))


def _may_be_stored(problem: LaneError) -> LaneError:
    """The same refusal, for messages that an unanswered attempt may have stored."""
    doubt = "the message may be stored or not, because not every attempt at it was answered"
    if isinstance(problem, BrokerRefused):
        return type(problem)(problem.code, f"{problem.remark or 'no reason given'}; {doubt}")
    return type(problem)(f"{problem}; {doubt}")


def _forgotten(queue: MessageQueue) -> SequenceGap:
    """For a repetition to a broker that has forgotten this producer, and so cannot recognise it."""
    return SequenceGap(
        f"the broker has forgotten this producer's messages to queue {queue}, and the answer to an earlier attempt "
        f"was lost: the message may be stored or not; look for it by its id, then send it again or go on"
    )


def dropped(queue: MessageQueue, key: str) -> Dropped:
    return Dropped(f"not sent: it waited for queue {queue}, and key {key!r} was dropped")


def _queue_frozen(queue: MessageQueue, reason: LaneError | None) -> LaneFrozen:
    return LaneFrozen(f"not sent, because an earlier message to queue {queue} failed: {reason}")


def _key_frozen(queue: MessageQueue, key: str | None, reason: LaneError | None, fate: str) -> LaneFrozen:
    return LaneFrozen(f"{fate}, because an earlier message of key {key!r} to queue {queue} failed: {reason}")


# accounting


class Unsettled:
    """The messages that a producer has accepted and not settled: their bytes, and their lines in the history.

    Every message is added once when it is accepted, and removed once when it is stored, refused, given up or dropped.
    Called under the lock that decides the order of a lane, so that history and lane agree.
    """

    def __init__(self, history: History) -> None:
        self._records = history.on
        self._history = history
        self.bytes = 0

    def accepted(self, queue: MessageQueue, messages: Sequence[PendingMessage], size: int) -> None:
        self.bytes += size
        if self._records:
            for message in messages:
                key, delay = message.key or "", delay_of(message)
                self._history.send(queue.topic, key, message.message_id, delay=delay)

    def stored(self, outcome: Stored) -> None:
        """Records offset -1 for a message whose place is not known; it comes alone."""
        self.bytes -= total_size(outcome.messages)
        if self._records:
            queue = outcome.queue
            for offset, message in enumerate(outcome.messages, outcome.first_offset):
                self._history.acked(queue.topic, message.key or "", message.message_id, queue.queue_id, offset)

    def given_up(self, queue: MessageQueue, failed: Failed[PendingMessage]) -> None:
        self.bytes -= total_size(failed.everything)
        if self._records:
            for message in (*failed.unknown, *failed.behind):
                self._history.send_unknown(queue.topic, message.key or "", message.message_id)
            self._failed(queue, (*failed.refused, *failed.unsent, *failed.blocked))

    def dropped(self, queue: MessageQueue, messages: Sequence[PendingMessage]) -> None:
        self.bytes -= total_size(messages)
        if self._records:
            self._failed(queue, messages)

    def _failed(self, queue: MessageQueue, messages: Iterable[PendingMessage]) -> None:
        for message in messages:
            self._history.send_failed(queue.topic, message.key or "", message.message_id)
