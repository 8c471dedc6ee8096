"""Order life cycles: a workload whose right result is known.

created → item_added* → paid → packed → shipped → done, or cancelled somewhere before it is shipped. A few orders are
hot and most are not (Zipf). Some events are sent twice, as an upstream with at-least-once delivery does: the second
copy is a message of its own, later in its lane, and only `seq` tells that it is a repetition.

The rules guarded here: the same seed gives the same events; what an order must look like at the end is computed from
the events themselves, before anything is sent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgspec

from lanemq.model.errors import LaneError

ITEM: Final = "item_added"
NEXT: Final = {
    None: {"created"},
    "created": {ITEM, "paid", "cancelled"},
    ITEM: {ITEM, "paid", "cancelled"},
    "paid": {"packed", "cancelled"},
    "packed": {"shipped", "cancelled"},
    "shipped": {"done"},
    "done": set(),
    "cancelled": set(),
}
"""What may follow what; nothing follows the end of an order."""

SHORTEST: Final = 5
CANCELLED_SHARE: Final = 0.1
HOTTEST: Final = 400
"""Events of the hottest order, at most: one lane is worked off by one worker, however many there are."""


class OrderEvent(msgspec.Struct, frozen=True):
    """What happened to an order; `seq` counts its events from 1."""

    order: str
    seq: int
    kind: str
    amount: int


@dataclass(frozen=True, slots=True)
class OrderTruth:
    """What an order must look like at the end."""

    status: str
    events: int
    total: int


class IllegalTransition(LaneError, ValueError):
    """An order's events came in an order that no order goes through: something overtook."""


def order_events(orders: int, seed: int = 1, repeats: float = 0.02) -> list[OrderEvent]:
    """All events of all orders, interleaved as many customers would cause them; `repeats` of them come twice."""
    random = Random(seed)
    lives = [_life(f"order-{number}", _length(number), random) for number in range(orders)]
    turns = [number for number, life in enumerate(lives) for _ in life]
    random.shuffle(turns)
    remaining = [iter(life) for life in lives]
    return list(_with_repeats((next(remaining[number]) for number in turns), random, repeats))


def _length(number: int) -> int:
    return SHORTEST + int(HOTTEST / (number + 1))


def _life(order: str, length: int, random: Random) -> list[OrderEvent]:
    kinds = ["created", *[ITEM] * (length - SHORTEST), "paid", "packed", "shipped", "done"]
    if random.random() < CANCELLED_SHARE:
        kinds[random.randrange(1, length - 1) :] = ["cancelled"]
    return [OrderEvent(order, seq, kind, random.randrange(1, 5_000)) for seq, kind in enumerate(kinds, 1)]


def _with_repeats(events: Iterable[OrderEvent], random: Random, share: float) -> Iterator[OrderEvent]:
    waiting: list[OrderEvent] = []
    for event in events:
        yield event
        if random.random() < share:
            waiting.append(event)
        if waiting and random.random() < share:
            yield waiting.pop(random.randrange(len(waiting)))
    yield from waiting


def order_truth(events: Sequence[OrderEvent]) -> dict[str, OrderTruth]:
    """Every order's last state, its number of events and the sum of their amounts; repetitions count once."""
    once = {(event.order, event.seq): event for event in events}
    found: dict[str, OrderTruth] = {}
    for event in sorted(once.values(), key=lambda event: event.seq):
        before = found.get(event.order, OrderTruth("", 0, 0))
        found[event.order] = OrderTruth(event.kind, before.events + 1, before.total + event.amount)
    return found


def apply_event(state: dict[str, Any] | None, event: OrderEvent) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An order's next state, and the row that says what changed."""
    before = state["status"] if state else None
    if event.kind not in NEXT[before]:
        raise IllegalTransition(f"{event.order}: {event.kind} (seq {event.seq}) cannot follow {before}")
    total = (state["total"] if state else 0) + event.amount
    row = {"order": event.order, "seq": event.seq, "before": before, "status": event.kind, "total": total}
    return {"status": event.kind, "total": total}, [row]
