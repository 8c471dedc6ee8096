"""A wait that grows with every failure in a row."""

from dataclasses import dataclass

from lanemq.model.checks import check_kind, seconds
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis, Seconds, to_millis, to_seconds


@dataclass(frozen=True, slots=True)
class Backoff:
    """A wait that grows with every failure: first, first*factor, first*factor**2 ... up to `max`."""

    first: Seconds = 0.1
    """Seconds before the first retry."""
    factor: float = 2.0
    max: Seconds = 30.0
    """Seconds of the longest wait."""

    def __post_init__(self) -> None:
        check_kind("factor", self.factor, (int, float), "a number, at least 1")
        first, longest = seconds("first", self.first), seconds("max", self.max)
        if not (0 < first <= longest and self.factor >= 1):
            raise InvalidOption(
                f"Backoff(first={first:g}, factor={self.factor:g}, max={longest:g}) does not grow: "
                f"use 0 < first <= max and factor >= 1"
            )

    def delay(self, failures: int) -> Millis:
        """The wait after `failures` failures in a row (1 or more), in milliseconds. The caller adds jitter."""
        # The exponent is capped because a float would overflow long before `max` matters.
        grown = to_seconds(self.first) * self.factor ** min(failures - 1, 60)
        return to_millis(min(to_seconds(self.max), grown))
