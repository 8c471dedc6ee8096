"""Tag filters of one group in one topic: which of its members may own queues.

The owner of a queue commits past what its filter leaves out. If members with different filters shared a topic, each
would skip, in its own queues, messages that others select. So only the members with the widest filter own queues of the
topic, and those with a narrower one wait until no wider one is left. A deployment that adds a tag costs capacity while
it lasts, but no message.

The broker refuses a member whose tags neither include another member's tags nor are included in them: whoever owned a
queue would skip messages of the other. So the filters of a topic are nested, and one of them contains all others.

A member that falls silent or loses its connection may come back and expect its messages, so its filter still counts for
a while (`lost_members`). If it is the widest one, no member gets queues of the topic until the member is back, a member
with the same tags joins, or the filter ends.

A filter is a set of tags; the empty set selects every message, as in a subscription.
"""

from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

from lanemq.model.units import Millis

Tags: TypeAlias = frozenset[str]

ALL: Tags = frozenset()
"""Selects every message."""
_SHOWN_CHARS = 200
"""Characters of a filter in a log line or an error."""


class Relation(Enum):
    """How one filter compares with another."""

    SAME = "selects the same messages"
    WIDER = "selects all messages of the other, and more"
    NARROWER = "selects some messages of the other, and no more"
    NEITHER = "each may select a message that the other does not"


def compare(one: Tags, other: Tags) -> Relation:
    if one == other:
        return Relation.SAME
    if contains(one, other):
        return Relation.WIDER
    return Relation.NARROWER if contains(other, one) else Relation.NEITHER


def contains(one: Tags, other: Tags) -> bool:
    """Whether a filter selects everything that the other selects."""
    return not one or (bool(other) and other <= one)


def shown(tags: Tags) -> str:
    """A filter as a user writes it, cut if it is long."""
    text = " || ".join(sorted(tags)) or "*"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


class TopicFilters:
    """The filters that members of a group have for a topic, and how many members have each.

    Members of stock clients are counted apart: the broker cannot keep queues from them.
    """

    __slots__ = ("counts", "stock", "widest")

    def __init__(self) -> None:
        self.counts: dict[Tags, int] = {}
        """LaneMQ members; the filters are nested."""
        self.stock: dict[Tags, int] = {}
        self.widest: Tags | None = None
        """The filter of a LaneMQ member that contains those of all others; None if there is no LaneMQ member."""

    def add(self, tags: Tags) -> None:
        self.counts[tags] = self.counts.get(tags, 0) + 1
        if self.widest is None or contains(tags, self.widest):
            self.widest = tags

    def remove(self, tags: Tags) -> None:
        left = self.counts.pop(tags) - 1
        if left:
            self.counts[tags] = left
        elif tags == self.widest:
            self.widest = max(self.counts, key=_width, default=None)

    def add_stock(self, tags: Tags, by: int) -> None:
        count = self.stock.pop(tags, 0) + by
        if count:
            self.stock[tags] = count

    def __bool__(self) -> bool:
        return bool(self.counts or self.stock)

    def misfit(self, tags: Tags, without: Tags | None) -> Tags | None:
        """A filter that neither contains this one nor is contained in it.

        `without` is the present filter of the member that would have this one.
        """
        if tags in self.counts:
            return None
        return misfit(tags, [each for each, count in self.counts.items() if each != without or count > 1])

    @property
    def mixed(self) -> bool:
        """Whether members have different filters."""
        return len(self.counts) + len(self.stock) > 1 and (
            len(self.counts) != 1 or self.counts.keys() != self.stock.keys()
        )

    def narrower(self, lost: Tags | None = None) -> int:
        """How many members have another filter than the largest one, which may be that of a lost member."""
        filters = self.counts.keys() | self.stock.keys()
        largest = max(filters, key=_width) if lost is None else lost
        return sum(self.counts.get(each, 0) + self.stock.get(each, 0) for each in filters if each != largest)


class LostFilters:
    """The filters of a group's members for a topic that were lost: they did not say that they leave."""

    __slots__ = ("clients", "widest")

    def __init__(self) -> None:
        self.clients: dict[Tags, dict[str, Millis]] = {}
        """Filter → the clients that had it, and until when each of them counts. The filters are nested."""
        self.widest: Tags | None = None
        """The filter that contains all others; None if there is no filter."""

    def add(self, client_id: str, tags: Tags, until: Millis) -> None:
        self.clients.setdefault(tags, {})[client_id] = until
        if self.widest is None or contains(tags, self.widest):
            self.widest = tags

    def remove(self, client_id: str, tags: Tags) -> None:
        clients = self.clients[tags]
        del clients[client_id]
        if not clients:
            del self.clients[tags]
            if tags == self.widest:
                self.widest = max(self.clients, key=_width, default=None)

    def last(self, tags: Tags) -> tuple[str, Millis]:
        """The client with this filter that was lost last, and until when it counts."""
        return next(reversed(self.clients[tags].items()))

    def within(self, tags: Tags) -> list[str]:
        """The clients whose filter is contained in this one."""
        return [client for each, clients in self.clients.items() if contains(tags, each) for client in clients]

    def __bool__(self) -> bool:
        return bool(self.clients)


def misfit(tags: Tags, others: Iterable[Tags]) -> Tags | None:
    """A filter of these nested ones that neither contains `tags` nor is contained in it.

    It is enough to compare with the next narrower and the next wider one.
    """
    known, width = tuple(others), _width(tags)
    below = max((each for each in known if _width(each) <= width), key=_width, default=None)
    above = min((each for each in known if _width(each) >= width), key=_width, default=None)
    for each in (below, above):
        if each is not None and compare(tags, each) is Relation.NEITHER:
            return each
    return None


def _width(tags: Tags) -> float:
    return len(tags) or float("inf")
