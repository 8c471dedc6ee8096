"""Held pulls are answered in slices: one message may wake thousands of them, and each answer takes a while.

What fits into one slice is answered at once, the rest in later iterations of the event loop, between the requests of
other clients. A pull stays among the long polls until its own answer, so it is answered exactly once, whatever comes
first: a message, its deadline, or the end of its connection.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from lanemq.core.brokering.long_poll import LongPolls
from lanemq.log.appender import Arrival
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.serving.loop_slices import LoopSlices

MAX_TAG_CODES = 1_000
"""Tags of the messages that arrive while pulls of their queue are answered; with more, every pull runs again."""


class HeldPull(Hashable, Protocol):
    """A pull that waits for messages."""

    def wake(self) -> None:
        """Answer the pull."""


class _Arrived(NamedTuple):
    max_offset: int
    tag_codes: frozenset[int] | None

    def joined(self, later: "_Arrived") -> "_Arrived":
        codes = None if self.tag_codes is None or later.tag_codes is None else self.tag_codes | later.tag_codes
        if codes is not None and len(codes) > MAX_TAG_CODES:
            codes = None
        return _Arrived(max(self.max_offset, later.max_offset), codes)


class Waking:
    """Answers the held pulls of one broker. Use it on the event loop only."""

    def __init__(self, polls: LongPolls[HeldPull], slices: LoopSlices) -> None:
        self._polls = polls
        self._slices = slices
        self._arrived: dict[tuple[str, int], _Arrived | None] = {}
        """Queues whose pulls are being answered, and what arrived there since that began."""

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Answer the pulls that want new messages, in the order in which they were held."""
        end = 0
        for arrival in arrivals:
            queue = arrival.topic, arrival.queue_id
            if not self._polls.any_of(*queue):
                continue
            arrived = _Arrived(arrival.max_offset, arrival.tag_codes)
            if queue in self._arrived:
                before = self._arrived[queue]
                self._arrived[queue] = arrived if before is None else before.joined(arrived)
            else:
                self._arrived[queue] = arrived
                end = end or self._slices.end()
                self._slices.begin(map(_wake, self._woken(queue)), end)

    def expire(self, now: Millis) -> None:
        """Answer the pulls whose deadline has passed."""
        self._slices.begin(map(_wake, self._polls.expire(now=now)))

    def release(self, pulls: Iterable[HeldPull]) -> None:
        """Answer these pulls, unless they are answered before they are reached."""
        self._slices.begin(map(_wake, self._released(pulls)))

    def forget(self, pulls: Iterable[HeldPull]) -> None:
        """Remove pulls that need no answer, because their connection is closed."""
        self._slices.begin(self._released(pulls))  # and nothing wakes them

    # steps: each yields a pull to be answered, or None if there is nothing to answer

    def _woken(self, queue: tuple[str, int]) -> Iterator[HeldPull | None]:
        try:
            while (arrived := self._arrived[queue]) is not None:
                self._arrived[queue] = None
                yield from self._polls.arrived(*queue, QueueOffset(arrived.max_offset), arrived.tag_codes)
        finally:
            del self._arrived[queue]

    def _released(self, pulls: Iterable[HeldPull]) -> Iterator[HeldPull | None]:
        for pull in pulls:
            self._polls.forget((pull,))
            yield pull


def _wake(pull: HeldPull | None) -> None:
    if pull is not None:
        pull.wake()
