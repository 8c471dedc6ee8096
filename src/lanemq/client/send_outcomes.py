"""What became of parcels, and the words in which their senders are told."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lanemq._fast import compiled
from lanemq.client.receipt import Receipt, StoredAs
from lanemq.client.send_requests import Parcel
from lanemq.client.send_tickets import Crowd
from lanemq.core.send_lane import Failed, SendError
from lanemq.model.errors import LaneError, LaneFrozen, RequestTimedOut, SequenceGap
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
        parcels = self.parcels
        crowd = parcels[0].ticket
        receipts, indexes, shared = receipts_of(
            parcels, Receipt, self.queue, self.first_offset, self.stored, self.repeat
        )
        if shared and isinstance(crowd, Crowd):
            crowd.stored_all(indexes, receipts)
            return
        for parcel, receipt in zip(parcels, receipts, strict=True):
            parcel.ticket.stored(parcel.index, receipt)


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
        make(queue, QueueOffset(offset), parcel.message_id, parcel.key, stored, repeat)
        for offset, parcel in enumerate(parcels, first_offset)
    ]
    ticket = parcels[0].ticket
    return receipts, [parcel.index for parcel in parcels], all([parcel.ticket is ticket for parcel in parcels])


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
    offset = int(ext.get("queueOffset", "-1"))
    safety = _STORED_AS.get(ext.get(LANE_STORED, ""), StoredAs.UNKNOWN)
    skipped = int(ext.get(LANE_SKIPPED, "0"))
    if not skipped:
        return [Stored(parcels, queue, offset, safety, ext.get(LANE_DUPLICATE) == "true")]
    known = int(ext.get(LANE_KNOWN_OFFSET, "-1"))
    return [
        Stored(parcels[:skipped], queue, known, safety, True),
        Stored(parcels[skipped:], queue, offset, safety, False),
    ]


def failed_outcomes(
    queue: MessageQueue, failed: Failed[Parcel], reason: LaneError | None, seconds: float
) -> list[NotStored]:
    """What each parcel's sender is told when a lane gives up. `reason` is the last error heard of, if any."""
    outcomes = []
    if failed.error is SendError.TOO_LATE:
        why = f"; the last problem was: {reason}" if reason is not None else ""
        late = f"no answer for queue {queue} within {seconds:g} s"
        unknown: LaneError = RequestTimedOut(f"{late}: the message may be stored or not{why}")
        unsent: LaneError = RequestTimedOut(f"{late}: the message was not sent{why}")
        blocked = _frozen(queue, unknown) if failed.unknown else unsent
    else:
        blocked = _frozen(queue, reason)
        # Doubt about the first of them is the reason itself; otherwise they were sent behind a refused one.
        unknown = blocked if failed.refused or reason is None else reason
    if failed.refused:
        outcomes.append(NotStored(failed.refused, reason or _frozen(queue, None)))
    if failed.unknown:
        outcomes.append(NotStored(failed.unknown, unknown))
    if failed.blocked:
        outcomes.append(NotStored(failed.blocked, blocked))
    return outcomes


def doubtful(failed: Failed[Parcel]) -> Failed[Parcel]:
    """Refused now, but an attempt before may have been stored; or the disk failed under it, and a restart finds it."""
    return Failed(failed.error, unknown=(*failed.refused, *failed.unknown), blocked=failed.blocked)


def forgotten(queue: MessageQueue) -> SequenceGap:
    """Sent again to a broker that has forgotten this producer: it cannot tell a repeat any more."""
    return SequenceGap(
        f"the broker has forgotten this producer's messages to queue {queue}, and the answer to an earlier attempt "
        f"was lost: the message may be stored or not; look for it by its id, then send it again or go on"
    )


def _frozen(queue: MessageQueue, reason: LaneError | None) -> LaneFrozen:
    return LaneFrozen(f"not sent, because an earlier message to queue {queue} failed: {reason}")
