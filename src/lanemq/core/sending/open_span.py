"""How far back the oldest open message of a lane lies, when messages may leave the middle of the line.

Rule: the span never comes out too small while an old message is open, or a flush would end before it; and what
left the middle is counted only until everything that was in line then has gone, or a flush would never end.

Memory: at most one entry per message in line, whether anybody asks or not; a line that is empty has none.
"""

from collections import deque


class LeftOut:
    """Messages that were given up while older ones were open. Usually none."""

    def __init__(self) -> None:
        # A sequence number and a count: so many left, all of them before the message with that number. Ascending.
        self._left: deque[tuple[int, int]] = deque()
        self._total = 0

    def __len__(self) -> int:
        return len(self._left)

    def since(self, oldest: int) -> int:
        """How many left the line behind the oldest open message, or shortly before it."""
        left = self._left
        while left and left[0][0] <= oldest:
            self._total -= left.popleft()[1]
        return self._total

    def leave(self, count: int, *, oldest: int, next_sequence: int) -> None:
        """So many left; the line reaches from `oldest` to `next_sequence` now, its end moved up."""
        left, together = self._left, count
        while left and left[-1][0] >= next_sequence:
            together += left.pop()[1]
        if together:
            left.append((next_sequence, together))
        self._total += count
        self.since(oldest)

    def renumbered(self, oldest: int) -> None:
        """The message that had this number has 0 now, and those behind it follow."""
        self.since(oldest)
        self._left = deque((end - oldest, count) for end, count in self._left)

    def clear(self) -> None:
        """The line is empty and begins anew."""
        self._left.clear()
        self._total = 0
