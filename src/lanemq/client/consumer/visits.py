"""Visits: what a worker takes from the board in one go, so that it need not come back for every message.

A visit is a few turns of different lanes. How many follows from how long handlers take: as much as fits into one
millisecond, and a handler slower than that gets one turn at a time, so that slow work still spreads over all workers.

The rule guarded here: turns that wait behind a handler that hangs, or that has become slow, do not wait while there is
somebody else to run them. A worker gets at a turn only by taking it out of `waiting`, and whoever else takes it out has
it instead; what went well lies in `ended`, where anybody may report it. So the board can empty both behind the back of
a worker that is late.
"""

from collections import deque
from collections.abc import Callable, Iterator

from lanemq.client.message import Message
from lanemq.core.consuming.lane_turns import count_messages
from lanemq.core.consuming.turns import Turn

VISIT_NS = 1_000_000
"""What a visit should take. Longer ones save little, and let others wait."""
MOST_MESSAGES = 256
"""In one visit, however fast they are."""
QUICK_MESSAGES = MOST_MESSAGES // 2
"""From so many in a visit on, handlers cost less than waking somebody to share them."""
PATIENCE_MS = 5
"""A worker whose visit takes so long loses what it has not begun to the others. Shorter would take turns from workers
that only wait for the interpreter; longer would let turns wait behind one that hangs.
"""
_PATIENCE_NS = PATIENCE_MS * 1_000_000


class Visit:
    """One worker's turns. The worker and the board share it without a lock: each step is one step of a deque."""

    __slots__ = ("began_ns", "ended", "messages", "turn", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Turn[Message]] = deque()
        """Taken and not begun, in the order they run."""
        self.ended: deque[Turn[Message]] = deque()
        """Went well, and the board does not know it yet."""
        self.turn: Turn[Message] | None = None
        """In the worker's hands now."""
        self.began_ns = 0
        self.messages = 0
        """That it took and that were not taken back."""

    def taken_back(self) -> Iterator[Turn[Message]]:
        """Everything that waits, the worker's no longer; the last first, as the worker comes from the other end."""
        for turn in _popped(self.waiting.pop):
            self.messages -= len(turn.messages)
            yield turn

    def reported(self) -> list[Turn[Message]]:
        """Everything that went well. Under the board's mutex nobody else takes from here."""
        next_one = self.ended.popleft
        return [next_one() for _ in range(len(self.ended))]


class Visits:
    """The visits under way at one board, under its mutex."""

    def __init__(self) -> None:
        self._open: dict[Visit, None] = {}
        self.share = 1
        """Messages that a worker takes at once."""
        self._next_look_ns = 0

    def __iter__(self) -> Iterator[Visit]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, visit: Visit, turns: list[Turn[Message]], now_ns: int) -> None:
        visit.messages = count_messages(turns)
        visit.began_ns = now_ns
        visit.waiting.extend(turns)
        self._open[visit] = None

    def end(self, visit: Visit, now_ns: int) -> None:
        """Everything of it was run or taken back. How long it took says how many messages fit into the next."""
        if visit not in self._open:
            return
        del self._open[visit]
        fit = VISIT_NS * visit.messages // max(now_ns - visit.began_ns, 1)
        self.share = max(1, min(fit, 2 * self.share, MOST_MESSAGES))

    def running(self) -> Iterator[Turn[Message]]:
        return (turn for visit in self._open if (turn := visit.turn) is not None)

    def workers_for(self, messages: int) -> int:
        """How many workers so many new messages want, besides those that will be back in a millisecond."""
        if self.share == 1:
            return messages
        if self._is_quick:
            return 0 if self._open else 1
        return max(-(-messages // self.share) - len(self._open), 0)

    def keeps_up(self, now_ns: int) -> bool:
        """Whether one worker does it all: handlers are quick, and somebody is at it who is not late.

        More workers would only wait for the interpreter, and take it from each other. What waits until somebody is late
        waits no longer than what lies behind others in a visit.
        """
        if not self._is_quick:
            return False
        since = now_ns - _PATIENCE_NS
        return any(each.began_ns > since for each in self._open)

    @property
    def _is_quick(self) -> bool:
        return self.share >= QUICK_MESSAGES

    def something_waits(self, besides: Visit | None = None) -> bool:
        """Whether a visit, other than this one, has something that others could run or report."""
        return any(visit is not besides and (visit.waiting or visit.ended) for visit in self._open)

    def late(self, now_ns: int) -> list[Visit]:
        """Visits that take too long and have something for others. Looked for now and then, not with every visit."""
        if now_ns < self._next_look_ns:
            return []
        self._next_look_ns = now_ns + _PATIENCE_NS // 2
        since = now_ns - _PATIENCE_NS
        return [each for each in self._open if each.began_ns <= since and (each.waiting or each.ended)]


def _popped(pop: Callable[[], Turn[Message]]) -> Iterator[Turn[Message]]:
    while True:
        try:
            yield pop()
        except IndexError:
            return
