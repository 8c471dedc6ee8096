"""What operators see of a stage's lanes, whether or not the pipeline runs.

Reads the stage's files only: no Spark, no broker.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from lanemq.clock import wall_time
from lanemq.model.errors import StateLost
from lanemq.pipelines.stages.transitions.messages import WaitingMessage
from lanemq.pipelines.stages.transitions.shard import START, KeyLane, WaitReason, key_of, read_plain
from lanemq.pipelines.stages.transitions.state_files import ShardFiles
from lanemq.pipelines.stages.transitions.unit_log import Ledger, UnitLog

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldLane:
    """A lane that is held or parked."""

    lane: str
    """The name for requests: the key itself, or a name for a queue's messages without a key."""
    key: str | None
    shard: str
    why: WaitReason
    reason: str
    since: datetime
    failures: int
    retry_at: datetime | None
    """Time of the next retry; None if an operator, or a missing message, must come first."""
    messages: tuple[WaitingMessage, ...]
    """The first one is the one that failed. Bodies are as they were sent."""


@dataclass(frozen=True, slots=True)
class LaneState:
    """A key as the last finished unit of work left it."""

    lane: str
    shard: str
    state: object
    number: int | None
    seen_at: datetime | None
    """Store time of its newest message; None if it has seen only redriven dead letters."""
    held: HeldLane | None


def list_parked(stage_folder: Path, *, held: bool = True) -> list[HeldLane]:
    """The lanes that are held or parked, by shard; `held=False` leaves out those that are retried automatically."""
    found = _read_newest(stage_folder, _waiting)
    return [each for each in found if held or each.why is not WaitReason.HELD]


def show(stage_folder: Path, key: str) -> list[LaneState]:
    """The key's state and what waits in it; one per shard that knows the key, so usually one or none."""

    def states(ledger: Ledger) -> Iterator[LaneState]:
        for shard, entry in ledger.shards.items():
            packed = ShardFiles(stage_folder, ledger.query, shard).load(entry.version).lanes.get(key)
            if packed is not None:
                lane = read_plain(packed)
                held = _held(shard, key, lane)
                yield LaneState(
                    key, shard, lane.state, lane.number, wall_time(lane.seen) if lane.seen > 0 else None, held
                )

    return _read_newest(stage_folder, lambda _, ledger: states(ledger))


def _read_newest(stage_folder: Path, read: Callable[[Path, Ledger], Iterable[T]]) -> list[T]:
    """Reads by the newest ledger. If a running pipeline removed its files, there is a newer one to read by."""
    unit_log, failed = UnitLog(stage_folder), None
    while True:
        number = max(unit_log.ledgers(), default=START)
        try:
            return list(read(stage_folder, unit_log.ledger(number)))
        except StateLost:
            if number == failed:
                raise
            failed = number


def _waiting(stage_folder: Path, ledger: Ledger) -> Iterator[HeldLane]:
    for name, entry in ledger.shards.items():
        if entry.waiting:
            shard = ShardFiles(stage_folder, ledger.query, name).load(entry.version)
            for lane in shard.meta.waiting:
                held = _held(name, lane, read_plain(shard.lanes[lane]))
                if held is not None:
                    yield held


def _held(shard: str, name: str, lane: KeyLane) -> HeldLane | None:
    waiting = lane.waiting
    if waiting is None:
        return None
    return HeldLane(
        lane=name,
        key=key_of(name),
        shard=shard,
        why=waiting.why,
        reason=waiting.reason,
        since=wall_time(waiting.since),
        failures=waiting.failures,
        retry_at=wall_time(waiting.retry_at) if waiting.why is WaitReason.HELD else None,
        messages=tuple(waiting.messages),
    )
