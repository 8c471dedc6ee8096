"""The offsets of a long lane in chunks do what a sorted list would do, and survive in rows."""

from bisect import bisect_left
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lanemq.core.brokering import lane_offsets
from lanemq.core.brokering.lane_offsets import LaneOffsets, pack, unpack


@pytest.mark.parametrize("step", [1, 255, 256, 65_536, 2**32, 2**40])
def test_distances_of_every_width_survive(step: int) -> None:
    offsets = [7 + step * number for number in range(5)]
    assert unpack(pack(offsets)) == offsets


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.lists(st.integers(1, 300), min_size=1, max_size=12)),
        st.tuples(st.just("drop"), st.integers(0, 40)),
        st.tuples(st.just("cut"), st.integers(0, 40)),
        st.tuples(st.just("restart")),
    ),
    max_size=20,
)


@settings(max_examples=300)
@given(STEPS)
def test_it_does_what_a_list_does_also_after_a_restart(steps: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_offsets, "CHUNK", 4)
        _compare(steps)


def _compare(steps: list[tuple[Any, ...]]) -> None:
    offsets, naive, last = LaneOffsets(), list[int](), 0
    rows: dict[int, bytes] = {}
    for what, *args in steps:
        if what == "extend":
            fresh = [last := last + step for step in args[0]]
            rows |= dict(offsets.extend(fresh))
            naive += fresh
        elif what == "drop" and naive:
            through = naive[min(args[0], len(naive) - 1)]
            count = bisect_left(naive, through + 1)
            assert offsets.drop_through(through) == count
            del naive[:count]
        elif what == "cut" and naive:
            at = min(args[0], len(naive) - 1)
            assert offsets.cut_from(naive[at]) == naive[at:]
            del naive[at:]
            rows = dict(offsets.rows())
        elif what == "restart" and naive:
            rows = {start: data for start, data in rows.items() if start >= offsets.first_chunk}
            offsets = LaneOffsets.of_rows(sorted(rows.items()), naive[0])
        assert (list(offsets), len(offsets), bool(offsets)) == (naive, len(naive), bool(naive))
        if naive:
            assert (offsets.first, offsets.last) == (naive[0], naive[-1])
            middle = naive[len(naive) // 2]
            assert middle in offsets
            assert offsets.from_offset(middle, 3) == naive[len(naive) // 2 :][:3]
            assert offsets.from_offset(middle - 1, 1) == naive[bisect_left(naive, middle - 1) :][:1]
