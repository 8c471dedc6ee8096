"""Waiting for a broker that is away: for a while, with a line in the log, then with the error that it gave."""

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


class Patience:
    """Repeats what failed for a reason that may pass. Anything else, and the end of patience, is raised."""

    def __init__(
        self, limit: Millis, clock: Clock | None = None, pause: Callable[[float], object] | None = None
    ) -> None:
        self._limit = limit
        self._clock = clock or SystemClock()
        self._pause = pause or threading.Event().wait

    def run(self, attempt: Callable[[], T], what: str) -> T:
        began, number = self._clock.now(), 0
        while True:
            try:
                return attempt()
            except LaneError as error:
                waited = self._clock.now() - began
                if not error.retriable or waited >= self._limit:
                    if number:
                        log.error("%s: gave up after %.1f s: %s", what, waited / 1000, error)
                    raise
                log.warning("%s: no answer yet, trying on for %.0f s: %s", what, (self._limit - waited) / 1000, error)
                self._pause(PAUSES_MS[min(number, len(PAUSES_MS) - 1)] / 1000)
                number += 1
