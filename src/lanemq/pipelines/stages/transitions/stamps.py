"""Repeats and gaps by the stamps of producers.

A LaneMQ broker stores each stamped message once. An Apache broker stores repetitions too, and they are recognised
here: within one queue, the sequences of one producer and epoch only grow. A gap stops nobody: a filter on tags, or
a query that begins in the middle, makes gaps where nothing is missing. They are counted.
"""

from typing import TypeAlias

StampKey: TypeAlias = tuple[str, str, int]
"""Queue, producer, epoch. With the epoch in it, a late repetition of an older epoch is still known."""


class StampTable:
    """The last sequence of every producer in every queue of a shard; the longest silent are forgotten first."""

    def __init__(self, capacity: int, rows: list[tuple[str, str, int, int]] | None = None) -> None:
        self._capacity = capacity
        self._last: dict[StampKey, int] = {(queue, who, epoch): last for queue, who, epoch, last in rows or []}

    def judge(self, queue: str, stamps: list[tuple[str, int, int] | None]) -> tuple[list[int], int]:
        """Which of these messages, by their index, are repeats; and how many sequences are missing."""
        repeats: list[int] = []
        gaps = 0
        for index, stamp in enumerate(stamps):
            if stamp is None:
                continue
            producer, epoch, sequence = stamp
            key = (queue, producer, epoch)
            last = self._last.pop(key, None)
            if last is not None and sequence <= last:
                repeats.append(index)
                sequence = last
            elif last is not None and sequence > last + 1:
                gaps += sequence - last - 1
            self._last[key] = sequence
            if len(self._last) > self._capacity:
                del self._last[next(iter(self._last))]
        return repeats, gaps

    def rows(self) -> list[tuple[str, str, int, int]]:
        """Longest silent first, as `__init__` takes them."""
        return [(*key, last) for key, last in self._last.items()]
