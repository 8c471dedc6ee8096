"""What LaneMQ wants to reach beside other systems, and whether a run reached it.

A goal compares a path of ours with the same path of others, by the medians of one run: so many times their rate, or so
many times their delay at most. "The best of them" counts where a goal names several.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peers.contenders import OURS
from benchmarks.peers.rounds import Case, Figure

ALL: tuple[str, ...] = ()
"""Everyone else who was measured on the path."""


@dataclass(frozen=True)
class Goal:
    """A path, whom it is compared with, and how many times theirs ours must be."""

    words: str
    path: str
    others: tuple[str, ...]
    times: float
    """At least, for rates; at most, for times and sizes."""
    tail: bool = False
    """Compares the p99 instead of the median."""
    modes: tuple[str, ...] = ("relaxed",)


GOALS = (
    Goal("consume, handler uses event and message", "consume", ("confluent-kafka",), 1.0),
    Goal("consume, handler uses event and message", "consume", ("aiokafka",), 5.0),
    Goal("`submit` with a future each", "send pipelined", ("confluent-kafka",), 1.2, modes=("relaxed", "durable")),
    Goal("`send_many`", "send batch", ("confluent-kafka",), 1.2, modes=("relaxed", "durable")),
    Goal("one send at a time", "send one", ("Redis Streams",), 1.0),
    Goal("one send at a time, async", "send async one", ("aiokafka",), 1.5),
    Goal("one send at a time, async", "send async one", ("NATS JetStream",), 1.5),
    Goal("async `submit`", "send async pipelined", ("aiokafka",), 3.0),
    Goal("async `send`, 1,000 tasks", "send async tasks", ("aiokafka",), 3.0),
    Goal("p99 from send to handler at 1,000/s", "latency 1000/s", ALL, 1.0, tail=True),
    Goal("5 ms handler, 1,000 keys, one queue", "slow handler", ("Parallel Consumer (Java)",), 1.0),
    Goal("take-over after kill -9", "take-over kill", ALL, 1.0),
)


@dataclass(frozen=True)
class Row:
    """One goal in one mode and size."""

    goal: Goal
    mode: str
    bytes: int
    rival: str
    times: float
    """Ours divided by theirs."""

    @property
    def reached(self) -> bool:
        return self.times <= self.goal.times if _wants_less(self.goal) else self.times >= self.goal.times


def judged(measured: dict[Case, Figure], goals: Iterable[Goal] = GOALS) -> list[Row]:
    """A row for each goal, mode and size that both sides were measured in."""
    rows = []
    for goal in goals:
        for case in sorted(case for case in measured if case.contender == OURS and case.path == goal.path):
            rivals = _rivals(measured, goal, case)
            if case.mode in goal.modes and rivals:
                best = min(rivals, key=rivals.__getitem__) if _wants_less(goal) else max(rivals, key=rivals.__getitem__)
                times = _value(measured[case], goal) / max(rivals[best], 1e-9)
                rows.append(Row(goal, case.mode, case.bytes, best, times))
    return rows


def table(rows: Iterable[Row]) -> list[str]:
    """The rows in Markdown."""
    lines = ["| path | goal | measured | reached |", "|---|---|---|---|"]
    for row in rows:
        goal = row.goal
        size = f", {row.bytes} B" if row.bytes and goal.path != "slow handler" else ""
        title = f"{goal.words}{size}{', durable' if row.mode == 'durable' else ''}"
        sign = "≤" if _wants_less(goal) else "≥"
        rival = f"the best other ({row.rival})" if goal.others == ALL else row.rival
        reached = "yes" if row.reached else "no"
        lines.append(f"| {title} | {sign} {goal.times:g}× {rival} | {row.times:.2f}× | {reached} |")
    return lines


def _rivals(measured: dict[Case, Figure], goal: Goal, ours: Case) -> dict[str, float]:
    return {
        case.contender: _value(figure, goal)
        for case, figure in measured.items()
        if case[:3] == ours[:3] and case.contender != OURS and (goal.others == ALL or case.contender in goal.others)
    }


def _value(figure: Figure, goal: Goal) -> float:
    return figure.more["p99"] if goal.tail else figure.value


def _wants_less(goal: Goal) -> bool:
    return goal.path.startswith(("latency", "take-over"))
