"""Which messages of a topic a subscription wants: `"*"`, or tags joined by `||`.

The broker compares hash codes of tags, which may collide; the client compares the text again. Both sides pass
over what is not wanted, so the committed offset moves on (A17).
"""

from dataclasses import dataclass

from lanemq.model.errors import InvalidOption
from lanemq.model.java_hash import tag_code

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """One subscription's tags; none means every message."""

    text: str
    tags: frozenset[str]

    @property
    def codes(self) -> list[int]:
        """What the broker compares (RocketMQ's SubscriptionData.codeSet)."""
        return sorted(tag_code(tag) for tag in self.tags)

    def wants(self, tag: str | None) -> bool:
        return not self.tags or tag in self.tags


def tag_filter(text: str) -> TagFilter:
    """`"A || C"` wants tags A and C, `"*"` or nothing wants all."""
    text = text.strip()
    if text in ("", EVERYTHING):
        return TagFilter(EVERYTHING, frozenset())
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags) or EVERYTHING in tags:
        raise InvalidOption(f"tags={text!r} cannot be read: write '*' for all, or tags like 'paid || shipped'")
    return TagFilter(text, frozenset(tags))
