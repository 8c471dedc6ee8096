"""Pipelines: their progress, their waiting keys and dead letters, and what a change will do."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from lanemq.model.wording import plural

if TYPE_CHECKING:  # a console without pipelines does not load their libraries
    from lanemq.pipelines.operate.dead_letters import DeadLetterRecord
    from lanemq.pipelines.operate.parked import WaitingKey
    from lanemq.pipelines.operate.status import PipelineStatus

NOT_IN_TIME = "its checkpoint was not read in time"
"""The problem of a pipeline that is being read while its page is shown."""


@dataclass(frozen=True, slots=True)
class PipelineReading:
    """What was read of a pipeline at one moment, so that its figures fit its lists."""

    at: int
    """Wall time in ms."""
    status: "PipelineStatus"
    keys: "tuple[WaitingKey, ...]" = ()
    """Held and parked ones, parked ones first."""
    letters: "tuple[DeadLetterRecord, ...] | None" = ()
    """None: they are in a sink of their own; `problem` says so."""
    problem: str = ""
    took: float = 0.0
    """Seconds of reading."""

    @property
    def parked(self) -> "tuple[WaitingKey, ...]":
        """Keys that wait for a person."""
        return tuple(key for key in self.keys if key.state == "parked")

    @property
    def dead(self) -> int | None:
        """Dead letters whose messages do not wait in a key; None if they are in a sink of their own."""
        kept = self.status.dead_letters
        return None if kept.count is None else kept.count - kept.settled


@dataclass(frozen=True, slots=True)
class PipelineNow:
    """A pipeline as far as the console knows it."""

    number: int
    place: str
    """The last part of the checkpoint's name."""
    reading: PipelineReading | None
    """None: it was not read; `problem` says why."""
    problem: str = ""
    former: "PipelineStatus | None" = None
    """The last status that was read, however old; it names the pipeline and its group."""

    @property
    def status(self) -> "PipelineStatus | None":
        return None if self.reading is None else self.reading.status

    @property
    def keys(self) -> "tuple[WaitingKey, ...]":
        """Held and parked keys, parked ones first."""
        return () if self.reading is None else self.reading.keys

    @property
    def group(self) -> str | None:
        """The group under which it stores its offsets, if that is known."""
        known = self.status or self.former
        return None if known is None else known.group

    @property
    def never_read(self) -> bool:
        """Then its group is not known either, if it has one."""
        return self.status is None and self.former is None

    @property
    def name(self) -> str:
        known = self.status or self.former
        return self.place if known is None else known.pipeline

    @property
    def parked(self) -> int:
        return 0 if self.reading is None else len(self.reading.parked)

    @property
    def parked_messages(self) -> int:
        return 0 if self.reading is None else sum(key.messages for key in self.reading.parked)

    @property
    def held(self) -> int:
        return len(self.keys) - self.parked

    @property
    def dead(self) -> int:
        """Dead letters about which no person has decided, as far as they are known."""
        return self.known_dead or 0

    @property
    def known_dead(self) -> int | None:
        """As `dead`; None if it was not read, or has a sink of its own for dead letters."""
        if self.reading is None or self.reading.letters is None:
            return None
        return sum(letter.is_undecided for letter in self.reading.letters)

    def may_read(self, topic: str) -> bool:
        """False if it certainly does not read the topic."""
        if self.status is None:
            return True
        known = {*self.status.topics, *(queue.topic for queue in self.status.queues)}
        return topic in known or not known


def rate_between(now: PipelineReading, before: PipelineReading | None) -> float | None:
    """Messages per second between two readings, of the queues that both have.

    A queue that is new to a reading may begin at any offset.
    """
    if before is None or now.at <= before.at:
        return None
    former = {(queue.topic, queue.broker, queue.queue): queue.offset for queue in before.status.queues}
    done = (
        queue.offset - former[queue.topic, queue.broker, queue.queue]
        for queue in now.status.queues
        if (queue.topic, queue.broker, queue.queue) in former
    )
    return max(0, sum(done)) * 1000 / (now.at - before.at)


PipelineAction = Literal["redrive", "discard", "discard-first", "redrive-dead"]


@dataclass(frozen=True, slots=True)
class PipelineChange:
    """What a change will do, before it is done."""

    action: PipelineAction
    key: str
    """The key that was chosen; empty: all, or a dead letter."""
    id: str
    """The dead letter that was chosen; empty: all, or those of a key."""
    lanes: "tuple[WaitingKey, ...]"
    letters: "tuple[DeadLetterRecord, ...]"

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


def lane_change(action: PipelineAction, key: str, lanes: "Sequence[WaitingKey]") -> PipelineChange:
    """The change of one key, or without a key of all that are held or parked."""
    return PipelineChange(action, key, "", tuple(each for each in lanes if key in ("", each.key)), ())


def dead_letter_change(key: str, id: str, letters: "Iterable[DeadLetterRecord]") -> PipelineChange:
    """The redrive of the chosen dead letters. One that was given up several times is shown once, as the last time."""
    last = {letter.id: letter for letter in letters}
    return PipelineChange("redrive-dead", key, id, (), tuple(last.values()))


def body_text(body: bytes | None, *, indent: int | None = 2) -> str:
    """A body for a page: JSON as JSON, other text as it is, other bytes escaped."""
    try:
        return value_text(msgspec.json.decode(body or b""), indent=indent)
    except (ValueError, msgspec.MsgspecError):
        return (body or b"").decode("utf-8", "backslashreplace")


def value_text(value: object, *, indent: int | None = 2) -> str:
    """Text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=indent, ensure_ascii=False)
