"""Unsent replies: how much all clients have not read yet, and which connections are closed first.

Each connection may have some megabytes of replies unsent; those of thousands of connections would fill the memory.
Above a limit connections are closed: of the address with the most bytes, the one that has fallen behind for longest.

Connections that are closed come back and ask again, and that costs more than they do while they are open. So from half
of the limit on, replies are `crowded`: they are smaller, and a connection that does not read gets no second one. Then
hundreds of connections that do not read fit into the other half.

Sizes are noted when something is written. They shrink while a client reads, which is not noted, so all of them are
measured again before a connection is chosen, and ten times a second while replies are crowded.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Reader = TypeVar("Reader", bound=Hashable)

MEASURED_EVERY = 0.1
"""Seconds for which noted sizes are believed."""


class UnsentReplies(Generic[Reader]):
    """The unsent replies of all connections. `size_of`: bytes that a connection has unsent at the moment."""

    def __init__(
        self,
        limit: int,
        size_of: Callable[[Reader], int],
        host_of: Callable[[Reader], str],
        seconds: Callable[[], float],
    ) -> None:
        self.limit = limit
        """Bytes over all connections."""
        self.total = 0
        """Bytes unsent when they were last noted; by now they may be fewer."""
        self._size_of = size_of
        self._host_of = host_of
        self._seconds = seconds
        self._measured_at = 0.0
        self._sizes: dict[Reader, int] = {}
        """By connection, the one that fell behind first comes first."""

    def note(self, reader: Reader, size: int) -> None:
        self.total += size - self._sizes.get(reader, 0)
        self._sizes[reader] = size

    def forget(self, reader: Reader) -> None:
        self.total -= self._sizes.pop(reader, 0)

    @property
    def crowded(self) -> bool:
        """Whether all replies together take more than half of the limit."""
        half = self.limit // 2
        if self.total > half and self._seconds() - self._measured_at >= MEASURED_EVERY:
            self._look_again()
        return self.total > half

    def first_to_close(self) -> Reader | None:
        """The connection to be closed; None while all replies are within the limit."""
        if self.total <= self.limit:
            return None
        self._look_again()
        if self.total <= self.limit:
            return None
        by_host: Counter[str] = Counter()
        for reader, size in self._sizes.items():
            by_host[self._host_of(reader)] += size
        worst = by_host.most_common(1)[0][0]
        return next(reader for reader in self._sizes if self._host_of(reader) == worst)

    def _look_again(self) -> None:
        self._measured_at = self._seconds()
        now = {reader: self._size_of(reader) for reader in self._sizes}
        self._sizes = {reader: size for reader, size in now.items() if size}
        self.total = sum(self._sizes.values())
