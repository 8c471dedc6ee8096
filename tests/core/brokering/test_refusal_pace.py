"""How long connections wait whose requests carry no valid signature."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.brokering.refusal_pace import MAX_REFUSALS, WINDOW_MS, RefusalPace
from lanemq.model.units import Millis


def waits(pace: RefusalPace, address: str, count: int, now: int) -> list[int]:
    return [pace.refused(address, Millis(now)) for _ in range(count)]


def test_within_the_allowance_nobody_waits() -> None:
    assert set(waits(RefusalPace(Millis(0)), "a", MAX_REFUSALS, 5)) == {0}


def test_beyond_it_a_connection_waits_until_the_next_window() -> None:
    pace = RefusalPace(Millis(0))
    waits(pace, "a", MAX_REFUSALS, 5)
    assert waits(pace, "a", 2, 50) == [WINDOW_MS - 50, WINDOW_MS - 50]
    assert waits(pace, "a", 1, WINDOW_MS) == [0]


def test_another_address_has_an_allowance_of_its_own() -> None:
    pace = RefusalPace(Millis(0))
    waits(pace, "a", MAX_REFUSALS + 1, 5)
    assert waits(pace, "b", 1, 5) == [0]


def test_addresses_of_earlier_windows_take_no_memory() -> None:
    pace = RefusalPace(Millis(0))
    for number in range(1_000):
        pace.refused(f"a{number}", Millis(number * WINDOW_MS))
    assert len(pace._counts) == 1


@given(st.lists(st.integers(-1_000, 1_000), max_size=200))
def test_no_wait_is_longer_than_a_window_whatever_the_clock_does(steps: list[int]) -> None:
    pace, now = RefusalPace(Millis(0)), 0
    for step in steps:
        now += step
        assert 0 <= pace.refused("a", Millis(now)) <= WINDOW_MS
