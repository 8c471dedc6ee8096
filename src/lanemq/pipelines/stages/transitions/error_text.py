"""The text of an error raised by the user's code, in a form that every file, table and terminal can hold.

Reasons are part of state files and dead letters, which hold many keys. Invariant: an error affects only its own key,
even if its text is not UTF-8, has no end, or raises when it is asked for.
"""

from typing import Final

MAX_CHARACTERS: Final = 4_000
"""Length of a reason; some errors quote the whole body."""

DISCARDED: Final = "discarded by an operator"
LATE_OR_AGAIN: Final = "came late or again"
"""Reasons by which `operate/dead_letters.py` recognises dead letters that "redrive everything" leaves out."""


def error_text(error: BaseException) -> str:
    """The error's message, shortened and with escapes for what cannot be stored."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's code
        text = "(an error that has no text)"
    return storable(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …")


def storable(text: str) -> str:
    """The text with escapes for lone surrogates, which are not UTF-8, and for NUL, which PostgreSQL refuses."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
