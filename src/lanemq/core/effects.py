"""The rule of `lanemq.effects`: whether a message may have its effect on the user's database now.

The database keeps, for each queue of a group, the highest epoch that has written to it, and for each lane the last
message that was applied. Both are read and changed in the transaction of the effect, under locks.

Invariant: a lane's messages are applied in the order of the log, each once. A delivery at or below the last applied
message is a repeat, because nothing passes a message of its lane. If the evidence contradicts that, the delivery is
refused: to skip it could lose an effect, to apply it could repeat one.

Positions are those of the broker's commit log (RocketMQ's physical offset), not queue offsets: they keep growing when
a topic is deleted and created again. A mirror's copies count by the places of their originals, so what was applied
before a move to another broker is a repeat after it.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from lanemq.model.units import Millis

HOUR_MS: Final = 3_600_000


class EffectOwner(Enum):
    """How an owner's epoch compares with the highest that the database has seen for its queue."""

    CURRENT = "current"
    NEWER = "newer"
    """The database must store the epoch first; from then on it refuses the owners before."""
    STALE = "stale"


def judge_owner(highest: int | None, epoch: int) -> EffectOwner:
    """`highest` is None if the database has no epoch of the queue."""
    if highest is None or epoch > highest:
        return EffectOwner.NEWER
    return EffectOwner.STALE if epoch < highest else EffectOwner.CURRENT


class LogPlace(NamedTuple):
    """Where a message is in the broker's log, and when it was stored there."""

    position: int
    stored_ms: int


class PendingEffect(NamedTuple):
    """One delivered message, as far as the rule needs it."""

    queue: int
    """The number of the queue in which the message was sent. A copy that a mirror made has that of its original."""
    lane: str
    place: LogPlace
    overtaken: bool = False
    """Whether an owner that does not know lanes may have run newer messages of its lane before it."""


class EffectVerdict(Enum):
    """What to do with a delivered message."""

    NEW = "apply it"
    REPEAT = "it was applied before"
    LOG_BEGAN_AGAIN = "it was stored later than the last applied message, at a lower position of the log"
    WAS_OVERTAKEN = "it comes from a parked lane, and a newer message of the lane was applied before it"


NEW, REPEAT, LOG_BEGAN_AGAIN, WAS_OVERTAKEN = EffectVerdict


def judge_effect(applied: LogPlace | None, effect: PendingEffect) -> EffectVerdict:
    """`applied` is the last applied message of the lane; None if there is none."""
    place = effect.place
    if applied is None or place.position > applied.position:
        return NEW
    if place.position == applied.position:
        return REPEAT if place.stored_ms == applied.stored_ms else LOG_BEGAN_AGAIN
    if place.stored_ms > applied.stored_ms:
        return LOG_BEGAN_AGAIN
    return WAS_OVERTAKEN if effect.overtaken else REPEAT


class HourCounter:
    """The hours that have passed for a database, counted there by the processes that use it, whatever their wall clocks
    say: a row whose time seems to be over after a clock has jumped is still needed.

    A process stores the next hour if it has known the present one for an hour of its own running time. So two processes
    do not count faster than one, and hours in which none runs do not count.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Millis]] = {}

    def next_hour(self, counter: str, stored: int, now: Millis) -> int:
        """The hour of the database with this counter, whose `stored` hour was read before `now`; store it if it is a
        later one."""
        known, since = self._known.get(counter, (None, now))
        if known == stored and now - since < HOUR_MS:
            return stored
        hour = stored + (known == stored)
        self._known[counter] = hour, now
        return hour


class LaneEffects(NamedTuple):
    """The messages of one lane in a batch, in order; `first` and `last` may be the same message."""

    queue: int
    lane: str
    first: PendingEffect
    last: PendingEffect


def by_lane(batch: Sequence[PendingEffect]) -> list[LaneEffects]:
    """Sorted by lane: transactions that lock several lanes take them in the same order, so none waits in a circle."""
    lanes: dict[tuple[int, str], LaneEffects] = {}
    for effect in batch:
        at = effect.queue, effect.lane
        known = lanes.get(at)
        lanes[at] = LaneEffects(*at, known.first if known else effect, effect)
    return sorted(lanes.values())


def leading_repeats(verdicts: Sequence[EffectVerdict]) -> int | None:
    """How many messages at the start of a batch are repeats.

    None if a repeat follows a new message: then the messages must be judged one by one.
    """
    repeats = next((at for at, verdict in enumerate(verdicts) if verdict is not REPEAT), len(verdicts))
    return None if REPEAT in verdicts[repeats:] else repeats
