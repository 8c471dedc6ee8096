"""What a stage writes down about its units of work: the intent before one runs, and the manifest after it.

    intents/<number>.json     a unit that was begun: what it starts from, its wall time, what operators requested
    manifests/<number>.json   a unit whose rows and state are complete: the version of every shard after it

Invariant: a repeated unit reads its first attempt's intent, so it has the same wall time and the same event time.
"""

from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import msgspec

from lanemq.files import StorePath
from lanemq.model.errors import StateLost
from lanemq.pipelines.checkpoint.fencing import read_fenced_json, remove_fenced, write_as
from lanemq.pipelines.stages.transitions.event_time import QueueTime
from lanemq.pipelines.stages.transitions.operator_requests import OperatorRequest
from lanemq.pipelines.stages.transitions.shard import START, Version

K = TypeVar("K", bound=msgspec.Struct)


class Intent(msgspec.Struct, frozen=True):
    """Recorded before a unit runs, so that a repeated unit does the same."""

    number: int
    query: str
    base: int
    """The number of the manifest that it starts from; START: none."""
    wall: int
    """Wall time of the unit, milliseconds."""
    requests: tuple[OperatorRequest, ...] = ()
    shards: tuple[str, ...] = ()
    """Of a retry pass: the shards it works on."""
    redrives: tuple[str, ...] = ()
    """Of a retry pass: files of dead letters that it gives to the step again."""
    watermark: int = 0
    """How far event time has come by what all queues have read, milliseconds; 0: unknown."""
    idle: tuple[str, ...] = ()
    """Of a retry pass: idle queues, whose keys continue with this watermark."""


class ShardEntry(msgspec.Struct, frozen=True):
    """One shard in a manifest."""

    version: Version
    snapshot: int = START
    """The unit of the newest snapshot; only older versions need older files."""
    keys: int = 0
    waiting: int = 0
    """Lanes that are held or parked."""
    parked: int = 0
    retry_at: int | None = None
    """Wall time of the next retry, milliseconds."""
    timers: int = 0
    """Keys with timers that do not wait."""
    timer_at: int | None = None
    """Wall time at which the first timer in processing time is due, milliseconds."""
    event_timer_at: int | None = None
    """Event time at which the first timer in event time is due, milliseconds."""


class Manifest(msgspec.Struct, frozen=True):
    """The stage's state after a unit: where to find every shard, and what waits in it."""

    number: int
    query: str
    shards: dict[str, ShardEntry]
    wall: int = 0
    """Wall time of the unit, milliseconds."""
    times: dict[str, QueueTime] = {}
    """How far event time has come in each queue; empty if the step takes no context."""
    watermark: int = 0
    """How far event time had come by what all queues had read when the unit began, milliseconds; 0: unknown."""


EMPTY = Manifest(START, "", {})
read_manifest: Callable[[str], Manifest] = msgspec.json.Decoder(Manifest).decode


class UnitLog:
    """The intents and manifests in a stage's folder. Only one process writes them."""

    def __init__(self, folder: StorePath) -> None:
        self.folder = folder
        # Cached because a runner asks four times a second what is due, and with many queues the file is large.
        self._last = EMPTY

    def manifest_before(self, number: int) -> Manifest:
        """The newest manifest below this number."""
        below = max((found for found in self.manifests() if found < number), default=None)
        return EMPTY if below is None else self.manifest(below)

    def newest(self) -> Manifest:
        """The newest manifest; an empty one before the first unit."""
        return self.manifest_before(2**63)

    def manifest(self, number: int) -> Manifest:
        """The manifest of a unit."""
        if number == START:
            return EMPTY
        if self._last.number != number:
            self._last = self._read("manifests", number, Manifest)
        return self._last

    def manifests(self) -> list[int]:
        """The units that have a manifest, in no order."""
        return list(self._numbers("manifests"))

    def intent(self, number: int) -> Intent | None:
        """The intent of a unit; None if it was never begun, or is finished."""
        return self._read("intents", number, Intent) if self._path("intents", number).exists() else None

    def intents(self) -> list[int]:
        """The units that are begun and not finished, in no order."""
        return list(self._numbers("intents"))

    def begin(self, intent: Intent, epoch: int) -> None:
        """Records a unit before it runs, unless a newer run of the pipeline has replaced this one."""
        write_as(epoch, self.folder, self._path("intents", intent.number), msgspec.json.encode(intent))

    def complete(self, manifest: Manifest, epoch: int) -> None:
        """Records the state after a unit, unless a newer run of the pipeline has replaced this one."""
        write_as(epoch, self.folder, self._path("manifests", manifest.number), msgspec.json.encode(manifest))
        self._last = manifest

    def remove(self, kind: Literal["intents", "manifests"], number: int) -> None:
        remove_fenced(self._path(kind, number))

    def _numbers(self, kind: str) -> Iterator[int]:
        folder = self.folder / kind
        if folder.is_dir():
            yield from (int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())

    def _path(self, kind: str, number: int) -> StorePath:
        return self.folder / kind / f"{number}.json"

    def _read(self, kind: str, number: int, what: type[K]) -> K:
        path = self._path(kind, number)
        try:
            found = read_fenced_json(path, what)
        except FileNotFoundError:
            raise StateLost(f"{path} is missing: another program changed the stage's folder") from None
        assert isinstance(found, what)
        return found
