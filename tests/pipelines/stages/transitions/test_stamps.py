"""Repeats and gaps found by producer stamps."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.pipelines.stages.transitions.machine import StampTable


def test_a_sequence_that_was_seen_is_a_repeat_in_its_queue_and_epoch_only() -> None:
    table = StampTable(10)
    assert table.judge("q", [("p", 1, 0), ("p", 1, 1), ("p", 1, 0), ("p", 2, 0), ("o", 1, 0)]) == ([2], 0)
    assert table.judge("r", [("p", 1, 0)]) == ([], 0)
    assert table.judge("q", [("p", 1, 1), None, ("p", 2, 1)]) == ([0], 0)


def test_missing_sequences_are_counted_but_not_before_the_first_one_seen() -> None:
    table = StampTable(10)
    assert table.judge("q", [("p", 1, 7), ("p", 1, 8), ("p", 1, 12)]) == ([], 3)


def test_the_producer_silent_for_longest_is_forgotten_first() -> None:
    table = StampTable(2)
    table.judge("q", [("a", 1, 0), ("b", 1, 0), ("a", 1, 1), ("c", 1, 0)])
    assert table.judge("q", [("a", 1, 0), ("b", 1, 0)]) == ([0], 0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.integers(0, 5))), st.integers(0, 20))
def test_a_stamp_table_decides_the_same_after_it_was_stored_and_read(
    stamps: list[tuple[str, int, int]], cut: int
) -> None:
    whole, first = StampTable(3), StampTable(3)
    expected = whole.judge("q", [*stamps])
    before = first.judge("q", [*stamps[:cut]])
    after = StampTable(3, first.rows()).judge("q", [*stamps[cut:]])
    shifted = [index + min(cut, len(stamps)) for index in after[0]]
    assert (before[0] + shifted, before[1] + after[1]) == expected
