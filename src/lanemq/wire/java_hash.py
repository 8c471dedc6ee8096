"""Java's string hash, because keys and tags must land where every RocketMQ client puts them.

Python's own `hash` differs in every process. The value here is a published number: 31·h + unit over UTF-16
units, wrapped to a signed 32-bit number.
"""

from functools import lru_cache
from struct import unpack


@lru_cache(maxsize=8192)
def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`, from -2**31 to 2**31 - 1."""
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode("ascii")
    else:
        wide = text.encode("utf-16-le", "surrogatepass")
        units = unpack(f"<{len(wide) // 2}H", wide)
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tag_code(tag: str | None) -> int:
    """What a tag is compared by at the broker; no tag counts as 0."""
    return java_string_hash(tag) if tag else 0
