"""How long connections wait whose requests carry no right signature."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.brokering.refusal_pace import FEW_ADDRESSES, INTERVAL_MS, MAX_REFUSALS, MAX_WAIT_MS, RefusalPace
from lanemq.model.units import Millis

NOW = 1_000_000


def waits(pace: RefusalPace, address: str, count: int, now: int = NOW) -> list[int]:
    return [pace.refused(address, Millis(now)) for _ in range(count)]


def test_within_the_allowance_nobody_waits() -> None:
    assert set(waits(RefusalPace(), "a", MAX_REFUSALS)) == {0}


def test_beyond_it_the_connections_of_an_address_wait_one_behind_the_other() -> None:
    pace = RefusalPace()
    waits(pace, "a", MAX_REFUSALS)
    assert waits(pace, "a", 3) == [INTERVAL_MS, 2 * INTERVAL_MS, 3 * INTERVAL_MS]


def test_one_that_has_waited_waits_for_an_interval_again() -> None:
    pace, now = RefusalPace(), NOW
    waits(pace, "a", MAX_REFUSALS)
    for _ in range(100):
        (wait,) = waits(pace, "a", 1, now)
        assert wait == INTERVAL_MS
        now += wait


def test_an_address_that_was_quiet_has_its_whole_allowance_again() -> None:
    pace = RefusalPace()
    waits(pace, "a", MAX_REFUSALS + 1)
    later = NOW + (MAX_REFUSALS + 1) * INTERVAL_MS
    assert set(waits(pace, "a", MAX_REFUSALS, later)) == {0}
    assert waits(pace, "a", 1, later) == [INTERVAL_MS]


def test_another_address_has_an_allowance_of_its_own() -> None:
    pace = RefusalPace()
    waits(pace, "a", MAX_REFUSALS + 1)
    assert waits(pace, "b", 1) == [0]


def test_however_many_wait_the_longest_wait_is_limited_and_so_is_what_follows() -> None:
    pace = RefusalPace()
    assert max(waits(pace, "a", 10_000)) == MAX_WAIT_MS
    assert waits(pace, "a", 1, NOW + MAX_WAIT_MS) == [INTERVAL_MS]


def test_addresses_that_have_their_allowance_again_take_no_memory() -> None:
    pace = RefusalPace()
    for number in range(10 * FEW_ADDRESSES):
        pace.refused(f"a{number}", Millis(NOW + number * INTERVAL_MS))
    assert len(pace._next) <= FEW_ADDRESSES


@given(st.lists(st.integers(-1_000, 1_000), max_size=200))
def test_no_wait_is_negative_or_too_long_whatever_the_clock_does(steps: list[int]) -> None:
    pace, now = RefusalPace(), NOW
    for step in steps:
        now += step
        assert 0 <= pace.refused("a", Millis(now)) <= MAX_WAIT_MS
