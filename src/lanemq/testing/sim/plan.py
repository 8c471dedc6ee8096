"""What one seed means: how large the system is, how it is set up, and which faults it has to live through.

Every seed uses some kinds of faults and not others: a fault that is always there hides what only the others show.
"""

from dataclasses import dataclass
from random import Random

KINDS = (
    "broker killed", "broker loses power", "power cut inside a write", "broker restarted", "disk fails", "disk slow",
    "producer killed", "consumer killed", "process frozen", "path blocked", "connection cut", "answer lost",
    "wall clock jumps", "member leaves", "member joins", "network slow",
)  # fmt: skip


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


def plan_of(seed: int) -> Plan:
    """The same seed is always the same plan."""
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
