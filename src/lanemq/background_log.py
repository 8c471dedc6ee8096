"""Log records of clients, written by a thread of their own.

A handler of `logging` is the program's code. It may send the record with a producer, or close a consumer; and while it
does, it holds a lock of its own, for which every other thread that logs through it waits. So a thread that holds a lock
of a client, or whose work other threads wait for, must not call a handler: the two would wait for each other, also
after the broker is back.

`ClientLog` therefore leaves the records of such threads to a thread of their own. On a thread of the program where no
lock is held, above all on its event loop, it writes them at once.
"""

import contextlib
import decimal
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from lanemq.clock import SystemClock
from lanemq.forking import call_at_end, tell_child
from lanemq.model.units import Millis, to_millis

MAX_LINES = 1_000
"""Records that wait for the log's thread. There are as many only while a handler hangs; later ones are left out and
counted. More: a handler that hangs costs more memory. Fewer: a burst of lines loses some."""

EXIT_SECONDS = 2.0
"""How long the end of a program waits for records that are not written yet."""

_CLOCK = SystemClock()
_LOG = logging.getLogger(__name__)


class OwnThread(threading.Thread):
    """A thread of LaneMQ whose work others wait for: the log's thread writes what a `ClientLog` gets from it.

    It runs in a copy of the context (`contextvars`) in which it was made, as a task of asyncio does, but with numbers
    of `decimal` as every thread: their precision, which programs set in place, is not shared with other threads.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=copy_context().run, args=(self._call, target), name=name, daemon=True)

    def _call(self, target: Callable[[], None]) -> None:
        decimal.setcontext(decimal.getcontext().copy())
        target()


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """The logger of a module of the client. With `aside`, which is for a module that logs with a lock held, the log's
    thread writes all its records; without, only those of an `OwnThread`.
    """

    def __init__(self, name: str, *, aside: bool = False) -> None:
        super().__init__(logging.getLogger(name))
        self._aside = aside

    def log(self, level: int, msg: object, *args: object, exc_info: Any = None, **_: Any) -> None:
        """As `Logger.log`. `warning` and the like call it."""
        if not self._aside and not isinstance(threading.current_thread(), OwnThread):
            with _reported():
                self.logger.log(level, msg, *args, exc_info=exc_info, stacklevel=2)
        elif self._is_on(level):
            trouble = _trouble(exc_info)
            thread, caller = threading.current_thread(), _caller(sys._getframe(1))  # noqa: SLF001
            LINES.add(_Line(self.logger, level, msg, args, trouble, caller, thread, _CLOCK.wall()))

    def _is_on(self, level: int) -> bool:
        """As `Logger.isEnabledFor`, which may wait for a lock of `logging`."""
        logger = self.logger
        return not logger.disabled and logger.manager.disable < level and level >= logger.getEffectiveLevel()


_Trouble = tuple[type[BaseException], BaseException, TracebackType | None]


class _Line(NamedTuple):
    """What a record is made of. Only the log's thread makes it, because the program may have installed its own record
    factory."""

    logger: logging.Logger
    level: int
    text: object
    args: tuple[object, ...]
    trouble: _Trouble | None
    caller: tuple[str, int, str]
    thread: threading.Thread
    at: Millis

    def write(self) -> None:
        """Writes the record as of the thread and the time in which it happened."""
        path, number, function = self.caller
        record = self.logger.makeRecord(
            self.logger.name, self.level, path, number, self.text, self.args, self.trouble, function
        )
        record.created, record.msecs = self.at / 1000, self.at % 1000
        record.thread, record.threadName = self.thread.ident, self.thread.name
        self.logger.handle(record)


def _trouble(exc_info: Any) -> _Trouble | None:
    if isinstance(exc_info, BaseException):
        return type(exc_info), exc_info, exc_info.__traceback__
    found = sys.exc_info() if exc_info else (None, None, None)
    return None if found[0] is None else found


def _caller(frame: FrameType | None) -> tuple[str, int, str]:
    """File, line and function of the first frame outside of `logging`."""
    while frame is not None and frame.f_globals.get("__name__") == "logging":
        frame = frame.f_back
    return ("", 0, "") if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """A log handler or record factory that raises must not end what has logged: as `Handler.handleError`, this says so
    and continues."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever the program's code raises
        if logging.raiseExceptions and sys.stderr is not None:
            with contextlib.suppress(OSError):
                traceback.print_exc()


class _Lines:
    """The records of this process that wait, and the thread that writes them: it ends when none is left.

    No lock is waited for in `add`: a signal handler may interrupt it and log.
    """

    def __init__(self) -> None:
        self.forked()
        tell_child(self)

    def forked(self) -> None:
        """In a child process: the parent writes what waits."""
        self._lines: deque[_Line] = deque()
        self._left_out = 0
        self._writing = threading.Lock()

    def add(self, line: _Line) -> None:
        """Has a record written soon."""
        if len(self._lines) >= MAX_LINES:
            self._left_out += 1
            return
        self._lines.append(line)
        call_at_end(write_the_rest, priority=0)
        if not self._writing.locked():
            self._start_writing()

    def drain(self, seconds: float) -> bool:
        """Waits until everything is written; false if that took longer."""
        until = Millis(_CLOCK.now() + to_millis(seconds))
        while self._lines or self._writing.locked():
            left = (until - _CLOCK.now()) / 1000
            if left <= 0:
                return False
            if self._writing.locked():
                if self._writing.acquire(timeout=left):
                    self._writing.release()
            elif (writer := self._start_writing()) is not None:
                writer.join(left)
            else:
                self._write_all(until)
        return True

    def _start_writing(self) -> threading.Thread | None:
        """Starts a thread that writes; None if there can be no other thread any more.

        Then the lines wait for `drain`: the caller may hold a lock, and must not call a handler.
        """
        writer = threading.Thread(target=self._write_all, name="lanemq-log", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # no more threads, or the interpreter is about to end
            return None
        return writer

    def _write_all(self, until: Millis | None = None) -> None:
        """Writes what waits, unless another thread does: that one looks again after it has released the lock."""
        while self._lines and self._writing.acquire(blocking=False):
            try:
                while self._lines and (until is None or _CLOCK.now() < until):
                    self._write(self._lines.popleft())
                self._report_left_out()
            finally:
                self._writing.release()
            if until is not None and _CLOCK.now() >= until:
                return

    def _write(self, line: _Line) -> None:
        with _reported():
            line.write()

    def _report_left_out(self) -> None:
        """After the lines that came before the gap."""
        left_out, self._left_out = self._left_out, 0
        if left_out:
            _LOG.warning("%d log lines were dropped while a log handler hung", left_out)


LINES = _Lines()


def write_the_rest() -> None:
    """At the end of the process, and once more after its producers are closed."""
    if not LINES.drain(EXIT_SECONDS) and sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write("lanemq: log lines are missing at the end, because a log handler took too long\n")


call_at_end(write_the_rest, priority=0)
