"""What the checker answers, and the list of everything it can hold against a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from lanemq.checker.events import Event

INVARIANTS: Mapping[str, str] = {
    "A1": "no acknowledged message is lost",
    "A2": "nothing is delivered that was never sent, or whose send failed",
    "A3": "one place in a queue holds one message, for ever",
    "A4": "an acknowledgement names the place where the message really is",
    "B1": "messages of one producer and key are stored in the order of its send calls, in one queue",
    "B2": "messages of a key run for the first time in stored order",
    "B3": "a message never starts before every earlier one of its key is finished",
    "B4": "redelivery goes back to the first unfinished message and then skips nothing",
    "B5": "two turns of one key never overlap",
    "B6": "a message enters the log once",
    "B7": "nothing that was sent behind a failed message of its key is stored",
    "C1": "a queue has one owner at a time",
    "C2": "every change of owner raises the epoch; an epoch is never reused or lowered",
    "C3": "only the current epoch commits",
    "C5": "a member starts nothing after its lease ended, or throws the result away",
    "D1": "a committed offset never goes back without a reset",
    "D2": "a commit passes only what is finished",
    "D3": "a committed offset survives a restart of the broker",
    "D4": "nothing below the committed offset is delivered again without a reset",
    "E1": "a message is dead-lettered once, after it was tried as often as told, and not when it had succeeded",
    "E3": "every redelivery has a recorded cause",
    "E4": "a parked message runs only after its lane was redriven, and before everything behind it",
    "L1": "at the end nothing is left over (asked for with drained)",
    "P1": "effects of a key reach a sink once and in order",
    "P2": "a sink takes nothing from an older epoch after it took from a newer one",
}

MOST_KEPT = 20

NOBODY_SENT = "nobody sent it"
"""In the text of an A2 that a producer without a history causes as well."""


class Verdict(IntEnum):
    """The value is the exit code."""

    PASS = 0
    VIOLATION = 1
    UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: which, where, and a sentence for people."""

    invariant: str
    text: str
    t: int
    process: str
    n: int
    topic: str = ""
    queue: int = -1
    offset: int = -1
    key: str = ""
    group: str = ""


def violation(invariant: str, event: Event, text: str) -> Violation:
    """What `event` gave away; place and key are taken from the event as far as it has them."""
    return Violation(
        invariant,
        text,
        event.t,
        event.process.name,
        event.n,
        topic=getattr(event, "topic", ""),
        queue=getattr(event, "queue", -1),
        offset=getattr(event, "offset", -1),
        key=getattr(event, "key", ""),
        group=getattr(event, "group", ""),
    )


@dataclass(slots=True)
class GroupAccount:
    """Where a group's messages went."""

    finished: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    parked: int = 0
    """Still parked at the end."""
    backlog: int = 0
    redelivered: dict[str, int] = field(default_factory=dict)

    def redelivery(self, cause: str) -> None:
        self.redelivered[cause] = self.redelivered.get(cause, 0) + 1

    def add(self, part: "GroupAccount") -> None:
        """The same group's account of other queues."""
        self.finished += part.finished
        self.dead_lettered += part.dead_lettered
        self.skipped += part.skipped
        self.parked += part.parked
        self.backlog += part.backlog
        for cause, count in part.redelivered.items():
            self.redelivered[cause] = self.redelivered.get(cause, 0) + count


@dataclass(frozen=True, slots=True)
class Report:
    """The answer; `violations` are in time order and only the first few are kept, `counts` has them all."""

    verdict: Verdict
    events: int
    violations: tuple[Violation, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    coverage: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, GroupAccount] = field(default_factory=dict)
    around: tuple[str, ...] = ()
