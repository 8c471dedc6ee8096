"""A flush ends when its messages are settled, although others left the middle of the line."""

from hypothesis import given
from hypothesis import strategies as st

from lanemq.core.sending.send_lane import LeftOut


def test_left_messages_count_until_everything_in_line_is_gone() -> None:
    left = LeftOut()
    left.leave(3, oldest=0, next_sequence=10)
    assert left.since(4) == 3
    assert left.since(9) == 3
    assert left.since(10) == 0
    assert left.since(9) == 0, "entries do not come back"


def test_a_shorter_line_ends_earlier() -> None:
    """Otherwise it would count indefinitely once the line is empty."""
    left = LeftOut()
    left.leave(3, oldest=0, next_sequence=10)
    left.leave(5, oldest=0, next_sequence=5)
    assert left.since(4) == 8
    assert left.since(5) == 0


def test_renumbering_keeps_the_distance() -> None:
    left = LeftOut()
    left.leave(3, oldest=0, next_sequence=10)
    left.renumbered(6)
    assert left.since(3) == 3
    assert left.since(4) == 0


def test_an_empty_line_has_no_entries() -> None:
    left = LeftOut()
    left.leave(3, oldest=0, next_sequence=10)
    left.clear()
    assert left.since(0) == 0


def test_an_entry_is_kept_only_while_messages_from_then_are_in_line() -> None:
    left = LeftOut()
    for number in range(1, 100):
        left.leave(1, oldest=number - 1, next_sequence=number + 5)
        assert len(left) <= 6
    left.leave(1, oldest=105, next_sequence=105)
    assert len(left) == 0


@given(st.lists(st.tuples(st.sampled_from(["come", "leave", "go", "renumber"]), st.integers(1, 4)), max_size=60))
def test_the_count_equals_that_of_a_plain_list(steps: list[tuple[str, int]]) -> None:
    left, entries, oldest, end = LeftOut(), list[tuple[int, int]](), 0, 0
    for step, count in steps:
        if step == "come":
            end += count
        elif step == "go":
            oldest = min(oldest + count, end)
        elif step == "renumber":
            left.renumbered(oldest)
            entries = [(max(0, each - oldest), many) for each, many in entries]
            oldest, end = 0, end - oldest
        else:
            end = max(oldest, end - count)
            left.leave(count, oldest=oldest, next_sequence=end)
            entries = [*((min(each, end), many) for each, many in entries), (end, count)]
        assert left.since(oldest) == sum(many for each, many in entries if oldest < each)
        assert len(left) <= max(1, end - oldest)
