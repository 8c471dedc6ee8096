"""What became of parcels, and the words in which their senders are told."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from lanemq._fast import compiled
from lanemq.client.producer.requests import Parcel
from lanemq.client.producer.waiters import FEW, Crowd, SubmittedFuture, Ticket
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.core.sending.batch import Failed, SendError
from lanemq.model.errors import BrokerRefused, Dropped, LaneError, LaneFrozen, RequestTimedOut, SequenceGap
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_KNOWN_OFFSET, LANE_SKIPPED, LANE_STORED

_STORED_AS = {each.value: each for each in StoredAs}


@dataclass(frozen=True, slots=True)
class Stored:
    """These parcels lie one behind the other in the queue."""

    parcels: Sequence[Parcel]
    queue: MessageQueue
    first_offset: int
    stored: StoredAs
    repeat: bool

    def tell(self) -> None:
        parcels, crowd = self.parcels, self.parcels[0].ticket
        facts = Receipt, self.queue, self.first_offset, self.stored, self.repeat
        if isinstance(crowd, Crowd):
            receipts, indexes, shared = receipts_of(parcels, *facts)
            if shared:
                crowd.stored_all(indexes, receipts)
                return
        for ticket, index, receipt in settle(parcels, *facts):
            ticket.stored(index, receipt)


def _numbered(parcels: Sequence[Parcel], first_offset: int) -> Iterable[tuple[QueueOffset, Parcel]]:
    """With their offsets. Said once for all of them: `QueueOffset(...)` is a call, for every message."""
    return cast(Iterable[tuple[QueueOffset, Parcel]], enumerate(parcels, first_offset))


@compiled
def receipts_of(
    parcels: Sequence[Parcel],
    make: type[Receipt],
    queue: MessageQueue,
    first_offset: int,
    stored: StoredAs,
    repeat: bool,
) -> tuple[list[Receipt], list[int], bool]:
    """The receipts of parcels that lie one behind the other, their indexes, and whether they share one ticket."""
    receipts = [
        make(queue, offset, parcel.message_id, parcel.key, stored, repeat)
        for offset, parcel in _numbered(parcels, first_offset)
    ]
    ticket = parcels[0].ticket
    return receipts, [parcel.index for parcel in parcels], all([parcel.ticket is ticket for parcel in parcels])


@compiled
def settle(
    parcels: Sequence[Parcel],
    make: type[Receipt],
    queue: MessageQueue,
    first_offset: int,
    stored: StoredAs,
    repeat: bool,
) -> list[tuple[Ticket, int, Receipt]]:
    """Ends the futures at which nobody looks, in one go; who is still to be told, and what."""
    rest: list[tuple[Ticket, int, Receipt]] = []
    with FEW:
        for offset, parcel in _numbered(parcels, first_offset):
            receipt = make(queue, offset, parcel.message_id, parcel.key, stored, repeat)
            ticket = parcel.ticket
            if type(ticket) is not SubmittedFuture or not ticket.end_unseen(receipt):
                rest.append((ticket, parcel.index, receipt))
    return rest


@dataclass(frozen=True, slots=True)
class NotStored:
    """Nobody will hear of these parcels again; whether the broker has them is said in the error."""

    parcels: Sequence[Parcel]
    error: LaneError

    def tell(self) -> None:
        for parcel in self.parcels:
            parcel.ticket.failed(parcel.index, self.error)


Outcome: TypeAlias = Stored | NotStored


def stored_outcomes(parcels: Sequence[Parcel], queue: MessageQueue, reply: Command) -> list[Stored]:
    """The broker's answer to a send that is in its log; two when a crash had cut the batch in two."""
    ext = reply.ext
    offset = _number(ext, "queueOffset", -1)
    safety = _STORED_AS.get(ext.get(LANE_STORED, ""), StoredAs.UNKNOWN)
    skipped = _number(ext, LANE_SKIPPED, 0)
    if not 0 < skipped < len(parcels):
        return _placed(Stored(parcels, queue, offset, safety, ext.get(LANE_DUPLICATE) == "true"))
    known = _number(ext, LANE_KNOWN_OFFSET, -1)
    return [
        *_placed(Stored(parcels[:skipped], queue, known, safety, True)),
        *_placed(Stored(parcels[skipped:], queue, offset, safety, False)),
    ]


def _number(ext: Mapping[str, str], name: str, otherwise: int) -> int:
    """What cannot be read is not known. The message is stored all the same: the answer's code says that."""
    try:
        number = int(ext.get(name, otherwise))
    except ValueError:
        return otherwise
    return number if 0 <= number < 1 << 62 else otherwise


def _placed(stored: Stored) -> list[Stored]:
    """Where the broker does not know the place any more, no parcel has one: none lies "behind" another."""
    if stored.first_offset >= 0:
        return [stored]
    return [replace(stored, parcels=(parcel,)) for parcel in stored.parcels]


def without(outcomes: Sequence[Stored], given_up: Collection[int]) -> list[Stored]:
    """The same, but nobody hears again of the messages that were given up before the answer came."""
    left: list[Stored] = []
    index = 0
    for outcome in outcomes:
        for place, parcel in enumerate(outcome.parcels):
            offset = outcome.first_offset + place if outcome.first_offset >= 0 else -1
            if index not in given_up:
                left.append(Stored((parcel,), outcome.queue, offset, outcome.stored, outcome.repeat))
            index += 1
    return left


def failed_outcomes(
    queue: MessageQueue, failed: Failed[Parcel], reason: LaneError | None, seconds: float
) -> list[NotStored]:
    """What each parcel's sender is told, the root of it first. `reason` is the last error heard of, if any."""
    if failed.error is SendError.TOO_LATE:
        why = f"; the last problem was: {reason}" if reason is not None else ""
        late = f"no answer for queue {queue} within {seconds:g} s"
        request = "counted from the oldest message of its request"
        unknown: LaneError = RequestTimedOut(f"{late}, {request}: the message may be stored or not{why}")
        unsent: LaneError = RequestTimedOut(f"{late}: the message was not sent{why}")
        roots = ((failed.unknown, unknown), (failed.unsent, unsent))
    else:
        problem = reason or _queue_frozen(queue, None)
        # Doubt about the first of them is the reason itself; otherwise they were sent behind a refused one.
        behind = _queue_frozen(queue, reason) if failed.refused else problem
        roots = ((failed.refused, problem), (failed.unknown, behind))
    told = [NotStored(parcels, error) for parcels, error in roots if parcels]
    if failed.error in (SendError.FATAL, SendError.GAP):
        return [*told, NotStored(failed.blocked, _queue_frozen(queue, reason))] if failed.blocked else told
    behind_doubt = () if failed.refused else failed.behind
    certain = (*failed.behind, *failed.blocked) if failed.refused else failed.blocked
    return [
        *told,
        *_behind_their_keys(queue, behind_doubt, told, "it may be stored or not"),
        *_behind_their_keys(queue, certain, told, "not stored"),
    ]


def _behind_their_keys(
    queue: MessageQueue, parcels: Sequence[Parcel], roots: Sequence[NotStored], fate: str
) -> list[NotStored]:
    reasons = {parcel.key: outcome.error for outcome in reversed(roots) for parcel in outcome.parcels}
    by_key: dict[str | None, list[Parcel]] = {}
    for parcel in parcels:
        by_key.setdefault(parcel.key, []).append(parcel)
    return [NotStored(of_key, _key_frozen(queue, key, reasons.get(key), fate)) for key, of_key in by_key.items()]


def doubtful(failed: Failed[Parcel]) -> Failed[Parcel]:
    """The disk failed under it, and a restart may find it."""
    return replace(failed, refused=(), unknown=(*failed.refused, *failed.unknown))


def in_doubt(problem: LaneError) -> LaneError:
    """The same refusal, told of messages that an attempt without an answer may have stored."""
    doubt = "the message may be stored or not, because not every attempt at it was answered"
    if isinstance(problem, BrokerRefused):
        return type(problem)(problem.code, f"{problem.remark or 'no reason given'}; {doubt}")
    return type(problem)(f"{problem}; {doubt}")


def forgotten(queue: MessageQueue) -> SequenceGap:
    """Sent again to a broker that has forgotten this producer: it cannot tell a repeat any more."""
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
