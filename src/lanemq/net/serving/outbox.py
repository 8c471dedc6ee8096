"""When replies leave: at the end of the step of the event loop in which they were made, one write for each connection.

A step is a socket read with everything that it asks for, or a group commit that answers its senders. Whoever takes it
says where it begins and ends (`with outbox:`), because only they know when no further reply follows. Replies that are
made outside of a step leave at the end of the loop iteration. That is later: what other clients have asked for in the
meantime comes first, such as a slice (`net/serving/loop_slices`) or a new connection.
"""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Outbox:
    """The connections with replies that are not written yet, in the order of their first one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writes: list[Callable[[], None]] = []
        self._steps = 0
        """Steps that have begun and not ended; one may contain others."""
        self._scheduled = False

    def add(self, write: Callable[[], None]) -> None:
        """Call `write` at the end of this step, or of this loop iteration."""
        self._writes.append(write)
        if not self._steps and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._iteration_ends)

    def __enter__(self) -> None:
        self._steps += 1

    def __exit__(self, *_: object) -> None:
        self._steps -= 1
        if self._writes:
            self.write()

    def _iteration_ends(self) -> None:
        self._scheduled = False
        self.write()

    def write(self) -> None:
        """Writes the replies made so far. In the middle of a step: before work that they need not wait for."""
        writes, self._writes = self._writes, []
        for write in writes:
            try:
                write()
            except Exception:
                log.exception("a reply could not be written")
