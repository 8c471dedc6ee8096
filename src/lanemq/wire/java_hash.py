"""What a message's tag is compared by at the broker: Java's string hash, as every RocketMQ client computes it."""

from lanemq.model.java_hash import java_string_hash


def tag_code(tag: str | None) -> int:
    """A tag as an index entry and a pull's filter know it; no tag counts as 0."""
    return java_string_hash(tag) if tag else 0
