"""Java's hash codes, bit for bit.

RocketMQ chooses queues by `Object.hashCode` and filters tags by `String.hashCode`. Producers in every language and
process must compute the same number, so Python's own salted `hash()` cannot be used.
"""

from functools import lru_cache

from lanemq.model.errors import InvalidOption

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
_MASK = 0xFFFF_FFFF

REMEMBERED_CHARS = 256
"""Longest tag whose hash is remembered: a client may invent tags of many kilobytes, and thousands are remembered."""


@lru_cache(maxsize=16_384)
def java_string_hash(text: str) -> int:
    """`java.lang.String.hashCode`, over UTF-16 units: an emoji counts as its two surrogates."""
    h = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            h = (31 * h + unit) & _MASK
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            h = (31 * h + (high << 8 | low)) & _MASK
    return _signed(h)


def tag_code(tag: str | None) -> int:
    """The number by which brokers compare tags (RocketMQ's `tagsCode`); 0 for a message without a tag."""
    if not tag:
        return 0
    return java_string_hash(tag) if len(tag) <= REMEMBERED_CHARS else java_string_hash.__wrapped__(tag)


def java_int_hash(value: int) -> int:
    """`Integer.hashCode` where the value fits an int, else `Long.hashCode`.

    A Java producer that passes a *negative* number as `Long` hashes it differently from the same `Integer`;
    Python has one kind of int; this function treats it as the narrow one.
    """
    if INT_MIN <= value <= INT_MAX:
        return value
    if LONG_MIN <= value <= LONG_MAX:
        bits = value & 0xFFFF_FFFF_FFFF_FFFF
        return _signed((bits ^ bits >> 32) & _MASK)
    raise InvalidOption(f"key {value} does not fit Java's 64-bit long: pass it as text, key={str(value)!r}")


def _signed(bits: int) -> int:
    return bits - 0x1_0000_0000 if bits & 0x8000_0000 else bits
