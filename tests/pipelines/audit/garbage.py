"""Random histories: every kind of event, few names, no rules.

A correct run never contradicts itself, so it cannot show that two checkers differ. Here nearly every line contradicts
another one, messages change keys and queues, and lines of different files have equal times.
"""

from random import Random
from typing import Any

import msgspec

from lanemq.checker.events import AnyEvent, HistoryEvent, Outcome, Process, Role, TopicDeleted

WRITERS = (
    Process("p0", Role.PRODUCER),
    Process("p1", Role.PRODUCER),
    Process("a", Role.CONSUMER),
    Process("b", Role.CONSUMER),
    Process("broker", Role.BROKER),
)
KINDS = [kind for kind in AnyEvent.__args__ if kind.__struct_config__.tag not in {"begin", "topic_deleted"}]


def garbage(number: int, *, length: int = 120, regular: bool = False) -> list[HistoryEvent]:
    """Random events; with `regular` a message keeps its key, and a key its queue, as in a healthy run."""
    random = Random(number)
    t = 0
    events: list[HistoryEvent] = []
    for _ in range(length):
        t += random.choice([0, 0, 1, 2_000_000])
        event = _random_event(random, t)
        if regular:
            _tidy(event)
        events.append(event)
    if number % 5 == 1:
        at = random.randrange(length)
        events.insert(at, TopicDeleted(n=0, t=events[at].t, process=WRITERS[-1], topic="orders"))
    return events


def _random_event(random: Random, t: int) -> HistoryEvent:
    kind = random.choice(KINDS)
    values: dict[str, Any] = {
        "topic": random.choice(["orders", "orders", "bills"]),
        "queue": random.randrange(3),
        "offset": random.randrange(8),
        "key": random.choice(["", "k0", "k1", "k2", "k3"]),
        "id": f"m{random.randrange(12)}",
        "group": random.choice(["g", "h"]),
        "member": random.choice(["a", "b"]),
        "epoch": random.randrange(4),
        "outcome": random.choice(list(Outcome)),
        "asked": random.choice([0, max(t - 3_000_000, 0)]),
        "until": random.choice([0, t + 5_000_000]),
        "attempt": random.randrange(3),
        "attempts": random.randrange(3),
        "batch": random.randrange(2),
        "delay": random.choice([0, 0, 0, 1]),
        "ended": random.choice([0, max(t - 2_000_000, 0)]),
        "sink": random.choice(["table", "index"]),
    }
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    known = {name: values[name] for name in fields if name in values}
    text = {name: "x" for name, field in fields.items() if field.required and name not in {"n", "t", *known}}
    event: HistoryEvent = kind(n=0, t=t, process=random.choice(WRITERS), **known, **text)
    return event


def _tidy(event: Any) -> None:
    if hasattr(event, "id") and hasattr(event, "key"):
        number = int(event.id[1:] or 0) % 5
        event.key = "" if number == 4 else f"k{number}"
    if hasattr(event, "id") and hasattr(event, "queue"):
        place = int(event.id[1:]) % 5 % 3 if event.key else int(event.id[1:]) % 3
        event.broker, event.queue = ("lanemq", 0) if not place else ("broker-b", place - 1)
