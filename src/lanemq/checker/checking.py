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
from lanemq.checker.delivering import Delivering
from lanemq.checker.effects import Effects
from lanemq.checker.explain import around
from lanemq.checker.owning import Owning
from lanemq.checker.reading import Reading, find_files
from lanemq.checker.settling import Settling
from lanemq.checker.state import State
from lanemq.checker.storing import Storing
from lanemq.checker.verdict import MOST_KEPT, Report, Verdict, Violation

COVERAGE = (
    "turns", "redelivery", "rebalance", "dead_letter", "skipped", "resets", "restarts", "faults", "sends",
    "acked", "send_failed", "send_unknown", "commits", "commit_refused", "effects", "zombie_turns",
    "log_duplicates",
)  # fmt: skip
"""What a run can be required to have seen."""


@dataclass(frozen=True, slots=True)
class Options:
    """How strictly to judge.

    Attributes:
        require: What the run must have exercised, each a name of `COVERAGE`, or `name=least`.
        drained: The run was meant to end with nothing left over, and groups started at offset 0.
        foreign_producers: Some producers wrote no history, so an unknown message is no phantom.
        idempotent: The broker drops repeated sends, so a message twice in the log is a violation.
        slack_ns: Lines of two processes this near to each other count as one moment.
    """

    require: Sequence[str] = ()
    drained: bool = False
    foreign_producers: bool = False
    idempotent: bool = True
    slack_ns: int = 1_000_000


class Checker:
    """Feed it events in time order, then `finish`."""

    def __init__(self, options: Options | None = None) -> None:
        self._options = options = options or Options()
        self._minimums = _minimums(options.require)
        self._state = state = State()
        self._settling = Settling(state, drained=options.drained)
        self._rules = self._dispatch(options, state)
        self._seen: dict[type, int] = dict.fromkeys(self._rules, 0)
        self._violations: list[Violation] = []
        self._counts: dict[str, int] = {}
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
                self._found(found)
        self._last = event

    def finish(self, problems: Sequence[str] = ()) -> Report:
        """The verdict; `problems` are the defects of the history itself."""
        end = e.Event(n=-1, t=self._last.t, process=self._last.process)
        for found in self._settling.finish(end):
            self._found(found)
        coverage = self._coverage()
        reasons = (*problems, *self._too_little(coverage))
        if problems or (reasons and not self._violations):
            verdict = Verdict.UNKNOWN
        else:
            verdict = Verdict.VIOLATION if self._violations else Verdict.PASS
        return Report(
            verdict,
            sum(self._seen.values()),
            tuple(self._violations),
            dict(sorted(self._counts.items())),
            reasons,
            coverage,
            self._state.accounts,
        )

    def _dispatch(self, options: Options, state: State) -> dict[type, Callable[[Any], Violation | None]]:
        slack = options.slack_ns
        storing = Storing(state, foreign_producers=options.foreign_producers, idempotent=options.idempotent)
        owning = Owning(state, slack=slack)
        delivering = Delivering(state, owning, storing, slack=slack)
        committing = Committing(state, slack=slack, whole=options.drained)
        return {
            e.Begin: _nothing,
            e.Fault: _nothing,
            e.Send: storing.send,
            e.Acked: storing.acked,
            e.SendFailed: storing.failed,
            e.SendUnknown: _nothing,
            e.Stored: storing.stored,
            e.Trimmed: storing.trimmed,
            e.Turn: delivering.turn,
            e.TurnEnd: delivering.turn_end,
            e.DeadLettered: self._settling.dead_lettered,
            e.Skipped: self._settling.skipped,
            e.Committed: committing.committed,
            e.CommitRefused: committing.refused,
            e.Reset: committing.reset,
            e.Recovered: committing.recovered,
            e.LeaseGranted: owning.granted,
            e.LeaseRenewed: owning.renewed,
            e.LeaseReleased: owning.ended,
            e.LeaseExpired: owning.ended,
            e.Effect: Effects(state).effect,
        }

    def _found(self, found: Violation) -> None:
        self._counts[found.invariant] = self._counts.get(found.invariant, 0) + 1
        if len(self._violations) < MOST_KEPT:
            self._violations.append(found)

    def _coverage(self) -> dict[str, int]:
        seen = self._seen
        coverage = dict.fromkeys(COVERAGE, 0) | self._state.tally
        return coverage | {
            "turns": seen[e.Turn],
            "resets": seen[e.Reset],
            "restarts": seen[e.Recovered],
            "faults": seen[e.Fault],
            "sends": seen[e.Send],
            "acked": seen[e.Acked],
            "send_failed": seen[e.SendFailed],
            "send_unknown": seen[e.SendUnknown],
            "commits": seen[e.Committed],
            "effects": seen[e.Effect],
        }

    def _too_little(self, coverage: dict[str, int]) -> list[str]:
        return [
            f"the run exercised too little: {name} {coverage[name]}, at least {least} required"
            for name, least in self._minimums.items()
            if coverage[name] < least
        ]


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


def _minimums(require: Sequence[str]) -> dict[str, int]:
    minimums = {"turns": 1}
    for entry in require:
        name, _, least = entry.partition("=")
        if name not in COVERAGE:
            raise ValueError(f"cannot require {name!r}: choose from {', '.join(COVERAGE)}")
        minimums[name] = int(least) if least else 1
    return minimums


def _nothing(event: e.Event) -> None:
    return None
