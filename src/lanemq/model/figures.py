"""Figures that a program shows about itself: their names, and the values read at one moment.

A `Metric` names a figure as Prometheus does: `lanemq_`, what is measured, its unit, and `_total` if it only grows. A
`MetricSample` is its value for one combination of labels. A `Distribution` counts values in ranges; adding one costs
less than a microsecond, so hot paths may do it per batch.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

SECONDS_LIMITS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper limits in seconds that fit disks, networks and handlers alike."""


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class Kind(Enum):
    COUNTER = "counter"
    """Only grows, and begins at 0 with the process."""
    GAUGE = "gauge"
    """The value at this moment."""
    HISTOGRAM = "histogram"
    """A `Distribution` since the start of the process."""


class Metric(NamedTuple):
    """A figure, without a value."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Distribution:
    """How many values fell below each limit. One thread adds; any thread may read, and may miss the newest value."""

    __slots__ = ("counts", "limits", "sum")

    def __init__(self, limits: Sequence[float] = SECONDS_LIMITS) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        """Values up to each limit and above the limit before it; the last count is of those above all limits."""
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.limits, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulated(self) -> list[tuple[float, int]]:
        """Each limit, infinity included, with the number of values up to it."""
        total = 0
        rows = []
        for limit, count in zip((*self.limits, float("inf")), self.counts, strict=True):
            total += count
            rows.append((limit, total))
        return rows

    def quantile(self, share: float) -> float | None:
        """The limit below which this share of the values lies; None without values, infinity above all limits."""
        rows = self.cumulated()
        total = rows[-1][1]
        return next((limit for limit, count in rows if count >= share * total), None) if total else None


def limit_text(limit: float) -> str:
    """The limit of a range as Prometheus writes it in the label `le`."""
    return "+Inf" if limit == float("inf") else str(limit)


class MetricSample(NamedTuple):
    """The value of a metric for one combination of labels, in the order of the metric's `labels`."""

    metric: Metric
    value: float | Distribution
    labels: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name with its labels, as Prometheus writes it."""
        pairs = zip(self.metric.labels, self.labels, strict=True)
        inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
        return f"{self.metric.name}{{{inside}}}" if inside else self.metric.name


def labels_of(title: str) -> dict[str, str]:
    """The labels in a `MetricSample.title`."""
    return {name: _unescaped(value) for name, value in _LABEL.findall(title)}


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def grouped(samples: Iterable[MetricSample]) -> dict[Metric, list[MetricSample]]:
    """The samples of each metric, in the order of their first appearance."""
    by_metric: dict[Metric, list[MetricSample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    return by_metric
