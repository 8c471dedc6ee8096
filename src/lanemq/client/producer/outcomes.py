"""What senders are notified of: receipts for messages that are stored, and one error per message that failed."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeAlias, cast

from msgspec import Struct

from lanemq._fast import compiled
from lanemq.client.producer.batches import PendingMessage, delay_of
from lanemq.client.producer.waiters import FUTURE_LOCK, BatchWaiter, LoopFuture, SubmittedFuture, Waiter
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.core.sending.sent_window import Failed, SendError
from lanemq.model.errors import BrokerRefused, Dropped, LaneError, LaneFrozen, RequestTimedOut, SequenceGap
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_KNOWN_OFFSET, LANE_SKIPPED, LANE_STORED

_STORED_AS = {each.value: each for each in StoredAs}


class Stored(Struct, frozen=True):
    """Messages that were stored one behind the other."""

    messages: Sequence[PendingMessage]
    queue: MessageQueue
    first_offset: int
    stored: StoredAs
    repeat: bool

    def calls(self) -> Iterable[tuple[Callable[[int, Any], None], int, Receipt]]:
        """Settles what needs no code of the program, and returns the calls that notify the other waiters."""
        messages, waiter = self.messages, self.messages[0].waiter
        facts = self.queue, self.first_offset, self.stored, self.repeat
        if isinstance(waiter, BatchWaiter) and waiter.stored_all(messages, *facts):
            return ()
        return [(each.stored, index, receipt) for each, index, receipt in settle(messages, Receipt, *facts)]


class NotStored(Struct, frozen=True):
    """Messages that are given up. The error says whether the broker may have them."""

    messages: Sequence[PendingMessage]
    error: LaneError

    def calls(self) -> Iterable[tuple[Callable[[int, Any], None], int, LaneError]]:
        return ((message.waiter.failed, message.index, self.error) for message in self.messages)


Outcome: TypeAlias = Stored | NotStored


def notify_all(outcomes: Iterable[Outcome]) -> None:
    """Notifies every waiter. What a callback raises, such as `SystemExit`, is raised when all of them know."""
    calls = [call for outcome in outcomes for call in outcome.calls()]
    if len(calls) == 1:
        ((notify, index, fact),) = calls
        notify(index, fact)
        return
    with ExitStack() as every:
        for notify, index, fact in reversed(calls):
            every.callback(notify, index, fact)


def _numbered(messages: Sequence[PendingMessage], first_offset: int) -> Iterable[tuple[QueueOffset, PendingMessage]]:
    """Messages with their offsets. A cast for all of them: `QueueOffset(...)` would be a call per message."""
    return cast(Iterable[tuple[QueueOffset, PendingMessage]], enumerate(messages, first_offset))


@compiled
def settle(
    messages: Sequence[PendingMessage],
    make: type[Receipt],
    queue: MessageQueue,
    first_offset: int,
    stored: StoredAs,
    repeat: bool,
) -> list[tuple[Waiter, int, Receipt]]:
    """Sets the result of all futures that no thread looks at, and of those of an event loop; returns the waiters that
    still have to be notified."""
    rest: list[tuple[Waiter, int, Receipt]] = []
    with FUTURE_LOCK:
        for offset, message in _numbered(messages, first_offset):
            receipt = make(queue, offset, message.message_id, message.key, stored, repeat)
            waiter = message.waiter
            if isinstance(waiter, LoopFuture):
                waiter.stored(message.index, receipt)
            elif type(waiter) is not SubmittedFuture or not waiter.end_unseen(receipt):
                rest.append((waiter, message.index, receipt))
    return rest


def stored_outcomes(messages: Sequence[PendingMessage], queue: MessageQueue, reply: Command) -> list[Stored]:
    """The outcomes of a batch that is stored; two if a broker crash had cut the batch in two."""
    ext = reply.ext
    # A delayed message gets its place when it is due; the broker answers with its place among the delayed ones.
    offset = -1 if messages[0].alone and delay_of(messages[0]) else _number(ext, "queueOffset", -1)
    stored_as = _STORED_AS.get(ext.get(LANE_STORED, ""), StoredAs.UNKNOWN)
    if reply.code != ResponseCode.SUCCESS:
        stored_as = StoredAs.UNCONFIRMED
    skipped = _number(ext, LANE_SKIPPED, 0) if LANE_SKIPPED in ext else 0
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
    return [
        Stored((message,), stored.queue, stored.first_offset, stored.stored, stored.repeat)
        for message in stored.messages
    ]


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


def all_unknown(failed: Failed[PendingMessage]) -> Failed[PendingMessage]:
    """After a disk failure, a restarted broker may find messages that it refused."""
    return replace(failed, refused=(), unknown=(*failed.refused, *failed.unknown))


def may_be_stored(problem: LaneError) -> LaneError:
    """The same refusal, for messages that an unanswered attempt may have stored."""
    doubt = "the message may be stored or not, because not every attempt at it was answered"
    if isinstance(problem, BrokerRefused):
        return type(problem)(problem.code, f"{problem.remark or 'no reason given'}; {doubt}")
    return type(problem)(f"{problem}; {doubt}")


def forgotten(queue: MessageQueue) -> SequenceGap:
    """For a repetition to a broker that has forgotten this producer, and so cannot recognise it."""
    return SequenceGap(
        f"the broker has forgotten this producer's messages to queue {queue}, and the answer to an earlier attempt "
        f"was lost: the message may be stored or not; look for it by its id, then send it again or continue"
    )


def dropped(queue: MessageQueue, key: str) -> Dropped:
    return Dropped(f"not sent: it waited for queue {queue}, and key {key!r} was dropped")


def _queue_frozen(queue: MessageQueue, reason: LaneError | None) -> LaneFrozen:
    return LaneFrozen(f"not sent, because an earlier message to queue {queue} failed: {reason}")


def _key_frozen(queue: MessageQueue, key: str | None, reason: LaneError | None, fate: str) -> LaneFrozen:
    return LaneFrozen(f"{fate}, because an earlier message of key {key!r} to queue {queue} failed: {reason}")
