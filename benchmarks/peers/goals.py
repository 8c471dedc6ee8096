"""What LaneMQ wants to reach beside other systems, and whether a run reached it.

Most goals compare a path of ours with the same path of others, by the medians of one run: so many times their rate, or
so many times their delay at most. Others say that a cost must not grow, or name a limit. A goal counts as reached only
by at least `ENOUGH` good rounds on both sides, and only if no round of ours lost a message or broke the order of a key.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.peers.contenders import OURS
from benchmarks.peers.paths.growth import BY_KEYS, BY_QUEUES
from benchmarks.peers.rounds import Case, Figure

ALL: tuple[str, ...] = ()
"""Everyone else who was measured on the path."""
ENOUGH = 3
BOTH = ("relaxed", "durable")
Figures = Mapping[Case, Figure]
Troubles = Mapping[Case, str]


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
    also: tuple[str, ...] = ()
    """Other paths of theirs, of which the best counts."""
    sizes: tuple[int, ...] = (100, 1_000)


@dataclass(frozen=True)
class Flat:
    """Paths over which the CPU time per message, of client and server, may differ by this factor at most."""

    words: str
    paths: tuple[str, ...]
    times: float = 1.5


@dataclass(frozen=True)
class Limit:
    """A path whose value must not exceed a number."""

    words: str
    path: str
    bytes: int
    most: float


CONFLUENT = ("confluent-kafka",)
LINGERING = (*CONFLUENT, "confluent-kafka (linger 50)")
"""With its default settings and with larger batches; the better one counts."""
READING = (*CONFLUENT, "confluent-kafka (prefetch)")
"""With its default settings and with a larger queue of its own; the better one counts."""
GOALS = (
    Goal("50 clients, one send at a time each", "send clients", CONFLUENT, 1.0, modes=BOTH),
    Goal("50 clients, one send at a time each", "send clients", ("Redis Streams",), 0.6, modes=BOTH),
    Goal("50 clients, p99 of a send", "send clients", CONFLUENT, 1.0, tail=True, modes=BOTH),
    Goal("batches, 2 GB and more", "send sustained", LINGERING, 1.0),
    Goal("consume, handler uses event and message", "consume", READING, 0.8),
    Goal("consume, 10,000 keys", "consume, 10000 keys", READING, 0.6, sizes=(100,)),
    Goal("ten groups read one topic", "ten groups", READING, 1.0, sizes=(100,)),
    Goal("consume, handler uses event and message", "consume", ("aiokafka",), 5.0),
    Goal("`submit` with a future each", "send pipelined", LINGERING, 1.2, modes=BOTH),
    Goal("`send_many`", "send batch", LINGERING, 1.2, modes=BOTH, also=("send pipelined",)),
    Goal("one send at a time", "send one", ("Redis Streams",), 1.0),
    Goal("one send at a time, async", "send async one", ("aiokafka",), 1.5),
    Goal("one send at a time, async", "send async one", ("NATS JetStream",), 1.5),
    Goal("async `submit`", "send async pipelined", ("aiokafka",), 3.0),
    Goal("async `send`, 1,000 tasks", "send async tasks", ("aiokafka",), 3.0),
    Goal("p99 from send to handler at 1,000/s", "latency 1000/s", ALL, 1.0, tail=True),
    Goal(
        "p99 from send to handler at 1,000/s", "latency 1000/s", ALL, 1.0, tail=True, modes=("durable",), sizes=(100,)
    ),
    Goal("5 ms handler, 1,000 keys, one queue", "slow handler", ("Parallel Consumer (Java)",), 1.0),
    Goal("take-over after kill -9", "take-over kill", ALL, 1.0, sizes=(0,)),
)
FLATS = (
    Flat("`send_many` over 1 to 1,000 queues", tuple(f"send batch, {number} queues" for number in BY_QUEUES)),
    Flat("`submit` over 1 to 1,000 queues", tuple(f"send pipelined, {number} queues" for number in BY_QUEUES)),
    Flat("consume, 100 to 1,000,000 keys", tuple(f"consume, {number} keys" for number in BY_KEYS)),
)
LIMITS = (Limit("bytes on disk for a message of 100 B", "disk", 100, 200),)


@dataclass(frozen=True)
class Row:
    """One goal in one mode and size, in words."""

    title: str
    goal: str
    measured: str
    reached: str
    """`yes`, `no`, or why neither can be said."""


def judged(measured: Figures, troubles: Troubles | None = None) -> list[Row]:
    """A row for every goal, mode and size; those that were not measured say so."""
    wrong = troubles or {}
    rows = []
    for goal in GOALS:
        for mode in goal.modes:
            rows += [_compared(measured, wrong, goal, mode, size) for size in goal.sizes]
    rows += [_flat(measured, wrong, flat) for flat in FLATS]
    rows += [_limited(measured, wrong, limit) for limit in LIMITS]
    return rows


def table(rows: Iterable[Row]) -> list[str]:
    """The rows in Markdown."""
    lines = ["| path | goal | measured | reached |", "|---|---|---|---|"]
    return [*lines, *(f"| {row.title} | {row.goal} | {row.measured} | {row.reached} |" for row in rows)]


def _compared(measured: Figures, wrong: Troubles, goal: Goal, mode: str, size: int) -> Row:
    title = f"{goal.words}{f', {size:,} B' if size else ''}{', durable' if mode == 'durable' else ''}"
    sign = "≤" if _wants_less(goal) else "≥"
    whom = goal.others[0] if goal.others else "the best other"
    case = Case(goal.path, mode, size, OURS)
    rivals = _rivals(measured, goal, case)
    if case not in measured or not rivals:
        missing = OURS if case not in measured else whom
        why = wrong.get(case, "") if case not in measured else ""
        return Row(title, f"{sign} {goal.times:g}× {whom}", "–", why or f"no figure of {missing}")
    values = {rival: _value(figure, goal) for rival, figure in rivals.items()}
    best = (min if _wants_less(goal) else max)(values, key=values.__getitem__)
    times = _value(measured[case], goal) / max(values[best], 1e-9)
    is_met = times <= goal.times if _wants_less(goal) else times >= goal.times
    if goal.others == ALL:
        whom = f"the best other ({best.contender})"
    elif len(goal.others) > 1:
        whom = f"{best.contender}{', a callback each' if best.path != goal.path else ''}"
    rounds = min(measured[case].rounds, rivals[best].rounds)
    reached = _reached(is_met, rounds, wrong.get(case, ""))
    return Row(title, f"{sign} {goal.times:g}× {whom}", f"{times:.2f}×", reached)


def _flat(measured: Figures, wrong: Troubles, flat: Flat) -> Row:
    cases = [
        next((case for case in measured if (case.path, case.contender) == (path, OURS)), None) for path in flat.paths
    ]
    there = [case for case in cases if case is not None]
    goal = f"within {flat.times:g}×"
    if len(there) < len(flat.paths):
        return Row(flat.words, goal, "–", f"{len(there)} of {len(flat.paths)} measured")
    costs = [measured[case].more["client_cpu_us"] + measured[case].more["server_cpu_us"] for case in there]
    spread = max(costs) / max(min(costs), 1e-9)
    trouble = next((wrong[case] for case in there if case in wrong), "")
    reached = _reached(spread <= flat.times, min(measured[case].rounds for case in there), trouble)
    return Row(flat.words, goal, f"{spread:.2f}× ({', '.join(f'{cost:.3g}' for cost in costs)} µs)", reached)


def _limited(measured: Figures, wrong: Troubles, limit: Limit) -> Row:
    case, goal = Case(limit.path, "relaxed", limit.bytes, OURS), f"≤ {limit.most:g}"
    if case not in measured:
        return Row(limit.words, goal, "–", f"no figure of {OURS}")
    figure = measured[case]
    reached = _reached(figure.value <= limit.most, figure.rounds, wrong.get(case, ""))
    return Row(limit.words, goal, f"{figure.value:,.4g}", reached)


def _reached(is_met: bool, rounds: int, trouble: str) -> str:
    """The last column: too few rounds or a bad round of ours never make a `yes`."""
    if trouble:
        return f"no: {trouble}"
    few = f"only {rounds} round{'s' if rounds > 1 else ''}"
    if rounds < ENOUGH:
        return few if is_met else f"no ({few})"
    return "yes" if is_met else "no"


def _rivals(measured: Figures, goal: Goal, ours: Case) -> dict[Case, Figure]:
    return {
        case: figure
        for case, figure in measured.items()
        if case.path in (goal.path, *goal.also)
        and (case.mode, case.bytes) == (ours.mode, ours.bytes)
        and case.contender != OURS
        and (goal.others == ALL or case.contender in goal.others)
    }


def _value(figure: Figure, goal: Goal) -> float:
    return figure.more["p99"] if goal.tail else figure.value


def _wants_less(goal: Goal) -> bool:
    return goal.tail or goal.path.startswith(("latency", "take-over"))
