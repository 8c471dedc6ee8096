"""Replies that are made outside a read of their connection: all of one loop iteration leave in one write.

At the end of the iteration, the write is behind what other clients have asked for in the meantime: a slice
(`net/loop_slices`), new connections, their first requests. A group commit answers its senders, then the pulls that
waited for its messages, as many as fit into a slice. It calls `write` after both, so that these replies wait for none
of that.
"""

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class UnwrittenReplies:
    """The connections with such replies, in the order of their first one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writes: list[Callable[[], None]] = []
        self._scheduled = False

    def add(self, write: Callable[[], None]) -> None:
        """Call `write` at the end of this loop iteration, or with the next call of `write`."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._iteration_ends)
        self._writes.append(write)

    def write(self) -> None:
        """Write all replies now."""
        writes, self._writes = self._writes, []
        for each in writes:
            try:
                each()
            except Exception:
                log.exception("a reply could not be written")

    def _iteration_ends(self) -> None:
        self._scheduled = False
        self.write()
