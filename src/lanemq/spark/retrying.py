"""Retrying requests to a broker, or a database, that may come back.

Attempts stay frequent, so that work resumes as soon as the server answers. Log lines become rarer: the first failure is
logged at once, later ones after 2, 4, 8 … 60 seconds.
"""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSES_MS = (100, 200, 500, 1_000, 2_000)
"""Pauses between attempts; the last one repeats."""

FIRST_LOG_PAUSE_MS, MAX_LOG_PAUSE_MS = 2_000, 60_000


class Retrying:
    """Repeats an attempt while its error is retriable and the time limit is not reached; otherwise raises the error."""

    def __init__(
        self,
        limit: Millis,
        clock: Clock | None = None,
        pause: Callable[[float], object] | None = None,
        *,
        hint: str = "",
    ) -> None:
        """`hint`: advice that is appended to the first log line of a wait."""
        self._limit = limit
        self._clock = clock or SystemClock()
        self._pause = pause or threading.Event().wait
        self._hint = f" ({hint})" if hint else ""

    def call(self, attempt: Callable[[], T], what: object) -> T:
        """Returns the result of the first attempt that succeeds. `what` is the subject in log lines."""
        began, number = self._clock.now(), 0
        wait_log = _WaitLog(what, self._limit, self._hint)
        while True:
            try:
                result = attempt()
            except LaneError as error:
                waited = Millis(self._clock.now() - began)
                if not error.retriable or waited >= self._limit:
                    wait_log.gave_up(waited, error)
                    raise
                wait_log.failed(waited, error)
                self._pause(PAUSES_MS[min(number, len(PAUSES_MS) - 1)] / 1000)
                number += 1
            else:
                wait_log.succeeded(Millis(self._clock.now() - began))
                return result


class _WaitLog:
    """The log lines of one wait."""

    def __init__(self, what: object, limit: Millis, hint: str) -> None:
        self._what = what
        self._limit = limit
        self._hint = hint
        self._next = 0
        self._log_pause = FIRST_LOG_PAUSE_MS

    def failed(self, waited: Millis, error: LaneError) -> None:
        if waited < self._next:
            return
        left = (self._limit - waited) / 1000
        hint = self._hint if not self._next else ""
        log.warning("%s: no answer yet, retrying for up to %.0f s: %s%s", self._what, left, error, hint)
        self._next = waited + self._log_pause
        self._log_pause = min(2 * self._log_pause, MAX_LOG_PAUSE_MS)

    def succeeded(self, waited: Millis) -> None:
        if self._next:
            log.warning("%s: answered again after %.1f s", self._what, waited / 1000)

    def gave_up(self, waited: Millis, error: LaneError) -> None:
        if self._next:
            log.error("%s: gave up after %.1f s: %s", self._what, waited / 1000, error)
