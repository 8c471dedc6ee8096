"""The messages of a lane that wait to be sent, in order, each with its size and its deadline.

They are kept in runs that were offered together. A run is cut as a whole, so nothing is created or read per message.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Generic, TypeAlias, TypeVar

from lanemq.model.units import Millis

M = TypeVar("M")

Entry: TypeAlias = tuple[M, int, Millis]
"""A waiting message: itself, its size, and its deadline."""


@dataclass(slots=True)
class _Run(Generic[M]):
    """Messages with one deadline."""

    messages: Sequence[M]
    sizes: Sequence[int]
    deadline: Millis


class PendingLine(Generic[M]):
    """First in, first out, except for messages that are given up."""

    def __init__(self) -> None:
        # No run is empty.
        self._runs: deque[_Run[M]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def deadline(self) -> Millis | None:
        """The deadline of the first message."""
        return self._runs[0].deadline if self._runs else None

    def messages(self) -> list[M]:
        return [message for run in self._runs for message in run.messages]

    def add(self, messages: Sequence[M], sizes: Sequence[int], deadline: Millis) -> None:
        if messages:
            self._runs.append(_Run(messages, sizes, deadline))
            self._count += len(messages)

    def put_back(self, entries: Iterable[Entry[M]]) -> None:
        """Puts entries that were sent in front of everything else: they have to wait again."""
        self._runs.extendleft(reversed(_runs_of(entries)))
        self._recount()

    def cut(self, max_count: int, max_bytes: int) -> tuple[list[M], list[int]]:
        """Removes the first messages, as many as may share a batch and at least one; returns them and their sizes."""
        messages: list[M] = []
        sizes: list[int] = []
        left = max_bytes
        while self._runs and len(messages) < max_count:
            run = self._runs[0]
            some = run.sizes[: max_count - len(messages)]
            total = sum(some)
            fits = len(some) if total <= left else bisect_right(list(accumulate(some)), left)
            count = fits or (0 if messages else 1)
            messages += run.messages[:count]
            sizes += some[:count]
            left -= total
            self._shorten(run, count)
            if left < 0:
                break
        self._count -= len(messages)
        return messages, sizes

    def take_late(self, now: Millis) -> list[M]:
        """Removes the messages at the front whose deadline has passed."""
        late: list[M] = []
        while self._runs and self._runs[0].deadline <= now:
            late += self._runs.popleft().messages
        self._count -= len(late)
        return late

    def take_keys(self, keys: Collection[str], key_of: Callable[[M], str | None]) -> list[M]:
        """Removes all messages of these keys."""
        gone = [message for message in self.messages() if key_of(message) in keys] if keys else []
        if gone:
            kept = [entry for entry in self._entries() if key_of(entry[0]) not in keys]
            self._runs = deque(_runs_of(kept))
            self._recount()
        return gone

    def clear(self) -> None:
        self._runs.clear()
        self._count = 0

    def _entries(self) -> Iterable[Entry[M]]:
        for run in self._runs:
            for message, size in zip(run.messages, run.sizes, strict=True):
                yield message, size, run.deadline

    def _shorten(self, run: _Run[M], count: int) -> None:
        if count == len(run.messages):
            self._runs.popleft()
        else:
            run.messages, run.sizes = run.messages[count:], run.sizes[count:]

    def _recount(self) -> None:
        self._count = sum([len(run.messages) for run in self._runs])


def _runs_of(entries: Iterable[Entry[M]]) -> list[_Run[M]]:
    runs: list[_Run[M]] = []
    for deadline, together in groupby(entries, lambda entry: entry[2]):
        same = list(together)
        runs.append(_Run([message for message, _, _ in same], [size for _, size, _ in same], deadline))
    return runs
