"""What the checker answers: the promises it checks, the violations it found, and the verdict.

The verdict is decided only in `conclude`, so a history judged in parts (the Spark form) gets the same verdict as one
judged in one piece.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from lanemq.checker.events import DEFAULT_BROKER, HistoryEvent

INVARIANTS: Mapping[str, str] = {
    "S1": "no acknowledged message is lost",
    "S2": "nothing is delivered that was never sent, or whose send failed",
    "S3": "an offset of a queue always holds the same message",
    "S4": "an acknowledgement names the offset at which the message is stored",
    "S5": "a message is delivered with the key that it was sent with",
    "B1": "messages of one producer and key are stored in the order of its send calls, in one queue",
    "B2": "messages of a key run for the first time in stored order",
    "B3": "a message never starts before every earlier one of its key is finished",
    "B4": "redelivery goes back to the first unfinished message and then skips nothing",
    "B5": "two turns of one key never overlap",
    "B6": "a message enters the log once",
    "B7": "nothing that was sent after a failed message of its key is stored",
    "C1": "a queue has one owner at a time",
    "C2": "every change of owner raises the epoch; an epoch is never reused or lowered",
    "C3": "only the current epoch commits",
    "C5": "a member starts nothing after another member was granted the queue, or throws the result away",
    "D1": "a committed offset never goes back without a reset",
    "D2": "a commit passes only what is finished",
    "D3": "a committed offset survives a restart of the broker",
    "D4": "nothing below the committed offset is delivered again without a reset",
    "E1": "a message is dead-lettered once, after it was tried as often as required, and not after it succeeded",
    "E3": "every redelivery has a recorded cause",
    "E4": "a parked message runs only after its lane was redriven, and before everything behind it",
    "L1": "at the end nothing is left over (with --drained)",
    "P1": "effects of a key reach a sink once and in order",
    "P2": "a sink takes nothing from an older epoch after it took from a newer one",
}
"""S: stored, B: order of a key, C: ownership, D: committed offsets, E: exceptions, L: left over, P: effects."""

MAX_VIOLATIONS = 20
"""Violations that a report describes; all are counted."""

NEVER_SENT = "it was never sent"
"""Part of the text of an S2 that a producer without a history causes as well."""


class Verdict(IntEnum):
    """The value is the exit code."""

    PASS = 0
    VIOLATION = 1
    UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: which one, where, and a sentence that explains it."""

    invariant: str
    text: str
    t: int
    process: str
    n: int
    topic: str = ""
    broker: str = DEFAULT_BROKER
    queue: int = -1
    offset: int = -1
    key: str = ""
    group: str = ""


def end_order(breach: Violation) -> tuple[str, str, str, int, int]:
    """The order of violations that show only at the end of a history."""
    return breach.group, breach.topic, breach.broker, breach.queue, breach.offset


def queue_text(broker: str, queue: int) -> str:
    """A queue of a topic, for people: its number, with the broker if that has another name than the default."""
    return str(queue) if broker == DEFAULT_BROKER else f"{broker}/{queue}"


def violation(invariant: str, event: HistoryEvent, text: str) -> Violation:
    """A violation that `event` shows; topic, queue, offset, key and group are taken from the event if it has them."""
    return Violation(
        invariant,
        text,
        event.t,
        event.process.name,
        event.n,
        topic=getattr(event, "topic", ""),
        broker=getattr(event, "broker", DEFAULT_BROKER),
        queue=getattr(event, "queue", -1),
        offset=getattr(event, "offset", -1),
        key=getattr(event, "key", ""),
        group=getattr(event, "group", ""),
    )


@dataclass(slots=True)
class GroupAccount:
    """How many messages of a group ended in which way."""

    finished: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    parked: int = 0
    """Still parked at the end."""
    backlog: int = 0
    undecided: int = 0
    """Commits and lanes that cannot be judged, because a member of the group recorded no history."""
    redelivered: dict[str, int] = field(default_factory=dict)
    effects: int = 0
    """Effects that its sinks recorded."""
    consumes: bool = False
    """Whether the group has turns or offsets. A pipeline's table, `pipeline-NAME`, has only effects."""

    def redelivery(self, cause: str) -> None:
        self.redelivered[cause] = self.redelivered.get(cause, 0) + 1


@dataclass(frozen=True, slots=True)
class Report:
    """The answer. `violations` has the first few in time order, `counts` the number of all by invariant."""

    verdict: Verdict
    events: int
    violations: tuple[Violation, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    coverage: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, GroupAccount] = field(default_factory=dict)
    around: tuple[str, ...] = ()


COVERAGE = (
    "turns", "redelivery", "rebalance", "dead_letter", "skipped", "resets", "restarts", "faults", "sends",
    "acked", "send_failed", "send_unknown", "commits", "commit_refused", "effects", "zombie_turns",
    "log_duplicates", "parked", "redriven", "discarded", "forgotten_commits", "late_turns",
    "unfenced_commits",
)  # fmt: skip
"""What a run can be required to contain."""

_BY_KIND = {
    "turns": "turn",
    "resets": "reset",
    "faults": "fault",
    "sends": "send",
    "acked": "acked",
    "send_failed": "send_failed",
    "send_unknown": "send_unknown",
    "commits": "committed",
    "effects": "effect",
}
"""Coverage that is the number of events of a kind; the rules count the rest."""


class QueueUse(NamedTuple):
    """The offsets that a queue holds, and the groups that consume it."""

    topic: str
    broker: str
    queue: int
    start: int
    end: int
    groups: list[str]


@dataclass(slots=True)
class Findings:
    """What checking a history found.

    `seen` counts events by kind, `violations` has the first few in time order, `counts` counts all of them.
    """

    seen: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    tally: dict[str, int] = field(default_factory=dict)
    accounts: dict[str, GroupAccount] = field(default_factory=dict)
    restarts: set[tuple[str, int]] = field(default_factory=set)
    """Name of a broker and the end of its previous run: it writes a line per queue."""
    queues: list[QueueUse] = field(default_factory=list)
    """Every queue of a run that was meant to be drained."""

    def found(self, violation: Violation) -> None:
        _add(self.counts, {violation.invariant: 1})
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(violation)

    def add_untouched(self, t: int, process: str) -> None:
        """Adds a violation for every queue that a group of its topic never touched; the run ended at `t`."""
        ended = [breach for breach in self.violations if breach.n < 0]
        groups: dict[str, set[str]] = {}
        for use in self.queues:
            groups.setdefault(use.topic, set()).update(use.groups)
        for topic, broker, queue, start, end, known in self.queues:
            for group in groups[topic].difference(known) if end > start else ():
                text = f"group {group!r} never touched this queue, which holds the offsets {start} to {end - 1}"
                ended.append(Violation("L1", text, t, process, -1, topic, broker, queue, start, "", group))
                _add(self.counts, {"L1": 1})
                self.accounts.setdefault(group, GroupAccount()).backlog += end - start
        ended.sort(key=end_order)
        self.violations = [*(breach for breach in self.violations if breach.n >= 0), *ended][:MAX_VIOLATIONS]

    def coverage(self) -> dict[str, int]:
        counted = {name: self.seen.get(kind, 0) for name, kind in _BY_KIND.items()}
        return dict.fromkeys(COVERAGE, 0) | self.tally | counted | {"restarts": len(self.restarts)}


def conclude(
    findings: Findings, minimums: Mapping[str, int], problems: Sequence[str], *, foreign_members: bool = False
) -> Report:
    """The verdict. `problems` are defects of the history itself, which make it unknown whatever was found.

    `foreign_members`: what cannot be judged, because members recorded no history, does not make it unknown.
    """
    coverage = findings.coverage()
    undecided = () if foreign_members else _undecided(findings.accounts)
    reasons = (*problems, *_too_little(coverage, minimums), *undecided)
    if problems or (reasons and not findings.violations):
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.VIOLATION if findings.violations else Verdict.PASS
    return Report(
        verdict,
        sum(findings.seen.values()),
        tuple(findings.violations),
        dict(sorted(findings.counts.items())),
        reasons,
        coverage,
        dict(sorted(findings.accounts.items())),
    )


def minimums(require: Sequence[str]) -> dict[str, int]:
    """What `--require` asks for, by name. A run without a turn never passes."""
    least_of = {"turns": 1}
    for entry in require:
        name, _, least = entry.partition("=")
        if name not in COVERAGE:
            raise ValueError(f"cannot require {name!r}: choose from {', '.join(COVERAGE)}")
        least_of[name] = int(least) if least else 1
    return least_of


def _too_little(coverage: Mapping[str, int], least_of: Mapping[str, int]) -> list[str]:
    return [
        f"the run exercised too little: {name} {coverage[name]}, at least {least} required"
        for name, least in least_of.items()
        if coverage[name] < least
    ]


def _undecided(accounts: Mapping[str, GroupAccount]) -> list[str]:
    return [
        f"group {group!r}: some of its members recorded no history, so it is not known whether they finished what they "
        f"committed (not judged: {account.undecided:,}); start every member with history=DIR, or judge the others "
        f"with --foreign-members"
        for group, account in sorted(accounts.items())
        if account.undecided
    ][:MAX_VIOLATIONS]


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
