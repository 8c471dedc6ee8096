"""Warnings about something that lasts: a broker that is away is asked twice a second, and told of once a minute.

A log that repeats one line hides the line that matters. Another text is always told at once.
"""

import logging

from lanemq.clock import Clock
from lanemq.model.units import Millis

AGAIN_AFTER = Millis(60_000)


class Seldom:
    """A logger that tells the same text about the same thing again only after a minute."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[tuple[str, str], Millis] = {}

    def warn(self, about: str, text: str) -> None:
        now = self._clock.now()
        self._told = {told: at for told, at in self._told.items() if now - at < AGAIN_AFTER}
        if (about, text) not in self._told:
            self._told[about, text] = now
            self._log.warning("%s", text)
