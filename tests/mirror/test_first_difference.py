"""A verification names the first difference."""

import pytest

from lanemq.client.message import Message
from lanemq.mirror import others
from lanemq.mirror.others import content_of
from lanemq.mirror.verifying import Seen, first_difference


def seen(place: str, *offsets: int, content: bytes = b"x") -> list[Seen]:
    return [Seen(offset, content, f"{place}@{number}") for number, offset in enumerate(offsets)]


@pytest.mark.parametrize(
    ("copies", "text"),
    [
        (seen("to", 3, 5), "the copy of from@2 is missing"),
        (seen("to", 3, 7), "the copy of from@1 is missing before to@1"),
        (seen("to", 3, 3, 5, 7), "to@1 repeats the copy of source offset 3"),
        (seen("to", 3, 5, 7, 7), "to@3 repeats source offset 7"),
        (seen("to", 3, 7, 5), "to@1 comes before the copy of from@1"),
        (seen("to", 3, 5, 7, 9), "to@3 has no original at source offset 9"),
        (seen("to", 3, 5, 7, content=b"y"), "to@0 has another content than from@0"),
    ],
)
def test_each_kind_of_difference_is_named(copies: list[Seen], text: str) -> None:
    assert first_difference(seen("from", 3, 5, 7), copies) == text


def copies_differ(**properties: str) -> bool:
    """Whether a verification tells a message apart from one that differs only in its user properties."""
    original = Message.fake("order", key="k", properties={"tenant": "a"})
    return content_of(original) != content_of(Message.fake("order", key="k", properties=properties))


def test_a_copy_with_other_user_properties_has_another_content() -> None:
    assert copies_differ(tenant="b")
    assert copies_differ()
    assert not copies_differ(tenant="a")


def test_control_without_user_properties_such_a_copy_counts_as_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "user_properties", lambda _: {})
    assert not copies_differ(tenant="b")
