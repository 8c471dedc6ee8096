"""What happens to a key whose step failed, or whose message cannot be decoded.

The rule guarded here: only `DeadLetter` lets later messages of a key pass a failed one, and it must be asked for in
so many words. Everybody else's lane waits, with all that comes behind.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import RETRY_FOREVER
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis


@dataclass(frozen=True, slots=True)
class Hold:
    """The key waits and is tried again in passes, ever more seldom; when the retries are used up it is parked."""

    retries: int = 16
    """How often, after the first failure; -1: for ever. Few park on a short outage, many hide a bug."""
    first: float = 1.0
    """The first wait, in seconds. Every retry is a Spark job: below 0.1 Spark does little else."""
    max: float = 300.0
    """The longest wait, in seconds. If it is long, a key whose cause is mended still waits."""
    factor: float = 2.0

    def __post_init__(self) -> None:
        if self.retries < RETRY_FOREVER:
            raise InvalidOption(f"Hold(retries={self.retries}) has no meaning: use 0 or more, or -1 for ever")
        self.backoff()

    def backoff(self) -> Backoff:
        """The same arithmetic as a consumer's."""
        return Backoff(self.first, self.factor, self.max)


@dataclass(frozen=True, slots=True)
class Park:
    """The key is set aside at once, until a person redrives or discards it."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The message becomes a dead letter and its key goes on without it, after the retries of `hold`."""

    skip: bool
    """Must be True, written out: the order of the key is given up here."""
    hold: Hold = field(default_factory=lambda: Hold(retries=0))

    def __post_init__(self) -> None:
        if not self.skip:
            raise InvalidOption(
                "DeadLetter lets later messages of the key pass the failed one: say so with skip=True, "
                "or use Hold or Park to keep them waiting"
            )


Policy: TypeAlias = Hold | Park | DeadLetter


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Not before this many milliseconds have passed."""

    delay: Millis


@dataclass(frozen=True, slots=True)
class SetAside:
    """Wait for a person."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make it a dead letter and go on."""


NextStep: TypeAlias = TryAgain | SetAside | GiveUp


def after(policy: Policy, failures: int) -> NextStep:
    """The next step for a message that has now failed `failures` times (1 or more)."""
    match policy:
        case Park():
            return SetAside()
        case DeadLetter(hold=hold):
            return _again(hold, failures) or GiveUp()
        case Hold():
            return _again(policy, failures) or SetAside()


def _again(hold: Hold, failures: int) -> TryAgain | None:
    if hold.retries == RETRY_FOREVER or failures <= hold.retries:
        return TryAgain(hold.backoff().delay(failures))
    return None
