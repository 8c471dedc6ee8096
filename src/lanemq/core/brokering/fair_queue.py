"""A queue in which parties take turns, and within a party its connections.

However many items one party adds, the others do not wait for all of them: between two items of a party, at most one
item of each other party is taken. The same holds between the connections of a party.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """What waits, in the order of turns."""

    def __init__(self) -> None:
        self._parties: dict[str, dict[int, deque[T]]] = {}
        """Party → connection → items, without empty ones. The first of each is next and then becomes the last."""

    def add(self, party: str, connection: int, item: T) -> None:
        self._parties.setdefault(party, {}).setdefault(connection, deque()).append(item)

    def next(self) -> T | None:
        """Take the item whose turn it is; None if nothing waits."""
        if not self._parties:
            return None
        party, connections = next(iter(self._parties.items()))
        connection, items = next(iter(connections.items()))
        item = items.popleft()
        del self._parties[party], connections[connection]
        if items:
            connections[connection] = items
        if connections:
            self._parties[party] = connections
        return item
