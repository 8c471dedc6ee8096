"""Which locks of clients the current thread holds."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from lanemq import history

MODULES = ("lanemq.client", "lanemq.net", "lanemq.effects", "lanemq.history")
_new_lock, _new_reentrant_lock = threading.Lock, threading.RLock


class HeldLocks:
    """The locks that modules of the client made, and who holds them."""

    def __init__(self) -> None:
        self.holders: dict[TrackedLock, threading.Thread] = {}
        self.violations: list[str] = []
        self.checked: set[str] = set()
        """What was called, by its first word."""

    def check(self, what: str) -> None:
        """Called by what belongs to the program: notes every lock that the current thread holds."""
        me = threading.current_thread()
        self.checked.add(what.split()[0])
        self.violations += [f"{what} with {lock.made_in} held" for lock, who in [*self.holders.items()] if who is me]

    def new_reentrant(self) -> Any:
        """As `threading.RLock`, but not reentrant: no test here enters one twice."""
        frame = sys._getframe(1)
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        return TrackedLock(self, f"{module}.{function}") if module.startswith(MODULES) else _new_reentrant_lock()

    def new(self) -> "TrackedLock | threading.Lock":
        """As `threading.Lock`. Those of `ThreadWaiter` and `Bell` are no locks: a thread waits for another one."""
        frame = sys._getframe(1)
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if not module.startswith(MODULES) or function in ("ThreadWaiter.__init__", "Bell.sleeper"):
            return _new_lock()
        return TrackedLock(self, f"{module}.{function}")


class TrackedLock:
    """A lock that knows who holds it."""

    def __init__(self, held: HeldLocks, made_in: str) -> None:
        self.made_in = made_in
        self._held = held
        self._lock = _new_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._lock.acquire(blocking, timeout):
            return False
        self._held.holders[self] = threading.current_thread()
        return True

    def release(self) -> None:
        del self._held.holders[self]
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


@contextmanager
def tracked_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldLocks]:
    """Clients that are made in this block have locks that are tracked."""
    held = HeldLocks()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Lock", held.new)
        patch.setattr(threading, "RLock", held.new_reentrant)
        patch.setattr(history, "Lock", held.new)
        yield held
