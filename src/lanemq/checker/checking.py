"""The checker: events in, verdict out.

Pure apart from reading the files; the same history always gets the same answer. Three answers: pass,
violation, and unknown, which is what a run gets that lost history or exercised too little.
"""

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lanemq.checker import events as e
from lanemq.checker.committing import Committing
from lanemq.checker.deleting import Deleting
from lanemq.checker.delivering import Delivering
from lanemq.checker.effects import Effects
from lanemq.checker.explain import around
from lanemq.checker.findings import Findings, conclude, minimums
from lanemq.checker.forgetting import Forgetting
from lanemq.checker.owning import Owning
from lanemq.checker.parking import Parking
from lanemq.checker.reading import Reading, find_files
from lanemq.checker.settling import Settling
from lanemq.checker.state import State
from lanemq.checker.storing import Storing
from lanemq.checker.verdict import Report, Violation


@dataclass(frozen=True, slots=True)
class Options:
    """How strictly to judge.

    Attributes:
        require: What the run must have exercised, each a name of `COVERAGE`, or `name=least`.
        drained: The run was meant to end with nothing left over, and groups started at offset 0.
        foreign_producers: Some producers wrote no history, so an unknown message is no phantom.
        idempotent: The broker drops repeated sends, so a message twice in the log is a violation.
        slack_ns: Lines of two processes this near to each other count as one moment.
        forgets_ns: How old a commit may be that a crash of the broker takes back. Too small, and a disk that was
            busy for a moment is called a violation; too large, and a broker that saves too seldom is not seen.
    """

    require: Sequence[str] = ()
    drained: bool = False
    foreign_producers: bool = False
    idempotent: bool = True
    slack_ns: int = 1_000_000
    forgets_ns: int = 500_000_000


UNJUDGED: frozenset[type[e.Event]] = frozenset({e.Begin, e.Fault, e.SendUnknown})
"""Kinds no rule looks at; they are counted."""


class Checker:
    """Feed it events in time order, then `finish`."""

    def __init__(self, options: Options | None = None) -> None:
        self._options = options = options or Options()
        self._minimums = minimums(options.require)
        self._state = state = State()
        self._settling = Settling(state, drained=options.drained)
        self._rules = self._dispatch(options, state)
        self._seen: dict[type[e.Event], int] = dict.fromkeys(self._rules, 0)
        self._findings = Findings(tally=state.tally, accounts=state.accounts, restarts=state.restarts)
        self._last: e.Event = e.Event(n=-1, t=0)

    def feed(self, batch: Iterable[e.Event]) -> None:
        """Judge the next events; they must not be earlier than those before."""
        rules, seen = self._rules, self._seen
        event = self._last
        for event in batch:
            kind = event.__class__
            seen[kind] += 1
            found = rules[kind](event)
            if found is not None:
                self._findings.found(found)
        self._last = event

    def topic_is_sent_to(self, topic: str) -> None:
        """Somebody has sent to the topic, though perhaps nothing that is fed to this checker."""
        self._state.sent.setdefault(topic, {})

    def finish(self, problems: Sequence[str] = ()) -> Report:
        """The verdict; `problems` are the defects of the history itself."""
        return conclude(self.close(), self._minimums, problems)

    def close(self) -> Findings:
        """No more events come: adds what only shows at the end."""
        end = e.Event(n=-1, t=self._last.t, process=self._last.process)
        for found in self._settling.finish(end):
            self._findings.found(found)
        self._findings.seen = {kind_name(kind): count for kind, count in self._seen.items() if count}
        return self._findings

    def _dispatch(self, options: Options, state: State) -> dict[type[e.Event], Callable[[Any], Violation | None]]:
        slack = options.slack_ns
        storing = Storing(state, foreign_producers=options.foreign_producers, idempotent=options.idempotent)
        owning = Owning(state, slack=slack)
        delivering = Delivering(state, owning, storing, slack=slack)
        parking = Parking(state)
        forgetting = Forgetting(state, promise=options.forgets_ns)
        committing = Committing(state, forgetting, slack=slack, whole=options.drained)
        return {
            **dict.fromkeys(UNJUDGED, _nothing),
            e.Send: storing.send,
            e.Acked: storing.acked,
            e.SendFailed: storing.failed,
            e.Stored: storing.stored,
            e.Trimmed: storing.trimmed,
            e.TopicDeleted: Deleting(state).topic_deleted,
            e.Turn: delivering.turn,
            e.TurnEnd: delivering.turn_end,
            e.DeadLettered: self._settling.dead_lettered,
            e.Skipped: self._settling.skipped,
            e.Parked: parking.parked,
            e.Redriven: parking.redriven,
            e.Discarded: parking.discarded,
            e.Committed: committing.committed,
            e.CommitRefused: committing.refused,
            e.Reset: committing.reset,
            e.Recovered: forgetting.recovered,
            e.LeaseGranted: owning.granted,
            e.LeaseRenewed: owning.renewed,
            e.LeaseReleased: owning.ended,
            e.LeaseExpired: owning.ended,
            e.Effect: Effects(state).effect,
        }


def check(paths: Iterable[Path], options: Options | None = None) -> Report:
    """Judge the history files under `paths`; a first violation comes with the events around it."""
    files = find_files(paths)
    checker = Checker(options)
    reading = Reading(files)
    was_enabled = gc.isenabled()
    gc.disable()  # the memory is a tree without cycles; walking it over and over costs a third of the time
    try:
        for batch in reading.batches():
            checker.feed(batch)
    finally:
        if was_enabled:
            gc.enable()
    report = checker.finish(reading.problems)
    if not report.violations:
        return report
    return replace(report, around=around(files, report.violations[0]))


def kind_name(kind: type[e.Event]) -> str:
    """What `e` says in a line of this kind."""
    return str(kind.__struct_config__.tag)


def _nothing(event: e.Event) -> None:
    return None
