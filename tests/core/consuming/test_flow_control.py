"""When a pull must wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.consuming.flow_control import CACHE_FULL_WAIT, PULL_NOW, Cached, FlowLimits, Full, WaitFor, verdict
from lanemq.model.errors import InvalidOption

LIMITS = FlowLimits()


@pytest.mark.parametrize(
    ("cached", "reason"),
    [
        (Cached(1_001, 0, 0), Full.MESSAGES),
        (Cached(0, 100 * 2**20 + 1, 0), Full.BYTES),
        (Cached(0, 0, 2_001), Full.SPAN),
    ],
)
def test_each_limit_stops_the_pull_alone(cached: Cached, reason: Full) -> None:
    assert verdict(cached, LIMITS, out_of_order=True) == WaitFor(CACHE_FULL_WAIT, reason)


def test_cache_at_its_limits_still_pulls() -> None:
    assert verdict(Cached(1_000, 100 * 2**20, 2_000), LIMITS, out_of_order=True) is PULL_NOW


def test_span_does_not_stop_a_queue_consumed_in_order() -> None:
    assert verdict(Cached(1, 1, 5_000), LIMITS, out_of_order=False) is PULL_NOW


@given(st.lists(st.integers(1, 32), max_size=200), st.integers(1, 100))
def test_cache_exceeds_its_limit_by_at_most_one_batch(batches: list[int], limit: int) -> None:
    count = 0
    for size in batches:
        if verdict(Cached(count, 0, 0), FlowLimits(messages=limit), out_of_order=False) is PULL_NOW:
            count += size
    assert count <= limit + 32


@pytest.mark.parametrize("field", ["messages", "bytes", "span"])
def test_limit_below_one_is_refused(field: str) -> None:
    with pytest.raises(InvalidOption, match=field):
        FlowLimits(**{field: 0})
