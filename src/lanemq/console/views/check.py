"""The order check: a report of the checker in words."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from lanemq.checker.verdict import INVARIANTS

MAX_NAMED = 5
"""Groups that a sentence names."""


class ViolationFacts(msgspec.Struct):
    """A violation in the checker's report."""

    invariant: str
    text: str
    topic: str = ""
    queue: int = -1
    offset: int = -1
    key: str = ""
    group: str = ""


class GroupFacts(msgspec.Struct):
    """How the messages of a group ended."""

    finished: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    parked: int = 0
    backlog: int = 0
    undecided: int = 0
    redelivered: dict[str, int] = {}
    effects: int = 0
    consumes: bool = True
    """False: a pipeline's sink, of which only effects are known."""


class CheckReport(msgspec.Struct):
    """The report of `lanemq check --json`."""

    verdict: str
    events: int
    violations: list[ViolationFacts] = []
    counts: dict[str, int] = {}
    reasons: list[str] = []
    coverage: dict[str, int] = {}
    groups: dict[str, GroupFacts] = {}
    around: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """A report as the page shows it."""

    headline: str
    level: str
    explained: str
    unjudged: str
    """What could not be judged because members recorded no history; empty if all could."""
    report: CheckReport
    promises: tuple[tuple[str, str, int], ...]
    """Every promise that was broken: its mark, its text, how often."""
    checked: tuple[tuple[str, str], ...]
    """All promises."""


def check_view(report: CheckReport, promises: Mapping[str, str] = INVARIANTS) -> CheckView:
    total = sum(report.counts.values())
    unjudged = _unjudged(report)
    headline, level, explained = {
        "pass": (
            "No violation",
            "good",
            f"The checker read {report.events:,} events and found "
            + ("no broken promise." if unjudged else "every promise kept."),
        ),
        "violation": (
            f"{total:,} violation{'' if total == 1 else 's'}",
            "bad",
            "At least one promise was broken. The first violation is explained below, with the events around it.",
        ),
    }.get(
        report.verdict,
        ("Unknown", "warn", "The history is not complete, or the run did too little to say anything."),
    )
    broken = tuple((mark, promises.get(mark, ""), count) for mark, count in report.counts.items())
    return CheckView(
        headline=headline,
        level=level,
        explained=explained,
        unjudged=unjudged,
        report=report,
        promises=broken,
        checked=tuple(promises.items()),
    )


def _unjudged(report: CheckReport) -> str:
    groups = sorted(name for name, facts in report.groups.items() if facts.undecided)
    if not groups:
        return ""
    shown = ", ".join(groups[:MAX_NAMED]) + (f" and {len(groups) - MAX_NAMED} more" if len(groups) > MAX_NAMED else "")
    return (
        f"Some members of {shown} recorded no history. Whether they finished what they committed is not known; "
        f"start them with history=DIR to have it checked."
    )
