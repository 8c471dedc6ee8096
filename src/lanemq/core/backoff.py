"""A wait that grows with every failure in a row."""

from dataclasses import dataclass
from typing import Final

from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis

BACKOFF_FIRST: Final = Millis(100)
BACKOFF_MAX: Final = Millis(30_000)


@dataclass(frozen=True, slots=True)
class Backoff:
    """A wait that grows with every failure: first, first*factor, first*factor**2 ... up to `most`."""

    first: Millis = BACKOFF_FIRST
    factor: float = 2.0
    most: Millis = BACKOFF_MAX

    def __post_init__(self) -> None:
        if not (0 < self.first <= self.most and self.factor >= 1):
            raise InvalidOption(
                f"back-off first={self.first} factor={self.factor} most={self.most} does not grow: "
                f"use 0 < first <= most and factor >= 1"
            )

    def delay(self, failures: int) -> Millis:
        """The wait after that many failures in a row (1 or more); jitter is the caller's to add."""
        # The exponent is capped because float overflow would raise long before `most` matters.
        return Millis(int(min(float(self.most), self.first * self.factor ** min(failures - 1, 60))))
