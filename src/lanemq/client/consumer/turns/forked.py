"""Ends a child process that a handler forked, when the child leaves the handler.

A handler that calls `os.fork` returns twice: in the parent, and in the child unless it ends there with `os._exit`. The
child has a copy of everything that the member has fetched, and `SystemExit` only fails a message. Without this, it
would call the handler for further messages beside its parent, and never end.
"""

import logging
import os
import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import NoReturn

from lanemq.client.consumer.turns.scheduler import MessageWorker
from lanemq.forking import tell_child

log = logging.getLogger(__name__)  # not `ClientLog`: the child ends at once

CALLING: ContextVar[MessageWorker | None] = ContextVar("CALLING", default=None)
"""The worker that calls a handler, in its thread or task."""


class _ForkedWorker:
    """Keeps the worker of a handler that has forked from starting another turn in the child."""

    def forked(self) -> None:
        worker = CALLING.get()
        if worker is None:
            return
        worker.in_child = True
        worker.waiting.clear()
        if worker.run is not None:
            worker.run.permit.withdrawn = True


_forked_worker = _ForkedWorker()
tell_child(_forked_worker)


def end_child(error: BaseException | None) -> NoReturn:
    """Ends this process as its handler ended: with 0, with the code of a `SystemExit`, or with 1 and a log line."""
    with suppress(BaseException):  # whatever the log or the streams do, the child must end
        if error is None:
            log.warning("a handler has forked, and its child returned from it: the child ends; use os._exit() in it")
        elif not isinstance(error, SystemExit):
            log.error("a child that a handler has forked failed and ends; its parent continues", exc_info=error)
        elif not isinstance(error.code, int | None):
            sys.stderr.write(f"{error.code}\n")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    os._exit(exit_code(error))


def exit_code(error: BaseException | None) -> int:
    """As Python's own, for a process that ends by this exception."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    return (error.code or 0) & 0xFF if isinstance(error.code, int | None) else 1
