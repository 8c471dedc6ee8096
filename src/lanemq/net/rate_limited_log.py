"""Warnings about conditions that last, such as a broker that cannot be reached.

A log that repeats one line hides the line that matters.
"""

import logging

from lanemq.clock import Clock
from lanemq.model.units import Millis

AGAIN_AFTER = Millis(60_000)
MAX_TEXTS = 1_000
"""Texts remembered at once; while that many are, a new text is not logged."""


class RateLimitedLog:
    """Logs the same text about the same subject at most once a minute; another text is logged at once."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged: dict[tuple[str, str], Millis] = {}

    def warn(self, about: str, text: str) -> None:
        now = self._clock.now()
        self._logged = {key: at for key, at in self._logged.items() if now - at < AGAIN_AFTER}
        if (about, text) not in self._logged and len(self._logged) < MAX_TEXTS:
            self._logged[about, text] = now
            self._log.warning("%s", text)
