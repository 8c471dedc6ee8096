"""One group: its members, their subscriptions, and counts of them.

The counts answer what every heartbeat and every request for members asks, without a look at each member.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, TypeVar

from lanemq.core.brokering.members.filter_rows import FilterRows
from lanemq.core.brokering.members.lost_members import LostMembers
from lanemq.core.brokering.members.tag_filters import Tags, TopicFilters, contains
from lanemq.model.names import RETRY_PREFIX

SUBSCRIPTION_BYTES, TAG_BYTES, CODE_BYTES = 600, 150, 100
"""Memory of a subscription, and of each of its tags and tag codes, beside their characters."""

ConnectionId = NewType("ConnectionId", int)

K = TypeVar("K")


class GroupSubscription(NamedTuple):
    """A group's subscription to one topic."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    tags: frozenset[str] = frozenset()
    tag_codes: frozenset[int] = frozenset()
    ordered: bool | None = None
    """Whether the member's queues need a lease; None from a stock client, which does not say, and in broadcasting."""
    shared: bool = True
    """False in broadcasting, where every member reads all queues."""

    @property
    def is_compared(self) -> bool:
        """Whether its filter is compared with those of other members. The broker filters by tags only, and refuses
        pulls with other filters."""
        return self.shared and self.expression_type in ("TAG", "")

    @property
    def bytes(self) -> int:
        """About how much memory it takes. One of 128 KiB with short tags takes megabytes."""
        tags = TAG_BYTES * len(self.tags) + sum(map(len, self.tags)) if self.tags else 0
        return SUBSCRIPTION_BYTES + len(self.expression) + tags + CODE_BYTES * len(self.tag_codes)


class GroupHeartbeat(NamedTuple):
    """One group in a heartbeat. The three texts are wire values, kept for operators."""

    subscriptions: tuple[GroupSubscription, ...]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    from_where: str = "CONSUME_FROM_LAST_OFFSET"


@dataclass(slots=True)
class Group:
    """A group. It exists only while it has a member, and a member only while it has a connection.

    The counts are kept with every change, so that a heartbeat costs by what it names and not by the number of members.
    """

    name: str
    latest: GroupHeartbeat
    lost: LostMembers
    rows: FilterRows
    members: dict[str, set[ConnectionId]] = field(default_factory=dict)
    topics: dict[str, dict[str, GroupSubscription]] = field(default_factory=dict)
    """Client id → topic → subscription."""
    subscribers: dict[str, int] = field(default_factory=dict)
    """Topic → how many members subscribe to it."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Number of topics → how many members have that many."""
    kinds: dict[tuple[str, bool], int] = field(default_factory=dict)
    """(topic, ordered) → how many members consume it that way."""
    only: dict[bool, int] = field(default_factory=dict)
    """How many members consume all their topics in order (True), and how many none of them (False)."""
    filters: dict[str, TopicFilters] = field(default_factory=dict)
    """Topic → the tag filters of its members; none is empty."""

    def subscribe(self, client_id: str, named: Iterable[GroupSubscription]) -> bool:
        """Take a member's subscriptions from its heartbeat; True if that may move queues.

        Queues move with the set of its topics, and with the tags of a LaneMQ member.
        """
        held = self.topics.get(client_id)
        wanted = {subscription.topic: subscription for subscription in named}
        if held == wanted:
            return False
        taken = dict(wanted)
        for topic, known in (held or {}).items():
            if topic in wanted and wanted[topic].version <= known.version:
                taken[topic] = known
        if held is not None:
            self._count(held, -1)
        self.topics[client_id] = taken
        self._count(taken, 1)
        return held is None or _moves_queues(held, taken)

    def leave(self, client_id: str) -> None:
        del self.members[client_id]
        self._count(self.topics.pop(client_id), -1)

    def _count(self, topics: Mapping[str, GroupSubscription], by: int) -> None:
        add_count(self.sizes, len(topics), by)
        for topic, subscription in topics.items():
            add_count(self.subscribers, topic, by)
            if subscription.ordered is not None:
                add_count(self.kinds, (topic, subscription.ordered), by)
            if subscription.is_compared:
                self._count_filter(topic, subscription, by)
        kind = only_kind(topics.values())
        if kind is not None:
            add_count(self.only, kind, by)

    def _count_filter(self, topic: str, subscription: GroupSubscription, by: int) -> None:
        filters = self.filters.setdefault(topic, TopicFilters())
        if subscription.ordered is None:
            filters.add_stock(subscription.tags, by)
        else:
            before = filters.widest
            (filters.add if by > 0 else filters.remove)(subscription.tags)
            if filters.widest != before:
                self.rows.changed(self.name, topic)
        if not filters:
            del self.filters[topic]

    def widest(self, topic: str) -> Tags | None:
        """The filter, of a LaneMQ member or a lost one, that selects all that others select."""
        lost, filters = self.wider_lost(topic), self.filters.get(topic)
        if lost is not None:
            return lost
        return None if filters is None else filters.widest

    def wider_lost(self, topic: str) -> Tags | None:
        """The widest filter of lost members, if present members select less."""
        lost, filters = self.lost.widest(self.name, topic), self.filters.get(topic)
        live = None if filters is None else filters.widest
        return lost if lost is not None and live is not None and not contains(live, lost) else None

    def waits(self, subscription: GroupSubscription) -> bool:
        """Whether a member gets no queue of the topic, because another one has a wider filter."""
        return (
            subscription.ordered is not None
            and subscription.is_compared
            and subscription.tags != self.widest(subscription.topic)
        )

    def misfit(self, client_id: str, subscription: GroupSubscription) -> Tags | None:
        """A filter of another member with which the subscription cannot share its topic."""
        filters = self.filters.get(subscription.topic)
        if filters is None or subscription.ordered is None or not subscription.is_compared:
            return None
        own = self.topics.get(client_id, {}).get(subscription.topic)
        counts = own is not None and own.ordered is not None and own.is_compared
        return filters.misfit(subscription.tags, own.tags if own is not None and counts else None)

    def may_conflict(self, client_id: str, mine: Mapping[str, GroupSubscription]) -> bool:
        """Whether the counts leave room for a conflict with another member; `Membership.conflict` looks for it."""
        own = self.topics.get(client_id, {})
        for topic, subscription in mine.items():
            if subscription.ordered is not None:
                other = not subscription.ordered
                others = self.kinds.get((topic, other), 0)
                if others and others > (topic in own and own[topic].ordered is other):
                    return True
        if not self.only:
            return False
        kind = only_kind(mine.values())
        others = 0 if kind is None else self.only.get(not kind, 0)
        return others > 0 and others > (only_kind(own.values()) is (not kind))

    @property
    def has_concurrent(self) -> bool:
        """Whether a member consumes a topic concurrently."""
        return any(not ordered for _, ordered in self.kinds)

    @property
    def is_covered(self) -> bool:
        """Whether a member subscribes to every topic of the group."""
        return len(self.subscribers) in self.sizes

    def with_all_topics(self) -> list[str]:
        """The members that subscribe to every topic of the group, and wait for none of them if there are such.

        None of them if they wait for a lost member, who will be back or is given up.
        """
        clients = [client for client, topics in self.topics.items() if len(topics) == len(self.subscribers)]
        is_lost = any(self.wider_lost(topic) is not None for topic in self.lost.topics(self.name))
        if not is_lost and not any(len(filters.counts) > 1 for filters in self.filters.values()):
            return clients
        ready = [client for client in clients if not any(map(self.waits, self.topics[client].values()))]
        return ready if ready or is_lost else clients

    def newest(self, topic: str) -> GroupSubscription | None:
        """The subscription to a topic with the highest version."""
        subscriptions = [topics[topic] for topics in self.topics.values() if topic in topics]
        return max(subscriptions, key=lambda each: each.version, default=None)


def add_count(counts: dict[K, int], key: K, by: int) -> None:
    """Change a count; no zeros are kept."""
    count = counts.get(key, 0) + by
    if count:
        counts[key] = count
    else:
        del counts[key]


def _moves_queues(held: Mapping[str, GroupSubscription], taken: Mapping[str, GroupSubscription]) -> bool:
    return held.keys() != taken.keys() or any(
        taken[topic].ordered is not None and taken[topic].tags != known.tags for topic, known in held.items()
    )


def has_filter(topics: Mapping[str, GroupSubscription], topic: str, tags: Tags) -> bool:
    subscription = topics.get(topic)
    return subscription is not None and subscription.ordered is not None and subscription.tags == tags


def only_kind(subscriptions: Iterable[GroupSubscription]) -> bool | None:
    """True or False if all of them are ordered, or none is; None if both occur, or a stock client does not say."""
    kinds = {each.ordered for each in subscriptions if not each.topic.startswith(RETRY_PREFIX)}
    return kinds.pop() if len(kinds) == 1 else None
