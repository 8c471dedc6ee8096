"""Unfinished frames: how much clients have sent of incomplete requests, and which connections are closed first.

Each connection may have one frame of the largest size unfinished; all of them together would fill the memory. Above a
limit, connections are closed in this order: those that have sent no whole request yet come before those that have, then
the address with the most bytes, and of these the frame that was begun first. A client that sends a large message
finishes it soon, and one that fills the memory does not: closing the connection with the largest frame would hit the
former.
"""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

Sender = TypeVar("Sender", bound=Hashable)


class _Group(NamedTuple):
    known: bool
    host: str


class UnfinishedFrames(Generic[Sender]):
    """The unfinished frames of all connections."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes over all connections."""
        self.total = 0
        self._group_of: dict[Sender, _Group] = {}
        self._groups: dict[_Group, dict[Sender, int]] = {}
        """Bytes by connection, the frame that was begun first comes first; no empty entries."""
        self._sums: dict[_Group, int] = {}

    def note(self, sender: Sender, host: str, size: int, *, known: bool, begun: bool) -> None:
        """Record how much of a frame was received; 0 if none is unfinished.

        `known` is whether the connection has sent a request before, and `begun` whether this is another frame than at
        the last call.
        """
        group = _Group(known, host)
        if begun or not size or self._group_of.get(sender, group) != group:
            self._remove(sender)
        if size:
            frames = self._groups.setdefault(group, {})
            more = size - frames.get(sender, 0)
            frames[sender] = size
            self._group_of[sender] = group
            self._sums[group] = self._sums.get(group, 0) + more
            self.total += more

    def first_to_close(self) -> Sender | None:
        """The connection to be closed; None while all frames are within the limit."""
        if self.total <= self.limit:
            return None
        group = min(self._groups, key=lambda group: (group.known, -self._sums[group]))
        return next(iter(self._groups[group]))

    def _remove(self, sender: Sender) -> None:
        group = self._group_of.pop(sender, None)
        if group is None:
            return
        size = self._groups[group].pop(sender)
        self.total -= size
        self._sums[group] -= size
        if not self._groups[group]:
            del self._groups[group], self._sums[group]
