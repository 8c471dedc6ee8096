"""The checker: takes events in time order and gives a verdict.

Apart from reading the files it is pure: the same history always gets the same answer. The verdict is pass, violation,
or unknown if history is missing or the run exercised too little.
"""

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lanemq.checker import events as e
from lanemq.checker.committing import CommitRules, CrashRules, EffectRules
from lanemq.checker.delivering import DeliveryRules
from lanemq.checker.explain import around
from lanemq.checker.owning import OwnershipRules
from lanemq.checker.reading import HistoryReader, find_files
from lanemq.checker.settling import ParkingRules, SettlingRules
from lanemq.checker.state import CheckerState
from lanemq.checker.storing import StoringRules
from lanemq.checker.verdict import Findings, Report, Violation, conclude, end_order, minimums


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How strictly a history is judged.

    Attributes:
        require: What the run must contain, each a name of `COVERAGE` or `name=least`. Otherwise the verdict is unknown.
        drained: The run was meant to end with nothing left over, and groups started at offset 0.
        foreign_producers: Some producers wrote no history, so an unknown message is no violation.
        idempotent: The broker drops repeated sends, so a message that is stored twice is a violation.
        slack_ns: Events of two processes that are closer than this count as simultaneous.
        forgets_ns: The age of the oldest commit that a crash of the broker may undo. If it is too small, a busy disk
            is a violation; if it is too large, a broker that rarely saves offsets is not noticed.
        foreign_members: Some members of groups wrote no history. What cannot be judged for that reason is counted, and
            does not make the verdict unknown.
    """

    require: Sequence[str] = ()
    drained: bool = False
    foreign_producers: bool = False
    idempotent: bool = True
    slack_ns: int = 1_000_000
    forgets_ns: int = 500_000_000
    foreign_members: bool = False


UNJUDGED: frozenset[type[e.HistoryEvent]] = frozenset({e.Begin, e.Fault, e.SendUnknown})
"""Kinds of events that break no rule; they are counted."""


Rule = Callable[[Any], Violation | None]


class Checker:
    """Judges a history. Feed it all events in time order, then call `finish`."""

    def __init__(self, options: CheckOptions | None = None) -> None:
        self._options = options = options or CheckOptions()
        self._minimums = minimums(options.require)
        self._state = state = CheckerState()
        self._settling = SettlingRules(state, drained=options.drained)
        self._rules = self._dispatch(options, state)
        self._seen: dict[type[e.HistoryEvent], int] = dict.fromkeys(self._rules, 0)
        self._findings = Findings(tally=state.tally, accounts=state.accounts, restarts=state.restarts)
        self._last: e.HistoryEvent = e.HistoryEvent(n=-1, t=0)

    def feed(self, batch: Iterable[e.HistoryEvent]) -> None:
        """Judges the next events; none may be earlier than those before."""
        rules, seen = self._rules, self._seen
        event = self._last
        for event in batch:
            kind = event.__class__
            seen[kind] += 1
            violation = rules[kind](event)
            if violation is not None:
                self._findings.found(violation)
        self._last = event

    def finish(self, problems: Sequence[str] = ()) -> Report:
        """Returns the report. `problems` are defects of the history itself."""
        findings = self.close()
        findings.add_untouched(self._last.t, self._last.process.name)
        return conclude(findings, self._minimums, problems, foreign_members=self._options.foreign_members)

    def close(self) -> Findings:
        """Ends the history and returns what was found in it."""
        end = e.HistoryEvent(n=-1, t=self._last.t, process=self._last.process)
        for violation in sorted(self._settling.finish(end), key=end_order):
            self._findings.found(violation)
        if self._options.drained:
            self._findings.queues = list(self._settling.queues())
        self._findings.seen = {kind_name(kind): count for kind, count in self._seen.items() if count}
        return self._findings

    def _dispatch(self, options: CheckOptions, state: CheckerState) -> dict[type[e.HistoryEvent], Rule]:
        slack = options.slack_ns
        storing = StoringRules(state, foreign_producers=options.foreign_producers, idempotent=options.idempotent)
        owning = OwnershipRules(state, slack=slack)
        delivering = DeliveryRules(state, owning, storing, slack=slack)
        parking = ParkingRules(state)
        crashes = CrashRules(state, promise=options.forgets_ns)
        committing = CommitRules(state, crashes, slack=slack, whole=options.drained)
        return {
            **dict.fromkeys(UNJUDGED, _ignore),
            e.Begin: state.began,
            e.Send: storing.send,
            e.Acked: storing.acked,
            e.SendFailed: storing.failed,
            e.LogRecord: storing.stored,
            e.Trimmed: storing.trimmed,
            e.TopicDeleted: state.topic_deleted,
            e.Turn: delivering.turn,
            e.TurnEnd: delivering.turn_end,
            e.TagsFiltered: owning.filtered,
            e.TagsSubscribed: owning.subscribed,
            e.DeadLettered: self._settling.dead_lettered,
            e.Skipped: self._settling.skipped,
            e.MessageParked: parking.parked,
            e.Redriven: parking.redriven,
            e.Discarded: parking.discarded,
            e.OffsetCommitted: committing.committed,
            e.CommitRefused: committing.refused,
            e.Reset: committing.reset,
            e.BrokerCrashed: crashes.crashed,
            e.Recovered: crashes.recovered,
            e.LeaseGranted: owning.granted,
            e.LeaseRenewed: owning.renewed,
            e.LeaseReleased: owning.released,
            e.LeaseExpired: owning.expired,
            e.Effect: EffectRules(state).effect,
        }


def check(
    paths: Iterable[Path], options: CheckOptions | None = None, on_read: Callable[[int], object] | None = None
) -> Report:
    """Judges the history files under `paths`. The first violation is reported with the events around it.

    `on_read` is called again and again with the number of bytes that were read so far.
    """
    files = find_files(paths)
    checker = Checker(options)
    reader = HistoryReader(files)
    was_enabled = gc.isenabled()
    gc.disable()  # the state has no cycles, and walking it again and again would cost a third of the time
    try:
        for batch in reader.batches():
            checker.feed(batch)
            if on_read is not None:
                on_read(reader.bytes_read)
    finally:
        if was_enabled:
            gc.enable()
    report = checker.finish(reader.problems)
    if not report.violations:
        return report
    return replace(report, around=around(files, report.violations[0]))


def kind_name(kind: type[e.HistoryEvent]) -> str:
    """The value of `e` in a line of this kind."""
    return str(kind.__struct_config__.tag)


def _ignore(event: e.HistoryEvent) -> None:
    return None
