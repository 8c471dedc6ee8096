"""Loop slices: long work on the event loop is done in slices, and between two of them every other connection is served.

A read may hold hundreds of requests, and each of them may take a tenth of a millisecond. Handled at once, they would
delay all other clients by their sum. So a connection works for one slice at a time. Those that need more get their
slices one after the other, one slice in each iteration of the loop: however many they are, a client with a single
request waits for one slice, not for all of them.

Hundreds of connections may be ready in the same iteration, each with a single request that takes a millisecond: a large
pull. So connections with large answers share one slice in each iteration as well, and the others wait in line
(`RecentCost`). Connections with small answers, such as those to sends, never wait in that line.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TypeVar

SLICE_NS = 500_000
"""Length of a slice. Long: other clients wait longer. Short: more time goes to iterations of the loop."""

COSTLY_BYTES = 64 * 1024
"""Average size of the answers to one read, above which they are costly: they take a quarter of a millisecond and more.
Low: clients with small answers wait in line behind large pulls. High: hundreds of pulls in one iteration of the loop
delay a send."""

MOST_BYTES = 2 * COSTLY_BYTES
"""One read counts as no more than this, so that a few small answers end the time in which a client is costly."""

R = TypeVar("R")

Work = Callable[[int], bool]
"""Does a piece of work until a time in nanoseconds is reached; returns whether there is more."""


class RecentCost:
    """How large the answers of one connection are: a moving average in which each read has a weight of a quarter.

    Not how long they take: on a machine with other work the broker waits for a processor in the middle of a short
    request. Then a client that only sends would be costly, and would wait in line behind large pulls.
    """

    __slots__ = ("_average", "costly")

    def __init__(self) -> None:
        self._average = 0
        self.costly = False

    def add(self, size: int) -> None:
        self._average += ((size if size < MOST_BYTES else MOST_BYTES) - self._average) // 4
        self.costly = self._average > COSTLY_BYTES


class LoopSlices:
    """What waits for a slice, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, nanoseconds: Callable[[], int]) -> None:
        """`nanoseconds` is the time. A clock that does not move makes every slice endless: nothing is cut in pieces."""
        self.nanoseconds = nanoseconds
        self._loop = loop
        self._waiting: deque[Work] = deque()
        self._shared_until: int | None = None
        """The end of the slice that new and costly connections share in this iteration of the loop; None: it has not
        begun."""

    def end(self) -> int:
        """When a slice that begins now is over."""
        return self.nanoseconds() + SLICE_NS

    def may_begin(self, *, new: bool) -> bool:
        """Whether a connection that is `new`, or whose answers are costly, may begin at once.

        In one iteration of the loop, all of them share one slice: a client that connects again and again, each time
        with a long request, would otherwise delay the others by as many slices as connections. A costly connection does
        not overtake those that wait for a slice.
        """
        if self._waiting and not new:
            return False
        if self._shared_until is None:
            self._shared_until = self.end()
            self._loop.call_soon(self._next_iteration)
        return self.nanoseconds() < self._shared_until

    def _next_iteration(self) -> None:
        self._shared_until = None

    def add(self, work: Work) -> None:
        """Wait for a slice, behind all others; it comes in a later iteration of the loop."""
        if not self._waiting:
            self._loop.call_soon(self._take)
        self._waiting.append(work)

    def begin(self, steps: Iterator[object], end: int | None = None) -> None:
        """Take steps until a slice is over that begins now, or until `end`; the rest waits for later slices."""
        work = partial(self._step, steps)
        if work(self.end() if end is None else end):
            self.add(work)

    async def result(self, steps: Generator[None, None, R]) -> R:
        """The result of steps that are taken in slices, as long as somebody waits for it."""
        future: asyncio.Future[R] = self._loop.create_future()

        def take() -> Iterator[None]:
            while not future.done():
                try:
                    next(steps)
                except StopIteration as end:
                    future.set_result(end.value)
                except Exception as error:  # noqa: BLE001 - it belongs to the one who waits
                    future.set_exception(error)
                yield

        self.begin(take())
        return await future

    def begin_later(self, steps: Iterator[object]) -> None:
        """Take steps in later slices only: for work that nothing waits for."""
        self.add(partial(self._step, steps))

    def _step(self, steps: Iterator[object], end: int) -> bool:
        return any(self.nanoseconds() >= end for _ in steps)

    def _take(self) -> None:
        end, again = self.end(), []
        try:
            while self._waiting:
                # It stays in place until it is done: what is added in between must not start a second `_take`.
                work = self._waiting[0]
                try:
                    if work(end):
                        again.append(work)
                finally:
                    self._waiting.popleft()
                if self.nanoseconds() >= end:
                    break
        finally:
            self._waiting.extend(again)
            if self._waiting:
                self._loop.call_soon(self._take)
