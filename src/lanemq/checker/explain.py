"""Describes a report in words, and finds the events around a violation.

These events are found by reading the files a second time, so only a failed run pays for it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from lanemq.checker.events import Fault, HistoryEvent, LeaseEvent, QueueLineEvent
from lanemq.checker.reading import HistoryReader
from lanemq.checker.verdict import INVARIANTS, NEVER_SENT, Report, Verdict, Violation, queue_text

BEFORE = 12
AFTER = 4

_SHOWN = (
    "offset", "key", "id", "outcome", "member", "epoch", "attempt", "attempts", "batch", "copy", "asked", "until",
    "sink", "reason", "kind", "target", "phase",
)  # fmt: skip
_TIMES = frozenset({"asked", "until"})


def around(files: Sequence[Path], violation: Violation) -> tuple[str, ...]:
    """The events of the same lane and queue just before and after the violation, one line each."""
    before, after = surroundings(HistoryReader(files).batches(), violation)
    return tuple(line(event, violation) for event in [*before, *after])


def surroundings(
    batches: Iterable[Sequence[HistoryEvent]], violation: Violation, later: Callable[[HistoryEvent], bool] | None = None
) -> tuple[list[HistoryEvent], list[HistoryEvent]]:
    """The nearest events before the violation, itself included, and after it.

    `later` says which events come after the violation, where the violation itself is not among them.
    """
    before: deque[HistoryEvent] = deque(maxlen=BEFORE)
    after: list[HistoryEvent] = []
    hit = False
    for batch in batches:
        for event in batch:
            if not hit and event.n == violation.n and event.process.name == violation.process:
                hit = True
                before.append(event)
            elif _concerns(event, violation):
                hit = hit or (later is not None and later(event))
                (after if hit else before).append(event)
        if len(after) >= AFTER:
            break
    return list(before), after[:AFTER]


def describe(report: Report) -> str:
    """The report as text."""
    lines = [f"{report.verdict.name.lower()}: {report.events:,} events"]
    lines += [f"  {reason}" for reason in report.reasons]
    if report.violations:
        lines += _first(report)
    seen = ", ".join(f"{name} {count:,}" for name, count in report.coverage.items() if count)
    lines.append(f"exercised: {seen or 'nothing'}")
    lines += [_account(report, group) for group in report.groups]
    if report.verdict is Verdict.PASS:
        lines.append("no promise was broken in this history")
    return "\n".join(lines)


def _first(report: Report) -> list[str]:
    first = report.violations[0]
    place = f"{first.topic}/{queue_text(first.broker, first.queue)}" if first.queue >= 0 else first.topic
    lines = [
        f"first violation, {first.invariant}: {INVARIANTS[first.invariant]}",
        f"  in {place}{f', group {first.group}' if first.group else ''}: {first.text}",
    ]
    lines += [f"    {line}" for line in report.around]
    counts = ", ".join(f"{name} {count:,}" for name, count in report.counts.items())
    return [*lines, f"violations by invariant: {counts}", *_hint(report)]


def _hint(report: Report) -> list[str]:
    """A message that was never sent most often comes from a producer without a history."""
    if not any(NEVER_SENT in violation.text for violation in report.violations):
        return []
    return [
        "did every producer write a history (history=...; `lanemq send` writes none)? "
        "If not, check again with --foreign-producers"
    ]


def _account(report: Report, group: str) -> str:
    account = report.groups[group]
    effects = f"{account.effects:,} effects"
    if account.effects and not account.consumes:
        return f"group {group}: {effects} in a pipeline's sink, which has no turns and no offsets"
    again = ", ".join(f"{cause} {count:,}" for cause, count in sorted(account.redelivered.items()))
    return (
        f"group {group}: finished {account.finished:,}, dead-lettered {account.dead_lettered:,}, "
        f"skipped {account.skipped:,}, parked {account.parked:,}, left over {account.backlog:,}, "
        f"delivered again: {again or 'none'}"
        + (f", {effects}" if account.effects else "")
        + (f", not judged {account.undecided:,} (members without a history)" if account.undecided else "")
    )


def _concerns(event: HistoryEvent, violation: Violation) -> bool:
    if isinstance(event, Fault):
        return True
    if getattr(event, "topic", None) != violation.topic:
        return False
    if getattr(event, "group", violation.group) != violation.group and violation.group:
        return False
    key = getattr(event, "key", "")
    if violation.key and key:
        return bool(key == violation.key)
    if isinstance(event, LeaseEvent) or not violation.key:
        return not isinstance(event, QueueLineEvent) or _in_queue(event, violation)
    return isinstance(event, QueueLineEvent) and _in_queue(event, violation)


def _in_queue(event: QueueLineEvent, violation: Violation) -> bool:
    return (event.broker, event.queue) == (violation.broker, violation.queue)


def line(event: HistoryEvent, violation: Violation) -> str:
    """One event as text, with its time relative to the violation."""
    mark = ">" if event.n == violation.n and event.process.name == violation.process else " "
    facts = msgspec.to_builtins(event)
    fields = " ".join(_fact(name, facts[name], violation) for name in _SHOWN if facts.get(name) not in (None, "", 0))
    if facts.get("offset") == 0:
        fields = f"offset=0 {fields}"
    return f"{mark} {_millis(event.t - violation.t):>16}  {event.process.name:<16} {facts['e']:<14} {fields}"


def _fact(name: str, value: object, violation: Violation) -> str:
    if name in _TIMES and isinstance(value, int):
        return f"{name}={_millis(value - violation.t)}"
    return f"{name}={value}"


def _millis(nanos: int) -> str:
    return f"{nanos / 1e6:+.3f} ms"
