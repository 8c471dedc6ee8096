"""Java's hash on recorded vectors: a wrong value sends a key to another queue."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.model.java_hash import java_string_hash, tag_code


@pytest.mark.row("A15")
def test_hash_equals_what_java_printed(vectors: dict[str, Any]) -> None:
    for text, expected in vectors["string_hashes"].items():
        assert java_string_hash(text) == expected


@pytest.mark.row("A15")
def test_characters_outside_the_basic_plane_count_as_two_units() -> None:
    assert java_string_hash("😀") == 31 * 0xD83D + 0xDE00


@pytest.mark.row("A15")
@settings(max_examples=80)
@given(st.text(max_size=30))
def test_hash_is_a_signed_32_bit_number_by_the_published_formula(text: str) -> None:
    value = 0
    for unit in _units(text):
        value = (31 * value + unit) % 2**32
    assert java_string_hash(text) == (value - 2**32 if value >= 2**31 else value)
    assert -(2**31) <= java_string_hash(text) < 2**31


def _units(text: str) -> list[int]:
    wide = text.encode("utf-16-be")
    return [high * 256 + low for high, low in zip(wide[::2], wide[1::2], strict=True)]


def test_message_without_a_tag_has_code_zero() -> None:
    assert tag_code(None) == 0
    assert tag_code("") == 0
    assert tag_code("TagA") == 2598919
