"""A wait that grows with every failure in a row."""

from dataclasses import dataclass

from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis


@dataclass(frozen=True, slots=True)
class Backoff:
    """A wait in seconds that grows with every failure: first, first*factor, first*factor**2 ... up to `max`."""

    first: float = 0.1
    factor: float = 2.0
    max: float = 30.0

    def __post_init__(self) -> None:
        if not (0 < self.first <= self.max and self.factor >= 1):
            raise InvalidOption(
                f"Backoff(first={self.first:g}, factor={self.factor:g}, max={self.max:g}) does not grow: "
                f"use 0 < first <= max and factor >= 1"
            )

    def delay(self, failures: int) -> Millis:
        """The wait after `failures` failures in a row (1 or more), in milliseconds. The caller adds jitter."""
        # The exponent is capped because a float would overflow long before `max` matters.
        return Millis(round(min(self.max, self.first * self.factor ** min(failures - 1, 60)) * 1000))
