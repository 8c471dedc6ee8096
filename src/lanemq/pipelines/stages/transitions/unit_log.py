"""What a stage records about its units of work: an intent before, a ledger after.

In the stage's folder:

    stage.json              options that must not change while state exists
    intents/<number>.json   a unit that was begun: what it starts from, its wall time, what operators requested
    ledger/<number>.json    a unit whose rows and state are complete: the version of every shard after it
    requests/<id>.json      an operator's request, see operator_requests.py
    redrives/...            dead letters to try again, see redrives.py
    state/<shard>/...       see state_files.py
    work/<number>/...       rows for the sinks

Invariants: a repeated unit starts from what its intent says, so it sees what the first attempt saw; a unit starts only
from a ledger, so missing state is noticed and never replaced by older state.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from lanemq.model.errors import InvalidOption, StateLost
from lanemq.pipelines.atomic_files import read_json, write_json
from lanemq.pipelines.checkpoint.checkpoint import write_as
from lanemq.pipelines.stages.transitions.operator_requests import OperatorRequest
from lanemq.pipelines.stages.transitions.shard import START, Version

K = TypeVar("K", bound=msgspec.Struct)


class Intent(msgspec.Struct, frozen=True):
    """Recorded before a unit runs, so that a repeated unit does the same."""

    number: int
    query: str
    base: int
    """The ledger it starts from; START: none."""
    wall: int
    """Wall time of the unit, milliseconds."""
    requests: tuple[OperatorRequest, ...] = ()
    shards: tuple[str, ...] = ()
    """Of a retry pass: the shards it works on."""
    redrives: tuple[str, ...] = ()
    """Of a retry pass: files of dead letters that it gives to the step again."""


class Entry(msgspec.Struct, frozen=True):
    """One shard after a unit."""

    version: Version
    snapshot: int = START
    """The unit of the newest snapshot; only older versions need older files."""
    keys: int = 0
    waiting: int = 0
    """Lanes that are held or parked."""
    parked: int = 0
    retry_at: int | None = None
    """Wall time of the next retry, milliseconds."""


class Ledger(msgspec.Struct, frozen=True):
    """The stage's state after a unit."""

    number: int
    query: str
    shards: dict[str, Entry]


EMPTY = Ledger(START, "", {})
read_ledger: Callable[[str], Ledger] = msgspec.json.Decoder(Ledger).decode


class UnitLog:
    """The intents and ledgers in a stage's folder. Only one process writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Cached because a runner asks four times a second what is due, and with many queues the file is large.
        self._last = EMPTY

    def ledger_before(self, number: int) -> Ledger:
        """The newest ledger below this number."""
        below = max((found for found in self.ledgers() if found < number), default=None)
        return EMPTY if below is None else self.ledger(below)

    def newest(self) -> Ledger:
        """The newest ledger; an empty one before the first unit."""
        return self.ledger_before(2**63)

    def ledger(self, number: int) -> Ledger:
        """The ledger of a unit."""
        if number == START:
            return EMPTY
        if self._last.number != number:
            self._last = self._read("ledger", number, Ledger)
        return self._last

    def ledgers(self) -> list[int]:
        """The units that have a ledger, in no order."""
        return list(self._numbers("ledger"))

    def intent(self, number: int) -> Intent | None:
        """The intent of a unit; None if it was never begun, or is finished."""
        return self._read("intents", number, Intent) if self._path("intents", number).exists() else None

    def intents(self) -> list[int]:
        """The units that are begun and not finished, in no order."""
        return list(self._numbers("intents"))

    def begin(self, intent: Intent) -> None:
        """Records a unit before it runs."""
        write_json(self._path("intents", intent.number), intent)

    def complete(self, ledger: Ledger, epoch: int) -> None:
        """Records the state after a unit, unless a newer run of the pipeline has replaced this one."""
        write_as(epoch, self.folder, self._path("ledger", ledger.number), msgspec.json.encode(ledger))
        self._last = ledger

    def remove(self, kind: Literal["intents", "ledger"], number: int) -> None:
        self._path(kind, number).unlink(missing_ok=True)

    def _numbers(self, kind: str) -> Iterator[int]:
        folder = self.folder / kind
        if folder.is_dir():
            yield from (int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / kind / f"{number}.json"

    def _read(self, kind: str, number: int, what: type[K]) -> K:
        path = self._path(kind, number)
        try:
            found = read_json(path, what)
        except FileNotFoundError:
            raise StateLost(f"{path} is missing: another program changed the stage's folder") from None
        assert isinstance(found, what)
        return found


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

    @classmethod
    def of(cls, shards: Literal["queue"] | int, sequence: object, first_number: int | None) -> "FrozenOptions":
        """Those among the options of a stage."""
        if sequence is None:
            return cls(shards, "none")
        return cls(shards, f"field {sequence}" if isinstance(sequence, str) else "function", first_number)

    def freeze(self, stage_folder: Path) -> None:
        """Records the options at the first start; refuses different ones at a later start."""
        path = stage_folder / "stage.json"
        if not path.exists():
            write_json(path, self)
        found: Any = read_json(path, FrozenOptions)
        self._check(stage_folder, found)
        if found.sequence is msgspec.UNSET:  # written by a version that did not record it
            write_json(path, self)

    def _check(self, stage_folder: Path, found: "FrozenOptions") -> None:
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
