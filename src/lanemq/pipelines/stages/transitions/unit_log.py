"""What a stage writes down about its units of work: intents before, ledgers after.

Below the stage's place:

    stage.json              what must never change between two runs
    intents/<number>.json   a unit that was begun: what it starts from, its wall time, what persons decided
    ledger/<number>.json    a unit whose rows and state are complete: the version of every shard behind it
    requests/<id>.json      a person's decision that no pass has taken yet
    state/<shard>/...       see state_files.py
    work/<number>/...       rows for the sinks

The rules guarded here: a repeated unit starts from what its intent says, so it sees what the first attempt saw; a
unit starts only from a ledger, so state that went missing is noticed and never replaced by older state.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from lanemq.model.errors import StateLost
from lanemq.pipelines.atomic_files import read_json, write_json
from lanemq.pipelines.checkpoint.run_folder import write_as
from lanemq.pipelines.stages.transitions.operator_requests import Orders, Verb
from lanemq.pipelines.stages.transitions.shard import START, Version

K = TypeVar("K", bound=msgspec.Struct)


class Request(msgspec.Struct, frozen=True):
    """A person's decision about one lane, or about all that stand still (`lane` None)."""

    id: str
    verb: Verb
    lane: str | None
    asked: int


class Intent(msgspec.Struct, frozen=True):
    """Fixed before a unit runs, so that its repetition is the same."""

    number: int
    query: str
    base: int
    """The ledger it starts from; START: none."""
    wall: int
    requests: tuple[Request, ...] = ()
    shards: tuple[str, ...] = ()
    """Of a pass: where lanes are tried."""
    redrives: tuple[str, ...] = ()
    """Of a pass: files of dead letters that it gives to the step again."""

    def orders(self) -> Orders:
        """The later of two decisions about a lane counts."""
        asked = sorted(self.requests, key=lambda request: (request.asked, request.id))
        everything = [request.verb for request in asked if request.lane is None]
        named = {request.lane: request.verb for request in asked if request.lane is not None}
        return Orders(named, everything[-1] if everything else None)


class Entry(msgspec.Struct, frozen=True):
    """One shard behind a unit."""

    version: Version
    snapshot: int = START
    """The newest snapshot: older files are needed by older versions only."""
    keys: int = 0
    waiting: int = 0
    """Lanes that stand still."""
    parked: int = 0
    retry_at: int | None = None


class Ledger(msgspec.Struct, frozen=True):
    """Everything about the stage's state behind a unit."""

    number: int
    query: str
    shards: dict[str, Entry]


EMPTY = Ledger(START, "", {})
read_ledger: Callable[[str], Ledger] = msgspec.json.Decoder(Ledger).decode


class Books:
    """The intents and ledgers below one place, of which one process writes."""

    def __init__(self, place: Path) -> None:
        self.place = place
        # A runner asks four times a second what is due; with many queues the file is large.
        self._last = EMPTY

    def ledger_before(self, number: int) -> Ledger:
        """The newest below this number."""
        below = max((found for found in self.ledgers() if found < number), default=None)
        return EMPTY if below is None else self.ledger(below)

    def newest(self) -> Ledger:
        return self.ledger_before(2**63)

    def ledger(self, number: int) -> Ledger:
        if number == START:
            return EMPTY
        if self._last.number != number:
            self._last = self._read("ledger", number, Ledger)
        return self._last

    def ledgers(self) -> list[int]:
        return list(self._numbers("ledger"))

    def intent(self, number: int) -> Intent | None:
        """None: it was never begun, or is finished."""
        return self._read("intents", number, Intent) if self._path("intents", number).exists() else None

    def intents(self) -> list[int]:
        return list(self._numbers("intents"))

    def begin(self, intent: Intent) -> None:
        write_json(self._path("intents", intent.number), intent)

    def complete(self, ledger: Ledger, epoch: int) -> None:
        write_as(epoch, self.place, self._path("ledger", ledger.number), msgspec.json.encode(ledger))
        self._last = ledger

    def remove(self, kind: Literal["intents", "ledger"], number: int) -> None:
        self._path(kind, number).unlink(missing_ok=True)

    def requests(self) -> list[Request]:
        """What persons decided and no pass has taken."""
        folder = self.place / "requests"
        paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
        return [self._content(path, Request) for path in paths]

    def ask(self, request: Request) -> None:
        write_json(self.place / "requests" / f"{request.id}.json", request)

    def answered(self, request: Request) -> None:
        (self.place / "requests" / f"{request.id}.json").unlink(missing_ok=True)

    def _numbers(self, kind: str) -> Iterator[int]:
        folder = self.place / kind
        if folder.is_dir():
            yield from (int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())

    def _path(self, kind: str, number: int) -> Path:
        return self.place / kind / f"{number}.json"

    def _read(self, kind: str, number: int, what: type[K]) -> K:
        path = self._path(kind, number)
        try:
            return self._content(path, what)
        except FileNotFoundError:
            raise StateLost(f"{path} is missing: the stage's folder was changed by somebody else") from None

    def _content(self, path: Path, what: type[K]) -> K:
        found = read_json(path, what)
        assert isinstance(found, what)
        return found
