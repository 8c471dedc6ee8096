"""Waiting for a broker that is away: for a while, with ever fewer lines in the log, then with the error that it gave.

The rule guarded here: attempts stay frequent, since work should go on the moment the broker is back; what is told about
them does not, since nobody reads the same line thirty times.
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
"""Between attempts; the last one repeats."""

FIRST_QUIET_MS, LONGEST_QUIET_MS = 2_000, 60_000
"""Between two lines about the same wait: 2, 4, 8 ... 60 s."""


class Patience:
    """Repeats what failed for a reason that may pass. Anything else, and the end of patience, is raised."""

    def __init__(
        self,
        limit: Millis,
        clock: Clock | None = None,
        pause: Callable[[float], object] | None = None,
        *,
        hint: str = "",
    ) -> None:
        """`hint`: what a person may look at meanwhile; told with the first line of a wait."""
        self._limit = limit
        self._clock = clock or SystemClock()
        self._pause = pause or threading.Event().wait
        self._hint = f" ({hint})" if hint else ""

    def run(self, attempt: Callable[[], T], what: str) -> T:
        began, number = self._clock.now(), 0
        lines = _Lines(what, self._limit, self._hint)
        while True:
            try:
                result = attempt()
            except LaneError as error:
                waited = Millis(self._clock.now() - began)
                if not error.retriable or waited >= self._limit:
                    lines.gave_up(waited, error)
                    raise
                lines.failed(waited, error)
                self._pause(PAUSES_MS[min(number, len(PAUSES_MS) - 1)] / 1000)
                number += 1
            else:
                lines.answered(Millis(self._clock.now() - began))
                return result


class _Lines:
    """What the log says about one wait."""

    def __init__(self, what: str, limit: Millis, hint: str) -> None:
        self._what = what
        self._limit = limit
        self._hint = hint
        self._next = 0
        self._quiet = FIRST_QUIET_MS

    def failed(self, waited: Millis, error: LaneError) -> None:
        if waited < self._next:
            return
        left = (self._limit - waited) / 1000
        hint = self._hint if not self._next else ""
        log.warning("%s: no answer yet, trying on for %.0f s: %s%s", self._what, left, error, hint)
        self._next = waited + self._quiet
        self._quiet = min(2 * self._quiet, LONGEST_QUIET_MS)

    def answered(self, waited: Millis) -> None:
        if self._next:
            log.warning("%s: answered again after %.1f s", self._what, waited / 1000)

    def gave_up(self, waited: Millis, error: LaneError) -> None:
        if self._next:
            log.error("%s: gave up after %.1f s: %s", self._what, waited / 1000, error)
