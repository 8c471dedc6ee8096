"""The normal form of a key: one text, whatever type the program has for it.

A lane is known by this text everywhere: in the hash that picks the queue, in the stored message, in frozen keys and in
the consumer. So `42`, `"42"` and `b"42"` are one lane. Anything without an obvious text (a float, None in a tuple, an
object) is refused, because two programs would write it in two ways.
"""

from typing import TypeAlias
from uuid import UUID

from lanemq.model.errors import InvalidOption
from lanemq.model.wording import shown

Key: TypeAlias = str | int | bytes | UUID
"""What a program may pass as a key."""


def key_text(key: Key) -> str:
    """The key as text; raises `InvalidOption` if it has another type or cannot be stored.

    An `int` is written in decimal, a `UUID` with its hyphens in lower case, `bytes` as the text that they are in UTF-8.
    Bytes that are no text, or contain control characters, are written as hexadecimal digits.
    """
    if isinstance(key, str):
        text = str.__str__(key)  # of an enumeration its value, not its name
    elif isinstance(key, int) and not isinstance(key, bool):
        text = _decimal(key)
    elif isinstance(key, UUID):
        text = str(key)
    elif isinstance(key, bytes):
        text = _text_of(key)
    else:
        raise InvalidOption(
            f"key {shown_key(key)} is of type {type(key).__name__}: use str, int, bytes or UUID, such as key=str(...)"
        )
    check_key_text(text)
    return text


def check_key_text(text: str) -> None:
    """Raises `InvalidOption` if the text cannot be stored as a key."""
    if not text or "\x01" in text or "\x02" in text:
        raise InvalidOption(f"key {shown_key(text)} is not allowed: it is empty or contains 0x01 or 0x02")
    if not is_unicode(text):
        raise InvalidOption(
            f"key {shown_key(text)} is not allowed: it contains half of a surrogate pair, which UTF-8 cannot encode"
        )


def is_unicode(text: str) -> bool:
    """Whether the text can be encoded as UTF-8. JSON allows halves of surrogate pairs, which cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decimal(number: int) -> str:
    try:
        return int.__repr__(number)
    except ValueError:
        raise InvalidOption(f"a key of {number.bit_length()} bits is too long for a number: pass it as text") from None


def _text_of(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw.hex()
    return raw.hex() if any(unit < " " or unit == "\x7f" for unit in text) else text


def shown_key(key: object) -> str:
    """A key as errors and log lines show it: on one line, and cut if it is long."""
    return shown(key)
