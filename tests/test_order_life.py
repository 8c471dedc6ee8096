"""The workload of the main job, and its expected result."""

from collections import defaultdict

import pytest

from lanemq.testing.order_life import IllegalTransition, OrderEvent, apply_event, order_events, order_truth

EVENTS = order_events(500, seed=7, repeats=0.05)


def first_of_each(events: list[OrderEvent]) -> dict[str, list[OrderEvent]]:
    seen: dict[str, list[OrderEvent]] = defaultdict(list)
    for event in events:
        if event.seq == len(seen[event.order]) + 1:
            seen[event.order].append(event)
    return seen


def test_the_same_seed_gives_the_same_events() -> None:
    assert order_events(50, seed=3) == order_events(50, seed=3)
    assert order_events(50, seed=3) != order_events(50, seed=4)


def test_events_of_an_order_are_in_order_and_repeats_come_later() -> None:
    seen: dict[str, int] = defaultdict(int)
    for event in EVENTS:
        assert event.seq <= seen[event.order] + 1
        seen[event.order] = max(seen[event.order], event.seq)


def test_some_events_come_twice_and_are_counted_once() -> None:
    distinct = {(event.order, event.seq) for event in EVENTS}
    assert len(distinct) < len(EVENTS)
    assert sum(order.events for order in order_truth(EVENTS).values()) == len(distinct)


def test_a_few_orders_have_many_events() -> None:
    sizes = sorted((order.events for order in order_truth(EVENTS).values()), reverse=True)
    assert sizes[0] > 20 * sizes[len(sizes) // 2]


def test_the_step_reaches_the_expected_result_if_nothing_is_overtaken() -> None:
    truth = order_truth(EVENTS)
    for order, life in first_of_each(EVENTS).items():
        state = None
        for event in life:
            state, _ = apply_event(state, event)
        assert state == {"status": truth[order].status, "total": truth[order].total}


def test_a_step_out_of_order_is_refused() -> None:
    state, _ = apply_event(None, OrderEvent("o", 1, "created", 5))
    with pytest.raises(IllegalTransition, match=r"shipped .*cannot follow created"):
        apply_event(state, OrderEvent("o", 4, "shipped", 5))
