"""Statistics over rounds: median and best of each figure."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

LESS_IS_BETTER = {"s", "ms", "MiB", "B"}
FAILED = "failed"


class Case(NamedTuple):
    """What was measured."""

    path: str
    mode: str
    bytes: int
    contender: str


class Figure(NamedTuple):
    """All rounds of one case."""

    value: float
    """The median."""
    best: float
    unit: str
    rounds: int
    count: int
    more: dict[str, float]
    """Medians of what was measured beside it: CPU microseconds per message, p99, repeats."""
    verdict: str
    """`pass`, or the first round's trouble; empty where there is nothing to check."""


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least so many percent of the values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values to take a percentile of")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def best(values: Sequence[float], unit: str) -> float:
    return min(values) if unit in LESS_IS_BETTER else max(values)


def is_better(one: float, other: float, unit: str) -> bool:
    return one < other if unit in LESS_IS_BETTER else one > other


def figures(records: Iterable[dict[str, Any]]) -> dict[Case, Figure]:
    """Groups the rounds by case. One round with wrong messages decides the verdict; the report lists failed rounds."""
    grouped: dict[Case, list[dict[str, Any]]] = {}
    for record in records:
        case = Case(record["path"], record["mode"], record.get("bytes", 0), record["contender"])
        grouped.setdefault(case, []).append(record)
    return {case: _figure(rounds) for case, rounds in grouped.items() if any("value" in each for each in rounds)}


def _figure(rounds: list[dict[str, Any]]) -> Figure:
    measured = [each for each in rounds if "value" in each]
    values, unit = [each["value"] for each in measured], measured[0]["unit"]
    names = (
        "client_cpu_us",
        "server_cpu_us",
        "sender_cpu_us",
        "jvm_cpu_us",
        "python_cpu_us",
        "p99",
        "worst",
        "repeats",
    )
    more = {
        name: statistics.median(each[name] for each in measured if name in each)
        for name in names
        if any(name in each for each in measured)
    }
    verdicts = [str(each.get("verdict", FAILED if FAILED in each else "")) for each in rounds]
    trouble = [each for each in verdicts if each not in ("pass", "")]
    return Figure(
        statistics.median(values),
        best(values, unit),
        unit,
        len(values),
        int(statistics.median(each.get("count", 0) for each in measured)),
        more,
        trouble[0] if trouble else verdicts[0],
    )
