"""A verification names the first difference."""

import pytest

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
