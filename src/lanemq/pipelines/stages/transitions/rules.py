"""The rules of a stage: what happens after a failure, how much state is kept, how events are numbered.

`Hold`, `Park`, `DeadLetter` and `StateLimits` are given by the user; `Rules` is all of it as the machine reads it.

Invariants: only `DeadLetter` lets later messages of a key pass a failed one, and it must be asked for with `skip=True`;
an error in the user's code affects only its own key, even if its text is not UTF-8, has no end, or raises when it is
read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec

from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import RETRY_FOREVER
from lanemq.model.errors import InvalidOption, OrderError
from lanemq.model.units import Millis, Seconds, to_millis, to_seconds
from lanemq.model.where_raised import where_raised
from lanemq.pipelines.stages.transitions.event_time import EventTime
from lanemq.pipelines.stages.transitions.messages import Event, OnTimer, Step, decode_empty_as_none
from lanemq.pipelines.stages.transitions.shard import LaneCodec

OnGap: TypeAlias = Literal["report", "hold", "fail"]
Number: TypeAlias = Callable[[Event], int]

MAX_REASON_CHARACTERS: Final = 4_000
"""Length of a reason; some errors quote the whole body."""

DISCARDED: Final = "discarded by an operator"
LATE_OR_AGAIN: Final = "came late or again"
"""Reasons by which `operate/dead_letters.py` recognises dead letters that "redrive everything" leaves out."""

_BOUND: Final = 1 << 63
_SHORTEST: Final = 0.001


@dataclass(frozen=True, slots=True)
class Hold:
    """The key waits and is retried between batches, at growing intervals. After its last retry it is parked."""

    retries: int = 16
    """Retries after the first failure; -1: no limit. Few park a key in a short outage, many hide a bug."""
    first: Seconds = 1.0
    """The first wait, in seconds. Every retry is a Spark job: below 0.1 Spark does little else."""
    max: Seconds = 300.0
    """The longest wait, in seconds. If it is long, a key whose cause is fixed still waits."""
    factor: float = 2.0
    """The growth of the wait with every failure."""

    def __post_init__(self) -> None:
        if self.retries < RETRY_FOREVER:
            raise InvalidOption(f"Hold(retries={self.retries}) has no meaning: use 0 or more, or -1 for no limit")
        self.backoff()

    def backoff(self) -> Backoff:
        """The waits, calculated as a consumer's are."""
        return Backoff(self.first, self.factor, self.max)


@dataclass(frozen=True, slots=True)
class Park:
    """The key is parked at once, until an operator redrives or discards it."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """After the retries of `hold` the message becomes a dead letter, and its key continues without it."""

    skip: bool
    """Must be True, to confirm that this gives up the order of the key."""
    hold: Hold = field(default_factory=lambda: Hold(retries=0))

    def __post_init__(self) -> None:
        if not self.skip:
            raise InvalidOption(
                "DeadLetter lets later messages of the key pass the failed one: confirm it with skip=True, "
                "or use Hold or Park to keep them waiting"
            )


Policy: TypeAlias = Hold | Park | DeadLetter


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Hold the lane and retry it after `delay`."""

    delay: Millis


@dataclass(frozen=True, slots=True)
class ParkLane:
    """Park the lane until an operator decides."""


@dataclass(frozen=True, slots=True)
class SkipMessage:
    """Make the message a dead letter and continue."""


NextStep: TypeAlias = RetryLater | ParkLane | SkipMessage


def next_step(policy: Policy, failures: int) -> NextStep:
    """What to do with a message that has failed `failures` times (1 or more)."""
    match policy:
        case Park():
            return ParkLane()
        case DeadLetter(hold=hold):
            return _retry(hold, failures) or SkipMessage()
        case Hold():
            return _retry(policy, failures) or ParkLane()


def _retry(hold: Hold, failures: int) -> RetryLater | None:
    if hold.retries == RETRY_FOREVER or failures <= hold.retries:
        return RetryLater(hold.backoff().delay(failures))
    return None


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Bounds on the state of one stage. Exceeding one is an error that names it, unless the option says otherwise."""

    max_keys_per_shard: int = 5_000_000
    """Keys of a shard, which is in the memory of one worker, at about 200 bytes per key plus its state. Too low: a
    growing number of keys stops the pipeline. Too high: the worker runs out of memory instead."""
    max_bytes_per_shard: int = 2 * 1024**3
    """Bytes of a shard's states and of the messages that wait in its lanes. Too low: growing states stop the
    pipeline. Too high: the worker runs out of memory instead."""
    expire_after: Seconds | None = None
    """Seconds without a message after which a key's state is forgotten, by the store times that its shard has seen.
    None: never. Too short: a key that comes back starts with no state."""
    forget_numbers_after: Seconds | None = None
    """With `sequence=`, seconds for which the number of a key without state is kept, at about 200 bytes. None:
    always. Too short: a key that comes back begins at `first_number` again, so its events count as gaps, or wait
    with `on_gap="hold"`, and its old repeats are applied."""
    max_waiting_per_lane: int = 10_000
    """Messages that wait in one lane. They are part of the state: long lanes make every batch write more."""
    max_waiting_bytes_per_lane: int = 64 * 1024**2
    """Bytes of the bodies that wait in one lane."""
    when_lane_is_full: Literal["stop", "dead_letter"] = "stop"
    """`stop` fails the batch and loses nothing. `dead_letter` keeps other keys going and gives up this key's order."""
    max_producers_per_shard: int = 1_024
    """Producers whose stamps are remembered; the one silent for longest is forgotten first, and its repeats pass."""
    max_cache_keys_per_worker: int = 4_000_000
    """Keys that a worker keeps in memory between batches. Too low: every batch reads state from files."""
    max_cache_bytes_per_worker: int = 2 * 1024**3
    """Bytes of the states that a worker keeps in memory between batches."""
    snapshot_every: int = 64
    """Change files of a shard between two snapshots, at most. Few: more is written. Many: a restart reads more."""

    def __post_init__(self) -> None:
        for name in (
            "max_keys_per_shard",
            "max_bytes_per_shard",
            "max_waiting_per_lane",
            "max_waiting_bytes_per_lane",
            "max_producers_per_shard",
            "max_cache_keys_per_worker",
            "max_cache_bytes_per_worker",
            "snapshot_every",
        ):
            if getattr(self, name) < 1:
                raise InvalidOption(f"StateLimits({name}={getattr(self, name)}) leaves no room: use 1 or more")
        expire = None if self.expire_after is None else to_seconds(self.expire_after)
        if expire is not None and expire < _SHORTEST:
            raise InvalidOption(f"StateLimits(expire_after={expire}): use {_SHORTEST} seconds or more, None for never")
        forget = None if self.forget_numbers_after is None else to_seconds(self.forget_numbers_after)
        if forget is not None and forget < (expire or _SHORTEST):
            raise InvalidOption(
                f"StateLimits(forget_numbers_after={forget}): use {expire or _SHORTEST} "
                f"seconds or more (a number is kept at least as long as the state), None for never"
            )
        if self.when_lane_is_full not in ("stop", "dead_letter"):
            raise InvalidOption(
                f"StateLimits(when_lane_is_full={self.when_lane_is_full!r}): use 'stop' or 'dead_letter'"
            )

    @property
    def expire_after_ms(self) -> int | None:
        """`expire_after` in milliseconds, as store times are."""
        return None if self.expire_after is None else to_millis(self.expire_after)

    @property
    def forget_numbers_after_ms(self) -> int | None:
        """`forget_numbers_after` in milliseconds, as store times are."""
        return None if self.forget_numbers_after is None else to_millis(self.forget_numbers_after)


class Early(OrderError):
    """An event whose number is higher than the next one of its key."""

    def __init__(self, number: int, expected: int) -> None:
        self.number = number
        super().__init__(f"number {number} came, {expected} is missing")


class Late(OrderError):
    """An event that was never applied, and whose key has continued without it.

    `doubtful`: it may be a repeat; the key has missed too many numbers to know.
    """

    def __init__(self, number: int, reached: int, *, doubtful: bool = False) -> None:
        self.number = number
        late = f"number {number} came late, its key had continued to {reached} without it"
        again = f"number {number} {LATE_OR_AGAIN}: its key has continued to {reached}, and missed too many to know"
        super().__init__(again if doubtful else late)


class BehindWatermark(OrderError):
    """An event behind the watermark, where such events become dead letters."""


class UnfitState(InvalidOption):
    """A state that is not the same after it was written and read. It fails the batch: no policy for a key can help."""


PASSED_ON: Final = (UnfitState, KeyboardInterrupt, GeneratorExit)
"""Errors that end the batch. All others fail the event, also `SystemExit` and a `BaseException` of the user's own."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything the machine needs to know about a step, apart from state."""

    step: Step
    decode: Callable[[Any], Any]
    """Decodes a body that is not empty."""
    shape: Callable[[Mapping[str, object]], tuple[Any, ...]]
    """Checks a row and returns its values in column order."""
    policy: Policy
    limits: StateLimits = field(default_factory=StateLimits)
    codec: LaneCodec = field(default_factory=LaneCodec)
    number: Number | None = None
    on_gap: OnGap = "report"
    first_number: int | None = 1
    """The number that a key begins with; None: any."""
    by_queue: bool = True
    """Whether shards are queues. Otherwise a shard never sees all messages of a queue, so missing stamps and offsets
    mean nothing."""
    one_queue_per_key: bool = False
    """Whether a key in a second queue is refused. Without numbers its events could not be ordered."""
    decode_empty: Callable[[Any], Any] = decode_empty_as_none
    """Decodes an empty or missing body. Separate from `decode` because an extra call per message is measurable."""
    on_timer: OnTimer | None = None
    event_time: EventTime = field(default_factory=EventTime)
    timed: bool = False
    """Whether event time and timers are followed: the step or `on_timer` takes a context."""

    def value(self, body: bytes | None) -> Any:
        """The decoded body."""
        return self.decode(body) if body else self.decode_empty(body)


def numbering(sequence: str | Number | None) -> Number | None:
    """The function that reads an event's number, from a field's name or a function of the event.

    The number becomes part of the key's state, so anything but a 64-bit integer is an error.
    """
    if sequence is None:
        return None
    if not callable(sequence) and not isinstance(sequence, str):
        raise InvalidOption(f"sequence={sequence!r}: use the name of a field, or a function of the event")
    function = sequence if callable(sequence) else None
    name = sequence if isinstance(sequence, str) else ""

    def number(event: Event) -> int:
        value = event.value
        if function is not None:
            found = function(event)
        elif isinstance(value, Mapping):
            found = value[name]
        else:
            found = getattr(value, name)
        if type(found) is not int or not -_BOUND <= found < _BOUND:
            raise TypeError(f"{name or 'sequence'!r} is {found!r:.100}, not a 64-bit integer")
        return found

    return number


# The text of an error that the user's code raised. It is stored in state files and dead letters, which hold many keys.


def error_text(error: BaseException) -> str:
    """The error's message, shortened and with escapes for what cannot be stored."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's code
        text = "(an error that has no text)"
    return storable(text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]} …")


def storable(text: str) -> str:
    """The text with escapes for lone surrogates, which are not UTF-8, and for NUL, which PostgreSQL refuses."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def error_text_with_place(error: BaseException) -> str:
    """As `error_text`, with file, line and function: `no price at shop/steps.py:21 in price_of`."""
    place = where_raised(error)
    return f"{error_text(error)} at {storable(place)}" if place else error_text(error)


class FrozenOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options that must not change while state exists, as the first run recorded them in `stage.json`.

    With another number of shards keys lose their state. With other numbers, or numbers where there were none, new
    events are taken for repeats, or wait for events that came long ago.
    """

    shards: Literal["queue"] | int
    sequence: str | msgspec.UnsetType = msgspec.UNSET
    """`none`, `field <name>` or `function`; two functions cannot be compared."""
    first_number: int | msgspec.UnsetType | None = msgspec.UNSET
    """Not recorded where there are no numbers."""
    state: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    """The schema of the states, as the last run recorded it. It may change if the old states can still be read."""

    @classmethod
    def of(cls, shards: Literal["queue"] | int, sequence: object, first_number: int | None) -> "FrozenOptions":
        """Those among the options of a stage."""
        if sequence is None:
            return cls(shards, "none")
        return cls(shards, f"field {sequence}" if isinstance(sequence, str) else "function", first_number)

    def check_against(self, found: "FrozenOptions", stage_folder: object) -> None:
        """`InvalidOption` if the state in the folder was made with other options, `found`."""
        if found.shards != self.shards:
            raise InvalidOption(
                f"shards={self.shards!r}, but the state in {stage_folder} was made with shards={found.shards!r}: keys "
                f"would lose their state. Keep the number, or start with an empty checkpoint"
            )
        if found.sequence not in (self.sequence, msgspec.UNSET):
            raise InvalidOption(
                f"sequence is {self.sequence}, but the state in {stage_folder} was made with {found.sequence}: events "
                f"would be taken for repeats, or wait for numbers that were applied. Keep sequence=, or start with an "
                f"empty checkpoint"
            )
        # A key that has begun is not affected if others may begin with any number.
        if self.first_number is not None and found.first_number not in (self.first_number, msgspec.UNSET):
            raise InvalidOption(
                f"first_number={self.first_number}, but the state in {stage_folder} was made with "
                f"{found.first_number}: keep it, give first_number=None if a key may begin with any number, or start "
                f"with an empty checkpoint"
            )
