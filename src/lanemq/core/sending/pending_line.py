"""The messages of a send lane that wait to be sent, and how those of a failing key are found among them.

Messages that were offered together are one part of the line. Parts are sliced, so nothing is created or read per
message.

A failure must not read the whole line: it happens under the producer's lock, and many may follow each other. So a part
that joins a long line remembers its keys, and a part of a single message is found by its key. A failure looks at the
short start of the line, at each larger part once, and at the messages of the parts that have its keys.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import Generic, TypeAlias, TypeVar

from lanemq.model.units import Millis

M = TypeVar("M")

Entry: TypeAlias = tuple[M, int, Millis]
"""A waiting message: itself, its size, and its deadline."""

MAX_LISTED, MAX_UNREAD = 64, 2000
"""Parts of one message that wait without an index, and messages whose keys are not read before a failure. So a short
line pays nothing, and a failure in it reads little."""


@dataclass(slots=True, eq=False)
class _Part(Generic[M]):
    """Messages with one deadline."""

    messages: Sequence[M]
    sizes: Sequence[int]
    deadline: Millis
    number: int
    """Ascending from the first part of the line to the last."""
    keys: frozenset[str | None] | None = None
    """The keys of its messages, and perhaps others; None if they were not needed yet."""


class PendingLine(Generic[M]):
    """Messages that wait to be sent: first in, first out, except for those that are given up."""

    def __init__(self, key_of: Callable[[M], str | None]) -> None:
        # The first part is not empty; later ones may have lost all their messages.
        self._parts: deque[_Part[M]] = deque()
        self._count = 0
        self._key_of = key_of
        # Every part is either listed or indexed by its only key. Parts that have left the line are empty.
        self._listed: deque[_Part[M]] = deque()
        self._by_key: dict[str, list[_Part[M]]] = {}
        self._indexed = 0

    def __len__(self) -> int:
        return self._count

    @property
    def deadline(self) -> Millis | None:
        """The deadline of the first message."""
        return self._parts[0].deadline if self._parts else None

    def messages(self) -> list[M]:
        return [message for part in self._parts for message in part.messages]

    def add(self, messages: Sequence[M], sizes: Sequence[int], deadline: Millis) -> None:
        if not messages:
            return
        parts = self._parts
        part = _Part(messages, sizes, deadline, parts[-1].number + 1 if parts else 0)
        parts.append(part)
        self._count += len(messages)
        if len(messages) == 1 and len(parts) > MAX_LISTED:
            self._index(part)
            return
        if self._count > MAX_UNREAD:
            part.keys = frozenset(map(self._key_of, messages))
        self._listed.append(part)

    def put_back(self, entries: Iterable[Entry[M]]) -> None:
        """Puts entries that were sent in front of everything else: they have to wait again."""
        for deadline, together in reversed([(each, list(same)) for each, same in groupby(entries, _deadline_of)]):
            messages, sizes = [message for message, _, _ in together], [size for _, size, _ in together]
            part = _Part(messages, sizes, deadline, self._parts[0].number - 1 if self._parts else 0)
            self._parts.appendleft(part)
            self._listed.appendleft(part)
            self._count += len(messages)

    def cut(self, max_count: int, max_bytes: int) -> tuple[list[M], list[int]]:
        """Removes the first messages, as many as may share a batch and at least one; returns them and their sizes."""
        messages: list[M] = []
        sizes: list[int] = []
        left = max_bytes
        while self._parts and len(messages) < max_count:
            part, room = self._parts[0], max_count - len(messages)
            some = part.sizes if len(part.sizes) <= room else part.sizes[:room]
            total = sum(some)
            if some is part.sizes and total <= left:  # all of it, as usual
                messages += part.messages
                sizes += some
                part.messages = part.sizes = ()
            else:
                fits = len(some) if total <= left else bisect_right(list(accumulate(some)), left)
                count = fits or (0 if messages else 1)
                messages += part.messages[:count]
                sizes += some[:count]
                part.messages, part.sizes = part.messages[count:], part.sizes[count:]
            left -= total
            self._drop_empty()
            if left < 0:
                break
        self._count -= len(messages)
        return messages, sizes

    def take_late(self, now: Millis) -> list[M]:
        """Removes the messages at the front whose deadline has passed."""
        late: list[M] = []
        while self._parts and self._parts[0].deadline <= now:
            part = self._parts[0]
            late += part.messages
            part.messages = part.sizes = ()
            self._drop_empty()
        self._count -= len(late)
        return late

    def take_keys(self, keys: Collection[str]) -> list[M]:
        """Removes all messages of these keys, and returns them in order."""
        gone, wanted = list[M](), frozenset(keys)
        if wanted:
            for part in sorted(self._parts_with(wanted), key=_number_of):
                gone += self._take_from(part, wanted)
            self._count -= len(gone)
            self._drop_empty()
        return gone

    def clear(self) -> None:
        self._parts.clear()
        self._forget_parts()
        self._count = 0

    def _parts_with(self, wanted: frozenset[str]) -> list[_Part[M]]:
        """All parts with messages of these keys, in any order, and perhaps others."""
        for part in self._listed:
            if part.keys is None:
                part.keys = frozenset(map(self._key_of, part.messages))
        found = [part for part in self._listed if part.keys is None or not wanted.isdisjoint(part.keys)]
        for key in wanted & self._by_key.keys():
            found += self._by_key.pop(key)
        return found

    def _take_from(self, part: _Part[M], keys: frozenset[str]) -> list[M]:
        gone, kept, sizes, key_of = list[M](), list[M](), list[int](), self._key_of
        for message, size in zip(part.messages, part.sizes, strict=True):
            if key_of(message) in keys:
                gone.append(message)
            else:
                kept.append(message)
                sizes.append(size)
        part.messages, part.sizes = kept, sizes
        return gone

    def _index(self, part: _Part[M]) -> None:
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


def _number_of(part: _Part[M]) -> int:
    return part.number


def _deadline_of(entry: Entry[M]) -> Millis:
    return entry[2]
