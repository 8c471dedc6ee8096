"""Which requests came in one read of a socket: for whoever can do more with all of them than with each.

The rule guarded here: every begin has its end, whatever the requests were; what waits for an end would wait for ever.
"""

from typing import Protocol


class Reads(Protocol):
    """Told by a server around everything that it makes of a read."""

    def begin(self) -> None: ...

    def end(self, sender: int) -> None:
        """`sender` is the number of the peer whose requests were handed over since `begin`."""


class NoReads:
    """Nobody wants to know."""

    def begin(self) -> None:
        pass

    def end(self, sender: int) -> None:
        pass
