"""The offsets of a queue's messages from the first unfinished one on, and which of them are finished.

With a lane per key, messages finish out of offset order, and the first unfinished offset is the one to commit. Every
message is added and finished here, so the class has a compiled twin, which keeps offsets and marks in two arrays.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from lanemq._fast import compiled


class OffsetMessage(Protocol):
    """What this module needs to know of a message."""

    @property
    def queue_offset(self) -> int: ...
    @property
    def size(self) -> int: ...


@compiled
class UnfinishedOffsets:
    """Invariant: the first offset, if there is one, is unfinished. Each message is added once and finished once."""

    __slots__ = ("_finished", "_offsets", "bytes")

    def __init__(self) -> None:
        self._offsets: deque[int] = deque()
        self._finished: set[int] = set()
        self.bytes = 0
        """Size of the unfinished messages."""

    def __len__(self) -> int:
        """Number of unfinished messages."""
        return len(self._offsets) - len(self._finished)

    @property
    def first(self) -> int | None:
        """The first unfinished offset."""
        return self._offsets[0] if self._offsets else None

    @property
    def finished_count(self) -> int:
        return len(self._finished)

    def offsets(self) -> list[int]:
        """The unfinished offsets, ascending."""
        return [offset for offset in self._offsets if offset not in self._finished]

    def add(self, messages: Sequence[OffsetMessage]) -> None:
        """Adds messages behind all others, in the order of their offsets."""
        self._offsets.extend([message.queue_offset for message in messages])
        self.bytes += sum([message.size for message in messages])

    def finish(self, messages: Sequence[OffsetMessage]) -> None:
        """Finishes messages, in any order."""
        offsets, finished = self._offsets, self._finished
        for message in messages:
            self.bytes -= message.size
            finished.add(message.queue_offset)
        while finished and offsets and offsets[0] in finished:
            finished.remove(offsets.popleft())

    def forget_finished(self) -> None:
        """Forgets the finished offsets above the first unfinished one."""
        self._offsets = deque(self.offsets())
        self._finished = set()
