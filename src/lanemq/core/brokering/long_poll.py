"""Pulls that found nothing and wait for a message.

The rule guarded here: each parked pull is answered exactly once, by arrival or by its deadline, whichever
is first. Returning a poll id is the answer: it is forgotten in the same step.

RocketMQ scans all waiting pulls every five seconds; here a queue's arrivals look at that queue's pulls
only, and deadlines come from a heap, so tens of thousands of idle consumers cost nothing while they wait.
"""

from collections.abc import Collection, Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from lanemq.model.units import Millis, QueueOffset

MAX_PARKED = 100_000

PollId = TypeVar("PollId", bound=Hashable)


class _Parked(NamedTuple):
    topic: str
    queue_id: int
    offset: QueueOffset
    tag_codes: frozenset[int] | None
    serial: int

    def wants(self, max_offset: QueueOffset, arrived: Collection[int] | None) -> bool:
        if max_offset <= self.offset:
            return False
        return self.tag_codes is None or arrived is None or not self.tag_codes.isdisjoint(arrived)


class LongPolls(Generic[PollId]):
    """All waiting pulls of one broker. The shell chooses the ids; each waits at most once at a time."""

    def __init__(self, *, capacity: int = MAX_PARKED) -> None:
        self._capacity = capacity
        self._parked: dict[PollId, _Parked] = {}
        # Exactly the ids of `_parked`, by queue; no empty sets.
        self._queues: dict[tuple[str, int], dict[PollId, _Parked]] = {}
        # Answered polls stay here until their time or the next sweep; the serial tells them from a reused id.
        self._deadlines: list[tuple[Millis, int, PollId]] = []
        self._serial = 0

    def park(
        self,
        poll_id: PollId,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        tag_codes: frozenset[int] | None,
        deadline: Millis,
    ) -> bool:
        """Let a pull wait; False if too many wait already, then it must be answered empty now.

        `tag_codes` None means every tag. Codes are hashes, so a match may be wrong and the pull is simply run
        again; a miss is never wrong.
        """
        if poll_id in self._parked:
            raise ValueError(f"poll {poll_id!r} waits already: answer it before parking it again")
        if len(self._parked) >= self._capacity:
            return False
        self._serial += 1
        parked = _Parked(topic, queue_id, offset, tag_codes, self._serial)
        self._parked[poll_id] = parked
        self._queues.setdefault((topic, queue_id), {})[poll_id] = parked
        heappush(self._deadlines, (deadline, self._serial, poll_id))
        return True

    def arrived(
        self, topic: str, queue_id: int, max_offset: QueueOffset, tag_codes: Collection[int] | None
    ) -> list[PollId]:
        """The pulls to run again, in the order in which they were parked.

        `tag_codes` are those of the new messages. None if unknown: then every pull behind `max_offset` runs.
        """
        waiting = self._queues.get((topic, queue_id))
        if not waiting:
            return []
        woken = [poll_id for poll_id, parked in waiting.items() if parked.wants(max_offset, tag_codes)]
        self.forget(woken)
        return woken

    def expire(self, *, now: Millis) -> list[PollId]:
        """The pulls whose time is over, to be run a last time without waiting."""
        ended = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, _, poll_id = heappop(self._deadlines)
            self._remove(poll_id)
            ended.append(poll_id)
        return ended

    def forget(self, poll_ids: Iterable[PollId]) -> None:
        """Drop pulls that nobody waits for any more (closed connection). Ids not parked are no error."""
        for poll_id in poll_ids:
            if poll_id in self._parked:
                self._remove(poll_id)
        if len(self._deadlines) > 2 * len(self._parked) + 64:
            self._deadlines = [item for item in self._deadlines if self._counts(item)]
            heapify(self._deadlines)

    def next_deadline(self) -> Millis | None:
        while self._deadlines:
            if self._counts(self._deadlines[0]):
                return self._deadlines[0][0]
            heappop(self._deadlines)
        return None

    def __len__(self) -> int:
        return len(self._parked)

    def _counts(self, item: tuple[Millis, int, PollId]) -> bool:
        parked = self._parked.get(item[2])
        return parked is not None and parked.serial == item[1]

    def _remove(self, poll_id: PollId) -> None:
        parked = self._parked.pop(poll_id)
        queue = (parked.topic, parked.queue_id)
        del self._queues[queue][poll_id]
        if not self._queues[queue]:
            del self._queues[queue]

    def _check(self) -> None:
        assert all(self._queues.values())
        assert {poll_id for waiting in self._queues.values() for poll_id in waiting} == self._parked.keys()
        assert sum(map(self._counts, self._deadlines)) == len(self._parked) <= self._capacity
