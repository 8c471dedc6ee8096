"""How many lanes one answer to a client holds.

Most clients process the messages of an answer one after the other, so a slow key delays the others of its answer. One
lane per answer would cost a call per message. So an answer holds as many lanes as the client finishes in about 5 ms,
by what it took lately: one at the start and after a failure, 32 at most. A lane that has failed travels alone.
"""

from dataclasses import dataclass

from lanemq.core.consuming.runs import LaneRun, M
from lanemq.model.units import Millis

ANSWER_MS = 5
"""How long a client may need for an answer. Longer: fewer calls, and a quick key waits longer for a slow one."""
MOST_LANES = 32
"""RocketMQ's own batch."""
MOST_HELD = 64
"""Messages that a client may hold at once. Clients cache up to 1024; what one caches no other can process."""
_WEIGHT = 0.25
"""Weight of the newest observation."""


@dataclass(slots=True)
class Packing:
    """What is known of one client's speed."""

    alone: bool = False
    """It always gets one message per answer: RocketMQ's C++ client repeats failed messages of larger ones for ever."""
    per_message_ms: float | None = None
    _lanes: int = 1

    def lanes(self, held: int) -> int:
        """How many lanes the next answer may hold, if the client holds so many messages; 0: it must wait."""
        room = max(0, MOST_HELD - held)
        return min(1 if self.alone else self._lanes, room)

    def finished(self, began: Millis, now: Millis, ahead: int) -> None:
        """A message succeeded; `ahead` is how many others the client got with it or had before it."""
        took = (now - began) / (ahead + 1)
        last = self.per_message_ms
        self.per_message_ms = took if last is None else last + _WEIGHT * (took - last)
        fits = int(ANSWER_MS / self.per_message_ms) if self.per_message_ms else MOST_LANES
        self._lanes = max(1, min(fits, 2 * self._lanes, MOST_LANES))

    def failed(self) -> None:
        """A message failed, or was not decided in its time."""
        self._lanes = 1


def travels_alone(run: LaneRun[M]) -> bool:
    """Whether the messages of a run must be the only ones of their answer."""
    return run.attempt > 1
