"""Held and parked keys of a pipeline, for Python programs; `lanemq pipeline parked` does the same.

    lanes = parked("/data/checkpoints/orders")
    for lane in lanes.waiting():
        print(lane.lane, lane.reason, len(lane.messages))
    lanes.redrive("order-42")

Works on the checkpoint's files, whether or not the pipeline runs, without Spark and without the broker.

Invariant: nothing here changes state. A request is written to the checkpoint; the running pipeline carries it out
within a second, or its next start does, so that it has its place in the order of batches.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec

from lanemq.clock import wall_time
from lanemq.files import StorePath, locate
from lanemq.model.errors import StateLost, UsageError
from lanemq.pipelines.checkpoint.checkpoint import need_identity, run_log_of_stage, stage_folder
from lanemq.pipelines.checkpoint.unit_record import state_after_last_unit
from lanemq.pipelines.stages.transitions.manifest import EMPTY, Manifest, read_manifest
from lanemq.pipelines.stages.transitions.messages import WaitingMessage
from lanemq.pipelines.stages.transitions.operator_requests import pending_requests, request_discard, request_redrive
from lanemq.pipelines.stages.transitions.shard import KeyLane, ShardFiles, WaitReason, key_of, read_plain
from lanemq.pipelines.stages.transitions.timers import Timer

if TYPE_CHECKING:  # it needs PySpark
    from lanemq.pipelines.pipeline import Pipeline

T = TypeVar("T")


class WaitingKey(msgspec.Struct, frozen=True):
    """A held or parked key as lists show it, without its messages."""

    key: str
    """The name for requests: the key itself, or a name for a queue's messages without a key."""
    shard: str
    state: str
    """The value of a `WaitReason`."""
    reason: str
    messages: int
    failures: int
    since: datetime
    retry_at: datetime | None
    """Time of the next retry; None if an operator, or a missing message, must come first."""
    requested: str | None
    """What a person has requested, and the pipeline has not done yet."""


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
    timers: tuple[Timer, ...] = ()
    """Its timers, the earliest first. One that failed is not among them: it waits in `held`."""


def waiting_key(lane: HeldLane, requested: str | None = None) -> WaitingKey:
    """A lane as lists show it. `requested`: what was requested for it."""
    why, count = lane.why.value, len(lane.messages)
    return WaitingKey(
        lane.lane, lane.shard, why, lane.reason, count, lane.failures, lane.since, lane.retry_at, requested
    )


class ParkedLanes:
    """The held and parked lanes of one pipeline; returned by `parked`."""

    def __init__(self, checkpoint: StorePath) -> None:
        self.checkpoint = checkpoint
        self._stage = stage_folder(checkpoint)

    def waiting(self, *, held: bool = False) -> list[HeldLane]:
        """Lanes that wait for an operator or a missing message; `held`: also those that are retried automatically."""
        return list_parked(self._stage, held=held)

    def keys(self, *, held: bool = False) -> list[WaitingKey]:
        """As `waiting`, without the messages, and with what was requested for each key."""
        lanes = self.waiting(held=held)
        requested = self._requested_for(lanes)
        return [waiting_key(lane, requested.get(lane.lane)) for lane in lanes]

    def show(self, key: str) -> LaneState:
        """The state of a key, and its waiting messages if it is held or parked."""
        found = show(self._stage, key)
        if not found:
            raise UsageError(
                f"key {key!r} is unknown: the pipeline has seen no message of it, or its state expired; check the name"
            )
        return found[0]

    def redrive(self, key: str | None = None, *, everything: bool = False) -> list[HeldLane]:
        """Request that waiting messages are tried again, in order, before newer ones. Returns the chosen lanes."""
        chosen = self.chosen(key, everything=everything)
        if chosen:
            request_redrive(self._stage, key, everything=everything)
        return chosen

    def discard(self, key: str | None = None, *, everything: bool = False, first_only: bool = False) -> list[HeldLane]:
        """Request that waiting messages become dead letters. Returns the chosen lanes.

        `first_only`: only the message that failed; the rest is tried again.
        """
        chosen = self.chosen(key, everything=everything)
        if chosen:
            request_discard(self._stage, key, everything=everything, first_only=first_only)
        return chosen

    def chosen(self, key: str | None = None, *, everything: bool = False) -> list[HeldLane]:
        """The lanes that a request would be about: one key, or all that are held or parked."""
        if (key is None) != everything:
            raise UsageError("give one key, or everything=True, but not both")
        found = [each for each in self.waiting(held=True) if everything or each.lane == key]
        if not found and not everything:
            raise UsageError(
                f"key {key!r} is neither held nor parked, so nothing was requested; waiting(held=True) lists those "
                f"that are"
            )
        return found

    def requested(self) -> dict[str, str]:
        """Held and parked lanes with a pending request, and the latest request for each."""
        return self._requested_for(self.waiting(held=True)) if pending_requests(self._stage) else {}

    def _requested_for(self, lanes: Iterable[HeldLane]) -> dict[str, str]:
        names = [lane.lane for lane in lanes]
        requests = sorted(pending_requests(self._stage), key=lambda request: request.asked)
        return {name: each.action for each in requests for name in names if each.lane in (None, name)}

    def counts(self) -> dict[str, int]:
        """The number of lanes by reason: `parked`, `held` or `gap`."""
        found = [each.why for each in self.waiting(held=True)]
        return {why.value: found.count(why) for why in sorted(WaitReason) if why in found}


def parked(pipeline: "Pipeline | StorePath | str") -> ParkedLanes:
    """The held and parked keys of a pipeline, given the pipeline or its checkpoint's folder."""
    folder = checkpoint_of(pipeline)
    need_identity(folder)
    return ParkedLanes(folder)


def checkpoint_of(pipeline: "Pipeline | StorePath | str") -> StorePath:
    """The folder of a pipeline's checkpoint, given the pipeline or the folder."""
    return pipeline.folder if hasattr(pipeline, "folder") else locate(pipeline)


def list_parked(folder: StorePath, *, held: bool = True) -> list[HeldLane]:
    """The lanes that are held or parked, by shard; `held=False` leaves out those that are retried automatically."""
    found = read_newest(folder, lambda manifest: _waiting(folder, manifest))
    return [each for each in found if held or each.why is not WaitReason.HELD]


def show(folder: StorePath, key: str) -> list[LaneState]:
    """The key's state and what waits in it; one per shard that knows the key, so usually one or none."""

    def states(manifest: Manifest) -> Iterator[LaneState]:
        for shard, entry in manifest.shards.items():
            packed = ShardFiles(folder, manifest.query, shard).load(entry.version).lanes.get(key)
            if packed is not None:
                lane = read_plain(packed)
                held = held_lane(shard, key, lane)
                seen = wall_time(lane.seen) if lane.seen > 0 else None
                timers = tuple(Timer(key_of(key), each.name, each.due, each.clock, 1) for each in lane.timers)
                yield LaneState(key, shard, lane.state, lane.number, seen, held, timers)

    return read_newest(folder, states)


def read_newest(folder: StorePath, read: Callable[[Manifest], Iterable[T]]) -> list[T]:
    """What `read` returns for the newest manifest. If a running pipeline removes its files, there is a newer one."""
    failed = EMPTY
    while True:
        manifest = read_manifest(state_after_last_unit(run_log_of_stage(folder)))
        try:
            return list(read(manifest))
        except StateLost:
            if manifest == failed:
                raise
            failed = manifest


def _waiting(folder: StorePath, manifest: Manifest) -> Iterator[HeldLane]:
    for name, entry in manifest.shards.items():
        if entry.waiting:
            shard = ShardFiles(folder, manifest.query, name).load(entry.version)
            for lane in shard.meta.waiting:
                held = held_lane(name, lane, read_plain(shard.lanes[lane]))
                if held is not None:
                    yield held


def held_lane(shard: str, name: str, lane: KeyLane) -> HeldLane | None:
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
