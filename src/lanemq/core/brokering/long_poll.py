"""Held pulls: they found nothing and wait for a message.

Invariant: each held pull is answered exactly once, on arrival or at its deadline. Yielding a poll id is the answer: it
is removed in the same step. The caller may pause between two of them, and clients may add or end pulls during the
pause.

RocketMQ scans all held pulls every five seconds. Here an arrival looks only at the pulls of its queue, and deadlines
come from a heap, so tens of thousands of idle consumers cost nothing while they wait.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from lanemq.model.units import Millis, QueueOffset

MAX_HELD = 100_000

PollId = TypeVar("PollId", bound=Hashable)


class _Held(NamedTuple):
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
    """All held pulls of one broker. The caller chooses their ids; an id is held at most once at a time."""

    def __init__(self, *, capacity: int = MAX_HELD) -> None:
        self._capacity = capacity
        self._held: dict[PollId, _Held] = {}
        # Exactly the ids of `_held`, by queue; no empty entries.
        self._queues: dict[tuple[str, int], dict[PollId, _Held]] = {}
        # Answered polls stay here until their deadline or the next cleanup; the serial distinguishes a reused id.
        self._deadlines: list[tuple[Millis, int, PollId]] = []
        self._serial = 0

    def hold(
        self,
        poll_id: PollId,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        tag_codes: frozenset[int] | None,
        deadline: Millis,
    ) -> bool:
        """Hold a pull; False if too many are held, and it must be answered empty now.

        `tag_codes` None means every tag. Codes are hashes: a false match only runs the pull again.
        """
        if poll_id in self._held:
            raise ValueError(f"poll {poll_id!r} is held already: answer it before holding it again")
        if len(self._held) >= self._capacity:
            return False
        self._serial += 1
        held = _Held(topic, queue_id, offset, tag_codes, self._serial)
        self._held[poll_id] = held
        self._queues.setdefault((topic, queue_id), {})[poll_id] = held
        heappush(self._deadlines, (deadline, self._serial, poll_id))
        return True

    def arrived(
        self, topic: str, queue_id: int, max_offset: QueueOffset, tag_codes: Collection[int] | None
    ) -> Iterator[PollId | None]:
        """The pulls to run again, in the order in which they were held; None for each that does not want the messages.

        `tag_codes` are those of the new messages; None if unknown, and then every pull below `max_offset` matches.
        """
        for poll_id, held in tuple(self._queues.get((topic, queue_id), {}).items()):
            if self._held.get(poll_id) is held and held.wants(max_offset, tag_codes):
                self.forget((poll_id,))
                yield poll_id
            else:
                yield None

    def expire(self, *, now: Millis) -> Iterator[PollId]:
        """The pulls whose deadline has passed, to be run a last time without waiting."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, _, poll_id = heappop(self._deadlines)
            self._remove(poll_id)
            yield poll_id

    def forget(self, poll_ids: Iterable[PollId]) -> None:
        """Remove pulls, such as those of a closed connection. Unknown ids are ignored."""
        for poll_id in poll_ids:
            if poll_id in self._held:
                self._remove(poll_id)
        if len(self._deadlines) > 2 * len(self._held) + 64:
            self._deadlines = [item for item in self._deadlines if self._counts(item)]
            heapify(self._deadlines)

    def any_of(self, topic: str, queue_id: int) -> bool:
        """Whether a pull of this queue is held."""
        return (topic, queue_id) in self._queues

    def next_deadline(self) -> Millis | None:
        while self._deadlines:
            if self._counts(self._deadlines[0]):
                return self._deadlines[0][0]
            heappop(self._deadlines)
        return None

    def __len__(self) -> int:
        return len(self._held)

    def _counts(self, item: tuple[Millis, int, PollId]) -> bool:
        held = self._held.get(item[2])
        return held is not None and held.serial == item[1]

    def _remove(self, poll_id: PollId) -> None:
        held = self._held.pop(poll_id)
        queue = (held.topic, held.queue_id)
        del self._queues[queue][poll_id]
        if not self._queues[queue]:
            del self._queues[queue]
