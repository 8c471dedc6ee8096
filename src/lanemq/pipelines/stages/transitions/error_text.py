"""What an error of the user's code says, in a form that every file, table and terminal can hold.

The rule guarded here: an error concerns its key, also one whose text is no UTF-8, endless, or fails when it is asked
for. Reasons are part of state files and dead letters, which are written for many keys at once.
"""

from typing import Final

MOST_CHARACTERS: Final = 4_000
"""Of a reason: some errors say the whole body that they are about."""

DISCARDED: Final = "discarded by a person"
LATE_OR_AGAIN: Final = "came late or again"
"""Words of dead letters by which they are recognised as what is not redriven with all others (`set_aside.py`)."""


def words_of(error: BaseException) -> str:
    """Its text, with what cannot be written as escapes."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's code
        text = "(an error that cannot say what it is)"
    return storable(text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …")


def storable(text: str) -> str:
    """Lone surrogates are no UTF-8, and PostgreSQL has no NUL in texts."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
