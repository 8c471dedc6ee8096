"""Statistics over rounds: median and best of the good rounds of each figure, and what went wrong in the others."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.peers.order import PASS

LESS_IS_BETTER = {"s", "ms", "MiB", "B"}
FAILED = "failed"
REWRITTEN = "the server rewrote its files"
BESIDE = (
    "client_cpu_us",
    "server_cpu_us",
    "sender_cpu_us",
    "jvm_cpu_us",
    "python_cpu_us",
    "seconds",
    "p50",
    "p99",
    "disk_wait",
    "worst",
    "repeats",
)
"""What a round measures beside its value."""


class Case(NamedTuple):
    """What was measured."""

    path: str
    mode: str
    bytes: int
    contender: str


class Figure(NamedTuple):
    """The good rounds of one case: those whose messages were all there and in order."""

    value: float
    """The median."""
    best: float
    unit: str
    rounds: int
    """How many were good."""
    count: int
    more: dict[str, float]
    """Medians of what was measured beside it: CPU microseconds per message, p99, repeats."""
    trouble: str
    """What was wrong in the other rounds, in words; empty if there were none."""


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
    """The cases that have at least one good round."""
    return {case: _figure(rounds) for case, rounds in _grouped(records).items() if any(map(_is_good, rounds))}


def troubles(records: Iterable[dict[str, Any]]) -> dict[Case, str]:
    """What went wrong in each case that has a bad round: lost messages, wrong order, or a client that failed."""
    found = {case: _trouble(rounds) for case, rounds in _grouped(records).items()}
    return {case: text for case, text in found.items() if text}


def _grouped(records: Iterable[dict[str, Any]]) -> dict[Case, list[dict[str, Any]]]:
    grouped: dict[Case, list[dict[str, Any]]] = {}
    for record in records:
        case = Case(record["path"], record["mode"], record.get("bytes", 0), record["contender"])
        grouped.setdefault(case, []).append(record)
    return grouped


def _is_good(record: dict[str, Any]) -> bool:
    return "value" in record and FAILED not in record and _verdict(record) == PASS


def _verdict(record: dict[str, Any]) -> str:
    """That of the round; files that have grown by less than the messages in them were rewritten in between."""
    if record["path"] == "disk" and record.get("value", record["bytes"]) < record["bytes"]:
        return REWRITTEN
    return str(record.get("verdict", PASS))


def _trouble(rounds: list[dict[str, Any]]) -> str:
    """`lost 3 of 100,000 (1 of 3 rounds)`; if bad rounds differ, the first."""
    bad = [each for each in rounds if not _is_good(each)]
    if not bad:
        return ""
    what = FAILED if FAILED in bad[0] else _verdict(bad[0])
    return f"{what} ({len(bad)} of {len(rounds)} round{'s' if len(rounds) > 1 else ''})"


def _figure(rounds: list[dict[str, Any]]) -> Figure:
    good = [each for each in rounds if _is_good(each)]
    values, unit = [each["value"] for each in good], good[0]["unit"]
    more = {
        name: statistics.median(each[name] for each in good if name in each)
        for name in BESIDE
        if any(name in each for each in good)
    }
    count = int(statistics.median(each.get("count", 0) for each in good))
    return Figure(statistics.median(values), best(values, unit), unit, len(good), count, more, _trouble(rounds))
