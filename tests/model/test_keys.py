"""Keys have one normal form."""

from enum import IntEnum, StrEnum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.model.errors import InvalidOption, LaneError
from lanemq.model.keys import key_text


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("order-1", "order-1"),
        (42, "42"),
        (-7, "-7"),
        (2**70, "1180591620717411303424"),
        (b"42", "42"),
        ("你好".encode(), "你好"),
        (b"\xff\x00\xfe", "ff00fe"),
        (b"\x00\x00\x00\x01", "00000001"),
        (UUID("12345678-1234-5678-1234-56789ABCDEF0"), "12345678-1234-5678-1234-56789abcdef0"),
        (Colour.RED, "red"),
        (Size.LARGE, "3"),
    ],
)
def test_the_normal_form_of_a_key(key: str | int | bytes | UUID, text: str) -> None:
    assert key_text(key) == text
    assert type(key_text(key)) is str


@pytest.mark.parametrize(
    "key", [1.5, True, None, ("a", 1), ["a"], object(), bytearray(b"a"), "", b"", "a\x01", "\ud800"]
)
def test_other_keys_are_refused(key: object) -> None:
    with pytest.raises(InvalidOption, match=r"^key "):
        key_text(key)  # type: ignore[arg-type]


def test_an_integer_too_long_for_decimal_digits_is_refused() -> None:
    with pytest.raises(LaneError, match="pass it as text"):
        key_text(1 << 20_000)


@given(st.text() | st.binary() | st.integers())
def test_a_normal_form_can_be_stored_and_is_its_own_normal_form(key: str | int | bytes) -> None:
    try:
        text = key_text(key)
    except LaneError:
        return
    assert text.encode()
    assert not {"\x01", "\x02"} & set(text)
    assert key_text(text) == text
