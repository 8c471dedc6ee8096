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
from lanemq.core.consuming.runs import LaneRun

TARGET_NS = 1_000_000
"""What a visit should take. Longer ones save little, and let others wait."""
MAX_MESSAGES = 256
"""In one visit, however fast they are."""
QUICK_MESSAGES = MAX_MESSAGES // 2
"""From so many in a visit on, handlers cost less than waking somebody to share them."""
LATE_MS = 5
"""A worker whose visit takes so long loses what it has not begun to the others. Shorter would take turns from workers
that only wait for the interpreter; longer would let turns wait behind one that hangs.
"""
_LATE_NS = LATE_MS * 1_000_000


class Worker:
    """One worker's turns. The worker and the board share it without a lock: each step is one step of a deque."""

    __slots__ = ("began_ns", "ended", "messages", "run", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[LaneRun[Message]] = deque()
        """Taken and not begun, in the order they run."""
        self.ended: deque[LaneRun[Message]] = deque()
        """Went well, and the board does not know it yet."""
        self.run: LaneRun[Message] | None = None
        """In the worker's hands now."""
        self.began_ns = 0
        self.messages = 0
        """That it took and that were not taken back."""

    def taken_back(self) -> Iterator[LaneRun[Message]]:
        """Everything that waits, the worker's no longer; the last first, as the worker comes from the other end."""
        for run in _popped(self.waiting.pop):
            self.messages -= len(run.messages)
            yield run

    def reported(self) -> list[LaneRun[Message]]:
        """Everything that went well. Under the board's mutex nobody else takes from here."""
        next_one = self.ended.popleft
        return [next_one() for _ in range(len(self.ended))]


class BusyWorkers:
    """The visits under way at one board, under its mutex."""

    def __init__(self) -> None:
        self._open: dict[Worker, None] = {}
        self.share = 1
        """Messages that a worker takes at once."""
        self._next_look_ns = 0

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, worker: Worker, runs: list[LaneRun[Message]], now_ns: int) -> None:
        worker.messages = count_messages(runs)
        worker.began_ns = now_ns
        worker.waiting.extend(runs)
        self._open[worker] = None

    def end(self, worker: Worker, now_ns: int) -> None:
        """Everything of it was run or taken back. How long it took says how many messages fit into the next."""
        if worker not in self._open:
            return
        del self._open[worker]
        fit = TARGET_NS * worker.messages // max(now_ns - worker.began_ns, 1)
        self.share = max(1, min(fit, 2 * self.share, MAX_MESSAGES))

    def running(self) -> Iterator[LaneRun[Message]]:
        return (run for worker in self._open if (run := worker.run) is not None)

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
        since = now_ns - _LATE_NS
        return any(each.began_ns > since for each in self._open)

    @property
    def _is_quick(self) -> bool:
        return self.share >= QUICK_MESSAGES

    def something_waits(self, besides: Worker | None = None) -> bool:
        """Whether a visit, other than this one, has something that others could run or report."""
        return any(worker is not besides and (worker.waiting or worker.ended) for worker in self._open)

    def late(self, now_ns: int) -> list[Worker]:
        """Visits that take too long and have something for others. Looked for now and then, not with every visit."""
        if now_ns < self._next_look_ns:
            return []
        self._next_look_ns = now_ns + _LATE_NS // 2
        since = now_ns - _LATE_NS
        return [each for each in self._open if each.began_ns <= since and (each.waiting or each.ended)]


def _popped(pop: Callable[[], LaneRun[Message]]) -> Iterator[LaneRun[Message]]:
    while True:
        try:
            yield pop()
        except IndexError:
            return
