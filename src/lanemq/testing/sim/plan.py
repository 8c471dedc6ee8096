"""What one seed means: how large the system is, how it is set up, and which faults it has to live through.

Every seed uses some kinds of faults and not others: a fault that is always there hides what only the others show.
"""

from dataclasses import dataclass, replace
from random import Random

KINDS = (
    "broker killed", "broker loses power", "power cut inside a write", "broker restarted", "disk fails", "disk slow",
    "producer killed", "consumer killed", "process frozen", "path blocked", "connection cut", "answer lost",
    "wall clock jumps", "member leaves", "member joins", "network slow",
)  # fmt: skip

CRASHES = ("broker killed", "broker loses power", "power cut inside a write", "disk fails")

ORDERS_OF_PEOPLE = ("lanes redriven", "lanes discarded", "group reset", "topic recreated")
"""What an operator does while everything else goes wrong."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is drawn before a run begins."""

    seed: int
    faults: tuple[str, ...]
    calm_ms: int
    """Mean time between two faults."""
    chaos_seconds: float
    durable: bool
    orders_queues: int
    audit_queues: int
    keys: int
    producers: int
    messages: int
    """Of each producer."""
    window: int
    linger_ms: int
    members: int
    """Consumers with handlers."""
    hands: int
    """Consumers that take messages one by one; a group of their own."""
    failing: float
    """Share of handler calls that raise."""
    late: int
    """Consumers with handlers that are not there in the beginning."""
    slow: float
    """Share of handler calls that take longer than a lease."""
    dead_letters: bool
    apart: float
    """How far clocks run apart: 0.02 is two percent."""
    latency: float
    segment_bytes: int
    parking: bool = False
    """A key that fails too often is parked, until somebody redrives or discards it."""
    concurrent: int = 0
    """Consumers of a group that asks for no order."""
    broadcasting: int = 0
    """Consumers that each get everything."""


def plan_of(seed: int) -> Plan:
    """The same seed is always the same plan."""
    return with_middleboxes(with_people(_plan_of(seed)))


def with_middleboxes(plan: Plan) -> Plan:
    """Drawn apart too."""
    if not plan.faults or Random(f"middleboxes {plan.seed}").random() > 0.3:
        return plan
    return replace(plan, faults=(*plan.faults, "connection swallowed"))


def with_people(plan: Plan) -> Plan:
    """Drawn apart, so that a seed means what it meant before there was any of this."""
    draw = Random(f"people {plan.seed}")
    parking = not plan.dead_letters and draw.random() < 0.3
    orders = [order for order in ORDERS_OF_PEOPLE if draw.random() < (0.5 if order == "topic recreated" else 0.25)]
    if parking or any(kind in CRASHES for kind in plan.faults):
        # A deletion is told before it is on disk, and a lane may be parked late: neither can be judged yet.
        orders = [order for order in orders if order != "topic recreated"]
    if parking:
        # A reset to before a parked lane leaves out of its key what is not in it: not promised otherwise.
        orders = list(dict.fromkeys([*(each for each in orders if each != "group reset"), "lanes redriven"]))
    return replace(
        plan,
        faults=(*plan.faults, *orders),
        parking=parking,
        failing=0.35 if parking else plan.failing,
        # Without leases nobody tells a reader of the old topic that another one has its name now.
        concurrent=draw.choice((0, 0, 0, 1, 2)) * ("topic recreated" not in orders),
        broadcasting=draw.choice((0, 0, 0, 0, 1)) * ("topic recreated" not in orders),
    )


def _plan_of(seed: int) -> Plan:
    draw = Random(f"plan {seed}")
    durable = draw.random() < 0.9
    kinds = [kind for kind in KINDS if draw.random() < 0.45]
    if not durable:  # relaxed: a power cut may lose what was acknowledged, and that is no news
        kinds = [kind for kind in kinds if kind not in ("broker loses power", "power cut inside a write", "disk fails")]
    return Plan(
        seed=seed,
        faults=tuple(kinds) if draw.random() < 0.97 else (),
        calm_ms=draw.choice((300, 700, 1500, 3000)),
        chaos_seconds=draw.uniform(5, 16),
        durable=durable,
        orders_queues=draw.choice((1, 2, 2, 4)),
        audit_queues=draw.choice((1, 2)),
        keys=draw.choice((1, 3, 6, 20)),
        producers=draw.choice((1, 2, 2, 3)),
        messages=draw.choice((30, 60, 120)),
        window=draw.choice((1, 2, 4, 4)),
        linger_ms=draw.choice((0, 0, 5)),
        members=draw.choice((1, 2, 2, 3)),
        hands=draw.choice((0, 0, 1, 2)),
        failing=draw.choice((0.0, 0.02, 0.15)),
        late=draw.choice((0, 0, 1, 2)),
        slow=draw.choice((0.0, 0.02, 0.08)),
        dead_letters=draw.random() < 0.2,
        apart=draw.choice((0.0, 0.001, 0.03)),
        latency=draw.choice((0.0003, 0.001, 0.01)),
        segment_bytes=draw.choice((64 * 1024, 1024 * 1024)),
    )
