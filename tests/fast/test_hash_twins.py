"""The compiled hash of a key equals Java's: one different bit would move a key to another queue."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.fast.both import needs_twins, same

pytestmark = needs_twins


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(max_codepoint=127), max_size=40) | st.text(max_size=20))
@example("")
@example("polygenelubricants")
@example("\x00\x7f" * 50)
@example("\ud800")
def test_texts_are_hashed_alike(text: str) -> None:
    """Includes long texts, text that is not ASCII, and halves of surrogate pairs."""
    same("text_hash", text)


class Name(str):
    """A subclass of str."""


def test_subclasses_of_str_are_left_to_the_reference() -> None:
    for odd in (Name("key"), b"key", 5, None):
        same("text_hash", odd)
