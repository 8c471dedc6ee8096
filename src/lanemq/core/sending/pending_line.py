"""The messages of a queue that wait to be sent, and how those of a failing key are found among them.

Messages that were offered together are one part of the line. Parts are sliced, so nothing is created or read per
message.

A failure must not read the whole line: it happens under the producer's lock, and many may follow each other. So a part
that joins a long line remembers its keys, and a part of a single message is found by its key. A failure looks at the
short start of the line, at each larger part once, and at the messages of the parts that have its keys.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, chain
from typing import Generic, TypeVar

from msgspec import Struct

from lanemq.core.sending.sent_window import SendBatch
from lanemq.model.units import Millis

M = TypeVar("M")

MAX_LISTED, MAX_UNREAD = 64, 2000
"""Parts of one message that wait without an index, and messages whose keys are not read before a failure. So a short
line pays nothing, and a failure in it reads little."""


class PendingPart(Struct, Generic[M], eq=False):
    """Messages that were added together, or leave together; the deadline is that of the first one."""

    messages: Sequence[M]
    sizes: Sequence[int]
    deadline: Millis
    number: int
    """Of its first message, among all that the sender has accepted; less if others left before it."""
    keys: frozenset[str | None] | None = None
    """The keys of its messages, and perhaps others; None if they were not needed yet."""


class PendingLine(Generic[M]):
    """Messages that wait to be sent: first in, first out, except for those that are given up."""

    def __init__(self, key_of: Callable[[M], str | None]) -> None:
        # The first part is not empty; later ones may have lost all their messages.
        self._parts: deque[PendingPart[M]] = deque()
        self.count = self.size = 0
        """How many messages wait, and their sizes together."""
        self._key_of = key_of
        # Every part is either listed or indexed by its only key. Parts that have left the line are empty.
        self._listed: deque[PendingPart[M]] = deque()
        self._by_key: dict[str, list[PendingPart[M]]] = {}
        self._indexed = 0

    @property
    def number(self) -> int | None:
        """The number of the first message; less if others left before it."""
        return self._parts[0].number if self._parts else None

    @property
    def deadline(self) -> Millis | None:
        """The deadline of the first message."""
        return self._parts[0].deadline if self._parts else None

    def messages(self) -> list[M]:
        return [message for part in self._parts for message in part.messages]

    def add(self, messages: Sequence[M], sizes: Sequence[int], deadline: Millis, number: int) -> None:
        """Adds messages at the end. `number` is that of the first one: how many were accepted before it."""
        if not messages:
            return
        parts = self._parts
        part = PendingPart(messages, sizes, deadline, number)
        parts.append(part)
        self.count += len(messages)
        self.size += sum(sizes)
        if len(messages) == 1 and len(parts) > MAX_LISTED:
            self._index(part)
            return
        if self.count > MAX_UNREAD:
            part.keys = frozenset(map(self._key_of, messages))
        self._listed.append(part)

    def put_back(self, batches: Iterable[SendBatch[M]]) -> None:
        """Puts what is left of batches in front of everything else: it has to wait again."""
        for batch in reversed(list(batches)):
            part = PendingPart(batch.left(), batch.left_sizes(), batch.deadline, batch.number)
            if part.messages:
                self._parts.appendleft(part)
                self._listed.appendleft(part)
                self.count += len(part.messages)
                self.size += sum(part.sizes)

    def cut(self, max_count: int, max_bytes: int) -> PendingPart[M]:
        """Removes the first messages, as many as may share a batch and at least one. Not called for an empty line."""
        first = self._parts[0]
        if len(self._parts) == 1 and self.count <= max_count and self.size <= max_bytes:  # as usual
            self.clear()
            return first
        messages: list[M] = []
        sizes: list[int] = []
        deadline, number, left = first.deadline, first.number, max_bytes
        while self._parts and len(messages) < max_count:
            part, room = self._parts[0], max_count - len(messages)
            some = part.sizes if len(part.sizes) <= room else part.sizes[:room]
            total = sum(some)
            if some is part.sizes and total <= left:  # all of it
                messages += part.messages
                sizes += some
                part.messages = part.sizes = ()
            else:
                fits = len(some) if total <= left else bisect_right(list(accumulate(some)), left)
                count = fits or (0 if messages else 1)
                messages += part.messages[:count]
                sizes += some[:count]
                part.messages, part.sizes = part.messages[count:], part.sizes[count:]
                part.number += count
            left -= total
            self._drop_empty()
            if left < 0:
                break
        self.count -= len(messages)
        self.size -= sum(sizes)
        return PendingPart(messages, sizes, deadline, number)

    def take_late(self, now: Millis) -> list[M]:
        """Removes the messages at the front whose deadline has passed."""
        late: list[M] = []
        while self._parts and self._parts[0].deadline <= now:
            part = self._parts[0]
            late += part.messages
            self.size -= sum(part.sizes)
            part.messages = part.sizes = ()
            self._drop_empty()
        self.count -= len(late)
        return late

    def take_keys(self, keys: Collection[str]) -> list[M]:
        """Removes all messages of these keys, and returns them in order."""
        gone, wanted = list[M](), frozenset(keys)
        if wanted:
            for part in sorted(self._parts_with(wanted), key=_number_of):
                gone += self._take_from(part, wanted)
            self.count -= len(gone)
            self._drop_empty()
        return gone

    def clear(self) -> None:
        self._parts.clear()
        self._listed.clear()
        self.count = self.size = 0
        if self._by_key:
            self._forget_parts()

    def _parts_with(self, wanted: frozenset[str]) -> list[PendingPart[M]]:
        """All parts with messages of these keys, in any order, and perhaps others."""
        for part in self._listed:
            if part.keys is None:
                part.keys = frozenset(map(self._key_of, part.messages))
        parts = [part for part in self._listed if part.keys is None or not wanted.isdisjoint(part.keys)]
        for key in wanted & self._by_key.keys():
            parts += self._by_key.pop(key)
        return parts

    def _take_from(self, part: PendingPart[M], keys: frozenset[str]) -> list[M]:
        gone, kept, sizes, key_of = list[M](), list[M](), list[int](), self._key_of
        for message, size in zip(part.messages, part.sizes, strict=True):
            if key_of(message) in keys:
                gone.append(message)
            else:
                kept.append(message)
                sizes.append(size)
        self.size -= sum(part.sizes) - sum(sizes)
        part.messages, part.sizes = kept, sizes
        return gone

    def _index(self, part: PendingPart[M]) -> None:
        """Makes a part of one message known by its key. Parts that have left the line are removed now and then."""
        if self._indexed > 2 * len(self._parts):
            waiting = [each for each in chain.from_iterable(self._by_key.values()) if each.messages]
            self._by_key, self._indexed = {}, 0
            for each in waiting:
                self._index(each)
        key = self._key_of(part.messages[0])
        if key is not None:
            self._indexed += 1
            if key in self._by_key:
                self._by_key[key].append(part)
            else:
                self._by_key[key] = [part]

    def _drop_empty(self) -> None:
        parts, listed = self._parts, self._listed
        while parts and not parts[0].messages:
            parts.popleft()
        while listed and not listed[0].messages:
            listed.popleft()
        if not parts and self._by_key:
            self._forget_parts()

    def _forget_parts(self) -> None:
        self._listed.clear()
        self._by_key.clear()
        self._indexed = 0


def _number_of(part: PendingPart[M]) -> int:
    return part.number
