"""The plan of a seed: the size of the system, its settings, and the kinds of faults.

Every seed uses some kinds of faults and not others, because a fault that is always there hides what only others show.
"""

from dataclasses import dataclass, replace
from random import Random

KINDS = (
    "broker killed", "broker loses power", "power cut inside a write", "broker restarted", "disk fails", "disk slow",
    "producer killed", "consumer killed", "process frozen", "path blocked", "connection cut", "answer lost",
    "wall clock jumps", "member leaves", "member joins", "network slow",
)  # fmt: skip

TORN_SHARE = 0.7
"""Share of plans with power cuts inside a write: there are many ways in which a write can be torn."""

CRASHES = ("broker killed", "broker loses power", "power cut inside a write", "disk fails")

OPERATOR_REQUESTS = ("lanes redriven", "lanes discarded", "group reset", "topic recreated")
"""What an operator does during the faults."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided before a run begins."""

    seed: int
    faults: tuple[str, ...]
    calm_ms: int
    """Mean time between two faults, in milliseconds."""
    chaos_seconds: float
    durable: bool
    orders_queues: int
    audit_queues: int
    keys: int
    producers: int
    messages: int
    """Messages of each producer."""
    window: int
    answer_ms: int
    """After how long without a reply a producer sends a request again."""
    members: int
    """Consumers with handlers."""
    polling: int
    """Consumers that poll messages one by one, in a group of their own."""
    failing: float
    """Share of handler calls that raise."""
    late: int
    """Consumers with handlers that join later."""
    slow: float
    """Share of handler calls that take longer than a lease."""
    dead_letters: bool
    apart: float
    """How much the speed of clocks differs: 0.02 is two percent."""
    latency: float
    segment_bytes: int
    set_aside: bool = False
    """Whether a held lane is set aside at the broker when a single message waits behind the failed one
    (`HoldKey(keep=1)`): keys have few messages here."""
    parking: bool = False
    """Whether a key that fails too often is parked, until the operator redrives or discards it."""
    concurrent: int = 0
    """Consumers of a group without order."""
    broadcasting: int = 0
    """Consumers that each get all messages."""


def plan_of(seed: int) -> Plan:
    """The plan of a seed; always the same one."""
    return with_middleboxes(with_operator(_plan_of(seed)))


def with_middleboxes(plan: Plan) -> Plan:
    """Adds swallowed connections to some plans, from a random stream of its own."""
    if not plan.faults or Random(f"middleboxes {plan.seed}").random() > 0.3:
        return plan
    return replace(plan, faults=(*plan.faults, "connection swallowed"))


def with_operator(plan: Plan) -> Plan:
    """Adds parking, operator requests and unordered groups, from a random stream of its own."""
    draw = Random(f"people {plan.seed}")
    parking = not plan.dead_letters and draw.random() < 0.3
    requests = [each for each in OPERATOR_REQUESTS if draw.random() < (0.5 if each == "topic recreated" else 0.25)]
    if parking or any(kind in CRASHES for kind in plan.faults):
        # A deletion is recorded before it is on disk, and a lane may be parked late: neither can be judged yet.
        requests = [each for each in requests if each != "topic recreated"]
    if parking:
        # A reset to before a parked lane does not run earlier messages of its key again; this is not promised.
        requests = list(dict.fromkeys([*(each for each in requests if each != "group reset"), "lanes redriven"]))
    judged = not {"group reset", "topic recreated"} & {*requests}
    return replace(
        plan,
        set_aside=judged and Random(f"aside {plan.seed}").random() < 0.5,
        faults=(*plan.faults, *requests),
        parking=parking,
        failing=0.35 if parking else plan.failing,
        # Without leases a reader of the old topic does not notice that another topic has its name.
        concurrent=draw.choice((0, 0, 0, 1, 2)) * ("topic recreated" not in requests),
        broadcasting=draw.choice((0, 0, 0, 0, 1)) * ("topic recreated" not in requests),
    )


def _plan_of(seed: int) -> Plan:
    draw = Random(f"plan {seed}")
    durable = draw.random() < 0.9
    kinds = [kind for kind in KINDS if draw.random() < (TORN_SHARE if kind == "power cut inside a write" else 0.45)]
    if not durable:  # relaxed: a power cut may lose acknowledged messages
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
        answer_ms=draw.choice((3_000, 3_000, 1_000)),
        members=draw.choice((1, 2, 2, 3)),
        polling=draw.choice((0, 0, 1, 2)),
        failing=draw.choice((0.0, 0.02, 0.15)),
        late=draw.choice((0, 0, 1, 2)),
        slow=draw.choice((0.0, 0.02, 0.08)),
        dead_letters=draw.random() < 0.2,
        apart=draw.choice((0.0, 0.001, 0.03)),
        latency=draw.choice((0.0003, 0.001, 0.01)),
        segment_bytes=draw.choice((64 * 1024, 1024 * 1024)),
    )
