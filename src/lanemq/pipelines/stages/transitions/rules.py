"""What a stage was told, in the form that the machine uses: everything about a step but the state."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from lanemq.model.errors import InvalidOption, LaneError, OrderError
from lanemq.pipelines.stages.transitions.decoding import tombstone
from lanemq.pipelines.stages.transitions.error_text import LATE_OR_AGAIN
from lanemq.pipelines.stages.transitions.event import Event, Row, Step
from lanemq.pipelines.stages.transitions.lane import LaneCodec
from lanemq.pipelines.stages.transitions.limits import StateLimits
from lanemq.pipelines.stages.transitions.policies import Policy

OnGap: TypeAlias = Literal["report", "hold", "fail"]
Number: TypeAlias = Callable[[Event], int]
OnExpire: TypeAlias = Callable[[Any, str | None], Iterable[Row]]
"""`on_expire(state, key) -> rows`: the last words of a state that is forgotten."""

_BOUND: Final = 1 << 63


class Early(OrderError):
    """An event whose number says that others of its key come before it."""

    def __init__(self, number: int, expected: int) -> None:
        self.number = number
        super().__init__(f"number {number} came, {expected} is missing")


class Late(OrderError):
    """An event whose key has gone on without it; no repeat, since it was never applied.

    `doubtful`: or it was, and the key has missed too many numbers to know.
    """

    def __init__(self, number: int, reached: int, *, doubtful: bool = False) -> None:
        self.number = number
        late = f"number {number} came late, its key had gone on to {reached} without it"
        again = f"number {number} {LATE_OR_AGAIN}: its key has gone on to {reached}, and missed too many to tell"
        super().__init__(again if doubtful else late)


class LastWordsFailed(LaneError):
    """`on_expire` failed for the state that an event's key had: the event's policy decides, as if its step had."""


class UnfitState(InvalidOption):
    """A state that the step would not get back as it gave it; no policy for one key can help."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One stage's rules. `first_number` None: a key may begin with any."""

    step: Step
    decode: Callable[[Any], Any]
    """Of a body that is not empty."""
    shape: Callable[[Mapping[str, object]], tuple[Any, ...]]
    policy: Policy
    limits: StateLimits = field(default_factory=StateLimits)
    codec: LaneCodec = field(default_factory=LaneCodec)
    number: Number | None = None
    on_gap: OnGap = "report"
    first_number: int | None = 1
    by_queue: bool = True
    """Whether a missing stamp or offset means anything: a share of the keys never has all of a queue's messages."""
    one_queue_a_key: bool = False
    """Whether a key in a second queue is refused: without numbers nothing says which of its events come first."""
    on_expire: OnExpire | None = None
    decode_empty: Callable[[Any], Any] = tombstone
    """Of one that is: apart, because on the hottest path there is a call is what costs."""

    def value(self, body: bytes | None) -> Any:
        return self.decode(body) if body else self.decode_empty(body)


def numbering(sequence: str | Number | None) -> Number | None:
    """How to read an event's number: a field's name, or a function of the event.

    Whatever it gives becomes part of the key's state, so a number is a whole one that can be stored, or an error.
    """
    if sequence is None:
        return None
    if not callable(sequence) and not isinstance(sequence, str):
        raise InvalidOption(f"sequence={sequence!r}: use the name of a field, or a function of the event")
    tell = sequence if callable(sequence) else None
    name = sequence if isinstance(sequence, str) else ""

    def number(event: Event) -> int:
        value = event.value
        if tell is not None:
            found = tell(event)
        elif isinstance(value, Mapping):
            found = value[name]
        else:
            found = getattr(value, name)
        if type(found) is not int or not -_BOUND <= found < _BOUND:
            raise TypeError(f"{name or 'sequence'!r} is {found!r:.100}, not a whole number of 64 bits")
        return found

    return number
