"""Order life cycles: a workload whose correct result is known.

created → item_added* → paid → packed → shipped → done, or cancelled before it is shipped. A few orders have many
events, most have few (Zipf). Some events are sent twice, as a source with at-least-once delivery does: the copy is a
message of its own, later in its lane, and only `seq` shows that it is a repeat.

The same seed gives the same events. The expected result is computed from the events before anything is sent.
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
"""The kinds of events that may follow each kind."""

MIN_EVENTS: Final = 5
CANCELLED_SHARE: Final = 0.1
MAX_EVENTS: Final = 400
"""Maximum number of events of an order: one worker at a time handles a lane."""


class OrderEvent(msgspec.Struct, frozen=True):
    """An event of an order; `seq` numbers its events from 1."""

    order: str
    seq: int
    kind: str
    amount: int


@dataclass(frozen=True, slots=True)
class OrderTruth:
    """The expected state of an order at the end."""

    status: str
    events: int
    total: int


class IllegalTransition(LaneError, ValueError):
    """An event cannot follow the one before it: a message was overtaken."""


def order_events(orders: int, seed: int = 1, repeats: float = 0.02) -> list[OrderEvent]:
    """All events of all orders, interleaved at random; a share of `repeats` appears twice."""
    random = Random(seed)
    lives = [_life(f"order-{number}", _length(number), random) for number in range(orders)]
    turns = [number for number, life in enumerate(lives) for _ in life]
    random.shuffle(turns)
    remaining = [iter(life) for life in lives]
    return list(_with_repeats((next(remaining[number]) for number in turns), random, repeats))


def _length(number: int) -> int:
    return MIN_EVENTS + int(MAX_EVENTS / (number + 1))


def _life(order: str, length: int, random: Random) -> list[OrderEvent]:
    kinds = ["created", *[ITEM] * (length - MIN_EVENTS), "paid", "packed", "shipped", "done"]
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
    """The last state, number of events and total amount of every order; repeats count once."""
    once = {(event.order, event.seq): event for event in events}
    truth: dict[str, OrderTruth] = {}
    for event in sorted(once.values(), key=lambda event: event.seq):
        before = truth.get(event.order, OrderTruth("", 0, 0))
        truth[event.order] = OrderTruth(event.kind, before.events + 1, before.total + event.amount)
    return truth


def apply_event(state: dict[str, Any] | None, event: OrderEvent) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The next state of an order, and a row with the change."""
    before = state["status"] if state else None
    if event.kind not in NEXT[before]:
        raise IllegalTransition(f"{event.order}: {event.kind} (seq {event.seq}) cannot follow {before}")
    total = (state["total"] if state else 0) + event.amount
    row = {"order": event.order, "seq": event.seq, "before": before, "status": event.kind, "total": total}
    return {"status": event.kind, "total": total}, [row]
