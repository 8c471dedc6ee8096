"""The queues that keys are spread over: read from a layout, or kept from the first route."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.sending.layout import KeyQueues, key_queues, layout_text, parse_layout
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.queue import MessageQueue

FULL = "broker-a:4;broker-b:4"


def queues(layout: str) -> tuple[MessageQueue, ...]:
    found = parse_layout("orders", layout)
    assert found is not None
    return found


def first(layout: str | None, route: str = "") -> KeyQueues | None:
    return key_queues(None, queues(layout) if layout else None, queues(route) if route else (), may_move=False)


def later(known: KeyQueues | None, layout: str | None, route: str = "", *, may_move: bool = False) -> KeyQueues:
    found = key_queues(known, queues(layout) if layout else None, queues(route) if route else (), may_move=may_move)
    assert found is not None
    return found


# reading and writing a layout


def test_a_layout_is_read_in_the_order_of_its_text() -> None:
    """RocketMQ's clients do so too, if their name server gives it to them."""
    assert [f"{each.broker}/{each.queue_id}" for each in queues("b:2;a:1")] == ["b/0", "b/1", "a/0"]


def test_a_broker_name_may_contain_a_colon() -> None:
    assert queues("host:1:2") == (MessageQueue("orders", "host:1", 0), MessageQueue("orders", "host:1", 1))


@pytest.mark.parametrize("text", ["", "b", "b:x", ":2", "b:2;;a:1", "b:0", "b:-1", "b:²", "a:1;a:2", ";"])
def test_a_layout_that_cannot_be_read_is_none(text: str) -> None:
    assert parse_layout("orders", text) is None


@given(st.dictionaries(st.text("abcxyz-:", min_size=1), st.integers(1, 9), min_size=1))
def test_a_written_layout_is_read_back_sorted_by_broker(counts: dict[str, int]) -> None:
    """The order in which RocketMQ's clients sort the queues of a route."""
    found = queues(layout_text(counts))
    assert found == tuple(
        MessageQueue("orders", each, number) for each in sorted(counts) for number in range(counts[each])
    )


# with a layout


def test_the_layout_decides_whatever_the_route_has() -> None:
    assert first(FULL, "broker-a:4") == KeyQueues(queues(FULL), from_layout=True)


@given(st.text(min_size=1))
def test_a_key_has_the_same_queue_while_a_broker_is_away(key: str) -> None:
    up, away = first(FULL, FULL), later(first(FULL, FULL), FULL, "broker-b:4")
    assert up is not None
    assert pick_queue(key, up.queues) == pick_queue(key, away.queues)


def test_a_layout_is_kept_if_a_name_server_has_none() -> None:
    known = first(FULL, FULL)
    assert later(known, None, "broker-a:4") == known
    assert later(known, None, "broker-a:8;broker-c:8") == known


def test_another_layout_is_not_used() -> None:
    known = first(FULL)
    found = later(known, "broker-a:4;broker-b:4;broker-c:4", FULL)
    assert found.queues == queues(FULL)
    assert found.moved == "its layout is broker-a:4;broker-b:4;broker-c:4 now"


def test_the_same_brokers_in_another_order_are_another_layout() -> None:
    assert later(first(FULL), "broker-b:4;broker-a:4").moved


def test_another_layout_is_used_if_the_program_allows_it() -> None:
    found = later(first(FULL), "broker-a:8;broker-b:8", may_move=True)
    assert found == KeyQueues(queues("broker-a:8;broker-b:8"), from_layout=True)


def test_a_layout_that_comes_back_moves_nothing() -> None:
    changed = later(first(FULL), "broker-a:8")
    assert later(changed, FULL) == first(FULL)


# without a layout


def test_without_a_layout_the_first_route_is_kept() -> None:
    known = first(None, FULL)
    assert known == KeyQueues(queues(FULL), from_layout=False)
    assert later(known, None, "broker-b:4") == known
    assert later(known, None, "") == known
    assert later(known, None, FULL) == known


@pytest.mark.parametrize("route", ["broker-a:8;broker-b:4", "broker-a:2", "broker-a:4;broker-b:4;broker-c:4", "c:1"])
def test_a_route_with_other_queues_is_a_change(route: str) -> None:
    found = later(first(None, FULL), None, route)
    assert found.queues == queues(FULL)
    assert found.moved == f"its brokers have the queues {route} now"


def test_a_broker_that_was_away_at_the_start_is_a_change_when_it_comes_back() -> None:
    """Without a layout, the first route is all that a new process knows."""
    known = first(None, "broker-a:4")
    assert later(known, None, FULL).moved
    assert later(known, FULL, FULL).moved


def test_a_layout_that_says_what_is_in_use_changes_nothing() -> None:
    assert later(first(None, FULL), FULL, "broker-a:4") == KeyQueues(queues(FULL), from_layout=True)


def test_keys_do_not_follow_a_broker_that_is_away_even_if_the_program_lets_them_move() -> None:
    known = first(None, FULL)
    assert later(known, None, "broker-a:4", may_move=True) == known


def test_nothing_is_kept_before_anything_was_seen() -> None:
    assert key_queues(None, None, (), may_move=False) is None


@given(
    st.lists(st.sampled_from(["", "a:4", "b:4", "a:4;b:4", "a:8;b:4", "a:4;b:4;c:4"]), max_size=8), st.text(min_size=1)
)
def test_a_key_never_moves(routes: list[str], key: str) -> None:
    """Whatever routes follow each other: it stays, or is refused."""
    known = first(None, "a:4;b:4")
    assert known is not None
    home = pick_queue(key, known.queues)
    for route in routes:
        known = later(known, None, route)
        assert pick_queue(key, known.queues) == home
