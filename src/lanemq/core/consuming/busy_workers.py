"""Workers that have runs: which runs each of them has, and how many messages one takes at once.

A worker takes several runs of different lanes at once, so that it need not return to the scheduler for every message.
How many depends on how long handlers take: as much as fits into one millisecond. A handler slower than that gets one
run at a time, so that slow work still spreads over all workers. The time that a worker waits for the scheduler's mutex
does not count: it says how many workers there are, not how slow the handler is.

Invariant: runs behind a handler that hangs or has become slow do not wait while another worker is free to run them.
Both a worker and the scheduler take runs out of `Worker.waiting`, and only the one that takes a run out has it.
Finished runs are in `Worker.ended`, where the scheduler may collect them at any time.
"""

from collections import deque
from collections.abc import Iterator
from typing import Generic

from lanemq.core.consuming.runs import LaneRun, M, count_messages

TARGET_NS = 1_000_000
"""How long the runs that a worker takes at once should last. Longer saves little and makes other lanes wait."""
MAX_MESSAGES = 1024
"""Maximum number of messages that a worker takes at once, however fast the handler is. Smaller: a handler that takes a
microsecond pays for the scheduler more often. Larger: saves nothing, because `TARGET_NS` is over first."""
QUICK_MESSAGES = 128
"""From this many messages at once, the handler costs less than waking another worker to share the work."""
LATE_MS = 5
"""A worker that is busy for longer loses the runs that it has not begun to the others. Shorter would take runs from
workers that only wait for the interpreter; longer would make runs wait behind a handler that hangs."""
_LATE_NS = LATE_MS * 1_000_000


class Worker(Generic[M]):
    """The runs of one worker. It is shared with the scheduler without a lock: each step is one deque operation."""

    __slots__ = ("began_ns", "ended", "error", "in_child", "messages", "run", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[LaneRun[M]] = deque()
        """Taken and not begun, in the order in which they run."""
        self.ended: deque[LaneRun[M]] = deque()
        """Succeeded and not yet reported to the scheduler."""
        self.run: LaneRun[M] | None = None
        """The run whose handler is being called."""
        self.error: BaseException | None = None
        """What ended the worker unexpectedly."""
        self.in_child = False
        """Whether this is a copy in a child process, which the worker's handler has forked."""
        self.began_ns = 0
        self.messages = 0
        """Number of messages taken, without those taken back."""

    def take_back(self) -> Iterator[LaneRun[M]]:
        """Removes all waiting runs, the last one first, because the worker takes from the other end."""
        while True:
            try:
                run = self.waiting.pop()
            except IndexError:
                return
            self.messages -= len(run.messages)
            yield run

    def collect(self) -> list[LaneRun[M]]:
        """Removes all runs that succeeded. Under the scheduler's mutex, no other thread removes from `ended`."""
        next_one = self.ended.popleft
        return [next_one() for _ in range(len(self.ended))]


class BusyWorkers(Generic[M]):
    """The workers that have runs, and how many messages a worker takes at once."""

    def __init__(self) -> None:
        self._busy: dict[Worker[M], None] = {}
        self.share = 1
        """Number of messages that a worker takes at once."""
        self._next_check_ns = 0

    def __iter__(self) -> Iterator[Worker[M]]:
        return iter(self._busy)

    def __len__(self) -> int:
        return len(self._busy)

    def begin(self, worker: Worker[M], runs: list[LaneRun[M]], now_ns: int) -> None:
        worker.messages = count_messages(runs)
        worker.began_ns = now_ns
        worker.waiting.extend(runs)
        self._busy[worker] = None

    def end(self, worker: Worker[M], now_ns: int) -> None:
        """Called when all runs of a worker ended or were taken back; their duration adjusts `share`.

        One take changes `share` by a factor of two at most. Now and then a worker loses the interpreter to another
        thread in the middle of its runs; a share that believed a single such take would wake all workers, which
        would then compete for the interpreter and look slow for good.
        """
        if worker not in self._busy:
            return
        del self._busy[worker]
        fit = TARGET_NS * worker.messages // max(now_ns - worker.began_ns, 1)
        self.share = max(1, self.share // 2, min(fit, 2 * self.share, MAX_MESSAGES))

    def running(self) -> Iterator[LaneRun[M]]:
        return (run for worker in self._busy if (run := worker.run) is not None)

    def workers_for(self, messages: int) -> int:
        """How many sleeping workers to wake for new messages, beside those that return within a millisecond."""
        if self.share == 1:
            return messages
        if self._is_quick:
            return 0 if self._busy else 1
        return max(-(-messages // self.share) - len(self._busy), 0)

    def one_is_enough(self, now_ns: int) -> bool:
        """Whether one worker does all the work: the handler is quick, and a worker is busy and not late.

        More workers would only compete for the interpreter. A lane waits no longer for that worker to be late than it
        would wait behind other runs of it.
        """
        if not self._is_quick:
            return False
        since = now_ns - _LATE_NS
        return any(each.began_ns > since for each in self._busy)

    @property
    def _is_quick(self) -> bool:
        return self.share >= QUICK_MESSAGES

    def have_work_for_others(self, besides: Worker[M] | None = None) -> bool:
        """Whether a worker other than `besides` has runs that others could begin or collect."""
        return any(worker is not besides and (worker.waiting or worker.ended) for worker in self._busy)

    def late(self, now_ns: int) -> list[Worker[M]]:
        """Workers that take too long and have work for others. Checks now and then, not at every call."""
        if now_ns < self._next_check_ns:
            return []
        self._next_check_ns = now_ns + _LATE_NS // 2
        since = now_ns - _LATE_NS
        return [each for each in self._busy if each.began_ns <= since and (each.waiting or each.ended)]
