"""Tag expressions of subscriptions: `"*"`, or tags joined by `||`."""

from dataclasses import dataclass

from lanemq.model.checks import check_text
from lanemq.model.errors import InvalidOption
from lanemq.model.java_hash import tag_code

ALL_TAGS = "*"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tags that a subscription accepts; none means every message.

    The broker compares hash codes of tags, which may collide; the client compares the text again. Both skip what is
    not accepted, so the committed offset moves on.
    """

    text: str
    tags: frozenset[str]

    @property
    def codes(self) -> list[int]:
        """The hash codes that the broker compares (RocketMQ's SubscriptionData.codeSet)."""
        return sorted(tag_code(tag) for tag in self.tags)

    def accepts(self, tag: str | None) -> bool:
        return not self.tags or tag in self.tags


def tag_filter(text: str) -> TagFilter:
    """Reads a tag expression: `"A || C"` accepts tags A and C, `"*"` or an empty text accepts all."""
    check_text("tags", text)
    text = text.strip()
    if text in ("", ALL_TAGS):
        return TagFilter(ALL_TAGS, frozenset())
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags) or ALL_TAGS in tags:
        raise InvalidOption(f"tags={text!r} cannot be read: write '*' for all, or tags like 'paid || shipped'")
    return TagFilter(text, frozenset(tags))
