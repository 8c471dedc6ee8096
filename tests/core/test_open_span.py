"""A flush ends when what it waits for is settled, although others left the middle of the line."""

from lanemq.core.open_span import LeftOut


def test_what_left_counts_until_everything_that_was_in_line_has_gone() -> None:
    left = LeftOut()
    left.leave(3, next_sequence=10)
    assert left.since(4) == 3
    assert left.since(9) == 3
    assert left.since(10) == 0
    assert left.since(9) == 0, "gone is gone"


def test_a_line_that_became_shorter_ends_earlier() -> None:
    """Otherwise it would count forever, once the line is empty."""
    left = LeftOut()
    left.leave(3, next_sequence=10)
    left.leave(5, next_sequence=5)
    assert left.since(4) == 8
    assert left.since(5) == 0


def test_new_numbers_keep_the_distance() -> None:
    left = LeftOut()
    left.leave(3, next_sequence=10)
    left.renumbered(6)
    assert left.since(3) == 3
    assert left.since(4) == 0


def test_an_empty_line_forgets() -> None:
    left = LeftOut()
    left.leave(3, next_sequence=10)
    left.clear()
    assert left.since(0) == 0
