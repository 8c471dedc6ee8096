"""How many lanes an answer holds."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.fronting.packing import MOST_HELD, MOST_LANES, Packing
from lanemq.model.units import Millis


def finish(packing: Packing, took: float, times: int = 20) -> None:
    for _ in range(times):
        packing.finished(Millis(0), Millis(round(took)), 0)


def test_a_client_begins_with_one_lane_and_gets_more_while_it_is_quick() -> None:
    packing = Packing()
    assert packing.lanes(0) == 1
    finish(packing, 0, times=1)
    assert packing.lanes(0) == 2
    finish(packing, 0)
    assert packing.lanes(0) == MOST_LANES


def test_a_slow_client_gets_one_lane() -> None:
    packing = Packing()
    finish(packing, 0)
    finish(packing, 100)
    assert packing.lanes(0) == 1


def test_a_failure_begins_anew() -> None:
    packing = Packing()
    finish(packing, 0)
    packing.failed()
    assert packing.lanes(0) == 1


def test_a_client_that_must_not_get_two_never_does() -> None:
    packing = Packing(alone=True)
    finish(packing, 0)
    assert packing.lanes(0) == 1


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 40))), st.integers(0, 200))
def test_the_limits_hold(observed: list[tuple[int, int]], held: int) -> None:
    packing = Packing()
    for took, ahead in observed:
        packing.finished(Millis(0), Millis(took), ahead)
    lanes = packing.lanes(held)
    assert 0 <= lanes <= MOST_LANES
    assert held + lanes <= max(held, MOST_HELD)
    assert lanes >= 1 or held >= MOST_HELD
