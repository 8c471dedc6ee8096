"""Negative controls: each check fails for a history that is wrong in its way."""

import pytest

from interop.clients import Seen, Turn
from interop.judge import in_order_with_repeats, overlaps


def _turn(start: int, end: int | None, queue: int = 0, topic: str = "t") -> Turn:
    seen = Seen(topic, queue, start, "id", None, None, 0, "k:0", 3, "", 0, {})
    return Turn("member", [seen], start * 1_000_000, None if end is None else end * 1_000_000, "success")


def test_turns_one_after_the_other_do_not_overlap() -> None:
    assert overlaps([_turn(0, 1), _turn(1, 2), _turn(5, 6)]) == []


def test_a_turn_that_starts_inside_another_of_its_queue_overlaps() -> None:
    first, second = _turn(0, 3), _turn(2, 4)
    assert overlaps([second, first]) == [(first, second)]


def test_a_turn_after_one_that_never_ended_overlaps() -> None:
    assert len(overlaps([_turn(0, None), _turn(9, 10)])) == 1


def test_other_queues_and_other_topics_may_overlap() -> None:
    assert overlaps([_turn(0, 5), _turn(1, 2, queue=1), _turn(2, 3, topic="u")]) == []


def test_a_short_turn_inside_a_long_one_does_not_hide_a_later_overlap() -> None:
    """The overlapping turns need not be adjacent by start."""
    assert len(overlaps([_turn(0, 10), _turn(1, 2), _turn(5, 6)])) == 2


@pytest.mark.parametrize("seen", ["abc", "aabbcc", "ababc", "abcabc", "abcb"])
def test_repeats_that_rewind_are_in_order(seen: str) -> None:
    assert in_order_with_repeats(list(seen), list("abc"))


@pytest.mark.parametrize("seen", ["", "ab", "acb", "bac", "ac", "abd", "bc"])
def test_skipped_swapped_lost_and_unknown_messages_are_not_in_order(seen: str) -> None:
    assert not in_order_with_repeats(list(seen), list("abc"))
