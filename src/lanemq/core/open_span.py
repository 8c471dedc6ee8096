"""How far back the oldest open message of a lane lies, when messages may leave the middle of the line.

Rule: the span never comes out too small while an old message is open, or a flush would end before it; and what
left the middle is counted only until everything that was in line then has gone, or a flush would never end.
"""


class LeftOut:
    """Messages that were given up while older ones were open. Usually none."""

    def __init__(self) -> None:
        # A sequence number and a count: so many left, all of them before the message with that number.
        self._left: list[tuple[int, int]] = []

    def since(self, oldest: int) -> int:
        """How many left the line behind the oldest open message, or shortly before it."""
        if not self._left:
            return 0
        self._left = [(end, count) for end, count in self._left if oldest < end]
        return sum(count for _, count in self._left)

    def leave(self, count: int, *, next_sequence: int) -> None:
        """So many left; the line ends at `next_sequence` now, its end moved up."""
        if count or self._left:
            self._left = [(min(end, next_sequence), before) for end, before in self._left]
            self._left.append((next_sequence, count))

    def renumbered(self, oldest: int) -> None:
        """The message that had this number has 0 now, and those behind it follow."""
        self._left = [(max(0, end - oldest), count) for end, count in self._left]

    def clear(self) -> None:
        """The line is empty and begins anew."""
        self._left.clear()
