"""Since when a lane is in trouble, and with what: what a person asks first, and what no count of attempts says.

A lane is in trouble from its first failure until a turn of it goes well. Lanes without trouble cost nothing here.
"""

from dataclasses import dataclass
from typing import NamedTuple

from lanemq.client.message import Message
from lanemq.core.consuming.lane_view import LaneView
from lanemq.core.consuming.runs import LaneRun, Why
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

REASON_CHARS = 500
"""Of an error's text; some carry whole documents."""


class Failing(NamedTuple):
    """`offset` is the message that failed."""

    since: Millis
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """A lane at one moment of the member's clock; `began` is the begin of the turn that runs."""

    view: LaneView
    now: Millis
    began: Millis | None
    trouble: Failing | None


_GOES_ON = (Why.HELD, Why.GIVE, Why.ROLLED_BACK, Why.PARKED)


def note_failing(
    troubles: dict[tuple[MessageQueue, str | None], Failing], run: LaneRun[Message], why: Why, reason: str, now: Millis
) -> None:
    """Called for turns that failed, and for every turn while there is trouble somewhere."""
    place = run.queue, run.key
    if why in _GOES_ON:
        known = troubles.get(place)
        offset = run.messages[0].queue_offset
        troubles[place] = Failing(known.since if known else now, offset, reason[:REASON_CHARS])
    elif why is not Why.STOPPED:
        troubles.pop(place, None)
