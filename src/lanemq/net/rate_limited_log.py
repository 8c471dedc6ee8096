"""Warnings about conditions that last, such as a broker that cannot be reached.

Logged at every attempt, they would hide the other lines of the log. `RateLimitedLog` leaves out repeated texts,
`FewLines` limits the number of different ones, `FaultLog` leaves out repeated tracebacks, and `OutageLog` logs the
start and the end of an outage.
"""

import logging
import threading
from typing import TypeAlias

from lanemq.background_log import ClientLog
from lanemq.clock import Clock
from lanemq.model.errors import ConnectionLost, LaneError, TransportError
from lanemq.model.units import Millis

AnyLogger: TypeAlias = logging.Logger | ClientLog

AGAIN_AFTER = Millis(60_000)
MAX_TEXTS = 1_000
"""Texts remembered at once; while that many are, a new text is not logged."""
MAX_LINES = 100
"""Lines about one subject in a minute. Many: a client fills the disk with them. Few: an operator misses some."""
TEXT_CHARS = 1_000
"""Characters of a text that are logged and remembered: a client may have chosen some of them."""
LOOK_EVERY = Millis(1_000)
"""Time between two looks for texts that may be forgotten."""
REMIND_AFTER = Millis(30_000)


class RateLimitedLog:
    """Logs the same text about the same subject at most once a minute; another text is logged at once."""

    def __init__(self, log: AnyLogger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged: dict[tuple[str, str], Millis] = {}
        self._looked_at = clock.now()

    def warn(self, about: str, text: str) -> None:
        """Logs the text, unless it was logged in the last minute; then the call is cheap, so a flood costs little."""
        text = text[:TEXT_CHARS]
        now, last = self._clock.now(), self._logged.get((about, text))
        if last is not None and now - last < AGAIN_AFTER:
            return
        if now - self._looked_at >= LOOK_EVERY:
            self._looked_at = now
            self._logged = {key: at for key, at in self._logged.items() if now - at < AGAIN_AFTER}
        if last is not None or len(self._logged) < MAX_TEXTS:
            self._logged[about, text] = now
            self._log.warning("%s", text)

    def failed(self, about: str, text: str, error: Exception) -> None:
        """Logs that a request failed. If it had no answer, `OutageLog` warns of that, once for all requests."""
        if isinstance(error, TransportError):
            self._log.debug("%s: %s", text, error)
        else:
            self.warn(about, f"{text}: {error}")


class FewLines:
    """Logs a limited number of lines about one subject in a minute, and once that there are more.

    For lines that differ, because they name what a client has chosen.
    """

    def __init__(self, log: AnyLogger, clock: Clock, *, limit: int = MAX_LINES) -> None:
        self._log = log
        self._clock = clock
        self._limit = limit
        self._counts: dict[str, int] = {}
        """Lines about each subject since `_since`."""
        self._since = clock.now()

    def write(self, level: int, about: str, text: str) -> None:
        """Logs the text if there are not too many about its subject. Cheap if it is not logged."""
        now = self._clock.now()
        if now - self._since >= AGAIN_AFTER:
            self._since = now
            self._counts.clear()
        count = self._counts.get(about, 0)
        if count > self._limit or (not count and len(self._counts) >= MAX_TEXTS):
            return
        self._counts[about] = count + 1
        if count < self._limit:
            self._log.log(level, "%s", text)
        else:
            self._log.log(level, "%s: more of these lines are left out, for up to a minute", about)


class FaultLog:
    """Logs unexpected errors with their traceback. Those that one line of code raises are logged once a minute.

    For errors in requests: a client that has found one could repeat it, and fill the disk with tracebacks.
    """

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged: dict[tuple[type, str, int], tuple[Millis, int]] = {}
        """The type of an error and where it was raised → when it was last logged, and how many were left out since."""

    def write(self, text: str, error: Exception) -> None:
        """Log the text and the traceback of an error that was caught, unless the same was logged in the last minute."""
        place, now = (type(error), *_raised_at(error)), self._clock.now()
        last, left_out = self._logged.get(place, (None, 0))
        if last is not None and now - last < AGAIN_AFTER:
            self._logged[place] = last, left_out + 1
            return
        self._logged[place] = now, 0
        more = f" ({left_out} more like this were not logged)" if left_out else ""
        self._log.error("%s%s", text[:TEXT_CHARS], more, exc_info=error)


def _raised_at(error: Exception) -> tuple[str, int]:
    """File and line of the innermost call."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return ("", 0) if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)


class OutageLog:
    """Logs once that a server does not answer, again every 30 s while that lasts, and once that it answers again.

    All parts of a client share one. So an outage is two lines, however many requests fail, and a server that comes and
    goes is no more than two lines in 30 s. Safe for threads.
    """

    def __init__(self, log: AnyLogger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._mutex = threading.Lock()
        self._warned: dict[str, Millis] = {}
        self.away: dict[str, Millis] = {}
        """Servers that do not answer, and since when. Look at it before calling `answered`, which need not be called
        while it is empty."""

    def failed(self, server: object, error: LaneError) -> None:
        """A request had no answer, or no connection could be made. A lost connection alone is no outage."""
        if isinstance(error, ConnectionLost):
            return
        name, now = str(server), self._clock.now()
        with self._mutex:
            since = self.away.setdefault(name, now)
            if name in self._warned and now - self._warned[name] < REMIND_AFTER:
                return
            self._warned[name] = now
        if since == now:
            self._log.warning("%s does not answer, trying again until it does: %s", name, error)
        else:
            self._log.warning("%s has not answered for %d s: %s", name, (now - since) // 1000, error)

    def answered(self, server: object) -> None:
        """The server has answered a request."""
        name = str(server)
        with self._mutex:
            since = self.away.pop(name, None)
            if since is None or self._warned[name] < since:
                return
        self._log.warning("%s answers again after %.1f s", name, (self._clock.now() - since) / 1000)
