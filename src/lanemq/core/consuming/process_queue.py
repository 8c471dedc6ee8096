"""The pulled and unfinished messages of one queue, in offset order.

A message is ready (not given to a handler) or in flight (given, not committed). All offsets in flight are below all
ready ones, so that take, roll-back and put-back only move the border between the two, and a pulled batch stays one list
that is sliced.

Invariant: messages leave in offset order; none is lost or in both parts; the committable offset never passes an
unfinished message, but does pass offsets that a filter left out.

Every assignment of a queue gets a new object, so that nothing of a former one leaks into it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from lanemq.core.consuming.flow_control import Cached
from lanemq.model.errors import UsageError
from lanemq.model.units import QueueOffset


class OffsetMessage(Protocol):
    """What this module needs to know of a message."""

    @property
    def queue_offset(self) -> int: ...
    @property
    def size(self) -> int: ...


M = TypeVar("M", bound=OffsetMessage)
_size_of = attrgetter("size")


class ProcessQueue(Generic[M]):
    """One assignment of one queue."""

    def __init__(self, start_offset: QueueOffset) -> None:
        # Lists of ready messages, ascending; the first `_cursor` messages of the first list are taken.
        self._ready: deque[list[M]] = deque()
        self._cursor = 0
        # Taken and not committed, oldest first; all offsets are below the ready ones.
        self._in_flight: list[list[M]] = []
        self._next = start_offset
        self._count = 0
        self._bytes = 0
        self._consuming = False
        self._dropped = False

    @property
    def next_offset(self) -> QueueOffset:
        """Where the next pull starts."""
        return self._next

    @property
    def dropped(self) -> bool:
        return self._dropped

    @property
    def consuming(self) -> bool:
        """Whether a caller takes messages: from the `put` that returned True until a take finds nothing."""
        return self._consuming

    @property
    def in_flight(self) -> int:
        return sum(map(len, self._in_flight))

    @property
    def committable(self) -> QueueOffset:
        """The first unfinished offset; everything below it is done or was filtered out."""
        if self._in_flight:
            return QueueOffset(self._in_flight[0][0].queue_offset)
        if self._ready:
            return QueueOffset(self._ready[0][self._cursor].queue_offset)
        return self._next

    @property
    def first_ready(self) -> int | None:
        """The offset of the message that the next take begins with."""
        return self._ready[0][self._cursor].queue_offset if self._ready else None

    def cached(self) -> Cached:
        return Cached(self._count, self._bytes, self._next - self.committable)

    def put(self, messages: Sequence[M], next_offset: QueueOffset) -> bool:
        """Adds the messages of a pull; returns True if the caller must now start taking.

        `next_offset` is where the pull ended: beyond the last message when a filter left out the rest. Known offsets
        are ignored, so that a pull that was answered twice changes nothing.
        """
        if self._dropped:
            return False
        fresh = self._fresh(messages, next_offset)
        self._next = max(self._next, next_offset)
        if not fresh:
            return False
        self._ready.append(fresh)
        self._count += len(fresh)
        self._bytes += sum(map(_size_of, fresh))
        first_to_dispatch, self._consuming = not self._consuming, True
        return first_to_dispatch

    def take(self, limit: int) -> list[M]:
        """Moves up to `limit` of the lowest ready messages in flight and returns them; empty if there is none."""
        if not self._ready:
            self._consuming = False
            return []
        head, start = self._ready[0], self._cursor
        taken = head[start : start + limit]
        self._cursor = start + len(taken)
        if self._cursor == len(head):
            self._ready.popleft()
            self._cursor = 0
            if len(taken) < limit:
                self._take_more(taken, limit)
        self._in_flight.append(taken)
        return taken

    def commit(self, below: int | None = None) -> QueueOffset | None:
        """Finishes everything in flight, or what is below an offset.

        Returns the highest finished offset plus one, or None if there was nothing.
        """
        done, self._in_flight = self._in_flight, []
        if below is not None:
            self._in_flight = _not_empty([each for each in part if each.queue_offset >= below] for part in done)
            done = _not_empty([each for each in part if each.queue_offset < below] for part in done)
        for part in done:
            self._count -= len(part)
            self._bytes -= sum(map(_size_of, part))
        return QueueOffset(done[-1][-1].queue_offset + 1) if done else None

    def roll_back(self) -> None:
        """Makes everything in flight ready again, in its old place; the caller must take it."""
        self._detach_head()
        while self._in_flight:
            self._ready.appendleft(self._in_flight.pop())
        self._consuming = self._consuming or bool(self._ready)

    def put_back_from(self, offset: int) -> None:
        """Makes everything in flight at `offset` and above ready again."""
        self._detach_head()
        while self._in_flight and self._in_flight[-1][-1].queue_offset >= offset:
            part = self._in_flight.pop()
            keep = sum(1 for message in part if message.queue_offset < offset)
            if keep:
                self._in_flight.append(part[:keep])
            self._ready.appendleft(part[keep:])
        self._consuming = self._consuming or bool(self._ready)

    def drop(self) -> None:
        """Forgets everything and ignores later calls, because the queue is no longer assigned."""
        self._next = self.committable
        self._dropped = True
        self._consuming = False
        self._ready.clear()
        self._in_flight.clear()
        self._cursor = self._count = self._bytes = 0

    def _fresh(self, messages: Sequence[M], next_offset: QueueOffset) -> list[M]:
        if not messages:
            return []
        if messages[-1].queue_offset >= next_offset:
            raise UsageError(
                f"a pull that brought offset {messages[-1].queue_offset} cannot end at {next_offset}: "
                f"pass the offset after the last message, or a later one"
            )
        if messages[0].queue_offset >= self._next:
            return list(messages)
        return [message for message in messages if message.queue_offset >= self._next]

    def _take_more(self, taken: list[M], limit: int) -> None:
        while self._ready and len(taken) < limit:
            part = self._ready[0][: limit - len(taken)]
            taken += part
            if len(part) == len(self._ready[0]):
                self._ready.popleft()
            else:
                self._cursor = len(part)

    def _detach_head(self) -> None:
        if self._cursor:
            self._ready[0] = self._ready[0][self._cursor :]
            self._cursor = 0

    def _check(self) -> None:
        parts = [*self._in_flight, *(part for part in self._ready)]
        assert all(parts), "an empty part hides the first unfinished offset"
        offsets = [m.queue_offset for p in self._in_flight for m in p]
        offsets += [m.queue_offset for m in self._ready_messages()]
        assert offsets == sorted(set(offsets)), "ascending, and nothing in both parts"
        assert self._count == len(offsets)
        assert not offsets or offsets[-1] < self._next
        assert not self._ready or self._consuming, "ready messages that no caller takes"

    def _ready_messages(self) -> list[M]:
        return [message for part in self._ready for message in part][self._cursor :]


def _not_empty(parts: Iterable[list[M]]) -> list[list[M]]:
    return [part for part in parts if part]
