"""Which clients are there."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.fronting.liveness import NOTICED_MS, RECONNECT_MS, SILENT_MS, Clients, LostConnection
from lanemq.model.units import Millis


def at(milliseconds: int) -> Millis:
    return Millis(milliseconds)


def test_a_client_whose_connection_is_lost_is_gone_soon() -> None:
    clients = Clients()
    call = clients.opened("c", "here:1", now=at(0))
    clients.ended("c", call, broken=True, now=at(100))
    assert clients.gone(now=at(100 + RECONNECT_MS - 1)) == []
    assert clients.gone(now=at(100 + RECONNECT_MS)) == ["c"]
    assert "c" not in clients


def test_a_client_that_calls_again_stays() -> None:
    clients = Clients()
    call = clients.opened("c", "here:1", now=at(0))
    clients.ended("c", call, broken=True, now=at(100))
    clients.seen("c", now=at(200))
    assert clients.gone(now=at(100 + RECONNECT_MS)) == []


def test_giving_up_one_call_of_a_connection_means_nothing() -> None:
    clients = Clients()
    telemetry = clients.opened("c", "here:1", now=at(0))
    clients.opened("c", "here:1", now=at(0))
    clients.ended("c", telemetry, broken=True, now=at(100))
    assert clients.gone(now=at(10 * SILENT_MS)) == []


def test_a_client_that_has_connected_again_is_not_lost_with_its_old_connection() -> None:
    clients = Clients()
    old = clients.opened("c", "here:1", now=at(0))
    new = clients.opened("c", "here:2", now=at(100))
    clients.ended("c", old, broken=True, now=at(5000))
    clients.ended("c", new, broken=False, now=at(9000))
    assert clients.gone(now=at(9001)) == [], "it processes what the call brought"


def test_a_call_from_before_a_client_was_forgotten_says_nothing_of_it() -> None:
    clients = Clients()
    old = clients.opened("c", "here:1", now=at(0))
    clients.forget("c")
    clients.seen("c", now=at(100))
    clients.ended("c", old, broken=True, now=at(200))
    assert clients.gone(now=at(200 + RECONNECT_MS)) == []


def test_a_lost_connection_is_noticed_whichever_of_its_calls_ends_first() -> None:
    for broken in (True, False), (False, True):
        clients = Clients()
        calls = [clients.opened("c", "here:1", now=at(0)) for _ in range(2)]
        for call, how in zip(calls, broken, strict=True):
            clients.ended("c", call, broken=how, now=at(100))
        assert clients.gone(now=at(100 + RECONNECT_MS)) == ["c"]


def test_a_lost_connection_of_a_client_that_is_there_is_told_once() -> None:
    clients = Clients()
    old = clients.opened("c", "here:1", now=at(0))
    clients.ended("c", old, broken=True, now=at(9000))
    clients.opened("c", "here:2", now=at(9001))
    assert clients.lost_connections(now=at(9000 + RECONNECT_MS - 1)) == [], "it may repeat its call"
    lost = LostConnection("c", "here:1", at(9000 - NOTICED_MS))
    assert clients.lost_connections(now=at(9000 + RECONNECT_MS)) == [lost]
    assert clients.lost_connections(now=at(9000 + RECONNECT_MS)) == []


def test_a_connection_without_an_open_call_may_be_lost_when_its_client_uses_another_one() -> None:
    clients = Clients()
    old = clients.opened("c", "here:1", now=at(0))
    clients.ended("c", old, broken=False, now=at(1000))
    clients.opened("c", "here:2", now=at(3000))
    lost = clients.lost_connections(now=at(3000 + RECONNECT_MS))
    assert [each.connection for each in lost] == ["here:1"]
    both = clients.opened("c", "here:3", now=at(5000))
    clients.ended("c", both, broken=False, now=at(5001))
    assert clients.lost_connections(now=at(9000)) == [], "calls are open on the second one"


def test_a_client_that_calls_again_on_a_connection_has_not_lost_it() -> None:
    clients = Clients()
    only = clients.opened("c", "here:1", now=at(0))
    clients.ended("c", only, broken=True, now=at(100))
    clients.seen("c", now=at(200), connection="here:1")
    assert clients.lost_connections(now=at(100 + RECONNECT_MS)) == []


def test_a_client_with_an_open_call_may_be_silent_and_another_not() -> None:
    clients = Clients()
    clients.opened("open", "here:1", now=at(0))
    clients.seen("silent", now=at(0))
    assert clients.gone(now=at(SILENT_MS - 1)) == []
    assert clients.gone(now=at(SILENT_MS)) == ["silent"]


@given(st.lists(st.tuples(st.sampled_from(["seen", "opened", "ended", "broken"]), st.integers(0, 2000)), max_size=30))
def test_a_client_that_ends_all_its_calls_is_gone_at_last(steps: list[tuple[str, int]]) -> None:
    clients, now, calls = Clients(), 0, list[int]()
    clients.seen("c", now=at(0))
    for step, passed in steps:
        now += passed
        if step == "seen":
            clients.seen("c", now=at(now))
        elif step == "opened":
            calls.append(clients.opened("c", f"here:{passed % 2}", now=at(now)))
        elif calls:
            clients.ended("c", calls.pop(), broken=step == "broken", now=at(now))
    for call in calls:
        clients.ended("c", call, broken=False, now=at(now))
    assert clients.gone(now=at(now + SILENT_MS)) == ["c"]
