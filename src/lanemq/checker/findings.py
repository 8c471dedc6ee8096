"""What judging a history, or a part of one, came to; parts add up to the whole.

The verdict is drawn here and nowhere else, so that a history judged in parts (the Spark form) cannot come to
another conclusion than one judged in one piece.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lanemq.checker.verdict import MOST_KEPT, GroupAccount, Report, Verdict, Violation

COVERAGE = (
    "turns", "redelivery", "rebalance", "dead_letter", "skipped", "resets", "restarts", "faults", "sends",
    "acked", "send_failed", "send_unknown", "commits", "commit_refused", "effects", "zombie_turns",
    "log_duplicates", "parked", "redriven", "discarded", "forgotten_commits", "late_turns",
)  # fmt: skip
"""What a run can be required to have seen."""

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
"""Coverage that is the number of events of a kind; the rest is tallied by the rules."""


@dataclass(slots=True)
class Findings:
    """`seen` counts events by kind, `violations` holds the first few in time order, `counts` counts all of them."""

    seen: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    tally: dict[str, int] = field(default_factory=dict)
    accounts: dict[str, GroupAccount] = field(default_factory=dict)
    restarts: set[tuple[str, int]] = field(default_factory=set)
    """Brokers that began again, and when their former life ended: each tells a line per queue, and parts overlap."""

    def found(self, violation: Violation) -> None:
        _add(self.counts, {violation.invariant: 1})
        if len(self.violations) < MOST_KEPT:
            self.violations.append(violation)

    def add(self, part: "Findings") -> None:
        """Everything of another part; its violations are put behind, so whoever adds sorts them afterwards."""
        _add(self.seen, part.seen)
        _add(self.counts, part.counts)
        _add(self.tally, part.tally)
        self.violations += part.violations
        self.restarts |= part.restarts
        for group, account in part.accounts.items():
            self.accounts.setdefault(group, GroupAccount()).add(account)

    def coverage(self) -> dict[str, int]:
        counted = {name: self.seen.get(kind, 0) for name, kind in _BY_KIND.items()}
        return dict.fromkeys(COVERAGE, 0) | self.tally | counted | {"restarts": len(self.restarts)}


def conclude(findings: Findings, minimums: Mapping[str, int], problems: Sequence[str]) -> Report:
    """The verdict; `problems` are the defects of the history itself, which make it unknown whatever was found."""
    coverage = findings.coverage()
    reasons = (*problems, *_too_little(coverage, minimums))
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
    """What `--require` asks for, by name; a run without a single turn never passes."""
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


def _add(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
