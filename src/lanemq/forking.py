"""What clients do in a child process after a fork.

A fork copies objects, sockets and locks that other threads hold, but no threads. A client that went on in the child
would write into its parent's connections under its parent's identity, and wait for threads that do not exist.

Producers, administration and histories start anew in the child; consumers refuse. See docs/decisions/0019-fork.md.
"""

import logging
import os
import weakref
from typing import Protocol

log = logging.getLogger(__name__)


class Forkable(Protocol):
    """An object that has to know that it is in a child process."""

    def forked(self) -> None:
        """Called in the child right after the fork, when it has one thread. Must not use locks of the parent."""


_objects: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def tell_child(each: Forkable) -> None:
    """Calls `each.forked()` in every child that this process forks."""
    _objects.add(each)


def _in_child() -> None:
    for each in list(_objects):
        try:
            each.forked()
        except Exception:
            log.exception("a client could not be prepared for this child process")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
