"""What clients do in a child process after a fork.

A fork copies objects, sockets and locks that other threads hold, but no threads. A client that continued in the child
would write into its parent's connections under its parent's identity, and wait for threads that do not exist.

Producers, administration and histories start anew in the child; consumers refuse. See docs/decisions/0019-fork.md.

Python calls hooks in the child in the order of their registration, so code of the program may run before ours: a hook
that was registered before the first import of `lanemq`, or a finalizer. Calls of clients therefore look at `UNDERWAY`,
and tell all clients themselves if the fork has happened (`tell_now`).
"""

import atexit
import gc
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
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


_ends: set[tuple[int, Callable[[], object]]] = set()
"""By process: what is called at its end."""


def call_at_end(function: Callable[[], object], *, priority: int) -> None:
    """Calls the function once when this process ends, those with the highest priority first.

    Call this whenever the function may be needed: processes of `multiprocessing` end without the hooks of `atexit`, and
    have hooks of their own.
    """
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    is_child = process is not None and util is not None and process.parent_process() is not None
    if (os.getpid(), function) in _ends:
        return
    _ends.add((os.getpid(), function))
    if is_child and util is not None:
        util.Finalize(None, function, exitpriority=priority)
    else:
        atexit.register(function)
        if util is not None:
            util.register_after_fork(function, partial(_call_at_end_of_child, priority))


def _call_at_end_of_child(priority: int, function: Callable[[], object]) -> None:
    """A process of a fork server imports the main module before it knows that it is a child of `multiprocessing`."""
    if (os.getpid(), function) in _ends:
        sys.modules["multiprocessing.util"].Finalize(None, function, exitpriority=priority)


UNDERWAY: set[int] = set()
"""The threads that are forking; in the child, one until all clients know."""


class _Told:
    """The process whose clients know that they are in it."""

    process = os.getpid()


def tell_now() -> None:
    """Tells all clients that they are in a child process, if they are and do not know yet."""
    if _Told.process != os.getpid():
        _in_child()


def _before() -> None:
    UNDERWAY.add(threading.get_ident())


def _in_parent() -> None:
    UNDERWAY.discard(threading.get_ident())


def _in_child() -> None:
    if _Told.process == os.getpid():
        return
    collects = gc.isenabled()
    gc.disable()  # a finalizer may use a client that does not know yet
    failures: list[Exception] = []
    for each in list(_objects):
        try:
            each.forked()
        except Exception as error:  # noqa: BLE001 - the others must know, too
            failures.append(error)
    _Told.process = os.getpid()
    UNDERWAY.clear()
    if collects:
        gc.enable()
    for failure in failures:  # not earlier: a handler of the log may use a client
        log.error("a client could not be prepared for this child process", exc_info=failure)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
