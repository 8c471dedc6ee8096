"""Members that were lost: they fell silent or lost their connection, and did not say that they leave.

After a start of the broker, all members of before are lost. Of these it knows only the widest filter of each group and
topic (`filter_rows`), which counts for a member without a name.

Such a member may be back in a moment and expect its messages. Until then members with a narrower filter must skip
nothing that it selects, so its filters count for some more time (`tag_filters`). They end before that

- when the client is back: it is a member again, with the filters of its heartbeat,
- when the client says that it leaves,
- when a member with at least the same tags of a topic leaves: whoever stops it does not want these messages any more.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lanemq.core.brokering.members.filter_rows import FilterRows
from lanemq.core.brokering.members.tag_filters import LostFilters, Tags
from lanemq.model.units import Millis

EARLIER = ""
"""Stands for the members of a group from before the start of the broker; no client has this id."""


def shown_member(member: str) -> str:
    return f"member {member}" if member != EARLIER else "a member from before the broker's start"


class LostFilter(NamedTuple):
    """The filter of a lost member for one topic of its group, which counts until a time."""

    group: str
    topic: str
    member: str
    tags: Tags
    until: Millis


class _LostMember:
    __slots__ = ("extended", "topics", "until")

    def __init__(self, topics: dict[str, Tags], until: Millis) -> None:
        self.topics = topics
        """Never empty."""
        self.until = until
        self.extended = False
        """Whether a pause of the broker was added."""


class LostMembers:
    """The lost members of all groups of a broker. All of them count for the same time, `keep_ms`."""

    def __init__(self, keep_ms: Millis, rows: FilterRows) -> None:
        self._keep_ms = keep_ms
        self._rows = rows
        self._members: dict[tuple[str, str], _LostMember] = {}
        """Group and client id → the member; those that end first come first."""
        self._filters: dict[str, dict[str, LostFilters]] = {}
        """Group → topic → filters; none is empty."""

    def add(self, group: str, client_id: str, topics: Mapping[str, Tags], *, now: Millis) -> None:
        """Keep the filters of a member that is lost now."""
        if not topics:
            return
        until = Millis(now + self._keep_ms)
        self._members[group, client_id] = _LostMember(dict(topics), until)
        for topic, tags in topics.items():
            self._filters.setdefault(group, {}).setdefault(topic, LostFilters()).add(client_id, tags, until)

    def remove(self, group: str, client_id: str) -> bool:
        """Forget a member that is back or has left; False if it was not lost."""
        member = self._members.pop((group, client_id), None)
        for topic, tags in member.topics.items() if member is not None else ():
            self._remove_filter(group, topic, client_id, tags)
        return member is not None

    def left(self, group: str, topic: str, tags: Tags) -> list[str]:
        """Forget the filters that are contained in that of a member which has left; returns clients without others."""
        filters, ended = self._filters.get(group, {}).get(topic), list[str]()
        for client_id in filters.within(tags) if filters is not None else ():
            member = self._members[group, client_id]
            self._remove_filter(group, topic, client_id, member.topics.pop(topic))
            if not member.topics:
                del self._members[group, client_id]
                ended.append(client_id)
        return ended

    def due(self, *, now: Millis, limit: int) -> list[tuple[str, str]]:
        """The first members, group and client id, whose time is over."""
        ended: list[tuple[str, str]] = []
        for key, member in self._members.items():
            if member.until > now or len(ended) == limit:
                break
            ended.append(key)
        return ended

    def paused(self, duration: Millis, *, now: Millis) -> None:
        """Do not count this time, once for each member: the broker did not run, so nobody could come back."""
        for (group, client_id), member in self._members.items():
            if not member.extended:
                member.until = min(Millis(member.until + duration), Millis(now + self._keep_ms))
                member.extended = True
                for topic, tags in member.topics.items():
                    self._filters[group][topic].clients[tags][client_id] = member.until
        self._members = dict(sorted(self._members.items(), key=lambda item: item[1].until))

    def filters(self, group: str, topic: str) -> LostFilters | None:
        topics = self._filters.get(group)
        return None if topics is None else topics.get(topic)

    def widest(self, group: str, topic: str) -> Tags | None:
        filters = self.filters(group, topic)
        return None if filters is None else filters.widest

    def groups(self, topic: str) -> list[str]:
        """The groups that have lost a member which read this topic."""
        return [group for group, topics in self._filters.items() if topic in topics]

    def topics(self, group: str) -> tuple[str, ...]:
        return tuple(self._filters.get(group, ()))

    def of_member(self, group: str, client_id: str) -> Iterator[LostFilter]:
        member = self._members[group, client_id]
        for topic, tags in member.topics.items():
            yield LostFilter(group, topic, client_id, tags, member.until)

    def last(self, group: str, topic: str, tags: Tags) -> LostFilter:
        """The member with this filter of a topic that was lost last."""
        client_id, until = self._filters[group][topic].last(tags)
        return LostFilter(group, topic, client_id, tags, until)

    def members(self) -> list[tuple[str, str]]:
        """Group and client id of every lost member."""
        return list(self._members)

    def _remove_filter(self, group: str, topic: str, client_id: str, tags: Tags) -> None:
        topics = self._filters[group]
        before = topics[topic].widest
        topics[topic].remove(client_id, tags)
        if topics[topic].widest != before:
            self._rows.changed(group, topic)
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._filters[group]
