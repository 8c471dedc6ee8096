"""What `assert_in_order` accepts and refuses."""

import pytest

from lanemq import Message
from lanemq.testing import assert_in_order


def messages(*places: tuple[str, int]) -> list[Message]:
    return [Message.fake(key=key, offset=offset) for key, offset in places]


def test_keys_are_judged_by_themselves() -> None:
    assert_in_order(messages(("a", 1), ("b", 0), ("a", 2), ("b", 3)))
    assert_in_order([("a", 1), ("b", 1), ("a", 2)])


@pytest.mark.parametrize("offsets", [[1, 2, 2, 3], [1, 2, 3, 1, 2, 3], [1, 2, 3, 2, 3, 4], [1, 1, 1, 2]])
def test_repeats_are_accepted_only_where_they_are_expected(offsets: list[int]) -> None:
    handled = messages(*(("a", offset) for offset in offsets))
    assert_in_order(handled, repeats=True)
    with pytest.raises(AssertionError, match=r"key 'a': \d was handled twice"):
        assert_in_order(handled)


@pytest.mark.parametrize("offsets", [[2, 1], [1, 3, 2], [1, 2, 3, 1, 3], [1, 2, 3, 1, 4]])
def test_overtaking_is_found_also_among_repeats(offsets: list[int]) -> None:
    with pytest.raises(AssertionError, match=f"then {offsets[-1]}"):
        assert_in_order(messages(*(("a", offset) for offset in offsets)), repeats=True)
