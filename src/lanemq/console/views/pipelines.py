"""Pipelines: what `lanemq pipeline status` says of each."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from lanemq.model.wording import plural


class PipelineQueue(msgspec.Struct):
    """One queue of a pipeline."""

    topic: str = ""
    queue: int = 0
    offset: int | None = None
    end: int | None = None
    lag: int | None = None


class DeadLetterCount(msgspec.Struct):
    """The dead letters of a pipeline; None: they are in a sink of their own."""

    count: int | None = None
    folder: str | None = None


class PipelineStatus(msgspec.Struct):
    """The answer of `lanemq pipeline status --json`."""

    pipeline: str
    checkpoint: str
    running: str | None = None
    epoch: int = 0
    batch: int | None = None
    unfinished_batch: int | None = None
    waiting_lanes: dict[str, int] = {}
    dead_letters: DeadLetterCount = msgspec.field(default_factory=DeadLetterCount)
    lag: int | None = None
    lag_seconds: float | None = None
    queues: list[PipelineQueue] = []
    note: str | None = None


@dataclass(frozen=True, slots=True)
class StatusAt:
    """A status and when it was read, in ms."""

    at: int
    status: PipelineStatus


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline on the screen."""

    name: str
    checkpoint: str
    state: str
    level: str
    starts: int
    batch: str
    rate: float | None
    lag: int | None
    lag_seconds: float | None
    waiting: str
    needs_person: bool
    dead_letters: str
    note: str


def pipeline_row(now: StatusAt, before: StatusAt | None) -> PipelineRow:
    status = now.status
    parked = status.waiting_lanes.get("parked", 0)
    waiting = ", ".join(f"{plural(count, 'key')} {why}" for why, count in status.waiting_lanes.items() if count)
    batch = "none yet" if status.batch is None else str(status.batch)
    if status.unfinished_batch is not None:
        batch += f", {status.unfinished_batch} is under way"
    dead = status.dead_letters.count
    return PipelineRow(
        status.pipeline,
        status.checkpoint,
        "running" if status.running else "not running",
        "good" if status.running else "none",
        status.epoch,
        batch,
        _rate(now, before),
        status.lag,
        status.lag_seconds,
        waiting or "none",
        parked > 0,
        "in a sink of their own" if dead is None else f"{dead:,}",
        status.note or "",
    )


def _rate(now: StatusAt, before: StatusAt | None) -> float | None:
    """Messages per second between two readings."""
    if before is None or now.at <= before.at:
        return None
    return max(0, _done(now.status.queues) - _done(before.status.queues)) * 1000 / (now.at - before.at)


def _done(queues: list[PipelineQueue]) -> int:
    return sum(each.offset or 0 for each in queues)


Readings = Mapping[str, tuple[StatusAt, StatusAt | None]]
"""The newest and the former status by place."""
