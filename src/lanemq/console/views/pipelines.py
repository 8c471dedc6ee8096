"""Pipelines: what `lanemq pipeline` says of each, of its waiting keys and dead letters, and what a change will do."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from lanemq.model.wording import plural

OPEN_STATES = frozenset({"open", "doubtful", "timer"})
"""States of dead letters about which no person has decided."""
NOT_IN_TIME = "its checkpoint was not read in time"
"""The problem of a pipeline that is being read while its page is shown."""


class PipelineQueue(msgspec.Struct):
    """One queue of a pipeline."""

    topic: str = ""
    broker: str = ""
    queue: int = 0
    offset: int | None = None
    end: int | None = None
    lag: int | None = None


class DeadLetterCount(msgspec.Struct):
    """The dead letters of a pipeline; None: they are in a sink of their own."""

    count: int | None = None
    settled: int = 0
    """Those of them that are notices of messages which do not wait any more."""
    folder: str | None = None


class PipelineLane(msgspec.Struct):
    """A held or parked key, from `lanemq pipeline parked list --held --json`."""

    key: str
    state: str
    reason: str
    messages: int
    failures: int = 0
    since: datetime | None = None
    retry_at: datetime | None = None
    decided: str | None = None
    """What a person has asked for, and the pipeline has not done yet."""


class PipelineStatus(msgspec.Struct):
    """The answer of `lanemq pipeline status --waiting --json`."""

    pipeline: str
    checkpoint: str
    group: str | None = None
    """The consumer group as which it commits; None if it has none."""
    topics: list[str] = []
    """Empty if they are chosen by a pattern."""
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
    lanes: list[PipelineLane] = []
    """Keys that wait, parked ones first; of many only the first ones."""
    waiting_messages: dict[str, int] = {}
    """How many messages wait in all keys, by the same reasons as `waiting_lanes`."""
    dead_letters_by_state: dict[str, int] | None = None
    """None: they are in a sink of their own."""

    @property
    def lanes_left_out(self) -> int:
        return max(0, sum(self.waiting_lanes.values()) - len(self.lanes))

    @property
    def letters(self) -> int:
        """Dead letters in any state."""
        return sum((self.dead_letters_by_state or {}).values())

    @property
    def open_letters(self) -> int:
        """Dead letters about which no person has decided."""
        return sum(count for state, count in (self.dead_letters_by_state or {}).items() if state in OPEN_STATES)


class PipelineMessage(msgspec.Struct):
    """A message that waits in a key."""

    queue: int
    offset: int
    topic: str = ""
    broker: str = ""
    id: str | None = None
    value: object = None


class ShownLane(msgspec.Struct):
    """The answer of `lanemq pipeline parked show --json`."""

    key: str
    state: object = None
    """The state that the step keeps for the key."""
    held: PipelineLane | None = None
    messages: list[PipelineMessage] = []


class PipelineDeadLetter(msgspec.Struct):
    """A dead letter, from `lanemq pipeline dead-letters list --json`."""

    dead_letter: str
    topic: str
    state: str
    reason: str
    broker: str = ""
    queue: int = 0
    offset: int = 0
    key: str | None = None
    tags: str | None = None
    id: str | None = None
    stored_at: datetime | None = None
    attempts: int = 0
    batch: int = 0
    value: object = None
    """The body; only `show` has it."""


@dataclass(frozen=True, slots=True)
class StatusAt:
    """A status and when it was read, in ms."""

    at: int
    status: PipelineStatus
    took: float = 0.0
    """Seconds of reading."""


@dataclass(frozen=True, slots=True)
class PipelineNow:
    """A pipeline as far as the console knows it."""

    number: int
    place: str
    """The last part of the checkpoint's name."""
    status: PipelineStatus | None
    """None: it was not read; `problem` says why."""
    problem: str = ""
    former: PipelineStatus | None = None
    """The last status that was read, however old; it names the pipeline and its group."""

    @property
    def group(self) -> str | None:
        """The group as which it commits, if that is known."""
        known = self.status or self.former
        return None if known is None else known.group

    @property
    def never_read(self) -> bool:
        """Then it is not known either as which group it commits, if it does."""
        return self.status is None and self.former is None

    @property
    def name(self) -> str:
        known = self.status or self.former
        return self.place if known is None else known.pipeline

    @property
    def parked(self) -> int:
        return 0 if self.status is None else self.status.waiting_lanes.get("parked", 0)

    @property
    def parked_messages(self) -> int:
        return 0 if self.status is None else self.status.waiting_messages.get("parked", 0)

    @property
    def held(self) -> int:
        return 0 if self.status is None else sum(self.status.waiting_lanes.values()) - self.parked

    @property
    def dead(self) -> int:
        return 0 if self.status is None else self.status.open_letters

    @property
    def known_dead(self) -> int | None:
        """As `dead`; None if it was not read, or has a sink of its own for dead letters."""
        return None if self.status is None or self.status.dead_letters_by_state is None else self.dead

    def may_read(self, topic: str) -> bool:
        """False if it certainly does not read the topic."""
        if self.status is None:
            return True
        known = {*self.status.topics, *(each.topic for each in self.status.queues)}
        return topic in known or not known


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
    """Messages, which are rows of Spark's source, per second; None until the status was read twice."""
    lag: int | None
    lag_seconds: float | None
    waiting: str
    needs_person: bool
    gave_up: bool
    dead_letters: str
    inspect: bool
    """Whether there is anything to inspect."""
    note: str


def pipeline_row(now: StatusAt, before: StatusAt | None) -> PipelineRow:
    status = now.status
    parked = status.waiting_lanes.get("parked", 0)
    waiting = ", ".join(f"{plural(count, 'key')} {why}" for why, count in status.waiting_lanes.items() if count)
    batch = "none yet" if status.batch is None else str(status.batch)
    if status.unfinished_batch is not None:
        batch += f", now {status.unfinished_batch}"
    count = status.dead_letters.count
    dead = None if count is None else count - status.dead_letters.settled
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
        bool(dead),
        "in a sink of their own" if dead is None else f"{dead:,}",
        bool(waiting or count),
        status.note or "",
    )


def _rate(now: StatusAt, before: StatusAt | None) -> float | None:
    """Messages per second between two readings, of the queues that both have.

    A queue that is new to a reading may begin at any offset.
    """
    if before is None or now.at <= before.at:
        return None
    former = {(each.topic, each.broker, each.queue): each.offset or 0 for each in before.status.queues}
    done = (
        (each.offset or 0) - former[each.topic, each.broker, each.queue]
        for each in now.status.queues
        if (each.topic, each.broker, each.queue) in former
    )
    return max(0, sum(done)) * 1000 / (now.at - before.at)


Readings = Mapping[str, tuple[StatusAt, StatusAt | None]]
"""The newest and the former status by place."""


PipelineAction = Literal["redrive", "discard", "discard-first", "redrive-dead"]


@dataclass(frozen=True, slots=True)
class PipelineChange:
    """What a change will do, before it is done."""

    action: PipelineAction
    key: str
    """The key that was chosen; empty: all, or a dead letter."""
    id: str
    """The dead letter that was chosen; empty: all, or those of a key."""
    lanes: tuple[PipelineLane, ...]
    letters: tuple[PipelineDeadLetter, ...]

    @property
    def messages(self) -> int:
        """Messages that are redriven or discarded."""
        if self.letters:
            return len(self.letters)
        return len(self.lanes) if self.action == "discard-first" else self.waiting

    @property
    def waiting(self) -> int:
        return sum(each.messages for each in self.lanes)

    @property
    def keys(self) -> int:
        return len({each.key for each in self.letters} if self.letters else self.lanes)

    @property
    def shown(self) -> str:
        """What the page shows, in short. If it is something else when the form is sent, nothing is done."""
        return f"{plural(self.messages, 'message')} of {plural(self.keys, 'key')}, {self.waiting} wait"


def lane_change(action: PipelineAction, key: str, lanes: Sequence[PipelineLane]) -> PipelineChange:
    """The change of one key, or without a key of all that are held or parked."""
    return PipelineChange(action, key, "", tuple(each for each in lanes if key in ("", each.key)), ())


def dead_letter_change(
    key: str, id: str, chosen: Sequence[str], letters: Sequence[PipelineDeadLetter]
) -> PipelineChange:
    """The redrive of the chosen ids. One that was given up several times is shown once, as the last time."""
    known = {each.dead_letter: each for each in letters}
    found = tuple(known[each] for each in dict.fromkeys(chosen) if each in known)
    return PipelineChange("redrive-dead", key, id, (), found)


def value_text(value: object, *, indent: int | None = 2) -> str:
    """A body as the command line gives it: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=indent, ensure_ascii=False)
